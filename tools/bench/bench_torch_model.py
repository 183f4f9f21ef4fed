"""The models of bench_rows.py, as tools/reference/model.py defines them, in forms that are fast in PyTorch.

Projections of the same input are one product; attention is scaled_dot_product_attention, which
never holds T x T numbers, or plain products; a bias per key is one more channel of queries and keys,
so it needs no mask; matrices are folded where ours are (CROSS_FOLDED, gates); routed rows are summed
by embedding_bag, or gathered and summed, which a compiler makes one kernel.
"""
import math
import os
import sys
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import model as reference   # noqa: E402 (found by the line above)


@dataclass
class Ways:
    """What may be done in more than one way, with the same result up to rounding."""
    attention: str = "sdpa"     # or plain, or flex
    mix: str = "bag"            # or gather
    narrow: bool = False        # the residual stream is bfloat16, too


# Matrices that read the same input are kept as one.
MERGED = {"attn.qkv": [("q_proj", "k_down", "v_down"), ("q_proj", "k_proj", "v_proj")],
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
    for field in fields(c):
        if field.metadata["symbol"] in symbols:
            setattr(c, field.name, convert(symbols[field.metadata["symbol"]], field.type))
    c.cross_folded = folds(c, symbols)  # the reference knows one form
    return c


def folds(c, symbols):
    """As models/reciprocal/cross.c decides."""
    tokens, hidden = int(symbols["TRAIN_BATCH"]) * c.block, int(c.ffn_mult * c.embd)
    return symbols.get("CROSS_FOLDED") == "y" and \
        (c.embd + c.heads) * (tokens + hidden) < tokens * hidden


# ---------------------------------------------------------------- parameters

def merge_linears(c, given):
    """The reference's parameters with those of MERGED side by side."""
    p = dict(given)
    for layer in range(c.layers):
        for name, groups in MERGED.items():
            if name == "attn.qkv" and c.attn == "differential":
                continue
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

def has_terms(c):
    """Scores that only FlexAttention computes without holding T x T numbers."""
    return c.pos in ("alibi", "t5") or c.windowed or c.softcap > 0


class FlexAttention:
    """flex_attention() with the terms of core/ops/score.h."""

    def __init__(self, c, length, device):
        from torch.nn.attention import flex_attention
        slopes = torch.tensor(reference.alibi_slopes(c.heads), device=device)

        def sees(b, h, i, j):
            near = (i - j < c.window) | (j < c.sinks) if c.windowed else True
            return (j <= i) & near

        def score(bias):
            def term(s, b, h, i, j):
                s = s - slopes[h] * (i - j) if c.pos == "alibi" else s
                s = s if bias is None else s + bias[h, i - j]
                return c.softcap * torch.tanh(s / c.softcap) if c.softcap > 0 else s
            return term if c.pos in ("alibi", "t5") or c.softcap > 0 else None
        self.mask = flex_attention.create_block_mask(sees, None, None, length, length, device=device)
        self.score = score
        self.buckets = reference.t5_bucket(c, torch.arange(length, device=device)) if c.pos == "t5" else None
        self.attention = flex_attention.flex_attention

    def __call__(self, q, k, v, scale, table):
        """`table`: learned biases of buckets, or None; they become biases of distances, which meet less often."""
        v = v.to(q.dtype)
        bias = None if table is None else table[self.buckets].t()
        return self.attention(q, k.to(q.dtype), v, score_mod=self.score(bias), block_mask=self.mask, scale=scale), None


class Tables:
    """What depends on the length alone."""

    def __init__(self, c, length, device="cpu"):
        i = torch.arange(length, device=device)
        self.flex = FlexAttention(c, length, device) if has_terms(c) else None
        self.hidden = torch.zeros(length, length, device=device).masked_fill(i[None, :] > i[:, None], float("-inf"))
        self.count = (i + 1).to(self.hidden.dtype)[None, :, None]
        width = {"mla": c.latent}.get(c.attn, c.head_dim)
        inverse = c.rope_theta ** (-torch.arange(0, width, 2, dtype=self.hidden.dtype, device=device) / width)
        angle = i[:, None] * inverse
        self.cos, self.sin = (torch.cat((t, t), -1) for t in (angle.cos(), angle.sin()))


def rope(c, tables, x):
    """x [B,H,T,n]: the pairs (i, i + n/2) turned by the position."""
    if c.pos != "rope":
        return x
    u, v = x.chunk(2, -1)
    return x * tables.cos + torch.cat((-v, u), -1) * tables.sin


def attend(tables, how, q, k, v, scale, table=None):
    """Causal; q, k, v are [B,H,T,*]; -> output and, from plain products, the probabilities."""
    if how == "flex":
        return tables.flex(q, k, v, scale, table)
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


def attention(c, p, pre, tables, ways, x, incoming):
    """-> output [B,T,E], the latent, and what cross-token aggregation takes"""
    latent, how = None, ways.attention
    if c.attn == "differential":    # the formula as it is written, for rows of general ops
        return linear(p, pre + "c_proj", reference.differential(c, p, pre, x).flatten(2)), None, None
    if c.attn == "dot":
        q, k, v = (heads(t, c.heads) for t in linear(p, pre + "c_attn", x).chunk(3, -1))
        q, k, scale = rope(c, tables, q), rope(c, tables, k), 1 / math.sqrt(c.head_dim)
    elif c.attn == "mla":
        q, k, v, scale, latent = project_mla(c, p, pre, tables, how, x, incoming)
    else:
        q, k, v, scale = project_w2(c, p, pre, tables, x)
    o, prob = attend(tables, how, q, k, v, scale, p.get("relative_attention_bias.weight"))
    if c.attn == "mla" and how == "sdpa":
        o = torch.einsum("bhtl,hld->bhtd", o, p[pre + "v_up.weight"])
    if "gate" in incoming:
        o = o * (1 - c.gate_alpha + c.gate_alpha * incoming["gate"]).transpose(1, 2)[..., None]
    route = largest(c, tables, q, k, prob, scale) if c.cross_token else None
    return linear(p, pre + "c_proj", o.transpose(1, 2).flatten(2)), latent, route


# ---------------------------------------------------------------- the rest of a block

def mix(h, route, way):
    """sum_k weight[b,t,k] h[b, index[b,t,k]]"""
    weight, index = route
    B, T, n = h.shape
    index = (index + torch.arange(0, B * T, T, device=h.device)[:, None, None]).view(B * T, -1)
    weight = weight.view(B * T, -1)
    if way == "gather":     # in the weights' type, float: whose gradients atomics add
        rows = h.reshape(B * T, n).to(weight.dtype)[index]
        return (rows * weight[..., None]).sum(1).to(h.dtype).view(B, T, n)
    return F.embedding_bag(index, h.reshape(B * T, n), mode="sum",
                           per_sample_weights=weight.to(h.dtype)).view(B, T, n)


def ws_losses(c, z):
    lz = c.ws_lambda_z * z.pow(2).sum(-1).mean()
    context = z.mean(1).flatten(0, 1)
    if len(context) < 2:
        return lz
    u = F.normalize(context, dim=-1, eps=1e-8)
    return lz + c.ws_lambda_c * F.cross_entropy(u @ u.t() / c.ws_tau, torch.arange(len(u), device=u.device))


def read_hidden(c, p, pre, ways, h, route):
    """What c_proj and, behind it, both matrices of the gate make of the hidden activation"""
    w = p[pre + "c_proj.weight"]
    if pre + "gate_proj.weight" in p:
        w = torch.cat((w, p[pre + "gate_proj.weight"] @ p[pre + "gate_to_heads.weight"]), -1)
    if not c.cross_token:
        return h @ w
    cross = p[pre + "cross_proj.weight"]
    if c.cross_folded:
        return h @ w + c.cross_alpha * mix(h @ (cross @ w), route, ways.mix)
    return (h + c.cross_alpha * (mix(h, route, ways.mix) @ cross)) @ w


def feed_forward(c, p, pre, tables, ways, x, latent, route, last):
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
    read, gate = read_hidden(c, p, pre, ways, h, route).tensor_split((c.embd,), -1)
    if pre + "gate_proj.weight" in p:
        send["gate"] = (gate.cumsum(1) / tables.count).sigmoid()
    return read + p.get(pre + "c_proj.bias", 0), send, aux


def loss(c, p, tables, ways, tokens, targets):
    x = F.embedding(tokens, p["wte.weight"])
    if c.pos == "learned":
        x = x + p["wpe.weight"][:tokens.shape[1]]
    if ways.narrow:
        x = x.bfloat16()
    incoming, aux = {}, 0
    for layer in range(c.layers):
        pre = f"h.{layer}."
        o, latent, route = attention(c, p, pre + "attn.", tables, ways, norm(c, p, pre + "ln_1", x), incoming)
        x = (x + o).to(x.dtype)
        o, incoming, a = feed_forward(c, p, pre + "mlp.", tables, ways, norm(c, p, pre + "ln_2", x), latent,
                                      route, layer == c.layers - 1)
        x, aux = (x + o).to(x.dtype), aux + a
    logits = norm(c, p, "ln_f", x) @ (p["wte.weight"] if c.tie else p["lm_head.weight"]).t()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1) + aux
