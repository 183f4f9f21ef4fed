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

from tools.plan import kconfig
from tools.report import decoding, report

MECHANISMS = {"RA_MLA_MLP_ATTN_GATE", "RA_MLA_MLP_CROSS_TOKEN", "RA_MLA_MLP_LATENT_RECIP"}
PEER = pathlib.Path(__file__).parent / "bench_decode_torch.py"


def symbols(path):
    """The configuration of a step: CONFIG_NAME -> text."""
    pairs = (line.strip().removeprefix("CONFIG_").split("=", 1) for line in path.open()
             if line.startswith("CONFIG_"))
    return {name: value.strip('"') for name, value in pairs}


def peer_command(config, contexts, python):
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
    return [python, PEER, *(f"--{name}={value}" for name, value in sizes.items())]


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
        a.update({name: max(a[name], b[name]) for name in LARGER if name in a})
    return old


def show(step, found):
    headings, cells = decoding.grid(decoding.measured(step, found))
    print(step)
    print(report.aligned(headings[1:], [line[1:] for line in cells]))
    if found["peer"]:
        ratios = [b["token_seconds"] / a["token_seconds"]
                  for a, b in zip(found["own"]["contexts"], found["peer"]["contexts"])]
        print(f"PyTorch {found['peer']['torch']} takes", ", ".join(f"{r:.2f}" for r in ratios),
              "times as long")
    print(flush=True)


def measure(step, o, torch):
    own = [step / "kablate", "bench-decode", "--json", "--lengths", o.lengths,
           *(["--seconds", o.seconds] if o.seconds else [])]
    peer = peer_command(symbols(step / "config"), o.lengths, o.python) if torch else None
    found = {"own": None, "peer": None}
    for _ in range(o.rounds):
        found["own"] = better(found["own"], ask(own))
        if peer:
            threads = found["own"]["record"]["threads"]
            found["peer"] = better(found["peer"], ask([*peer, f"--threads={threads}"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     epilog="example: python3 -m tools.bench.bench_decode build/plan "
                                     "runs/smoke/decode 0-mla 1-mla+gate")
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("keep", type=pathlib.Path)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", help="on each number (default: the program's)")
    parser.add_argument("--python", default=sys.executable, help="one that may have PyTorch")
    o = parser.parse_args()
    torch = has_torch(o.python)
    o.keep.mkdir(parents=True, exist_ok=True)
    for step in o.steps:
        found = measure(o.plan / step, o, torch)
        kconfig.write_text(str(o.keep / f"{step}.json"), json.dumps(found, indent=1) + "\n")
        show(step, found)
    if not torch:
        print("PyTorch is not installed: no peer was measured.")


if __name__ == "__main__":
    main()
