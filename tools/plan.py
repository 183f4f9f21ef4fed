#!/usr/bin/env python3
"""Resolve .config and its plan into steps, and show how they differ.

A step is the configuration with fragments merged on it; it changes only what they name.  Some
words of a plan are no fragments: "again-2" runs step 2 again, "null-2" runs it with other seeds,
which no difference must come of, "baseline" stands for no fragment,
"parameters-of-2" and "flops-of-2" set the width of the feed-forward so that the step comes as near
as possible to step 2, "tuned" takes the best of several learning rates (tools/tuning.py), and
"against-2" compares the step with step 2 instead of the baseline.  With --output DIR, each step
gets a directory of the files that build and run read:

    DIR/NUMBER-NAME/config                      its whole configuration
    DIR/NUMBER-NAME/auto.conf                   the same for make
    DIR/NUMBER-NAME/generated/config_table.h    the same for the program
    DIR/NUMBER-NAME/diff                        the symbols that differ from the baseline's
    DIR/plan.json, DIR/plan.mk                  all steps, for tools and for make

The program's own account of a step (describe.json and estimate.json in its directory) is shown
where there is one.
"""
import argparse
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field

import estimate
import kconfig
import matching
import tuning
from kconfig import Unfit

TWIN = re.compile(r"(again|null)-([0-9]+)")
NULL_SHIFT = 1000   # the first null of a step has seeds 1001, 1002, ... if the step has 1, 2, ...
MATCHED = re.compile(r"(parameters|flops)-of-([0-9]+)")
AGAINST = re.compile(r"against-([0-9]+)")
BASELINE = "baseline"  # the word for no fragment
TUNED = "tuned"
STUDY = "124m"      # the scale of the published study
PER = "per:"


@dataclass
class Step:
    number: int
    label: str
    fragments: list
    baseline: int = 0
    repeats: int = None     # the step that this one runs again, with the same seeds
    repeat: int = 0         # how often the same configuration came before
    nulls: int = None       # the step that this one runs again, with other seeds
    shift: int = 0          # of its seeds
    against: int = None     # the step it is compared with, if not the plan's baseline
    match: matching.Match = None
    is_tuned: bool = False
    rate: str = None        # of a tuned step, once it is chosen, and of a candidate
    selected: bool = True
    # what resolve() finds
    generated: list = field(default_factory=list)   # assignments beside its fragments
    candidates: list = field(default_factory=list)  # of a tuned step: itself, a rate each
    description: str = ""
    named: set = field(default_factory=set)     # symbols that its fragments set
    values: dict = field(default_factory=dict)
    inactive: list = field(default_factory=list)
    config: str = ""
    auto: str = ""
    table: str = ""
    symbols: str = ""

    @property
    def name(self):
        return f"{self.number}-{self.label}"

    @property
    def twin(self):
        """The number of the step whose configuration this one has; None: its own."""
        return self.nulls if self.repeats is None else self.repeats

    @property
    def is_open(self):
        """Its learning rate is still to be found."""
        return self.is_tuned and self.rate is None

    def take_over(self, other):
        """The configuration of a step that this one runs again."""
        for name in ("generated", "candidates", "is_tuned", "rate", "description", "named",
                     "values", "inactive", "config", "auto", "table", "symbols"):
            setattr(self, name, getattr(other, name))


# ---------------------------------------------------------------- from words to steps

def read_word(number, word, label=None):
    """The step that a word such as "mla+gate" or "mla+parameters-of-1" asks for."""
    step, kept = Step(number, label, []), []
    for name in word.split("+"):
        matched, against = MATCHED.fullmatch(name), AGAINST.fullmatch(name)
        if against:
            step.against = int(against[1])
            continue
        kept.append(name)
        if matched:
            step.match = matching.Match(matched[1], int(matched[2]))
        elif name == TUNED:
            step.is_tuned = True
        elif name != BASELINE:
            step.fragments.append(name)
    step.label = label or join(kept)
    return step


def join(words):
    return "+".join(word for word in words if word != BASELINE) or BASELINE


def listed_steps(words):
    steps = []
    for number, word in enumerate(words):
        twin = TWIN.fullmatch(word)
        steps.append(twin_step(steps, twin[1], int(twin[2])) if twin else read_word(number, word))
    return steps


