#!/usr/bin/env python3
"""Many deaths of ranks: whichever rank is killed, and however many go on, the run ends in the same bits."""
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.kablate import train_test
from tools.kablate.mpi_longtest import TOGETHER, Ranks, why_no_mpi
from tools.kablate.train_test import ROOT, STUDY, Case, Started, Tree
from tools.testing import tap

tearDownModule = train_test.tearDownModule

KILLS = 12
LONGER = {**TOGETHER, "GPT2_MAX_ITERS": 60, "CHECKPOINT_INTERVAL": 5}


@unittest.skipIf(why_no_mpi(), why_no_mpi())
class Deaths(Case):
    def test_any_rank_at_any_moment(self):
        seed = random.randrange(1 << 32)
        print(f"# moments by seed {seed}")
        chance = random.Random(seed)
        alone = Ranks(1, base=LONGER)
        alone.train()
        run, killed = Ranks(2, base=LONGER), 0
        while killed < KILLS and not (run.directory / "done").exists():
            run = Ranks(chance.choice((2, 3, 4)), runs=run.runs, base=LONGER)
            started = run.start()
            try:
                started.process.wait(chance.uniform(1, 6))
            except subprocess.TimeoutExpired:
                processes = sorted(run.processes().items())
                with contextlib.suppress(IndexError, ProcessLookupError):  # none is there yet, or any more
                    os.kill(chance.choice(processes)[1], signal.SIGKILL)
                    killed += 1
            started.end()
        print(f"# {killed} ranks killed")
        Ranks(chance.choice((1, 2, 3)), runs=run.runs, base=LONGER).train()
        self.assert_same(Ranks(1, runs=run.runs, base=LONGER), alone)

    def test_stopped_by_a_signal_to_one_rank(self):
        """As `make stop` on a machine that holds some of the ranks."""
        run = Ranks(3, base=LONGER)
        started = run.cut_short(" 3/60 ", lambda _: os.kill(run.processes()[1], signal.SIGTERM), latest=59)
        self.assertEqual(started.process.returncode, train_test.RESUMABLE, started.text)
        self.assertEqual(run.state(), ("interrupted", "signal 15"))

    def test_make_stop(self):
        tree = Tree(ROOT / "stopped", STUDY, {**LONGER, "GPT2_MAX_ITERS": 100000, "RANKS": 2})
        started = Started(tree.command("runs")).until(r" \d+/100000 ")
        self.assertEqual(len(re.findall("will save and stop", tree.make("stop"))), 1)
        self.assertNotEqual(started.end(), 0)
        last = next(tree.runs.glob("*/*/journal.jsonl")).read_text().splitlines()[-1]
        self.assertEqual(json.loads(last)["state"], "interrupted", started.text)


if __name__ == "__main__":
    tap.main()
