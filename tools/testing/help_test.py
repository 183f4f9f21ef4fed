#!/usr/bin/env python3
"""Every tool explains itself, with an example; make help names every target for users."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap
from tools.testing.as_user import BUILD, ROOT

SCREEN = 50, 100  # lines, columns
# Targets that only other targets use.
INTERNAL = {"match-width", "FORCE", "experiment", "steps", "built", "declared", "planned", "runs-all", "runs-forget",
            "plan-examined", "tests", "tests-built", "runs-tuned", "runs-submit", "slurm-next", "which-nvcc",
            "which-emulated", "runs-that-fit", "runs-run-in-time", "runs-tuning-in-time", "gate-clang", "gate-asan", "gate-tsan", "gate-cppcheck"}


def run(*command):
    return subprocess.run(list(map(str, command)), cwd=ROOT, text=True, capture_output=True)


def python_tools():
    return [path for path in sorted(ROOT.glob("tools/**/*.py"))
            if not re.search(r"_(long|soak)?test\.py", path.name)
            and '__name__ == "__main__"' in path.read_text()]


def as_module(path):
    """Python's arguments that run it: a script that imports nothing from tools/ runs by its path."""
    if not re.search(r"^from tools\.", path.read_text(), re.M):
        return [path]
    return ["-m", ".".join(path.relative_to(ROOT).with_suffix("").parts)]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        config, plan = (os.path.join(cls.directory.name, name) for name in ("config", "plan"))
        for goals in (["defconfig-smoke"], ["set", "CONFIG_PLAN_SINGLE=y"], ["steps"]):
            made = as_user.make(*goals, f"PLAN={plan}", KCONFIG_CONFIG=config)
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
                       [[sys.executable, *as_module(path)] for path in python_tools()]:
            with self.subTest(tool=command[-1]):
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
        cls.text = as_user.make("help").stdout
        cls.targets = as_user.targets()

    def test_fits_on_a_screen(self):
        lines = self.text.splitlines()
        self.assertLessEqual(len(lines), SCREEN[0])
        self.assertLessEqual(max(map(len, lines)), SCREEN[1])

    def test_names_every_target_and_nothing_else(self):
        """A line begins with names; further names stand between a semicolon and a colon."""
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
