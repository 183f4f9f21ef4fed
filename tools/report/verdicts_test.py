"""What a report says of the steps: verdicts, intervals, grids, controls, tuning."""
import csv
import io
import random
import re
import statistics

from tools.plan import declaration
from tools.report import ablation, spread, stats
from tools.testing import tap
from tools.testing.made_up import Case


class Verdicts(Case):
    """One interval decides, and no number contradicts it."""

    def add(self, differences, baseline=(3.0, 3.1, 3.2, 3.1, 3.0), step="1-x", **more):
        for seed, loss in enumerate(baseline, 1):
            if step == "1-x":
                self.runs.add("e", "0-mla", seed, loss, started=2e9)
            self.runs.add("e", step, seed, loss + differences[seed - 1], started=2e9, **more)

    def declare(self, now=1e9, **what):
        """As make does before the first run."""
        content = {"asked": "1", "primary": [["1-x", "0-mla"]], "steps": ["0-mla", "1-x"],
                   "margin": None, "looks": [5], "seeds": [1, 2, 3, 4, 5], **what}
        declaration.record(declaration.path_of(self.runs.path, "e"), content, now)

    def test_without_a_margin_nothing_is_equivalent(self):
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        self.assertEqual(self.verdicts(self.report("e")[2])["1-x"], "open")

    def test_margin(self):
        self.declare(margin=0.01)
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "equivalent")
        self.assertIn("margin 0.01", text)

    def test_better_within_the_margin(self):
        self.declare(margin=0.01)
        self.add((-0.005, -0.0051, -0.0052, -0.0051, -0.005))
        self.assertEqual(self.verdicts(self.report("e")[2])["1-x"], "better, within the margin")

    def test_an_end_that_is_not_zero_does_not_read_as_zero(self):
        self.add((0.000011, 0.000012, 0.000013, 0.000012, 0.000011))
        text = self.report("e")[1]
        self.assertRegex(text, r"worse +\+0\.0000 \[\+0\.00001, \+0\.00001\]")

    def test_what_is_not_declared_is_exploratory(self):
        self.declare()
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5), step="2-y")
        _, text, table = self.report("e")
        self.assertEqual([row["is_exploratory"] for row in table["rows"]], [False, False, True])
        self.assertRegex(text, r"1-x +better  ")
        self.assertRegex(text, r"2-y +better, exploratory  ")
        self.assertEqual((table["judgement"]["family"], table["judgement"]["exploratory"]), (1, 1))
        line = list(csv.DictReader(io.StringIO(self.read("csv", "e"))))[2]
        self.assertEqual((line["verdict"], line["exploratory"]), ("better", "1"))

    def test_a_late_declaration_does_not_count(self):
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.declare(now=3e9)
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x +better, exploratory  ")
        self.assertIn("since it was made after the first run had begun", text)
        self.assertIn("Exploratory: 1 comparison, corrected for among themselves: their intervals hold together with 95%, "
                      f"{stats.CONDITION}; they were", " ".join(text.split()))

    def test_a_changed_margin_does_not_count(self):
        self.declare(margin=0.001)
        self.declare(margin=0.01, now=3e9)
        self.add((0.001, -0.001, 0.001, -0.001, 0.0))
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x +equivalent, exploratory  ")
        self.assertIn("since it was changed after the first run had begun", text)

    def test_a_declaration_withdrawn_after_the_first_run(self):
        self.declare()
        declaration.record(declaration.path_of(self.runs.path, "e"), None, 3e9)
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.assertRegex(self.report("e")[1], r"1-x +better, exploratory  ")

    def test_undeclared_seeds_do_not_count(self):
        self.declare(seeds=[1, 2, 3, 4], looks=[4])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-x +better, exploratory  ")
        self.assertIn("since seed 5 was not declared", text)

    def test_an_incomplete_report_is_no_look(self):
        self.declare(seeds=[1, 2, 3, 4, 5, 6], looks=[6])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, table = self.report("e")
        self.assertRegex(text, r"1-x +incomplete +[-+0-9.]+  ")
        self.assertIn("No look yet: the first needs all runs of 6 seeds", text)
        self.assertEqual((table["rows"][1]["delta"]["low"], table["rows"][1]["p"]), (None, None))

    def test_a_step_that_has_not_begun_leaves_all_incomplete(self):
        self.declare(primary=[["1-x", "0-mla"], ["2-y", "0-mla"]], steps=["0-mla", "1-x", "2-y"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.assertRegex(self.report("e")[1], r"1-x +incomplete  ")

    def test_a_seed_that_diverged_has_ended(self):
        self.declare(seeds=[1, 2, 3, 4, 5, 6], looks=[6])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.runs.add("e", "0-mla", 6, 3.0, started=2e9)
        self.runs.add("e", "1-x", 6, 9.0, started=2e9, state="diverged")
        self.assertRegex(self.report("e")[1], r"1-x +better‡  ")

    def test_looks_share_alpha(self):
        """Between looks only the seeds of the last look count; the interval is the common one."""
        differences = (-0.1, -0.3, -0.2, 5.0)
        self.declare(seeds=[1, 2, 3, 4, 5], looks=[3, 5])
        self.add(differences, (3.0, 3.1, 3.2, 3.1))
        _, text, table = self.report("e")
        self.assertIn("Look 1 of 2, at 3 seeds", text)
        row = table["rows"][1]
        expected = stats.difference(differences[:3], stats.ALPHA * 3 / 5)
        self.assertAlmostEqual(row["delta"]["low"], expected.low)
        self.assertAlmostEqual(row["delta"]["high"], expected.high)

    def test_a_look_with_too_few_seeds_is_passed_over(self):
        differences = (-0.5, -0.51, -0.52, -0.51, -0.5)
        self.declare(looks=[1, 5])
        self.add(differences)
        row = self.report("e")[2]["rows"][1]
        expected = stats.difference(differences, stats.ALPHA * 4 / 5)
        self.assertEqual(row["verdict"], "better")
        self.assertAlmostEqual(row["delta"]["low"], expected.low)

    def test_declared_effects_that_are_not_there(self):
        self.declare(primary=["main"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        _, text, _ = self.report("e")
        self.assertIn("None of the primary comparisons is in this table", text)
        self.assertRegex(text, r"1-x +better, exploratory  ")

    def test_any_two_steps_can_be_declared(self):
        self.declare(primary=[["2-y", "1-x"]], steps=["1-x", "2-y"])
        self.add((-0.5, -0.51, -0.52, -0.51, -0.5))
        self.add((-0.9, -0.91, -0.93, -0.92, -0.9), step="2-y")
        _, text, table = self.report("e")
        self.assertEqual([(row["step"], row["baseline"], row["verdict"], row["is_exploratory"])
                          for row in table["controls"]], [("2-y", "1-x", "better", False)])

    def test_solved_or_not(self):
        """Four of six against none: counted, not averaged."""
        for name, losses, verdict, needed in (("few", (0, 0, 0, 0, 9, 9), "open", [7, None]),
                                              ("all", (0, 0, 0, 0, 0, 0), "better", None)):
            for seed, loss in enumerate(losses, 1):
                self.runs.add(name, "0-mla", seed, 9 + 0.01 * seed,
                              values={"judged_by_accuracy": 1})
                self.runs.add(name, "1-x", seed, loss, values={"judged_by_accuracy": 1})
            _, text, table = self.report(name)
            self.assertEqual(self.verdicts(table)["1-x"], verdict)
            self.assertIn(f" {losses.count(0)} / 0 of 6", text)
            self.assertEqual(table["rows"][1]["seeds_needed"], needed)

    def test_no_outcome_could_pass(self):
        for seed in (1, 2, 3):
            for step, loss in (("0-mla", 9), ("1-x", 0), ("2-y", 9)):
                self.runs.add("e", step, seed, loss + 0.001 * seed,
                              values={"judged_by_accuracy": 1})
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "not decidable")
        self.assertIn("no outcome of 3 seeds could pass the correction for 2 comparisons; 5 could",
                      text)

    def test_accuracies_need_five_seeds(self):
        for seed in (1, 2, 3, 4):
            self.runs.add("e", "0-mla", seed, 3 + 0.01 * seed, values={"judged_by_accuracy": 1})
            self.runs.add("e", "1-x", seed, 2 + 0.011 * seed, values={"judged_by_accuracy": 1})
        self.assertIn("4 paired seeds, 5 are needed", self.report("e")[1])

    def test_unequal_noise_is_remarked(self):
        """One arm is ten times as noisy: the interval is that of any other."""
        arms = [(seed, 3.0 + 0.001 * seed, 2.0 + 0.01 * (seed % 3)) for seed in range(1, 6)]
        for seed, loss, other in arms:
            self.runs.add("e", "0-mla", seed, loss)
            self.runs.add("e", "1-x", seed, other)
        _, text, table = self.report("e")
        expected = stats.difference([other - loss for _, loss, other in arms])
        self.assertAlmostEqual(table["rows"][1]["delta"]["low"], expected.low)
        self.assertRegex(text, r"1-x +better§  ")
        self.assertIn("§ one of the two is noisier than the other", text)

    def test_a_run_that_did_not_learn_has_no_verdict(self):
        """Worse than chance, or than it began; it stays in its family."""
        for name, loss, values, reason in (("chance", 3.0, {"chance": 3.5}, "chance"),
                                           ("start", 4.0, {"val/loss": 3.9}, "it began")):
            for seed in (1, 2, 3, 4, 5):
                self.runs.add(name, "0-mla", seed, 2.0 + 0.01 * seed)
                lost = seed == 4
                self.runs.add(name, "1-x", seed, 3.6 if lost and name == "chance" else loss + 0.011 * seed,
                              curve=False, values=values if lost else None)
                self.runs.add(name, "2-y", seed, 3.0 + 0.011 * seed)
            _, text, table = self.report(name)
            self.assertEqual(self.verdicts(table), {"0-mla": "baseline", "1-x": "not decidable", "2-y": "worse"})
            self.assertIn(f"1-x did not learn: with seed 4 the loss ends no lower than {reason}", text)
            self.assertRegex(text, r"1-x +not decidable.*◊")
            self.assertIsNone(table["rows"][1]["delta"]["low"])
            self.assertEqual(table["judgement"]["family"], 2)

    def test_a_baseline_that_did_not_learn(self):
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 5.0 + 0.01 * seed, values={"chance": 4.0})
            self.runs.add("e", "1-x", seed, 3.0 + 0.011 * seed, values={"chance": 4.0})
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "not decidable")
        self.assertRegex(text, r"0-mla +baseline◊")

    def test_seeds_that_end_in_the_same_weights(self):
        """Any two of all seeds, not only the first ones."""
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed, weights=f"a{seed}")
            self.runs.add("e", "1-x", seed, 2.0 + 0.011 * seed, weights=f"b{min(seed, 4)}")
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-x"], "invalid")
        self.assertIn("seeds 4, 5 end in the same weights", text)

    def test_what_is_open_ends_with_the_next_look(self):
        """All comparisons are primary, also of steps that came later; nothing open, no command."""
        self.declare(asked="", primary=["all"], steps=[], looks=[3, 5, 8], seeds=list(range(1, 9)))
        self.add((-0.5, 0.51, -0.52), (3.0, 3.1, 3.2))
        self.add((-0.5, -0.501, -0.502), (3.0, 3.1, 3.2), step="2-y")
        _, text, table = self.report("e")
        self.assertEqual((self.verdicts(table)["1-x"], self.verdicts(table)["2-y"]), ("open", "better"))
        self.assertEqual(table["judgement"]["family"], 2)
        self.assertTrue(text.endswith("\nNext look:\n  make set CONFIG_SEEDS=1,2,3,4,5 && make    # make looks: all that are left\n"), text)
        self.assertEqual(self.call("next", "e")[1], "1,2,3,4,5\n")
        self.assertIn("Look 1 of 3, at 3 seeds.", text)

    def test_nothing_open_no_next_look(self):
        self.declare(asked="", primary=["all"], steps=[], looks=[3, 5, 8], seeds=list(range(1, 9)))
        self.add((-0.5, -0.501, -0.502), (3.0, 3.1, 3.2))
        self.assertNotIn("make set", self.report("e")[1])

    def test_after_the_last_look_there_is_no_command(self):
        self.declare(asked="", primary=["all"], steps=[], looks=[3], seeds=[1, 2, 3])
        self.add((-0.5, 0.51, -0.52), (3.0, 3.1, 3.2))
        self.assertNotIn("make set", self.report("e")[1])
        self.assertEqual(self.call("next", "e")[1], "\n")

    def test_compare_says_what_the_report_says(self):
        """In the family of the experiment, or exploratory."""
        self.add((-0.1, -0.13, -0.16, -0.11, -0.1))
        for number in range(2, 12):
            self.add((0.1, -0.13, 0.16, -0.11, 0.1), step=f"{number}-y")
        _, _, table = self.report("e")
        row = table["rows"][1]
        _, text = self.call("compare", "e/0", "e/1")
        self.assertIn(f"[{row['delta']['low']:+.4f}, {row['delta']['high']:+.4f}]", text)
        self.assertRegex(text, rf" {row['verdict']}\n")
        self.assertIn("corrected for 11 comparisons", text)
        _, text = self.call("compare", "e/2", "e/1")
        self.assertRegex(text, r" open, exploratory .*\n")
        self.assertIn(f"their intervals hold together with 95%, {stats.CONDITION}", " ".join(text.split()))

    def test_power(self):
        """The trainer records every tenth update of 100 tokens, and the pace in between."""
        sizes = {"TRAIN_BATCH": "10", "TRAIN_ACCUMULATE": "1", "MODEL_BLOCK": "10",
                 "GPT2_MAX_ITERS": "100", "TRAIN_TOKENS_BUDGET": "0"}
        self.add((0.1, -0.1, 0.2, -0.2, 0.0), config={"STEP": "x", **sizes})
        for seed in (1, 2, 3, 4, 5):
            self.runs.add("e", "0-mla", seed, (3.0, 3.1, 3.2, 3.1, 3.0)[seed - 1], started=3e9,
                          config={"STEP": "mla", **sizes})
        self.runs.rebuild()
        status, text = self.call("power", "e", "--effect", "0.1")
        self.assertEqual(status, 0)
        sd = statistics.stdev((0.1, -0.1, 0.2, -0.2, 0.0))
        needed = stats.seeds_to_show(0.1 / sd, stats.ALPHA)
        self.assertRegex(text, rf"1-x +0-mla +5 +{sd:.4f} +{needed} +{needed}\n")
        runs = 2 * (needed - 5)
        seconds = sum(10 * 100 / (1000 + i) for i in range(10, 101, 10))
        self.assertIn(f"{needed} seeds for every step: {runs} runs more, about "
                      f"{runs * seconds / 60:.0f} minutes", text)


