#!/usr/bin/env python3
"""Every step of every defconfig; tools/kablate/defconfigs_longtest.py runs some of them."""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import defconfigs_longtest, train_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class EveryStep(defconfigs_longtest.Defconfigs):
    most = 1000
    sizes = {}
    wide = sys.maxsize
    left_out = ""
    longest = 400


if __name__ == "__main__":
    tap.main()
