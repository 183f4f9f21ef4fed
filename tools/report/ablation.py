"""The table of an experiment: every step beside its baseline, with a verdict.

Numbers of a step are means over its seeds; differences are paired by seed and judged by
tools/report/judging.py.  Only finished runs count; missing, failed and diverged runs are listed, never
averaged.  A step that repeats another is not a comparison: its weights must be the same bits.
A step with its baseline's configuration and other seeds is a null: its runs are paired with the
baseline's in the order of seeds, and any difference would be a false one.
A step is also compared with its matched control: its baseline, widened to the step's size.
Steps that form a grid have main effects and interactions (tools/report/factorial.py).
Losses beyond the trained length are shown with their differences, without verdicts.
"""
import json
import math
import os
import re
import statistics
from dataclasses import dataclass, field

from tools.plan import compared, config_difference, plan_words, tuning
from tools.report import decoding, factorial, judging, kept_tokens, same_data, specialisation, stats, trends
from tools.results import metric_names, notes, plain, records

LOSS, ACCURACY = records.LOSS, metric_names.VALIDATION_ACCURACY
BASELINE, INVALID = "baseline", "invalid"
REPRODUCED, NOT_REPRODUCED, NO_TWIN = "reproduced", "NOT REPRODUCED", "not checked"
DIVERGED, INTERRUPTED = "diverged", "interrupted"
LENGTH = re.compile(rf"{metric_names.LENGTH}/([0-9]+)/loss(?:/([0-9]+))?")      # of rows; where a stretch begins
CONTROL = re.compile(r"\b(parameters|flops)-of-([0-9]+)\b")      # in the name of a step
SIZES = {"parameters": metric_names.PARAMETERS, "flops": metric_names.FLOPS_PER_TOKEN}
PUBLISHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published.json")

AUDITS = {"AUDIT_ORACLE": "oracle", "AUDIT_WIRING": "wiring", "AUDIT_CAUSALITY": "causality",
          "AUDIT_ONE_BATCH": "one batch", "AUDIT_DATA": "data", "AUDIT_TRAINING": "training", "AUDIT_PAIRING": "pairing"}

# Marks behind cells, and what they mean.
MORE_PARAMETERS = "*"
OTHER_ENVIRONMENT = "†"
LOST_SEEDS = "‡"
UNEQUAL_NOISE = "§"
DAMAGED = "¶"
NOT_LEARNT = "◊"
MARKS = {
    MORE_PARAMETERS: "more parameters than its baseline",
    OTHER_ENVIRONMENT: "compared across environments (machine, compiler, BLAS, threads)",
    LOST_SEEDS: "runs of this step or of its baseline diverged, failed, or are missing or "
                "not finished: they are listed",
    UNEQUAL_NOISE: "one of the two is noisier than the other: if that noise is skewed, too, up to 3 of 10 "
                   "such tables have a false verdict",
    NOT_LEARNT: "a run ended no lower than chance, or than it began: there is no verdict on it",
    DAMAGED: "'make verify' found a run of this step or of its baseline damaged",
}
ENDED = (*records.FINISHED, "diverged", "invalid")      # states of runs that will not go on


@dataclass
class Mean:
    """Over seeds."""
    mean: float
    sd: float
    n: int
    values: list


@dataclass
class Row:
    step: str
    baseline: str
    is_repeat: bool
    is_null: bool
    seeds: list                         # with a headline
    numbers: dict                       # name -> Mean, or None
    difference: list                    # (symbol, the baseline's value, this step's)
    audits: int = 0
    skipped_audits: list = field(default_factory=list)      # switched off
    failed_audits: list = field(default_factory=list)
    no_oracle: bool = False             # no second program knows its formulas
    kind: str = judging.STEP            # what is compared with the baseline
    by_accuracy: bool = False           # what is judged
    delta: stats.Difference = None      # of the loss; with an interval where it was judged
    accuracy_delta: stats.Difference = None
    solved: list = None                 # seeds that solve the task: here, in the baseline, of
    samples: list = field(default_factory=list)     # what is judged, seed by seed
    is_unequal: bool = False            # one arm is much noisier
    p: float = None                     # corrected
    smallest_effect: float = None       # found with 80% power: nats, or share of right answers
    seeds_needed: tuple = None          # (least, most or None): so many may settle what is open
    is_exploratory: bool = False
    verdict: str = ""
    reason: str = ""                    # for a verdict that needs one
    not_learnt: str = ""                # why a run of either is no result of training
    marks: list = field(default_factory=list)
    verified: int = None                # runs with a headline that 'make verify' found sound
    pruning: str = ""                   # how its weights are pruned
    pairs: list = field(default_factory=list)       # of a trend: [step, baseline] at each size

    @property
    def judged(self):
        return self.accuracy_delta if self.by_accuracy else self.delta

    @judged.setter
    def judged(self, difference):
        if self.by_accuracy:
            self.accuracy_delta = difference
        else:
            self.delta = difference

    @property
    def perplexity_percent(self):
        """Infinite where a float cannot hold it."""
        try:
            return self.delta and 100 * math.expm1(self.delta.mean)
        except OverflowError:
            return math.inf


