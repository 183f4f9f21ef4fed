#!/usr/bin/env python3
"""Every fuzzer, a few seconds each from the seeds in data/fuzz: it builds, runs and finds nothing.

FUZZ_SECONDS and FUZZ_RUNS ask for more; tools/data/fuzz_soaktest.py does.
"""
import os
import re
import shutil
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap

FUZZERS = sorted(path.stem for path in as_user.ROOT.rglob("*_fuzz.c")
                 if "build" not in path.relative_to(as_user.ROOT).parts[0])
SECONDS = 3
FEWEST = 100    # inputs in that time, of the slowest parser on a busy machine


def fuzz(**settings):
    """Inputs that each fuzzer tried; AssertionError with its words if one found something."""
    done = as_user.make(f"-j{os.cpu_count()}", "fuzz", *(f"{name}={value}" for name, value in settings.items()))
    said = done.stdout + done.stderr
    if done.returncode:
        raise AssertionError(said[-5000:])
    names = re.findall(r"^(\w+_fuzz)$", said, re.M)
    counts = map(int, re.findall(r"stat::number_of_executed_units: ([0-9]+)", said))
    return dict(zip(names, counts, strict=True))


class Fuzzers(unittest.TestCase):
    def test_every_one_has_seeds(self):
        self.assertGreater(len(FUZZERS), 6)
        self.assertEqual(sorted(os.listdir(as_user.ROOT / "data/fuzz")), FUZZERS)

    @unittest.skipUnless(shutil.which("clang"), "there is no clang")
    def test_nothing_is_found(self):
        tried = fuzz(FUZZ_SECONDS=SECONDS)
        self.assertEqual(sorted(tried), FUZZERS)
        for name, count in tried.items():
            print(f"# {name}: {count} inputs")
            self.assertGreater(count, FEWEST, name)


if __name__ == "__main__":
    tap.main()
