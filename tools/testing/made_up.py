"""Run directories as the trainer writes them, for tests of what is made from them."""
import contextlib
import glob
import io
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest

from tools.report import report
from tools.results import time_left

RESULTS = os.path.join(os.environ.get("O", "build"), "bin/results")
STUDY = ["0-mla", "1-mla+gate", "2-mla+gate+cross", "3-mla+gate+cross+latent",
         "4-mla+gate+cross-again"]
CHANCE, FLOOR = 20.0, 2.0

class Runs:
    """A directory of runs, as the trainer writes them."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="kablate-report-")
        self.made = 0

    def add(self, experiment, step, seed, loss, *, baseline="0-mla", repeat=0, state="done",
            config=None, audits=(("causality", "h.0", 1, ""),), weights=None, machine="aarch64",
            started=1e9, values=None, reason=None, curve=True, ended=True, threads=2,
            moved=None, sample=None, curves=(), host="h", pid=1, until=100, pace=0):
        """A run that ends at this loss; `values` are recorded once, `curves` with each loss (names, or functions
        of the iteration by name).

        It has made `until` of 100 iterations, each in `pace` seconds.
        """
        self.made += 1
        directory = os.path.join(self.path, experiment, f"{step}-{seed}-{self.made}")
        os.makedirs(directory)
        record = {"format": 1, "experiment": experiment, "step": step, "baseline": baseline,
                  "identity": f"{self.made:04x}{'ab' * 30}", "seed": seed, "repeat": repeat,
                  "iterations": 100, "git_dirty": False, "git_revision": "r1", "threads": threads,
                  "compiler": "gcc 12", "flags": "-O3", "blas": "openblas", "machine": machine,
                  "precision": "float32", "scale": "laptop",
                  "config": {"TASK": "language", **(config or {"STEP": step[2:]})}}
        with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
            json.dump(record, file)
        lines = [{"kind": "start", "iteration": 0, "host": host, "pid": pid, "process": "p"}]
        lines += [{"kind": "audit", "name": a, "subject": s, "passed": p, "detail": d}
                  for a, s, p, d in audits]
        constants = {"parameters": 1e6, "flops_per_token": 6e6, "decode_token_bytes": 512,
                     "chance": CHANCE, "chance/recall": CHANCE + 1, **(values or {})}
        lines += [self.value(0, name, v) for name, v in constants.items()]
        for i in range(10, until + 1, 10) if loss is not None else ():
            now = loss + (0.03 * (100 - i) if curve else 0)
            lines += [self.value(i, "val/loss", now), self.value(i, "train/loss", now - 0.01),
                      self.value(i, "val/loss/recall", now + 1), self.value(i, "val/floor", FLOOR),
                      self.value(i, "val/floor/recall", FLOOR + 1),
                      self.value(i, "val/accuracy", max(0.0, 1 - 0.1 * now) if now == now else 0),
                      self.value(i, "tokens_per_second", 1000 + i),
                      self.value(i, "peak_megabytes", 100 + seed)]
            lines += [self.value(i, name, curves[name](i) if isinstance(curves, dict) else 0.001 * i + seed)
                      for name in curves]
        if moved:
            lines.append({"kind": "event", "iteration": 50, "name": "environment", "text": moved})
        for name, text in zip(("prompt", "sample"), sample or ()):
            lines.append({"kind": "event", "iteration": 100, "name": name, "text": text})
        if weights:
            lines.append({"kind": "artifact", "name": "weights", "path": "w", "sha256": weights,
                          "bytes": 1})
        if ended:
            lines.append({"kind": "end", "state": state, "time": started + pace * until} | ({"reason": reason} if reason else {}))
        with open(os.path.join(directory, "journal.jsonl"), "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps({"time": started + pace * line.get("iteration", 0), **line}) + "\n")
        return record["identity"]

    def plan(self, experiment, seeds):
        """As make leaves it, from step: seeds; a run that was added has its identity."""
        known = {}
        for path in glob.glob(os.path.join(self.path, experiment, "*", "run.json")):
            with open(path, encoding="utf-8") as file:
                run = json.load(file)
            known[run["step"], run["seed"]] = run["identity"][:12]
        runs = [{"kind": "run", "experiment": experiment, "step": step, "seed": seed,
                 "identity": known.get((step, seed), f"{seed:02x}".rjust(12, "f"))}
                for step, its_seeds in seeds.items() for seed in its_seeds]
        with open(time_left.path_of(self.path, experiment), "w", encoding="utf-8") as file:
            json.dump(runs, file)

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
                         weights=f"{seed}-{step}", values={
                             "parameters": 1e6 * (1 + number), "flops_per_token": 6e6 + number},
                         audits=[("wiring", "wte", 1, ""),
                                 ("causality", "h.0", int(number != 3), "token 5 changes 3")])
            self.add(experiment, STUDY[4], seed, 3, repeat=1, config={"STEP": "mla+gate+cross"},
                     weights=f"{seed}-{STUDY[2]}" if twin == "same" else twin)

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

    def markdown(self, experiment):
        """With the sections that a terminal leaves to the page."""
        return self.read("md", experiment).replace("\\", "")

    def grid(self, section, experiment):
        """Headings and lines of a section's table, as on the page."""
        _, _, after = self.markdown(experiment).partition(f"## {section}\n")
        lines = [line[2:-2].split(" | ") for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")]
        return lines[0], {line[0]: line[1:] for line in lines[2:]}

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
