"""The final values of an experiment, run by run, as a small file of text.

docs/findings/ keeps one such file for each finding.  It holds all that verdicts depend on, so that
a finding can be judged again without its runs, by the code that judges reports.

Lines "# NAME: VALUE" stand above the table: what is the same in all runs, and what was declared.
An empty cell is a value that the run does not have; a symbol whose value is empty is "".
"""
import csv
import dataclasses
import io
import json
import re

from tools.plan import declaration, tuning
from tools.report import ablation, same_data
from tools.report.ablation import LOSS
from tools.results import metric_names, names, records, renamed
from tools.results.plain import opener
from tools.results.records import Problem

FORMAT, VERSION, DECLARED = "kablate values", "1", "declared"
FIELDS = {"experiment": str, "step": str, "baseline": str, "seed": int, "repeat": int, "state": str,
          "exit_reason": str, "identity": str, "scale": str, "git_revision": str, "started": float,
          "weights": str, "moved": str}
REQUIRED = ("experiment", "step", "baseline", "seed", "repeat", "identity", "state")
HASHES, HASH = ("identity", "weights"), 16     # digits that distinguish hashes
AUDITS, FAILED = "audits", "failed_audits"
MOST_AUDITS = 10_000        # a run has hundreds
SYMBOL = "CONFIG_"
EMPTY = '""'
# Metrics whose last value is kept.  Of tuning only the loss matters.
LAST = re.compile("|".join((
    LOSS, metric_names.VALIDATION_ACCURACY, metric_names.VALIDATION_FLOOR,
    metric_names.VALIDATION_BITS_PER_BYTE, metric_names.CHANCE, metric_names.PARAMETERS,
    metric_names.FLOPS_PER_TOKEN, metric_names.PEAK_MEGABYTES, metric_names.DEVICE_MEGABYTES,
    metric_names.DECODE_TOKEN_BYTES, metric_names.JUDGED_BY_ACCURACY, metric_names.LENGTH + "/.*")))
# What these count is whole; a mean over seeds may not be.
COUNTS = re.compile("|".join((
    metric_names.PARAMETERS, metric_names.FLOPS_PER_TOKEN, metric_names.DECODE_TOKEN_BYTES,
    metric_names.JUDGED_BY_ACCURACY, metric_names.LENGTH + "/[0-9]+/(rows|state_bytes)")))
FIRST, BEST, SPEED, TRAINING = f"first {LOSS}", f"best {LOSS}", metric_names.TOKENS_PER_SECOND, metric_names.TRAIN_LOSS
WINDOW = 100            # updates over which the training loss is averaged
LAST_UPDATE = 2         # which one it was does not matter: later than the best
NO_ORACLE = "no_oracle"
SUMS = {name: kind for kind, those in same_data.KINDS.items() for name in those}   # of the rows: metric -> kind


# ---------------------------------------------------------------- writing

def plain(name, value):
    """The number of a cell: an integer if it counts something."""
    return int(value) if COUNTS.fullmatch(name) and float(value).is_integer() else value


def metrics_of(run, is_tuning):
    if is_tuning:
        return {LOSS: run.last(LOSS)}
    found = {name: run.last(name) for name in run.series if LAST.fullmatch(name)}
    return found | {FIRST: run.first(LOSS), BEST: run.best(LOSS), SPEED: ablation.median_speed(run),
                    TRAINING: run.tail_mean(TRAINING, WINDOW)}


def landmarks(runs):
    """The first and the last update at which any two runs recorded sums: these grow with every row."""
    name, _ = same_data.KINDS[same_data.TRAINING]
    known = {tuple(iteration for iteration, _ in run.series.get(name, ())) for run in runs}
    shared = [set(one).intersection(other) for one in known for other in known]
    return {end for those in shared if those for end in (min(those), max(those))}


def series_text(points):
    """Such as "100:7 200 300:8": a value stands where it changes."""
    words, last = [], None
    for iteration, value in points:
        words.append(str(iteration) if value == last else f"{iteration}:{int(value) if value.is_integer() else value}")
        last = value
    return " ".join(words)


def sums_of(run, kept):
    found = {name: run.series.get(name, ()) for name in SUMS}
    return {name: series_text(point for point in points if SUMS[name] == same_data.VALIDATION or point[0] in kept)
            for name, points in found.items() if points}


def cells_of(run, is_tuning, kept):
    """Name -> text; what a run has not is left out."""
    numbers = metrics_of(run, is_tuning)
    values = {name: getattr(run, name) for name in FIELDS} | run.environment | {
        AUDITS: len(run.audits), FAILED: json.dumps(run.failed_audits) if run.failed_audits else None,
        NO_ORACLE: 1 if run.has_no_oracle else None, **({} if is_tuning else sums_of(run, kept))}
    cells = {name: str(value)[:HASH] if name in HASHES else str(value)
             for name, value in values.items() if value is not None}
    cells |= {name: repr(plain(name, float(value))) for name, value in numbers.items() if value is not None}
    return cells | {SYMBOL + name: value or EMPTY for name, value in run.config.items()}


