#!/usr/bin/env python3
"""Every declared study has a plan without an error."""
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap


class Planned(unittest.TestCase):
    def test_all(self):
        files = [path for path in (as_user.ROOT / "defconfigs").iterdir() if path.is_file()]
        declared = sum("CONFIG_MARGIN=" in path.read_text() for path in files)
        told = as_user.make("studies").stdout
        self.assertRegex(told, rf"\n{declared} studies, [0-9]+,[0-9]{{3}} runs with every look\n$")


if __name__ == "__main__":
    tap.main()
