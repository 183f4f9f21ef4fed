"""Did two runs train and score the same rows?  A run records a running hash of all that its model was given.

Runs of the same seed must agree wherever both recorded one: a run that a budget ended has a part of
the other's rows.  A null has other seeds, and a step may differ in symbols of the data: then nothing
need agree that these symbols decide.  Runs of an earlier program recorded nothing.
"""
from tools.results import metric_names

TRAINING, VALIDATION = "training", "validation"
KINDS = {TRAINING: (metric_names.DATA_TRAINING, metric_names.DATA_TRAINING_TARGETS),
         VALIDATION: (metric_names.DATA_VALIDATION, metric_names.DATA_VALIDATION_TARGETS)}
# Symbols that decide the rows of one kind; all others of the data decide both.
ALONE = {"TRAIN_BATCH": TRAINING, "TRAIN_ACCUMULATE": TRAINING, "DATA_ONCE": TRAINING, "DATA_TRAIN": TRAINING,
         "DATA_VALID": VALIDATION, "EVAL_ROWS": VALIDATION}
SYMBOLS = (*ALONE, "MODEL_BLOCK")
AREAS = ("TASK", "DATA_", "TOKENIZER")


def deciding(kind, symbols, config):
    """Those of the symbols that decide rows of this kind; a task's own begin with its name."""
    areas = (*AREAS, config.get("TASK", "").upper() + "_")
    return [symbol for symbol in symbols
            if (symbol in SYMBOLS or symbol.startswith(areas)) and ALONE.get(symbol, kind) == kind]


def kinds_alike(symbols, config):
    """The kinds of rows that steps share, if they differ in these symbols."""
    return [kind for kind in KINDS if not deciding(kind, symbols, config)]


def is_recorded(run):
    return all(run.series.get(name) for name, _ in KINDS.values())


def first_difference(mine, theirs, kinds):
    """A sentence, or None: the runs agree, as far as both recorded it."""
    for kind in kinds:
        before = 0
        recorded = [(dict(mine.series.get(name, ())), dict(theirs.series.get(name, ()))) for name in KINDS[kind]]
        for iteration in sorted(set.intersection(*(set(of) for pair in recorded for of in pair))):
            if any(a[iteration] != b[iteration] for a, b in recorded):
                when = "" if kind == VALIDATION else f" between updates {before} and {iteration}"
                (_, _), (scored, of) = recorded
                count = "" if scored[iteration] == of[iteration] else \
                    f": {scored[iteration]:.0f} targets, not {of[iteration]:.0f}"
                return f"with seed {mine.seed} the {kind} rows are not those of {theirs.step}{when}{count}"
            before = iteration
    return None


def unequal(pairs, kinds):
    """What is wrong with the first of these pairs that do not have the same data; or empty."""
    return next(filter(None, (first_difference(*pair, kinds) for pair in pairs)), "")


def unequal_cells(steps, pairs_of):
    """The same of the cells of a grid: of each kind those must agree that no symbol of the data tells apart."""
    for kind in KINDS:
        firsts = []
        for step in steps:
            twin = next((first for first in firsts if kind in kinds_alike(
                changed(first.config, step.config), step.config)), None)
            if twin is None:
                firsts.append(step)
                continue
            found = unequal(pairs_of(step, twin), [kind])
            if found:
                return f"{step.name}: {found}"
    return ""


def changed(a, b):
    return [symbol for symbol in a.keys() | b.keys() if a.get(symbol) != b.get(symbol)]


def repeated(runs):
    """Seeds of a step that were trained on the same rows, as far as the first log."""
    seeds = {}
    for run in runs:
        rows = run.series.get(metric_names.DATA_TRAINING)
        if rows:
            seeds.setdefault(rows[0], []).append(run.seed)
    return next((sorted(those) for those in seeds.values() if len(those) > 1), [])


def exemptions(name, baseline, is_null, symbols, config):
    """What is not compared."""
    if is_null:
        yield f"{name}: a null has other seeds, so its rows are not those of {baseline}"
        return
    decided = {kind: deciding(kind, symbols, config) for kind in KINDS}
    for those in filter(None, dict.fromkeys(map(tuple, decided.values()))):
        kinds = " and ".join(kind for kind, own in decided.items() if tuple(own) == those)
        yield f"{name}: it has other {kinds} rows than {baseline}, by {', '.join(those)}"


def lacking(runs):
    missing = [run for run in runs if not is_recorded(run)]
    if missing:
        why = "in a file of values without sums" if missing[0].is_of_values else "made by an earlier program"
        yield f"data not recorded: {len(missing)} of {len(runs)} runs, {why}"
