#!/usr/bin/env python3
"""Tests of tools/plan/factors.py: symbols with several values in one line, and what is refused."""
import sys
import unittest

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.plan import factors, kconfig
from tools.testing import tap


class Words(unittest.TestCase):
    def test_words(self):
        self.assertEqual(factors.words("NORM=layer|rms; MODEL_HEADS=2|8|16"),
                         ["NORM=layer|NORM=rms", "MODEL_HEADS=2|MODEL_HEADS=8|MODEL_HEADS=16"])
        self.assertEqual(factors.words(" CONFIG_NORM = layer | rms ;"), ["NORM=layer|NORM=rms"])
        self.assertEqual(factors.words("per:TASK=copy|recall"), ["per:TASK=copy|TASK=recall"])
        self.assertEqual(factors.words("ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8"),
                         ["ATTENTION=dot|ATTENTION=mla+RA_MLA_LATENT_DIM=8"])
        self.assertEqual(factors.words(""), [])

    def test_names(self):
        self.assertEqual(factors.name_of("RA_MLA_LATENT_DIM=8"), "ra-mla-latent-dim-8")


class Problems(unittest.TestCase):
    """Each is one sentence that names symbol, value and what the symbol takes."""

    @classmethod
    def setUpClass(cls):
        cls.tree = kconfig.Tree()

    def test_fine(self):
        for text in ("", "NORM=layer|rms", "MODEL_BIAS=y|n", "MODEL_HEADS=1|1024", "DROPOUT=0|.1|1e-1",
                     "ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8+gate", "TRAIN_BATCH=4|8; NORM=layer|rms"):
            self.assertIsNone(factors.problem(self.tree, text))

    def test_values(self):
        for text, said in (
                ("NORM=layer|batch", "NORM takes layer or rms, not 'batch'"),
                ("NORM=layer|", "NORM takes layer or rms, not ''"),
                ("ATTENTION=dot|mlla", "ATTENTION takes dot, mla or w2, not 'mlla'"),
                ("MODEL_BIAS=y|yes", "MODEL_BIAS takes y or n, not 'yes'"),
                ("MODEL_HEADS=2|x", "MODEL_HEADS takes integers from 1 to 1024, not 'x'"),
                ("MODEL_HEADS=2|2.0", "MODEL_HEADS takes integers from 1 to 1024, not '2.0'"),
                ("MODEL_HEADS=2|1025", "MODEL_HEADS takes integers from 1 to 1024, not '1025'"),
                ("DROPOUT=0|1", "DROPOUT takes numbers x with 0 <= x < 1, not '1'"),
                ("DROPOUT=0|much", "DROPOUT takes numbers x with 0 <= x < 1, not 'much'"),
                ("CROSS_ALPHA=0|much", "CROSS_ALPHA takes numbers, not 'much'"),
                ("EVAL_LENGTHS=8|0", "EVAL_LENGTHS takes a list of numbers x with 1 <= x, not '0'"),
                ("ATTENTION=dot|mla+RA_MLA_LATENT_DIM=a",
                 "RA_MLA_LATENT_DIM takes integers from 1 to 65536, not 'a'"),
                ("INIT_FROM=a|b/c", "INIT_FROM=b/c: a value in a plan has letters, digits and ._-; write "
                                    "any other value into a fragment")):
            self.assertEqual(factors.problem(self.tree, text), said)

    def test_symbols(self):
        for text, said in (
                ("NORMS=layer|rms", "there is no symbol CONFIG_NORMS; did you mean NORM"),
                ("NORM_RMS=y|n", "NORM_RMS is a value of NORM: write NORM=rms"),
                ("SEEDS=1|2", "SEEDS: a step cannot change what only the tools read")):
            self.assertIn(said, factors.problem(self.tree, text))

    def test_form(self):
        for text, said in (
                ("NORM", "'NORM' is no factor, which is written as NORM=layer|rms"),
                ("gate|cross", "'gate|cross' is no factor"),
                ("NORM=rms", "NORM has a single value; a factor has several"),
                ("NORM=layer|rms; NORM=rms|layer", "NORM occurs twice")):
            self.assertIn(said, factors.problem(self.tree, text))

    def test_nothing_that_make_or_a_shell_reads(self):
        for value in ("$(shell touch trap)", "`touch trap`", "a'b", 'a"b', "a b", "a#b", "a\\", "a&b"):
            self.assertIsNotNone(factors.problem(self.tree, f"INIT_FROM=a|{value}"))


if __name__ == "__main__":
    tap.main()
