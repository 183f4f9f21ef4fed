#!/usr/bin/env python3
"""Tests of the plan 'sizes' (tools/plan/sizes.py), as a user makes it."""
import json
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import plan_words, sizes
from tools.plan.kconfig import Unfit
from tools.plan.kconfig_test import MLA
from tools.plan.plan_test import PLAN, PlanCase
from tools.testing import tap


class Words(unittest.TestCase):
    def test_labels(self):
        self.assertEqual(sizes.labels(["1m+corpus-8k", "30m"]), ["1m", "30m"])
        self.assertEqual(sizes.labels(["laptop+MODEL_EMBD=16", "laptop+MODEL_EMBD=32", "1m"]),
                         ["laptop+MODEL_EMBD-16", "laptop+MODEL_EMBD-32", "1m"])
        for wrong in (["1m", "1m"], ["a.b", "c"]):
            with self.assertRaises(Unfit):
                sizes.labels(wrong)

    def test_numbers_move(self):
        self.assertEqual(sizes.moved("mla+parameters-of-2+against-1", 6, 6), "mla+parameters-of-8+against-7")
        self.assertEqual(sizes.moved("again-1", 6, 6), "again-7")
        self.assertEqual(sizes.moved("latent-dim-16+NORM=rms", 6, 6), "latent-dim-16+NORM=rms")
        with self.assertRaisesRegex(Unfit, "a scale has the steps 0 to 5"):
            sizes.moved("mla+parameters-of-6", 0, 6)

    def test_primary(self):
        values = {"PRIMARY": "2:3 controls", "PLAN_FRAGMENTS": "a b c d", "PLAN_SCALES": "x y"}
        self.assertEqual(sizes.primary_words(values, "sizes"), ["2:3", "6:7", "controls"])
        self.assertEqual(sizes.primary_words(values, "steps"), ["2:3", "controls"])

    def test_steps(self):
        values = {"PLAN_SCALES": "1m 30m", "PLAN_FRAGMENTS": "a a+b again-1 c+against-1", "PLAN": "sizes", "PLAN_FACTORS": "",
                  "PLAN_BASELINE": "0"}
        steps = plan_words.steps_of(values)
        self.assertEqual([step.name for step in steps], ["0-1m.a", "1-1m.a+b", "2-1m.a+b-again", "3-1m.c", "4-30m.a", "5-30m.a+b",
                                                         "6-30m.a+b-again", "7-30m.c"])
        self.assertEqual([step.baseline for step in steps], [0, 0, 0, 1, 4, 4, 4, 5])
        self.assertEqual([step.size for step in steps], ["1m"] * 4 + ["30m"] * 4)


