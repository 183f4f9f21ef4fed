"""report: from run directories through the real `results rebuild` to every file of a report."""
import base64
import contextlib
import csv
import hashlib
import html.parser
import io
import itertools
import json
import math
import os
import pathlib
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import unittest
import urllib.parse

from tools.plan import config_difference, declaration, plan_words
from tools.report import ablation, plots, report, stats, values
from tools.results import records
from tools.testing import tap

RESULTS = os.path.join(os.environ.get("O", "build"), "bin/results")
ROOT = str(pathlib.Path(__file__).resolve().parents[2])
STUDY = ["0-mla", "1-mla+gate", "2-mla+gate+cross", "3-mla+gate+cross+latent",
         "4-mla+gate+cross-again"]
CHANCE, FLOOR = 5.0, 2.0


class Runs:
    """A directory of runs, as the trainer writes them."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="kablate-report-")
        self.made = 0

    def add(self, experiment, step, seed, loss, *, baseline="0-mla", repeat=0, state="done",
            config=None, audits=(("causality", "h.0", 1, ""),), weights=None, machine="aarch64",
            started=1e9, values=None, reason=None, curve=True, ended=True, threads=2,
            moved=None, sample=None, curves=()):
        """A run that ends at this loss; `values` are recorded once, `curves` with each loss."""
        self.made += 1
        directory = os.path.join(self.path, experiment, f"{step}-{seed}-{self.made}")
        os.makedirs(directory)
        record = {"format": 1, "experiment": experiment, "step": step, "baseline": baseline,
                  "identity": f"{self.made:04x}{'ab' * 6}", "seed": seed, "repeat": repeat,
                  "iterations": 100, "git_dirty": False, "git_revision": "r1", "threads": threads,
                  "compiler": "gcc 12", "flags": "-O3", "blas": "openblas", "machine": machine,
                  "precision": "float32", "scale": "laptop",
                  "config": {"TASK": "language", **(config or {"STEP": step[2:]})}}
        with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
            json.dump(record, file)
        lines = [{"kind": "start", "iteration": 0, "host": "h", "pid": 1, "process": "p"}]
        lines += [{"kind": "audit", "name": a, "subject": s, "passed": p, "detail": d}
                  for a, s, p, d in audits]
        constants = {"parameters": 1e6, "flops_per_token": 6e6, "decode_token_bytes": 512,
                     "chance": CHANCE, "chance/recall": CHANCE + 1, **(values or {})}
        lines += [self.value(0, name, v) for name, v in constants.items()]
        for i in range(10, 101, 10) if loss is not None else ():
            now = loss + (0.03 * (100 - i) if curve else 0)
            lines += [self.value(i, "val/loss", now), self.value(i, "train/loss", now - 0.01),
                      self.value(i, "val/loss/recall", now + 1), self.value(i, "val/floor", FLOOR),
                      self.value(i, "val/floor/recall", FLOOR + 1),
                      self.value(i, "val/accuracy", max(0.0, 1 - 0.1 * now) if now == now else 0),
                      self.value(i, "tokens_per_second", 1000 + i),
                      self.value(i, "peak_megabytes", 100 + seed)]
            lines += [self.value(i, name, 0.001 * i + seed) for name in curves]
        if moved:
            lines.append({"kind": "event", "iteration": 50, "name": "environment", "text": moved})
        for name, text in zip(("prompt", "sample"), sample or ()):
            lines.append({"kind": "event", "iteration": 100, "name": name, "text": text})
        if weights:
            lines.append({"kind": "artifact", "name": "weights", "path": "w", "sha256": weights,
                          "bytes": 1})
        if ended:
            lines.append({"kind": "end", "state": state} | ({"reason": reason} if reason else {}))
        with open(os.path.join(directory, "journal.jsonl"), "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps({"time": started, **line}) + "\n")
        return record["identity"]

    def decoded(self, experiment, step, contexts, peer=None, **config):
        """As bench_decode.py leaves it: half of the limit at each context."""
        record = {"machine": "aarch64", "blas": "openblas", "compiler": "gcc 12", "threads": 2,
                  "precision": "float32",
                  "config": {"TASK": "language", "STEP": step[2:], **config}}
        own = [{"context": n, "state_bytes": 512 * n, "first_token_seconds": n / 1000,
                "prompt_flops": 1e6 * n, "token_seconds": n / 1e6, "token_bytes": 1e4 * n,
                "read_bytes_per_second": 2e10, "sgemm_flops_per_second": 4e9} for n in contexts]
        directory = os.path.join(self.path, experiment, "decode")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"{step}.json"), "w", encoding="utf-8") as file:
            json.dump({"own": {"record": record, "batch": 1, "contexts": own}, "peer": peer}, file)

    @staticmethod
    def value(iteration, name, value):
        return {"kind": "value", "iteration": iteration, "name": name,
                "value": "nan" if math.isnan(value) else value}

    def study(self, experiment="gpt2-ra-mla-full", seeds=(1, 2, 3, 4, 5), twin="same"):
        """Step 1 is better, 2 does not differ, 3 leaks; 4 runs 2 again."""
        draw = random.Random(3)
        for seed in seeds:
            common = draw.gauss(0, 0.05)
            for number, (step, shift) in enumerate(zip(STUDY, (0, -0.2, 0, -0.5))):
                self.add(experiment, step, seed, 3 + common + shift + draw.gauss(0, 0.01),
                         weights=f"{step}-{seed}", values={
                             "parameters": 1e6 * (1 + number), "flops_per_token": 6e6 + number},
                         audits=[("wiring", "wte", 1, ""),
                                 ("causality", "h.0", int(number != 3), "token 5 changes 3")])
            self.add(experiment, STUDY[4], seed, 3, repeat=1, config={"STEP": "mla+gate+cross"},
                     weights=f"{STUDY[2]}-{seed}" if twin == "same" else twin)

    def rebuild(self):
        done = subprocess.run([RESULTS, "rebuild", self.path], capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)


class Case(unittest.TestCase):
    def setUp(self):
        self.runs = Runs()
        self.addCleanup(shutil.rmtree, self.runs.path)

    def call(self, *words):
        """The exit status (0 or the message) and what was printed."""
        out = io.StringIO()
        status = 0
        with contextlib.redirect_stdout(out):
            try:
                report.main(["--runs", self.runs.path, *words])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue()

    def report(self, experiment="gpt2-ra-mla-full"):
        self.runs.rebuild()
        status, text = self.call("report", experiment)
        return status, text, self.json(experiment) if "Written" in text else None

    def path(self, experiment, ending):
        return os.path.join(self.runs.path, experiment, "report", f"report.{ending}")

    def read(self, ending, experiment="gpt2-ra-mla-full"):
        with open(self.path(experiment, ending), encoding="utf-8") as file:
            return file.read()

    def json(self, experiment):
        return json.loads(self.read("json", experiment))

    def data(self, experiment="gpt2-ra-mla-full"):
        """What the page draws."""
        return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>',
                                    self.read("html", experiment), re.S)[1])

    def figures(self, experiment="gpt2-ra-mla-full"):
        """By title."""
        return {figure["title"]: figure for group in self.data(experiment)["groups"]
                for figure in group["figures"]}

    def verdicts(self, table):
        return {row["step"]: row["verdict"] for row in table["rows"]}


class Study(Case):
    def test_verdicts(self):
        self.runs.study()
        status, text, table = self.report()
        self.assertEqual(status, 0)
        self.assertEqual(self.verdicts(table), dict(zip(STUDY, [
            "baseline", "better", "open", "invalid", "reproduced"])))
        self.assertIn("causality audit failed for h.0: token 5 changes 3", text)
        self.assertIn("hold together with 95%: corrected for 2 comparisons", text)
        self.assertRegex(text, r"2-mla\+gate\+cross .* open \([0-9]+ seeds\)\n")
        self.assertIn("scale laptop, seeds 1, 2, 3, 4, 5", text)
        self.assertRegex(text, r"1-mla\+gate +2M\*")
        self.assertIn("STEP: mla → mla+gate", text)

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
        self.assertAlmostEqual(recall["share"], (6 - 5) / (6 - 3))

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


class Verdicts(Case):
    """One interval decides, and no number contradicts it."""

    def add(self, differences, baseline=(3.0, 3.1, 3.2, 3.1, 3.0), step="1-x", **more):
        for seed, loss in enumerate(baseline, 1):
            if step == "1-x":
                self.runs.add("e", "0-mla", seed, loss, started=2e9)
            self.runs.add("e", step, seed, loss + differences[seed - 1], started=2e9, **more)

    def declare(self, now=1e9, **what):
        """As make does before the first run."""
        content = {"asked": "1", "primary": [["1-x", "0-mla"]], "steps": ["0-mla", "1-x"],
                   "margin": None, "looks": [5], "seeds": [1, 2, 3, 4, 5], **what}
        declaration.record(declaration.path_of(self.runs.path, "e"), content, now)

    def test_without_a_margin_nothing_is_equivalent(self):
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        self.assertEqual(self.verdicts(self.report("e")[2])["1-x"], "open")

    def test_margin(self):
        self.declare(margin=0.01)
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "equivalent")
        self.assertIn("margin 0.01", text)

    def test_better_within_the_margin(self):
        self.declare(margin=0.01)
        self.add((-0.005, -0.0051, -0.0052, -0.0051, -0.005))
        self.assertEqual(self.verdicts(self.report("e")[2])["1-x"], "better, within the margin")

    def test_an_end_that_is_not_zero_does_not_read_as_zero(self):
        self.add((0.000011, 0.000012, 0.000013, 0.000012, 0.000011))
        text = self.report("e")[1]
        self.assertRegex(text, r"\[\+0\.00001, \+0\.00001\].* worse")

    def test_what_is_not_declared_is_exploratory(self):
        self.declare()
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5), step="2-y")
        _, text, table = self.report("e")
        self.assertEqual([row["is_exploratory"] for row in table["rows"]], [False, False, True])
        self.assertRegex(text, r"1-x .* better\n")
        self.assertRegex(text, r"2-y .* better, exploratory\n")
        self.assertEqual((table["judgement"]["family"], table["judgement"]["exploratory"]), (1, 1))
        line = list(csv.DictReader(io.StringIO(self.read("csv", "e"))))[2]
        self.assertEqual((line["verdict"], line["exploratory"]), ("better", "1"))

    def test_a_late_declaration_does_not_count(self):
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.declare(now=3e9)
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x .* better, exploratory\n")
        self.assertIn("since it was made after the first run had begun", text)

    def test_a_changed_margin_does_not_count(self):
        self.declare(margin=0.001)
        self.declare(margin=0.01, now=3e9)
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x .* equivalent, exploratory\n")
        self.assertIn("since it was changed after the first run had begun", text)

    def test_a_declaration_withdrawn_after_the_first_run(self):
        self.declare()
        declaration.record(declaration.path_of(self.runs.path, "e"), None, 3e9)
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.assertRegex(self.report("e")[1], r"1-x .* better, exploratory\n")

    def test_undeclared_seeds_do_not_count(self):
        self.declare(seeds=[1, 2, 3, 4], looks=[4])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x .* better, exploratory\n")
        self.assertIn("since seed 5 was not declared", text)

    def test_an_incomplete_report_is_no_look(self):
        self.declare(seeds=[1, 2, 3, 4, 5, 6], looks=[6])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, table = self.report("e")
        self.assertRegex(text, r"1-x +[^\[]* incomplete\n")
        self.assertIn("No look yet: the first needs all runs of 6 seeds", text)
        self.assertEqual((table["rows"][1]["delta"]["low"], table["rows"][1]["p"]), (None, None))

    def test_a_step_that_has_not_begun_leaves_all_incomplete(self):
        self.declare(primary=[["1-x", "0-mla"], ["2-y", "0-mla"]], steps=["0-mla", "1-x", "2-y"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.assertRegex(self.report("e")[1], r"1-x .* incomplete\n")

    def test_a_seed_that_diverged_has_ended(self):
        self.declare(seeds=[1, 2, 3, 4, 5, 6], looks=[6])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.runs.add("e", "0-mla", 6, 3.0, started=2e9)
        self.runs.add("e", "1-x", 6, 9.0, started=2e9, state="diverged")
        self.assertRegex(self.report("e")[1], r"1-x .* better‡\n")

    def test_looks_share_alpha(self):
        """Between looks only the seeds of the last look count; the interval is the common one."""
        differences = (-0.1, -0.3, -0.2, 5.0)
        self.declare(seeds=[1, 2, 3, 4, 5], looks=[3, 5])
        self.add(differences, (3.0, 3.1, 3.2, 3.1))
        _, text, table = self.report("e")
        self.assertIn("Look 1 of 2, at 3 seeds", text)
        row = table["rows"][1]
        expected = stats.difference(differences[:3], stats.ALPHA * 3 / 5)
        self.assertAlmostEqual(row["delta"]["low"], expected.low)
        self.assertAlmostEqual(row["delta"]["high"], expected.high)

    def test_a_look_with_too_few_seeds_is_passed_over(self):
        differences = (-0.5, -0.51, -0.52, -0.51, -0.5)
        self.declare(looks=[1, 5])
        self.add(differences)
        row = self.report("e")[2]["rows"][1]
        expected = stats.difference(differences, stats.ALPHA * 4 / 5)
        self.assertEqual(row["verdict"], "better")
        self.assertAlmostEqual(row["delta"]["low"], expected.low)

    def test_declared_effects_that_are_not_there(self):
        self.declare(primary=["main"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, _ = self.report("e")
        self.assertIn("None of the primary comparisons is in this table", text)
        self.assertRegex(text, r"1-x .* better, exploratory\n")

    def test_any_two_steps_can_be_declared(self):
        self.declare(primary=[["2-y", "1-x"]], steps=["1-x", "2-y"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.add((-0.9, -0.91, -0.93, -0.92, -0.9), step="2-y")
        _, text, table = self.report("e")
        self.assertEqual([(row["step"], row["baseline"], row["verdict"], row["is_exploratory"])
                          for row in table["controls"]], [("2-y", "1-x", "better", False)])

    def test_solved_or_not(self):
        """Four of six against none: counted, not averaged."""
        for name, losses, verdict, needed in (("few", (0, 0, 0, 0, 9, 9), "open", 7),
                                              ("all", (0, 0, 0, 0, 0, 0), "better", None)):
            for seed, loss in enumerate(losses, 1):
                self.runs.add(name, "0-mla", seed, 9 + 0.01 * seed,
                              values={"judged_by_accuracy": 1})
                self.runs.add(name, "1-x", seed, loss, values={"judged_by_accuracy": 1})
            _, text, table = self.report(name)
            self.assertEqual(self.verdicts(table)["1-x"], verdict)
            self.assertIn(f"; {losses.count(0)} of 6 solve it, 0 there", text)
            self.assertEqual(table["rows"][1]["seeds_needed"], needed)

    def test_no_outcome_could_pass(self):
        for seed in (1, 2, 3):
            for step, loss in (("0-mla", 9), ("1-x", 0), ("2-y", 9)):
                self.runs.add("e", step, seed, loss + 0.001 * seed,
                              values={"judged_by_accuracy": 1})
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "not decidable")
        self.assertIn("no outcome of 3 seeds could pass the correction for 2 comparisons; 5 could",
                      text)

    def test_accuracies_need_five_seeds(self):
        for seed in (1, 2, 3, 4):
            self.runs.add("e", "0-mla", seed, 3 + 0.01 * seed, values={"judged_by_accuracy": 1})
            self.runs.add("e", "1-x", seed, 2 + 0.011 * seed, values={"judged_by_accuracy": 1})
        self.assertIn("4 paired seeds, 5 are needed", self.report("e")[1])

    def test_unequal_noise_is_judged_with_caution(self):
        """One arm is ten times as noisy: no verdict by 3 seeds, a wider interval by 5."""
        arms = [(seed, 3.0 + 0.001 * seed, 2.0 + 0.01 * (seed % 3)) for seed in range(1, 6)]
        for name, those in (("few", arms[:3]), ("more", arms)):
            for seed, loss, other in those:
                self.runs.add(name, "0-mla", seed, loss)
                self.runs.add(name, "1-x", seed, other)
        _, text, table = self.report("few")
        self.assertEqual(self.verdicts(table)["1-x"], "not decidable")
        self.assertIn("5 are needed where one of the two is noisier than the other", text)
        _, text, table = self.report("more")
        expected = stats.difference([other - loss for _, loss, other in arms],
                                    stats.ALPHA / stats.CAUTION)
        self.assertAlmostEqual(table["rows"][1]["delta"]["low"], expected.low)
        self.assertRegex(text, r"1-x .* better§\n")

    def test_power(self):
        """The trainer records every tenth update of 100 tokens, and the pace in between."""
        sizes = {"TRAIN_BATCH": "10", "TRAIN_ACCUMULATE": "1", "MODEL_BLOCK": "10",
                 "GPT2_MAX_ITERS": "100", "TRAIN_TOKENS_BUDGET": "0"}
        self.add((0.1, -0.1, 0.2, -0.2, 0.0), config={"STEP": "x", **sizes})
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, (3.0, 3.1, 3.2, 3.1, 3.0)[seed - 1], started=3e9,
                          config={"STEP": "mla", **sizes})
        self.runs.rebuild()
        status, text = self.call("power", "e", "--effect", "0.1")
        self.assertEqual(status, 0)
        sd = statistics.stdev((0.1, -0.1, 0.2, -0.2, 0.0))
        needed = stats.seeds_to_show(0.1 / sd, stats.ALPHA)
        self.assertRegex(text, rf"1-x +0-mla +5 +{sd:.4f} +{needed} +{needed}\n")
        runs = 2 * (needed - 5)
        seconds = sum(10 * 100 / (1000 + i) for i in range(10, 101, 10))
        self.assertIn(f"{needed} seeds for every step: {runs} runs more, about "
                      f"{runs * seconds / 60:.0f} minutes", text)


class Grid(Case):
    """Two changes, each alone and together."""
    BASE = {"OPTIMIZER": "adamw", "RATE": "1"}
    GATE = {"GATE": "y", "READ_BY_BOTH": "n"}       # a program records what it reads
    MUON = {"OPTIMIZER": "muon", "RATE": "2", "READ_BY_BOTH": "n"}

    def add(self, together, steps=4, rates=None, **more):
        draw = random.Random(5)
        cells = [("0-mla", {}, 0), ("1-mla+gate", self.GATE, -0.2),
                 ("2-mla+muon", self.MUON, -0.1),
                 ("3-mla+gate+muon", self.GATE | self.MUON, together)]
        for seed in (1, 2, 3, 4, 5):
            common = draw.gauss(0, 0.5)
            for number, (step, change, shift) in enumerate(cells[:steps]):
                rate = {"LEARNING_RATE": rates[number]} if rates else {}
                self.runs.add("e", step, seed, 5 + common + shift + draw.gauss(0, 0.01),
                              config={**self.BASE, **change, **rate}, **more)

    def effects(self):
        _, text, table = self.report("e")
        return text, {row["step"]: row for row in table["effects"]}

    def test_no_interaction(self):
        self.add(-0.3)
        text, effects = self.effects()
        self.assertEqual(list(effects), ["gate", "muon", "gate × muon"])
        self.assertAlmostEqual(effects["gate"]["delta"]["mean"], -0.2, delta=0.02)
        self.assertAlmostEqual(effects["muon"]["delta"]["mean"], -0.1, delta=0.02)
        self.assertEqual([row["verdict"] for row in effects.values()], ["better", "better", "open"])
        self.assertIn("corrected for 6 comparisons", text)

    def test_interaction(self):
        """Together they gain nothing over the gate alone: each row's mean is computed again."""
        self.add(-0.2)
        text, effects = self.effects()
        self.assertAlmostEqual(effects["gate × muon"]["delta"]["mean"], 0.1, delta=0.03)
        self.assertEqual(effects["gate × muon"]["verdict"], "worse")
        self.assertRegex(text, r"gate × muon +interaction +\+0\.[0-9]+ \[")
        for ending, name in (("md", "gate × muon"), ("csv", "gate × muon"), ("html", "gate × muon"),
                             ("tex", r"gate $\times$ muon")):
            self.assertIn(name, self.read(ending, "e"))

    def test_without_all_corners_there_are_no_effects(self):
        self.add(0, steps=3)
        self.assertEqual(self.effects()[1], {})

    def test_tuned_steps_may_have_chosen_any_rate(self):
        """The rates are those of the arms; where they were not chosen, they are a change."""
        self.add(-0.3, rates=("1e-3", "2e-3", "4e-3", "1e-3"))
        self.assertEqual(self.effects()[1], {})
        for step in ("0-mla", "1-mla+gate", "2-mla+muon", "3-mla+gate+muon"):
            self.runs.add("e-tuning", f"{step}@1e-3", 11, 3.0, config={"LEARNING_RATE": "1e-3"})
        self.assertEqual(list(self.effects()[1]), ["gate", "muon", "gate × muon"])

    def test_an_invalid_corner_makes_the_effects_invalid(self):
        self.add(-0.3, audits=[("wiring", "wte", 0, "no gradient")])
        self.assertEqual({row["verdict"] for row in self.effects()[1].values()}, {"invalid"})

    def test_solved_or_not_has_no_sum(self):
        self.add(-6, values={"judged_by_accuracy": 1})
        self.assertEqual({row["verdict"] for row in self.effects()[1].values()},
                         {"not decidable"})