def twin_step(steps, kind, first):
    """An earlier step again: with the same seeds, as a check, or with others, as a null."""
    if first >= len(steps) or steps[first].twin is not None:
        raise Unfit([f"{kind}-{first}: only an earlier step, itself no repetition, can be run "
                     "again"])
    step = Step(len(steps), "", steps[first].fragments)
    if kind == "again":
        nth = step.repeat = 1 + sum(other.repeats == first for other in steps)
        step.repeats = first
    else:
        nth = 1 + sum(other.nulls == first for other in steps)
        step.nulls, step.shift = first, NULL_SHIFT * nth
    step.label = f"{steps[first].label}-{kind}" + (str(nth) if nth > 1 else "")
    return step


def one_at_a_time(words):
    return listed_steps([BASELINE, *words])


def leave_one_out(words):
    labels = ["all"] + [f"without-{word}" for word in words]
    kept = [words] + [words[:i] + words[i + 1:] for i in range(len(words))]
    return [read_word(number, join(left), label)
            for number, (label, left) in enumerate(zip(labels, kept))]


def grid(words):
    axes = [word.removeprefix(PER).split("|") for word in words]
    cells = list(itertools.product(*axes))
    steps = []
    for number, cell in enumerate(cells):
        first = tuple(value if word.startswith(PER) else axis[0]
                      for word, axis, value in zip(words, axes, cell))
        step = read_word(number, join(cell))
        step.baseline = cells.index(first)
        steps.append(step)
    return steps


def check_references(steps):
    """Steps that others name."""
    for step in steps:
        compared = (step.against,) if step.against is not None else ()
        for number in (*compared, *((step.match.number,) if step.match else ())):
            if number >= len(steps) or number == step.number or steps[number].twin is not None:
                raise Unfit([f"{step.name}: there is no other step {number}, or it is a "
                             "repetition"])
        if step.match and steps[step.match.number].match:
            raise Unfit([f"{step.name}: step {step.match.number} is itself matched to another"])


def outline(values):
    """The steps that the plan's symbols ask for, not yet resolved."""
    kind, words = values["PLAN"], (values["PLAN_FRAGMENTS"] or "").split()
    if kind == "single":
        return [Step(0, BASELINE, [])]
    if not words:
        raise Unfit([f"the plan '{kind}' has no fragments: set CONFIG_PLAN_FRAGMENTS"])
    makers = {"steps": listed_steps, "one_at_a_time": one_at_a_time,
              "leave_one_out": leave_one_out, "grid": grid}
    steps = makers[kind](words)
    if kind == "steps":
        baseline = int(values["PLAN_BASELINE"])
        if baseline >= len(steps) or steps[baseline].twin is not None:
            raise Unfit([f"CONFIG_PLAN_BASELINE={baseline}: no such step, or a repetition"])
        for step in steps:
            step.baseline = baseline
    check_references(steps)
    for step in steps:
        if step.against is not None:
            step.baseline = step.against
    return steps


def add_controls(steps, quantity):
    """Every step's baseline again, as large as the step."""
    for step in list(steps):
        if step.twin is None and step.match is None and step.number != step.baseline:
            base = steps[step.baseline]
            word = join([base.label, f"{quantity}-of-{step.number}"])
            steps.append(Step(len(steps), word, base.fragments, step.baseline,
                              is_tuned=base.is_tuned,
                              match=matching.Match(quantity, step.number, is_generated=True)))


def numbers(symbol, text):
    """A list such as "0,1,2" without duplicates."""
    if not re.fullmatch(r"\s*[0-9]+(\s*,\s*[0-9]+)*\s*", text):
        raise Unfit([f'CONFIG_{symbol}="{text}": expected numbers separated by commas'])
    found = [int(n) for n in text.split(",")]
    if len(set(found)) < len(found):
        raise Unfit([f'CONFIG_{symbol}="{text}": a number stands there twice'])
    return found


def tuning_seeds(values):
    """Seeds that no verdict may use."""
    seeds, used = numbers("TUNE_SEEDS", values["TUNE_SEEDS"]), numbers("SEEDS", values["SEEDS"])
    both = set(seeds) & set(used)
    if both:
        raise Unfit([f"CONFIG_TUNE_SEEDS and CONFIG_SEEDS share {min(both)}: a seed that chooses a "
                     "rate cannot judge it"])
    return seeds


def check_seeds(steps, values):
    """Nulls must meet no seed of another step."""
    for symbol in ("SEEDS", "TUNE_SEEDS"):
        seeds = numbers(symbol, values[symbol]) if values[symbol] else []
        if any(step.nulls is not None for step in steps) and max(seeds, default=0) >= NULL_SHIFT:
            raise Unfit([f"CONFIG_{symbol}={values[symbol]}: seeds from {NULL_SHIFT} on are those "
                         "of nulls"])


