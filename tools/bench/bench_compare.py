"""One row of the benchmark: our iterations beside those of PyTorch's fastest form."""
import itertools
import os
import shutil
import time

from tools.bench import bench_forms, bench_rows
from tools.bench.bench_process import WARM_UP, Lost
from tools.bench.bench_result import Result

LIMIT = 480         # seconds of a row on a GPU
RESERVED = 60       # of them for the rounds, and for the start of the form that competes
ONE_FORM = 200      # seconds of a form, at most
LEAST = 20          # seconds that are worth a try
GRACE = 60          # seconds beyond the limit in which a round may end
SHARED_BATCHES = max(WARM_UP.values())


def ceiling_of(measured, precision):
    """Products per second of that precision, where they are measured."""
    return measured.get("ceiling_flops" if precision == "float32" else f"ceiling_flops_{precision}")


def fixed_flops(values, parameters, tokens):
    """6 N + 12 layers T E of every token."""
    layers, length, width = (int(values[name]) for name in ("MODEL_LAYERS", "MODEL_BLOCK", "MODEL_EMBD"))
    return tokens * (6 * parameters + 12 * layers * length * width)


class Comparison:
    def __init__(self, bench, row, precision, about=None):
        self.bench, self.name = bench, f"{row.name} ({precision})"
        self.limit, self.on_gpu, self.started = bench.limit, bench.backend != "cpu", time.monotonic()
        self.result = Result(row.name, precision, row.goal.get(precision), bench.backend, about=about or {})
        symbols = row.set | bench_rows.ITERATIONS | {"PRECISION": precision}
        self.config = bench.configure(f"{row.name}-{precision}", row.start, row.fragments, symbols)
        self.directory = os.path.dirname(self.config)
        self.values, self.processors = dict(bench.tree.values()), bench.processors()

    def say(self, text):
        self.bench.say(f"{self.name}: {text}")

    def end_of_row(self):
        """When a process that is still computing must hang."""
        return self.started + self.limit + GRACE if self.limit else None

    def left(self):
        """Seconds for further forms of PyTorch."""
        return self.started + self.limit - RESERVED - time.monotonic() if self.limit else float("inf")

    # ------------------------------------------------------------ ours

    def measure_ours(self):
        """Start our side; its weights and batches are PyTorch's, too."""
        result = self.result
        self.say("ours: starts")
        ours = self.bench.start_ours(self.config, self.end_of_row(), lambda text: self.say(f"ours: {text}"))
        for key in ("threads", "tokens", "parameters", "flops", "bytes"):
            setattr(result, key, ours.about[key])
        if self.on_gpu:
            result.flops = fixed_flops(self.values, result.parameters, result.tokens)
        if self.bench.torch:
            start = os.path.join(self.directory, "start")
            os.makedirs(start, exist_ok=True)
            ours.ask(f"share {SHARED_BATCHES} {os.path.abspath(start)}")
        seconds, result.peak = ours.warm_up()
        self.say(f"ours: {1e3 * seconds:.3f} ms")
        result.losses = ours.losses
        return ours

    # ------------------------------------------------------------ PyTorch's forms

    def start_theirs(self, form, deadline):
        """Returns a process that is ready to compete, and what its form takes."""
        bench, result = self.bench, self.result
        peer = bench.start(bench_forms.torch_command(bench.python, self.config, form, result.precision, self.vocab,
                                                     bench.backend, os.path.join(self.directory, "start")),
                           os.path.join(self.directory, form.replace(" ", "-") + ".log"), self.processors,
                           deadline, lambda text: self.say(f"{form}: {text}"), bench.environment)
        if peer.about["parameters"] != result.parameters:
            raise SystemExit(f"{result.row}: PyTorch's model has {peer.about['parameters']} parameters, "
                             f"ours {result.parameters}")
        seconds, peak = peer.warm_up()
        found = {"seconds": seconds, "peak": peak, "base": peer.about["base"], "losses": peer.losses,
                 "agrees": result.agrees(peer.losses)}
        peer.deadline = self.end_of_row()
        return peer, found

    def forms(self):
        """Those that are wanted, as far as there is time."""
        wanted = bench_forms.forms(self.bench.backend, self.result.precision, self.bench.patterns,
                                   explicit=self.values["ATTENTION"] == "differential", tokens=self.result.tokens,
                                   routed=self.values.get("RA_MLA_MLP_CROSS_TOKEN") == "y", flex=self.has_terms())
        return itertools.takewhile(lambda form: self.left() >= LEAST, wanted if self.bench.torch else ())

    def has_terms(self):
        """Scores that PyTorch computes by FlexAttention (bench_torch_model.py)."""
        return self.values["POS"] in ("alibi", "t5") or self.values.get("ATTENTION_WINDOWED") == "y" or \
            float(self.values.get("ATTENTION_SOFTCAP", 0)) > 0

    def try_form(self, form):
        """Returns its process; None: it failed, and the result says why."""
        forms, deadline = self.result.forms, time.monotonic() + min(ONE_FORM, self.left()) if self.limit else None
        self.say(f"{form}: starts")
        try:
            peer, forms[form] = self.start_theirs(form, deadline)
            self.say(f"{form}: {1e3 * forms[form]['seconds']:.3f} ms")
        except Lost as lost:
            peer, forms[form] = None, {"failed": str(lost)}
            self.say(f"{form}: {lost}")
        return peer

    def qualify(self):
        """Try forms alone; the fastest one is returned, ready to compete."""
        alive = {}
        for form in self.forms():
            if peer := self.try_form(form):
                alive[form] = peer
            best = bench_forms.fastest({form: self.result.forms[form] for form in alive})
            for other in [form for form in alive if form != best]:
                alive.pop(other).end()
        best = next(iter(alive), None)
        self.note_fastest(best)
        return alive.get(best)

    def note_fastest(self, form):
        if not form:
            return
        result, found = self.result, self.result.forms[form]
        result.form, result.their_losses = form, found["losses"]
        if self.on_gpu:
            result.their_peak, result.their_base = found["peak"], found["base"]
        else:
            result.their_peak, result.their_base = min((f["peak"], f["base"]) for f in result.forms.values()
                                                       if "peak" in f)

    # ------------------------------------------------------------ both

    def round(self, ours, theirs, number):
        measured = self.bench.ceilings(self.result.threads)
        took = {"products": ceiling_of(measured, self.result.precision), "bytes": measured.get("ceiling_bytes")}
        turns = [("ours", ours), ("theirs", theirs)]
        for name, process in turns if number % 2 == 0 else reversed(turns):
            if process:
                took[name], took[name + "_processor"] = process.turn()
        self.result.rounds.append(took)

    def rounds(self, ours, theirs):
        for number in range(self.bench.rounds):
            if number and self.limit and time.monotonic() > self.started + self.limit:
                self.say("the row's time is over")
                break
            self.say(f"round {number + 1} of {self.bench.rounds}")
            self.round(ours, theirs, number)

    def run(self):
        self.started = time.monotonic()
        try:
            ours = self.measure_ours()
            self.vocab = ours.about["vocab"]
            self.rounds(ours, self.qualify())
        finally:
            self.bench.end_all()
            shutil.rmtree(os.path.join(self.directory, "start"), ignore_errors=True)
        return self.result
