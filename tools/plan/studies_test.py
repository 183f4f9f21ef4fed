#!/usr/bin/env python3
"""The declared studies are what they promise, and the list counts their runs."""
import os
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import kconfig, studies, tuning
from tools.plan.plan_words import numbers
from tools.testing import tap

LARGE = "gpt2-ra-mla-sizes"         # declares looks and rates of its own
OLD_SEEDS = set(range(1, 9))        # of the runs before
FINEST = 1.6        # ratio of neighbouring rates


class Studies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tree = kconfig.Tree()
        cls.values = {}
        for name in kconfig.names_in(kconfig.DEFCONFIGS):
            if studies.declares(tree, name) and name != LARGE:
                tree.merge(tree.read(os.path.join(kconfig.DEFCONFIGS, name)))
                cls.values[name] = tree.values()

    def test_the_small_studies(self):
        self.assertEqual(set(self.values), {
            "attention-ratio", "gpt2-ra-mla-controlled", "gpt2-vanilla-vs-mla", "mad-fuzzy", "mla-forms",
            "mla-latent", "precision", "pruning", "ra-controls", "ra-mechanisms", "ra-optimizer", "ra-score", "ra-sparsity",
            "ra-tying", "rivals", "w2-copy", "w2-cov", "w2-quick-start", "w2-text", "wsffn"})

    def test_seeds_looks_and_margins(self):
        for name, values in self.values.items():
            with self.subTest(name):
                self.assertEqual(values["LOOKS"], "8,20,60")
                seeds = set(numbers("SEEDS", values["SEEDS"]))
                self.assertEqual(len(seeds), 8)
                self.assertTrue(seeds.isdisjoint(OLD_SEEDS))
                self.assertTrue(values["PRIMARY"])
                self.assertEqual(values["MARGIN"], "0.05" if name == "mad-fuzzy" else "0.01")

    def test_rates(self):
        for name, values in self.values.items():
            with self.subTest(name):
                tuned = set(numbers("TUNE_SEEDS", values["TUNE_SEEDS"]))
                self.assertGreaterEqual(len(tuned), tuning.LEAST_GROUPED)
                later = range(201, 261)     # those of every look
                self.assertTrue(tuned.isdisjoint(later))
                rates = [float(rate) for rate in tuning.rates(values["TUNE_RATES"])]
                self.assertGreaterEqual(len(rates), 5)
                self.assertLess(max(b / a for a, b in zip(rates, rates[1:])), FINEST)

    def test_a_study_is_counted(self):
        with mock.patch.dict(os.environ):
            found = studies.study("ra-tying")
        self.assertEqual((found.arms, found.tuning, found.runs), (5, 5 * 5 * 6, {8: 40, 20: 100, 60: 300}))
        told = list(studies.lines([found]))
        self.assertEqual(told[1], "  5 arms; primary: steps; margin 0.01; 150 runs to tune; 40 runs at 8 seeds, "
                                  "100 runs at 20 seeds, 300 runs at 60 seeds")
        self.assertEqual(told[2], "1 study, 450 runs with every look")


if __name__ == "__main__":
    tap.main()
