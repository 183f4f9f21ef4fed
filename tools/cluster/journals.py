"""How far a run has come, from the end of its journal: nothing is written, and no database is needed."""
import json
import os
from dataclasses import dataclass

from tools.results import metric_names, plain

TAIL = 16384        # bytes: more than two logging intervals have
LOSS, VALIDATION = metric_names.TRAIN_LOSS, metric_names.VALIDATION_LOSS
MOST = 2 ** 53      # of iterations and seconds


@dataclass
class Progress:
    iteration: int = None       # the last in the journal
    iterations: int = None      # planned
    rate: float = None          # iterations per second
    loss: float = None
    validation: float = None
    state: str = None           # of a run that has ended: done, failed, ...
    reason: str = None

    @property
    def seconds_left(self):
        if not self.rate or self.iteration is None or self.iterations is None:
            return None
        return (self.iterations - self.iteration) / self.rate


def tail_lines(path):
    """The last whole lines; none if there is no journal."""
    try:
        with open(path, "rb", opener=plain.opener) as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - TAIL)
            file.seek(start)
            return file.read().split(b"\n")[1 if start else 0:-1]
    except FileNotFoundError:
        return []


def is_number(value):
    return isinstance(value, (int, float)) and abs(value) < MOST


def is_entry(entry):
    """Of the kinds that are read here.  A loss may be null."""
    if not isinstance(entry, dict):
        return False
    if entry.get("kind") == "start":
        return isinstance(entry.get("iteration"), int) and is_number(entry["iteration"])
    return entry.get("kind") != "value" or is_number(entry.get("time")) and is_number(entry.get("iteration")) and \
        isinstance(entry["iteration"], int) and isinstance(entry.get("name"), str) and \
        isinstance(entry.get("value", ""), (int, float, type(None)))


def decoded(lines):
    """Up to the first that is damaged."""
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not is_entry(entry):
            return
        yield entry


def planned(directory):
    try:
        found = json.loads(plain.text(os.path.join(directory, "run.json")))["iterations"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and is_number(found) else None


def pace(points):
    """Iterations per second, from the times of training losses since the last start."""
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None
    return (points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1])


def read_ended(lines):
    """From its end back to the last losses: most runs of a large study have ended."""
    found = Progress()
    for line in decoded(reversed(lines)):
        kind, name = line.get("kind"), line.get("name")
        if kind == "start" or None not in (found.loss, found.validation):
            break
        if kind == "end":
            found.state, found.reason = line.get("state"), line.get("reason")
        elif kind == "value":
            found.iteration = max(found.iteration or 0, line["iteration"])
            if name == LOSS and found.loss is None:
                found.loss = line["value"]
            elif name == VALIDATION and found.validation is None:
                found.validation = line["value"]
    return found


def read_running(lines):
    found, points = Progress(), []
    for line in decoded(lines):
        kind = line.get("kind")
        if kind == "start":
            found.iteration, points = line.get("iteration"), []
        elif kind == "value":
            found.iteration = max(found.iteration or 0, line["iteration"])
            if line["name"] == LOSS:
                found.loss = line["value"]
                points.append((line["iteration"], line["time"]))
            elif line["name"] == VALIDATION:
                found.validation = line["value"]
    found.rate = pace(points)
    return found


def read(directory):
    lines = tail_lines(os.path.join(directory, "journal.jsonl"))
    has_ended = any(line.get("kind") == "end" for line in decoded(lines[-1:]))
    return read_ended(lines) if has_ended else read_running(lines)
