#!/usr/bin/env python3
"""README.md is true: this runs every command in it, in order, as it stands, in a copy of the tree.

A command is a line of an indented block.  `make` is a script that calls
make and then, if the command configured something, cuts the experiment to two updates.  So the
commands run as written, only shorter.  Another test makes the mistakes of a newcomer.
"""
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap
from tools.testing.as_user import BUILD, ROOT

COPIED = "Kconfig Makefile core data defconfigs docs models tools".split()
TINY = "CONFIG_GPT2_MAX_ITERS=2 CONFIG_WARMUP_ITERS=1 CONFIG_TRAIN_BATCH=2 CONFIG_EVAL_ROWS=8"
SHIM = f"""#!/bin/sh
{shutil.which("make")} --no-print-directory O='{BUILD}' "$@" || exit
case "$*" in
defconfig* | "set "*) exec {shutil.which("make")} -s O='{BUILD}' set {TINY} ;;
esac
"""
# Commands that must not run as they stand, what runs instead, and why.
INSTEAD = {
    "make check": ("make -n check", "all tests would run this one again"),
    "make defconfig-gpt2-ra-mla-controlled && make": (
        "make defconfig-gpt2-ra-mla-controlled && make set CONFIG_SEEDS=1 CONFIG_TUNE_SEEDS=101 "
        "CONFIG_TUNE_RATES=6e-3,1.2e-2 CONFIG_RA_MLA_ABLATION_STEPS=0,2,6 && make",
        "230 runs take long"),
    'make defconfig && make set CONFIG_PLAN_FACTORS="NORM=layer|rms" CONFIG_SEEDS=1,2,3,4,5,6,7,8 && make': (
        'make defconfig && make set CONFIG_PLAN_FACTORS="NORM=layer|rms" CONFIG_SEEDS=1 && make',
        "16 runs take minutes"),
    "make data && make": (
        "make set CONFIG_SEEDS=1 CONFIG_TUNE_SEEDS=101 CONFIG_TUNE_RATES=6e-3,1.2e-2 && make data && make",
        "44 runs take minutes"),
    "make bench-decode": ("make bench-decode CONTEXTS=64 ROUNDS=1 BENCH_SECONDS=0.01",
                          "two rounds of six models take minutes"),
    "make serve": ("setsid make serve PORT=0 >log & until grep -q ^http log; do sleep 0.1; done; cat log; "
                   "kill -- -$!", "it serves until it is stopped"),
}
KEYS = {"make menuconfig": b"q"}    # needs a terminal and a key that leaves
SHOWS = {
    "make defconfig-gpt2-ra-mla-full && make": r"5-mla\+gate\+cross\+latent-again .* reproduced",
    "make defconfig-gpt2-ra-mla-controlled && make":
        r"2-mla\+gate\+cross +6-mla\+parameters-of-2 +-116 parameters",
    'make defconfig && make set CONFIG_PLAN_FACTORS="NORM=layer|rms" CONFIG_SEEDS=1,2,3,4,5,6,7,8 && make':
        r"1-norm-rms",
    "make plan": r"seeds 1,2,3,4,5: 22 runs",
    "make audit": r"106 audits, passed",
    "make status": r"gpt2-ra-mla-full +1-mla\+gate +5 +done",
    "make report E=gpt2-ra-mla-full": r"1-mla\+gate .* 253\.1k\*",
    "make serve": r"http://127\.0\.0\.1:[0-9]+/ shows runs; Ctrl-C ends it",
    "make data && make": r"2-w2-overlap",
}
MISTAKES = [  # commands, first without and then with a configuration, and what the answer must say
    ("make", "make defconfig-gpt2-ra-mla-full && make"),
    ("make data", "make defconfig-gpt2-ra-mla-full && make"),
    ("make set CONFIG_SEEDS=1", "choose with 'make defconfig' (plain GPT-2), 'make menuconfig' or 'make defconfig-NAME'"),
    ("make report", "no database; 'make' trains and writes it"),
    ("make defconfig-smok", "did you mean smoke?"),
    ("make defconfig-smoke+mls", "did you mean mla?"),
    ("make check T=core/nothing", "no such test; there are: "),
    ("make -s defconfig-smoke && make set", "make set CONFIG_X=value"),
    ("make set CONFIG_ATENTION=w2", "did you mean ATTENTION"),
    ("make set CONFIG_ATTENTION=w3", "not one of dot, mla, w2"),
    ("make set CONFIG_TRAIN_BATCH=0", "out of range 1 to 65536"),
    ("make set CONFIG_COPY_VOCAB=12", "it needs TASK_COPY"),
    ("make CONFIG_SEEDS=1", "only 'make set' takes symbols"),
    ("make step N=9", "make step N=NUMBER: there are 0-mla"),
    ("make data", "make set CONFIG_TASK=text CONFIG_DATA_TEXT=FILE"),
    ("make compare A=x", "give A= and B="),
    ("make runs RUNS=/proc/runs", "cannot make the directory /proc/runs"),
    ("make -s set CONFIG_TASK=text && make data", "make set CONFIG_DATA_TEXT=FILE_OR_DIRECTORY"),
    ("make runs", "prepare the data with `make data`"),
    ("echo hello >>.config && make", "make olddefconfig"),
    ("make O=other NO_INSTALL=1 CC=gcc-99 programs", "install"),
]


