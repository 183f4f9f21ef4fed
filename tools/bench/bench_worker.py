#!/usr/bin/env python3
"""Runs a minute of one worker, and what its time goes to, for 1, 8, 64 and 256 seeds of a step.

The step is the baseline of a laptop study, trained as `make` trains it: with audits,
evaluations, checkpoints, journals and the database. Each number of seeds is trained in an
empty directory by one process. Seconds are the process's own; "start" also has what came
before it could measure.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

from tools.bench.study import Study
from tools.terminal import terminal

DEFCONFIG = "gpt2-ra-mla-full"
PHASES = ("start", "audits", "data", "training", "evaluation", "records")
TRAINED = ("GPT2_MAX_ITERS", "TRAIN_BATCH", "TRAIN_ACCUMULATE", "MODEL_BLOCK")      # tokens, multiplied


def words_of(text):
    return [word for word in text.split(",") if word]


class Step:
    def __init__(self, directory, options):
        study = Study(directory, options.build, DEFCONFIG, f"CONFIG_BACKEND={options.backend}")
        study.make("set", 'CONFIG_PLAN="single"', *words_of(options.set))
        study.make("steps")
        self.program = next(study.plan.glob("*/kablate"))

    def tokens(self):
        """Of a whole run."""
        numbers = dict(line.removeprefix("CONFIG_").split("=", 1)
                       for line in (self.program.parent / "config").read_text().splitlines() if "=" in line)
        return math.prod(int(numbers[name]) for name in TRAINED)


def measure(step, count):
    """Seconds by phase, and in all."""
    with tempfile.TemporaryDirectory(prefix="kablate-bench-worker-") as runs:
        seeds = ",".join(str(seed) for seed in range(1, count + 1))
        began = time.monotonic()
        done = subprocess.run([step.program, "train", "--lines", "--times", "--runs", runs, "--seeds", seeds],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        wall = time.monotonic() - began
        finished = len(list(pathlib.Path(runs).glob("*/*/done")))
        if done.returncode or finished != count:
            sys.exit(f"{finished} of {count} runs ended, status {done.returncode}:\n{done.stderr[-3000:]}")
    times = json.loads(done.stdout.splitlines()[-1])
    times["start"] += wall - sum(times.values())
    return {**times, "wall": wall}


def row(step, count, times):
    return [str(count), f"{60 * count / times['wall']:.0f}", f"{times['wall']:.2f}",
            *(f"{times[name]:.2f}" for name in PHASES),
            f"{step.tokens() * count / (times['training'] + times['data']) / 1e6:.2f}"]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="example: python3 -m tools.bench.bench_worker --counts 1,8")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--set", default="", metavar="A=B,..", help="further symbols, separated by commas")
    parser.add_argument("--counts", default="1,8,64,256", metavar="N,N..", help="seeds (default: 1,8,64,256)")
    options = parser.parse_args(argv)
    headings = ["seeds", "runs/min", "wall s", *PHASES, "Mtok/s"]
    lines = []
    with tempfile.TemporaryDirectory(prefix="kablate-bench-worker-") as directory:
        step = Step(pathlib.Path(directory), options)
        for count in map(int, words_of(options.counts)):
            lines.append(row(step, count, measure(step, count)))
            print(f"{count} seeds: {lines[-1][1]} runs a minute", file=sys.stderr)
    print(terminal.table(headings, lines, lambda heading: False))


if __name__ == "__main__":
    main(sys.argv[1:])
