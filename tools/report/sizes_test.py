#!/usr/bin/env python3
"""Slopes of effects against size: from run directories to every file of a report."""
import csv
import math
import os
import random
import re
import statistics
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import declaration
from tools.report import stats
from tools.testing import made_up, tap

SIZES = {"1m": 1e6, "10m": 1e7, "30m": 3e7}
CONFIG = {"TRAIN_BATCH": "2", "TRAIN_ACCUMULATE": "1", "MODEL_BLOCK": "50", "GPT2_MAX_ITERS": "100", "TRAIN_TOKENS_BUDGET": "0"}


class Sizes(made_up.Case):
    def add(self, effects, seeds=range(1, 9), words=("mla", "mla+gate"), noise=0.002, bytes_per_token=None):
        """Effects of the last step at each size; baselines differ by more than they do."""
        draw, n = random.Random(5), len(words)
        self.paired = {}
        for i, ((scale, parameters), effect) in enumerate(zip(SIZES.items(), effects)):
            for seed in seeds:
                common = 4 - i + draw.gauss(0, 0.05)
                own = self.paired[scale, seed] = effect + draw.gauss(0, noise)
                for number, word in enumerate(words):
                    self.runs.add("e", f"{i * n + number}-{scale}.{word}", seed, common + (own if number == n - 1 else 0),
                                  baseline=f"{i * n}-{scale}.{words[0]}", config={"STEP": f"{word} {scale}", **CONFIG},
                                  weights=f"{scale}{word}{seed}", values={"parameters": parameters * (1 + number), **(
                                      {"val/bits_per_byte": (4 - i) / math.log(2) / bytes_per_token[scale]} if bytes_per_token else {})})

    def trend(self, **more):
        status, self.text, table = self.report("e")
        self.assertEqual(status, 0)
        self.assertEqual(len(table["trends"]), more.pop("number", 1))
        return table["trends"][0]

    def test_slope(self):
        """The slope of the line of each seed, computed here with the module statistics."""
        self.add((-0.10, -0.05, -0.02))
        trend = self.trend()
        xs = [math.log10(p) for p in SIZES.values()]
        slopes = [statistics.linear_regression(xs, [self.paired[scale, seed] for scale in SIZES]).slope
                  for seed in range(1, 9)]
        row = trend["row"]
        self.assertAlmostEqual(row["delta"]["mean"], statistics.fmean(slopes))
        self.assertAlmostEqual(row["delta"]["sd"], statistics.stdev(slopes))
        half = stats.critical(0.05 / 4, 7) * statistics.stdev(slopes) / math.sqrt(8)      # three sizes and their slope
        self.assertAlmostEqual(row["delta"]["high"], statistics.fmean(slopes) + half)
        self.assertEqual((row["step"], row["baseline"], row["kind"], trend["word"]), ("mla+gate", "mla", "trend", "shrinks"))
        self.assertIn("effect of mla+gate against mla with size: shrinks; +0.05", self.text)
        self.assertEqual([(s["scale"], s["parameters"], s["work"]) for s in trend["sizes"]],
                         [(scale, p, 6e6 * 100 * 100) for scale, p in SIZES.items()])

    def test_words(self):
        for effects, word in (((-0.02, -0.05, -0.10), "grows"), ((0.02, 0.05, 0.10), "grows"), ((0.10, 0.05, 0.02), "shrinks"),
                              ((-0.1, 0, 0.1), "less favourable with size"), ((0.1, 0, -0.1), "more favourable with size"),
                              ((-0.05, -0.05, -0.05), "open")):
            with self.subTest(effects=effects):
                self.setUp()
                self.add(effects)
                self.assertEqual(self.trend()["word"], word)

    def declare(self, primary, margin=None, seeds=range(1, 9), looks=(8,)):
        os.makedirs(os.path.join(self.runs.path, "e"), exist_ok=True)
        content = {"asked": "1", "primary": primary, "steps": sorted({s for pair in primary for s in pair}),
                   "margin": margin, "looks": list(looks), "seeds": list(seeds)}
        declaration.record(declaration.path_of(self.runs.path, "e"), content, 1.0)

    def test_margin(self):
        """Stays: the interval of the slope lies within the margin."""
        self.declare([["1-1m.mla+gate", "0-1m.mla"], ["3-10m.mla+gate", "2-10m.mla"], ["5-30m.mla+gate", "4-30m.mla"]], 0.01)
        self.add((-0.05, -0.05, -0.05))
        self.assertEqual(self.trend()["word"], "stays")
        self.assertIn(f"gains with size. Intervals hold together with 95%, {stats.CONDITION}.", " ".join(self.text.split()))
        self.assertIn("corrected for 4 comparisons", self.text)

    def test_primary_needs_every_size(self):
        self.declare([["1-1m.mla+gate", "0-1m.mla"]])
        self.add((-0.1, -0.05, -0.02))
        trend = self.trend()
        self.assertTrue(trend["row"]["is_exploratory"])
        self.assertIn("corrected for 1 comparison.", self.text)

    def test_incomplete(self):
        """A declared look that is not there says nothing of the slope either."""
        self.declare([["1-1m.mla+gate", "0-1m.mla"], ["3-10m.mla+gate", "2-10m.mla"], ["5-30m.mla+gate", "4-30m.mla"]])
        self.add((-0.1, -0.05, -0.02), seeds=range(1, 5))
        self.assertEqual(self.trend()["word"], "incomplete")

    def test_controls_have_slopes(self):
        """Numbers in names differ from scale to scale; the comparison is the same."""
        names = ["mla", "mla+gate", "mla+parameters-of-{0}"]
        draw = random.Random(1)
        for i, (scale, parameters) in enumerate(SIZES.items()):
            for number, name in enumerate(names):
                for seed in range(1, 6):
                    self.runs.add("e", f"{3 * i + number}-{scale}.{name.format(3 * i + 1)}", seed,
                                  3 + (0.1 * i if number == 1 else 0) + draw.gauss(0, 0.003), baseline=f"{3 * i}-{scale}.mla",
                                  config={"FFN_HIDDEN": str(number == 2), "GATE": str(number == 1), **CONFIG},
                                  values={"parameters": parameters})
        self.trend(number=3)
        self.assertIn("effect of mla+gate against mla+parameters-of-1 with size: ", self.text)

    def test_two_seeds(self):
        self.add((-0.1, -0.05, -0.02), seeds=(1, 2))
        self.assertEqual(self.trend()["word"], "not decidable")
        self.assertIn("2 of mla+gate against mla", self.text)

    def test_other_vocabularies(self):
        """A token of 4 bytes at one size and of 3 at the others."""
        self.add((-0.1, -0.05, -0.02), bytes_per_token={"1m": 4, "10m": 3, "30m": 3})
        self.assertEqual(self.trend()["word"], "not decidable")
        self.assertIn("the sizes have other vocabularies", self.text)
        self.setUp()
        self.add((-0.1, -0.05, -0.02), bytes_per_token={"1m": 3, "10m": 3, "30m": 3})
        self.assertEqual(self.trend()["word"], "shrinks")

    def test_no_sizes(self):
        """Names of other plans are not taken for scales."""
        for step in "0-baseline", "1-score-0.1", "2-score-0.3":
            for seed in (1, 2, 3):
                self.runs.add("e", step, seed, 3.0 + seed / 100, baseline="0-baseline")
        _, text, table = self.report("e")
        self.assertEqual(table["trends"], [])
        self.assertNotIn("with size", text)

    def test_files(self):
        self.add((-0.10, -0.05, -0.02))
        self.trend()
        headings = re.findall(r'id="([^"]+)"', self.read("html", "e"))
        self.assertEqual([name for name in headings if headings.count(name) > 1], [])
        self.assertEqual([group["heading"] for group in self.data("e")["groups"]][-1], "Plots against size")
        figures = self.figures("e")
        drawn = figures["Effect against parameters"]
        self.assertEqual([s["xs"] for s in drawn["series"]], [list(SIZES.values())])
        for series in drawn["series"]:
            for low, y, high in zip(series["low"], series["ys"], series["high"]):
                self.assertTrue(low < y < high)
        self.assertEqual(drawn["places"], [[1e6, "1M"], [1e7, "10M"], [3e7, "30M"]])
        self.assertNotIn("Effect against work", figures)        # it is the same at every size here
        self.assertIn("## Effect with size", self.markdown("e"))
        self.assertIn("Effect with size", self.read("tex", "e"))
        [line] = [line for line in csv.DictReader(self.read("csv", "e").splitlines()) if line["kind"] == "trend"]
        self.assertAlmostEqual(float(line["delta"]), self.json("e")["trends"][0]["row"]["delta"]["mean"])
        status, values = self.call("values", "e")
        path = os.path.join(self.runs.path, "values.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(values)
        status, text = self.call("judge", path)
        self.assertIn("effect of mla+gate against mla with size: shrinks; +0.05", text)


if __name__ == "__main__":
    tap.main()
