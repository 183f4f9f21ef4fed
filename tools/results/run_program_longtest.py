#!/usr/bin/env python3
"""Samples of the tasks that tools/results/run_program_test.py leaves out."""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.results import run_program_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class OtherTasks(run_program_test.Tasks):
    tasks = sorted(set(run_program_test.ALPHABET) - set(run_program_test.Tasks.tasks))


if __name__ == "__main__":
    tap.main()
