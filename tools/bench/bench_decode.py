#!/usr/bin/env python3
"""Measure how every step of the plan decodes, beside PyTorch where it is installed.

Programs take turns, and the smallest of all times counts, because other load on the machine comes
and goes.  The table goes to standard output; all numbers go as JSON to KEEP/STEP.json for the report.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

from tools.plan import kconfig
from tools.report import decoding, report
from tools.terminal import terminal

MECHANISMS = {"RA_MLA_MLP_ATTN_GATE", "RA_MLA_MLP_CROSS_TOKEN", "RA_MLA_MLP_LATENT_RECIP"}
PEER = pathlib.Path(__file__).parent / "bench_decode_torch.py"


def peer_command(config, contexts, python, *more):
    """How PyTorch measures the same model, or None where it has no such peer."""
    number = lambda name: int(config.get(name, 0))
    if (not config.keys() & {"ATTENTION_DOT", "ATTENTION_MLA"} or "FFN_GELU" not in config
            or float(config.get("RA_MLA_RA_ALPHA", 0)) > 0 or config.keys() & MECHANISMS
            or not number("MODEL_VOCAB")):
        return None
    embd = number("MODEL_EMBD")
    hidden = number("FFN_HIDDEN") or int(float(config.get("FFN_MULT", 4)) * embd)
    sizes = {"attention": "dot" if "ATTENTION_DOT" in config else "mla",
             "layers": number("MODEL_LAYERS"), "embd": embd,
             "heads": number("MODEL_HEADS"), "kv-heads": number("ATTENTION_KV_HEADS"),
             "hidden": hidden, "vocab": number("MODEL_VOCAB"),
             "latent": number("RA_MLA_LATENT_DIM") or 1, "lengths": contexts}
    return [python, PEER, *(f"--{name}={value}" for name, value in sizes.items()), *more]


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0


def ask(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench_decode: {command[0]} failed with status {done.returncode}")
    return json.loads(done.stdout)


SMALLER = "token_seconds", "first_token_seconds"
LARGER = "read_bytes_per_second", "sgemm_flops_per_second"


def better(old, new):
    """Of two measurements of the same contexts, the faster of each kind."""
    if old is None:
        return new
    for a, b in zip(old["contexts"], new["contexts"]):
        a.update({name: min(a[name], b[name]) for name in SMALLER if name in a})
        a.update({name: max(a[name], b[name]) for name in LARGER if a.get(name) is not None})
    return old


def show(step, found):
    headings, cells = decoding.grid(decoding.measured(step, found))
    print(step)
    print(report.aligned(headings[1:], [line[1:] for line in cells], stream=sys.stdout))
    if found["peer"]:
        ratios = [b["token_seconds"] / a["token_seconds"]
                  for a, b in zip(found["own"]["contexts"], found["peer"]["contexts"])]
        print(f"PyTorch {found['peer']['torch']} takes", ", ".join(f"{r:.2f}" for r in ratios),
              "times as long")
    print(flush=True)


def usual_lengths(config):
    """Up to the trained length: a quarter, a half, the whole."""
    trained = int(config["MODEL_BLOCK"])
    return ",".join(map(str, sorted({max(2, trained // part) for part in (4, 2, 1)})))


class Progress:
    """One line on a terminal, over all rounds of all steps."""

    def __init__(self, total, stream):
        self.total, self.made, self.stream = total, 0, stream
        self.started = time.monotonic()

    def show(self, what):
        if not self.stream.isatty():
            return
        passed = time.monotonic() - self.started
        left = f", {terminal.duration(passed / self.made * (self.total - self.made))} left" \
            if self.made else ""
        line = f"{what}: {self.made + 1} of {self.total}{left}"
        terminal.control(self.stream, terminal.CLEAR_LINE)
        self.stream.write(line[:terminal.width(self.stream) - 1])
        self.stream.flush()

    def step(self):
        self.made += 1
        if self.stream.isatty():
            terminal.control(self.stream, terminal.CLEAR_LINE)
            self.stream.flush()


def measure(step, o, torch, progress):
    config = kconfig.values_in(str(step / "config"))
    lengths = o.lengths or usual_lengths(config)
    own = [step / "kablate", "bench-decode", "--json", "--lengths", lengths,
           *(["--seconds", o.seconds] if o.seconds else [])]
    peer = peer_command(config, lengths, o.python) if torch else None
    found = {"own": None, "peer": None}
    for turn in range(o.rounds):
        progress.show(f"{step.name}, round {turn + 1}, contexts {lengths}")
        found["own"] = better(found["own"], ask(own))
        if peer:
            threads = found["own"]["record"]["threads"]
            found["peer"] = better(found["peer"], ask([*peer, f"--threads={threads}"]))
        progress.step()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     epilog="example: python3 -m tools.bench.bench_decode build/plan "
                                     "runs/smoke/decode 0-mla 1-mla+gate")
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("keep", type=pathlib.Path)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--lengths", help="contexts (default: up to the trained length)")
    parser.add_argument("--rounds", type=terminal.count, default=2)
    parser.add_argument("--seconds", help="on each number (default: the program's)")
    parser.add_argument("--python", default=sys.executable, help="one that may have PyTorch")
    o = parser.parse_args()
    torch = has_torch(o.python)
    o.keep.mkdir(parents=True, exist_ok=True)
    progress = Progress(len(o.steps) * o.rounds, sys.stderr)
    for step in o.steps:
        found = measure(o.plan / step, o, torch, progress)
        kconfig.write_text(str(o.keep / f"{step}.json"), json.dumps(found, indent=1) + "\n")
        show(step, found)
    if not torch:
        print("PyTorch is not installed: no peer was measured.")


if __name__ == "__main__":
    main()
