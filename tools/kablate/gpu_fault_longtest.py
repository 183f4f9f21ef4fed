#!/usr/bin/env python3
"""A GPU whose calls fail, that is lost, shared or full: the run ends with a sentence that names the cause, no record
is damaged, and the same command ends with the same bits.

By default on the emulated GPU, whose n-th call of a kind fails (KABLATE_EMULATED_FAIL); 12 calls in each of eight ways
here, all of them in gpu_fault_soaktest.py.  With KABLATE_TEST_BACKEND=cuda on this machine's GPU (make check-gpu-faults):
other processes then take its memory and fault, and tools/testing/gpu_fault.c faults in the run's own context.
"""
import collections
import functools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import fault_longtest, train_test
from tools.kablate.fault_longtest import rows_of
from tools.kablate.train_test import (ENVIRONMENT, OUTPUT, ROOT, STUDY, STUDY_SETTINGS, TREE, Case, Run, hold,
                                      program)
from tools.testing import tap

tearDownModule = train_test.tearDownModule

ON_GPU = os.environ.get("KABLATE_TEST_BACKEND") == "cuda"
# For one run, and for replicas.
KINDS = ("", "_replicas")
LIBRARY = OUTPUT / ("kablate_cuda.so" if ON_GPU else "kablate_emulated.so")
WHY_NOT = None if LIBRARY.exists() else f"{LIBRARY.name} is not built"

# Small, since the emulated GPU is slow.
TINY = {**train_test.SETTINGS, "BACKEND": "cuda", "PRECISION": "float32", "MODEL_LAYERS": 1, "MODEL_EMBD": 16, "MODEL_HEADS": 1,
        "MODEL_BLOCK": 8, "RA_MLA_LATENT_DIM": 4, "RA_MLA_RA_WINDOW": 4, "TRAIN_BATCH": 1, "EVAL_ROWS": 1,
        "EVAL_SAMPLE": 0, "GPT2_MAX_ITERS": 3, "EVAL_INTERVAL": 1, "LOG_INTERVAL": 1, "CHECKPOINT_INTERVAL": 1,
        "POS": "rope", "EVAL_LENGTHS": "8", "DROPOUT": "0.1"}


def with_library(binary):
    """It looks for the library beside itself first: there it may be the emulated one, and other users can read it."""
    for kind in KINDS:
        library = binary.parent / f"kablate_cuda{kind}.so"
        if not library.exists():
            shutil.copy(LIBRARY.with_stem(LIBRARY.stem + kind), library)
    return binary


def tiny(**settings):
    return with_library(program("smoke", TINY, **settings))


def of_some_length():
    """The program of a run that takes a second or two."""
    if ON_GPU:
        return with_library(program(STUDY, STUDY_SETTINGS, BACKEND="cuda", PRECISION="float32"))
    return tiny(GPT2_MAX_ITERS=16, EVAL_INTERVAL=4, CHECKPOINT_INTERVAL=3)


def complaint(said):
    """The one sentence that a failed program says."""
    sentence, = (line for line in said.splitlines() if line.startswith("kablate: "))
    return sentence


