"""One row of the benchmark: our iterations beside those of PyTorch's fastest form."""
import os
import shutil
import time

from tools.bench import bench_forms, bench_rows
from tools.bench.bench_process import WARM_UP, Lost, gpu_bytes
from tools.bench.bench_result import Result
from tools.bench.bench_turns import Party

LIMIT = 480         # seconds of a row on a GPU
RESERVED = 60       # of them for the rounds, and for the start of the form that competes
ONE_FORM = 200      # seconds of a form, at most; in a later run it has all that are left
LEAST = 20          # seconds that are worth a try
GRACE = 60          # seconds beyond the limit in which a round may end
TIMES_OURS = 4      # memory of our process and of two forms, as a multiple of ours: W2 has the largest peer
SHARED_BATCHES = max(WARM_UP.values())


def ceiling_of(measured, precision):
    """Products per second of that precision, where they are measured."""
    return measured.get("ceiling_flops" if precision == "float32" else f"ceiling_flops_{precision}")


def fixed_flops(values, parameters, tokens):
    """6 N + 12 layers T E of every token."""
    layers, length, width = (int(values[name]) for name in ("MODEL_LAYERS", "MODEL_BLOCK", "MODEL_EMBD"))
    return tokens * (6 * parameters + 12 * layers * length * width)