class Grid(Case):
    """Two changes, each alone and together."""
    BASE = {"OPTIMIZER": "adamw", "RATE": "1"}
    GATE = {"GATE": "y", "READ_BY_BOTH": "n"}       # a program records what it reads
    MUON = {"OPTIMIZER": "muon", "RATE": "2", "READ_BY_BOTH": "n"}

    def add(self, together, steps=4, rates=None, **more):
        draw = random.Random(5)
        cells = [("0-mla", {}, 0), ("1-mla+gate", self.GATE, -0.2),
                 ("2-mla+muon", self.MUON, -0.1),
                 ("3-mla+gate+muon", self.GATE | self.MUON, together)]
        for seed in (1, 2, 3, 4, 5):
            common = draw.gauss(0, 0.5)
            for number, (step, change, shift) in enumerate(cells[:steps]):
                rate = {"LEARNING_RATE": rates[number]} if rates else {}
                self.runs.add("e", step, seed, 5 + common + shift + draw.gauss(0, 0.01),
                              config={**self.BASE, **change, **rate}, **more)

    def effects(self):
        _, text, table = self.report("e")
        return text, {row["step"]: row for row in table["effects"]}

    def test_no_interaction(self):
        self.add(-0.3)
        text, effects = self.effects()
        self.assertEqual(list(effects), ["gate", "muon", "gate × muon"])
        self.assertAlmostEqual(effects["gate"]["delta"]["mean"], -0.2, delta=0.02)
        self.assertAlmostEqual(effects["muon"]["delta"]["mean"], -0.1, delta=0.02)
        self.assertEqual([row["verdict"] for row in effects.values()], ["better", "better", "open"])
        self.assertIn("corrected for 6 comparisons", text)

    def test_interaction(self):
        """Together they gain nothing over the gate alone: each row's mean is computed again."""
        self.add(-0.2)
        text, effects = self.effects()
        self.assertAlmostEqual(effects["gate × muon"]["delta"]["mean"], 0.1, delta=0.03)
        self.assertEqual(effects["gate × muon"]["verdict"], "worse")
        self.assertRegex(text, r"gate × muon +interaction +\+0\.[0-9]+ \[")
        for ending, name in (("md", "gate × muon"), ("csv", "gate × muon"), ("html", "gate × muon"),
                             ("tex", r"gate $\times$ muon")):
            self.assertIn(name, self.read(ending, "e"))

    def test_without_all_corners_there_are_no_effects(self):
        self.add(0, steps=3)
        self.assertEqual(self.effects()[1], {})

    def test_tuned_steps_may_have_chosen_any_rate(self):
        """The rates are those of the arms; where they were not chosen, they are a change."""
        self.add(-0.3, rates=("1e-3", "2e-3", "4e-3", "1e-3"))
        self.assertEqual(self.effects()[1], {})
        for step in ("0-mla", "1-mla+gate", "2-mla+muon", "3-mla+gate+muon"):
            self.runs.add("e-tuning", f"{step}@1e-3", 11, 3.0, config={"LEARNING_RATE": "1e-3"})
        self.assertEqual(list(self.effects()[1]), ["gate", "muon", "gate × muon"])

    def test_an_invalid_corner_makes_the_effects_invalid(self):
        self.add(-0.3, audits=[("wiring", "wte", 0, "no gradient")])
        self.assertEqual({row["verdict"] for row in self.effects()[1].values()}, {"invalid"})

    def cells(self, muon, both, rows):
        """Of four cells with these hashes of their training rows; what is said of the effects."""
        changes = [{}, self.GATE, muon, both]
        for seed in (1, 2, 3, 4, 5):
            for number, (change, its_rows) in enumerate(zip(changes, rows)):
                step = f"{number}-" + ("mla", "gate", "muon", "both")[number]
                self.runs.add("e", step, seed, 5 - number + 0.01 * (seed * number % 3), weights=f"{step}{seed}",
                              config={**self.BASE, "TRAIN_BATCH": "4", **change}, baseline=step,
                              values={**SameData.ROWS, "rows/training": its_rows + 0.5 * seed})
        return self.effects()

    def test_cells_with_unequal_rows_have_no_effects(self):
        """Each is its own baseline, so no pair of the table shows it."""
        text, effects = self.cells(self.MUON, self.GATE | self.MUON, (1, 1, 1, 9))
        self.assertEqual({row["verdict"] for row in effects.values()}, {"invalid"})
        self.assertIn("gate: invalid: 3-both: with seed 1 the training rows are not those of 0-mla between updates",
                      " ".join(text.split()))

    def test_a_factor_on_data_may_have_other_rows(self):
        """The cells of one value must still agree."""
        batch = {"TRAIN_BATCH": "8"}
        for last, verdicts in ((9, {"better"}), (8, {"invalid"})):
            self.runs = type(self.runs)()
            text, effects = self.cells(batch, self.GATE | batch, (1, 1, 9, last))
            self.assertEqual({row["verdict"] for row in effects.values()}, verdicts, text)

    def test_solved_or_not_has_no_sum(self):
        self.add(-6, values={"judged_by_accuracy": 1})
        self.assertEqual({row["verdict"] for row in self.effects()[1].values()},
                         {"not decidable"})


