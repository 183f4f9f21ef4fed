#!/usr/bin/env python3
"""Tests of what is requested from Slurm and how its answers are read, with commands that only write down
their arguments.  tools/cluster/slurm_longtest.py has a real Slurm."""
import contextlib
import fcntl
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.cluster import jobs, journals, slurm, status, submit
from tools.testing import tap
from tools.testing.as_user import ROOT

# Each writes its name and arguments to the file `calls`; sbatch numbers jobs by its calls.
COMMANDS = {
    "sbatch": 'echo "sbatch $*" >>$PLACE/calls; grep -c ^sbatch $PLACE/calls',
    "squeue": 'cat $PLACE/queue',
    "scancel": 'echo "scancel $*" >>$PLACE/calls',
    "scontrol": 'test "$1" = show || echo "scontrol $*" >>$PLACE/calls; echo "MaxArraySize = 4"',
}
CLUSTER = {"SLURM_PARTITION": "long", "SLURM_ACCOUNT": "me", "SLURM_TIME": "4:00:00",
           "SLURM_SAVE_SECONDS": "90", "SLURM_NODES": "1", "SLURM_GPUS": "2", "SLURM_AT_ONCE": "0",
           "SLURM_OPTIONS": "--mem=8G --comment='two words'"}


class Case(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        self.plan, self.runs, self.records = (self.place / name for name in ("plan", "runs", "records"))
        for name, text in COMMANDS.items():
            path = self.place / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        os.environ.update(PATH=f"{self.place}/bin:{before['PATH']}", PLACE=str(self.place))
        self.queue()
        (self.place / "calls").touch()

    def queue(self, *lines):
        """Each as squeue prints it: job|task|state|node|reason."""
        (self.place / "queue").write_text("".join(f"{line}\n" for line in lines))

    def calls(self, name):
        return [line for line in (self.place / "calls").read_text().splitlines()
                if line.startswith(f"{name} ")]

    def write_plan(self, runs, **cluster):
        self.plan.mkdir(exist_ok=True)
        for run in runs:
            program = self.plan / run["step"] / "kablate"
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n# {run['step']}\n")
        (self.plan / "runs.json").write_text(json.dumps(
            [{**run, "directory": os.path.relpath(run["directory"], self.runs)} for run in runs]))
        (self.plan / "plan.json").write_text(json.dumps({"experiment": "x",
                                                         "cluster": {**CLUSTER, **cluster}}))

    def run_of(self, step, seed, kind="run", threads=1, of=None, identity="0123456789ab", ranks=1):
        return {"kind": kind, "experiment": "x", "of": of or step, "step": step, "seed": seed,
                "identity": identity, "repeat": 0, "threads": threads, "ranks": ranks,
                "baseline": "0-a" if kind == "run" else step,
                "directory": f"{self.runs}/x/{step}-{seed}-{identity}"}

    def submit(self, *words, expect=None):
        said = io.StringIO()
        arguments = ["--plan", self.plan, "--runs", self.runs, "--records", self.records, "--next",
                     "make next", *words, "--built", "0-a", "1-b", "--", "--scale", "laptop"]
        with contextlib.redirect_stdout(said):
            if expect:
                with self.assertRaisesRegex(SystemExit, expect):
                    submit.main(list(map(str, arguments)))
            else:
                submit.main(list(map(str, arguments)))
        return said.getvalue()

    def finish(self, run, *lines):
        directory = pathlib.Path(run["directory"])
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "done").touch()

    def journal(self, run, *entries):
        directory = pathlib.Path(run["directory"])
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.json").write_text(json.dumps({"iterations": 100}))
        (directory / "journal.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))


class Submitting(Case):
    def test_options_come_from_the_configuration(self):
        self.write_plan([self.run_of("0-a", 1), self.run_of("0-a", 2)])
        self.submit()
        array, next_job = self.calls("sbatch")
        for option in ("--array=0-1 ", "--partition=long", "--account=me", "--time=4:00:00",
                       "--signal=B:USR1@90", "--gres=gpu:2", "--mem=8G", "--comment=two words",
                       "--cpus-per-task=1", "--requeue"):
            self.assertIn(option, array)
        self.assertIn("--dependency=afterany:1 ", next_job)
        self.assertNotIn("--gres", next_job)
        self.assertNotIn("--time", next_job)
        self.assertIn("--partition=long", next_job)

    def test_a_task_knows_its_run(self):
        first, second = self.run_of("0-a", 1), self.run_of("1-b", 7)
        self.write_plan([first, second])
        self.submit()
        tasks = json.loads((self.records / "tasks-1.json").read_text())
        self.assertEqual([task["directory"] for task in tasks], [first["directory"], second["directory"]])
        command = " ".join(tasks[1]["command"])
        for words in ("--step 1-b", "--seed 7", "--identity 0123456789ab", "--journal-only",
                      "--scale laptop", "--baseline 0-a --baseline-program"):
            self.assertIn(words, command)
        self.assertNotIn("--baseline-program", tasks[0]["command"])
        program = pathlib.Path(tasks[1]["command"][0])
        (self.plan / "1-b/kablate").unlink()
        (self.plan / "1-b/kablate").write_text("of a later build")
        self.assertIn("# 1-b", program.read_text())

    def test_a_task_keeps_the_libraries_of_its_program(self):
        library = self.place / "build/kablate_mpi.so"
        library.parent.mkdir()
        library.write_text("of this build")
        self.write_plan([self.run_of("0-a", 1)])
        with mock.patch.dict(os.environ, O=str(library.parent)):
            self.submit()
        library.unlink()
        library.write_text("of a later build")
        program, = (task["command"][0] for task in json.loads((self.records / "tasks-1.json").read_text()))
        self.assertEqual(pathlib.Path(program).with_name(library.name).read_text(), "of this build")

    def test_only_what_is_missing(self):
        runs = [self.run_of("0-a", seed) for seed in range(4)]
        self.write_plan(runs)
        self.finish(runs[0])
        self.assertIn("3 submitted as job 1; job 2", self.submit())
        self.queue("1|0|PENDING||Priority", "1|1|RUNNING|n1|None", "2|N/A|PENDING||Dependency")
        self.assertIn("1 submitted as job 3", self.submit())     # task 2 is gone and not done
        self.assertEqual(self.calls("scancel"), ["scancel 2"])      # the next one waits for all
        self.assertIn("--dependency=afterany:1:3 ", self.calls("sbatch")[-1])

    def test_a_job_that_goes_on_tries_nothing_again(self):
        runs = [self.run_of("0-a", seed) for seed in (1, 2)]
        self.write_plan(runs[:1])
        self.submit()
        self.write_plan(runs)
        self.assertIn("1 submitted", self.submit("--new"))
        self.assertIn("2 submitted before\n", self.submit("--new"))
        self.assertEqual(len(self.calls("sbatch")), 4)
        self.assertFalse((self.records / "next").exists())

    def test_arrays_are_as_large_as_allowed(self):
        self.write_plan([self.run_of("0-a", seed) for seed in range(7)], SLURM_AT_ONCE="2")
        self.submit()
        self.assertEqual([line.split("--array=")[1].split()[0] for line in self.calls("sbatch")[:3]],
                         ["0-2%2", "0-2%2", "0-0%2"])
        self.assertIn("--dependency=afterany:1 ", self.calls("sbatch")[1])
        self.assertIn("--dependency=afterany:2 ", self.calls("sbatch")[2])

    def test_runs_that_need_other_processors(self):
        self.write_plan([self.run_of("0-a", 1), self.run_of("1-b", 1, threads=4)])
        self.submit()
        self.assertEqual([line.split("--cpus-per-task=")[1].split()[0]
                          for line in self.calls("sbatch")[:2]], ["1", "4"])

    def test_runs_of_several_processes(self):
        self.write_plan([self.run_of("0-a", 1, threads=2, ranks=3)])
        self.submit("--mpirun", "mpirun -x A")
        self.assertIn("--cpus-per-task=6 ", self.calls("sbatch")[0])
        command = json.loads((self.records / "tasks-1.json").read_text())[0]["command"]
        self.assertEqual(command[1:7], ["-m", "tools.kablate.launch", "--ranks", "3", "--mpirun",
                                        "mpirun -x A"])

    def test_processes_on_several_nodes(self):
        self.write_plan([self.run_of("0-a", 1, threads=2, ranks=3)], SLURM_NODES="2")
        self.submit()
        self.assertIn("--nodes=2 --ntasks=3 --cpus-per-task=2 ", self.calls("sbatch")[0])

    def test_more_nodes_than_processes(self):
        self.write_plan([self.run_of("0-a", 1, ranks=2)], SLURM_NODES="4")
        self.submit(expect=r"0-a: CONFIG_SLURM_NODES=4 is more than its processes \(CONFIG_RANKS=2\)")
        self.assertEqual(self.calls("sbatch"), [])

    def test_tuning_comes_first(self):
        tuning = self.run_of("1-b@1", 9, "tuning", of="1-b")
        self.write_plan([self.run_of("0-a", 1), tuning])
        self.submit()
        first, second, last = self.calls("sbatch")
        self.assertIn("--dependency=afterany:1 ", last)     # on the tuning alone
        tasks = json.loads((self.records / "tasks-1.json").read_text())
        self.assertTrue(tasks[0]["divergence_is_a_result"])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            submit.main(["--plan", str(self.plan), "--runs", str(self.runs), "--tuned"])
            self.finish(tuning)
            submit.main(["--plan", str(self.plan), "--runs", str(self.runs), "--tuned"])
        self.assertEqual(said.getvalue(), "\n1-b\n")

    def test_runs_are_audited_beside_their_baseline(self):
        """It has a program only when its rate is chosen."""
        self.write_plan([self.run_of("1-b", 1), self.run_of("0-a@1", 9, "tuning", of="0-a")])
        self.assertIn("1 held until the rate", self.submit("--open", "0-a"))
        self.assertEqual(len(json.loads((self.records / "tasks-1.json").read_text())), 1)
        (self.plan / "0-a").mkdir()
        (self.plan / "0-a/kablate").touch()
        self.assertIn("1 submitted as", self.submit("--new"))

    def test_one_step(self):
        self.write_plan([self.run_of("0-a", 1), self.run_of("1-b", 1),
                         self.run_of("1-b@1", 9, "tuning", of="1-b")])
        self.assertIn("2 runs: 0 done, 2 submitted", self.submit("--step=1-b"))

    def test_an_array_that_is_refused(self):
        """The next job goes on with those that were accepted."""
        self.write_plan([self.run_of("0-a", 1), self.run_of("1-b", 1, threads=4)])
        refusing = COMMANDS["sbatch"].replace("grep", 'case "$*" in *task=4*) echo "too many" >&2; exit 1; esac; grep')
        (self.place / "bin/sbatch").write_text(f"#!/bin/sh\n{refusing}\n")
        self.submit(expect="sbatch: too many")
        self.assertIn("--dependency=afterany:1 ", self.calls("sbatch")[-1])

    def test_threads_must_be_known(self):
        self.write_plan([self.run_of("0-a", 1, threads=0)])
        self.submit(expect="CONFIG_THREADS=0")
        self.assertEqual(self.calls("sbatch"), [])

    def test_a_program_that_refuses(self):
        self.write_plan([self.run_of("0-a", 1, identity="refused")])
        program = self.plan / "0-a/kablate"
        program.write_text("#!/bin/sh\necho 'kablate: no data' >&2; exit 1\n")
        program.chmod(0o755)
        self.submit(expect="0-a seed 1 cannot run: kablate: no data")

    def test_a_queued_run_is_not_removed(self):
        run = self.run_of("0-a", 1)
        self.write_plan([run])
        self.submit()
        self.queue("1|0|PENDING||Priority")
        self.submit("--forget", run["directory"], expect="make stop first")
        self.queue()
        self.submit("--forget", run["directory"])

    def test_a_submission_that_was_killed(self):
        """Half a line of the records counts for nothing."""
        self.write_plan([self.run_of("0-a", 1)])
        self.records.mkdir()
        (self.records / "jobs.jsonl").write_text('{"job": 3')
        self.assertIn("1 submitted", self.submit())
        self.assertEqual([job["kind"] for job in jobs.Records(self.records).jobs()], ["run", "next"])


class Controller(Case):
    def test_it_is_asked_again(self):
        refused = 'test -e $PLACE/again && exec cat $PLACE/queue; touch $PLACE/again; ' \
                  'echo "Unable to contact slurm controller (connect failure)" >&2; exit 1'
        (self.place / "bin/squeue").write_text(f"#!/bin/sh\n{refused}\n")
        self.queue("1|0|RUNNING|n1|None")
        self.assertEqual(slurm.queue(), [slurm.Task(1, 0, "RUNNING", "n1", "None")])

    def test_another_error_is_told_at_once(self):
        (self.place / "bin/squeue").write_text("#!/bin/sh\necho 'Invalid user' >&2; exit 1\n")
        with self.assertRaisesRegex(slurm.Problem, "Invalid user"):
            slurm.queue()


class Showing(Case):
    def show(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status.main(["--plan", str(self.plan), "--runs", str(self.runs), "--records", str(self.records), *words])
        return said.getvalue().splitlines()

    def values(self, *points):
        return [{"kind": "value", "time": t, "iteration": i, "name": "train/loss", "value": 2.5}
                for i, t in points]

    def test_every_state(self):
        runs = [self.run_of("0-a", seed) for seed in range(7)]
        self.write_plan(runs, SLURM_OPTIONS="")
        (self.place / "bin/scontrol").write_text("#!/bin/sh\necho 'MaxArraySize = 1001'\n")
        self.submit()
        start = {"kind": "start", "time": 0, "iteration": 0, "host": "n1"}
        self.queue("1|0|PENDING||Priority", "1|1|RUNNING|n7|None", "1|2|PENDING||BeginTime")
        self.journal(runs[1], start, *self.values((10, 5), (30, 15)))
        self.journal(runs[3], start, *self.values((10, 5)),
                     {"kind": "end", "time": 9, "state": "diverged", "reason": "loss is nan"})
        self.journal(runs[4], start, *self.values((10, 5)))
        (self.records / "log/1_5.log").write_text("kablate: no memory\nslurmstepd-n1: error: killed\n")
        self.journal(runs[6], start, *self.values((100, 50)), {"kind": "end", "time": 60, "state": "done"})
        self.finish(runs[6])
        lines = self.show()
        for line, words in zip(lines[1:], (
                ["queued"], ["running", "n7", "30/100", "2 it/s", "2.5000", "35 s"],
                ["queued", "BeginTime"], ["diverged", "loss is nan"], ["died", "it can be resumed"],
                ["failed", "kablate: no memory"], ["done", "100"])):
            for word in words:
                self.assertIn(word, line)
        self.assertEqual(lines[-1], "7 runs: 1 done, 1 died, 1 diverged, 1 failed, 2 queued, 1 running")

    def test_a_run_outside_of_slurm(self):
        run = self.run_of("0-a", 1)
        self.write_plan([run])
        self.journal(run, {"kind": "start", "time": 0, "iteration": 0}, *self.values((10, 5)))
        self.assertIn("died", self.show()[1])
        lock = os.open(run["directory"], os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assertIn("outside of Slurm", self.show()[1])

    def test_stop(self):
        self.write_plan([self.run_of("0-a", seed) for seed in range(3)])
        self.submit()
        self.queue("1|0|PENDING||Priority", "1|1|RUNNING|n1|None", "2|N/A|PENDING||Dependency",
                   "99|0|RUNNING|n2|None")
        self.show("--stop")
        self.assertEqual(self.calls("scancel"), ["scancel 1_0 2", "scancel --batch --signal=TERM 1_1"])
        self.assertFalse((self.records / "next").exists())

    def test_the_end_of_a_long_journal(self):
        run = self.run_of("0-a", 1)
        self.journal(run, *self.values(*((i, i / 4) for i in range(5000))))
        found = journals.read(run["directory"])
        self.assertEqual((found.iteration, found.rate), (4999, 4))


class Tasks(Case):
    """A task as a node executes it, with a program that behaves like kablate under signals.

    (It does not print(): a signal that comes in the middle of that must not print, too.)
    """
    PROGRAM = """\
import os, signal, sys, time
def stop(*_):
    os.write(1, b"saved\\n")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
os.write(1, b"runs\\n")
time.sleep(60)
"""

    def start(self, program, divergence_is_a_result=False, nodes=1):
        tasks = self.place / "tasks.json"
        tasks.write_text(json.dumps([{"directory": str(self.place), "command": [sys.executable, "-c", program],
                                      "divergence_is_a_result": divergence_is_a_result}]))
        return subprocess.Popen([sys.executable, "-m", "tools.cluster.task", tasks], cwd=ROOT, text=True,
                                stdout=subprocess.PIPE, env={**os.environ, "SLURM_ARRAY_JOB_ID": "5",
                                                             "SLURM_ARRAY_TASK_ID": "0",
                                                             "SLURM_JOB_NUM_NODES": str(nodes)})

    def end_by(self, *numbers):
        task = self.start(self.PROGRAM)
        self.assertEqual(task.stdout.readline(), "runs\n")
        for number in numbers:
            task.send_signal(number)
            time.sleep(0.02)
        said = task.communicate(timeout=300)[0]
        return task.returncode, said

    def test_before_the_time_is_over(self):
        self.assertIn("saved", self.end_by(signal.SIGUSR1)[1])
        self.assertEqual(self.calls("scontrol"), ["scontrol requeue 5_0"])

    def test_preempted_or_stopped(self):
        self.assertEqual(self.end_by(signal.SIGTERM), (75, "saved\n"))
        self.assertEqual(self.calls("scontrol"), [])

    def test_a_diverged_run(self):
        for is_result, expected in ((True, 0), (False, 76)):
            with self.subTest(is_result=is_result):
                task = self.start("raise SystemExit(76)", is_result)
                task.communicate(timeout=300)
                self.assertEqual((task.returncode, (self.place / "done").exists()), (expected, is_result))
                (self.place / "done").unlink(missing_ok=True)

    def test_a_run_that_may_have_lost_a_node(self):
        task = self.start("raise SystemExit(1)", nodes=2)
        self.assertRegex(task.stdout.readline(), r"waiting \d+ s: perhaps Slurm misses its node")
        task.send_signal(signal.SIGTERM)
        task.communicate(timeout=300)
        self.assertEqual(task.returncode, 1)

    def test_outside_of_slurm(self):
        done = subprocess.run([sys.executable, "-m", "tools.cluster.task", self.plan], cwd=ROOT,
                              env={**os.environ}, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    tap.main()