def select(steps, text):
    if not text:
        return
    chosen = numbers("RA_MLA_ABLATION_STEPS", text)
    if max(chosen) >= len(steps):
        raise Unfit([f'CONFIG_RA_MLA_ABLATION_STEPS="{text}": the steps are 0 to {len(steps) - 1}'])
    for step in steps:
        step.selected = step.number in chosen


# ---------------------------------------------------------------- from steps to configurations

def resolve(tree, base, step):
    """Merge the step's fragments on the base, which sets every symbol: nothing else moves."""
    tree.merge(base)
    before = tree.values()
    layers = [kconfig.read_fragment(tree, name) for name in step.fragments]
    if step.generated:
        layers.append(step.generated)
    for a in itertools.chain(*layers):
        step.named.add(a.name)
        if kconfig.is_for_tools(tree.find(a.name)):
            raise Unfit([f"{a}: a step cannot change what only the tools read"])
    step.inactive = sorted(a.name for a in tree.merge(base, *layers))
    step.values = tree.values()
    assert all(change.symbol in step.named or None in change
               for change in kconfig.difference(before, step.values))
    step.description = "; ".join(kconfig.question(os.path.join(kconfig.FRAGMENTS, name))
                                 for name in step.fragments)
    step.config = tree.config_text()
    step.auto = kconfig.auto_conf(tree)
    step.table = kconfig.table(tree)
    step.symbols = kconfig.program_symbols(tree)


def match_width(tree, base, step, steps):
    """Resolve the step with the width that brings it nearest to the one it is matched to."""
    resolve(tree, base, step)
    other = steps[step.match.number]
    width = str(step.match.find(step, other))
    if width != step.values["FFN_HIDDEN"]:
        step.generated = [kconfig.Assignment("FFN_HIDDEN", width, f"as {other.name}")]
        resolve(tree, base, step)


def tune(tree, base, step, rates, seeds, directory):
    """Make the candidates, and give the step the rate that was chosen among them, if one was."""
    for rate in rates:
        candidate = dataclasses.replace(step, label=f"{step.label}@{rate}", is_tuned=False,
                                        rate=rate, candidates=[], named=set())
        candidate.generated = step.generated + tuning.assignments(step.values, rate)
        resolve(tree, base, candidate)
        step.candidates.append(candidate)
    step.rate = tuning.chosen(directory, step, seeds)
    if step.rate is not None:
        step.generated += tuning.assignments(step.values, step.rate)
        resolve(tree, base, step)


def drop_superfluous(steps):
    """Generated controls that are what another step is already."""
    kept, tables = [], set()
    for step in steps:
        if not (step.match and step.match.is_generated and step.table in tables):
            tables.add(step.table)
            step.number = len(kept)
            kept.append(step)
    steps[:] = kept


def refuse_duplicates(steps):
    """A tuned step may choose the rate that another one has: its question is a different one."""
    first = {}
    for step in steps:
        asked = tuple(candidate.table for candidate in step.candidates) or step.table
        other = first.setdefault(asked, step)
        if other is not step and step.twin is None:
            raise Unfit([f"steps {other.name} and {step.name} have the same configuration; "
                         f"'again-{other.number}' declares a check of reproducibility, "
                         f"'null-{other.number}' a comparison that must find nothing"])


def resolve_all(tree, base, steps, values, directory):
    first = [step for step in steps if step.twin is None]
    for step in first:
        if step.match is None:
            resolve(tree, base, step)
    for step in first:
        if step.match is not None:
            match_width(tree, base, step, steps)
    drop_superfluous(steps)
    tuned = [step for step in steps if step.is_tuned and step.twin is None]
    if tuned and not values["TUNE_RATES"]:
        raise Unfit([f"{tuned[0].name}: CONFIG_TUNE_RATES gives no rates to choose from"])
    for step in tuned:
        tune(tree, base, step, tuning.rates(values["TUNE_RATES"]), tuning_seeds(values), directory)
    for step in steps:
        if step.twin is not None:
            step.take_over(steps[step.twin])


