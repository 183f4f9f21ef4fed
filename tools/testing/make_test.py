#!/usr/bin/env python3
"""make ends for any $(O), any spelling of it, and any environment.

The plan is included, so make makes it before anything else, even with -n, and starts again: once.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap
from tools.testing.as_user import ROOT

LENGTHS = 1, 30, 150            # of a directory's name
ENVIRONMENTS = 0, 1000, 50000   # bytes beside what is there


class Interrupted(unittest.TestCase):
    def test_a_tool_ends_without_a_traceback(self):
        for module in "tools.report.report", "tools.plan.plan", "tools.plan.declaration":
            code = f"import {module}; raise KeyboardInterrupt"
            done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGINT, ""))


class Limits(unittest.TestCase):
    def test_a_small_stack(self):
        done = subprocess.run(["sh", "-c", "ulimit -s 64; make -s help"], cwd=ROOT, env=as_user.environment(),
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("the limit of the stack (ulimit -s) is 64 KiB: raise it to 1024 or more", done.stderr)


class Misspelt(unittest.TestCase):
    def error(self, goal):
        done = as_user.make(goal)
        self.assertEqual(done.returncode, 2)
        return done.stderr

    def test_a_target_that_is_near_is_named(self):
        for goal, meant in (("reprot", "report"), ("serv", "serve"), ("menuconfg", "menuconfig"),
                            ("defconfg-smoke", "defconfig-smoke"), ("check-gate", "check-gates"), ("plann", "plan"),
                            ("compar", "compare"), ("gate-ts", "gate-tsan"), ("plna", "plan"), ("hlep", "help")):
            self.assertIn(f"there is no target '{goal}': did you mean '{meant}'? ('make help' lists all)", self.error(goal))

    def test_a_target_that_is_far(self):
        for goal in "xyzzyqq", "test", "declare":
            self.assertIn(f"there is no target '{goal}' ('make help' lists all)", self.error(goal))

    def test_every_target_is_known(self):
        known = re.search(r"^targets := (.*)", as_user.make("-pn", "help").stdout, re.M)[1].split()
        self.assertEqual(as_user.targets() - {*known}, set())


class Quiet(unittest.TestCase):
    def test_nothing_is_said_of_a_program_that_a_plan_needs(self):
        done = subprocess.run(["make", f"O={as_user.BUILD}", "match-width"], cwd=ROOT, env=as_user.environment(),
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


class Terminals(unittest.TestCase):
    def test_letters_that_it_lacks(self):
        code = "import tools.report.report; print('4.9 \u00b1 0.1')"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "PYTHONIOENCODING": "ascii"})
        self.assertEqual((done.stdout, done.stderr), ("4.9 ? 0.1\n", ""))


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.base = pathlib.Path(cls.directory.name)
        cls.config = cls.base / "config"
        made = as_user.make("defconfig-smoke", KCONFIG_CONFIG=str(cls.config))
        assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def plan(self, *arguments, cwd=ROOT, padding=0):
        """make -n steps: the plan is made, nothing is compiled."""
        environment = as_user.environment(KCONFIG_CONFIG=str(self.config), PADDING="x" * padding)
        return subprocess.run(["make", "-n", *arguments, "steps"], cwd=cwd, env=environment,
                              text=True, capture_output=True, timeout=120)

    def assert_rests(self, directory, made):
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(len(re.findall(r"^  PLAN ", made.stdout, re.M)), 1, made.stdout[:2000])
        (directory / "plan/plan.mk").unlink()


class Places(Case):
    """Each length of a name meets each size of the environment, in one of the three spellings."""

    def check(self, letter, turn, plan):
        for i, length in enumerate(LENGTHS):
            padding = ENVIRONMENTS[(i + turn) % len(ENVIRONMENTS)]
            directory = self.base / (letter * length)
            with self.subTest(length=length, padding=padding):
                self.assert_rests(directory, plan(directory, padding))

    def test_absolute(self):
        self.check("a", 0, lambda directory, padding: self.plan(f"O={directory}", padding=padding))

    def test_relative(self):
        self.check("r", 1, lambda directory, padding: self.plan(f"O={os.path.relpath(directory, ROOT)}",
                                                                padding=padding))

    def test_from_another_directory(self):
        self.check("c", 2, lambda directory, padding: self.plan("-C", str(ROOT), f"O={directory}", cwd="/",
                                                                padding=padding))

    def test_a_blank_is_refused_in_one_sentence(self):
        for spelled in ("with blank", f"{self.base}/with blank"):
            made = self.plan(f"O={spelled}")
            self.assertEqual(made.returncode, 2)
            self.assertRegex(made.stderr, r"\A\S+ \*\*\* make cannot work in a path with blanks: "
                             rf"move O={re.escape(spelled)}\.  Stop\.\n\Z")


class Guard(Case):
    def test_a_configuration_of_tomorrow_ends_in_one_sentence(self):
        tomorrow = time.time() + 86400
        os.utime(self.config, (tomorrow, tomorrow))
        directory = self.base / "guarded"
        made = self.plan(f"O={directory}")
        self.assertEqual(made.returncode, 2)
        errors = [line for line in made.stderr.splitlines() if "***" in line]
        self.assertEqual(len(errors), 1, made.stderr)
        self.assertRegex(errors[0], rf"{re.escape(str(directory))}/plan/plan\.mk was made \d times and "
                         rf"is still out of date, because of {re.escape(str(self.config))}; "
                         r"is its time in the future\?")


class SmallTree(unittest.TestCase):
    """With the real make files."""
    COPIED = ("Makefile", "Kconfig", "tools/make", "tools/testing/runtest.sh", "tools/testing/summary.sh",
              "models/Makefile", "data/Makefile")
    DIRECTORIES = ".ci", "core", "defconfigs", "docs", "build/tools/kablate"

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = pathlib.Path(directory.name)
        for name in self.COPIED:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.tree / name)
        for name in self.DIRECTORIES:
            (self.tree / name).mkdir(parents=True, exist_ok=True)
        (self.tree / "README.md").write_text("A tree.\n")


class Gates(SmallTree):
    def check(self, setup, *targets):
        (self.tree / "tools/make/setup.sh").write_text(setup)
        done = subprocess.run(["make", "-k", "NVCC=", *targets], cwd=self.tree, text=True, capture_output=True,
                              env=as_user.environment(PATH=f"{self.tree}:{os.environ['PATH']}"))
        return done.returncode, done.stdout

    def test_skipped_is_not_passed(self):
        cppcheck = self.tree / "cppcheck"
        cppcheck.write_text("#!/bin/sh\n")
        cppcheck.chmod(0o755)
        status, said = self.check("exit 1", "check-gates")
        self.assertIn("gates: 0 passed, 4 skipped\n", said)
        self.assertEqual(status, 2)
        self.assertEqual(self.check("exit 1", "gate-asan"), (0, "skipped: gate-asan\n"))
        status, said = self.check("[ $1 = cppcheck ]", "check-gates")
        self.assertIn("gates: 1 passed, 3 skipped\n", said)
        self.assertEqual(status, 0)


class Once(SmallTree):
    """One test, which notes each of its runs."""

    def setUp(self):
        super().setUp()
        (self.tree / "build/tools/kablate/kablate.o").touch()
        self.test = self.tree / "tools/testing/sample_test.sh"
        self.runs = self.tree / "build/runs"
        self.result = self.tree / "build/tools/testing/sample_test.sh.result"
        self.says("ok a")

    def says(self, *lines):
        self.test.write_text("\n".join(("echo run $ONCE >>build/runs", *(f"echo '{line}'" for line in lines))))

    def check(self, *arguments, **variables):
        """How often the test has run after this call of make."""
        done = subprocess.run(["make", "NVCC=", "NO_INSTALL=1", *arguments, "check"], cwd=self.tree, text=True,
                              capture_output=True, timeout=120, env=as_user.environment(**variables))
        self.said = done.stdout + done.stderr
        self.assertRegex(self.said, r"(?m)^\d+ passed, \d+ failed")    # make came to its end
        return self.runs.read_text().count("run")

    def test_what_passed_stands(self):
        self.assertEqual([self.check(), self.check()], [1, 2])
        self.assertEqual(self.check("ONCE=1"), 2)
        self.assertRegex(self.said, r"(?m)^1 passed, 0 failed$")
        self.assertEqual(self.check(ONCE="1"), 2)
        self.assertEqual(self.check(), 3)

    def test_until_something_has_changed(self):
        self.check()
        self.test.touch()
        self.assertEqual(self.check("ONCE=1"), 2)
        (self.tree / "docs/new.md").touch()
        self.assertEqual(self.check("ONCE=1"), 3)
        self.assertEqual(self.check("ONCE=1", KABLATE_TEST_ENTRIES="4"), 4)
        self.assertEqual(self.check("ONCE=1", KABLATE_TEST_ENTRIES="4"), 4)
        self.assertEqual(self.runs.read_text(), 4 * "run\n")  # a test that calls make runs all of it

    def test_what_changed_meanwhile_was_not_tested(self):
        self.test.write_text("echo run >>build/runs; touch docs/meanwhile.md; sleep 0.1; echo ok a")
        self.check()
        self.assertEqual(self.check("ONCE=1"), 2)

    def test_what_did_not_pass_runs_again(self):
        for line in "not ok a", "ok a # SKIP why":
            with self.subTest(line):
                self.says(line)
                before = self.check()
                self.assertEqual(self.check("ONCE=1"), before + 1)

    def test_what_was_interrupted_has_no_result(self):
        self.check()
        self.test.write_text("mkdir build/begun; while [ -e build/begun ]; do sleep 0.1; done; echo ok a")
        make = subprocess.Popen(["make", "NVCC=", "NO_INSTALL=1", "check"], cwd=self.tree, env=as_user.environment(),
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while make.poll() is None and not (self.tree / "build/begun").exists():
            time.sleep(0.05)
        os.killpg(make.pid, signal.SIGKILL)
        make.wait()
        (self.tree / "build/begun").rmdir()
        self.assertFalse(self.result.exists())


class Tiers(unittest.TestCase):
    def test_each_can_begin(self):
        for target in "check", "check-long", "check-all", "check-soak", "check-cross":
            with self.subTest(target):
                done = as_user.make("-n", target)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("summary.sh", done.stdout)


class Bytes(unittest.TestCase):
    def test_no_rule_depends_on_the_last_newline_of_a_file(self):
        found = 0
        for path in (ROOT / "Makefile", *ROOT.glob("tools/make/*.mk"), *ROOT.glob("*/Makefile")):
            for line in path.read_text().splitlines():
                if not line.startswith("#"):
                    found += line.count("$(file <")
                    self.assertEqual(line.count("$(file <"), line.count("$(strip $(file <"),
                                     f"{path}: {line}")
        self.assertGreater(found, 4)


if __name__ == "__main__":
    tap.main()
