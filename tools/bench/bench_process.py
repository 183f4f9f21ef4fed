"""A process that computes only on request: one side of a comparison.

It prints a line of JSON when it is ready, and answers each line of its standard input with another.
"""
import contextlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import time

TURN = 1.5          # seconds that one side computes before the other's turn
MOST = {"cpu": 50, "cuda": 500}     # iterations of a turn, at most
WARM_UP = {"cpu": 2, "cuda": 10}    # updates: the first takes memory, compiles; their losses are compared
TRIED = {"cpu": 2, "cuda": 10}      # iterations that show how long one takes
PATIENCE = 30       # seconds until a silent process is mentioned
REASON = re.compile(r"^[\w.]*(Error|Exception|Exit|Interrupt)\b.*")


class Lost(Exception):
    """A process that ended, or was ended, when it should have answered."""


def last_line(log):
    """Why a process ended: the last error that Python names, or the last line."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines() or ["no message"]
    return next((line for line in reversed(lines) if REASON.match(line)), lines[-1])


class Process:
    """Answers numbers of iterations with times; computes only on request."""

    def __init__(self, command, log, processors, backend="cpu", deadline=None, say=lambda text: None,
                 environment=None):
        self.log, self.backend, self.deadline, self.say = log, backend, deadline, say
        self.started = time.monotonic()
        with open(log, "w", encoding="utf-8") as errors:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                          text=True, env=environment, preexec_fn=lambda: self.prepare(processors))

    @staticmethod
    def prepare(processors):
        """In the new process.  Ctrl-C is not for its group."""
        os.setpgid(0, 0)
        os.sched_setaffinity(0, processors)

    def wait_until_ready(self):
        try:
            self.about = self.read()
        except BaseException:   # also if this program gets a signal to end
            self.kill()
            raise

    def wait_for_answer(self):
        """A line is written at once, so whatever can be read is a whole answer, or the end."""
        while True:
            has_end = self.deadline is not None
            left = min(PATIENCE, self.deadline - time.monotonic()) if has_end else PATIENCE
            if select.select([self.child.stdout], [], [], max(0, left))[0]:
                return
            passed = time.monotonic() - self.started
            if has_end and time.monotonic() >= self.deadline:
                self.kill()
                raise Lost(f"no answer after {passed:.0f} s: its time was over")
            self.say(f"still at work after {passed:.0f} s")

    def read(self):
        self.wait_for_answer()
        line = self.child.stdout.readline()
        if not line.endswith("\n"):     # it ended, perhaps in the middle of an answer
            self.child.wait()
            raise Lost(last_line(self.log))
        return json.loads(line)

    def ask(self, text):
        try:
            self.child.stdin.write(f"{text}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            self.child.wait()
            raise Lost(last_line(self.log)) from None
        return self.read()

    def seconds(self, n):
        return statistics.median(self.ask(n))

    def memory(self, name):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))

    def forget_peak(self):
        """Of a process of the host, the peak starts again from what is held now: compiling is over."""
        if self.backend == "cpu":
            with open(f"/proc/{self.child.pid}/clear_refs", "w", encoding="ascii") as file:
                file.write("5")

    def peak(self):
        """Bytes: of the process, or of the device's memory."""
        on_device = self.ask("memory")[0]
        return on_device["most"] if on_device else self.memory("VmHWM")

    def warm_up(self):
        """Returns the time of an iteration, and the peak memory from then on."""
        self.losses = self.ask(f"losses {WARM_UP[self.backend]}")
        self.forget_peak()
        seconds = self.seconds(TRIED[self.backend])
        self.n = max(1, min(MOST[self.backend], round(TURN / seconds)))
        return seconds, self.peak()

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
        for stream in (self.child.stdin, self.child.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass
        self.child.wait()

    def kill(self):
        """With whatever it started."""
        if self.child.poll() is None:
            for process in family(self.child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.end()


def family(first):
    """A process and all that it started, directly or not."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])     # of one that has not ended meanwhile
            children.setdefault(parent, []).append(int(name))
    found = [first]
    for process in found:
        found += children.get(process, [])
    return found


def end_on_signals(name):
    """A signal ends this program as any other reason does: its processes end with it."""
    def end(number, _):
        raise SystemExit(f"{name}: stopped by signal {number}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def torch_version(python):
    if not shutil.which(python):
        raise SystemExit(f"bench: there is no interpreter {python}")
    done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def gpu_name():
    """As the driver calls the first GPU; None: it says nothing."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
