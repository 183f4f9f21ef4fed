"""Tuned steps: each takes the learning rate that does best on seeds that no verdict uses.

A tuned step has a candidate for each rate of CONFIG_TUNE_RATES.  Each candidate is trained with
every seed of CONFIG_TUNE_SEEDS as experiment EXPERIMENT-tuning, step STEP@RATE.  The rate with the
lowest score() of its final validation losses wins; among equals the smallest; a rate at which a run
diverged is the worst.  DIR/STEP/rate holds the choice with the key of its candidates; the rate
becomes part of the step's configuration.

If the best of three rates or more is the first or the last, another one beyond it is tried: DIR/STEP/wider
holds those that were added, with the key of the candidates of the list.  If CONFIG_TUNE_MORE_SEEDS names further
seeds, the rates that are too close to the best one to tell are trained with these, too, before one is
chosen: DIR/STEP/close holds them, with the key of all candidates.  DIR/STEP/rate is empty meanwhile.
"""
import hashlib
import math
import os
import re
import statistics
from dataclasses import dataclass, field

from tools.plan import kconfig
from tools.plan.kconfig import Assignment, Unfit
from tools.results import records

# Rates that keep their ratio to LEARNING_RATE.
FOLLOWING = ("MIN_LEARNING_RATE", "MUON_LEARNING_RATE")
RATES = ("LEARNING_RATE", *FOLLOWING)
MOST_ADDED = 4      # rates beyond the list
LEAST_GROUPED = 6   # seeds that can fall in groups: at least two each
GAP = 1.5           # between groups, over the widths of both


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


def rates_of_replica(values):
    """For kablate's --rates, where one process may train all candidates of the step; empty where it may not.

    Muon's rate is a factor of the optimizer, which replicas share.
    """
    if values.get("REPLICAS") != "y" or values["MUON_LEARNING_RATE"] is not None:
        return ""
    return "/".join(values[name] for name in ("LEARNING_RATE", "MIN_LEARNING_RATE") if values[name] is not None)


def key(candidates, seeds):
    """Names the candidates and seeds of a choice: with others it must be made again."""
    text = "\n".join(candidate.table for candidate in candidates) + str(seeds)
    return hashlib.sha256(text.encode()).hexdigest()


def standard_error(losses):
    return statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0


def mean_loss(losses):
    """A run that diverged has an infinite loss."""
    return math.fsum(losses) / len(losses)


def groups(losses):
    """The two groups that the losses fall in, or None: docs/statistics.md has the rule, and its false alarms."""
    ordered = sorted(losses)
    if len(ordered) < LEAST_GROUPED or not all(map(math.isfinite, ordered)):
        return None
    gap, place = max((ordered[i] - ordered[i - 1], i) for i in range(2, len(ordered) - 1))
    inside = ordered[-1] - ordered[0] - gap
    return (ordered[:place], ordered[place:]) if gap > GAP * inside else None


def score(losses):
    """The mean plus its standard error: a rate whose seeds vary more must be better by more."""
    return mean_loss(losses) + standard_error(losses)


def without_diverged(sweep):
    return {rate: losses for rate, losses in sweep.items() if math.isfinite(mean_loss(losses))}


def best(sweep):
    """The best rate of a dictionary from rates to losses; None if every rate diverged."""
    known = without_diverged(sweep)
    return min(known, key=lambda rate: (score(known[rate]), float(rate)), default=None)


def close_rates(sweep):
    """Those whose means, less a standard error, are no higher than the lowest score; the best is among them."""
    known = without_diverged(sweep)
    lowest = min(map(score, known.values()))
    return [rate for rate, losses in known.items() if mean_loss(losses) - standard_error(losses) <= lowest]


def beyond(rate, all_rates):
    """The next rate beyond an end of the list, as far as the last step of the list; None: there is no such end."""
    values = sorted(map(float, all_rates))
    if len(values) < 3 or not is_at_end(rate, all_rates):
        return None
    ratio = values[0] / values[1] if float(rate) == values[0] else values[-1] / values[-2]
    digits, power = f"{float(rate) * ratio:.1e}".split("e")
    found = f"{digits.removesuffix('.0')}e{int(power)}"
    return found if not values[0] <= float(found) <= values[-1] else None


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


