#!/usr/bin/env python3
"""Tests of training end to end: kills, signals, budgets, divergence, checkpoints, starting weights,
broken surroundings, and the experiment under make.

Every program is built by make as a user's would be, with the objects of $O, in a directory of its
own.  Weights are compared by the hash that a run records of them.
"""
import collections
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import tap

TREE = pathlib.Path(__file__).resolve().parents[2]
OUTPUT = pathlib.Path(os.environ.get("O", "build")).resolve()
PLACE = tempfile.TemporaryDirectory(prefix="kablate-train-")
ROOT = pathlib.Path(PLACE.name)
# Of a make around this test only its variables (how $O was compiled), not its flags and jobs.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("MAKELEVEL", "MFLAGS", "KCONFIG_CONFIG")}
ENVIRONMENT["MAKEFLAGS"] = "".join(ENVIRONMENT.get("MAKEFLAGS", "").partition(" -- ")[1:])
ENVIRONMENT["NVCC"] = ""    # it takes minutes to build the GPU backend: what a test needs of it was built before

RESUMABLE, DIVERGED, LEFT_AT_ONCE = 75, 76, 128 + signal.SIGINT
CHANGES_WITH_TIME = {"tokens_per_second", "peak_megabytes", "device_megabytes"}

# All there is to remember: dropout, an optimizer with norms and restarts, every mechanism.
STUDY = "smoke+mla+gate+cross+latent+adamwspam"
SETTINGS = {"PLAN": "single", "AUDIT_ORACLE": "n", "AUDIT_WIRING": "n", "AUDIT_CAUSALITY": "n", "AUDIT_ONE_BATCH": "n",
            "AUDIT_DATA": "n", "AUDIT_TRAINING": "n", "THREADS": 1, "GPT2_MAX_ITERS": 60, "LOG_INTERVAL": 3, "EVAL_INTERVAL": 10}
STUDY_SETTINGS = {**SETTINGS, "DROPOUT": "0.1", "SPAM_INTERVAL": 17, "CHECKPOINT_INTERVAL": 7,
                  "CHECKPOINT_KEEP": 3}


# ---------------------------------------------------------------- making programs

