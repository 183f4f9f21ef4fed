#!/usr/bin/env python3
"""The decoding step of a GPT-2 in PyTorch, as fast as PyTorch makes it: the peer of bench-decode.

Grouped heads or latents (mla, products kept in latent space), GELU, LayerNorm, tied head, a static
cache, one row, no gradients.  It measures each form (plain; compiled with frozen weights, in the
layout the compiler prefers); the fastest counts.  Prints seconds per token by context.

    bench_decode_torch.py [--attention dot|mla] [--layers N] [--heads N] [--kv-heads N] [--embd N]
        [--hidden N] [--vocab N] [--latent N] [--threads N] [--lengths N,N..] [--seconds X]

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
        return torch.randn(2, 1, heads, context, width)

    def forward(self, x, cache, past):
        o, heads = self.o, self.o.heads
        if o.attention == "mla":
            q = torch.einsum("hd,hdl->hl", self.q_proj(x).view(heads, self.D), self.q_up)
            q = q.view(1, heads, 1, o.latent)
            k, v = self.down(x).view(1, 1, 1, 2 * o.latent).chunk(2, -1)
        else:
            kv = cache.shape[2] * self.D
            q, k, v = self.c_attn(x).split([o.embd, kv, kv], -1)
            q = q.view(1, heads, 1, self.D)
            k, v = (t.view(1, -1, 1, self.D) for t in (k, v))
        cache[0, :, :, past] = k[:, :, 0]
        cache[1, :, :, past] = v[:, :, 0]
        k, v = cache[0, :, :, :past + 1], cache[1, :, :, :past + 1]
        shared = heads // k.shape[1]
        if shared > 1:  # the heads that read one key are the rows of one product
            q = q.view(1, k.shape[1], shared, -1)
        y = F.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)
        y = y.reshape(heads, -1)
        if o.attention == "mla":
            y = torch.einsum("hl,hld->hd", y, self.v_up)
        return self.c_proj(y.reshape(1, o.embd))


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


def fastest(step, seconds):
    """Seconds of the fastest of many calls."""
    for _ in range(3):
        step()  # which may have to be compiled
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best


def measure(o, context):
    model = Model(o, context).eval()
    caches = [block.attn.cache(context) for block in model.h]
    token, position = torch.tensor([1]), torch.tensor([context - 1])
    times = {}
    with torch.inference_mode():
        times["plain"] = fastest(lambda: model(token, position, caches, context - 1), o.seconds)
    try:
        import torch._inductor.config as inductor
        inductor.freezing = True
        with torch.no_grad():
            compiled = torch.compile(model)
            times["compiled"] = fastest(lambda: compiled(token, position, caches, context - 1),
                                        o.seconds)
    except Exception as reason:  # no compiler for it here: then it is not faster
        print(f"bench_decode_torch: not compiled: {str(reason).splitlines()[0]}", file=sys.stderr)
    return {"context": context, "token_seconds": min(times.values()), "forms": times}


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--attention", choices=("dot", "mla"), default="dot")
    for name, standard in (("layers", 12), ("heads", 12), ("kv-heads", 0), ("embd", 768),
                           ("hidden", 3072), ("vocab", 50304), ("latent", 128), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=standard)
    parser.add_argument("--lengths", default="1024")
    parser.add_argument("--seconds", type=float, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "threads": o.threads, "contexts":
                      [measure(o, int(context)) for context in o.lengths.split(",")]}))


if __name__ == "__main__":
    main()
