#!/usr/bin/env python3
"""Queue the missing runs of a plan as tasks of job arrays, and the job that follows.

A run is missing if it is neither done nor queued.  Runs for tuning have arrays of their own: after
them the next job chooses the rates, builds the steps and submits their runs.  After all runs the
next job makes the report.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys

from tools.cluster import jobs, slurm
from tools.cluster.jobs import NEXT, RUN, TUNING
from tools.cluster.slurm import Problem
from tools.plan.plan import REFUSED
from tools.results import plain
from tools.terminal import terminal

ROOT = pathlib.Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------- what is to do

def chosen_runs(runs, only):
    """Those of one step, with those that choose its rate; all if none is named."""
    return [run for run in runs if not only or run["of"] in only]


def refuse_what_cannot_run(runs, plan):
    for run in runs:
        program = os.path.join(plan, run["step"], "kablate")
        if run["identity"] == REFUSED:
            said = subprocess.run([program, "identity", "--seed", str(run["seed"])], text=True,
                                  capture_output=True, check=False).stderr.strip()
            raise Problem(f"{run['step']} seed {run['seed']} cannot run: {said}")
        if run["threads"] == 0:
            raise Problem("CONFIG_THREADS=0 means as many threads as a node has processors, and their "
                          "number is part of a run's identity: set CONFIG_THREADS for SLURM=1")


def is_held(run, still_open):
    """Its baseline has no program yet: a run is audited beside it."""
    return run["kind"] == RUN and run["baseline"] in still_open


def missing_runs(runs, records, queue, is_new_only):
    """Neither done nor queued; on request only those that were never submitted."""
    places, waiting = records.places(), jobs.by_place(queue)
    found = []
    for run in runs:
        place = places.get(run["directory"])
        is_queued = place is not None and (place.job, place.index) in waiting
        if not jobs.is_done(run) and not is_queued and not (is_new_only and place):
            found.append(run)
    return found


def tuned_and_done(runs):
    """Steps all of whose runs for tuning are done."""
    of = {}
    for run in runs:
        if run["kind"] == TUNING:
            of.setdefault(run["of"], []).append(jobs.is_done(run))
    return [step for step, done in of.items() if all(done)]


# ---------------------------------------------------------------- arrays

def shape_of(run, nodes):
    """What is requested from sbatch: nodes, tasks and cores of each.

    On one node all processes are one task, which mpirun divides.  On several each is a task, so that
    Slurm says how many belong on which node.
    """
    if nodes == 1:
        return ("--ntasks=1", f"--cpus-per-task={run['threads'] * run['ranks']}")
    if run["ranks"] < nodes:
        raise Problem(f"{run['step']}: CONFIG_SLURM_NODES={nodes} is more than its processes "
                      f"(CONFIG_RANKS={run['ranks']})")
    return (f"--nodes={nodes}", f"--ntasks={run['ranks']}", f"--cpus-per-task={run['threads']}")


def launcher_of(run, mpirun):
    """Several processes are started by mpirun, as in tools/make/steps.mk."""
    if run["ranks"] == 1:
        return []
    return [sys.executable, "-m", "tools.kablate.launch", "--ranks", str(run["ranks"]),
            "--mpirun", mpirun]


def command_of(run, plan, records, args, built):
    """As the recipe of a run in tools/make/steps.mk, but without the database."""
    program = records.keep_program(os.path.join(plan, run["step"], "kablate"))
    baseline = []
    if run["baseline"] != run["step"] and run["baseline"] in built:
        baseline = ["--baseline-program",
                    records.keep_program(os.path.join(plan, run["baseline"], "kablate"))]
    return [*launcher_of(run, args.mpirun), program, "train", "--runs", args.runs, "--experiment", run["experiment"],
            "--step", run["step"], "--identity", run["identity"], "--seed", str(run["seed"]),
            "--repeat", str(run["repeat"]), "--baseline", run["baseline"], *baseline,
            "--lines", "--journal-only", *args.common]


def common_options(cluster, records):
    """Of all jobs."""
    options = [f"--chdir={ROOT}", "--requeue", "--open-mode=append"]
    for name, option in (("SLURM_PARTITION", "partition"), ("SLURM_ACCOUNT", "account")):
        if cluster[name]:
            options.append(f"--{option}={cluster[name]}")
    (records.directory / "log").mkdir(parents=True, exist_ok=True)
    return options + shlex.split(cluster["SLURM_OPTIONS"])


def array_options(cluster, count, shape):
    """Only runs have a time limit: the next job builds and reports, and cannot be interrupted."""
    at_once = int(cluster["SLURM_AT_ONCE"])
    options = [f"--array=0-{count - 1}" + (f"%{at_once}" if at_once else ""),
               *shape, f"--signal=B:USR1@{cluster['SLURM_SAVE_SECONDS']}"]
    if cluster["SLURM_TIME"]:
        options.append(f"--time={cluster['SLURM_TIME']}")
    if int(cluster["SLURM_GPUS"]):
        options.append(f"--gres=gpu:{cluster['SLURM_GPUS']}")
    return options


def write_script(path, *command):
    path.write_text("#!/bin/sh\nexec " + shlex.join(map(str, command)) + "\n", encoding="utf-8")
    return str(path)


class Submission:
    def __init__(self, args, plan_json, records):
        self.args, self.records = args, records
        self.cluster, self.experiment = plan_json["cluster"], plan_json["experiment"]
        self.arrays = []        # numbers of the new jobs
        self.before = {}        # by kind: the array that must end first, to keep SLURM_AT_ONCE

    def submit_array(self, kind, shape, entries):
        name = self.records.new_tasks(entries)
        script = write_script(self.records.directory / f"{name}.sh", sys.executable, "-m",
                              "tools.cluster.task", self.records.directory / name)
        options = [*common_options(self.cluster, self.records),
                   *array_options(self.cluster, len(entries), shape),
                   f"--job-name=kablate-{self.experiment}",
                   f"--output={self.records.directory}/log/%A_%a.log"]
        if int(self.cluster["SLURM_AT_ONCE"]) and self.before.get(kind):
            options.append(f"--dependency=afterany:{self.before[kind]}")
        job = slurm.submit(script, *options)
        self.records.remember(job, kind, name)
        self.before[kind] = job
        self.arrays.append(job)

    def submit_runs(self, missing, built):
        """Arrays of runs of one kind that need the same."""
        most = slurm.largest_array() if missing else 1
        nodes = int(self.cluster["SLURM_NODES"])
        shapes = {run["directory"]: shape_of(run, nodes) for run in missing}
        for kind in (TUNING, RUN):
            for shape in sorted(set(shapes.values())):
                entries = [{"directory": run["directory"],
                            "divergence_is_a_result": kind == TUNING,
                            "command": command_of(run, self.args.plan, self.records, self.args, built)}
                           for run in missing if (run["kind"], shapes[run["directory"]]) == (kind, shape)]
                for first in range(0, len(entries), most):
                    self.submit_array(kind, shape, entries[first:first + most])

    def submit_next(self, queue):
        """The next job; an older one that still waits is cancelled."""
        kinds = {job["job"]: job["kind"] for job in self.records.jobs()}
        waiting = jobs.known_tasks(self.records, queue)
        slurm.cancel([task for task in waiting
                      if kinds[task.job] == NEXT and task.state == "PENDING"])
        live = {task.job for task in waiting if kinds[task.job] != NEXT} | set(self.arrays)
        tuning = {job for job in live if kinds[job] == TUNING}
        note = self.records.directory / "next"
        if not live:
            note.unlink(missing_ok=True)
            return None
        script = write_script(self.records.directory / "next.sh", *self.args.next)
        after = ":".join(map(str, sorted(tuning or live)))
        job = slurm.submit(script, *common_options(self.cluster, self.records), "--ntasks=1",
                           f"--job-name=kablate-{self.experiment}-next",
                           f"--dependency=afterany:{after}",
                           f"--output={self.records.directory}/log/next-%j.log")
        self.records.remember(job, NEXT)
        note.write_text(f"{job}\n", encoding="utf-8")
        return job


def tell(runs, missing, held, submission, next_job):
    done = sum(map(jobs.is_done, runs))
    words = [f"{len(runs)} run{'s' * (len(runs) != 1)}: {done} done"]
    others = len(runs) - done - len(missing) - held
    words += [f"{others} submitted before"] * bool(others)
    words += [f"{held} held until the rate of their baseline is chosen"] * bool(held)
    words += [f"{len(missing)} submitted as job{'s' * (len(submission.arrays) != 1)} "
              + ", ".join(map(str, submission.arrays))] * bool(missing)
    print(", ".join(words) + (f"; job {next_job} follows them" if next_job else ""))


def submit(args):
    records = jobs.Records(args.records)
    runs = chosen_runs(jobs.read_runs(args.plan, args.runs), args.step)
    plan_json = json.loads(plain.text(os.path.join(args.plan, "plan.json")))
    with records.lock():
        queue = slurm.queue()
        found = missing_runs(runs, records, queue, args.new)
        missing = [run for run in found if not is_held(run, args.open)]
        refuse_what_cannot_run(missing, args.plan)
        submission = Submission(args, plan_json, records)
        try:
            submission.submit_runs(missing, set(args.built))
        finally:    # also after a refusal: what was submitted before it must be gone on with
            next_job = submission.submit_next(queue)
    tell(runs, missing, len(found) - len(missing), submission, next_job)


def forget(args):
    """Is a run free to be removed?"""
    records = jobs.Records(args.records)
    place = records.places().get(args.forget)
    if place and (place.job, place.index) in jobs.by_place(slurm.queue()):
        raise Problem(f"{args.forget}: it is task {place.job}_{place.index} of Slurm, so make stop first")


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.cluster.submit --next 'make SLURM=1 slurm-next' -- --scale laptop")
    parser.add_argument("--plan", default="build/plan", help="its directory, with runs.json")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--records", default="build/plan-slurm", help="what was submitted")
    parser.add_argument("--step", action="append", help="only the runs of this step and others named so")
    parser.add_argument("--built", nargs="*", default=[], help="steps that have a program")
    parser.add_argument("--mpirun", default="mpirun", help="what starts several processes of a run")
    parser.add_argument("--open", nargs="*", default=[], help="steps whose rates are not chosen yet")
    parser.add_argument("--new", action="store_true", help="nothing that was submitted before")
    parser.add_argument("--next", type=shlex.split, default=["true"], help="the command of the next job")
    parser.add_argument("--tuned", action="store_true",
                        help="only print the steps all of whose runs for tuning are done")
    parser.add_argument("--forget", metavar="RUN",
                        help="only report, by the exit status, whether a run is not queued")
    parser.add_argument("common", nargs="*", help="arguments of every run")
    args = parser.parse_args(argv)
    try:
        if args.tuned:
            runs = jobs.read_runs(args.plan, args.runs)
            print(" ".join(tuned_and_done(chosen_runs(runs, args.step))))
        elif args.forget:
            forget(args)
        else:
            submit(args)
    except (Problem, OSError, ValueError) as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main(sys.argv[1:])