class Comparison(Party):
    """To be made by one thread, because configurations are; any other may run it."""

    def __init__(self, bench, row, precision, earlier=None, about=None, note_form=lambda result: None):
        super().__init__(bench.turns)
        self.bench, self.note_form, self.name = bench, note_form, f"{row.name} ({precision})"
        self.limit, self.on_gpu = bench.limit, bench.backend != "cpu"
        self.result = Result(row.name, precision, row.asked.get(precision), bench.backend, about=about or {})
        self.late = {form for form, found in (earlier or {}).items() if found.get("late")}
        self.result.forms = {form: found for form, found in (earlier or {}).items() if form not in self.late}
        self.old, self.pace = set(self.result.forms), 1     # forms whose time another run took; this one's time over that
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

    def gpu_bytes(self):
        """None also if others take and give memory at the same time."""
        return gpu_bytes() if self.on_gpu and not self.turns.are_shared() else None

    # ------------------------------------------------------------ ours

    def start_ours(self):
        self.say("ours: starts")
        return self.bench.start_ours(self.config, self, self.processors, self.end_of_row(),
                                     lambda text: self.say(f"ours: {text}"))

    def measure_ours(self):
        """Start our side; its weights and batches are PyTorch's, too."""
        result, before = self.result, self.gpu_bytes()
        ours = self.start_ours()
        for key in ("threads", "tokens", "parameters", "flops", "bytes"):
            setattr(result, key, ours.about[key])
        if self.on_gpu:
            result.flops = fixed_flops(self.values, result.parameters, result.tokens)
        if self.bench.torch:
            start = os.path.join(self.directory, "start")
            os.makedirs(start, exist_ok=True)
            ours.ask(f"share {SHARED_BATCHES} {os.path.abspath(start)}")
        seconds, result.peak = ours.warm_up(self.alone)
        self.say(f"ours: {1e3 * seconds:.3f} ms")
        after = self.gpu_bytes()
        result.whole = after - before if None not in (before, after) else None
        result.losses = ours.losses
        return ours

    # ------------------------------------------------------------ PyTorch's forms

    def start_theirs(self, form, deadline):
        """Returns a process that is ready to compete, and what its form takes."""
        bench, result, before = self.bench, self.result, self.gpu_bytes()
        peer = self.start(bench_forms.torch_command(bench.python, self.config, form, result.precision, self.vocab,
                                                    bench.device, os.path.join(self.directory, "start")),
                          os.path.join(self.directory, form.replace(" ", "-") + ".log"), self.processors,
                          bench.backend, deadline, lambda text: self.say(f"{form}: {text}"), bench.environment)
        if peer.about["parameters"] != result.parameters:
            raise SystemExit(f"{result.row}: PyTorch's model has {peer.about['parameters']} parameters, "
                             f"ours {result.parameters}")
        seconds, peak = peer.warm_up(self.alone)
        found = {"seconds": seconds, "peak": peak, "base": peer.about["base"], "losses": peer.losses,
                 "agrees": result.agrees(peer.losses)}
        if self.on_gpu:
            after = self.gpu_bytes()
            found |= {"reserved": (peer.on_device or {}).get("reserved"),
                      "process": after - before if None not in (before, after) else None}
        peer.deadline = self.end_of_row()
        return peer, found

    def next_form(self):
        if not self.bench.torch or self.left() < LEAST:
            return None
        return bench_forms.next_form(self.forms_now(), self.bench.backend, self.result.precision,
                                     self.values.get("RA_MLA_MLP_CROSS_TOKEN") == "y", self.result.tokens,
                                     self.bench.patterns, flex=self.has_terms(),
                                     explicit=self.values["ATTENTION"] == "differential")

    def has_terms(self):
        """Scores that PyTorch computes by FlexAttention (bench_torch_model.py)."""
        return self.values["POS"] in ("alibi", "t5") or self.values.get("ATTENTION_WINDOWED") == "y" or \
            float(self.values.get("ATTENTION_SOFTCAP", 0)) > 0

    def reason(self, lost, deadline):
        """Why a form has no time.  Late, and worth another try: its time was over, or others had the memory."""
        if self.turns.is_over:
            raise lost
        late = deadline is not None and time.monotonic() >= deadline
        return {"failed": str(lost), "late": late or self.turns.are_shared() and "out of memory" in str(lost)}

    def try_form(self, form):
        """Returns its process; None: it failed, and the result says why."""
        forms, seconds = self.result.forms, self.left() if form in self.late else min(ONE_FORM, self.left())
        deadline = time.monotonic() + seconds if self.limit else None
        self.say(f"{form}: starts")
        try:
            peer, forms[form] = self.start_theirs(form, deadline)
            self.say(f"{form}: {1e3 * forms[form]['seconds']:.3f} ms")
        except Lost as lost:
            peer, forms[form] = None, self.reason(lost, deadline)
            self.say(f"{form}: {lost}")
        self.note_form(self.result)
        return peer

    def start_again(self, form):
        """A form of an earlier run: its time now shows the pace of this one.  None: it failed, and the result says why."""
        before = self.result.forms[form]["seconds"]
        self.old.remove(form)
        self.say(f"{form} was the fastest: it starts again")
        try:
            peer, self.result.forms[form] = self.start_theirs(form, time.monotonic() + max(RESERVED, self.left()))
            self.pace = self.result.forms[form]["seconds"] / before
            return peer
        except Lost as lost:
            self.result.forms[form] = self.reason(lost, None) | {"late": True}  # it did work: it may again
            return None

    def champion(self):
        """The fastest form of earlier runs, in a process; or the next one, if it does not start."""
        while form := bench_forms.fastest({form: self.result.forms[form] for form in self.old}):
            if peer := self.start_again(form):
                return {form: peer}
        return {}

    def forms_now(self):
        """Times of another GPU or day show which form was faster.  They count at the pace of this run."""
        def now(form, found):
            if form not in self.old or "seconds" not in found:
                return found
            return found | {"seconds": self.pace * found["seconds"], "earlier": True}
        return {form: now(form, found) for form, found in self.result.forms.items()}

    def qualify(self):
        """Try forms alone; the fastest one is returned, ready to compete."""
        alive = self.champion()
        while form := self.next_form():
            if peer := self.try_form(form):
                alive[form] = peer
            best = bench_forms.fastest({form: self.result.forms[form] for form in alive})
            for other in [form for form in alive if form != best]:
                alive.pop(other).end()
        self.result.forms, self.old = self.forms_now(), set()
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
            result.their_whole = found["process"]
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

    def most_bytes(self):
        """Of a GPU.  What we make again, PyTorch keeps."""
        times = TIMES_OURS * (2 if self.values.get("RECOMPUTE") == "y" else 1)
        return times * self.result.peak if self.on_gpu else 0

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
            with self.bench.room.place(self.most_bytes(), self.end_all):
                self.started = time.monotonic()     # waiting for others is not the row's time
                if ours not in self.live:
                    ours = self.start_ours()
                    ours.warm_up(self.alone)
                ours.deadline = self.end_of_row()
                theirs = self.qualify()
                with self.alone():
                    self.rounds(ours, theirs)
                self.end_all()
        finally:
            self.leave()
            shutil.rmtree(os.path.join(self.directory, "start"), ignore_errors=True)
        return self.result
