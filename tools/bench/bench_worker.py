#!/usr/bin/env python3
"""Runs a minute of one worker, and what its time goes to, for 1, 8, 64 and 256 seeds of a step.

The step is the baseline of a laptop study, trained as `make` trains it: with audits,
evaluations, checkpoints, journals and the database. Each number of seeds is trained in an
empty directory by one process; on a GPU they are replicas. Seconds are the process's own;
"start" also has what came before it could measure. "of products" and "of bytes" are the
operations and bytes of the training (no op fused with another), as shares of what the machine
reaches with large products and copies; on a GPU PyTorch measures these (--torch).
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

from tools.bench.bench import Bench
from tools.bench.bench_compare import ceiling_of
from tools.bench.study import Study
from tools.plan import kconfig
from tools.terminal import terminal

DEFCONFIG = "gpt2-ra-mla-full"
PHASES = ("start", "audits", "data", "training", "evaluation", "records")
PASSES = ("GPT2_MAX_ITERS", "TRAIN_ACCUMULATE")     # of a run, multiplied
ON = {"cpu": (), "cuda": ("CONFIG_REPLICAS=y",)}


def words_of(text):
    return [word for word in text.split(",") if word]


def per_pass(build, tree):
    """What bench_model says of a pass of this model."""
    with tempfile.NamedTemporaryFile("w", prefix="kablate-bench-worker-") as config:
        config.write(kconfig.program_symbols(tree))
        config.flush()
        done = subprocess.run([pathlib.Path(build) / "bin/bench_model", config.name], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


class Step:
    def __init__(self, directory, options):
        study = Study(directory, options.build, DEFCONFIG, f"CONFIG_BACKEND={options.backend}", *ON[options.backend])
        study.make("set", 'CONFIG_PLAN="single"', *words_of(options.set))
        study.make("steps")
        self.program = next(study.plan.glob("*/kablate"))
        self.tree = kconfig.Tree()
        self.tree.load(str(self.program.parent / "config"))
        self.values = self.tree.values()

    def count(self, *names):
        return math.prod(int(self.values[name]) for name in names)

    def tokens(self):
        """Of a whole run."""
        return self.count("TRAIN_BATCH", "MODEL_BLOCK", *PASSES)

    def least_seconds(self, options):
        """What a whole run takes at the speed of large products and at that of copies, as far as these are known."""
        about = per_pass(options.build, self.tree)
        speed = Bench(options.build, python=options.torch, backend=options.backend).ceilings(about["threads"])
        ceilings = ceiling_of(speed, self.values["PRECISION"]), speed.get("ceiling_bytes")
        return {f"of {name}": self.count(*PASSES) * about[work] / ceiling for name, work, ceiling
                in zip(("products", "bytes"), ("flops", "bytes"), ceilings) if ceiling}


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


def row(step, count, times, least):
    return [str(count), f"{60 * count / times['wall']:.0f}", f"{times['wall']:.2f}",
            *(f"{times[name]:.2f}" for name in PHASES),
            f"{step.tokens() * count / (times['training'] + times['data']) / 1e6:.2f}",
            *(f"{100 * seconds * count / times['training']:.1f}%" for seconds in least.values())]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="example: python3 -m tools.bench.bench_worker --counts 1,8")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--set", default="", metavar="A=B,..", help="further symbols, separated by commas")
    parser.add_argument("--counts", default="1,8,64,256", metavar="N,N..", help="seeds (default: 1,8,64,256)")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter that has torch, for a GPU")
    options = parser.parse_args(argv)
    headings = ["seeds", "runs/min", "wall s", *PHASES, "Mtok/s"]
    lines = []
    with tempfile.TemporaryDirectory(prefix="kablate-bench-worker-") as directory:
        step = Step(pathlib.Path(directory), options)
        least = step.least_seconds(options)
        for count in map(int, words_of(options.counts)):
            lines.append(row(step, count, measure(step, count), least))
            print(f"{count} seeds: {lines[-1][1]} runs a minute", file=sys.stderr)
    print(terminal.table([*headings, *least], lines, lambda heading: False))


if __name__ == "__main__":
    main(sys.argv[1:])
