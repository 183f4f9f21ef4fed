#!/usr/bin/env python3
"""The benchmark's other side: the models of tools/reference/model.py, trained by PyTorch.

    bench_torch.py CONFIG [options]     answer lines of standard input as bench_model.c does
    bench_torch.py CONFIG --run DIR     train as that configuration says, evaluations included
    bench_torch.py --ceilings           answer each line with the speed of large products and copies
    bench_torch.py --check CONFIG...    compare with the reference in double, at small sizes

CONFIG is the file that bench_model reads.  AdamW is the fused one.  The models are in
bench_torch_model.py.

Options: --form 'WAY ATTENTION ...', --precision float32|bfloat16, --device cpu|cuda, --vocab N
(where the configuration leaves it to the task), --start DIR (weights and batches that bench_model
shared).  A float32 row never uses TF32.

WAY        eager; compiled; graph (the whole update, compiled so, is captured as one CUDA graph, and
           AdamW is capturable); reduce-overhead (torch.compile's own graphs)
ATTENTION  plain (products); sdpa (PyTorch chooses its kernel), sdpa-flash, sdpa-cudnn,
           sdpa-efficient, sdpa-math
...        gather (routed rows are gathered, not put into bags), narrow (a bfloat16 residual stream)

Example: bench_torch.py --check model.symbols
"""
import argparse
import json
import os
import sys
import time

if "--help" in sys.argv:  # it needs none of the packages below
    sys.exit(print(__doc__.strip()))

import torch

from bench_torch_model import Tables, Ways, loss, merge_linears, model_config, read_config, reference
from vectors import read as read_tensors    # of tools/reference, which the line above made known

WAYS = {    # mode of torch.compile, and whether the whole update is captured
    "eager": (None, False), "compiled": ("default", False), "graph": ("default", True),
    "reduce-overhead": ("reduce-overhead", False)}
SETTLING = 2        # iterations
WIDE_UPDATES = 3    # before a capture: kernels are compiled, the optimizer's state is made
SQUARE = {"cpu": 1024, "cuda": 8192}            # of the products ...
COPIED = {"cpu": 1 << 26, "cuda": 1 << 31}      # ... and bytes of the copy that are the ceilings


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- settings

def choose_attention(name):
    """sdpa-KERNEL: of the kernels behind scaled_dot_product_attention only this one may be used."""
    attention, _, kernel = name.partition("-")
    if kernel:
        for one, switch in (("flash", torch.backends.cuda.enable_flash_sdp),
                            ("efficient", torch.backends.cuda.enable_mem_efficient_sdp),
                            ("cudnn", torch.backends.cuda.enable_cudnn_sdp),
                            ("math", torch.backends.cuda.enable_math_sdp)):
            switch(one == kernel)
    return attention


def choose_precision(precision):
    """No TF32 in float32; beside bfloat16 the few products of floats may use it, as is usual."""
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"


def ways_of(words):
    return Ways(choose_attention(words[0]), "gather" if "gather" in words else "bag", "narrow" in words)


# ---------------------------------------------------------------- training

