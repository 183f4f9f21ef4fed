#!/usr/bin/env python3
"""Simulate what docs/sizes.md promises: how often the interval of a slope misses the true slope.

A cell is three sizes (1M, 10M, 30M parameters), a number of seeds, a shape of noise and its size
at each of them, with and without noise that a seed has at all sizes.  The interval is that of
tools/report/trends.py; the shapes are those of tools/report/simulate.py.
"""
import itertools
import math
import random

from tools.report import simulate_seeds, stats, trends
from tools.terminal import terminal

PLACES = [math.log10(parameters) for parameters in (1e6, 1e7, 3e7)]
SEEDS = 3, 5, 8
NOISES = {"equal noise": (1, 1, 1), "3 times the noise at the smallest": (3, 1.7, 1),
          "10 times the noise at the smallest": (10, 3, 1), "10 times the noise at the largest": (1, 3, 10)}
SHARED = 0, 1           # of the noise at the smallest size, at all sizes
SLOPE, TARGET = 0.02, math.log10(1.24e8)


def outlier(draw):
    return draw.gauss(0, 10 if draw.random() < 0.1 else 1)


SHAPES = *(simulate_seeds.SHAPES[name] for name in ("normal", "Laplace", "Student's t, 3 degrees")), outlier


def misses(draw, shape, seeds, noise, shared, tables):
    """Of the slope, and of the line at another size."""
    slope, mean = trends.weights(PLACES), sum(PLACES) / len(PLACES)
    line = [1 / len(PLACES) + (TARGET - mean) * c for c in slope]
    missed = [0, 0]
    for _ in range(tables):
        effects = []
        for _ in range(seeds):
            common = shared * noise[0] * shape(draw)
            effects.append([SLOPE * x + own * shape(draw) + common for x, own in zip(PLACES, noise)])
        for i, (weights, truth) in enumerate(((slope, SLOPE), (line, SLOPE * TARGET))):
            d = stats.difference([sum(w * e for w, e in zip(weights, own)) for own in effects])
            missed[i] += not d.low <= truth <= d.high
    return [100 * count / tables for count in missed]


def main():
    parser = terminal.parser(__doc__, "python3 -m tools.report.simulate_sizes --tables 10000")
    parser.add_argument("--tables", type=int, default=10000, help="of each cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    print("missed, in %: the worst of four shapes, with and without shared noise; slope, forecast")
    for name, noise in NOISES.items():
        cells = []
        for seeds in SEEDS:
            found = [misses(draw, shape, seeds, noise, shared, args.tables)
                     for shape, shared in itertools.product(SHAPES, SHARED)]
            cells.append(", ".join(f"{max(column):.1f}" for column in zip(*found)))
        print(f"|{name}|{'|'.join(cells)}|", flush=True)


if __name__ == "__main__":
    main()
