#!/usr/bin/env python3
"""How fast the models of bench_rows.py decode on a backend, beside PyTorch with a static cache.

    bench_decode_rows.py --build DIR [--backend cuda] [--rows PATTERN,...] [--lengths N,...] [--batches N,...]

A step reads every weight and the whole cache once, so its limit is these bytes over the bandwidth.
The bytes are those that PyTorch's model has in the same precision; where it has no such model, those of our
weights in that precision, and of our cache.  The bandwidth is our own reading on the CPU, and PyTorch's copy on a GPU:
there our reading is a search for NaN, which is slower.  Without PyTorch a GPU has no limit.
Each batch and context is measured by processes of its own, which take turns: what does not fit is reported,
and the rest goes on.  Results of several runs collect in DIR/bench/decode-BACKEND.json.
"""
import argparse
import os
import sys
import time

from tools.bench import bench, bench_decode, bench_rows
from tools.bench.bench_process import Lost, end_on_signals
from tools.bench.bench_result import TEXTS, Collection
from tools.plan import kconfig
from tools.terminal import terminal

LENGTHS = {"cpu": "1024,4096", "cuda": "1024,4096,16384,32768"}
BATCHES = {"cpu": "1", "cuda": "1,64"}
BYTES = {"float32": 4, "bfloat16": 2}
LIMIT = 300     # seconds of one process
HEAD = ("row", "precision", "batch", "context", "tokens/s", "PyTorch's", "ratio", "limit", "reached", "aim",
        "PyTorch reached", "its form")


def one_context(found):
    return found["contexts"][0] | {name: found[name] for name in ("torch", "batch") if name in found}


class Subject:
    """A row at one batch and context."""

    def __init__(self, runner, row, o, batch, context):
        self.runner, self.rounds, self.name = runner, o.rounds, f"{row.name}, batch {batch}, context {context}"
        self.found = {"row": row.name, "precision": o.precision, "batch": batch, "context": context,
                      "goal": row.goal.get(batch)}
        symbols = row.set | {"PRECISION": o.precision}
        self.config = runner.configure(f"decode-{row.name}-{batch}-{context}", row.start, row.fragments, symbols)
        full = os.path.join(os.path.dirname(self.config), "full")
        kconfig.write_text(full, runner.tree.config_text())
        symbols = kconfig.values_in(full) | {"MODEL_VOCAB": row.set["COPY_VOCAB"]}
        self.own = [os.path.join(runner.build, "bin/bench_model"), self.config, "--decode", str(context),
                    str(batch), str(o.seconds)]
        threads = int(symbols.get("THREADS", 0)) or len(os.sched_getaffinity(0))
        self.peer = bench_decode.peer_command(
            symbols, str(context), runner.python, f"--device={runner.backend}", f"--batch={batch}",
            f"--precision={o.precision}", f"--seconds={o.seconds}", f"--threads={threads}") if runner.torch else None

    def ask(self, side, command):
        """What a side answers."""
        self.runner.say(f"{self.name}: {side}")
        try:
            return self.runner.start(command, os.path.join(os.path.dirname(self.config), f"{side}.log"),
                                     os.sched_getaffinity(0), time.monotonic() + LIMIT,
                                     lambda text: self.runner.say(f"{self.name}: {side}: {text}"),
                                     self.runner.environment).about
        finally:
            self.runner.end_all()

    def run(self):
        """The faster of some rounds on either side, or why a side has no number."""
        found = self.found
        for _ in range(self.rounds):
            for side, command in (("own", self.own), ("peer", self.peer)):
                if command is None or "failed" in found.get(side, {}):
                    continue
                try:
                    answer = one_context(self.ask(side, command))
                    found[side] = min(found.get(side, answer), answer, key=lambda a: a["token_seconds"])
                except Lost as lost:
                    found[side] = {"failed": str(lost)}


# ---------------------------------------------------------------- what came out

