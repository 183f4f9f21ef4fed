"""From the words of a plan to its steps, not yet resolved to configurations.

A word is a step: names of fragments joined by "+".  Some names are not fragments: "NORM=rms" sets
a symbol (tools/plan/factors.py has symbols with several values); "again-2" runs step 2 again; "null-2" runs it with other seeds, so there is no difference to find; "baseline"
stands for no fragment; "parameters-of-2" and "flops-of-2" widen the feed-forward until the step is
as near as possible to step 2 (tools/plan/matching.py); "tuned" takes the best of several learning
rates (tools/plan/tuning.py); "against-2" compares the step with step 2 instead of the baseline, and
makes step 2 itself a baseline.
"""
import itertools
import re
from dataclasses import dataclass, field

from tools.plan import factors, kconfig, matching, ranges, sizes, tuning
from tools.plan.kconfig import Unfit
from tools.results import names

TWIN = re.compile(r"(again|null)-([0-9]{1,9})")
NULL_SHIFT = 1000   # the first null of a step has seeds 1001, 1002, ... if the step has 1, 2, ...
MATCHED = re.compile(r"(parameters|flops)-of-([0-9]{1,9})")
AGAINST = re.compile(r"against-([0-9]{1,9})")
BASELINE = "baseline"  # the word for no fragment
TUNED = "tuned"
LISTED = "steps", sizes.KIND    # kinds of plans whose words are steps
PER = factors.PER


@dataclass
class Step:
    number: int
    label: str
    fragments: list         # and settings such as NORM=rms
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
    size: str = None        # its scale in the plan 'sizes'
    base: list = None       # the configuration of that scale; None: the present one
    # what resolve() finds
    generated: list = field(default_factory=list)   # assignments beside its fragments
    candidates: list = field(default_factory=list)  # of a tuned step: itself, a rate each
    seeds: list = field(default_factory=list)       # of a candidate: those it is trained with
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
        """The number of the step that this one repeats; None: it has a configuration of its own."""
        return self.nulls if self.repeats is None else self.repeats

    @property
    def is_open(self):
        """Is its learning rate still to be chosen?"""
        return self.is_tuned and self.rate is None

    def take_over(self, other):
        """Takes the configuration of the step that this one runs again."""
        for name in ("generated", "candidates", "is_tuned", "rate", "description", "named",
                     "values", "inactive", "config", "auto", "table", "symbols"):
            setattr(self, name, getattr(other, name))


# ---------------------------------------------------------------- words

def read_word(number, word, label=None):
    """The step that a word such as "mla+gate" or "mla+parameters-of-1" asks for."""
    step, kept = Step(number, label, []), []
    for name in word.split("+"):
        matched, against = MATCHED.fullmatch(name), AGAINST.fullmatch(name)
        if against:
            step.against = int(against[1])
            continue
        kept.append(factors.name_of(name) if "=" in name else name)
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


def values_of(axes):
    """Of the axes of a grid, in words."""
    return [axis.removeprefix(PER).split("|") for axis in axes]


def name_of(word):
    return read_word(0, word).label


def one_at_a_time(words, axes=()):
    """Every step has the first value of each axis, except for one value of its own."""
    axes = values_of(axes)
    first = [axis[0] for axis in axes]
    steps = listed_steps([BASELINE, *words])
    for step in steps:
        step.fragments = step.fragments + read_word(0, join(first)).fragments
    for i, axis in enumerate(axes):
        steps += [read_word(number, join([*first[:i], value, *first[i + 1:]]), name_of(value))
                  for number, value in enumerate(axis[1:], len(steps))]
    return steps


def leave_one_out(words, axes=()):
    """A factor is left out by its first value."""
    pairs = [(BASELINE, word) for word in words] + values_of(axes)
    for pair in pairs:
        if len(pair) > 2:
            raise Unfit([f"CONFIG_PLAN_FACTORS: {'|'.join(pair)}: the plan 'leave_one_out' takes two "
                         "values of a factor, without and with"])
    whole = [with_it for _, with_it in pairs]
    steps = [read_word(0, join(whole), "all")]
    return steps + [read_word(number, join([*whole[:number - 1], without, *whole[number:]]),
                              f"without-{name_of(with_it)}")
                    for number, (without, with_it) in enumerate(pairs, 1)]


def grid(words, more_axes=()):
    words = [*words, *more_axes]
    axes = values_of(words)
    cells = list(itertools.product(*axes))
    steps = []
    for number, cell in enumerate(cells):
        first = tuple(value if word.startswith(PER) else axis[0]
                      for word, axis, value in zip(words, axes, cell))
        step = read_word(number, join(cell))
        step.baseline = cells.index(first)
        steps.append(step)
    return steps


