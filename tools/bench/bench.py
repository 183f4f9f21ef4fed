#!/usr/bin/env python3
"""Whole training iterations, ours beside PyTorch's, in one run.

    bench.py --build DIR [--rows PATTERN,...] [--rounds N] [--torch PYTHON] [--list]

Both sides are processes (bench_model.c, bench_torch.py).  Each reads a number on standard input and
answers with the times of that many iterations, so only one computes at a time.  First every form of
PyTorch (attention by its fused kernel or by plain products, eager or compiled) runs alone: the
fastest form competes, and our memory is compared with that of the smallest.  Then rounds alternate:
the machine's ceilings, ours, theirs.  A ratio is taken within a round.  The table shows the median
over the rounds and, in brackets, the least and the largest.  Rows of one thread also get the ratio
of processor time, which a busy machine disturbs less.

bound: the ratio if our iteration ran at the speed of large products (sgemm of the linked BLAS)
from end to end, causal work counted once.  Memory: the peak of the process while it trains; "rest"
is the part beyond 16 bytes per parameter (weight, gradient and two moments).  PyTorch's memory
includes the library itself, which is also shown separately.
"""
import argparse
import fnmatch
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from tools.plan import kconfig
from tools.terminal import terminal

TURN = 1.5          # seconds that one side computes before the other's turn
MOST = 50           # iterations of a turn, at most
WARM_UP = 2         # iterations: the first takes memory, compiles
FORMS = ("eager sdpa", "eager plain", "compiled sdpa", "compiled plain")
PRECISIONS = ("float32", "bfloat16")
MIB = 2 ** 20
TORCH_TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_torch.py")


# ---------------------------------------------------------------- rows

@dataclass
class Row:
    name: str
    start: str              # defconfig, or nothing
    fragments: str
    set: dict               # symbols
    asked: float = None     # ratio in float32 ...
    asked_bf16: float = None    # ... and in bfloat16
    whole: bool = False     # a whole run instead of iterations


def rows():
    gpt2 = {"TASK": "copy", "COPY_VOCAB": 50304, "OPTIMIZER": "adamw", "TRAIN_ACCUMULATE": 1}
    variants = (("dot", "", "dot", 1.25), ("mla", "", "mla", 1.25), ("step1", "", "mla gate", 1.25),
                ("step2", "", "mla gate cross", 1.3), ("step3", "", "mla gate cross latent", 1.3),
                ("w2", "w2-text", "w2", 1.3), ("dot-swiglu", "w2-text", "dot", None),
                ("wsffn", "wsffn", "ws", 1.3))
    for batch, length in ((1, 1024), (4, 256)):
        for name, start, fragments, asked in variants:
            yield Row(f"124m-{name}-{batch}x{length}", start, "124m " + fragments,
                      gpt2 | {"TRAIN_BATCH": batch, "MODEL_BLOCK": length}, asked, asked and 2)
    yield Row("6x384-dot-8x256", "", "small dot",
              {"TASK": "copy", "COPY_VOCAB": 256, "TRAIN_BATCH": 8, "MODEL_BLOCK": 256})
    for name, fragments in (("mla", "mla"), ("step1", "mla gate"), ("step2", "mla gate cross"),
                            ("step3", "mla gate cross latent")):
        yield Row(f"laptop-{name}", "gpt2-ra-mla-full", fragments, {"OPTIMIZER": "adamw"}, 2, 2.5)
    yield Row("w2-copy-dot", "w2-copy", "dot", {})
    yield Row("w2-copy-w2", "w2-copy", "w2", {})
    run = {"OPTIMIZER": "adamw", "SEEDS": "1", "PLAN": "single"}
    for name, symbols, asked in (("", {}, 2), ("-2-threads", {"THREADS": 2}, 2),
                                 ("-2-threads-unfolded", {"THREADS": 2, "CROSS_FOLDED": "n"}, None)):
        yield Row(f"laptop-run-step3{name}", "gpt2-ra-mla-full", "mla gate cross latent", run | symbols,
                  asked, whole=True)


