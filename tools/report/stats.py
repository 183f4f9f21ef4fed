"""Is a difference between two steps more than noise?  docs/statistics.md explains the choices.

Differences d are taken seed by seed.  Each comparison of a family of K has one interval,

    mean(d) -+ t(ALPHA / K, n - 1) sd(d) / sqrt(n),

with its own sd and degrees of freedom.  All K intervals hold together with 95% (Bonferroni), and
the interval alone decides.  Where a family is looked at more than once, each look has its share of
ALPHA, and the interval is what the intervals of all looks so far have in common.

What is open has a range of seeds that would settle it, from the effects that may still be there.

Seeds that either solve a task or do not are counted, and Fisher's exact test decides.
"""
import functools
import math
from dataclasses import dataclass, replace

ALPHA = 0.05        # chance of any false verdict in a family
POWER = 0.8         # of the smallest effect that a comparison could have shown
# Of every 95%: docs/statistics.md.
CONDITION = "if seeds are independent and no arm is both noisier and skewed"
TOGETHER = f"hold together with {100 * (1 - ALPHA):.0f}%, {CONDITION}"
MIN_SEEDS = 3       # below, there is no verdict
MIN_SEEDS_BY_ACCURACY = 5   # the same of accuracies, which often fall in two groups
UNEQUAL = 0.05      # arms are unequally noisy if equal ones differ as much with this chance
RANGE = 0.8         # of open comparisons have an effect that the range of seeds was made for
MOST_SEEDS = 1000   # that a comparison is ever said to need
MOST_COUNTED = 100  # the same where seeds are counted
# Accuracies of which none lies in a gap this wide are those of a task that is solved or not.
GAP = 1 / 3

BETTER, WORSE, EQUIVALENT, OPEN, UNDECIDABLE = \
    "better", "worse", "equivalent", "open", "not decidable"
WITHIN = ", within the margin"


# ---------------------------------------------------------------- the t distribution

def beta_fraction(a, b, x):
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), from the front."""
    tiny = 1e-300   # stands for zero in a denominator (Lentz's method)
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, 1000):
        for numerator in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                          -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1.0 / ((1.0 + numerator * d) or tiny)
            c = (1.0 + numerator / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def incomplete_beta(a, b, x):
    """The regularised I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):       # the fraction converges fast on the other side
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) \
        + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) * beta_fraction(a, b, x) / a


def p_value(t, freedom):
    """P(|T| >= |t|), Student's t."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def enclosed(is_too_small, low, high, halvings=60):
    """Where it ends to be so, between two numbers: doubling finds them; 60 halvings go to the last bit."""
    while is_too_small(high):
        low, high = high, 2 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_small(middle) else (low, middle)
    return low, high


@functools.lru_cache(maxsize=None)
def critical(p, freedom):
    """The t whose two-sided p value this is."""
    return sum(enclosed(lambda t: p_value(t, freedom) > p, 0.0, 1.0)) / 2


@functools.lru_cache(maxsize=None)
def unequal_ratio(n):
    """Of the variances of two arms of n seeds: unequal ones exceed it (the F test, two-sided)."""
    def tail(ratio):
        return 2 * incomplete_beta((n - 1) / 2, (n - 1) / 2, 1 / (1 + ratio))
    return enclosed(lambda ratio: tail(ratio) > UNEQUAL, 1.0, 2.0)[1]


def normal_share(x):
    """P(Z <= x), the normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2


def chance_beyond(t, effect, n):
    """That |T| of n differences is greater; the effect is in sds.

    The sample's sd is u times the true one.  For each u the mean decides, which is normal; the
    integral over the density of u is Simpson's.
    """
    freedom, shift = n - 1, abs(effect) * math.sqrt(n)
    factor = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    end, steps = 1 + math.sqrt(80 / freedom), 400       # beyond the end lies less than 1e-15
    total = 0.0
    for i in range(1, steps + 1):
        u = end * i / steps
        density = math.exp(factor + (freedom - 1) * math.log(u) - freedom * u * u / 2)
        found = normal_share(shift - t * u) + normal_share(-shift - t * u)
        total += (1 if i == steps else 4 if i % 2 else 2) * density * found
    return total * end / steps / 3


