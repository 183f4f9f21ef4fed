#!/usr/bin/env python3
"""Replicas on the emulated GPU, end to end: the runs of one process end with the bits of each alone, whatever becomes of
the process or of a neighbour."""
import functools
import random
import re
import shutil
import signal
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import gpu_fault_longtest, train_test, worker_test
from tools.kablate.gpu_fault_longtest import WHY_NOT, check_records, complaint, tiny
from tools.kablate.train_test import DIVERGED, ENVIRONMENT, RESUMABLE, Run, hold
from tools.kablate.worker_test import Together
from tools.testing import tap

tearDownModule = train_test.tearDownModule

MANY = range(1, 65)
ITERATIONS = 16


def replicas(**settings):
    return tiny(REPLICAS="y", **settings)


def of_some_length():
    """Saves often."""
    return replicas(GPT2_MAX_ITERS=ITERATIONS, EVAL_INTERVAL=4, CHECKPOINT_INTERVAL=3)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Replicas(worker_test.Case):
    def check(self, binary, seeds=worker_test.SEEDS):
        runs = Together(binary, seeds)
        runs.train()
        self.assert_as_alone(runs)

    def test_float32(self):
        self.check(replicas())

    def test_bfloat16(self):
        self.check(replicas(PRECISION="bfloat16"))

    def test_rates(self):
        """The candidates of a tuned rate are replicas, too."""
        slow, fast = (replicas(LEARNING_RATE=rate, MIN_LEARNING_RATE="1e-4") for rate in ("1e-3", "2e-3"))
        self.check_rates(slow, fast, ("1e-3/1e-4", "2e-3/1e-4"))

    def test_ordinary_runs_are_others(self):
        ordinary, replica = Run(tiny()), Run(replicas())
        self.assertNotEqual(ordinary.identity, replica.identity)

    def test_many(self):
        runs = Together(replicas(GPT2_MAX_ITERS=2), MANY)
        runs.train()
        for seed in (MANY[0], MANY[31], MANY[-1]):
            one, alone = runs.one(seed), self.alone(runs.binary, seed)
            self.assertEqual(one.weights(), alone.weights())
            for name in ("train/loss", "val/loss", "grad_norm"):
                self.assertEqual(one.values(name), alone.values(name))
        self.assertEqual(len({run.weights() for run in runs.each()}), len(MANY))

    def test_more_than_go_at_once(self):
        runs = Together(replicas(REPLICAS_MOST=2))
        said = runs.train()
        self.assertIn("2 seeds", said)
        self.assert_as_alone(runs)

    def test_interrupted_and_resumed(self):
        runs = Together(of_some_length())
        with mock.patch.dict(ENVIRONMENT, hold(7)):
            started = runs.start().until(rf" 7/{ITERATIONS} ").send(signal.SIGINT)
        self.assertEqual(started.end(), RESUMABLE, started.text)
        for run in runs.each():
            self.assertEqual((run.iterations()[-1], run.state()), (7, ("interrupted", "signal 2")))
        runs.train()
        self.assert_as_alone(runs)

    def test_one_that_is_behind(self):
        """It is resumed in a group of its own."""
        runs = Together(of_some_length())
        alone = Run(runs.binary, 2, runs.runs)
        with mock.patch.dict(ENVIRONMENT, hold(7)):
            started = alone.start().until(rf" 7/{ITERATIONS} ").send(signal.SIGTERM)
        self.assertEqual(started.end(), RESUMABLE, started.text)
        runs.train()
        self.assert_as_alone(runs)

    def test_killed(self):
        binary, seed = of_some_length(), random.randrange(1 << 32)
        print(f"# moments by seed {seed}", flush=True)
        moments, killed = random.Random(seed), 0
        began = time.monotonic()
        Together(binary).train()
        whole, runs = time.monotonic() - began, Together(binary)
        while killed < 8:
            started = runs.start()
            time.sleep(moments.uniform(0, whole))
            killed += started.send(signal.SIGKILL).end() == -signal.SIGKILL
            if all((run.directory / "done").exists() for run in runs.each()):
                self.assert_as_alone(runs)
                runs = Together(binary)
        runs.train()
        self.assert_as_alone(runs)
        check_records(self, runs.runs)

    def test_divergences(self):
        """Each in its own iteration, for its own reason.  (core/train/group_test has one among runs that go on.)"""
        runs = Together(replicas(LEARNING_RATE="2e4", WARMUP_ITERS=0, GPT2_MAX_ITERS=8, EVAL_INTERVAL=8))
        runs.train(expect=DIVERGED)
        for run in runs.each():
            alone = Run(runs.binary, run.seed)
            alone.train(expect=DIVERGED)
            self.assertEqual(run.state()[0], "diverged")
            self.assertEqual((run.state(), run.values("train/loss")), (alone.state(), alone.values("train/loss")))


def complaint_of(runs, said):
    """One sentence of all runs; or, where some had ended before, one of each of the others."""
    if not any((run.directory / "done").exists() for run in runs.each()):
        return complaint(said)
    return "".join(line for line in said.splitlines() if re.match(r"single 0 seed \d+: |kablate: ", line))


@unittest.skipIf(WHY_NOT, WHY_NOT)
class FailingCalls(gpu_fault_longtest.FailingCalls):
    """Of all runs together."""
    most, fewest = 2, 5
    as_alone = worker_test.Case.assert_as_alone
    known, alone = worker_test.Case.known, worker_test.Case.alone

    def check(self, binary, kind, n):
        runs = Together(binary)
        status, said = self.fault(kind, n, runs.command)
        name = f"{kind} {n}: exit status {status}: {said}"
        self.assertIn(status, (0, 1), name)
        if status:
            self.assertRegex(complaint_of(runs, said), self.REASONS[kind.split(":")[1]], name)
        check_records(self, runs.runs)
        runs.train()
        self.as_alone(runs)
        shutil.rmtree(runs.runs)

    def check_ways(self, binary):
        for seed in worker_test.SEEDS:
            self.alone(binary, seed)
        for way in gpu_fault_longtest.WAYS:
            self.attempt_each(way, self.numbers(way, Together(binary).command), functools.partial(self.check, binary, way))

    def test_training(self):
        self.check_ways(replicas())

    test_audits = None      # ordinary kernels make them: gpu_fault_longtest


if __name__ == "__main__":
    tap.main()
