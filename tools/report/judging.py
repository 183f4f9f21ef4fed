"""Verdicts on the comparisons of a table, by the rules of tools/report/stats.py.

The comparisons that were declared before the first run are one family; they get verdicts only
when all their declared runs have ended (a look).  All others are exploratory and another family.
If nothing was declared, all are primary, and the existing runs decide.
"""
import math
import time
from dataclasses import dataclass

from tools.plan import declaration
from tools.report import stats

INCOMPLETE = "incomplete"
# What a comparison is: a step beside its baseline, beside its control, or an effect of a grid.
STEP, CONTROL, MAIN, INTERACTION = "step", "control", "main effect", "interaction"
TREND = "trend"     # of a comparison with the size of the model
EFFECTS = dict(zip(declaration.EFFECTS, (MAIN, INTERACTION), strict=True))


@dataclass
class Sample:
    """What one seed says of a comparison."""
    seed: int
    difference: float           # of the quantity that is judged
    values: tuple = ()          # that quantity: the step's, the baseline's; or of all cells


@dataclass
class Look:
    """Seeds (None: all that are there), and the share of alpha that their verdicts may use."""
    seeds: list
    share: float = stats.ALPHA

    def samples(self, row):
        return row.samples if self.seeds is None else \
            [sample for sample in row.samples if sample.seed in self.seeds]


def plural(n, word):
    return f"{n} {word}{'s' * (n != 1)}"


# ---------------------------------------------------------------- one comparison

def threshold(row, samples):
    """Above it a seed has solved its task; None: seeds do not fall in two groups."""
    return stats.threshold([a for s in samples for a in s.values]) if row.by_accuracy else None


def is_unequal(row, samples):
    return row.kind in (STEP, CONTROL) and len(samples) > 1 and \
        stats.is_unequal(*zip(*(sample.values for sample in samples)))


def least_seeds(row):
    """For a verdict by an interval."""
    return stats.MIN_SEEDS_BY_ACCURACY if row.by_accuracy else stats.MIN_SEEDS


def judge_interval(row, looks, size, margin):
    alphas = [look.share / size for look in looks]
    intervals = [stats.difference([s.difference for s in look.samples(row)], alpha)
                 for look, alpha in zip(looks, alphas)]
    alpha, d = alphas[-1], stats.overlap(intervals)
    row.p = min(map(stats.corrected_p, intervals, alphas))
    row.is_unequal = is_unequal(row, looks[-1].samples(row))
    row.smallest_effect = intervals[-1].sd * stats.smallest_effect(intervals[-1].n, alpha)
    if d is None:
        row.verdict, row.reason = stats.OPEN, "the intervals of the looks contradict each other"
        row.judged = intervals[-1].without_interval()
        return
    row.judged = d
    row.verdict = stats.verdict(d, margin, not row.by_accuracy)
    if row.verdict == stats.OPEN and d.sd:
        row.seeds_needed = stats.seeds_for_margin(d, margin, alpha) if margin else \
            stats.seeds_for_effect(d, alpha)


def judge_counts(row, looks, size, limit):
    """Seeds that solve the task, counted and tested by Fisher."""
    samples = looks[-1].samples(row)
    row.judged = stats.difference([s.difference for s in samples]).without_interval()
    p_values = []
    for look in looks:
        pairs = [sample.values for sample in look.samples(row)]
        if not pairs:
            continue    # all its seeds are lost
        mine, theirs = (sum(a > limit for a in arm) for arm in zip(*pairs))
        row.solved = [mine, theirs, len(pairs)]
        p_values.append(stats.fisher(mine, len(pairs), theirs, len(pairs)) * size
                        * stats.ALPHA / look.share)
    row.p, n, alpha = min(1.0, *p_values), len(samples), looks[-1].share / size
    if row.p <= stats.ALPHA:
        row.verdict = stats.BETTER if mine > theirs else stats.WORSE
    elif stats.smallest_p(n, n) > alpha:
        row.verdict = stats.UNDECIDABLE
        row.reason = f"seeds either solve the task or do not, and no outcome of " \
                     f"{plural(n, 'seed')} could pass the correction for " \
                     f"{plural(size, 'comparison')}; {stats.seeds_to_count(1, 0, alpha)} could"
    else:
        row.verdict = stats.OPEN
        needed = stats.seeds_to_count(mine / n, theirs / n, alpha)
        row.seeds_needed = needed and (needed, None)


