#!/usr/bin/env python3
"""Tests of tools/plan/plan.py: which steps a plan has, what they change, what is refused."""
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import declaration, estimate, fragment_names, kconfig, plan, plan_words, tuning
from tools.plan.kconfig_test import MLA, STUDY, Case, copy_of_the_tree
from tools.results import time_left
from tools.testing import as_user, tap

PLAN = "tools.plan.plan"


class Words(unittest.TestCase):
    """From the words of a plan to its steps."""

    def names(self, steps):
        return [step.name for step in steps]

    def test_listed(self):
        steps = plan_words.listed_steps("baseline a a+b again-1 again-2 again-1".split())
        self.assertEqual(self.names(steps), ["0-baseline", "1-a", "2-a+b", "3-a-again",
                                             "4-a+b-again", "5-a-again2"])
        self.assertEqual([step.fragments for step in steps],
                         [[], ["a"], ["a", "b"], ["a"], ["a", "b"], ["a"]])
        self.assertEqual([step.repeats for step in steps], [None, None, None, 1, 2, 1])
        self.assertEqual([step.repeat for step in steps], [0, 0, 0, 1, 1, 2])

    def test_only_an_earlier_step_can_be_repeated(self):
        for words in ("again-0", "a again-1", "a again-2 b", "a again-0 again-1"):
            with self.assertRaises(kconfig.Unfit):
                plan_words.listed_steps(words.split())

    def test_nulls(self):
        steps = plan_words.listed_steps("a null-0 b null-0 again-0".split())
        self.assertEqual(self.names(steps), ["0-a", "1-a-null", "2-b", "3-a-null2", "4-a-again"])
        self.assertEqual([plan_words.seeds_of(step, [1, 2]) for step in steps],
                         [[1, 2], [1001, 1002], [1, 2], [2001, 2002], [1]])
        self.assertEqual([step.repeat for step in steps], [0, 0, 0, 0, 1])
        for words in ("null-0", "a null-0 null-1", "a null-0 again-1", "a again-0 null-1"):
            with self.assertRaises(kconfig.Unfit):
                plan_words.listed_steps(words.split())

    def test_one_at_a_time(self):
        steps = plan_words.one_at_a_time(["a", "b+c"])
        self.assertEqual(self.names(steps), ["0-baseline", "1-a", "2-b+c"])
        self.assertEqual([step.baseline for step in steps], [0, 0, 0])

    def test_leave_one_out(self):
        steps = plan_words.leave_one_out(["a", "b", "c"])
        self.assertEqual(self.names(steps), ["0-all", "1-without-a", "2-without-b", "3-without-c"])
        self.assertEqual([step.fragments for step in steps],
                         [["a", "b", "c"], ["b", "c"], ["a", "c"], ["a", "b"]])

    def test_leave_one_out_of_one(self):
        self.assertEqual([step.fragments for step in plan_words.leave_one_out(["a"])], [["a"], []])

    def test_grid(self):
        steps = plan_words.grid(["baseline|a", "x|y+z"])
        self.assertEqual(self.names(steps), ["0-x", "1-y+z", "2-a+x", "3-a+y+z"])
        self.assertEqual(steps[3].fragments, ["a", "y", "z"])
        self.assertEqual([step.baseline for step in steps], [0, 0, 0, 0])

    def test_grid_with_a_baseline_per_value(self):
        steps = plan_words.grid(["per:a|b", "x|y|z"])
        self.assertEqual([step.baseline for step in steps], [0, 0, 0, 3, 3, 3])
        steps = plan_words.grid(["x|y", "per:a|b"])
        self.assertEqual([step.baseline for step in steps], [0, 1, 0, 1])

    def test_a_step_can_name_its_baseline(self):
        step = plan_words.read_word(3, "a+against-2+b")
        self.assertEqual((step.name, step.fragments, step.against), ("3-a+b", ["a", "b"], 2))
        self.assertEqual(plan_words.read_word(1, "baseline+against-0").name, "1-baseline")

    def test_matched(self):
        step = plan_words.read_word(2, "a+parameters-of-1")
        self.assertEqual((step.name, step.fragments), ("2-a+parameters-of-1", ["a"]))
        self.assertEqual((step.match.quantity, step.match.number), ("parameters", 1))
        self.assertEqual(plan_words.read_word(0, "flops-of-12").match.number, 12)

    def test_tuned(self):
        step = plan_words.read_word(2, "a+tuned")
        self.assertEqual((step.name, step.fragments, step.is_tuned), ("2-a+tuned", ["a"], True))
        self.assertFalse(plan_words.read_word(2, "a").is_tuned)

    def test_numbers(self):
        self.assertEqual(plan_words.numbers("SEEDS", "1, 2,30"), [1, 2, 30])
        for wrong in ("", "1,", "a", "1;2", "-1", "1,1", "1.5"):
            with self.assertRaises(kconfig.Unfit):
                plan_words.numbers("SEEDS", wrong)


class PlanCase(Case):
    """Whole plans, run as a user runs them, in a copy of the tree with fragments of its own."""

    def setUp(self):
        super().setUp()
        copy_of_the_tree(self.directory)

    def configure(self, *settings, defconfig=""):
        self.succeed("defconfig", *defconfig.split(), tree=self.directory)
        if settings:
            self.succeed("set", *settings, tree=self.directory)

    def fragment(self, name, text):
        self.write(f"# A test\n{text}\n", f"defconfigs/fragments/{name}")

    def plan(self):
        self.said = self.succeed("--output", self.path("plan"), tool=PLAN, tree=self.directory)
        return json.loads(self.read("plan/plan.json"))

    def refusal(self):
        said = self.refuse("--output", self.path("plan"), tool=PLAN, tree=self.directory)
        self.assertFalse(os.path.exists(self.path("plan")))
        return said

    def listed(self, words, *settings):
        self.configure("CONFIG_ATTENTION=mla", 'CONFIG_PLAN="steps"',
                       f'CONFIG_PLAN_FRAGMENTS="{words}"', *settings)


