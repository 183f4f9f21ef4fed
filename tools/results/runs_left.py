"""One line for the person who waits: which run of the plan begins, and how long the plan takes.

    run 3 of 14, 2 done, 1 running, 4.2 min left
"""
import argparse
import os
import pathlib
import platform
import sqlite3
import sys

from tools.results import records
from tools.terminal.terminal import duration


def states(db, identities):
    """State, seconds, planned and finished iterations of the runs with these identities."""
    marks = ",".join("?" * len(identities))
    rows = db.execute(
        "SELECT substr(identity, 1, 12), state, ended - started, iterations,"
        " (SELECT max(iteration) FROM metrics WHERE run = runs.id), host, pid FROM runs"
        f" WHERE substr(identity, 1, 12) IN ({marks})", identities).fetchall()
    return {identity: ("died" if state == "running" and is_gone(host, pid) else state, *rest)
            for identity, state, *rest, host, pid in rows}


def is_gone(host, pid):
    return host == platform.node() and not os.path.exists(f"/proc/{pid}")


def seconds_left(known, total, others):
    """Seconds left, if runs take as long as those that have ended; None: none has ended."""
    took = [seconds for state, seconds, *_ in known.values()
            if state in records.FINISHED and seconds and seconds > 0]
    if not took:
        return None
    mean = sum(took) / len(took)
    running = [mean * (1 - (iteration or 0) / max(1, iterations))
               for state, _, iterations, iteration in known.values() if state == "running"]
    waiting = total - len(took) - len(running)
    return (sum(running) + waiting * mean) / max(1, others + 1)


def line(database, directories, this):
    """`this` is the directory of the run that begins now."""
    names = [pathlib.Path(path).name for path in directories]
    words = [f"run {names.index(pathlib.Path(this).name) + 1} of {len(names)}"]
    if os.path.exists(database):
        with records.connect(database) as db:
            known = states(db, [name[-12:] for name in names])
        known.pop(pathlib.Path(this).name[-12:], None)
        done = sum(state in records.FINISHED for state, *_ in known.values())
        running = sum(state == "running" for state, *_ in known.values())
        left = seconds_left(known, len(names), running)
        words += [f"{done} done"] * bool(done) + [f"{running} running"] * bool(running)
        words += [f"{duration(left)} left"] if left is not None else []
    return ", ".join(words)


def main(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python3 -m tools.results.runs_left --runs runs --this runs/smoke/0-mla-1-00 "
               "runs/smoke/*/")
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
