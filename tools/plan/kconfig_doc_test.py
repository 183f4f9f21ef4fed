#!/usr/bin/env python3
"""Tests of tools/plan/kconfig_doc.py: the reference has every symbol a user can set, once."""
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import kconfig, kconfig_doc
from tools.testing import tap


class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = kconfig.Tree()
        cls.text = kconfig_doc.reference(cls.tree)

    def test_every_item_with_a_prompt_is_there_once(self):
        for item in self.tree.items():
            places = sum(1 for node in item.nodes if node.prompt)
            self.assertEqual(self.text.count(f"**CONFIG_{item.name}** "), places, item.name)

    def test_every_help_text_is_there_whole(self):
        text = " ".join(self.text.split())
        for node in self.tree.node_iter():
            if node.prompt and getattr(node, "help", None):
                self.assertTrue(" ".join(node.help.split()) in text, node.help)

    def test_defaults_types_and_needs(self):
        for line in ("(integer; 1 to 1024; default `12` if SCALE_124M, else `9` if SCALE_30M, "
                     "else `6` if SCALE_SMALL, else `5` if SCALE_1M, else `4`)",
                     "**CONFIG_ATTENTION** Attention (a choice; default `dot`)",
                     "**CONFIG_NORM_EPS** Epsilon of the norms (number; default `\"1e-5\"`)",
                     "Needs FFN_WS and WS_AUX."):
            self.assertIn(line, self.text)


if __name__ == "__main__":
    tap.main()
