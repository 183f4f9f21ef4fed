#!/usr/bin/env python3
"""Write the test vectors of models/vectors/: one small model per option, and mixtures.

    vectors.py [OUTDIR]          default: models/vectors of this tree;  example: vectors.py new

golden.py makes each vector; this program stores it compactly: a parameter whose float64 values are
all exact in float32 is stored as F32.  Gradients, logits and losses stay F64.
"""
import json
import os
import struct
import sys

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch

import golden

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = "vocab=11 block=9 layers=2 heads=2 embd=8 ffn_mult=2 latent=6 gate_dim=3 recip_latent=3 ws_heads=2 " \
        "sparse_k=3 ra_window=3 length=7 batch=2"
MLA = "attn=mla"
RECIP = "attn=mla latent_recip=y"
CROSS = "attn=mla cross_token=y"
GATE = "attn=mla attn_gate=y"
ALL = "attn=mla attn_gate=y cross_token=y latent_recip=y"
GLA = "attn=gla pos=none norm_eps=0.01"
DELTA = "attn=delta pos=none norm_eps=0.01 delta_key=6"
WS = "ffn=ws ws_lambda_z=0.01 ws_lambda_c=0.1"

VECTORS = {
    # the base model
    "dot": "",
    "dot-no-bias": "bias=n",
    "dot-rms": "norm=rms",
    "dot-rms-eps": "norm=rms norm_eps=1e-6 bias=n",
    "dot-post": "norm_place=post",
    "dot-post-rms": "norm_place=post norm=rms",
    "dot-final-layer": "norm=rms final_norm=layer",
    "dot-final-layer-no-bias": "norm=rms final_norm=layer bias=n",
    "dot-final-rms": "final_norm=rms",
    "dot-rope": "pos=rope",
    "dot-rope-theta": "pos=rope rope_theta=100",
    "dot-alibi": "pos=alibi",
    "dot-alibi-3-heads": "pos=alibi heads=3 embd=12",
    "dot-t5": "pos=t5 t5_buckets=4 t5_distance=6",
    "dot-window": "windowed=y window=3",
    "dot-window-sinks": "windowed=y window=2 sinks=2 pos=rope",
    "dot-softcap": "softcap=0.5",
    "mla-t5-terms": MLA + " ra_alpha=0.5 pos=t5 t5_buckets=6 t5_distance=7 windowed=y window=4 sinks=1 softcap=0.3",
    "cross-w2-t5": "attn=w2 cross_token=y sparse=rms pos=t5 t5_buckets=5 t5_distance=5",
    "mla-all-terms": MLA + " ra_alpha=0.5 pos=alibi windowed=y window=3 sinks=1 softcap=0.3",
    "dot-nopos": "pos=none",
    "dot-untied": "tie=n",
    "dot-logits-z": "lambda_logits_z=0.01",
    "dot-one-layer": "layers=1",
    "dot-three-layers": "layers=3",
    "dot-one-head": "heads=1",
    "dot-one-token": "length=1 batch=3",
    "dot-one-row": "batch=1",
    "dot-full-block": "length=9",
    "dot-gqa": "heads=4 kv_heads=2",
    "dot-mqa": "heads=4 kv_heads=1",
    "dot-mqa-rope": "heads=4 kv_heads=1 pos=rope",
    "dot-out-gate-head": "out_gate=head",
    "dot-out-gate-channel": "out_gate=channel",
    "dot-ffn-odd": "ffn_mult=1.4",
    # all places from the last token
    "decoder": "decoder=y",
    "decoder-rms": "decoder=y attn=mla pos=rope norm=rms bias=n tie=n",
    "decoder-post-odd": "decoder=y norm_place=post attn_gate=y heads=1 embd=7 ffn_mult=2",
    # feed-forward
    "swiglu": "ffn=swiglu",
    "swiglu-bias": "ffn=swiglu bias=y norm=layer",
    "ws": WS,
    "ws-blocks": WS + " ws_z_blocks=y",
    "ws-no-aux": WS + " ws_aux=n",
    "ws-one-head-one-row": WS + " ws_heads=1 batch=1",
    "ws-one-head": WS + " ws_heads=1",
    "ws-four-heads": WS + " ws_heads=4",
    "ws-tau": WS + " ws_tau=0.5",
    "ws-halves": WS + " ws_positives=halves",
    "ws-logits": WS + " ws_lambda_logits=0.1",
    "ws-logits-halves-untied": WS + " ws_lambda_logits=0.1 ws_positives=halves ws_heads=1 tie=n length=6",
    "ws-logits-z": WS + " lambda_logits_z=0.001",
    "ws-mla": WS + " attn=mla",
    "ws-w2": WS + " attn=w2 pos=rope",
    "soft-moe": "ffn=soft_moe",
    "soft-moe-prefix": "ffn=soft_moe moe_prefix=y moe_experts=2",
    "soft-moe-benchmark": "ffn=soft_moe moe_prefix=y norm=rms pos=rope bias=n tie=n",
    "gate-soft-moe": "ffn=soft_moe moe_experts=2 attn_gate=y cross_token=y",
    # latent attention
    "mla": MLA,
    "mla-shared-q": MLA + " per_head_q_latent=n",
    "mla-shared-v": MLA + " per_head_v_up=n",
    "mla-shared": MLA + " per_head_q_latent=n per_head_v_up=n",
    "mla-rope": MLA + " pos=rope",
    "mla-alibi": MLA + " pos=alibi",
    "mla-ra": MLA + " ra_alpha=0.5",
    "mla-ra-window-0": MLA + " ra_alpha=0.5 ra_window=0",
    "mla-ra-wide": MLA + " ra_alpha=0.3 ra_window=64",
    "mla-ra-learned": MLA + " ra_alpha=0.5 learn_alpha=y",
    "mla-ra-rope": MLA + " ra_alpha=0.5 pos=rope",
    "mla-ra-alibi": MLA + " ra_alpha=0.5 pos=alibi",
    "mla-out-gate": MLA + " out_gate=head",
    "mla-swiglu-rms": MLA + " ffn=swiglu norm=rms bias=n",
    "deepseek": "attn=deepseek pos=rope",
    "deepseek-learned": "attn=deepseek",
    "deepseek-widths": "attn=deepseek pos=rope query_latent=5 rope_key=4 latent=3 norm=rms",
    "deepseek-alibi": "attn=deepseek pos=alibi ffn=swiglu",
    "deepseek-recip": "attn=deepseek pos=rope latent_recip=y attn_gate=y cross_token=y",
    # Gaussian attention
    "w2": "attn=w2 pos=rope",
    "w2-nopos": "attn=w2 pos=none",
    "w2-learned": "attn=w2",
    "w2-alibi": "attn=w2 pos=alibi",
    "w2-eps": "attn=w2 pos=rope w2_eps=0.1",
    "w2-overlap": "attn=w2 pos=rope w2_score=overlap",
    "w2-overlap-nopos": "attn=w2 pos=none w2_score=overlap",
    "w2-overlap-alibi": "attn=w2 pos=alibi w2_score=overlap",
    "w2-out-gate": "attn=w2 pos=rope out_gate=channel",
    "w2-benchmark": "attn=w2 pos=rope norm=rms norm_eps=1e-6 final_norm=layer ffn=swiglu ffn_mult=4 bias=n tie=n",
    "w2cov": "attn=w2cov pos=rope",
    "w2cov-learned": "attn=w2cov w2cov_eps=0.1 out_gate=head",
    "w2cov-full": "attn=w2cov pos=none heads=4 attn_gate=y norm=rms scale=5",
    "w2cov-benchmark": "attn=w2cov heads=4 pos=rope norm=rms norm_eps=1e-6 final_norm=layer ffn=swiglu ffn_mult=4 bias=n tie=n",
    "dot-benchmark": "pos=rope norm=rms norm_eps=1e-6 final_norm=layer ffn=swiglu ffn_mult=4 bias=n tie=n",
    # difference of two softmaxes
    "differential": "attn=differential",
    "differential-rope": "attn=differential pos=rope scale=5",
    "differential-gate": "attn=differential pos=none attn_gate=y out_gate=head norm=rms scale=5",
    # gated linear attention; a large eps where the steep norm of a head with a small q.k would show every rounding
    "gla": GLA,
    "gla-learned": GLA + " pos=learned",
    "gla-rope": GLA + " pos=rope",
    "gla-tau": GLA + " gla_tau=1 gla_key=5 gla_rank=3",
    "gla-chunks": GLA + " block=133 length=133 gla_tau=2 batch=1",
    "gla-benchmark": GLA + " norm=rms final_norm=layer ffn=swiglu ffn_mult=4 bias=n tie=n",
    "gate-gla": GLA + " attn_gate=y out_gate=head",
    # gated delta rule; the long row has more than a chunk
    "delta": DELTA,
    "delta-rope": DELTA + " pos=rope delta_conv=2",
    "delta-learned": "attn=delta norm_eps=0.1 delta_conv=1",
    "delta-chunks": DELTA + " block=70 length=70 layers=1 batch=1",
    "delta-benchmark": DELTA + " norm=rms final_norm=layer ffn=swiglu ffn_mult=4 bias=n tie=n",
    "gate-delta": DELTA + " attn_gate=y out_gate=head",
    # mechanism 1
    "gate": GATE,
    "gate-token": GATE + " gate_pool=token",
    "gate-sequence": GATE + " gate_pool=sequence",
    "gate-learned": GATE + " learn_alpha=y",
    "gate-one-layer": GATE + " layers=1",
    "gate-three-layers": GATE + " layers=3",
    "gate-dot": "attn_gate=y",
    "gate-w2": "attn=w2 pos=rope attn_gate=y",
    # mechanism 2
    "cross": CROSS,
    "cross-none": CROSS + " sparse=none",
    "cross-rms": CROSS + " sparse=rms",
    "cross-rms-high": CROSS + " sparse=rms sparse_tau=1.2",
    "cross-raw": CROSS + " sparse_normalize=n",
    "cross-none-raw": CROSS + " sparse=none sparse_normalize=n",
    "cross-rms-raw": CROSS + " sparse=rms sparse_normalize=n",
    "cross-gradient": CROSS + " cross_gradient=y",
    "cross-gradient-rms": CROSS + " cross_gradient=y sparse=rms cross_rank=4 ra_alpha=0.5 pos=alibi",
    "cross-gradient-max": CROSS + " cross_gradient=y sparse=none sparse_head_average=n sparse_normalize=n",
    "cross-gradient-gqa": "cross_token=y cross_gradient=y heads=4 kv_heads=2 softcap=0.3",
    "cross-gradient-w2": "attn=w2 pos=rope cross_token=y cross_gradient=y sparse=rms",
    "cross-max": CROSS + " sparse_head_average=n",
    "cross-max-rms": CROSS + " sparse_head_average=n sparse=rms",
    "cross-max-none": CROSS + " sparse_head_average=n sparse=none",
    "cross-k1": CROSS + " sparse_k=1",
    "cross-k-large": CROSS + " sparse_k=50",
    "cross-rank": CROSS + " cross_rank=4",
    "cross-rank-rms": CROSS + " cross_rank=4 sparse=rms",
    "cross-learned": CROSS + " learn_alpha=y",
    "cross-dot": "cross_token=y",
    "cross-dot-gqa": "cross_token=y heads=4 kv_heads=2",
    "cross-w2": "attn=w2 pos=rope cross_token=y",
    "cross-w2-rms": "attn=w2 pos=rope cross_token=y sparse=rms",
    "cross-alibi-rms": CROSS + " pos=alibi sparse=rms",
    "cross-ra-rms": CROSS + " ra_alpha=0.5 sparse=rms",
    # Scores so flat that in float it is unclear which keys are the largest.
    "cross-near-tie": "attn=w2 w2_score=overlap w2_eps=1e6 pos=rope cross_token=y",
    # mechanism 3
    "recip": RECIP,
    "recip-untied": RECIP + " tying=untied",
    "recip-scalar": RECIP + " tying=per_head_scalar",
    "recip-scalar-odd": RECIP + " tying=per_head_scalar latent=5 ffn_mult=1.7",
    "recip-bottleneck": RECIP + " tying=bottleneck",
    "recip-detach": RECIP + " detach=y",
    "recip-learned": RECIP + " learn_alpha=y",
    "recip-scalar-learned": RECIP + " tying=per_head_scalar learn_alpha=y",
    "recip-untied-detach-rope": RECIP + " tying=untied detach=y pos=rope",
    "recip-one-layer": RECIP + " layers=1",
    "recip-three-layers": RECIP + " layers=3 tying=bottleneck",
    # mixtures
    "all": ALL,
    "all-learned": ALL + " learn_alpha=y ra_alpha=0.2",
    "all-three-layers": ALL + " layers=3",
    "all-swiglu-rms": ALL + " ffn=swiglu norm=rms bias=n",
    "all-ws": ALL + " " + WS,
    "all-post-alibi": ALL + " norm_place=post pos=alibi",
    "all-rope-untied": ALL + " pos=rope tie=n tying=untied",
    "all-scalar-rms": ALL + " tying=per_head_scalar sparse=rms",
    "all-bottleneck-rank": ALL + " tying=bottleneck cross_rank=3 gate_pool=token",
    "all-out-gate": ALL + " out_gate=channel lambda_logits_z=0.01",
    "gate-cross-w2-ws": "attn=w2 pos=rope attn_gate=y cross_token=y ws_z_blocks=y " + WS,
    "gate-cross-dot-mqa": "attn_gate=y cross_token=y heads=4 kv_heads=1 sparse=none pos=rope",
}


def read(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(size)), f.read()
    kinds = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}
    tensors = {}
    for name, entry in head.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            flat = torch.frombuffer(bytearray(data[first:last]), dtype=kinds[entry["dtype"]])
            tensors[name] = flat.reshape(entry["shape"])
    return tensors, head["__metadata__"]


def compact(path):
    """Store as F32 what is exact in it; 8-byte tensors first, as the format asks of writers."""
    tensors, meta = read(path)
    for name, t in tensors.items():
        if name.startswith("param.") and torch.equal(t.float().double(), t):
            tensors[name] = t.float()
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    golden.write(path, {name: tensors[name] for name in order}, meta)


def main(argv):
    out = argv[0] if argv else os.path.join(HERE, "..", "..", "models", "vectors")
    os.makedirs(out, exist_ok=True)
    for name, fields in VECTORS.items():
        settings = dict(f.split("=", 1) for f in (SMALL + " " + fields).split())
        path = os.path.join(out, name + ".safetensors")
        golden.main([path] + [f"{k}={v}" for k, v in settings.items()])
        compact(path)


if __name__ == "__main__":
    main(sys.argv[1:])