class Tree:
    """An experiment's own configuration, plan and runs."""

    def __init__(self, directory, defconfig, settings):
        self.directory = directory
        self.plan, self.runs = directory / "plan", directory / "runs"
        directory.mkdir()
        self.make(f"defconfig-{defconfig}")
        self.set(settings)

    def command(self, *words):
        return ["make", f"O={OUTPUT}", f"PLAN={self.plan}", f"RUNS={self.runs}",
                f"KCONFIG_CONFIG={self.directory}/config", *words]

    def make(self, *words, expect=0, timeout=300, **more):
        done = subprocess.run(self.command(*words), cwd=TREE, env=ENVIRONMENT, text=True, **more,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
        if (done.returncode != 0) != (expect != 0):
            raise AssertionError(f"make {words}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def set(self, settings):
        texts = {name: value if value in ("y", "n") or isinstance(value, int) else f'"{value}"'
                 for name, value in settings.items()}
        self.make("set", *(f"CONFIG_{name}={text}" for name, text in texts.items()))


@functools.cache
def built(defconfig, settings):
    tree = Tree(ROOT / f"program{built.cache_info().misses}", defconfig, dict(settings))
    tree.make("steps")
    return tree.plan / "0-baseline" / "kablate"


def program(defconfig="smoke", base=None, **settings):
    """The program of a single step; each one is built once."""
    return built(defconfig, tuple({**(SETTINGS if base is None else base), **settings}.items()))


def study(**settings):
    return program(STUDY, STUDY_SETTINGS, **settings)


# ---------------------------------------------------------------- running them

class Started:
    """A running program; its lines are read as they come."""

    def __init__(self, command, **more):
        reader, writer = self.pipe()
        with os.fdopen(writer, "w"):
            self.process = subprocess.Popen(command, cwd=TREE, env=ENVIRONMENT, stdout=writer,
                                            stderr=subprocess.STDOUT, **more)
        self.lines = os.fdopen(reader)
        self.text = ""

    def pipe(self):
        return os.pipe()

    def until(self, pattern):
        """Returns when a line matches."""
        for line in self.lines:
            self.text += line
            if re.search(pattern, line):
                return self
        status = self.process.wait()
        raise AssertionError(f"it ended with {status} before '{pattern}':\n{self.text}")

    def send(self, number):
        self.process.send_signal(number)
        return self

    def end(self):
        """Its exit status."""
        self.text += self.lines.read()
        self.lines.close()
        return self.process.wait(timeout=300)


class Held(Started):
    """A program that is held soon after a line: it cannot write while what it wrote is not read.
    So it waits for the test, however slow the machine is, until more lines or its end are asked for."""

    def __init__(self, command, pattern, **more):
        super().__init__(command, **more)
        self.until(pattern)

    def pipe(self):
        """It has room for one write, however short that is."""
        reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, resource.getpagesize())
        return reader, writer


def hold(iteration, file=TREE):
    """A variable that holds runs after this iteration while the file exists and no signal comes (core/train/train.c)."""
    return {"KABLATE_TEST_HOLD": f"{iteration}:{file}"}


class Run:
    """One run in a directory of runs of its own."""

    def __init__(self, binary, seed=1, runs=None):
        self.binary, self.seed = binary, seed
        self.runs = pathlib.Path(runs or tempfile.mkdtemp(dir=ROOT))
        self.command = [binary, "train", "--lines", "--seed", str(seed), "--runs", self.runs]

    def start(self, **more):
        return Started(self.command, **more)

    def held_at(self, pattern):
        return Held(self.command, pattern)

    def held_after(self, iteration):
        """Held by itself after this iteration, which it logs, until a signal comes.  (A held_at() reads slowly: where
        mpirun reads, that holds nothing.)"""
        with mock.patch.dict(ENVIRONMENT, hold(iteration)):
            return self.start().until(rf" {iteration}/\d+ ")

    def train(self, expect=0, **more):
        """Run to an end; returns what was said."""
        started = self.start(**more)
        status = started.end()
        if status != expect:
            raise AssertionError(f"exit status {status}, not {expect}:\n{started.text}")
        return started.text

    @functools.cached_property
    def identity(self):
        words = [self.binary, "identity", "--seed", str(self.seed)]
        done = subprocess.run(words, cwd=TREE, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    @property
    def directory(self):
        return self.runs / "single" / f"0-{self.seed}-{self.identity[:12]}"

    def checkpoints(self):
        return sorted(path for path in self.directory.glob("checkpoint-????????"))

    def iterations(self):
        return [int(path.name.removeprefix("checkpoint-")) for path in self.checkpoints()]

    def ask(self, question):
        with contextlib.closing(sqlite3.connect(self.runs / "results.db", timeout=30)) as db:
            return db.execute(question).fetchall()

    def state(self):
        return self.ask("SELECT state, exit_reason FROM runs")[0]

    def weights(self):
        return self.ask("SELECT sha256 FROM artifacts WHERE kind = 'weights'")[0][0]

    def values(self, name):
        return dict(self.ask(f"SELECT iteration, value FROM metrics WHERE name = '{name}'"))

    def story(self):
        """All that must not depend on interruptions."""
        rows = self.ask("SELECT name, iteration, value FROM metrics ORDER BY name, iteration")
        files = [hashlib.sha256((self.directory / name).read_bytes()).hexdigest()
                 for name in ("weights.safetensors", "best.safetensors")]
        return (files, self.weights(), [row for row in rows if row[0] not in CHANGES_WITH_TIME],
                self.ask("SELECT kind, iteration, text FROM events ORDER BY iteration, kind"),
                [path.name for path in self.checkpoints()])

    def journal(self):
        lines = (self.directory / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Case(unittest.TestCase):
    maxDiff = 2000

    @staticmethod
    @functools.cache
    def straight():
        run = Run(study())
        run.train()
        return run

    def assert_same(self, run, other=None):
        """The run ended as if nothing had happened to it."""
        other = other or self.straight()
        self.assertEqual(run.story(), other.story())
        self.assertEqual(run.state(), ("done", None))
        self.assertTrue((run.directory / "done").exists())
        self.assertFalse((run.directory / "saving").exists())
        told = collections.Counter((line["name"], line["iteration"]) for line in run.journal()
                                   if line["kind"] == "value")
        self.assertEqual({key for key, count in told.items() if count > 1}, set())

    def stopped(self, iteration=30, number=signal.SIGTERM, runs=None):
        """A run of the study, stopped with a checkpoint soon after this iteration."""
        run = Run(study(), runs=runs)
        started = run.held_at(rf" {iteration}/60 ").send(number)
        self.assertEqual(started.end(), RESUMABLE, started.text)
        return run

    def kill_often(self, times, binary=None):
        """SIGKILL at moments spread over the time that a whole run takes; binary: not of the study."""
        run, seed = Run(binary or study()), random.randrange(1 << 32)
        print(f"# moments by seed {seed}")
        moments = random.Random(seed)
        began = time.monotonic()
        straight = Run(run.binary)
        straight.train()
        whole, killed = time.monotonic() - began, 0
        while killed < times:
            started = run.start()
            try:
                started.process.wait(moments.uniform(0, whole / 2))
            except subprocess.TimeoutExpired:
                started.send(signal.SIGKILL)
                killed += 1
            started.end()
            if (run.directory / "done").exists():
                self.assert_same(run, straight)
                shutil.rmtree(run.runs)
        run.train()
        self.assert_same(run, straight)


def setUpModule():
    """Programs that several cases need, made side by side."""
    makers = [threading.Thread(target=maker) for maker in (study, program)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()


def tearDownModule():
    PLACE.cleanup()


# ---------------------------------------------------------------- going on

class Repetition(Case):
    def test_same_seed_same_run(self):
        run = Run(study())
        run.train()
        self.assert_same(run)

    def test_another_seed_is_another_run(self):
        run = Run(study(), seed=2)
        run.train()
        self.assertNotEqual(run.weights(), self.straight().weights())

    def test_evaluating_and_saving_at_other_times_changes_no_weight(self):
        run = Run(study(EVAL_INTERVAL=1, CHECKPOINT_INTERVAL=0, TENSORBOARD="y"))
        run.train()
        self.assertNotEqual(run.identity, self.straight().identity)
        self.assertEqual(run.weights(), self.straight().weights())
        self.assertEqual(len(run.values("val/loss")), 61)
        self.assertEqual(run.iterations(), [60])
        events = list((run.directory / "tensorboard").glob("*tfevents*"))
        self.assertIn(b"val/loss", events[0].read_bytes())

    def test_micro_batches_add_up_to_their_batch(self):
        few = {"GPT2_MAX_ITERS": 6, "LOG_INTERVAL": 1, "PRECISION": "float64"}
        whole = Run(program(TRAIN_BATCH=8, **few))
        parts = Run(program(TRAIN_BATCH=4, TRAIN_ACCUMULATE=2, **few))
        for run in (whole, parts):
            run.train()
        self.assertEqual(len(whole.values("train/loss")), 6)
        for name in ("train/loss", "grad_norm", "val/loss"):
            for iteration, value in whole.values(name).items():
                # Measured: 3e-15 relative, the rounding of sums taken in another order.
                self.assertAlmostEqual(parts.values(name)[iteration] / value, 1, delta=1e-12)


class Interruption(Case):
    def test_kills(self):
        self.kill_often(3)

    def test_stopping_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                run = self.stopped(number=number)
                self.assertEqual(run.state(), ("interrupted", f"signal {number.value}"))
                self.assertFalse((run.directory / "done").exists())
                self.assertIn("resuming after iteration", run.train())
                self.assert_same(run)

    def test_a_second_interrupt_leaves_at_once(self):
        run = Run(program(EVAL_ROWS=100000000))  # the first evaluation would take a day
        started = run.start().until("parameters").send(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired):
            started.process.wait(0.3)
        while started.process.poll() is None:       # two that come before it handles one are one
            started.send(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(0.3)
        self.assertEqual(started.end(), LEFT_AT_ONCE)

    def test_a_checkpoint_on_demand(self):
        run = Run(study(EVAL_INTERVAL=1, CHECKPOINT_INTERVAL=0, TENSORBOARD="y"))
        self.assertTrue(run.identity)  # to ask for it may take as long as the run
        started = run.held_at(" 3/60 ").send(signal.SIGUSR2)
        while not run.checkpoints():
            started.until("/60 ")
        started.send(signal.SIGKILL).end()
        saved = run.iterations()[0]
        self.assertTrue(3 <= saved < 60)
        self.assertIn(f"resuming after iteration {saved}", run.train())
        self.assertEqual(run.weights(), self.straight().weights())

    def test_killed_at_the_very_end(self):
        run = Run(study())
        run.train()
        for name in ("done", "weights.safetensors"):
            (run.directory / name).unlink()
        self.assertIn("resuming after iteration 60", run.train())
        self.assert_same(run)

    def test_a_finished_run_is_left_alone(self):
        before = (self.straight().directory / "journal.jsonl").read_bytes()
        self.assertIn("is done", self.straight().train())
        self.assertEqual((self.straight().directory / "journal.jsonl").read_bytes(), before)

    def test_two_at_once_one_waits(self):
        run = Run(study())
        first = run.held_at(" 3/60 ")
        second = run.start().until("waiting")
        self.assertEqual((first.end(), second.end()), (0, 0))
        self.assertIn("is done", second.text)
        self.assert_same(run)

    def test_one_who_waits_takes_over(self):
        run = Run(study())
        first = run.held_at(" 9/60 ")
        second = run.start().until("waiting")
        first.send(signal.SIGKILL).end()
        self.assertEqual(second.end(), 0, second.text)
        self.assert_same(run)


class Ends(Case):
    def check_divergence(self, binary):
        run = Run(binary)
        text = run.train(expect=DIVERGED)
        state, reason = run.state()
        self.assertEqual(state, "diverged")
        self.assertRegex(reason, r"diverged in iteration 2: .*'[\w./]+'")
        self.assertIn(reason, text)
        self.assertEqual(run.iterations(), [1])
        self.assertFalse((run.directory / "done").exists())
        self.assertEqual(run.ask("SELECT iteration FROM events WHERE kind = 'diverged'"), [(2,)])
        run.train(expect=DIVERGED)
        self.assertEqual(run.ask("SELECT iteration FROM events WHERE kind = 'diverged'"), [(2,)])

    def test_divergence(self):
        wild = {"LEARNING_RATE": "1e30", "WARMUP_ITERS": 0, "CHECKPOINT_INTERVAL": 1}
        self.check_divergence(program(**wild))
        self.check_divergence(program(CHECK_NAN="y", **wild))


# ---------------------------------------------------------------- checkpoints and weights

def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2:]
    elif how == "flip":
        data[-5] ^= 4
    path.write_bytes(data)


class Oracle(Case):
    """The second program's findings are made once for all seeds of a step."""

    def findings(self, run, seed):
        return dict(run.ask("SELECT subject, detail FROM audits JOIN runs ON run = runs.id WHERE "
                            f"audit = 'oracle' AND seed = {seed}"))

    def test_findings_serve_all_seeds(self):
        binary = program(AUDIT_ORACLE="y", GPT2_MAX_ITERS=2)
        first = Run(binary)
        first.train()
        found = self.findings(first, 1)
        self.assertIn("logits in double", found)
        memo, = (first.runs / "single" / "oracle").iterdir()
        memo.write_text(memo.read_text().replace(found["logits in double"], "as before"))
        Run(binary, 2, first.runs).train()
        self.assertEqual(self.findings(first, 2), found | {"logits in double": "as before"})
        memo.write_text(memo.read_text().removesuffix("end\n"))    # torn
        Run(binary, 3, first.runs).train()
        self.assertEqual(self.findings(first, 3), found)


class Programs(Case):
    """Those that train and evaluate are compared when a run begins; or when it goes on, if they were not."""

    def comparisons(self, run):
        return [line["passed"] for line in run.journal() if line.get("subject") == "programs"]

    def stop_and_train(self, first, second):
        run = Run(first)
        self.assertEqual(run.held_at(r" 30/60 ").send(signal.SIGTERM).end(), RESUMABLE)
        before = self.comparisons(run)
        Run(second, runs=run.runs).train()
        return before, self.comparisons(run), run.weights()

    def test_once(self):
        without, audited = program(), program(AUDIT_TRAINING="y")
        straight = Run(without)
        straight.train()
        self.assertEqual(self.stop_and_train(audited, audited), ([1], [1], straight.weights()))
        self.assertEqual(self.stop_and_train(without, audited), ([], [1], straight.weights()))


class Checkpoints(Case):
    def test_as_many_as_wanted(self):
        self.assertEqual(self.straight().iterations(), [49, 56, 60])

    def test_a_damaged_one_is_passed_over(self):
        for name, how in (("weights.safetensors", "cut"), ("optimizer.safetensors", "flip"),
                          ("state.json", "cut")):
            with self.subTest(name):
                run = self.stopped()
                newest, before = run.iterations()[-1], run.iterations()[-2]
                damage(run.checkpoints()[-1] / name, how)
                text = run.train()
                self.assertIn(f"checkpoint {newest} is unusable, going back to an older one", text)
                self.assertIn(f"resuming after iteration {before}", text)
                self.assert_same(run)

    def test_what_cannot_be_read_is_kept(self):
        run = self.stopped()
        newest = run.checkpoints()[-1]
        damage(newest / "state.json", "flip")
        run.train()
        self.assertTrue(newest.with_name(newest.name + ".unusable").is_dir())

    def marks(self, run):
        """Lines of the journal that each checkpoint was saved with, oldest first."""
        return [json.loads((path / "state.json").read_text())["journal_lines"]
                for path in run.checkpoints()]

    def test_a_journal_shorter_than_its_checkpoint(self):
        """Whole lines lost, half a line, one bit: back to what the journal still covers."""
        last, before = -1, -2
        for how, mark, further in (("cut", last, -1), ("cut", before, 0), ("half", before, 1),
                                   ("flip", last, -2), ("flip", before, 1), ("name", before, 3)):
            with self.subTest(how=how, mark=mark):
                run = self.stopped()        # no two stop at the same moment
                marks, iterations = self.marks(run), run.iterations()
                line = marks[mark] + further
                journal = run.directory / "journal.jsonl"
                lines = journal.read_bytes().splitlines(keepends=True)
                damaged = {"cut": lambda text: b"", "half": lambda text: text[:len(text) // 2],
                           "flip": lambda text: text[:9] + bytes([text[9] ^ 1]) + text[10:],
                           "name": lambda text: text.replace(b'"time":1', b'"time":2')}[how]
                rest = lines[line + 1:] if how in ("flip", "name") else []
                journal.write_bytes(b"".join([*lines[:line], damaged(lines[line]), *rest]))
                text = run.train()
                covered = max(i for i, mark in zip(iterations, marks) if mark <= line)
                self.assertIn(f"journal.jsonl has lost lines {line + 1} to ", text)
                self.assertIn(f"resuming after iteration {covered}", text)
                self.assert_same(run)
                self.assertEqual(run.ask("SELECT count(*) FROM metrics"),
                                 self.straight().ask("SELECT count(*) FROM metrics"))

    def test_a_journal_that_covers_no_checkpoint(self):
        """Nothing is thrown away unasked: with its journal the run goes on."""
        run = self.stopped()
        journal, iterations = run.directory / "journal.jsonl", run.iterations()
        whole = journal.read_bytes()
        journal.write_bytes(whole[:1900])
        for _ in range(2):
            text = run.train(expect=1)
            self.assertIn("journal covers no checkpoint", text)
            self.assertIn(f"make rerun RUN={run.directory}", text)
        self.assertEqual(run.iterations(), iterations)
        journal.write_bytes(whole)
        run.train()
        self.assert_same(run)

    def test_journals_and_checkpoints_of_an_older_form(self):
        run = self.stopped()
        journal = run.directory / "journal.jsonl"
        journal.write_text(re.sub('(,"run":"[0-9a-f]+")?,"line":[0-9]+,"sum":"[0-9a-f]+"', "",
                                  journal.read_text()))
        for path in run.checkpoints():
            state = (path / "state.json").read_text()
            state = re.sub('  "journal_[a-z]+": .*\n', "", state).partition('  "sha256"')[0]
            own = hashlib.sha256(state.encode()).hexdigest()
            (path / "state.json").write_text(f'{state}  "sha256": "{own}"\n}}\n')
        self.assertIn("resuming after iteration", run.train())
        self.assert_same(run)

    def test_no_record_no_way_on(self):
        for name, complaint in (("run.json", "cannot continue ('make rerun"),
                                ("journal.jsonl", "journal covers no checkpoint")):
            with self.subTest(name):
                run = self.stopped()
                (run.directory / name).write_text("")
                self.assertIn(complaint, run.train(expect=1))

    def test_a_program_of_another_configuration_is_refused(self):
        run = Run(self.stopped().binary)
        run.command += ["--identity", "0123456789ab"]
        self.assertIn("another make rebuilt it", run.train(expect=1))
        run.command[-1] = run.identity[:12]
        run.train()

    def test_from_the_beginning_when_all_are_damaged(self):
        run = self.stopped()
        for path in run.checkpoints():
            damage(path / "weights.safetensors", "flip")
        self.assertIn("going back to the beginning", run.train())
        self.assert_same(run)

    def test_one_of_another_configuration_is_refused(self):
        run = Run(program(defconfig=STUDY, base=STUDY_SETTINGS, DROPOUT="0.2"))
        shutil.copytree(self.straight().checkpoints()[-1], run.directory / "checkpoint-00000060")
        self.assertIn("belongs to another configuration", run.train(expect=1))

    def test_another_environment_is_refused_unless_asked_for(self):
        run = self.stopped()
        record, before = run.directory / "run.json", run.state()
        text = record.read_text()
        compiler = json.loads(text)["compiler"]
        record.write_text(text.replace(json.dumps(compiler), '"another one"'))
        said = run.train(expect=1)
        self.assertIn(f"(compiler 'another one' then, '{compiler}' now)", said)
        self.assertIn(f"'make rerun RUN={run.directory}' starts over", said)
        self.assertIn("'make ANY_ENVIRONMENT=1' continues", said)
        self.assertEqual(run.state(), before)
        run.command.append("--any-environment")
        self.assertIn("resuming after iteration", run.train())
        self.assertEqual(run.weights(), self.straight().weights())
        self.assertEqual(run.ask("SELECT text FROM events WHERE kind = 'environment'"),
                         [(f"compiler 'another one' then, '{compiler}' now",)])

    def test_room_on_the_disk(self):
        run = Run(program(CHECKPOINT_INTERVAL=10, CHECKPOINT_KEEP=9, CHECKPOINT_DISK_MB=1))
        run.train()
        bytes_each = sum(file.stat().st_size for file in run.checkpoints()[0].iterdir())
        self.assertEqual(run.iterations(), [10 * i for i in range(7 - 10**6 // bytes_each, 7)])
        run = Run(study(CHECKPOINT_DISK_MB=1))
        self.assertIn("CHECKPOINT_DISK_MB=1: one checkpoint takes", run.train(expect=1))


def tensors_of(path):
    data = path.read_bytes()
    return set(json.loads(data[8:8 + int.from_bytes(data[:8], "little")])) - {"__metadata__"}


class StartingWeights(Case):
    few = {"GPT2_MAX_ITERS": 3}

    def test_fine_tuning(self):
        start = ROOT / "start.safetensors"
        plain, gated = (Run(program(name, **self.few)) for name in ("smoke+mla", "smoke+mla+gate"))
        for run in (plain, gated):
            run.train()
        files = [run.directory / "weights.safetensors" for run in (plain, gated)]
        mechanism = tensors_of(files[1]) - tensors_of(files[0])
        self.assertTrue(mechanism)

        shutil.copy(files[0], start)
        refused = Run(program("smoke+mla+gate", INIT_FROM=start, **self.few)).train(expect=1)
        self.assertIn("CONFIG_RA_MLA_MLP_ATTN_GATE is not set there and y here", refused)
        self.assertIn("CONFIG_INIT_FROM_ALLOW", refused)
        symbols = "CONFIG_RA_MLA_MLP_ATTN_GATE,CONFIG_GATE_,CONFIG_RECIP_LEARN_ALPHA"
        settings = {**self.few, "INIT_FROM": start}
        run = Run(program("smoke+mla+gate", **settings, INIT_FROM_ALLOW=symbols))
        self.assertRegex(run.train(expect=1), r"lacks '\S+' and \d+ more parameters of this model")
        allow = ",".join([symbols, *sorted(mechanism)])
        run = Run(program("smoke+mla+gate", **settings, INIT_FROM_ALLOW=allow))
        text = run.train()
        self.assertIn("CONFIG_RA_MLA_MLP_ATTN_GATE is not set there and y here", text)
        fresh = re.findall(r"'(\S+)' is not in \S+: it starts fresh", text)
        self.assertEqual(set(fresh), mechanism)
        self.assertNotEqual(run.weights(), gated.weights())
        self.assertLess(run.values("val/loss")[0], gated.values("val/loss")[0])
        done = subprocess.run([run.binary, "estimate"], cwd=TREE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["seconds_per_token"], 0)

        run = Run(program("smoke+mla", INIT_FROM=start, **self.few))
        run.train()
        self.assertEqual(run.values("val/loss")[0], plain.values("val/loss")[3])
        self.assertTrue(run.directory.exists())  # under its identity

        shutil.copy(files[1], start)
        changed = Run(run.binary)
        self.assertNotEqual(changed.identity, run.identity)
        self.assertIn("is of another model", changed.train(expect=1))
        only = Run(program("smoke+mla", INIT_FROM=start, INIT_FROM_ALLOW=symbols, **self.few))
        self.assertRegex(only.train(expect=1), r"has '\S+', which this model lacks")
        Run(program("smoke+mla", INIT_FROM=start, INIT_FROM_ALLOW=allow, **self.few)).train()

        damage(start, "cut")
        self.assertIn("start.safetensors", changed.train(expect=1))
        start.unlink()
        self.assertIn("CONFIG_INIT_FROM", changed.train(expect=1))


# ---------------------------------------------------------------- broken surroundings

# How much of a limit OpenBLAS leaves depends on the processor.  A program with several threads is known to need a
# buffer of OpenBLAS for each of them, which is more than it leaves.
THREADS = max(2, os.sysconf("SC_NPROCESSORS_ONLN"))


PR_CAPBSET_DROP, CAP_SYS_RESOURCE = 24, 24      # linux/prctl.h, linux/capability.h


class Limits(Case):
    """Of memory."""

    @staticmethod
    def limit(kilobytes):
        """Of address space, before a process begins."""
        return lambda: resource.setrlimit(resource.RLIMIT_AS, (kilobytes << 10,) * 2)

    def check_with_what_is_needed(self, binary):
        kilobytes, needed, left = self.needed(binary)
        run = Run(binary)
        run.train(preexec_fn=self.limit(kilobytes + (needed - left + 2 << 10)))
        self.assertEqual(run.state(), ("done", None))

    def needed(self, binary):
        """A limit that is too low; MiB that training needs and that this limit leaves."""
        kilobytes = 150_000 + os.sysconf("SC_NPROCESSORS_ONLN") * (1 << 17)
        text = Run(binary).train(expect=1, preexec_fn=self.limit(kilobytes))
        return kilobytes, *self.numbers_of_refusal(text)

    def numbers_of_refusal(self, text):
        self.assertRegex(text, self.REFUSAL)
        return map(int, re.search(self.REFUSAL, text).groups())

    REFUSAL = "about ([0-9]+) MiB .* leaves ([0-9]+) MiB"


class Surroundings(Limits):
    @unittest.skipIf(os.environ.get("SANITIZE"), "sanitizers need terabytes of address space")
    def test_what_passes_the_check_of_memory_ends(self):
        """Audits, evaluations and checkpoints of a large vocabulary were counted, too."""
        binary = program(MODEL_VOCAB=50304, GPT2_MAX_ITERS=2, EVAL_INTERVAL=1, EVAL_ROWS=32,
                         AUDIT_ONE_BATCH="y", THREADS=THREADS)
        self.check_with_what_is_needed(binary)

    @unittest.skipIf(os.environ.get("SANITIZE"), "sanitizers need terabytes of address space")
    def test_decoding_is_counted(self):
        """What follows the last update, and what evaluates, generates and measures without training."""
        few = {"ATTENTION": "dot", "POS": "rope", "GPT2_MAX_ITERS": 2, "EVAL_ROWS": 1 << 13, "THREADS": THREADS}
        length, plain = 1 << 18, program(**few)
        described = json.loads(subprocess.run([plain, "describe", "--json", "--context", str(length)],
                                              check=True, capture_output=True, text=True).stdout)
        state = described["decode_total_bytes"] / (1 << 20)
        self.assertGreater(state, 100)
        more = self.needed(program(EVAL_LENGTHS=length, **few))[1] - self.needed(plain)[1]
        self.assertGreater(more, state)     # and the activations of a piece, which look back on it
        run = Run(plain)
        run.train()
        weights = ["--weights", run.directory / "weights.safetensors"]
        for command in (["evaluate", *weights, "--lengths", f"32,{length}"],
                        ["generate", *weights, "--context", str(length), "--tokens", "1"],
                        ["bench-decode", "--lengths", f"32,{length}", "--seconds", "0.01"]):
            kilobytes = 250_000 + os.sysconf("SC_NPROCESSORS_ONLN") * (1 << 17)
            done = subprocess.run([plain, *command], text=True, capture_output=True, cwd=TREE,
                                  preexec_fn=self.limit(kilobytes), timeout=300)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertGreater(next(self.numbers_of_refusal(done.stderr)), state)

    @unittest.skipIf(os.environ.get("SANITIZE"), "sanitizers need terabytes of address space")
    def test_too_little_memory(self):
        """Where OpenBLAS would try for ever, and where only the training does not fit."""
        limit = self.limit
        for command in ("identity", "describe", "train"):
            done = subprocess.run([study(), command], text=True, capture_output=True, cwd=ROOT,
                                  preexec_fn=limit(100_000), timeout=300)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("leave no room for the buffers of OpenBLAS", done.stderr)
        need = 1 << 17
        run, other = (Run(study(THREADS=THREADS)) for _ in range(2))
        processors = os.sysconf("SC_NPROCESSORS_ONLN")
        text = run.train(expect=1, preexec_fn=limit(100_000 + processors * need))
        self.assertRegex(text, "MiB of memory are needed, but the limit of address space, "
                               "ulimit -v leaves [0-9]+ MiB: make the model")
        run.train()     # the setting has no further effect
        other.train()
        self.assert_same(run, other)

    def test_a_small_stack(self):
        """It is enlarged where the limit can be raised; otherwise a sentence says so."""
        run = Run(study())
        run.train(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (64 << 10, 8 << 20)))
        self.assert_same(run)

        def limit_for_good():
            resource.setrlimit(resource.RLIMIT_STACK, (64 << 10,) * 2)
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0)     # root may do no more than others
        self.assertIn("kablate: the limit of the stack (ulimit -s) is below 1024 KiB: raise it",
                      Run(study()).train(expect=1, preexec_fn=limit_for_good))

    def test_no_standard_files(self):
        """What is opened in their place does not get the messages."""
        for close in (">&- 2>&-", "2>&-", "<&- >&-"):
            run = Run(study())
            done = subprocess.run(["sh", "-c", f"{' '.join(map(str, run.command))} {close}"], cwd=TREE,
                                  env=ENVIRONMENT, stderr=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0)
            self.assert_same(run)
            self.assertGreater(len(run.journal()), 20)      # each line is JSON

    def test_lost_output(self):
        run = self.straight()
        weights = run.directory / "weights.safetensors"
        for words in ([run.binary, "describe"], [run.binary, "generate", "--weights", weights],
                      [OUTPUT / "bin/results", "verify", run.runs]):
            with open("/dev/full", "w") as full:
                done = subprocess.run(words, cwd=TREE, stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot write the output", done.stderr)

    def test_missing_data(self):
        nowhere = ROOT / "nowhere.bin"
        run = Run(program(TASK="text", DATA_TRAIN=nowhere, DATA_VALID=nowhere, MODEL_VOCAB=96,
                          EVAL_LENGTHS="4096"))
        self.assertIn(str(nowhere), run.train(expect=1))
        for question in ("describe", "estimate", "audit"):  # of the model alone
            subprocess.run([run.binary, question], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([run.binary, "bench-decode", "--lengths", "32", "--seconds", "0.01"],
                       check=True, stdout=subprocess.DEVNULL)

    def test_a_directory_that_cannot_be_made(self):
        file = ROOT / "file"
        file.write_text("")
        self.assertIn(str(file), Run(study(), runs=file / "runs").train(expect=1))

    def test_a_damaged_database(self):
        run = Run(study())
        (run.runs / "results.db").write_bytes(b"no database" * 1000)
        text = run.train()
        self.assertIn("continues with its journal alone", text)
        self.assertTrue((run.directory / "done").exists())
        rebuild = [OUTPUT / "bin/results", "rebuild", run.runs]
        subprocess.run(rebuild, check=True, capture_output=True)
        self.assert_same(run)

    def test_files_that_may_not_grow(self):
        run = self.stopped()
        before = run.iterations()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150000, 150000))
        text = run.train(expect=1, preexec_fn=limit)
        self.assertRegex(text, r"checkpoint \d+ was not saved: .*File too large")
        self.assertEqual(run.state()[0], "failed")
        self.assertEqual(run.iterations(), before)
        run.train()
        self.assert_same(run)

    def test_a_full_disk(self):
        disk = ROOT / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", disk]
        if subprocess.run(mount, capture_output=True).returncode:
            self.skipTest("only root may mount a small disk")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        run = self.stopped(runs=disk)
        before = run.iterations()
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        self.assertIn("No space left on device", run.train(expect=1))
        self.assertEqual(run.iterations(), before)
        ballast.unlink()
        run.train()
        self.assert_same(run)


# ---------------------------------------------------------------- under make

class Experiment(Case):
    """Three steps in one tree."""

    @classmethod
    def setUpClass(cls):
        settings = {**SETTINGS, "PLAN": "steps", "PLAN_FRAGMENTS": "mla mla+gate again-0",
                    "CHECKPOINT_INTERVAL": 5}
        cls.tree = Tree(pathlib.Path(tempfile.mkdtemp(dir=ROOT)) / "tree", "smoke", settings)
        cls.tree.make("steps")

    def setUp(self):
        shutil.rmtree(self.tree.runs, ignore_errors=True)

    def ask(self, question):
        with contextlib.closing(sqlite3.connect(self.tree.runs / "results.db", timeout=30)) as db:
            return db.execute(question).fetchall()

    def states(self):
        return self.ask("SELECT step, state FROM runs ORDER BY step")

    def times(self):
        return {path: path.stat().st_mtime_ns for path in self.tree.runs.rglob("*")}

    def assert_interrupted(self):
        """Steps run side by side: the first may not have begun when another was stopped."""
        self.assertIn("interrupted", dict(self.states()).values())

    def assert_whole(self):
        self.assertEqual(self.states(), [("0-mla", "done"), ("1-mla+gate", "done"),
                                         ("2-mla-again", "done")])
        counts = self.ask("SELECT count(*) FROM metrics WHERE name = 'train/loss' GROUP BY run")
        self.assertEqual(counts, [(20,)] * 3)
        told = collections.Counter()
        for path in self.tree.runs.glob("*/*/journal.jsonl"):
            told.update((path, line["name"], line["iteration"])
                        for line in map(json.loads, path.read_text().splitlines())
                        if line["kind"] == "value")
        self.assertEqual(set(told.values()), {1})
        hashes = self.ask("SELECT sha256 FROM artifacts JOIN runs ON runs.id = run ORDER BY step")
        self.assertEqual(hashes[0], hashes[2])
        self.assertNotEqual(hashes[0], hashes[1])

    def test_once_and_again(self):
        self.tree.make("runs")
        self.assert_whole()
        times = self.times()
        self.assertNotIn("RUN ", self.tree.make("runs"))
        self.assertEqual(self.times(), times)

        self.assertIn("RUN=DIRECTORY", self.tree.make("rerun", f"RUN={self.tree.runs}", expect=2))
        again = next(self.tree.runs.glob("*/1-*"))
        self.assertEqual(self.tree.make("rerun", f"RUN={again}").count("RUN "), 1)
        self.assert_whole()

    def test_one_step(self):
        self.tree.make("step", "N=1")
        self.assertEqual(self.states(), [("1-mla+gate", "done")])
        self.assertIn("0-mla 1-mla+gate", self.tree.make("step", "N=7", expect=2))

    def test_two_makes_at_once(self):
        shutil.rmtree(self.tree.plan)  # both build, too
        makes = [Started(self.tree.command("runs")) for _ in range(2)]
        for started in makes:
            self.assertEqual(started.end(), 0, started.text)
        self.assert_whole()

    def test_interrupted(self):
        started = Held(self.tree.command("runs"), " 21/60 ", start_new_session=True)
        os.killpg(started.process.pid, signal.SIGINT)
        self.assertNotEqual(started.end(), 0)
        self.assert_interrupted()
        self.assertIn("resuming after iteration", self.tree.make("runs"))
        self.assert_whole()

    def test_stopped(self):
        started = Held(self.tree.command("runs"), " 15/60 ")
        self.assertIn("will save and stop", self.tree.make("stop"))
        self.assertNotEqual(started.end(), 0)
        self.assertIn(f"Error {RESUMABLE}", started.text)
        self.assert_interrupted()
        self.tree.make("runs")
        self.assert_whole()

    def test_stopped_for_good(self):
        """Going on past failures does not mean going on past a stop."""
        started = Held(self.tree.command("-k", "-j1", "runs"), " 15/60 ")
        self.tree.make("stop")
        self.assertNotEqual(started.end(), 0)
        self.assertEqual(started.text.count("RUN "), 1)
        self.assertIn("stopped before smoke 1-mla+gate seed 1", started.text)
        self.assertEqual(self.states(), [("0-mla", "interrupted")])
        self.tree.make("-k", "runs")
        self.assert_whole()


class Lengths(Case):
    """The loss of a finished run, by position."""

    def evaluate(self, run, *words):
        return subprocess.run([run.binary, "evaluate", *words, "--weights",
                               run.directory / "weights.safetensors"], cwd=TREE, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)

    def lengths(self, run, lengths):
        done = self.evaluate(run, "--json", "--lengths", lengths)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["lengths"]

    def test_the_trained_length_gives_the_loss_of_the_run(self):
        run = self.straight()
        trained = self.lengths(run, "32")[0]
        self.assertAlmostEqual(trained["loss"], run.values("val/loss")[60], delta=1e-5)
        self.assertEqual(trained["rows"], 8)
        self.assertIn("length 32, 8 rows", self.evaluate(run).stdout)

    def test_longer_where_positions_allow_it(self):
        run = Run(program(POS="rope"))
        run.train()
        found = self.lengths(run, "32,128,97")
        self.assertEqual([(x["length"], x["rows"]) for x in found], [(32, 8), (128, 2), (97, 2)])
        self.assertEqual([(x["first"], x["last"]) for x in found[1]["positions"]],
                         [(0, 63), (64, 127)])
        for x in found:
            parts = x["positions"]
            self.assertEqual(sum(part["targets"] for part in parts), x["targets"])
            self.assertAlmostEqual(sum(part["loss"] * part["targets"] for part in parts)
                                   / x["targets"], x["loss"], places=6)

    def test_refusals(self):
        for words, reason in (("33", "more than the learned table of 32"),
                              ("32,", "does not begin with a length"),
                              ("1", "does not begin with a length"),
                              ("300", "longer than all validation rows")):
            done = self.evaluate(self.straight(), "--lengths", words)
            self.assertEqual((done.returncode, reason in done.stderr), (1, True), done.stderr)

    LENGTHS = "32,128,97"

    @functools.cached_property
    def concluded(self):
        run = Run(program(POS="rope", EVAL_LENGTHS=self.LENGTHS))
        run.train()
        return run

    def recorded(self, run):
        return {name.removeprefix("length/"): (iteration, value) for name, iteration, value in
                run.ask("SELECT name, iteration, value FROM metrics WHERE name LIKE 'length/%'")}

    def test_a_run_records_what_evaluate_says(self):
        run, found = self.concluded, self.recorded(self.concluded)
        for x in self.lengths(run, self.LENGTHS):
            n = x["length"]
            self.assertEqual(found.pop(f"{n}/rows"), (60, x["rows"]))
            self.assertEqual(found.pop(f"{n}/state_bytes"), (60, x["state_bytes"]))
            for part, suffix in [(x, ""), *((p, f"/{p['first']}") for p in x["positions"])]:
                for what in ("loss", "accuracy"):
                    iteration, value = found.pop(f"{n}/{what}{suffix}")
                    self.assertEqual((iteration, f"{value:.9g}"), (60, f"{part[what]:.9g}"))
        self.assertEqual(found, {})

    def test_nothing_else_changes(self):
        plain = Run(program(POS="rope"))
        plain.train()
        files, weights, metrics, events, checkpoints = self.concluded.story()
        metrics = [row for row in metrics if not row[0].startswith("length/")]
        self.assertEqual((weights, metrics, events, checkpoints), plain.story()[1:])

    def test_interrupted_before_and_after(self):
        run = Run(self.concluded.binary)
        run.held_at(" 30/60 ").send(signal.SIGKILL).end()
        run.train()
        self.assert_same(run, self.concluded)
        (run.directory / "done").unlink()
        self.assertIn("resuming after iteration 60", run.train())
        self.assert_same(run, self.concluded)

    def test_a_budget_ends_with_them(self):
        for settings in ({}, {"EVAL_INTERVAL": 1}):  # an evaluation of its own, or one that was due
            with self.subTest(settings):
                run = Run(program(POS="rope", EVAL_LENGTHS="64", TRAIN_TOKENS_BUDGET=1500, **settings))
                run.train()
                self.assertEqual(run.state()[0], "budget")
                last = max(run.values("val/loss"))
                self.assertLess(last, 60)
                self.assertEqual({i for i, _ in self.recorded(run).values()}, {last})

    def test_refused_before_training(self):
        for settings, reason in (
                ({"EVAL_LENGTHS": "33"}, "33 positions are more than the learned table of 32"),
                ({"EVAL_LENGTHS": "300", "POS": "rope"}, "longer than all validation rows"),
                ({"EVAL_LENGTHS": "32", "ATTENTION": "mla", "RA_MLA_MLP_ATTN_GATE": "y",
                  "GATE_POOL": "sequence"}, "GATE_POOL=sequence")):
            run = Run(program(**settings))
            text = run.train(expect=1)
            self.assertIn("CONFIG_EVAL_LENGTHS: ", text)
            self.assertIn(reason, text)
            self.assertFalse((run.runs / "results.db").exists())


class Generation(Case):
    def text(self, run, *words):
        done = subprocess.run([run.binary, "generate", "--tokenizer", "bytes", "--temperature", "0",
                               "--prompt", "once upon", *words, "--weights",
                               run.directory / "weights.safetensors"], cwd=TREE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_text_longer_than_its_context(self):
        run = Run(program(POS="rope", MODEL_VOCAB=300))
        run.train()
        long, short = (self.text(run, "--tokens", "100", *words)
                       for words in (("--context", "200"), ()))
        self.assertEqual(len(short), len("once upon") + 100 + 1)
        # The same until the trained length of 32 is used up and the last half is read again.
        self.assertEqual(short[:33], long[:33])
        self.assertEqual(short, self.text(run, "--tokens", "100", "--context", "32"))


    def test_wrong_words(self):
        run = Run(program(POS="rope", MODEL_VOCAB=300))
        run.train()
        weights = "--weights", run.directory / "weights.safetensors"
        for words, said in (
                (("generate", *weights, "--context", str(1 << 53)), "positions are too many"),
                (("generate", *weights, "--temperature", "-1"), "'-1' is less than 0"),
                (("generate", *weights, "--tokens", "-1"), "'-1' is not a whole number"),
                (("bench-decode", "--lengths", "16", "--batch", "0"), "is not positive"),
                (("bench-decode", "--lengths", "16", "--batch", str(1 << 53)), "memory"),
                (("bench-decode", "--lengths", "16", "--seconds", "-1"), "'-1' is less than 0"),
                (("train", "--experiment", "../../x"), "a name has letters"),
                (("train", "--step", "a/b"), "a name has letters"),
                (("train", "--baseline", ""), "a name has letters")):
            done = subprocess.run([run.binary, *words], cwd=ROOT, text=True, capture_output=True, timeout=300)
            self.assertIn(done.returncode, (1, 2), words)
            self.assertRegex(done.stderr, said, words)


if __name__ == "__main__":
    tap.main()