def plan(tree, directory=None):
    """The steps of the present configuration, and its own values.

    Choices of learning rates that were made before are found in the directory.
    """
    kconfig.load_present(tree)
    values = tree.values()
    base = tree.read(kconfig.config_path())
    steps = outline(values)
    check_seeds(steps, values)
    for step in steps:
        step.is_tuned |= values["TUNE_ALL"] == "y"
    if values["PLAN_CONTROLS"] not in (None, "none"):
        add_controls(steps, values["PLAN_CONTROLS"])
    resolve_all(tree, base, steps, values, directory)
    refuse_duplicates(steps)
    select(steps, values["RA_MLA_ABLATION_STEPS"])
    return steps, values


def changes(steps, step):
    """Against the step's baseline."""
    return kconfig.difference(steps[step.baseline].values, step.values)


# ---------------------------------------------------------------- output

def as_json(steps, values, seeds):
    own = os.path.join(kconfig.DEFCONFIGS, values["EXPERIMENT"])
    return {
        "experiment": values["EXPERIMENT"],
        "question": kconfig.question(own),
        "scale": values["SCALE"],
        "plan": values["PLAN"],
        "seeds": seeds,
        "steps": [{
            "number": step.number,
            "name": step.name,
            "description": step.description,
            "fragments": step.fragments,
            "baseline": steps[step.baseline].name,
            "repeats": None if step.repeats is None else steps[step.repeats].name,
            "repeat": step.repeat,
            "null": None if step.nulls is None else steps[step.nulls].name,
            "seeds": seeds_of(step, seeds),
            "selected": step.selected,
            "difference": [change._asdict() for change in changes(steps, step)],
            "inactive": step.inactive,
            "match": step.match and step.match.as_json(steps),
            "rate": step.rate,
            "candidates": [candidate.name for candidate in step.candidates],
        } for step in steps],
    }


def seeds_of(step, seeds):
    """A reproducibility check runs with the first seed alone: one repetition tells."""
    return seeds[:1] if step.repeats is not None else [seed + step.shift for seed in seeds]


REFUSED = "refused"  # in place of an identity


def identity(directory, step, seed):
    """REFUSED: the program does not accept its configuration; the run will tell why."""
    program = os.path.join(directory, step.name, "kablate")
    result = subprocess.run([program, "identity", "--seed", str(seed), "--repeat", str(step.repeat)],
                            capture_output=True, check=False, text=True)
    return REFUSED if result.returncode else result.stdout.strip()[:12]


def runs_for_make(steps, values, seeds, directory, runs):
    """A run's directory carries its identity: its target exists, or it is another run."""
    name = values["EXPERIMENT"]
    wanted = [("run", name, step, step, seed)
              for step in steps_to_run(steps) for seed in seeds_of(step, seeds)]
    wanted += [("tuning", tuning.experiment(name), step, candidate, seed)
               for step in tuned_steps(steps) for candidate in step.candidates
               for seed in tuning_seeds(values)]
    known = [(*run, identity(directory, *run[3:])) for run in wanted]
    lines = []
    for kind, experiment, step, program, seed, its_identity in sorted(
            known, key=lambda run: run[-1] != REFUSED):     # fail early
        target = f"{runs}/{experiment}/{program.name}-{seed}-{its_identity}/done"
        lines += [f"{kind}-targets += {target}", f"{kind}-targets-of-{step.name} += {target}",
                  f"{target}: STEP := {program.name}", f"{target}: SEED := {seed}",
                  f"{target}: EXPERIMENT := {experiment}"]
    return "\n".join(lines) + "\n"


def steps_to_run(steps):
    return [step for step in steps if step.selected and not step.is_open]


def source(steps, step):
    """The step itself, or the one that it repeats."""
    return step if step.twin is None else steps[step.twin]


def tuned_steps(steps):
    """Whose rates must be known."""
    wanted = {source(steps, step).number for step in steps if step.selected and step.is_tuned}
    return [steps[number] for number in sorted(wanted)]


