"""What a report says and draws of pruned steps: loss against the share that is pruned (docs/concepts.md)."""
import re

from tools.report import stats
from tools.results import metric_names

SECTION = "Loss against sparsity"
FIGURES = "Plots against sparsity"
ABOUT = "Pruned: the share of 0 in the matrices of layers, after the last update. Bytes: 4 for each weight that is " \
    "kept, and one bit for each that may be pruned; 2of4: 2 bits for each that is kept."
SHARE = "prune-sparsity-"       # begins the word of a step's name that says how much is pruned


def share_of(row):
    found = row.numbers[metric_names.SPARSITY]
    return found and found.mean


def arm_of(row):
    """A step's name without its number and without the share."""
    words = re.sub(r"^[0-9]+-", "", row.step).split("+")
    return "+".join(word for word in words if not word.startswith(SHARE)) or "baseline"


def arms(rows):
    """Pruned steps that differ only in the share, by arm, the share rising."""
    found = {}
    for row in rows:
        if share_of(row) is not None and row.numbers["loss"] and not row.is_repeat:
            found.setdefault(arm_of(row), []).append(row)
    return {arm: sorted(those, key=share_of) for arm, those in found.items()}


def bytes_of(row):
    """Compressed, and their share of what all weights take."""
    small, all_weights = (row.numbers[name] for name in (metric_names.COMPRESSED_BYTES, metric_names.PARAMETERS))
    if not (small and all_weights):
        return "", ""
    return f"{small.mean:,.0f}", f"{100 * small.mean / (4 * all_weights.mean):.1f}%"


def grid(rows, loss_cell, judged_cell):
    cells = [[row.step, row.pruning, f"{100 * share_of(row):.1f}%", loss_cell(row), judged_cell(row), *bytes_of(row)]
             for those in arms(rows).values() for row in those]
    return ["step", "pruned by", "pruned", "val. loss ± sd (seeds)", "Δ judged [simultaneous 95%]", "bytes",
            "of all weights"], cells


def figures(found):
    """The axis is logarithmic: it shows what is kept."""
    series, places = [], {}
    for arm, rows in found.items():
        spreads = [(1 - share_of(row), stats.difference(row.numbers["loss"].values)) for row in reversed(rows)]
        places.update((kept, f"{100 * kept:.3g}%") for kept, _ in spreads)
        series.append({"step": arm, "name": arm, "n": 2, "xs": [kept for kept, _ in spreads],
                       **{key: [read(spread) for _, spread in spreads] for key, read in (
                           ("ys", lambda d: d.mean), ("low", lambda d: d.mean if d.low is None else d.low),
                           ("high", lambda d: d.mean if d.high is None else d.high))}})
    if len(places) > 1:
        yield {"kind": "lines", "title": SECTION, "x": "weights kept", "series": series,
               "places": [[kept, places[kept]] for kept in sorted(places)],
               "about": "Final validation loss in nats, with the 95% interval of each step alone; verdicts judge "
                        "differences paired by seed, which vary less."}
