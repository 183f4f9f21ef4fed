#!/usr/bin/env python3
"""Simulates three rules on seeds: choices and groups of rates (plan/tuning.py), and spread.

    simulate_seeds.py [--tables N]      default: 4000;  example: simulate_seeds.py --tables 500

Prints the tables of docs/statistics.md: what a choice of rates costs, and how often, in %, seeds
fall in groups and a spread is called different.
"""
import argparse
import math
import random

from tools.plan import tuning
from tools.report import spread, stats

SHAPES = {
    "normal": lambda chance: chance.gauss(0, 1),
    "Laplace": lambda chance: chance.expovariate(1) * chance.choice((-1, 1)),
    "Student's t, 3 degrees": lambda chance: chance.gauss(0, 1) / math.sqrt(
        sum(chance.gauss(0, 1) ** 2 for _ in range(3)) / 3),
    "skewness 2": lambda chance: chance.expovariate(1)}
SHARED = 0.7        # of an arm's noise where arms are correlated: by its square


def mixture(distance, share):
    return lambda chance: chance.gauss(0, 1) + distance * (chance.random() < share)


MIXTURES = {"halves 8 apart": mixture(8, 1 / 2), "halves 16 apart": mixture(16, 1 / 2),
            "a third 8 apart": mixture(8, 1 / 3), "a third 16 apart": mixture(16, 1 / 3)}


# Mean above that of the best rate, in nats, and sd between seeds: about those of MLA at the laptop scale.
SWEEP = {"4e-3": (0.036, 0.015), "6e-3": (0.006, 0.012), "9e-3": (0, 0.03), "1.35e-2": (0.02, 0.045)}


def cost_of_choice(first, more, chance):
    """What the chosen rate loses to the best, in nats."""
    draws = {rate: [chance.gauss(*known) for _ in range(first + more)] for rate, known in SWEEP.items()}
    sweep = {rate: losses[:first] for rate, losses in draws.items()}
    close = tuning.close_rates(sweep)
    if more and len(close) > 1:
        sweep.update((rate, draws[rate]) for rate in close)
    return SWEEP[tuning.best(sweep)][0]


def grouped(draw, seeds, tables, chance):
    return sum(tuning.groups([draw(chance) for _ in range(seeds)]) is not None for _ in range(tables)) / tables


def found(draw, shared, ratio, seeds, tables, chance):
    """The share of tables in which an arm `ratio` times as noisy is called noisier or steadier."""
    own, count = math.sqrt(1 - shared * shared), 0
    for _ in range(tables):
        common = [shared * draw(chance) for _ in range(seeds)]
        arm, other = ([c + own * draw(chance) for c in common] for _ in range(2))
        count += spread.compare("", "", [ratio * a for a in arm], other, stats.ALPHA).difference.leaves_out_zero
    return count / tables


def row(name, shares):
    return f"|{name}|" + "|".join(f"{100 * share:.1f}" for share in shares) + "|"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=4000)
    tables, chance = parser.parse_args().tables, random.Random(1)
    print("|seeds, and more for close rates|mean cost, nats|most, in 95 of 100|")
    for first, more in ((2, 0), (6, 0), (6, 20), (26, 0)):
        costs = sorted(cost_of_choice(first, more, chance) for _ in range(tables))
        print(f"|{first}, {more}|{sum(costs) / tables:.4f}|{costs[int(0.95 * tables)]:.3f}|")
    print("|groups, by seeds|6|8|12|")
    for name, draw in {**SHAPES, **MIXTURES}.items():
        print(row(name, [grouped(draw, n, tables, chance) for n in (6, 8, 12)]), flush=True)
    print("|spread, by seeds|8|20|60|")
    for ratio in (1, 1.5, 2):
        for shared in (0.0, SHARED):
            for name, draw in SHAPES.items():
                print(row(f"{ratio} times, {name}" + ", correlated" * bool(shared),
                          [found(draw, shared, ratio, n, tables, chance) for n in (8, 20, 60)]), flush=True)


if __name__ == "__main__":
    main()
