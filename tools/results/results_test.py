#!/usr/bin/env python3
"""Tests of the program `results`, rebuild, merge and every way to misuse it, and of the status of runs."""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import pty
import random
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.results import records, run_program, runs_left
from tools.testing import tap

PROGRAM = pathlib.Path(os.environ.get("O", "build"), "bin/results").resolve()
NOW = time.time()
QUESTIONS = [f"SELECT * FROM {table} ORDER BY 1, 2, 3" for table in
             ("config", "metrics", "events", "audits", "artifacts")]
RUN_COLUMNS = """experiment, step, identity, baseline, seed, repeat, iterations, compiler, flags,
    directory, state, exit_reason, started, ended, heartbeat, resumed, resumed_iteration, pid"""


def birth_of(pid):
    """As core/util/process.c describes a process."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{boot}:{fields[19]}"


def start(iteration=0, host="elsewhere", pid=7, process="a:1", age=100):
    return {"kind": "start", "time": NOW - age, "iteration": iteration, "host": host, "pid": pid,
            "process": process}


def values(first, last, age=0):
    return [{"kind": "value", "time": NOW - age, "iteration": i, "name": name, "value": i / 8}
            for i in range(first, last + 1) for name in ("train/loss", "val/loss")]


END = {"kind": "end", "time": NOW, "state": "done", "reason": "all iterations"}
WHOLE = [start(), {"kind": "audit", "time": NOW, "name": "wiring", "subject": "h.0", "passed": 1},
         *values(1, 10), {"kind": "event", "time": NOW, "iteration": 10, "name": "note"},
         {"kind": "artifact", "time": NOW, "name": "weights", "path": "w", "bytes": 5}, END]

TIMED = [{**line, "time": NOW - 100 + i} for i, line in enumerate(WHOLE)]


def identity_of(name):
    """As long as that of a run."""
    return hashlib.sha256(name.encode()).hexdigest()


def write_run(runs, name, lines=WHOLE, experiment="ra", step="0-baseline", **record):
    directory = pathlib.Path(runs, experiment, name)
    directory.mkdir(parents=True)
    record = {"format": 1, "experiment": experiment, "step": step, "identity": identity_of(name), "seed": 1,
              "repeat": 0, "iterations": 20, "git_dirty": False, "threads": 2,
              "config": {"A": "1", "B": "x"}, **record}
    (directory / "run.json").write_text(json.dumps(record))
    (directory / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def contents(runs):
    """All that a database says, without its own numbers for runs."""
    with sqlite3.connect(f"{runs}/results.db") as db:
        tables = [db.execute(question).fetchall() for question in QUESTIONS]
        return tables + db.execute(f"SELECT {RUN_COLUMNS} FROM runs ORDER BY identity").fetchall()


class Case(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        self.runs = self.place / "runs"
        self.other = self.place / "other"

    def results(self, *words, expect=0):
        return self.call([PROGRAM, *map(str, words)], self.place, expect)

    def status(self, *words, expect=0):
        return self.call(self.status_command(*words), None, expect)

    def status_command(self, *words):
        return [sys.executable, "-m", "tools.results.status", "--runs", self.runs, *words]

    def call(self, command, place, expect):
        done = subprocess.run(command, cwd=place, text=True, capture_output=True, timeout=300, errors="backslashreplace")
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def ask(self, question, runs=None):
        with sqlite3.connect(f"{runs or self.runs}/results.db") as db:
            return db.execute(question).fetchone()[0]


class Rebuild(Case):
    def test_from_nothing(self):
        write_run(self.runs, "a1")
        write_run(self.runs, "a2", step="1-x")
        write_run(self.runs, "b1", experiment="w2")
        self.assertIn("3 updated, 0 unchanged, 0 with problems", self.results("rebuild"))
        self.assertEqual(self.ask("SELECT count(*) FROM runs WHERE state = 'done'"), 3)
        self.assertEqual(self.ask("SELECT count(*) FROM experiments"), 2)
        self.assertEqual(self.ask("SELECT count(*) FROM metrics"), 60)
        self.assertEqual(self.ask("SELECT sum(value) FROM metrics WHERE run = 1"), 55 / 4)
        self.assertEqual(self.ask("SELECT count(*) FROM config WHERE value = 'x'"), 3)

    def test_again_changes_nothing(self):
        write_run(self.runs, "a1")
        self.results("rebuild")
        before = contents(self.runs)
        self.results("rebuild", self.runs)
        self.assertEqual(contents(self.runs), before)

    def test_a_damaged_database_is_put_aside(self):
        write_run(self.runs, "a1")
        self.results("rebuild")
        before = contents(self.runs)
        for damage in (lambda b: b"x" * len(b), lambda b: b[:6000],
                       lambda b: b[:4096] + b"\x17" * 8192 + b[12288:]):
            database = self.runs / "results.db"
            database.write_bytes(damage(database.read_bytes()))
            damaged = database.read_bytes()
            self.assertIn("put aside", self.results("rebuild"))
            self.assertEqual(contents(self.runs), before)
            aside = list(self.runs.glob("results.db.damaged-*"))
            self.assertEqual([path.read_bytes() for path in aside], [damaged])
            aside[0].unlink()

    def test_a_damaged_schema_is_put_aside(self):
        """The message of each program advises to rebuild, which helps."""
        write_run(self.runs, "a1")
        self.results("rebuild")
        sound, before = (self.runs / "results.db").read_bytes(), contents(self.runs)
        edit = "PRAGMA writable_schema = 1; "
        for damage in ("DROP TABLE metrics", "DROP VIEW overview", "PRAGMA user_version = -3",
                       "ALTER TABLE runs RENAME COLUMN step TO stop",
                       "PRAGMA user_version = 0", "PRAGMA user_version = 1",
                       edit + "UPDATE sqlite_schema SET sql = 'CREATE TABLE x(' WHERE name = 'runs'",
                       edit + "UPDATE sqlite_schema SET sql = replace(sql, 'value', 'valve') WHERE name = 'metrics'",
                       edit + "DELETE FROM sqlite_schema WHERE name = 'metrics'"):
            with self.subTest(damage):
                (self.runs / "results.db").write_bytes(sound)
                with sqlite3.connect(self.runs / "results.db") as db:
                    db.executescript(damage)
                said = self.results("update", expect=1) if "version = 1" in damage else self.status(expect=1)
                self.assertIn("'results rebuild' recreates it", said)
                if "overview" not in damage and "version = 1" not in damage:
                    with self.assertRaisesRegex(records.Problem, "'results rebuild' recreates it"):
                        records.read_experiment(records.connect(self.runs / "results.db"), "ra")
                self.assertIn("put aside", self.results("rebuild"))
                self.assertIn("1 done", self.status())
                self.assertEqual(contents(self.runs), before)

    def test_what_a_user_added_is_no_damage(self):
        write_run(self.runs, "a1")
        self.results("rebuild")
        with sqlite3.connect(self.runs / "results.db") as db:
            db.executescript("CREATE INDEX mine ON events (kind); CREATE TABLE notes (text)")
        self.assertNotIn("put aside", self.results("rebuild"))
        self.assertEqual(self.ask("SELECT count(*) FROM notes"), 0)

    def test_what_is_no_file(self):
        """Nothing waits for the other end of a FIFO."""
        place = write_run(self.runs, "a1")
        database = self.runs / "results.db"
        for make in (os.mkfifo, os.mkdir):
            make(database)
            self.assertIn("runs/results.db is not a regular file", self.status(expect=1))
            for words in (["rebuild"], ["update"], ["merge", self.runs]):
                with self.subTest(make=make.__name__, words=words):
                    self.assertIn("runs/results.db is not a regular file", self.results(*words, expect=1))
            with self.assertRaisesRegex(records.Problem, "is not a regular file"):
                records.connect(database)
            os.unlink(database) if make is os.mkfifo else os.rmdir(database)
        for name in ("run.json", "journal.jsonl"):
            text = (place / name).read_text()
            (place / name).unlink()
            os.mkfifo(place / name)
            self.assertIn(f"{name} is not a regular file", self.results("rebuild", expect=1))
            self.assertIn(f"{name} is not a regular file", self.results("merge", self.runs, "new", expect=1))
            (place / name).unlink()
            (place / name).write_text(text)
        self.results("rebuild")

    def test_values_in_the_database_that_are_none(self):
        """Somebody wrote them there: no program names a file after them, and rebuild is rid of them."""
        write_run(self.runs, "a1")
        self.results("rebuild")
        sound, before = (self.runs / "results.db").read_bytes(), contents(self.runs)
        for change in ("experiments SET name = '../../x'", "runs SET experiment = 'x'", "runs SET step = '-rf'",
                       "runs SET identity = '$(shell id)'", "runs SET baseline = 'a b'",
                       "runs SET identity = 'ab'", "runs SET seed = '1/../../x'", "runs SET started = 'x'",
                       "runs SET machine = x'ff'", "metrics SET value = 'x'", "metrics SET iteration = iteration || 'x'",
                       "config SET value = x'ff'", "audits SET passed = 'x'"):
            with self.subTest(change):
                (self.runs / "results.db").write_bytes(sound)
                with sqlite3.connect(self.runs / "results.db") as db:
                    db.execute(f"UPDATE {change}")
                with (self.assertRaisesRegex(records.Problem, "'results rebuild' recreates it"),
                      contextlib.closing(records.connect(self.runs / "results.db")) as db):
                    for name in records.experiments(db):
                        records.read_experiment(db, name)
                self.results("rebuild")
                self.assertEqual(contents(self.runs), before)

    def test_flipped_bytes(self):
        """Wherever they are: a sentence or a result; and rebuild heals what cannot be read."""
        write_run(self.runs, "a1")
        self.results("rebuild")
        database = self.runs / "results.db"
        sound, told = database.read_bytes(), 0
        places = random.Random(1)
        flips = [sound.index(b"train/loss"), sound.index(b"0-baseline"), sound.rindex(b"wiring"),
                 *(places.randrange(100, len(sound)) for _ in range(60))]
        for place in flips:
            database.write_bytes(sound[:place] + bytes([sound[place] ^ 0x80]) + sound[place + 1:])
            try:
                records.read_experiment(records.connect(database), "ra")
            except records.Problem as problem:
                told += "'results rebuild' recreates it" in str(problem)
                if "recreates it" in str(problem):
                    self.results("rebuild")
                    records.read_experiment(records.connect(database), "ra")
        self.assertGreater(told, 3)

    def test_one_bad_run_does_not_hide_the_others(self):
        (write_run(self.runs, "a1") / "run.json").write_text("{")
        journal = write_run(self.runs, "a2") / "journal.jsonl"
        journal.write_text("nonsense\n" + journal.read_text())
        write_run(self.runs, "a3")
        out = self.results("rebuild", expect=1)
        self.assertIn("a1/run.json: not a JSON object", out)
        self.assertIn("a2/journal.jsonl: line 1 is damaged", out)
        self.assertIn("1 updated, 0 unchanged, 2 with problems", out)
        self.assertEqual(self.ask("SELECT identity FROM runs"), identity_of("a3"))

    def test_a_torn_end_is_left_out(self):
        journal = write_run(self.runs, "a1", WHOLE[:-1]) / "journal.jsonl"
        text = journal.read_text()
        journal.write_text(text + '{"kind":"end","time":5,"sta')
        self.results("rebuild")
        self.assertEqual(self.ask("SELECT state FROM runs"), "running")
        self.assertEqual(self.ask("SELECT count(*) FROM metrics"), 20)

    def test_a_lost_end_is_told(self):
        directory = write_run(self.runs, "a1", WHOLE[:-1])
        (directory / "done").touch()
        self.assertIn("ra/a1 is done, but the end of its journal.jsonl is lost",
                      self.results("rebuild", expect=1))
        self.assertEqual(self.ask("SELECT count(*) FROM metrics"), 20)

    def test_sums(self):
        """Lines that vouch for themselves; the first ones of an older form."""
        with_sums = self.summed(WHOLE, 0)
        mixed = self.summed(WHOLE, 9)
        for number, lines in enumerate((with_sums, mixed)):
            journal = write_run(self.runs / str(number), "a1", []) / "journal.jsonl"
            journal.write_text("".join(lines))
            self.results("rebuild", self.runs / str(number))
            self.assertEqual(self.ask("SELECT count(*) FROM metrics", self.runs / str(number)), 20)
        self.assertIn("1 added", self.results("merge", self.runs / "1", self.runs / "new"))

    def summed(self, lines, first):
        """As core/record/line_sum.h says."""
        texts, running = [], ""
        for number, line in enumerate(lines, 1):
            text = json.dumps(line, separators=(",", ":"))
            if number > first:
                text = text[:-1] + f',"line":{number}'
            running = hashlib.sha256((running + text).encode()).hexdigest()[:16]
            texts.append(text + (f',"sum":"{running}"}}\n' if number > first else "\n"))
        return texts

    def test_what_sums_do_not_fit_is_told(self):
        lines = self.summed(WHOLE, 9)
        number = len(lines) - 4
        for how, wrong in (
                ("changed", [*lines[:number], lines[number].replace("val/", "var/"),
                             *lines[number + 1:]]),
                ("changed at the end", [*lines[:-1], lines[-1].replace("done", "doze")]),
                ("older form changed", [lines[0].replace("0", "1"), *lines[1:]]),
                ("lost", lines[:number] + lines[number + 1:]),
                ("doubled", lines[:number] + lines[number - 1:]),
                ("exchanged", [*lines[:number], lines[number + 1], lines[number],
                               *lines[number + 2:]]),
                ("without sum", [*lines[:number], re.sub(',"sum".*"', "", lines[number]),
                                 *lines[number + 1:]])):
            with self.subTest(how):
                runs = self.runs / how.replace(" ", "-")
                journal = write_run(runs, "a1", []) / "journal.jsonl"
                journal.write_text("".join(wrong))
                self.assertRegex(self.results("rebuild", runs, expect=1),
                                 "a1/journal.jsonl: line [0-9]+ is damaged")
                self.assertRegex(self.results("merge", runs, self.runs / "new", expect=1),
                                 "a1/journal.jsonl: line [0-9]+ is damaged")

    def test_swapped_journals_are_refused(self):
        """The first line names the run; a sum vouches for it."""
        for place in ("plain", "summed"):
            runs = self.place / place
            names = ("a1", "a2")
            for name in names:
                lines = [{**start(), "run": identity_of(name)}, *WHOLE[1:]]
                journal = write_run(runs, name, []) / "journal.jsonl"
                journal.write_text("".join(self.summed(lines, 99 if place == "plain" else 0)))
            self.results("rebuild", runs)
            before = contents(runs)
            journals = [runs / "ra" / name / "journal.jsonl" for name in names]
            texts = [journal.read_text() for journal in journals]
            for journal, text in zip(journals, reversed(texts)):
                journal.write_text(text)
            for words in (("rebuild", runs), ("merge", runs, self.place / f"{place}-merged")):
                out = self.results(*words, expect=1)
                self.assertIn(f"a1/journal.jsonl is the journal of another run: line 1 is of {identity_of('a2')[:12]}, "
                              f"this run is {identity_of('a1')[:12]}", out)
                self.assertIn("0 unchanged, 2 with problems", out)
            self.assertEqual(contents(runs), before)
        journals[0].write_text(texts[0].replace(identity_of("a1"), identity_of("a3")))
        self.assertIn("line 1 is damaged", self.results("rebuild", runs, expect=1))

    def test_a_copied_directory_is_no_second_run(self):
        write_run(self.runs, "a1")
        write_run(self.runs, "copy", identity=identity_of("a1"))
        out = self.results("rebuild", expect=1)
        self.assertIn("ra/copy is the same run as ra/a1", out)
        self.assertEqual(self.ask("SELECT count(*) FROM runs"), 1)

    def test_runs_without_directory_are_kept(self):
        write_run(self.runs, "a1")
        self.results("rebuild")
        os.rename(self.runs / "ra", self.place / "away")
        self.assertIn("0 updated", self.results("rebuild"))
        self.assertEqual(self.ask("SELECT count(*) FROM runs"), 1)


class Update(Case):
    """Runs of other machines write nothing but their journals."""

    def add_line(self, directory, line):
        with open(directory / "journal.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def test_only_what_has_gone_on(self):
        first = write_run(self.runs, "a1", WHOLE[:8])
        write_run(self.runs, "a2")
        self.assertIn("2 updated, 0 unchanged", self.results("update"))
        self.assertEqual(self.results("update"), "")
        self.add_line(first, {**END, "time": NOW + 1})
        self.assertIn("1 updated, 1 unchanged", self.results("update", self.runs))
        updated = contents(self.runs)
        self.results("rebuild")
        self.assertEqual(contents(self.runs), updated)

    def test_a_shorter_journal_takes_no_rows(self):
        """Also not the second time; a copy of the journal brings everything back."""
        run = write_run(self.runs, "a1", TIMED)
        copy = write_run(self.other, "a1", TIMED)
        (run / "done").touch()
        self.results("update")
        whole, lines = contents(self.runs), (run / "journal.jsonl").read_text().splitlines(True)
        for kept in (0, 1, 5, len(lines) - 1):
            (run / "journal.jsonl").write_text("".join(lines[:kept]))
            for command in ("update", "rebuild", "update"):
                out = self.results(command, expect=1)
                self.assertIn("runs/ra/a1/journal.jsonl has lost lines that the database has; its rows "
                              "are kept", out)
                self.assertIn("'make rerun RUN=runs/ra/a1'", out)
                self.assertEqual(contents(self.runs), whole)
            self.assertIn("1 run: 1 done", self.status())
            self.assertIn("1 updated", self.results("merge", copy))
            self.assertEqual((run / "journal.jsonl").read_text(), "".join(lines))
            self.assertEqual(contents(self.runs), whole)
            self.assertEqual(self.results("update"), "")

    def test_a_run_that_went_back_has_fewer_rows(self):
        """Its journal was cut to a checkpoint, and a later start follows."""
        run = write_run(self.runs, "a1")
        self.results("update")
        again = start(5, age=-1)
        (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in
                                                   [*WHOLE[:12], again]))
        self.assertIn("1 updated", self.results("update"))
        self.assertEqual(self.ask("SELECT max(iteration) FROM metrics"), 5)

    def test_a_run_at_work_may_be_about_to_start_again(self):
        run = write_run(self.runs, "a1", TIMED)
        self.results("update")
        (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TIMED[:12]))
        lock = os.open(run, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assertIn("1 updated", self.results("update"))

    def test_a_lost_end_is_reported_every_time(self):
        (write_run(self.runs, "a1", WHOLE[:-1]) / "done").touch()
        for _ in range(3):
            self.assertIn("the end of its journal.jsonl is lost", self.results("update", expect=1))

    def test_half_a_line_is_none(self):
        run = write_run(self.runs, "a1", WHOLE[:8])
        self.results("update")
        with open(run / "journal.jsonl", "a", encoding="utf-8") as file:
            file.write('{"kind":"end","ti')
        self.assertEqual(self.results("update"), "")

    def test_long_lines(self):
        run = write_run(self.runs, "a1", WHOLE[:8])
        self.add_line(run, {"kind": "event", "time": NOW + 1, "iteration": 10, "name": "sample",
                            "text": "x" * 9000})
        self.results("update")
        self.assertEqual(self.ask("SELECT length(text) FROM events"), 9000)

    def test_a_problem_is_told(self):
        run = write_run(self.runs, "a1")
        write_run(self.runs, "a2")
        (run / "run.json").write_text("{")
        self.assertIn("1 updated, 0 unchanged, 1 with problems", self.results("update", expect=1))

    def lease(self, seconds):
        (self.runs / "results.db-writer").write_text(f"another-boot {int(time.time()) + seconds} there\n")

    def test_another_machine_is_waited_for(self):
        write_run(self.runs, "a1")
        self.results("update")
        write_run(self.runs, "a2")
        self.lease(3)
        before = (self.runs / "results.db").read_bytes()
        self.assertIn("1 run: 1 done", self.status())
        self.assertEqual((self.runs / "results.db").read_bytes(), before)
        self.assertIn("1 updated", self.results("update"))
        self.assertIn(birth_of(os.getpid()).partition(":")[0],
                      (self.runs / "results.db-writer").read_text())


class Record(Case):
    """tools/results/run_program.py makes a directory and words for make from a run.json."""

    def read(self, **changes):
        directory = write_run(self.place / f"{len(list(self.place.iterdir()))}", "a1")
        path = directory / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return run_program.read_record(directory)

    def test_names_that_are_none(self):
        for identity in ("$(shell id)", "../../x", "", "a" * 12, "A" * 64, identity_of("a") + "/", 7, None, ["x"]):
            with self.subTest(identity), self.assertRaisesRegex(records.Problem, "expected 64 hexadecimal"):
                self.read(identity=identity)
        for config in ({"A=B": "1"}, {"A\nCONFIG_B": "1"}, {"A": "1\nCONFIG_B=y"}, {"A": 1}, {"": "x"}, [], "x", None):
            with self.subTest(config), self.assertRaises(records.Problem):
                self.read(config=config)
        self.assertEqual(self.read(config={"A": "$(id) ü"}), (identity_of("a1"), {"A": "$(id) ü"}))

    def test_no_json(self):
        for text in ("", "[", "[]", "null", '"x"', "[" * 100000):
            (self.place / "run.json").write_text(text)
            with self.subTest(text[:9]), self.assertRaisesRegex(records.Problem, "run.json: "):
                run_program.read_record(self.place)


class Merge(Case):
    def test_a_run_that_starts_is_left_alone(self):
        """A run locks its directory before it opens its journal."""
        write_run(self.other, "a1")
        ours = self.runs / "ra/a1"
        ours.mkdir(parents=True)
        lock = os.open(ours, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assertIn("a process is working on this run", self.results("merge", self.other, expect=1))
        self.assertEqual(list(ours.iterdir()), [])
        fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertIn("1 added", self.results("merge", self.other))

    def declare(self, runs, *words):
        path = pathlib.Path(runs, "ra/declaration.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"declarations": [{"time": i, "declared": word}
                                                     for i, word in enumerate(words)]}))
        return path

    def test_declarations_come_along(self):
        write_run(self.other, "a1")
        theirs, ours = self.declare(self.other, "x"), self.runs / "ra/declaration.json"
        self.assertIn("2 added", self.results("merge", self.other))
        self.assertEqual(ours.read_text(), theirs.read_text())
        self.assertIn("0 added, 0 updated, 2 unchanged", self.results("merge", self.other))
        self.declare(self.other, "x", "y")
        self.assertIn("1 updated", self.results("merge", self.other / "ra"))
        self.assertEqual(ours.read_text(), theirs.read_text())
        before = self.declare(self.runs, "x", "y", "z").read_text()
        self.assertIn("0 with problems", self.results("merge", self.other))
        self.declare(self.other, "other")
        self.assertIn("declare different things", self.results("merge", self.other, expect=1))
        self.assertEqual(ours.read_text(), before)
        theirs.write_text("[]")
        self.assertIn("no list of declarations", self.results("merge", self.other, expect=1))

    def test_new_runs_are_added(self):
        write_run(self.runs, "a1")
        write_run(self.other, "a2")
        write_run(self.other, "b1", experiment="w2")
        self.results("rebuild")
        out = self.results("merge", self.other)
        self.assertIn("added runs/ra/a2", out)
        self.assertIn("2 added, 0 updated, 0 unchanged, 0 with problems", out)
        self.assertEqual(self.ask("SELECT count(*) FROM runs"), 3)
        merged = contents(self.runs)
        self.assertIn("2 unchanged", self.results("merge", self.other))
        self.assertEqual(contents(self.runs), merged)
        self.results("rebuild")
        self.assertEqual(contents(self.runs), merged)

    def test_what_ended_is_done_here_too(self):
        write_run(self.other, "a1")
        write_run(self.other, "a2", WHOLE[:8])
        self.results("merge", self.other)
        self.assertTrue((self.runs / "ra/a1/done").exists())
        self.assertFalse((self.runs / "ra/a2/done").exists())

    def test_a_merge_that_was_killed_is_completed(self):
        """It writes journal and record before it says that the run is done, and before the database has it."""
        write_run(self.other, "a1")
        self.results("merge", self.other)
        merged = contents(self.runs)
        (self.runs / "ra/a1/done").unlink()
        (self.runs / "results.db").unlink()
        self.assertIn("0 added, 1 updated, 0 unchanged", self.results("merge", self.other))
        self.assertEqual(contents(self.runs), merged)
        self.assertTrue((self.runs / "ra/a1/done").exists())
        self.assertIn("0 added, 0 updated, 1 unchanged", self.results("merge", self.other))

    def test_a_run_by_any_of_its_names(self):
        write_run(self.other, "a1")
        self.results("merge", self.other / "ra/a1/.")
        self.assertTrue((self.runs / "ra/a1/run.json").exists())
        self.assertFalse((self.runs / "ra/run.json").exists())

    def test_into_nothing(self):
        write_run(self.other, "a1")
        self.results("merge", self.other, "fresh")
        self.results("rebuild", self.other)
        self.assertEqual(contents(self.place / "fresh"), contents(self.other))

    def test_the_longer_story_wins(self):
        write_run(self.runs, "a1", WHOLE[:8])
        write_run(self.other, "a1")
        write_run(self.runs, "a2")
        write_run(self.other, "a2", WHOLE[:8])
        out = self.results("merge", self.other)
        self.assertIn("updated runs/ra/a1", out)
        self.assertIn("0 added, 1 updated, 1 unchanged", out)
        self.results("rebuild")
        self.assertEqual(self.ask("SELECT count(*) FROM runs WHERE state = 'done'"), 2)

    def test_conflicts_are_told_and_ours_is_kept(self):
        ours = write_run(self.runs, "a1")
        write_run(self.other, "a1", [WHOLE[0], *values(1, 12), END])
        before = (ours / "journal.jsonl").read_bytes()
        out = self.results("merge", self.other, expect=1)
        self.assertIn("record the same run differently from line 2", out)
        self.assertIn("1 with problems", out)
        self.assertEqual((ours / "journal.jsonl").read_bytes(), before)

    def test_different_runs_of_one_name(self):
        write_run(self.runs, "a1")
        write_run(self.other, "a1", identity=identity_of("ff"))
        self.assertIn("different runs with the same name", self.results("merge", self.other, expect=1))

    def test_names_that_are_none(self):
        """They would become paths, options, or commands."""
        for i, name in enumerate(("..", "../../x", "", "a/b", "-rf", "$(id)", "a b", "x\x1b[2J")):
            for key in ("experiment", "step", "baseline", "identity"):
                with self.subTest(name=name, key=key):
                    other = self.other / f"{i}{key}"
                    write_run(other, "a1", baseline="0-baseline")
                    path = other / "ra/a1/run.json"
                    path.write_text(json.dumps({**json.loads(path.read_text()), key: name}))
                    for words in (("merge", other), ("rebuild", other), ("update", other)):
                        out = self.results(*words, expect=1)
                        self.assertIn(f"run.json: {key} '{name}'".replace("\x1b", "?"), out)
                        self.assertNotIn("\x1b", out)
        self.assertEqual([path for path in self.runs.iterdir() if path.is_dir()], [])

    def test_directories_that_are_no_names(self):
        write_run(self.other, "-rf")
        self.measure(self.other, "$(id)")
        (self.declare(self.other, "x").parent).rename(self.other / "$(id)")
        out = self.results("merge", self.other, expect=1)
        for name in ("directory '-rf'", "file '$(id).json'", "experiment '$(id)'"):
            self.assertIn(name, out)
        self.assertIn("0 added, 0 updated, 0 unchanged, 3 with problems", out)

    def test_symbols_that_are_none(self):
        write_run(self.runs, "a1", config={"A=$(id)": "1"})
        self.assertIn("\"config\": 'A=$(id)' is no symbol", self.results("rebuild", expect=1))

    def measure(self, runs, step, text='{"own": 1}\n', experiment="ra"):
        path = pathlib.Path(runs, experiment, "decode", step + ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_measurements_of_decoding_are_copied(self):
        write_run(self.other, "a1")
        self.measure(self.other, "0-mla")
        self.measure(self.other, "1-w2+lr-5e-3", '{"own": 2}', experiment="w2")
        (self.other / "ra/decode/notes.txt").write_text("no measurement")
        out = self.results("merge", self.other)
        self.assertIn("added runs/ra/decode/0-mla.json", out)
        self.assertIn("3 added, 0 updated, 0 unchanged, 0 with problems", out)
        self.assertEqual((self.runs / "ra/decode/0-mla.json").read_text(), '{"own": 1}\n')
        self.assertEqual((self.runs / "w2/decode/1-w2+lr-5e-3.json").read_text(), '{"own": 2}')
        self.assertEqual([path.name for path in (self.runs / "ra/decode").iterdir()],
                         ["0-mla.json"])
        self.assertIn("0 added, 0 updated, 3 unchanged", self.results("merge", self.other))
        self.assertIn("1 updated, 0 unchanged, 0 with", self.results("rebuild"))

    def test_measurements_of_one_experiment(self):
        """Its name is the directory's, however that is called."""
        self.measure(self.other, "0-mla")
        for i, word in enumerate(("other/ra", "other/ra/", "other/ra/decode/..")):
            self.results("merge", word, f"runs{i}")
            self.assertTrue((self.place / f"runs{i}/ra/decode/0-mla.json").exists())

    def test_other_measurements_are_told_and_ours_are_kept(self):
        for theirs in ('{"own": 2}\n', '{"own": 1}\n\n', '{"own": 1}'):
            ours = self.measure(self.runs, "0-mla")
            self.measure(self.other, "0-mla", theirs)
            self.measure(self.other, "1-w2")
            out = self.results("merge", self.other, expect=1)
            self.assertIn("runs/ra/decode/0-mla.json and ", out)
            self.assertIn("are different measurements; ours is kept", out)
            self.assertIn("1 with problems", out)
            self.assertEqual(ours.read_text(), '{"own": 1}\n')
            self.assertTrue((self.runs / "ra/decode/1-w2.json").exists())

    def test_damaged_measurements_stay_behind(self):
        for text in ("", "{", "[1]", '{"own": 1} x', '{"own": 1}\0{}'):
            self.measure(self.other, "0-mla", text)
            self.assertIn("1 with problems", self.results("merge", self.other, expect=1))
            self.assertFalse((self.runs / "ra/decode/0-mla.json").exists())

    def test_a_missing_directory(self):
        self.assertIn("nowhere: no such directory", self.results("merge", "nowhere", expect=1))


