"""What make plan prints: steps, their sizes and costs, and remarks to read before they run."""
import os
import sys

from tools.plan import config_difference, declaration, estimate, kconfig, token_files, tuning
from tools.results import metric_names
from tools.terminal import terminal
from tools.plan.plan_words import changes, numbers, seeds_of, source, tuned_steps

PUBLISHED = "gpt2-ra-mla-full"     # the experiment of the published study
STUDY = "124m"      # its scale
NARROWEST = 30      # columns for what differs


# ---------------------------------------------------------------- the table

def examined(steps, step):
    """The step whose program describes this one: twins and rates have the same numbers."""
    first = source(steps, step)
    return first.candidates[0].name if first.is_open else first.name


def brought_along(steps, step):
    """Symbols that a switch of the step brings along at their defaults; reports leave them out, too."""
    values = {name: value for name, value in step.values.items() if value is not None}
    new = [change.symbol for change in changes(steps, step) if change.old is None]
    return set(config_difference.usual(values, values["SCALE"], new))


def differences(steps, step):
    """A few words that describe the step."""
    if step.repeats is not None:
        return f"again {steps[step.repeats].name}"
    if step.nulls is not None:
        return f"{steps[step.nulls].name} with seeds from {step.shift} on"
    if step.number == step.baseline:
        return "baseline"
    follows = brought_along(steps, step)
    what = [str(change) for change in changes(steps, step)
            if None not in change or change.symbol in step.named - follows]
    if step.is_open:
        what.append(f"LEARNING_RATE to be chosen from {len(step.candidates)}")
    return ", ".join(what) + (f" ({step.match.remaining(steps)})" if step.match else "")


def runs_to_tune(tuned):
    return sum(len(candidate.seeds) for step in tuned for candidate in step.candidates)


def number_of_runs(steps, step, values):
    """The number of runs, including those that choose its rate."""
    runs = len(seeds_of(step, numbers("SEEDS", values["SEEDS"]))) if step.selected else 0
    return runs + (runs_to_tune([step]) if step in tuned_steps(steps) else 0)


def row(steps, step, account, cost):
    counts = [f"{account[key]:,}" if key in account else "-"
              for key in (metric_names.PARAMETERS, metric_names.FLOPS_PER_TOKEN, "memory_bytes")]
    time = "-" if cost.seconds is None else estimate.duration(cost.seconds)
    room = "-" if cost.bytes is None else estimate.room(cost.bytes)
    return [step.name + ("" if step.selected else " (not run)"), *counts, str(cost.runs), time,
            room, differences(steps, step)]


def print_table(rows):
    """Leaves out columns without any known value."""
    known = [column for column in zip(*rows) if any(cell != "-" for cell in column[1:])]
    rows = list(zip(*known))
    widths = [max(map(len, column)) for column in zip(*rows)]
    before = 2 + sum(2 + width for width in widths[:-1])
    room = terminal.width(sys.stdout)
    if room is not None and room - before < NARROWEST:      # on lines of their own
        before = 8
    for line in rows:
        cells = [cell.rjust(width) if i else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(line[:-1], widths))]
        numbers_part = "  " + "  ".join(cells)
        last = terminal.wrapped(line[-1], room, " " * before, "")
        fits = len(numbers_part) + 2 <= before
        print(numbers_part + last[len(numbers_part):] if fits
              else f"{numbers_part.rstrip()}\n{last}".rstrip())


def total(costs, jobs):
    """Time and disk space in one line, with the source of the numbers."""
    timed = [cost for cost in costs if cost.seconds is not None and cost.runs]
    if not timed:
        return
    seconds = sum(cost.seconds for cost in timed) / jobs
    print(f"\nabout {estimate.duration(seconds)} with {jobs} run{'s' * (jobs > 1)} at a time, "
          f"{estimate.room(sum(cost.bytes or 0 for cost in costs))} on the disk; time by "
          + " and ".join(dict.fromkeys(cost.source for cost in timed))
          + ("" if len(timed) == sum(cost.runs > 0 for cost in costs) else
             "; not all steps could be timed"))


# ---------------------------------------------------------------- notes

def inactive_groups(steps):
    """Symbols of .config that steps make inactive, with these steps."""
    groups = {}
    for step in steps:
        if step.inactive and step.twin is None:
            groups.setdefault(tuple(step.inactive), []).append(step.name)
    return groups.items()


def data_notes(steps):
    """About token files; each remark once, as most steps share them."""
    selected = [step for step in steps if step.selected and step.twin is None]
    return dict.fromkeys(note for step in selected
                         for note in token_files.notes(step.values, *estimate.updates_and_tokens(step.values)))


