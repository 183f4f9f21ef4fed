#!/usr/bin/env python3
"""Plans under make: tuned and matched steps, times, budgets, what is refused, what reaches the report.

tools/kablate/train_test.py has the runs of one plan; tools/testing/readme_test.py tunes a small one.
"""
import contextlib
import json
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import OUTPUT, ROOT, SETTINGS, Case, Held, Run, Tree, program
from tools.testing import tap

tearDownModule = train_test.tearDownModule


class Plans(Case):
    """Steps that end early, each way."""

    def tree(self, **settings):
        return Tree(pathlib.Path(tempfile.mkdtemp(dir=ROOT)) / "tree", "smoke",
                    {**SETTINGS, "PLAN": "steps", **settings})

    def ask(self, tree, question):
        with contextlib.closing(sqlite3.connect(tree.runs / "results.db")) as db:
            return db.execute(question).fetchall()

    def test_a_refused_step_does_not_keep_the_others(self):
        tree = self.tree(PLAN_FRAGMENTS="baseline ws", FFN_HIDDEN=100)    # WS_HEADS=8 divide no 100
        text = tree.make("-k", "runs", expect=2)
        self.assertIn("WS_HEADS", text)
        self.assertEqual(self.ask(tree, "SELECT step, state FROM runs"), [("0-baseline", "done")])
        shutil.rmtree(tree.runs)
        text = tree.make("-j1", "runs", expect=2)
        self.assertEqual(text.count("RUN "), 1)  # refused before hours pass

    def test_plans_tell_the_time(self):
        """First by timed passes, then by what the runs took; without data, as far as known."""
        tree = self.tree(PLAN_FRAGMENTS="mla mla+gate again-0", SEEDS="1,2")
        text = tree.make("plan")
        self.assertRegex(text, r"0-mla +[0-9,]+ +[0-9,]+ +[0-9,]+ +2 +[0-9.]+ s +[0-9.]+ [kM]B")
        self.assertIn("time by a few timed passes\n", text)
        self.assertFalse(tree.runs.exists())
        kept = (tree.plan / "0-mla" / "estimate.json").stat().st_mtime_ns
        tree.make("step", "N=0")
        self.assertIn("time by 2 finished runs and a few timed passes\n", tree.make("plan"))
        self.assertEqual((tree.plan / "0-mla" / "estimate.json").stat().st_mtime_ns, kept)
        tree.set({"TASK": "text", "DATA_TRAIN": ROOT / "nowhere.bin"})
        text = tree.make("plan")
        self.assertIn("nowhere.bin", text)
        self.assertRegex(text, r"1-mla\+gate +2 +RA_MLA_MLP_ATTN_GATE n -> y")

    def test_inference_is_reported(self):
        """What make bench-decode measures, and lengths, reach the report; the database may go."""
        tree = self.tree(PLAN_FRAGMENTS="mla again-0", SEEDS="1", POS="rope", EVAL_LENGTHS="64,128",
                         GPT2_MAX_ITERS=3)
        tree.make("runs")
        self.assertIn("limit/s", tree.make("bench-decode", "CONTEXTS=64"))
        kept = tree.runs / "smoke/decode"
        self.assertEqual([path.name for path in kept.iterdir()], ["0-mla.json"])
        (tree.runs / "results.db").unlink()
        subprocess.run([OUTPUT / "bin/results", "rebuild", tree.runs], check=True,
                       stdout=subprocess.PIPE)
        text = tree.make("report", "NO_INSTALL=1")
        self.assertRegex(text, r"0-mla +128 +2 .* \d\.\d{3} +\d\.\d{3}\n")
        self.assertRegex(text, r"0-mla +64 +0\.\d\d .*%\n")
        self.assertNotIn("other values", text)

    def test_a_matched_step_has_the_size_that_was_planned(self):
        tree = self.tree(PLAN_FRAGMENTS="mla mla+gate mla+parameters-of-1 mla+flops-of-1")
        tree.make("plan")
        steps = json.loads((tree.plan / "plan.json").read_text())["steps"]
        sizes = [json.loads((tree.plan / step["name"] / "describe.json").read_text())
                 for step in steps]
        for step, size in list(zip(steps, sizes))[2:]:
            quantity = {"parameters": "parameters", "flops": "flops_per_token"}[
                step["match"]["quantity"]]
            self.assertEqual(step["match"]["found"], size[quantity])
            self.assertEqual(step["match"]["target"], sizes[1][quantity])

    def test_tuning(self):
        """Stopped, gone on with, chosen, and left alone when done."""
        tree = self.tree(PLAN_FRAGMENTS="mla mla+tuned again-1", TUNE_RATES="1e-4,1e-2,1e30",
                         TUNE_SEEDS="11,12", CHECKPOINT_INTERVAL=5)
        self.assertRegex(tree.make("audit"), "\n0-mla\n.*passed.*\n1-mla\\+tuned@1e-4\n.*passed")
        started = Held(tree.command("-j1", "runs"), " 15/60 ")
        tree.make("stop")
        self.assertNotEqual(started.end(), 0)
        self.assertNotIn("smoke 0-mla", started.text)
        text = tree.make("runs")
        self.assertIn("resuming after iteration", text)
        self.assertIn("1-mla+tuned: learning rate 1e-2\n", text)
        runs = self.ask(tree, "SELECT name, step, seed, state FROM runs JOIN experiments ON "
                              "experiments.id = experiment ORDER BY name, step, seed")
        candidates = [("smoke-tuning", f"1-mla+tuned@{rate}", seed, state) for rate, state in
                      (("1e-2", "done"), ("1e-4", "done"), ("1e30", "diverged"))
                      for seed in (11, 12)]
        self.assertEqual(runs, [("smoke", "0-mla", 1, "done"), ("smoke", "1-mla+tuned", 1, "done"),
                                ("smoke", "2-mla+tuned-again", 1, "done"), *candidates])
        rates = self.ask(tree, "SELECT DISTINCT value FROM config JOIN runs ON runs.id = run "
                               "WHERE symbol = 'LEARNING_RATE' AND step = '1-mla+tuned'")
        self.assertEqual(rates, [("1e-2",)])
        again = tree.make("runs")
        self.assertNotIn("RUN ", again)
        self.assertNotIn("learning rate", again)

        tree.set({"TUNE_RATES": "1e-5,1e-3"})
        text = tree.make("step", "N=2")
        self.assertEqual(text.count("RUN "), 4 + 1)
        self.assertIn("1-mla+tuned: learning rate 1e-3\n", text)

    def test_rates_too_close_to_tell(self):
        """They have more seeds."""
        tree = self.tree(PLAN_FRAGMENTS="mla mla+tuned", TUNE_RATES="1e-3,1.001e-3", TUNE_SEEDS="11,12", TUNE_MORE_SEEDS="13")
        text = tree.make("runs")
        self.assertIn("1-mla+tuned: 2 seeds do not tell 1e-3, 1.001e-3 apart: they are trained with 1 more\n", text)
        self.assertEqual(self.ask(tree, "SELECT name, count(*) FROM runs JOIN experiments ON experiments.id = experiment "
                                        "GROUP BY name ORDER BY name"), [("smoke", 2), ("smoke-tuning", 6)])

    def test_look_after_look(self):
        """Until no look is left."""
        tree = self.tree(PLAN_FRAGMENTS="mla mla+gate", SEEDS="1,2,3", LOOKS="3,4", GPT2_MAX_ITERS=150, LOG_INTERVAL=50)
        text = tree.make("looks")
        self.assertIn("Look 1 of 2, at 3 seeds.", text)
        self.assertIn("Look 2 of 2, at 4 seeds.", text)
        self.assertEqual(self.ask(tree, "SELECT count(*) FROM runs WHERE state = 'done'"), [(8,)])
        self.assertNotIn("RUN ", tree.make("looks"))

    def test_tuning_where_nothing_converges(self):
        tree = self.tree(PLAN_FRAGMENTS="mla mla+tuned", TUNE_RATES="1e30,1e31", TUNE_SEEDS="11")
        text = tree.make("-k", "runs", expect=2)
        self.assertIn("1-mla+tuned: with every rate a run diverged", text)
        self.assertEqual(self.ask(tree, "SELECT step FROM runs WHERE state = 'done'"), [("0-mla",)])

    def test_changed_starting_weights_are_another_run(self):
        start = ROOT / "initial.safetensors"
        start.write_text("")
        tree = self.tree(PLAN="single", INIT_FROM=start)
        for seed in (1, 2):
            run = Run(program(), seed=seed)
            run.train()
            shutil.copy(run.directory / "weights.safetensors", start)
            tree.make("runs")
            self.assertEqual(len(list(tree.runs.glob("*/*/done"))), seed)

    def test_a_budget_of_tokens_ends_all_steps_alike(self):
        tree = self.tree(PLAN_FRAGMENTS="mla mla+gate", TRAIN_TOKENS_BUDGET=12 * 4 * 32 - 1)
        tree.make("runs")
        self.assertEqual(self.ask(tree, "SELECT DISTINCT state, exit_reason FROM runs"),
                         [("budget", "token budget of 1535 is used up")])
        question = "SELECT max(iteration) FROM metrics WHERE name = 'val/loss' GROUP BY run"
        last = self.ask(tree, question)
        self.assertEqual(last, [(12,), (12,)])
        self.assertEqual(len(list(tree.runs.glob("*/*/done"))), 2)


if __name__ == "__main__":
    tap.main()