class Controls(Case):
    def test_a_step_is_compared_with_its_control(self):
        """Both are better than the baseline, but the step is no better than its control."""
        def add(step, seed, loss, parameters, **config):
            self.runs.add("e", step, seed, loss, config={"FFN_HIDDEN": "0", **config},
                          values={"parameters": parameters})
        for seed in (1, 2, 3, 4, 5):
            wave = 0.001 * (seed % 2)
            add("0-mla", seed, 3.0, 1000)
            add("1-gate", seed, 2.5 + wave, 1500, GATE="y")
            add("2-mla+parameters-of-1", seed, 2.5 + 0.001 * (seed % 3), 1510, FFN_HIDDEN="9")
            add("3-mla+parameters-of-9", seed, 2.9 + wave, 1200, FFN_HIDDEN="5")
        _, text, table = self.report("e")
        self.assertEqual(self.verdicts(table)["1-gate"], "better")
        self.assertEqual([row["baseline"] for row in table["controls"]],
                         ["2-mla+parameters-of-1"])
        self.assertRegex(text, r"1-gate +2-mla\+parameters-of-1 +-10 parameters, \+0 FLOPs/token +"
                               r"[-+0-9.]+ \[.*\] +0\.00[0-9]+ +open")
        self.assertGreater(table["controls"][0]["smallest_effect"], 0)
        lines = list(csv.DictReader(io.StringIO(self.read("csv", "e"))))
        self.assertEqual([(line["step"], line["baseline"]) for line in lines
                          if line["kind"] == "control"], [("1-gate", "2-mla+parameters-of-1")])
        for ending in ("md", "tex", "html"):
            self.assertIn("Against matched controls", self.read(ending, "e"))
        self.assertIn("corrected for 4 comparisons", text)

    def test_steps_of_one_size_share_a_control(self):
        self.add("0-mla", (3.0, 3.0, 3.1), 1000)
        self.add("1-mla+gate", (2.7, 2.8, 2.9), 1500)
        self.add("2-mla+pool", (2.6, 2.8, 2.9), 1500)
        self.add("3-mla+parameters-of-1+parameters-of-2", (2.7, 2.7, 2.9), 1500, width="9")
        text = self.report("e")[1]
        for step in ("1-mla+gate", "2-mla+pool"):
            self.assertRegex(text, rf"{re.escape(step)} +3-mla\+parameters-of-1\+parameters-of-2 +\+0 parameters")

    def add(self, step, losses, parameters, width="0", rate="1e-3", **more):
        for seed, loss in enumerate(losses, 1):
            self.runs.add("e", step, seed, loss, values={"parameters": parameters}, **more,
                          config={"FFN_HIDDEN": width, "LEARNING_RATE": rate,
                                  "FFN": step[2:] if width == "0" else "mla"})

    def test_of_two_steps_of_one_number_that_of_its_size(self):
        self.add("0-mla", (3.0, 3.1, 3.2), 1000)
        self.add("1-mla+cross", (2.5, 2.6, 2.8), 1500)
        self.add("1-mla+gate", (2.5, 2.6, 2.8), 1100, started=9e8)     # of an older plan
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1510, width="9")
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-mla\+cross +2-mla\+parameters-of-1 +-10 parameters")
        self.assertNotRegex(text, r"1-mla\+gate +2-mla")

    def test_of_two_equally_large_steps_of_one_number_the_newest(self):
        self.add("1-mla+cross", (2.5,), 1500)
        self.add("1-mla+gate", (2.5,), 1500, started=9e8)
        self.add("0-mla", (3.0,), 1000)
        self.add("2-mla+parameters-of-1", (2.7,), 1500, width="9")
        self.assertRegex(self.report("e")[1], r"1-mla\+cross +2-mla\+parameters-of-1 ")

    def test_marks(self):
        self.add("0-mla", (3.0, 3.1, 3.2, 3.1), 1000)
        self.add("1-mla+gate", (2.5, 2.6, 2.8, 2.6), 1500)
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1500, width="9", machine="x86_64")
        _, text, _ = self.report("e")
        self.assertRegex(text, r"1-mla\+gate +2-mla.* open \([0-9 a-z]+\)†‡\n")

    def test_a_tuned_control_may_choose_another_rate(self):
        self.add("0-mla", (3.0, 3.1, 3.2), 1000)
        self.add("1-mla+gate", (2.5, 2.6, 2.8), 1500)
        self.add("2-mla+parameters-of-1", (2.7, 2.7, 2.9), 1500, width="9", rate="1e-2")
        self.assertNotIn("Against matched controls", self.report("e")[1])
        self.runs.add("e-tuning", "2-mla+parameters-of-1@1e-2", 11, 3.0,
                      config={"LEARNING_RATE": "1e-2"})
        self.assertRegex(self.report("e")[1], r"1-mla\+gate +2-mla\+parameters-of-1 +\+0 parameters")


