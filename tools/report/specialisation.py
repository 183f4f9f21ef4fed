"""What a report says of the specialisation of heads: the recorded measure beside its control (docs/database.md)."""
from tools.report import stats
from tools.results import metric_names

SECTION = "Specialisation of heads"
ABOVE = "information_above_shuffled"
WORD = "above the control"
YES, NOT_SHOWN, BELOW = "yes", "not shown", "below it"
ABOUT = "Mutual information, in nats, of a token's class and the head (or expert) that is most active there, at the " \
    "last evaluation, as a mean over layers. The control is the same with shuffled classes: chance alone. Δ is their " \
    "difference in each run; each interval alone holds with 95%, if seeds are independent and not skewed. Heads may " \
    "exceed the control before training, too: the curves begin there."


def above(run):
    """By how much the measure exceeds its control."""
    measured, control = (run.last_mean(name) for name in (metric_names.HEADS_INFORMATION, metric_names.HEADS_SHUFFLED))
    return None if None in (measured, control) else measured - control


NUMBERS = {
    metric_names.HEADS_INFORMATION: lambda run: run.last_mean(metric_names.HEADS_INFORMATION),
    metric_names.HEADS_SHUFFLED: lambda run: run.last_mean(metric_names.HEADS_SHUFFLED),
    ABOVE: above,
}


def measured(rows):
    return [row for row in rows if row.numbers[ABOVE] and not row.is_repeat]


def word_of(difference):
    """Of one seed nothing is said."""
    if difference.low is None:
        return ""
    if not difference.leaves_out_zero:
        return NOT_SHOWN
    return YES if difference.mean > 0 else BELOW


def line_of(row, mean_sd, interval):
    difference = stats.difference(row.numbers[ABOVE].values)
    compared = (row.numbers[name] for name in (metric_names.HEADS_INFORMATION, metric_names.HEADS_SHUFFLED))
    return [row.step, *map(mean_sd, compared), interval(difference), word_of(difference)]


def grid(rows, mean_sd, interval):
    return ["step", "information ± sd (seeds)", "control ± sd (seeds)", "Δ nats [95%]", WORD], [
        line_of(row, mean_sd, interval) for row in rows]
