"""report: from run directories through the real `results rebuild` to every file of a report."""
import base64
import collections
import contextlib
import csv
import hashlib
import html.parser
import io
import itertools
import json
import math
import os
import platform
import pathlib
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import urllib.parse

from tools.plan import config_difference, plan_words
from tools.report import ablation, judging, kept_tokens, plots, pruning, report, specialisation, stats
from tools.results import notes, records
from tools.testing import tap
from tools.testing.made_up import STUDY, Case, Runs

ROOT = str(pathlib.Path(__file__).resolve().parents[2])


class Study(Case):
    def test_verdicts(self):
        self.runs.study()
        status, text, table = self.report()
        self.assertEqual(status, 0)
        self.assertEqual(self.verdicts(table), dict(zip(STUDY, [
            "baseline", "better", "open", "invalid", "reproduced"])))
        self.assertIn("causality audit failed for h.0: token 5 changes 3", text)
        self.assertIn(f"hold together with 95%, {report.stats.CONDITION}: corrected for 2 comparisons", text)
        self.assertRegex(text, r"2-mla\+gate\+cross +open \([0-9]+ (to [0-9]+ seeds|seeds or more)\)  ")
        self.assertRegex(text, r"\nAnswers:\n"
                         r"  1-mla\+gate is better than 0-mla: -0\.2062 \[-0\.2260, -0\.1863\] nats, 5 seeds\.\n"
                         r"  2-mla\+gate\+cross against 0-mla: open; -0\.0089 \[-0\.0196, \+0\.0018\] nats, 5 seeds; "
                         r"[0-9]+ (to [0-9]+ seeds|seeds or more) would settle it\.\n"
                         r"  3-mla\+gate\+cross\+latent against 0-mla: invalid; .*\.\n$")
        self.assertIn("scale laptop, seeds 1, 2, 3, 4, 5", text)
        self.assertRegex(text, r"1-mla\+gate +better .* 2M\*")
        self.assertIn("STEP: mla → mla+gate", text)

    def test_begins_with_what_was_compared(self):
        common = {"MODEL_LAYERS": "4", "MODEL_EMBD": "64", "FFN": "gelu", "OPTIMIZER": "adamw"}
        for step, norm, rate in (("0-layer", "layer", "3e-3"), ("1-rms", "rms", "6e-3")):
            self.runs.add("e", step, 1, 3.0, config={
                **common, "ATTENTION": "dot", "NORM": norm, "LEARNING_RATE": rate})
        line = "dot attention, LayerNorm or RMSNorm, GELU, 4 x 64, AdamW 3e-3 or 6e-3, language"
        _, text, table = self.report("e")
        self.assertEqual(text.splitlines()[:2], ["e: scale laptop, seeds 1", line])
        self.assertEqual(table["compared"], line)
        self.assertEqual(self.read("md", "e").splitlines()[:3], ["# e: scale laptop, seeds 1", "", line])
        self.assertIn(f'<h1>e</h1><p class="question">{line}</p>', self.read("html", "e"))

    def test_numbers(self):
        """Paired by seed: computed here again from what was written."""
        self.runs.add("e", "0-mla", 1, 3.0)
        self.runs.add("e", "0-mla", 2, 4.0)
        self.runs.add("e", "0-mla", 3, 5.0)
        for seed, loss in ((1, 3.1), (2, 4.2), (3, 5.3)):
            self.runs.add("e", "1-x", seed, loss)
        _, text, table = self.report("e")
        row = table["rows"][1]
        self.assertAlmostEqual(row["numbers"]["loss"]["mean"], 4.2)
        self.assertAlmostEqual(row["delta"]["mean"], 0.2)
        self.assertAlmostEqual(row["delta"]["sd"], 0.1)
        self.assertAlmostEqual(row["delta"]["low"], 0.2 - 4.302653 * 0.1 / math.sqrt(3), places=6)
        self.assertAlmostEqual(row["perplexity_percent"], 100 * (math.exp(0.2) - 1))
        self.assertAlmostEqual(row["numbers"]["tokens_per_second"]["mean"], 1055)
        self.assertAlmostEqual(row["numbers"]["peak_megabytes"]["mean"], 102)
        self.assertEqual(row["verdict"], "open")
        self.assertIn("+0.2000 [-0.0484, +0.4484]", text)
        recall = next(c for c in table["components"] if c["name"] == "recall")
        self.assertEqual(recall["step"], "0-mla")
        self.assertAlmostEqual(recall["share"], (21 - 5) / (21 - 3))

    def test_headline_is_last_and_best_is_kept(self):
        self.runs.add("e", "0-mla", 1, 3.0, curve=False, values={"val/loss": 2.5})
        _, _, table = self.report("e")
        self.assertEqual(table["rows"][0]["numbers"]["loss"]["mean"], 3.0)
        self.assertEqual(table["rows"][0]["numbers"]["best_loss"]["mean"], 2.5)

    def test_not_reproduced(self):
        self.runs.study(twin="other bits")
        status, text, table = self.report()
        self.assertIn("FAILED: not reproduced: 4-mla+gate+cross-again", status)
        self.assertEqual(self.verdicts(table)[STUDY[4]], "NOT REPRODUCED")
        self.assertIn("Written", text)
        self.assertIn("other weights than 2-mla+gate+cross for seed 1, 2, 3, 4, 5", text)

    def test_one_of_two_that_diverged_is_not_reproduced(self):
        for mine, first, verdict, why in (
                ("diverged", "done", "NOT REPRODUCED", "diverged, unlike 0-mla, for seed 1"),
                ("done", "diverged", "NOT REPRODUCED", "finished, unlike 0-mla, for seed 1"),
                ("diverged", "diverged", "not checked", "no finished run"),
                ("failed", "done", "not checked", "no finished run")):
            name = f"{mine}-{first}"
            self.runs.add(name, "0-mla", 1, 3.0, config={"FFN": "ws"}, weights="w", state=first)
            self.runs.add(name, "0-mla", 2, 3.0, config={"FFN": "ws"}, weights="w")
            self.runs.add(name, "1-mla-again", 1, 3.0, config={"FFN": "ws"}, weights="w",
                          repeat=1, state=mine)
            _, text, table = self.report(name)
            self.assertEqual(self.verdicts(table)["1-mla-again"], verdict)
            self.assertIn(why, text)

    def test_two_seeds(self):
        self.runs.study(seeds=(1, 2))
        status, text, table = self.report()
        self.assertEqual(status, 0)
        self.assertEqual(self.verdicts(table)["1-mla+gate"], "not decidable")
        self.assertIn("2 paired seeds, 3 are needed", text)

    def test_published(self):
        self.runs.study()
        _, text, table = self.report()
        self.assertIn("9.5359", text)
        gate = table["published"]["steps"][1]
        self.assertAlmostEqual(gate["ours"]["mean"], table["rows"][1]["numbers"]["loss"]["mean"])

    def test_published_window(self):
        """The W2 benchmark gives the mean of its last 100 training losses."""
        self.runs.add("w2-copy", "5-dot+e96", 1, 3.6, curve=False, baseline="5-dot+e96",
                      values={"train/loss": 9.0})
        _, text, table = self.report("w2-copy")
        self.assertAlmostEqual(table["published"]["steps"][0]["ours"]["mean"], 3.59)
        self.assertIn("3.6821", text)

    def test_published_steps_are_planned(self):
        def words(path):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                pattern = r'(?:PLAN_FRAGMENTS=|default )"((?:\S+ )+\S+)"'
                return re.search(pattern, file.read())[1].split()
        for experiment, path in (("w2-copy", "defconfigs/w2-copy"),
                                 ("gpt2-ra-mla-full", "tools/plan/Kconfig")):
            planned = [step.name for step in plan_words.listed_steps(words(path))]
            for claim in ablation.load_published(experiment)["steps"]:
                self.assertIn(claim["step"], planned)


