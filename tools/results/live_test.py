#!/usr/bin/env python3
"""What `make` shows on a terminal while runs train: on a real one, with a command that prints what runs print."""
import fcntl
import io
import json
import os
import pathlib
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.results import live, time_left
from tools.testing import tap
from tools.testing.as_user import ROOT

NUMBERS = "120/300  loss 2.3145  val 2.4000  41.2k tok/s  ETA 35 s"
RUNNING = live.Line(iteration=120, iterations=300, numbers=NUMBERS)
# As make does: it calls the display and, after Ctrl-C, ends by the signal.
MAKE = """
all:
	@exec {python} -m tools.results.live --runs {runs} --experiment e -- sh -c {command}
	@echo goes on
"""


class Lines(unittest.TestCase):
    def test_a_line_fits_its_terminal(self):
        for width in range(20, 140):
            self.assertLessEqual(len(live.run_line("0-norm-layer seed 1", RUNNING, width, 19)), width)
        self.assertEqual(live.run_line("0-norm-layer seed 1", RUNNING, 119, 19),
                         "0-norm-layer seed 1  [############..................] " + NUMBERS)
        self.assertEqual(live.run_line("0-norm-layer seed 1", RUNNING, 79, 19),
                         "0-norm-layer seed 1  120/300  loss 2.3145  val 2.4000  41.2k tok/s  ETA 35 s")
        self.assertEqual(live.run_line("3-mla+gate+cross+latent seed 1", RUNNING, 79, 30),
                         "3-mla+gate+cross+latent seed 1  120/300  loss 2.3145  val 2.4000  ETA 35 s")
        self.assertEqual(live.run_line("3-mla+gate+cross+latent seed 1", RUNNING, 59, 30),
                         "3-mla+gate+cross+latent seed 1  120/300  ETA 35 s")

    def test_the_plan(self):
        planned = [time_left.Progress("run", "e", "0-a", seed, state=state) for seed, state in
                   enumerate(("done", "done", "running", "waiting", "diverged"))]
        planned[0].seconds = planned[1].seconds = 60
        time_left.estimate(planned)
        self.assertEqual(live.plan_line("e", planned, 1, False), "e: 2 of 5 runs done, 1 failed, 2.0 min left")

    def test_a_long_name_is_cut_in_its_middle(self):
        screen = live.Screen(io.StringIO())
        screen.size = lambda: os.terminal_size((60, 24))
        display = live.Display("runs", "e", screen)
        label = "e-tuning 1-attention-mla+ra-mla-latent-dim-4@1e-3 seed 101"
        for record in ("0\t0\t", "100\t100\t100/100  loss 2.0", "done"):
            display.take(f"\036{label}\t{record}")
        self.assertEqual(screen.stream.getvalue(), "1-attention-m...4@1e-3 seed 101  100/100  done in 0 s\n")

    def test_before_there_is_a_plan(self):
        self.assertEqual(live.plan_line("e", [], 1, False), "e: preparing")

    def test_what_a_second_ctrl_c_does_fits_80_columns(self):
        self.assertLess(len(live.plan_line("gpt2-ra-mla-controlled", [], 1, True)), 80)

    def test_a_process_that_died_is_drawn_no_more(self):
        """One of a group of seeds, too, unless another goes on with the step."""
        display = live.Display("runs", "e", None)
        states = {("0-a", 1): time_left.DIED, ("1-b", 1): time_left.DIED, ("1-b", 2): "running",
                  ("2-c", 1): time_left.DIED, ("2-c", 2): time_left.DIED}
        planned = [time_left.Progress("run", "e", *run, state=state) for run, state in states.items()]
        display.lines = dict.fromkeys(("e 0-a seed 1", "e 1-b, 2 seeds", "e 2-c, 2 seeds"), RUNNING)
        with unittest.mock.patch.object(time_left, "read_plan", lambda *_: planned):
            display.look()
        self.assertEqual([*display.lines], ["e 1-b, 2 seeds"])

    def test_the_time_left_between_two_runs(self):
        """Two trained at once, and two will."""
        def run(seed, state, seconds=None, share=0):
            return time_left.Progress("run", "e", "0-a", seed, state=state, seconds=seconds, iteration=share, iterations=10)
        display = live.Display("runs", "e", live.Screen(io.StringIO()))
        said = []
        for planned in ([run(1, "running", 60, 9), run(2, "running", 60, 9), run(3, "waiting"), run(4, "waiting")],
                        [run(1, "done", 60), run(2, "done", 60), run(3, "waiting"), run(4, "waiting")]):
            with unittest.mock.patch.object(time_left, "read_plan", lambda *_, found=time_left.estimate(planned) or planned: found):
                display.read_at = float("-inf")
                display.draw()
                said.append(display.screen.drawn[-1])
        self.assertEqual(said, ["e: 0 of 4 runs done, 1.1 min left", "e: 2 of 4 runs done, 1.0 min left"])

    def test_more_runs_than_rows(self):
        screen = live.Screen(io.StringIO())
        screen.size = lambda: os.terminal_size((80, 4))
        screen.draw([str(i) for i in range(9)])
        self.assertEqual(screen.stream.getvalue(), "6\n7\n8\n")


