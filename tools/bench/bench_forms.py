"""PyTorch's forms: which there are, which is tried next, and how each is started.

A form is a text: WAY ATTENTION, and further words; bench_torch.py explains them.  On the CPU every form
is tried.  On a GPU there are too many, and each is compiled for up to minutes.  So first every
attention is tried in one way; then the other ways with the fastest attention, and where that fails, with
the second fastest.
"""
import fnmatch
import os

TORCH_TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_torch.py")
CPU_FORMS = ("eager sdpa", "eager plain", "compiled sdpa", "compiled plain")
EXPLICIT_FORMS = ("eager plain",)   # of attention from general ops: the same formula, op by op
ATTENTIONS = {"bfloat16": ("sdpa-cudnn", "sdpa-flash", "sdpa-efficient"), "float32": ("sdpa-efficient",)}
SLOW_ATTENTIONS = ("plain", "sdpa-math")    # where nothing reads the probabilities
GPU_WAYS = ("graph", "autotuned", "reduce-overhead", "autotuned-graph", "compiled", "max-autotune", "eager")
SMALL_TOKENS = 4096     # of a batch: launching takes longer than computing


def has_time(tried):
    return {form: found["seconds"] for form, found in tried.items() if "seconds" in found}


def fastest(tried):
    """Forms whose losses are not ours count only if all are so."""
    times = has_time(tried)
    return min(times, key=lambda form: (not tried[form].get("agrees", True), times[form]), default=None)


def gpu_forms(tried, precision, routed, tokens, flex=False):
    """The forms in the order in which they are tried; what comes later depends on what was fastest."""
    small = tokens <= SMALL_TOKENS
    first = "graph" if small else "compiled"
    attentions = ["flex"] if flex else [*ATTENTIONS[precision], *(("plain",) if routed or small else ())]
    yield from (f"{first} {attention}" for attention in attentions)

    def best():
        return (fastest(tried) or f"{first} {attentions[0]}").split()
    if routed and "gather" not in best():
        yield " ".join([*best(), "gather"])
    yield " ".join(["graph", *best()[1:]])
    if precision == "bfloat16" and "narrow" not in best():
        yield " ".join([*best(), "narrow"])
    words = best()[1:]
    times = has_time(tried)
    others = sorted((a for a in attentions if a != words[0] and f"{first} {a}" in times),
                    key=lambda a: times[f"{first} {a}"])
    for way in GPU_WAYS:
        yield (form := " ".join([way, *words]))
        if "failed" in tried.get(form, {}) and others:
            yield " ".join([way, others[0], *words[1:]])
    yield from (f"{first} {attention}" for attention in SLOW_ATTENTIONS if not flex)


def next_form(tried, backend, precision, routed=False, tokens=0, patterns="*", flex=False,
              explicit=False):
    """The form to be tried next, or None."""
    forms = EXPLICIT_FORMS if explicit else CPU_FORMS if backend == "cpu" else \
        gpu_forms(tried, precision, routed, tokens, flex)
    return next((form for form in forms if form not in tried and
                 any(fnmatch.fnmatch(form, pattern) for pattern in patterns.split(","))), None)


def torch_command(python, config, form, precision, vocab, backend="cpu", start=None):
    return [python, TORCH_TOOL, config, "--form", form, "--precision", precision, "--vocab", str(vocab),
            "--device", backend, *(["--start", start] if start else [])]


def environment(directory):
    """Compiled kernels are kept, so a later run of the same row starts soon."""
    cache = os.path.abspath(os.path.join(directory, "torch-cache"))
    return os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache),
                         "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", os.path.join(cache, "triton")),
                         "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
