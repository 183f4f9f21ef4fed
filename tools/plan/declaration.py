#!/usr/bin/env python3
"""What a plan declares before its first run: primary comparisons, margin, seeds and looks.

    declaration.py PLAN.JSON RUNS   record it with the time, unless it is recorded already

The record is RUNS/EXPERIMENT/declaration.json: every declaration that was ever in force, in order.
The report compares the time of the last declaration with the time of the first run.  The program
reads none of this, so no run's identity depends on it.
"""
import json
import os
import re
import sys
import time
from dataclasses import dataclass

from tools.plan import kconfig, sizes
from tools.plan.kconfig import Unfit
from tools.plan.plan_words import kind_of, numbers
from tools.results import names, plain
from tools.terminal import terminal

SYMBOLS = ("PRIMARY", "MARGIN", "LOOKS", "FORECAST")
# Words that stand for the effects of a grid; the report knows which there are.
EFFECTS = ("main", "interactions")
ALL = "all"     # every comparison of the table, also of steps that are added later
PAIR = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")
FILE = "declaration.json"


@dataclass
class Declaration:
    """The newest declaration of an experiment."""
    time: float
    is_changed: bool                # there was another one before
    is_withdrawn: bool = False
    asked: str = ""                 # CONFIG_PRIMARY
    primary: list = ()              # what that stands for: [step, other step], words of EFFECTS
    steps: list = ()                # whose runs a look needs
    margin: float = None            # nats, or share of right answers
    looks: list = ()                # numbers of seeds, rising; the last is the greatest
    seeds: list = ()                # as many as the last look has
    forecast: list = ()             # dictionaries (tools/report/forecast.py)

    def __post_init__(self):
        """Steps have names of steps."""
        if not is_sound(self):
            raise TypeError("not what a plan declares")
        for step in (*self.steps, *(name for one in self.primary if isinstance(one, list) for name in one)):
            names.checked(names.STEP, "step", step)

    @property
    def is_of_all(self):
        return self.primary == [ALL]

    @property
    def text(self):
        return "nothing any more" if self.is_withdrawn else \
            text(self.asked, self.margin, self.looks, self.seeds, self.forecast)


def text(asked, margin, looks, seeds, forecast=(), **_):
    """What is declared, in words."""
    return f"primary comparisons {asked or ALL}; " + \
        (f"margin {margin:g}; " if margin else "no margin; ") + \
        f"seeds {', '.join(map(str, seeds))}; verdicts read at {', '.join(map(str, looks))} seeds" + \
        (f"; {len(forecast)} forecast from {forecast[0]['from']}" if forecast else "")


# ---------------------------------------------------------------- from the configuration

def named_step(steps, word, number):
    if number >= len(steps):
        raise Unfit([f"CONFIG_PRIMARY: {word}: the steps are 0 to {len(steps) - 1}"])
    return steps[number]


def against_baselines(steps):
    return [[step.name, steps[step.baseline].name] for step in steps
            if step.number != step.baseline and step.repeats is None]


def against_controls(steps):
    """Each step with its matched control."""
    return [[steps[control.match.number].name, control.name] for control in steps
            if control.match and control.match.number != control.baseline]


def comparisons(steps, word):
    """The comparisons that a word of CONFIG_PRIMARY stands for."""
    if word in EFFECTS:
        return [word]
    if word in ("steps", "controls"):
        return (against_baselines if word == "steps" else against_controls)(steps)
    pair = PAIR.fullmatch(word)
    if not pair:
        raise Unfit([f"CONFIG_PRIMARY: {word}: expected steps, controls, {', '.join(EFFECTS)}, a "
                     "step's number, or two of them as in 2:5"])
    step = named_step(steps, word, int(pair[1]))
    other = named_step(steps, word, step.baseline if pair[2] is None else int(pair[2]))
    if other is step or step.repeats is not None:
        raise Unfit([f"CONFIG_PRIMARY: {word}: {step.name} is compared with nothing"])
    return [[step.name, other.name]]


def margin_of(values):
    given = values["MARGIN"]
    if not given:
        return None
    if not kconfig.NUMBER.fullmatch(given) or float(given) <= 0:
        raise Unfit([f'CONFIG_MARGIN="{given}": expected a positive number'])
    return float(given)


