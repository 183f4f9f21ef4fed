"""Did two runs train and score the same rows?  A run records a running hash of all that its model was given.

Runs of the same seed must agree wherever both recorded one: a run that a budget ended has a part of
the other's rows.  A null has other seeds, and a step may differ in symbols of the data: then nothing
need agree.  Runs of an earlier program recorded nothing.
"""
from tools.results import metric_names

KINDS = (("training", metric_names.DATA_TRAINING, metric_names.DATA_TRAINING_TARGETS),
         ("validation", metric_names.DATA_VALIDATION, metric_names.DATA_VALIDATION_TARGETS))
SYMBOLS = ("MODEL_BLOCK", "TRAIN_BATCH", "TRAIN_ACCUMULATE", "EVAL_ROWS")
AREAS = ("TASK", "DATA_", "TOKENIZER")


def symbols_of_data(difference, config):
    """Those in which a step differs from its baseline; a task's own begin with its name."""
    areas = (*AREAS, config.get("TASK", "").upper() + "_")
    return [symbol for symbol, *_ in difference if symbol in SYMBOLS or symbol.startswith(areas)]


def is_recorded(run):
    return all(run.series.get(name) for _, name, _ in KINDS)


def first_difference(mine, theirs):
    """A sentence, or None: the runs agree, as far as both recorded it."""
    for kind, *names in KINDS:
        before = 0
        recorded = [(dict(mine.series.get(name, ())), dict(theirs.series.get(name, ()))) for name in names]
        for iteration in sorted(set.intersection(*(set(of) for pair in recorded for of in pair))):
            if any(a[iteration] != b[iteration] for a, b in recorded):
                when = "" if kind == "validation" else f" between updates {before} and {iteration}"
                (_, _), (scored, of) = recorded
                count = "" if scored[iteration] == of[iteration] else \
                    f": {scored[iteration]:.0f} targets, not {of[iteration]:.0f}"
                return f"with seed {mine.seed} the {kind} rows are not its baseline's{when}{count}"
            before = iteration
    return None


def unequal(pairs):
    """What is wrong with the first of these pairs that do not have the same data; or None."""
    return next(filter(None, (first_difference(*pair) for pair in pairs)), None)


def repeated(runs):
    """Seeds of a step that were trained on the same rows, as far as the first log."""
    seeds = {}
    for run in runs:
        rows = run.series.get(metric_names.DATA_TRAINING)
        if rows:
            seeds.setdefault(rows[0], []).append(run.seed)
    return next((sorted(those) for those in seeds.values() if len(those) > 1), [])


def exemptions(name, baseline, is_null, symbols):
    """What is not compared."""
    if is_null:
        yield f"{name}: a null has other seeds, so its rows are not those of {baseline}"
    elif symbols:
        yield f"{name}: it has other rows than {baseline}, by {', '.join(symbols)}"


def lacking(runs):
    missing = sum(not is_recorded(run) for run in runs)
    if missing:
        yield f"data not recorded: {missing} of {len(runs)} runs, made by an earlier program"
