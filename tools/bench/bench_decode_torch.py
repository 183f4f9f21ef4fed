#!/usr/bin/env python3
"""The decoding step of a GPT-2 in PyTorch, as fast as PyTorch makes it: the peer of bench-decode.

Grouped heads or latents (mla, products kept in latent space), GELU, LayerNorm, tied head, a static
cache, no gradients.  It measures each form; the fastest counts.  On the CPU: plain; compiled with
frozen weights, in the layout the compiler prefers.  On a GPU a step is always replayed from a CUDA
graph: first with every kernel of attention, then, with the fastest kernel, compiled and autotuned.
Several steps are waited for once.  Prints seconds per step (a token of every row) by context.

    bench_decode_torch.py [--attention dot|mla] [--layers N] [--heads N] [--kv-heads N] [--embd N]
        [--hidden N] [--vocab N] [--latent N] [--threads N] [--lengths N,N..] [--seconds X]
        [--device cpu|cuda] [--batch N] [--precision float32|bfloat16]

Example: bench_decode_torch.py --attention mla --lengths 1024,4096
"""
import argparse
import json
import sys
import time

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch
import torch.nn.functional as F
from torch import nn

from bench_torch import choose_attention, choose_precision, wait

KERNELS = ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math", "plain")
MODES = {"compiled": "default", "autotuned": "max-autotune-no-cudagraphs"}
TOGETHER = 16   # steps that are waited for once on a GPU


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, self.D = o, o.embd // o.heads
        kv = (o.kv_heads or o.heads) * self.D
        if o.attention == "mla":
            self.q_proj = nn.Linear(o.embd, o.embd, bias=False)
            self.q_up = nn.Parameter(torch.randn(o.heads, self.D, o.latent) * 0.02)
            self.down = nn.Linear(o.embd, 2 * o.latent, bias=False)
            self.v_up = nn.Parameter(torch.randn(o.heads, o.latent, self.D) * 0.02)
        else:
            self.c_attn = nn.Linear(o.embd, o.embd + 2 * kv)
        self.c_proj = nn.Linear(o.embd, o.embd)

    def cache(self, context):
        o = self.o
        heads, width = (1, o.latent) if o.attention == "mla" else (o.kv_heads or o.heads, self.D)
        return torch.randn(2, o.batch, heads, context, width, device=o.device, dtype=o.dtype)

    def attend(self, q, k, v):
        scale = q.shape[-1] ** -0.5
        if self.o.kernel == "plain":
            return (q * scale @ k.transpose(-1, -2)).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, scale=scale)

    def forward(self, x, cache, past):
        o, rows, heads = self.o, self.o.batch, self.o.heads
        if o.attention == "mla":
            q = torch.einsum("bhd,hdl->bhl", self.q_proj(x).view(rows, heads, self.D), self.q_up)
            q = q.view(rows, heads, 1, o.latent)
            k, v = self.down(x).view(rows, 1, 1, 2 * o.latent).chunk(2, -1)
        else:
            kv = cache.shape[2] * self.D
            q, k, v = self.c_attn(x).split([o.embd, kv, kv], -1)
            q = q.view(rows, heads, 1, self.D)
            k, v = (t.view(rows, -1, 1, self.D) for t in (k, v))
        cache[0, :, :, past] = k[:, :, 0]
        cache[1, :, :, past] = v[:, :, 0]
        k, v = cache[0, :, :, :past + 1], cache[1, :, :, :past + 1]
        shared = heads // k.shape[1]
        if shared > 1:  # the heads that read one key are the rows of one product
            q = q.view(rows, k.shape[1], shared, -1)
        y = self.attend(q, k, v).reshape(rows, heads, -1)
        if o.attention == "mla":
            y = torch.einsum("bhl,hld->bhd", y, self.v_up)
        return self.c_proj(y.reshape(rows, o.embd))


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(o.embd), Attention(o), nn.LayerNorm(o.embd)
        self.c_fc, self.c_proj = nn.Linear(o.embd, o.hidden), nn.Linear(o.hidden, o.embd)

    def forward(self, x, cache, past):
        x = x + self.attn(self.ln_1(x), cache, past)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, o, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(o.vocab, o.embd), nn.Embedding(context, o.embd)
        self.h = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.ln_f = nn.LayerNorm(o.embd)

    def forward(self, token, position, caches, past):
        x = self.wte(token) + self.wpe(position)
        for block, cache in zip(self.h, caches):
            x = block(x, cache, past)
        return F.linear(self.ln_f(x), self.wte.weight)

    def read_bytes(self, caches):
        """What a step must read: all weights but the table of positions, and the cache."""
        weights = sum(p.numel() * p.element_size() for name, p in self.named_parameters() if name != "wpe.weight")
        return weights, sum(c.numel() * c.element_size() for c in caches)


