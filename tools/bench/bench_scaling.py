#!/usr/bin/env python3
"""How cost grows: time and memory against length, layers, width and batch.

    bench_scaling.py --build DIR [--backend cuda] [--longest T] [--figures NAME,...]

Attention alone: the instructions of one attention layer (projections included), forward and
backward, GPT-2's heads (12 of 64; latent 128), and the arena of a model that is little else (one layer,
a feed-forward of 64 channels, 256 tokens).  Whole iterations: forward, backward and update of 6
layers of width 384, and the peak memory of the process beyond 16 bytes per parameter.  On a GPU the models
are larger (12 layers of width 768, T 1024, bfloat16), the lengths go to 32768, and the memory is
that of our blocks.  What does not fit is reported and left out.  Each point is in the file, DIR/bench/scaling.json
or scaling-BACKEND.json, as soon as it is measured, and takes the place of its earlier one.
"""
import argparse
import fnmatch
import itertools
import json
import math
import os
import sys
from dataclasses import asdict, dataclass

from tools.bench import bench, bench_rows
from tools.bench.bench_process import Lost, end_on_signals
from tools.bench.bench_result import MIB
from tools.plan import kconfig
from tools.terminal import terminal

LENGTHS = {"cpu": (256, 512, 1024, 2048, 4096, 8192), "cuda": (512, 1024, 2048, 4096, 8192, 16384, 32768)}
ATTENTIONS = {"dot": "dot", "mla": "mla", "w2": "w2"}
WHOLE = ATTENTIONS | {"step 3": "mla gate cross latent"}
PROFILES = 3        # passes, of which the least time counts


@dataclass
class Point:
    figure: str
    series: str
    x: int
    seconds: float
    bytes: int


@dataclass
class Figure:
    name: str
    title: str
    axis: str
    series: dict        # name -> fragments
    places: tuple
    symbols: object     # x -> symbols
    measure: object     # process -> seconds, bytes


def attention_alone(process):
    process.ask(1)
    steps = process.ask(f"profile {PROFILES}")
    seconds = sum(step["seconds"] for step in steps if step["module"] == "attention")
    return seconds, process.about["activation_bytes"]


def iteration(process):
    _, peak = process.warm_up()
    return min(process.ask(process.n)), peak - 16 * process.about["parameters"]


@dataclass
class Sizes:
    """Of the models whose iterations are measured."""
    layers: int
    width: int
    length: int
    batch: int
    layer_counts: tuple
    widths: tuple           # of four layers
    batches: tuple


SIZES = {"cpu": Sizes(6, 384, 256, 4, (1, 2, 4, 8, 16), (128, 256, 512, 1024), (1, 2, 4, 8, 16)),
         "cuda": Sizes(12, 768, 1024, 16, (1, 2, 4, 8, 16, 32), (256, 512, 1024, 2048), (1, 2, 4, 8, 16, 32, 64))}