class Unusual(Case):
    def test_unfinished_runs_are_told(self):
        self.runs.study(seeds=(1, 2, 3))
        name = "gpt2-ra-mla-full"
        self.runs.add(name, "0-mla", 4, 3.0, weights="w")
        self.runs.add(name, "1-mla+gate", 4, 90.0, state="diverged", reason="loss is inf")
        self.runs.add(name, "2-mla+gate+cross", 4, 3.0, ended=False)
        self.runs.add(name, "3-mla+gate+cross+latent", 4, math.nan)
        _, text, table = self.report()
        self.assertEqual(table["rows"][1]["seeds"], [1, 2, 3])
        self.assertEqual(table["rows"][1]["delta"]["n"], 3)
        for line in ("1-mla+gate, seed 4: diverged: loss is inf",
                     "2-mla+gate+cross, seed 4: still running",
                     "3-mla+gate+cross+latent, seed 4: val/loss is not finite"):
            self.assertIn(line, text)
        self.assertNotIn("again, seed 4: missing", text)  # a repetition has one seed
        self.assertEqual(table["unfinished"], ["2-mla+gate+cross, seed 4: still running", "complete: seeds 1-3 of steps 0-3"])
        self.assertEqual(len(table["problems"]), 2)
        self.assertRegex(text, r"better‡")

    def test_what_goes_on_or_waits_is_no_problem(self):
        for step, seed in (("0-mla", 1), ("0-mla", 2), ("1-x", 1)):
            self.runs.add("e", step, seed, 3.0)
        self.runs.plan("e", {"0-mla": (1, 2), "1-x": (1, 2, 3), "2-y": (1,)})
        _, text, table = self.report("e")
        self.assertEqual((table["problems"], table["unfinished"]),
                         ([], ["1-x, seeds 2, 3: waiting", "2-y, seed 1: waiting", "complete: seed 1 of steps 0, 1"]))
        self.assertNotIn("Problems", text)
        self.runs.plan("e", {"0-mla": (1, 2), "1-x": (1,)})
        _, text, table = self.report("e")
        self.assertEqual((table["problems"], table["unfinished"]), (["1-x, seed 2: missing"], ["complete: seed 1 of steps 0, 1"]))
        self.runs.add("e", "1-x", 2, 3.0, ended=False, host=platform.node(), pid=2**22 + 1)
        _, text, table = self.report("e")
        self.assertEqual(table["problems"], ["1-x, seed 2: died: its process is gone; 'make' resumes it"])

    def test_which_pairs_are_complete(self):
        """A seed without its baseline, and one of the baseline alone, compare nothing."""
        for step, seeds in (("0-mla", (1, 2, 3, 4, 6)), ("1-x", (1, 2, 3)), ("2-y", (1, 2, 3, 4)), ("3-z", (3, 5))):
            for seed in seeds:
                self.runs.add("e", step, seed, 3.0)
        self.runs.add("e", "4-x-again", 1, 3.0, repeat=1, baseline="1-x")
        told = "complete: seeds 1, 2 of steps 0-2; seed 3 of steps 0-3; seed 4 of steps 0, 2"
        _, text, table = self.report("e")
        self.assertEqual(table["unfinished"], [told])
        self.assertIn(told, text)
        self.runs.add("f", "0-mla", 1, 3.0)
        self.runs.add("f", "1-x", 2, 3.0)
        self.assertEqual(self.report("f")[2]["unfinished"], ["no step and its baseline have finished the same seed yet"])

    def test_memory_of_a_gpu(self):
        """Beside the host's, where there is a GPU."""
        self.runs.add("e", "0-mla", 1, 3.0)
        _, text, _ = self.report("e")
        self.assertIn("peak MB", text)
        self.assertNotIn("GPU MB", text)
        for seed, megabytes in ((1, 311), (2, 317)):
            self.runs.add("g", "0-mla", seed, 3.0, values={"device_megabytes": megabytes})
        _, text, table = self.report("g")
        self.assertEqual(table["rows"][0]["numbers"]["device_megabytes"]["mean"], 314)
        self.assertRegex(text, r"peak MB +GPU MB")
        self.assertRegex(text, r" 10[12] +314 ")

    def test_an_interrupted_run_is_no_problem(self):
        for step, seed in (("0-mla", 1), ("0-mla", 2), ("1-x", 1)):
            self.runs.add("e", step, seed, 3.0)
        self.runs.add("e", "1-x", 2, 3.0, state="interrupted", reason="signal 2")
        self.runs.plan("e", {"0-mla": (1, 2), "1-x": (1, 2)})
        _, text, table = self.report("e")
        self.assertEqual((table["problems"], table["unfinished"]),
                         ([], ["1-x, seed 2: interrupted: signal 2; 'make' resumes it", "complete: seed 1 of steps 0, 1"]))
        self.assertNotIn("Problems", text)

    def test_lost_seeds_of_the_baseline_are_marked(self):
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed,
                          state="done" if seed < 4 else "diverged")
            self.runs.add("e", "1-x", seed, 2.0 + 0.011 * seed)
            self.runs.add("f", "0-mla", seed, 2.0 + 0.011 * seed)
        _, text, table = self.report("e")
        self.assertEqual(table["rows"][1]["delta"]["n"], 3)
        self.assertRegex(text, r"1-x +better‡  ")
        self.assertRegex(self.call("compare", "e/0", "f/0")[1], r" better, exploratory‡\n")
        self.assertRegex(self.call("compare", "f/0", "e/1")[1], r" open, exploratory\n")

    def test_a_huge_loss(self):
        """Finite, but its perplexity is beyond a double."""
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed)
            self.runs.add("e", "1-x", seed, 800.0 + seed, values={"chance": 1000})
        status, text, table = self.report("e")
        self.assertEqual(status, 0)
        self.assertRegex(text, r"1-x +worse§ .* \+inf% ")
        self.assertIn("§ one of the two is noisier than the other", text)
        self.assertIsNone(table["rows"][1]["perplexity_percent"])
        self.assertNotIn("Infinity", self.read("json", "e"))

    def verified(self, **runs):
        """As `results verify` leaves it."""
        self.runs.rebuild()
        kept = {key: {"heartbeat": 1e9, "bound": True, "wrong": [], **entry}
                for key, entry in runs.items()}
        pathlib.Path(self.runs.path, "verified.json").write_text(json.dumps({"runs": kept}))

    def test_unverified_and_damaged_runs_are_marked(self):
        keys = {}
        for seed in (1, 2, 3):
            for step in ("0-mla", "1-x", "2-y"):
                identity = self.runs.add("e", step, seed, 3.0 + seed + int(step[0]) / 10)
                keys[step, seed] = f"e/{step}/{identity}"
        _, text, table = self.report("e")
        line = "not verified: 9 of 9 runs; 'make verify' checks their journals, weights and rows"
        for shown in (" ".join(text.split()), self.read("md", "e"), self.read("tex", "e"), self.read("html", "e")):
            self.assertIn(line.split(";")[0], shown)
        self.assertEqual((table["verification"], [row["verified"] for row in table["rows"]]), ([line], [0] * 3))

        self.verified(**{key: {} for key in keys.values()})
        _, text, table = self.report("e")       # made again: what was said before is not recalled
        self.assertEqual((table["verification"], [row["verified"] for row in table["rows"]]), ([], [3] * 3))
        self.assertNotIn("verified", text)
        self.assertEqual([row["verified"] for row in csv.DictReader(io.StringIO(self.read("csv", "e")))],
                         ["3"] * 3)

        found = {key: {} for key in keys.values()}
        found[keys["1-x", 2]] = {"wrong": ["journal.jsonl: line 5 is damaged"]}
        found[keys["2-y", 1]] = {"bound": False}
        found[keys["2-y", 3]] = {"heartbeat": 1e9 - 1}          # the run went on since
        self.verified(**found)
        _, text, table = self.report("e")
        self.assertEqual(table["verification"], [
            "1-x, seed 2 is damaged: journal.jsonl: line 5 is damaged",
            "not verified: 1 of 9 runs; 'make verify' checks their journals, weights and rows",
            "unbound: the journals of 1 of 9 runs name no run, because an earlier program wrote them"])
        self.assertEqual([ablation.DAMAGED in row["marks"] for row in table["rows"]], [False, True, False])
        self.assertIn("¶ 'make verify' found a run of this step or of its baseline damaged",
                      " ".join(text.split()))
        self.assertRegex(text, r"1-x +worse¶ ")
        self.assertIn(r"\P{}", self.read("tex", "e"))
        self.assertEqual([row["verified"] for row in table["rows"]], [3, 2, 2])

    def test_an_unreadable_verification_verifies_nothing(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        for text in ("", "[]", '{"runs": {"x": 1}}', '{"runs": 1}'):
            self.runs.rebuild()
            pathlib.Path(self.runs.path, "verified.json").write_text(text)
            self.assertIn("not verified: 1 of 1 runs", self.report("e")[1])

    def test_environments_are_marked(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + seed)
            self.runs.add("e", "1-x", seed, 3.1 + seed, machine="x86_64")
            self.runs.add("e", "2-y", seed, 3.1 + seed)
        _, text, table = self.report("e")
        self.assertIn(ablation.OTHER_ENVIRONMENT, table["rows"][1]["marks"])
        self.assertEqual(table["rows"][2]["marks"], [])
        self.assertIn("compared across environments", text)
        self.assertIn("machine x86_64", self.markdown("e"))

    def test_a_gpu_is_not_called_blas(self):
        self.runs.add("e", "0-mla", 1, 3.0, config={"BACKEND": "cuda"})
        self.runs.add("e", "1-x", 1, 3.1, config={"BACKEND": "cpu"})
        self.runs.decoded("e", "0-mla", (1024,), BACKEND="cuda")
        _, text, _ = self.report("e")
        text = self.markdown("e")
        self.assertRegex(text, r"machine aarch64, .* gpu openblas, .*: 0-mla\n")
        self.assertRegex(text, r"machine aarch64, .* blas openblas, .*: 1-x\n")
        self.assertRegex(text, r"gpu openblas, .* batch 1")
        self.assertRegex(self.read("html", "e"), r"gpu openblas, .* blas openblas")

    def test_a_run_that_changed_its_environment_is_marked(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + seed)
            self.runs.add("e", "1-x", seed, 3.1 + seed, moved="compiler '1' then, '2' now")
        _, text, table = self.report("e")
        self.assertIn(ablation.OTHER_ENVIRONMENT, table["rows"][1]["marks"])
        self.assertIn("changed compiler '1' then, '2' now: 1-x", self.markdown("e"))

    def test_newest_setting_counts(self):
        self.runs.add("e", "0-mla", 1, 3.0, config={"LEARNING_RATE": "1"}, started=1e9)
        self.runs.add("e", "0-mla", 1, 2.0, config={"LEARNING_RATE": "2"}, started=2e9)
        _, text, table = self.report("e")
        self.assertEqual(table["rows"][0]["numbers"]["loss"]["values"], [2.0])
        self.assertIn("1 older run with other settings or sources left out", text)

    def test_invalid_baseline(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0, audits=[("wiring", "wte", 0, "no gradient")])
            self.runs.add("e", "1-x", seed, 2.0 + 0.01 * seed)
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table), {"0-mla": "baseline, invalid", "1-x": "invalid"})
        self.assertIn("its baseline: wiring audit failed for wte: no gradient", text)

    def test_a_declared_leak_is_invalid_without_its_audit(self):
        leaky = {"GATE_POOL": "sequence", "AUDIT_CAUSALITY": "n", "AUDIT_LEAK_DECLARED": "y"}
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed)
            self.runs.add("e", "1-x", seed, 2.0 + 0.11 * seed, config=leaky, audits=())
            self.runs.add("e", "2-y", seed, 2.0 + 0.11 * seed, baseline="1-x")
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table), {"0-mla": "baseline", "1-x": "invalid",
                                                "2-y": "invalid"})
        self.assertIn("1-x: invalid: it is declared to see the future", text)
        self.assertIn("2-y: invalid: its baseline: it is declared to see the future", text)

    def test_missing_baseline(self):
        self.runs.add("e", "1-x", 1, 3.0)
        status, text, _ = self.report("e")
        self.assertEqual(status, 0)
        self.assertIn("its baseline 0-mla has no runs", text)

    def test_a_step_that_trained_its_baseline_is_a_problem(self):
        """Symbols of the training may be read and not used; the weights show it in the end."""
        for seed in (1, 2):
            self.runs.add("e", "0-mla", seed, 3.0, config={"BETA2": "0.95"}, weights=f"w{seed}")
            self.runs.add("e", "1-beta", seed, 3.0, config={"BETA2": "0.9"}, weights=f"w{min(seed, 1)}")
            self.runs.add("e", "2-other", seed, 3.0, config={"BETA2": "0.8"}, weights=f"v{seed}")
        text = self.report("e")[1]
        self.assertIn("1-beta: with seed 1 it ends in the weights of 0-mla, bit by bit", text)
        self.assertNotIn("2-other: with seed", text)

    def test_a_step_without_an_oracle_is_marked(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        self.runs.add("e", "1-x", 1, 2.9, audits=[("wiring", "wte", 1, ""),
                                                  ("oracle", "no oracle", 1, "attention 'x'")])
        text = self.report("e")[1]
        self.assertRegex(text, r"0-mla +baseline .* 1 passed\n")
        self.assertRegex(text, r"1-x +not decidable .* 2 passed, no oracle\n")

    def test_audits_that_were_off_are_told(self):
        off = {"AUDIT_WIRING": "n", "AUDIT_CAUSALITY": "n", "AUDIT_ONE_BATCH": "n"}
        self.runs.add("e", "0-mla", 1, 3.0, audits=(), config=off)
        self.runs.add("e", "1-x", 1, 3.0, config={**off, "AUDIT_CAUSALITY": "y"})
        self.runs.add("e", "2-y", 1, 3.0, config=dict.fromkeys(off, "y"))
        text = self.report("e")[1]
        self.assertRegex(text, r"0-mla +baseline .* not audited\n")
        self.assertRegex(text, r"1-x +not decidable .* 1 passed, not audited: wiring, one batch\n")
        self.assertRegex(text, r"2-y +not decidable .* 1 passed\n")

    def two_tasks(self, *more, rates=None):
        """Each with its own baseline."""
        arms = [(task, arm) for task in ("recall", "noisy") for arm in ("dot", "mla", *more)]
        for number, (task, arm) in enumerate(arms):
            first = 0 if task == "recall" else len(arms) // 2
            for seed in (1, 2, 3, 4, 5):
                self.runs.add("mad", f"{number}-task-{task}+{arm}", seed,
                              (2 if arm == "dot" else 1) + 0.001 * seed * number,
                              baseline=f"{first}-task-{task}+dot",
                              config={"TASK": task, "ATTENTION": arm,
                                      "LEARNING_RATE": rates[number] if rates else "1",
                                      "AUDIT_LEAK_DECLARED": "y" if arm == "leaky" else "n"},
                              values={"judged_by_accuracy": 1})

    def test_tuned_arms_have_a_score(self):
        """Whatever rates they chose on each task."""
        self.two_tasks(rates="1234")
        self.assertNotIn("mla: mean accuracy", self.report("mad")[1])
        for step in ("1-task-recall+mla", "3-task-noisy+mla"):
            self.runs.add("mad-tuning", f"{step}@1", 11, 3.0, config={"LEARNING_RATE": "1"})
        self.assertIn("mla: mean accuracy over 2 tasks", self.report("mad")[1])

    def test_an_invalid_step_has_no_score(self):
        self.two_tasks("leaky")
        text = self.report("mad")[1]
        self.assertIn("mla: mean accuracy over 2 tasks", text)
        self.assertNotIn("leaky: mean accuracy", text)

    def test_a_null_has_no_part_in_scores(self):
        self.two_tasks()
        for number, arm in ((0, "dot"), (1, "mla")):
            for seed in (1001, 1002, 1003):
                self.runs.add("mad", f"{4 + number}-task-recall+{arm}-null", seed, 1.5,
                              baseline=f"{number}-task-recall+{arm}",
                              config={"TASK": "recall", "ATTENTION": arm, "LEARNING_RATE": "1",
                                      "AUDIT_LEAK_DECLARED": "n"},
                              values={"judged_by_accuracy": 1})
        _, text, table = self.report("mad")
        self.assertEqual((table["seeds"], len(table["scores"])), ([1, 2, 3, 4, 5], 2))

    def test_judged_by_accuracy(self):
        """Verdicts by accuracy, and a score over both tasks."""
        self.two_tasks()
        _, text, table = self.report("mad")
        self.assertEqual([group["by_accuracy"] for group in table["groups"]], [True, True])
        self.assertEqual(self.verdicts(table)["1-task-recall+mla"], "better")
        self.assertIn("mla: mean accuracy over 2 tasks 89.9 ± 0.0 (5) %", text)
        self.assertIn("dot: mean accuracy over 2 tasks 80.0", text)
        self.assertRegex(text, r"1-task-recall\+mla +better§ .* 0\.0 % ")


class Files(Case):
    def test_formats(self):
        self.runs.study()
        _, _, table = self.report()
        lines = list(csv.DictReader(io.StringIO(self.read("csv"))))
        self.assertEqual([line["step"] for line in lines], STUDY)
        self.assertEqual(float(lines[1]["delta"]), table["rows"][1]["delta"]["mean"])
        markdown = [line for line in self.read("md").splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in markdown[:2 + len(STUDY)]}
        self.assertEqual(len(bars), 1)
        tex = self.read("tex")
        rows = [line for line in tex.splitlines() if line.endswith(r"\\")]
        self.assertEqual(len({line.count(" & ") for line in rows}), 1)
        self.assertNotRegex(tex, r"[±Δ†]|(?<!\\)%")
        self.assertRegex(tex, r"1-mla\+gate .* \$-\$0\.")

    def test_html(self):
        """Well formed, self-contained, and safe from what texts may hold."""
        self.runs.study()
        self.runs.add("gpt2-ra-mla-full", "9-x", 1, 3.0, curves=("</script><script>&",),
                      config={"X": "</script><script>&"}, machine="</script><script>&")
        self.report()
        text = self.read("html")
        self.assertEqual(text.count("<script"), 2)
        self.assertEqual(text.count("</script"), 2)
        self.assertNotRegex(text, r"(?:src|href)=[\"']?(?:https?:|//)")
        self.assertIn("</script><script>&", json.dumps(self.data()))
        self.assertIn("&lt;/script&gt;&lt;script&gt;&amp;", text)
        checker = Balance()
        checker.feed(text)
        self.assertEqual(checker.open, [])
        self.assertEqual(len(checker.ids), len(set(checker.ids)))

    def test_no_escape_sequence_reaches_the_terminal(self):
        """Of texts that were recorded; colours are ours."""
        evil = "\033[2J\033]0;x\a\x9b2J\r"
        self.runs.study()
        self.runs.add("gpt2-ra-mla-full", "9-x", 1, 3.0, config={"X": evil}, machine=evil, moved=evil,
                      sample=(evil, evil), audits=((evil, evil, 0, evil),))
        self.runs.add("gpt2-ra-mla-full", "9-x", 2, 3.0, config={"X": evil}, state="failed", reason=evil)
        self.runs.rebuild()
        for words in (["report", "gpt2-ra-mla-full"], ["compare", "gpt2-ra-mla-full/0", "gpt2-ra-mla-full/9-x"],
                      ["diff", "gpt2-ra-mla-full/0", "gpt2-ra-mla-full/9-x"], ["values", "gpt2-ra-mla-full"]):
            done = subprocess.run([sys.executable, "-m", "tools.report.report", "--runs", self.runs.path, *words],
                                  cwd=ROOT, capture_output=True)
            self.assertEqual(re.findall(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", done.stdout + done.stderr), [])
            self.assertIn(b"\\x1b[2J", done.stdout)

    def test_a_declaration_of_no_steps(self):
        self.runs.study()
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "declaration.json")
        good = {"asked": "", "primary": [["1-mla+gate", "0-mla"]], "steps": ["0-mla"], "margin": 0.1, "looks": [3], "seeds": [1]}
        for change in ({}, {"steps": ["../../x"]}, {"primary": [["0-mla", "$(id)"]]}, {"primary": [7]}, {"primary": [[]]}, {"x": 1},
                       {"looks": ["x"]}, {"looks": []}, {"seeds": None}, {"margin": "x"}, {"asked": 7}):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"declarations": [{"time": 1, "declared": {**good, **change}}]}, file)
            status, *_ = self.report()
            self.assertEqual("declaration.json: damaged: " in str(status), bool(change), change)

    def test_the_page_runs_no_other_script(self):
        self.runs.study()
        self.report()
        text = self.read("html")
        script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self.assertIn("default-src 'none'; style-src 'unsafe-inline'; "
                      f"script-src 'sha256-{digest}'", text)

    def test_the_page_says_what_was_asked_when_and_where(self):
        self.runs.study()
        self.report()
        text = self.read("html")
        for words in ("Do the three reciprocal mechanisms help latent attention?",
                      "<dt>Runs</dt><dd>25, from 2001-09-09 01:46:40 UTC to 2001-09-09 01:46:40 UTC"
                      "</dd>",
                      "<dt>Revision</dt><dd>r1</dd>", "machine aarch64, compiler gcc 12"):
            self.assertIn(words, text)

    def test_the_page_leads_to_the_runs(self):
        self.runs.add("e", "0-a+b", 1, 3.0)
        self.report("e")
        link = re.search(r'<a href="([^"]*)">0-a\+<wbr>b, 0001ab', self.read("html", "e"))[1]
        self.assertEqual(link, "../0-a%2Bb-1-1/")
        self.assertTrue(os.path.isdir(os.path.join(os.path.dirname(self.path("e", "html")),
                                                   urllib.parse.unquote(link))))

    def test_the_page_shows_configurations_side_by_side(self):
        self.runs.add("e", "0-mla", 1, 3.0, config={"SAME": "y", "OTHER": "1"})
        self.runs.add("e", "1-x", 1, 3.0, config={"SAME": "y", "OTHER": "2"})
        self.report("e")
        text = self.read("html", "e")
        self.assertIn('<td class="text" data-head="symbol">OTHER</td><td data-head="0-mla">1</td>'
                      '<td class="other" data-head="1-x">2</td>', text)
        self.assertNotIn('data-head="symbol">SAME', text)
        self.assertIn("SAME=y", text)       # among all symbols of the step

    def test_only_better_is_green(self):
        self.runs.study()
        self.report()
        text = self.read("html")
        self.assertIn('<td class="text good" data-head="verdict">better', text)
        self.assertIn('<td class="text" data-head="verdict">reproduced', text)

    def test_bits_per_byte_of_text(self):
        self.runs.add("e", "0-mla", 1, 3.0, values={"val/bits_per_byte": 1.23456})
        _, text, _ = self.report("e")
        self.assertRegex(text, r"bits/byte.*\n0-mla .* 1\.2346 ")
        self.runs.study()
        self.assertNotIn("bits/byte", self.report()[1])

    def test_plots(self):
        self.runs.study()
        _, _, table = self.report()
        found = self.figures()
        for title in ("Validation loss", "Training loss", "Loss of components", "Accuracy",
                      "Final loss", "Difference to the baseline", "Components", "Loss against parameters"):
            self.assertIn(title, found)
            self.assertRegex(self.read("html"), rf'<h3 id="[\w-]+">{title}</h3>')
        for title in ("Loss against memory", "Loss against computation"):
            self.assertNotIn(title, found)      # as good as the same for all steps: nothing to see
        self.assertEqual(found["Validation loss"]["metrics"], ["val/loss"])
        self.assertEqual(found["Training loss"]["metrics"], ["train/loss"])
        self.assertEqual(found["Loss of components"]["metrics"], ["val/loss/recall"])
        self.assertIn("peak_megabytes", found["Other records"]["metrics"])
        gate = found["Difference to the baseline"]["rows"][0]
        delta = table["rows"][1]["delta"]
        self.assertEqual((gate["step"], gate["mean"], gate["low"], gate["seeds"]),
                         ("1-mla+gate", delta["mean"], delta["low"], [1, 2, 3, 4, 5]))
        self.assertAlmostEqual(statistics.fmean(gate["values"]), gate["mean"])

    def test_curves(self):
        """All runs are packed; those that failed are not averaged."""
        for seed, state in ((1, "done"), (2, "diverged")):
            self.runs.add("e", "0-mla", seed, 3.0, state=state, values={"train/loss": math.nan})
        self.report("e")
        data = self.data("e")
        self.assertEqual([(run["seed"], run["isFinished"]) for run in data["runs"]],
                         [(1, True), (2, False)])
        place, values = data["runs"][0]["series"]["train/loss"]
        self.assertEqual(data["x"][place], [0, *range(10, 101, 10)])
        self.assertEqual((values[0], values[-1]), (None, 2.99))
        self.assertNotIn("parameters", data["runs"][0]["series"])

    def test_long_curves_are_thinned_alike(self):
        kept = [[i for i, _ in plots.thinned([(i, 0.0) for i in range(n)])]
                for n in (5000, 4001, 1999)]
        self.assertEqual(kept[0][:2], [0, 4])
        self.assertEqual(kept[0][-1], 4999)
        self.assertLess(set(kept[1][:-1]), set(range(4001)))
        self.assertLess(set(kept[0][:1000]), set(kept[1]))
        self.assertEqual(len(kept[2]), 1999)

    def test_records_are_in_order(self):
        names = ["grad_norm/h.10", "grad_norm/h.2", "grad_norm", "grad_norm/other", "clipped"]
        self.assertEqual(sorted(names, key=plots.in_order), [
            "grad_norm", "clipped", "grad_norm/h.2", "grad_norm/h.10", "grad_norm/other"])

    def test_a_group_of_plots_for_each_baseline(self):
        """Step 1 is a baseline that has one of its own."""
        for step, baseline in (("0-mla", 0), ("1-x", 0), ("2-y", 1), ("3-z", 1)):
            for seed in (1, 2, 3):
                self.runs.add("e", step, seed, 3 + 0.01 * seed * int(step[0]),
                              baseline=("0-mla", "1-x")[baseline])
        self.report("e")
        groups = self.data("e")["groups"]
        self.assertEqual([group["heading"] for group in groups], ["Against 0-mla", "Against 1-x"])
        drawn = [next(figure for figure in group["figures"]
                      if figure["title"].startswith("Difference")) for group in groups]
        self.assertEqual([[row["step"] for row in figure["rows"]] for figure in drawn],
                         [["1-x"], ["2-y", "3-z"]])

    def test_many_steps_share_colours(self):
        for number, seed in itertools.product(range(18), (1, 2, 3)):
            self.runs.add("e", f"{number}-" + "mla" * (number == 0), seed,
                          3 + 0.001 * number + 0.01 * seed)
        self.report("e")
        steps = self.data("e")["groups"][0]["steps"]
        self.assertEqual(len({(step["colour"], step["shared"]) for step in steps}), 18)
        self.assertEqual(steps[9], {"name": "9-", "colour": 1, "shared": 1})