class WhatDiffers(Case):
    PLAIN = {"ATTENTION": "mla", "RA_MLA_MLP_ATTN_GATE": "n", "RA_MLA_MLP_LATENT_RECIP": "n"}

    def differences(self, first, second):
        self.runs.add("e", "0-mla", 1, 3.0, config={**self.PLAIN, **first})
        self.runs.add("e", "1-x", 1, 3.0, config={**self.PLAIN, **second})
        _, text, table = self.report("e")
        self.assertIn("What differs", text)
        return {symbol: (a, b) for symbol, a, b in table["rows"][1]["difference"]}

    def test_what_a_switch_brings_with_it_is_not_told(self):
        gate = {"RA_MLA_MLP_ATTN_GATE": "y", "GATE_ALPHA": "0.1", "GATE_DIM": "64",
                "GATE_POOL": "causal"}
        self.assertEqual(self.differences({}, gate), {"RA_MLA_MLP_ATTN_GATE": ("n", "y")})

    def test_what_is_no_default_is_told(self):
        """Also where the default of a symbol depends on another that is no default."""
        recip = {"RA_MLA_MLP_LATENT_RECIP": "y", "RECIP_ALPHA": "0.5", "RECIP_LATENT": "16",
                 "RA_MLA_MLP_TYING_MODE": "bottleneck", "RECIP_DETACH": "n"}
        self.assertEqual(self.differences(recip, {}), {
            "RA_MLA_MLP_LATENT_RECIP": ("y", "n"), "RECIP_ALPHA": ("0.5", None),
            "RA_MLA_MLP_TYING_MODE": ("bottleneck", None)})

    def test_symbols_that_are_gone_are_told(self):
        self.assertEqual(self.differences({"OLD": "1"}, {}), {"OLD": ("1", None)})