# Which call fails, and how (core/backend/cuda/emulated/runtime.cpp).
WAYS = ("alloc:memory", "alloc:lost", "copy:lost", "launch:memory", "launch:kernel", "launch:lost", "sync:lost",
        "other:lost")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class FailingCalls(fault_longtest.Attempts, Case):
    most = 12       # calls of each way
    most_audited = 1

    def failing(self, kind, n, count):
        call, way = kind.split(":")
        return {"KABLATE_EMULATED_FAIL": f"{call}:{n}:{way}", "KABLATE_EMULATED_COUNT": str(count)}

    def total(self, kind, count):
        counts = dict(line.split() for line in count.read_text().splitlines())
        return int(counts[kind.partition(":")[0]])

    def choose(self, kind, total):
        return sorted(random.sample(range(1, total + 1), min(self.most, total)))

    # cuBLAS has sentences of its own, and after out of memory one for a product that it could not start.
    REASONS = {"memory": "out of memory|GPU: .*(allocation failed|failed to execute)",
               "lost": "GPU: .*(uncorrectable ECC error|allocation failed|failed to execute)",
               "kernel": "GPU: .*(unspecified launch failure|failed to execute)"}

    def check_failure(self, kind, n, run):
        """A failure is one sentence, which the record has, too; and nothing that was recorded is damaged."""
        status, said = self.fault(kind, n, run.command)
        name = f"{kind} {n}: exit status {status}: {said}"
        self.assertIn(status, (0, 1), name)
        if status:
            self.assertRegex(complaint(said), self.REASONS[kind.split(":")[1]], name)
        check_records(self, run.runs)
        if (run.runs / "results.db").exists():
            (state, reason), = run.ask("SELECT state, exit_reason FROM runs")
            self.assertEqual(state, "failed" if status else "done", name)
            self.assertTrue(status == 0 or complaint(said).endswith(reason), f"{name}: {reason}")

    def check(self, whole, kind, n):
        run = Run(whole.binary)
        run.identity = whole.identity
        self.check_failure(kind, n, run)
        run.train()
        self.assert_same(run, whole)
        shutil.rmtree(run.runs)

    def check_ways(self, binary):
        whole = Run(binary)
        whole.train()
        self.assertTrue(whole.identity)
        for way in WAYS:
            self.attempt_each(way, self.numbers(way, Run(binary).command), functools.partial(self.check, whole, way))

    def test_training(self):
        self.check_ways(tiny())

    def test_audits(self):
        self.most = self.most_audited
        self.check_ways(tiny(AUDIT_WIRING="y", AUDIT_CAUSALITY="y", AUDIT_ONE_BATCH="y", AUDIT_TRAINING="y"))


def check_records(case, runs):
    """Nothing that was recorded is damaged; a run that failed before it began recorded nothing."""
    if not (runs / "results.db").exists():
        case.assertEqual([path for path in runs.rglob("*") if path.is_file() and path.stat().st_size], [])
        return
    done = subprocess.run([OUTPUT / "bin/results", "verify", runs], text=True, capture_output=True, check=False)
    case.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Shared(Case):
    """One GPU for several runs."""
    kills = 50 if ON_GPU else 16
    SEEDS = range(1, 9)

    def all_at_once(self, runs):
        return {seed: Run(of_some_length(), seed, runs).start() for seed in self.SEEDS}

    def end_all(self, started):
        for one in started.values():
            self.assertEqual(one.end(), 0, one.text)

    def test_kills_while_eight_share_it(self):
        seed = random.randrange(1 << 32)
        print(f"# moments by seed {seed}", flush=True)
        moments, killed, directories = random.Random(seed), 0, []
        straight = self.directory()
        began = time.monotonic()
        self.end_all(self.all_at_once(straight))
        whole = time.monotonic() - began
        while killed < self.kills:
            directories.append(self.directory())
            started = self.all_at_once(directories[-1])
            for _ in range(min(self.kills - killed, 2 * len(started))):
                time.sleep(moments.uniform(0, whole / 8))
                number = moments.choice(list(started))
                started[number].send(signal.SIGKILL)
                killed += started[number].end() == -signal.SIGKILL
                started[number] = Run(of_some_length(), number, directories[-1]).start()
            self.end_all(started)
        for runs in directories:
            self.assertEqual(rows_of(runs), rows_of(straight))
            check_records(self, runs)
        print(f"# {killed} runs were killed", flush=True)

    @staticmethod
    def directory():
        return pathlib.Path(tempfile.mkdtemp(dir=ROOT))

    @unittest.skipIf(os.geteuid(), "only root may start runs of another user")
    def test_two_users(self):
        other = 65534       # nobody
        alone = Run(of_some_length())
        alone.train()
        ROOT.chmod(0o711)
        ours, theirs = Run(alone.binary), Run(alone.binary)
        os.chown(theirs.runs, other, other)
        started = ours.start(), theirs.start(user=other, group=other, extra_groups=[])
        for run, one in zip((ours, theirs), started):
            self.assertEqual(one.end(), 0, one.text)
            self.assert_same(run, alone)
        self.assertEqual(theirs.directory.stat().st_uid, other)


