#!/usr/bin/env python3
"""A study on a real Slurm, disturbed in every way, ends as on one machine: same bits, same rows.

The test starts Debian's Slurm with a controller and four nodes (tools/testing/slurm_cluster.py).  In the
middle of the study a node dies, the controller dies and comes back, the file system of the runs is
full, a job of another partition preempts a run, the time of a run is over, and the user stops and
goes on.  Here 8 runs; 60 in slurm_soaktest.py.
"""
import collections
import contextlib
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

from tools.cluster import jobs, journals
from tools.kablate import fault_longtest, train_test
from tools.kablate.mpi_longtest import why_no_mpi
from tools.kablate.train_test import ENVIRONMENT, ROOT, Tree
from tools.testing import slurm_cluster, tap
from tools.testing.slurm_cluster import until

tearDownModule = train_test.tearDownModule

SETTINGS = {**train_test.SETTINGS, "PLAN": "steps",
            "PLAN_FRAGMENTS": "mla mla+gate mla+gate+cross mla+gate+cross+latent", "SEEDS": "1,2", "LOG_INTERVAL": 10, "EVAL_INTERVAL": 50, "CHECKPOINT_INTERVAL": 100,
            "DROPOUT": "0.1"}
HOLD_AFTER = 250        # iterations: some are lost if a run dies then


def new_tree(settings):
    return Tree(pathlib.Path(tempfile.mkdtemp(dir=ROOT)) / "tree", "smoke", settings)


class WithCluster(unittest.TestCase):
    nodes, largest_array = 4, 1001

    @classmethod
    def setUpClass(cls):
        why = slurm_cluster.missing()
        if why:
            raise unittest.SkipTest(why)
        cls.cluster = slurm_cluster.Cluster(cls.nodes, cls.largest_array)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()
        ENVIRONMENT["SLURM_CONF"] = str(cls.cluster.conf)
        cls.addClassCleanup(ENVIRONMENT.pop, "SLURM_CONF")

    def wait(self, tree, seconds):
        """Until the queue is empty: also the job that goes on has ended."""
        def is_over():
            self.cluster.hurry()
            return self.cluster.is_idle()
        until(is_over, seconds, f"{self.cluster.tasks()}\n{self.logs(tree)}")

    @staticmethod
    def logs(tree):
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-600:]}"
                         for path in sorted(pathlib.Path(f"{tree.plan}-slurm/log").glob("*")))

    def status(self, tree):
        """From (step, seed) to state and the rest of the line."""
        lines = tree.make("-s", "status").splitlines()
        found = {}
        for line in lines[1:-1]:
            words = line.split()
            if len(words) > 3 and words[2].isdigit():
                found[words[1], words[2]] = (words[3], line)
        return found

    @staticmethod
    def processes(tree):
        """Of all runs of this study, whatever their node."""
        ours = f"{tree.plan}-slurm/programs".encode()    # mpirun gets it with another slash before
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().startswith((ours, b"/" + ours)):
                    yield int(path.parent.name)

    def hold_runs(self, tree):
        """From now on every run is held after this iteration, until let_go(): so none ends before it is disturbed."""
        self.held_by = tree.directory / "hold"
        self.held_by.touch()
        holding = mock.patch.dict(ENVIRONMENT, train_test.hold(HOLD_AFTER, self.held_by))
        holding.start()
        self.addCleanup(holding.stop)

    def let_go(self):
        self.held_by.unlink()

    def held_run(self, tree):
        """The task and the node of a run that is held now."""
        records = jobs.Records(f"{tree.plan}-slurm")
        runs = jobs.read_runs(tree.plan, tree.runs)

        def find():
            self.cluster.hurry()
            places = records.places()
            on_node = {task: node for task, state, node, _ in self.cluster.tasks() if state == "RUNNING"}
            for run in runs:
                place = places.get(run["directory"])
                task = place and f"{place.job}_{place.index}"
                if task in on_node and self.is_held(tree, run):
                    self.held = run
                    return task, on_node[task]
            return None
        return until(find, 300, f"no run to disturb: {self.cluster.tasks()}\n{self.logs(tree)}")

    def is_held(self, tree, run):
        return any(self.is_of(run, process) for process in self.processes(tree)) and \
            (journals.read(run["directory"]).iteration or 0) >= HOLD_AFTER

    @staticmethod
    def is_of(run, process):
        with contextlib.suppress(OSError):
            return run["identity"].encode() in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
        return False


