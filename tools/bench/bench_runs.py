#!/usr/bin/env python3
"""How plan, make, status, report and the database grow with the number of runs.

A study of ten steps gets as many seeds as it takes.  One run of each step is trained; the records
and journals of all others are made from it, with other losses.  Every command is called as a user
would call it.  A line per number of runs: wall time and processor time in seconds, and the
memory of the largest process.
"""
import hashlib
import json
import pathlib
import random
import shutil
import sys
import tempfile

from tools.bench.study import Study, call
from tools.results import metric_names
from tools.terminal import terminal

STEPS = "mla gate cross latent gate+cross gate+latent cross+latent gate+cross+latent muon adamwspam"
NOISE = 0.01        # nats between seeds
SETTINGS = ["CONFIG_PLAN_STEPS=y", f'CONFIG_PLAN_FRAGMENTS="{STEPS}"', "CONFIG_THREADS=1"]
CHANGED = (metric_names.TRAIN_LOSS, f"{metric_names.TRAIN}/main", metric_names.VALIDATION_LOSS)
HEADINGS = ["runs", "identities", "database", "MB", "plan", "make", "make again", "status", "report"]


def make_study(directory, build, count):
    seeds = ",".join(str(1 + i) for i in range(count // len(STEPS.split())))
    study = Study(directory, build, "smoke", *SETTINGS, f'CONFIG_SEEDS="{seeds}"')
    study.make("steps")
    return study


def known_runs(study):
    return [{**run, "directory": study.runs / run["directory"]}
            for run in json.loads((study.plan / "runs.json").read_text())]


def train(study, run):
    call(study.plan / run["step"] / "kablate", "train", "--runs", study.runs, "--experiment",
         run["experiment"], "--step", run["step"], "--seed", str(run["seed"]), "--repeat",
         str(run["repeat"]), "--baseline", run["baseline"], "--journal-only", "--lines")


# ---------------------------------------------------------------- synthetic runs

def line_text(number, entry):
    """Without its sum and its end."""
    return json.dumps({**entry, "line": number}, separators=(",", ":"), ensure_ascii=False)[:-1]


def with_sums(texts):
    """The text of a journal (core/record/line_sum.h)."""
    before, lines = "", []
    for text in texts:
        before = hashlib.sha256((before + text).encode()).hexdigest()[:16]
        lines.append(f'{text},"sum":"{before}"}}\n')
    return "".join(lines)


def make_run(run, record, entries, texts):
    directory = pathlib.Path(run["directory"])
    directory.mkdir(parents=True)
    shift = random.Random(f"{run['step']} {run['seed']}").gauss(0, NOISE)
    changed = [line_text(number, {**entry, "value": entry["value"] + shift})
               if entry.get("name") in CHANGED else text
               for number, (entry, text) in enumerate(zip(entries, texts), 1)]
    identity = run["identity"] + hashlib.sha256(run["identity"].encode()).hexdigest()[12:]
    (directory / "run.json").write_text(json.dumps({**record, "seed": run["seed"],
                                                    "identity": identity}))
    (directory / "journal.jsonl").write_text(with_sums(changed))
    (directory / "done").touch()


def read_trained(run):
    directory = pathlib.Path(run["directory"])
    entries = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    for entry in entries:
        del entry["line"], entry["sum"]
    texts = [line_text(number, entry) for number, entry in enumerate(entries, 1)]
    return json.loads((directory / "run.json").read_text()), entries, texts


def make_runs(study):
    trained = {}
    for run in known_runs(study):
        if run["step"] not in trained:
            train(study, run)
            trained[run["step"]] = read_trained(run)
        else:
            make_run(run, *trained[run["step"]])


# ---------------------------------------------------------------- measuring

def measure(build, count):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="kablate-runs-"))
    try:
        study = make_study(directory, build, count)
        cells = {"identities": study.make("runs-tuned")}
        make_runs(study)
        cells["database"] = call(build / "bin/results", "update", study.runs)
        size = (study.runs / "results.db").stat().st_size / 1e6
        cells["plan"] = study.make("plan")
        cells["make"] = study.make()
        cells["make again"] = study.make()
        cells["status"] = study.make("status")
        shutil.rmtree(study.runs / "smoke" / "report")
        cells["report"] = study.make("report")
    finally:
        shutil.rmtree(directory)
    return {"runs": str(count), "MB": f"{size:.0f}",
            **{name: f"{clock:.1f} s ({used:.1f}), {megabytes:.0f} MB"
               for name, (clock, used, megabytes) in cells.items()}}


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.bench.bench_runs --counts 100,1000")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--counts", default="100,1000,10000", help="numbers of runs, multiples of ten")
    args = parser.parse_args(argv)
    rows = []
    for count in map(int, args.counts.split(",")):
        rows.append(measure(args.build.resolve(), count))
        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), file=sys.stderr, flush=True)
    print(terminal.table(HEADINGS, [[row[name] for name in HEADINGS] for row in rows],
                         lambda heading: False))


if __name__ == "__main__":
    main(sys.argv[1:])
