#!/usr/bin/env python3
"""Resolve .config and its plan into steps, and show how they differ.

A step is the configuration with fragments merged on it; it changes only what they name
(tools/plan/plan_words.py has the words of a plan).  With --output DIR, each step gets a directory
of the files that build and run read:

    DIR/NUMBER-NAME/config                      its whole configuration
    DIR/NUMBER-NAME/auto.conf                   the same for make
    DIR/NUMBER-NAME/generated/config_table.h    the same for the program
    DIR/NUMBER-NAME/diff                        the symbols that differ from the baseline's
    DIR/plan.json, DIR/plan.mk                  all steps, for tools and for make
    DIR/runs.json, DIR/runs.mk                  all runs, likewise, when the programs are built
    DIR/planned.json                            all runs, for RUNS/EXPERIMENT/
    DIR/configuration                           the .config they were made of, for make to compare

If the step's directory has describe.json and estimate.json, which its program writes, the plan
shows their numbers.
"""
import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys

from tools.plan import compared, declaration, factors, fragment_names, kconfig, plan_table, plan_words, sizes, tuning
from tools.plan.kconfig import Unfit
from tools.plan.plan_words import changes, numbers, seeds_of, source, steps_to_run, tuned_steps, tuning_seeds
from tools.results import time_left
from tools.results.names import IDENTITY

# ---------------------------------------------------------------- what the configuration selects

SELECTIONS = ["models/Makefile", "data/Makefile"]   # which symbol brings which object
SELECTED_BY = re.compile(r"\$\(CONFIG_(\w+)\)")


def refuse_unknown_selections(tree):
    """The object of a misspelt symbol would be linked into no step."""
    problems = []
    for path in SELECTIONS:
        lines = (kconfig.read_text(os.path.join(kconfig.ROOT, path)) or "").splitlines()
        problems += [f"{path}:{number}: Kconfig has no symbol {name}, so no step would link this "
                     "object" for number, line in enumerate(lines, 1)
                     for name in SELECTED_BY.findall(line)
                     if name not in tree.members and not tree.find(name)]
    if problems:
        raise Unfit(problems)


# ---------------------------------------------------------------- from steps to configurations

def read_layers(tree, words):
    """The assignments of each fragment, and last those of all settings such as NORM=rms."""
    try:
        settings = [kconfig.Assignment(*factors.read_setting(tree, word), "plan") for word in words
                    if "=" in word]
    except ValueError as error:
        raise Unfit([f"plan: {error}"]) from None
    twice = {a.name for a in settings if sum(a.name == b.name for b in settings) > 1}
    if twice:
        raise Unfit([f"plan: {'+'.join(words)} sets {' and '.join(sorted(twice))} twice"])
    fragments = [kconfig.read_fragment(tree, name) for name in words if "=" not in name]
    return fragments + [settings] * bool(settings)


def assignments_of(tree, word):
    """What a word of a step sets."""
    return [kconfig.Assignment(*factors.read_setting(tree, word), "plan")] if "=" in word else \
        kconfig.read_fragment(tree, word)


def culprit(step, told, a):
    """Which other word of the step gives the symbol another value."""
    return next((word for word, own in reversed(told.items())
                 if any(b.name == a.name and b.value != a.value for b in own)),
                "what the plan generates" if any(b.name == a.name for b in step.generated) else "another word")


def is_undone(tree, step, told, word, a):
    """A word may set a default that another one changes: "mla" switches mechanisms off, "gate" one on."""
    others = [b for other, own in told.items() if other != word for b in own]
    return any(b.name == a.name and b.value != a.value for b in others) and \
        a.value != tree.default(tree.find(a.name))


def refuse_undone(tree, step):
    """Each word in a step's name must be true of it.  The tree has the step's values."""
    told = {word: assignments_of(tree, word) for word in step.fragments}
    for word, own in told.items():
        lost = [a for a in own if not tree.holds(a)]
        if not (lost == own or any(is_undone(tree, step, told, word, a) for a in lost)):
            lost = [a for a in lost if fragment_names.is_told(tree, word, a)]
        for a in lost[:1]:
            raise Unfit([f"{step.name}: {culprit(step, told, a)} undoes {word}: CONFIG_{a.name} is "
                         f"{tree.value(tree.find(a.name)) or 'not set'}, not {a.value}"])