class Status(Case):
    def line(self, lines, **record):
        write_run(self.runs, "a1", lines, **record)
        self.results("rebuild")
        return self.status().splitlines()[1].split(maxsplit=7)

    def test_a_finished_run(self):
        self.assertEqual(self.line(WHOLE), ["ra", "0-baseline", "1", "done", "10/20", "1.2500",
                                            "1.2500", "all iterations"])

    def test_a_living_run(self):
        here = start(5, platform.node(), os.getpid(), birth_of(os.getpid()))
        words = self.line([here, *values(6, 10)])
        self.assertEqual(words[3:], ["running", "10/20", "1.2500", "1.2500", "3.3 min left"])

    def test_no_escape_sequence_reaches_the_terminal(self):
        evil = "\033[2J\033]0;x\a\x9b2J\r"
        write_run(self.runs, "a1", [*WHOLE[:-1], {**END, "state": evil, "reason": evil}])
        write_run(self.runs, "a2", [start(host=evil), *WHOLE[1:-1]], step="1-x")
        self.results("rebuild")
        with sqlite3.connect(self.runs / "results.db") as db:
            db.execute("UPDATE experiments SET name = ?", (evil,))
            db.execute("UPDATE runs SET seed = ?", (evil,))
            db.execute("UPDATE runs SET step = ? WHERE step = '1-x'", (evil,))
        self.assertEqual(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", self.status()), [])

    def test_a_dead_run(self):
        child = subprocess.Popen(["sleep", "60"])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        here = start(0, platform.node(), child.pid, birth_of(child.pid))
        words = self.line([here, *values(1, 10)])
        self.assertEqual(words[3], "running")
        child.send_signal(signal.SIGKILL)
        child.wait()
        out = self.status().splitlines()[1]
        self.assertIn(" died ", out)
        self.assertIn("can be resumed", out)

    def test_done_without_an_end_cannot_be_resumed(self):
        run = write_run(self.runs, "a1", [start(0, platform.node(), os.getpid(), "another boot:1")])
        self.results("rebuild")
        (run / "done").touch()
        out = self.status()
        self.assertIn("it is done, but the database lacks its end: see 'results update'", out)
        self.assertNotIn("can be resumed", out)

    def test_a_number_given_to_a_later_process(self):
        words = self.line([start(0, platform.node(), os.getpid(), "another boot:1")])
        self.assertEqual(words[3], "died")

    def test_a_run_that_never_began(self):
        self.assertEqual(self.line([])[3:7], ["died", "0/20", "-", "-"])

    def test_a_run_elsewhere(self):
        words = self.line([start(), *values(1, 3, age=120)])
        self.assertEqual(words[3], "running")
        self.assertRegex(words[7], r"on elsewhere, last heard of \d+\.\d min ago")

    def test_not_a_number_is_shown(self):
        lines = [start(), {"kind": "value", "time": NOW, "iteration": 3, "name": "train/loss",
                           "value": "nan"}]
        self.assertEqual(self.line(lines)[4:6], ["3/20", "-"])

    def test_steps_in_their_order(self):
        for i in (10, 9, 1):
            write_run(self.runs, f"a{i}", step=f"{i}-x")
        self.results("rebuild")
        lines = self.status().splitlines()
        self.assertEqual([line.split()[1] for line in lines], ["STEP", "1-x", "9-x", "10-x", "runs:"])
        self.assertEqual(lines[-1], "3 runs: 3 done")

    def test_all_runs_together(self):
        here = start(5, platform.node(), os.getpid(), birth_of(os.getpid()))
        write_run(self.runs, "a1")
        write_run(self.runs, "a2", [here, *values(6, 10)])
        write_run(self.runs, "a3", [])
        self.results("rebuild")
        self.assertEqual(self.status().splitlines()[-1],
                         "3 runs: 1 done, 1 running, 3.3 min left, 1 stopped before their end")

    def test_a_terminal_gets_colours_and_lines_that_fit(self):
        write_run(self.runs, "a1", [])
        self.results("rebuild")

        def shown(**environment):
            main, other = pty.openpty()
            fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
            outside = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
            subprocess.run(self.status_command(), stdout=other, check=True,
                           env=outside | {"TERM": "xterm", **environment})
            os.close(other)
            text = os.read(main, 5000).decode()
            os.close(main)
            return text.splitlines()
        plain = shown(NO_COLOR="1")
        self.assertNotIn("\033", "".join(plain))
        self.assertLessEqual(max(map(len, plain)), 90)
        self.assertRegex(shown()[1], r"\033\[31mdied *\033\[m")
        self.assertEqual([re.sub(r"\033\[\d*m", "", line) for line in shown()], plain)

    def test_one_experiment_alone(self):
        write_run(self.runs, "a1", experiment="ra")
        write_run(self.runs, "b1", experiment="a-longer-name-than-others")
        self.results("rebuild")
        self.assertEqual(len(self.status().splitlines()), 4)
        lines = self.status("--experiment", "ra").splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["EXPERIMENT", "ra", "1"])
        self.assertTrue(lines[0].startswith("EXPERIMENT  STEP"))
        self.assertIn("there is no experiment 'rb'",
                      self.status("--experiment", "rb", expect=1))

    def test_watch_goes_on(self):
        write_run(self.runs, "a1")
        self.results("rebuild")
        with subprocess.Popen(self.status_command("--watch", "0.05"), text=True, stdout=subprocess.PIPE) as watch:
            lines = [watch.stdout.readline() for _ in range(12)]
            watch.terminate()
        self.assertEqual(sum("all iterations" in line for line in lines), 3)

    def test_no_database(self):
        self.assertIn("runs/results.db: no database; 'make' trains", self.status(expect=1))
        self.assertFalse(self.runs.exists())


