"""stats: known quantiles, and by simulation the promises of docs/statistics.md."""
import math
import random
import unittest

from tools.report import stats
from tools.testing import tap

TABLES = 10_000
# 5% and what 10,000 tables cannot tell from it: 2.75 standard errors of 0.22%.
FALSE_VERDICTS = 0.056


def simulate(seeds, noises, effect=0.0, tables=TABLES):
    """Verdicts of drawn tables; the noises are the baseline's and the steps' standard deviations.

    The first step differs by `effect` sds of its paired difference; nothing else differs."""
    draw = random.Random(7).gauss
    shift = effect * math.hypot(noises[0], noises[1])
    for _ in range(tables):
        baseline = [draw(0, noises[0]) for _ in range(seeds)]
        group = [stats.difference([draw(shift * (i == 0), noise) - b for b in baseline])
                 for i, noise in enumerate(noises[1:])]
        [p_values] = stats.corrected_p_values([group])
        yield [stats.verdict(d, p) for d, p in zip(group, p_values)]


def false_verdicts(seeds, noises):
    wrong = sum(any(v != stats.UNSHOWN for v in table) for table in simulate(seeds, noises))
    return wrong / TABLES


def found(seeds, steps, effect):
    tables = 2000
    hits = sum(table[0] == stats.WORSE
               for table in simulate(seeds, [1] * (steps + 1), effect, tables))
    return hits / tables


class Distribution(unittest.TestCase):
    def test_quantiles(self):
        """Tables of Student's t, two-sided; one degree of freedom has the closed form."""
        for p, freedom, t in ((0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 4, 2.7764),
                              (0.05, 10, 2.2281), (0.05, 30, 2.0423), (0.05, 120, 1.9799),
                              (0.01, 2, 9.9248), (0.01, 10, 3.1693), (0.001, 5, 6.8688),
                              (0.2, 7, 1.4149)):
            self.assertAlmostEqual(stats.critical(p, freedom), t, delta=5e-5)
        self.assertAlmostEqual(stats.critical(0.01, 1), math.tan(math.pi * 0.495), delta=1e-9)

    def test_closed_forms(self):
        """For 1 and 2 degrees of freedom, and nearly the normal distribution for many."""
        for t in (0.0, 0.1, 1.0, 3.0, 50.0):
            one = 1 - 2 / math.pi * math.atan(t)
            two = 1 - t / math.sqrt(2 + t * t)
            self.assertAlmostEqual(stats.p_value(t, 1), one, delta=1e-12)
            self.assertAlmostEqual(stats.p_value(-t, 2), two, delta=1e-12)
        self.assertAlmostEqual(stats.p_value(1.96, 1e7), math.erfc(1.96 / math.sqrt(2)), delta=1e-6)

    def test_fractional_freedom(self):
        """Between its neighbours: pooled degrees of freedom are no whole numbers."""
        eight, between, seven = (stats.critical(0.05, freedom) for freedom in (8, 7.5, 7))
        self.assertTrue(eight < between < seven)


class Rules(unittest.TestCase):
    def test_interval(self):
        """Computed by hand: 0.1, 0.2, 0.3 has mean 0.2, sd 0.1, error 0.1 / sqrt(3)."""
        d = stats.difference([0.1, 0.2, 0.3])
        self.assertAlmostEqual(d.mean, 0.2)
        self.assertAlmostEqual(d.sd, 0.1)
        self.assertAlmostEqual(d.high, 0.2 + 4.302653 * 0.1 / math.sqrt(3), places=6)
        self.assertIsNone(stats.difference([]))
        self.assertIsNone(stats.difference([0.1]).low)

    def test_holm(self):
        """The example of 4 tests; corrected values never decrease with p and stop at 1."""
        for given, expected in (([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
                                ([0.9, 0.8], [1.0, 1.0]), ([], [])):
            for got, wanted in zip(stats.holm(given), expected, strict=True):
                self.assertAlmostEqual(got, wanted)

    def test_words(self):
        clear = stats.difference([-0.50, -0.51, -0.52])
        few = stats.difference([-0.50, -0.51])
        none = stats.difference([-0.9, 0.3, 0.6])
        [[p, no_p, large_p]] = stats.corrected_p_values([[clear, few, none]])
        self.assertIsNone(no_p)
        self.assertEqual(stats.verdict(few, no_p), stats.UNDECIDABLE)
        self.assertEqual(stats.verdict(none, large_p), stats.UNSHOWN)
        # The noisy neighbour shares its variance, so that the clear one is not shown beside it.
        self.assertEqual(stats.verdict(clear, p), stats.UNSHOWN)
        [[p], [_]] = stats.corrected_p_values([[clear], [none]])
        self.assertEqual(stats.verdict(clear, p), stats.BETTER)
        self.assertEqual(stats.verdict(clear, p, lower_is_better=False), stats.WORSE)

    def test_no_spread(self):
        """Losses that do not depend on the seed: equal ones are no difference, others are one."""
        same, other = stats.difference([0.0] * 3), stats.difference([0.25] * 3)
        [[p], [q]] = stats.corrected_p_values([[same], [other]])
        self.assertEqual(stats.verdict(same, p), stats.UNSHOWN)
        self.assertEqual(stats.verdict(other, q), stats.WORSE)

    def test_nothing_to_decide(self):
        self.assertEqual(stats.corrected_p_values([[None, stats.difference([1.0])], []]),
                         [[None, None], []])


class Promises(unittest.TestCase):
    def test_false_verdicts(self):
        for seeds in (3, 5):
            rate = false_verdicts(seeds, [1] * 6)
            print(f"# 5 steps, {seeds} seeds: {100 * rate:.2f}% of null tables with a verdict")
            self.assertLessEqual(rate, FALSE_VERDICTS)

    def test_false_verdicts_unequal(self):
        """Noisy baseline, quiet baseline, one and two noisy steps, one very noisy."""
        for seeds, noises in ((5, [3, 1, 1, 1]), (5, [0.1, 1, 1, 1]), (5, [1, 3, 1, 1]),
                              (5, [1, 10, 10, 1]), (3, [1, 10, 1, 1]), (3, [1, 3, 3, 1, 1, 1])):
            rate = false_verdicts(seeds, noises)
            print(f"# noises {noises}, {seeds} seeds: {100 * rate:.2f}% with a verdict")
            self.assertLessEqual(rate, FALSE_VERDICTS)

    def test_power(self):
        """Two sds, 5 seeds: found 4 times of 5, in families of up to 5 steps (81% at 5)."""
        for steps in (1, 3):
            share = found(5, steps, 2.0)
            print(f"# {steps} steps, 5 seeds: two sds found in {100 * share:.1f}%")
            self.assertGreaterEqual(share, 0.8)

    def test_smallest_effect(self):
        """The effect that is claimed to be found in 80% is found in 80%; 2000 tables: -+ 2.7%."""
        for seeds, steps in ((3, 1), (3, 3), (5, 3)):
            share = found(seeds, steps, stats.smallest_effect(seeds, steps, steps))
            print(f"# {steps} steps, {seeds} seeds: smallest effect found in {100 * share:.1f}%")
            self.assertAlmostEqual(share, stats.POWER, delta=0.03)


if __name__ == "__main__":
    tap.main()