def looks_of(values, seeds):
    found = numbers("LOOKS", values["LOOKS"]) if values["LOOKS"] else [len(seeds)]
    if found != sorted(found) or found[0] < 1:
        raise Unfit([f'CONFIG_LOOKS="{values["LOOKS"]}": numbers of seeds must rise'])
    if len(seeds) > found[-1]:
        raise Unfit([f"CONFIG_SEEDS names {len(seeds)} seeds, CONFIG_LOOKS at most {found[-1]}; "
                     f"CONFIG_LOOKS={len(seeds)} looks once, at all of them"])
    return found


def declared(steps, values):
    """For plan.json; None: nothing is declared."""
    if not any(values[name] for name in SYMBOLS):
        return None
    seeds = numbers("SEEDS", values["SEEDS"])
    found = looks_of(values, seeds)
    more = range(max(seeds) + 1, max(seeds) + 1 + found[-1] - len(seeds))
    margin = margin_of(values)
    if not (values["PRIMARY"] or margin):
        return {"asked": "", "primary": [ALL], "steps": [], "margin": None, "looks": found,
                "seeds": [*seeds, *more]}
    primary = [one for word in sizes.primary_words(values, kind_of(values)) or ["steps", "controls", *EFFECTS]
               for one in comparisons(steps, word)]
    cells = [step.name for step in steps if step.twin is None]
    named = [step for one in primary for step in (cells if one in EFFECTS else one)]
    return {"asked": values["PRIMARY"], "primary": primary, "steps": sorted(set(named)),
            "margin": margin, "looks": found, "seeds": [*seeds, *more]}


# ---------------------------------------------------------------- the record

def path_of(runs, experiment):
    return os.path.join(runs, experiment, FILE)


def read_entries(path):
    text = kconfig.read_text(path)
    return json.loads(text)["declarations"] if text else []


def says_the_same(content, last):
    """An earlier program wrote all comparisons one by one."""
    if last and content and content["primary"] == [ALL] and not last["asked"]:
        content = {**content, "primary": last["primary"], "steps": last["steps"]}
    return content == last


def record(path, content, now):
    """Appends the declaration, unless the last entry says the same."""
    entries = read_entries(path)
    if says_the_same(content, entries[-1]["declared"] if entries else None):
        return
    entries.append({"time": now, "declared": content})
    kconfig.write_text(path, json.dumps({"declarations": entries}, indent=1) + "\n")


def is_comparison(one):
    return one in (ALL, *EFFECTS) or isinstance(one, list) and len(one) == 2 and all(isinstance(step, str) for step in one)


FORECAST = {"step": str, "baseline": str, "from": str, "unit": str, "scales": list, "seeds": int, "parameters": (int, float),
            "mean": float, "sd": float, "low": float, "high": float}


def is_forecast(one):
    return all(isinstance(one.get(name), kind) for name, kind in FORECAST.items())


def is_sound(found):
    """A file may say anything."""
    def is_list(values, kind):
        return isinstance(values, (list, tuple)) and all(isinstance(value, kind) for value in values)
    return isinstance(found.time, (int, float)) and isinstance(found.asked, str) and is_list(found.primary, (list, str)) \
        and all(map(is_comparison, found.primary)) and is_list(found.steps, str) and is_list(found.looks, int) \
        and is_list(found.seeds, int) and is_list(found.forecast, dict) and all(map(is_forecast, found.forecast)) and (found.margin is None or isinstance(found.margin, float) and found.margin > 0) \
        and bool(found.is_withdrawn or found.looks and found.seeds)


def read(runs, experiment):
    """The newest declaration; None if there never was one."""
    path = path_of(runs, experiment)
    try:
        entries = read_entries(path)
        if not entries:
            return None
        last = entries[-1]
        return Declaration(last["time"], len(entries) > 1, last["declared"] is None,
                           **(last["declared"] or {}))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Unfit([f"{path}: damaged: {type(error).__name__} {error}"]) from None


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.plan.declaration build/plan/plan.json runs")
    parser.add_argument("plan", metavar="PLAN.JSON")
    parser.add_argument("runs", metavar="RUNS")
    args = parser.parse_args(argv)
    try:
        plan = json.loads(plain.text(args.plan))
        record(path_of(args.runs, plan["experiment"]), plan["declaration"], time.time())
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
