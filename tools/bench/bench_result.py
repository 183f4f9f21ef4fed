"""What the benchmark found of a row, as numbers, as text and as tables."""
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass, field, fields

from tools.plan import kconfig
from tools.terminal import terminal

MIB = 2 ** 20
# Losses of the same start and batches, ours and PyTorch's: the largest relative difference of the first
# and of the last.  Precisions differ in what they round, and updates enlarge what differs.
TOLERANCE = {"float32": (1e-4, 1e-2), "bfloat16": (5e-3, 5e-2)}


@dataclass
class Result:
    row: str
    precision: str
    goal: float = None
    backend: str = "cpu"
    threads: int = 0
    tokens: int = 0
    parameters: int = 0
    flops: float = 0            # of an iteration
    bytes: float = 0            # that its ops read and write
    peak: int = None            # bytes, ours
    their_peak: int = None      # of the smallest form; on a GPU of the fastest ...
    their_base: int = None      # ... and what the interpreter with torch takes before there is a model
    form: str = None            # the fastest
    forms: dict = field(default_factory=dict)   # form -> seconds and peak, or why not
    rounds: list = field(default_factory=list)  # seconds of both, and the ceilings
    losses: list = field(default_factory=list)  # of the first updates, ours
    their_losses: list = field(default_factory=list)
    about: dict = field(default_factory=dict)   # date and machine

    def over_rounds(self, value):
        found = [v for v in map(value, self.rounds) if v is not None]
        return (statistics.median(found), min(found), max(found)) if found else None

    def ours(self):
        return self.over_rounds(lambda r: r["ours"])

    def theirs(self):
        return self.over_rounds(lambda r: r.get("theirs"))

    def ratio(self):
        return self.over_rounds(lambda r: r["theirs"] / r["ours"] if r.get("theirs") else None)

    def processor_ratio(self):
        """What other programs on the machine take does not count; threads that wait by spinning do."""
        return self.over_rounds(lambda r: r["theirs_processor"] / r["ours_processor"]
                                if self.backend == "cpu" and self.threads == 1 and r.get("theirs_processor") else None)

    def of_ceiling(self, whose="ours"):
        return self.over_rounds(lambda r: self.flops / r[whose] / r["products"]
                                if r.get("products") and r.get(whose) else None)

    def of_bandwidth(self):
        return self.over_rounds(lambda r: self.bytes / r["ours"] / r["bytes"] if r.get("bytes") else None)

    def bound(self):
        return self.over_rounds(lambda r: r["theirs"] * r["products"] / self.flops
                                if r.get("theirs") and r.get("products") else None)

    def rest(self, peak):
        return peak - 16 * self.parameters if peak else None

    def reached(self):
        return self.ratio()[0] >= self.goal if self.goal and self.ratio() else None

    def forbidden(self):
        """Is the aim above the speed of large products?  (Products of our own may be faster.)"""
        return bool(self.goal and self.backend == "cpu" and self.flops and self.bound()
                    and self.bound()[0] < self.goal)

    def agrees(self, theirs):
        """Are these losses ours, up to rounding?  None: there is nothing to compare."""
        if not self.losses or not theirs:
            return None
        return all(abs(self.losses[i] - theirs[i]) <= most * abs(self.losses[i])
                   for i, most in zip((0, -1), TOLERANCE[self.precision]))


# ---------------------------------------------------------------- cells

TEXTS = "row", "precision"
CPU_HEAD = ("row", "precision", "ours ms", "tokens/s", "of ceiling", "PyTorch ms", "its form", "ratio", "bound",
            "aim", "peak MiB", "PyTorch's", "rest MiB", "PyTorch's", "import torch")
GPU_HEAD = ("row", "precision", "ours ms", "tokens/s", "of products", "of copies", "PyTorch ms", "tokens/s",
            "of products", "its form", "ratio", "aim", "peak MiB", "PyTorch's", "loss", "PyTorch's", "date")


def spread(three, form):
    if not three:
        return ""
    middle, low, high = (form.format(v) for v in three)
    return middle if low == high else f"{middle} ({low}-{high})"


def scaled(three, factor):
    return three and tuple(factor * v for v in three)


def mebibytes(count):
    return "" if count is None else f"{count / MIB:.0f}"


def goal_text(r):
    if not r.goal:
        return ""
    missed = " missed, above the bound" if r.forbidden() else " missed"
    return f"{r.goal:g}" + {None: "", True: " reached", False: missed}[r.reached()]


