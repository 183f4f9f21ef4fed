#!/usr/bin/env python3
"""All of what tools/kablate/gpu_fault_longtest.py makes a sample of: every call fails once in every way; 100 kills.

FAULT_WORKERS= and FAULT_PART= as for fault_soaktest.py.
"""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import gpu_fault_longtest, train_test
from tools.kablate.fault_soaktest import PART, PARTS, WORKERS
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class EveryCall(gpu_fault_longtest.FailingCalls):
    most_audited = 50
    workers = WORKERS

    def choose(self, kind, total):
        return super().choose(kind, total) if self.most == self.most_audited else range(PART, total + 1, PARTS)


class ManyKills(gpu_fault_longtest.Shared):
    kills = 100


if __name__ == "__main__":
    tap.main()