def fastest(step, o):
    """Seconds of the fastest of many calls."""
    for _ in range(3):
        step()  # which may have to be compiled
    wait(o.device)
    together = TOGETHER if o.device == "cuda" else 1
    best, end = float("inf"), time.perf_counter() + o.seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(together):
            step()
        wait(o.device)
        best = min(best, (time.perf_counter() - start) / together)
    return best


class Step:
    """A model with its cache, at one place of the context."""

    def __init__(self, o, context):
        self.o, self.past = o, context - 1
        self.model = Model(o, context).eval().to(o.device, o.dtype)
        self.caches = [block.attn.cache(context) for block in self.model.h]
        self.token = torch.ones(o.batch, dtype=torch.long, device=o.device)
        self.position = torch.full_like(self.token, self.past)

    def call(self, model):
        return lambda: model(self.token, self.position, self.caches, self.past)

    def compiled(self, mode):
        torch._dynamo.reset()   # a kernel that is chosen elsewhere would not be seen
        return self.call(torch.compile(self.model, mode=mode))

    def captured(self, step):
        """Replays a step that ran three times on a stream of its own."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside):
            step()
        return graph.replay


def attempt(times, form, measure):
    """A form that fails is reported and does not compete."""
    try:
        times[form] = measure()
    except Exception as reason:  # whatever a compiler or a kernel finds
        print(f"bench_decode_torch: {form}: {str(reason).strip().splitlines()[0]}", file=sys.stderr)


def cpu_times(o, step):
    import torch._inductor.config as inductor
    times = {}
    with torch.inference_mode():
        times["plain"] = fastest(step.call(step.model), o)
    inductor.freezing = True
    with torch.no_grad():
        attempt(times, "compiled", lambda: fastest(step.compiled("default"), o))
    return times


def gpu_times(o, step):
    times = {}

    def choose(kernel):
        o.kernel = choose_attention(kernel)

    with torch.no_grad():
        for kernel in KERNELS:
            choose(kernel)
            attempt(times, f"captured {kernel}", lambda: fastest(step.captured(step.call(step.model)), o))
        best = min(times, key=times.get).split()[1] if times else KERNELS[0]
        choose(best)
        for name, mode in MODES.items():
            attempt(times, f"{name} and captured {best}",
                    lambda mode=mode: fastest(step.captured(step.compiled(mode)), o))
    return times


def measure(o, context):
    step = Step(o, context)
    times = (gpu_times if o.device == "cuda" else cpu_times)(o, step)
    if not times:
        raise SystemExit("bench_decode_torch: no form works")
    weights, cache = step.model.read_bytes(step.caches)
    return {"context": context, "token_seconds": min(times.values()), "forms": times,
            "form": min(times, key=times.get), "weight_bytes": weights, "cache_bytes": cache}


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--attention", choices=("dot", "mla"), default="dot")
    for name, standard in (("layers", 12), ("heads", 12), ("kv-heads", 0), ("embd", 768),
                           ("hidden", 3072), ("vocab", 50304), ("latent", 128), ("threads", 2), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=standard)
    parser.add_argument("--lengths", default="1024")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    o = parser.parse_args()
    o.dtype, o.kernel = getattr(torch, o.precision), "sdpa"
    choose_precision(o.precision)
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "threads": o.threads, "batch": o.batch, "contexts":
                      [measure(o, int(context)) for context in o.lengths.split(",")]}))


if __name__ == "__main__":
    main()