# ---------------------------------------------------------------- the choice, kept in files

@dataclass
class Seeds:
    """Of tuning: those of every rate, and those that rates too close to tell have besides."""
    first: list
    more: list = field(default_factory=list)

    def of(self, rate, close):
        return self.first + (self.more if rate in close else [])


def path(directory, step):
    return os.path.join(directory, step.name, "rate")


def read_keyed(path_of_it, asked):
    """The words of a file that begins with this key; none if it has another."""
    found, *words = (kconfig.read_text(path_of_it) or "-").split() or ["-"]
    return words if found == asked else []


def chosen(directory, step, seeds):
    """The rate chosen among exactly these candidates, or None."""
    return next(iter(directory and read_keyed(path(directory, step), key(step.candidates, seeds)) or ()), None)


def added(directory, step, seeds):
    """The rates that were added to the list whose candidates the step has."""
    return directory and read_keyed(wider_path(directory, step), key(step.candidates, seeds)) or []


def close(directory, step, seeds):
    """The rates that are trained with more seeds."""
    return directory and read_keyed(close_path(directory, step), key(step.candidates, seeds)) or []


def wider_path(directory, step):
    return os.path.join(directory, step.name, "wider")


def close_path(directory, step):
    return os.path.join(directory, step.name, "close")


def ask_for_more(directory, step, path_of_it, asked, words):
    """The plan has more runs then, and nothing is chosen before they have ended."""
    kconfig.write_text(path_of_it, " ".join([asked, *words]) + "\n")
    kconfig.write_text(path(directory, step), "")


def widen(directory, step, seeds, listed, rate):
    """Adds the rate beyond the best one, if that is at an end; returns it."""
    more = [candidate.rate for candidate in step.candidates if candidate.rate not in listed]
    new = beyond(rate, [candidate.rate for candidate in step.candidates])
    if new is None or len(more) >= MOST_ADDED or len(listed) < 3:
        return None
    asked = key([candidate for candidate in step.candidates if candidate.rate in listed], seeds)
    ask_for_more(directory, step, wider_path(directory, step), asked, [*more, new])
    return new


def span(losses):
    return f"{min(losses):.4f} to {max(losses):.4f}"


def remarks(sweep, rate):
    """About a choice whose seeds fall in two groups."""
    split = groups(sweep[rate])
    if split:
        yield f"with {rate} the seeds fall in two groups, {' and '.join(map(span, split))}"


def losses_of(step, db_path, identities):
    """Of each candidate, by its seeds."""
    try:
        db = records.connect(db_path)
    except records.Problem as problem:
        raise Unfit([str(problem)]) from None
    sweep, missing = {}, []
    for candidate, its_identities in zip(step.candidates, identities):
        losses = [recorded_loss(db, its_identities[seed]) for seed in candidate.seeds]
        missing += [f"{candidate.name}, seed {seed}: no result in {db_path}"
                    for seed, loss in zip(candidate.seeds, losses) if loss is None]
        sweep[candidate.rate] = losses
    if missing:
        raise Unfit(missing)
    return sweep


def choose(directory, step, seeds, listed, db_path, identities):
    """Choose from the results; `identities` are those of each candidate's runs, by seed.  Returns sentences.

    `listed` are the rates of CONFIG_TUNE_RATES: at an end of them another rate is added, and nothing is chosen yet.
    """
    sweep = losses_of(step, db_path, identities)
    rate = best(sweep)
    if rate is None:
        raise Unfit([f"{step.name}: with every rate a run diverged; CONFIG_TUNE_RATES needs "
                     "smaller ones"])
    if not close(directory, step, seeds):
        new = widen(directory, step, seeds, listed, rate)
        if new:
            return [f"the best rate, {rate}, is at the end of the list: {new} is tried, too"]
        rivals = close_rates(sweep)
        if seeds.more and len(rivals) > 1:
            ask_for_more(directory, step, close_path(directory, step), key(step.candidates, seeds), rivals)
            return [f"{len(seeds.first)} seeds do not tell {', '.join(rivals)} apart: they are trained with {len(seeds.more)} more"]
    kconfig.write_text(path(directory, step), f"{key(step.candidates, seeds)} {rate}\n")
    return [f"learning rate {rate}", *remarks(sweep, rate)]
