#!/usr/bin/env python3
"""tools/testing/parsers_longtest.py with ten million inputs for each parser, on all processors.

PARSERS_INPUTS=N asks for fewer.
"""
import collections
import concurrent.futures
import os
import random
import shutil
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import parsers_longtest, tap

INPUTS = int(os.environ.get("PARSERS_INPUTS") or 10**7)
AT_ONCE = 10_000    # of these, one process tries all


class Worker:
    """What a process keeps."""
    parsers = None


def begin(parent):
    parsers_longtest.limit_memory()
    Worker.parsers = parsers_longtest.parsers(parsers_longtest.Place(parent))


def try_part(task):
    """(name, inputs, accepted, seconds, what went wrong)"""
    seed, number, part, inputs = task
    name, read, known, seeds = Worker.parsers[number]
    began, accepted, wrong = time.process_time(), 0, None
    try:
        accepted = parsers_longtest.try_parser(random.Random(f"{seed} {name} {part}"), read, known, seeds, inputs)
    except AssertionError as error:
        wrong = str(error)
    return name, inputs, accepted, time.process_time() - began, wrong


def how_many(parent):
    return len(parsers_longtest.parsers(parsers_longtest.Place(parent)))


class Soak(unittest.TestCase):
    def test_no_other_error(self):
        parent = tempfile.mkdtemp(dir=parsers_longtest.MEMORY)
        self.addCleanup(shutil.rmtree, parent)
        seed = parsers_longtest.seed_of_test()
        sums, wrong = collections.defaultdict(lambda: [0, 0, 0]), []
        tasks = ((seed, number, part, min(AT_ONCE, INPUTS - part)) for number in range(how_many(parent))
                 for part in range(0, INPUTS, AT_ONCE))
        with concurrent.futures.ProcessPoolExecutor(initializer=begin, initargs=(parent,)) as pool:
            for name, *counts, problem in pool.map(try_part, tasks):
                sums[name] = [a + b for a, b in zip(sums[name], counts)]
                wrong += [f"{name}: {problem}"] if problem else []
                if sums[name][0] == INPUTS:
                    print(f"# {name}: {INPUTS} inputs, {sums[name][1]} accepted, {sums[name][2]:.0f} processor seconds", flush=True)
        self.assertEqual(wrong, [])
        self.assertEqual({count[0] for count in sums.values()}, {INPUTS})


if __name__ == "__main__":
    tap.main()
