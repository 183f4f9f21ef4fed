#!/usr/bin/env python3
"""Every fuzzer with ten million inputs, beginning from the seeds in data/fuzz."""
import shutil
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.data.fuzz_longtest import fuzz
from tools.testing import tap

INPUTS = 10**7


class Soak(unittest.TestCase):
    @unittest.skipUnless(shutil.which("clang"), "there is no clang")
    def test_ten_million_inputs(self):
        for name, count in fuzz(FUZZ_RUNS=INPUTS).items():
            print(f"# {name}: {count} inputs")
            self.assertGreaterEqual(count, INPUTS, name)


if __name__ == "__main__":
    tap.main()
