"""What a report says and draws of the sizes of an experiment (tools/report/trends.py)."""
from tools.report import stats
from tools.report.ablation import short_number

SECTION = "Effect with size"
FIGURES = "Plots against size"
SLOPE = "slope per tenfold [simultaneous 95%]"

def title(trend):
    return f"{trend.row.step} against {trend.row.baseline}"


def lines(trends):
    common = {title(trend): len(trend.row.samples) for trend in trends}
    yield "The slope is that of the effect against log10 of the parameters of the step compared with, seed by " \
        "seed, in nats per tenfold parameters (docs/sizes.md): below zero, the step gains with size. Intervals " \
        f"{stats.TOGETHER}."
    few = {name: n for name, n in common.items() if n < stats.MIN_SEEDS}
    if few:
        yield f"Seeds that all sizes have: {', '.join(f'{n} of {name}' for name, n in few.items())}."


def grid(trends, judged_cell, verdict_cell):
    """A line per comparison: the effect at every size, and the slope."""
    scales = list(dict.fromkeys(size.scale for trend in trends for size in trend.sizes))
    cells = []
    for trend in trends:
        by_scale = {size.scale: size for size in trend.sizes}
        cells.append([trend.row.step, trend.row.baseline, word_cell(trend, verdict_cell), judged_cell(trend.row),
                      *(judged_cell(by_scale[scale].row) if scale in by_scale else "" for scale in scales)])
    return ["step", "against", "effect with size", SLOPE,
            *(f"Δ at {scale}" for scale in scales)], cells


def word_cell(trend, verdict_cell):
    return trend.word + verdict_cell(trend.row).removeprefix(trend.row.verdict)


def figure(trends, title_text, x, places_of, log_text):
    series, seen = [], set()
    for trend in trends:
        shown = [(places_of(size), size.row.judged) for size in trend.sizes if places_of(size) and size.row.judged]
        seen.update(place for place, _ in shown)
        scale = 100 if trend.row.by_accuracy else 1
        series.append({"step": title(trend), "name": title(trend), "xs": [place for place, _ in shown], "n": 2,
                       **{key: [None if value is None else scale * value for value in values] for key, values in (
                           ("ys", [d.mean for _, d in shown]),
                           ("low", [d.mean if d.low is None else d.low for _, d in shown]),
                           ("high", [d.mean if d.high is None else d.high for _, d in shown]))}})
    return {"kind": "lines", "title": title_text, "x": x, "series": series, "zero": True,
            "places": [[place, log_text(place)] for place in sorted(seen)],
            "about": "The difference to the step compared with, at each size, with its simultaneous 95% interval where "
                     f"it was judged, {stats.CONDITION}. Below zero is better, where losses are judged."} if len(seen) > 1 else None


def figures(trends):
    yield figure(trends, "Effect against parameters", "parameters", lambda size: size.parameters, short_number)
    yield figure(trends, "Effect against work", "FLOPs of training", lambda size: size.work, lambda f: f"{f:.1e}")


def conclusion(trend, judged_cell, exploratory):
    """As a sentence."""
    row = trend.row
    found = f"{judged_cell(row)}{'' if row.by_accuracy else ' nats'} per tenfold parameters, {len(row.samples)} seeds" \
        if row.judged and not row.reason else ""
    return f"effect of {title(trend)} with size: " + "; ".join(
        filter(None, [trend.word, found, row.reason, exploratory and "exploratory"])) + "."


def as_json(trend):
    return {"word": trend.word, "sizes": [
        {"scale": size.scale, "step": size.row.step, "baseline": size.row.baseline, "parameters": size.parameters,
         "work": size.work} for size in trend.sizes]}