@dataclass
class Group:
    """Steps with the same baseline."""
    baseline: str
    by_accuracy: bool
    rows: list = field(default_factory=list)


@dataclass
class Component:
    step: str
    name: str                           # "": all targets
    loss: float
    accuracy: float
    chance: float
    floor: float

    @property
    def share(self):
        """Of the way from chance to floor."""
        if None in (self.chance, self.floor) or self.chance <= self.floor:
            return None
        return (self.chance - self.loss) / (self.chance - self.floor)


@dataclass
class Length:
    """Rows of one length, evaluated after the last update."""
    step: str
    length: int
    trained: int                        # the length of training
    rows: int
    state_bytes: int                    # when such a row is decoded
    loss: Mean
    accuracy: Mean
    delta: stats.Difference             # of the loss, to the baseline
    positions: list                     # (first of a stretch, mean loss there), rising


@dataclass
class Sweep:
    """The learning rates that a tuned step chose from."""
    step: str
    rates: list             # (rate, Mean of the losses or None, how many runs diverged), rising
    chosen: str = None      # by the step's own runs
    losses: dict = field(default_factory=dict)      # rate -> [(seed, loss)] of the runs that did not diverge

    def groups(self, rate):
        return tuning.groups([loss for _, loss in self.losses[rate]])

    @property
    def is_at_end(self):
        return self.chosen is not None and \
            tuning.is_at_end(self.chosen, [rate for rate, _, _ in self.rates])


@dataclass
class Table:
    experiment: str
    scales: list
    seeds: list
    groups: list
    controls: list          # rows: each a step compared with its matched control
    effects: list           # rows: main effects and interactions of grids
    judgement: judging.Judgement
    rows: list
    components: list
    lengths: list
    decoding: decoding.Decoding
    scores: list            # (arm, Mean, number of tasks): mean accuracy
    sweeps: list
    published: dict
    environments: list      # (environment, steps)
    problems: list
    unfinished: list        # sentences about runs that go on or wait
    notes: list
    compared: str = ""      # what the steps are, in one line
    verification: list = field(default_factory=list)    # sentences about runs that are not sound
    samples: list = field(default_factory=list)
    note: notes.Note = field(default_factory=notes.Note)    # what its researcher wrote (make note)
    trends: list = field(default_factory=list)      # of comparisons with the size of the model (tools/report/trends.py)
    forecast: list = field(default_factory=list)    # made before the runs (tools/report/forecast.py)

    @property
    def margin(self):
        return self.judgement.margin

    @property
    def comparisons(self):
        """All rows that are judged, those of the table first."""
        return [row for group in self.groups for row in group.rows] + self.controls + self.effects + \
            [trend.row for trend in self.trends]

    @property
    def all_rows(self):
        return self.rows + self.controls + self.effects + [trend.row for trend in self.trends]

    @property
    def not_reproduced(self):
        return [row.step for row in self.rows if row.verdict == NOT_REPRODUCED]


# ---------------------------------------------------------------- numbers of a step

