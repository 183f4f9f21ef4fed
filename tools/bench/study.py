"""A study in a directory of its own, by the commands of a user."""
import os
import subprocess
import sys
import time


def call(*words):
    """Wall time and processor time in seconds, MB of the largest process."""
    began = time.monotonic()
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, "MAKEFLAGS": variables()})
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{said[-3000:]}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def variables():
    """Those given to the make around this, without its flags."""
    return "".join(os.environ.get("MAKEFLAGS", "").partition(" -- ")[1:])


class Study:
    def __init__(self, directory, build, defconfig, *settings):
        self.plan, self.runs = directory / "plan", directory / "runs"
        self.words = ["make", "-s", f"O={build}", f"PLAN={self.plan}", f"RUNS={self.runs}",
                      f"KCONFIG_CONFIG={directory}/config"]
        self.make(f"defconfig-{defconfig}")
        self.make("set", *settings)

    def make(self, *words):
        return call(*self.words, *words)