def refuse_wrong_names(tree, step):
    for word in step.fragments:
        wrong = None if "=" in word else fragment_names.problem(tree, word, assignments_of(tree, word))
        if wrong:
            raise Unfit([f"{step.name}: {wrong}"])


def describe(word):
    return word if "=" in word else kconfig.question(os.path.join(kconfig.FRAGMENTS, word))


def resolve(tree, base, step):
    """Merges the step's fragments on the base.  The base sets every symbol, so nothing else changes."""
    base = step.base or base
    tree.merge(base)
    before = tree.values()
    layers = read_layers(tree, step.fragments)
    if step.generated:
        layers.append(step.generated)
    for a in itertools.chain(*layers):
        step.named.add(a.name)
        if kconfig.is_for_tools(tree.find(a.name)):
            raise Unfit([f"{a}: a step cannot change what only the tools read"])
    step.inactive = sorted(a.name for a in tree.merge(base, *layers))
    step.values = tree.values()
    refuse_wrong_names(tree, step)
    if not (step.match and step.match.is_generated):
        refuse_undone(tree, step)
    assert all(change.symbol in step.named or None in change
               for change in kconfig.difference(before, step.values))
    step.description = "; ".join(map(describe, step.fragments))
    step.config = tree.config_text()
    step.auto = kconfig.auto_conf(tree)
    step.table = kconfig.table(tree)
    step.symbols = kconfig.program_symbols(tree)


def match_width(tree, base, step, steps):
    """Resolves the step with the width that brings it nearest to the step it is matched to."""
    resolve(tree, base, step)
    other = steps[step.match.number]
    width = str(step.match.find(step, other))
    if width != step.values["FFN_HIDDEN"]:
        step.generated = [kconfig.Assignment("FFN_HIDDEN", width, f"as {other.name}")]
        resolve(tree, base, step)


def tune(tree, base, step, rates, seeds, directory):
    """Makes the candidates; gives the step the rate chosen among them, if one was chosen."""
    def add(rate):
        candidate = dataclasses.replace(step, label=f"{step.label}@{rate}", is_tuned=False,
                                        rate=rate, candidates=[], named=set())
        candidate.generated = step.generated + tuning.assignments(step.values, rate)
        resolve(tree, base, candidate)
        step.candidates.append(candidate)
    for rate in rates:
        add(rate)
    for rate in tuning.added(directory, step, seeds):
        add(rate)
    step.candidates.sort(key=lambda candidate: float(candidate.rate))
    close = tuning.close(directory, step, seeds)
    for candidate in step.candidates:
        candidate.seeds = seeds.of(candidate.rate, close)
    step.rate = tuning.chosen(directory, step, seeds)
    if step.rate is not None:
        step.generated += tuning.assignments(step.values, step.rate)
        resolve(tree, base, step)


def drop_superfluous(steps):
    """Drops generated controls that have the configuration of another step.

    Steps of one size share a control.  It is named after all of them, and the report compares each.
    """
    kept, first = [], {}
    for step in steps:
        other = first.get(step.table) if step.match and step.match.is_generated else None
        if other is None:
            first.setdefault(step.table, step)
            step.number = len(kept)
            kept.append(step)
        elif other.match and other.match.is_generated:
            other.label += f"+{step.match.word}"
    steps[:] = kept


def refuse_duplicates(steps):
    """A tuned step may have the same configuration as another: it may choose the same rate."""
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
    for step in tuned:
        if not step.values["TUNE_RATES"]:       # those of its scale
            raise Unfit([f"{step.name}: CONFIG_TUNE_RATES gives no rates to choose from"])
        tune(tree, base, step, tuning.rates(step.values["TUNE_RATES"]), tuning_seeds(values), directory)
    for step in steps:
        if step.twin is not None:
            step.take_over(steps[step.twin])