class Null(Case):
    def test_other_seeds_are_paired_in_order(self):
        config = {"FFN": "gelu"}
        for seed, loss, other in ((1, 3.0, 3.1), (2, 3.2, 3.1), (3, 3.1, 3.2)):
            self.runs.add("e", "0-mla", seed, loss, config=config)
            self.runs.add("e", "1-mla-null", 1000 + seed, other, config=config)
            self.runs.add("e", "2-x", seed, loss - 0.5, config={"FFN": "ws"})
        _, text, table = self.report("e")
        row = table["rows"][1]
        self.assertAlmostEqual(row["delta"]["mean"], (0.1 - 0.1 + 0.1) / 3)
        self.assertAlmostEqual(row["delta"]["sd"], statistics.stdev([0.1, -0.1, 0.1]))
        self.assertEqual((row["verdict"], row["marks"]), ("open", []))
        self.assertEqual(table["seeds"], [1, 2, 3])
        self.assertEqual(table["problems"], [])
        self.assertIn("1-mla-null: the same configuration as 0-mla with other seeds", text)

    def test_a_lost_run_is_told(self):
        for seed in (1, 2, 3, 4):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed, config={"FFN": "gelu"})
            self.runs.add("e", "1-mla-null", 1000 + seed, 3.0 + 0.1 * seed, config={"FFN": "gelu"},
                          state="diverged" if seed == 2 else "done")
        _, text, table = self.report("e")
        self.assertEqual(table["rows"][1]["delta"]["n"], 3)
        self.assertIn(ablation.LOST_SEEDS, table["rows"][1]["marks"])
        self.assertIn("1-mla-null, seed 1002: diverged", text)


