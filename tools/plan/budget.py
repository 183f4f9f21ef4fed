#!/usr/bin/env python3
"""Which runs of a plan fit into a time: the first ones, in the plan's order, that have not ended.

The order is seed by seed (tools/plan/plan.py), so whatever the time, the seeds that are
complete can be compared. A run takes as long as the runs of its step that the database knows,
else as its own program estimates (tools/plan/estimate.py), and START more: an estimate knows
neither start nor audits. A run whose time nobody knows does not fit.
"""
import contextlib
import heapq
import json
import os
import sys
import time

from tools.plan import estimate, kconfig
from tools.results import plain, records, time_left
from tools.terminal import terminal

KINDS = ("tuning", "run")
START = 30      # seconds: audits took 15 to 30 s at 124M on an H200


def ended(runs, run):
    return os.path.exists(os.path.join(runs, run["directory"], "done"))


# ---------------------------------------------------------------- how long

def estimated(directory, step):
    """By a few passes of the step's own program; None: not known."""
    pace = estimate.read_json(directory, step, "estimate.json").get("seconds_per_token")
    values = kconfig.values_in(os.path.join(directory, step, "config"))
    return START + estimate.run_seconds(values, pace) if pace else None


def recorded(runs, planned):
    """Seconds that each planned run still takes, as far as its step is known, by identity."""
    found = [time_left.Progress(*(run[name] for name in ("kind", "experiment", "step", "seed", "identity")))
             for run in planned]
    with contextlib.suppress(records.Problem), \
            contextlib.closing(records.connect(os.path.join(runs, "results.db"))) as db:
        time_left.read(db, found)
    known = {run.step for run in found if run.seconds}
    return {run.identity: run.seconds_left for run in found if run.step in known}


def stand_ins(plan):
    """The step of the same work whose program was timed: twins and rates have none of their own."""
    return {step["name"]: step["repeats"] or step["null"] or next(iter(step["candidates"]), None) for step in plan["steps"]}


def estimated_as(directory, step, of, stand_in):
    """`of` is the step that a rate is tried for."""
    asked = []
    for name in (step, of):
        while name and name not in asked:
            asked.append(name)
            name = stand_in.get(name)
    return next(filter(None, (estimated(directory, name) for name in asked)), None)


def with_seconds(planned, directory, runs, stand_in):
    """(run, seconds) of those that have not ended."""
    known, by_step = recorded(runs, planned), {}
    for run in planned:
        if ended(runs, run):
            continue
        seconds, step = known.get(run["identity"]), run["step"]
        if seconds is None and step not in by_step:
            by_step[step] = estimated_as(directory, step, run["of"], stand_in)
        yield run, by_step[step] if seconds is None else seconds


# ---------------------------------------------------------------- what fits

def fitting(waiting, seconds, jobs):
    """The first of the (run, seconds) that end in time, `jobs` side by side; a longer one ends the list."""
    free, chosen = [0.0] * max(1, jobs), []
    for run, takes in waiting:
        if takes is None or free[0] + takes > seconds:
            break
        heapq.heapreplace(free, free[0] + takes)
        chosen.append((run, takes))
    return chosen


def complete_seeds(planned, chosen, runs):
    """Seeds of which every run has ended or fits."""
    there = {run["directory"] for run, _ in chosen}
    by_seed = {}
    for run in planned:
        if run["kind"] == "run":
            by_seed.setdefault(run["seed"], []).append(run)
    return [seed for seed, its in by_seed.items()
            if all(run["directory"] in there or ended(runs, run) for run in its)]


def sentence(planned, waiting, chosen, minutes, runs):
    if not waiting:
        return "all runs have ended"
    first = waiting[len(chosen)] if len(chosen) < len(waiting) else None
    words = f"{len(chosen)} of {len(waiting)} runs fit into {minutes:g} minute{'s' * (minutes != 1)}"
    if first:
        words += f"; {first[0]['step']} seed {first[0]['seed']}, which takes " + \
            (f"{terminal.duration(first[1])}, is" if first[1] is not None else "an unknown time, is") + " the first that does not"
    seeds = complete_seeds(planned, chosen, runs)
    return words + ("; then complete: seed " + ", ".join(map(str, seeds)) if seeds else "; no seed is complete then")


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.plan.budget --plan build/plan --runs runs --minutes 25")
    parser.add_argument("--plan", required=True, help="its directory, with runs.json")
    parser.add_argument("--runs", required=True, help="the directory of runs")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--kind", choices=KINDS, help="only these: their targets go to standard output")
    parser.add_argument("--since", type=int, help="when the minutes began, in ns since 1970 (default: now)")
    args = parser.parse_args(argv)
    try:
        planned = sorted(json.loads(plain.text(os.path.join(args.plan, "runs.json"))),
                         key=lambda run: KINDS.index(run["kind"]))
        stand_in = stand_ins(json.loads(plain.text(os.path.join(args.plan, "plan.json"))))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    planned = [run for run in planned if args.kind in (None, run["kind"])]
    left = 60 * args.minutes - (time.time() - args.since / 1e9 if args.since else 0)
    waiting = list(with_seconds(planned, args.plan, args.runs, stand_in))
    chosen = fitting(waiting, left, args.jobs)
    if args.kind:
        print(" ".join(os.path.join(args.runs, run["directory"], "done") for run, _ in chosen))
    else:
        for run, takes in chosen:
            print(f"  {run['step']} seed {run['seed']}: {terminal.duration(takes)}")
    print(sentence(planned, waiting, chosen, args.minutes, args.runs), file=sys.stderr if args.kind else sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