class Plans(PlanCase):
    def test_single(self):
        self.configure()
        found = self.plan()
        self.assertEqual([step["name"] for step in found["steps"]], ["0-baseline"])
        self.assertEqual(self.read("plan/0-baseline/config"), self.read())

    def test_begins_with_what_is_compared(self):
        self.listed("dot mla+tuned", 'CONFIG_TUNE_RATES="1e-3,6e-3"', "CONFIG_NORM=rms")
        line = "dot or MLA attention, learned positions, RMSNorm, GELU, 4 x 64, " \
            "AdamW 3e-3, 1e-3 or 6e-3, language"
        self.assertEqual(self.plan()["compared"], line)
        self.assertEqual(self.said.splitlines()[1], line)

    def test_a_misspelt_selection_is_refused(self):
        """Its object would be linked into no step, which would train as its baseline."""
        self.write("obj-$(CONFIG_ATTENTION_MLA) += models/attention/mla.o\n"
                   "obj-$(CONFIG_RA_MLA_MLP_ATTN_GTAE) += models/reciprocal/gate.o\n",
                   "models/Makefile")
        self.configure()
        self.assertIn("models/Makefile:2: Kconfig has no symbol RA_MLA_MLP_ATTN_GTAE, so no step "
                      "would link this object", self.refusal())

    def test_study(self):
        self.configure(defconfig="gpt2-ra-mla-full")
        found = self.plan()
        self.assertEqual([step["name"] for step in found["steps"]], [
            "0-mla", "1-mla+gate", "2-mla+gate+cross", "3-mla+gate+cross+latent",
            "4-mla+gate+cross-again", "5-mla+gate+cross+latent-again"])
        self.assertEqual([step["repeats"] for step in found["steps"][4:]],
                         ["2-mla+gate+cross", "3-mla+gate+cross+latent"])
        self.assertEqual({step["baseline"] for step in found["steps"]}, {"0-mla"})
        self.assertEqual(self.read("plan/1-mla+gate/diff"),
                         "RA_MLA_MLP_ATTN_GATE n -> y\nGATE_ALPHA - -> 0.1\nGATE_DIM - -> 64\n"
                         "GATE_POOL - -> causal\n")
        table = "plan/{}/generated/config_table.h"
        third = self.read(table.format("3-mla+gate+cross+latent"))
        for line in ('SYMBOL("RA_MLA_MLP_SPARSE_MODE", CONFIG_TEXT, "topk")',
                     'SYMBOL("RA_MLA_MLP_SPARSE_K", CONFIG_INT, "8")',
                     'SYMBOL("RA_MLA_MLP_TYING_MODE", CONFIG_TEXT, "tied_transpose")'):
            self.assertIn(line + "\n", third)
        self.assertEqual(third, self.read(table.format("5-mla+gate+cross+latent-again")))
        self.assertIn("CONFIG_RA_MLA_MLP_ATTN_GATE := y\n", self.read("plan/1-mla+gate/auto.conf"))

    def test_assignments_of_the_study_as_they_were_written(self):
        """All mechanisms are on there: steps switch them off and list what this makes idle."""
        self.write(STUDY + MLA, "defconfigs/study")
        self.configure(defconfig="study")
        steps = self.plan()["steps"]
        self.assertEqual([step["selected"] for step in steps], [True] * 4 + [False] * 2)
        self.assertIn("RA_MLA_MLP_SPARSE_K", steps[0]["inactive"])
        self.assertEqual(steps[3]["inactive"], [])

    def test_a_step_changes_only_what_it_names(self):
        """The default position of w2 is rope, but a step towards w2 keeps the baseline's."""
        self.listed("dot w2")
        steps = self.plan()["steps"]
        self.assertEqual({change["symbol"] for change in steps[1]["difference"]},
                         {"ATTENTION", "ATTENTION_KV_HEADS", "W2_SCORE", "W2_EPS"})

    def test_unnamed_change_is_refused(self):
        lines = self.read("models/ffn/ws.kconfig").replace(
            '\tbool "ws: WsFFN', '\tselect TENSORBOARD\n\tbool "ws: WsFFN')
        self.write(lines, "models/ffn/ws.kconfig")
        self.listed("baseline ws")
        self.assertRegex(self.refusal(), r"CONFIG_TENSORBOARD=n: it is selected by FFN_WS\n")

    def test_fragment_with_unmet_dependency(self):
        self.listed("baseline tying-untied")
        self.assertRegex(self.refusal(), "tying-untied:2: CONFIG_.*_MODE=untied: it needs")

    def test_fragment_out_of_range(self):
        self.fragment("bad", "CONFIG_MODEL_LAYERS=0")
        self.listed("baseline bad")
        self.assertIn("bad:2: CONFIG_MODEL_LAYERS=0: out of range", self.refusal())

    def test_fragment_out_of_its_own_range(self):
        self.fragment("wild", 'CONFIG_LEARNING_RATE="-1"')
        self.fragment("three", "CONFIG_MODEL_HEADS=3")
        self.fragment("wide", "CONFIG_MODEL_EMBD=96")
        self.listed("baseline wild")
        self.assertIn("fragments/wild:2: CONFIG_LEARNING_RATE=-1: out of range, which is 0 < x",
                      self.refusal())
        self.listed("baseline three")
        self.assertIn("fragments/three:2: CONFIG_MODEL_HEADS=3: out of range, which is "
                      "MODEL_EMBD % x = 0, and MODEL_EMBD is 64", self.refusal())
        self.listed("baseline three+wide")      # only together they fit
        self.plan()

    def test_fragment_with_unknown_symbol(self):
        self.fragment("bad", "CONFIG_MODEL_LAYER=2")
        self.listed("baseline bad")
        self.assertIn("did you mean MODEL_LAYERS", self.refusal())

    def test_fragment_that_does_not_exist(self):
        self.listed("baseline gat")
        self.assertIn("did you mean gate", self.refusal())

    def test_names_that_make_would_read(self):
        for name in ("50%", "a:b", "$(shell)", "it's", "a#b", "a;b"):
            self.fragment(name, "CONFIG_DROPOUT=0.5")
            self.listed(f"baseline {name}")
            self.assertIn(f"1-{name}: a name has letters, digits and ._+-", self.refusal())

    def test_slip_in_a_kconfig_file(self):
        self.configure()
        self.write("config A\n\tbol\n", "models/attention/w2.kconfig")
        self.assertIn("models/attention/w2.kconfig:2: ", self.refusal())

    def test_step_cannot_change_the_scale(self):
        self.listed("baseline 124m")
        self.assertIn("CONFIG_SCALE=124m: a step cannot change", self.refusal())

    def test_a_word_that_another_one_undoes_is_named(self):
        """Wherever the other one comes from: a fragment, a setting, the first value of a factor."""
        self.fragment("rmsnorm", 'CONFIG_NORM="rms"')
        for words, said in (
                ("mla gate+mla", "1-gate+mla: mla undoes gate: CONFIG_RA_MLA_MLP_ATTN_GATE is n, not y"),
                ("mla dot+mla", "1-dot+mla: mla undoes dot: CONFIG_ATTENTION is mla, not dot"),
                ("mla latent-dim-8+latent-dim-32", "latent-dim-32 undoes latent-dim-8: CONFIG_RA_MLA_LATENT_DIM"),
                ("mla latent-dim-16+latent-dim-32", "latent-dim-32 undoes latent-dim-16"),
                ("mla mla+gate FFN_HIDDEN=100+parameters-of-1", "plan generates undoes FFN_HIDDEN=100")):
            self.listed(words)
            with self.subTest(words=words):
                self.assertIn(said, self.refusal())
        self.configure('CONFIG_PLAN="one_at_a_time"', 'CONFIG_PLAN_FRAGMENTS="rmsnorm"',
                       'CONFIG_PLAN_FACTORS="NORM=layer|rms"')
        self.assertIn("1-rmsnorm: NORM=layer undoes rmsnorm", self.refusal())

    def test_a_default_may_be_changed_by_another_word(self):
        """mla switches mechanisms off, which others switch on; cross has the default number of keys."""
        self.listed("mla mla+gate mla+cross+sparse-topk4 mla+latent-dim-8 mla+cross+sparse-none")
        self.assertEqual(len(self.plan()["steps"]), 5)

    def test_a_name_says_what_is_set(self):
        for name, text, said in (("latent-dim-8", "CONFIG_RA_MLA_LATENT_DIM=32", ":2: CONFIG_RA_MLA_LATENT_DIM=32: the name of"),
                                 ("gate", "CONFIG_MODEL_LAYERS=3", "gate says CONFIG_RA_MLA_MLP_ATTN_GATE=y, but it does not")):
            self.fragment(name, text)
            self.listed(f"mla mla+{name}")
            with self.subTest(name=name):
                self.assertIn(said, self.refusal())
        self.fragment("try-2", "CONFIG_MODEL_LAYERS=3")
        self.listed("mla try-2")
        self.plan()

    def test_duplicates_must_be_declared(self):
        self.listed("baseline gate gate")
        self.assertRegex(self.refusal(), "1-gate and 2-gate have the same .*; 'again-1' .* 'null-1'")
        self.listed("baseline gate again-1")
        self.plan()

    def test_null(self):
        self.listed("baseline gate null-1", "CONFIG_PLAN_BASELINE=1")
        step = self.plan()["steps"][2]
        self.assertEqual((step["null"], step["seeds"]), ("1-gate", [1001, 1002, 1003]))
        table = "plan/{}/generated/config_table.h"
        self.assertEqual(self.read(table.format("2-gate-null")), self.read(table.format("1-gate")))
        self.assertIn("1-gate with seeds from 1000 on", self.said)
        self.listed("baseline gate null-1 cross")
        self.assertEqual([step["baseline"] for step in self.plan()["steps"]],
                         ["0-baseline", "0-baseline", "1-gate", "0-baseline"])
        self.listed("baseline gate null-1", 'CONFIG_SEEDS="1,1001"')
        self.assertIn("seeds from 1000 on", self.refuse(tool=PLAN, tree=self.directory))

    def test_no_fragments(self):
        self.listed("")
        self.assertIn("no fragments", self.refusal())

    def test_baseline(self):
        self.listed("baseline gate", "CONFIG_PLAN_BASELINE=1")
        self.assertEqual([step["baseline"] for step in self.plan()["steps"]], ["1-gate", "1-gate"])
        self.assertIn("RA_MLA_MLP_ATTN_GATE y -> n", self.said)

    def test_baseline_that_does_not_exist(self):
        self.listed("baseline gate again-1", "CONFIG_PLAN_BASELINE=3")
        self.assertIn("CONFIG_PLAN_BASELINE=3", self.refusal())
        self.listed("baseline gate again-1", "CONFIG_PLAN_BASELINE=2")
        self.assertIn("CONFIG_PLAN_BASELINE=2", self.refusal())

    def test_baseline_of_a_step(self):
        self.listed("baseline gate cross+against-1 latent+against-1")
        self.assertEqual([step["baseline"] for step in self.plan()["steps"]],
                         ["0-baseline", "0-baseline", "1-gate", "1-gate"])
        self.listed("baseline gate+against-1 cross+against-1")
        self.assertEqual([step["baseline"] for step in self.plan()["steps"]],
                         ["0-baseline", "1-gate", "1-gate"])
        for wrong in ("gate+against-2", "gate again-1 cross+against-2"):
            self.listed(f"baseline {wrong}")
            self.assertIn("there is no other step", self.refuse(tool=PLAN, tree=self.directory))

    def test_subset(self):
        self.listed("baseline gate cross", 'CONFIG_RA_MLA_ABLATION_STEPS="0,2"')
        self.assertEqual([step["selected"] for step in self.plan()["steps"]], [True, False, True])
        self.assertIn("plan-steps := 0-baseline 2-cross\n", self.read("plan/plan.mk"))
        self.assertIn("baseline-2-cross := 0-baseline\n", self.read("plan/plan.mk"))
        self.assertIn("6 runs", self.said)
        self.assertNotIn("note", self.said)

    def test_subset_without_its_baseline_is_explained(self):
        self.listed("baseline gate again-1", 'CONFIG_RA_MLA_ABLATION_STEPS="2"')
        self.plan()
        self.assertIn("note: 0-baseline, a baseline, is not among the steps to run", self.said)
        self.assertIn("note: 2-gate-again can be checked only against earlier runs", self.said)

    def test_subset_of_steps_that_do_not_exist(self):
        self.listed("baseline gate", 'CONFIG_RA_MLA_ABLATION_STEPS="0,2"')
        self.assertIn("the steps are 0 to 1", self.refusal())
        self.assertIn("numbers separated by commas",
                      self.refuse("set", 'CONFIG_RA_MLA_ABLATION_STEPS="0-1"', tree=self.directory))

    def test_seeds(self):
        self.configure('CONFIG_SEEDS="7"')
        self.assertEqual(self.plan()["seeds"], [7])
        self.assertIn("no verdict", self.said)
        self.assertIn("twice", self.refuse("set", 'CONFIG_SEEDS="1,1"', tree=self.directory))

    def test_restarts_of_spam_are_told(self):
        self.configure('CONFIG_OPTIMIZER="adamwspam"')
        self.plan()
        self.assertIn("note: AdamWSPAM restarts", self.said)
        self.configure('CONFIG_OPTIMIZER="adamwspam"', "CONFIG_SPAM_WARMUP=10")
        self.plan()
        self.assertNotIn("note: AdamWSPAM", self.said)

    def test_account_of_the_program_is_shown(self):
        self.listed("baseline gate")
        self.plan()
        self.assertNotIn("parameters", self.said)
        self.write('{"parameters": 1234567, "flops_per_token": 8, "memory_bytes": 9}',
                   "plan/1-gate/describe.json")
        self.plan()
        self.assertRegex(self.said, r"1-gate +1,234,567 +8 +9 ")

    def test_time_and_disk(self):
        self.listed("baseline gate again-1", "CONFIG_EVAL_ROWS=32", "CONFIG_EVAL_INTERVAL=200")
        self.plan()
        self.assertNotIn("time", self.said)
        for step, pace in (("0-baseline", 1e-5), ("1-gate", 2e-5)):
            self.write('{"parameters": 9, "weights_bytes": 1000000, "optimizer_bytes": 3000000}',
                       f"plan/{step}/describe.json")
            self.write(f'{{"seconds_per_token": {pace}}}', f"plan/{step}/estimate.json")
        self.said = self.succeed("--output", self.path("plan"), "--jobs", "2",
                                 tool=PLAN, tree=self.directory)
        # 600 updates of 32 x 64 tokens and, at a third, 4 evaluations of 32 x 64; 3 seeds, 1 again.
        seconds = 1e-5 * 64 * 32 * (600 + 4 / 3)
        self.assertRegex(self.said, rf"0-baseline +9 +3 +{3 * seconds:.0f} s ")
        self.assertRegex(self.said, rf"1-gate +9 +3 +{6 * seconds / 60:.1f} min ")
        self.assertRegex(self.said, rf"2-gate-again +9 +1 +{2 * seconds:.0f} s ")
        self.assertIn(f"about {11 * seconds / 2 / 60:.1f} min with 2 runs at a time", self.said)
        # Two weights, two checkpoints, 60 logging intervals: per run.
        self.assertIn(f"{7 * (2 + 2 * 4 + 60 * 0.002):.1f} MB on the disk", self.said)
        self.assertIn("time by a few timed passes\n", self.said)

    def test_lengths_at_the_end_take_time(self):
        values = dict(TRAIN_BATCH="1", TRAIN_ACCUMULATE="1", MODEL_BLOCK="8", GPT2_MAX_ITERS="10",
                      TRAIN_TOKENS_BUDGET="0", TRAIN_SECONDS_BUDGET="0", EVAL_INTERVAL="10",
                      EVAL_ROWS="3")
        self.assertEqual([estimate.run_seconds({**values, "EVAL_LENGTHS": lengths}, 1)
                          for lengths in ("", "16", "16,24")], [96, 104, 112])
        self.assertEqual(estimate.run_seconds({**values, "EVAL_LENGTHS": "", "RANKS": "2"}, 1), 48)

    def test_what_the_scale_changes(self):
        self.configure(defconfig="gpt2-ra-mla-full")
        self.plan()
        for line in ("SPAM_INTERVAL 60 here, 1000 there", "SPAM_WARMUP 60 here, 1000 there",
                     "MODEL_EMBD 64 here, 768 there", "SEEDS 1,2,3 here, 1 there", "LOOKS 3,5,8 here, - there"):
            self.assertIn(f"  {line}\n", self.said)
        self.assertNotIn("OPTIMIZER", self.said)        # the defconfig's, at every scale
        self.assertNotIn("LANGUAGE_", self.said)
        self.assertNotIn("  SCALE", self.said)
        self.configure("CONFIG_MODEL_EMBD=80", defconfig="gpt2-ra-mla-full")
        self.plan()
        self.assertIn("MODEL_EMBD 80 here, 768 there\n", self.said)
        self.configure(defconfig="gpt2-ra-mla-full+124m")
        self.plan()
        self.assertNotIn(" here,", self.said)

    def test_only_the_published_study_is_compared_with_itself(self):
        self.configure(defconfig="ra-score")
        self.plan()
        self.assertNotIn("published study", self.said)

    def test_what_a_switch_brings_with_it_is_not_listed(self):
        """As in reports: a step with a mechanism has that mechanism's defaults."""
        self.listed("mla mla+cross mla+cross+sparse-topk16")
        self.plan()
        self.assertRegex(self.said, r"1-mla\+cross .* RA_MLA_MLP_CROSS_TOKEN n -> y\n")
        self.assertRegex(self.said, r"RA_MLA_MLP_CROSS_TOKEN n -> y, RA_MLA_MLP_SPARSE_K - -> 16\n")

    def test_what_steps_override_is_told(self):
        self.configure(defconfig="gpt2-ra-mla-full")
        self.plan()
        self.assertNotIn("overridden", self.said)
        self.configure("CONFIG_RA_MLA_MLP_CROSS_TOKEN=y", "CONFIG_RA_MLA_MLP_SPARSE_K=4",
                       "CONFIG_MODEL_EMBD=80", defconfig="gpt2-ra-mla-full")
        self.plan()
        told = [line for line in self.said.splitlines() if "overridden" in line]
        self.assertEqual(told, [
            f"note: CONFIG_RA_MLA_MLP_CROSS_TOKEN=y of {self.config} is overridden in 0-mla (n), "
            "1-mla+gate (n)",
            f"note: CONFIG_RA_MLA_MLP_SPARSE_K=4 of {self.config} is overridden in "
            "2-mla+gate+cross (8), 3-mla+gate+cross+latent (8)"])

    def test_unchanged_files_are_not_touched(self):
        self.listed("baseline gate")
        self.plan()
        names = ["plan/plan.json", "plan/plan.mk", "plan/1-gate/config", "plan/1-gate/diff",
                 "plan/1-gate/generated/config_table.h"]
        for name in names:
            os.utime(self.path(name), (1, 1))
        self.plan()
        self.assertEqual([os.stat(self.path(name)).st_mtime for name in names], [1] * len(names))

    def test_stale_config(self):
        self.configure()
        self.write(self.read() + "CONFIG_GONE=y\n")
        self.assertIn("make olddefconfig", self.refusal())