class Controls(Case):
    def test_a_step_is_compared_with_its_control(self):
        """Both are better than the baseline, but the step is no better than its control."""
        def add(step, seed, loss, parameters, **config):
            self.runs.add("e", step, seed, loss, config={"FFN_HIDDEN": "0", **config},
                          values={"parameters": parameters})
        for seed in (1, 2, 3, 4, 5):
            wave = 0.001 * (seed % 2)
            add("0-mla", seed, 3.0, 1000)
            add("1-gate", seed, 2.5 + wave, 1500, GATE="y")
            add("2-mla+parameters-of-1", seed, 2.5 + 0.001 * (seed % 3), 1510, FFN_HIDDEN="9")
            add("3-mla+parameters-of-9", seed, 2.9 + wave, 1200, FFN_HIDDEN="5")
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-gate"], "better")
        self.assertEqual([row["baseline"] for row in table["controls"]],
                         ["2-mla+parameters-of-1"])
        self.assertRegex(text, r"1-gate +2-mla\+parameters-of-1 +-10 parameters, \+0 FLOPs/token +"
                               r"[-+0-9.]+ \[.*\] +0\.00[0-9]+ +open")
        self.assertGreater(table["controls"][0]["smallest_effect"], 0)
        lines = list(csv.DictReader(io.StringIO(self.read("csv", "e"))))
        self.assertEqual([(line["step"], line["baseline"]) for line in lines
                          if line["kind"] == "control"], [("1-gate", "2-mla+parameters-of-1")])
        for ending in ("md", "tex", "html"):
            self.assertIn("Against matched controls", self.read(ending, "e"))
        self.assertIn("corrected for 4 comparisons", text)

    def test_steps_of_one_size_share_a_control(self):
        self.add("0-mla", (3.0, 3.0, 3.1), 1000)
        self.add("1-mla+gate", (2.7, 2.8, 2.9), 1500)
        self.add("2-mla+pool", (2.6, 2.8, 2.9), 1500)
        self.add("3-mla+parameters-of-1+parameters-of-2", (2.7, 2.7, 2.9), 1500, width="9")
        text = self.report("e")[1]
        for step in ("1-mla+gate", "2-mla+pool"):
            self.assertRegex(text, rf"{re.escape(step)} +3-mla\+parameters-of-1\+parameters-of-2 +\+0 parameters")

    def add(self, step, losses, parameters, width="0", rate="1e-3", **more):
        for seed, loss in enumerate(losses, 1):
            self.runs.add("e", step, seed, loss, values={"parameters": parameters}, **more,
                          config={"FFN_HIDDEN": width, "LEARNING_RATE": rate,
                                  "FFN": step[2:] if width == "0" else "mla"})

    def test_of_two_steps_of_one_number_that_of_its_size(self):
        self.add("0-mla", (3.0, 3.1, 3.2), 1000)
        self.add("1-mla+cross", (2.5, 2.6, 2.8), 1500)
        self.add("1-mla+gate", (2.5, 2.6, 2.8), 1100, started=9e8)     # of an older plan
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1510, width="9")
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-mla\+cross +2-mla\+parameters-of-1 +-10 parameters")
        self.assertNotRegex(text, r"1-mla\+gate +2-mla")

    def test_of_two_equally_large_steps_of_one_number_the_newest(self):
        self.add("1-mla+cross", (2.5,), 1500)
        self.add("1-mla+gate", (2.5,), 1500, started=9e8)
        self.add("0-mla", (3.0,), 1000)
        self.add("2-mla+parameters-of-1", (2.7,), 1500, width="9")
        self.assertRegex(self.report("e")[1], r"1-mla\+cross +2-mla\+parameters-of-1 ")

    def test_marks(self):
        self.add("0-mla", (3.0, 3.1, 3.2, 3.1), 1000)
        self.add("1-mla+gate", (2.5, 2.6, 2.8, 2.6), 1500)
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1500, width="9", machine="x86_64")
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-mla\+gate +2-mla.* open \(6 seeds\)†‡\n")

    def test_a_tuned_control_may_choose_another_rate(self):
        self.add("0-mla", (3.0, 3.1, 3.2), 1000)
        self.add("1-mla+gate", (2.5, 2.6, 2.8), 1500)
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1500, width="9", rate="1e-2")
        self.assertNotIn("Against matched controls", self.report("e")[1])
        self.runs.add("e-tuning", "2-mla+parameters-of-1@1e-2", 11, 3.0,
                      config={"LEARNING_RATE": "1e-2"})
        self.assertRegex(self.report("e")[1], r"1-mla\+gate +2-mla\+parameters-of-1 +\+0 parameters")