def resolve(tree, start, fragments, symbols):
    """Strictly, as make does: what does not fit is an error."""
    layers = [tree.read(kconfig.named_file(kconfig.DEFCONFIGS, "defconfig", start))] if start else [[]]
    layers += [kconfig.read_fragment(tree, name) for name in fragments.split()]
    given, problems = tree.parse([kconfig.with_quotes(tree, f"CONFIG_{name}={value}")
                                  for name, value in symbols.items()], "")
    if problems:
        raise kconfig.Unfit(problems)
    tree.merge(*layers, given)


def program_config(tree):
    """The lines that config_parse() reads: choices as text; of what is inactive, switches are off."""
    lines = []
    for item in tree.items():
        value, is_choice = tree.value(item), isinstance(item, kconfig.Choice)
        if kconfig.is_for_tools(item):
            continue
        if not is_choice and item.orig_type is kconfig.BOOL and value != "y":
            lines.append(f"# CONFIG_{item.name} is not set")
        elif value is not None:
            is_text = is_choice or item.orig_type is kconfig.STRING
            lines.append(f"CONFIG_{item.name}=" + (f'"{kconfig.kconfiglib.escape(value)}"' if is_text else value))
    return "\n".join(lines) + "\n"


def knows(tree, precision):
    return any(value == precision for choice, value in tree.members.values() if choice.name == "PRECISION")


# ---------------------------------------------------------------- processes

class Lost(Exception):
    """A process that ended when it should have answered."""


def last_line(log):
    with open(log, encoding="utf-8") as file:
        return (file.read().strip().splitlines() or ["no message"])[-1]