def bandwidth_of(own, backend, about):
    return own.get("read_bytes_per_second") if backend == "cpu" else about.get("ceiling_bytes")


def with_limit(found, precision, bandwidth):
    """Tokens per second that the bandwidth allows, from the bytes of a step."""
    own, peer = found.get("own", {}), found.get("peer", {})
    if "weight_bytes" in peer:
        read = peer["weight_bytes"] + peer["cache_bytes"]
    elif "weights" in own:
        read = own["weights"] * BYTES[precision] + own["state_bytes"]
    else:
        return found
    return found | {"read_bytes": read, "bandwidth": bandwidth,
                    "limit": found["batch"] * bandwidth / read if bandwidth else None}


def speed(found, side):
    seconds = found.get(side, {}).get("token_seconds")
    return found["batch"] / seconds if seconds else None


def number(value, form):
    return form.format(value) if value is not None else ""


def cells(found):
    own, peer, limit = speed(found, "own"), speed(found, "peer"), found.get("limit")
    reached = own / limit if own and limit else None
    goal = found.get("goal")
    verdict = "" if not goal or reached is None else f" {'reached' if reached >= goal else 'missed'}"
    return (found["row"], found["precision"], str(found["batch"]), str(found["context"]), number(own, "{:.0f}"),
            number(peer, "{:.0f}"), number(own and peer and own / peer, "{:.2f}"), number(limit, "{:.0f}"),
            number(reached, "{:.0%}"), number(goal, "{:.0%}") + verdict,
            number(peer and limit and peer / limit, "{:.0%}"), found.get("peer", {}).get("form", ""))


def run(o):
    runner = bench.Bench(o.build, python=o.torch, backend=o.backend, limit=LIMIT)
    collection = Collection(os.path.join(runner.directory, f"decode-{o.backend}.json"))
    about = bench.machine(runner)
    runner.close()
    print(bench.about_text(about) + "\n", flush=True)
    subjects = [Subject(runner, row, o, batch, context)
                for row in bench_rows.chosen(o.rows, list(bench_rows.decode_rows()))
                for batch in map(int, o.batches.split(",")) for context in map(int, o.lengths.split(","))]
    for subject in subjects:
        subject.run()
        bandwidth = bandwidth_of(subject.found.get("own", {}), o.backend, about)
        found = with_limit(subject.found, o.precision, bandwidth) | {name: about[name] for name in ("date", "machine")}
        collection.put(" ".join(str(found[name]) for name in ("row", "precision", "batch", "context")), found)
        print("    " + "  ".join(f"{name} {cell}" for name, cell in zip(HEAD, cells(found)) if cell))
        for side in ("own", "peer"):
            if "failed" in found.get(side, {}):
                print(f"    {side}: {found[side]['failed']}")
        sys.stdout.flush()
    print("\n" + terminal.markdown(HEAD, map(cells, collection.found.values()), TEXTS.__contains__) +
          f"\n{collection.path}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="example: python3 -m "
                                     "tools.bench.bench_decode_rows --backend cuda --rows 124m-dot --batches 64")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--backend", default="cpu", choices=bench_rows.BACKENDS)
    parser.add_argument("--rows", default="124m-dot,124m-mla", metavar="PATTERN,...",
                        help=", ".join(row.name for row in bench_rows.decode_rows()))
    parser.add_argument("--precision", default="bfloat16", choices=bench_rows.PRECISIONS)
    parser.add_argument("--lengths", metavar="N,...", help="contexts")
    parser.add_argument("--batches", metavar="N,...")
    parser.add_argument("--rounds", type=terminal.count, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="on each number")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter that has torch")
    o = parser.parse_args(argv)
    o.lengths, o.batches = o.lengths or LENGTHS[o.backend], o.batches or BATCHES[o.backend]
    end_on_signals("bench-decode")
    try:
        run(o)
    except kconfig.Unfit as problem:
        print(f"bench-decode: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
