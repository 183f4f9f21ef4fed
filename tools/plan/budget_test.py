#!/usr/bin/env python3
"""Tests of tools/plan/budget.py and token_files.py: what fits into a time, and what token files hold."""
import os
import pathlib
import struct
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import budget, token_files
from tools.testing import tap


def run(step, seed):
    return {"kind": "run", "step": step, "of": step, "seed": seed, "directory": f"e/{step}-{seed}", "identity": f"{step}{seed}",
            "experiment": "e"}


PLANNED = [run(step, seed) for seed in (1, 2) for step in ("0-a", "1-b")]


class Fitting(unittest.TestCase):
    def chosen(self, seconds, jobs=1, takes=(60, 60, 60, 60)):
        return len(budget.fitting(list(zip(PLANNED, takes)), seconds, jobs))

    def test_time(self):
        self.assertEqual([self.chosen(seconds) for seconds in (-1, 59, 60, 179, 240, 999)], [0, 0, 1, 2, 4, 4])
        self.assertEqual([self.chosen(seconds, 2) for seconds in (59, 60, 119, 120)], [0, 2, 2, 4])

    def test_a_later_run_does_not_overtake(self):
        self.assertEqual(self.chosen(130, takes=(60, 100, 10, 10)), 1)
        self.assertEqual(self.chosen(130, takes=(60, None, 10, 10)), 1)

    def test_sentence(self):
        with tempfile.TemporaryDirectory() as runs:
            os.makedirs(os.path.join(runs, "e/0-a-1"))
            pathlib.Path(runs, "e/0-a-1/done").touch()
            waiting = [(one, 60) for one in PLANNED if not budget.ended(runs, one)]
            self.assertEqual(len(waiting), 3)
            said = budget.sentence(PLANNED, waiting, waiting[:2], 2, runs)
        self.assertIn("2 of 3 runs fit into 2 minutes; 1-b seed 2", said)
        self.assertTrue(said.endswith("then complete: seed 1"), said)
        self.assertIn("0 of 1 runs fit into 1 minute;", budget.sentence(PLANNED, [(PLANNED[0], 90)], [], 1, "."))
        self.assertEqual(budget.sentence(PLANNED, [], [], 2, "."), "all runs have ended")

    def test_stand_ins(self):
        plan = {"steps": [{"name": "0-a", "repeats": None, "null": None, "candidates": ["0-a@1e-3"]},
                          {"name": "1-a-again", "repeats": "0-a", "null": None, "candidates": []}]}
        with tempfile.TemporaryDirectory() as place:
            step = pathlib.Path(place, "0-a@1e-3")
            step.mkdir()
            (step / "estimate.json").write_text('{"seconds_per_token": 0.5}')
            (step / "config").write_text("\n".join(f"CONFIG_{name}={value}" for name, value in {
                "TRAIN_BATCH": 2, "TRAIN_ACCUMULATE": 1, "MODEL_BLOCK": 3, "GPT2_MAX_ITERS": 10, "TRAIN_TOKENS_BUDGET": 0,
                "EVAL_INTERVAL": 10, "EVAL_LENGTHS": '""', "EVAL_ROWS": 0, "TRAIN_SECONDS_BUDGET": 0}.items()))
            found = budget.estimated_as(place, "1-a-again", "1-a-again", budget.stand_ins(plan))
            self.assertAlmostEqual(found, 30 + budget.START)
            self.assertIsNone(budget.estimated_as(place, "2-b", "2-b", budget.stand_ins(plan)))


class TokenFiles(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        self.values = {"TASK": "text", "MODEL_BLOCK": "10", "EVAL_ROWS": "8", "DATA_TRAIN": f"{self.dir}/train-*.bin",
                       "DATA_VALID": f"{self.dir}/valid.bin"}

    def notes(self, updates=1):
        return token_files.notes(self.values, updates, 10)

    def test_notes(self):
        self.assertEqual(len(self.notes()), 2)
        self.assertIn("no such files", self.notes()[0])
        for i in range(2):
            (self.dir / f"train-{i}.bin").write_bytes(struct.pack("<256i", 20240520, 1, 50, *[0] * 253) + b"\0" * 100)
        (self.dir / "valid.bin").write_bytes(b"\0" * 2 * 80)
        note, = self.notes()
        self.assertIn("EVAL_ROWS=8:", note)
        self.assertIn("holds 7 rows of 10 tokens, so no run can start", note)
        (self.dir / "valid.bin").write_bytes(b"\0" * 2 * 81)
        self.assertEqual(self.notes(10), [])
        self.assertIn("reads 110 tokens of 100", self.notes(11)[0])
        self.values["TASK"] = "language"
        self.assertEqual(self.notes(11), [])


if __name__ == "__main__":
    tap.main()
