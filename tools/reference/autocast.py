#!/usr/bin/env python3
"""Write models/vectors/autocast/: how far PyTorch's bfloat16 autocast is from float64, per gradient.

    autocast.py [OUTDIR]    default: models/vectors/autocast of this tree;  example: autocast.py new

models/autocast_test.c compares our own bfloat16 with it.  A file holds a model (metadata "config",
as golden.py writes it; tensors param.NAME, exact in float16), some batches of tokens and
targets, and for each parameter autocast.NAME, the root-mean-square error of its gradient over all
batches and entries.  One batch would not do: the errors of a small tensor in it are few.

The gradients come from model.py, whose products are x @ W: once in float64, once with float32
parameters under torch.autocast("cpu", dtype=torch.bfloat16).  On a CPU, autocast computes softmax,
norms, losses and sums in bfloat16 where it gets bfloat16; on a GPU it computes them in float32,
which is closer to float64.  `AsOnGpu` does what it does on a GPU.

A routing choice that rounding decides otherwise makes a gradient jump.  So a sequence is not used
if a weight that routing keeps and one that it drops nearly tie in float64.
"""
import dataclasses
import json
import os
import sys

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch
from torch.overrides import TorchFunctionMode

import golden
from model import forward

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = "vocab=64 block=32 layers=2 heads=2 embd=32 latent=16 gate_dim=8 sparse_k=3 ra_window=8 length=32 scale=8"
BATCHES, ROWS, SEED = 4, 4, 1
NEAR_TIE = 1e-1         # relative to the larger weight

MODELS = {
    "dot": "",
    "dot-gqa-rope": "heads=4 kv_heads=2 pos=rope",
    "dot-out-gate": "out_gate=channel",
    "swiglu-rms": "ffn=swiglu norm=rms bias=n",
    "ws": "ffn=ws ws_lambda_z=0.01 ws_lambda_c=0.1 ffn_mult=2",
    "mla": "attn=mla",
    "mla-ra": "attn=mla ra_alpha=0.5",
    "w2": "attn=w2 pos=rope heads=4",
    # All entries of the gradient of a lambda, or of A, share one error: more batches show its size.
    "differential": "attn=differential pos=rope batches=32",
    # The norm of a head whose q.k nearly cancel is steep, so that rounding anywhere shows: a larger eps bounds it.
    "gla": "attn=gla pos=none norm_eps=0.1",
    "delta": "attn=delta pos=none norm_eps=0.1 batches=32",
    "gate": "attn=mla attn_gate=y",
    # A larger scale and fewer keys keep the weights of routing apart: few sequences have no near tie.
    "all": "attn=mla attn_gate=y cross_token=y latent_recip=y ffn_mult=2 block=16 length=16 scale=12",
}

# The functions that PyTorch's autocast computes in float32 on a GPU (its manual lists them), as far as model.py calls
# them.
WIDE = {"softmax", "layer_norm", "cross_entropy", "softplus", "pow", "rsqrt", "log", "sum", "cumsum", "norm"}


class AsOnGpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in WIDE:
            args = [a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 else a for a in args]
        return function(*args, **(kwargs or {}))


def ties(c, p, tokens):
    """Per sequence: is a weight that routing drops nearly as large as one that it keeps?  (top-k, mean of heads)"""
    probe, found = [], torch.zeros(len(tokens), dtype=torch.bool)
    if not c.cross_token:
        return found
    with torch.no_grad():
        forward(c, p, tokens, probe=probe)
    for _, prob in probe:
        largest = prob.mean(1).topk(c.sparse_k + 1, dim=-1).values[:, c.sparse_k:]
        kept, dropped = largest[..., -2], largest[..., -1]
        found |= (dropped > (1 - NEAR_TIE) * kept).any(-1)
    return found


def sequences(c, p, g, n, length):
    """Random sequences without near ties."""
    chosen = []
    while sum(map(len, chosen)) < n:
        tokens = torch.randint(0, c.vocab, (256, length), generator=g)
        chosen.append(tokens[~ties(c, p, tokens)])
    return torch.cat(chosen)[:n]


def gradients(c, p, tokens, targets):
    p = {name: t.clone().requires_grad_() for name, t in p.items()}
    loss = forward(c, p, tokens, targets)["loss"]
    return dict(zip(p, torch.autograd.grad(loss, p.values())))


def rounded_gradients(c, p, tokens, targets):
    p = {name: t.float() for name, t in p.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16), AsOnGpu():
        return gradients(c, p, tokens, targets)


def errors(c, p, batches):
    """Root-mean-square error of each gradient over all batches."""
    squares = dict.fromkeys(p, 0.0)
    for tokens, targets in batches:
        exact, ours = gradients(c, p, tokens, targets), rounded_gradients(c, p, tokens, targets)
        for name in p:
            squares[name] += (ours[name].double() - exact[name]).square().mean()
    return {name: (s / len(batches)).sqrt().reshape(1) for name, s in squares.items()}


def vector(path, fields):
    length, scale, batches = int(fields.pop("length")), float(fields.pop("scale")), int(fields.pop("batches", BATCHES))
    c = golden.configuration(fields)
    g = torch.Generator().manual_seed(SEED + 1000)
    p = {name: t.half().double() for name, t in golden.parameters(c, SEED, scale, g).items()}
    tokens = sequences(c, p, g, batches * ROWS, length).reshape(batches, ROWS, length)
    targets = torch.randint(0, c.vocab, tokens.shape, generator=g)
    tensors = {"autocast." + name: e for name, e in errors(c, p, list(zip(tokens, targets))).items()}
    tensors.update(tokens=tokens.int(), targets=targets.int())
    tensors.update({"param." + name: t.half() for name, t in p.items()})
    golden.write(path, tensors, {"config": json.dumps(dataclasses.asdict(c)), "seed": str(SEED)})
    print(path)


def main(argv):
    out = argv[0] if argv else os.path.join(HERE, "..", "..", "models", "vectors", "autocast")
    os.makedirs(out, exist_ok=True)
    for name, changes in MODELS.items():
        fields = dict(f.split("=", 1) for f in (SIZES + " " + changes).split())
        vector(os.path.join(out, name + ".safetensors"), fields)


if __name__ == "__main__":
    main(sys.argv[1:])
