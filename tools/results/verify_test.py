#!/usr/bin/env python3
"""Tests of damage to real runs: make notices it, keeps what is good, and names a way out that works."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate.train_test import OUTPUT, ROOT, SETTINGS, Tree
from tools.kablate.weights_record_test import without
from tools.testing import tap

FEW = {**SETTINGS, "GPT2_MAX_ITERS": 6, "EVAL_INTERVAL": 3, "CHECKPOINT_INTERVAL": 3}


class Case(unittest.TestCase):
    """Two runs of one step that are done; every test has its own copy."""
    name = 0
    settings = {}

    @classmethod
    def setUpClass(cls):
        Case.name += 1
        cls.place = ROOT / f"verify{Case.name}"
        cls.tree = Tree(cls.place, "smoke", {**FEW, "SEEDS": "1,2", **cls.settings})
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

    def verify(self, *expected):
        """`make verify` fails with exactly these lines, or is content; returns what it said."""
        out = self.tree.make("verify", expect=2 if expected else 0)
        found = [line for line in out.splitlines() if line.startswith("wrong: ")]
        self.assertEqual(len(found), len(expected), out)
        for line, pattern in zip(found, expected):
            self.assertRegex(line, f"^wrong: {pattern}")
        return out

    def rows(self):
        with contextlib.closing(sqlite3.connect(self.tree.runs / "results.db")) as db:
            return [db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
                    for table in ("metrics", "events", "audits", "artifacts")]


def flip(path, place):
    """Changes one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


