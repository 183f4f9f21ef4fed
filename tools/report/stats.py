"""Is a difference between two steps more than noise?  docs/statistics.md explains the choices.

Differences d are taken seed by seed.  A step is judged by two rules, and both must agree:

    its own 95% interval,  mean(d) -+ t(5%, n-1) sd(d) / sqrt(n),  leaves out zero;
    p <= 5% after Holm's correction over all steps of the table, where p belongs to
    t = mean(d) / (max(own, pooled sd) / sqrt(n)), with the degrees of freedom of the pooled sd.

The pooled sd is that of the steps that share a baseline.  It makes up for what the correction
costs; the larger of the two sds keeps a step that is noisier than the others from profiting.
"""
import functools
import math
import random
from dataclasses import dataclass

ALPHA = 0.05        # chance of any false verdict in a table
POWER = 0.8         # of the smallest effect that a table could have shown
MIN_SEEDS = 3       # below, there is no verdict
# Correlation of two differences with the same baseline, if all steps are equally noisy.
SHARED = 0.5
DRAWS = 5_000       # of smallest_effect(): errors up to 1.6%, measured over ten generators

BETTER, WORSE, UNSHOWN, UNDECIDABLE = \
    "better", "worse", "no difference shown", "not decidable"


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


@functools.lru_cache(maxsize=None)
def critical(p, freedom):
    """The t whose two-sided p value this is."""
    low, high = 0.0, 1.0
    while p_value(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(60):     # halvings: to the last bit of a double
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle, freedom) > p else (low, middle)
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
    def shows_zero(self):
        return self.low is None or self.low <= 0.0 <= self.high


def difference(values):
    """Of paired values, already subtracted; None if there are none."""
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Difference(n, values[0])
    mean, variance = moments(values)
    sd = math.sqrt(variance)
    half = critical(ALPHA, n - 1) * sd / math.sqrt(n)
    return Difference(n, mean, sd, mean - half, mean + half)


def is_decidable(d):
    return d is not None and d.n >= MIN_SEEDS


def pooled_freedom(freedom, steps):
    """Satterthwaite's, for steps whose differences share a baseline."""
    return freedom / (1 + (steps - 1) * SHARED ** 2)


def pool(group):
    """The common sd of decidable differences to one baseline, and its degrees of freedom."""
    freedom = sum(d.n - 1 for d in group)
    variance = sum((d.n - 1) * d.sd ** 2 for d in group) / freedom
    return math.sqrt(variance), pooled_freedom(freedom, len(group))


def holm(p_values):
    """Corrected p values, in the order given (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def group_p_values(group):
    sd, freedom = pool(group)
    for d in group:
        error = max(d.sd, sd) / math.sqrt(d.n)
        yield p_value(d.mean / error if error else math.copysign(math.inf, d.mean), freedom) \
            if d.mean else 1.0


def corrected_p_values(groups):
    """For a table of groups that share a baseline each; None where nothing can be decided."""
    decidable = [[d for d in group if is_decidable(d)] for group in groups]
    p = iter(holm([p for group in decidable if group for p in group_p_values(group)]))
    return [[next(p) if is_decidable(d) else None for d in group] for group in groups]


def verdict(d, corrected_p, lower_is_better=True):
    if corrected_p is None:
        return UNDECIDABLE
    if corrected_p > ALPHA or d.shows_zero:
        return UNSHOWN
    return BETTER if (d.mean < 0) == lower_is_better else WORSE


# ---------------------------------------------------------------- what could have been shown

@functools.lru_cache(maxsize=None)
def smallest_effect(seeds, steps, family):
    """In sds of the paired difference: the effect of one of the steps found with 80% power.

    Of `steps` steps with this baseline, in a table of `family` comparisons.  In noise that is
    drawn, an effect is found if it exceeds what the rules ask for, less the mean of the noise:
    the quantile of that is the answer.
    """
    draw = random.Random(1).gauss
    corrected = critical(ALPHA / family, pooled_freedom(steps * (seeds - 1), steps))
    own = max(critical(ALPHA, seeds - 1), corrected)
    needed = []
    for _ in range(DRAWS):
        baseline = [draw(0, 1) for _ in range(seeds)]
        group = [moments([draw(0, 1) - b for b in baseline]) for _ in range(steps)]
        mean, variance = group[0]
        pooled = sum(v for _, v in group) / steps
        demand = max(own * math.sqrt(variance), corrected * math.sqrt(pooled))
        needed.append(demand / math.sqrt(seeds) - mean)
    return sorted(needed)[round(POWER * DRAWS)] / math.sqrt(2)  # unit noises differ by this sd
