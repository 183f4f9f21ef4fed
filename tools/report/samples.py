"""What the steps write after the same prompt: text drawn and recorded at the end of training."""
from dataclasses import dataclass


@dataclass
class Samples:
    """After one prompt."""
    prompt: str
    texts: list     # (step, seed, text): of the lowest seed


def readable(text):
    """On one line."""
    return text.strip(" ").replace("\r", "").replace("\n", "↵")


def collect(steps):
    """By prompt, in the order of the steps; a repeated step says the same again."""
    found = {}
    for step in steps:
        told = [run for run in step.usable.values() if run.sample is not None]
        if step.repeat or not told:
            continue
        run = min(told, key=lambda one: one.seed)
        found.setdefault(run.prompt, Samples(run.prompt, [])).texts.append(
            (step.name, run.seed, run.sample))
    return list(found.values())


def lines(samples):
    for one in samples:
        yield f"After: {readable(one.prompt)}"
        for step, seed, text in one.texts:
            yield f"{step}, seed {seed}: {readable(text)}"