def text(steps, candidates=(), declared=None):
    """Of the steps of an experiment, and of those that chose their rates."""
    kept = landmarks([run for step in steps for run in step.runs])
    lines = [cells_of(run, is_tuning, kept) for those, is_tuning in ((steps, False), (candidates, True))
             for step in those for run in step.runs]
    columns = list(dict.fromkeys(name for cells in lines for name in cells))
    shared = {name for name in columns if len({cells.get(name) for cells in lines}) == 1}
    out = io.StringIO()
    print(f"# {FORMAT}: {VERSION}", file=out)
    if declared:
        print(f"# {DECLARED}: {json.dumps(dataclasses.asdict(declared))}", file=out)
    for name in columns:
        if name in shared:
            print(f"# {name}: {lines[0][name]}", file=out)
    table = csv.DictWriter(out, [name for name in columns if name not in shared],
                           extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return out.getvalue()


# ---------------------------------------------------------------- reading

def read_head(lines):
    """Name -> text, of the lines above the table, and how many these are."""
    head = {}
    for number, line in enumerate(lines):
        if not line.startswith("# "):
            return head, number
        name, _, value = line[2:].rstrip("\n").partition(": ")
        head[name] = value
    return head, len(lines)


def read_series(text):
    points = []
    for word in text.split():
        iteration, _, value = word.partition(":")
        points.append((int(iteration), float(value) if value else points[-1][1]))
    return points


def run_of(number, cells):
    """The run of a line."""
    if None in cells:
        raise ValueError("a line has more cells than the first")
    given = {name: text for name, text in cells.items() if text}
    fields = {name: kind(given[name]) if name in given else None for name, kind in FIELDS.items()}
    missing = [name for name in REQUIRED if fields[name] is None]
    if missing:
        raise ValueError(f"a run without {', '.join(missing)}")
    config = {renamed.current(name.removeprefix(SYMBOL)): "" if text == EMPTY else text
              for name, text in given.items() if name.startswith(SYMBOL)}
    environment = {name: given.get(name) for name in records.ENVIRONMENT}
    if environment["threads"]:
        environment["threads"] = int(environment["threads"])
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(records.Run)
                            if field.default_factory is dataclasses.MISSING)
    names.check_run(*(fields[name] for name in ("experiment", "step", "baseline", "identity", "seed")),
                    identity_rule=names.BEGINNING)
    names.whole("repeat", fields["repeat"])
    if not fields["state"]:
        raise ValueError("state is missing")
    run = records.Run(**{**unknown, **fields, "id": number, "environment": environment,
                         "config": config})
    series = {name: [(LAST_UPDATE, float(text))] for name, text in given.items()
              if LAST.fullmatch(name) or name in (SPEED, TRAINING)}
    for iteration, name in ((1, BEST), (0, FIRST)):
        if name in given:
            series[LOSS].insert(0, (iteration, float(given[name])))
    run.series = series | {name: read_series(given[name]) for name in SUMS if name in given}
    failed = [(str(audit), str(subject), int(passed), str(detail))
              for audit, subject, passed, detail in json.loads(given.get(FAILED, "[]"))]
    passed = int(given[AUDITS]) - len(failed)
    if passed > MOST_AUDITS:
        raise ValueError(f"{given[AUDITS]} audits")
    run.audits = [("", str(i), 1, "") for i in range(passed)] + failed
    if NO_ORACLE in given:
        run.audits[0] = (*records.NO_ORACLE, 1, "")
    return run


def read(path):
    """The experiment's name, its steps, those that chose rates, and what was declared."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="", opener=opener) as file:
            lines = file.readlines()
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}") from None
    head, above = read_head(lines)
    if head.pop(FORMAT, None) != VERSION:
        raise Problem(f"{path}: not a file of values of version {VERSION}; 'make values' writes one")
    declared = head.pop(DECLARED, None)
    try:
        runs = [run_of(number, head | cells)
                for number, cells in enumerate(csv.DictReader(lines[above:]))]
        experiments = list(dict.fromkeys(run.experiment for run in runs))
        of = {name: records.steps_of([run for run in runs if run.experiment == name])
              for name in experiments}
        return experiments[0], of[experiments[0]], of.get(tuning.experiment(experiments[0]), []), \
            declaration.Declaration(**json.loads(declared)) if declared else None
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
            csv.Error) as error:
        raise Problem(f"{path}: damaged: {type(error).__name__} {error}") from error


def table(path):
    """As a report has it."""
    name, steps, candidates, declared = read(path)
    return ablation.tabulate(name, steps, candidates, declared=declared)
