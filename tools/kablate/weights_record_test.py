#!/usr/bin/env python3
"""Tests of what a weights file says about its model: no program takes it for another one's."""
import json
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.kablate.train_test import ROOT, SETTINGS, TREE, Run, Tree, program
from tools.testing import tap


def header_of(data):
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def metadata_of(path):
    return header_of(path.read_bytes())[0]["__metadata__"]


def forget_record(path, copy):
    """The same tensors in a file that says nothing about them."""
    header, data = header_of(path.read_bytes())
    del header["__metadata__"]
    text = json.dumps(header).encode()
    copy.write_bytes(len(text).to_bytes(8, "little") + text + data)


class OtherWeights(unittest.TestCase):
    """A loss is that of the weights' own model, or there is none."""
    few = {"GPT2_MAX_ITERS": 3}

    def ask(self, binary, *words, expect=0):
        done = subprocess.run([binary, *words], cwd=TREE, capture_output=True, text=True)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def test_only_weights_of_the_same_model_are_evaluated(self):
        rope = Run(program(POS="rope", **self.few))
        rope.train()
        weights = rope.directory / "weights.safetensors"
        answer = json.loads(self.ask(rope.binary, "evaluate", "--json", "--weights", weights))
        self.assertEqual(answer["identity"], rope.identity)
        self.assertIs(answer["foreign"], False)
        self.assertAlmostEqual(answer["lengths"][0]["loss"], rope.values("val/loss")[3], places=5)
        other = program(POS="alibi", **self.few)
        for command in ("evaluate", "generate"):
            text = self.ask(other, command, "--weights", weights, expect=1)
            self.assertIn("CONFIG_POS is rope there and alibi here", text)
        # What training alone needs may differ.
        drop = program(POS="rope", DROPOUT="0.1", **self.few)
        again = json.loads(self.ask(drop, "evaluate", "--json", "--weights", weights))
        self.assertEqual(again, answer)

        foreign = ROOT / "foreign.safetensors"
        forget_record(weights, foreign)
        done = subprocess.run([rope.binary, "evaluate", "--weights", foreign], cwd=TREE,
                              capture_output=True, text=True, check=True)
        self.assertIn("does not name its model", done.stderr)
        self.assertIn("foreign weights", done.stdout)
        unsure = json.loads(self.ask(rope.binary, "evaluate", "--json", "--weights", foreign))
        self.assertEqual(unsure, {**answer, "foreign": True, "identity": None})
        learned = program(POS="learned", **self.few)
        self.assertIn("lacks 'wpe.weight', which this model has",
                      self.ask(learned, "evaluate", "--weights", foreign, expect=1))
        gated = Run(program("smoke+mla+gate", **self.few))
        gated.train()
        forget_record(gated.directory / "weights.safetensors", foreign)
        self.assertRegex(self.ask(program("smoke+mla", **self.few), "evaluate", "--weights",
                                  foreign, expect=1), r"has '\S+', which this model lacks\n")

    def test_foreign_weights_may_begin_a_run(self):
        run = Run(program(POS="rope", **self.few))
        run.train()
        start = ROOT / "foreign-start.safetensors"
        forget_record(run.directory / "weights.safetensors", start)
        tuned = Run(program(POS="rope", INIT_FROM=start, **self.few))
        self.assertIn("does not name its model", tuned.train())
        self.assertEqual(tuned.values("val/loss")[0], run.values("val/loss")[3])

    def test_tokens_mean_the_same(self):
        """Two vocabularies of the same size are not the same vocabulary."""
        binaries, weights = [], None
        for name, letters in (("abc", "abcd \n"), ("xyz", "wxyz \n")):
            text = ROOT / f"{name}.txt"
            text.write_text("".join(letters[i * i % 6] for i in range(4000)))
            tree = Tree(ROOT / name, "smoke",
                        {**SETTINGS, **self.few, "TASK": "text", "TOKENIZER": "char",
                         "DATA_TEXT": text, "DATA_TRAIN": f"{ROOT}/{name}-data/train-*.bin",
                         "DATA_VALID": f"{ROOT}/{name}-data/valid-*.bin"})
            tree.make("data")
            tree.make("runs")
            binaries.append(tree.plan / "0-baseline/kablate")
            weights = weights or next(tree.runs.glob("*/*/weights.safetensors"))
        self.assertIn("tokenizer", metadata_of(weights))
        self.ask(binaries[0], "evaluate", "--weights", weights)
        self.assertRegex(self.ask(binaries[1], "evaluate", "--weights", weights, expect=1),
                         r"is of another model: tokenizer is [0-9a-f]{64} there and [0-9a-f]{64} here")

    def test_checkpoints_and_best_weights_carry_the_record_too(self):
        run = Run(program(POS="rope", CHECKPOINT_INTERVAL=2, EVAL_INTERVAL=2, **self.few))
        run.train()
        files = [run.directory / "best.safetensors",
                 *run.directory.glob("checkpoint-*/weights.safetensors")]
        self.assertGreater(len(files), 1)
        for path in files:
            self.assertEqual(metadata_of(path)["identity"], run.identity)
            self.assertEqual(metadata_of(path)["CONFIG_POS"], "rope")
        # The recorded hash is of the parameters, whatever the file says about them.
        again = Run(run.binary)
        again.command += ["--repeat", "1"]
        again.train()
        self.assertEqual(again.weights(), run.weights())


if __name__ == "__main__":
    tap.main()
