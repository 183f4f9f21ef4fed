"""make values, compare and diff, and the memory of a report: from synthetic runs."""
import glob
import json
import os

from tools.plan import declaration, kconfig
from tools.report import report, values
from tools.testing import tap
from tools.testing.made_up import STUDY, Case


class Values(Case):
    """A file of final values gives the table that the runs gave."""

    def file(self, experiment):
        status, text = self.call("values", experiment)
        self.assertEqual(status, 0)
        path = os.path.join(self.runs.path, f"{experiment}.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def judged_again(self, experiment):
        """What decides, in full precision, from the runs and from the file."""
        _, _, table = self.report(experiment)
        again = json.loads(report.as_json(values.table(self.file(experiment))))
        for name in ("rows", "controls", "effects", "judgement", "groups", "sweeps", "problems",
                     "scores", "published", "environments", "seeds", "scales", "lengths"):
            self.assertEqual(again[name], table[name], name)
        return self.call("judge", self.file(experiment))[1]

    def test_a_study_with_a_repetition_and_a_leak(self):
        self.runs.study()
        text = self.judged_again("gpt2-ra-mla-full")
        self.assertRegex(text, r"1-mla\+gate .* better")
        self.assertRegex(text, r"3-mla\+gate\+cross\+latent .* invalid")
        self.assertRegex(text, r"4-mla\+gate\+cross-again .* reproduced")

    def test_tuned_and_declared(self):
        for seed in (1, 2, 3, 4, 5):
            common = 0.1 * seed
            self.runs.add("e", "0-mla", seed, 3 + common, started=2e9,
                          config={"LEARNING_RATE": "1e-3", "NAME": ""})
            self.runs.add("e", "1-x", seed, 2.5 + common + 0.01 * (seed % 2), started=2e9,
                          config={"LEARNING_RATE": "1e-2", "OTHER": "y"},
                          state="diverged" if seed == 5 else "done")
        for step, rate, loss in (("0-mla", "1e-3", 3.0), ("1-x", "1e-2", 2.0)):
            self.runs.add("e-tuning", f"{step}@{rate}", 11, loss, config={"LEARNING_RATE": rate})
        self.runs.add("e-tuning", "1-x@1", 11, None, state="diverged", config={"LEARNING_RATE": "1"})
        declaration.record(declaration.path_of(self.runs.path, "e"), {
            "asked": "1", "primary": [["1-x", "0-mla"]], "steps": ["0-mla", "1-x"],
            "margin": 0.1, "looks": [5], "seeds": [1, 2, 3, 4, 5]}, 1e9)
        text = self.judged_again("e")
        self.assertIn("Look 1 of 1, at 5 seeds.", text)
        self.assertRegex(text, r"1-x .* better‡")
        self.assertRegex(text, r"1-x +1 +1\n")

    def test_accuracy_and_length(self):
        for seed in (1, 2, 3, 4, 5):
            for step, loss in (("0-mla", 9.0), ("1-x", 1.0)):
                self.runs.add("e", step, seed, loss + 0.01 * seed, values={
                    "judged_by_accuracy": 1, "length/64/loss": 2.0 + seed, "length/64/rows": 8,
                    "length/64/accuracy": 0.5, "length/64/state_bytes": 512})
        self.assertIn(" 5 / 0 of 5 ", self.judged_again("e"))
        with open(self.file("e"), encoding="utf-8") as file:
            text = file.read()
        for count in ("parameters: 1000000", "judged_by_accuracy: 1", "length/64/rows: 8", "length/64/state_bytes: 512"):
            self.assertIn(f"# {count}\n", text)
        self.assertIn("# length/64/accuracy: 0.5\n", text)

    def add_with_rows(self, step, seed, until=100, faults=(), **more):
        """The sums of training grow with every update, from a faulty one on by something else."""
        def grown(i):
            return 2.0 ** 52 + 1000 * seed + i + sum(5 for fault in faults if i >= fault)
        self.runs.add("e", step, seed, 3.0 - int(step[0]) + 0.01 * (seed * int(step[0]) % 3), weights=f"{step}{seed}", curve=False,
                      until=until, curves={
            "rows/training": grown, "rows/training_targets": lambda i: 4.0 * i,
            "rows/validation": lambda i: 77.0 + (60 in faults and i == 60), "rows/validation_targets": lambda i: 64.0}, **more)

    def test_sums_of_rows(self):
        """What the report refuses is refused: also where a budget ended the step, and in one evaluation."""
        for until, faults, verdict in ((100, (), "better"), (50, (), "better"), (50, (40,), "invalid"),
                                       (100, (100,), "invalid"), (50, (60,), "better"), (100, (60,), "invalid")):
            with self.subTest(until=until, faults=faults):
                self.runs = type(self.runs)()
                for seed in (1, 2, 3, 4, 5):
                    self.add_with_rows("0-mla", seed)
                    self.add_with_rows("1-x", seed, until, faults if seed == 2 else ())
                _, _, table = self.report("e")
                again = json.loads(report.as_json(values.table(self.file("e"))))
                self.assertEqual([self.verdicts(one)["1-x"] for one in (table, again)], [verdict] * 2)
                self.assertEqual(again["notes"], table["notes"])
        with open(self.file("e"), encoding="utf-8") as file:
            self.assertNotIn(" 20 30", file.read().split("rows/validation")[0])    # of training the ends alone

    def test_seeds_that_saw_the_same_rows(self):
        for seed in (1, 2, 3):
            self.add_with_rows("0-mla", seed)
            self.runs.add("e", "1-x", seed, 2.0 + 0.01 * seed, weights=f"b{seed}", config={"TRAIN_BATCH": "8"},
                          curves={"rows/training": lambda i: 5.0 + i, "rows/training_targets": lambda i: 4.0 * i})
        self.assertIn("seeds 1, 2, 3 were trained on the same rows", self.judged_again("e"))

    def test_no_oracle(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed, weights=f"a{seed}", audits=[
                ("oracle", "no oracle", 1, "attention 'x'"), ("wiring", "wte", 1, "")])
            self.runs.add("e", "1-x", seed, 2.0 + 0.1 * seed, weights=f"b{seed}")
        self.runs.rebuild()
        _, text = self.call("judge", self.file("e"))
        self.assertRegex(text, r"0-mla .* 2 passed, no oracle\n")
        self.assertRegex(text, r"1-x .* 1 passed\n")

    def test_an_older_file_has_no_sums(self):
        self.runs.study(seeds=(1, 2, 3))
        self.runs.rebuild()
        _, text = self.call("judge", self.file("gpt2-ra-mla-full"))
        self.assertIn("data not recorded: 15 of 15 runs, in a file of values without sums", " ".join(text.split()))

    def test_files_of_findings(self):
        """Those that were written before there were sums are still read."""
        files = glob.glob(os.path.join(kconfig.ROOT, "docs/findings/*.csv"))
        self.assertGreater(len(files), 5)
        for path in files:
            table = values.table(path)
            self.assertTrue(any(row.verdict for row in table.comparisons), path)
            self.assertNotIn("earlier program", " ".join(table.notes))

    def test_what_chance_may_have_made(self):
        self.runs.study()
        self.runs.study("other", seeds=(1, 2, 3))
        self.runs.rebuild()
        status, text = self.call("chance", self.file("gpt2-ra-mla-full"), self.file("other"))
        self.assertEqual(status, 0)
        self.assertIn("| gpt2-ra-mla-full | primary | 2 | 1 | 0 | 0 |", text)
        self.assertIn("4 comparisons in 2 families", text)
        self.assertIn("on average at most 0.10 of these families hold one, and with at most 10% any", text)

    def test_symbols_under_their_old_names(self):
        """As databases and files of values have them that were written before a symbol was renamed."""
        self.runs.add("old", "0-mla", 1, 2.5, config={"REMAKE": "y"})
        self.runs.add("old", "1-gate", 1, 2.5, config={"RECOMPUTE": "y"})
        self.runs.rebuild()
        _, text = self.call("diff", "old/0", "old/1")
        self.assertNotIn("RECOMPUTE", text)
        path = self.file("old")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("CONFIG_RECOMPUTE", "CONFIG_REMAKE"))
        _, steps, _, _ = values.read(path)
        self.assertEqual([run.config["RECOMPUTE"] for step in steps for run in step.runs], ["y", "y"])

    def test_other_files(self):
        self.runs.study()
        self.runs.rebuild()
        path = self.file("gpt2-ra-mla-full")
        with open(path, encoding="utf-8") as file:
            good = file.read()
        for text, why in (("step,seed\n", "not a file of values"),
                          (good.replace("\n1-mla+gate,", "\n"), "damaged"), ("", "not a file of values"),
                          (good.split("step,")[0], "damaged"), (good.replace(",repeat,", ",other,"), "a run without repeat"),
                          (good.replace("# state: done", "# state: "), "a run without state"),
                          (good.replace("# experiment: gpt2", "# experiment: ../gpt2"), "a name has letters"),
                          (good.replace("\n1-mla+gate,", "\n$(id),"), "a name has letters"),
                          # As many rows as it says would take all memory.
                          (good.replace(",1,6000000,", ",1000000000,6000000,"), "1000000000 audits")):
            self.assertNotEqual(text, good)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(why=why):
                self.assertIn(why, self.call("judge", path)[0])
        self.assertIn("not a file of values", self.call("judge", os.path.join(self.runs.path, "results.db"))[0])
        self.assertEqual(self.call("judge", "nowhere.csv")[0], "report: nowhere.csv: No such file or directory")


