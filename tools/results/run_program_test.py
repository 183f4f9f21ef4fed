#!/usr/bin/env python3
"""Tests of `make generate`: tasks are sampled, by the program that the run's record describes.

Three tasks here, all others in run_program_longtest.py.
"""
import json
import re
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate.train_test import ENVIRONMENT, OUTPUT, ROOT, SETTINGS, TREE, Run, Tree, program
from tools.testing import tap

FEW = {"GPT2_MAX_ITERS": 3}
# What may stand in a sample of each task.
ALPHABET = {
    "language": r"(DOC|FACT|ASK|OPEN|CLOSE|COPY|END|(tag|name|value|w)\d+)"
                r"(/(choice|recall|nesting|copying))?",
    "copy": r"\d+",
    "mqar": r"_|[kv]\d+",
    "recall": r"[kv]\d+",
    "noisy": r"[kvx]\d+",
    "fuzzy": r"[kv]\d+",
    "memorization": r"\?|[kv]\d+",
    "selective": r"_|>|\d+",
}


def generate(run, *words, expect=0, runs=None):
    """make generate, as a user calls it; there is no .config."""
    done = subprocess.run(["make", f"O={OUTPUT}", f"RUNS={runs or run.runs}",
                           f"KCONFIG_CONFIG={ROOT}/none", "generate", *words], cwd=TREE,
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    if (done.returncode != 0) != (expect != 0):
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if expect == 0 else done.stderr


class Tasks(unittest.TestCase):
    tasks = ("language", "copy", "selective")

    def test_samples(self):
        for task in self.tasks:
            with self.subTest(task=task):
                alphabet = ALPHABET[task]
                run = Run(program(f"smoke+task-{task}", **FEW))
                run.train()
                text = generate(run, f"RUN={run.directory}", "N=12")
                prompt, _, sample = text.partition(" | ")
                self.assertEqual(len(sample.split()), 12)
                for word in prompt.split() + sample.split():
                    self.assertRegex(word, f"^({alphabet})$")
                again = generate(run, f"RUN={run.identity[:10]}", "N=12", f"PROMPT={prompt}")
                self.assertEqual(again, text)
                # What was recorded at the end is what such a prompt brings.
                kept = dict(run.ask("SELECT kind, text FROM events"))
                self.assertEqual(kept["prompt"].split(), prompt.split())
                self.assertEqual(kept["sample"].split()[:12], sample.split())


class Generate(unittest.TestCase):
    def test_text(self):
        corpus = ROOT / "corpus.txt"
        corpus.write_text("It was a dark and stormy night; the rain cost $5 in `torrents`. " * 60)
        tree = Tree(ROOT / "text", "smoke", {**SETTINGS, **FEW, "TASK": "text", "TOKENIZER": "char",
                                             "DATA_TEXT": corpus,
                                             "DATA_TRAIN": f"{ROOT}/chars/train-*.bin",
                                             "DATA_VALID": f"{ROOT}/chars/valid-*.bin"})
        tree.make("data")
        tree.make("runs")
        text = generate(None, "RUN=smoke/0", "N=20", "PROMPT=It was", runs=tree.runs)
        self.assertTrue(text.startswith("It was"))
        self.assertEqual(len(text), len("It was") + 20 + 1)
        self.assertLessEqual(set(text), set(corpus.read_text() + "\n"))
        prompt = "the rain cost $5 in `torrents`"
        text = generate(None, "RUN=smoke/0", "N=9", f"PROMPT={prompt}", runs=tree.runs)
        self.assertTrue(text.startswith(prompt), text)
        self.assertTrue(generate(None, "RUN=smoke/0", "N=5", "PROMPT=", runs=tree.runs).strip())
        self.assertIn("U+00E9", generate(None, "RUN=smoke/0", "PROMPT=é", runs=tree.runs, expect=1))

    def test_a_configuration_of_an_older_version(self):
        """It lacks a symbol that is new."""
        run = Run(program(**FEW))
        run.train()
        text = generate(run, f"RUN={run.directory}", "N=12")
        config = OUTPUT / "of-run" / run.identity[:12] / "config"
        config.write_text(re.sub("^CONFIG_SLURM_GPUS=.*\n", "", config.read_text(), flags=re.M))
        self.assertEqual(generate(run, f"RUN={run.directory}", "N=12"), text)
        self.assertIn("CONFIG_SLURM_GPUS", config.read_text())

    def test_a_record_from_elsewhere(self):
        """It is data: nothing in it becomes a command, or a path outside of the build."""
        run = Run(program(**FEW))
        run.train()
        place = ROOT / "from a colleague's"
        shutil.copytree(run.directory, place)
        self.assertTrue(generate(run, f"RUN={place}", "N=3").strip())
        record, trap = json.loads((place / "run.json").read_text()), ROOT / "trap"
        for change in ({"identity": f"$(shell touch {trap})"}, {"identity": f"$$(touch {trap})"},
                       {"identity": f"../../{'x' * 58}"}, {"identity": f"0;touch {trap}"},
                       {"config": {**record["config"], f"A$(shell touch {trap})": "1"}},
                       {"config": {**record["config"], "TASK": f"$(shell touch {trap})"}},
                       {"config": {**record["config"], "DATA_TEXT": f"x\nCONFIG_A=$(shell touch {trap})"}}):
            (place / "run.json").write_text(json.dumps({**record, **change}))
            said = generate(run, f"RUN={place}", expect=1)
            self.assertRegex(said, "expected 64 hexadecimal digits|no symbol|one line of text|does not fit")
            self.assertFalse(trap.exists(), change)
            named = re.compile("[0-9a-f]{12}")      # (tests beside this one build there, too)
            self.assertEqual([path.name for path in (OUTPUT / "of-run").iterdir() if not named.fullmatch(path.name)], [])
        self.assertTrue(generate(run, f"RUN={run.directory}", "N=3").strip())     # it is not the worse for it

    def test_questions(self):
        run = Run(program(**FEW))
        run.train()
        self.assertIn("which run?", generate(run, expect=1))
        self.assertIn("no such experiment", generate(run, "RUN=nowhere/1", expect=1))
        self.assertIn("'w1000' is not a token of the task language",
                      generate(run, f"RUN={run.directory}", "PROMPT=DOC w1000", expect=1))
        record = run.directory / "run.json"
        symbols = json.loads(record.read_text())
        symbols["config"]["NO_SUCH_SYMBOL"] = "1"
        symbols["identity"] = "0" * 64
        record.write_text(json.dumps(symbols))
        self.assertRegex(generate(run, f"RUN={run.directory}", expect=1),
                         "does not fit this version of kablate:\n.*NO_SUCH_SYMBOL")
        (run.directory / "weights.safetensors").unlink()
        self.assertIn("has the run ended?", generate(run, f"RUN={run.directory}", expect=1))

    def test_help(self):
        for words in (["--help"], ["generate", "--help"], ["train", "-h"]):
            done = subprocess.run([program(**FEW), *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(re.search("--prompt TEXT", done.stdout))


if __name__ == "__main__":
    tap.main()
