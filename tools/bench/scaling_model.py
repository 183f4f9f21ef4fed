#!/usr/bin/env python3
"""A model of the time of one update on 1 to 512 GPUs, for models of 124M to 7B parameters.

    scaling_model.py [--rate FLOPS] [--tokens N] [--nic GB/S]

It follows core/train/shards.c: every GPU runs its micro-batches; each piece of a gradient goes to
its owner while the backward pass goes on; the owner updates it; the weights go to all.  Measured:
the arithmetic rate of one H200.  Public: links and memory (docs/scaling.md names
the sources).  Assumed: what stands under ASSUMED.  The table compares ordered sums, as built
(direct exchange after every micro-batch), with a reduction of a library once per update, by a
ring or by a tree.

Example: python3 -m tools.bench.scaling_model --rate 400e12
"""
import argparse
import math
from dataclasses import dataclass

# ---------------------------------------------------------------- measured, public, assumed

MEASURED_TOKENS = 481e3         # per second: GPT-2 124M, T 1024, batch 16, bfloat16, an earlier version on one H200
GPU_BYTES = 141e9               # H200
GPU_MEMORY_SPEED = 4.8e12       # bytes per second
NODE = 8                        # GPUs that NVLink connects
NVLINK = 450e9                  # bytes per second and direction
NIC = 50e9                      # 400 Gb/s InfiniBand, one per GPU

ASSUMED = {"share of a link that is reached": 0.8,
           "seconds of a message between GPUs of a node": 5e-6,
           "seconds of a message between nodes": 10e-6,
           "seconds to announce a piece": 2e-6}

VOCAB, LENGTH = 50304, 1024
PIECE = 1 << 18                 # elements, core/train/shards.c
FLOAT = 4                       # bytes
ROWS = 16                       # of a micro-batch, at most
BACKWARD = 2 / 3                # of the arithmetic


@dataclass
class Model:
    name: str
    layers: int
    width: int

    @property
    def embedding(self):
        return (VOCAB + LENGTH) * self.width

    @property
    def parameters(self):
        return 12 * self.layers * self.width ** 2 + self.embedding

    @property
    def flops(self):
        """Per token, forward and backward; attention is causal."""
        return 6 * (12 * self.layers * self.width ** 2 + VOCAB * self.width) + 6 * self.layers * self.width * LENGTH

    def activations(self, rows):
        """Bytes: 11 numbers of width per token and layer, as `kablate describe` says of 124M."""
        return 11 * FLOAT * rows * LENGTH * self.layers * self.width


MODELS = [Model("124M", 12, 768), Model("355M", 24, 1024), Model("774M", 36, 1280), Model("1.6B", 48, 1600),
          Model("2.7B", 32, 2560), Model("6.7B", 32, 4096)]
GPUS = [1, 2, 8, 16, 32, 64, 128, 256, 512]


@dataclass
class Update:
    compute: float
    hidden: float       # of the exchange, behind the backward pass
    exchange: float     # what is left of it
    gather: float
    optimizer: float

    @property
    def total(self):
        return self.compute + self.exchange + self.gather + self.optimizer


