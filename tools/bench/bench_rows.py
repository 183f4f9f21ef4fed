"""The rows of the benchmarks: one description for every backend.

A row is a configuration, from a defconfig, fragments and symbols.  A GPU has rows of its own, with
larger batches; at the laptop scale the rows are the same.
"""
import fnmatch
from dataclasses import dataclass

from tools.plan import kconfig

BACKENDS = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16")
# The rate is full from the first update on, so that ten updates show a wrong one.
ITERATIONS = {"SCHEDULE": "constant", "WARMUP_ITERS": 0}
GPT2 = {"TASK": "copy", "COPY_VOCAB": 50304, "OPTIMIZER": "adamw", "TRAIN_ACCUMULATE": 1}
RESIDUAL = {"PRECISION": "bfloat16", "STORE_ACTIVATIONS": "bfloat16_residual"}
TERMS = {"alibi": {"POS": "alibi"}, "t5": {"POS": "t5"}, "softcap": {"ATTENTION_SOFTCAP": 50},
         "window": {"ATTENTION_WINDOWED": "y", "ATTENTION_WINDOW": 256}}
VARIANTS = {    # name: defconfig and fragments
    "dot": ("", "dot"), "mla": ("", "mla"), "step1": ("", "mla gate"), "step2": ("", "mla gate cross"),
    "step3": ("", "mla gate cross latent"), "w2": ("w2-text", "w2"), "dot-swiglu": ("w2-text", "dot"),
    "wsffn": ("wsffn", "ws")}


@dataclass
class Row:
    name: str
    start: str              # defconfig, or nothing
    fragments: str
    set: dict               # symbols
    goal: dict              # precision -> ratio, or None; the precisions in which it is measured
    whole: bool = False     # a whole run instead of iterations


def gpt2(variant, batch, length, goal, more=None, suffix=""):
    start, fragments = VARIANTS[variant]
    return Row(f"124m-{variant}-{batch}x{length}{suffix}", start, "124m " + fragments,
               GPT2 | {"TRAIN_BATCH": batch, "MODEL_BLOCK": length} | (more or {}), goal)


def laptop(variant, goal):
    return Row(f"laptop-{variant}", "gpt2-ra-mla-full", VARIANTS[variant][1], {"OPTIMIZER": "adamw"}, goal)


def both(float32=None, bfloat16=None):
    return {"float32": float32, "bfloat16": bfloat16}


def explicit(batch):
    """Attention from general ops, which holds T x T numbers, beside the same formula in eager PyTorch."""
    return Row(f"124m-differential-{batch}x1024", "", "124m",
               GPT2 | {"ATTENTION": "differential", "TRAIN_BATCH": batch, "MODEL_BLOCK": 1024},
               {"float32": 1, "bfloat16": 1})


def w2_benchmark(goal):
    """The shapes of the published benchmark of W2, and the length for which it claims 227 MB and 1.2 times the time."""
    for length in (128, 512):
        for name, fragments in (("dot", "dot"), ("dot-e96", "dot e96"), ("w2", "w2")):
            yield Row(f"w2-copy-{name}" + ("" if length == 128 else f"-{length}"), "w2-copy", fragments,
                      {"MODEL_BLOCK": length}, goal)


def cpu_rows():
    goal = {"dot": 1.25, "mla": 1.25, "step1": 1.25, "dot-swiglu": None}
    for batch, length in ((1, 1024), (4, 256)):
        for variant in VARIANTS:
            ratio = goal.get(variant, 1.3)
            yield gpt2(variant, batch, length, both(ratio, ratio and 2))
    yield explicit(1)
    yield Row("6x384-dot-8x256", "", "small dot",
              {"TASK": "copy", "COPY_VOCAB": 256, "TRAIN_BATCH": 8, "MODEL_BLOCK": 256}, both())
    for variant in ("mla", "step1", "step2", "step3"):
        yield laptop(variant, both(2, 2.5))
    yield from w2_benchmark(both())
    run = {"OPTIMIZER": "adamw", "SEEDS": "1", "PLAN": "single"}
    for name, symbols, ratio in (("", {}, 2), ("-2-threads", {"THREADS": 2}, 2),
                                 ("-2-threads-unfolded", {"THREADS": 2, "CROSS_FOLDED": "n"}, None)):
        yield Row(f"laptop-run-step3{name}", "gpt2-ra-mla-full", "mla gate cross latent", run | symbols,
                  {"float32": ratio}, whole=True)


def gpu_rows():
    """The most important first; -residual: the residual stream in bfloat16 as well; -recomputed: and less memory."""
    yield gpt2("dot", 16, 1024, {"bfloat16": 1.1, "float32": 1})
    rows = [("dot", 64, 1.1), *((variant, 16, ratio) for variant, ratio in (
        ("mla", 1.4), ("step3", 1.5), ("w2", 1.4), ("wsffn", 1.3), ("step1", 1.4), ("step2", 1.5)))]
    for variant, batch, ratio in rows:
        yield gpt2(variant, batch, 1024, {"bfloat16": ratio})
    for variant in ("mla", "step3", "step1", "step2"):
        yield laptop(variant, {"bfloat16": 2})
    for variant, batch, ratio in [("dot", 16, 1.1), *rows]:
        yield gpt2(variant, batch, 1024, {"bfloat16": ratio}, RESIDUAL, "-residual")
    for name, terms in TERMS.items():   # beside FlexAttention
        yield gpt2("dot", 4, 4096, {"bfloat16": 1}, terms, f"-{name}")
    yield explicit(4)
    yield from w2_benchmark(both())
    for batch in (64, 16):
        yield gpt2("dot", batch, 1024, {"bfloat16": 1.1}, RESIDUAL | {"RECOMPUTE": "y"}, "-recomputed")


def decode_rows():
    """Models whose decoding is measured on a GPU: the aim, as a share of the bandwidth's limit, by batch."""
    for variant in ("dot", "mla", "step3", "w2", "wsffn"):
        start, fragments = VARIANTS[variant]
        yield Row(f"124m-{variant}", start, "124m " + fragments, GPT2 | {"MODEL_BLOCK": 1024}, {1: 0.4, 64: 0.6})


def rows(backend="cpu"):
    return list(gpu_rows() if backend == "cuda" else cpu_rows())


def chosen(patterns, among):
    found = [row for row in among if any(fnmatch.fnmatch(row.name, p) for p in patterns.split(","))]
    if not found:
        raise SystemExit(f"bench: no row is called {patterns}; there are {' '.join(r.name for r in among)}")
    return found


def precisions(row, pattern):
    """Those of the row that fit; one that is named counts even if the row has no aim for it."""
    named = [pattern] if pattern in PRECISIONS and not row.whole and "PRECISION" not in row.set else []
    return [p for p in dict.fromkeys([*row.goal, *named]) if fnmatch.fnmatch(p, pattern)]


# ---------------------------------------------------------------- configurations

def resolve(tree, start, fragments, symbols):
    """Strictly, as make does: what does not fit is an error."""
    layers = [tree.read(kconfig.named_file(kconfig.DEFCONFIGS, "defconfig", start))] if start else [[]]
    layers += [kconfig.read_fragment(tree, name) for name in fragments.split()]
    given, problems = tree.parse([kconfig.with_quotes(tree, f"CONFIG_{name}={value}")
                                  for name, value in symbols.items()], "")
    if problems:
        raise kconfig.Unfit(problems)
    tree.merge(*layers, given)