class Disturbed(WithCluster):
    """One study.  Every run is held at the same iteration until all has happened: how fast the machine is does not
    matter."""
    settings = {**SETTINGS, "GPT2_MAX_ITERS": 500}
    rounds = 1
    seconds = 300       # for the rest of the study; only one that hangs takes them

    def test_a_disturbed_study_ends_as_on_one_machine(self):
        straight, self.tree = new_tree(self.settings), new_tree(self.settings)
        straight.make("-s", timeout=3600)
        self.tree.runs = self.cluster.small / "runs"
        self.hold_runs(self.tree)
        self.submit()
        events = (self.kill_node, self.end_time, self.restart_controller, self.preempt,
                  self.fill_disk, self.stop_and_go_on)
        for _ in range(self.rounds):
            for event in events:
                task, node = self.held_run(self.tree)
                print(f"# {time.strftime('%T')} {event.__name__}: {task} on {node} of "
                      f"{self.states()}", flush=True)
                event(task, node)
        self.let_go()
        self.wait(self.tree, self.seconds)
        print(f"# {time.strftime('%T')} {self.states()}", flush=True)
        self.assertEqual(set(self.states()), {"done"}, self.logs(self.tree))
        self.assertEqual(fault_longtest.rows_of(self.tree.runs), fault_longtest.rows_of(straight.runs))
        report = self.tree.runs / "smoke/report/report.md"
        self.assertTrue(report.exists(), self.logs(self.tree))
        self.assertNotIn("submitted", self.submit())

    # ------------------------------------------------------------ the study

    def submit(self):
        return self.tree.make("-s", "SLURM=1", timeout=600)

    def states(self):
        return collections.Counter(state for state, _ in self.status(self.tree).values())

    def log(self, task):
        return pathlib.Path(f"{self.tree.plan}-slurm/log/{task}.log").read_text()

    # ------------------------------------------------------------ events

    def kill_node(self, _task, node):
        self.cluster.kill(node)
        until(lambda: node in self.cluster.nodes("down*"), 120, f"{node} is not missed")
        self.cluster.start_node(node)

    def end_time(self, task, _node):
        """What Slurm sends before the time of a task is over, to the process that started the run.

        (TimeLimit waits for Slurm's own signal.)
        """
        before = self.log(task).count("queued again")
        run = next(process for process in self.processes(self.tree) if self.is_of(self.held, process))
        status = pathlib.Path(f"/proc/{run}/stat").read_text()
        os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGUSR1)      # its parent, proc(5)
        until(lambda: self.log(task).count("queued again") > before, 60, f"{task} is not queued again")

    def restart_controller(self, _task, _node):
        self.cluster.stop_controller()
        self.assertIn("Slurm does not say", self.tree.make("-s", "status"))
        self.cluster.start_controller()

    def preempt(self, task, node):
        before = self.log(task).count("DUE TO PREEMPTION")
        self.cluster.preempt(node, 2)
        until(lambda: self.log(task).count("DUE TO PREEMPTION") > before, 60, f"{task} is not preempted")

    def fill_disk(self, _task, _node):
        filler = self.tree.runs / "filler"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        self.let_go()
        failed = until(lambda: [line for state, line in self.status(self.tree).values()
                                if state not in ("done", "running", "queued")], 60, "nothing fails")
        self.held_by.touch()
        filler.unlink()
        self.assertIn("No space left", "\n".join(failed))
        self.submit()

    def stop_and_go_on(self, _task, _node):
        self.assertIn("will save and stop", self.tree.make("-s", "stop"))
        until(self.cluster.is_idle, 60, "the queue is not empty after a stop")
        self.assertIn("interrupted", self.states())
        self.assertIn("submitted as job", self.submit())
        self.assertNotIn("submitted as job", self.submit())     # only what is missing


