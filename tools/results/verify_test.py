#!/usr/bin/env python3
"""Tests of damage to real runs: make notices it, keeps what is good, and names a way out that works."""
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.kablate.train_test import OUTPUT, ROOT, SETTINGS, Tree
from tools.testing import tap

FEW = {**SETTINGS, "GPT2_MAX_ITERS": 6, "EVAL_INTERVAL": 3, "CHECKPOINT_INTERVAL": 3}


class Case(unittest.TestCase):
    """Two runs of one step that are done; every test has its own copy."""
    name = 0

    @classmethod
    def setUpClass(cls):
        Case.name += 1
        cls.place = ROOT / f"verify{Case.name}"
        cls.tree = Tree(cls.place, "smoke", {**FEW, "SEEDS": "1,2"})
        cls.tree.make()
        shutil.copytree(cls.tree.runs, cls.place / "kept")

    def setUp(self):
        self.addCleanup(shutil.copytree, self.place / "kept", self.tree.runs)
        self.addCleanup(shutil.rmtree, self.tree.runs)
        self.run_dir, self.other = sorted(path.parent for path in self.tree.runs.glob("*/*/done"))
        self.journal = self.run_dir / "journal.jsonl"

    def results(self, *words, expect=0):
        done = subprocess.run([OUTPUT / "bin/results", *words], text=True, capture_output=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def rows(self):
        with contextlib.closing(sqlite3.connect(self.tree.runs / "results.db")) as db:
            return [db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
                    for table in ("metrics", "events", "audits", "artifacts")]


class ShorterJournal(Case):
    def test_no_row_is_lost_and_a_copy_heals(self):
        before, whole = self.rows(), self.journal.read_text()
        self.journal.write_text("".join(whole.splitlines(True)[:9]))
        for _ in range(2):
            out = self.tree.make(expect=2)
            self.assertIn(f"{self.journal} has lost lines that the database has", out)
            self.assertEqual(self.rows(), before)
        self.assertNotIn("can be resumed", self.tree.make("status"))
        kept = self.place / "kept" / self.run_dir.relative_to(self.tree.runs)
        self.results("merge", kept, self.tree.runs)
        self.assertEqual(self.journal.read_text(), whole)
        self.tree.make()

    def test_training_again_heals(self):
        self.journal.write_text("".join(self.journal.read_text().splitlines(True)[:9]))
        before = self.rows()
        self.assertIn(f"'make rerun RUN={self.run_dir}'", self.tree.make(expect=2))
        self.tree.make("rerun", f"RUN={self.run_dir}")
        self.assertEqual([len(table) for table in self.rows()], [len(table) for table in before])
        self.tree.make()


if __name__ == "__main__":
    tap.main()