def for_make(steps, values, seeds):
    now, tuned = steps_to_run(steps), tuned_steps(steps)
    candidates = [candidate for step in tuned for candidate in step.candidates]
    lines = [f"plan-experiment := {values['EXPERIMENT']}", f"plan-scale := {values['SCALE']}",
             f"plan-threads := {values['THREADS']}",
             f"plan-steps := {' '.join(step.name for step in now)}",
             f"plan-open := {' '.join(s.name for s in steps if s.selected and s.is_open)}",
             f"plan-tuned := {' '.join(step.name for step in tuned)}",
             "plan-examined := " + " ".join(dict.fromkeys(
                 examined(steps, step) for step in steps if step.selected)),
             f"plan-candidates := {' '.join(candidate.name for candidate in candidates)}"]
    for step in now:
        lines += [f"repeat-{step.name} := {step.repeat}",
                  f"baseline-{step.name} := {steps[step.baseline].name}"]
    lines += [f"tuned-for-{step.name} := {source(steps, step).name}" for step in steps
              if step.selected and step.is_tuned]
    for candidate in candidates:
        lines += [f"repeat-{candidate.name} := 0", f"baseline-{candidate.name} := {candidate.name}"]
    return "\n".join(lines) + "\n"


def write(steps, values, seeds, directory):
    for step in itertools.chain(steps, *(step.candidates for step in tuned_steps(steps))):
        files = {"config": step.config, "auto.conf": step.auto,
                 "generated/config_table.h": step.table,
                 "diff": "".join(f"{change}\n" for change in changes(steps, step))}
        for name, text in files.items():
            kconfig.write_text(os.path.join(directory, step.name, name), text)
    kconfig.write_text(os.path.join(directory, "plan.mk"), for_make(steps, values, seeds))
    kconfig.write_text(os.path.join(directory, "plan.json"),
                       json.dumps(as_json(steps, values, seeds), indent=1) + "\n")


def examined(steps, step):
    """The name of the step whose program tells about this one: twins and rates change no number."""
    first = source(steps, step)
    return first.candidates[0].name if first.is_open else first.name


def differences(steps, step):
    """In a few words, what the step is."""
    if step.repeats is not None:
        return f"again {steps[step.repeats].name}"
    if step.nulls is not None:
        return f"{steps[step.nulls].name} with seeds from {step.shift} on"
    if step.number == step.baseline:
        return "baseline"
    what = [str(change) for change in changes(steps, step)
            if None not in change or change.symbol in step.named]
    if step.is_open:
        what.append(f"LEARNING_RATE to be chosen from {len(step.candidates)}")
    return ", ".join(what) + (f" ({step.match.remaining(steps)})" if step.match else "")


def number_of_runs(steps, step, values):
    """With those that choose its rate."""
    runs = len(seeds_of(step, numbers("SEEDS", values["SEEDS"]))) if step.selected else 0
    if step in tuned_steps(steps):
        runs += len(step.candidates) * len(tuning_seeds(values))
    return runs


def row(steps, step, account, cost):
    counts = [f"{account[key]:,}" if key in account else "-"
              for key in ("parameters", "flops_per_token", "memory_bytes")]
    time = "-" if cost.seconds is None else estimate.duration(cost.seconds)
    room = "-" if cost.bytes is None else estimate.room(cost.bytes)
    return [step.name + ("" if step.selected else " (not run)"), *counts, str(cost.runs), time,
            room, differences(steps, step)]