class Declared(PlanCase):
    """What a plan says before its first run that it is for."""

    def declared(self, *settings, words="baseline gate cross latent null-0 again-1"):
        self.listed(words, *settings)
        return self.plan()["declaration"]

    def test_nothing(self):
        self.assertIsNone(self.declared('CONFIG_LOOKS=""'))
        self.assertNotIn("declared:", self.said)

    def test_primary_comparisons(self):
        found = self.declared('CONFIG_PRIMARY="1 3:2"', 'CONFIG_MARGIN="0.01"')
        self.assertEqual(found, {
            "asked": "1 3:2", "primary": [["1-gate", "0-baseline"], ["3-latent", "2-cross"]],
            "steps": ["0-baseline", "1-gate", "2-cross", "3-latent"], "margin": 0.01,
            "looks": [3, 5, 8], "seeds": list(range(1, 9))})
        self.assertIn("declared: primary comparisons 1 3:2; margin 0.01; seeds 1, 2, 3", self.said)

    def test_classes(self):
        """Without words all comparisons are primary; a repetition is none."""
        found = self.declared('CONFIG_PRIMARY="steps"')
        self.assertEqual([step for step, _ in found["primary"]],
                         ["1-gate", "2-cross", "3-latent", "4-baseline-null"])
        found = self.declared('CONFIG_MARGIN="0.01"')
        self.assertEqual(found["primary"][4:], ["main", "interactions"])
        found = self.declared('CONFIG_PRIMARY="controls"', words="mla mla+gate mla+parameters-of-1")
        self.assertEqual(found["primary"], [["1-mla+gate", "2-mla+parameters-of-1"]])

    def test_looks_name_the_seeds_that_follow(self):
        found = self.declared('CONFIG_LOOKS="3,5,6"', "CONFIG_SEEDS=1,2,4")
        self.assertEqual((found["looks"], found["seeds"]), ([3, 5, 6], [1, 2, 4, 5, 6, 7]))
        more = self.declared('CONFIG_LOOKS="3,5,6"', "CONFIG_SEEDS=1,2,4,5,6")
        self.assertEqual(found, more)

    def test_looks_of_a_new_study(self):
        """Three, unless other seeds are asked for; a step that is added later changes nothing."""
        self.configure("CONFIG_ATTENTION=mla", 'CONFIG_PLAN="steps"', 'CONFIG_PLAN_FRAGMENTS="mla mla+gate"')
        first = self.plan()["declaration"]
        self.assertEqual((first["primary"], first["looks"], first["seeds"]),
                         (["all"], [3, 5, 8], list(range(1, 9))))
        self.succeed("set", "CONFIG_SEEDS=1,2,3,4,5", tree=self.directory)     # as the report says
        self.succeed("set", 'CONFIG_PLAN_FRAGMENTS="mla mla+gate mla+cross"', tree=self.directory)
        self.assertEqual(self.plan()["declaration"], first)
        self.succeed("set", "CONFIG_SEEDS=1,2,3,4,5,6,7,8,9", tree=self.directory)
        self.assertIn("CONFIG_LOOKS=9 looks once, at all of them",
                      self.refuse("--output", self.path("plan"), tool=PLAN, tree=self.directory))
        self.configure(defconfig="gpt2-ra-mla-full+seeds-5")
        self.assertIsNone(self.plan()["declaration"])

    def test_all_one_by_one_is_the_same(self):
        """As an earlier program recorded it."""
        path = declaration.path_of(self.path("runs"), "e")
        content = self.declared('CONFIG_LOOKS="3,5"')
        declaration.record(path, {**content, "primary": [["1-gate", "0-baseline"]], "steps": ["1-gate"]}, 1.0)
        declaration.record(path, content, 2.0)
        self.assertEqual(declaration.read(self.path("runs"), "e").time, 1.0)

    def test_what_is_refused(self):
        for setting, said in (('CONFIG_PRIMARY="9"', "9: the steps are 0 to 5"),
                              ('CONFIG_PRIMARY="gate"', "gate: expected steps, controls, main,"),
                              ('CONFIG_PRIMARY="0"', "0: 0-baseline is compared with nothing"),
                              ('CONFIG_PRIMARY="5"', "5: 5-gate-again is compared with nothing"),
                              ('CONFIG_MARGIN="-1"', "expected a positive number"),
                              ('CONFIG_MARGIN="small"', "expected a positive number"),
                              ('CONFIG_LOOKS="5,3"', "numbers of seeds must rise"),
                              ('CONFIG_LOOKS="2"', "names 3 seeds, CONFIG_LOOKS at most 2")):
            self.listed("baseline gate cross latent null-0 again-1", setting)
            with self.subTest(setting=setting):
                self.assertIn(said, self.refusal())

    def test_record(self):
        """Each declaration once, with its time; the newest counts."""
        path = declaration.path_of(self.path("runs"), "e")
        self.assertIsNone(declaration.read(self.path("runs"), "e"))
        declaration.record(path, None, 1.0)
        self.assertFalse(os.path.exists(path))
        content = self.declared('CONFIG_PRIMARY="1"')
        declaration.record(path, content, 2.0)
        declaration.record(path, content, 3.0)
        found = declaration.read(self.path("runs"), "e")
        self.assertEqual((found.time, found.is_changed, found.primary),
                         (2.0, False, [["1-gate", "0-baseline"]]))
        declaration.record(path, None, 4.0)
        found = declaration.read(self.path("runs"), "e")
        self.assertTrue(found.time == 4.0 and found.is_changed and found.is_withdrawn)


