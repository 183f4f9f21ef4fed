#!/usr/bin/env python3
"""Training against the clock: these cases fail where other programs keep the processors busy, so
they run alone (tests_that_measure_time in tools/make/tests.mk)."""
import signal
import sqlite3
import sys
import time

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import RESUMABLE, Case, Run, study
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class Budget(Case):
    def test_the_budget_of_time_outlives_interruptions(self):
        run = Run(study(TRAIN_SECONDS_BUDGET=6, GPT2_MAX_ITERS=1000000, EVAL_INTERVAL=1000,
                        LOG_INTERVAL=10))
        for _ in range(2):
            started = run.start().until("/1000000 ")
            time.sleep(2)
            self.assertEqual(started.send(signal.SIGTERM).end(), RESUMABLE)
        run.train()
        self.assertEqual(run.state(), ("budget", "time budget of 6 s is used up"))
        self.assertIn(run.iterations()[-1], run.values("val/loss"))
        times = [line["time"] for line in run.journal() if line["kind"] in ("start", "end")]
        self.assertLess(times[-1] - times[-2], 5.9)     # 2 and the last evaluation, on a disk that may be slow


class Database(Case):
    def test_locked(self):
        """The run waits a while, goes on without, and comes back before it ends."""
        run = Run(study())
        lock = sqlite3.connect(run.runs / "results.db", isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        waiting = run.start()
        try:
            waiting.until("continues with its journal alone")
            lock.close()
            self.assertEqual(waiting.end(), 0)
        finally:
            lock.close()
            if waiting.process.poll() is None:
                waiting.send(signal.SIGKILL).end()
        self.assert_same(run)


if __name__ == "__main__":
    tap.main()
