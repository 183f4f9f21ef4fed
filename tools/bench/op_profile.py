#!/usr/bin/env python3
"""Where the time of an iteration goes: by op and pass, from the instructions of the program.

    op_profile.py --build DIR [--rows PATTERN,...] [--precision NAME] [--backend cuda]

The rows are those of bench.py, of both backends.  Every instruction runs alone, five times, and its least time counts.
On a GPU each runs eight times in a row and is waited for once; one that is
shorter than its launch, some microseconds, takes as long as that.  A whole iteration, the least of three, has the
batch and the update besides.
"""
import argparse
import collections
import sys

from tools.bench import bench, bench_rows
from tools.bench.bench_process import end_on_signals
from tools.plan import kconfig

WARM_UP = 2
PASSES = 5
ITERATIONS = 3


def by_op(steps):
    """(op, pass) -> how many, seconds; the largest first."""
    found = collections.defaultdict(lambda: [0, 0.0])
    for step in steps:
        entry = found[step["op"], step["pass"]]
        entry[0] += 1
        entry[1] += step["seconds"]
    return sorted(found.items(), key=lambda item: -item[1][1])


def lines(groups, iteration):
    passes = sum(seconds for _, (_, seconds) in groups)
    for (op, name), (count, seconds) in groups:
        yield f"  {op:20} {name:10} {count:5} {seconds * 1e3:11.3f} {seconds / passes:7.1%}"
    yield f"  {'all of these':37} {passes * 1e3:11.3f}"
    yield f"  {'an iteration':37} {iteration * 1e3:11.3f}"


def profile(runner, row, precision):
    symbols = row.set | {"PRECISION": precision}
    ours = runner.start_ours(runner.configure(f"profile-{row.name}", row.start, row.fragments, symbols))
    ours.ask(WARM_UP)
    iteration = min(ours.ask(ITERATIONS))
    groups = by_op(ours.ask(f"profile {PASSES}"))
    ours.end()
    print(f"{row.name} ({precision}, {runner.backend}, {ours.about['threads']} threads)")
    print(f"  {'op':20} {'pass':10} {'times':>5} {'ms':>11} {'share':>7}")
    print("\n".join(lines(groups, iteration)), flush=True)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     epilog="example: python3 -m tools.bench.op_profile --rows 124m-dot-1x1024")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--rows", default="laptop-step3", metavar="PATTERN,...")
    parser.add_argument("--precision", default="float32", choices=bench_rows.PRECISIONS)
    parser.add_argument("--backend", default="cpu", choices=bench_rows.BACKENDS)
    args = parser.parse_args(argv)
    end_on_signals("profile")
    runner = bench.Bench(args.build, backend=args.backend)
    rows = {row.name: row for backend in ("cpu", args.backend) for row in bench_rows.rows(backend)}
    try:
        for row in bench_rows.chosen(args.rows, list(rows.values())):
            if not row.whole:
                profile(runner, row, args.precision)
    except (kconfig.Unfit, bench.Lost) as problem:
        print(f"profile: {problem}", file=sys.stderr)
        return 1
    finally:
        runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
