#!/usr/bin/env python3
"""Every defconfig as a user starts it, cut to two small iterations, and a large plan to some of its steps.

All steps, each with the size that it has, run in defconfigs_soaktest.py.
"""
import contextlib
import json
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import OUTPUT, ROOT, TREE, Tree
from tools.testing import tap

tearDownModule = train_test.tearDownModule


def write_tokens(directory):
    """Token files for the defconfigs that train on text."""
    text = directory / "text.txt"
    text.write_text("\n\n".join(f"Paragraph {i}: {' '.join(str(i * k) for k in range(1, 40))}."
                                for i in range(600)))
    tokens = directory / "tokens"
    subprocess.run([OUTPUT / "bin/data", "prepare", "--out", tokens, text], check=True,
                   capture_output=True)
    return {"DATA_TRAIN": tokens / "train-*.bin", "DATA_VALID": tokens / "valid-*.bin"}


class Defconfigs(unittest.TestCase):
    """Every one builds and runs two iterations of its steps, audits included."""
    most = 3        # steps of a plan
    sizes = {"TRAIN_BATCH": 2}
    wide, instead = 512, {"MODEL_EMBD": 128, "MODEL_BLOCK": 32}     # of models of this width or more
    left_out = "+mqar-few"  # it says itself how long to train, which would undo the cut
    longest = 2     # iterations

    def thin_out(self, name, tree):
        """Takes steps at equal distances, the first and the last among them."""
        tree.make("-n", "steps")    # which makes the plan
        count = len(json.loads((tree.plan / "plan.json").read_text())["steps"])
        if count > self.most:
            chosen = sorted({i * (count - 1) // (self.most - 1) for i in range(self.most)})
            print(f"# {name}: steps {chosen} of {count}")
            tree.set({"RA_MLA_ABLATION_STEPS": ",".join(map(str, chosen))})

    def check(self, name):
        place = pathlib.Path(tempfile.mkdtemp(dir=ROOT))
        tree = Tree(place / "tree", name, {"GPT2_MAX_ITERS": 2, "EVAL_ROWS": 2, "SEEDS": "1", **self.sizes})
        config = (tree.directory / "config").read_text()
        if int(re.search(r"CONFIG_MODEL_EMBD=(\d+)", config)[1]) >= self.wide:
            tree.set(self.instead)
            config = (tree.directory / "config").read_text()
        if "CONFIG_TASK_TEXT=y" in config:
            tree.set(write_tokens(place))
        if 'CONFIG_EVAL_LENGTHS=""' not in config:
            block = int(re.search(r"CONFIG_MODEL_BLOCK=(\d+)", config)[1])
            tree.set({"EVAL_LENGTHS": f"{block},{2 * block}"})  # two rows hold no more tokens
        rates = re.search(r'CONFIG_TUNE_RATES="([^",]+,[^",]+)', config)
        if "CONFIG_TUNE_ALL=y" in config:
            tree.set({"TUNE_RATES": ""})    # a third of the time; w2-copy is tuned below
        elif rates:
            tree.set({"TUNE_RATES": rates[1], "TUNE_SEEDS": "101"})
        fragments = re.search(r'CONFIG_PLAN_FRAGMENTS="(.+)"', config)
        if fragments and self.left_out:
            tree.set({"PLAN_FRAGMENTS": fragments[1].replace(self.left_out, "")})
        if "CONFIG_PLAN_SIZES=y" in config:     # its scales say themselves how long to train
            tree.set({"PLAN_SCALES": "laptop 1m"})
        self.thin_out(name, tree)
        text = tree.make("runs", timeout=1200)
        with contextlib.closing(sqlite3.connect(tree.runs / "results.db")) as db:
            states = db.execute("SELECT step, state FROM runs").fetchall()
            longest, = db.execute("SELECT max(iteration) FROM metrics").fetchone()
        self.assertEqual({state for _, state in states}, {"done"})
        self.assertEqual(len(states), text.count("  RUN "))
        self.assertLessEqual(longest, self.longest)
        self.assertNotIn("RUN ", tree.make("runs"))
        shutil.rmtree(place)


for path in sorted((TREE / "defconfigs").iterdir()):
    if path.is_file():
        setattr(Defconfigs, f"test_{path.name}", lambda self, name=path.name: self.check(name))


if __name__ == "__main__":
    tap.main()