def figures(longest, backend="cpu"):
    size = SIZES[backend]

    def small(**more):
        return {"TASK": "copy", "COPY_VOCAB": 256, "TRAIN_BATCH": size.batch, "MODEL_BLOCK": size.length,
                "MODEL_LAYERS": size.layers, "MODEL_EMBD": size.width, "MODEL_HEADS": size.width // 64, **more}

    lengths = tuple(t for t in LENGTHS[backend] if t <= longest)
    shape = f"batch {size.batch}, T {size.length}"
    yield Figure("attention", "One attention layer, batch 1, 12 heads of 64", "T", ATTENTIONS, lengths,
                 lambda T: small(TRAIN_BATCH=1, MODEL_BLOCK=T, MODEL_LAYERS=1, MODEL_HEADS=12, MODEL_EMBD=768,
                                 FFN_HIDDEN=64), attention_alone)
    yield Figure("length", f"An iteration, batch 1, {size.layers} layers of width {size.width}", "T", WHOLE, lengths,
                 lambda T: small(TRAIN_BATCH=1, MODEL_BLOCK=T), iteration)
    yield Figure("layers", f"An iteration, {shape}, width {size.width}", "layers", WHOLE, size.layer_counts,
                 lambda n: small(MODEL_LAYERS=n), iteration)
    yield Figure("width", f"An iteration, {shape}, 4 layers, heads of 64", "width", WHOLE, size.widths,
                 lambda E: small(MODEL_LAYERS=4, MODEL_EMBD=E, MODEL_HEADS=E // 64), iteration)
    yield Figure("batch", f"An iteration, T {size.length}, {size.layers} layers of width {size.width}", "batch", WHOLE,
                 size.batches, lambda B: small(TRAIN_BATCH=B), iteration)


def measure_point(runner, figure, series, x, precision):
    symbols = figure.symbols(x) | {"PRECISION": precision}
    symbols |= {"RA_MLA_LATENT_DIM": 128} if figure.name == "attention" and series == "mla" else {}
    config = runner.configure(f"scaling-{figure.name}-{series.replace(' ', '')}-{x}", "",
                              "small " + figure.series[series], symbols)
    try:
        return Point(figure.name, series, x, *figure.measure(runner.start_ours(config)))
    finally:
        runner.end_all()


def measure(runner, figure, precision, keep):
    """keep(point): what was measured stays if the rest never comes."""
    found = []
    for series, x in itertools.product(figure.series, figure.places):
        where = f"{figure.name}, {series}, {figure.axis} {x}"
        try:
            found.append(measure_point(runner, figure, series, x, precision))
            keep(found[-1])
            print(f"    {where}: {1e3 * found[-1].seconds:.2f} ms", flush=True)
        except Lost as lost:
            print(f"{where}: {lost}", flush=True)
    return found


# ---------------------------------------------------------------- what came out

def growth(points):
    """The exponent over the last doubling: 1 is linear; None: there are not two points."""
    if len(points) < 2:
        return None
    (a, low), (b, high) = points[-2:]
    return math.log(high / low) / math.log(b / a) if low > 0 and high > 0 else None


def cell(point):
    return f"{1e3 * point.seconds:13.2f} ms{point.bytes / MIB:8.1f}" if point else f"{'-':>24}"


def print_figure(figure, points):
    print(f"\n{figure.title}\n{figure.axis:>8}" + "".join(f"{name:>24}" for name in figure.series))
    at = {(p.series, p.x): p for p in points}
    for x in figure.places:
        print(f"{x:8}" + "".join(cell(at.get((name, x))) for name in figure.series))
    for what, key in (("time", "seconds"), ("memory", "bytes")):
        exponents = [growth([(p.x, getattr(p, key)) for p in points if p.series == name])
                     for name in figure.series]
        print(f"{what:>8}" + "".join(f"{'-' if e is None else f'~ {figure.axis}^{e:.2f}':>24}" for e in exponents))
    print("         ms and MiB; last lines: growth over the last doubling", flush=True)


def results_path(build, backend):
    return os.path.join(build, "bench", "scaling.json" if backend == "cpu" else f"scaling-{backend}.json")


def read(path):
    """What is known of the machine, and the points."""
    if not os.path.exists(path):
        return {}, []
    with open(path, encoding="utf-8") as file:
        about = json.load(file)
    return about, [Point(**found) for found in about.pop("points")]


def save(path, about, point):
    """It takes the place of its earlier one.  A figure has points of one machine and precision."""
    before, points = read(path)
    alike = all(before.get(name) == about.get(name) for name in ("machine", "precision"))
    points = [p for p in points if p.figure != point.figure or alike and (p.series, p.x) != (point.series, point.x)]
    kconfig.write_text(path, json.dumps(about | {"points": list(map(asdict, [*points, point]))}, indent=1) + "\n")


def chosen(figures_there, patterns):
    found = [f for f in figures_there if any(fnmatch.fnmatch(f.name, p) for p in patterns.split(","))]
    if not found:
        raise SystemExit(f"bench_scaling: no figure is called {patterns}; there are "
                         f"{' '.join(f.name for f in figures_there)}")
    return found


def run(args):
    precision = args.precision or ("float32" if args.backend == "cpu" else "bfloat16")
    wanted = chosen(list(figures(args.longest or LENGTHS[args.backend][-1], args.backend)), args.figures)
    path = results_path(args.build, args.backend)
    runner = bench.Bench(args.build, backend=args.backend)
    about = bench.machine(runner) | {"precision": precision}
    print(f"{bench.about_text(about)}, {precision}", flush=True)
    for figure in wanted:
        print_figure(figure, measure(runner, figure, precision, lambda point: save(path, about, point)))
    print(f"\n{path}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     epilog="example: python3 -m tools.bench.bench_scaling --longest 1024")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--backend", default="cpu", choices=bench_rows.BACKENDS)
    parser.add_argument("--precision", choices=bench_rows.PRECISIONS, help="on a GPU bfloat16 unless said")
    parser.add_argument("--longest", type=terminal.count, metavar="T")
    parser.add_argument("--figures", default="*", metavar="PATTERN,...", help="attention, length, layers, width, batch")
    args = parser.parse_args(argv)
    end_on_signals("bench-scaling")
    run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
