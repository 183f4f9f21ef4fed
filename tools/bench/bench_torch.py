#!/usr/bin/env python3
"""The models of tools/reference/model.py in PyTorch's fastest form: the benchmark's other side.

    bench_torch.py CONFIG [options]     answer lines of standard input as bench_model.c does
    bench_torch.py CONFIG --run DIR     train as that configuration says, evaluations included
    bench_torch.py --check CONFIG...    compare with the reference in double, at small sizes

CONFIG is the file that bench_model reads.  To be fast: projections of the same input are one
product; attention is scaled_dot_product_attention, which never holds T x T numbers, or plain
products where these are faster (--attention; the benchmark tries both); a bias per key is one more
channel of queries and keys, so it needs no mask; embedding_bag sums routed rows; matrices are
folded where ours are (CROSS_FOLDED, gates); AdamW is the fused one; --compile runs torch.compile
over forward and backward.

Options: --attention sdpa|plain, --compile, --precision float32|bfloat16, --vocab N (where the
configuration leaves it to the task).  Example: bench_torch.py --check model.symbols
"""
import argparse
import json
import math
import os
import sys
import time

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import model as reference   # noqa: E402 (found by the line above)

FIELDS = {
    "vocab": "MODEL_VOCAB", "block": "MODEL_BLOCK", "layers": "MODEL_LAYERS", "heads": "MODEL_HEADS",
    "embd": "MODEL_EMBD", "ffn_mult": "FFN_MULT", "bias": "MODEL_BIAS", "norm": "NORM", "pos": "POS",
    "norm_place": "NORM_PLACE", "final_norm": "FINAL_NORM", "tie": "MODEL_TIE_HEAD",
    "norm_eps": "NORM_EPS", "rope_theta": "ROPE_THETA", "attn": "ATTENTION",
    "kv_heads": "ATTENTION_KV_HEADS", "out_gate": "ATTENTION_OUT_GATE", "latent": "RA_MLA_LATENT_DIM",
    "per_head_q_latent": "MLA_PER_HEAD_Q", "per_head_v_up": "MLA_PER_HEAD_V",
    "ra_alpha": "RA_MLA_RA_ALPHA", "w2_score": "W2_SCORE", "w2_eps": "W2_EPS", "ffn": "FFN",
    "ws_heads": "WS_HEADS", "ws_aux": "WS_AUX", "ws_lambda_z": "WS_LAMBDA_Z",
    "ws_lambda_c": "WS_LAMBDA_C", "ws_tau": "WS_TAU", "ws_z_blocks": "WS_Z_BLOCKS",
    "lambda_logits_z": "LOSS_LOGITS_Z", "attn_gate": "RA_MLA_MLP_ATTN_GATE", "gate_alpha": "GATE_ALPHA",
    "gate_dim": "GATE_DIM", "gate_pool": "GATE_POOL", "cross_token": "RA_MLA_MLP_CROSS_TOKEN",
    "cross_alpha": "CROSS_ALPHA", "cross_rank": "CROSS_RANK", "sparse": "RA_MLA_MLP_SPARSE_MODE",
    "sparse_k": "RA_MLA_MLP_SPARSE_K", "sparse_normalize": "RA_MLA_MLP_SPARSE_NORMALIZE",
    "sparse_head_average": "RA_MLA_MLP_SPARSE_HEAD_AVERAGE", "latent_recip": "RA_MLA_MLP_LATENT_RECIP",
    "recip_alpha": "RECIP_ALPHA", "tying": "RA_MLA_MLP_TYING_MODE", "detach": "RECIP_DETACH",
    "learn_alpha": "RECIP_LEARN_ALPHA",
}
# Of these options only one value has a fast form here; they matter if the condition holds.
ONLY = (
    (lambda c: True, {"norm_place": "pre", "kv_heads": 0, "out_gate": "none", "lambda_logits_z": 0.0,
                      "learn_alpha": False}),
    (lambda c: c.attn == "mla", {"per_head_q_latent": True, "per_head_v_up": True, "ra_alpha": 0.0}),
    (lambda c: c.attn == "w2", {"w2_score": "wasserstein"}),
    (lambda c: c.ffn == "ws", {"ws_z_blocks": False}),
    (lambda c: c.attn_gate, {"gate_pool": "causal"}),
    (lambda c: c.cross_token, {"cross_rank": 0, "sparse": "topk", "sparse_normalize": True,
                               "sparse_head_average": True}),
    (lambda c: c.latent_recip, {"tying": "tied_transpose", "detach": False}),
)
# Matrices that read the same input are kept as one.
JOINED = {"attn.qkv": [("q_proj", "k_down", "v_down"), ("q_proj", "k_proj", "v_proj")],
          "mlp.w13": [("w1", "w3")]}


