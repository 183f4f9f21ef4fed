#!/usr/bin/env python3
"""Whole training iterations, ours beside PyTorch's, in one run.

    bench.py --build DIR [--backend cuda] [--rows PATTERN,...] [--rounds N] [--torch PYTHON] [--list]

Both sides are processes (bench_model.c, bench_torch.py).  Each reads a number on standard input and
answers with the times of that many iterations, so only one computes at a time.  Both start from the same
weights and batches, and their losses are compared.  First forms of PyTorch (bench_forms.py) run alone:
the fastest form competes.  Then rounds alternate: the machine's ceilings, ours, theirs.  A ratio is
taken within a round.  The table shows the median over the rounds and, in brackets, the least and the
largest.  Rows of one thread also get the ratio of processor time, which a busy machine disturbs less.

bound: the ratio if our iteration ran at the speed of large products (sgemm of the linked BLAS)
from end to end, causal work counted once.  Memory: the peak of the process while it trains, beside
that of the smallest form; "rest" is the part beyond 16 bytes per parameter (weight, gradient and two
moments).  PyTorch's memory includes the library itself, which is also shown separately.

On a GPU several iterations are issued and waited for once.  The ceilings are PyTorch's products of
8192 x 8192 matrices and its copy of 2 GiB.  The work of a token is 6 N + 12 layers T E operations, N
being all parameters.  Of the bandwidth counts what our ops read and write if none is fused with another.
Memory is that of our blocks beside what the fastest form allocated.  Results of several runs collect in
DIR/bench/gpu.json; a row takes at most --limit seconds.
"""
import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time

from tools.bench import bench_forms, bench_rows
from tools.bench.bench_compare import LIMIT, Comparison
from tools.bench.bench_process import Lost, Process, end_on_signals, gpu_name, last_line, torch_version
from tools.bench.bench_result import Collection, Result, entry, key, markdown, print_row, restored
from tools.plan import kconfig
from tools.terminal import terminal