class Machine:
    def __init__(self, rate, nic):
        self.rate, self.nic = rate, nic

    def link(self, gpus):
        """Bytes per second that a GPU sends to the others together."""
        share = ASSUMED["share of a link that is reached"]
        return share * (NVLINK if gpus <= NODE else self.nic)

    @staticmethod
    def latency(gpus):
        return ASSUMED["seconds of a message between GPUs of a node" if gpus <= NODE else
                       "seconds of a message between nodes"]

    def exchange(self, numbers, gpus, how):
        """Seconds until each owner has the sum of its part of so many numbers."""
        if gpus == 1:
            return 0
        data = FLOAT * numbers / self.link(gpus)
        if how == "direct":     # a message per piece, and one per piece that is received
            return 2 * numbers / PIECE * ASSUMED["seconds to announce a piece"] + self.latency(gpus) + \
                data * (gpus - 1) / gpus
        if how == "ring":
            return (gpus - 1) * self.latency(gpus) + data * (gpus - 1) / gpus
        return 2 * math.log2(gpus) * self.latency(gpus) + 2 * data     # tree: everybody gets everything

    def update(self, model, gpus, tokens, how):
        rows = rows_that_fit(model, gpus, tokens)
        micros = max(1, tokens // (LENGTH * rows * gpus))
        each = rows * LENGTH * model.flops / self.rate
        # The gradient of the embedding is whole at the very end of the backward pass: nothing hides it.
        late = self.exchange(model.embedding, gpus, how)
        early = self.exchange(model.parameters - model.embedding, gpus, how)
        rounds = micros if how == "direct" else 1
        behind = min(early, BACKWARD * each)
        # The rest of a round travels behind the next forward pass, except after the last one.
        left, forward = early - behind + late, (1 - BACKWARD) * each
        exposed = (rounds - 1) * max(0, left - forward) + left
        gather = 0 if how == "tree" else self.exchange(model.parameters, gpus, "direct" if how == "direct" else how)
        optimizer = 28 * model.parameters / gpus / GPU_MEMORY_SPEED     # p, m, v read and written, g read
        return Update(micros * each, rounds * (early + late) - exposed, exposed, gather, optimizer)


def memory(model, gpus, rows):
    """Bytes of a GPU: weights, gradients, bfloat16 copies, own pieces and their state, arrivals, activations."""
    arrivals = FLOAT if gpus > 1 else 0
    return model.parameters * (3 * FLOAT + 4 * FLOAT / gpus + arrivals) + model.activations(rows)


def rows_that_fit(model, gpus, tokens):
    """Of a micro-batch: a power of two, as many as an update has for a GPU, as fit into it, and ROWS."""
    rows = max(1, min(ROWS, tokens // LENGTH // gpus))
    while rows > 1 and memory(model, gpus, rows) > GPU_BYTES:
        rows //= 2
    return rows


def table(machine, tokens):
    yield "| model | GPUs | compute | exchange | weights | update | total, s | tokens/s | efficiency | ring | tree | GB |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for model in MODELS:
        alone = machine.update(model, 1, tokens, "direct").total
        for gpus in GPUS:
            if tokens // LENGTH < gpus:
                continue
            u = machine.update(model, gpus, tokens, "direct")
            others = [alone / gpus / machine.update(model, gpus, tokens, how).total for how in ("ring", "tree")]
            used = memory(model, gpus, rows_that_fit(model, gpus, tokens))
            yield (f"| {model.name} | {gpus} | {u.compute:.3f} | {u.exchange:.3f} | {u.gather:.3f} | {u.optimizer:.4f} | "
                   f"{u.total:.3f} | {tokens / u.total / 1e3:.0f}k | {alone / gpus / u.total:.0%} | {others[0]:.0%} | "
                   f"{others[1]:.0%} | {used / 1e9:.0f}{'!' if used > GPU_BYTES else ''} |")


def largest(gpus, capacity=GPU_BYTES):
    """Parameters (of a model as deep as 6.7B) at which one row no longer fits into a GPU."""
    width = 64
    while memory(Model("", 32, width), gpus, 1) < capacity:
        width += 64
    return Model("", 32, width - 64).parameters


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=MEASURED_TOKENS * MODELS[0].flops,
                        help="arithmetic operations per second of one GPU (default: measured)")
    parser.add_argument("--tokens", type=int, default=1 << 19, help="of an update")
    parser.add_argument("--nic", type=float, default=NIC / 1e9, help="GB/s of a GPU to other machines")
    options = parser.parse_args()
    machine = Machine(options.rate, options.nic * 1e9)
    print(f"{options.rate / 1e12:.0f} TFLOP/s per GPU, {options.tokens} tokens per update\n")
    print("\n".join(table(machine, options.tokens)))
    print()
    for gpus in (1, 8, 64, 512):
        print(f"{gpus} GPU{'s' * (gpus > 1)}: weights fit whole up to {largest(gpus) / 1e9:.1f}B parameters (80 GB: "
              f"{largest(gpus, 80e9) / 1e9:.1f}B)")


if __name__ == "__main__":
    main()
