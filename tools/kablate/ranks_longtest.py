#!/usr/bin/env python3
"""Many deaths of ranks: for any rank that is killed, and any number that resume, the run ends in the same bits."""
import json
import os
import random
import re
import signal
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

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
        runs = Ranks(1, base=LONGER).runs
        for _ in range(KILLS):
            run = Ranks(chance.choice((2, 3, 4)), runs=runs, base=LONGER)
            # However fast it is, it does not end before.
            with mock.patch.dict(train_test.ENVIRONMENT, train_test.hold(chance.randrange(60))):
                started = run.start()
            time.sleep(chance.uniform(1, 6))
            while not (processes := sorted(run.processes().items())):
                time.sleep(0.1)
            os.kill(chance.choice(processes)[1], signal.SIGKILL)
            self.assertNotEqual(started.end(), 0, started.text)
        Ranks(chance.choice((1, 2, 3)), runs=runs, base=LONGER).train()
        self.assert_same(Ranks(1, runs=runs, base=LONGER), alone)

    def test_stopped_by_a_signal_to_one_rank(self):
        """As `make stop` on a machine that holds some of the ranks."""
        run = Ranks(3, base=LONGER)
        started = run.cut_short(3, lambda _: os.kill(run.processes()[1], signal.SIGTERM))
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
