#!/usr/bin/env python3
"""tools/cluster/slurm_longtest.py with 60 runs, every event three times, and real time limits."""
import sys

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.cluster import slurm_longtest
from tools.cluster.slurm_longtest import SETTINGS
from tools.kablate import train_test
from tools.testing import tap

tearDownModule = train_test.tearDownModule

STEPS = "mla gate cross latent gate+cross gate+latent"


class SixtyRuns(slurm_longtest.Disturbed):
    settings = {**SETTINGS, "PLAN_FRAGMENTS": STEPS, "SEEDS": "1,2,3,4,5,6,7,8,9,10",
                "GPT2_MAX_ITERS": 1200}
    rounds = 3
    seconds = 3600


class TimeLimits(slurm_longtest.WithCluster):
    """Slurm's shortest limit is a minute; its signal comes half a minute before."""
    nodes = 2

    def test_a_run_longer_than_its_limit(self):
        settings = {**SETTINGS, "PLAN_FRAGMENTS": "mla", "SEEDS": "1,2", "GPT2_MAX_ITERS": 60000,
                    "LOG_INTERVAL": 1000, "EVAL_INTERVAL": 5000, "CHECKPOINT_INTERVAL": 0,
                    "SLURM_TIME": "1", "SLURM_SAVE_SECONDS": 30}
        straight, tree = map(slurm_longtest.new_tree, (settings, settings))
        straight.make("-s", timeout=3600)
        tree.make("-s", "SLURM=1")
        self.wait(tree, 3600)
        self.assertIn("queued again", self.logs(tree))
        self.assertEqual(slurm_longtest.fault_longtest.rows_of(tree.runs),
                         slurm_longtest.fault_longtest.rows_of(straight.runs))


if __name__ == "__main__":
    tap.main()