class Matched(PlanCase):
    """Controls as large as another step, by the real counts of the program."""

    def test_parameters(self):
        """The widths can be computed by hand: a channel costs 2 E + 1 = 129 in each of 4 layers."""
        self.listed("mla mla+gate mla+parameters-of-1 mla+cross mla+parameters-of-3 mla+latent "
                    "mla+parameters-of-5")
        steps = self.plan()["steps"]
        sizes = {"gate": 3 * (256 * 64 + 64 * 4), "cross": 4 * 256 * 256, "latent": 4 * 256 * 16}
        for number, added in zip((2, 4, 6), sizes.values()):
            wider = round(added / (4 * 129))
            self.assertEqual(steps[number]["difference"],
                             [{"symbol": "FFN_HIDDEN", "old": "0", "new": str(256 + wider)}])
            match = steps[number]["match"]
            self.assertEqual(match["step"], steps[number - 1]["name"])
            self.assertEqual(match["found"] - match["target"], 4 * 129 * wider - added)
            self.assertIn(f"{4 * 129 * wider - added:+,} parameters to {match['step']}", self.said)

    def test_flops(self):
        self.listed("mla mla+cross mla+flops-of-1")
        match = self.plan()["steps"][2]["match"]
        self.assertEqual(match["quantity"], "flops")
        # A channel takes 2 E multiply-adds, 6 FLOPs each with the backward pass, in 4 layers.
        self.assertLess(abs(match["found"] - match["target"]), 4 * 2 * 64 * 6)

    def test_narrower_than_its_own_feed_forward(self):
        self.listed("mla+gate baseline+cross+parameters-of-0")
        match = self.plan()["steps"][1]["match"]
        self.assertLess(abs(match["found"] / match["target"] - 1), 0.01)

    def test_what_is_equal_already_is_left_alone(self):
        self.listed("mla dropout+parameters-of-0")
        self.fragment("dropout", 'CONFIG_DROPOUT="0.1"')
        self.assertEqual([change["symbol"] for change in self.plan()["steps"][1]["difference"]],
                         ["DROPOUT"])

    def test_heads_of_ws_divide_the_width(self):
        self.listed("swiglu ws+parameters-of-0", "CONFIG_NORM=rms")
        change = next(c for c in self.plan()["steps"][1]["difference"]
                      if c["symbol"] == "FFN_HIDDEN")
        heads = int(kconfig.Tree().syms["WS_HEADS"].defaults[-1][0].str_value)
        self.assertEqual(int(change["new"]) % heads, 0)

    def test_generated_controls(self):
        self.listed("mla mla+gate mla+gate+pool-token again-1", "CONFIG_PLAN_CONTROLS=parameters")
        steps = self.plan()["steps"]
        # Both gates are equally large: they share a control, which names them both.
        self.assertEqual([step["name"] for step in steps[4:]],
                         ["4-mla+parameters-of-1+parameters-of-2"])
        self.assertEqual(steps[4]["baseline"], "0-mla")
        self.configure("CONFIG_PLAN_CONTROLS=flops", 'CONFIG_PLAN_FRAGMENTS="swiglu mla|mla+gate"',
                       defconfig="ra-optimizer")
        names = [step["name"] for step in self.plan()["steps"]]
        self.assertEqual(names[2:], ["2-swiglu+mla+flops-of-1"])

    def test_a_control_of_another_size_is_refused(self):
        """Even one channel is too many."""
        self.listed("mla mla+MODEL_EMBD=256+parameters-of-0")
        self.assertRegex(self.refusal(), r"1-mla[^ ]*: .*no feed-forward has about [0-9]+ "
                                         r"parameters: width 1 is off by \+[0-9]+, a step of width is [0-9]+")

    def test_refused(self):
        for words, why in (("mla mla+parameters-of-1", "no other step 1"),
                           ("mla mla+parameters-of-7", "no other step 7"),
                           ("mla mla+gate again-1 mla+parameters-of-2", "a repetition"),
                           ("mla mla+gate mla+parameters-of-1 mla+flops-of-2", "itself matched")):
            self.listed(words)
            self.assertIn(why, self.refuse(tool=PLAN, tree=self.directory))

    def test_without_the_program(self):
        self.environment["O"] = self.directory
        self.listed("mla mla+gate mla+parameters-of-1")
        self.assertIn("bin/match_width does not exist", self.refusal())


