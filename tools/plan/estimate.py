"""The time and disk space of a plan, before anything runs.

Time comes from finished runs of the same configuration, if the database has any; otherwise from the
step's own program, which times a few passes (kablate estimate; make keeps the answer):

    seconds of a run = seconds per token (tokens of all updates + tokens of all evaluations / 3),

since an evaluation is a forward pass, a third of the work of forward and backward.
"""
import json
import math
import os
from dataclasses import dataclass

from tools.plan import kconfig
from tools.results import metric_names, records
from tools.terminal.terminal import duration

FORWARD = 1 / 3
SPEED = metric_names.TOKENS_PER_SECOND
RECORD_BYTES = 2000     # per logging interval, in journal and database: 1979 in the laptop study


@dataclass
class Cost:
    """What all runs of a step cost; None: not known."""
    runs: int
    seconds: float = None
    bytes: float = None
    source: str = None      # of the seconds


def updates_and_tokens(values):
    per_update = math.prod(int(values[name]) for name in
                           ("TRAIN_BATCH", "TRAIN_ACCUMULATE", "MODEL_BLOCK"))
    updates, budget = int(values["GPT2_MAX_ITERS"]), int(values["TRAIN_TOKENS_BUDGET"])
    return min(updates, math.ceil(budget / per_update)) if budget else updates, per_update


def run_seconds(values, seconds_per_token):
    updates, per_update = updates_and_tokens(values)
    evaluations = 2 + (updates - 1) // int(values["EVAL_INTERVAL"])     # first and last, too
    evaluations += len(list(filter(None, values["EVAL_LENGTHS"].split(","))))
    evaluated = evaluations * int(values["EVAL_ROWS"]) * int(values["MODEL_BLOCK"])
    seconds = seconds_per_token * (updates * per_update + FORWARD * evaluated) / int(values.get("RANKS", 1))
    budget = int(values["TRAIN_SECONDS_BUDGET"])
    return min(seconds, budget) if budget else seconds


def run_bytes(values, account):
    """Bytes of final and best weights, checkpoints and records."""
    updates, _ = updates_and_tokens(values)
    interval = int(values["CHECKPOINT_INTERVAL"]) or updates
    one = account["weights_bytes"] + account["optimizer_bytes"]
    kept = one * min(int(values["CHECKPOINT_KEEP"]), math.ceil(updates / interval))
    limit = 1e6 * int(values["CHECKPOINT_DISK_MB"])
    return 2 * account["weights_bytes"] + (min(kept, limit) if limit else kept) + \
        RECORD_BYTES * updates / int(values["LOG_INTERVAL"])


def seconds_at(run, per_update):
    """(iteration, seconds since the start) at each logging interval, evaluations included, pauses not."""
    seconds, last = 0.0, 0
    for iteration, rate in run.series.get(SPEED, []):
        if rate > 0:
            seconds += (iteration - last) * per_update / rate
            last = iteration
            yield iteration, seconds


def recorded_seconds(run, per_update):
    """Seconds of the run's logging intervals."""
    return max((seconds for _, seconds in seconds_at(run, per_update)), default=None)


def past_steps(experiment, runs):
    """The steps of the experiment that the database knows, by name."""
    try:
        db = records.connect(os.path.join(runs, "results.db"))
        steps = records.read_experiment(db, experiment, metrics=(records.LOSS, SPEED))
        return {step.name: step for step in steps}
    except records.Problem:
        return {}


def past_seconds(step, past):
    """Mean seconds of finished runs with this configuration, and their number."""
    known = past.get(step.name)
    if not known or any(step.values.get(name) != value for name, value in known.config.items()):
        return None, 0
    _, per_update = updates_and_tokens(step.values)
    taken = [seconds for run in known.usable.values()
             if (seconds := recorded_seconds(run, per_update))]
    return (sum(taken) / len(taken), len(taken)) if taken else (None, 0)


def read_json(directory, name, file):
    text = directory and kconfig.read_text(os.path.join(directory, name, file))
    return json.loads(text) if text else {}


def cost(step, runs, program, directory, past):
    """`program` names the step whose program was asked."""
    found = Cost(runs)
    account = read_json(directory, program, "describe.json")
    pace = read_json(directory, program, "estimate.json").get("seconds_per_token")
    if "weights_bytes" in account:
        found.bytes = runs * run_bytes(step.values, account)
    seconds, finished = past_seconds(step, past)
    if finished:
        found.source = f"{finished} finished run{'s' * (finished > 1)}"
    elif pace:
        seconds, found.source = run_seconds(step.values, pace), "a few timed passes"
    if seconds is not None:
        found.seconds = runs * seconds
    return found


def room(size):
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= power:
            return f"{size / power:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