def added_rates(steps, listed):
    """Those that tuning tried beyond CONFIG_TUNE_RATES."""
    for step in tuned_steps(steps):
        more = [c.rate for c in step.candidates if c.rate not in listed]
        if more:
            yield f"{step.name}: the best rate was at the end of the list: {', '.join(more)} " \
                  f"{'was' if len(more) == 1 else 'were'} added"


def notes(steps, seeds):
    """Remarks that a reader of the plan should see before it runs."""
    baselines = {step.baseline for step in steps if step.selected}
    for step in (steps[number] for number in sorted(baselines) if not steps[number].selected):
        yield f"{step.name}, a baseline, is not among the steps to run: the others are compared " \
              "with its earlier runs if there are any, and get no verdict otherwise"
    for step in steps:
        if step.selected and step.repeats is not None and not steps[step.repeats].selected:
            yield f"{step.name} can be checked only against earlier runs of " \
                  f"{steps[step.repeats].name}"
    for step in tuned_steps(steps):
        if step.rate and tuning.is_at_end(step.rate, [c.rate for c in step.candidates]):
            yield f"{step.name}: the rate chosen, {step.rate}, is at the end of the list: a " \
                  "better one may lie beyond"
    yield from data_notes(steps)
    if len(seeds) < 3:
        yield "fewer than 3 seeds: there will be no verdict"
    for names, those in inactive_groups(steps):
        yield f"inactive: {' '.join(names)} in {', '.join(those)}"
    spam = [step for step in steps if step.values["OPTIMIZER"] == "adamwspam"
            and 0 < int(step.values["SPAM_INTERVAL"]) <= int(step.values["SPAM_WARMUP"])]
    if spam:
        yield "AdamWSPAM restarts before its warm-up ends: after the first restart the learning " \
              "rate is on average about half of what the schedule says"


def experiment_values(tree, values, scale):
    """The values of the experiment's unchanged defconfig at a scale.

    Its values need not fit each other, because nobody runs this configuration.
    """
    own = os.path.join(kconfig.DEFCONFIGS, values["EXPERIMENT"])
    layers = [tree.read(own)] if os.path.exists(own) else [[]]
    tree.merge_layers(*layers, [kconfig.Assignment("SCALE", scale, "scale")])
    return tree.values()


def override_lines(tree, steps, values):
    """Symbols that the user changed after loading the defconfig and that steps override."""
    own = experiment_values(tree, values, values["SCALE"])
    for change in kconfig.difference(own, values):
        those = [f"{step.name} ({step.values[change.symbol]})" for step in steps
                 if step.selected and step.twin is None and change.symbol in step.named
                 and step.values[change.symbol] != change.new]
        if those:
            yield f"CONFIG_{change.symbol}={change.new or ''} of {kconfig.config_path()} is " \
                  f"overridden in {', '.join(those)}"


def scale_lines(tree, values):
    """How the scale differs from the published study, without the effects of another task."""
    if values["EXPERIMENT"] != PUBLISHED:
        return
    here, there = (experiment_values(tree, values, scale) for scale in (values["SCALE"], STUDY))
    names = [change.symbol for change in kconfig.difference(here, there)
             if None not in change and change.symbol != "SCALE"]
    if names:
        yield f"\nscale {values['SCALE']}, and what the published study has ({STUDY}):"
    for name in names:
        yield f"  {name} {values[name] or '-'} here, {there[name] or '-'} there"


def show(tree, head, steps, values, args):
    """`head` is the plan as in plan.json."""
    past = estimate.past_steps(values["EXPERIMENT"], args.show) if args.show else {}
    costs = [estimate.cost(step, number_of_runs(steps, step, values), examined(steps, step),
                           args.output, past) for step in steps]
    runs = sum(cost.runs for cost in costs)
    to_tune = runs_to_tune(tuned_steps(steps))
    print(f"{head['experiment']}: {head['question'] or 'no question is written down'}")
    print(terminal.wrapped(head["compared"], terminal.width(sys.stdout)))
    print(f"scale {head['scale']}, plan {head['plan']}, seeds {values['SEEDS']}: {runs} runs" +
          (f", {to_tune} of them to tune" if to_tune else "") + "\n")
    heads = ["step", "parameters", "FLOPs/token", "bytes", "runs", "time", "disk",
             "differs from its baseline"]
    print_table([heads] + [
        row(steps, step, estimate.read_json(args.output, examined(steps, step), "describe.json"),
            cost) for step, cost in zip(steps, costs)])
    total(costs, args.jobs)
    if head["declaration"]:
        print(f"\ndeclared: {declaration.text(**head['declaration'])}")
    listed = tuning.rates(values["TUNE_RATES"]) if values["TUNE_RATES"] else ()
    for note in (*override_lines(tree, steps, values), *added_rates(steps, listed), *notes(steps, head["seeds"])):
        print(f"note: {note}")
    for line in scale_lines(tree, values):
        print(line)