class Terminal(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="kablate-live-")
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        (self.place / "e").mkdir()
        (self.place / "e" / time_left.FILE).write_text(json.dumps([
            {"kind": "run", "experiment": "e", "step": "0-a", "seed": seed, "identity": None} for seed in (1, 2)]))

    def start(self, command, columns=80):
        """Under make, in a session of its own with a terminal."""
        command = " ".join(command.split("\n"))
        (self.place / "Makefile").write_text(MAKE.format(
            python=sys.executable, runs=self.place, command=shlex.quote(command).replace("$", "$$")))
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}

        def own_terminal():
            signal.signal(signal.SIGINT, signal.SIG_DFL)    # tests may run in the background
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(["make", "-s", "-f", self.place / "Makefile"], stdin=other, stdout=other,
                                        stderr=other, cwd=ROOT, preexec_fn=own_terminal,
                                        env={**environment, "TERM": "xterm"})
        os.close(other)
        self.addCleanup(os.close, main)
        self.text = ""
        return main

    def read(self, main, until=None):
        end = time.monotonic() + 60
        while time.monotonic() < end and (until is None or until not in self.text):
            try:
                self.text += os.read(main, 4096).decode()
            except OSError:     # nobody has the terminal any more
                break
        return self.text.replace("\r\n", "\n")

    def shown(self, text):
        """What stays: a block of lines that was drawn is gone once it is erased."""
        drawn = []
        for part in re.split(r"(\r(?:\033\[A\033\[K)+)", text):
            if part.startswith("\r\033"):
                del drawn[-part.count("\033[A"):]
            else:
                drawn += part.splitlines()
        return drawn

    def test_runs_are_drawn_and_messages_stay(self):
        record = r"\036e 0-a seed %d\t%d\t20\t%d/20  loss 1.5\n"
        main = self.start(f"printf '{record}' 1 5 5; printf '{record}' 2 7 7; echo beware >&2; sleep 1;"
                          f"printf '{record}' 1 20 20; printf '\\036e 0-a seed 1\\tdone\\n'")
        text = self.read(main)
        self.assertEqual(self.process.wait(), 0)
        self.assertRegex(text, r"0-a seed 1  \[#+\.+\] 5/20  loss 1\.5\n0-a seed 2  \[#+\.+\] 7/20  loss 1\.5\n"
                               r"e: 0 of 2 runs done\n")
        lines = self.shown(text)
        self.assertRegex(lines[1], r"0-a seed 1  20/20  loss 1\.5  done in \d+ s")
        self.assertEqual([lines[0], *lines[2:]], ["beware", "goes on"])

    def test_ctrl_c_says_what_was_saved(self):
        main = self.start(r"""trap '' INT; printf '\036e 0-a seed 1\t5\t20\t5/20\n'; while ! test -e stop-now; do
            sleep 0.1; done; printf '\036e 0-a seed 1\tstopped\ne 0-a seed 1: saved after iteration 5 of 20\n'
            echo 'make[1]: *** [steps.mk:7: x/done] Error 75';
            echo 'make[1]: *** Waiting for unfinished jobs....'; exit 2""".replace("stop-now", str(self.place / "stop")))
        self.read(main, "0-a seed 1  [")
        os.write(main, b"\x03")
        self.read(main, "e: stopping")
        (self.place / "stop").touch()
        text = self.read(main)
        self.assertEqual(self.process.wait(), -signal.SIGINT, text)
        lines = [line for line in self.shown(text.replace("^C", "")) if line]
        self.assertEqual(lines, ["e 0-a seed 1: saved after iteration 5 of 20",
                                 "Stopped: 0 of 2 runs are done.  'make' continues; 'make report' shows what is", "there."])

    def test_a_failure_stays_a_failure(self):
        main = self.start(r"printf '\036e 0-a seed 1\t5\t20\t5/20\n'; echo 'kablate: no room'; exit 3")
        text = self.read(main)
        self.assertEqual(self.process.wait(), 2)
        self.assertIn("kablate: no room\n", text)
        self.assertIn("Error 3", text)
        self.assertNotIn("goes on", text)

    def test_a_terminal_that_goes_away_stops_no_run(self):
        main = self.start(f"trap '' HUP; sleep 2; touch {self.place}/trained")
        self.read(main, "runs done")
        os.kill(self.process.pid, signal.SIGHUP)
        self.read(main)
        self.process.wait()
        for _ in range(100):
            if (self.place / "trained").exists():
                return
            time.sleep(0.1)
        self.fail("the run ended with its terminal")


if __name__ == "__main__":
    tap.main()
