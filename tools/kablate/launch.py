#!/usr/bin/env python3
"""Start the ranks of one run through mpirun:  launch.py --ranks N PROGRAM ARGUMENTS...

A signal to stop reaches every rank, and the run saves, which mpirun alone does not wait for: it
would kill the ranks within seconds.  When a rank dies, its name is printed in one line.

Example: python3 -m tools.kablate.launch --ranks 2 build/plan/0-baseline/kablate train --seed 1
"""
import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

# mpirun puts what it has to say between two such lines.
RULE = re.compile(r"^-{20,}$")
DEAD = re.compile(r"process rank (\d+) with PID (\d+) on\s+node (\S+) exited on signal (\d+)")
EXPECTED = re.compile(r"MPI_ABORT was invoked|returned a non-zero exit code|exited with non-zero status|"
                      r"returned\s+a non-zero exit code")


def command_of(mpirun, ranks, program, arguments):
    """`make stop` looks for the program's name as make gives it, and must not find mpirun by it."""
    return [*mpirun, "-n", str(ranks), "--oversubscribe", "--bind-to", "none",
            "/" + os.path.abspath(program), *arguments]


def environment():
    values = dict(os.environ)
    if os.geteuid() == 0:  # containers; Open MPI asks twice
        values.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return values


def told(lines):
    """What remains of a message of mpirun."""
    text = " ".join(line.strip() for line in lines)
    dead = DEAD.search(text)
    if dead:
        rank, process, node, number = dead.groups()
        return [f"kablate: rank {rank} (process {process} on {node}) died of signal {number}; the run ends, "
                "and make resumes from its last checkpoint\n"]
    return [] if EXPECTED.search(text) else lines


def pass_on(stream, out):
    """The ranks' own lines at once, and mpirun's messages in our words."""
    message = None
    for line in stream:
        if RULE.match(line):
            if message is not None:
                out.writelines(told(message))
            message = [] if message is None else None
        elif message is None:
            out.write("" if line.startswith("mpirun: Forwarding signal") else line)
        else:
            message.append(line)
        out.flush()
    out.writelines(message or [])


def forward_signals(job):
    """mpirun hands SIGUSR1 (stop) and SIGUSR2 (save) to all ranks.  A second Ctrl-C ends them at once."""
    asked = []

    def stop(number, _frame):
        again = number == signal.SIGINT and bool(asked)
        asked.append(number)
        job.send_signal(signal.SIGTERM if again else signal.SIGUSR1)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)
    signal.signal(signal.SIGUSR2, lambda number, frame: job.send_signal(signal.SIGUSR2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--mpirun", default="mpirun", help="and options of it, such as --hostfile FILE")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    mpirun = shlex.split(options.mpirun)
    if not shutil.which(mpirun[0]):
        sys.exit(f"kablate: CONFIG_RANKS={options.ranks} needs {mpirun[0]}: install openmpi-bin, or set "
                 "CONFIG_RANKS=1")
    # A group of its own: Ctrl-C on the terminal reaches this process alone.
    with subprocess.Popen(command_of(mpirun, options.ranks, options.program, options.arguments),
                          env=environment(), stderr=subprocess.PIPE, text=True, errors="replace",
                          start_new_session=True) as job:
        forward_signals(job)
        pass_on(job.stderr, sys.stderr)
        job.wait()
    sys.exit(job.returncode if job.returncode >= 0 else 128 - job.returncode)


if __name__ == "__main__":
    main()