class Spread(Case):
    """How much arms vary from seed to seed."""

    def add(self, width, seeds=20, other=0.01):
        chance = random.Random(1)
        for seed in range(1, seeds + 1):
            self.runs.add("e", "0-mla", seed, 3.0 + other * chance.gauss(0, 1))
            self.runs.add("e", "1-x", seed, 2.0 + width * chance.gauss(0, 1))
        return self.report("e")[1]

    def test_a_steadier_step(self):
        text = self.add(0.002)
        self.assertIn("Spread between seeds:\n", text)
        self.assertRegex(text, r"1-x +0-mla +0\.00\d\d +0\.0\d\d\d +-0\.00\d\d \[-0\.01?\d+, -0\.00\d\d\] +steadier")

    def test_a_noisier_step(self):
        self.assertRegex(self.add(0.05), r"1-x +0-mla .*\+0\.0\d\d\d\] +noisier")

    def test_alike(self):
        self.assertRegex(self.add(0.01), r"1-x +0-mla .*\] +open")

    def test_few_seeds_say_nothing(self):
        self.assertNotIn("Spread between seeds", self.add(0.05, seeds=7))

    def test_what_is_invalid_or_did_not_learn_has_no_word(self):
        """It still counts as a comparison."""
        for name, more, word in (("invalid", {"audits": [("wiring", "wte", 0, "no gradient")]}, "invalid"),
                                 ("lost", {"values": {"chance": 1.0}}, "not decidable")):
            for seed in range(1, 21):
                chance = random.Random(seed)
                self.runs.add(name, "0-mla", seed, 3.0 + 0.01 * chance.gauss(0, 1), values={"chance": 4.0})
                self.runs.add(name, "1-x", seed, 2.0 + 0.05 * chance.gauss(0, 1), **more)
                self.runs.add(name, "2-y", seed, 2.0 + 0.05 * chance.gauss(0, 1), values={"chance": 4.0})
            text = self.report(name)[1].split("Spread between seeds:")[1]
            self.assertRegex(text, rf"1-x +0-mla +0\.0\d+ +0\.0\d+ +{word}\n")
            self.assertRegex(text, r"2-y +0-mla .*\] +noisier\n")

    def test_the_condition_stands_beside_95_percent(self):
        self.assertIn(f"Intervals hold together with 95%, {stats.CONDITION}. A wide spread",
                      " ".join(self.add(0.05).split()))

    def test_the_numbers(self):
        """A reference by hand: deviations 1 0 1 and 3 0 2, their differences -2 0 -1."""
        found = spread.compare("1-x", "0-mla", (2, 3, 4), (0, 3, 5), 0.05)
        self.assertEqual((found.difference.mean, found.difference.sd), (-1.0, 1.0))
        self.assertAlmostEqual(found.difference.high, -1 + 4.302652729911275 / 3 ** 0.5)
        self.assertEqual(found.verdict, "open")


