#!/usr/bin/env python3
"""Write core/optim/optim_vectors.h: the result of 50 updates with every optimizer.

    Example: optim_vectors.py >core/optim/optim_vectors.h

AdamW and AdamWSPAM come from optim.py, SGD from torch.optim.SGD (with the decay done separately).
Muon is computed from singular values, without Newton-Schulz products; torch.optim.Muon (which works
in bfloat16) must agree to the precision of that type.

Parameters and gradients are formulas that the test repeats; i counts all elements:

    p_i = sin(i + 1),  g_i(t) = size(t) (sin(0.7 i + 1.3 t) + 0.5 cos(0.3 i t))
    size(t) = 0.3, but 3 for t = 20 and t = 35;  the first entry of each tensor: 30 times at t = 28
"""
import math
import sys

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch

import optim

SHAPES = {"wte.weight": (4, 3), "wide.weight": (3, 5), "bias": (5,), "tall.weight": (5, 2),
          "slices.weight": (2, 3, 2), "scale": ()}
UPDATES = 50
LR = dict(lr=0.05, min_lr=0.01, warmup=5, total=45)
NS = (3.4445, -4.7750, 2.0315)
MUON = dict(momentum=0.95, eps=1e-7, nesterov=True)
MUON_LR_RATIO = 0.5


def tensors(formula):
    out, at = {}, 0
    for name, shape in SHAPES.items():
        n = math.prod(shape)
        values = torch.tensor([formula(i) for i in range(at, at + n)], dtype=torch.float64)
        out[name] = values.reshape(shape)
        at += n
    return out


def gradient(t):
    size = 3.0 if t in (20, 35) else 0.3
    g = tensors(lambda i: size * (math.sin(0.7 * i + 1.3 * t) + 0.5 * math.cos(0.3 * i * t)))
    if t == 28:
        for x in g.values():
            x.view(-1)[0] *= 30
    return g


def adamw(p, g, s, t, lr):
    g, s["norm"] = optim.clip(g, 1.0)
    optim.adamw(p, g, s, t, lr)


def adamwspam(p, g, s, t, lr):
    optim.adamwspam(p, g, s, t, lr, interval=15, warmup=10, theta=20.0)
    s["norm"] = s["norms"][-1]


def sgd(p, g, s, t, lr):
    g, s["norm"] = optim.clip(g, 1.0)
    if "torch" not in s:
        s["torch"] = torch.optim.SGD(p.values(), lr=lr, momentum=0.9)
    for k in p:
        p[k].grad = g[k]
        if optim.decays(k, p[k]):
            p[k].mul_(1 - lr * 0.1)
    s["torch"].param_groups[0]["lr"] = lr
    s["torch"].step()


def orthogonalised(u, steps=5):
    left, values, right = torch.linalg.svd(u / u.norm().clamp(min=MUON["eps"]), full_matrices=False)
    for _ in range(steps):
        values = NS[0] * values + NS[1] * values ** 3 + NS[2] * values ** 5
    return left @ torch.diag(values) @ right


def muon_matrix(p, g, m, lr):
    mu, (rows, columns) = MUON["momentum"], p.shape
    m.mul_(mu).add_(g, alpha=1 - mu)
    u = mu * m + (1 - mu) * g if MUON["nesterov"] else m
    p.mul_(1 - lr * 0.1)
    p.sub_(orthogonalised(u), alpha=lr * math.sqrt(max(1, rows / columns)))


def muon(p, g, s, t, lr):
    g, s["norm"] = optim.clip(g, 1.0)
    matrices = [k for k in p if optim.decays(k, p[k])]
    for k in matrices:
        m = s.setdefault("momentum", {}).setdefault(k, torch.zeros_like(p[k]))
        slices = (x.reshape(-1, *p[k].shape[-2:]) for x in (p[k], g[k], m))
        for one in zip(*slices):
            muon_matrix(*one, lr * MUON_LR_RATIO)
    rest = {k: v for k, v in p.items() if k not in matrices}
    optim.adamw(rest, {k: g[k] for k in rest}, s, t, lr)


def check_muon_against_torch():
    torch.manual_seed(1)
    for shape in (8, 32), (32, 8), (16, 16):
        ours, m = torch.randn(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        theirs = ours.clone().requires_grad_()
        reference = torch.optim.Muon([theirs], lr=0.1)
        start = ours.clone()
        for _ in range(3):
            g = torch.randn(shape, dtype=torch.float64)
            theirs.grad = g.clone()
            reference.step()
            muon_matrix(ours, g, m, 0.1)
        error = (ours - theirs.detach()).norm() / (ours - start).norm()
        assert error < 2e-2, error  # measured 8e-3 for each shape; bfloat16 has 8 bits


def show(name, update):
    p, s, norms = tensors(lambda i: math.sin(i + 1)), {}, []
    for t in range(1, UPDATES + 1):
        update(p, gradient(t), s, t, optim.schedule(t, **LR))
        norms.append(s["norm"])
    values = torch.cat([x.reshape(-1) for x in p.values()]).tolist()
    print(f"\nstatic const struct vector {name}_vector = {{")
    print(f"\t.spikes = {s.get('spikes', 0)}, .resets = {s.get('resets', 0)},")
    print(f"\t.norms = {sum(norms):.17g},")
    print("\t.values = {")
    for i in range(0, len(values), 4):
        print("\t\t" + " ".join(f"{v:.17g}," for v in values[i:i + 4]))
    print("\t},\n};")


def main():
    check_muon_against_torch()
    count = sum(math.prod(shape) for shape in SHAPES.values())
    print("/* Made by tools/reference/optim_vectors.py, which explains it. */")
    print("#ifndef OPTIM_VECTORS_H\n#define OPTIM_VECTORS_H\n")
    print(f"#define VECTOR_COUNT {count}\n")
    print("struct vector {\n\tint spikes, resets;\n\tdouble norms; /* sum over all updates */")
    print("\tdouble values[VECTOR_COUNT]; /* of all parameters, in the end */\n};")
    for name, update in dict(adamw=adamw, adamwspam=adamwspam, sgd=sgd, muon=muon).items():
        show(name, update)
    MUON["nesterov"] = False
    show("muon_plain", muon)
    optim.decays = lambda name, tensor: True
    show("adamw_decay_all", adamw)
    print("\n#endif")


if __name__ == "__main__":
    main()
