#!/usr/bin/env python3
"""Simulate what docs/statistics.md promises.

A cell is a kind of table: seeds, comparisons, shapes and sizes of noise, looks.  Its family error
is the share of drawn tables with any false verdict: better or worse where the means are equal.
The program null_tables draws the tables and decides as stats.py does; a test checks that.
"""
import itertools
import math
import multiprocessing
import os
import random
import subprocess
import time
import zlib
from dataclasses import dataclass

from tools.report import stats
from tools.terminal import terminal

PROGRAM = os.path.join(os.environ.get("O", "build"), "bin/null_tables")
PROMISE = 5.6       # percent: 5 and what 20,000 tables cannot tell from it (4 standard errors)
SEEDS = 3, 4, 5, 7, 10
MORE_SEEDS = 3, 5, 10, 20, 40, 80
FAMILIES = 1, 3, 6, 12
LOOKS = (3, 5), (3, 5, 8), (3, 6, 9), (5, 10), (3, 4, 5, 6, 7, 8, 9, 10)
EFFECTS = 0, 0.5, 1, 2      # in sds of the difference
SYMMETRIC = "normal", "laplace", "student", "outliers"      # shapes that null_tables knows


@dataclass(frozen=True)
class Cell:
    row: str                # of the table that is printed
    seeds: int
    comparisons: int
    baseline: tuple = ("normal", 1)         # shape and size of the noise
    steps: tuple = (("normal", 1),)         # the same, repeated over the steps
    effects: int = 0                        # how many of the steps really differ
    looks: tuple = ()
    solves: float = None                    # the chance of a seed to solve its task


# ---------------------------------------------------------------- tables

def looks_words(seeds, comparisons, looks=()):
    """As null_tables reads them: how many; of each the seeds and critical t."""
    shares = stats.shares(looks) if looks else [stats.ALPHA]
    words = [len(shares)]
    for n, share in zip(looks or (seeds,), shares):
        words += [n, repr(stats.critical(share / comparisons, n - 1))]
    return words


def question(cell, tables, seed):
    """Steps that differ are not drawn: they only make the family larger."""
    words = [tables, zlib.crc32(f"{seed} {cell}".encode()), cell.seeds,
             cell.comparisons - cell.effects, *looks_words(cell.seeds, cell.comparisons, cell.looks),
             *cell.baseline, len(cell.steps), *itertools.chain(*cell.steps)]
    return " ".join(map(str, words)) + "\n"


def ask(lines, *options):
    done = subprocess.run([PROGRAM, *options], input="".join(lines), capture_output=True,
                          text=True, check=True)
    return done.stdout.split()


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
    if cell.solves is None:
        wrong = int(ask([question(cell, tables, seed)])[0])
    else:
        rng = random.Random(f"{seed} {cell}")
        wrong = sum(is_false_by_counts(cell, rng) for _ in range(tables))
    return cell, 100 * wrong / tables


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
            for name in ("uniform", "two_groups", "skewness_2")]
    rows += [(f"{name} beside normal, equal noise", ("normal", 1), (name, 1))
             for name in ("uniform", "skewness_1", "skewness_2")]
    rows += [(f"{name}, the baseline ten times quieter", (name, quiet), (name, loud))
             for name in ("uniform", "two_groups", "skewness_0.5", "skewness_1", "skewness_2")]
    rows += [(f"{name}, the baseline three times quieter", (name, 1), (name, 3))
             for name in ("uniform", "skewness_0.5", "skewness_1", "skewness_2")]
    for (name, baseline, step), n, size in itertools.product(rows, MORE_SEEDS, (1, 3, 12)):
        yield Cell(name.replace("_", " "), n, size, baseline, (step,))


def solved_cells():
    for chance, n, size in itertools.product((0.1, 0.3, 0.5, 0.7, 0.9), SEEDS, FAMILIES):
        yield Cell(f"a seed solves the task with {100 * chance:.0f} %", n, size, solves=chance)


# ---------------------------------------------------------------- tables in Markdown

def markdown(headings, lines):
    return terminal.markdown(headings, lines, headings[0].__eq__)


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


def follow_up(job):
    """Of open comparisons: does the range of seeds hold what it says?

    In %: open; of these, with the true effect in the range; with a most; of the last, settled by that
    many seeds, of which the first are those that were seen.
    """
    effect, n, size, tables, seed = job
    rng, alpha = random.Random(f"{seed} {job}"), stats.ALPHA / size
    opened = inside = bounded = settled = 0
    for _ in range(tables):
        values = [rng.gauss(effect, 1) for _ in range(n)]
        d = stats.difference(values, alpha)
        if d.leaves_out_zero:
            continue
        opened += 1
        small, large = stats.effects_behind(d, alpha)
        inside += small <= effect <= large
        _, most = stats.seeds_for_effect(d, alpha) or (None, None)
        if most:
            bounded += 1
            values += [rng.gauss(effect, 1) for _ in range(most - n)]
            settled += stats.difference(values, alpha).leaves_out_zero
    return [f"{effect:g} sd", str(n), str(size), *(f"{100 * part / whole:.0f}" if whole else "" for part, whole in (
        (opened, tables), (inside, opened), (bounded, opened), (settled, bounded)))]


def follow_up_table(pool, tables, seed):
    jobs = [(effect, n, size, tables, seed) for effect in EFFECTS for n in (3, 5, 8) for size in (1, 3)]
    return markdown(["effect", "seeds", "comparisons", "open", "effect in the range", "with a most",
                     "settled at the most"], pool.map(follow_up, jobs, chunksize=1))


def correlated_table():
    """The error of one comparison whose differences are correlated from seed to seed, in closed form."""
    def error_of(n, correlation):
        wider = math.sqrt((1 + (n - 1) * correlation) / (1 - correlation))
        return 100 * stats.p_value(stats.critical(stats.ALPHA, n - 1) / wider, n - 1)
    return markdown(["correlation between seeds; seeds", "3", "5", "10"],
                    [[f"{r:g}", *(f"{error_of(n, r):.0f}" for n in (3, 5, 10))] for r in (0, 0.1, 0.3)])


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


BLOCKS = symmetric_cells, look_cells, shape_cells, solved_cells


def print_blocks(symmetric, looks, shapes, solved):
    """The results of each block of cells."""
    print("Family error in % of tables, the worst of all shapes and families of a line.\n")
    print_rows("symmetric noise; seeds", SEEDS, by_row(symmetric, noise_of))
    print(markdown(["more than one look", "family error"],
                   [[name, *cells_of(row)] for name, row in by_row(looks).items()]))
    print(worst_line(symmetric + looks) + "\n")
    print(markdown(["shape of the noise; seeds", *map(str, MORE_SEEDS), "holds from"],
                   [[name, *cells_of(row), holds_from(row)]
                    for name, row in by_row(shapes).items()]))
    print(correlated_table())
    print_rows("solved or not; seeds", SEEDS, by_row(solved))
    print(power_table())


def main(argv=None):
    parser = terminal.parser(__doc__, "python3 -m tools.report.simulate --tables 1000")
    parser.add_argument("--tables", type=terminal.count, default=20_000, help="of each cell (default: 20000)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    began = time.monotonic()
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        print_blocks(*[pool.map(error, [(cell, args.tables, args.seed) for cell in cells()],
                                chunksize=1) for cells in BLOCKS])
        print(follow_up_table(pool, math.ceil(args.tables / 10), args.seed))
    print(f"{args.tables} tables in each cell, seed {args.seed}, "
          f"{(time.monotonic() - began) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