class WhatDiffers(Case):
    PLAIN = {"ATTENTION": "mla", "RA_MLA_MLP_ATTN_GATE": "n", "RA_MLA_MLP_LATENT_RECIP": "n"}

    def differences(self, first, second):
        self.runs.add("e", "0-mla", 1, 3.0, config={**self.PLAIN, **first})
        self.runs.add("e", "1-x", 1, 3.0, config={**self.PLAIN, **second})
        _, text, table = self.report("e")
        self.assertIn("What differs", text)
        return {symbol: (a, b) for symbol, a, b in table["rows"][1]["difference"]}

    def test_what_a_switch_brings_with_it_is_not_told(self):
        gate = {"RA_MLA_MLP_ATTN_GATE": "y", "GATE_ALPHA": "0.1", "GATE_DIM": "64",
                "GATE_POOL": "causal"}
        self.assertEqual(self.differences({}, gate), {"RA_MLA_MLP_ATTN_GATE": ("n", "y")})

    def test_what_is_no_default_is_told(self):
        """Also where the default of a symbol depends on another that is no default."""
        recip = {"RA_MLA_MLP_LATENT_RECIP": "y", "RECIP_ALPHA": "0.5", "RECIP_LATENT": "16",
                 "RA_MLA_MLP_TYING_MODE": "bottleneck", "RECIP_DETACH": "n"}
        self.assertEqual(self.differences(recip, {}), {
            "RA_MLA_MLP_LATENT_RECIP": ("y", "n"), "RECIP_ALPHA": ("0.5", None),
            "RA_MLA_MLP_TYING_MODE": ("bottleneck", None)})

    def test_symbols_that_are_gone_are_told(self):
        self.assertEqual(self.differences({"OLD": "1"}, {}), {"OLD": ("1", None)})


