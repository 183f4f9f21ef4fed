"""PyTorch's forms: which there are, and how each is started.

A form is a text: WAY ATTENTION, and further words; bench_torch.py explains them.  Each is tried, in
this order, as far as the time of a row allows; a GPU compiles for up to minutes, so it has those that
were fastest of some row of docs/performance/h200.md, and their neighbours.
"""
import fnmatch
import os

TORCH_TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_torch.py")
CPU_FORMS = ("eager sdpa", "eager plain", "compiled sdpa", "compiled plain")
EXPLICIT_FORMS = ("eager plain",)   # of attention from general ops: the same formula, op by op
ATTENTIONS = {"bfloat16": ("sdpa-cudnn", "sdpa-flash", "sdpa-efficient"), "float32": ("sdpa-efficient",)}
LARGE_WAYS, SMALL_WAYS = ("compiled", "reduce-overhead", "graph"), ("graph", "reduce-overhead", "compiled")
SMALL_TOKENS = 4096     # of a batch: launching takes longer than computing


def fastest(tried):
    """Forms whose losses are not ours count only if all are so."""
    times = {form: found["seconds"] for form, found in tried.items() if "seconds" in found}
    return min(times, key=lambda form: (not tried[form].get("agrees", True), times[form]), default=None)


def gpu_forms(precision, routed=False, tokens=0, flex=False):
    small = tokens <= SMALL_TOKENS
    attentions = ("flex",) if flex else (*ATTENTIONS[precision], *("plain",) * (routed or small))
    more = " gather" * routed + " narrow" * (precision == "bfloat16" and not small)
    return [f"{way} {attention}{more}" for way in (SMALL_WAYS if small else LARGE_WAYS) for attention in attentions]


def forms(backend, precision, patterns="*", explicit=False, **shape):
    """Those that are wanted."""
    known = EXPLICIT_FORMS if explicit else CPU_FORMS if backend == "cpu" else gpu_forms(precision, **shape)
    return [form for form in known if any(fnmatch.fnmatch(form, pattern) for pattern in patterns.split(","))]


def torch_command(python, config, form, precision, vocab, backend="cpu", start=None):
    return [python, TORCH_TOOL, config, "--form", form, "--precision", precision, "--vocab", str(vocab),
            "--device", backend, *(["--start", start] if start else [])]


def environment(directory):
    """Compiled kernels are kept, so a later run of the same row starts soon."""
    cache = os.path.abspath(os.path.join(directory, "torch-cache"))
    return os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache),
                         "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", os.path.join(cache, "triton")),
                         "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
