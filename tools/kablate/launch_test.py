#!/usr/bin/env python3
"""What can be said about runs of several processes without MPI."""
import subprocess
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import launch, train_test
from tools.kablate.mpi_longtest import TOGETHER, ranks_program
from tools.kablate.train_test import STUDY, Case, Run, program
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class Alone(Case):
    def test_what_belongs_to_the_identity(self):
        plain, ordered = program(STUDY, TOGETHER, ORDERED_SUM="n"), ranks_program(1)
        self.assertNotEqual(Run(plain).identity, Run(ordered).identity)
        # Sums of one process, as they were: nothing about ranks is printed.
        done = subprocess.run([plain, "describe"], capture_output=True, text=True, check=True)
        self.assertNotIn("rank", done.stdout)

    def test_ordered_sums_are_other_sums(self):
        ordered, plain = Run(ranks_program(1)), Run(program(STUDY, TOGETHER, ORDERED_SUM="n"))
        ordered.train()
        plain.train()
        self.assertNotEqual(ordered.weights(), plain.weights())
        for iteration, value in plain.values("val/loss").items():
            self.assertAlmostEqual(ordered.values("val/loss")[iteration], value, delta=1e-4)

    def test_without_mpirun(self):
        done = subprocess.run([sys.executable, "-m", "tools.kablate.launch", "--ranks", "2", "--mpirun", "no-mpirun",
                               "kablate"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "kablate: CONFIG_RANKS=2 needs no-mpirun: install openmpi-bin, or set CONFIG_RANKS=1\n"))

    def test_messages_of_mpirun(self):
        dead = ["mpirun noticed that process rank 1 with PID 7 on\n", "node far exited on signal 9 (Killed).\n"]
        self.assertEqual(launch.told(dead), ["kablate: rank 1 (process 7 on far) died of signal 9; the run ends, and make "
                                             "resumes from its last checkpoint\n"])
        self.assertEqual(launch.told(["Process returned a non-zero exit code.\n"]), [])
        self.assertEqual(launch.told(["No slots.\n"]), ["No slots.\n"])


if __name__ == "__main__":
    tap.main()