class Bench:
    """What all rows share: the machine, the build, PyTorch.  One row at a time has processes."""

    def __init__(self, build, rounds=1, python=None, patterns="*", backend="cpu", limit=None):
        self.build, self.rounds, self.python, self.patterns = build, rounds, python, patterns
        self.backend = backend
        self.limit = limit if backend != "cpu" else None
        self.directory = os.path.join(build, "bench")
        self.tree = kconfig.Tree()
        self.torch = python and torch_version(python)
        self.meter, self.live, self.started = None, [], time.monotonic()
        self.environment = bench_forms.environment(self.directory) if backend != "cpu" else None

    # ------------------------------------------------------------ the machine

    def ceilings(self, threads):
        if self.backend == "cpu":
            done = subprocess.run([os.path.join(self.build, "bin/bench_ops"), "--ceilings", "--threads",
                                   str(threads)], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)
        if not self.torch:
            return {}
        if not self.meter:
            os.makedirs(self.directory, exist_ok=True)
            self.meter = Process([self.python, bench_forms.TORCH_TOOL, "--ceilings", "--device", self.backend],
                                 os.path.join(self.directory, "ceilings.log"), os.sched_getaffinity(0))
            self.meter.wait_until_ready()
        return self.meter.about | self.meter.ask("ceilings")

    def say(self, text):
        """What a long measurement is doing."""
        if self.limit:
            print(f"  {time.monotonic() - self.started:4.0f} s  {text}", flush=True)

    def close(self):
        self.end_all()
        if self.meter:
            self.meter.end()

    # ------------------------------------------------------------ processes

    def backend_symbols(self):
        return {"BACKEND": self.backend} if self.backend != "cpu" else {}

    def configure(self, name, start, fragments, symbols):
        """Resolve, write, and return the path of the configuration."""
        bench_rows.resolve(self.tree, start, fragments, symbols | self.backend_symbols())
        os.makedirs(os.path.join(self.directory, name), exist_ok=True)
        path = os.path.join(self.directory, name, "config")
        kconfig.write_text(path, kconfig.program_symbols(self.tree))
        return path

    def processors(self):
        """One for each thread: of one thread, PyTorch's kernels make up to 1.2.  A GPU's host has all."""
        here = sorted(os.sched_getaffinity(0))
        threads = int(self.tree.value(self.tree.syms["THREADS"]))
        return here if self.backend != "cpu" else here[:threads or len(here)]

    def start(self, command, log, processors, deadline=None, say=lambda text: None, environment=None):
        """A process, when it is ready."""
        process = Process(command, log, processors, self.backend, deadline, say, environment)
        self.live.append(process)
        process.wait_until_ready()
        return process

    def start_ours(self, config, deadline=None, say=lambda text: None):
        return self.start([os.path.join(self.build, "bin/bench_model"), config],
                          os.path.join(os.path.dirname(config), "ours.log"), self.processors(), deadline, say)

    def end_all(self):
        for process in self.live:
            process.kill()
        self.live = []

    # ------------------------------------------------------------ whole runs

    def time_command(self, command, log, environment):
        start = time.perf_counter()
        with open(log, "w", encoding="utf-8") as errors:
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        if done.returncode:
            raise Lost(f"{command[0]}: {last_line(log)}")
        return time.perf_counter() - start

    def run_ours(self, directory, config):
        """The user's command: plan, build the step, audit, train, evaluate."""
        command = ["make", "-s", f"O={self.build}", f"KCONFIG_CONFIG={config}", f"PLAN={directory}/plan",
                   f"RUNS={directory}/runs", "runs"]
        return self.time_command(command, f"{directory}/../ours.log",
                                 {k: v for k, v in os.environ.items() if "MAKE" not in k})

    def run_theirs(self, directory, config, form, vocab):
        """Nothing compiled before is there."""
        command = bench_forms.torch_command(self.python, config, form, "float32", vocab) + ["--run", directory]
        return self.time_command(command, f"{directory}/../{form.replace(' ', '-')}.log",
                                 os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.path.abspath(f"{directory}/cache")})

    def whole(self, row):
        result = Result(row.name, "float32", row.goal["float32"])
        forms = bench_forms.forms("cpu", "float32", self.patterns) if self.torch else []
        config = self.configure(row.name, row.start, row.fragments, row.set)
        full = os.path.join(os.path.dirname(config), "full")
        kconfig.write_text(full, self.tree.config_text())
        ours = self.start_ours(config)
        vocab, result.threads, result.parameters = (ours.about[k] for k in ("vocab", "threads", "parameters"))
        self.end_all()
        scratch = os.path.join(os.path.dirname(config), "run")
        for _ in range(self.rounds):
            result.rounds.append({})
            for form in ("ours", *forms):
                shutil.rmtree(scratch, ignore_errors=True)
                os.makedirs(scratch)
                result.rounds[-1][form] = self.run_ours(scratch, full) if form == "ours" else \
                    self.run_theirs(scratch, config, form, vocab)
        shutil.rmtree(scratch, ignore_errors=True)
        if forms:
            result.form = min(forms, key=lambda form: result.over_rounds(lambda r: r[form]))
            for took in result.rounds:
                took["theirs"] = took[result.form]
        return result


# ---------------------------------------------------------------- what is printed

def machine(bench):
    if bench.backend != "cpu":
        measured = bench.ceilings(0)
        name = measured.pop("device", None) or gpu_name() or bench.backend
        return {"date": time.strftime("%Y-%m-%d"), "machine": name, **measured, "torch": bench.torch}
    processors = len(os.sched_getaffinity(0))
    measured = bench.ceilings(processors)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return {"date": time.strftime("%Y-%m-%d"), "machine": f"{platform.machine()} {names[0] if names else ''}",
            "processors": processors, "torch": bench.torch, **measured}


