#!/usr/bin/env python3
"""Ranks of one thread each beside one rank with as many threads, on a model of 124M.

    bench_ranks.py [--ranks 2] [--rounds 3] [--iterations 5] [--precision float32]
                   [--batch 4] [--length 256] [--micro 2]

Every arm is a program that make builds for its configuration; the ranks are started as make starts
them.  The arms take turns, and each is ended after so many updates.  A number is the median of
tokens per second over the updates after the first; the table has the median over the rounds and,
in brackets, the least and the largest.

Example: taskset -c 0,1 python3 -m tools.bench.bench_ranks --ranks 2 --precision bfloat16
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from tools.bench.study import Study
from tools.results import metric_names

TREE = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {"PLAN": "single", "SEEDS": "1", "TASK": "copy", "COPY_VOCAB": 50304, "OPTIMIZER": "adamw",
            "LOG_INTERVAL": 1, "EVAL_INTERVAL": 1000000, "EVAL_ROWS": 4, "EVAL_SAMPLE": 0,
            "AUDIT_WIRING": "n", "AUDIT_CAUSALITY": "n", "AUDIT_ONE_BATCH": "n", "AUDIT_DATA": "n",
            "AUDIT_TRAINING": "n", "AUDIT_ORACLE": "n"}


class Arm:
    def __init__(self, place, name, options, settings):
        self.name, self.options, self.ranks = name, options, settings.get("RANKS", 1)
        self.directory = place / name
        self.directory.mkdir()
        study = Study(self.directory, options.build, "null+124m+dot",
                      *(f"CONFIG_{key}={value}" for key, value in (SETTINGS | settings).items()))
        study.make("built")
        self.speeds = []

    def start(self):
        command = [str(self.directory / "plan/0-baseline/kablate"), "train", "--lines", "--runs",
                   str(self.directory / "runs")]
        if self.ranks > 1:
            command = [sys.executable, "-m", "tools.kablate.launch", "--ranks", str(self.ranks), *command]
        return subprocess.Popen(command, cwd=TREE, text=True, stderr=subprocess.PIPE)

    def end(self, process):
        """Its results are no longer needed; two interrupts end ranks at once."""
        if self.ranks == 1:
            process.kill()
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        process.stderr.close()

    def run(self):
        process, said = self.start(), []
        for line in process.stderr:
            said.append(line)
            if f" {self.options.iterations}/" in line:
                break
        else:
            sys.exit(f"{self.name} ended early:\n{''.join(said)}")
        journal = next((self.directory / "runs").glob("*/*/journal.jsonl"))
        rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        self.end(process)
        values = [row["value"] for row in rows if row.get("name") == metric_names.TOKENS_PER_SECOND]
        self.speeds.append(statistics.median(values[1:]))
        shutil.rmtree(self.directory / "runs")
        print(f"  {self.name}: {self.speeds[-1]:.1f}", flush=True)

    def show(self, first):
        ratios = [mine / his for mine, his in zip(self.speeds, first.speeds)]
        print(f"{self.name:28} {statistics.median(self.speeds):9.1f} tok/s   {statistics.median(ratios):6.1%} "
              f"[{min(ratios):.1%} to {max(ratios):.1%}]", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("O", "build"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--micro", type=int, default=2, help="micro-batches per update, of all ranks")
    options = parser.parse_args()
    common = {"GPT2_MAX_ITERS": 1000000, "PRECISION": options.precision, "TRAIN_BATCH": options.batch,
              "MODEL_BLOCK": options.length, "TRAIN_ACCUMULATE": options.micro}
    many, threads = {"RANKS": options.ranks, "THREADS": 1}, {"THREADS": options.ranks}
    with tempfile.TemporaryDirectory(prefix="kablate-ranks-") as name:
        place = pathlib.Path(name)
        arms = [Arm(place, f"1-rank-{options.ranks}-threads", options, common | threads),
                Arm(place, f"{options.ranks}-ranks-1-thread", options, common | many),
                Arm(place, f"{options.ranks}-ranks-unordered", options, common | many | {"ORDERED_SUM": "n"}),
                Arm(place, f"1-rank-{options.ranks}-threads-ordered", options,
                    common | threads | {"ORDERED_SUM": "y"})]
        print(f"124M, {options.precision}, {options.micro} micro-batches of {options.batch} x {options.length}, "
              f"{options.rounds} rounds of {options.iterations} updates", flush=True)
        for _ in range(options.rounds):
            for arm in arms:
                arm.run()
        for arm in arms:
            arm.show(arms[0])


if __name__ == "__main__":
    main()
