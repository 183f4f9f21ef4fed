#!/usr/bin/env python3
"""Calls that fail and processes that are killed, of the kind that SQLite's own tests have.

tools/testing/fault.c makes the n-th allocation, or the n-th call that needs room on the disk, fail: in
a whole run, in one that is resumed, in decoding.  Each time the program must end with a
message, or do without what failed; and the same command must then end as if nothing had
happened.  Kills come at random moments of make, with all that it starts.

Here every 200th allocation, every 32nd call to the disk, and 4 kills; all of them in
fault_soaktest.py.
"""
import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import (CHANGES_WITH_TIME, ENVIRONMENT, OUTPUT, ROOT, TREE, Run, Tree,
                                      built)
from tools.testing import tap

tearDownModule = train_test.tearDownModule

FAULT_C = TREE / "tools/testing/fault.c"
STEPS = {"memory": 200, "disk": 32}       # every so many-th call; where it begins is drawn
KILLS = 4
PATIENCE = 120      # seconds, of which a run takes one: beyond, it hangs

# Everything at once, in two iterations: audits, evaluation, checkpoints, decoding.
SETTINGS = {"PLAN": "single", "SEEDS": "1", "THREADS": 1, "GPT2_MAX_ITERS": 2, "EVAL_INTERVAL": 1,
            "LOG_INTERVAL": 1, "EVAL_ROWS": 4, "CHECKPOINT_INTERVAL": 1, "POS": "rope",
            "EVAL_LENGTHS": "16", "MODEL_VOCAB": 260}


@functools.cache
def library():
    path = ROOT / "fault.so"
    subprocess.run(["cc", "-std=gnu17", "-O1", "-shared", "-fPIC", "-o", path, FAULT_C, "-ldl"],
                   check=True)
    return path


def rows_of(runs):
    """All of a database that must be the same."""
    with contextlib.closing(sqlite3.connect(runs / "results.db", timeout=30)) as db:
        def ask(question):
            return db.execute(question).fetchall()
        return (ask("SELECT name, iteration, value FROM metrics JOIN runs ON runs.id = run WHERE name "
                    f"NOT IN {tuple(sorted(CHANGES_WITH_TIME))} ORDER BY step, seed, 1, 2"),
                ask("SELECT step, seed, state FROM runs ORDER BY 1, 2"),
                ask("SELECT audit, subject, passed, detail FROM audits JOIN runs ON runs.id = run "
                    "ORDER BY step, seed, 1, 2"),
                ask("SELECT kind, sha256, bytes FROM artifacts JOIN runs ON runs.id = run "
                    "ORDER BY step, seed, 1"))


attempt = None      # of one number; set before worker processes begin, which find it here


def problem_with(n):
    """What the attempt found wrong, or None."""
    try:
        attempt(n)
    except AssertionError as problem:
        return str(problem)
    return None