def rate(r, three):
    return f"{r.tokens / three[0]:.0f}" if r.tokens and three else ""


def last(losses):
    return f"{losses[-1]:.4f}" if losses else ""


def cpu_cells(r):
    return (r.row, r.precision, spread(scaled(r.ours(), 1e3), "{:.1f}"), rate(r, r.ours()),
            spread(scaled(r.of_ceiling(), 100), "{:.0f}%") if r.flops else "",
            spread(scaled(r.theirs(), 1e3), "{:.1f}"), r.form or "", spread(r.ratio(), "{:.2f}"),
            spread(r.bound(), "{:.2f}") if r.flops else "", goal_text(r),
            mebibytes(r.peak), mebibytes(r.their_peak), mebibytes(r.rest(r.peak)), mebibytes(r.rest(r.their_peak)),
            mebibytes(r.their_base))


def gpu_cells(r):
    percent = [spread(scaled(three, 100), "{:.1f}%") for three in
               (r.of_ceiling(), r.of_bandwidth(), r.of_ceiling("theirs"))]
    return (r.row, r.precision, spread(scaled(r.ours(), 1e3), "{:.3f}"), rate(r, r.ours()), *percent[:2],
            spread(scaled(r.theirs(), 1e3), "{:.3f}"), rate(r, r.theirs()), percent[2], r.form or "",
            spread(r.ratio(), "{:.2f}"), goal_text(r), mebibytes(r.peak), mebibytes(r.their_peak),
            last(r.losses), last(r.their_losses),
            r.about.get("date", ""))


def markdown(results, backend="cpu"):
    head, cells = (GPU_HEAD, gpu_cells) if backend == "cuda" else (CPU_HEAD, cpu_cells)
    return terminal.markdown(head, map(cells, results), TEXTS.__contains__)


# ---------------------------------------------------------------- text

def losses_text(r):
    if not r.their_losses:
        return f"loss {r.losses[0]:.4f}, after {len(r.losses)} updates {last(r.losses)}" if r.losses else ""
    wrong = "" if r.agrees(r.their_losses) else ": THEY DIFFER, SO ONE SIDE COMPUTES SOMETHING ELSE"
    return (f"loss ours {r.losses[0]:.4f}, in update {len(r.losses)} {last(r.losses)}; PyTorch {r.their_losses[0]:.4f}, "
            f"{last(r.their_losses)}{wrong}")


def row_lines(r):
    """The cells that are known, below each other, and what no table has."""
    head, cells = (GPU_HEAD, gpu_cells) if r.backend == "cuda" else (CPU_HEAD, cpu_cells)
    for name, cell in list(zip(head, cells(r)))[2:]:
        if cell:
            yield f"    {name:14} {cell}"
    if r.processor_ratio():
        yield f"    processor time alone: ratio {spread(r.processor_ratio(), '{:.2f}')}"
    if r.losses:
        yield "    " + losses_text(r)


def form_line(form, found):
    if "failed" in found:
        return f"    {form}: {found['failed']}"
    wrong = "" if found.get("agrees", True) else ", other losses than ours"
    return f"    {form}: {1e3 * found['seconds']:.3f} ms{wrong}"


def print_row(r):
    """One block per row: the table is too wide for a terminal."""
    print(f"{r.row} ({r.precision}, " + (f"{r.threads} threads)" if r.backend == "cpu" else f"{r.backend})"))
    print("\n".join(row_lines(r)))
    for form, found in r.forms.items():
        if r.backend != "cpu" or "failed" in found:
            print(form_line(form, found))
    sys.stdout.flush()


# ---------------------------------------------------------------- files

def entry(r):
    return asdict(r) | {"ratio": r.ratio(), "processor_ratio": r.processor_ratio(), "bound": r.bound(),
                        "of_ceiling": r.of_ceiling(), "of_bandwidth": r.of_bandwidth()}


def restored(found):
    known = {f.name for f in fields(Result)}
    return Result(**{name: value for name, value in found.items() if name in known})


class Collection:
    """Results of several runs in one file, by key; what is measured again replaces the earlier one."""

    def __init__(self, path):
        self.path, self.found = path, {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.found = json.load(file)["rows"]

    def put(self, key, found):
        self.found[key] = found
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        kconfig.write_text(self.path, json.dumps({"rows": self.found}, indent=1) + "\n")


def key(r):
    return f"{r.row} {r.precision}"
