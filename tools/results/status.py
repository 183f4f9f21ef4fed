"""A line per run of the database: state, iteration, losses, time left; on request again and again."""
import argparse
import contextlib
import os
import platform
import re
import sqlite3
import sys
import time

from tools.results import records
from tools.terminal import terminal

HEADINGS = ["EXPERIMENT", "STEP", "SEED", "STATE", "ITERATION", "LOSS", "VALIDATION", "NOTE"]
TEXTS = ("EXPERIMENT", "STEP", "STATE", "NOTE")
TONES = {"done": "good", "running": "head", "budget": None, "interrupted": None}     # all others: bad
QUESTION = "SELECT overview.experiment, overview.step, overview.seed, overview.state, iteration," \
    " overview.iterations, train_loss, validation_loss, overview.exit_reason, host, pid, process, heartbeat, resumed," \
    " resumed_iteration, runs.directory FROM overview JOIN runs ON runs.id = run" \
    " WHERE ?1 IS NULL OR overview.experiment = ?1" \
    " ORDER BY overview.experiment, CAST(overview.step AS INTEGER), overview.step, overview.seed, overview.repeat"
# Field 22 of /proc/PID/stat; the name, field 2, may hold blanks but ends with ")" (core/util/process.c).
BIRTH = re.compile(r".*\)" + r" \S+" * 19 + r" (\d+)", re.S)


# ---------------------------------------------------------------- what a row means now

def birth_of(pid):
    """A later process may have the same number, but not the same birth."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot, \
                open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return f"{boot.read().strip()}:{BIRTH.match(stat.read())[1]}"
    except (OSError, TypeError):
        return None


def is_elsewhere(row):
    return row["host"] is not None and row["process"] is not None and row["host"] != platform.node()


def seconds_left(row):
    """Until the end, at the pace since the last start; None: not known."""
    try:
        made, took = row["iteration"] - row["resumed_iteration"], row["heartbeat"] - row["resumed"]
        return took / made * (row["iterations"] - row["iteration"]) if made > 0 else None
    except TypeError:
        return None


def state_of(row, runs):
    """The state and a note.  The process of a run may be gone, or on another machine."""
    if row["state"] != "running":
        return row["state"], row["exit_reason"] or ""
    if is_elsewhere(row):
        return "running", f"on {row['host']}, last heard of {terminal.duration(time.time() - row['heartbeat'])} ago"
    if row["process"] is not None and birth_of(row["pid"]) == row["process"]:
        left = seconds_left(row)
        return "running", "" if left is None else f"{terminal.duration(left)} left"
    if os.path.exists(os.path.join(runs, row["directory"], "done")):
        return "died", "it is done, but the database lacks its end: see 'results update'"
    return "died", "its process is gone; it can be resumed"


# ---------------------------------------------------------------- show

def loss(value):
    return "-" if value is None else f"{value:.4f}"


def cells(row, state, note):
    return [str(row["experiment"]), str(row["step"]), str(row["seed"]), str(state),
            f"{row['iteration'] or 0}/{row['iterations']}", loss(row["train_loss"]), loss(row["validation_loss"]), str(note)]


def cut(lines, room):
    """Notes as long as there is room for them."""
    if room is not None:
        used = sum(max(map(len, column)) + 2 for column in list(zip(HEADINGS, *lines))[:-1])
        for line in lines:
            line[-1] = line[-1][:max(0, room - used)]
    return lines


def totals(rows, states):
    done = sum(state in records.FINISHED for state in states)
    running = [seconds_left(row) for row, state in zip(rows, states) if state == "running"]
    words = [f"{len(rows)} run{'s' * (len(rows) != 1)}: {done} done"]
    if running:
        words.append(f"{len(running)} running")
        known = [seconds for seconds in running if seconds is not None]
        words += [f"{terminal.duration(max(known))} left"] if known else []
    stopped = len(rows) - done - len(running)
    return ", ".join(words + [f"{stopped} stopped before their end"] * bool(stopped))


def show(runs, experiment, out):
    """Opens the database each time, so that a rebuilt one is seen."""
    with contextlib.closing(records.connect(os.path.join(runs, "results.db"))) as db:
        if experiment and not db.execute("SELECT 1 FROM experiments WHERE name = ?", (experiment,)):
            raise records.Problem(f"there is no experiment '{experiment}' in the database")
        rows = db.execute(QUESTION, (experiment,))
    found = [state_of(row, runs) for row in rows]
    lines = cut([cells(row, *one) for row, one in zip(rows, found)], terminal.width(out))
    tone = (lambda heading, cell: TONES.get(cell, "bad") if heading == "STATE" else None) \
        if terminal.has_colours(out) else None
    print(terminal.table(HEADINGS, lines, lambda heading: heading in TEXTS, terminal.width(out), tone=tone), file=out)
    print(totals(rows, [state for state, _ in found]), file=out)
    out.flush()


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python3 -m tools.results.status --watch 5")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--experiment", help="only its runs")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it repeatedly")
    args = parser.parse_args(argv)
    try:
        terminal.repeated(lambda: show(args.runs, args.experiment, sys.stdout), args.watch, sys.stdout)
    except BrokenPipeError:     # a reader that goes away
        raise
    except (records.Problem, sqlite3.Error, OSError, ValueError, TypeError) as problem:
        sys.exit(f"status: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
