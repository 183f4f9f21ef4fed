"""Matched controls: steps whose feed-forward is widened to the size of another step.

bin/match_width finds the width from the model's real counts (tools/plan/match_width.c).
"""
import os
import subprocess
from dataclasses import dataclass

from tools.plan.kconfig import Unfit

QUANTITIES = {"parameters": "parameters", "flops": "FLOPs/token"}     # in the order counted


def match_width(symbols, *options):
    """Width, parameters and FLOPs per token of a configuration; Unfit if match_width refuses it."""
    program = os.path.join(os.environ.get("O", "build"), "bin", "match_width")
    try:
        done = subprocess.run([program, *options], input=symbols, capture_output=True, text=True,
                              check=False)
    except FileNotFoundError:
        raise Unfit([f"{program} does not exist: matched steps need it; make builds it"]) from None
    if done.returncode:
        raise Unfit([done.stderr.strip()])
    return map(int, done.stdout.split())


@dataclass
class Match:
    quantity: str               # parameters or flops
    number: int                 # of the step to be matched
    is_generated: bool = False  # by CONFIG_PLAN_CONTROLS
    target: int = None
    found: int = None

    @property
    def word(self):
        """The word in the name of a step."""
        return f"{self.quantity}-of-{self.number}"

    def find(self, step, other):
        """The width to set."""
        def size(counted):
            return dict(zip(QUANTITIES, counted))[self.quantity]
        _, *counted = match_width(other.symbols)
        self.target = size(counted)
        try:
            width, *counted = match_width(step.symbols, f"--{self.quantity}", str(self.target))
        except Unfit as unfit:
            raise Unfit([f"{step.name}: {problem}" for problem in unfit.problems]) from None
        self.found = size(counted)
        return width

    def remaining(self, steps):
        """The difference in size that remains."""
        return f"{self.found - self.target:+,} {QUANTITIES[self.quantity]} to " \
            f"{steps[self.number].name}: {self.found / self.target - 1:+.3%}"

    def as_json(self, steps):
        return {"quantity": self.quantity, "step": steps[self.number].name,
                "target": self.target, "found": self.found}