class FragmentNames(unittest.TestCase):
    """What a name says is what the fragment sets."""

    @classmethod
    def setUpClass(cls):
        cls.tree = kconfig.Tree()

    def problem(self, name, *settings):
        return fragment_names.problem(self.tree, name, [
            kconfig.Assignment(*setting.split("="), f"{name}:2") for setting in settings])

    def test_another_value(self):
        for name, setting in (("latent-dim-8", "RA_MLA_LATENT_DIM=32"), ("adamw", "OPTIMIZER=muon"),
                              ("lr-5e-3", "LEARNING_RATE=5e-2"), ("score-0.1", "RA_MLA_RA_ALPHA=1.0"),
                              ("dot-kv1", "ATTENTION_KV_HEADS=2"), ("dot-kv2", "ATTENTION_KV_HEADS=1"), ("e96", "MODEL_EMBD=69"),
                              ("sparse-topk4", "RA_MLA_MLP_SPARSE_K=8"), ("sparse-topk4", "RA_MLA_MLP_SPARSE_MODE=rms"),
                              ("tying-tied-transpose", "RA_MLA_MLP_TYING_MODE=untied"),
                              ("tying-per-head-scalar", "RA_MLA_MLP_TYING_MODE=tied_transpose"),
                              ("gate", "RA_MLA_MLP_ATTN_GATE=n")):
            with self.subTest(name=name):
                self.assertEqual(self.problem(name, setting), f"{name}:2: CONFIG_{setting}: the name of the fragment says "
                                 "something else")

    def test_what_must_be_set(self):
        """A mechanism, a kind, or a number."""
        for name, promised in (("gate", "RA_MLA_MLP_ATTN_GATE=y"), ("cross", "RA_MLA_MLP_CROSS_TOKEN=y"),
                               ("latent", "RA_MLA_MLP_LATENT_RECIP=y"), ("lr-5e-3", "LEARNING_RATE=5e-3"),
                               ("muon", "OPTIMIZER=muon"), ("w2", "ATTENTION=w2")):
            with self.subTest(name=name):
                self.assertEqual(self.problem(name, "MODEL_LAYERS=3"), f"the name of the fragment {name} says "
                                 f"CONFIG_{promised}, but it does not set that")
                self.assertIsNone(self.problem(name, promised, "MODEL_LAYERS=3"))

    def test_a_part_of_the_model_sets_nothing_else(self):
        for setting in ("LEARNING_RATE=5e-2", "GPT2_MAX_ITERS=900", "EVAL_ROWS=8", "OPTIMIZER=muon"):
            self.assertEqual(self.problem("gate", "RA_MLA_MLP_ATTN_GATE=y", setting),
                             f"gate:2: CONFIG_{setting}: the name of the fragment says nothing of training or data; "
                             "another fragment can set it")
        self.assertIsNone(self.problem("muon", "OPTIMIZER=muon", "LEARNING_RATE=1e-3"))

    def test_numbers_are_compared_as_numbers(self):
        self.assertIsNone(self.problem("lr-5e-3", "LEARNING_RATE=0.005"))
        self.assertIsNone(self.problem("muon-lr-2e-2", "LEARNING_RATE=1e-3", "MUON_LEARNING_RATE=2e-2"))

    def test_all_fragments(self):
        for name in kconfig.names_in(kconfig.FRAGMENTS):
            self.assertIsNone(fragment_names.problem(self.tree, name, kconfig.read_fragment(self.tree, name)))


class Choice(unittest.TestCase):
    """Of a learning rate, from losses."""

    def test_lowest_mean(self):
        self.assertEqual(tuning.best({"1e-3": [3.0, 3.0], "1e-2": [2.0, 3.9], "1": [2.8, 2.9]}),
                         "1")

    def test_of_equal_ones_the_smallest(self):
        self.assertEqual(tuning.best({"1e-2": [3.0], "5e-3": [3.0], "1": [4.0]}), "5e-3")

    def test_divergence_is_the_worst(self):
        self.assertEqual(tuning.best({"1": [1.0, math.inf], "2": [9.0, 9.0]}), "2")
        self.assertIsNone(tuning.best({"1": [1.0, math.inf], "2": [math.inf, math.inf]}))

    def test_end_of_the_list(self):
        rates = ["1e-3", "3e-3", "1e-2"]
        self.assertEqual([tuning.is_at_end(rate, rates) for rate in rates], [True, False, True])

    def test_groups(self):
        two = [2.31, 2.35, 2.32, 2.35, 2.31, 2.32]
        self.assertEqual(tuning.groups(two), ([2.31, 2.31, 2.32, 2.32], [2.35, 2.35]))
        for one in ([2.31, 2.32, 2.33, 2.34, 2.35, 2.36], [2.31, 2.32, 2.31, 2.32, 2.31, 2.9],  # a lost seed is no group
                    two[:5], [*two[:5], math.inf], [2.3] * 6):
            self.assertIsNone(tuning.groups(one), one)

    def test_false_alarms_of_groups(self):
        """As docs/statistics.md says, of the noise of ordinary seeds."""
        chance = random.Random(1)
        alarms = sum(tuning.groups([chance.gauss(0, 1) for _ in range(6)]) is not None for _ in range(4000))
        self.assertTrue(0.025 < alarms / 4000 < 0.045, alarms)

    def test_a_rate_whose_seeds_vary_more_must_be_better_by_more(self):
        """As in an arm of ra-tying: sixty other seeds had an sd of 0.048 at the rate with the lowest mean."""
        sweep = {"6e-3": [2.265, 2.238, 2.250, 2.242, 2.253, 2.264], "1.35e-2": [2.298, 2.245, 2.236, 2.240, 2.256, 2.237]}
        self.assertLess(tuning.mean_loss(sweep["1.35e-2"]), tuning.mean_loss(sweep["6e-3"]) + 0.0003)
        self.assertEqual(tuning.best(sweep), "6e-3")
        sweep["1.35e-2"] = [loss - 0.01 for loss in sweep["1.35e-2"]]
        self.assertEqual(tuning.best(sweep), "1.35e-2")

    def test_a_choice_whose_seeds_fall_in_groups_is_named(self):
        sweep = {"6e-3": [2.34, 2.35, 2.36, 2.37, 2.38, 2.39], "1.2e-2": [2.31, 2.35, 2.32, 2.35, 2.31, 2.32]}
        self.assertEqual(tuning.best(sweep), "1.2e-2")
        self.assertEqual([*tuning.remarks(sweep, "1.2e-2")], [
            "with 1.2e-2 the seeds fall in two groups, 2.3100 to 2.3200 and 2.3500 to 2.3500"])
        self.assertEqual([*tuning.remarks(sweep, "6e-3")], [])

    def test_the_rate_beyond_an_end(self):
        rates = ["4e-3", "6e-3", "9e-3"]
        self.assertEqual([tuning.beyond(rate, rates) for rate in rates], ["2.7e-3", None, "1.3e-2"])
        self.assertIsNone(tuning.beyond("4e-3", rates[:2]))     # of two, either is at an end

    def test_lists(self):
        self.assertEqual(tuning.rates("1e-3, 3e-3,.1"), ["1e-3", "3e-3", ".1"])
        for wrong in ("1e-3", "1e-3,1e-3", "2,1", "1,x", "0,1", "-1,1", "1,,2", "nan,1"):
            with self.assertRaises(kconfig.Unfit):
                tuning.rates(wrong)


