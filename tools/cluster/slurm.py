"""Slurm's commands.  A command is repeated for a while if the controller does not answer."""
import os
import subprocess
import time
from dataclasses import dataclass

PATIENCE = 60       # seconds for a controller that is being restarted
PAUSE = 3
# What the commands say then (slurm_errno.c).
NO_ANSWER = ("Unable to contact slurm controller", "Socket timed out", "Connection refused",
             "Zero Bytes were transmitted", "Unexpected message received", "Resource temporarily")
# Of slurm.conf(5), if the cluster does not say.
DEFAULTS = {"MaxArraySize": 1001, "SlurmdTimeout": 300}
FIELDS = "%F|%K|%T|%N|%r"


class Problem(Exception):
    """Something a user can act on."""


@dataclass
class Task:
    """A job, or a task of a job array, that Slurm still knows."""
    job: int
    index: int          # of the array; None: no array
    state: str          # PENDING, RUNNING, ...
    node: str
    reason: str         # why it waits


def environment():
    """What a job inherits: the user's environment and the variables given to make, not make's own."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("MAKELEVEL", "MFLAGS", "MAKE_RESTARTS", "KABLATE_BEGAN")}
    kept["MAKEFLAGS"] = "".join(os.environ.get("MAKEFLAGS", "").partition(" -- ")[1:])
    return kept


def call(*words, patience=PATIENCE):
    """What the command prints; a Problem if it fails."""
    until = time.monotonic() + patience
    while True:
        try:
            done = subprocess.run(words, env=environment(), text=True, capture_output=True, check=False)
        except FileNotFoundError:
            raise Problem(f"there is no {words[0]} on this machine") from None
        if done.returncode == 0:
            return done.stdout
        if not any(text in done.stderr for text in NO_ANSWER) or time.monotonic() > until:
            raise Problem(f"{words[0]}: {done.stderr.strip() or f'exit status {done.returncode}'}")
        time.sleep(PAUSE)


def queue(patience=PATIENCE):
    """All tasks of this user that wait or run."""
    text = call("squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--format={FIELDS}",
                patience=patience)
    return [read_task(line) for line in text.splitlines() if line.strip()]


def read_task(line):
    try:
        job, index, state, node, reason = line.strip().split("|", 4)
        return Task(int(job), int(index) if index.isdecimal() else None, state, node, reason)
    except ValueError:
        raise Problem(f"squeue: cannot read '{line}'") from None


def submit(script, *options):
    """The number of the new job."""
    return int(call("sbatch", "--parsable", *options, script).split(";")[0])


def configured(wanted):
    """A number of the cluster's configuration: "MaxArraySize = 1001", "SlurmdTimeout = 300 sec"."""
    for line in call("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == wanted:
            return int(value.split()[0])
    return DEFAULTS[wanted]


def largest_array():
    """As many tasks as the cluster allows in one array."""
    return max(1, configured("MaxArraySize") - 1)


def name_of(task):
    return f"{task.job}" if task.index is None else f"{task.job}_{task.index}"


def in_groups(words, most=500):
    """A command line holds only so many."""
    return [words[i:i + most] for i in range(0, len(words), most)]


def cancel(tasks):
    """Of tasks that wait."""
    for group in in_groups([name_of(task) for task in tasks]):
        call("scancel", *group)


def tell_to_save(tasks):
    """Tasks that run get SIGTERM, the task's own process alone: a run saves and ends."""
    for group in in_groups([name_of(task) for task in tasks]):
        call("scancel", "--batch", "--signal=TERM", *group)


def requeue(name):
    call("scontrol", "requeue", name)
