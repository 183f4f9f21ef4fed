#!/usr/bin/env python3
"""In a run directory of others, any file may be a FIFO, a device or a directory: no reader waits, and each ends with
a result or a sentence."""
import contextlib
import io
import os
import pathlib
import resource
import shutil
import signal
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.cluster import jobs, journals, slurm, status
from tools.export import tokenizer, trackers, weights
from tools.plan import declaration, kconfig, token_files
from tools.report import decoding, report, values
from tools.results import archive, notes, records, run_program, time_left
from tools.testing import made_up, tap

SECONDS = 120    # far more than a reader takes that does not wait
MEMORY = 2 << 30
SENTENCES = records.Problem, kconfig.Unfit, archive.Refused, weights.Damaged, slurm.Problem, tokenizer.Unfit, OSError


def hangs(*_):
    raise AssertionError(f"still reading after {SECONDS} s")


class Foreign(unittest.TestCase):
    def setUp(self):
        self.runs = made_up.Runs()
        self.addCleanup(shutil.rmtree, self.runs.path)
        self.runs.study(seeds=(1, 2, 3))
        self.runs.rebuild()
        self.path = pathlib.Path(self.runs.path)
        self.experiment = next(entry.name for entry in self.path.iterdir() if entry.is_dir())
        self.top = self.path / self.experiment
        self.run = next(path.parent for path in self.top.glob("*/run.json"))
        before = signal.signal(signal.SIGALRM, hangs)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.alarm, 0)

    def readers(self):
        """What reads each file."""
        runs, experiment, run = self.runs.path, self.experiment, self.run
        out = str(self.path / "out")
        with contextlib.closing(records.connect(self.path / "results.db")) as db:
            steps = records.read_experiment(db, experiment)
        publish = lambda: archive.publish(runs, experiment, out)
        table = lambda: report.main(["--runs", runs, "report", experiment])
        return [
            (run / "run.json", lambda: run_program.read_record(run), lambda: journals.planned(run), publish),
            (run / "journal.jsonl", lambda: journals.read(run), publish),
            (self.top / "declaration.json", lambda: declaration.read(self.path, experiment), table, publish),
            (self.top / "note.json", lambda: notes.read(runs, experiment), table,
             lambda: trackers.main(["--runs", runs, "tensorboard", experiment, out])),
            (self.top / "planned.json", lambda: time_left.read_plan(runs, experiment), table, publish),
            (self.top / f"decode/{steps[0].name}.json", lambda: decoding.read(runs, experiment, steps), table, publish),
            (self.top / "report/said.json", table),
            (self.path / "verified.json", lambda: records.verifications(self.path / "results.db"), table),
            (self.path / "weights.safetensors", lambda: weights.read(self.path / "weights.safetensors")),
            (self.path / "tokens.bin", lambda: token_files.count(str(self.path / "tokens.bin"))),
            (self.path / "values.csv", lambda: values.read(str(self.path / "values.csv"))),
            (self.path / "chars.json", lambda: tokenizer.convert({"tokenizer": str(self.path / "chars.json")})),
            (self.path / "jobs.jsonl", lambda: jobs.Records(self.path).jobs()),
            (self.path / "tasks-1.json", lambda: jobs.Records(self.path).tasks("tasks-1.json")),
            (self.path / "1_0.log", lambda: status.last_words(self.path / "1_0.log")),
        ]

    def try_all(self, put):
        for path, *reads in self.readers():
            path.parent.mkdir(exist_ok=True)
            kept = path.read_bytes() if path.exists() else None
            path.unlink(missing_ok=True)
            put(path)
            for number, read in enumerate(reads):
                with self.subTest(path.name, reader=number), contextlib.redirect_stdout(io.StringIO()), \
                        contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(*SENTENCES, SystemExit):
                    signal.alarm(SECONDS)
                    read()
                signal.alarm(0)
            path.rmdir() if path.is_dir() else path.unlink()
            if kept is not None:
                path.write_bytes(kept)

    def test_fifo(self):
        self.try_all(os.mkfifo)

    def test_device(self):
        before = resource.getrlimit(resource.RLIMIT_AS)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_AS, before)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))     # what reads on for ever ends here
        self.try_all(lambda path: path.symlink_to("/dev/zero"))

    def test_directory(self):
        self.try_all(os.mkdir)

    def test_verified_too_deep(self):
        (self.path / "verified.json").write_text('{"runs":' + "[" * 100000)
        self.assertEqual(records.verifications(self.path / "results.db"), {})


if __name__ == "__main__":
    tap.main()
