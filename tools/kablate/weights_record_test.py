#!/usr/bin/env python3
"""Tests of what a weights file says about its model: no program takes it for another one's."""
import hashlib
import json
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate.train_test import ENVIRONMENT, OUTPUT, ROOT, SETTINGS, TREE, Run, Tree, program
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


def without(path, *keys, **more):
    """Removes these words of the metadata, and puts others there."""
    header, data = header_of(path.read_bytes())
    for key in keys:
        del header["__metadata__"][key]
    header["__metadata__"].update(more)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class DamagedWeights(unittest.TestCase):
    """Every command that reads weights refuses those that are not as the run wrote them."""

    def setUp(self):
        self.run = Run(program(GPT2_MAX_ITERS=3, EVAL_INTERVAL=2))
        self.run.train()
        self.weights = self.run.directory / "weights.safetensors"

    def refused(self, reason, path=None):
        path = path or self.weights
        for command in ("evaluate", "generate", "reference"):
            done = subprocess.run([self.run.binary, command, "--weights", path], cwd=TREE,
                                  capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, f"kablate: {path}: {reason}")
        if path == self.weights:
            out = self.run.runs / "exported"
            done = subprocess.run(["make", f"O={OUTPUT}", f"RUNS={self.run.runs}", "export",
                                   f"RUN={self.run.directory}", f"OUT={out}"], cwd=TREE,
                                  env=ENVIRONMENT, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, f"kablate: {path}: {reason}")
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse(out.exists())

    def test_the_hash_is_of_the_file_with_zeros_for_it(self):
        for path in (self.weights, self.run.directory / "best.safetensors"):
            stated = metadata_of(path)["file_sha256"]
            zeros = path.read_bytes().replace(stated.encode(), b"0" * 64)
            self.assertEqual(hashlib.sha256(zeros).hexdigest(), stated)

    def test_one_changed_byte(self):
        for path in (self.weights, self.run.directory / "best.safetensors"):
            whole = path.read_bytes()
            for place in (whole.index(b"identity") + 14, -5):
                damaged = bytearray(whole)
                damaged[place] ^= 1
                path.write_bytes(damaged)
                self.refused("it is damaged: it has another SHA-256 than it states", path)
            path.write_bytes(whole)

    def test_one_changed_byte_of_an_older_file(self):
        """It states no hash, but the journal has one of its parameters."""
        without(self.weights, "file_sha256")
        subprocess.run([self.run.binary, "evaluate", "--weights", self.weights], cwd=TREE, check=True,
                       capture_output=True)
        damaged = bytearray(self.weights.read_bytes())
        damaged[-5] ^= 1
        self.weights.write_bytes(damaged)
        self.refused("these are not the weights that the run recorded")

    def test_weights_of_another_run(self):
        other = Run(self.run.binary, seed=2)
        other.train()
        shutil.copy(other.directory / "weights.safetensors", self.weights)
        self.refused("these are not the weights that the run recorded")

    def test_an_identity_that_is_none(self):
        """It is printed, also inside JSON."""
        copy = self.run.runs / "copy.safetensors"
        shutil.copy(self.weights, copy)
        without(copy, "file_sha256", identity='\x1b[2J", "foreign": true, "x": "')
        self.refused(r"it is damaged: identity '\?\[2J\", \"foreign\": true, \"x\": \"': expected 64 hexadecimal", copy)

    def test_notes_hold_no_escape_sequences(self):
        """Also those about names of files."""
        copy = self.run.runs / "a\x1b[2Jb.safetensors"
        forget_record(self.weights, copy)
        done = subprocess.run([self.run.binary, "evaluate", "--weights", copy], cwd=TREE, capture_output=True, text=True)
        self.assertIn("a?[2Jb.safetensors does not name its model", done.stderr)

    def test_numbers_that_are_none(self):
        without(self.weights, "file_sha256")
        whole = self.weights.read_bytes()
        for bits, name in ((0x7fc00000, "NaN"), (0xff800000, "infinity")):
            self.weights.write_bytes(whole[:-4] + bits.to_bytes(4, "little"))
            self.refused(f"'[a-z0-9_.]+' holds {name}: these weights cannot be used")


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
