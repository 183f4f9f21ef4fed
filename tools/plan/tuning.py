"""Tuned steps: each takes the learning rate that does best on seeds that no verdict uses.

A tuned step has a candidate for each rate of CONFIG_TUNE_RATES.  Each candidate is trained with
every seed of CONFIG_TUNE_SEEDS as experiment EXPERIMENT-tuning, step STEP@RATE.  The rate with the
lowest mean final validation loss wins; among equals the smallest; a rate at which a run diverged
is the worst.  DIR/STEP/rate holds the choice with the key of its candidates; the rate becomes part
of the step's configuration.
"""
import hashlib
import math
import os
import re

from tools.plan import kconfig
from tools.plan.kconfig import Assignment, Unfit
from tools.results import records

# Rates that keep their ratio to LEARNING_RATE.
FOLLOWING = ("MIN_LEARNING_RATE", "MUON_LEARNING_RATE")
RATES = ("LEARNING_RATE", *FOLLOWING)


def experiment(name):
    return f"{name}-tuning"


def rates(text):
    """A list such as "1e-3,3e-3" in rising order."""
    words = re.split(r"\s*,\s*", text.strip())
    if not all(kconfig.NUMBER.fullmatch(word) and float(word) > 0 for word in words):
        raise Unfit([f'CONFIG_TUNE_RATES="{text}": expected positive numbers separated by commas'])
    if len(words) < 2 or any(float(b) <= float(a) for a, b in zip(words, words[1:])):
        raise Unfit([f'CONFIG_TUNE_RATES="{text}": expected at least two rates, in rising order'])
    return words


def assignments(values, rate):
    """The assignments that give a configuration this learning rate."""
    factor = float(rate) / float(values["LEARNING_RATE"])
    followers = [(name, f"{factor * float(values[name]):.6g}") for name in FOLLOWING
                 if values[name] is not None]
    return [Assignment(name, value, "tuning")
            for name, value in [("LEARNING_RATE", rate), *followers]]


def key(candidates, seeds):
    """Names the candidates and seeds of a choice: with others it must be made again."""
    text = "\n".join(candidate.table for candidate in candidates) + str(seeds)
    return hashlib.sha256(text.encode()).hexdigest()


def mean_loss(losses):
    """A run that diverged has an infinite loss."""
    return math.fsum(losses) / len(losses)


def best(sweep):
    """The best rate of a dictionary from rates to losses; None if every rate diverged."""
    rate = min(sweep, key=lambda rate: (mean_loss(sweep[rate]), float(rate)))
    return rate if math.isfinite(mean_loss(sweep[rate])) else None


def is_at_end(rate, all_rates):
    """Is the rate at an end of the list?  A better one may lie beyond."""
    values = sorted(map(float, all_rates))
    return len(values) > 1 and float(rate) in (values[0], values[-1])


def loss_of(run):
    """Infinite if the run diverged; None if it has not ended well."""
    if run.state == "diverged":
        return math.inf
    if run.state not in records.FINISHED:
        return None
    loss = run.last(records.LOSS)
    return math.inf if loss is not None and not math.isfinite(loss) else loss


def recorded_loss(db, identity):
    try:
        runs = records.runs_where(db, "identity LIKE ? || '%'", identity)
    except records.Problem as problem:
        raise Unfit([str(problem)]) from None
    return next((loss for loss in map(loss_of, runs) if loss is not None), None)


# ---------------------------------------------------------------- the choice, kept in a file

def path(directory, step):
    return os.path.join(directory, step.name, "rate")


def chosen(directory, step, seeds):
    """The rate chosen among exactly these candidates, or None."""
    text = directory and kconfig.read_text(path(directory, step))
    asked, rate = text.split() if text else (None, None)
    return rate if asked == key(step.candidates, seeds) else None


def choose(directory, step, seeds, db_path, identity):
    """Choose from the results; identity(candidate, seed) names the runs."""
    sweep, missing = {}, []
    try:
        db = records.connect(db_path)
    except records.Problem as problem:
        raise Unfit([str(problem)]) from None
    for candidate in step.candidates:
        losses = [recorded_loss(db, identity(candidate, seed)) for seed in seeds]
        missing += [f"{candidate.name}, seed {seed}: no result in {db_path}"
                    for seed, loss in zip(seeds, losses) if loss is None]
        sweep[candidate.rate] = losses
    if missing:
        raise Unfit(missing)
    rate = best(sweep)
    if rate is None:
        raise Unfit([f"{step.name}: with every rate a run diverged; CONFIG_TUNE_RATES needs "
                     "smaller ones"])
    kconfig.write_text(path(directory, step), f"{key(step.candidates, seeds)} {rate}\n")
    return rate