class Memory(Case):
    """A report is made again only when something changed."""

    def setUp(self):
        super().setUp()
        self.runs.study(twin="other bits")
        self.runs.rebuild()
        self.first = self.ask()

    def ask(self):
        """Exit status, what was said, and whether the report was made."""
        made = []
        before = report.make_report
        report.make_report = lambda *arguments: made.append(1) or before(*arguments)
        try:
            return (*self.call("report", "gpt2-ra-mla-full"), bool(made))
        finally:
            report.make_report = before

    def test_nothing_changed(self):
        status, said, made = self.ask()
        self.assertTrue(self.first[2])
        self.assertFalse(made)
        self.assertEqual((status, said), self.first[:2])
        self.assertIn("not reproduced", str(status))

    def test_other_results(self):
        self.runs.add("gpt2-ra-mla-full", STUDY[0], 6, 3.0)
        self.runs.rebuild()
        self.assertTrue(self.ask()[2])

    def test_a_declaration(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "declaration.json")
        declaration.record(path, None, 0)
        self.assertFalse(self.ask()[2])     # nothing was declared
        declaration.record(path, {"asked": "1", "primary": [[STUDY[1], STUDY[0]]], "steps": STUDY[:2],
                                  "margin": None, "looks": [5], "seeds": [1, 2, 3, 4, 5]}, 1)
        self.assertTrue(self.ask()[2])

    def test_a_measurement(self):
        self.runs.decoded("gpt2-ra-mla-full", STUDY[0], [64])
        self.assertTrue(self.ask()[2])

    def test_a_file_is_gone(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "report", "report.csv")
        os.unlink(path)
        self.assertTrue(self.ask()[2])
        self.assertTrue(os.path.exists(path))

    def test_what_is_remembered_is_damaged(self):
        path = os.path.join(self.runs.path, "gpt2-ra-mla-full", "report", "said.json")
        for text in ("", "{", "[]", '{"key": 1}'):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.assertTrue(self.ask()[2])
            self.assertFalse(self.ask()[2])


