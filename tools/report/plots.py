"""Describes the page's figures as plain data; tools/report/page.js draws them.

A figure is a dict with title, about (a sentence for readers), x (the name of its axis) and a kind:
    curves   metrics: names; the values are those of the packed runs
    lines    series of step, name, xs, ys; thin ones are limits; places has the labels of a
             logarithmic axis
    points   series of one point each, and its text; y names what is upright
    rows     a row per step: mean, low and high (or None), values with their seeds
    bars     names; a row per step of values in `unit`
"""
import math
import re

from tools.plan import estimate
from tools.report import ablation, pruning, sizes, stats
from tools.report.ablation import ACCURACY, LOSS
from tools.results import metric_names

COLOURS = 8             # more steps share colours, with other dashes and points
MOST_POINTS = 2000      # longer curves are thinned
LEAST_SPREAD = 1.01     # a figure of sizes that differ by less would show nothing

# Families of curves: title, pattern of metrics, about.  A metric belongs to the first that matches.
FAMILIES = (
    ("Validation loss", f"{LOSS}|{metric_names.VALIDATION_BITS_PER_BYTE}", "Nats per token, or bits per byte of text."),
    ("Training loss", f"{metric_names.TRAIN}/.*", "Nats per token."),
    ("Loss of components", f"{LOSS}/.*", "Nats per token, for each kind of token of the task."),
    ("Accuracy", f"{ACCURACY}(/.*)?", "Share of right answers."),
    ("Gradient norm", f"{metric_names.GRAD_NORM}(/.*)?|{metric_names.CLIPPED}", "Before clipping: of all parameters, of each "
     "layer, of the rest; and how many updates were clipped."),
    ("Learning rate", metric_names.LEARNING_RATE, "At each recorded update."),
    ("Attention entropy", f"{metric_names.ATTENTION_ENTROPY}/.*", "Nats, as a mean over heads and rows of a "
     "layer: low where attention is sharp."),
    ("Other records", r".*", "All other metrics with more than one value."),
)
# Values of single batches can be smoothed.  Evaluations are means over many rows: they have little
# noise, and a smoothed curve would only lag behind.
NOISY = ("Training loss", "Gradient norm", "Other records")
FIRST = (metric_names.TRAIN_LOSS, LOSS, ACCURACY, metric_names.GRAD_NORM)     # in their families


# ---------------------------------------------------------------- curves

