#!/usr/bin/env python3
"""Lists the declared studies: every defconfig with a margin, and its runs at each look.

    studies.py [NAME...]        only these;  example: studies.py ra-tying

Runs that choose rates are made once, before the first look.  A list of rates that widens adds more.
"""
import argparse
import os
import sys
import tempfile
from dataclasses import dataclass

from tools.plan import declaration, kconfig, plan
from tools.plan.plan_table import runs_to_tune
from tools.plan.plan_words import tuned_steps


@dataclass
class Study:
    name: str
    question: str
    arms: int           # steps with runs to be judged; no repetition
    primary: str
    margin: str
    tuning: int         # runs
    runs: dict          # number of seeds -> runs so far, without those to tune

    @property
    def last(self):
        return self.tuning + max(self.runs.values())


def declares(tree, name):
    return any(a.name == "MARGIN" for a in tree.read(os.path.join(kconfig.DEFCONFIGS, name)))


def study(name):
    """Plans it as make would."""
    path, tree = os.path.join(kconfig.DEFCONFIGS, name), kconfig.Tree()
    tree.merge(tree.read(path))
    with tempfile.TemporaryDirectory(prefix="kablate-studies-") as directory:
        os.environ["KCONFIG_CONFIG"] = os.path.join(directory, "config")
        kconfig.write_text(os.environ["KCONFIG_CONFIG"], tree.config_text())
        steps, values = plan.plan(tree)
    selected = [step for step in steps if step.selected]
    declared = declaration.declared(steps, values)
    return Study(name, kconfig.question(path), sum(step.repeats is None for step in selected), values["PRIMARY"],
                 values["MARGIN"], runs_to_tune(tuned_steps(steps)),
                 {n: sum(1 if step.repeats is not None else n for step in selected) for n in declared["looks"]})


def lines(studies):
    for one in studies:
        yield f"{one.name}: {one.question}"
        yield f"  {one.arms} arms; primary: {one.primary or 'all'}; margin {one.margin}; {one.tuning} runs to tune; " + \
            ", ".join(f"{runs} runs at {n} seeds" for n, runs in one.runs.items())
    yield f"{len(studies)} {'study' if len(studies) == 1 else 'studies'}, {sum(one.last for one in studies):,} runs with every look"


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args(argv)
    try:
        tree = kconfig.Tree()
        names = args.names or [name for name in kconfig.names_in(kconfig.DEFCONFIGS) if declares(tree, name)]
        for line in lines([study(name) for name in names]):
            print(line)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
