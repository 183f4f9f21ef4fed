"""Makes the program of a run again from its record: to sample, to evaluate, to export.

A run's directory holds run.json with every symbol that its program read.  The same symbols give the
same model, so `make` builds it in $O/of-run/IDENTITY, whatever .config says now.
"""
import json
import os
import pathlib
import subprocess
import sys

from tools.results import names, plain, records
from tools.terminal import terminal

RECORD, WEIGHTS = "run.json", "weights.safetensors"


def run_directory(runs, name):
    """The directory that a path, EXPERIMENT/STEP or the beginning of an identity names."""
    path = pathlib.Path(name)
    if (path / RECORD).is_file():
        return path
    database = pathlib.Path(runs, "results.db")
    if not database.exists():
        raise records.Problem(f"{name}: no directory of a run, and {database} is not there")
    with records.connect(database) as db:
        steps = records.find(db, name)
    if len(steps) > 1:
        raise records.Problem(f"{name}: which step? There are: "
                              + ", ".join(f"{name}/{step.name}" for step in steps))
    usable = steps[0].usable
    if not usable:
        raise records.Problem(f"{name}: no run of it has ended")
    run = usable[min(usable)]
    return pathlib.Path(runs, run.experiment, f"{run.step}-{run.seed}-{run.identity[:12]}")


def read_record(directory):
    try:
        record = json.loads(plain.text(directory / RECORD))
        return names.checked(names.IDENTITY, "identity", record["identity"]), \
            names.checked_symbols(record["config"])
    except KeyError as error:
        raise records.Problem(f"{directory / RECORD}: no {error}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise records.Problem(f"{directory / RECORD}: {error}") from error


def call_kconfig(config, *words):
    """tools.plan.kconfig, on a configuration of our own."""
    return subprocess.run([sys.executable, "-m", "tools.plan.kconfig", *words], text=True,
                          env={**os.environ, "KCONFIG_CONFIG": str(config)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def kconfig(config, *words):
    """The same; it reports what kconfig refuses."""
    done = call_kconfig(config, *words)
    if done.returncode:
        raise records.Problem("the run's configuration does not fit this version of kablate:\n"
                              + done.stdout.rstrip())


def write_config(directory, symbols):
    """Writes nothing if the same symbols were written before: then the program stays as it is.

    (A configuration of an older version lacks the symbols that are new.)  symbols.json is there only
    beside a whole configuration of these symbols.
    """
    wanted = json.dumps(symbols, indent=1, sort_keys=True)
    kept, config = directory / "symbols.json", directory / "config"
    if config.exists() and kept.exists() and kept.read_text() == wanted \
            and call_kconfig(config, "check").returncode == 0:
        return
    directory.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    kconfig(config, "defconfig")
    kconfig(config, "set", "CONFIG_PLAN=single",
            *(f"CONFIG_{name}={value}" for name, value in symbols.items()))
    kept.write_text(wanted)


def prepare(runs, name, output):
    """Returns the run's directory, and where the configuration of its program lies."""
    directory = run_directory(runs, name)
    if not (directory / WEIGHTS).exists():
        raise records.Problem(f"{directory}: no {WEIGHTS}; has the run ended?")
    identity, symbols = read_record(directory)
    place = pathlib.Path(output, identity[:12])
    write_config(place, symbols)
    return directory, place


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.run_program --output build/of-run smoke/0", prog="run_program")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--output", required=True, help="where configurations of runs go")
    parser.add_argument("run", help="a directory, EXPERIMENT/STEP or the beginning of an identity")
    args = parser.parse_args(argv)
    try:
        directory, place = prepare(args.runs, args.run, args.output)
    except records.Problem as problem:
        sys.exit(f"{args.run}: {problem}" if not str(problem).startswith(args.run) else str(problem))
    print(place, directory)     # the first has no blank


if __name__ == "__main__":
    main(sys.argv[1:])
