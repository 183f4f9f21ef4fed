#!/usr/bin/env python3
"""The version is one: of the program, at the top of the changes, in the citation."""
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate.train_test import ENVIRONMENT, OUTPUT, TREE, program
from tools.testing import tap


class Version(unittest.TestCase):
    def test_the_program_says_what_it_is(self):
        text = subprocess.run([program(), "--version"], check=True, capture_output=True,
                              text=True).stdout
        self.assertRegex(text, r"^kablate \d+\.\d+\nrevision (unknown|[0-9a-f]{7,}(-dirty)?)\n"
                               r"compiler .*\d.*, -std=gnu17 .*\nBLAS .*\d.*\nbackend cpu\n$")
        version = text.split()[1]
        changes = (TREE / "docs/CHANGELOG.md").read_text()
        self.assertEqual(re.search(r"^## (\S+),", changes, re.M)[1], version)
        citation = (TREE / "docs/CITATION.cff").read_text()
        self.assertEqual(re.search(r'^version: "(.*)"$', citation, re.M)[1], version)

    def test_the_revision_is_no_part_of_the_identity(self):
        """A commit that changes no source that is compiled makes no other runs."""
        def identity(binary):
            return subprocess.run([binary, "identity"], check=True, cwd=TREE, capture_output=True,
                                  text=True).stdout
        binary = program()
        before = identity(binary)
        stamp = binary.parent / "build_info.o"
        stamp.unlink()
        place = binary.parents[2]
        subprocess.run(["make", "-s", f"O={OUTPUT}", f"PLAN={place}/plan", f"RUNS={place}/runs",
                        f"KCONFIG_CONFIG={place}/config", "revision=0123456789ab", "steps"],
                       cwd=TREE, env=ENVIRONMENT, check=True, timeout=300)
        text = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
        self.assertIn("revision 0123456789ab\n", text.stdout)
        self.assertEqual(identity(binary), before)


if __name__ == "__main__":
    tap.main()