class Attempts(unittest.TestCase):
    """A run in which a call fails, for many calls."""
    workers = 1
    fewest = 20     # calls of a kind, or the run makes others than are meant

    def failing(self, kind, n, count):
        """Variables that make call n of this kind fail; the numbers of calls are written to the file `count`."""
        raise NotImplementedError

    def total(self, kind, count):
        """The number of calls of this kind in that file."""
        return int(count.read_text())

    def fault(self, kind, n, command, count=None):
        """Its exit status and what it said; it must not hang."""
        more = self.failing(kind, n, count or os.devnull)
        try:
            done = subprocess.run(command, cwd=TREE, env={**ENVIRONMENT, **more}, text=True,
                                  errors="replace", capture_output=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.fail(f"{kind} {n}: it hangs")
        return done.returncode, done.stdout + done.stderr

    def numbers(self, kind, command):
        """Of the calls that are to fail."""
        count = ROOT / "count"
        status, said = self.fault(kind, 0, command, count)
        self.assertEqual(status, 0, said)
        total = self.total(kind, count)
        self.assertGreater(total, self.fewest)
        chosen = self.choose(kind, total)
        print(f"# {kind}: {len(chosen)} of {total} calls, from {chosen[0]} on", flush=True)
        return chosen

    def choose(self, kind, total):
        """Which of so many calls fail, one in each attempt."""
        raise NotImplementedError

    def attempt_each(self, kind, numbers, function):
        """Several at once, each in a process of its own."""
        global attempt
        attempt = function
        fork = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(self.workers, fork) as pool:
            problems = pool.map(problem_with, numbers, chunksize=8)
            for count, (n, problem) in enumerate(zip(numbers, problems), 1):
                with self.subTest(f"{kind} {n}"):
                    self.assertIsNone(problem)
                if count % 1000 == 0:
                    print(f"# {kind}: {count} of {len(numbers)}", flush=True)


class Faults(Attempts):
    steps = STEPS

    @classmethod
    def setUpClass(cls):
        cls.binary = cls.make_binary()
        cls.whole = Run(cls.binary)
        cls.whole.train()
        cls.rows = rows_of(cls.whole.runs)

    @classmethod
    def make_binary(cls):
        return built("smoke", tuple(SETTINGS.items()))

    def failing(self, kind, n, count):
        return {"FAULT": f"{kind}:{n}", "FAULT_COUNT": str(count), **self.preloaded()}

    def preloaded(self):
        return {"LD_PRELOAD": str(library())}

    def choose(self, kind, total):
        return range(1 + random.randrange(self.steps[kind]), total + 1, self.steps[kind])

    def check_end(self, status, said, name):
        self.assertIn(status, (0, 1), f"{name}: {said}")
        if status:
            self.assertRegex(said, "(kablate|libgomp): .+", name)

    def check_run(self, kind, prepare):
        """prepare() makes a run that has begun, or not."""
        def check(n):
            run = prepare()
            self.check_end(*self.fault(kind, n, run.command), f"{kind} {n}")
            run.train()
            self.assertEqual(rows_of(run.runs), self.rows)
            shutil.rmtree(run.runs)
        self.attempt_each(kind, self.numbers(kind, prepare().command), check)

    def fresh(self):
        return Run(self.binary)

    def begun(self):
        """Saved after the first iteration, and killed then."""
        run = Run(self.binary)
        shutil.copytree(self.whole.runs, run.runs, dirs_exist_ok=True)
        shutil.rmtree(run.directory / "checkpoint-00000002")
        for path in (run.directory / "done", run.directory / "weights.safetensors",
                     run.runs / "results.db"):
            path.unlink()
        state = json.loads((run.directory / "checkpoint-00000001/state.json").read_text())
        journal = run.directory / "journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:state["journal_lines"]]))
        return run

    def test_a_whole_run_without_memory(self):
        self.check_run("memory", self.fresh)

    def test_a_whole_run_without_room(self):
        self.check_run("disk", self.fresh)

    def test_a_resumed_run_without_memory(self):
        self.check_run("memory", self.begun)

    def test_a_resumed_run_without_room(self):
        self.check_run("disk", self.begun)

    def test_decoding_without_memory(self):
        command = [self.binary, "generate", "--tokens", "3", "--prompt", "", "--tokenizer", "bytes",
                   "--weights", self.whole.directory / "weights.safetensors"]
        status, said = self.fault("memory", 0, command)
        self.assertEqual(status, 0, said)
        self.attempt_each("memory", self.numbers("memory", command), lambda n: self.check_end(
            *self.fault("memory", n, command), f"decoding, {n}"))


class StartsAgain(unittest.TestCase):
    """OpenBLAS takes some CPUs for an old one; the program then starts again with a variable that names better kernels."""

    def test_without_memory_for_the_variable(self):
        old_cpu = ROOT / "old_cpu.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", old_cpu, "-"], check=True, text=True,
                       input='char *openblas_get_corename(void) { return "Prescott"; }')
        binary = built("smoke", tuple(SETTINGS.items()))
        plain = {name: value for name, value in ENVIRONMENT.items() if name != "OPENBLAS_CORETYPE"}
        for n in range(1, 9):
            done = subprocess.run([binary, "identity"], cwd=TREE, timeout=PATIENCE, capture_output=True, check=False,
                                  env={**plain, "FAULT": f"memory:{n}", "FAULT_COUNT": os.devnull,
                                       "LD_PRELOAD": f"{library()} {old_cpu}"})
            self.assertIn(done.returncode, (0, 1), done.stderr)


class Kills(unittest.TestCase):
    """Of make and all that it started, at any moment of plan, build, runs, report and merge."""
    kills = KILLS
    settings = {**train_test.SETTINGS, "PLAN": "steps", "PLAN_FRAGMENTS": "mla mla+gate again-0",
                "SEEDS": "1,2", "GPT2_MAX_ITERS": 30, "CHECKPOINT_INTERVAL": 5}

    def tree(self):
        return Tree(pathlib.Path(tempfile.mkdtemp(dir=ROOT)) / "tree", "smoke", self.settings)

    def start(self, tree):
        make = " ".join(map(str, tree.command("-s")))
        script = f"{make} && {OUTPUT}/bin/results merge {tree.runs} {tree.runs}-merged"
        return subprocess.Popen(["sh", "-c", script], cwd=TREE, env=ENVIRONMENT, text=True,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                start_new_session=True)

    def end(self, process):
        said = process.communicate(timeout=300)[1]
        self.assertEqual(process.returncode, 0, said[-3000:])

    def test_kills(self):
        seed = random.randrange(1 << 32)
        print(f"# moments by seed {seed}", flush=True)
        moments = random.Random(seed)
        straight, tree = self.tree(), self.tree()
        began = time.monotonic()
        self.end(self.start(straight))
        whole, killed = time.monotonic() - began, 0
        while killed < self.kills:
            process = self.start(tree)
            try:
                process.wait(moments.uniform(0, whole))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
            process.communicate()
            if process.returncode == 0 or moments.random() < 0.2:
                self.check(tree, straight)
                for path in (tree.runs, tree.plan, pathlib.Path(f"{tree.runs}-merged")):
                    shutil.rmtree(path, ignore_errors=True)
        self.check(tree, straight)

    def check(self, tree, straight):
        self.end(self.start(tree))
        self.assertEqual(rows_of(tree.runs), rows_of(straight.runs))
        merged = [rows_of(pathlib.Path(f"{one.runs}-merged")) for one in (tree, straight)]
        self.assertEqual(*merged)


if __name__ == "__main__":
    tap.main()