class CompareAndDiff(Case):
    def setUp(self):
        super().setUp()
        self.runs.study()
        for seed in (1, 2, 3):
            self.identity = self.runs.add("other", "0-mla", seed, 2.0 + 0.01 * seed,
                                          config={"STEP": "mla", "EXTRA": "y"})
        self.runs.rebuild()

    def test_experiments(self):
        status, text = self.call("compare", "gpt2-ra-mla-full", "other")
        self.assertEqual(status, 0)
        self.assertIn("better", text)
        self.assertIn("EXTRA: - → y", text)

    def test_steps(self):
        for a, b in (("gpt2-ra-mla-full/0-mla", "gpt2-ra-mla-full/1"),
                     ("gpt2-ra-mla-full/mla", "gpt2-ra-mla-full/mla+gate")):
            status, text = self.call("compare", a, b)
            self.assertEqual(status, 0)
            self.assertRegex(text, r"0-mla +1-mla\+gate .* better")
        _, text = self.call("compare", "gpt2-ra-mla-full/1", "gpt2-ra-mla-full/0")
        self.assertRegex(text, r"1-mla\+gate +0-mla .* worse")

    def test_says_only_what_is_there(self):
        for seed in (1, 2, 3):
            self.runs.add("wide", "0-x", seed, 2.0 + 0.01 * seed, values={"parameters": 2e6})
        self.runs.rebuild()
        _, text = self.call("compare", "gpt2-ra-mla-full/0", "wide/0")
        self.assertNotIn("more parameters than its baseline", text)     # no column has its mark
        self.assertNotIn("accuracy", text)                              # no row has one

    def test_single_run(self):
        status, text = self.call("compare", "gpt2-ra-mla-full/0", self.identity[:6])
        self.assertEqual(status, 0)
        self.assertIn("not decidable", text)

    def test_other_task(self):
        for seed in (1, 2, 3):
            self.runs.add("copying", "0-mla", seed, 1.0 + 0.01 * seed, config={"TASK": "copy"})
        self.runs.rebuild()
        status, text = self.call("compare", "other/0", "copying/0")
        self.assertEqual(status, 0)
        self.assertIn("not decidable: the tasks differ (language, copy)", text)

    def test_diff(self):
        status, text = self.call("diff", "gpt2-ra-mla-full/0", "other/0")
        self.assertEqual(status, 0)
        self.assertIn("gpt2-ra-mla-full/0-mla → other/0-mla: 1 symbol\n", text)
        self.assertNotIn("nats", text)

    def test_wrong_names(self):
        for a, b, expected in (
                ("nothing", "other", "no experiment, EXPERIMENT/STEP or identity of a run; "
                                     "experiments: gpt2-ra-mla-full, other"),
                ("other/7", "other", "other/7: no such step; there are: 0-mla"),
                ("00", "other", "00: stands for"), ("%", "other", "%: no experiment")):
            status, _ = self.call("compare", a, b)
            self.assertIn(expected, status)


if __name__ == "__main__":
    tap.main()