def plan(tree, directory=None):
    """The steps of the present configuration, and its own values.

    Choices of learning rates that were made before are found in the directory.
    """
    kconfig.load_present(tree)
    refuse_unknown_selections(tree)
    values = tree.values()
    base = tree.read(kconfig.config_path())
    steps = plan_words.steps_of(values)
    plan_words.check_seeds(steps, values)
    for step in steps:
        step.is_tuned |= values["TUNE_ALL"] == "y"
    if values["PLAN_CONTROLS"] not in (None, "none"):
        plan_words.add_controls(steps, values["PLAN_CONTROLS"])
    if plan_words.kind_of(values) == sizes.KIND:
        bases = sizes.configurations(tree, sizes.scales(values), read_layers)
        for step in steps:
            step.base = bases[step.size]
    resolve_all(tree, base, steps, values, directory)
    refuse_duplicates(steps)
    plan_words.select(steps, values["RA_MLA_ABLATION_STEPS"])
    return steps, values


# ---------------------------------------------------------------- output

# Symbols that tools/cluster reads.
CLUSTER = ("SLURM_PARTITION", "SLURM_ACCOUNT", "SLURM_TIME", "SLURM_SAVE_SECONDS", "SLURM_NODES",
           "SLURM_GPUS", "SLURM_AT_ONCE", "SLURM_OPTIONS")


