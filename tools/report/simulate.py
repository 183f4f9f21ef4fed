#!/usr/bin/env python3
"""Simulate what docs/statistics.md promises, with the very rules of tools/report/stats.py.

A cell is a kind of table: seeds, comparisons, shapes and sizes of noise, looks.  Its family error
is the share of drawn tables with any false verdict: better or worse where the means are equal.
Each cell has its own generator, so the numbers do not depend on how many processes work.
"""
import argparse
import itertools
import math
import multiprocessing
import os
import random
import time
from dataclasses import dataclass

from tools.report import stats

PROMISE = 5.6       # percent: 5 and what 20,000 tables cannot tell from it (4 standard errors)
SEEDS = 3, 4, 5, 7, 10
MORE_SEEDS = 3, 5, 10, 20, 40, 80
FAMILIES = 1, 3, 6, 12
LOOKS = (3, 5), (3, 6, 9), (5, 10), (3, 4, 5, 6, 7, 8, 9, 10)
REAL_EFFECT = 3.0   # sds of the difference, where a table is only partly null


# ---------------------------------------------------------------- noise

def heavy(rng):
    """Student's t with 3 degrees of freedom."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)


def laplace(rng):
    return rng.expovariate(1) - rng.expovariate(1)


def outliers(rng):
    """One value of ten is ten times as noisy."""
    return rng.gauss(0, 10 if rng.random() < 0.1 else 1)


def skewed(skewness):
    """A gamma distribution, mean 0 and sd 1; a skewness of 2 is the exponential one."""
    shape = 4 / skewness ** 2
    return lambda rng: (rng.gammavariate(shape, 1) - shape) / math.sqrt(shape)


def two_groups(rng):
    return rng.choice((-1, 1)) + rng.gauss(0, 0.1)


SHAPES = {
    "normal": lambda rng: rng.gauss(0, 1),
    "Laplace": laplace,
    "t, 3 degrees of freedom": heavy,
    "outliers": outliers,
    "uniform": lambda rng: rng.uniform(-math.sqrt(3), math.sqrt(3)),
    "two groups": two_groups,
    "skewness 0.5": skewed(0.5),
    "skewness 1": skewed(1),
    "skewness 2": skewed(2),
}
SYMMETRIC = "normal", "Laplace", "t, 3 degrees of freedom", "outliers"


@dataclass(frozen=True)
class Cell:
    row: str                # of the table that is printed
    seeds: int
    comparisons: int
    baseline: tuple = ("normal", 1)         # shape and size of the noise
    steps: tuple = (("normal", 1),)         # the same, repeated over the steps
    effects: int = 0                        # how many of the steps really differ, the last ones
    looks: tuple = ()
    solves: float = None                    # the chance of a seed to solve its task


# ---------------------------------------------------------------- tables

def decide(values, comparisons, looks=()):
    """The verdict on one comparison of a family."""
    shares = stats.shares(looks) if looks else [stats.ALPHA]
    d = stats.overlap([stats.difference(values[:n], share / comparisons)
                       for n, share in zip(looks or (len(values),), shares)])
    return stats.OPEN if d is None else stats.verdict(d)


def draw_differences(cell, rng):
    """Of every step: the baseline is shared, and steps that differ do so by REAL_EFFECT."""
    shape, size = SHAPES[cell.baseline[0]], cell.baseline[1]
    baseline = [size * shape(rng) for _ in range(cell.seeds)]
    for i in range(cell.comparisons):
        name, noise = cell.steps[i % len(cell.steps)]
        shift = REAL_EFFECT * math.hypot(size, noise) \
            if i >= cell.comparisons - cell.effects else 0.0
        own = SHAPES[name]
        yield [noise * own(rng) + shift - b for b in baseline]


def is_false_by_means(cell, rng):
    null = cell.comparisons - cell.effects
    return any(decide(values, cell.comparisons, cell.looks) != stats.OPEN
               for values in itertools.islice(draw_differences(cell, rng), null))


def is_false_by_counts(cell, rng):
    """Each arm's seeds solve the task with the same chance."""
    def count():
        return sum(rng.random() < cell.solves for _ in range(cell.seeds))
    baseline = count()
    return any(stats.fisher(count(), cell.seeds, baseline, cell.seeds) * cell.comparisons
               <= stats.ALPHA for _ in range(cell.comparisons))


def error(job):
    """Family error in percent."""
    cell, tables, seed = job
    rng = random.Random(f"{seed} {cell}")
    is_false = is_false_by_means if cell.solves is None else is_false_by_counts
    return cell, 100 * sum(is_false(cell, rng) for _ in range(tables)) / tables


# ---------------------------------------------------------------- the grid

def noises(shape):
    """Rows of unequal noise: (name, baseline, steps)."""
    one, ten = (shape, 1), (shape, 10)
    yield "equal noise", one, (one,)
    yield "every third step 3 times as noisy", one, ((shape, 3), one, one)
    yield "every third step 10 times as noisy", one, (ten, one, one)
    yield "the baseline 10 times as noisy", ten, (one,)
    yield "all steps 10 times as noisy", one, (ten,)


