"""Does an effect shrink, stay or grow with the size of the model?  docs/sizes.md explains the choices.

A plan of sizes trains the same steps at several scales.  A comparison at size s has the paired
effect d(s, i) of seed i, and x(s) = log10 of the parameters of what it is compared with.  The
slope of seed i is that of its least-squares line,

    b(i) = sum over s of (x(s) - mean x) d(s, i) / sum over s of (x(s) - mean x)^2,

in nats per tenfold parameters.  The slopes of all seeds that every size has are judged as the
differences of any other comparison are: by their mean and its t interval, which needs neither equal
noise at all sizes nor independent sizes.
"""
import math
import statistics
from dataclasses import dataclass

from tools.plan import estimate, sizes
from tools.report import judging, stats
from tools.results import metric_names

LEAST = 2               # sizes of a slope
SAME_UNIT = 0.02        # by so much bytes per token may differ, before a nat per token is another unit
SHRINKS, GROWS, STAYS = "shrinks", "grows", "stays"
NOUN = {"better": "more favourable with size", "worse": "less favourable with size"}


@dataclass
class Size:
    """One comparison at one scale."""
    scale: str
    row: object                 # of the table
    parameters: float           # of what it is compared with
    work: float                 # FLOPs of its training; None: not known


# ---------------------------------------------------------------- which rows belong together

def parts(name):
    """Number, scale and label in the name of a step of a plan of sizes; None in any other."""
    found = sizes.STEP.fullmatch(name)
    return found and (int(found[1]), found[2], found[3])


def is_of_sizes(rows):
    """Do the names of all steps begin with scales, and is each compared with a step of its own scale?"""
    named = [(parts(row.step), parts(row.baseline or row.step)) for row in rows]
    return all(mine and theirs and mine[1] == theirs[1] for mine, theirs in named) and \
        len({mine[1] for mine, _ in named}) >= LEAST


def common_label(name, labels):
    """What the step is called at every scale: numbers of other steps become their labels."""
    _, _, label = parts(name)
    return "+".join(sizes.NUMBERED.sub(lambda found: found[1] + labels.get(int(found[2]), found[2]), part)
                    for part in label.split("+"))


def work_of(step):
    for run in step.usable.values():
        flops = run.last(metric_names.FLOPS_PER_TOKEN)
        try:
            updates, per_update = estimate.updates_and_tokens(run.config)
        except (KeyError, ValueError):      # runs of an older program may lack symbols
            return None
        return flops and flops * updates * per_update
    return None


def comparisons(table_rows, judged, by_name):
    """(step, baseline) as they are called at the first scale -> their sizes, from the smallest."""
    labels = {parts(row.step)[0]: parts(row.step)[2] for row in table_rows}
    sizes_of = {row.step: row.numbers[metric_names.PARAMETERS] for row in table_rows}
    found = {}
    for row in judged:
        if row.is_null or not sizes_of.get(row.baseline) or row.kind not in (judging.STEP, judging.CONTROL):
            continue
        key = common_label(row.step, labels), common_label(row.baseline, labels)
        found.setdefault(key, []).append(Size(parts(row.step)[1], row, sizes_of[row.baseline].mean,
                                              work_of(by_name[row.baseline])))
    for those in found.values():
        those.sort(key=lambda size: size.parameters)
        if len({size.scale for size in those}) == len(those) >= LEAST and those[0].parameters < those[-1].parameters:
            yield those


# ---------------------------------------------------------------- slopes

def weights(places):
    """Of the values at these places in the slope of their least-squares line."""
    mean = statistics.fmean(places)
    square = sum((x - mean) ** 2 for x in places)
    return [(x - mean) / square for x in places]


def seeds_of(those):
    """Those that every size has."""
    return sorted(set.intersection(*({sample.seed for sample in size.row.samples} for size in those)))


def values_of(those, seed):
    """The effects of a seed, from the smallest size."""
    return [next(s.difference for s in size.row.samples if s.seed == seed) for size in those]


def places(those):
    return [math.log10(size.parameters) for size in those]


def bytes_per_token(row):
    loss, bits = row.numbers["loss"], row.numbers["bits_per_byte"]
    return loss.mean / (math.log(2) * bits.mean) if loss and bits and bits.mean else None


def wrong(those):
    """Why effects at these sizes have no common slope; empty: they have one."""
    for size in those:
        if size.row.reason or size.row.not_learnt:
            return f"at {size.scale}: {size.row.reason or size.row.not_learnt}"
    if len({size.row.by_accuracy for size in those}) > 1:
        return "some sizes are judged by accuracy, some by loss"
    known = [bytes_per_token(size.row) for size in those]
    if None not in known and max(known) > (1 + SAME_UNIT) * min(known):
        return "the sizes have other vocabularies, so a nat per token is another unit at each"
    return ""


def name_of(those):
    """As at the first scale of the plan, whose steps have the numbers of the plan's words."""
    first = min(those, key=lambda size: parts(size.row.step)[0]).row
    return parts(first.step)[2], parts(first.baseline)[2]


def fill(row, those):
    """A row without a verdict, from the effects of all sizes."""
    slope = weights(places(those))
    row.step, row.baseline = name_of(those)
    row.kind, row.by_accuracy = judging.TREND, those[0].row.by_accuracy
    row.pairs = [[size.row.step, size.row.baseline] for size in those]
    row.seeds = seeds_of(those)
    for seed in row.seeds:
        values = values_of(those, seed)
        row.samples.append(judging.Sample(seed, sum(c * d for c, d in zip(slope, values)), tuple(values)))
    found = stats.difference([sample.difference for sample in row.samples])
    row.judged = found and found.without_interval()
    row.reason = wrong(those)
    row.verdict = stats.UNDECIDABLE if row.reason else ""
    return row


@dataclass
class Trend:
    row: object                 # judged like any other; its differences are slopes
    sizes: list

    @property
    def sign(self):
        """Of the effect, by the verdicts of the table; 0: they do not say, or contradict each other."""
        said = {1 if size.row.verdict.startswith(stats.WORSE) else -1 for size in self.sizes
                if size.row.verdict.startswith((stats.BETTER, stats.WORSE))}
        return said.pop() if len(said) == 1 else 0

    @property
    def word(self):
        """What the interval of the slope says of the effect."""
        verdict = self.row.verdict
        if verdict == stats.EQUIVALENT:
            return STAYS
        word, comma, rest = verdict.partition(", ")
        if word not in (stats.BETTER, stats.WORSE):
            return verdict
        grows = {stats.BETTER: -1, stats.WORSE: 1}[word] == self.sign
        return (NOUN[word] if not self.sign else GROWS if grows else SHRINKS) + comma + rest


def trends_of(table_rows, judged, by_name, new_row):
    """Of a table of sizes; new_row() makes an empty row."""
    if not is_of_sizes(table_rows):
        return []
    found = (Trend(fill(new_row(), those), those) for those in comparisons(table_rows, judged, by_name))
    return [trend for trend in found if trend.row.samples]