class Tuned(PlanCase):
    RATES = 'CONFIG_TUNE_RATES="1e-3,6e-3"'

    def table(self, step):
        return self.read(f"plan/{step}/generated/config_table.h")

    def choose(self, step, rate):
        """As if the tuning runs had been made."""
        tree = kconfig.Tree()
        os.environ["KCONFIG_CONFIG"] = self.config
        self.addCleanup(os.environ.pop, "KCONFIG_CONFIG")
        steps, values = plan.plan(tree, self.path("plan"))
        found = next(s for s in steps if s.name == step)
        self.write(f"{tuning.key(found.candidates, plan_words.tuning_seeds(values))} {rate}\n",
                   f"plan/{step}/rate")

    def choose_by(self, loss, *settings):
        """The sentences of choices, one after the other, where a function of the rate gives the loss of each seed."""
        os.environ["KCONFIG_CONFIG"] = self.config
        self.addCleanup(os.environ.pop, "KCONFIG_CONFIG", None)
        self.listed("mla mla+tuned", *settings)
        said = []
        with mock.patch.object(tuning.records, "connect"), \
                mock.patch.object(tuning, "recorded_loss", lambda _, identity: loss(*identity)):
            while not said or said[-1].endswith(("is tried, too", "6 more")):
                steps, values = plan.plan(kconfig.Tree(), self.path("plan"))
                runs = [{seed: (float(c.rate), seed) for seed in c.seeds} for c in steps[1].candidates]
                said += tuning.choose(self.path("plan"), steps[1], plan_words.tuning_seeds(values),
                                      tuning.rates(values["TUNE_RATES"]), "", runs)
        steps, _ = plan.plan(kconfig.Tree(), self.path("plan"))
        return said, steps[1]

    def test_a_best_rate_at_an_end_widens_the_list(self):
        rates = 'CONFIG_TUNE_RATES="4e-3,6e-3,9e-3"'
        said, step = self.choose_by(lambda rate, seed: abs(rate - 1.35e-2), rates)
        self.assertEqual(said, ["the best rate, 9e-3, is at the end of the list: 1.3e-2 is tried, too",
                                "the best rate, 1.3e-2, is at the end of the list: 1.9e-2 is tried, too",
                                "learning rate 1.3e-2"])
        self.assertEqual([c.rate for c in step.candidates], ["4e-3", "6e-3", "9e-3", "1.3e-2", "1.9e-2"])
        self.assertEqual(step.rate, "1.3e-2")
        self.plan()
        self.assertIn("1-mla+tuned: the best rate was at the end of the list: 1.3e-2, 1.9e-2 were added", self.said)

    def test_the_list_does_not_grow_without_end(self):
        said, step = self.choose_by(lambda rate, seed: rate, 'CONFIG_TUNE_RATES="4e-3,6e-3,9e-3"')
        self.assertEqual(len(said), tuning.MOST_ADDED + 1)
        self.assertEqual(len(step.candidates), 3 + tuning.MOST_ADDED)
        self.plan()
        self.assertIn("is at the end of the list: a better one may lie beyond", self.said)

    def test_rates_too_close_to_tell_have_more_seeds(self):
        """Seeds 1 to 3 favour 9e-3, and the others 6e-3, which is the better one; the rest is far off."""
        def loss(rate, seed):
            return {4e-3: 1, 6e-3: 0.1, 9e-3: 0.05 if seed <= 3 else 0.3, 1.3e-2: 2}[rate] + 0.1 * (seed % 3)

        settings = 'CONFIG_TUNE_RATES="4e-3,6e-3,9e-3,1.3e-2"', "CONFIG_SEEDS=11,12,13", "CONFIG_TUNE_SEEDS=1,2,3"
        said, step = self.choose_by(loss, *settings)
        self.assertEqual((said, step.rate), (["learning rate 9e-3"], "9e-3"))
        more = *settings, "CONFIG_TUNE_MORE_SEEDS=4,5,6,7,8,9"
        said, step = self.choose_by(loss, *more)
        self.assertEqual(said, ["3 seeds do not tell 6e-3, 9e-3 apart: they are trained with 6 more", "learning rate 6e-3"])
        self.assertEqual([len(c.seeds) for c in step.candidates], [3, 9, 9, 3])
        self.plan()
        self.assertIn("30 runs, 24 of them to tune", self.said)
        # A rate that is clearly the best needs no more.
        said, _ = self.choose_by(lambda rate, seed: abs(rate - 6e-3) + 1e-6 * seed, *more)
        self.assertEqual(said, ["learning rate 6e-3"])

    def test_another_list_forgets_what_was_added(self):
        self.choose_by(lambda rate, seed: rate, 'CONFIG_TUNE_RATES="4e-3,6e-3,9e-3"')
        said, step = self.choose_by(lambda rate, seed: abs(rate - 6e-3), 'CONFIG_TUNE_RATES="4e-3,6e-3,8e-3"')
        self.assertEqual((said, len(step.candidates)), (["learning rate 6e-3"], 3))

    def test_candidates_first_then_the_step(self):
        self.listed("mla mla+tuned again-1", self.RATES)
        found = self.plan()["steps"][1]
        self.assertEqual(found["candidates"], ["1-mla+tuned@1e-3", "1-mla+tuned@6e-3"])
        for line in ("plan-steps := 0-mla", "plan-open := 1-mla+tuned 2-mla+tuned-again",
                     "plan-tuned := 1-mla+tuned", "tuned-for-2-mla+tuned-again := 1-mla+tuned",
                     "plan-candidates := 1-mla+tuned@1e-3 1-mla+tuned@6e-3"):
            self.assertIn(line + "\n", self.read("plan/plan.mk"))
        self.assertIn("LEARNING_RATE to be chosen from 2", self.said)
        self.assertIn("19 runs, 12 of them to tune", self.said)
        self.choose("1-mla+tuned", "6e-3")
        found = self.plan()["steps"][1]
        self.assertEqual(found["rate"], "6e-3")
        # The lowest rate keeps its ratio of a tenth.
        self.assertEqual(self.read("plan/1-mla+tuned/diff"),
                         "LEARNING_RATE 3e-3 -> 6e-3\nMIN_LEARNING_RATE 3e-4 -> 0.0006\n")
        self.assertEqual(self.table("1-mla+tuned"), self.table("1-mla+tuned@6e-3"))
        self.assertEqual(self.table("1-mla+tuned"), self.table("2-mla+tuned-again"))
        self.assertIn("plan-steps := 0-mla 1-mla+tuned 2-mla+tuned-again\n",
                      self.read("plan/plan.mk"))
        self.assertIn("1-mla+tuned: the rate chosen, 6e-3, is at the end of the list", self.said)

    def test_another_question_needs_another_choice(self):
        self.listed("mla mla+tuned", self.RATES)
        self.plan()
        self.choose("1-mla+tuned", "1e-3")
        self.assertEqual(self.plan()["steps"][1]["rate"], "1e-3")
        for change in ("CONFIG_GPT2_MAX_ITERS=7", "CONFIG_TUNE_SEEDS=5,6",
                       "CONFIG_TUNE_RATES=1e-3,5e-3"):
            self.succeed("set", change, tree=self.directory)
            self.assertIsNone(self.plan()["steps"][1]["rate"])

    def test_every_step(self):
        self.configure("CONFIG_ATTENTION=mla", 'CONFIG_PLAN="leave_one_out"', self.RATES,
                       "CONFIG_TUNE_ALL=y")
        self.assertEqual([len(step["candidates"]) for step in self.plan()["steps"]], [2] * 4)
        self.listed("mla mla+gate mla+gate+pool-token mla+cross", self.RATES, "CONFIG_TUNE_ALL=y",
                    "CONFIG_PLAN_CONTROLS=parameters")
        self.assertEqual(self.plan()["steps"][5]["candidates"],
                         ["5-mla+parameters-of-3@1e-3", "5-mla+parameters-of-3@6e-3"])

    def test_a_choice_may_meet_another_step(self):
        self.listed("mla mla+tuned", 'CONFIG_TUNE_RATES="1e-3,3e-3"')
        self.plan()
        self.choose("1-mla+tuned", "3e-3")
        self.plan()
        self.listed("mla mla+tuned tuned", self.RATES)
        self.assertIn("the same configuration", self.refuse(tool=PLAN, tree=self.directory))

    def test_refused(self):
        self.listed("mla mla+tuned")
        self.assertIn("CONFIG_TUNE_RATES gives no rates", self.refusal())
        self.listed("mla mla+tuned", self.RATES, "CONFIG_TUNE_SEEDS=3,4")
        self.assertIn("CONFIG_TUNE_SEEDS and CONFIG_SEEDS share 3", self.refusal())
        self.listed("mla mla+tuned", self.RATES, "CONFIG_TUNE_MORE_SEEDS=2")
        self.assertIn("CONFIG_TUNE_MORE_SEEDS and CONFIG_SEEDS share 2", self.refusal())
        self.listed("mla mla+tuned", self.RATES, "CONFIG_TUNE_MORE_SEEDS=106,107")
        self.assertIn("CONFIG_TUNE_SEEDS and CONFIG_TUNE_MORE_SEEDS share 106", self.refusal())