def read_config(path):
    symbols = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, _, value = line.strip().removeprefix("# ").removeprefix("CONFIG_").partition("=")
            symbols[name.removesuffix(" is not set")] = value.strip('"') or "n"
    return symbols


def convert(text, kind):
    return text == "y" if kind is bool else kind(text)


def model_config(symbols):
    c = reference.Config()
    for field, symbol in FIELDS.items():
        if symbol in symbols:
            setattr(c, field, convert(symbols[symbol], type(getattr(c, field))))
    strange = [name for matters, options in ONLY if matters(c)
               for name, value in options.items() if getattr(c, name) != value]
    if strange or float(symbols.get("DROPOUT", 0)) or int(symbols.get("FFN_HIDDEN", 0)) or c.pos == "alibi":
        raise SystemExit(f"bench_torch: no fast form of this configuration {strange}")
    c.cross_folded = folds(c, symbols)  # the reference knows one form
    return c


def folds(c, symbols):
    """As models/reciprocal/cross.c decides."""
    tokens, hidden = int(symbols["TRAIN_BATCH"]) * c.block, int(c.ffn_mult * c.embd)
    return symbols.get("CROSS_FOLDED") == "y" and \
        (c.embd + c.heads) * (tokens + hidden) < tokens * hidden


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- parameters

def join(c, given):
    """The reference's parameters with those of JOINED side by side."""
    p = dict(given)
    for layer in range(c.layers):
        for name, groups in JOINED.items():
            part = name.split(".")[0]
            for group in groups:
                names = [f"h.{layer}.{part}.{one}.weight" for one in group]
                if all(n in p for n in names):
                    p[f"h.{layer}.{name}"] = torch.cat([p.pop(n) for n in names], 1)
    return p


def norm(c, p, name, x):
    w = p[name + ".weight"]
    kind = c.final_norm if name == "ln_f" and c.final_norm != "same" else c.norm
    if kind == "layer":
        return F.layer_norm(x, w.shape, w, p.get(name + ".bias"), c.norm_eps)
    return F.rms_norm(x, w.shape, w, c.norm_eps)


def linear(p, name, x):
    w, b = p[name + ".weight"], p.get(name + ".bias")
    return x @ w if b is None else F.linear(x, w.t(), b)


# ---------------------------------------------------------------- attention

class Tables:
    """What depends on the length alone."""

    def __init__(self, c, length):
        i = torch.arange(length)
        self.hidden = torch.zeros(length, length).masked_fill(i[None, :] > i[:, None], float("-inf"))
        self.count = (i + 1).to(self.hidden.dtype)[None, :, None]
        width = {"mla": c.latent}.get(c.attn, c.head_dim)
        inverse = c.rope_theta ** (-torch.arange(0, width, 2, dtype=self.hidden.dtype) / width)
        angle = i[:, None] * inverse
        self.cos, self.sin = (torch.cat((t, t), -1) for t in (angle.cos(), angle.sin()))


def rope(c, tables, x):
    """x [B,H,T,n]: the pairs (i, i + n/2) turned by the position."""
    if c.pos != "rope":
        return x
    u, v = x.chunk(2, -1)
    return x * tables.cos + torch.cat((-v, u), -1) * tables.sin


def attend(tables, how, q, k, v, scale):
    """Causal; q, k, v are [B,H,T,*]; -> output and, from plain products, the probabilities."""
    if how == "sdpa":
        width = v.shape[-1]     # its fast kernels want one width
        v = F.pad(v, (0, q.shape[-1] - width)) if width < q.shape[-1] else v
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[..., :width], None
    B, H, T, n = q.shape
    scores = torch.baddbmm(tables.hidden.to(q.dtype), q.reshape(B * H, T, n),
                           k.reshape(B * H, T, n).transpose(1, 2), alpha=scale)
    prob = scores.softmax(-1)
    return (prob @ v.reshape(B * H, T, -1)).view(B, H, T, -1), prob.view(B, H, T, T)