class Null(Case):
    def test_other_seeds_are_paired_in_order(self):
        config = {"FFN": "gelu"}
        for seed, loss, other in ((1, 3.0, 3.1), (2, 3.2, 3.1), (3, 3.1, 3.2)):
            self.runs.add("e", "0-mla", seed, loss, config=config)
            self.runs.add("e", "1-mla-null", 1000 + seed, other, config=config)
            self.runs.add("e", "2-x", seed, loss - 0.5, config={"FFN": "ws"})
        _, text, table = self.report("e")
        row = table["rows"][1]
        self.assertAlmostEqual(row["delta"]["mean"], (0.1 - 0.1 + 0.1) / 3)
        self.assertAlmostEqual(row["delta"]["sd"], statistics.stdev([0.1, -0.1, 0.1]))
        self.assertEqual((row["verdict"], row["marks"]), ("open", []))
        self.assertEqual(table["seeds"], [1, 2, 3])
        self.assertEqual(table["problems"], [])
        self.assertIn("1-mla-null: the same configuration as 0-mla with other seeds", text)

    def test_a_lost_run_is_told(self):
        for seed in (1, 2, 3, 4):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed, config={"FFN": "gelu"})
            self.runs.add("e", "1-mla-null", 1000 + seed, 3.0 + 0.1 * seed, config={"FFN": "gelu"},
                          state="diverged" if seed == 2 else "done")
        _, text, table = self.report("e")
        self.assertEqual(table["rows"][1]["delta"]["n"], 3)
        self.assertIn(ablation.LOST_SEEDS, table["rows"][1]["marks"])
        self.assertIn("1-mla-null, seed 1002: diverged", text)


