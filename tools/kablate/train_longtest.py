#!/usr/bin/env python3
"""The long tests of training: many kills, a busy machine, the memory of models as wide as GPT-2.

All of GPT-2's layers, and its whole block, in train_soaktest.py.
"""
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import Case, Run, program, study
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class Kills(Case):
    def test_twenty(self):
        self.kill_often(20)


class Load(Case):
    def test_a_busy_machine_changes_nothing(self):
        """All processors at work, beside twice as many busy loops, and alone."""
        processors = os.cpu_count()
        loop = [sys.executable, "-c", "while True: pass"]
        binary = study(THREADS=processors)
        hashes = []
        for busy in (2 * processors, 0):
            loops = [subprocess.Popen(loop) for _ in range(busy)]
            try:
                run = Run(binary)
                run.train()
                hashes.append(run.weights())
            finally:
                for process in loops:
                    process.kill()
                    process.wait()
        self.assertEqual(len(set(hashes)), 1, hashes)


class Memory(train_test.Limits):
    """At the width and vocabulary of GPT-2, where each part takes hundreds of MiB."""
    layers = 2
    block = 512

    @unittest.skipIf(os.environ.get("SANITIZE"), "sanitizers need terabytes of address space")
    def test_what_passes_the_check_ends(self):
        for more in ({"EVAL_ROWS": 1}, {"EVAL_ROWS": 1, "PRECISION": "bfloat16"},
                     {"EVAL_ROWS": 4, "POS": "rope", "EVAL_LENGTHS": 4 * self.block}):
            with self.subTest(more):
                self.check_with_what_is_needed(program(
                    MODEL_LAYERS=self.layers, MODEL_HEADS=12, MODEL_EMBD=768, MODEL_BLOCK=self.block,
                    MODEL_VOCAB=50304, ATTENTION="dot", TRAIN_BATCH=1, GPT2_MAX_ITERS=1,
                    EVAL_INTERVAL=1, CHECKPOINT_INTERVAL=1, **more))


if __name__ == "__main__":
    tap.main()