class Verify(Case):
    def ask(self, statement):
        with contextlib.closing(sqlite3.connect(self.tree.runs / "results.db")) as db, db:
            db.execute(statement)

    def test_sound(self):
        before = self.rows()
        out = self.verify()
        self.assertEqual(out, "2 runs: 2 sound, 0 damaged; 0 wrong\n")
        self.assertEqual(self.rows(), before)
        kept = json.loads((self.tree.runs / "verified.json").read_text())["runs"]
        self.assertEqual(sorted(kept), sorted("/".join(map(json.loads((run / "run.json").read_text()).get,
                                                           ("experiment", "step", "identity")))
                                              for run in (self.run_dir, self.other)))
        self.assertEqual([(entry["bound"], entry["wrong"]) for entry in kept.values()],
                         [(True, [])] * 2)

    def test_reports_are_marked(self):
        self.assertIn("not verified: 2 of 2 runs", self.tree.make("report"))
        self.verify()
        self.assertNotIn("verified", self.tree.make("report"))
        flip(self.run_dir / "weights.safetensors", -5)
        self.verify(f"{self.run_dir}/weights.safetensors: it is damaged")
        self.assertIn("seed 1 is damaged: ", self.tree.make("report"))
        self.journal.write_text(self.journal.read_text()[:900])
        self.tree.make("verify", expect=2)
        self.assertIn("journal.jsonl: the run is done, but its end is lost",
                      " ".join(self.tree.make("report", expect=2).split()))
        self.tree.make("rerun", f"RUN={self.run_dir}")
        self.assertIn("not verified: 1 of 2 runs", self.tree.make("report"))
        self.verify()
        self.assertNotIn("verified", self.tree.make("report"))

    def test_names_with_escape_sequences(self):
        odd = self.run_dir.with_name("\x1b]0;mine\x07\xc2\x9b2J")
        self.run_dir.rename(odd)
        out = self.results("verify", self.tree.runs, expect=1)
        self.assertRegex(out, r"wrong: \S*/\?]0;mine\?\S*: its run.json is of smoke/")
        self.assertNotRegex(out, r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

    def test_journals(self):
        whole = self.journal.read_text()
        self.journal.write_text(whole.replace('"name":"val/loss"', '"name":"val/lass"', 1))
        self.verify(f"{self.journal}: line [0-9]+ is damaged",
                    *[f"{self.journal} was changed|{self.journal} has lost"] * self.checkpoints())
        self.journal.write_text("".join(whole.splitlines(True)[:-1]))
        self.verify(f"{self.journal}: the run is done, but its end is lost")
        self.journal.write_text(whole + "remains of nothing\n")
        self.verify(f"{self.journal}: something follows its end")

    def checkpoints(self):
        return len(list(self.run_dir.glob("checkpoint-*")))

    def test_swapped_journals(self):
        theirs = self.other / "journal.jsonl"
        mine, other = self.journal.read_text(), theirs.read_text()
        self.journal.write_text(other)
        theirs.write_text(mine)
        lost = [".*journal.jsonl was changed within|.*journal.jsonl has lost"] * self.checkpoints()
        self.verify(f"{self.journal} is the journal of another run", *lost,
                    f"{theirs} is the journal of another run", *lost)

    def test_records(self):
        record = self.run_dir / "run.json"
        text = record.read_text()
        record.write_text(text.replace('"iterations":\t6', '"iterations":\t7'))
        self.verify(f"{self.tree.runs}/results.db: table runs differs from {self.run_dir}: it lacks 1 rows "
                    "and has 1 others")
        record.write_text(text.replace('"seed":\t1', '"seed":\t3'))
        self.verify(f"{self.run_dir}: its run.json is of smoke/0-baseline-3-",
                    f"{self.tree.runs}/results.db: table runs differs from {self.run_dir}")
        record.write_text("{")
        self.verify(f"{record}: not a JSON object")
        record.unlink()
        self.verify(f"{self.run_dir}: its run.json is missing")

    def test_weights(self):
        for name in ("weights", "best"):
            path = self.run_dir / f"{name}.safetensors"
            whole = path.read_bytes()
            flip(path, -5)
            self.verify(f"{path}: it is damaged: it has another SHA-256 than it states")
            path.write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
            self.verify(f"{path}: it is damaged", f"{path}: it holds NaN or infinity")
            path.write_bytes(whole[:-1])
            self.verify(f"{path}: ")
            shutil.copy(self.other / path.name, path)
            self.verify(f"{path}: these are weights of another run",
                        *[f"{path}: these are not the weights that the run recorded"] * (name == "weights"))
            path.write_bytes(whole)
        # A file of the same run with other numbers: it is whole, but its journal knows better.
        shutil.copy(self.run_dir / "checkpoint-00000003/weights.safetensors",
                    self.run_dir / "weights.safetensors")
        self.verify(f"{self.run_dir}/weights.safetensors: these are not the weights that the run recorded")
        (self.run_dir / "weights.safetensors").unlink()
        self.assertIn("1 without their weights here", self.verify())

    def test_checkpoints(self):
        for checkpoint in sorted(self.run_dir.glob("checkpoint-*")):
            for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
                whole = (checkpoint / name).read_bytes()
                flip(checkpoint / name, len(whole) // 2)
                self.verify(f"{checkpoint}/{name} is damaged")
                (checkpoint / name).write_bytes(whole)
        checkpoint.rename(self.other / "checkpoint-00000009")
        self.verify(f"{self.other}/checkpoint-00000009/state.json belongs to another configuration")

    def test_database(self):
        database = f"{self.tree.runs}/results.db"
        self.ask("UPDATE metrics SET value = value / 2 WHERE run = 1 AND name = 'val/loss'")
        self.ask("DELETE FROM events WHERE run = 1")
        self.verify(f"{database}: table metrics differs from .*: it lacks ([0-9]+) rows and has \\1 others",
                    f"{database}: table events differs from .*: it lacks [0-9]+ rows and has 0 others")
        self.results("rebuild", self.tree.runs)
        self.ask("UPDATE runs SET step = '9-other' WHERE id = 1")
        self.verify(f"{database}: it lacks .*: 'results rebuild' takes it in")
        self.results("rebuild", self.tree.runs)
        self.verify()
        pathlib.Path(database).write_bytes(b"x" * 5000)
        self.verify(f"{database}: it is damaged")
        pathlib.Path(database).unlink()
        self.assertIn("there is no database", self.results("verify", self.tree.runs, expect=1))
        self.assertFalse(pathlib.Path(database).exists())
        self.results("rebuild", self.tree.runs)
        self.verify()

    def test_rows_without_a_directory(self):
        shutil.rmtree(self.run_dir)
        out = self.verify()
        self.assertIn(f"note: {self.run_dir}: the database has its rows, but its directory is gone", out)

    def test_declarations_and_reports(self):
        declaration = self.run_dir.parent / "declaration.json"
        entry = {"time": 5, "declared": None}
        declaration.write_text(json.dumps({"declarations": [entry, {**entry, "time": 6}]}))
        self.verify()
        for text in ("", "{", "{}", json.dumps({"declarations": [entry, {**entry, "time": 4}]}),
                     json.dumps({"declarations": [{**entry, "declared": "x"}]})):
            declaration.write_text(text)
            self.verify(f"{declaration}: (not JSON|no list of declarations)")
        declaration.unlink()
        report = self.run_dir.parent / "report/report.md"
        report.write_text(report.read_text().replace("0", "1", 1))
        self.verify(f"{report}: it is not what 'make report' wrote")
        self.tree.make("report")
        report.unlink()
        self.verify(f"cannot open {report}: No such file")
        report.with_name("said.json").write_text('{"files": ["a list"]}')
        self.assertIn("without hashes", self.verify())

    def test_runs_of_an_earlier_program(self):
        """They are read, compared as far as that is possible, and marked."""
        self.journal.write_text(re.sub('(,"run":"[0-9a-f]+")?,"line":[0-9]+,"sum":"[0-9a-f]+"', "",
                                       self.journal.read_text()))
        for path in self.run_dir.glob("checkpoint-*"):
            shutil.rmtree(path)
        for path in self.run_dir.glob("*.safetensors"):
            without(path, "file_sha256")
        self.results("rebuild", self.tree.runs)
        out = self.verify(f"{self.run_dir}/weights.safetensors: these are not the weights")  # its size
        self.assertIn(f"note: {self.run_dir}: unbound: its journal.jsonl names no run", out)
        self.assertIn(f"note: {self.run_dir}/best.safetensors: an earlier program wrote it, without its hash", out)
        self.assertIn("1 with an unbound journal", out)

    def test_a_run_at_work(self):
        lock = os.open(self.run_dir, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.journal.write_text("")
        self.assertIn(f"note: {self.run_dir}: a process is working on it: not verified", self.verify())


class Declared(Case):
    """Runs record what was declared before them."""
    settings = {"MARGIN": "0.01"}

    def test_a_later_change_shows(self):
        declaration = self.run_dir.parent / "declaration.json"
        self.verify()
        self.tree.set({"MARGIN": "0.02"})
        self.assertNotIn("RUN ", self.tree.make())
        whole = declaration.read_text()
        self.assertEqual(len(json.loads(whole)["declarations"]), 2)
        self.verify()
        lines = [f"{declaration}: it no longer says what was declared when {run} began"
                 for run in (self.run_dir, self.other)]
        declaration.write_text(whole.replace("0.01", "0.03"))
        self.verify(*lines)
        declaration.write_text(whole.replace("0.02", "0.03"))   # after the runs: nothing to compare
        self.verify()
        declaration.unlink()
        self.verify(*lines)


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