class Balance(html.parser.HTMLParser):
    """Every element that opens is closed."""
    VOID = ("meta", "wbr", "input")

    def __init__(self):
        super().__init__()
        self.open, self.ids = [], []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"


class Errors(Case):
    def test_damaged_measurement_of_decoding(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        self.runs.add("e", "1-x", 1, 3.0)
        self.runs.decoded("e", "1-x", (1024,))
        with open(os.path.join(self.runs.path, "e/decode/1-x.json"), encoding="utf-8") as file:
            good = file.read()
        other_types = [re.sub(rf'"{name}": [^,}}]*', f'"{name}": {value}', good, count=1)
                       for name in ("batch", "token_bytes", "state_bytes") for value in ('"x"', "null", "0", "[]")]
        for damaged in ("{", '{"own": 1}', "{}", "[]", '{"own": {"contexts": [{}]}, "peer": null}', *other_types):
            with open(os.path.join(self.runs.path, "e/decode/0-mla.json"), "w") as file:
                file.write(damaged)
            status, text, table = self.report("e")
            self.assertEqual(status, 0)
            self.assertRegex(text, "0-mla.json: not what 'make bench-decode' writes")
            self.assertEqual([m["step"] for m in table["decoding"]["measured"]], ["1-x"])

    def test_another_report_at_the_same_time(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        os.makedirs(self.path("e", "md.new"))      # the other one's
        self.assertEqual(self.report("e")[0], 0)

    def test_a_directory_with_any_name(self):
        path = tempfile.mkdtemp(prefix="kablate 100%41?#", dir=self.runs.path)
        self.runs.path, whole = path, self.runs.path
        self.addCleanup(setattr, self.runs, "path", whole)
        self.runs.add("e", "0-mla", 1, 3.0)
        self.assertEqual(self.report("e")[0], 0)

    def test_a_slip_in_a_kconfig_file(self):
        self.addCleanup(setattr, config_difference.kconfig, "ROOT", config_difference.kconfig.ROOT)
        self.addCleanup(config_difference.kconfig_tree.cache_clear)
        config_difference.kconfig_tree.cache_clear()
        config_difference.kconfig.ROOT = self.runs.path
        with open(os.path.join(self.runs.path, "Kconfig"), "w", encoding="utf-8") as file:
            file.write("config A\n\tbol\n")
        self.runs.add("e", "0-mla", 1, 3.0)
        self.runs.add("e", "1-x", 1, 3.0)
        self.assertRegex(self.report("e")[0], "^report: Kconfig:2: ")

    def test_no_database(self):
        status, _ = self.call("report")
        self.assertIn("results.db: no database; 'make' trains and writes it", status)

    def test_no_such_experiment(self):
        self.runs.add("one", "0-mla", 1, 3.0)
        self.runs.add("two", "0-mla", 1, 3.0)
        self.runs.rebuild()
        status, _ = self.call("report", "three")
        self.assertIn("three: no such experiment; there are: one, two", status)
        status, _ = self.call("report")
        self.assertIn("which experiment? there are: one, two", status)

    def test_only_experiment_needs_no_name(self):
        self.runs.add("one", "0-mla", 1, 3.0)
        self.runs.rebuild()
        status, text = self.call("report")
        self.assertEqual(status, 0)
        self.assertIn("one: scale laptop", text)

    def test_nothing_finished(self):
        self.runs.add("one", "0-mla", 1, 3.0, ended=False)
        self.runs.rebuild()
        status, _ = self.call("report", "one")
        self.assertIn("no run is finished", status)
        self.assertIn("0-mla, seed 1: still running", status)
        self.assertFalse(os.path.exists(self.path("one", "md")))

    def test_empty_experiment(self):
        self.runs.add("one", "0-mla", 1, 3.0)
        self.runs.rebuild()
        with sqlite3.connect(os.path.join(self.runs.path, "results.db")) as db:
            db.execute("INSERT INTO experiments (name) VALUES ('empty')")
        status, _ = self.call("report", "empty")
        self.assertIn("empty: the experiment has no runs yet", status)

    def test_damaged_and_newer(self):
        path = os.path.join(self.runs.path, "results.db")
        with open(path, "wb") as file:
            file.write(b"no database at all, but long enough to be looked at as one" * 9)
        status, _ = self.call("report")
        self.assertIn("'results rebuild' recreates it", status)
        os.remove(path)
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {records.SCHEMA[-1] + 1}")
        status, _ = self.call("report")
        self.assertIn("schema version", status)


class Tex(unittest.TestCase):
    def test_notes_stand_apart(self):
        self.assertEqual(report.tex_notes(["* more", "Against 5%."]),
                         [r"\par\smallskip\footnotesize * more\par Against 5\%."])
        self.assertEqual(report.tex_notes([]), [])

    def test_quotation_marks(self):
        self.assertEqual(report.tex('open: "or more" of 5" and -1'), "open: ``or more'' of 5\" and $-$1")


class Pruned(Case):
    """Two methods with two shares each, of a million weights, half of which may be pruned."""

    def setUp(self):
        super().setUp()
        self.runs.add("e", "0-dense", 1, 3.0, baseline="0-dense", config={"PRUNE": "none"})
        for number, (method, share, loss) in enumerate((("magnitude", 0.9, 3.4), ("magnitude", 0.5, 3.1),
                                                        ("movement", 0.5, 3.2), ("movement", 0.9, 3.3)), 1):
            for seed in range(1, 5):
                self.runs.add("e", f"{number}-prune-{method}+prune-sparsity-{share}", seed, loss + 0.01 * seed,
                              baseline="0-dense", config={"PRUNE": method, "PRUNE_SCOPE": "tensor",
                                                          "PRUNE_SPARSITY": str(share)},
                              curves={"sparsity": lambda i, s=share: s * min(1, i / 50),
                                      "compressed_bytes": lambda i, s=share: 4e6 - 2e6 * s + 5e5 / 8})

    def test_section(self):
        """By method, the share rising; what is not pruned has no line."""
        _, text, _ = self.report("e")
        lines = text[text.index(pruning.SECTION):].splitlines()[3:7]
        self.assertEqual([line.split()[0][0] for line in lines], ["2", "1", "3", "4"])
        self.assertRegex(lines[0], r"magnitude, tensor +50\.0% +3\.1250 ± 0\.0129 \(4\) .* 3,062,500 +76\.6%$")
        self.assertRegex(lines[3], r"movement, tensor +90\.0% .* 2,262,500 +56\.6%$")
        self.assertNotIn("dense", " ".join(lines))

    def test_figure(self):
        self.report("e")
        drawn = self.figures("e")[pruning.SECTION]
        self.assertEqual([series["name"] for series in drawn["series"]], ["prune-magnitude", "prune-movement"])
        self.assertAlmostEqual(drawn["series"][0]["ys"][0], 3.425)     # 10% are kept
        self.assertEqual([text for _, text in drawn["places"]], ["10%", "50%"])
        self.assertLess(drawn["series"][1]["low"][0], 3.325)

    def test_without_pruning(self):
        self.runs.study()
        _, text, _ = self.report()
        self.assertNotIn(pruning.SECTION, text)


class Routed(Case):
    """Two layers keep 4 and 8 entries, and more with each seed and evaluation."""

    def add(self, step, seed, **more):
        def kept(base):
            return lambda i: base + seed + i / 100
        self.runs.add("e", step, seed, 3.0, baseline="0-rms", curves={
            "routing/kept/h.0": kept(4), "routing/kept/h.1": kept(8), **{
                name: lambda i, value=value: value + 0.5 * seed for name, value in more.items()}})

    def spread(self, step):
        for seed in (1, 2, 3):
            self.add(step, seed, **{"routing/spread/h.0": 1.0, "routing/spread/h.1": 3.0, "routing/layers": 2.0})

    def test_section(self):
        """Computed here again: a mean kept of 6 + seed + i / 100 in evaluations 10, 20 .. 100."""
        self.spread("0-rms")
        self.runs.add("e", "1-dot", 1, 3.0, baseline="0-rms")
        _, text, table = self.report("e")
        self.assertNotIn(kept_tokens.SECTION, text)     # a terminal leaves it to the page
        heading, lines = self.grid(kept_tokens.SECTION, "e")
        self.assertRegex(" ".join(heading), "kept per row over tokens .* over layers .* over time .* over seeds")
        over_time = statistics.pstdev(i / 100 for i in range(10, 101, 10))
        self.assertEqual(lines, {
            "0-rms": ["9.00", "3.00 ± 0.50 (3)", "3.00 ± 0.50 (3)", f"{over_time:.2f} ± 0.00 (3)", "1.00 (3)"]})
        for name, value in (("routing/kept", 9), ("routing/spread", 3), ("routing/layers", 3),
                            ("kept_over_time", over_time)):
            self.assertAlmostEqual(table["rows"][0]["numbers"][name]["mean"], value)
            self.assertIsNone(table["rows"][1]["numbers"][name])
        first, second = csv.DictReader(io.StringIO(self.read("csv", "e")))
        self.assertEqual((float(first["routing/kept"]), second["routing/kept"]), (9, ""))

    def test_every_format_has_it(self):
        self.spread("0-rms")
        self.report("e")
        for ending in ("md", "html", "tex"):
            self.assertIn(kept_tokens.SECTION, self.read(ending, "e"))
        self.assertIn("over layers, of their means", self.markdown("e"))

    def test_runs_of_an_older_program_have_no_spread_over_tokens(self):
        """One seed, too, has no spread over seeds."""
        self.add("0-rms", 1)
        self.report("e")
        self.assertEqual(self.grid(kept_tokens.SECTION, "e")[0], ["step", "kept per row", "over time ± sd (seeds)"])

    def test_the_evaluation_before_training_counts(self):
        self.runs.add("e", "0-rms", 1, 3.0, baseline="0-rms", values={"routing/kept/h.0": 16.0},
                      curves={"routing/kept/h.0": lambda i: 5.0})
        found = self.report("e")[2]["rows"][0]["numbers"]["kept_over_time"]["mean"]
        self.assertAlmostEqual(found, statistics.pstdev([16, *[5] * 10]))

    def test_repetitions_have_no_line(self):
        self.spread("0-rms")
        self.runs.add("e", "1-rms-again", 1, 3.0, baseline="0-rms", repeat=1, curves=("routing/kept/h.0",))
        self.report("e")
        self.assertEqual(list(self.grid(kept_tokens.SECTION, "e")[1]), ["0-rms"])


class Specialised(Case):
    def add(self, step, informations, shuffled=0.02):
        """By seed; of two layers, one has half as much."""
        for seed, information in enumerate(informations, 1):
            self.runs.add("e", step, seed, 3.0, baseline="0-ws", curves={
                name: lambda i, value=value: value * i / 100 for name, value in (
                    ("heads/information/h.0", information), ("heads/information/h.1", information / 2),
                    ("heads/shuffled/h.0", shuffled), ("heads/shuffled/h.1", shuffled))})

    def test_section(self):
        """Its interval is that of Student, computed here again; what varies as much is not shown to exceed chance."""
        self.add("0-ws", (0.4, 0.5, 0.6))
        self.add("1-ws", (0.0, 0.04, 0.08))
        self.add("2-ws", (0.01, 0.011, 0.012), shuffled=0.05)
        _, text, table = self.report("e")
        self.assertNotIn(specialisation.SECTION, text)
        heading, lines = self.grid(specialisation.SECTION, "e")
        self.assertRegex(" ".join(heading), r"information ± sd \(seeds\) control .* Δ nats \[95%\] above the control")
        half = 4.302653 * 0.075 / math.sqrt(3)
        self.assertEqual(lines["0-ws"], [
            "0.3750 ± 0.0750 (3)", "0.0200 ± 0.0000 (3)",
            f"+0.3550 [{0.355 - half:+.4f}, {0.355 + half:+.4f}]", "yes"])
        for step, word in (("0-ws", "yes"), ("1-ws", "not shown"), ("2-ws", "below it")):
            self.assertEqual(lines[step][-1], word)
        self.assertAlmostEqual(table["rows"][0]["numbers"]["information_above_shuffled"]["mean"], 0.355)

    def test_every_format_has_it(self):
        self.add("0-ws", (0.4, 0.5))
        self.report("e")
        for ending in ("md", "html", "tex"):
            self.assertIn(specialisation.SECTION, self.read(ending, "e"))

    def test_one_seed_has_no_interval(self):
        self.add("0-ws", (0.4,))
        self.report("e")
        heading, lines = self.grid(specialisation.SECTION, "e")
        self.assertNotIn("above the control", heading)
        self.assertEqual(lines["0-ws"][-1], "+0.2800")

    def test_without_the_metrics(self):
        self.runs.study()
        _, text, _ = self.report()
        for section in (specialisation.SECTION, kept_tokens.SECTION):
            self.assertNotIn(section, text)
            self.assertNotIn(section, self.read("html"))


class Chosen(Case):
    def test_columns_for_latex(self):
        self.runs.study()
        self.report()
        self.assertIn(r"step & val. loss $\pm$ sd (seeds) & $\Delta$ nats [simultaneous 95\%] & verdict \\", self.read("tex"))
        self.assertIn(report.FITTED, self.read("tex"))
        for words in ("* more parameters", report.tex(report.POWER)):      # of columns that are not there
            self.assertNotIn(words, self.read("tex"))
        self.assertEqual(self.call("report", "--tex-columns", "verdict,step, parameters", "gpt2-ra-mla-full")[0], 0)
        self.assertIn(r"verdict & step & parameters \\", self.read("tex"))
        self.assertIn("* more parameters", self.read("tex"))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.call("report", "--tex-columns", "los", "gpt2-ra-mla-full")[0], 2)
        self.assertIn("there is no column 'los'; there are: step, verdict", said.getvalue())

    def test_counts_are_whole_in_csv(self):
        self.runs.study()
        self.report()
        line = next(csv.DictReader(io.StringIO(self.read("csv"))))
        self.assertEqual((line["parameters"], line["flops_per_token"]), ("1000000", "6000000"))
        self.assertIn(".", line["loss"])

    def test_tags_and_note(self):
        self.runs.study()
        notes.write(self.runs.path, "gpt2-ra-mla-full", notes.Note(["mla", "first"], "5 < 7?"))
        _, text, table = self.report()
        self.assertIn("\nTags: mla, first\nNote: 5 < 7?\n\nstep", text)
        self.assertEqual(table["note"], {"tags": ["mla", "first"], "note": "5 < 7?"})
        self.assertIn("<dt>Note</dt><dd>5 &lt; 7?</dd>", self.read("html"))
        notes.write(self.runs.path, "gpt2-ra-mla-full", notes.Note())
        self.assertNotIn("Tags:", self.call("report", "gpt2-ra-mla-full")[1])


class Narrow(unittest.TestCase):
    def test_step_verdict_and_difference_stay_together(self):
        cells = [["12-" + "x" * 60 + "+last", "open (over 1000 seeds)", "-0.0045 [-0.0088, -0.0001]", "1.9"]]
        headings = ["step", "verdict", report.DELTA, "loss"]
        text = report.aligned(*report.narrowed(headings, cells, 80))
        self.assertLessEqual(len(text.splitlines()[1].removesuffix("1.9").rstrip()), 80)
        self.assertRegex(text, r"12-x+\.\.\.x+\+last  open \(over 1000 seeds\)  -0\.0045 \[")
        self.assertEqual(report.narrowed(headings, cells, None), (headings, cells))

    def row(self, verdict, marks, by_accuracy, is_exploratory, needed):
        change = stats.Difference(8, -0.00123, 0.1, -0.0988, -0.0001) if not by_accuracy else \
            stats.Difference(8, -0.123, 0.1, -0.988, 0.988)
        row = ablation.Row("12-" + "x" * 60 + "+last", "0-mla", False, False, [1], {}, [], by_accuracy=by_accuracy,
                           is_exploratory=is_exploratory, verdict=verdict, marks=marks, seeds_needed=needed, solved=[3, 5, 8])
        row.numbers = collections.defaultdict(lambda: ablation.Mean(12.3456, 1.2345, 18, []))
        row.delta = row.accuracy_delta = change
        return row

    def test_all_verdicts_and_marks(self):
        """In a terminal of 80 columns the first block has the step's name, the verdict and what was judged."""
        judged = [stats.BETTER, stats.WORSE, stats.EQUIVALENT, stats.OPEN, stats.UNDECIDABLE,
                  stats.BETTER + stats.WITHIN, stats.WORSE + stats.WITHIN, judging.INCOMPLETE, ablation.REPRODUCED,
                  ablation.NOT_REPRODUCED, ablation.NO_TWIN, ablation.DIVERGED, ablation.INVALID,
                  f"{ablation.BASELINE}, {ablation.INVALID}"]
        for verdict, is_exploratory, marks, kinds in itertools.product(
                judged, (False, True), ([], [ablation.LOST_SEEDS], [*ablation.MARKS]),
                ((False,), (True,), (False, True))):
            needed = (18, None) if verdict == stats.OPEN else None
            rows = [self.row(verdict, marks, kind, is_exploratory, needed) for kind in kinds]
            table = types.SimpleNamespace(rows=rows, groups=[ablation.Group("", kind, [row])
                                                             for kind, row in zip(kinds, rows)])
            with unittest.mock.patch.dict(os.environ, COLUMNS="80", NO_COLOR="1"):
                text = report.aligned(*report.narrowed(*report.grid(table), 80), stream=Terminal())
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            words = verdict.split()[0].strip(",")
            for line, row in zip(text.split("\n\n")[0].splitlines()[1:], rows):
                self.assertRegex(line, rf"^12-x+\.\.\.\S*st +{words}.*{re.escape(report.judged_cell(row).removesuffix(' %'))}")
                self.assertEqual("exploratory" in line, is_exploratory)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Samples(unittest.TestCase):
    def test_steps_are_read_beside_each_other(self):
        runs = Runs()
        for step, text in (("0-mla", "to be\nnot"), ("1-mla+gate", "or <b>*not*")):
            for seed in (2, 1):
                runs.add("talk", step, seed, 3.0, sample=("Hark,\n", f"{text} {seed}"))
        runs.add("talk", "2-quiet", 1, 3.0)
        runs.add("talk", "3-again", 1, 3.0, repeat=1, sample=("Hark,\n", "again"))
        runs.rebuild()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            report.main(["--runs", runs.path, "report", "talk"])
        self.assertNotIn("to be", text.getvalue())
        directory = pathlib.Path(runs.path, "talk/report")
        self.assertIn("## Samples\n\n- After: Hark,↵\n- 0-mla, seed 1: to be↵not 1\n"
                      "- 1-mla+gate, seed 1: or <b>\\*not\\* 1\n", (directory / "report.md").read_text())
        self.assertIn("or &lt;b&gt;*not* 1", (directory / "report.html").read_text())
        told = json.loads((directory / "report.json").read_text())["samples"]
        self.assertEqual(told[0]["prompt"], "Hark,\n")
        self.assertEqual(told[0]["texts"][0], ["0-mla", 1, "to be\nnot 1"])


if __name__ == "__main__":
    tap.main()
