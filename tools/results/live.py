"""Draws the runs that train now, a line each, and a line for the whole plan, for one terminal.

    live.py --runs runs --experiment norms -- COMMAND...

The command (make) and its runs write to a pipe.  Records of runs (core/train/progress.h)
become lines that refresh; everything else is printed above them.  How far the plan is comes
from tools/results/time_left.py.
"""
import contextlib
import os
import re
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass

from tools.results import records, time_left
from tools.terminal import terminal

# ECMA-48: up, erase the line.  (tmux keeps in its history what is erased to the end of the screen.)
RECORD, CLEAR_LINE_ABOVE = "\x1e", "\033[A\033[K"
REDRAW, REREAD = 0.2, 1.0                   # seconds between two drawings, two looks at the database
LEAST_BAR, MOST_BAR = 10, 30
LEAST_NAME, LEAST_NUMBERS = 20, 28          # "10000/10000  ETA 10 min 10 s"
DROPPED_FIRST = ("tok/s", "loss", "val")    # of a run's numbers, in a narrow terminal
# What make says when its children were stopped, as they should.
STOPPED_MAKE = re.compile(r"make(\[\d+\])?: \*\*\* .*(Error (75|130)|Interrupt|unfinished jobs\.+)$|stopped before ")


@dataclass
class Line:
    """A run that trains."""
    iteration: int = 0
    iterations: int = 0
    numbers: str = ""
    began: float = 0


def bar(share, room):
    width = min(room - 3, MOST_BAR)
    return "[" + ("#" * int(min(share, 1) * width)).ljust(width, ".") + "] " if width >= LEAST_BAR else ""


def fitting(numbers, room):
    """The numbers that fit; the iteration and the time left go last."""
    fields = numbers.split("  ")
    for name in DROPPED_FIRST:
        if len("  ".join(fields)) > room:
            fields = [field for field in fields if name not in field.split(" ")]
    return "  ".join(fields)


