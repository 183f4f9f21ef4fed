#!/usr/bin/env python3
"""Show where the runs of a plan stand on the cluster, again and again on request, or stop them.

Slurm says what waits and runs, the journals say how far a run has come and how it ended.
"""
import collections
import fcntl
import os
import sys
from dataclasses import dataclass

from tools.cluster import journals, jobs, slurm
from tools.cluster.slurm import Problem
from tools.results import plain
from tools.terminal import terminal

HEADINGS = ["EXPERIMENT", "STEP", "SEED", "STATE", "NODE", "ITERATION", "RATE", "LOSS", "VALIDATION",
            "LEFT", "NOTE"]
TEXTS = ("EXPERIMENT", "STEP", "STATE", "NODE", "NOTE")
TONES = {"done": "good", "running": "head", "failed": "bad", "diverged": "bad", "invalid": "bad"}
# Slurm's words for a task that is about to begin or to end.
BUSY = ("RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SUSPENDED")
LOG_TAIL = 4096     # bytes


@dataclass
class Line:
    run: dict
    state: str
    note: str = ""
    node: str = ""
    progress: journals.Progress = None


def last_words(path):
    """The last line that a task said, without what Slurm adds to it."""
    try:
        with open(path, "rb", opener=plain.opener) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines)
                 if line.strip() and not line.startswith("slurmstepd")), "")


def is_locked(directory):
    """Does a process work on the run?  (One on another machine is seen if the file system has locks.)"""
    try:
        lock = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:         # a file system without locks
        return False
    finally:
        os.close(lock)
    return False


def state_of(run, place, task, records):
    progress = journals.read(run["directory"])
    if jobs.is_done(run):
        return Line(run, progress.state or "done", "", "", progress)
    if task and task.state == "PENDING":
        is_waiting = task.reason in ("None", "Priority", "Resources")
        return Line(run, "queued", "" if is_waiting else task.reason, "", progress)
    if task and task.state in BUSY:
        progress.iterations = journals.planned(run["directory"])
        return Line(run, "running", "", task.node, progress)
    if is_locked(run["directory"]):
        progress.iterations = journals.planned(run["directory"])
        return Line(run, "running", "outside of Slurm", "", progress)
    if place is None and progress.state is None and progress.iteration is None:
        return Line(run, "not queued", "make SLURM=1 submits it", "", progress)
    reason = progress.reason or (place and last_words(records.log(place))) or ""
    if progress.state in ("interrupted", None) and progress.iteration is not None:
        return Line(run, progress.state or "died", reason or "it can be resumed", "", progress)
    return Line(run, progress.state or "failed", reason or "it said nothing", "", progress)


def lines_of(runs, records, queue):
    places, waiting = records.places(), jobs.by_place(queue)
    for run in runs:
        place = places.get(run["directory"])
        yield state_of(run, place, place and waiting.get((place.job, place.index)), records)


# ---------------------------------------------------------------- show

def number(value, form):
    return "" if value is None else format(value, form) if isinstance(value, (int, float)) else value


def cells(line):
    p = line.progress
    iteration = "" if p.iteration is None else \
        f"{p.iteration}/{p.iterations}" if p.iterations else str(p.iteration)
    rate = f"{p.rate:.3g} it/s" if p.rate and line.state == "running" else ""
    left = terminal.duration(p.seconds_left) if line.state == "running" and p.seconds_left else ""
    return [line.run["experiment"], line.run["step"], str(line.run["seed"]), line.state, line.node,
            iteration, rate, number(p.loss, ".4f"), number(p.validation, ".4f"), left, line.note]


def totals(lines):
    count = collections.Counter(line.state for line in lines)
    done = count.pop("done", 0) + count.pop("budget", 0)
    words = [f"{done} done"] + [f"{n} {state}" for state, n in sorted(count.items())]
    return f"{len(lines)} run{'s' * (len(lines) != 1)}: {', '.join(words)}"


def show(args, out):
    records = jobs.Records(args.records)
    runs = [run for run in jobs.read_runs(args.plan, args.runs)
            if not args.experiment or run["experiment"] == args.experiment]
    try:
        queue = slurm.queue(patience=0)
        trouble = None
    except Problem as problem:
        queue, trouble = [], problem
    lines = list(lines_of(runs, records, queue))
    tone = (lambda heading, cell: TONES.get(cell) if heading == "STATE" else None) \
        if terminal.has_colours(out) else None
    print(terminal.table(HEADINGS, list(map(cells, lines)), lambda heading: heading in TEXTS,
                         terminal.width(out), tone=tone), file=out)
    print(totals(lines), file=out)
    if trouble:
        print(f"Slurm does not say what it runs: {trouble}", file=out)
    out.flush()


# ---------------------------------------------------------------- stop

def stop(args):
    """What waits is taken from the queue; what runs saves and ends."""
    records = jobs.Records(args.records)
    with records.lock():
        ours = jobs.known_tasks(records, slurm.queue())
        waiting = [task for task in ours if task.state == "PENDING"]
        running = [task for task in ours if task.state in BUSY]
        slurm.cancel(waiting)
        slurm.tell_to_save([task for task in running if task.state == "RUNNING"])
        (records.directory / "next").unlink(missing_ok=True)
    for tasks, what in ((waiting, "taken from the queue"), (running, "will save and stop")):
        if tasks:
            print(f"{len(tasks)} task{'s' * (len(tasks) != 1)} of Slurm: {what}")


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.cluster.status --watch 5")
    parser.add_argument("--plan", default="build/plan", help="its directory, with runs.json")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--records", default="build/plan-slurm", help="what was submitted")
    parser.add_argument("--experiment", help="only its runs")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it repeatedly")
    parser.add_argument("--stop", action="store_true", help="save and stop")
    args = parser.parse_args(argv)
    try:
        if args.stop:
            stop(args)
        else:
            terminal.repeated(lambda: show(args, sys.stdout), args.watch, sys.stdout)
    except Problem as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