def short_number(value):
    """1234567 as 1.23M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            form = ".3g" if value < 100 * size else ".1f"
            return f"{value / size:{form}}{letter}"
    return f"{value:g}"

def mean_of(values):
    values = [v for v in values if v is not None and math.isfinite(v)]
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), sd, len(values), values)


def median_speed(run):
    """Of the whole run: the last interval alone may hold an evaluation."""
    points = run.series.get(metric_names.TOKENS_PER_SECOND)
    return statistics.median(v for _, v in points) if points else None


def last_of(name):
    return lambda run: run.last(name)


NUMBERS = {
    "loss": last_of(LOSS),
    "best_loss": lambda run: run.best(LOSS),
    "accuracy": last_of(ACCURACY),
    "bits_per_byte": last_of(metric_names.VALIDATION_BITS_PER_BYTE),
    metric_names.PARAMETERS: last_of(metric_names.PARAMETERS),
    metric_names.FLOPS_PER_TOKEN: last_of(metric_names.FLOPS_PER_TOKEN),
    metric_names.PEAK_MEGABYTES: last_of(metric_names.PEAK_MEGABYTES),
    metric_names.DEVICE_MEGABYTES: last_of(metric_names.DEVICE_MEGABYTES),
    metric_names.TOKENS_PER_SECOND: median_speed,
    metric_names.DECODE_TOKEN_BYTES: last_of(metric_names.DECODE_TOKEN_BYTES),
    metric_names.SPARSITY: last_of(metric_names.SPARSITY),
    metric_names.COMPRESSED_BYTES: last_of(metric_names.COMPRESSED_BYTES),
    **kept_tokens.NUMBERS,
    **specialisation.NUMBERS,
}


def row_of(step, baseline):
    usable = step.usable.values()
    return Row(step.name, baseline.name if baseline else step.baseline, step.repeat > 0,
               is_null(step, baseline), sorted(step.usable),
               {name: mean_of([read(run) for run in usable]) for name, read in NUMBERS.items()},
               config_difference.difference(baseline, step) if baseline else [],
               max((len(run.audits) for run in step.runs), default=0),
               [name for symbol, name in AUDITS.items() if step.config.get(symbol) == "n"],
               [list(audit) for audit in step.failed_audits],
               no_oracle=any(run.has_no_oracle for run in step.runs), verified=count_sound(usable),
               pruning=", ".join(filter(None, (step.config.get(name) for name in ("PRUNE", "PRUNE_SCOPE")))))


def count_sound(runs):
    return sum(bool(run.verification and run.verification.is_known and not run.verification.wrong)
               for run in runs)


def is_null(step, baseline):
    """The same configuration with other seeds."""
    return bool(baseline and baseline.runs and step.runs) and step.repeat == 0 and \
        step.config == baseline.config and \
        not {run.seed for run in step.runs} & {run.seed for run in baseline.runs}


def paired_runs(step, baseline):
    """Pairs of runs with the same seed; runs of a null are paired in the order of seeds."""
    mine, theirs = step.usable, baseline.usable
    if is_null(step, baseline):
        return [(mine[a], theirs[b]) for a, b in zip(sorted(mine), sorted(theirs))]
    return [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]


def paired_values(step, baseline, read):
    """Differences; read(run) may be None."""
    values = [(read(a), read(b)) for a, b in paired_runs(step, baseline)]
    return [a - b for a, b in values if None not in (a, b)]


def components_of(step):
    names = sorted({name.removeprefix(LOSS + "/") for run in step.usable.values()
                    for name in run.series if name.startswith(LOSS + "/")})
    for name in ["", *names]:
        def number(metric, suffix="/" + name if name else ""):
            found = mean_of([run.last(metric + suffix) for run in step.usable.values()])
            return found and found.mean
        loss = number(LOSS)
        if loss is not None:
            yield Component(step.name, name, loss, number(ACCURACY), number(metric_names.CHANCE),
                            number(metric_names.VALIDATION_FLOOR))


def lengths_of(step, baseline):
    """Of all seeds that have them."""
    usable = step.usable.values()
    matches = filter(None, map(LENGTH.fullmatch, {name for run in usable for name in run.series}))
    stretches = {}
    for length, first in (match.groups() for match in matches):
        stretches.setdefault(int(length), []).extend([int(first)] if first else [])
    for length, firsts in sorted(stretches.items()):
        def read(what, length=length):
            return last_of(f"{metric_names.LENGTH}/{length}/{what}")

        def number(what):
            return mean_of([read(what)(run) for run in usable])
        if not number("loss"):
            continue    # not finite
        yield Length(step.name, length, int(step.config.get("MODEL_BLOCK", 0)),
                     int(number("rows").mean), int(number("state_bytes").mean), number("loss"),
                     number("accuracy"), stats.difference(
                         [] if step is baseline else paired_values(step, baseline, read("loss"))),
                     [(first, mean.mean) for first in sorted(firsts)
                      if (mean := number(f"loss/{first}"))])


# ---------------------------------------------------------------- verdicts

def environments_of(*steps):
    return {(*records.for_readers(run.environment, run.config).items(),
             *([("changed", run.moved)] if run.moved else []))
            for step in steps for run in step.usable.values()}


def outcome(run):
    """What a repetition must end with, too; None if the run has not ended."""
    if tuning.loss_of(run) == math.inf:
        return DIVERGED
    return run.weights if run.trouble is None else None


def is_telling(mine, first):
    """If both runs diverged, there are no bits to compare."""
    return None not in (mine, first) and (mine, first) != (DIVERGED, DIVERGED)


def unlike(run, twin):
    """What a run came to instead of its twin's weights."""
    for diverged, how in ((run, "diverged"), (twin, "finished")):
        if outcome(diverged) == DIVERGED:
            return f"{how}, unlike {twin.step},"
    return f"other weights than {twin.step}"