def print_table(rows):
    """Columns in which nothing is known are left out."""
    known = [column for column in zip(*rows) if any(cell != "-" for cell in column[1:])]
    rows = list(zip(*known))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for line in rows:
        cells = [cell.ljust(width) if i in (0, len(line) - 1) else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        print("  " + "  ".join(cells).rstrip())


def inactive_groups(steps):
    """Symbols of .config that steps switch off, with the steps that do."""
    groups = {}
    for step in steps:
        if step.inactive and step.twin is None:
            groups.setdefault(tuple(step.inactive), []).append(step.name)
    return groups.items()


def notes(steps, seeds):
    """What a reader of the plan should know before it runs."""
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
    if len(seeds) < 3:
        yield "fewer than 3 seeds: there will be no verdict"
    for names, those in inactive_groups(steps):
        yield f"inactive: {' '.join(names)} in {', '.join(those)}"
    spam = [step for step in steps if step.values["OPTIMIZER"] == "adamwspam"
            and 0 < int(step.values["SPAM_INTERVAL"]) <= int(step.values["SPAM_WARMUP"])]
    if spam:
        yield "AdamWSPAM restarts before its warm-up ends: after the first restart the learning " \
              "rate is on average about half of what the schedule says"


def total(costs, jobs):
    """In one line, and where the numbers come from."""
    timed = [cost for cost in costs if cost.seconds is not None and cost.runs]
    if not timed:
        return
    seconds = sum(cost.seconds for cost in timed) / jobs
    print(f"\nabout {estimate.duration(seconds)} with {jobs} run{'s' * (jobs > 1)} at a time, "
          f"{estimate.room(sum(cost.bytes or 0 for cost in costs))} on the disk; time by "
          + " and ".join(dict.fromkeys(cost.source for cost in timed))
          + ("" if len(timed) == sum(cost.runs > 0 for cost in costs) else
             "; not all steps could be timed"))


def experiment_values(tree, values, scale):
    """Of the experiment's own defconfig, as it is before anybody changes it, at a scale."""
    own = os.path.join(kconfig.DEFCONFIGS, values["EXPERIMENT"])
    layers = [tree.read(own)] if os.path.exists(own) else [[]]
    tree.merge(*layers, [kconfig.Assignment("SCALE", scale, "scale")])
    return tree.values()


def scale_lines(tree, values):
    """What the scale changes against the published study; not what another task brings with it."""
    here, there = (experiment_values(tree, values, scale) for scale in (values["SCALE"], STUDY))
    names = [change.symbol for change in kconfig.difference(here, there)
             if None not in change and change.symbol != "SCALE"]
    if names:
        yield f"\nscale {values['SCALE']}, and what the published study has ({STUDY}):"
    for name in names:
        yield f"  {name} {values[name]} here, {there[name]} there"


def override_lines(tree, steps, values):
    """Symbols that were changed after the defconfig was loaded, and that steps set themselves."""
    own = experiment_values(tree, values, values["SCALE"])
    for change in kconfig.difference(own, values):
        those = [f"{step.name} ({step.values[change.symbol]})" for step in steps
                 if step.selected and step.twin is None and change.symbol in step.named
                 and step.values[change.symbol] != change.new]
        if those:
            yield f"CONFIG_{change.symbol}={change.new or ''} of {kconfig.config_path()} is " \
                  f"overridden in {', '.join(those)}"


def show(tree, steps, values, seeds, args):
    head = as_json(steps, values, seeds)
    past = estimate.past_steps(values["EXPERIMENT"], args.show) if args.show else {}
    costs = [estimate.cost(step, number_of_runs(steps, step, values), examined(steps, step),
                           args.output, past) for step in steps]
    runs = sum(cost.runs for cost in costs)
    to_tune = sum(len(step.candidates) for step in tuned_steps(steps))
    if to_tune:
        to_tune *= len(tuning_seeds(values))
    print(f"{head['experiment']}: {head['question'] or 'no question is written down'}")
    print(f"scale {head['scale']}, plan {head['plan']}, seeds {values['SEEDS']}: {runs} runs" +
          (f", {to_tune} of them to tune" if to_tune else "") + "\n")
    heads = ["step", "parameters", "FLOPs/token", "bytes", "runs", "time", "disk",
             "differs from its baseline"]
    print_table([heads] + [
        row(steps, step, estimate.read_json(args.output, examined(steps, step), "describe.json"),
            cost) for step, cost in zip(steps, costs)])
    total(costs, args.jobs)
    for note in (*override_lines(tree, steps, values), *notes(steps, seeds)):
        print(f"note: {note}")
    for line in scale_lines(tree, values):
        print(line)


def choose_rate(steps, values, args):
    step = next(step for step in steps if step.name == args.choose)
    rate = tuning.choose(args.output, step, tuning_seeds(values),
                         os.path.join(args.runs, "results.db"),
                         lambda candidate, seed: identity(args.output, candidate, seed))
    print(f"{step.name}: learning rate {rate}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="example: tools/plan.py --output build/plan")
    parser.add_argument("--output", metavar="DIR", help="write the steps' files there")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("--runs", metavar="RUNS",
                        help="write DIR/runs.mk: a target below RUNS for every run of every step")
    parser.add_argument("--show", metavar="RUNS",
                        help="estimate times by the finished runs there")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--choose", metavar="STEP",
                        help="choose its learning rate from the results below RUNS")
    args = parser.parse_args(argv)
    tree = kconfig.Tree()
    try:
        steps, values = plan(tree, args.output)
        seeds = numbers("SEEDS", values["SEEDS"])
        if args.choose:
            choose_rate(steps, values, args)
            return
        if args.output:
            write(steps, values, seeds, args.output)
        if args.runs:
            kconfig.write_text(os.path.join(args.output, "runs.mk"),
                               runs_for_make(steps, values, seeds, args.output, args.runs))
        elif not args.quiet:
            show(tree, steps, values, seeds, args)
    except Unfit as unfit:
        sys.exit("\n".join(unfit.problems))
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