def power(effect, n, alpha):
    """The chance that the interval of a difference leaves out zero."""
    return chance_beyond(critical(alpha, n - 1), effect, n)


def sd_share(ratio, freedom):
    """P(s <= ratio sigma), the sd s of a sample: the incomplete gamma function (DLMF 8.7.1)."""
    a, x = freedom / 2, freedom * ratio * ratio / 2
    term = total = math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    k = a
    while term > 1e-16 * total:
        k += 1
        term *= x / k
        total += term
    return total


def crossing(function, value, low, high):
    """Where a falling function has the value: to a thousandth of a thousandth."""
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > value else (low, middle)
    return (low + high) / 2


# ---------------------------------------------------------------- differences

def moments(values):
    """Mean and variance; the module statistics is exact, and too slow for simulations."""
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / (len(values) - 1)


@dataclass(frozen=True)
class Difference:
    """Of one step to its baseline; sd and interval need two seeds."""
    n: int
    mean: float
    sd: float = None
    low: float = None
    high: float = None

    @property
    def leaves_out_zero(self):
        return self.low is not None and (self.low > 0.0 or self.high < 0.0)

    def without_interval(self):
        return replace(self, low=None, high=None)


def difference(values, alpha=ALPHA):
    """Of paired values, already subtracted; None if there are none.

    The interval misses the true mean with this alpha.  Values that are all equal have no interval
    around them: theirs is the value itself.
    """
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Difference(n, values[0])
    mean, variance = moments(values)
    sd = math.sqrt(variance)
    half = critical(alpha, n - 1) * sd / math.sqrt(n)
    return Difference(n, mean, sd, mean - half, mean + half)


def is_unequal(arm, other):
    """One is noisier than the other, by more than chance."""
    a, b = moments(arm)[1], moments(other)[1]
    return max(a, b) > unequal_ratio(len(arm)) * min(a, b)


def corrected_p(d, alpha):
    """Not above ALPHA where the interval, made with this alpha, leaves out zero."""
    if d.mean == 0.0:
        return 1.0
    t = d.mean * math.sqrt(d.n) / d.sd if d.sd else math.inf
    return min(1.0, p_value(t, d.n - 1) * ALPHA / alpha)


def shares(looks):
    """Of ALPHA, one for each look: as many parts as it brings seeds (the looks rise)."""
    return [ALPHA * (n - before) / looks[-1] for before, n in zip([0, *looks], looks)]


def overlap(differences):
    """The newest difference with the interval that all have in common.

    None: there is none.  All intervals hold together with 95%, so that is as rare.
    """
    if len(differences) == 1:
        return differences[0]
    low, high = max(d.low for d in differences), min(d.high for d in differences)
    return replace(differences[-1], low=low, high=high) if low <= high else None


def verdict(d, margin=None, lower_is_better=True):
    """What the interval says; the margin was declared before the runs."""
    is_within = margin is not None and -margin < d.low and d.high < margin
    if d.leaves_out_zero:
        word = BETTER if (d.low < 0.0) == lower_is_better else WORSE
        return word + (WITHIN if is_within else "")
    return EQUIVALENT if is_within else OPEN


# ---------------------------------------------------------------- solved or not

def threshold(accuracies):
    """Where both arms' accuracies fall in two groups: the middle of the gap; else None.

    This ignores which arm a value is from, so the choice favours none of them.
    """
    ordered = sorted(accuracies)
    gap, low = max(((b - a, a) for a, b in zip(ordered, ordered[1:])), default=(0.0, 0.0))
    return low + gap / 2 if gap > GAP else None