class Tuning(Case):
    def test_sweep(self):
        for rate, losses in (("1e-3", (3.0, 3.2)), ("1e-2", (2.0, 2.1)), ("3e-3", (2.5, 2.6))):
            for seed, loss in zip((11, 12), losses):
                self.runs.add("e-tuning", f"1-x+tuned@{rate}", seed, loss,
                              config={"LEARNING_RATE": rate})
        for seed in (11, 12):
            self.runs.add("e-tuning", "1-x+tuned@1", seed, 9.0 if seed == 11 else None,
                          state="done" if seed == 11 else "diverged",
                          config={"LEARNING_RATE": "1"})
        for seed in (1, 2, 3):
            self.runs.add("e", "0-mla", seed, 3.0 + 0.1 * seed)
            self.runs.add("e", "1-x+tuned", seed, 2.0 + 0.1 * seed,
                          config={"LEARNING_RATE": "1e-2"})
        _, text, table = self.report("e")
        self.assertEqual([rate for rate, _, _ in table["sweeps"][0]["rates"]],
                         ["1e-3", "3e-3", "1e-2", "1"])
        self.assertEqual(table["seeds"], [1, 2, 3])
        self.assertRegex(text, r"1-x\+tuned +1e-2 +2\.0500 ± 0\.0707 \(2\) +2\.000 2\.100 +chosen\n")
        self.assertRegex(text, r"1-x\+tuned +1 +9\.0000 \(1\) +9\.000 +1\n")
        figure = self.figures("e")["Loss against learning rate"]
        self.assertEqual([place for _, place in figure["places"]], ["1e-3", "3e-3", "1e-2", "1"])
        lines = {one["name"]: (one["xs"], one["ys"]) for one in figure["series"]}
        self.assertEqual(lines["1-x+tuned"], ([1e-3, 3e-3, 1e-2], [3.1, 2.55, 2.05]))   # not where a run diverged
        self.assertEqual(lines["1-x+tuned, seed 11"], ([1e-3, 3e-3, 1e-2, 1.0], [3.0, 2.5, 2.0, 9.0]))

    def test_seeds_in_two_groups_are_reported(self):
        for rate, losses in (("1e-3", (2.31, 2.35, 2.32, 2.35, 2.31, 2.32)), ("2e-3", (2.4, 2.41, 2.42, 2.43, 2.44, 2.45))):
            for seed, loss in enumerate(losses, 101):
                self.runs.add("e-tuning", f"0-mla@{rate}", seed, loss, config={"LEARNING_RATE": rate})
        self.runs.add("e", "0-mla", 1, 3.0, config={"LEARNING_RATE": "2e-3"})
        _, text, _ = self.report("e")
        self.assertRegex(text, r"0-mla +1e-3 .* seeds in two groups\n")
        self.assertNotRegex(text, r"0-mla +2e-3 .* seeds in two groups\n")

    def test_a_choice_at_the_end_of_the_list_is_marked(self):
        for rate in ("1e-3", "1e-2"):
            self.runs.add("e-tuning", f"0-mla@{rate}", 11, 3.0, config={"LEARNING_RATE": rate})
        self.runs.add("e", "0-mla", 1, 3.0, config={"LEARNING_RATE": "1e-3"})
        self.assertIn("chosen, at the end of the list", self.report("e")[1])


class Inference(Case):
    """Losses beyond the trained length, and what decoding costs."""
    BEYOND, DECODING = "Beyond the trained length", "Decoding"

    def study(self):
        for seed in (1, 2, 3):
            for step, worse in (("0-mla", 0), ("1-x", 0.5)):
                values = {}
                for n in (512, 1024):
                    # The wider step is worse by its seed's number of tenths, too.
                    loss = n / 512 + worse * (1 + 0.1 * seed)
                    values |= {f"length/{n}/loss": loss, f"length/{n}/accuracy": 0.25,
                               f"length/{n}/rows": 4096 // n, f"length/{n}/state_bytes": 2048 * n,
                               f"length/{n}/loss/0": loss + 1}
                values["length/1024/loss/512"] = 7.0
                self.runs.add("e", step, seed, 3.0, values=values,
                              config={"STEP": step[2:], "MODEL_BLOCK": "512"})
        self.runs.decoded("e", "0-mla", (1024, 4096), MODEL_BLOCK="512",
                          peer={"torch": "2.9", "contexts": [
                              {"context": n, "token_seconds": n / 1e5} for n in (1024, 4096)]})
        self.runs.decoded("e", "1-x", (1024,), MODEL_BLOCK="64")

    def test_nothing_is_shown_when_nothing_was_measured(self):
        self.runs.study()
        _, text, table = self.report()
        for ending in ("md", "csv", "tex", "html"):
            text += self.read(ending)
        for word in (self.BEYOND, "tokens/s against", "limit/s", "Loss by position", "length/",
                     "decode/"):
            self.assertNotIn(word, text)
        self.assertEqual((table["lengths"], table["decoding"]["measured"]), ([], []))

    def test_numbers(self):
        self.study()
        _, text, table = self.report("e")
        x = {(x["step"], x["length"]): x for x in table["lengths"]}
        self.assertEqual(list(x), [("0-mla", 512), ("0-mla", 1024), ("1-x", 512), ("1-x", 1024)])
        self.assertIsNone(x["0-mla", 512]["delta"])
        self.assertAlmostEqual(x["1-x", 1024]["loss"]["mean"], 2.6)
        self.assertAlmostEqual(x["1-x", 1024]["delta"]["mean"], 0.6)
        self.assertAlmostEqual(x["1-x", 1024]["delta"]["sd"], 0.05)
        self.assertEqual(x["0-mla", 1024]["positions"], [[0, 3.0], [512, 7.0]])
        self.assertRegex(text, r"0-mla +1024 +4 +2\.00 +2\.0000 ± 0\.0000 \(3\) +25\.0 +3\.000"
                         r" +7\.000\n")
        self.assertIn("0-511  512-1023\n", text)
        self.assertIn("Trained at 512 tokens", text)
        # 1e6/1024 tokens a second of 2e10/1.024e7; PyTorch takes ten times as long.
        self.assertRegex(text, r"0-mla +1024 +0\.50 +512 +1\.02 +25% +976\.6 +10\.2 +1953\.1 +50%"
                         r" +97\.7\n")
        self.assertIn("1-x: measured with other values of MODEL_BLOCK\n", text)
        self.assertNotIn("0-mla: measured with", text)
        self.assertIn("threads 2, precision float32, batch 1, PyTorch 2.9: 0-mla\n", text)

    def test_files(self):
        self.study()
        self.report("e")
        line = next(csv.DictReader(io.StringIO(self.read("csv", "e"))))
        self.assertEqual(line["length/1024/loss/512"], "7.0")
        self.assertEqual(float(line["decode/4096/token_seconds"]), 4096e-6)
        for ending, title in (("md", "## {}\n"), ("tex", "{}\\par"), ("html", ">{}</h2>")):
            for name in (self.BEYOND, self.DECODING):
                self.assertIn(title.format(name), self.read(ending, "e"))
        for word in (r"\par\bigskip\normalsize Decoding\par\smallskip", "1953.1", "PyTorch/s"):
            self.assertIn(word, self.read("tex", "e"))
        self.assertEqual(self.read("tex", "e").count(r"\end{tabular}"), 3)

    def test_plots(self):
        self.study()
        self.report("e")
        found = self.figures("e")
        by_position = found["Loss by position"]
        self.assertEqual(by_position["uprights"], [512])
        self.assertEqual(by_position["series"][0], {"step": "0-mla", "name": "0-mla",
                                                    "xs": [256, 768], "ys": [3.0, 7.0]})
        of_baseline = [one for one in found["Decoding speed"]["series"] if one["step"] == "0-mla"]
        self.assertEqual([one["thin"] for one in of_baseline], [False, True])
        for ours, limit in zip(*(one["ys"] for one in of_baseline)):
            self.assertAlmostEqual(2 * ours, limit, places=2)   # as Runs.decoded has it
        self.assertIn("Decode state", found)