def same_bits(step, steps):
    """The verdict on a step that runs another one again, and why."""
    twins = {run.seed: run for other in steps if other.repeat == 0 and other.config == step.config
             for run in other.runs}
    pairs = [(run, twins[run.seed]) for run in step.runs if run.seed in twins]
    checked = [pair for pair in pairs if is_telling(*map(outcome, pair))]
    if not checked:
        return NO_TWIN, "no finished run of the same configuration and seed to compare with"
    wrong = {}
    for run, twin in checked:
        if outcome(run) != outcome(twin):
            wrong.setdefault(unlike(run, twin), []).append(str(run.seed))
    if wrong:
        there = " (in another environment)" if any(
            run.environment != twin.environment for run, twin in checked) else ""
        return NOT_REPRODUCED, "; ".join(f"{what} for seed {', '.join(seeds)}"
                                         for what, seeds in wrong.items()) + there
    return REPRODUCED, f"the bits of {checked[0][1].step}, {len(checked)} seed" + \
        "s" * (len(checked) > 1)


def not_learnt(step):
    """Why a run of the step is no result of training; empty: all are."""
    for limit, what in ((last_of(metric_names.CHANCE), "chance"), (lambda run: run.first(LOSS), "it began")):
        seeds = [seed for seed, run in sorted(step.usable.items())
                 if limit(run) is not None and run.last(LOSS) >= limit(run)]
        if seeds:
            return f"{step.name} did not learn: with seed {', '.join(map(str, seeds))} the loss ends no lower than {what}"
    return ""


def same_end(step):
    """Seeds that end in the same weights."""
    seeds = {}
    for run in step.usable.values():
        if run.weights:
            seeds.setdefault(run.weights, []).append(run.seed)
    return next((sorted(those) for those in seeds.values() if len(those) > 1), [])


def misreported(step):
    """A loss or accuracy that is not what the audit added up; or empty."""
    for seed, run in sorted(step.usable.items()):
        for name, again in ((LOSS, metric_names.DATA_VALIDATION_LOSS), (ACCURACY, metric_names.DATA_VALIDATION_ACCURACY)):
            counted = dict(run.series.get(again, ()))
            for iteration, value in run.series.get(name, ()):
                if iteration in counted and not math.isclose(value, counted[iteration], rel_tol=1e-6, abs_tol=1e-9):
                    return f"with seed {seed} {name} is {value:.6g} after update {iteration}; the audit added up " \
                        f"{counted[iteration]:.6g}"
    return ""


def invalid_reason(step, baseline):
    for judged, whose in ((step, ""), (baseline, "its baseline: ")):
        if misreported(judged):
            return whose + misreported(judged)
        if same_end(judged):
            return f"{whose}seeds {', '.join(map(str, same_end(judged)))} end in the same weights, bit by bit"
        repeated = same_data.repeated(judged.usable.values())
        if repeated:
            return f"{whose}seeds {', '.join(map(str, repeated))} were trained on the same rows"
        if judged.failed_audits:
            audit, subject, _, detail = judged.failed_audits[0]
            return f"{whose}{audit} audit failed" + (f" for {subject}" if subject else "") \
                + (f": {detail}" if detail else "")
        if judged.is_invalid:
            return f"{whose}an audit failed"
        if judged.is_leaky:
            return f"{whose}it is declared to see the future"
    return ""


def data_reason(row, step, baseline):
    """Rows are the same unless the plan says otherwise."""
    if row.is_null:
        return ""
    return same_data.unequal(paired_runs(step, baseline), same_data.kinds_alike(changed_symbols(row), step.config))


def changed_symbols(row):
    return [symbol for symbol, *_ in row.difference]


def is_by_accuracy(step):
    return any(run.last(metric_names.JUDGED_BY_ACCURACY) for run in step.runs)


def samples_of(step, baseline, by_accuracy):
    """A null's seeds get the names of the baseline's seeds with which they are paired."""
    for mine, theirs in paired_runs(step, baseline):
        values = tuple(map(quantity(by_accuracy), (mine, theirs)))
        if None not in values:
            yield judging.Sample(theirs.seed, values[0] - values[1], values)


def ended_seeds(step, baseline):
    """Those of a null as the baseline calls them."""
    shifted = is_null(step, baseline)
    return {run.seed % plan_words.NULL_SHIFT if shifted else run.seed
            for run in step.runs if run.state in ENDED}


def quantity(by_accuracy):
    return NUMBERS["accuracy" if by_accuracy else "loss"]


