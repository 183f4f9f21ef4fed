#!/usr/bin/env python3
"""Forecasts: from an experiment of sizes into the declaration of another one, and their scores."""
import json
import math
import os
import random
import statistics
import sys

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.plan import declaration
from tools.plan.kconfig import Unfit
from tools.report import forecast, stats
from tools.testing import made_up, tap

SIZES = {"1m": 1e6, "10m": 1e7, "30m": 3e7}
TARGET = 1e8
LINE = [-0.10, -0.06, -0.04]        # near a line in log10: -0.02 at the target


class Forecast(made_up.Case):
    def setUp(self):
        super().setUp()
        self.plan_directory = os.path.join(self.runs.path, "plan")
        os.makedirs(os.path.join(self.plan_directory, "0-mla"))
        program = os.path.join(self.plan_directory, "0-mla", "kablate")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho '{{\"parameters\": {TARGET:.0f}}}'\n")
        os.chmod(program, 0o755)
        self.plan = {"experiment": "big", "forecast": "e", "steps": [
            {"name": "0-mla", "baseline": "0-mla", "repeats": None, "null": None, "candidates": []},
            {"name": "1-gate", "baseline": "0-mla", "repeats": None, "null": None, "candidates": []}],
            "declaration": {"asked": "1", "primary": [["1-gate", "0-mla"]], "steps": ["0-mla", "1-gate"], "margin": None,
                            "looks": [3], "seeds": [1, 2, 3]}}

    def add(self, effects=LINE, seeds=range(1, 9), bytes_per_token=None):
        draw, self.paired = random.Random(2), {}
        for i, ((scale, parameters), effect) in enumerate(zip(SIZES.items(), effects)):
            for seed in seeds:
                base = 4 - i + draw.gauss(0, 0.05)
                self.paired[scale, seed] = own = effect + draw.gauss(0, 0.003)
                for number, (word, loss) in enumerate((("mla", base), ("gate", base + own))):
                    self.runs.add("e", f"{2 * i + number}-{scale}.{word}", seed, loss, baseline=f"{2 * i}-{scale}.mla",
                                  config={"STEP": word + scale}, weights=f"{scale}{word}{seed}", values=self.values(
                                      parameters, loss, bytes_per_token))

    def values(self, parameters, loss, bytes_per_token):
        return {"parameters": parameters, **({"val/bits_per_byte": loss / math.log(2) / bytes_per_token}
                                             if bytes_per_token else {})}

    def add_big(self, effect, bytes_per_token=None):
        draw = random.Random(3)
        for seed in (1, 2, 3):
            base = 3 + draw.gauss(0, 0.02)
            for word, loss in (("0-mla", base), ("1-gate", base + effect + draw.gauss(0, 0.002))):
                self.runs.add("big", word, seed, loss, config={"STEP": word}, weights=f"{word}{seed}", started=1e9,
                              values=self.values(TARGET, loss, bytes_per_token))

    def declare(self, now=5e8):
        self.runs.rebuild()
        path = declaration.path_of(self.runs.path, "big")
        forecast.declare(path, self.plan, self.plan_directory, self.runs.path, now)
        return declaration.read(self.runs.path, "big")

    def test_is_the_line(self):
        """The line of each seed at the target, computed here with the module statistics."""
        self.add()
        [made] = self.declare().forecast
        lines = [statistics.linear_regression([math.log10(p) for p in SIZES.values()], [self.paired[s, seed] for s in SIZES])
                 for seed in range(1, 9)]
        found = [line.slope * math.log10(TARGET) + line.intercept for line in lines]
        self.assertAlmostEqual(made["mean"], statistics.fmean(found))
        half = stats.critical(0.05, 7) * statistics.stdev(found) / math.sqrt(8)
        self.assertAlmostEqual(made["low"], statistics.fmean(found) - half)
        self.assertEqual((made["unit"], made["seeds"], made["parameters"], made["from"], made["scales"]),
                         ("nats per token", 8, TARGET, "e", list(SIZES)))

    def test_is_made_once(self):
        self.add()
        first = self.declare()
        self.runs.add("e", "0-1m.mla", 9, 3.0, baseline="0-1m.mla")
        self.add(effects=[0, 0, 0], seeds=range(11, 19))
        self.assertEqual(self.declare(6e8), first)

    def scored(self, effect, **more):
        self.add(**more)
        self.declare()
        self.add_big(effect, **more)
        _, text, _ = self.report("big")
        return text

    def test_agrees(self):
        text = self.scored(-0.02)
        self.assertIn("agrees; nearer than no effect", text)
        self.assertIn("1 forecast from e.", text)
        self.assertIn(f"contains zero. Intervals hold together with 95%, {stats.CONDITION}.", " ".join(text.split()))

    def test_is_wrong(self):
        self.assertIn("the effect is less favourable; no nearer than no effect", self.scored(0.01))
        self.setUp()
        self.assertIn("the effect is more favourable; nearer than no effect", self.scored(-0.08))

    def test_vocabularies(self):
        """In bits per byte a token of another length makes no difference."""
        self.add(bytes_per_token=3)
        [made] = self.declare().forecast
        self.assertEqual(made["unit"], "bits per byte")
        self.assertAlmostEqual(made["mean"], -0.02 / 3 / math.log(2), places=3)
        self.add_big(-0.02 / 3 * 4, bytes_per_token=4)
        self.assertIn("agrees; nearer than no effect", self.report("big")[1])

    def test_no_result_yet(self):
        self.add()
        self.declare()
        for seed in (1, 2):
            self.runs.add("big", "0-mla", seed, 3.0 + seed / 100, weights=f"a{seed}")
            self.runs.add("big", "1-gate", seed, 3.0 + seed / 90, weights=f"b{seed}")
        self.assertIn("no result yet", self.report("big")[1])

    def test_values_keep_it(self):
        self.scored(-0.02)
        path = os.path.join(self.runs.path, "values.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.call("values", "big")[1])
        self.assertIn("agrees; nearer than no effect", self.call("judge", path)[1])

    def refusal(self):
        with self.assertRaises(Unfit) as raised:
            self.declare()
        self.assertFalse(os.path.exists(declaration.path_of(self.runs.path, "big")))
        return str(raised.exception)

    def test_refusals(self):
        self.assertIn("CONFIG_FORECAST=e:", self.refusal())
        self.add(seeds=(1, 2))
        self.assertIn("with 3 seeds that all sizes have", self.refusal())
        self.add(seeds=(3, 4))
        os.remove(os.path.join(self.plan_directory, "0-mla", "kablate"))
        self.assertIn("does not say how many parameters", self.refusal())

    def test_damaged(self):
        self.add()
        self.declare()
        path = declaration.path_of(self.runs.path, "big")
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
        del entries["declarations"][0]["declared"]["forecast"][0]["sd"]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(entries, file)
        with self.assertRaisesRegex(Unfit, "damaged"):
            declaration.read(self.runs.path, "big")


if __name__ == "__main__":
    tap.main()
