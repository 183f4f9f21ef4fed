#!/usr/bin/env python3
"""Several seeds in one process: every run ends as it does alone, and its failure is its own."""
import signal
import subprocess
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import train_test
from tools.kablate.train_test import DIVERGED, RESUMABLE, Run, program, study
from tools.testing import tap

tearDownModule = train_test.tearDownModule

SEEDS = (1, 2, 3)
WRONG, USAGE = 1, 2


class Together(Run):
    """Runs of one process, in a directory of runs of their own."""

    def __init__(self, binary, seeds=SEEDS, runs=None):
        super().__init__(binary, seeds[0], runs)
        self.seeds = seeds
        self.command = [binary, "train", "--lines", "--runs", self.runs, "--seeds", ",".join(map(str, seeds))]

    def each(self):
        """The runs one by one: their directories and what they recorded."""
        return [self.one(seed) for seed in self.seeds]

    def one(self, seed):
        return OneOf(self.binary, seed, self.runs)


class OneOf(Run):
    """A run whose database has others."""

    def ask(self, question):
        """Only of this run."""
        for table in ("metrics", "events", "artifacts", "audits"):
            question = question.replace(f"FROM {table}", f"FROM (SELECT * FROM {table} WHERE run = ({self.row}))")
        return super().ask(question.replace("FROM runs", f"FROM (SELECT * FROM runs WHERE id = ({self.row}))"))

    @property
    def row(self):
        return f"SELECT id FROM runs WHERE identity = '{self.identity}'"


class Case(train_test.Case):
    def assert_as_alone(self, together, alone=None):
        for run in together.each():
            with self.subTest(run.seed):
                other = alone(run.seed) if alone else self.alone(run.binary, run.seed)
                self.assert_same(run, other)

    known = {}

    @classmethod
    def alone(cls, binary, seed):
        if (binary, seed) not in cls.known:
            run = cls.known[binary, seed] = Run(binary, seed)
            run.train()
        return cls.known[binary, seed]


    def check_rates(self, slow, fast, rates):
        """Programs that differ in their rates: one of them trains the runs of both."""
        alone = [self.alone(binary, 1) for binary in (slow, fast)]
        together = Together(slow, (1, 1))
        together.command += ["--identity", ",".join(run.identity for run in alone), "--rates", ",".join(rates)]
        together.train()
        for run in alone:
            self.assert_same(OneOf(run.binary, 1, together.runs), run)


class OnTheCpu(Case):
    def test_rates(self):
        slow, fast = (study(LEARNING_RATE=rate, MIN_LEARNING_RATE="1e-4") for rate in ("1e-3", "2e-3"))
        self.check_rates(slow, fast, ("1e-3/1e-4", "2e-3/1e-4"))

    def test_rates_that_are_none(self):
        for more, expect, why in ((["--rates", "1e-3"], USAGE, "lists of different lengths"),
                                  (["--rates", "1e-3,x"], WRONG, "CONFIG_LEARNING_RATE: 'x' is not a decimal number"),
                                  (["--rates", "1e-3,0"], WRONG, "--rates: a rate of 0 is not above 0"),
                                  (["--rates", "1e-3,1e-3/-1"], WRONG, "--rates: a lowest rate of -1 is below 0"),
                                  (["--steps", "a,b/c"], USAGE, "b/c")):
            runs = Together(study(), (1, 2))
            runs.command += more
            self.assertIn(why, runs.train(expect=expect))
        alone = subprocess.run([study(), "train", "--rates", "1e-3"], text=True, capture_output=True, check=False)
        self.assertEqual(alone.returncode, USAGE)
        self.assertIn("--steps and --rates are lists that need --seeds", alone.stderr)
        muon = Together(program(OPTIMIZER="muon"), (1, 2))
        muon.command += ["--rates", "1e-3,2e-3"]
        self.assertIn("with Muon, runs of several rates need programs of their own", muon.train(expect=WRONG))

    def test_several_seeds(self):
        runs = Together(study())
        runs.train()
        self.assert_as_alone(runs)

    def test_what_is_done_stays(self):
        runs = Together(study())
        Run(study(), 2, runs.runs).train()
        said = runs.train()
        self.assertIn("seed 2: is done", said)
        self.assert_as_alone(runs)

    def test_records_of_progress(self):
        """For the process that draws: from before the checks on, and nothing beside them."""
        runs = Together(study(), (1, 2))
        runs.command[runs.command.index("--lines")] = "--records"
        lines = runs.train().strip("\n").split("\n")
        self.assertEqual([line for line in lines if not line.startswith("\036")], [])
        labels = dict.fromkeys(line[1:].split("\t")[0] for line in lines)
        for label in labels:
            own = [line.split("\t")[1:] for line in lines if line.startswith(f"\036{label}\t")]
            self.assertEqual((own[0], own[-1]), (["0", "0", ""], ["done"]))
        self.assertEqual([*labels], ["single 0 seed 1", "single 0 seed 2"])

    def test_interrupted_and_resumed(self):
        runs = Together(study(), (1, 2))
        started = runs.held_at(r"seed 1 30/60 ").send(signal.SIGINT)
        self.assertEqual(started.end(), RESUMABLE, started.text)
        self.assertNotIn("seed 2 3/60", started.text)
        self.assertEqual(runs.each()[0].state(), ("interrupted", "signal 2"))
        runs.train()
        self.assert_as_alone(runs)

    def test_a_run_that_cannot_be_written_ends_alone(self):
        runs = Together(study())
        broken = runs.each()[1].directory
        broken.parent.mkdir(parents=True)
        broken.write_text("")           # no directory
        said = runs.train(expect=WRONG)
        self.assertRegex(said, r"single 0 seed 2: cannot")
        broken.unlink()
        runs.train()
        self.assert_as_alone(runs)

    def test_divergences_are_ends(self):
        wild = program(LEARNING_RATE="1e30", WARMUP_ITERS=0)
        runs = Together(wild, (1, 2))
        runs.train(expect=DIVERGED)
        for run in runs.each():
            self.assertEqual(run.state()[0], "diverged")
            self.assertFalse((run.directory / "done").exists())
        runs.command.append("--keep-diverged")
        runs.train(expect=DIVERGED)
        self.assertTrue(all((run.directory / "done").exists() for run in runs.each()))

    def test_lists_that_do_not_fit(self):
        runs = Together(program())
        for words in (["--identity", "ab,cd"], ["--seeds", "1,x"], ["--seeds", "1,,2"], ["--seeds", ""]):
            command, runs.command = runs.command, [*runs.command, *words]
            said = runs.train(expect=USAGE)
            self.assertEqual(len(said.strip().splitlines()), 1, said)
            runs.command = command
        self.assertEqual(list(runs.runs.iterdir()), [])

    def test_each_seed_has_its_identity(self):
        runs = Together(program(GPT2_MAX_ITERS=2), (1, 2))
        right = [run.identity[:12] for run in runs.each()]
        runs.command += ["--identity", ",".join([right[0], right[0]])]
        self.assertIn("seed 2: this program has another configuration", runs.train(expect=WRONG))
        runs.command[-1] = ",".join(right)
        runs.train()


if __name__ == "__main__":
    tap.main()
