#!/usr/bin/env python3
"""One run over several processes: any number of them gives the same bits, also after another number went
before, and a rank that dies costs only the time since the last checkpoint."""
import os
import re
import shutil
import signal
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import DIVERGED, OUTPUT, RESUMABLE, ROOT, STUDY, STUDY_SETTINGS, Case, Run, Tree, program
from tools.testing import tap

tearDownModule = train_test.tearDownModule

ITERATIONS = 20
# Six micro-batches: four ranks cannot divide them evenly.
TOGETHER = {**STUDY_SETTINGS, "GPT2_MAX_ITERS": ITERATIONS, "TRAIN_BATCH": 2, "TRAIN_ACCUMULATE": 6, "EVAL_ROWS": 20,
            "ORDERED_SUM": "y"}
# A matrix of 288 x 1152 is more than one piece, except for Muon, which keeps it whole.
LARGE = {**TOGETHER, "MODEL_EMBD": 288, "MODEL_LAYERS": 1, "GPT2_MAX_ITERS": 6}


def why_no_mpi():
    """A reason to skip; None: MPI is there."""
    if not shutil.which("mpirun"):
        return "there is no mpirun: openmpi-bin is not installed"
    return None if (OUTPUT / "kablate_mpi.so").exists() else "the transport of MPI is not built: no mpicc"


def ranks_program(ranks, defconfig=STUDY, base=None, **settings):
    return program(defconfig, base or TOGETHER, **settings, RANKS=ranks)


