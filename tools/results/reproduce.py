#!/usr/bin/env python3
"""Trains random runs of a published archive again, from its own commit, and says how they differ.

    reproduce.py ARCHIVE DIRECTORY --runs 3

The commit must be in this repository: an archive brings no code. It is checked out into
DIRECTORY, built there, and each run is configured from its own record. "same bits" are equal
weights; otherwise the difference of the final validation loss is given in standard deviations
of the step's seeds.
"""
import json
import os
import random
import statistics
import subprocess
import sys

from tools.results import archive, metric_names, names
from tools.results.archive import Refused
from tools.terminal import terminal

ENVIRONMENT = ("machine", "compiler", "flags", "blas")
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
DATA = ("DATA_TRAIN", "DATA_VALID")


# ---------------------------------------------------------------- what was recorded

def ends_of(journal):
    """(final validation loss, SHA-256 of the weights), as far as the journal has them."""
    loss = weights = None
    with open(journal, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if entry.get("kind") == "value" and entry.get("name") == metric_names.VALIDATION_LOSS:
                loss = float(entry["value"])
            if entry.get("kind") == "artifact" and entry.get("name") == "weights":
                weights = entry["sha256"]
    return loss, weights


def record_of(directory):
    with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
        record = json.load(file)
    names.check_run(*(record[name] for name in ("experiment", "step", "baseline", "identity", "seed")))
    names.checked_symbols(record["config"])
    return record


def finished(top):
    """[(directory, record, loss, weights)] of the runs that ended with a loss."""
    found = []
    for name in sorted(os.listdir(top)):
        directory = os.path.join(top, name)
        if os.path.exists(os.path.join(directory, "done")):
            record = record_of(directory)
            loss, weights = ends_of(os.path.join(directory, "journal.jsonl"))
            if loss is not None:
                found.append((directory, record, loss, weights))
    return found


def deviation(runs, step):
    """Of the final losses of the step's seeds; None: fewer than two."""
    losses = [loss for _, record, loss, _ in runs if record["step"] == step]
    return statistics.stdev(losses) if len(losses) > 1 else None


# ---------------------------------------------------------------- training again

def command(words, **options):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode:
        said = done.stdout.strip().splitlines()[-6:] or [f"status {done.returncode}"]
        raise Refused(f"{' '.join(words[:3])}: " + "\n".join(said))
    return done.stdout


def commit_of(head):
    if len(head["commits"]) != 1 or not archive.REVISION.fullmatch(head["commits"][0]):
        raise Refused(f"its runs are of {', '.join(head['commits'])}: only runs of one whole commit can be trained again")
    return head["commits"][0]


def check_out(commit, directory):
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    if known.returncode:
        raise Refused(f"commit {commit} is not in this repository: git fetch it from where the archive comes from")
    command(["git", "clone", "-q", "--no-checkout", ".", directory])
    command(["git", "-C", directory, "checkout", "-q", "--detach", commit])


def lend_data(symbols, clone):
    """Token files are not part of a commit: those of this tree stand in; their hash is part of a run's identity."""
    for name in DATA:
        place = os.path.dirname(symbols.get(name, ""))
        words = place.split("/")
        # What is built or trained in the clone must not get here through a link.
        if not place or os.path.isabs(place) or ".." in words or words[0].startswith((".", "build", "again-")) \
                or not os.path.isdir(place):
            continue
        to = os.path.join(clone, place)
        if not os.path.lexists(to):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.symlink(os.path.abspath(place), to)


def train(clone, number, record):
    """Returns the directory of the new run."""
    config, runs = f"build/again-{number}.config", f"again-{number}"
    environment = {**os.environ, "KCONFIG_CONFIG": config}
    for name in ("O", "PLAN", "RUNS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "KABLATE_BEGAN", "LOCKED"):
        environment.pop(name, None)
    symbols = [f"CONFIG_{name}={value}" for name, value in record["config"].items()]
    lend_data(record["config"], clone)
    command(["make", "defconfig"], cwd=clone, env=environment)
    command([sys.executable, "-m", "tools.plan.kconfig", "set", "CONFIG_PLAN=single", "CONFIG_EXPERIMENT=again",
             f"CONFIG_SEEDS={record['seed']}", *symbols], cwd=clone, env=environment)
    command(["make", f"RUNS={runs}", "runs"], cwd=clone, env=environment)
    found = finished(os.path.join(clone, runs, "again"))
    if len(found) != 1:
        raise Refused(f"{record['step']}, seed {record['seed']}: it did not end with a loss")
    return found[0]


# ---------------------------------------------------------------- what is said

def difference(was, now, sd):
    """One line about a run that was trained again."""
    (_, record, loss, weights), (_, new_record, new_loss, new_weights) = was, now
    words = f"{record['step']}, seed {record['seed']}: "
    if weights is not None and weights == new_weights:
        return words + "same bits"
    words += f"validation loss {new_loss:.6f}, published {loss:.6f}: {new_loss - loss:+.2e} nats"
    if sd:
        words += f", {(new_loss - loss) / sd:+.2f} standard deviations of its seeds"
    else:
        words += ", and no second seed to compare this with"
    changed = [name for name in ENVIRONMENT if record.get(name) != new_record.get(name)]
    if record["identity"] != new_record["identity"]:
        changed.append("identity (sources, data or configuration)")
    return words + (f"; other {', '.join(changed)}" if changed else "; the environment is the same")


def reproduce(path, directory, wanted, seed):
    published = os.path.join(directory, "published")
    head = archive.unpack(path, published)
    runs = finished(os.path.join(published, head["experiment"]))
    eligible = [run for run in runs if run[1]["repeat"] == 0]
    if not eligible:
        raise Refused("it has no run that ended")
    clone = os.path.join(directory, "tree")
    check_out(commit_of(head), clone)
    chosen = random.Random(seed).sample(eligible, min(wanted, len(eligible)))
    same = 0
    for number, run in enumerate(chosen):
        line = difference(run, train(clone, number, run[1]), deviation(runs, run[1]["step"]))
        same += line.endswith("same bits")
        print(line, flush=True)
    print(f"{same} of {len(chosen)} runs of {head['experiment']} with the same bits")


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.reproduce smoke.tar.xz build/again --runs 3")
    parser.add_argument("archive")
    parser.add_argument("directory", help="made here; it must not exist")
    parser.add_argument("--runs", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--seed", type=int, help="chooses the same runs again")
    args = parser.parse_args(argv)
    try:
        if args.runs < 1:
            raise Refused(f"{args.runs} runs: expected 1 or more")
        if os.path.lexists(args.directory):
            raise Refused(f"{args.directory} is there already: remove it, or name another with OUT=")
        reproduce(args.archive, args.directory, args.runs, args.seed)
    except Refused as refused:
        sys.exit(f"{args.archive}: {refused}")
    except (OSError, *DAMAGED) as error:
        sys.exit(f"{args.archive}: damaged: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
