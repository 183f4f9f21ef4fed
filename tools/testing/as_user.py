"""Calls make as a user does, for tests that themselves run under make."""
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("O", "build")).resolve()
FROM_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "KCONFIG_CONFIG", "O", "RUNS", "T", "TIER")


def environment(**more):
    """The test's environment without the variables of the surrounding make, except compiler and
    libraries."""
    return {**{name: value for name, value in os.environ.items() if name not in FROM_MAKE}, **more}


def make(*arguments, **variables):
    """Calls make in the tree itself, with the existing build."""
    return subprocess.run(["make", "-s", f"O={BUILD}", *arguments], cwd=ROOT, text=True,
                          capture_output=True, env=environment(**variables))


def targets():
    return set(re.search(r"^\.PHONY: (.*)", make("-pn", "help").stdout, re.M)[1].split())
