#!/usr/bin/env python3
"""Samples of the tasks that tools/results/run_program_test.py leaves out."""
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.results import run_program_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class OtherTasks(run_program_test.Tasks):
    tasks = sorted(set(run_program_test.ALPHABET) - set(run_program_test.Tasks.tasks))


class Compression(unittest.TestCase):
    """Its model reconstructs a row, so it has no sample."""

    def test_is_refused(self):
        run = run_program_test.Run(run_program_test.program("smoke+task-compression", **run_program_test.FEW))
        run.train()
        said = run_program_test.generate(run, f"RUN={run.directory}", expect=2)
        self.assertIn("reconstructs a row that is complete, and predicts no next token", said)
        self.assertEqual(run.ask("SELECT text FROM events WHERE kind = 'sample'"), [])


if __name__ == "__main__":
    tap.main()