class Tuning(Case):
    def test_sweep(self):
        for rate, losses in (("1e-3", (3.0, 3.2)), ("1e-2", (2.0, 2.1)), ("3e-3", (2.5, 2.6))):
            for seed, loss in zip((11, 12), losses):
                self.runs.add("e-tuning", f"1-x+tuned@{rate}", seed, loss,
                              config={"LEARNING_RATE": rate})
        for seed in (11, 12):
            self.runs.add("e-tuning", "1-x+tuned@1", seed, 9.0 if seed == 11 else None,
                          state="done" if seed == 11 else "diverged",
                          config={"LEARNING_RATE": "1"})
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed)
            self.runs.add("e", "1-x+tuned", seed, 2.0 + 0.1 * seed,
                          config={"LEARNING_RATE": "1e-2"})
        _, text, table = self.report("e")
        self.assertEqual([rate for rate, _, _ in table["sweeps"][0]["rates"]],
                         ["1e-3", "3e-3", "1e-2", "1"])
        self.assertEqual(table["seeds"], [1, 2, 3])
        self.assertRegex(text, r"1-x\+tuned +1e-2 +2\.0500 ± 0\.0707 \(2\) +chosen\n")
        self.assertRegex(text, r"1-x\+tuned +1 +9\.0000 \(1\) +1\n")

    def test_a_choice_at_the_end_of_the_list_is_marked(self):
        for rate in ("1e-3", "1e-2"):
            self.runs.add("e-tuning", f"0-mla@{rate}", 11, 3.0, config={"LEARNING_RATE": rate})
        self.runs.add("e", "0-mla", 1, 3.0, config={"LEARNING_RATE": "1e-3"})
        self.assertIn("chosen, at the end of the list", self.report("e")[1])


