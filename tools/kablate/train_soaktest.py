#!/usr/bin/env python3
"""The memory of a whole GPT-2; tools/kablate/train_longtest.py takes some of its layers and half its block."""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_longtest, train_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class Memory(train_longtest.Memory):
    layers = 12
    block = 1024


if __name__ == "__main__":
    tap.main()