def at_each_scale(values, words):
    labels = sizes.labels(sizes.scales(values))
    steps = listed_steps(sizes.at_each_scale(values, words))
    for step in steps:
        step.size = labels[step.number // len(words)]
        step.label = f"{step.size}.{step.label}"
    return steps


def check_references(steps):
    """Refuses words that name a step which does not exist or cannot be meant."""
    for step in steps:
        compared = () if step.against in (None, step.number) else (step.against,)
        for number in (*compared, *((step.match.number,) if step.match else ())):
            if number >= len(steps) or number == step.number or steps[number].twin is not None:
                raise Unfit([f"{step.name}: there is no other step {number}, or it is a "
                             "repetition"])
        if step.match and steps[step.match.number].match:
            raise Unfit([f"{step.name}: step {step.match.number} is itself matched to another"])


def check_names(steps):
    """The names contain names of fragments and values, and make and the shell read them."""
    for step in steps:
        if not names.NAME.fullmatch(step.name):
            raise Unfit([f"{step.name}: {names.IN_A_NAME}: rename the fragment"])


def kind_of(values):
    """The plan 'single' has no fragments; with factors it is a grid."""
    return "grid" if values["PLAN"] == "single" and values["PLAN_FACTORS"] else values["PLAN"]


def steps_of(values):
    """The steps that the plan's symbols ask for, not yet resolved."""
    kind, words = kind_of(values), (values["PLAN_FRAGMENTS"] or "").split()
    axes = factors.words(values["PLAN_FACTORS"])
    if kind == "single":
        return [Step(0, BASELINE, [])]
    if kind in LISTED and axes:
        raise Unfit([f"CONFIG_PLAN_FACTORS: the plan '{kind}' has none; choose grid, one_at_a_time or "
                     "leave_one_out"])
    if not words and not axes:
        raise Unfit([f"the plan '{kind}' has no fragments: set CONFIG_PLAN_FRAGMENTS or "
                     "CONFIG_PLAN_FACTORS"])
    makers = {"one_at_a_time": one_at_a_time, "leave_one_out": leave_one_out, "grid": grid}
    steps = listed_steps(words) if kind == "steps" else at_each_scale(values, words) if kind == sizes.KIND \
        else makers[kind](words, axes)
    if kind in LISTED:
        baseline = int(values["PLAN_BASELINE"])
        if baseline >= len(words) or steps[baseline].twin is not None:
            raise Unfit([f"CONFIG_PLAN_BASELINE={baseline}: no such step, or a repetition"])
        for step in steps:
            step.baseline = step.number - step.number % len(words) + baseline
    check_names(steps)
    check_references(steps)
    for step in steps:
        if step.against is not None:
            step.baseline = step.against
        elif step.nulls is not None:
            step.baseline = step.nulls
    return steps


def add_controls(steps, quantity):
    """Adds for every step its baseline, widened to the size of the step."""
    for step in list(steps):
        if step.twin is None and step.match is None and step.number != step.baseline:
            base = steps[step.baseline]
            match = matching.Match(quantity, step.number, is_generated=True)
            steps.append(Step(len(steps), join([base.label, match.word]), base.fragments,
                              step.baseline, is_tuned=base.is_tuned, match=match, size=base.size))


# ---------------------------------------------------------------- which of them, with which seeds

def numbers(symbol, text):
    """A list such as "0,1,2" without duplicates."""
    try:
        return ranges.list_of(text, ranges.whole_number)
    except ValueError as error:
        raise Unfit([f'CONFIG_{symbol}="{text}": {error}']) from None


def tuning_seeds(values):
    """Seeds that no verdict may use."""
    used = numbers("SEEDS", values["SEEDS"])
    seeds = {symbol: numbers(symbol, values[symbol]) if values[symbol] else [] for symbol in ("TUNE_SEEDS", "TUNE_MORE_SEEDS")}
    for symbol, those in seeds.items():
        both = set(those) & set(used)
        if both:
            raise Unfit([f"CONFIG_{symbol} and CONFIG_SEEDS share {min(both)}: a seed that chooses a "
                         "rate cannot judge it"])
    both = set.intersection(*map(set, seeds.values()))
    if both:
        raise Unfit([f"CONFIG_TUNE_SEEDS and CONFIG_TUNE_MORE_SEEDS share {min(both)}"])
    return tuning.Seeds(*seeds.values())


def check_seeds(steps, values):
    """No other step may use a seed of a null."""
    for symbol in ("SEEDS", "TUNE_SEEDS", "TUNE_MORE_SEEDS"):
        seeds = numbers(symbol, values[symbol]) if values[symbol] else []
        if any(step.nulls is not None for step in steps) and max(seeds, default=0) >= NULL_SHIFT:
            raise Unfit([f"CONFIG_{symbol}={values[symbol]}: seeds from {NULL_SHIFT} on "
                         "belong to nulls"])


def seeds_of(step, seeds):
    """A reproducibility check runs with the first seed only: one repetition is enough."""
    return seeds[:1] if step.repeats is not None else [seed + step.shift for seed in seeds]


def select(steps, text):
    if not text:
        return
    chosen = numbers("RA_MLA_ABLATION_STEPS", text)
    if max(chosen) >= len(steps):
        raise Unfit([f'CONFIG_RA_MLA_ABLATION_STEPS="{text}": the steps are 0 to {len(steps) - 1}'])
    for step in steps:
        step.selected = step.number in chosen


def steps_to_run(steps):
    return [step for step in steps if step.selected and not step.is_open]


def source(steps, step):
    """The step itself, or the one that it repeats."""
    return step if step.twin is None else steps[step.twin]


def tuned_steps(steps):
    """The steps whose rates must be chosen."""
    wanted = {source(steps, step).number for step in steps if step.selected and step.is_tuned}
    return [steps[number] for number in sorted(wanted)]


def changes(steps, step):
    """How the step differs from its baseline."""
    return kconfig.difference(steps[step.baseline].values, step.values)