class Inference(Case):
    """Losses beyond the trained length, and what decoding costs."""
    BEYOND, DECODING = "Beyond the trained length", "Decoding"

    def study(self):
        for seed in (1, 2, 3):
            for step, worse in (("0-mla", 0), ("1-x", 0.5)):
                values = {}
                for n in (512, 1024):
                    # The wider step is worse by its seed's number of tenths, too.
                    loss = n / 512 + worse * (1 + 0.1 * seed)
                    values |= {f"length/{n}/loss": loss, f"length/{n}/accuracy": 0.25,
                               f"length/{n}/rows": 4096 // n, f"length/{n}/state_bytes": 2048 * n,
                               f"length/{n}/loss/0": loss + 1}
                values["length/1024/loss/512"] = 7.0
                self.runs.add("e", step, seed, 3.0, values=values,
                              config={"STEP": step[2:], "MODEL_BLOCK": "512"})
        self.runs.decoded("e", "0-mla", (1024, 4096), MODEL_BLOCK="512",
                          peer={"torch": "2.9", "contexts": [
                              {"context": n, "token_seconds": n / 1e5} for n in (1024, 4096)]})
        self.runs.decoded("e", "1-x", (1024,), MODEL_BLOCK="64")

    def test_nothing_is_shown_when_nothing_was_measured(self):
        self.runs.study()
        _, text, table = self.report()
        for ending in ("md", "csv", "tex", "html"):
            text += self.read(ending)
        for word in (self.BEYOND, "tokens/s against", "limit/s", "Loss by position", "length/",
                     "decode/"):
            self.assertNotIn(word, text)
        self.assertEqual((table["lengths"], table["decoding"]["measured"]), ([], []))

    def test_numbers(self):
        self.study()
        _, text, table = self.report("e")
        x = {(x["step"], x["length"]): x for x in table["lengths"]}
        self.assertEqual(list(x), [("0-mla", 512), ("0-mla", 1024), ("1-x", 512), ("1-x", 1024)])
        self.assertIsNone(x["0-mla", 512]["delta"])
        self.assertAlmostEqual(x["1-x", 1024]["loss"]["mean"], 2.6)
        self.assertAlmostEqual(x["1-x", 1024]["delta"]["mean"], 0.6)
        self.assertAlmostEqual(x["1-x", 1024]["delta"]["sd"], 0.05)
        self.assertEqual(x["0-mla", 1024]["positions"], [[0, 3.0], [512, 7.0]])
        self.assertRegex(text, r"0-mla +1024 +4 +2\.00 +2\.0000 ± 0\.0000 \(3\) +25\.0 +3\.000"
                         r" +7\.000\n")
        self.assertIn("0-511  512-1023\n", text)
        self.assertIn("Trained at 512 tokens", text)
        # 1e6/1024 tokens a second of 2e10/1.024e7; PyTorch takes ten times as long.
        self.assertRegex(text, r"0-mla +1024 +0\.50 +512 +1\.02 +25% +976\.6 +10\.2 +1953\.1 +50%"
                         r" +97\.7\n")
        self.assertIn("1-x: measured with other values of MODEL_BLOCK\n", text)
        self.assertNotIn("0-mla: measured with", text)
        self.assertIn("threads 2, precision float32, batch 1, PyTorch 2.9: 0-mla\n", text)

    def test_files(self):
        self.study()
        self.report("e")
        line = next(csv.DictReader(io.StringIO(self.read("csv", "e"))))
        self.assertEqual(line["length/1024/loss/512"], "7.0")
        self.assertEqual(float(line["decode/4096/token_seconds"]), 4096e-6)
        for ending, title in (("md", "## {}\n"), ("tex", "{}\\par"), ("html", "<h2>{}</h2>")):
            for name in (self.BEYOND, self.DECODING):
                self.assertIn(title.format(name), self.read(ending, "e"))
        for word in (r"\par\bigskip\normalsize Decoding\par\smallskip", "1953.1", "PyTorch/s"):
            self.assertIn(word, self.read("tex", "e"))
        self.assertEqual(self.read("tex", "e").count(r"\end{tabular}"), 3)

    def test_plots(self):
        self.study()
        self.report("e")
        found = self.figures("e")
        by_position = found["Loss by position"]
        self.assertEqual(by_position["uprights"], [512])
        self.assertEqual(by_position["series"][0], {"step": "0-mla", "name": "0-mla",
                                                    "xs": [256, 768], "ys": [3.0, 7.0]})
        of_baseline = [one for one in found["Decoding speed"]["series"] if one["step"] == "0-mla"]
        self.assertEqual([one["thin"] for one in of_baseline], [False, True])
        for ours, limit in zip(*(one["ys"] for one in of_baseline)):
            self.assertAlmostEqual(2 * ours, limit, places=2)   # as Runs.decoded has it
        self.assertIn("Decode state", found)


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
                     "2-mla+gate+cross, seed 4: still running, or died",
                     "3-mla+gate+cross+latent, seed 4: val/loss is not finite"):
            self.assertIn(line, text)
        self.assertNotIn("again, seed 4: missing", text)  # a repetition has one seed
        self.assertRegex(text, r"better‡")

    def test_lost_seeds_of_the_baseline_are_marked(self):
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed,
                          state="done" if seed < 4 else "diverged")
            self.runs.add("e", "1-x", seed, 2.0 + 0.011 * seed)
            self.runs.add("f", "0-mla", seed, 2.0 + 0.011 * seed)
        _, text, table = self.report("e")
        self.assertEqual(table["rows"][1]["delta"]["n"], 3)
        self.assertRegex(text, r"1-x .* better‡\n")
        self.assertRegex(self.call("compare", "e/0", "f/0")[1], r" better‡\n")
        self.assertRegex(self.call("compare", "f/0", "e/1")[1], r" open\n")

    def test_a_huge_loss(self):
        """Finite, but its perplexity is beyond a double."""
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed)
            self.runs.add("e", "1-x", seed, 800.0 + seed)
        status, text, table = self.report("e")
        self.assertEqual(status, 0)
        self.assertRegex(text, r"1-x .* \+inf% .* worse§\n")
        self.assertIn("§ one of the two is noisier than the other", text)
        self.assertIsNone(table["rows"][1]["perplexity_percent"])
        self.assertNotIn("Infinity", self.read("json", "e"))

    def test_environments_are_marked(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + seed)
            self.runs.add("e", "1-x", seed, 3.1 + seed, machine="x86_64")
            self.runs.add("e", "2-y", seed, 3.1 + seed)
        _, text, table = self.report("e")
        self.assertIn(ablation.OTHER_ENVIRONMENT, table["rows"][1]["marks"])
        self.assertEqual(table["rows"][2]["marks"], [])
        self.assertIn("compared across environments", text)
        self.assertIn("machine x86_64", text)

    def test_a_gpu_is_not_called_blas(self):
        self.runs.add("e", "0-mla", 1, 3.0, config={"BACKEND": "cuda"})
        self.runs.add("e", "1-x", 1, 3.1, config={"BACKEND": "cpu"})
        self.runs.decoded("e", "0-mla", (1024,), BACKEND="cuda")
        _, text, _ = self.report("e")
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
        self.assertIn("changed compiler '1' then, '2' now: 1-x", text)

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
        """Symbols of the training may be read and not used; the weights tell in the end."""
        for seed in (1, 2):
            self.runs.add("e", "0-mla", seed, 3.0, config={"BETA2": "0.95"}, weights=f"w{seed}")
            self.runs.add("e", "1-beta", seed, 3.0, config={"BETA2": "0.9"}, weights=f"w{min(seed, 1)}")
            self.runs.add("e", "2-other", seed, 3.0, config={"BETA2": "0.8"}, weights=f"v{seed}")
        text = self.report("e")[1]
        self.assertIn("1-beta: with seed 1 it ends in the weights of 0-mla, bit by bit", text)
        self.assertNotIn("2-other: with seed", text)

    def test_audits_that_were_off_are_told(self):
        off = {"AUDIT_WIRING": "n", "AUDIT_CAUSALITY": "n", "AUDIT_ONE_BATCH": "n"}
        self.runs.add("e", "0-mla", 1, 3.0, audits=(), config=off)
        self.runs.add("e", "1-x", 1, 3.0, config={**off, "AUDIT_CAUSALITY": "y"})
        self.runs.add("e", "2-y", 1, 3.0, config=dict.fromkeys(off, "y"))
        text = self.report("e")[1]
        self.assertRegex(text, r"0-mla .* not audited +baseline\n")
        self.assertRegex(text, r"1-x .* 1 passed, not audited: wiring, one batch +not decidable\n")
        self.assertRegex(text, r"2-y .* 1 passed +not decidable\n")

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
        self.assertRegex(text, r"1-task-recall\+mla .* 0\.1 % .* better§")


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
        """Well formed, alone in the world, and safe from what names may hold."""
        self.runs.study()
        self.runs.add("gpt2-ra-mla-full", "9-</script><script>&", 1, 3.0)
        self.report()
        text = self.read("html")
        self.assertEqual(text.count("<script"), 2)
        self.assertEqual(text.count("</script"), 2)
        self.assertNotRegex(text, r"(?:src|href)=[\"']?(?:https?:|//)")
        self.assertIn("9-</script><script>&", {run["step"] for run in self.data()["runs"]})
        checker = Balance()
        checker.feed(text)
        self.assertEqual(checker.open, [])
        self.assertEqual(len(checker.ids), len(set(checker.ids)))

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
        self.runs.add("e", "0-a b", 1, 3.0)
        self.report("e")
        link = re.search(r'<a href="([^"]*)">0-a b, 0001ab', self.read("html", "e"))[1]
        self.assertEqual(link, "../0-a%20b-1-1/")
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


