#!/usr/bin/env python3
"""The model of scaling: what it must say, and that docs/scaling.md shows what it says."""
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.bench import scaling_model as model
from tools.testing import tap
from tools.testing.as_user import ROOT

MACHINE = model.Machine(model.MEASURED_TOKENS * model.MODELS[0].flops, model.NIC)
TOKENS = 1 << 19


class Scaling(unittest.TestCase):
    def test_one_gpu_is_what_was_measured(self):
        update = MACHINE.update(model.MODELS[0], 1, TOKENS, "direct")
        self.assertEqual((update.exchange, update.gather), (0, 0))
        self.assertAlmostEqual(TOKENS / update.total / model.MEASURED_TOKENS, 1, delta=1e-3)

    def test_counts_the_parameters_of_gpt2(self):
        """124,439,808 with the biases, which the model leaves out, and a vocabulary of 50257."""
        self.assertAlmostEqual(model.MODELS[0].parameters / 124439808, 1, delta=2e-3)

    def test_more_gpus_are_faster_and_less_efficient(self):
        """(Not by a ring, whose messages come one after the other, nor where a GPU is too small: there rows go singly.)"""
        for arm in model.MODELS:
            for how in ("direct", "tree"):
                times = {gpus: MACHINE.update(arm, gpus, TOKENS, how).total for gpus in model.GPUS if
                         model.memory(arm, gpus, model.rows_that_fit(arm, gpus, TOKENS)) <= model.GPU_BYTES}
                self.assertEqual([*times.values()], sorted(times.values(), reverse=True), (arm, how))
                work = [time * gpus for gpus, time in times.items()]
                self.assertEqual(work, sorted(work), (arm, how))

    def test_the_page_shows_what_it_prints(self):
        page = (ROOT / "docs/scaling.md").read_text().partition("\n## A model of more")[2]
        shown = [line for line in page.splitlines() if line.startswith("| ") and line.endswith(" |")]
        self.assertGreater(len(shown), 10)
        printed = list(model.table(MACHINE, TOKENS))
        for line in shown:
            self.assertIn(line, printed)


if __name__ == "__main__":
    tap.main()