def add_marks(row, steps, all_seeds):
    """Of what may make a comparison of these steps unfair."""
    row.not_learnt = next(filter(None, map(not_learnt, steps)), "")
    if len(environments_of(*steps)) > 1:
        row.marks.append(OTHER_ENVIRONMENT)
    if len(all_seeds) > len(row.samples):
        row.marks.append(LOST_SEEDS)
    if any(run.verification and run.verification.wrong for step in steps for run in step.runs):
        row.marks.append(DAMAGED)


def compare(row, step, baseline, all_seeds):
    """Fills in everything except the verdict, which needs the whole table."""
    row.by_accuracy = is_by_accuracy(baseline)
    row.samples = list(samples_of(step, baseline, row.by_accuracy))
    for name in ("loss", "accuracy") if row.by_accuracy else ("loss",):
        found = stats.difference(paired_values(step, baseline, NUMBERS[name]))
        setattr(row, "delta" if name == "loss" else "accuracy_delta",
                found and found.without_interval())
    row.reason = invalid_reason(step, baseline) or data_reason(row, step, baseline)
    tasks = [s.config.get("TASK") for s in (baseline, step)]
    if row.reason:
        row.verdict = INVALID
    elif tasks[0] != tasks[1]:
        row.verdict = stats.UNDECIDABLE
        row.reason = f"the tasks differ ({tasks[0]}, {tasks[1]}), so losses cannot be compared"
    mine, theirs = row.numbers[metric_names.PARAMETERS], mean_of(
        [run.last(metric_names.PARAMETERS) for run in baseline.usable.values()])
    if mine and theirs and mine.mean > theirs.mean:
        row.marks.append(MORE_PARAMETERS)
    add_marks(row, (step, baseline), all_seeds)


def judge(rows, steps=(), declared=None):
    """Judges all rows at once, because the correction is over the family."""
    first_start = min((run.started or 0 for step in steps for run in step.runs), default=math.inf)
    by_name = {step.name: step for step in steps}
    judgement = judging.judge(rows, declared, first_start, {
        step.name: ended_seeds(step, by_name.get(step.baseline)) for step in steps})
    for row in rows:
        if row.not_learnt:
            withhold(row)
        elif row.is_unequal:
            row.marks.append(UNEQUAL_NOISE)
    return judgement


def withhold(row):
    """A difference to what was not learnt says nothing; it counts in its family, as losses must not decide that."""
    row.marks.append(NOT_LEARNT)
    row.p = row.smallest_effect = row.seeds_needed = None
    row.judged = row.judged and row.judged.without_interval()
    if row.verdict != INVALID:
        row.verdict, row.reason = stats.UNDECIDABLE, row.reason or row.not_learnt


# ---------------------------------------------------------------- effects of grids

def comparable_steps(steps, rows):
    """The cells of possible grids, by task: steps that are neither controls nor repetitions."""
    found = {}
    for step, row in zip(steps, rows):
        if not (row.is_repeat or row.is_null or CONTROL.search(step.name)):
            found.setdefault(step.config.get("TASK"), []).append(step)
    return found.values()


def in_order(step):
    return records.step_order(step.name)


def effect_row(effect, all_seeds):
    """A difference of sums over steps, seed by seed, judged like any other."""
    steps = [step for step, _ in effect.cells]
    row = Row(effect.name, "", False, False, [], dict.fromkeys(NUMBERS), [],
              kind=judging.INTERACTION if effect.is_interaction else judging.MAIN,
              by_accuracy=is_by_accuracy(steps[0]))
    read = quantity(row.by_accuracy)
    row.seeds = sorted(set.intersection(*(set(step.usable) for step in steps)))
    for seed in row.seeds:
        values = [read(step.usable[seed]) for step in steps]
        if None not in values:
            row.samples.append(judging.Sample(
                seed, sum(c * v for v, (_, c) in zip(values, effect.cells)),
                tuple(values)))
    found = stats.difference([sample.difference for sample in row.samples])
    row.judged = found and found.without_interval()
    for step in steps:
        row.reason = row.reason or invalid_reason(step, step)
    row.reason = row.reason or same_data.unequal_cells(sorted(steps, key=in_order), paired_runs)
    row.verdict = INVALID if row.reason else ""
    add_marks(row, steps, all_seeds)
    return row


def effect_rows(steps, rows, all_seeds, tuned):
    for those in comparable_steps(steps, rows):
        root = next((step for step in those if step.baseline == step.name), None)
        if root:
            for effect in factorial.effects_of(those, root, tuned):
                yield effect_row(effect, all_seeds)


# ---------------------------------------------------------------- the table