class Ranks(Run):
    """A run of several processes."""

    def __init__(self, ranks, runs=None, **settings):
        super().__init__(ranks_program(ranks, **settings), runs=runs)
        if ranks > 1:
            self.command = [sys.executable, "-m", "tools.kablate.launch", "--ranks", str(ranks), *self.command]

    def cut_short(self, iteration, stop):
        """What was started, when it has ended: stop(it) comes while it is held after this iteration."""
        started = self.held_after(iteration)
        stop(started)
        started.end()
        return started

    def story(self):
        """(A run that was stopped has checkpoints of its own.)"""
        files, weights, rows, events, checkpoints = super().story()
        return files, weights, rows, [event for event in events if event[0] != "ranks"], checkpoints[-1]

    def processes(self):
        """Of the ranks, by number."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{name}/environ", "rb") as file:
                    rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", file.read())
            except OSError:
                continue
            if str(self.runs).encode() in words and rank:
                found[int(rank[1])] = int(name)
        return found


@unittest.skipIf(why_no_mpi(), why_no_mpi())
class Together(Case):
    @classmethod
    def setUpClass(cls):
        cls.alone = Ranks(1)
        cls.alone.train()

    def test_any_number_gives_the_same_bits(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                run = Ranks(ranks)
                run.train()
                self.assertEqual(run.identity, self.alone.identity)
                self.assert_same(run, self.alone)
                self.assertIn(("ranks", 0, f"{ranks} ranks, MPI"), run.ask("SELECT kind, iteration, text FROM events"))

    def test_pieces_of_parameters(self):
        for optimizer in ("adamw", "muon"):
            settings = {"defconfig": f"smoke+{optimizer}", "base": {k: v for k, v in LARGE.items() if k != "SPAM_INTERVAL"}}
            with self.subTest(optimizer):
                one, three = Ranks(1, **settings), Ranks(3, **settings)
                one.train()
                three.train()
                self.assert_same(three, one)

    def test_pruned(self):
        """Rank 0 chooses from the state of all."""
        for method in ("movement", "second_moment"):
            settings = {"defconfig": "smoke", "PRUNE": method, "PRUNE_SCOPE": "global", "PRUNE_SPARSITY": "0.6", "PRUNE_START": 0,
                        "PRUNE_END": 80, "PRUNE_INTERVAL": 2, "base": {k: v for k, v in LARGE.items() if k != "SPAM_INTERVAL"}}
            with self.subTest(method):
                one, three = Ranks(1, **settings), Ranks(3, **settings)
                one.train()
                three.train()
                self.assert_same(three, one)
                self.assertAlmostEqual(three.values("sparsity")[6], 0.6, 5)

    def test_goes_on_with_another_number(self):
        runs = None
        for ranks, iteration, number in ((2, 3, signal.SIGTERM), (3, 9, signal.SIGINT)):
            run = Ranks(ranks, runs=runs)
            runs, started = run.runs, run.cut_short(iteration, lambda it: it.send(number))
            self.assertEqual(started.process.returncode, RESUMABLE, started.text)
            self.assertEqual(run.state()[0], "interrupted")
            self.assertEqual(run.iterations()[-1], iteration)
        run = Ranks(1, runs=runs)
        self.assertIn("resuming after iteration 9", run.train())
        self.assert_same(run, self.alone)

    def test_a_dead_rank_ends_the_run_with_its_name(self):
        run = Ranks(3)
        started = run.cut_short(9, lambda _: os.kill(run.processes()[2], signal.SIGKILL))
        self.assertRegex(started.text, r"kablate: rank 2 \(process \d+ on \S+\) died of signal 9")
        self.assertEqual(run.processes(), {})
        self.assertIn("resuming after iteration 7", run.train())
        self.assert_same(run, self.alone)

    def test_a_failure_of_rank_0_ends_all(self):
        """Here the directory of the run is a file."""
        run = Ranks(2)
        run.directory.parent.mkdir(parents=True)
        run.directory.touch()
        text = run.train(expect=1)
        self.assertIn("kablate: rank 0: ", text)
        self.assertEqual(run.processes(), {})

    def test_all_ranks_see_a_divergence(self):
        settings = {"defconfig": "smoke", "base": {**train_test.SETTINGS, "TRAIN_ACCUMULATE": 2, "TRAIN_BATCH": 2,
                                                   "GPT2_MAX_ITERS": 20, "ORDERED_SUM": "y"},
                    "LEARNING_RATE": "1e30", "WARMUP_ITERS": 0, "GRAD_CLIP": "0"}
        one, two = Ranks(1, **settings), Ranks(2, **settings)
        one.train(expect=DIVERGED)
        two.train(expect=DIVERGED)
        self.assertEqual(two.state()[0], "diverged")
        self.assertEqual([row[:2] for row in two.ask("SELECT iteration, kind FROM events WHERE kind = 'diverged'")],
                         one.ask("SELECT iteration, kind FROM events WHERE kind = 'diverged'"))

    def test_sums_of_ranks_without_an_order(self):
        """Other bits, the same training."""
        run = Ranks(2, ORDERED_SUM="n")
        run.train()
        self.assertNotEqual(run.identity, self.alone.identity)
        mine, his = run.values("val/loss"), self.alone.values("val/loss")
        for iteration, value in his.items():
            self.assertAlmostEqual(mine[iteration], value, delta=1e-4)  # measured: below 1e-5

    def test_under_make(self):
        tree = Tree(ROOT / "together", STUDY, {**TOGETHER, "RANKS": 2})
        tree.make("runs")
        journal = next(tree.runs.glob("*/*/journal.jsonl")).read_text()
        self.assertIn("2 ranks, MPI", journal)
        weights = next(tree.runs.glob("*/*/weights.safetensors"))
        self.assertEqual(weights.read_bytes(), (self.alone.directory / "weights.safetensors").read_bytes())

    def test_more_ranks_than_micro_batches(self):
        tree = Tree(ROOT / "many", STUDY, {**TOGETHER, "TRAIN_ACCUMULATE": 2, "RANKS": 3, "ORDERED_SUM": "n"})
        self.assertIn("CONFIG_RANKS=3: an update has only CONFIG_TRAIN_ACCUMULATE=2 micro-batches",
                      tree.make("runs", expect=2))


if __name__ == "__main__":
    tap.main()
