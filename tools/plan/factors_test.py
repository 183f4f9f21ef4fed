#!/usr/bin/env python3
"""Tests of tools/plan/factors.py: symbols with several values in one line, their plans, and what is refused."""
import os
import re
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import factors, kconfig
from tools.plan.plan_test import PLAN, PlanCase
from tools.testing import tap


class Words(unittest.TestCase):
    def test_words(self):
        self.assertEqual(factors.words("NORM=layer|rms; MODEL_HEADS=2|8|16"),
                         ["NORM=layer|NORM=rms", "MODEL_HEADS=2|MODEL_HEADS=8|MODEL_HEADS=16"])
        self.assertEqual(factors.words(" CONFIG_NORM = layer | rms ;"), ["NORM=layer|NORM=rms"])
        self.assertEqual(factors.words("per:TASK=copy|recall"), ["per:TASK=copy|TASK=recall"])
        self.assertEqual(factors.words("ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8"),
                         ["ATTENTION=dot|ATTENTION=mla+RA_MLA_LATENT_DIM=8"])
        self.assertEqual(factors.words(""), [])

    def test_names(self):
        self.assertEqual(factors.name_of("RA_MLA_LATENT_DIM=8"), "ra-mla-latent-dim-8")


class Problems(unittest.TestCase):
    """Each is one sentence that names symbol, value and what the symbol takes."""

    @classmethod
    def setUpClass(cls):
        cls.tree = kconfig.Tree()

    def test_fine(self):
        for text in ("", "NORM=layer|rms", "MODEL_BIAS=y|n", "MODEL_HEADS=1|1024", "DROPOUT=0|.1|1e-1",
                     "ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8+gate", "TRAIN_BATCH=4|8; NORM=layer|rms"):
            self.assertIsNone(factors.problem(self.tree, text))

    def test_values(self):
        for text, said in (
                ("NORM=layer|batch", "NORM takes layer or rms, not 'batch'"),
                ("NORM=layer|", "NORM takes layer or rms, not ''"),
                ("ATTENTION=dot|mlla", "ATTENTION takes dot, mla, w2, w2cov, differential, gla, delta or deepseek, not 'mlla'"),
                ("MODEL_BIAS=y|yes", "MODEL_BIAS takes y or n, not 'yes'"),
                ("MODEL_HEADS=2|x", "MODEL_HEADS takes integers from 1 to 1024, not 'x'"),
                ("MODEL_HEADS=2|2.0", "MODEL_HEADS takes integers from 1 to 1024, not '2.0'"),
                ("MODEL_HEADS=2|1025", "MODEL_HEADS takes integers from 1 to 1024, not '1025'"),
                ("DROPOUT=0|1", "DROPOUT takes numbers x with 0 <= x < 1, not '1'"),
                ("DROPOUT=0|much", "DROPOUT takes numbers x with 0 <= x < 1, not 'much'"),
                ("CROSS_ALPHA=0|much", "CROSS_ALPHA takes numbers, not 'much'"),
                ("EVAL_LENGTHS=8|0", "EVAL_LENGTHS takes a list of numbers x with 1 <= x, not '0'"),
                ("ATTENTION=dot|mla+RA_MLA_LATENT_DIM=a",
                 "RA_MLA_LATENT_DIM takes integers from 1 to 65536, not 'a'"),
                ("INIT_FROM=a|b/c", "INIT_FROM=b/c: a value in a plan has letters, digits and ._-; write "
                                    "any other value into a fragment")):
            self.assertEqual(factors.problem(self.tree, text), said)

    def test_symbols(self):
        for text, said in (
                ("NORMS=layer|rms", "there is no symbol CONFIG_NORMS; did you mean NORM"),
                ("norm=layer|rms", "there is no symbol CONFIG_norm; did you mean NORM"),
                ("LR=1e-3|3e-3", "there is no symbol CONFIG_LR; 'make config-reference' lists all"),
                ("NORM_RMS=y|n", "NORM_RMS is a value of NORM: write NORM=rms"),
                ("SEEDS=1|2", "SEEDS: a step cannot change what only the tools read")):
            self.assertIn(said, factors.problem(self.tree, text))

    def test_form(self):
        for text, said in (
                ("NORM", "'NORM' is no factor, which is written as NORM=layer|rms"),
                ("gate|cross", "'gate|cross' is no factor"),
                ("NORM=rms", "NORM has a single value; a factor has several"),
                ("NORM=layer|rms; NORM=rms|layer", "NORM occurs twice")):
            self.assertIn(said, factors.problem(self.tree, text))

    def test_nothing_that_make_or_a_shell_reads(self):
        for value in ("$(shell touch trap)", "`touch trap`", "a'b", 'a"b', "a b", "a#b", "a\\", "a&b"):
            self.assertIsNotNone(factors.problem(self.tree, f"INIT_FROM=a|{value}"))


