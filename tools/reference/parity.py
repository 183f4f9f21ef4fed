#!/usr/bin/env python3
"""Write models/parity.json: what the reference computes from the weights of test vectors.

    parity.py [OUT.json]         default: models/parity.json of this tree;  example: parity.py x

training   the losses of ten updates, and the cross-entropy on other rows after them
attention  the metrics of every layer: entropy, reciprocity, and where the feed-forward mixes
           tokens, how many entries of a routing row are kept and what they sum to

The tokens are formulas that the tests repeat; u counts updates (0: validation and metrics), r rows
and i positions:

    token = (7 u + 5 r^2 + (3 + r) i + u i^2) mod vocabulary
    target = the next token, ignored where u + r + i is a multiple of 5

An update has `accumulate` micro-batches of 2 rows.  Its cross-entropy is the mean over all scored
targets; the other losses are means over micro-batches.
"""
import json
import os
import sys

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch
import torch.nn.functional as F

import optim
import vectors
from model import Config, attention_metrics, forward

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
UPDATES, ROWS, LENGTH, VALID_ROWS, SAMPLE_ROWS = 10, 2, 7, 4, 3
SCHEDULE = dict(lr=0.01, min_lr=0.001, warmup=3, total=10)
SPAM = dict(interval=4, warmup=3, theta=5.0)   # restarts, and clips entries, within ten updates

# Vector and micro-batches per update.
TRAINING = {"dot": 1, "dot-gqa": 2, "dot-post-rms": 1, "swiglu": 1, "ws": 2, "ws-blocks": 1,
            "ws-logits-z": 3, "mla": 1, "mla-ra-learned": 1, "w2": 1, "w2-overlap": 1,
            "gate-dot": 1, "gate": 2, "cross": 1, "cross-rank-rms": 1, "cross-none": 1,
            "recip": 1, "recip-untied": 1, "recip-scalar-learned": 1, "recip-bottleneck": 1,
            "all-learned": 1, "all-ws": 2, "all-out-gate": 1, "gate-cross-w2-ws": 3}
ATTENTION = ["dot", "dot-alibi", "dot-gqa", "dot-rope", "mla", "mla-ra", "mla-ra-rope", "mla-alibi",
             "w2", "w2-alibi", "w2-overlap", "cross", "cross-max", "cross-rms", "cross-none",
             "cross-ra-rms", "all-learned"]


def load(name):
    tensors, meta = vectors.read(os.path.join(ROOT, "models", "vectors", name + ".safetensors"))
    params = {k[len("param."):]: v.double() for k, v in tensors.items() if k.startswith("param.")}
    return Config(**json.loads(meta["config"])), params


def rows(c, update, first, count, length):
    r = torch.arange(first, first + count)[:, None]
    i = torch.arange(length + 1)[None, :]
    token = (7 * update + 5 * r * r + (3 + r) * i + update * i * i) % c.vocab
    ignored = (update + r + i[:, :-1]) % 5 == 0
    return token[:, :-1], torch.where(ignored, -1, token[:, 1:])


def update_loss(c, p, update, accumulate):
    batches = [rows(c, update, ROWS * m, ROWS, LENGTH) for m in range(accumulate)]
    scored = sum(int((targets >= 0).sum()) for _, targets in batches)
    total = 0
    for tokens, targets in batches:
        o = forward(c, p, tokens, targets)
        total = total + o["main"] * (targets >= 0).sum() / scored + (o["aux"] + o["z"]) / accumulate
    return total


def step(optimizer, p, g, state, t):
    lr = optim.schedule(t, **SCHEDULE)
    if optimizer == "adamw":
        g, _ = optim.clip(g, 1.0)
        optim.adamw(p, g, state, t, lr)
    else:
        optim.adamwspam(p, g, state, t, lr, **SPAM)


def train(name, accumulate, optimizer):
    c, p = load(name)
    for x in p.values():
        x.requires_grad_()
    losses, state = [], {}
    for t in range(1, UPDATES + 1):
        loss = update_loss(c, p, t, accumulate)
        g = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        losses.append(loss.item())
        with torch.no_grad():
            step(optimizer, p, g, state, t)
    with torch.no_grad():
        tokens, targets = rows(c, 0, 0, VALID_ROWS, LENGTH)
        logits = forward(c, p, tokens)["logits"]
        valid = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).item()
    return dict(vector=name, optimizer=optimizer, accumulate=accumulate, losses=losses, valid=valid)


def routing_metrics(c, prob):
    """Kept entries per row and their sum, of the routing matrix before it is normalised."""
    w = prob.mean(1) if c.sparse_head_average else prob.max(1).values
    T = w.shape[-1]
    seen = torch.ones(T, T).tril().bool()
    keep = seen
    if c.sparse == "topk":
        order = w.masked_fill(~seen, -1).argsort(dim=-1, descending=True, stable=True)
        keep = seen & (order.argsort(-1) < c.sparse_k)
    elif c.sparse == "rms":
        n = torch.arange(1, T + 1)[:, None]
        keep = seen & (w >= c.sparse_tau * (w.pow(2).sum(-1, keepdim=True) / n).sqrt())
    keep = keep.expand_as(w)
    return keep.double().sum(-1).mean().item(), (w * keep).sum(-1).mean().item()


def measure(name):
    c, p = load(name)
    tokens, _ = rows(c, 0, 0, SAMPLE_ROWS, c.block)
    probe = []
    with torch.no_grad():
        forward(c, p, tokens, probe=probe)
    layers = []
    metrics = attention_metrics(c, p, tokens, c.ra_window)
    for (entropy, reciprocity), (_, prob) in zip(metrics, probe):
        layer = dict(entropy=entropy, reciprocity=reciprocity)
        if c.cross_token:
            layer["kept"], layer["mass"] = routing_metrics(c, prob)
        layers.append(layer)
    return dict(vector=name, layers=layers)


def main(argv):
    out = argv[0] if argv else os.path.join(ROOT, "models", "parity.json")
    training = [train(name, n, optimizer) for name, n in TRAINING.items()
                for optimizer in ("adamw", "adamwspam")]
    sections = dict(training=training, attention=[measure(name) for name in ATTENTION])
    with open(out, "w") as f:   # one line per case
        f.write("{\n" + ",\n".join(
            f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]"
            for name, cases in sections.items()) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
