"""Which run is which task of which job: the records that a directory of the build keeps.

    jobs.jsonl          a line per job, in the order in which they were submitted
    tasks-N.json        the runs of one job array, by the number of the task
    log/JOB_TASK.log    what a task said
    programs/           the programs of queued runs: a later build does not change them
    next                the job that starts when these have ended, if one is queued
"""
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
from dataclasses import dataclass

from tools.cluster.slurm import Problem
from tools.results import plain

RUN, TUNING, NEXT = "run", "tuning", "next"     # kinds of jobs


@dataclass
class Place:
    """The last task that a run was."""
    job: int
    index: int


class Records:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def exist(self):
        return (self.directory / "jobs.jsonl").exists()

    @contextlib.contextmanager
    def lock(self):
        """One process at a time submits."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def jobs(self):
        """A half line at the end is of a submission that was killed."""
        try:
            lines = plain.text(self.directory / "jobs.jsonl", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Problem(f"{self.directory / 'jobs.jsonl'}: {error.strerror}") from None
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        if not all(map(is_job, found)):
            raise Problem(f"{self.directory / 'jobs.jsonl'}: a line is not what a submission writes")
        return found

    def remember(self, job, kind, tasks=None):
        with open(self.directory / "jobs.jsonl", "a", encoding="utf-8") as file:
            file.write("\n" * self.is_cut(file) + json.dumps({"job": job, "kind": kind, "tasks": tasks})
                       + "\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def is_cut(file):
        size = file.tell()
        with open(file.name, "rb") as same:
            same.seek(max(0, size - 1))
            return bool(size) and same.read(1) != b"\n"

    def new_tasks(self, entries):
        """Write the list of a new array; its name."""
        number = 1 + sum(1 for _ in self.directory.glob("tasks-*.json"))
        path = self.directory / f"tasks-{number}.json"
        text = json.dumps(entries)
        new = path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
        return path.name

    def tasks(self, name):
        try:
            found = json.loads(plain.text(self.directory / name))
        except (OSError, ValueError, RecursionError) as error:
            raise Problem(f"{self.directory / name}: {error}") from None
        if not isinstance(found, list) or not all(map(is_task, found)):
            raise Problem(f"{self.directory / name}: not what a submission writes")
        return found

    def places(self):
        """From the directory of each run that was ever submitted to its last task."""
        found = {}
        for job in self.jobs():
            if job["tasks"]:
                for index, task in enumerate(self.tasks(job["tasks"])):
                    found[task["directory"]] = Place(job["job"], index)
        return found

    def log(self, place):
        return self.directory / "log" / f"{place.job}_{place.index}.log"

    @functools.cache
    def keep_program(self, path):
        """Another name for the same file, with the libraries of its build beside it; the linker replaces files and
        never changes one."""
        digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]
        kept = self.directory / "programs" / digest / "kablate"
        kept.parent.mkdir(parents=True, exist_ok=True)
        for file in (path, *pathlib.Path(os.environ.get("O", "build")).glob("kablate_*.so")):
            keep(file, kept.with_name(os.path.basename(file)))
        return str(kept)


def is_job(entry):
    return isinstance(entry, dict) and isinstance(entry.get("job"), int) and isinstance(entry.get("tasks", 0), (str, type(None)))


def is_task(entry):
    return isinstance(entry, dict) and isinstance(entry.get("directory"), str)


def keep(path, kept):
    if kept.exists():
        return
    new = kept.with_suffix(f".new{os.getpid()}")
    try:
        os.link(path, new)
    except OSError:     # on another file system
        shutil.copy2(path, new)
    new.replace(kept)


def by_place(queue):
    return {(task.job, task.index): task for task in queue}


def known_tasks(records, queue):
    """Those of the queue that belong to these records."""
    ours = {job["job"] for job in records.jobs()}
    return [task for task in queue if task.job in ours]


def read_runs(plan, runs):
    """All runs of a plan, with their directories below `runs`."""
    path = os.path.join(plan, "runs.json")
    try:
        return [{**run, "directory": f"{runs}/{run['directory']}"} for run in json.loads(plain.text(path))]
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {error}") from None


def is_done(run):
    return os.path.exists(os.path.join(run["directory"], "done"))