class Plan(PlanCase):
    def sizes(self, scales, fragments, *settings):
        self.configure("CONFIG_PLAN_SIZES=y", f"CONFIG_PLAN_SCALES={scales}", f"CONFIG_PLAN_FRAGMENTS={fragments}", *settings,
                       defconfig="gpt2-ra-mla-full")

    def values(self, step):
        lines = self.read(f"plan/{step}/config").splitlines()
        return dict(line.removeprefix("CONFIG_").split("=", 1) for line in lines if line.startswith("CONFIG_"))

    def test_defaults_of_the_scale(self):
        """What .config sets itself holds at every scale, all else follows the scale."""
        self.sizes("1m small", "mla mla+gate", "CONFIG_GPT2_MAX_ITERS=77", "CONFIG_RA_MLA_LATENT_DIM=8")
        plan = self.plan()
        self.assertEqual([step["name"] for step in plan["steps"]],
                         ["0-1m.mla", "1-1m.mla+gate", "2-small.mla", "3-small.mla+gate"])
        self.assertEqual((plan["scale"], plan["plan"]), ("1m, small", "sizes"))
        for step, layers, batch in ("1-1m.mla+gate", "5", "16"), ("3-small.mla+gate", "6", "8"):
            found = self.values(step)
            self.assertEqual((found["MODEL_LAYERS"], found["TRAIN_BATCH"], found["GPT2_MAX_ITERS"], found["RA_MLA_LATENT_DIM"]),
                             (layers, batch, "77", "8"))
        self.assertEqual(plan["steps"][3]["difference"], plan["steps"][1]["difference"])
        self.assertIn("RA_MLA_MLP_ATTN_GATE", [change["symbol"] for change in plan["steps"][1]["difference"]])
        made = self.read("plan/plan.mk")
        self.assertIn("scale-1-1m.mla+gate := 1m\n", made)
        self.assertIn("baseline-3-small.mla+gate := 2-small.mla\n", made)

    def test_is_what_the_scale_alone_gives(self):
        """The program of a step has the configuration that a defconfig at that scale has."""
        self.sizes("1m 30m", "mla mla+gate")
        self.plan()
        table = self.read("plan/3-30m.mla+gate/generated/config_table.h")
        self.configure(defconfig="gpt2-ra-mla-full+30m")
        self.plan()
        self.assertEqual(table, self.read("plan/1-mla+gate/generated/config_table.h"))

    def test_rates_of_a_scale(self):
        self.fragment("big-rates", 'CONFIG_TUNE_RATES="5e-4,1e-3"')
        self.sizes("1m 30m+big-rates", "mla mla+gate", "CONFIG_TUNE_RATES=1e-3,3e-3,1e-2", "CONFIG_TUNE_ALL=y")
        self.assertEqual([len(step["candidates"]) for step in self.plan()["steps"]], [3, 3, 2, 2])
        self.assertEqual(self.plan()["steps"][3]["candidates"], ["3-30m.mla+gate@5e-4", "3-30m.mla+gate@1e-3"])

    def test_declared_at_every_scale(self):
        self.sizes("1m small", "mla mla+gate mla+cross", "CONFIG_PRIMARY=1 2:1", "CONFIG_SEEDS=1,2,3", "CONFIG_LOOKS=3")
        found = self.plan()["declaration"]
        self.assertEqual(found["primary"], [["1-1m.mla+gate", "0-1m.mla"], ["4-small.mla+gate", "3-small.mla"],
                                            ["2-1m.mla+cross", "1-1m.mla+gate"], ["5-small.mla+cross", "4-small.mla+gate"]])

    def test_controls(self):
        self.sizes("1m small", "mla mla+gate", "CONFIG_PLAN_CONTROLS_PARAMETERS=y")
        found = self.plan()["steps"]
        self.assertEqual([step["name"] for step in found[4:]], ["4-1m.mla+parameters-of-1", "5-small.mla+parameters-of-3"])
        self.assertEqual(self.values("5-small.mla+parameters-of-3")["MODEL_LAYERS"], "6")

    def test_forecast(self):
        self.configure(*MLA.split(), "CONFIG_FORECAST=e", "CONFIG_PLAN_STEPS=y", "CONFIG_PLAN_FRAGMENTS=mla mla+gate")
        self.assertEqual(self.plan()["forecast"], "e")
        self.assertIsNotNone(self.plan()["declaration"])
        self.assertIn("plan-forecast := e\n", self.read("plan/plan.mk"))
        self.assertIn("begins with neither", self.fail_with("set", "CONFIG_FORECAST=../e"))

    def fail_with(self, *words, tool="tools.plan.kconfig"):
        return self.refuse(*words, tool=tool, tree=self.directory)

    def test_refusals(self):
        for scales, fragments, reason in (("1m", "mla", "two scales or more"), ("1m 1m", "mla", "different names"),
                                          ("1m 30m", "mla mla+parameters-of-2", "a scale has the steps 0 to 1"),
                                          ("1m 31m", "mla", "there is no fragment '31m'"),
                                          ("1m 30m", "mla mla+NORM=rmx", "NORM takes"),
                                          ("SEEDS=1 30m", "mla", "only the tools read")):
            with self.subTest(reason=reason):
                self.sizes(scales, fragments)
                self.assertIn(reason, self.fail_with("--output", self.path("plan"), tool=PLAN))


if __name__ == "__main__":
    tap.main()