def about_text(about):
    peer = f", PyTorch {about['torch']}" if about["torch"] else ""
    if "blas" in about:
        return (f"{about['date']}, {about['processors']} processors of {about['machine']}, {about['blas']}{peer}; "
                f"ceilings {about['ceiling_flops'] / 1e9:.1f} GFLOP/s (products), "
                f"{about['ceiling_bytes'] / 1e9:.1f} GB/s (triad)")
    ceilings = (f"; ceilings {about['ceiling_flops_bfloat16'] / 1e12:.1f} TFLOP/s (products in bfloat16), "
                f"{about['ceiling_flops'] / 1e12:.1f} (in float32 without TF32), "
                f"{about['ceiling_bytes'] / 1e12:.2f} TB/s (copy)") if "ceiling_bytes" in about else ""
    return f"{about['date']}, {about['machine']}{peer}{ceilings}"


def save(bench, about, results):
    """What this run measured; rows of a GPU collect over several runs."""
    path = os.path.join(bench.directory, "bench" if bench.backend == "cpu" else "gpu")
    if bench.backend == "cpu":
        rows = {key(r): entry(r) for r in results}
        kconfig.write_text(path + ".json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
    kconfig.write_text(path + ".md", about_text(about) + "\n\n" + markdown(results, bench.backend))
    return path


# ---------------------------------------------------------------- main

def check(bench, todo):
    """Is the peer the same model?  Loss and gradients of small copies beside the reference's."""
    configs = [bench.configure(row.name, row.start, row.fragments, row.set) for row in todo]
    done = subprocess.run([bench.python, bench_forms.TORCH_TOOL, "--check", *configs], check=False,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench: PyTorch's models are not those of the reference:\n{done.stdout}{done.stderr}")
    print(f"PyTorch's models agree with the reference's: {len(todo)} rows, loss and gradients in double\n")


def measure_on_cpu(bench, about, wanted):
    results = []
    for row, precision in wanted:
        results.append(bench.whole(row) if row.whole else Comparison(bench, row, precision).run())
        print_row(results[-1])
        path = save(bench, about, results)
    print(f"\n{path}.md, {path}.json")


def measure_on_gpu(bench, about, wanted):
    """A row that fails does not keep the others from being measured."""
    collection, failed = Collection(os.path.join(bench.directory, "gpu.json")), []
    for comparison in [Comparison(bench, row, precision, about) for row, precision in wanted]:
        try:
            result = comparison.run()
        except Lost as lost:
            failed.append(f"{comparison.name}: {lost}")
            print(failed[-1], flush=True)
            continue
        collection.put(key(result), entry(result))
        print_row(result)
        path = save(bench, about, map(restored, collection.found.values()))
        print(f"{path}.md, {path}.json", flush=True)
    print("\n" + markdown(map(restored, collection.found.values()), bench.backend))
    if failed:
        raise Lost("; ".join(failed))


def run(args):
    todo = bench_rows.chosen(args.rows, bench_rows.rows(args.backend))
    bench = Bench(args.build, args.rounds, args.torch, args.forms, args.backend, args.limit)
    about = machine(bench)
    print(about_text(about) + "\n", flush=True)
    if not bench.torch:
        print(f"{args.torch} has no torch (TORCH_PYTHON= names another): our columns only\n")
    elif args.backend == "cpu":     # on a GPU the losses of ten updates decide
        check(bench, todo)
    wanted = [(row, precision) for row in todo for precision in bench_rows.precisions(row, args.precision)]
    try:
        (measure_on_cpu if args.backend == "cpu" else measure_on_gpu)(bench, about, wanted)
    finally:
        bench.close()


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     epilog="example: python3 -m tools.bench.bench --rows 'laptop-*' --list")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--backend", default="cpu", choices=bench_rows.BACKENDS)
    parser.add_argument("--rows", default="*", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=terminal.count, default=5)
    parser.add_argument("--precision", default="*", metavar="PATTERN")
    parser.add_argument("--forms", default="*", metavar="PATTERN,...",
                        help="of PyTorch: " + ", ".join(bench_forms.CPU_FORMS) + "; a GPU has more (bench_torch.py)")
    parser.add_argument("--limit", type=terminal.count, default=LIMIT, help="seconds of a row on a GPU")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(row.name for row in bench_rows.rows(args.backend)))
        return 0
    end_on_signals("bench")
    try:
        run(args)
    except (kconfig.Unfit, Lost) as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