@functools.lru_cache(maxsize=None)
def fisher(solved, n, other_solved, other_n):
    """Two-sided p: outcomes with the same sum that are no more probable than this one."""
    both = solved + other_solved
    ways = {k: math.comb(n, k) * math.comb(other_n, both - k)
            for k in range(max(0, both - other_n), min(n, both) + 1)}
    return sum(w for w in ways.values() if w <= ways[solved]) / sum(ways.values())


def smallest_p(n, other_n):
    """Of any outcome: all seeds of one arm solve the task, none of the other."""
    return fisher(n, n, 0, other_n)


# ---------------------------------------------------------------- how many seeds

@functools.lru_cache(maxsize=None)
def smallest_effect(n, alpha):
    """In sds of the difference: what n seeds find with 80% power."""
    return enclosed(lambda effect: power(effect, n, alpha) < POWER, 0.0, 1.0, 20)[1]    # to a millionth


def first_seeds(is_enough, least):
    """The smallest n for which it is so; None beyond MOST_SEEDS."""
    if not is_enough(MOST_SEEDS):
        return None
    low, high = least - 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


@functools.lru_cache(maxsize=None)
def seeds_to_show(effect, alpha, least=MIN_SEEDS):
    """An effect of so many sds, with 80% power."""
    return first_seeds(lambda n: power(effect, n, alpha) >= POWER, least) if effect else None


def seeds_to_count(share, other_share, alpha):
    """That shares of solved seeds as these need to differ by Fisher's test."""
    def is_enough(n):
        return fisher(round(n * share), n, round(n * other_share), n) <= alpha
    return next((n for n in range(MIN_SEEDS, MOST_COUNTED + 1) if is_enough(n)), None)


@functools.lru_cache(maxsize=None)
def seeds_to_settle(margin, alpha):
    """A margin of so many sds: an interval no longer than it leaves out zero or lies inside."""
    return first_seeds(lambda n: critical(alpha, n - 1) / math.sqrt(n) <= margin / 2, MIN_SEEDS)


MOST_EFFECT = 50.0      # in sds: any larger one is found by the fewest seeds


@functools.lru_cache(maxsize=None)
def open_effects(t, n, alpha):
    """The smallest and the largest effect, in sds, that may be behind an open comparison.

    With the smallest, |T| is as large as this t in a tenth of the open comparisons of n seeds; with
    the largest, as small.  So the true effect lies between them in RANGE of open comparisons.
    """
    needed, tail = critical(alpha, n - 1), (1 - RANGE) / 2

    def share(effect):      # of open comparisons with no larger |T|
        is_open = 1 - chance_beyond(needed, effect, n)
        return (1 - chance_beyond(t, effect, n)) / is_open if is_open > 1e-6 else 0.0
    return tuple(crossing(share, part, 0.0, MOST_EFFECT) if share(0.0) > part else 0.0
                 for part in (1 - tail, tail))


def effects_behind(d, alpha):
    """open_effects() of a difference, to a hundredth of its t."""
    return open_effects(round(abs(d.mean) * math.sqrt(d.n) / d.sd, 2), d.n, alpha)


def seeds_for_effect(d, alpha):
    """(least, most): so many seeds find what may be behind an open difference with 80% power.

    No most: there may be no effect, or one that takes more than MOST_SEEDS.
    """
    small, large = effects_behind(d, alpha)
    least, most = (seeds_to_show(effect, alpha) for effect in (large, small))
    return (max(least, d.n + 1), most and max(most, d.n + 1)) if least else None


@functools.lru_cache(maxsize=None)
def sd_range(n):
    """Between which multiples of the sample's sd the true one lies, in RANGE of samples."""
    low, high = (crossing(lambda ratio: -sd_share(ratio, n - 1), -share, 1e-3, 10.0)
                 for share in ((1 + RANGE) / 2, (1 - RANGE) / 2))
    return 1 / low, 1 / high


def seeds_for_margin(d, margin, alpha):
    """(least, most): so many seeds make the interval no longer than the margin."""
    least, most = (seeds_to_settle(margin / (factor * d.sd), alpha) for factor in sd_range(d.n))
    return (max(least, d.n + 1), most and max(most, d.n + 1)) if least else None