def commands():
    text = (ROOT / "README.md").read_text()
    return [re.sub(r"\s+# .*", "", line) for line in re.findall(r"^    (\S.*)", text, re.M)]


class Copy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        base = pathlib.Path(cls.directory.name)
        cls.tree = base / "tree"
        cls.tree.mkdir()
        for name in COPIED:     # with their times, so that the build stays up to date
            subprocess.run(["cp", "-a", ROOT / name, cls.tree], check=True)
        shim = base / "bin" / "make"
        shim.parent.mkdir()
        shim.write_text(SHIM)
        shim.chmod(0o755)
        cls.environment = as_user.environment(PATH=f"{shim.parent}:{os.environ['PATH']}",
                                              PLAN=str(base / "plan"), TERM="xterm")

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def run_command(self, command, keys=None):
        terminal = None
        if keys:
            inside, terminal = pty.openpty()
            os.write(inside, keys)
        done = subprocess.run(["bash", "-c", command], cwd=self.tree, env=self.environment,
                              stdin=terminal or subprocess.DEVNULL,
                              stdout=terminal or subprocess.PIPE,
                              stderr=terminal or subprocess.STDOUT, text=True, timeout=300)
        return done.returncode, done.stdout


class Readme(Copy):
    def test_every_command_in_its_order(self):
        text = "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/*.md")))
        (self.tree / "corpus.txt").write_text(text)
        for command in commands():
            with self.subTest(command=command):
                instead, why = INSTEAD.get(command, (command, ""))
                if why:
                    print(f"# {command}: run as '{instead}', since {why}")
                status, output = self.run_command(instead, KEYS.get(command))
                self.assertEqual(status, 0, output)
                if command in SHOWS:
                    self.assertRegex(output, SHOWS[command])
        for form in "md csv tex json html".split():
            report = self.tree / "runs/gpt2-ra-mla-full/report" / f"report.{form}"
            self.assertGreater(report.stat().st_size, 0)

    def test_the_lists_above_name_commands_of_the_readme(self):
        self.assertLessEqual({*INSTEAD, *KEYS, *SHOWS}, set(commands()))
        self.assertGreater(len(commands()), 15)


class Newcomer(Copy):
    def test_a_mistake_is_refused_and_the_way_out_named(self):
        for command, way_out in MISTAKES:
            with self.subTest(command=command):
                status, output = self.run_command(command)
                self.assertNotEqual(status, 0)
                self.assertIn(way_out, output)

    def test_make_again_trains_nothing_but_elsewhere(self):
        self.assertEqual(self.run_command("make -s defconfig-smoke && make")[0], 0)
        status, output = self.run_command("make")
        self.assertEqual(status, 0, output)
        self.assertNotIn("  RUN ", output)
        self.assertIn("  RUN ", self.run_command("make runs RUNS=elsewhere")[1])


if __name__ == "__main__":
    tap.main()