class Plans(PlanCase):
    """Whole plans, run as a user runs them."""

    def factors(self, text, *settings):
        self.configure(f'CONFIG_PLAN_FACTORS="{text}"', *settings)

    def values(self, *symbols):
        """Of every step."""
        return {step["name"]: " ".join(
            re.search(rf'SYMBOL\("{symbol}", \w+, "(.*)"\)', self.read(
                f"plan/{step['name']}/generated/config_table.h"))[1] for symbol in symbols)
            for step in self.plan()["steps"]}

    def baselines(self):
        return [step["baseline"] for step in self.plan()["steps"]]

    def test_one_line_is_enough(self):
        self.factors("NORM=layer|rms")
        self.assertEqual(self.values("NORM"), {"0-norm-layer": "layer", "1-norm-rms": "rms"})
        self.assertEqual(self.baselines(), ["0-norm-layer"] * 2)
        self.assertIn("default: NORM=layer|rms\n", self.said)
        self.assertIn("plan grid, seeds 1,2,3: 6 runs\n", self.said)
        self.assertRegex(self.said, r"1-norm-rms +3 +NORM layer -> rms\n")
        self.assertEqual(self.plan()["steps"][1]["description"], "NORM=rms")

    def test_grid(self):
        self.factors("NORM=rms|layer; MODEL_HEADS=2|8", "CONFIG_PLAN=grid")
        self.assertEqual(self.values("NORM", "MODEL_HEADS"), {
            "0-norm-rms+model-heads-2": "rms 2", "1-norm-rms+model-heads-8": "rms 8",
            "2-norm-layer+model-heads-2": "layer 2", "3-norm-layer+model-heads-8": "layer 8"})
        self.assertEqual(self.baselines(), ["0-norm-rms+model-heads-2"] * 4)

    def test_grid_with_a_baseline_per_value(self):
        self.factors("per:NORM=layer|rms; MODEL_HEADS=2|8")
        self.assertEqual(self.baselines(), ["0-norm-layer+model-heads-2"] * 2
                         + ["2-norm-rms+model-heads-2"] * 2)

    def test_one_at_a_time(self):
        self.factors("NORM=rms|layer; MODEL_HEADS=2|8|16", "CONFIG_PLAN=one_at_a_time")
        self.assertEqual(self.values("NORM", "MODEL_HEADS"), {
            "0-baseline": "rms 2", "1-norm-layer": "layer 2", "2-model-heads-8": "rms 8",
            "3-model-heads-16": "rms 16"})
        self.assertEqual(self.baselines(), ["0-baseline"] * 4)

    def test_leave_one_out(self):
        self.factors("NORM=layer|rms; MODEL_HEADS=2|8", "CONFIG_PLAN=leave_one_out")
        self.assertEqual(self.values("NORM", "MODEL_HEADS"), {
            "0-all": "rms 8", "1-without-norm-rms": "layer 8", "2-without-model-heads-8": "rms 2"})
        self.factors("NORM=layer|rms; MODEL_HEADS=2|8|16", "CONFIG_PLAN=leave_one_out")
        self.assertIn("MODEL_HEADS=2|MODEL_HEADS=8|MODEL_HEADS=16: the plan 'leave_one_out' takes two "
                      "values", self.refuse(tool=PLAN, tree=self.directory))

    def test_beside_fragments(self):
        settings = ('CONFIG_PLAN_FRAGMENTS="gate"', "CONFIG_PLAN=one_at_a_time")
        self.factors("NORM=rms|layer", *settings)
        self.assertEqual(self.values("NORM", "RA_MLA_MLP_ATTN_GATE"), {
            "0-baseline": "rms n", "1-gate": "rms y", "2-norm-layer": "layer n"})
        self.factors("NORM=rms|layer", *settings[:1], "CONFIG_PLAN=leave_one_out")
        self.assertEqual(self.values("NORM", "RA_MLA_MLP_ATTN_GATE"), {
            "0-all": "layer y", "1-without-gate": "layer n", "2-without-norm-layer": "rms y"})
        self.factors("NORM=rms|layer", 'CONFIG_PLAN_FRAGMENTS="baseline|gate"', "CONFIG_PLAN=grid")
        self.assertEqual(self.values("NORM", "RA_MLA_MLP_ATTN_GATE"), {
            "0-norm-rms": "rms n", "1-norm-layer": "layer n", "2-gate+norm-rms": "rms y",
            "3-gate+norm-layer": "layer y"})

    def test_a_value_may_bring_others(self):
        self.factors("ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8+gate")
        steps = self.plan()["steps"]
        self.assertEqual(steps[1]["name"], "1-attention-mla+ra-mla-latent-dim-8+gate")
        changed = {change["symbol"]: change["new"] for change in steps[1]["difference"]}
        self.assertEqual([changed[name] for name in (
            "ATTENTION", "RA_MLA_LATENT_DIM", "RA_MLA_MLP_ATTN_GATE")], ["mla", "8", "y"])

    def test_a_listed_step_may_set_a_symbol(self):
        self.listed("baseline gate+NORM=rms")
        self.assertEqual(self.values("NORM", "RA_MLA_MLP_ATTN_GATE"),
                         {"0-baseline": "layer n", "1-gate+norm-rms": "rms y"})

    def test_controls_and_tuned_rates(self):
        self.factors("FFN=gelu|swiglu", "CONFIG_PLAN_CONTROLS=parameters",
                     'CONFIG_TUNE_RATES="1e-3,6e-3"', "CONFIG_TUNE_ALL=y")
        steps = self.plan()["steps"]
        self.assertEqual([step["name"] for step in steps],
                         ["0-ffn-gelu", "1-ffn-swiglu", "2-ffn-gelu+parameters-of-1"])
        match = steps[2]["match"]
        self.assertLess(abs(match["found"] / match["target"] - 1), 0.01)
        self.assertEqual(steps[1]["candidates"], ["1-ffn-swiglu@1e-3", "1-ffn-swiglu@6e-3"])

    def test_refused_where_it_is_set(self):
        self.configure()
        before = self.read()
        said = self.refuse("set", "CONFIG_PLAN_FACTORS=NORM=layer|batch", tree=self.directory)
        self.assertEqual(said, 'command line: CONFIG_PLAN_FACTORS="NORM=layer|batch": NORM takes layer or '
                               "rms, not 'batch'\n")
        self.assertEqual(self.read(), before)
        self.write(before.replace('PLAN_FACTORS=""', 'PLAN_FACTORS="NORM=layer|batch"'))
        self.assertRegex(self.refusal(), r":\d+: CONFIG_PLAN_FACTORS=.*: NORM takes layer or rms, not 'batch'")

    def test_refused_when_a_menu_saves(self):
        tree = kconfig.Tree()
        tree.syms["PLAN_FACTORS"].set_value("NORM=layer|batch")
        with self.assertRaisesRegex(OSError, "NORM takes layer or rms, not 'batch'"):
            tree.write_config(self.config)
        self.assertFalse(os.path.exists(self.config))

    def test_refused_by_the_rest_of_the_configuration(self):
        for text, said in (
                ("MODEL_HEADS=4|5", "plan: CONFIG_MODEL_HEADS=5: out of range, which is MODEL_EMBD % x = 0"),
                ("RA_MLA_LATENT_DIM=8|16", "plan: CONFIG_RA_MLA_LATENT_DIM=8: it needs ATTENTION_MLA || ATTENTION_DEEPSEEK: add "
                                           "CONFIG_ATTENTION_MLA=y"),
                ("NORM=layer|rms+NORM=layer", "plan: NORM=rms+NORM=layer sets NORM twice"),
                ("NORM=layer|rms+gat", "there is no fragment 'gat'; did you mean gate"),
                ("NORM=layer|layer", "have the same configuration")):
            self.factors(text)
            self.assertIn(said, self.refusal())

    def test_listed_steps_have_no_factors(self):
        self.listed("baseline gate", "CONFIG_PLAN_FACTORS=NORM=layer|rms")
        self.assertIn("CONFIG_PLAN_FACTORS: the plan 'steps' has none; choose grid", self.refusal())


if __name__ == "__main__":
    tap.main()