def short(value):
    """Six digits are more than a figure can show."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def thinned(points):
    """Every 2nd, 4th, 8th ... point and the last one; so runs of other lengths share points."""
    stride = 1
    while len(points) > MOST_POINTS * stride:
        stride *= 2
    return points if stride == 1 else \
        [point for i, point in enumerate(points) if i % stride == 0 or i == len(points) - 1]


def is_curve(run, name):
    return len(run.series.get(name, ())) > 1


def other_axes(run):
    """Tokens and FLOPs of an iteration, and the time at the end of each; what is not known is left out."""
    try:
        _, tokens = estimate.updates_and_tokens(run.config)
    except (KeyError, ValueError):      # runs of an older program may lack symbols
        return {}
    flops, clock = run.last(metric_names.FLOPS_PER_TOKEN), list(estimate.seconds_at(run, tokens))
    return {"tokens": tokens, **({"work": flops * tokens} if flops else {}),
            **({"seconds": [(0, 0.0), *clock]} if clock else {})}


def pack(named):
    """The curves of all (step, run), and what page.js needs for other axes.  Lists of iterations are stored once."""
    places, runs = {}, []

    def packed(points):
        iterations, values = zip(*thinned(points))
        return [places.setdefault(iterations, len(places)), [*map(short, values)]]
    for step, run in named:
        series = {name: packed(points) for name, points in run.series.items() if is_curve(run, name)}
        axes = other_axes(run)
        if "seconds" in axes:
            axes["seconds"] = packed(axes["seconds"])
        # page.js averages finished runs; running ones only if a step has no finished run.
        runs.append({"step": step, "seed": run.seed, "series": series, "axes": axes,
                     "isFinished": run.trouble is None, "isRunning": run.is_going})
    return {"x": [list(iterations) for iterations in places], "runs": runs}


def in_order(name):
    """Sorts h.2 before h.10, and the total before its parts."""
    return (name not in FIRST, [(int(part), "") if part.isdigit() else (-1, part)
                                for part in re.split(r"(\d+)", name)])


def curves(runs):
    """A figure for each family of metrics that these runs have."""
    left = {name for run in runs for name in run.series if is_curve(run, name)}
    for title, pattern, about in FAMILIES:
        metrics = {name for name in left if re.fullmatch(pattern, name)}
        left -= metrics
        if metrics:
            yield {"kind": "curves", "title": title, "about": about, "x": "iteration",
                   "smooths": title in NOISY, "metrics": sorted(metrics, key=in_order)}


# ---------------------------------------------------------------- lengths and decoding

def length_text(n):
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)


def doublings(lengths):
    """Places of a logarithmic axis."""
    return [[n, length_text(n)] for n in lengths]


def positions(rows, table):
    """The loss within the longest rows."""
    longest = {x.step: x for x in table.lengths if len(x.positions) > 1}     # they rise
    found = [longest[row.step] for row in rows if row.step in longest]
    if not found:
        return None
    series = []
    for x in found:
        ends = [*(first for first, _ in x.positions[1:]), x.length]
        # A stretch is drawn at its middle.
        series.append({"step": x.step, "name": x.step,
                       "xs": [(first + end) / 2 for (first, _), end in zip(x.positions, ends)],
                       "ys": [short(loss) for _, loss in x.positions]})
    firsts = sorted({first for x in found for first, _ in x.positions})
    return {"kind": "lines", "title": "Loss by position", "x": "position", "series": series,
            "about": "Nats per token within the longest rows; training rows end at the dashed "
                     "line.",
            "places": doublings(firsts[1:]),
            "uprights": sorted({x.trained for x in found if x.trained})}


def against_context(rows, table, title, about, read, limit=None, **more):
    """Measured numbers, and their limits, if any, as thin lines."""
    series, contexts = [], set()
    for row in rows:
        own = [m for m in table.decoding.measured if m.step == row.step]
        contexts.update(m.context for m in own)
        for name, number, thin in ((row.step, read, False), (f"{row.step}, limit", limit, True)):
            if own and number:
                series.append({"step": row.step, "name": name, "thin": thin,
                               "xs": [m.context for m in own],
                               "ys": [short(number(m)) for m in own]})
    return {"kind": "lines", "title": title, "about": about, "x": "context", "series": series,
            "places": doublings(sorted(contexts)), **more} if series else None


def rates(rows, table):
    """What tuned steps chose from: the mean, and every seed as a thin line."""
    series, places = [], {}
    shown = {row.step for row in rows}
    for sweep in table.sweeps:
        if sweep.step not in shown:
            continue
        places.update((float(rate), rate) for rate, _, _ in sweep.rates)
        means = [(float(rate), mean.mean) for rate, mean, diverged in sweep.rates if mean and not diverged]
        seeds = dict.fromkeys(seed for rate, _, _ in sweep.rates for seed, _ in sweep.losses[rate])
        lines = [(sweep.step, means)] + [(f"{sweep.step}, seed {seed}", [
            (float(rate), loss) for rate, _, _ in sweep.rates for own, loss in sweep.losses[rate] if own == seed])
            for seed in seeds]
        series += [{"step": sweep.step, "name": name, "thin": name != sweep.step, "xs": [x for x, _ in points],
                    "ys": [short(y) for _, y in points]} for name, points in lines if points]
    return {"kind": "lines", "title": "Loss against learning rate", "x": "learning rate", "series": series,
            "about": "Final validation loss of the tuning seeds, in nats: means, and dotted every seed.",
            "places": [[x, places[x]] for x in sorted(places)]} if series else None


def speed(rows, table):
    return against_context(rows, table, "Decoding speed", "Tokens per second against context; "
                           "dotted: the limit that reading sets.", lambda m: m.tokens_per_second,
                           lambda m: m.limit, zero=True)


def state(rows, table):
    return against_context(rows, table, "Decode state", "MiB kept, against context.",
                           lambda m: m.numbers["state_bytes"] / 2**20, logy=True)


# ---------------------------------------------------------------- rows, points, bars

def row_entry(step, seeds, values, spread, scale=1):
    return {"step": step, "seeds": seeds, "values": [scale * v for v in values],
            "mean": scale * spread.mean,
            **{end: None if value is None else scale * value
               for end, value in (("low", spread.low), ("high", spread.high))}}


def finals(rows, by_name):
    entries = []
    for row in rows:
        if row.numbers["loss"]:
            values = row.numbers["loss"].values
            entries.append(row_entry(row.step, [*by_name[row.step].usable], values,
                                     stats.difference(values)))
    return entries and {
        "kind": "rows", "title": "Final loss", "x": "nats per token", "rows": entries,
        "about": "After the last update: mean, its 95% interval over seeds (if they are "
                 "independent and not skewed), and every seed. Each interval is of one step "
                 "alone. Verdicts judge differences paired by seed, which vary less: intervals "
                 "that overlap here do not contradict a verdict."}


def deltas(rows, by_name, baseline):
    by_accuracy = any(row.accuracy_delta for row in rows)
    read, scale = ablation.quantity(by_accuracy), 100 if by_accuracy else 1
    entries = []
    for row in rows:
        delta = row.accuracy_delta if by_accuracy else row.delta
        if delta and row.step != baseline:      # it may itself be compared with another one
            pairs = [(theirs.seed, read(mine), read(theirs)) for mine, theirs in
                     ablation.paired_runs(by_name[row.step], by_name[row.baseline])]
            known = [(seed, a - b) for seed, a, b in pairs if None not in (a, b)]
            entries.append(row_entry(row.step, [seed for seed, _ in known],
                                     [value for _, value in known], delta, scale))
    unit, side = ("points of accuracy", "Right") if by_accuracy else ("nats per token", "Left")
    return entries and {
        "kind": "rows", "title": "Difference to the baseline", "x": unit, "rows": entries,
        "zero": True, "about": "Paired by seed, with simultaneous 95% interval, "
                               f"{stats.CONDITION}. {side} of zero (dashed) is better."}


def scatter(rows, quantity, title, unit):
    """None if the sizes are practically equal."""
    found = [(row, row.numbers[quantity].mean, row.numbers["loss"].mean) for row in rows
             if row.numbers[quantity] and row.numbers["loss"]]
    sizes = [x for _, x, _ in found]
    if not sizes or max(sizes) < LEAST_SPREAD * min(sizes):
        return None
    return {"kind": "points", "title": f"Loss against {title}", "x": unit, "y": "validation loss",
            "about": "Final validation loss in nats; numbers are those of the steps.",
            "series": [{"step": row.step, "name": row.step, "xs": [x], "ys": [y],
                        "text": row.step.split("-", 1)[0]} for row, x, y in found]}


def components(rows, table):
    by_step = {}
    for c in table.components:
        if c.share is not None:
            by_step.setdefault(c.step, {})[c.name or "all"] = short(100 * c.share)
    shown = [row.step for row in rows if row.step in by_step]
    names = list(dict.fromkeys(name for step in shown for name in by_step[step]))
    return names and {
        "kind": "bars", "title": "Components", "names": names, "unit": "%",
        "about": "Share of the way from chance (0%) to the floor (100%): higher is better.",
        "rows": [{"step": step, "values": [by_step[step].get(name) for name in names]}
                 for step in shown]}


SCATTERS = ((metric_names.PARAMETERS, "parameters", "parameters"),
            (metric_names.FLOPS_PER_TOKEN, "computation", "FLOPs per token"),
            (metric_names.PEAK_MEGABYTES, "memory", "peak MB"),
            (metric_names.DEVICE_MEGABYTES, "memory of the GPU", "GPU MB"),
            (metric_names.DECODE_TOKEN_BYTES, "decode state", "bytes per token"))


# ---------------------------------------------------------------- groups

def figures(rows, by_name, baseline, table):
    done = [row for row in rows if row.seeds]
    yield deltas(done, by_name, baseline)
    yield finals(done, by_name)
    yield from curves([run for row in rows for run in by_name[row.step].runs])
    yield components(done, table)
    yield rates(done, table)
    yield positions(done, table)
    yield speed(done, table)
    yield state(done, table)
    for quantity, title, unit in SCATTERS:
        yield scatter(done, quantity, title, unit)


def group(heading, names, drawn):
    """A legend of steps with their colours, and the figures below it."""
    return {"heading": heading, "figures": [figure for figure in drawn if figure],
            "steps": [{"name": name, "colour": i % COLOURS, "shared": i // COLOURS}
                      for i, name in enumerate(names)]}


def draw(table, steps):
    """All data of the page: a group of figures per baseline, and the curves."""
    by_name = {step.name: step for step in steps}
    shown = [row for row in table.rows if not row.is_repeat and by_name[row.step].runs]
    groups = [(one.baseline, [row for row in shown if one.baseline in (row.baseline, row.step)])
              for one in table.groups] or [(None, shown)]
    return {**pack((row.step, run) for row in shown for run in by_name[row.step].runs),
            "groups": [group(f"Against {baseline}" if len(groups) > 1 else "Plots",
                             [row.step for row in rows], figures(rows, by_name, baseline, table))
                       for baseline, rows in groups if rows] + with_sparsity(shown) + with_size(table.trends)}


def with_sparsity(rows):
    """A group whose legend has the arms that are pruned."""
    arms = pruning.arms(rows)
    drawn = group(pruning.FIGURES, list(arms), pruning.figures(arms))
    return [drawn] if drawn["figures"] else []


def with_size(trends):
    """A group whose legend has the comparisons."""
    return [group(sizes.FIGURES, [sizes.title(trend) for trend in trends], sizes.figures(trends))] if trends else []


def draw_curves(named):
    """The same with curves alone, from (name, run); no group before there is a curve."""
    named = list(named)
    drawn = group("Plots", list(dict.fromkeys(name for name, _ in named)), curves([run for _, run in named]))
    return {**pack(named), "groups": [drawn] if drawn["figures"] else []}