def as_json(steps, values, seeds):
    own = os.path.join(kconfig.DEFCONFIGS, values["EXPERIMENT"])
    return {
        "experiment": values["EXPERIMENT"],
        "question": kconfig.question(own) or values["PLAN_FACTORS"],
        "compared": compared.line([s.values for step in steps if step.selected
                                   for s in (step.candidates if step.is_open else [step])]),
        "scale": ", ".join(dict.fromkeys(step.size or values["SCALE"] for step in steps)),
        "plan": plan_words.kind_of(values),
        "seeds": seeds,
        "declaration": declaration.declared(steps, values),
        "forecast": values["FORECAST"],
        "cluster": {name: values[name] for name in CLUSTER},
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


REFUSED = "refused"  # in place of an identity
REFUSAL = 1          # the program's exit status when it says why it cannot work


SEEDS_AT_ONCE = 500     # of which a program tells the identities in one call
PROGRAMS_AT_ONCE = 4    # that are asked; each may open a GPU, which takes half a second and some of its memory


def ask_identities(directory, step, seeds):
    """The program's own words and exit status."""
    program = os.path.join(directory, step.name, "kablate")
    return subprocess.run([program, "identity", "--seeds", ",".join(map(str, seeds)), "--repeat",
                           str(step.repeat)], capture_output=True, check=False, text=True)


def identity(directory, step, seed):
    """REFUSED: the program does not accept its configuration; the run will print why.

    A program that ended in another way, perhaps killed, says nothing about its configuration.
    """
    result = ask_identities(directory, step, [seed])
    if result.returncode == REFUSAL:
        return REFUSED
    known = result.stdout.strip()
    if result.returncode or not IDENTITY.fullmatch(known):
        raise Unfit([f"{step.name} did not print the identity of its run with seed {seed}: it "
                     f"{ending(result.returncode)}.  Make again.", *result.stderr.splitlines()])
    return known[:12]


def identities(directory, step, seeds):
    """Of many runs: seed by seed only where the program does not print all of them."""
    found = {}
    for first in range(0, len(seeds), SEEDS_AT_ONCE):
        some = seeds[first:first + SEEDS_AT_ONCE]
        told = ask_identities(directory, step, some).stdout.split()
        if len(told) == len(some) and all(map(IDENTITY.fullmatch, told)):
            found.update((seed, known[:12]) for seed, known in zip(some, told))
        else:
            found.update((seed, identity(directory, step, seed)) for seed in some)
    return found


def identities_of_all(directory, wanted):
    """identities() of each (step, seeds), in order."""
    with concurrent.futures.ThreadPoolExecutor(PROGRAMS_AT_ONCE) as pool:
        return list(pool.map(lambda asked: identities(directory, *asked), wanted))


def ending(status):
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def all_runs(steps, values, seeds, directory):
    """Every run of the plan; first those whose programs refuse, so that make fails early.

    All steps of the first seed come before those of the second, so a stop leaves whole seeds to compare.
    Tuning goes step by step: a rate needs all of its runs.  The path of a run, below RUNS, has the run's identity, so another run has another path.
    `look` counts the looks (CONFIG_LOOKS) that do without the run's seed: one process may train the seeds of a
    step that the same look adds.  `rates`: those of a candidate that one process may train with the step's others.
    """
    name, looks = values["EXPERIMENT"], declaration.looks_of(values, seeds)
    wanted = [("run", name, step, step, seeds_of(step, seeds)) for step in steps_to_run(steps)]
    wanted += [("tuning", tuning.experiment(name), step, candidate, candidate.seeds)
               for step in tuned_steps(steps) for candidate in step.candidates]
    told = identities_of_all(directory, [run[3:] for run in wanted])
    known = [(*run, seed, its_identity, its_seeds.index(seed) if run[0] == "run" else 0)
             for (*run, its_seeds), its_identities in zip(wanted, told)
             for seed, its_identity in its_identities.items()]
    known.sort(key=lambda run: (run[-2] != REFUSED, run[-1]))
    return [{"kind": kind, "experiment": experiment, "of": step.name, "step": program.name,
             "seed": seed, "identity": its_identity,
             "repeat": program.repeat if kind == "run" else 0,
             "baseline": steps[program.baseline].name if kind == "run" else program.name,
             "threads": int(program.values["THREADS"]),
             "ranks": int(program.values.get("RANKS") or 1),
             "look": sum(number >= look for look in looks) if kind == "run" else 0,
             "rates": tuning.rates_of_replica(program.values) if kind == "tuning" else "",
             "directory": f"{experiment}/{program.name}-{seed}-{its_identity}"}
            for kind, experiment, step, program, seed, its_identity, number in known]


def planned_runs(known, steps, values, seeds):
    """For RUNS/EXPERIMENT/planned.json (tools/results/time_left.py): also the runs whose rate is still to be chosen."""
    open_runs = [{"kind": "run", "experiment": values["EXPERIMENT"], "step": step.name, "seed": seed, "identity": None}
                 for step in steps if step.selected and step.is_open for seed in seeds_of(step, seeds)]
    return [{name: run[name] for name in ("kind", "experiment", "step", "seed", "identity")}
            for run in known + open_runs]


def runs_for_make(known, directory):
    """Below whatever RUNS is: several makes with directories of their own share the file."""
    lines = []
    for run in known:
        target = f"$(RUNS)/{run['directory']}/done"
        group = f"{run['of']}@rates" if run["rates"] else run["step"]
        part = f"{group}.{run['look']}"
        lines += [f"{run['kind']}-targets += {target}",
                  f"{run['kind']}-targets-of-{run['of']} += {target}",
                  f"{target}: STEP := {run['step']}", f"{target}: SEED := {run['seed']}",
                  f"{target}: IDENTITY := {run['identity']}",
                  f"{target}: EXPERIMENT := {run['experiment']}",
                  f"targets-of-{group} += {target}",
                  f"parts-of-{run['step']} += {part}",
                  f"targets-of-{part} += {target}",
                  f"runs-of-{part} += {run['seed']}:{run['identity']}:{run['step']}:{run['rates']}"]
    if any(run["identity"] == REFUSED for run in known):
        # The reason, such as a lack of memory or data, may be gone next time.
        lines.append(f"{directory}/runs.mk: $(if $(MAKE_RESTARTS),,FORCE)")
    return "\n".join(lines) + "\n"


def for_make(steps, values):
    now, tuned = steps_to_run(steps), tuned_steps(steps)
    candidates = [candidate for step in tuned for candidate in step.candidates]
    lines = [f"plan-experiment := {values['EXPERIMENT']}", f"plan-scale := {values['SCALE']}",
             f"plan-threads := {values['THREADS']}", f"plan-ranks := {values['RANKS']}",
             f"plan-steps := {' '.join(step.name for step in now)}",
             f"plan-open := {' '.join(s.name for s in steps if s.selected and s.is_open)}",
             f"plan-tuned := {' '.join(step.name for step in tuned)}",
             "plan-examined := " + " ".join(dict.fromkeys(
                 plan_table.examined(steps, step) for step in steps if step.selected)),
             f"plan-candidates := {' '.join(candidate.name for candidate in candidates)}"]
    for step in now:
        lines += [f"repeat-{step.name} := {step.repeat}",
                  f"baseline-{step.name} := {steps[step.baseline].name}"]
    lines += [f"plan-forecast := {values['FORECAST']}"] * bool(values["FORECAST"])
    lines += [f"scale-{step.name} := {step.size}" for step in now + candidates if step.size]
    lines += [f"tuned-for-{step.name} := {source(steps, step).name}" for step in steps
              if step.selected and step.is_tuned]
    for candidate in candidates:
        lines += [f"repeat-{candidate.name} := 0", f"baseline-{candidate.name} := {candidate.name}"]
    return "\n".join(lines) + "\n"


def write(steps, values, head, directory, configuration):
    """`head` is the plan as in plan.json."""
    for step in itertools.chain(steps, *(step.candidates for step in tuned_steps(steps))):
        files = {"config": step.config, "auto.conf": step.auto,
                 "generated/config_table.h": step.table,
                 "diff": "".join(f"{change}\n" for change in changes(steps, step))}
        for name, text in files.items():
            kconfig.write_text(os.path.join(directory, step.name, name), text)
    kconfig.write_text(os.path.join(directory, "plan.mk"), for_make(steps, values))
    kconfig.write_text(os.path.join(directory, "plan.json"), json.dumps(head, indent=1) + "\n")
    kconfig.write_text(os.path.join(directory, "configuration"), configuration)     # all is there


def choose_rate(steps, values, args):
    step = next(step for step in steps if step.name == args.choose)
    told = identities_of_all(args.output, [(candidate, candidate.seeds) for candidate in step.candidates])
    for sentence in tuning.choose(args.output, step, tuning_seeds(values), tuning.rates(values["TUNE_RATES"]),
                                  os.path.join(args.runs, "results.db"), told):
        print(f"{step.name}: {sentence}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="example: python3 -m tools.plan.plan --output build/plan")
    parser.add_argument("--output", metavar="DIR", help="write the steps' files there")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("--list", action="store_true",
                        help="write DIR/runs.mk: a target for every run of every step")
    parser.add_argument("--show", metavar="RUNS",
                        help="estimate times by the finished runs there")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--choose", metavar="STEP", help="choose its learning rate")
    parser.add_argument("--runs", metavar="RUNS", help="by the results there")
    args = parser.parse_args(argv)
    try:
        tree = kconfig.Tree()
        configuration = kconfig.read_text(kconfig.config_path())
        steps, values = plan(tree, args.output)
        seeds = numbers("SEEDS", values["SEEDS"])
        if args.choose:
            choose_rate(steps, values, args)
            return
        head = as_json(steps, values, seeds)
        if args.output:
            write(steps, values, head, args.output, configuration)
        if args.list:
            known = all_runs(steps, values, seeds, args.output)
            kconfig.write_text(os.path.join(args.output, "runs.json"), json.dumps(known) + "\n")
            kconfig.write_text(os.path.join(args.output, time_left.FILE),
                               json.dumps(planned_runs(known, steps, values, seeds)) + "\n")
            kconfig.write_text(os.path.join(args.output, "runs.mk"),
                               runs_for_make(known, args.output))
        elif not args.quiet:
            plan_table.show(tree, head, steps, values, args)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