def clipped(name, width):
    """A name that leaves room for numbers; its end, the seed, stays."""
    room = max(width - LEAST_NUMBERS, LEAST_NAME)
    end = name[-(room // 2):]
    return name if len(name) <= room else name[:room - len(end) - 3] + "..." + end


def run_line(label, line, width, align):
    numbers = line.numbers or ("checks before training" if not line.iterations else "")
    label = label.ljust(align) + "  "
    numbers = fitting(numbers, width - len(label))
    share = line.iteration / line.iterations if line.iterations else 0
    return (label + bar(share, width - len(label) - len(numbers)) + numbers)[:width]


def plan_line(experiment, planned, jobs, is_stopping):
    """Runs done, planned, and the time left."""
    if is_stopping:
        return f"{experiment}: stopping and saving (Ctrl-C again: without saving)"
    if not planned:
        return f"{experiment}: preparing"
    done, left = time_left.count(planned, "done"), time_left.seconds_left(planned, jobs)
    failed = sum(run.state not in (time_left.RUNNING, *time_left.RESUMABLE) and not run.is_finished for run in planned)
    return f"{experiment}: {done} of {len(planned)} runs done" + (f", {failed} failed" if failed else "") + (
        f", {terminal.duration(left)} left" if left is not None else "")


class Screen:
    """The lines that refresh stand below all that is printed."""

    def __init__(self, stream):
        self.stream, self.drawn = stream, []

    def erase(self):
        """Lines take more rows once the terminal is narrower."""
        columns = max(1, self.size()[0])
        rows = sum(max(1, -(-len(line) // columns)) for line in self.drawn)
        if rows:
            terminal.control(self.stream, "\r" + CLEAR_LINE_ABOVE * rows)
        self.drawn = []

    def size(self):
        try:
            return os.get_terminal_size(self.stream.fileno())
        except OSError:
            return os.terminal_size((80, 24))

    def draw(self, lines):
        self.erase()
        rows = max(1, self.size()[1] - 1)
        lines = lines[-rows:]
        self.stream.write("".join(line + "\n" for line in lines))
        self.stream.flush()
        self.drawn = lines

    def print(self, text):
        self.erase()
        self.stream.write(text + "\n")


class Display:
    def __init__(self, runs, experiment, screen):
        self.runs, self.experiment, self.screen = runs, experiment, screen
        self.lines, self.planned = {}, []
        self.is_stopping = self.was_stopped = False
        self.jobs = 1       # the most that trained side by side: between two runs none does
        self.read_at = self.drawn_at = float("-inf")

    def look(self):
        """At the plan and the database.  What is wrong with them, runs say themselves."""
        with contextlib.suppress(records.Problem, sqlite3.Error, OSError, ValueError):
            planned = time_left.read_plan(self.runs, self.experiment)
            database = os.path.join(self.runs, "results.db")
            if os.path.exists(database):
                with contextlib.closing(records.connect(database)) as db:
                    time_left.read(db, planned)
            self.planned = planned
        self.jobs = max(self.jobs, time_left.running_jobs(self.planned))
        died = [run for run in self.planned if run.state == time_left.DIED]
        gone = {self.label(run) for run in died}
        trains = {self.group(run) for run in self.planned if run.state == time_left.RUNNING}
        gone_groups = tuple({self.group(run) for run in died} - trains)
        self.lines = {label: line for label, line in self.lines.items()
                      if label not in gone and not label.startswith(gone_groups)}

    @staticmethod
    def label(run):
        return f"{run.experiment} {run.step} seed {run.seed}"

    @staticmethod
    def group(run):
        """The begin of the label of a process that trains several seeds of a step."""
        return f"{run.experiment} {run.step}, "

    def short(self, label):
        """Runs that tune have a rate in their names."""
        name = label.removeprefix(self.experiment).removeprefix("-tuning").removeprefix(" ")
        return clipped(name, self.width())

    def take(self, text):
        if not text.startswith(RECORD):
            if not (self.was_stopped and STOPPED_MAKE.match(text)):
                self.screen.print(text)
            return
        label, *fields = text[1:].split("\t")
        if len(fields) == 3 and fields[0].isdecimal() and fields[1].isdecimal():
            line = self.lines.setdefault(label, Line(began=time.monotonic()))
            line.iteration, line.iterations, line.numbers = int(fields[0]), int(fields[1]), fields[2]
        elif len(fields) == 1:
            self.end(label, fields[0])

    def end(self, label, how):
        line = self.lines.pop(label, None)
        self.was_stopped |= how == "stopped"
        self.read_at = float("-inf")
        if how == "done" and line and line.iterations:
            name, took = self.short(label), f"done in {terminal.duration(time.monotonic() - line.began)}"
            self.screen.print(f"{name}  {fitting(line.numbers, self.width() - len(name + took) - 4)}  {took}"[:self.width()])

    def width(self):
        return self.screen.size()[0] - 1    # a full line makes some terminals wrap

    def draw(self):
        if time.monotonic() - self.read_at >= REREAD:
            self.look()
            self.read_at = time.monotonic()
        width, names = self.width(), [self.short(label) for label in self.lines]
        align = max(map(len, names), default=0)
        lines = [terminal.plain(run_line(name, line, width, align)) for name, line in zip(names, self.lines.values())]
        self.screen.draw(lines + [plan_line(self.experiment, self.planned, self.jobs, self.is_stopping)[:width]])
        self.drawn_at = time.monotonic()

    def told(self):
        """What is left after the command has ended."""
        self.look()
        done = time_left.count(self.planned, "done")
        return f"Stopped: {done} of {len(self.planned)} runs are done.  'make' continues; 'make report' shows what is there."


def whole_lines(rest, data):
    """The lines that end in data, and what remains."""
    *lines, rest = (rest + data).split(b"\n")
    return [line.decode(errors="replace").removesuffix("\r") for line in lines], rest


def watch(display, pipe):
    """Until every writer has gone.  Without a terminal to draw on, the runs go on."""
    selector, rest, is_open = selectors.DefaultSelector(), b"", True
    selector.register(pipe, selectors.EVENT_READ)
    while is_open:
        lines = []
        if selector.select(REDRAW):
            data = os.read(pipe.fileno(), 1 << 16)
            is_open = bool(data)
            lines, rest = whole_lines(rest, data or b"\n" * bool(rest))
        with contextlib.suppress(OSError):
            for line in lines:
                display.take(line)
            if time.monotonic() - display.drawn_at >= REDRAW or not lines:
                display.draw()
    with contextlib.suppress(OSError):
        display.screen.erase()


def show(args, screen):
    display = Display(args.runs, args.experiment, screen)

    def interrupted(*_):
        display.is_stopping = True
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:   # else make ignores it, too
        signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)    # the runs end by it, and this process after them
    # make passes its job tokens through open files.
    with subprocess.Popen(args.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False,
                          restore_signals=True) as child:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        watch(display, child.stdout)
        status = child.wait()
    with contextlib.suppress(OSError):
        if status and (display.is_stopping or display.was_stopped):
            print(terminal.wrapped(display.told(), display.width(), more=""))
            sys.stdout.flush()
    if status and display.is_stopping:
        # make ends by the signal and prints nothing; a status of ours would make it print an error.
        os.kill(os.getppid(), signal.SIGINT)
        return 0
    return status if status >= 0 else 128 - status


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.live --experiment smoke -- make runs-all")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    parser.add_argument("--experiment", required=True, help="whose plan is shown")
    parser.add_argument("command", nargs="+", help="what trains")
    args = parser.parse_args(argv)
    return show(args, Screen(sys.stdout))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
