"""One line for the user: which run of the plan begins, and how long the plan takes.

    run 3 of 14, 2 done, 1 running, 4.2 min left
"""
import contextlib
import os
import pathlib
import sqlite3
import sys

from tools.results import records, time_left
from tools.terminal import terminal


def line(database, directories, this):
    """`this` is the directory of the run that begins now."""
    names = [pathlib.Path(path).name for path in directories]
    runs = [time_left.Progress("run", None, step, seed, identity) for step, seed, identity in
            (name.rsplit("-", 2) for name in names)]
    words = [f"run {names.index(pathlib.Path(this).name) + 1} of {len(names)}"]
    if os.path.exists(database):
        with contextlib.closing(records.connect(database)) as db:
            time_left.read(db, runs)
        done, running = (time_left.count(runs, state) for state in ("done", time_left.RUNNING))
        left = time_left.seconds_left(runs, running + 1)
        words += [f"{done} done"] * bool(done) + [f"{running} running"] * bool(running)
        words += [f"{terminal.duration(left)} left"] if left is not None else []
    return ", ".join(words)


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.runs_left --runs runs --this runs/smoke/0-mla-1-00 runs/smoke/*/")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--this", required=True, help="the run that begins now")
    parser.add_argument("directory", nargs="+", help="of every run of the plan")
    args = parser.parse_args(argv)
    try:
        print(line(os.path.join(args.runs, "results.db"), args.directory, args.this))
    except (records.Problem, sqlite3.Error, ValueError):
        print("of the plan")      # the run itself will print what is wrong with the database


if __name__ == "__main__":
    main(sys.argv[1:])
