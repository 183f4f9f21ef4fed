#!/usr/bin/env python3
"""tools/cluster/slurm_longtest.py with 60 runs, every event three times."""
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.cluster import slurm_longtest
from tools.cluster.slurm_longtest import SETTINGS
from tools.kablate import train_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule

STEPS = "mla gate cross latent gate+cross gate+latent"


class SixtyRuns(slurm_longtest.Disturbed):
    settings = {**SETTINGS, "PLAN_FRAGMENTS": STEPS, "SEEDS": "1,2,3,4,5,6,7,8,9,10",
                "GPT2_MAX_ITERS": 500}
    rounds = 3
    seconds = 3600


if __name__ == "__main__":
    tap.main()