def judge_row(row, looks, size, margin):
    samples = looks[-1].samples(row)
    limit, least = threshold(row, samples), least_seeds(row)
    enough = [look for look in looks if len(look.samples(row)) >= least]
    if limit is not None and len(samples) >= stats.MIN_SEEDS and row.kind in (STEP, CONTROL):
        judge_counts(row, looks, size, limit)
    elif not enough:
        row.verdict = stats.UNDECIDABLE
        row.reason = f"{plural(len(samples), 'paired seed')}, {least} are needed"
    elif limit is None:
        judge_interval(row, enough, size, margin)
    else:
        row.verdict = stats.UNDECIDABLE
        row.reason = "seeds either solve the task or do not: there is nothing to add up"


def judge_family(rows, looks, margin=None):
    """All at once: the correction is over the family.  Returns its size.

    Only the number of seeds decides which comparisons count, never what they measured.
    """
    size = sum(len(looks[-1].samples(row)) >= stats.MIN_SEEDS for row in rows)
    for row in rows:
        judge_row(row, looks, size, margin)
    return size


# ---------------------------------------------------------------- what was declared

@dataclass
class Judgement:
    """How the table was judged."""
    family: int = 0                 # comparisons that are corrected for together
    exploratory: int = 0            # those of the other family
    margin: float = None            # declared
    lines: tuple = ()               # about the declaration
    next_seeds: list = ()           # of the next look; empty where nothing is open, or no look left


def is_primary(row, declared):
    if row.kind == TREND and not declared.is_of_all:
        return all(pair in declared.primary for pair in row.pairs)
    return declared.is_of_all or any(
        row.kind == EFFECTS[one] if isinstance(one, str) else one == [row.step, row.baseline]
        for one in declared.primary)


def fault(rows, declared, first_start):
    """Why the declaration does not count; empty: it counts."""
    if declared.time > first_start:
        return "it was " + ("changed" if declared.is_changed else "made") + \
            " after the first run had begun"
    strange = sorted({s.seed for row in rows for s in row.samples} - set(declared.seeds))
    if strange:
        return f"seed {', '.join(map(str, strange))} was not declared"
    return ""


def looks_of(rows, declared, ended):
    """Those whose runs have all ended, in every step of a primary comparison."""
    steps = declared.steps if not declared.is_of_all else \
        {step for row in rows if row.kind in (STEP, CONTROL) for step in (row.step, row.baseline)}
    return [Look(declared.seeds[:n], share)
            for n, share in zip(declared.looks, stats.shares(declared.looks))
            if all(ended.get(step, set()).issuperset(declared.seeds[:n]) for step in steps)]


def moment(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def judge_primary(rows, declared, ended):
    """The number of looks whose runs have ended, and how many comparisons were judged."""
    looks = looks_of(rows, declared, ended)
    if looks:
        return len(looks), judge_family(rows, looks, declared.margin)
    for row in rows:
        row.verdict = INCOMPLETE
    return 0, 0


def look_line(declared, done):
    """How far the looks are."""
    if not done:
        return f"No look yet: the first needs all runs of {plural(declared.looks[0], 'seed')}."
    return f"Look {done} of {len(declared.looks)}, at {declared.looks[done - 1]} seeds."


def seeds_after(rows, declared, done):
    """Those of the next look, if a row is open and there is one."""
    if not 0 < done < len(declared.looks) or all(row.verdict != stats.OPEN for row in rows):
        return []
    return declared.seeds[:declared.looks[done]]


def judge(rows, declared=None, first_start=math.inf, ended=None):
    """Every row that has no verdict yet; `ended` has the seeds of each step that have ended."""
    rows = [row for row in rows if not row.verdict]
    if declared is None or (declared.is_withdrawn and declared.time <= first_start):
        return Judgement(judge_family(rows, [Look(None)]))
    primary = [row for row in rows if is_primary(row, declared)]
    others = [row for row in rows if row not in primary]
    wrong = fault(primary, declared, first_start)
    lines = [f"Declared on {moment(declared.time)}: {declared.text}."] if rows else []
    if wrong:
        lines.append(f"The declaration does not count, since {wrong}: all is exploratory.")
        primary, others = [], rows
    result = Judgement(margin=declared.margin)
    if primary:
        done, result.family = judge_primary(primary, declared, ended)
        lines.append(look_line(declared, done))
        result.next_seeds = seeds_after(primary, declared, done)
    elif rows and not wrong:
        lines.append("None of the primary comparisons is in this table.")
    for row in others:
        row.is_exploratory = True
    result.exploratory = judge_family(others, [Look(None)], declared.margin)
    result.lines = tuple(lines)
    return result
