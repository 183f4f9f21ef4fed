"""What a report says of the entries that routing keeps: how many, and how predictable that is (docs/database.md)."""
import math
import statistics

from tools.results import metric_names

SECTION = "Kept tokens"
OVER_TIME = "kept_over_time"
ABOUT = "Entries that a row of routing keeps at the last evaluation, a mean over layers, and their standard " \
    "deviations: over tokens, as recorded for each layer, averaged (early rows have few entries to keep); over " \
    "layers, of their means; over seeds, of the runs' means; over time, of a run's means at all its evaluations, " \
    "also before training. ± is the standard deviation over seeds."


def means(run):
    """Over layers, at each evaluation."""
    found = {}
    for name in run.parts(metric_names.ROUTING_KEPT):
        for iteration, kept in run.series[name]:
            found.setdefault(iteration, []).append(kept)
    return [sum(layers) / len(layers) for layers in found.values()]


def over_time(run):
    finite = [mean for mean in means(run) if math.isfinite(mean)]
    return statistics.pstdev(finite) if len(finite) > 1 else None


NUMBERS = {
    metric_names.ROUTING_KEPT: lambda run: run.last_mean(metric_names.ROUTING_KEPT),
    metric_names.ROUTING_SPREAD: lambda run: run.last_mean(metric_names.ROUTING_SPREAD),
    metric_names.ROUTING_LAYERS: lambda run: run.last(metric_names.ROUTING_LAYERS),
    OVER_TIME: over_time,
}


def routed(rows):
    return [row for row in rows if row.numbers[metric_names.ROUTING_KEPT] and not row.is_repeat]


def line_of(row, mean_sd):
    kept = row.numbers[metric_names.ROUTING_KEPT]
    spreads = (row.numbers[name] for name in (metric_names.ROUTING_SPREAD, metric_names.ROUTING_LAYERS, OVER_TIME))
    return [row.step, f"{kept.mean:.2f}", *(found and mean_sd(found, form=".2f") or "" for found in spreads),
            "" if kept.sd is None else f"{kept.sd:.2f} ({kept.n})"]


def grid(rows, mean_sd):
    return ["step", "kept per row", "over tokens ± sd (seeds)", "over layers ± sd (seeds)", "over time ± sd (seeds)",
            "over seeds"], [line_of(row, mean_sd) for row in rows]