class Trainer:
    def __init__(self, symbols, form, precision, device="cpu", start=None):
        self.base = resident_bytes()
        way, *words = form.split()
        self.mode, self.captures = WAYS[way]
        self.c = c = model_config(symbols)
        self.batch, self.symbols, self.device = int(symbols["TRAIN_BATCH"]), symbols, device
        self.clip = float(symbols["GRAD_CLIP"])
        choose_precision(precision)
        first = self.read_start(start) if start else reference.init(c, 1)
        self.p = {name: torch.nn.Parameter(t.to(device)) for name, t in merge_linears(c, first).items()}
        self.parameters = sum(t.numel() for t in self.p.values())
        self.batches = self.read_batches(start) if start else None
        self.done, self.graph, self.static = 0, None, None
        ways, tables = ways_of(words), Tables(c, c.block, device)

        def forward(tokens, targets):
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
                return loss(c, self.p, tables, ways, tokens, targets)
        self.loss = torch.compile(forward, mode=self.mode) if self.mode else forward
        self.optimizer = self.make_optimizer()

    def read_start(self, directory):
        names = reference.shapes(self.c)
        tensors, _ = read_tensors(os.path.join(directory, "weights.safetensors"))
        if tensors.keys() != names.keys():
            raise SystemExit(f"bench_torch: other parameters: {sorted(tensors.keys() ^ names.keys())}")
        return {name: tensors[name].reshape(shape) for name, shape in names.items()}

    def read_batches(self, directory):
        """On the device before anything is timed."""
        with open(os.path.join(directory, "batches"), "rb") as file:
            numbers = torch.frombuffer(bytearray(file.read()), dtype=torch.int32)
        return list(numbers.long().view(-1, 2, self.batch, self.c.block).to(self.device))

    def make_optimizer(self):
        s = self.symbols
        if s["OPTIMIZER"] != "adamw":
            raise SystemExit("bench_torch: only AdamW")
        everywhere = s["DECAY_GROUP"] == "all"
        groups = {True: [], False: []}
        for name, t in self.p.items():
            groups[everywhere or t.dim() > 1 and name not in ("wte.weight", "wpe.weight", "relative_attention_bias.weight")].append(t)
        return torch.optim.AdamW(
            [{"params": ts, "weight_decay": float(s["WEIGHT_DECAY"]) * decay}
             for decay, ts in groups.items()],
            lr=float(s["LEARNING_RATE"]), betas=(float(s["BETA1"]), float(s["BETA2"])),
            eps=float(s["OPTIMIZER_EPS"]), fused=True, capturable=self.captures)

    def rows(self):
        if self.batches:
            return self.batches[self.done % len(self.batches)].unbind()
        both = torch.randint(self.c.vocab, (self.batch, self.c.block + 1), device=self.device)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def update(self, tokens, targets):
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(tokens, targets)
        value.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.p.values(), self.clip)
        self.optimizer.step()
        return value.detach()

    def captured_update(self, tokens, targets):
        """The first updates run as usual; then one is captured, and replayed from there on."""
        if self.static is None:
            self.static, self.aside = (torch.empty_like(tokens), torch.empty_like(targets)), torch.cuda.Stream()
        for place, given in zip(self.static, (tokens, targets)):
            place.copy_(given)
        if self.done < WIDE_UPDATES:
            return self.update_aside()
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.value

    def update_aside(self):
        """On a stream of its own, as capturing asks of the updates before it; the capture uses it, too."""
        self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            value = self.update(*self.static)
        torch.cuda.current_stream().wait_stream(self.aside)
        return value

    def capture(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.forget_peak()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.aside):
            self.value = self.update(*self.static)

    def iterate(self):
        if self.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        value = (self.captured_update if self.captures else self.update)(*self.rows())
        self.done += 1
        return value

    def times(self, n):
        """On a GPU only the last of them is waited for."""
        if self.device == "cpu":
            return [self.timed(1) for _ in range(n)]
        return [self.timed(n)]

    def timed(self, n):
        start = time.perf_counter()
        for _ in range(n):
            self.iterate()
        wait(self.device)
        return (time.perf_counter() - start) / n

    def losses(self, n):
        found = [self.iterate().item() for _ in range(n)]
        if self.device == "cuda" and not self.captures:
            self.forget_peak()      # kernels are compiled and tuned by now
            self.timed(SETTLING)    # takes the memory again, so that no timed iteration does
        return found

    @staticmethod
    def forget_peak():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def memory(self):
        """Peak bytes; torch.compile's own graphs keep their blocks, so for them the reserved ones count."""
        if self.device == "cpu":
            return None
        most = torch.cuda.max_memory_reserved if self.mode == "reduce-overhead" else torch.cuda.max_memory_allocated
        return {"most": most()}

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
        device = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "device": device,
                          "parameters": self.parameters, "base": self.base}), flush=True)
        for line in sys.stdin:
            word, _, number = line.strip().rpartition(" ")
            found = [self.memory()] if number == "memory" else \
                self.losses(int(number)) if word == "losses" else self.times(int(number))
            print(json.dumps(found), flush=True)


# ---------------------------------------------------------------- ceilings

def fastest(work, device):
    """Seconds of the fastest of some calls, after one that does not count."""
    best = float("inf")
    for turn in range(6):
        wait(device)
        start = time.perf_counter()
        for _ in range(4):
            work()
        wait(device)
        if turn:
            best = min(best, (time.perf_counter() - start) / 4)
    return best


def products_per_second(device, dtype):
    n = SQUARE[device]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n ** 3 / fastest(lambda: torch.mm(a, b, out=out), device)


def copied_per_second(device):
    source = torch.zeros(COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED[device] / fastest(lambda: target.copy_(source), device)


def answer_ceilings(device):
    """Floats without TF32; a copy reads and writes each byte."""
    choose_precision("float32")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(json.dumps({"torch": torch.__version__, "device": name}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"ceiling_flops": products_per_second(device, torch.float32),
                          "ceiling_flops_bfloat16": products_per_second(device, torch.bfloat16),
                          "ceiling_bytes": copied_per_second(device)}), flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()


# ---------------------------------------------------------------- check

def check(path):
    """Loss and gradients beside the reference's, in double; returns the worst relative error."""
    torch.set_default_dtype(torch.float64)
    c = model_config(read_config(path))
    c.vocab, c.block, c.layers, c.embd, c.latent = 97, 24, 3, 8 * c.heads, min(c.latent, 12)
    start = reference.init(c, 1, torch.float64)
    g = torch.Generator().manual_seed(2)
    start = {n: t + 0.2 * torch.randn(t.shape, generator=g) for n, t in start.items()}
    tokens, targets = torch.randint(c.vocab, (2, 3, c.block), generator=g)
    worst = 0
    for ways in (Ways("sdpa"), Ways("plain"), Ways("sdpa", "gather")):
        values, grads = [], []
        for ours in (True, False):
            leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
            value = loss(c, merge_linears(c, leaves), Tables(c, c.block), ways, tokens, targets) if ours else \
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
    parser.add_argument("config", nargs="*")
    parser.add_argument("--form", default="eager sdpa")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--vocab", type=int, help="where the configuration leaves it to the task")
    parser.add_argument("--start", metavar="DIRECTORY", help="weights and batches")
    parser.add_argument("--run", metavar="DIRECTORY", help="train; checkpoints go there")
    parser.add_argument("--ceilings", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    if args.ceilings:
        return answer_ceilings(args.device)
    if args.check:
        return check_all(args.config)
    symbols = read_config(args.config[0])
    symbols["MODEL_VOCAB"] = args.vocab or symbols["MODEL_VOCAB"]
    torch.set_num_threads(int(symbols["THREADS"]) or len(os.sched_getaffinity(0)))
    trainer = Trainer(symbols, args.form, args.precision, args.device, args.start)
    if args.run:
        trainer.run(args.run)
    else:
        trainer.answer()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