def largest(c, tables, q, k, prob, scale):
    """The keys that cross-token aggregation takes, and their weights: [B,T,k]."""
    with torch.no_grad():
        if prob is None:
            prob = (q @ k.transpose(-1, -2) * scale + tables.hidden).softmax(-1)
        w, index = prob.mean(1).topk(min(c.sparse_k, prob.shape[-1]), dim=-1)
        return w / w.sum(-1, keepdim=True).clamp_min(1e-8), index


def heads(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)     # [B,T,n*d] -> [B,n,T,d]


def project_mla(c, p, pre, tables, how, x, incoming):
    E, H, L = c.embd, c.heads, c.latent
    q, ck, cv = (x @ p[pre + "qkv"]).split((E, L, L), -1)
    if "latent" in incoming:
        ck = ck + c.recip_alpha * incoming["latent"]
    q = torch.einsum("bthd,hdl->bhtl", q.unflatten(-1, (H, -1)), p[pre + "q_to_latent.weight"])
    k = rope(c, tables, ck[:, None]).expand(-1, H, -1, -1)
    if how == "sdpa":   # values stay latent: one width for the fast kernel
        v = cv[:, None].expand(-1, H, -1, -1)
    else:
        v = torch.einsum("btl,hld->bhtd", cv, p[pre + "v_up.weight"])
    return rope(c, tables, q), k, v, 1 / math.sqrt(L), ck


def project_w2(c, p, pre, tables, x):
    E, H, D = c.embd, c.heads, c.head_dim
    q, k, v = (x @ p[pre + "qkv"]).split((2 * E, 2 * E, E), -1)

    def gaussian(t):
        mean, raw = heads(t, H).split(D, -1)
        return torch.cat((rope(c, tables, mean), F.softplus(raw) + c.w2_eps), -1)
    q, k = gaussian(q), gaussian(k)
    inverse = (1 / (p[pre + "tau"].abs() + c.w2_eps))[:, None, None]
    bias = -(k * k).sum(-1, keepdim=True) * inverse
    room = (*q.shape[:-1], 8)   # the bias and zeros: widths of a multiple of 8 are faster
    q = torch.cat((2 * q * inverse, q.new_ones(room)), -1)
    k = torch.cat((k, bias, bias.new_zeros(*room[:-1], 7)), -1)
    return q, k, heads(v, H), 1.0


def attention(c, p, pre, tables, how, x, incoming):
    """-> output [B,T,E], the latent, and what cross-token aggregation takes"""
    latent = None
    if c.attn == "dot":
        q, k, v = (heads(t, c.heads) for t in linear(p, pre + "c_attn", x).chunk(3, -1))
        q, k, scale = rope(c, tables, q), rope(c, tables, k), 1 / math.sqrt(c.head_dim)
    elif c.attn == "mla":
        q, k, v, scale, latent = project_mla(c, p, pre, tables, how, x, incoming)
    else:
        q, k, v, scale = project_w2(c, p, pre, tables, x)
    o, prob = attend(tables, how, q, k, v, scale)
    if c.attn == "mla" and how == "sdpa":
        o = torch.einsum("bhtl,hld->bhtd", o, p[pre + "v_up.weight"])
    if "gate" in incoming:
        o = o * (1 - c.gate_alpha + c.gate_alpha * incoming["gate"]).transpose(1, 2)[..., None]
    route = largest(c, tables, q, k, prob, scale) if c.cross_token else None
    return linear(p, pre + "c_proj", o.transpose(1, 2).flatten(2)), latent, route


# ---------------------------------------------------------------- the rest of a block

def mix(h, route):
    """sum_k weight[b,t,k] h[b, index[b,t,k]]"""
    weight, index = route
    B, T, n = h.shape
    index = index + torch.arange(0, B * T, T)[:, None, None]
    return F.embedding_bag(index.view(B * T, -1), h.reshape(B * T, n), mode="sum",
                           per_sample_weights=weight.view(B * T, -1).to(h.dtype)).view(B, T, n)