class Make(Case):
    """make itself, with a plan and runs of its own."""
    SETTINGS = ("CONFIG_PLAN=single", "CONFIG_SEEDS=1", "CONFIG_GPT2_MAX_ITERS=2",
                "CONFIG_AUDIT_ORACLE=n", "CONFIG_AUDIT_WIRING=n", "CONFIG_AUDIT_CAUSALITY=n",
                "CONFIG_AUDIT_ONE_BATCH=n",
                "CONFIG_AUDIT_DATA=n", "CONFIG_AUDIT_TRAINING=n", "CONFIG_AUDIT_PAIRING=n")

    def configure(self, name, *settings):
        """Older than any plan."""
        self.environment["KCONFIG_CONFIG"] = self.path(name)
        self.succeed("defconfig", "smoke")
        self.succeed("set", *self.SETTINGS, *settings)
        os.utime(self.path(name), (1, 1))

    def make(self, *words, expect=0, **variables):
        done = as_user.make(f"PLAN={self.path('plan')}", f"RUNS={self.path('runs')}", *words,
                            KCONFIG_CONFIG=self.environment["KCONFIG_CONFIG"], **variables)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def plan_of(self, name, expected):
        self.environment["KCONFIG_CONFIG"] = self.path(name)
        self.make("-n", "steps")
        self.assertIn(f"plan-threads := {expected}\nplan-ranks := 1\n", self.read("plan/plan.mk"))

    def test_plan_of_another_configuration(self):
        """None is newer than the plan."""
        self.configure("a", "CONFIG_THREADS=1")
        self.configure("b", "CONFIG_THREADS=2")
        self.plan_of("a", 1)
        self.plan_of("b", 2)
        planned = os.stat(self.path("plan/plan.mk")).st_mtime_ns
        self.plan_of("b", 2)
        self.assertEqual(os.stat(self.path("plan/plan.mk")).st_mtime_ns, planned)
        os.rename(self.path("a"), self.path("b"))
        self.plan_of("b", 1)

    def test_a_plan_that_is_refused(self):
        """make says which step failed, and nothing else."""
        self.configure("config", "CONFIG_PLAN_FACTORS=MODEL_HEADS=1|3")
        self.assertRegex(self.make("plan", expect=2), r"\Aplan: CONFIG_MODEL_HEADS=3: out of range, which is .*\n"
                                                      r"make: \*\*\* .*plan\.mk\] Error 1\n\Z")

    def test_runs_at_a_time(self):
        self.configure("config", "CONFIG_PLAN_FACTORS=MODEL_HEADS=1|2|4", "CONFIG_THREADS=1")
        # nproc obeys this variable
        self.assertIn(" with 3 runs at a time", self.make("plan", OMP_NUM_THREADS="3"))

    def built_for(self, backend):
        """The libraries that make would build for the steps, and the hash of their sources."""
        self.configure("config", f"CONFIG_BACKEND={backend}")
        said = self.make("-n", "steps", f"O={self.path('O')}", "NVCC=/bin/true", "CUDA_GPUS=90")
        return set(re.findall(r"kablate_cuda\w*\.so", said)), set(re.findall(r"BUILD_SOURCES='\"(\w+)\"'", said))

    def test_a_step_on_a_gpu_has_the_backend(self):
        """It is built with the step, and its sources belong to the identity of the run."""
        os.makedirs(self.path("O/core/backend/cuda"))
        self.write("backend.cu.o: core/backend/cuda/backend.cu\n", "O/core/backend/cuda/backend.cu.d")
        libraries, sources = self.built_for("cpu")
        self.assertEqual(libraries, set())
        on_gpu, sources_on_gpu = self.built_for("cuda")
        self.assertEqual(on_gpu, {"kablate_cuda.so", "kablate_cuda_replicas.so"})
        self.assertEqual([len(sources), len(sources_on_gpu)], [1, 1])
        self.assertNotEqual(sources, sources_on_gpu)

    def seeds_by_process(self, *words):
        """Step and seeds of each process that make would start, in its order."""
        said = self.make("-n", *words, NVCC="")
        self.assertIn("OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} ", said)     # for the shell, not for make
        return re.findall(r"--step (\S+) .*--seeds (\S+) ", said)

    def test_replicas_go_look_by_look(self):
        """One process has the seeds of a step that a look adds, and of those only what is missing and ends in time."""
        self.configure("config", "CONFIG_BACKEND=cuda", "CONFIG_REPLICAS=y", "CONFIG_PLAN_FACTORS=MODEL_HEADS=1|2",
                       "CONFIG_LOOKS=2,5")
        self.succeed("set", "CONFIG_SEEDS=1,2,3,4,5")
        self.make("steps", NVCC="")
        first, second = (step["name"] for step in json.loads(self.read("plan/plan.json"))["steps"])
        self.assertEqual(self.seeds_by_process("runs-all"), [
            (first, "1,2"), (second, "1,2"), (first, "3,4,5"), (second, "3,4,5")])
        [done] = (run["directory"] for run in json.loads(self.read("plan/runs.json"))
                  if (run["step"], run["seed"]) == (first, 1))
        os.makedirs(self.path(f"runs/{done}"))
        self.write("", f"runs/{done}/done")
        for step in (first, second):        # two at a time: 8 of the 9 runs end in an hour
            seconds = estimate.run_seconds(kconfig.values_in(self.path(f"plan/{step}/config")), 1)
            self.write(json.dumps({"seconds_per_token": 750 / seconds}), f"plan/{step}/estimate.json")
        self.assertEqual(self.seeds_by_process("runs-run-in-time", "MINUTES=60"), [
            (second, "1,2"), (first, "2"), (first, "3,4,5"), (second, "3,4")])

    def test_rates_are_replicas(self):
        """One process has all rates of a step; not with Muon, whose rate belongs to the optimizer."""
        words = ("CONFIG_BACKEND=cuda", "CONFIG_REPLICAS=y", "CONFIG_TUNE_RATES=1e-3,2e-3", "CONFIG_TUNE_ALL=y",
                 "CONFIG_TUNE_SEEDS=101,102")
        self.configure("config", *words)
        self.make("steps", NVCC="")
        [step] = (step["name"] for step in json.loads(self.read("plan/plan.json"))["steps"])
        said = self.make("-n", f"runs-rate-{step}", NVCC="")
        slow, fast = f"{step}@1e-3", f"{step}@2e-3"
        self.assertEqual(re.findall(r"--seeds (\S+) .*--steps (\S+) --rates (\S+) ", said), [
            ("101,102,101,102", f"{slow},{slow},{fast},{fast}", "1e-3/0.0001,1e-3/0.0001,2e-3/0.0002,2e-3/0.0002")])
        self.configure("config", *words, "CONFIG_OPTIMIZER_MUON=y")
        self.make("steps", NVCC="")
        self.assertEqual(self.seeds_by_process(f"runs-rate-{step}"), [(slow, "101,102"), (fast, "101,102")])

    def waiting_make(self, *words):
        """A make that waits before its first run until the file "go" is there; a shim of git waits for it."""
        self.write(f"""#!/bin/sh
case "$1" in rev-parse)
	: >{self.path("waits")}
	until [ -e {self.path("go")} ]; do sleep 0.1; done ;;
esac
exec {shutil.which("git")} "$@"
""", "git")
        os.chmod(self.path("git"), 0o755)
        environment = as_user.environment(KCONFIG_CONFIG=self.environment["KCONFIG_CONFIG"],
                                          PATH=f"{self.directory}:{os.environ['PATH']}")
        with open(self.path("said"), "w", encoding="utf-8") as said:
            make = subprocess.Popen(["make", "-s", f"O={as_user.BUILD}", f"PLAN={self.path('plan')}",
                                     f"RUNS={self.path('runs')}", *words], cwd=as_user.ROOT,
                                    env=environment, stdout=said, stderr=said)
        self.addCleanup(make.wait)
        self.addCleanup(self.write, "", "go")
        while not os.path.exists(self.path("waits")) and make.poll() is None:
            time.sleep(0.1)
        return make

    def end_of(self, make):
        """Its exit status and what it said."""
        self.write("", "go")
        return make.wait(), self.read("said")

    def run_directories(self, experiment="runs/smoke"):
        return [name for name in os.listdir(self.path(experiment))
                if os.path.isdir(self.path(os.path.join(experiment, name)))]

    def planned(self, experiment):
        return sorted(time_left.read_plan(self.path("runs"), experiment), key=lambda run: run.kind, reverse=True)

    def test_the_next_experiment_is_configured_while_one_trains(self):
        """The plan of a make is fixed when it starts: programs, runs and report stay its own."""
        self.configure("config", "CONFIG_EXPERIMENT=first", "CONFIG_MODEL_LAYERS=1")
        self.succeed("set", "CONFIG_SEEDS=1,2")
        first = self.waiting_make("-j1")
        self.succeed("set", "CONFIG_EXPERIMENT=second", "CONFIG_MODEL_LAYERS=2")
        self.assertIn("second: no question", self.make("plan"))
        said = self.make()      # its plan has steps of the same names
        self.assertIn("second: scale laptop, seeds 1, 2\n", said)
        self.assertEqual(len(os.listdir(self.path("runs/second"))), 4)      # and the report and planned.json
        status, said = self.end_of(first)
        self.assertEqual(status, 0, said)
        self.assertIn("first: scale laptop, seeds 1, 2\n", said)
        self.assertNotIn("second", said)
        layers = {run.name: json.loads((run / "run.json").read_text())["config"]["MODEL_LAYERS"]
                  for run in pathlib.Path(self.path("runs/first")).glob("0-*")}
        self.assertEqual(list(layers.values()), ["1", "1"])
        self.assertIn("second", self.make("report"))        # now as .config says

    def test_rates_are_chosen_for_the_plan_that_began(self):
        """After the runs that tune, the plan is made again: still of the configuration at the start."""
        self.configure("config", "CONFIG_EXPERIMENT=first", 'CONFIG_TUNE_RATES="1e-3,6e-3"',
                       "CONFIG_TUNE_ALL=y", "CONFIG_TUNE_SEEDS=101")
        first = self.waiting_make()
        self.configure("config", "CONFIG_EXPERIMENT=second")
        self.make("plan")
        waiting = self.planned("first")
        self.assertEqual({(run.kind, run.step) for run in waiting},
                         {("tuning", "0-baseline@1e-3"), ("tuning", "0-baseline@6e-3"), ("run", "0-baseline")})
        self.assertEqual([bool(run.identity) for run in waiting], [True, True, False])
        status, said = self.end_of(first)
        self.assertEqual(status, 0, said)
        self.assertEqual([bool(run.identity) for run in self.planned("first")], [True, True, True])
        self.assertIn("first: scale laptop, seeds 1\n", said)
        self.assertFalse(os.path.exists(self.path("runs/second")))

    def test_one_plan_for_makes_of_one_configuration(self):
        self.configure("config")
        first = self.waiting_make("runs")
        self.make("steps")
        self.assertFalse(os.path.exists(self.path("plan.2")))
        self.configure("config", "CONFIG_MODEL_LAYERS=1")
        self.make("steps")
        self.assertTrue(os.path.exists(self.path("plan.2/0-baseline/kablate")))
        self.make("stop")
        self.assertTrue(os.path.exists(self.path("plan.2/stopped")))    # of all plans
        status, said = self.end_of(first)
        self.assertIn("stopped before smoke 0-baseline seed 1", said)
        self.assertNotEqual(status, 0)
        self.configure("config", "CONFIG_MODEL_LAYERS=2", "CONFIG_MODEL_HEADS=1")
        self.make("steps")      # the first plan is free
        self.assertFalse(os.path.exists(self.path("plan.3")))

    def test_data_of_another_configuration(self):
        self.configure("a", "CONFIG_TASK=text")
        self.configure("b", "CONFIG_TASK=copy")
        for name, said in (("a", "there is no text"), ("b", "is for the task text")) * 2:
            self.environment["KCONFIG_CONFIG"] = self.path(name)
            self.assertIn(said, self.make("data", expect=2))

    def test_only_a_run_is_forgotten(self):
        self.configure("config")
        self.make("runs")
        [run] = map(str, pathlib.Path(self.path("runs/smoke")).glob("0-*"))
        precious = self.path("runs/precious")
        os.mkdir(precious)
        for wrong in (f"{precious} {run}", f"{run} {precious}", f"{run} {run}", "%", precious, "",
                      f"{run}/*", self.path("runs/%")):
            self.assertIn(f"RUN=DIRECTORY: one of {run}", self.make("runs-forget", f"RUN={wrong}",
                                                                    expect=2))
            self.assertTrue(os.path.exists(precious) and os.path.exists(run), wrong)
        self.make("runs-forget", f"RUN={run}/")
        self.assertFalse(os.path.exists(run))

    def test_a_declaration_is_recorded_first_and_changes_no_run(self):
        self.configure("config")
        self.make("runs")
        [run] = self.run_directories()
        self.configure("config", 'CONFIG_MARGIN="0.01"')
        self.make("runs")
        self.assertEqual(self.run_directories(), [run])
        [entry] = json.loads(self.read("runs/smoke/declaration.json"))["declarations"]
        self.assertEqual(entry["declared"]["margin"], 0.01)
        self.succeed("set", "CONFIG_SEEDS=2")
        self.make("runs")
        [other] = set(self.run_directories()) - {run}
        started = min(line["time"] for line in map(
            json.loads, self.read(f"runs/smoke/{other}/journal.jsonl").splitlines()))
        entries = json.loads(self.read("runs/smoke/declaration.json"))["declarations"]
        self.assertEqual([e["declared"]["seeds"] for e in entries], [[1], [2]])
        self.assertLess(entries[1]["time"], started)

    def test_two_directories_of_runs_share_a_plan(self):
        """Two makes with different RUNS= at once must not undo each other's files."""
        self.configure("config")
        self.make("runs")
        before = os.stat(self.path("plan/runs.mk")).st_mtime_ns
        self.make(f"RUNS={self.path('others')}", "runs")
        self.make("runs")
        self.assertEqual(os.stat(self.path("plan/runs.mk")).st_mtime_ns, before)
        for directory in ("runs/smoke", "others/smoke"):
            [run] = self.run_directories(directory)
            self.assertTrue(os.path.exists(self.path(f"{directory}/{run}/done")), directory)

    def test_files_whose_names_are_commands(self):
        """They are prerequisites, which make expands twice."""
        self.configure("config")
        for name in ("${shell touch trap}", "x;touch trap", "$${shell touch trap}"):
            path = self.path(name.replace(" ", "${IFS}"))
            self.write("", path)
            self.succeed("set", f"CONFIG_INIT_FROM={path}")
            self.assertIn("make cannot work with files whose names have any of", self.make("runs", expect=2))
            self.assertFalse(os.path.exists(os.path.join(kconfig.ROOT, "trap")))

    def test_a_program_that_another_make_replaced(self):
        self.configure("config")
        self.make("runs")
        [run] = self.run_directories()
        # As if this plan's program had another identity.
        self.write(self.read("plan/runs.mk").replace(run[-12:], "0123456789ab"), "plan/runs.mk")
        self.assertIn("another configuration than the run 0123456789ab",
                      self.make("runs-all", expect=2))
        self.assertEqual(self.run_directories(), [run])

    def test_a_bad_configuration_keeps_neither_status_nor_stop(self):
        self.configure("config")
        self.make("runs")
        path = self.path("config")
        self.write(self.read("config").replace('CONFIG_SEEDS="1"', 'CONFIG_SEEDS="1,x"'), "config")
        self.assertIn("separated by commas", self.make("runs", expect=2))
        self.assertIn("done", self.make("status"))
        self.make("stop")
        os.unlink(path)
        self.assertIn("done", self.make("status"))

    def instead_of_the_program(self, script):
        """Until the returned function puts the program back, as it was."""
        program, aside = self.path("plan/0-baseline/kablate"), self.path("kablate")
        os.rename(program, aside)
        self.write(f"#!/bin/sh\n{script}\n", "plan/0-baseline/kablate")
        os.chmod(program, 0o755)
        return lambda: os.rename(aside, program)

    def test_a_program_that_dies_has_refused_nothing(self):
        self.configure("config")
        self.make("steps")
        for script, said in (("kill -KILL $$", "was killed by SIGKILL"),
                             ("exit 137", "ended with status 137"),
                             ("exit 0", "ended with status 0")):
            put_back = self.instead_of_the_program(script)
            self.assertIn(f"0-baseline did not print the identity of its run with seed 1: it {said}",
                          self.make("runs-all", expect=2))
            put_back()
        self.assertNotIn("refused", self.make("runs"))

    def test_what_was_refused_is_asked_again(self):
        """Memory that lacked then is perhaps free now."""
        self.configure("config")
        self.make("steps")
        put_back = self.instead_of_the_program("echo kablate: out of memory >&2; exit 1")
        self.assertIn("out of memory", self.make("runs-all", expect=2))
        put_back()
        self.make("runs")
        [run] = self.run_directories()
        self.assertTrue(os.path.exists(self.path(f"runs/smoke/{run}/done")))


class Page(Case):
    """docs/ask-a-question.md, "Other questions": each of its commands makes a plan."""

    def test_other_questions(self):
        page = pathlib.Path(kconfig.ROOT, "docs/ask-a-question.md").read_text(encoding="utf-8")
        commands = re.findall(r"^    make set (.*)", page.split("## Other questions")[1], re.M)
        self.assertEqual(len(commands), 6)
        for command in commands:
            with self.subTest(command):
                self.succeed("defconfig")
                self.succeed("set", *shlex.split(command))
                self.succeed(tool=PLAN)


class Defconfigs(Case):
    pass


def defconfig_case(name):
    def test(self):
        self.succeed("defconfig", name)
        self.succeed(tool=PLAN)
    return test


for file_name in kconfig.names_in(kconfig.DEFCONFIGS):
    setattr(Defconfigs, "test_" + file_name, defconfig_case(file_name))

if __name__ == "__main__":
    tap.main()
