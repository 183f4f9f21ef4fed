"""How far a run has come, from the end of its journal: nothing is written, and no database is needed."""
import json
import os
from dataclasses import dataclass

TAIL = 16384        # bytes: more than two logging intervals have
ENDED = "ended"


@dataclass
class Progress:
    iteration: int = None       # the last that was told
    iterations: int = None      # planned
    rate: float = None          # iterations per second
    loss: float = None
    validation: float = None
    state: str = None           # of a run that has ended: done, failed, ...
    reason: str = None
    host: str = None            # where it was started last, if that is in the tail

    @property
    def seconds_left(self):
        if not self.rate or self.iteration is None or self.iterations is None:
            return None
        return (self.iterations - self.iteration) / self.rate


def tail_lines(path):
    """The last whole lines, decoded; none if there is no journal."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - TAIL)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[1 if start else 0:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            return


def planned(directory):
    try:
        with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
            return json.load(file).get("iterations")
    except (OSError, ValueError):
        return None


def pace(points):
    """Iterations per second, from the times of training losses since the last start."""
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None
    return (points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1])


def read(directory):
    found, points = Progress(), []
    for line in tail_lines(os.path.join(directory, "journal.jsonl")):
        kind = line.get("kind")
        if kind == "start":
            found.host, found.state, found.reason = line.get("host"), None, None
            found.iteration, points = line.get("iteration"), []
        elif kind == "end":
            found.state, found.reason = line.get("state"), line.get("reason")
        elif kind == "value":
            found.iteration = max(found.iteration or 0, line["iteration"])
            if line["name"] == "train/loss":
                found.loss = line["value"]
                points.append((line["iteration"], line["time"]))
            elif line["name"] == "val/loss":
                found.validation = line["value"]
    found.rate = pace(points)
    return found