def trained_as_baseline(step, row, baseline):
    """The seeds whose final weights are the baseline's, although symbols of the run differ."""
    if baseline is None or step.repeat or row.is_null or \
            all(symbol.startswith("AUDIT_") for symbol, *_ in row.difference):
        return []
    return [mine.seed for mine, twin in paired_runs(step, baseline)
            if mine.weights and mine.weights == twin.weights]


def is_unfinished(run):
    """It goes on, or somebody stopped it: nothing is wrong with it."""
    return run.is_going or run.state == INTERRUPTED


def find_unfinished(steps, waiting):
    for step in steps:
        yield from (f"{run}: {run.trouble}" + "; 'make' resumes it" * (run.state == INTERRUPTED)
                    for run in step.runs if is_unfinished(run))
    for step, seeds in waiting.items():
        yield f"{step}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}: waiting"


def waiting_seeds(experiment, steps, planned):
    """By step: of the planned runs of the experiment that have not begun."""
    begun, found = {run.identity[:12] for step in steps for run in step.runs}, {}
    for run in planned:
        if run.experiment == experiment and run.identity not in begun:
            found.setdefault(run.step, set()).add(run.seed)
    return found


def missing_seeds(step, row, all_seeds, waiting):
    """A step that repeats another has one seed: one repetition is enough."""
    expected = set() if step.repeat or row.is_null else set(all_seeds)
    return sorted(expected - {run.seed for run in step.runs} - waiting.get(step.name, set()))


def spans(numbers):
    """1, 2, 3, 5 as "1-3, 5"."""
    found = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in found)


def steps_in_words(names):
    numbers = {name.split("-", 1)[0] for name in names}
    return spans(map(int, numbers)) if all(map(str.isdigit, numbers)) else ", ".join(sorted(names))


def complete_pairs(steps, rows):
    """The steps that each seed compares with their baselines, in a sentence."""
    by_name, compared_by = {step.name: step for step in steps}, {}
    for step, row in zip(steps, rows):
        baseline = by_name.get(row.baseline, step)
        for mine, _ in [] if baseline is step or step.repeat or row.is_null else paired_runs(step, baseline):
            compared_by.setdefault(mine.seed, set()).update((step.name, baseline.name))
    by_steps = {}
    for seed, names in compared_by.items():
        by_steps.setdefault(steps_in_words(names), []).append(seed)
    if not by_steps:
        return "no step and its baseline have finished the same seed yet"
    return "complete: " + "; ".join(f"seed{'s' * (len(seeds) > 1)} {spans(seeds)} of steps {names}"
                                    for names, seeds in sorted(by_steps.items(), key=lambda entry: min(entry[1])))


def find_problems(steps, rows, all_seeds, waiting):
    by_name = {step.name: step for step in steps}
    for step, row in zip(steps, rows):
        same = trained_as_baseline(step, row, by_name.get(row.baseline))
        if same:
            yield f"{step.name}: with seed {', '.join(map(str, same))} it ends in the weights of " \
                  f"{row.baseline}, bit by bit, although its symbols differ: it trained its baseline"
        for run in step.runs:
            if run.trouble and not is_unfinished(run):
                yield f"{run}: {run.trouble}"
        for seed in missing_seeds(step, row, all_seeds, waiting):
            yield f"{step.name}, seed {seed}: missing"


def count_of(runs, all_runs):
    return f"{len(runs)} of {len(all_runs)} runs"


def verification_lines(steps):
    """Nothing about runs of a file of values, which are not there to be verified."""
    runs = [run for step in steps for run in step.runs if run.verification]
    for run in runs:
        for text in run.verification.wrong:
            yield f"{run} is damaged: {text}"
    unknown = [run for run in runs if not run.verification.is_known]
    if unknown:
        yield f"not verified: {count_of(unknown, runs)}; 'make verify' checks their journals, weights " \
              "and rows"
    unbound = [run for run in runs if not run.verification.is_bound]
    if unbound:
        yield f"unbound: the journals of {count_of(unbound, runs)} name no run, because an earlier program " \
              "wrote them"


def find_notes(steps, rows):
    for step in steps:
        if step.older:
            yield f"{step.name}: {step.older} older run{'s' * (step.older > 1)} with other " \
                  "settings or sources left out"
    for step, row in zip(steps, rows):
        yield from same_data.exemptions(step.name, row.baseline, row.is_null, changed_symbols(row), step.config)
    yield from same_data.lacking([run for step in steps for run in step.usable.values()])
    revisions = {run.git_revision for step in steps for run in step.usable.values()}
    if len(revisions) > 1:
        yield "the runs come from different revisions: " + ", ".join(sorted(map(str, revisions)))


def list_environments(steps):
    found = {}
    for step in steps:
        for environment in environments_of(step):
            found.setdefault(environment, []).append(step.name)
    return [(dict(environment), names) for environment, names in sorted(
        found.items(), key=lambda item: records.step_order(item[1][0]))]