class Left(Case):
    """What make says when a run begins."""

    def say(self, this, *names):
        return runs_left.line(str(self.runs / "results.db"), [f"runs/ra/{name}" for name in names],
                              f"runs/ra/{this}")

    def test_line(self):
        names = [f"{i}-x-1-{i}{'0' * 11}" for i in range(4)]
        self.assertEqual(self.say(names[1], *names), "run 2 of 4")
        begun = {"kind": "start", "time": NOW, "iteration": 0, "host": "h", "pid": 1, "process": "p"}
        ended = {"kind": "end", "time": NOW + 90, "state": "done"}
        half = {"kind": "value", "time": NOW + 45, "iteration": 10, "name": "train/loss", "value": 1}
        write_run(self.runs, names[0], [begun, ended], identity=names[0][-12:] + "f" * 52)
        self.results("rebuild")
        self.assertEqual(self.say(names[1], *names), "run 2 of 4, 1 done, 4.5 min left")
        write_run(self.runs, names[1], [begun, half], identity=names[1][-12:] + "f" * 52)
        self.results("rebuild")
        # 45 s of one that runs and two of 90 s, two at a time.
        self.assertEqual(self.say(names[2], *names), "run 3 of 4, 1 done, 1 running, 1.9 min left")

    def test_a_clock_that_was_set_back(self):
        names = [f"{i}-x-1-{i}{'0' * 11}" for i in range(2)]
        begun = {"kind": "start", "time": NOW, "iteration": 0, "host": "h", "pid": 1, "process": "p"}
        ended = {"kind": "end", "time": NOW - 90, "state": "done"}
        write_run(self.runs, names[0], [begun, ended], identity=names[0][-12:] + "f" * 52)
        self.results("rebuild")
        self.assertEqual(self.say(names[1], *names), "run 2 of 2, 1 done")