class Neighbour:
    """Another process on the GPU, which obeys (tools/testing/gpu_fault.c)."""
    OBEY = ("import ctypes, sys\ngpu = ctypes.CDLL(sys.argv[1])\nprint(gpu.gpu_open(), flush=True)\n"
            "for line in sys.stdin: print(getattr(gpu, line.strip())(), flush=True)")

    @staticmethod
    @functools.cache
    def shared_object():
        path = ROOT / "gpu_fault.so"
        subprocess.run(["cc", "-std=gnu17", "-O1", "-shared", "-fPIC", "-o", path, TREE / "tools/testing/gpu_fault.c",
                        "-ldl", "-pthread"], check=True)
        return path

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.OBEY, self.shared_object()], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.answer() == 0
        return self

    def answer(self):
        return int(self.process.stdout.readline())

    def do(self, function):
        self.process.stdin.write(function + "\n")
        self.process.stdin.flush()
        return self.answer()

    def __exit__(self, *_):
        self.process.communicate()


ILLEGAL_ADDRESS = 700       # CUDA_ERROR_ILLEGAL_ADDRESS


class RealGpu(Case):
    """What only a real GPU does: memory that another process takes, and a context that a kernel breaks."""
    moments = 8

    @staticmethod
    @functools.cache
    def whole():
        run = Run(of_some_length())
        began = time.monotonic()
        run.train()
        run.seconds = time.monotonic() - began
        return run

    def check_resumed(self, run):
        check_records(self, run.runs)
        run.train()
        self.assert_same(run, self.whole())

    def test_no_memory_at_the_start(self):
        run = Run(of_some_length())
        with Neighbour() as neighbour:
            self.assertGreater(neighbour.do("gpu_hold"), 0)
            self.assertRegex(complaint(run.train(expect=1)), "GPU.*(memory|allocation failed)")
        self.check_resumed(run)

    def test_memory_goes_at_any_moment(self):
        ends = collections.Counter()
        for _ in range(self.moments):
            run = Run(of_some_length())
            with Neighbour() as neighbour:
                started = run.start()
                time.sleep(random.uniform(0, self.whole().seconds))
                neighbour.do("gpu_hold")
                status = started.end()
            ends[status] += 1
            self.assertIn(status, (0, 1), started.text)
            if status:
                self.assertRegex(complaint(started.text), "GPU.*(memory|allocation failed|failed to execute)|but the GPU leaves")
            self.check_resumed(run)
        print(f"# exit statuses {dict(ends)}", flush=True)

    def test_a_neighbour_that_faults(self):
        run, held = Run(of_some_length()), ROOT / "held"
        held.touch()
        with mock.patch.dict(ENVIRONMENT, hold(30, held)):
            started = run.start().until(" 30/60 ")
        for _ in range(3):
            with Neighbour() as neighbour:
                self.assertEqual(neighbour.do("gpu_fault"), ILLEGAL_ADDRESS)
        held.unlink()
        self.assertEqual(started.end(), 0, started.text)
        self.assert_same(run, self.whole())

    def test_a_fault_in_our_own_context(self):
        for _ in range(self.moments):
            run, iteration = Run(of_some_length()), random.randrange(0, 60, 3)
            held, fault = ROOT / "held", ROOT / "fault"
            held.touch()
            with mock.patch.dict(ENVIRONMENT, {**hold(iteration, held), "GPU_FAULT": str(fault),
                                                        "LD_PRELOAD": str(Neighbour.shared_object())}):
                started = run.start().until(f" {iteration}/60 " if iteration else "parameters")
            fault.touch()
            while fault.exists():
                self.assertIsNone(started.process.poll(), started.text)
                time.sleep(0.001)
            held.unlink()
            self.assertEqual(started.end(), 1, started.text)
            self.assertRegex(complaint(started.text), "GPU: .*(illegal memory access|launch failure|operation failed|failed to execute)")
            self.assertEqual(run.state()[0], "failed")
            self.check_resumed(run)


# Each backend has cases of its own.
if ON_GPU:
    del FailingCalls
else:
    del RealGpu

if __name__ == "__main__":
    tap.main()