def common_words(rows):
    """Of the names of steps: what is left when their numbers and tasks are taken away."""
    labels = [row.step.split("-", 1)[-1].split("+") for row in rows]
    return "+".join(word for word in labels[0] if all(word in label for label in labels))


def own_changes(row, tuned):
    """What the step changes; the rates that a tuned one chose are no change of its own."""
    free = tuning.RATES if row.step in tuned else ()
    return tuple(change for change in row.difference if change[0] not in free)


def scores_of(groups, rows, steps, tuned):
    """Mean accuracy over tasks, of arms that differ from their baselines in the same way."""
    baselines = [group.baseline for group in groups
                 if group.by_accuracy and not all(row.is_null for row in group.rows)]
    arms = {}
    for row in rows:
        if row.baseline in baselines and not (row.is_repeat or row.is_null or
                                              row.verdict.endswith(INVALID)):
            arms.setdefault(own_changes(row, tuned), []).append(row)
    for arm in arms.values():
        seeds = set.intersection(*(set(row.seeds) for row in arm))
        if len(arm) == len(baselines) > 1 and seeds:
            yield common_words(arm) or BASELINE, mean_of(
                [statistics.fmean(steps[row.step].usable[seed].last(ACCURACY) for row in arm)
                 for seed in sorted(seeds)]), len(arm)


def load_published(experiment):
    return json.loads(plain.text(PUBLISHED)).get(experiment)


def beside_published(experiment, steps):
    """Published numbers with ours of the same step, in the quantity that was published."""
    study = load_published(experiment)
    if not study:
        return None
    nothing = records.Step("", [])
    baseline = steps.get(study["baseline"], nothing)

    def read(run):
        window = study.get("last_iterations")
        return run.tail_mean(study["metric"], window) if window else run.last(study["metric"])

    for claim in study["steps"]:
        step = steps.get(claim["step"], nothing)
        claim["ours"] = mean_of([read(run) for run in step.usable.values()])
        # Without an interval: the table's own is corrected, and decides.
        ours = stats.difference(paired_values(step, baseline, read))
        claim["ours_delta"] = ours and ours.without_interval()
        claim["ours_parameters"] = mean_of([run.last(metric_names.PARAMETERS) for run in step.usable.values()])
    return study


def make_groups(steps, rows, all_seeds):
    by_name = {step.name: step for step in steps}
    groups = {}
    for step, row in zip(steps, rows):
        baseline = by_name.get(step.baseline)
        if row.is_repeat:
            row.verdict, row.reason = same_bits(step, steps)
        elif step.baseline in (None, step.name):
            row.reason = invalid_reason(step, step)
            row.verdict = f"{BASELINE}, {INVALID}" if row.reason else BASELINE
            row.reason = row.reason or not_learnt(step)
            row.marks += [NOT_LEARNT] * bool(not_learnt(step))
        elif baseline is None:
            row.verdict, row.reason = stats.UNDECIDABLE, f"its baseline {step.baseline} has no runs"
        else:
            group = groups.setdefault(baseline.name, Group(baseline.name, is_by_accuracy(baseline)))
            group.rows.append(row)
            compare(row, step, baseline, all_seeds)
    return list(groups.values())


def is_control(row, tuned):
    """Does it differ only in the width of the feed-forward, and in rates that it chose?"""
    return {change[0] for change in own_changes(row, tuned)} == {"FFN_HIDDEN"}


def matched_steps(control, steps, rows):
    """The steps that the control names: those of one size share one."""
    found = (matched_step(asked, control, steps, rows) for asked in CONTROL.finditer(control.name))
    return list(filter(None, found))


def matched_step(asked, control, steps, rows):
    """The step of that number; an older plan may have had another one."""
    sizes = {row.step: row.numbers[SIZES[asked[1]]] for row in rows}

    def distance(step):
        mine, theirs = sizes[step.name], sizes[control.name]
        return abs(mine.mean - theirs.mean) if mine and theirs else math.inf, -newest(step)
    numbered = [step for step in steps if step.name.split("-", 1)[0] == asked[2]]
    return min(numbered, key=distance, default=None)


def newest(step):
    return max(run.started or 0 for run in step.runs)


def control_pairs(steps, rows, tuned, declared):
    """Steps with their matched controls, and with others that the declaration names."""
    for control, row in zip(steps, rows):
        for step in matched_steps(control, steps, rows):
            if is_control(row, tuned) and step.name != control.baseline:
                yield step.name, control.name
    known = {(row.step, row.baseline) for row in rows}
    names = {step.name for step in steps}
    for pair in declared.primary if declared else ():
        if not isinstance(pair, str) and names.issuperset(pair) and tuple(pair) not in known:
            yield tuple(pair)