def ws_losses(c, z):
    lz = c.ws_lambda_z * z.pow(2).sum(-1).mean()
    context = z.mean(1).flatten(0, 1)
    if len(context) < 2:
        return lz
    u = F.normalize(context, dim=-1, eps=1e-8)
    return lz + c.ws_lambda_c * F.cross_entropy(u @ u.t() / c.ws_tau, torch.arange(len(u)))


def read_hidden(c, p, pre, h, route):
    """What c_proj and, behind it, both matrices of the gate make of the hidden activation"""
    w = p[pre + "c_proj.weight"]
    if pre + "gate_proj.weight" in p:
        w = torch.cat((w, p[pre + "gate_proj.weight"] @ p[pre + "gate_to_heads.weight"]), -1)
    if not c.cross_token:
        return h @ w
    cross = p[pre + "cross_proj.weight"]
    if c.cross_folded:
        return h @ w + c.cross_alpha * mix(h @ (cross @ w), route)
    return (h + c.cross_alpha * (mix(h, route) @ cross)) @ w


def feed_forward(c, p, pre, tables, x, latent, route, last):
    """-> output, what the next layer's attention receives, auxiliary loss"""
    aux, send = 0, {}
    if c.ffn == "gelu":
        h = F.gelu(linear(p, pre + "c_fc", x), approximate="tanh")
    else:
        h1, gate = (x @ p[pre + "w13"]).chunk(2, -1)
        h = F.silu(gate) * h1
        if c.ffn == "ws" and c.ws_aux:
            aux = ws_losses(c, linear(p, pre + "z_proj", h1).unflatten(-1, (c.ws_heads, -1)))
    if c.latent_recip:
        w = p[pre + "coupler.weight"]
        if not last:
            send["latent"] = h @ w
        h = h + c.recip_alpha * (latent @ w.t())
    read, gate = read_hidden(c, p, pre, h, route).tensor_split((c.embd,), -1)
    if pre + "gate_proj.weight" in p:
        send["gate"] = (gate.cumsum(1) / tables.count).sigmoid()
    return read + p.get(pre + "c_proj.bias", 0), send, aux


def loss(c, p, tables, how, tokens, targets):
    x = F.embedding(tokens, p["wte.weight"])
    if c.pos == "learned":
        x = x + p["wpe.weight"][:tokens.shape[1]]
    incoming, aux = {}, 0
    for layer in range(c.layers):
        pre = f"h.{layer}."
        o, latent, route = attention(c, p, pre + "attn.", tables, how, norm(c, p, pre + "ln_1", x), incoming)
        x = x + o
        o, incoming, a = feed_forward(c, p, pre + "mlp.", tables, norm(c, p, pre + "ln_2", x), latent, route,
                                      layer == c.layers - 1)
        x, aux = x + o, aux + a
    logits = norm(c, p, "ln_f", x) @ (p["wte.weight"] if c.tie else p["lm_head.weight"]).t()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1) + aux


# ---------------------------------------------------------------- training

