#!/usr/bin/env python3
"""Turns: a party that is measured has the machine alone, and no party loses by it."""
import os
import sys
import tempfile
import threading
import time
import unittest

from tools.bench import bench_process, bench_turns
from tools.plan import kconfig
from tools.testing import tap

# Counts in a file, as does a process that it starts in another session; answers lines.
COUNTER = """
import json, os, subprocess, sys, threading, time
def count(path):
    for n in range(10 ** 9):
        with open(path, "w") as file:
            file.write(str(n))
        time.sleep(0.005)
if sys.argv[2:] == ["child"]:
    count(sys.argv[1] + ".child")
subprocess.Popen([sys.executable, __file__, sys.argv[1], "child"], start_new_session=True)
threading.Thread(target=count, args=(sys.argv[1],), daemon=True).start()
print(json.dumps({}), flush=True)
for line in sys.stdin:
    time.sleep(float(line))
    print(json.dumps([1]), flush=True)
"""


class Turns(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory, self.turns = directory.name, bench_turns.Turns(2)
        kconfig.write_text(os.path.join(self.directory, "counter.py"), COUNTER)

    def start(self, name):
        party = bench_turns.Party(self.turns)
        self.addCleanup(party.leave)
        path = os.path.join(self.directory, name)
        process = party.start([sys.executable, os.path.join(self.directory, "counter.py"), path], path + ".log",
                              os.sched_getaffinity(0), deadline=time.monotonic() + 60)
        self.assertTrue(self.goes_on(path))
        return party, process, path

    @staticmethod
    def counts(path):
        return [open(name, encoding="ascii").read() for name in (path, path + ".child") if os.path.exists(name)]

    def goes_on(self, path):
        """Do both count?"""
        first, end = self.counts(path), time.monotonic() + 20
        while time.monotonic() < end:
            now = self.counts(path)
            if len(now) == len(first) == 2 and all(a != b for a, b in zip(first, now)):
                return True
            first = first if len(first) == 2 else now
            time.sleep(0.01)
        return False

    def test_others_stand_still_and_their_time_does_not_run(self):
        ours, process, path = self.start("ours")
        other, waiting, other_path = self.start("other")
        deadline, started = waiting.deadline, other.started
        with ours.alone():
            with ours.alone():      # the same turn
                pass
            before = self.counts(other_path)
            self.assertTrue(self.goes_on(path))
            self.assertEqual(process.ask(0.3), [1])
            self.assertEqual(self.counts(other_path), before)
        self.assertTrue(self.goes_on(other_path))
        self.assertGreater(waiting.deadline, deadline + 0.3)
        self.assertAlmostEqual(waiting.deadline - deadline, other.started - started, places=6)
        self.assertEqual(waiting.ask(0), [1])

    def test_the_time_of_one_that_is_stopped_is_not_over(self):
        ours, _, _ = self.start("ours")
        _, waiting, _ = self.start("other")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(waiting.ask(0)))
        with ours.alone():
            waiting.deadline = time.monotonic() + 0.1
            thread.start()
            time.sleep(0.4)
            self.assertTrue(thread.is_alive())
            waiting.deadline += 60
        thread.join()
        self.assertEqual(answers, [[1]])

    def test_the_end_reaches_what_is_stopped_and_nothing_starts_after_it(self):
        ours, _, _ = self.start("ours")
        other, waiting, other_path = self.start("other")
        with ours.alone():
            self.turns.end()
            with self.assertRaises(bench_process.Lost):
                waiting.ask(0)
            self.assertFalse(waiting.is_running())
        with self.assertRaisesRegex(bench_process.Lost, "got a signal to end"):
            other.start([sys.executable], other_path + ".log", os.sched_getaffinity(0))
        before = self.counts(other_path)
        time.sleep(0.2)
        self.assertEqual(self.counts(other_path), before)

    def test_a_place_is_given_when_others_have_left(self):
        room, order = bench_turns.Room(10), []

        def ask(size):
            with room.place(size, lambda: order.append((size, "waits"))):
                order.append((size, room.used))
        large, small = (threading.Thread(target=ask, args=(size,)) for size in (20, 3))
        with room.place(6):
            large.start()
            small.start()
            small.join()
        large.join()
        self.assertEqual(sorted(order, key=str), sorted([(20, "waits"), (3, 9), (20, 20)], key=str))
        self.assertGreater(order.index((20, 20)), order.index((3, 9)))


if __name__ == "__main__":
    tap.main()