def control_rows(steps, rows, all_seeds, tuned, declared):
    by_name = {step.name: step for step in steps}
    for name, other in dict.fromkeys(control_pairs(steps, rows, tuned, declared)):
        row = row_of(by_name[name], by_name[other])
        row.kind = judging.CONTROL
        compare(row, by_name[name], by_name[other], all_seeds)
        yield row


def sweeps_of(candidates, by_name):
    """Of the steps of the experiment that tunes: STEP@RATE."""
    groups = {}
    for candidate in candidates:
        step, at, _ = candidate.name.rpartition("@")
        if at:
            groups.setdefault(step, []).append(candidate)
    for name, those in groups.items():
        rates, by_seed = [], {}
        for candidate in those:
            losses = [tuning.loss_of(run) for run in candidate.runs]
            rates.append((candidate.config["LEARNING_RATE"], mean_of(losses),
                          losses.count(math.inf)))
            by_seed[candidate.config["LEARNING_RATE"]] = sorted(
                (run.seed, loss) for run, loss in zip(candidate.runs, losses) if loss is not None and math.isfinite(loss))
        yield Sweep(name, sorted(rates, key=lambda entry: float(entry[0])),
                    by_name[name].config.get("LEARNING_RATE") if name in by_name else None, by_seed)


def tabulate(experiment, steps, candidates=(), decoded=None, declared=None, planned=()):
    by_name = {step.name: step for step in steps}
    rows = [row_of(step, by_name.get(step.baseline)) for step in steps]
    seeds = sorted({run.seed for step, row in zip(steps, rows) if not row.is_null
                    for run in step.runs})
    decoded = decoded or decoding.Decoding()
    waiting = waiting_seeds(experiment, steps, planned)
    problems = [*find_problems(steps, rows, seeds, waiting), *decoded.problems]
    unfinished = list(find_unfinished(steps, waiting))
    if unfinished or any(missing_seeds(step, row, seeds, waiting) for step, row in zip(steps, rows)):
        unfinished.append(complete_pairs(steps, rows))
    if not any(row.seeds for row in rows):
        raise records.Problem(f"{experiment}: no run is finished, nothing to report\n"
                              + "\n".join(f"  {problem}" for problem in problems + unfinished))
    groups = make_groups(steps, rows, seeds)
    sweeps = list(sweeps_of(candidates, by_name))
    tuned = {sweep.step for sweep in sweeps}
    controls = list(control_rows(steps, rows, seeds, tuned, declared))
    beside = [row for group in groups for row in group.rows] + controls
    found = trends.trends_of(rows, beside, by_name, lambda: Row("", "", False, False, [], dict.fromkeys(NUMBERS), []))
    effects = [] if trends.is_of_sizes(rows) else list(effect_rows(steps, rows, seeds, tuned))
    judgement = judge(beside + effects + [trend.row for trend in found], steps, declared)
    return Table(experiment, sorted({str(r.scale) for s in steps for r in s.usable.values()}),
                 seeds, groups, controls, effects, judgement, rows,
                 [c for step in steps if not step.repeat for c in components_of(step)],
                 [x for step in steps if not step.repeat
                  for x in lengths_of(step, by_name.get(step.baseline, step))],
                 decoded, list(scores_of(groups, rows, by_name, tuned)),
                 sweeps, beside_published(experiment, by_name),
                 list_environments(steps), problems, unfinished, list(find_notes(steps, rows)),
                 compared.line([step.config for step in steps]), list(verification_lines(steps)), trends=found,
                 forecast=list(declared.forecast) if declared else [])


def tabulate_pairs(name, pairs):
    """Any steps against any others, each pair a comparison: (A, B) judges B."""
    groups, rows = {}, []
    for a, b in pairs:
        group = groups.setdefault((a.runs[0].experiment, a.name), Group(a.name, is_by_accuracy(a)))
        row = row_of(b, a)
        row.is_exploratory = True       # nobody declared it
        compare(row, b, a, [run.seed for run in a.runs])
        group.rows.append(row)
        rows.append(row)
    judgement = judging.Judgement(exploratory=judge(rows).family)
    runs = {run.id: run for pair in pairs for step in pair for run in step.runs if run.trouble}.values()
    problems, unfinished = ([f"{run.experiment}/{run}: {run.trouble}" for run in runs if is_unfinished(run) == those]
                            for those in (False, True))
    return Table(name, [], [], list(groups.values()), [], [], judgement, rows, [], [],
                 decoding.Decoding(), [], [], None, [], problems, unfinished, [])
