"""The runs of an experiment for TensorBoard, or for Weights & Biases without network.

    trackers.py tensorboard EXPERIMENT DIR     event files, a directory per run: needs no package
    trackers.py wandb EXPERIMENT DIR           offline runs for `wandb sync`; needs wandb

Each run has all that was recorded (losses, gradient norms, rates, speed), its whole
configuration, its step and seed, and as hyperparameters the symbols in which the steps differ.
"""
import argparse
import math
import os
import shutil
import sys

from tools.export import tensorboard
from tools.results import notes, records


def number(text):
    """A symbol's value: as a number where it is one."""
    try:
        value = float(text)
    except ValueError:
        return text
    return (int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value) \
        if math.isfinite(value) else text


def differing(steps):
    """Symbols that do not have one value in all steps."""
    symbols = sorted({symbol for step in steps for symbol in step.config})
    return [symbol for symbol in symbols if len({step.config.get(symbol) for step in steps}) > 1]


def hyperparameters(run, symbols):
    return {"step": run.step, "seed": run.seed,
            **{symbol: number(run.config[symbol]) for symbol in symbols if symbol in run.config}}


def name_of(run):
    return f"{run.step}-{run.seed}-{run.identity[:12]}"


def values_by_iteration(run):
    found = {}
    for name, points in run.series.items():
        for iteration, value in points:
            found.setdefault(iteration, {})[name] = value
    return sorted(found.items())


def configuration_text(run):
    return "|symbol|value|\n|---|---|\n" + "".join(
        f"|{symbol}|{value}|\n" for symbol, value in sorted(run.config.items()))


# ---------------------------------------------------------------- TensorBoard

def events_of(run, symbols, note):
    begin, end = run.started or 0, run.ended or run.heartbeat or run.started or 0
    yield tensorboard.version(begin)
    yield tensorboard.hyperparameters(begin, hyperparameters(run, symbols), run.step)
    yield tensorboard.text(begin, "configuration", configuration_text(run))
    if note.lines():
        yield tensorboard.text(begin, "note", "\n\n".join(note.lines()))
    last = max(1, max((points[-1][0] for points in run.series.values()), default=1))
    for iteration, values in values_by_iteration(run):
        seconds = begin + (end - begin) * iteration / last
        for name, value in values.items():
            yield tensorboard.scalar(seconds, iteration, name, value)
    if run.state in records.FINISHED:
        yield tensorboard.session_end(end)


def write_tensorboard(runs, symbols, note, directory):
    for run in runs:
        place = os.path.join(directory, name_of(run))
        shutil.rmtree(place, ignore_errors=True)    # an earlier export of this run
        os.makedirs(place)
        with open(os.path.join(place, f"events.out.tfevents.{int(run.started or 0):010}.kablate"), "wb") as file:
            file.writelines(events_of(run, symbols, note))
    print(f"{directory}: {len(runs)} runs\n    tensorboard --logdir {directory}")


# ---------------------------------------------------------------- Weights & Biases

def write_wandb(runs, symbols, note, directory):
    try:
        import wandb
    except ImportError:
        raise records.Problem(f"{sys.executable} has no package wandb: 'pip install wandb' in an environment of your "
                              "own, then make export-wandb WANDB_PYTHON=THAT/bin/python") from None
    os.makedirs(directory, exist_ok=True)
    for run in runs:
        config = {symbol: number(value) for symbol, value in run.config.items()}
        done = wandb.init(mode="offline", dir=directory, project=run.experiment, group=run.step, name=name_of(run),
                          id=run.identity[:12], tags=note.tags, notes=note.note or None,
                          config={**config, **hyperparameters(run, symbols)},
                          settings=wandb.Settings(silent=True, x_disable_stats=True))
        for iteration, values in values_by_iteration(run):
            done.log(values, step=iteration)
        done.finish(exit_code=int(run.state not in records.FINISHED))
    print(f"{directory}: {len(runs)} runs\n    wandb sync {directory}/wandb/offline-run-*")


# ---------------------------------------------------------------- the command

def export(args):
    db = records.connect(os.path.join(args.runs, "results.db"))
    steps = records.read_experiment(db, args.experiment)
    runs = [run for step in steps for run in step.runs]
    write = {"tensorboard": write_tensorboard, "wandb": write_wandb}[args.form]
    write(runs, differing(steps), notes.read(args.runs, args.experiment), args.directory)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: make export-tensorboard E=smoke")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("form", choices=("tensorboard", "wandb"))
    parser.add_argument("experiment")
    parser.add_argument("directory")
    args = parser.parse_args(argv)
    try:
        export(args)
    except (records.Problem, records.sqlite3.Error, OSError) as problem:
        sys.exit(f"export: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