class Process:
    """Answers numbers of iterations with times; computes only while asked."""

    def __init__(self, command, log, processors):
        self.log = log
        with open(log, "w", encoding="utf-8") as errors:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                          text=True, preexec_fn=lambda: os.sched_setaffinity(0, processors))
        self.about = self.read()

    def read(self):
        line = self.child.stdout.readline()
        if not line:
            self.child.wait()
            raise Lost(last_line(self.log))
        return json.loads(line)

    def ask(self, text):
        self.child.stdin.write(f"{text}\n")
        self.child.stdin.flush()
        return self.read()

    def seconds(self, n):
        return statistics.median(self.ask(n))

    def memory(self, name):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))

    def warm_up(self):
        """Returns the time of an iteration, and the peak memory from then on."""
        self.ask(WARM_UP)
        with open(f"/proc/{self.child.pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")     # the peak starts again from what is held now: compiling is over
        seconds = self.seconds(2)
        self.n = max(1, min(MOST, round(TURN / seconds)))
        return seconds, self.memory("VmHWM")

    def processor_seconds(self):
        with open(f"/proc/{self.child.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system, all threads

    def turn(self):
        """Of one iteration: seconds, and seconds of processor time."""
        before = self.processor_seconds()
        seconds = self.seconds(self.n)
        return seconds, (self.processor_seconds() - before) / self.n

    def end(self):
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def torch_command(python, config, form, precision, vocab):
    way, attention = form.split()
    return [python, TORCH_TOOL, config, "--attention", attention, "--precision", precision,
            "--vocab", str(vocab)] + (["--compile"] if way == "compiled" else [])


def torch_version(python):
    command = [python, "-c", "import torch; print(torch.__version__)"]
    if not shutil.which(python):
        raise SystemExit(f"bench: there is no interpreter {python}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def ceilings(build, threads):
    done = subprocess.run([os.path.join(build, "bin/bench_ops"), "--ceilings", "--json", "--threads",
                           str(threads)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def ceiling_of(measured, precision):
    """Products per second of that precision, where they are measured."""
    return measured.get("ceiling_flops" if precision == "float32" else f"ceiling_flops_{precision}")


# ---------------------------------------------------------------- one row

@dataclass
class Result:
    row: str
    precision: str
    asked: float = None
    threads: int = 0
    tokens: int = 0
    parameters: int = 0
    flops: float = 0
    peak: int = None            # bytes, ours
    their_peak: int = None      # of the smallest form ...
    their_base: int = None      # ... and what the interpreter with torch takes before there is a model
    form: str = None            # the fastest
    forms: dict = field(default_factory=dict)   # form -> seconds and peak, or why not
    rounds: list = field(default_factory=list)  # seconds of both, and the ceilings

    def over_rounds(self, value):
        found = [v for v in map(value, self.rounds) if v is not None]
        return (statistics.median(found), min(found), max(found)) if found else None

    def ours(self):
        return self.over_rounds(lambda r: r["ours"])

    def theirs(self):
        return self.over_rounds(lambda r: r.get("theirs"))

    def ratio(self):
        return self.over_rounds(lambda r: r["theirs"] / r["ours"] if r.get("theirs") else None)

    def processor_ratio(self):
        """What other programs on the machine take does not count; threads that wait by spinning do."""
        return self.over_rounds(lambda r: r["theirs_processor"] / r["ours_processor"]
                                if self.threads == 1 and r.get("theirs_processor") else None)

    def of_ceiling(self):
        return self.over_rounds(lambda r: self.flops / r["ours"] / r["products"] if r.get("products") else None)

    def bound(self):
        return self.over_rounds(lambda r: r["theirs"] * r["products"] / self.flops
                                if r.get("theirs") and r.get("products") else None)

    def rest(self, peak):
        return peak - 16 * self.parameters if peak else None

    def reached(self):
        """The ratio that was asked for, or 85% of the bound where the ceiling forbids it."""
        if not self.asked or not self.ratio():
            return None
        bound = self.bound()
        forbidden = bound and self.flops and bound[0] < self.asked
        return self.ratio()[0] >= (0.85 * bound[0] if forbidden else self.asked)


class Bench:
    def __init__(self, build, rounds=1, python=None, forms="*"):
        self.build, self.rounds, self.python = build, rounds, python
        self.directory = os.path.join(build, "bench")
        self.tree = kconfig.Tree()
        self.torch = python and torch_version(python)
        self.forms = [form for form in FORMS if self.torch and
                      any(fnmatch.fnmatch(form, p) for p in forms.split(","))]

    def configure(self, name, start, fragments, symbols):
        """Resolve, write, and return the path of the configuration."""
        resolve(self.tree, start, fragments, symbols)
        os.makedirs(os.path.join(self.directory, name), exist_ok=True)
        path = os.path.join(self.directory, name, "config")
        kconfig.write_text(path, program_config(self.tree))
        return path

    def processors(self):
        """One for each thread: of one thread, PyTorch's kernels make up to 1.2."""
        here = sorted(os.sched_getaffinity(0))
        return here[:int(self.tree.value(self.tree.syms["THREADS"])) or len(here)]

    def start_ours(self, config):
        return Process([os.path.join(self.build, "bin/bench_model"), config],
                       os.path.join(os.path.dirname(config), "ours.log"), self.processors())

    def qualify(self, result, config, vocab):
        """Try every form alone; the fastest one is returned, ready to compete."""
        best = None
        for form in self.forms:
            log = os.path.join(os.path.dirname(config), form.replace(" ", "-") + ".log")
            try:
                peer = Process(torch_command(self.python, config, form, result.precision, vocab), log,
                               self.processors())
                seconds, peak = peer.warm_up()
            except Lost as lost:
                result.forms[form] = {"failed": str(lost)}
                continue
            if peer.about["parameters"] != result.parameters:
                raise SystemExit(f"{result.row}: PyTorch's model has {peer.about['parameters']} parameters, "
                                 f"ours {result.parameters}")
            result.forms[form] = {"seconds": seconds, "peak": peak, "base": peer.about["base"]}
            loser = peer if best and result.forms[result.form]["seconds"] <= seconds else best
            if loser is not peer:
                best, result.form = peer, form
            if loser:
                loser.end()
        peaks = [(f["peak"], f["base"]) for f in result.forms.values() if "peak" in f]
        result.their_peak, result.their_base = min(peaks, default=(None, None))
        return best

    def round(self, result, ours, theirs, number):
        measured = ceilings(self.build, result.threads)
        took = {"products": ceiling_of(measured, result.precision), "bytes": measured["ceiling_bytes"]}
        turns = [("ours", ours), ("theirs", theirs)]
        for name, process in turns if number % 2 == 0 else reversed(turns):
            if process:
                took[name], took[name + "_processor"] = process.turn()
        result.rounds.append(took)

    def compare(self, row, precision):
        result = Result(row.name, precision, row.asked if precision == "float32" else row.asked_bf16)
        symbols = row.set | ({"PRECISION": precision} if precision != "float32" else {})
        config = self.configure(f"{row.name}-{precision}", row.start, row.fragments, symbols)
        ours = self.start_ours(config)
        for key in ("threads", "tokens", "parameters", "flops"):
            setattr(result, key, ours.about[key])
        _, result.peak = ours.warm_up()
        theirs = self.qualify(result, config, ours.about["vocab"])
        for number in range(self.rounds):
            self.round(result, ours, theirs, number)
        ours.end()
        if theirs:
            theirs.end()
        return result

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
        command = torch_command(self.python, config, form, "float32", vocab) + ["--run", directory]
        return self.time_command(command, f"{directory}/../{form.replace(' ', '-')}.log",
                                 os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.path.abspath(f"{directory}/cache")})

    def whole(self, row):
        result = Result(row.name, "float32", row.asked)
        config = self.configure(row.name, row.start, row.fragments, row.set)
        full = os.path.join(os.path.dirname(config), "full")
        kconfig.write_text(full, self.tree.config_text())
        ours = self.start_ours(config)
        vocab, result.threads, result.parameters = (ours.about[k] for k in ("vocab", "threads", "parameters"))
        ours.end()
        scratch = os.path.join(os.path.dirname(config), "run")
        for _ in range(self.rounds):
            result.rounds.append({})
            for form in ("ours", *self.forms):
                shutil.rmtree(scratch, ignore_errors=True)
                os.makedirs(scratch)
                result.rounds[-1][form] = self.run_ours(scratch, full) if form == "ours" else \
                    self.run_theirs(scratch, config, form, vocab)
        shutil.rmtree(scratch, ignore_errors=True)
        if self.forms:
            result.form = min(self.forms, key=lambda form: result.over_rounds(lambda r: r[form]))
            for took in result.rounds:
                took["theirs"] = took[result.form]
        return result


# ---------------------------------------------------------------- tables

HEAD = ("row", "precision", "ours ms", "tokens/s", "of ceiling", "PyTorch ms", "its form", "ratio", "bound",
        "asked", "peak MiB", "PyTorch's", "rest MiB", "PyTorch's", "import torch")


def spread(three, form):
    if not three:
        return ""
    middle, low, high = (form.format(v) for v in three)
    return middle if low == high else f"{middle} ({low}-{high})"


def scaled(three, factor):
    return three and tuple(factor * v for v in three)


def mebibytes(count):
    return "" if count is None else f"{count / MIB:.0f}"


def cells(r):
    reached = r.reached()
    return (r.row, r.precision, spread(scaled(r.ours(), 1e3), "{:.1f}"),
            f"{r.tokens / r.ours()[0]:.0f}" if r.tokens else "",
            spread(scaled(r.of_ceiling(), 100), "{:.0f}%") if r.flops else "",
            spread(scaled(r.theirs(), 1e3), "{:.1f}"), r.form or "", spread(r.ratio(), "{:.2f}"),
            spread(r.bound(), "{:.2f}") if r.flops else "",
            f"{r.asked:g}" + {None: "", True: " reached", False: " missed"}[reached] if r.asked else "",
            mebibytes(r.peak), mebibytes(r.their_peak), mebibytes(r.rest(r.peak)), mebibytes(r.rest(r.their_peak)),
            mebibytes(r.their_base))


def markdown(results):
    lines = [HEAD, ("---",) * 2 + ("---:",) * (len(HEAD) - 2), *map(cells, results)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def print_row(r):
    """One block per row: the table is too wide for a terminal."""
    c = dict(zip(HEAD, cells(r)))
    print(f"{c['row']} ({c['precision']}, {r.threads} threads)")
    rates = f"  {c['tokens/s']} tokens/s, {c['of ceiling'] or '?'} of the ceiling" if r.tokens else ", the whole run"
    print(f"    ours     {c['ours ms']:>26} ms{rates}")
    if r.theirs():
        print(f"    PyTorch  {c['PyTorch ms']:>26} ms  {c['its form']};  ratio {c['ratio']}, "
              f"bound {c['bound'] or '-'}, asked {c['asked'] or '-'}")
        if r.processor_ratio():
            print(f"    processor time alone: ratio {spread(r.processor_ratio(), '{:.2f}')}")
    if r.peak:
        theirs = f"; PyTorch {mebibytes(r.their_peak)} and {mebibytes(r.rest(r.their_peak))}, of these " \
            f"{mebibytes(r.their_base)} for import torch" if r.their_peak else ""
        print(f"    peak     {mebibytes(r.peak)} MiB, {mebibytes(r.rest(r.peak))} beyond 16 bytes per parameter"
              f"{theirs}")
    for form, found in r.forms.items():
        if "failed" in found:
            print(f"    {form}: {found['failed']}")
    sys.stdout.flush()


def machine(bench):
    processors = len(os.sched_getaffinity(0))
    measured = ceilings(bench.build, processors)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return {"date": time.strftime("%Y-%m-%d"), "machine": f"{platform.machine()} {names[0] if names else ''}",
            "processors": processors, "torch": bench.torch, **measured}


def about_text(about):
    peer = f", PyTorch {about['torch']}" if about["torch"] else ""
    return (f"{about['date']}, {about['processors']} processors of {about['machine']}, {about['blas']}{peer}; "
            f"ceilings {about['ceiling_flops'] / 1e9:.1f} GFLOP/s (products), "
            f"{about['ceiling_bytes'] / 1e9:.1f} GB/s (triad)")


def save(bench, about, results):
    path = os.path.join(bench.directory, "bench")
    for r in results:
        found = asdict(r) | {"ratio": r.ratio(), "processor_ratio": r.processor_ratio(), "bound": r.bound(),
                             "of_ceiling": r.of_ceiling()}
        about.setdefault("rows", {})[f"{r.row} {r.precision}"] = found
    kconfig.write_text(path + ".json", json.dumps(about, indent=1) + "\n")
    kconfig.write_text(path + ".md", about_text(about) + "\n\n" + markdown(results))
    return path


# ---------------------------------------------------------------- main

def chosen(patterns):
    found = [row for row in rows() if any(fnmatch.fnmatch(row.name, p) for p in patterns.split(","))]
    if not found:
        raise SystemExit(f"bench: no row is called {patterns}; there are {' '.join(r.name for r in rows())}")
    return found


def check(bench, todo):
    """Is the peer the same model?  Loss and gradients of small copies beside the reference's."""
    configs = [bench.configure(row.name, row.start, row.fragments, row.set) for row in todo]
    done = subprocess.run([bench.python, TORCH_TOOL, "--check", *configs], check=False,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench: PyTorch's models are not those of the reference:\n{done.stdout}{done.stderr}")
    print(f"PyTorch's models agree with the reference's: {len(todo)} rows, loss and gradients in double\n")


def run(args):
    todo = chosen(args.rows)
    bench = Bench(args.build, args.rounds, args.torch, args.forms)
    about, results = machine(bench), []
    print(about_text(about) + "\n")
    if bench.torch:
        check(bench, todo)
    else:
        print(f"{args.torch} has no torch (TORCH_PYTHON= names another): our columns only\n")
    for row in todo:
        for precision in PRECISIONS if not row.whole else PRECISIONS[:1]:
            if fnmatch.fnmatch(precision, args.precision) and knows(bench.tree, precision):
                results.append(bench.whole(row) if row.whole else bench.compare(row, precision))
                print_row(results[-1])
                path = save(bench, about, results)
    print(f"\n{path}.md, {path}.json")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0],
                                     epilog="example: python3 -m tools.bench.bench --rows 'laptop-*' --list")
    parser.add_argument("--build", default="build", metavar="DIR")
    parser.add_argument("--rows", default="*", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=terminal.count, default=5)
    parser.add_argument("--precision", default="*", metavar="PATTERN")
    parser.add_argument("--forms", default="*", metavar="PATTERN,...", help="of PyTorch: " + ", ".join(FORMS))
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(row.name for row in rows()))
        return 0
    try:
        run(args)
    except (kconfig.Unfit, Lost) as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
