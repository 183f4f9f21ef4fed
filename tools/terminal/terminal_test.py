#!/usr/bin/env python3
"""Tests of tables that fit a terminal, and of colours that are not there where nobody wants them."""
import os
import pty
import re
import struct
import subprocess
import sys
import fcntl
import termios
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.terminal import terminal
from tools.testing import tap
from tools.testing.as_user import ROOT

HEADINGS = ["step", "loss", "verdict"]
CELLS = [["0-a", "1.25", "baseline"], ["1-longer", "11.5", "better"]]
SHOW = """
import sys
from tools.terminal import terminal
print(terminal.width(sys.stdout), terminal.has_colours(sys.stdout))
"""


def is_text(name):
    return name != "loss"


def on_terminal(columns, **environment):
    """What a program sees and writes on a terminal so wide."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items()
             if name not in ("COLUMNS", "NO_COLOR", "TERM")}
    subprocess.run([sys.executable, "-c", SHOW], stdout=other, check=True, cwd=ROOT,
                   env={**clean, "TERM": "xterm", **environment})
    os.close(other)
    text = os.read(main, 1000).decode()
    os.close(main)
    return text.split()


EVIL = "\033[2J\033]0;title\a\x9b2J\r\b\x7f\033[31mred"
SHOW_EVIL = f"""
import sys
from tools.terminal import terminal
evil = {EVIL!r}
print(evil, terminal.painted(evil, "good"), terminal.wrapped(evil, 30))
print(terminal.table(["a"], [[evil]], bool, tone=lambda *_: "bad"))
sys.stdout.writelines([evil])
terminal.control(sys.stdout, terminal.CLEAR_LINE)
sys.exit(evil)
"""


class Escapes(unittest.TestCase):
    """A terminal shows what files say, and obeys only us."""

    def test_texts(self):
        self.assertEqual(terminal.plain(EVIL), "\\x1b[2J\\x1b]0;title\\x07\\x9b2J\\x0d\\x08\\x7f\\x1b[31mred")
        self.assertEqual(terminal.plain("a\tä ±\n"), "a\tä ±\n")

    def test_all_that_a_tool_prints(self):
        done = subprocess.run([sys.executable, "-c", SHOW_EVIL], capture_output=True, cwd=ROOT)
        obeyed = re.findall(r"\033\[[0-9]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]",
                            (done.stdout + done.stderr).decode())
        self.assertEqual({*obeyed} - {"\033[31m", "\033[32m", "\033[1m", "\033[m"}, {"\r", "\033[K"})
        self.assertIn(b"red", done.stderr)


class Terminal(unittest.TestCase):
    def test_durations(self):
        self.assertEqual([*map(terminal.duration, (-5, 0, 59, 90, 7200, 172800))],
                         ["0 s", "0 s", "59 s", "1.5 min", "2.0 h", "2.0 d"])

    def test_width_and_colours(self):
        self.assertEqual(on_terminal(93), ["93", "True"])
        self.assertEqual(on_terminal(7), ["40", "True"])
        self.assertEqual(on_terminal(93, NO_COLOR="1"), ["93", "False"])
        self.assertEqual(on_terminal(93, NO_COLOR=""), ["93", "True"])
        self.assertEqual(on_terminal(93, TERM="dumb"), ["93", "False"])
        self.assertEqual(on_terminal(93, COLUMNS="70"), ["70", "True"])

    def test_a_pipe_has_neither(self):
        done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True,
                              check=True, cwd=ROOT)
        self.assertEqual(done.stdout.split(), ["None", "False"])


class Table(unittest.TestCase):
    def test_whole(self):
        self.assertEqual(terminal.table(HEADINGS, CELLS, is_text),
                         "step      loss  verdict\n"
                         "0-a       1.25  baseline\n"
                         "1-longer  11.5  better")

    def test_folded_under_its_first_column(self):
        self.assertEqual(terminal.table(HEADINGS, CELLS, is_text, room=20, indent=" "),
                         " step      loss\n"
                         " 0-a       1.25\n"
                         " 1-longer  11.5\n\n"
                         " step      verdict\n"
                         " 0-a       baseline\n"
                         " 1-longer  better")
        for room in range(19, 40):
            text = terminal.table(HEADINGS, CELLS, is_text, room=room)
            self.assertLessEqual(max(map(len, text.splitlines())), room)

    def test_colours_change_no_letter(self):
        def tone(heading, cell):
            return "good" if cell == "better" else None
        text = terminal.table(HEADINGS, CELLS, is_text, tone=tone)
        self.assertIn("\033[32mbetter\033[m", text)
        self.assertEqual(re.sub(r"\033\[\d*m", "", text),
                         terminal.table(HEADINGS, CELLS, is_text))

    def test_sentences(self):
        self.assertEqual(terminal.wrapped("one two three", 10, "  "), "  one two\n    three")
        self.assertEqual(terminal.wrapped("one two three", None, "  "), "  one two three")


if __name__ == "__main__":
    tap.main()