class SameData(Case):
    """Pairs are compared only if both were given the same rows."""

    ROWS = {name: 7.0 for name in ("rows/training", "rows/training_targets", "rows/validation",
                                   "rows/validation_targets")}

    def pair(self, mine, config=None, seeds=(1, 2, 3)):
        for seed in seeds:
            rows = self.ROWS | {"rows/training": 100.0 + seed}
            self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed, values=rows, weights=f"a{seed}")
            self.runs.add("e", "1-x", seed, 2.0 + 0.01 * seed, weights=f"b{seed}", config=config,
                          values=rows | (mine if seed == 2 else {}))
        return self.report("e")

    def verdict(self, *arguments, **more):
        _, text, table = self.pair(*arguments, **more)
        return self.verdicts(table)["1-x"], text

    def test_the_same_rows(self):
        verdict, text = self.verdict({})
        self.assertEqual(verdict, "better")
        self.assertNotIn("data not recorded", text)

    def test_other_rows(self):
        for name, kind in (("rows/training", "training"), ("rows/validation", "validation")):
            with self.subTest(name=name):
                self.runs = type(self.runs)()
                verdict, text = self.verdict({name: 8.0})
                self.assertEqual(verdict, "invalid")
                self.assertIn(f"with seed 2 the {kind} rows are not those of 0-mla", text)

    def test_seeds_with_the_same_rows(self):
        """Any two of all seeds; runs of an earlier program have recorded no rows."""
        verdict, text = self.verdict({"rows/training": 103.0}, config={"STEP": "mla", "TRAIN_BATCH": "8"})
        self.assertEqual(verdict, "invalid")
        self.assertIn("seeds 2, 3 were trained on the same rows", text)

    def test_a_loss_that_was_not_added_up(self):
        for counted, verdict in ((2.02, "better"), (2.05, "invalid")):
            self.runs = type(self.runs)()
            for seed in (1, 2, 3):
                self.runs.add("e", "0-mla", seed, 3.0 + 0.01 * seed)
                self.runs.add("e", "1-x", seed, 2.0 + 0.01 * seed, curve=False,
                              curves={"rows/validation_loss": lambda _, seed=seed, counted=counted: counted + 0.01 * (seed - 2)})
            _, text, table = self.report("e")
            self.assertEqual(self.verdicts(table)["1-x"], verdict)
        self.assertIn("with seed 1 val/loss is 2.01 after update 10; the audit added up 2.04", text)

    def test_half_of_the_targets(self):
        verdict, text = self.verdict({"rows/validation_targets": 4.0})
        self.assertEqual(verdict, "invalid")
        self.assertIn("4 targets, not 7", text)

    def test_symbols_of_one_kind_exempt_that_kind_only(self):
        for symbol, kind in (("TRAIN_BATCH", "training"), ("TRAIN_ACCUMULATE", "training"), ("DATA_ONCE", "training"),
                             ("EVAL_ROWS", "validation"), ("DATA_VALID", "validation"), ("MODEL_BLOCK", None)):
            for other in ("training", "validation"):
                self.runs = type(self.runs)()
                verdict, text = self.verdict({f"rows/{other}": 8.0}, config={"STEP": "mla", symbol: "8"})
                self.assertEqual(verdict, "better" if kind in (other, None) else "invalid", (symbol, other))
                self.assertIn(f"1-x: it has other {kind or 'training and validation'} rows than 0-mla, by {symbol}", text)

    def test_a_step_that_changes_the_data(self):
        verdict, text = self.verdict({"rows/training": 8.0}, config={"STEP": "mla", "TRAIN_BATCH": "8"})
        self.assertEqual(verdict, "better")
        self.assertIn("1-x: it has other training rows than 0-mla, by TRAIN_BATCH", text)

    def test_runs_of_an_earlier_program(self):
        self.runs.add("e", "0-mla", 1, 3.0)
        self.assertIn("data not recorded: 1 of 1 runs", self.report("e")[1])


if __name__ == "__main__":
    tap.main()
