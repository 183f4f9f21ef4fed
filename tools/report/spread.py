"""Does one arm vary more from seed to seed than another?  A test of Brown and Forsythe, paired by seed.

An arm's deviations are |value - its median|.  Those of the step minus those of its baseline, seed by seed,
have an interval of Student's t, corrected for all comparisons with enough seeds.
docs/statistics.md says when the test holds.
"""
import statistics
from dataclasses import dataclass

from tools.report import ablation, judging, stats

LEAST_SEEDS = 8
STEADIER, NOISIER = "steadier", "noisier"
ABOUT = "The distance of each seed from its arm's median, paired by seed; corrected for all comparisons of this table. " \
    f"Intervals {stats.TOGETHER}. A wide spread is not a worse loss. Read it at the last look: nothing here " \
    "corrects for several looks."


@dataclass
class Spread:
    step: str
    baseline: str
    sd: float
    baseline_sd: float
    difference: stats.Difference    # of the deviations: below zero the step is steadier
    withheld: str = ""              # the verdict on the losses, where there is nothing to compare

    @property
    def verdict(self):
        if self.withheld:
            return self.withheld
        if not self.difference.leaves_out_zero:
            return stats.OPEN
        return STEADIER if self.difference.high < 0 else NOISIER


def deviations(values):
    middle = statistics.median(values)
    return [abs(value - middle) for value in values]


def compare(step, baseline, arm, other, alpha, withheld=""):
    paired = [a - b for a, b in zip(deviations(arm), deviations(other), strict=True)]
    return Spread(step, baseline, statistics.stdev(arm), statistics.stdev(other), stats.difference(paired, alpha),
                  withheld)


def spreads(rows):
    """Of all steps and controls with enough seeds; those that are invalid or did not learn have no word."""
    wanted = [row for row in rows if row.kind in (judging.STEP, judging.CONTROL) and len(row.samples) >= LEAST_SEEDS]
    return [compare(row.step, row.baseline, *zip(*(sample.values for sample in row.samples)), stats.ALPHA / len(wanted),
                    row.verdict if row.verdict in (ablation.INVALID, stats.UNDECIDABLE) else "")
            for row in wanted]


def grid(found):
    return ["step", "against", "its sd", "sd of the other", "Δ deviation [simultaneous 95%]", "spread"], [
        [one.step, one.baseline, f"{one.sd:.4f}", f"{one.baseline_sd:.4f}",
         "" if one.withheld else
         f"{one.difference.mean:+.4f} [{one.difference.low:+.4f}, {one.difference.high:+.4f}]", one.verdict]
        for one in found]