class Tuned(WithCluster):
    """Rates are chosen before the arms are built; arrays are as small as the cluster wants them."""
    largest_array = 4

    def test_tuning_comes_first(self):
        settings = {**SETTINGS, "PLAN_FRAGMENTS": "mla+tuned mla+gate", "SEEDS": "1,2", "GPT2_MAX_ITERS": 20,
                    "TUNE_RATES": "1e-3,3e-3", "TUNE_SEEDS": "7", "SLURM_AT_ONCE": 2}
        straight, tree = new_tree(settings), new_tree(settings)
        straight.make("-s", timeout=600)
        tree.make("-s", "SLURM=1")
        tree.set({"EXPERIMENT": "next", "MODEL_LAYERS": 1})     # is no matter of the jobs that wait
        self.wait(tree, 300)
        self.assertEqual({state for state, _ in self.status(tree).values()}, {"done"}, self.logs(tree))
        self.assertEqual(fault_longtest.rows_of(tree.runs), fault_longtest.rows_of(straight.runs))
        self.assertEqual((tree.plan / "0-mla+tuned/rate").read_text(),
                         (straight.plan / "0-mla+tuned/rate").read_text())

    def test_a_run_is_made_again(self):
        tree = new_tree({**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1", "GPT2_MAX_ITERS": 20})
        tree.make("-s", "SLURM=1")
        self.wait(tree, 120)
        run, = (path.parent for path in tree.runs.glob("*/*/done"))
        before = (run / "done").stat().st_mtime_ns
        said = tree.make("-s", "SLURM=1", "rerun", f"RUN={run}")
        self.assertIn("1 submitted", said)
        self.wait(tree, 120)
        self.assertGreater((run / "done").stat().st_mtime_ns, before)

    def test_a_run_gets_its_gpus(self):
        settings = {**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1", "GPT2_MAX_ITERS": 20}
        tree, greedy = new_tree({**settings, "SLURM_GPUS": 1}), new_tree({**settings, "SLURM_GPUS": 2})
        tree.make("-s", "SLURM=1")
        asked = self.cluster.command("squeue", "--noheader", "--format=%b").stdout.split()
        self.assertIn("gres:gpu:1", asked)
        self.wait(tree, 120)
        self.assertEqual({state for state, _ in self.status(tree).values()}, {"done"}, self.logs(tree))
        said = greedy.make("-s", "SLURM=1", expect=1)
        self.assertIn("Requested node configuration is not available", said)    # nodes have one


class TimeLimit(WithCluster):
    """Slurm's shortest limit is a minute; its signal comes half a minute before."""
    nodes = 1

    def test_a_run_longer_than_its_limit(self):
        settings = {**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1", "GPT2_MAX_ITERS": 500,
                    "CHECKPOINT_INTERVAL": 0, "SLURM_TIME": "1", "SLURM_SAVE_SECONDS": 30}
        straight, tree = new_tree(settings), new_tree(settings)
        straight.make("-s", timeout=600)
        self.hold_runs(tree)
        tree.make("-s", "SLURM=1")
        log = pathlib.Path(f"{tree.plan}-slurm/log/1_0.log")
        until(lambda: log.exists() and "queued again" in log.read_text(), 150, "Slurm sends no signal")
        self.let_go()
        self.wait(tree, 300)
        self.assertEqual({state for state, _ in self.status(tree).values()}, {"done"}, self.logs(tree))
        self.assertEqual(fault_longtest.rows_of(tree.runs), fault_longtest.rows_of(straight.runs))


@unittest.skipIf(why_no_mpi(), why_no_mpi())
class Together(WithCluster):
    """The processes of one run are on two nodes."""
    nodes = 3

    def test_two_nodes_give_the_bits_of_one_process(self):
        settings = {**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1", "GPT2_MAX_ITERS": 300, "TRAIN_BATCH": 2,
                    "TRAIN_ACCUMULATE": 4, "ORDERED_SUM": "y"}
        straight, tree = new_tree(settings), new_tree({**settings, "RANKS": 2, "SLURM_NODES": 2})
        straight.make("-s", timeout=600)
        self.hold_runs(tree)
        tree.make("-s", "SLURM=1")
        _, nodes = self.held_run(tree)
        self.assertEqual(len(list(self.processes(tree))), 2)
        _, second = self.cluster.command("scontrol", "show", "hostnames", nodes).stdout.split()
        self.cluster.kill(second)
        until(lambda: second in self.cluster.nodes("down*"), 120, f"{second} is not missed")
        self.let_go()
        self.wait(tree, 300)
        self.assertEqual({state for state, _ in self.status(tree).values()}, {"done"}, self.logs(tree))
        self.assertEqual(fault_longtest.rows_of(tree.runs), fault_longtest.rows_of(straight.runs))


class WithoutSlurm(unittest.TestCase):
    def test_a_clear_message(self):
        tree = new_tree({**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1", "GPT2_MAX_ITERS": 20})
        with tempfile.TemporaryDirectory() as empty:
            for directory in os.environ["PATH"].split(":"):
                for path in pathlib.Path(directory).glob("*"):
                    link = pathlib.Path(empty, path.name)
                    if path.name != "sbatch" and not link.is_symlink():
                        link.symlink_to(path)
            before, ENVIRONMENT["PATH"] = ENVIRONMENT["PATH"], empty
            try:
                said = tree.make("-s", "SLURM=1", expect=1)
            finally:
                ENVIRONMENT["PATH"] = before
        self.assertIn("there is no sbatch on this machine", said)
        self.assertNotIn("Traceback", said)


if __name__ == "__main__":
    tap.main()
