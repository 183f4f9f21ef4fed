#!/usr/bin/env python3
"""What a node executes for one task of a job array: one run, and the signals that Slurm sends.

SIGUSR1 comes before the time is over (sbatch --signal): the run saves, and the task is queued
again.  SIGTERM comes at a preemption, at a stop and when the time is over: the run saves, and
the sender of the signal decides what becomes of the task.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from tools.cluster import journals, slurm
from tools.terminal import terminal

RESUMABLE, DIVERGED = 75, 76        # exit statuses of kablate


class Runner:
    def __init__(self, command):
        self.is_requeue_wanted = self.is_stopped = False
        signal.signal(signal.SIGUSR1, self.save_and_requeue)
        signal.signal(signal.SIGTERM, self.save_and_end)
        self.process = subprocess.Popen(command)
        if self.is_stopped:     # before there was a process to signal
            self.process.terminate()

    def save_and_requeue(self, *_):
        self.is_requeue_wanted = True
        self.save()

    def save_and_end(self, *_):
        """Also after a SIGUSR1: a run that is stopped must not be queued again."""
        self.is_requeue_wanted = False
        self.save()

    def save(self):
        """Slurm may have told the run already: a second SIGTERM changes nothing."""
        self.is_stopped = True
        if hasattr(self, "process"):
            self.process.terminate()

    def wait(self):
        return self.process.wait()


def is_torn(task, status):
    """Has a run over several nodes ended without a message?  Then one of them may be lost."""
    return status != 0 and int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) > 1 \
        and journals.read(task["directory"]).state is None


def wait_for_slurm(runner):
    """A lost node ends the run at once, but Slurm misses the node only later, and then queues the task again.

    That works only as long as the task lives.
    """
    seconds = slurm.configured("SlurmdTimeout") + 60
    print(f"a process of the run is gone; waiting {seconds} s: perhaps Slurm misses its node", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not runner.is_stopped:
        time.sleep(1)


def task_name(environment):
    return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"


def run(task):
    runner = Runner(task["command"])
    status = runner.wait()
    if status == DIVERGED and task["divergence_is_a_result"]:
        pathlib.Path(task["directory"], "done").touch()
        return 0
    if status in (RESUMABLE, -signal.SIGTERM) and runner.is_requeue_wanted:
        print("saved; to be queued again", flush=True)
        slurm.requeue(task_name(os.environ))    # which ends this process
    if is_torn(task, status):
        wait_for_slurm(runner)
    return status if status >= 0 else 128 - status


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.cluster.task tasks-1.json (in a job of sbatch --array)")
    parser.add_argument("tasks", help="the list of the array's runs")
    args = parser.parse_args(argv)
    try:
        with open(args.tasks, encoding="utf-8") as file:
            task = json.load(file)[int(os.environ["SLURM_ARRAY_TASK_ID"])]
        sys.exit(run(task))
    except KeyError as missing:
        sys.exit(f"there is no {missing} in the environment: this is no task of a job array")
    except (OSError, ValueError, IndexError, slurm.Problem) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
