#!/usr/bin/env python3
"""tools/testing/parsers_longtest.py with a hundred thousand inputs for each parser.

(An input takes 0.1 to 10 ms, so the ten million of the fuzzers in C would take days.)
"""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import parsers_longtest, tap

INPUTS = 10**5


class Soak(parsers_longtest.Parsers):
    inputs = INPUTS


if __name__ == "__main__":
    tap.main()
