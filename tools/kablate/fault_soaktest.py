#!/usr/bin/env python3
"""All cases of which tools/kablate/fault_longtest.py runs a sample, and again under sanitizers.

Every allocation and every call to the disk fails once; 100 kills.  Sanitizers have an allocator
of their own, so there the calls of our sources alone go through fault.c, by --wrap.

As many runs at once as there are processors, or as FAULT_WORKERS says.  FAULT_PART=2/5 is the
second fifth of the calls: for several machines, or several nights.
"""
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import fault_longtest, train_test
from tools.kablate.fault_longtest import FAULT_C, SETTINGS
from tools.kablate.train_test import OUTPUT, ROOT, Tree
from tools.testing import tap

tearDownModule = train_test.tearDownModule

WRAPPED = ("malloc calloc realloc aligned_alloc open open64 fopen fopen64 write pwrite pwrite64 fflush "
           "fclose fsync fdatasync rename mkdir ftruncate").split()


PART, PARTS = map(int, os.environ.get("FAULT_PART", "1/1").split("/"))
WORKERS = int(os.environ.get("FAULT_WORKERS", len(os.sched_getaffinity(0))))


class EveryFault(fault_longtest.Faults):
    steps = {"memory": 1, "disk": 1}
    workers = WORKERS

    def choose(self, kind, total):
        return range(PART, total + 1, PARTS)


class ManyKills(fault_longtest.Kills):
    kills = 100


class FaultsWithSanitizers(fault_longtest.Faults):
    """Leaks on the way out of a failure are no fault: the process ends."""
    steps = {"memory": 1, "disk": 1}
    workers = WORKERS

    @classmethod
    def make_binary(cls):
        fault = ROOT / "fault.o"
        subprocess.run(["cc", "-std=gnu17", "-O1", "-DWRAPPED", "-c", "-o", fault, FAULT_C],
                       check=True)
        flags = ",".join(f"--wrap={name}" for name in WRAPPED)
        tree = Tree(ROOT / "sanitized", "smoke", SETTINGS)
        tree.make(f"O={OUTPUT}-fault", "SANITIZE=address,undefined", "CFLAGS=-O1 -g",
                  f"LDFLAGS=-Wl,{flags} {fault}", "-j2", "steps", timeout=3600)
        return tree.plan / "0-baseline" / "kablate"

    def preloaded(self):
        return {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}


if __name__ == "__main__":
    tap.main()