class Values(Case):
    """A file of final values gives the table that the runs gave."""

    def file(self, experiment):
        status, text = self.call("values", experiment)
        self.assertEqual(status, 0)
        path = os.path.join(self.runs.path, f"{experiment}.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def judged_again(self, experiment):
        """What decides, in full precision, from the runs and from the file."""
        _, _, table = self.report(experiment)
        again = json.loads(report.as_json(values.table(self.file(experiment))))
        for name in ("rows", "controls", "effects", "judgement", "groups", "sweeps", "problems",
                     "scores", "published", "environments", "seeds", "scales", "lengths"):
            self.assertEqual(again[name], table[name], name)
        return self.call("judge", self.file(experiment))[1]

    def test_a_study_with_a_repetition_and_a_leak(self):
        self.runs.study()
        text = self.judged_again("gpt2-ra-mla-full")
        self.assertRegex(text, r"1-mla\+gate .* better")
        self.assertRegex(text, r"3-mla\+gate\+cross\+latent .* invalid")
        self.assertRegex(text, r"4-mla\+gate\+cross-again .* reproduced")

    def test_tuned_and_declared(self):
        for seed in (1, 2, 3, 4, 5):
            common = 0.1 * seed
            self.runs.add("e", "0-mla", seed, 3 + common, started=2e9,
                          config={"LEARNING_RATE": "1e-3", "NAME": ""})
            self.runs.add("e", "1-x", seed, 2.5 + common + 0.01 * (seed % 2), started=2e9,
                          config={"LEARNING_RATE": "1e-2", "OTHER": "y"},
                          state="diverged" if seed == 5 else "done")
        for step, rate, loss in (("0-mla", "1e-3", 3.0), ("1-x", "1e-2", 2.0)):
            self.runs.add("e-tuning", f"{step}@{rate}", 11, loss, config={"LEARNING_RATE": rate})
        self.runs.add("e-tuning", "1-x@1", 11, None, state="diverged", config={"LEARNING_RATE": "1"})
        declaration.record(declaration.path_of(self.runs.path, "e"), {
            "asked": "1", "primary": [["1-x", "0-mla"]], "steps": ["0-mla", "1-x"],
            "margin": 0.1, "looks": [5], "seeds": [1, 2, 3, 4, 5]}, 1e9)
        text = self.judged_again("e")
        self.assertIn("Look 1 of 1, at 5 seeds.", text)
        self.assertRegex(text, r"1-x .* better‡")
        self.assertRegex(text, r"1-x +1 +1\n")

    def test_accuracy_and_length(self):
        for seed in (1, 2, 3, 4, 5):
            for step, loss in (("0-mla", 9.0), ("1-x", 1.0)):
                self.runs.add("e", step, seed, loss + 0.01 * seed, values={
                    "judged_by_accuracy": 1, "length/64/loss": 2.0 + seed, "length/64/rows": 8,
                    "length/64/accuracy": 0.5, "length/64/state_bytes": 512})
        self.assertIn("5 of 5 solve it, 0 there", self.judged_again("e"))

    def test_what_chance_may_have_made(self):
        self.runs.study()
        self.runs.study("other", seeds=(1, 2, 3))
        self.runs.rebuild()
        status, text = self.call("chance", self.file("gpt2-ra-mla-full"), self.file("other"))
        self.assertEqual(status, 0)
        self.assertIn("| gpt2-ra-mla-full | primary | 2 | 1 | 0 | 0 |", text)
        self.assertIn("4 comparisons in 2 families", text)
        self.assertIn("on average at most 0.10 of these families hold one, and with at most 10% any", text)

    def test_other_files(self):
        self.runs.study()
        self.runs.rebuild()
        path = self.file("gpt2-ra-mla-full")
        with open(path, encoding="utf-8") as file:
            good = file.read()
        for text, why in (("step,seed\n", "not a file of values"),
                          (good.replace("\n1-mla+gate,", "\n"), "damaged"), ("", "not a file of values"),
                          (good.split("step,")[0], "damaged")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(why=why):
                self.assertIn(why, self.call("judge", path)[0])
        self.assertIn("not a file of values", self.call("judge", os.path.join(self.runs.path, "results.db"))[0])
        self.assertEqual(self.call("judge", "nowhere.csv")[0], "report: nowhere.csv: No such file or directory")


class Memory(Case):
    """A report is made again only when something changed."""

    def setUp(self):
        super().setUp()
        self.runs.study(twin="other bits")
        self.runs.rebuild()
        self.first = self.ask()

    def ask(self):
        """Exit status, what was said, and whether the report was made."""
        made = []
        before = report.make_report
        report.make_report = lambda *arguments: made.append(1) or before(*arguments)
        try:
            return (*self.call("report", "gpt2-ra-mla-full"), bool(made))
        finally:
            report.make_report = before

    def test_nothing_changed(self):
        status, said, made = self.ask()
        self.assertTrue(self.first[2])
        self.assertFalse(made)
        self.assertEqual((status, said), self.first[:2])
        self.assertIn("not reproduced", str(status))

    def test_other_results(self):
        self.runs.add("gpt2-ra-mla-full", STUDY[0], 6, 3.0)
        self.runs.rebuild()
        self.assertTrue(self.ask()[2])

    def test_a_declaration(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "declaration.json")
        declaration.record(path, None, 0)
        self.assertFalse(self.ask()[2])     # nothing was declared
        declaration.record(path, {"asked": "1", "primary": [[STUDY[1], STUDY[0]]], "steps": STUDY[:2],
                                  "margin": None, "looks": [5], "seeds": [1, 2, 3, 4, 5]}, 1)
        self.assertTrue(self.ask()[2])

    def test_a_measurement(self):
        self.runs.decoded("gpt2-ra-mla-full", STUDY[0], [64])
        self.assertTrue(self.ask()[2])

    def test_a_file_is_gone(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "report", "report.csv")
        os.unlink(path)
        self.assertTrue(self.ask()[2])
        self.assertTrue(os.path.exists(path))

    def test_what_is_remembered_is_damaged(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "report", "said.json")
        for text in ("", "{", "[]", '{"key": 1}'):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.assertTrue(self.ask()[2])
            self.assertFalse(self.ask()[2])


class CompareAndDiff(Case):
    def setUp(self):
        super().setUp()
        self.runs.study()
        for seed in (1, 2, 3):
            self.identity = self.runs.add("other", "0-mla", seed, 2.0 + 0.01 * seed,
                                          config={"STEP": "mla", "EXTRA": "y"})
        self.runs.rebuild()

    def test_experiments(self):
        status, text = self.call("compare", "gpt2-ra-mla-full", "other")
        self.assertEqual(status, 0)
        self.assertIn("better", text)
        self.assertIn("EXTRA: - → y", text)

    def test_steps(self):
        for a, b in (("gpt2-ra-mla-full/0-mla", "gpt2-ra-mla-full/1"),
                     ("gpt2-ra-mla-full/mla", "gpt2-ra-mla-full/mla+gate")):
            status, text = self.call("compare", a, b)
            self.assertEqual(status, 0)
            self.assertRegex(text, r"0-mla +1-mla\+gate .* better")
        _, text = self.call("compare", "gpt2-ra-mla-full/1", "gpt2-ra-mla-full/0")
        self.assertRegex(text, r"1-mla\+gate +0-mla .* worse")

    def test_says_only_what_is_there(self):
        for seed in (1, 2, 3):
            self.runs.add("wide", "0-x", seed, 2.0 + 0.01 * seed, values={"parameters": 2e6})
        self.runs.rebuild()
        _, text = self.call("compare", "gpt2-ra-mla-full/0", "wide/0")
        self.assertNotIn("more parameters than its baseline", text)     # no column has its mark
        self.assertNotIn("accuracy", text)                              # no row has one

    def test_single_run(self):
        status, text = self.call("compare", "gpt2-ra-mla-full/0", self.identity[:6])
        self.assertEqual(status, 0)
        self.assertIn("not decidable", text)

    def test_other_task(self):
        for seed in (1, 2, 3):
            self.runs.add("copying", "0-mla", seed, 1.0 + 0.01 * seed, config={"TASK": "copy"})
        self.runs.rebuild()
        status, text = self.call("compare", "other/0", "copying/0")
        self.assertEqual(status, 0)
        self.assertIn("not decidable: the tasks differ (language, copy)", text)

    def test_diff(self):
        status, text = self.call("diff", "gpt2-ra-mla-full/0", "other/0")
        self.assertEqual(status, 0)
        self.assertIn("gpt2-ra-mla-full/0-mla → other/0-mla: 1 symbol\n", text)
        self.assertNotIn("nats", text)

    def test_wrong_names(self):
        for a, b, expected in (
                ("nothing", "other", "no experiment, EXPERIMENT/STEP or identity of a run; "
                                     "experiments: gpt2-ra-mla-full, other"),
                ("other/7", "other", "other/7: no such step; there are: 0-mla"),
                ("00", "other", "00: stands for"), ("%", "other", "%: no experiment")):
            status, _ = self.call("compare", a, b)
            self.assertIn(expected, status)


class Errors(Case):
    def test_damaged_measurement_of_decoding(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        self.runs.add("e", "1-x", 1, 3.0)
        self.runs.decoded("e", "1-x", (1024,))
        for damaged in ("{", '{"own": 1}', "{}", "[]", '{"own": {"contexts": [{}]}, "peer": null}'):
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
        self.assertIn("'results rebuild' makes it anew", status)
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
        self.assertIn("Samples:\n  After: Hark,↵\n  0-mla, seed 1: to be↵not 1\n"
                      "  1-mla+gate, seed 1: or <b>*not* 1\nEnvironment", text.getvalue())
        directory = pathlib.Path(runs.path, "talk/report")
        self.assertIn("or &lt;b&gt;*not* 1", (directory / "report.html").read_text())
        told = json.loads((directory / "report.json").read_text())["samples"]
        self.assertEqual(told[0]["prompt"], "Hark,\n")
        self.assertEqual(told[0]["texts"][0], ["0-mla", 1, "to be\nnot 1"])


if __name__ == "__main__":
    tap.main()