class Trainer:
    def __init__(self, symbols, how, compiled, precision):
        self.base = resident_bytes()
        self.c = c = model_config(symbols)
        self.batch, self.symbols = int(symbols["TRAIN_BATCH"]), symbols
        self.clip = float(symbols["GRAD_CLIP"])
        self.p = {name: torch.nn.Parameter(t) for name, t in join(c, reference.init(c, 1)).items()}
        self.parameters = sum(t.numel() for t in self.p.values())
        tables = Tables(c, c.block)

        def forward(tokens, targets):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                return loss(c, self.p, tables, how, tokens, targets)
        self.loss = torch.compile(forward) if compiled else forward
        self.optimizer = self.make_optimizer()

    def make_optimizer(self):
        s = self.symbols
        if s["OPTIMIZER"] != "adamw":
            raise SystemExit("bench_torch: only AdamW")
        everywhere = s["DECAY_GROUP"] == "all"
        groups = {True: [], False: []}
        for name, t in self.p.items():
            groups[everywhere or t.dim() > 1 and name not in ("wte.weight", "wpe.weight")].append(t)
        return torch.optim.AdamW(
            [{"params": ts, "weight_decay": float(s["WEIGHT_DECAY"]) * decay}
             for decay, ts in groups.items()],
            lr=float(s["LEARNING_RATE"]), betas=(float(s["BETA1"]), float(s["BETA2"])),
            eps=float(s["OPTIMIZER_EPS"]), fused=True)

    def rows(self):
        both = torch.randint(self.c.vocab, (self.batch, self.c.block + 1))
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def iterate(self):
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(*self.rows())
        value.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.p.values(), self.clip)
        self.optimizer.step()
        return value

    def timed(self):
        start = time.perf_counter()
        self.iterate()
        return time.perf_counter() - start

    def evaluate(self):
        with torch.no_grad():
            rows = int(self.symbols["EVAL_ROWS"])
            return sum(self.loss(*self.rows()).item() for _ in range(0, rows, self.batch))

    def run(self, directory):
        """What `kablate train` does by this configuration, less its audits and attention metrics."""
        interval = {name: int(self.symbols[name]) for name in
                    ("GPT2_MAX_ITERS", "EVAL_INTERVAL", "LOG_INTERVAL", "CHECKPOINT_INTERVAL")}
        last = interval["GPT2_MAX_ITERS"]
        self.evaluate()
        for i in range(1, last + 1):
            value = self.iterate()
            if i % interval["LOG_INTERVAL"] == 0 or i == last:
                print(f"{i} {value.item():.4f}", file=sys.stderr)
            if i % interval["CHECKPOINT_INTERVAL"] == 0 or i == last:
                torch.save({"model": self.p, "optimizer": self.optimizer.state_dict()},
                           os.path.join(directory, f"{i}.pt"))
            if i % interval["EVAL_INTERVAL"] == 0 or i == last:
                self.evaluate()

    def answer(self):
        print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(),
                          "parameters": self.parameters, "base": self.base}), flush=True)
        for line in sys.stdin:
            print(json.dumps([self.timed() for _ in range(int(line))]), flush=True)


# ---------------------------------------------------------------- check

def check(path):
    """Loss and gradients beside the reference's, in double; returns the worst relative error."""
    torch.set_default_dtype(torch.float64)
    symbols = read_config(path)
    c = model_config(symbols)
    c.vocab, c.block, c.layers, c.embd, c.latent = 97, 24, 3, 8 * c.heads, min(c.latent, 12)
    start = reference.init(c, 1, torch.float64)
    g = torch.Generator().manual_seed(2)
    start = {n: t + 0.2 * torch.randn(t.shape, generator=g) for n, t in start.items()}
    tokens, targets = torch.randint(c.vocab, (2, 3, c.block), generator=g)
    worst = 0
    for how in ("sdpa", "plain"):
        values, grads = [], []
        for ours in (True, False):
            leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
            value = loss(c, join(c, leaves), Tables(c, c.block), how, tokens, targets) if ours else \
                reference.forward(c, leaves, tokens, targets)["loss"]
            value.backward()
            values.append(value.item())
            grads.append({n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items()})
        worst = max(worst, abs(values[0] - values[1]) / abs(values[1]))
        for name, want in grads[1].items():
            worst = max(worst, ((grads[0][name] - want).abs().max() / want.abs().max().clamp_min(1e-12)).item())
    return worst


TOLERANCE = 1e-12   # in double; the largest seen is 1e-14


def check_all(paths):
    failed = False
    for path in paths:
        error = check(path)
        failed |= not error < TOLERANCE
        print(f"{'ok' if error < TOLERANCE else 'not ok'} {path}: {error:.1e}")
    return failed


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", nargs="+")
    parser.add_argument("--attention", choices=("sdpa", "plain"), default="sdpa")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--vocab", type=int, help="where the configuration leaves it to the task")
    parser.add_argument("--run", metavar="DIRECTORY", help="train; checkpoints go there")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    if args.check:
        return check_all(args.config)
    symbols = read_config(args.config[0])
    symbols["MODEL_VOCAB"] = args.vocab or symbols["MODEL_VOCAB"]
    torch.set_num_threads(int(symbols["THREADS"]) or len(os.sched_getaffinity(0)))
    trainer = Trainer(symbols, args.attention, args.compile, args.precision)
    if args.run:
        trainer.run(args.run)
    else:
        trainer.answer()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