def symmetric_cells():
    for shape, n, size in itertools.product(SYMMETRIC, SEEDS, FAMILIES):
        for name, baseline, steps in noises(shape):
            yield Cell(f"{shape}: {name}", n, size, baseline, steps)
    for shape, n, size in itertools.product(SYMMETRIC, SEEDS, FAMILIES[1:]):
        for name, baseline, steps in noises(shape):
            yield Cell(f"partly null, {shape}: {name}", n, size, baseline, steps,
                       effects=size - max(1, size // 3))


def look_cells():
    for looks, shape, size in itertools.product(LOOKS, SYMMETRIC, (1, 3, 12)):
        for name, baseline, steps in noises(shape):
            if name in ("equal noise", "every third step 10 times as noisy"):
                yield Cell(f"looks at {', '.join(map(str, looks))}", looks[-1], size, baseline,
                           steps, looks=looks)


def shape_cells():
    """What is no difference of like arms; at most 80 seeds and 12 comparisons."""
    quiet, loud = 0.1, 1
    rows = [(f"{name}, both arms alike", (name, 1), (name, 1))
            for name in ("uniform", "two groups", "skewness 2")]
    rows += [(f"{name} beside normal, equal noise", ("normal", 1), (name, 1))
             for name in ("uniform", "skewness 1", "skewness 2")]
    rows += [(f"{name}, the baseline ten times quieter", (name, quiet), (name, loud))
             for name in ("uniform", "two groups", "skewness 0.5", "skewness 1", "skewness 2")]
    for (name, baseline, step), n, size in itertools.product(rows, MORE_SEEDS, (1, 3, 12)):
        yield Cell(name, n, size, baseline, (step,))


def solved_cells():
    for chance, n, size in itertools.product((0.1, 0.3, 0.5, 0.7, 0.9), SEEDS, FAMILIES):
        yield Cell(f"a seed solves the task with {100 * chance:.0f} %", n, size, solves=chance)


# ---------------------------------------------------------------- tables in Markdown

def markdown(headings, lines):
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, rule, *lines]) + "\n"


def by_row(results, name_of=lambda cell: cell.row):
    """The worst of all cells of a name, for each number of seeds."""
    worst = {}
    for cell, percent in results:
        row = worst.setdefault(name_of(cell), {})
        row[cell.seeds] = max(row.get(cell.seeds, 0.0), percent)
    return worst


def cells_of(row):
    return [f"{percent:.1f}" for _, percent in sorted(row.items())]


def holds_from(row):
    """The seeds from which on the promise holds; rows end with the greatest number tried."""
    broken = [n for n, percent in row.items() if percent > PROMISE]
    held = [n for n in row if n > max(broken, default=0)]
    return str(min(held)) if held else f"not up to {max(row)}"


def power_table():
    sizes = 1, 3, 6, 12
    lines = [[f"{effect:g} sd, {n} seeds", *(f"{100 * stats.power(effect, n, stats.ALPHA / k):.0f}"
                                           for k in sizes)]
             for effect in (1, 2, 3) for n in (3, 5, 8, 10)]
    return markdown(["found, in %", *(f"{k} comparison{'s' * (k > 1)}" for k in sizes)], lines)


def noise_of(cell):
    """The kind of noise, whatever its shape."""
    prefix, _, name = cell.row.rpartition(": ")
    return ("partly null, " if prefix.startswith("partly") else "") + name


def print_rows(title, seeds, worst):
    print(markdown([title, *map(str, seeds)],
                   [[name, *cells_of(row)] for name, row in worst.items()]))


def worst_line(results):
    cell, percent = max(results, key=lambda result: result[1])
    return f"Worst of {len(results)} cells: {percent:.2f} % ({cell.row}; {cell.seeds} seeds, " \
           f"{cell.comparisons} comparisons)."


def measure(cells, args, pool):
    return list(pool.imap(error, [(cell, args.tables, args.seed) for cell in cells], chunksize=1))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: python3 -m tools.report.simulate --tables 1000")
    parser.add_argument("--tables", type=int, default=20_000, help="of each cell (default: 20000)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    began = time.monotonic()
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        symmetric, looks, shapes, solved = (
            measure(cells(), args, pool)
            for cells in (symmetric_cells, look_cells, shape_cells, solved_cells))
    print("Family error in % of tables, the worst of all shapes and families of a line.\n")
    print_rows("symmetric noise; seeds", SEEDS, by_row(symmetric, noise_of))
    print(markdown(["more than one look", "family error"],
                   [[name, *cells_of(row)] for name, row in by_row(looks).items()]))
    print(worst_line(symmetric + looks) + "\n")
    print(markdown(["shape of the noise; seeds", *map(str, MORE_SEEDS), "holds from"],
                   [[name, *cells_of(row), holds_from(row)]
                    for name, row in by_row(shapes).items()]))
    print_rows("solved or not; seeds", SEEDS, by_row(solved))
    print(power_table())
    print(f"{args.tables} tables in each cell, seed {args.seed}, "
          f"{(time.monotonic() - began) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
