"""The cost of decoding: bench_decode.py measures it and writes RUNS/EXPERIMENT/decode/STEP.json.

A file holds {"own": the output of `kablate bench-decode`, "peer": PyTorch's numbers or null}.  Each
token reads every weight and all of the state, so the limit of tokens per second is the machine's
read bandwidth divided by those bytes.
"""
import json
import os
from dataclasses import dataclass, field

from tools.results import plain, records

DIRECTORY = "decode"
ENVIRONMENT = ("machine", "blas", "compiler", "threads", "precision")
# As in the files; the last is PyTorch's.
QUANTITIES = ("state_bytes", "first_token_seconds", "prompt_flops", "token_seconds", "token_bytes",
              "read_bytes_per_second", "sgemm_flops_per_second", "peer_token_seconds")


@dataclass
class Measured:
    """One step at one context."""
    step: str
    context: int
    batch: int
    numbers: dict       # of QUANTITIES; None: not measured

    @property
    def state_per_token(self):
        return self.numbers["state_bytes"] / (self.context * self.batch)

    @property
    def prompt_share(self):
        """Share of the speed of matrix products; None: that was not measured, as on a GPU."""
        n = self.numbers
        return n["sgemm_flops_per_second"] and n["prompt_flops"] / n["first_token_seconds"] / n["sgemm_flops_per_second"]

    @property
    def tokens_per_second(self):
        return self.batch / self.numbers["token_seconds"]

    @property
    def limit(self):
        return self.batch * self.numbers["read_bytes_per_second"] / self.numbers["token_bytes"]

    @property
    def peer_tokens_per_second(self):
        seconds = self.numbers["peer_token_seconds"]
        return seconds and 1 / seconds


    def __post_init__(self):
        """A file may say anything."""
        for name, value in {"context": self.context, "batch": self.batch, **self.numbers}.items():
            may_be_missing = name in ("peer_token_seconds", "sgemm_flops_per_second")
            if not (may_be_missing and not value) and not (type(value) in (int, float) and value > 0):
                raise ValueError(f"{name} is {value!r}")


@dataclass
class Decoding:
    """The measurements of an experiment's steps."""
    measured: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    problems: list = field(default_factory=list)


def measured(step, found):
    """The contexts of a file."""
    own, peer = found["own"], found["peer"]
    seconds = {x["context"]: x["token_seconds"] for x in peer["contexts"]} if peer else {}
    for x in own["contexts"]:
        numbers = {**x, "peer_token_seconds": seconds.get(x["context"])}
        yield Measured(step, x["context"], own["batch"],
                       {name: numbers[name] for name in QUANTITIES})


def environment(found):
    own, peer = found["own"], found["peer"]
    record = own["record"]
    place = records.for_readers({name: record[name] for name in ENVIRONMENT}, record["config"])
    words = [*(f"{name} {value}" for name, value in place.items()), f"batch {own['batch']}"]
    return ", ".join(words + ([f"PyTorch {peer['torch']}"] if peer else []))


def changed(step, found):
    """The symbols that changed since the measurement; None: none did.  A measurement may lack data."""
    then, now = found["own"]["record"]["config"], step.config
    known = then.keys() | now.keys() if "TASK" in then else then.keys()
    symbols = [name for name in sorted(known) if then.get(name) != now.get(name)]
    return f"{step.name}: measured with other values of {', '.join(symbols)}" if symbols else None


def read(runs, experiment, steps):
    """All that was measured for an experiment's steps."""
    decoding, places = Decoding(), {}
    for step in steps:
        path = os.path.join(runs, experiment, DIRECTORY, step.name + ".json")
        if not os.path.exists(path):
            continue
        try:
            found = json.loads(plain.text(path))
            own, place, note = [*measured(step.name, found)], environment(found), changed(step, found)
            grid(own)       # its numbers can be shown
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            decoding.problems.append(f"{path}: not what 'make bench-decode' writes, which measures "
                                     f"it anew ({error!r})")
            continue
        decoding.measured += own
        decoding.notes += filter(None, [note])
        places.setdefault(place, []).append(step.name)
    decoding.notes += [place + (f": {', '.join(names)}" if len(places) > 1 else "")
                       for place, names in places.items()]
    return decoding


def grid(entries):
    """Headings, and the cells of each row."""
    headings = ["step", "context", "state MiB", "state B/token", "first token s", "of sgemm",
                "tokens/s", "MB read/token", "limit/s", "reached", "PyTorch/s"]
    cells = [[m.step, str(m.context), f"{m.numbers['state_bytes'] / 2**20:.2f}",
              f"{m.state_per_token:.0f}", f"{m.numbers['first_token_seconds']:.3g}",
              f"{m.prompt_share:.0%}" if m.prompt_share else "", f"{m.tokens_per_second:.1f}",
              f"{m.numbers['token_bytes'] / m.batch / 1e6:.1f}", f"{m.limit:.1f}",
              f"{m.tokens_per_second / m.limit:.0%}",
              f"{m.peer_tokens_per_second:.1f}" if m.peer_tokens_per_second else ""]
             for m in entries]
    if not any(line[-1] for line in cells):
        headings, cells = headings[:-1], [line[:-1] for line in cells]
    return headings, cells