class Documentation(Case):
    """docs/database.md: its queries run, its tables are the database's."""

    def setUp(self):
        super().setUp()
        write_run(self.runs, "a1", baseline="0-baseline")
        longer = {"kind": "value", "time": NOW, "iteration": 10, "name": "length/4096/loss/2048",
                  "value": 2.5}
        write_run(self.runs, "a2", [*WHOLE[:-1], longer, END], step="1-x", baseline="0-baseline",
                  config={"A": "2"})
        self.results("rebuild")
        self.text = (pathlib.Path(__file__).parent / "../../docs/database.md").read_text()
        self.db = sqlite3.connect(self.runs / "results.db")
        self.addCleanup(self.db.close)

    def test_queries(self):
        queries = self.text.split("```sql\n")[1:]
        answers = [self.db.execute(query.partition("```")[0]).fetchall() for query in queries]
        self.assertEqual([len(answer) for answer in answers], [2, 2, 1, 10, 1, 0])
        self.assertEqual(answers[2], [("1-x", 1, 0.0)])
        self.assertEqual(answers[4], [("1-x", 1, 2048, 2.5)])

    def test_columns(self):
        names = [name for name, in self.db.execute("SELECT name FROM sqlite_schema"
                                                   " WHERE type IN ('table', 'view')")]
        self.assertEqual(len(names), 9)
        for name in names:
            self.assertIn(f"`{name}`", self.text)
            for column in self.db.execute(f"PRAGMA table_info({name})"):
                self.assertIn(f"`{column[1]}`", self.text)


class Usage(Case):
    def test_help(self):
        out = self.results("--help")
        for word in ("rebuild", "update", "merge", "verify"):
            self.assertIn(word, out)

    def test_misuse(self):
        for words in ([], ["nonsense"], ["merge"], ["merge", "a", "b", "c"], ["status"], ["update", "a", "b"],
                      ["--nonsense"], ["rebuild", "--nonsense", "x"]):
            self.assertIn("usage: results", self.results(*words, expect=2))


if __name__ == "__main__":
    tap.main()
