#!/usr/bin/env python3
"""Tests of tools/plan/compared.py: the line that says what is compared."""
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import compared, kconfig
from tools.testing import tap


class Line(unittest.TestCase):
    def line(self, *changes):
        """The defaults with these changes, a step each."""
        default = kconfig.Tree().values()
        return compared.line([default | change for change in changes])

    def test_default(self):
        self.assertEqual(self.line({}), "dot attention, learned positions, LayerNorm, GELU, 4 x 64, "
                                        "AdamW 3e-3, language")

    def test_what_steps_do_not_share(self):
        said = self.line({}, {"ATTENTION": "mla", "NORM": "rms"}, {"NORM_PLACE": "post"},
                         {"ATTENTION": "cos", "POS": "rope", "MODEL_EMBD": "96", "LEARNING_RATE": "1"})
        self.assertEqual(said, "dot, MLA or cos attention, learned positions or rope, LayerNorm, RMSNorm "
                               "or post-LayerNorm, GELU, 4 x 64 or 4 x 96, AdamW 3e-3 or 1, language")

    def test_optimizers(self):
        self.assertIn(", AdamW 3e-3 or Muon 2e-2, ",
                      self.line({}, {"OPTIMIZER": "muon", "MUON_LEARNING_RATE": "2e-2"}))
        self.assertIn(", SGD 3e-3, ", self.line({"OPTIMIZER": "sgd"}))

    def test_mechanisms(self):
        gate, cross = {"RA_MLA_MLP_ATTN_GATE": "y"}, {"RA_MLA_MLP_CROSS_TOKEN": "y"}
        self.assertIn("GELU, head gating, 4 x 64", self.line(gate, gate))
        self.assertIn("GELU, head gating, with or without cross-token aggregation, 4 x 64",
                      self.line(gate, gate | cross))
        self.assertIn("GELU, with or without head gating, cross-token aggregation, 4 x 64",
                      self.line({}, gate, cross))

    def test_symbols_that_no_part_names(self):
        heads = [{"MODEL_HEADS": value} for value in ("2", "8", "16")]
        self.assertTrue(self.line(*heads).endswith(", language, MODEL_HEADS 2, 8 or 16"))
        # What only one step has, and a rate that follows another, are no differences of their own.
        self.assertTrue(self.line({}, {"RA_MLA_LATENT_DIM": "8", "MIN_LEARNING_RATE": "1"}).endswith(", language"))
        many = {f"S{i}": "1" for i in range(6)}
        self.assertTrue(self.line(many, dict.fromkeys(many, "2")).endswith(", S3 1 or 2, 2 more symbols"))

    def test_records_of_other_programs(self):
        """They may lack symbols."""
        self.assertEqual(compared.line([{"TASK": "copy"}]), "copy")
        self.assertEqual(compared.line([]), "")


if __name__ == "__main__":
    tap.main()
