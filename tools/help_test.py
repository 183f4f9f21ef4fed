#!/usr/bin/env python3
"""Every tool explains itself, with an example, and make help names every target that is for users."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the tree stays as it was

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("O", "build")).resolve()
SCREEN = 40, 100  # lines, columns
# Steps on the way to a target that is for users.
INTERNAL = {"FORCE", "experiment", "steps", "built", "runs-all", "runs-forget"}


def run(*command, **settings):
    return subprocess.run([str(word) for word in command], cwd=ROOT, text=True,
                          capture_output=True, **settings)


def make(*arguments, **variables):
    """As a user calls it, not as a part of the make that runs this test."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "T")}
    return run("make", "-s", f"O={BUILD}", *arguments, env={**environment, **variables})


def python_tools():
    return [path for path in sorted(ROOT.glob("tools/**/*.py"))
            if '__name__ == "__main__"' in path.read_text() and not re.search(r"_(long)?test\.py", path.name)]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        config, plan = (os.path.join(cls.directory.name, name) for name in ("config", "plan"))
        for goals in (["defconfig-smoke"], ["set", "CONFIG_PLAN_SINGLE=y"], ["steps"]):
            made = make(*goals, f"PLAN={plan}", KCONFIG_CONFIG=config)
            assert made.returncode == 0, made.stderr
        cls.programs = [*sorted(BUILD.glob("bin/*")), *pathlib.Path(plan).glob("*/kablate")]

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def test_programs_are_found(self):
        names = {path.name for path in self.programs}
        self.assertLessEqual({"kablate", "data", "results", "bench_ops", "check_vector"}, names)
        self.assertGreater(len(python_tools()), 9)

    def test_help_has_an_example(self):
        for command in [[path] for path in self.programs] + \
                       [[sys.executable, path] for path in python_tools()]:
            with self.subTest(tool=command[-1].name):
                answer = run(*command, "--help")
                self.assertEqual((answer.returncode, answer.stderr), (0, ""))
                self.assertRegex(answer.stdout, "[Ee]xample: ")
                lines = [line for line in answer.stdout.splitlines() if "://" not in line]
                self.assertLessEqual(max(map(len, lines)), SCREEN[1])

    def test_wrong_use_points_to_the_help(self):
        for path in self.programs:
            with self.subTest(tool=path.name):
                answer = run(path, "--nonsense")
                self.assertNotEqual(answer.returncode, 0)
                self.assertRegex(answer.stderr, "--help|[Uu]sage: ")


class MakeHelp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = make("help").stdout
        database = make("-pn", "help").stdout
        cls.targets = set(re.search(r"^\.PHONY: (.*)", database, re.M)[1].split())

    def test_fits_on_a_screen(self):
        lines = self.text.splitlines()
        self.assertLessEqual(len(lines), SCREEN[0])
        self.assertLessEqual(max(map(len, lines)), SCREEN[1])

    def test_names_every_target_and_nothing_else(self):
        """A line begins with names; others follow a semicolon, with a colon behind them."""
        first = re.findall(r"^  ([a-z][a-z-]*(?:, [a-z][a-z-]*)*)", self.text, re.M)
        further = re.findall(r";  +([a-z][a-z-]*):", self.text)
        named = {name for group in first for name in group.split(", ")} | set(further)
        targets = {name for name in self.targets if not name.startswith("defconfig-")}
        self.assertEqual(named - {"defconfig-"}, targets - INTERNAL - {"help"},
                         "other names in make help than targets; is one INTERNAL to this test?")

    def test_defconfigs_are_targets(self):
        names = {f"defconfig-{path.name}" for path in (ROOT / "defconfigs").iterdir()
                 if path.is_file()}
        self.assertLessEqual(names, self.targets)


if __name__ == "__main__":
    tap.main()
