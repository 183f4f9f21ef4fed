#!/usr/bin/env python3
"""How cost grows: time and memory against length, layers and width, as numbers and as plots.

    bench_scaling.py --build DIR [--longest T]

Attention alone: the instructions of one attention layer (projections included), forward and
backward, GPT-2's heads (12 of 64; latent 128), and the arena of a model that is little else (one layer,
a feed-forward of 64 channels, 256 tokens).  Whole iterations: forward, backward and update of 6
layers of width 384, and the peak memory of the process beyond 16 bytes per parameter.
"""
import argparse
import json
import math
import os
import re
import sys
from dataclasses import asdict, dataclass

from tools.bench import bench, gnuplot
from tools.bench.bench_result import MIB
from tools.plan import kconfig
from tools.report import page
from tools.terminal import terminal

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
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
    seconds = sum(step["seconds"] for step in process.ask(f"profile {PROFILES}")
                  if step["module"] == "attention")
    return seconds, process.about["activation_bytes"]


def iteration(process):
    _, peak = process.warm_up()
    return min(process.ask(process.n)), peak - 16 * process.about["parameters"]


def figures(longest):
    def small(**more):
        return {"TASK": "copy", "COPY_VOCAB": 256, "TRAIN_BATCH": 1, "MODEL_BLOCK": 256, **more}

    lengths = tuple(t for t in LENGTHS if t <= longest)
    yield Figure("attention", "One attention layer, batch 1, 12 heads of 64", "T", ATTENTIONS, lengths,
                 lambda T: small(MODEL_BLOCK=T, MODEL_LAYERS=1, MODEL_HEADS=12, MODEL_EMBD=768, FFN_HIDDEN=64),
                 attention_alone)
    yield Figure("length", "An iteration, batch 1, 6 layers of width 384", "T", WHOLE, lengths,
                 lambda T: small(MODEL_BLOCK=T), iteration)
    yield Figure("layers", "An iteration, batch 4, T 256, width 384", "layers", WHOLE, (1, 2, 4, 8, 16),
                 lambda n: small(TRAIN_BATCH=4, MODEL_LAYERS=n), iteration)
    yield Figure("width", "An iteration, batch 4, T 256, 4 layers, heads of 64", "width", WHOLE,
                 (128, 256, 512, 1024),
                 lambda E: small(TRAIN_BATCH=4, MODEL_LAYERS=4, MODEL_EMBD=E, MODEL_HEADS=E // 64), iteration)


def measure(runner, figure):
    for name, fragments in figure.series.items():
        latent = {"RA_MLA_LATENT_DIM": 128} if figure.name == "attention" and name == "mla" else {}
        for x in figure.places:
            config = runner.configure("scaling", "", "small " + fragments, figure.symbols(x) | latent)
            process = runner.start_ours(config)
            yield Point(figure.name, name, x, *figure.measure(process))
            process.end()


# ---------------------------------------------------------------- what came out

def growth(points):
    """The exponent over the last doubling: 1 is linear."""
    (a, low), (b, high) = points[-2:]
    return math.log(high / low) / math.log(b / a)


def print_figure(figure, points):
    print(f"\n{figure.title}\n{figure.axis:>8}" + "".join(f"{name:>24}" for name in figure.series))
    for x in figure.places:
        cells = [next(p for p in points if (p.series, p.x) == (name, x)) for name in figure.series]
        print(f"{x:8}" + "".join(f"{1e3 * p.seconds:13.2f} ms{p.bytes / MIB:8.1f}" for p in cells))
    for what, key in (("time", "seconds"), ("memory", "bytes")):
        exponents = [growth([(p.x, getattr(p, key)) for p in points if p.series == name])
                     for name in figure.series]
        print(f"{what:>8}" + "".join(f"{'~ ' + figure.axis + '^' + format(e, '.2f'):>24}" for e in exponents))
    print("         ms and MiB; last lines: growth over the last doubling", flush=True)


def standalone(svg):
    """A drawing of the page's colours as a file of its own."""
    palette = page.STYLE[:page.STYLE.index("* {")]
    style = f"<style>{palette} svg {{ background: var(--paper); color: var(--ink); }}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda match: match[1] + style, svg, count=1) + "\n"


def draw(figure, points, key, unit, factor):
    script, parts = "", []
    for i, name in enumerate(figure.series):
        script += gnuplot.block(f"d{i}", [(p.x, factor * getattr(p, key)) for p in points if p.series == name])
        parts.append(f"$d{i} with linespoints lw 2 ps 0.7 {gnuplot.look(i)} title {gnuplot.quoted(name)}")
    script += "set logscale xy\nset key top left\n"
    script += f"set xtics ({', '.join(map(str, figure.places))})\nset xlabel '{figure.axis}'\nset ylabel '{unit}'\n"
    return standalone(gnuplot.run_gnuplot(script + "plot " + ", ".join(parts), f"{figure.name}-{key}"))


def save(runner, about, points, chosen):
    path = os.path.join(runner.directory, "scaling")
    kconfig.write_text(path + ".json", json.dumps(about | {"points": list(map(asdict, points))}, indent=1) + "\n")
    if not gnuplot.is_there():
        return f"{path}.json; no plots: gnuplot is not installed"
    for figure in chosen:
        of_figure = [p for p in points if p.figure == figure.name]
        for key, unit, factor in (("seconds", "ms", 1e3), ("bytes", "MiB", 1 / MIB)):
            kconfig.write_text(f"{path}-{figure.name}-{key}.svg", draw(figure, of_figure, key, unit, factor))
    return f"{path}.json, {path}-*.svg"


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     epilog="example: python3 -m tools.bench.bench_scaling --longest 1024")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--longest", type=terminal.count, default=LENGTHS[-1], metavar="T")
    args = parser.parse_args(argv)
    runner = bench.Bench(args.build)
    about, points = bench.machine(runner), []
    print(bench.about_text(about))
    chosen = list(figures(args.longest))
    for figure in chosen:
        found = list(measure(runner, figure))
        print_figure(figure, found)
        points += found
    print("\n" + save(runner, about, points, chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
