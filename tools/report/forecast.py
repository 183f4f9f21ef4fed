#!/usr/bin/env python3
"""Forecast effects at another size from an experiment of sizes, before any run; score them afterwards.

    forecast.py PLAN.JSON RUNS      record the declaration of a plan with CONFIG_FORECAST

Each primary comparison of the plan that the named experiment has, too, is forecast at the
parameters of what it is compared with: the value there of the line of each seed
(tools/report/trends.py), their mean and t interval, which all hold together with 95%.  It is
written into RUNS/EXPERIMENT/declaration.json and never made again.  Where bytes per token are known
the unit is bits per byte of text, which is the same for every vocabulary; else nats per token.
"""
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time

from tools.plan import declaration
from tools.plan.kconfig import Unfit
from tools.report import ablation, stats, trends
from tools.results import plain, records
from tools.terminal import terminal

NATS, BITS = "nats per token", "bits per byte"
SECTION = "Forecast"
AGREES, BEYOND, SHORT = "agrees", "the effect is less favourable", "the effect is more favourable"


# ---------------------------------------------------------------- making one

def label(step):
    """Without its number."""
    return step.split("-", 1)[1]


def in_unit(row, unit):
    """Factor of the row's nats per token."""
    return 1.0 if unit == NATS else 1 / (math.log(2) * trends.bytes_per_token(row))


def unit_of(those):
    return BITS if all(trends.bytes_per_token(size.row) for size in those) else NATS


def at_size(those, parameters, unit):
    """What the line of each seed has at so many parameters."""
    xs = trends.places(those)
    beyond = math.log10(parameters) - statistics.fmean(xs)
    shares = [1 / len(xs) + beyond * c for c in trends.weights(xs)]
    factors = [in_unit(size.row, unit) for size in those]
    return [sum(share * factor * d for share, factor, d in zip(shares, factors, trends.values_of(those, seed)))
            for seed in trends.seeds_of(those)]


def parameters_of(plan, directory, name):
    """By the step's own program; a step whose rate is open is known by its first candidate."""
    step = next(step for step in plan["steps"] if step["name"] == name)
    for program in [name, *step["candidates"][:1]]:
        with contextlib.suppress(OSError, ValueError, LookupError):
            said = subprocess.run([os.path.join(directory, program, "kablate"), "describe", "--json"],
                                  capture_output=True, text=True, check=False).stdout
            return json.loads(said)["parameters"]
    raise Unfit([f"CONFIG_FORECAST: the program of {name} does not say how many parameters it has"])


def pairs_of(plan):
    """The primary comparisons of steps."""
    primary = plan["declaration"]["primary"]
    if primary == [declaration.ALL]:
        return [[step["name"], step["baseline"]] for step in plan["steps"]
                if step["name"] != step["baseline"] and not step["repeats"] and not step["null"]]
    return [one for one in primary if isinstance(one, list)]


def forecast(pair, trend, parameters, alpha, source):
    unit = unit_of(trend.sizes)
    found = stats.difference(at_size(trend.sizes, parameters, unit), alpha)
    return {"step": pair[0], "baseline": pair[1], "from": source, "parameters": parameters, "unit": unit,
            "scales": [size.scale for size in trend.sizes], "seeds": found.n, "mean": found.mean, "sd": found.sd,
            "low": found.low, "high": found.high}


def make(plan, directory, runs):
    """A list of forecasts; Unfit if there can be none."""
    source = plan["forecast"]
    try:
        steps = records.read_experiment(records.connect(os.path.join(runs, "results.db")), source)
        table = ablation.tabulate(source, steps, declared=declaration.read(runs, source))
    except records.Problem as problem:
        raise Unfit([f"CONFIG_FORECAST={source}: {problem}"]) from None
    known = {(trend.row.step, trend.row.baseline): trend for trend in table.trends
             if len(trend.row.samples) >= stats.MIN_SEEDS and not trend.row.by_accuracy and not trends.wrong(trend.sizes)}
    pairs = [(pair, known[labels]) for pair in pairs_of(plan) if (labels := tuple(map(label, pair))) in known]
    if not pairs:
        raise Unfit([f"CONFIG_FORECAST={source}: it has no primary comparison of this plan at several sizes, with "
                     f"{stats.MIN_SEEDS} seeds that all sizes have"])
    return [forecast(pair, trend, parameters_of(plan, directory, pair[1]), stats.ALPHA / len(pairs), source)
            for pair, trend in pairs]


def declare(path, plan, directory, runs, now):
    """Once: what was forecast before the runs stays as it was."""
    entries = declaration.read_entries(path)
    last = dict((entries[-1]["declared"] or {}) if entries else {})
    made = last.pop("forecast", None)
    if made and made[0]["from"] == plan["forecast"] and last == plan["declaration"]:
        return
    declaration.record(path, {**plan["declaration"], "forecast": make(plan, directory, runs)}, now)


# ---------------------------------------------------------------- scoring it

def score(made, row, alpha):
    """What was found, minus what was forecast (Welch's interval), both in the forecast's unit; None: nothing yet."""
    if not row or not row.judged or row.judged.low is None or not row.judged.sd:
        return None
    factor = in_unit(row, made["unit"])
    theirs, mine = (made["sd"] ** 2 / made["seeds"], made["seeds"]), \
        ((factor * row.judged.sd) ** 2 / row.judged.n, row.judged.n)
    variance = theirs[0] + mine[0]
    freedom = variance ** 2 / sum(own ** 2 / (n - 1) for own, n in (theirs, mine))
    mean, half = factor * row.judged.mean - made["mean"], stats.critical(alpha, freedom) * math.sqrt(variance)
    return stats.Difference(row.judged.n, mean, math.sqrt(variance), mean - half, mean + half)


def verdict(made, row, found):
    if found is None:
        return "no result yet"
    word = AGREES if not found.leaves_out_zero else BEYOND if found.low > 0 else SHORT
    seen = in_unit(row, made["unit"]) * row.judged.mean
    return f"{word}; " + ("nearer" if abs(found.mean) < abs(seen) else "no nearer") + " than no effect"


def lines(forecasts):
    first = forecasts[0]
    yield f"From the line through {', '.join(first['scales'])} of {first['from']}, in {first['unit']} (docs/sizes.md). It agrees if " \
        f"the interval of found minus forecast contains zero. Intervals {stats.TOGETHER}."


def grid(forecasts, rows, interval):
    """Beside what was found."""
    by_pair = {(row.step, row.baseline): row for row in rows}
    cells = []
    for made in forecasts:
        row = by_pair.get((made["step"], made["baseline"]))
        found = score(made, row, stats.ALPHA / len(forecasts))
        seen = row.judged if found else None
        factor = in_unit(row, made["unit"]) if found else 1
        cells.append([made["step"], made["baseline"],
                      interval(stats.Difference(made["seeds"], made["mean"], made["sd"], made["low"], made["high"])),
                      interval(seen, factor), interval(found), verdict(made, row, found)])
    return ["step", "against", "forecast [simultaneous 95%]", "found [simultaneous 95%]",
            "found minus forecast [simultaneous 95%]", "verdict"], cells


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.report.forecast build/plan/plan.json runs")
    parser.add_argument("plan", metavar="PLAN.JSON")
    parser.add_argument("runs", metavar="RUNS")
    args = parser.parse_args(argv)
    try:
        plan = json.loads(plain.text(args.plan))
        declare(declaration.path_of(args.runs, plan["experiment"]), plan, os.path.dirname(args.plan), args.runs, time.time())
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
