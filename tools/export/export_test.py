#!/usr/bin/env python3
"""Tests of `make export` without a client: files, names, shapes, tokens.  Clients: export_soaktest."""
import array
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.export import tokenizer, weights
from tools.kablate.train_test import ENVIRONMENT, OUTPUT, ROOT, TREE, Run, program
from tools.testing import tap

FEW = {"GPT2_MAX_ITERS": 3}
CARRIED = {"modeling_kablate.py", "kablate_reference.py"}
ALWAYS = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json"}


def numbers(*values):
    return array.array("f", values).tobytes()


class Weights(unittest.TestCase):
    def test_transposed(self):
        matrix = weights.Tensor("F32", [2, 3], numbers(1, 2, 3, 4, 5, 6))
        self.assertEqual(matrix.transposed(),
                         weights.Tensor("F32", [3, 2], numbers(1, 4, 2, 5, 3, 6)))
        self.assertEqual(matrix.transposed().transposed(), matrix)

    def test_parts(self):
        matrix = weights.Tensor("F32", [2, 3], numbers(1, 2, 3, 4, 5, 6))
        left, right = matrix.parts(1, 2)
        self.assertEqual(left, weights.Tensor("F32", [2, 1], numbers(1, 4)))
        self.assertEqual(right, weights.Tensor("F32", [2, 2], numbers(2, 3, 5, 6)))
        bias = weights.Tensor("F32", [3], numbers(1, 2, 3))
        self.assertEqual([part.shape for part in bias.parts(2, 1)], [[2], [1]])

    def test_what_is_written_is_read(self):
        tensors = {"b": weights.Tensor("F32", [2], numbers(1, 2)),
                   "a": weights.Tensor("F64", [1, 1], array.array("d", [3]).tobytes())}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "x.safetensors")
            weights.write(path, tensors, {"format": "pt"})
            self.assertEqual(weights.read(path), (tensors, {"format": "pt"}))
            self.assertEqual([*pathlib.Path(directory).iterdir()], [path])

    def test_a_full_disk_leaves_nothing(self):
        tensors = {"a": weights.Tensor("F32", [1 << 16], bytes(4 << 16))}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with tempfile.TemporaryDirectory() as directory:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
            try:
                with self.assertRaises(OSError):
                    weights.write(pathlib.Path(directory, "x.safetensors"), tensors, {})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            self.assertEqual(os.listdir(directory), [])


class Tokenizers(unittest.TestCase):
    def test_merges_have_our_ids(self):
        told, end = tokenizer.of_merges("#version: 0.2\nt h\nth e\n\u0120 a\n")
        vocabulary = told["model"]["vocab"]
        self.assertEqual((vocabulary["!"], vocabulary["th"], vocabulary["the"]), (0, 256, 257))
        self.assertEqual((vocabulary["\u0120a"], end), (258, 259))
        self.assertEqual(told["model"]["merges"][1], ["th", "e"])
        self.assertEqual(told["added_tokens"][0]["id"], 259)

    def test_bytes_stand_for_themselves(self):
        told, end = tokenizer.of_bytes()
        self.assertEqual((told["model"]["vocab"]["A"], told["model"]["vocab"]["\u0120"], end),
                         (65, 32, 256))

    def test_characters(self):
        told, end = tokenizer.of_characters('{"characters": [10, 233], "end_of_text": true}')
        self.assertEqual(told["model"]["vocab"], {"\n": 0, "\u00e9": 1, tokenizer.END: 2})
        self.assertEqual(end, 2)
        with self.assertRaises(tokenizer.Unfit):
            tokenizer.of_characters('{"characters": [1114367], "end_of_text": false}')


class UnknownVariant(unittest.TestCase):
    """A variant that the exported code does not compute is refused before anything is written."""

    def refusal(self, mechanisms=(), **chosen):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory, "kablate")
            answer = {"config": {"attn": "dot", "ffn": "gelu", "pos": "none"} | chosen, "mechanisms": list(mechanisms)}
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
            program.chmod(0o755)
            done = subprocess.run([sys.executable, "-m", "tools.export.export", program, "weights",
                                   f"{directory}/out"], cwd=TREE, capture_output=True, text=True)
            self.assertEqual((done.returncode, os.listdir(directory)), (1, ["kablate"]))
        return done.stderr

    def test_by_name(self):
        end = ": the exported code does not compute it; add it to tools/reference/model.py first\n"
        self.assertEqual(self.refusal(attn="cos"), "export: CONFIG_ATTENTION=cos" + end)
        self.assertEqual(self.refusal(ffn="relu2"), "export: CONFIG_FFN=relu2" + end)
        self.assertEqual(self.refusal(pos="steps"), "export: CONFIG_POS=steps" + end)
        self.assertEqual(self.refusal(mechanisms=["RA_MLA_MLP_ATTN_GATE", "MY_MEMORY"]),
                         "export: CONFIG_MY_MEMORY=y" + end)
        self.assertIn("CONFIG_MODEL_DECODER=y: the model rebuilds rows", self.refusal(decoder=True))


class Export(unittest.TestCase):
    def export(self, *arguments, **settings):
        run = Run(program(*arguments, **FEW, **settings))
        run.train()
        directory = pathlib.Path(tempfile.mkdtemp(dir=ROOT), "exported")
        done = subprocess.run(["make", f"O={OUTPUT}", f"RUNS={run.runs}", "export",
                               f"RUN={run.directory}", f"OUT={directory}"], cwd=TREE,
                              env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        config = json.loads((directory / "config.json").read_text())
        self.assertIn(config["architectures"][0], done.stdout)
        tensors, about = weights.read(directory / "model.safetensors")
        self.assertEqual((about["format"], about["identity"]), ("pt", run.identity))
        return {path.name for path in directory.iterdir()}, config, tensors, run

    def test_gpt2(self):
        files, config, tensors, run = self.export("smoke+dot", MODEL_BIAS="n")
        self.assertEqual(files, ALWAYS)
        self.assertEqual((config["model_type"], config["vocab_size"], config["n_inner"]),
                         ("gpt2", 256, 128))
        self.assertEqual(tensors["transformer.h.1.attn.c_attn.weight"].shape, [32, 96])
        self.assertEqual(tensors["transformer.h.1.attn.c_attn.bias"].data, bytes(4 * 96))
        self.assertFalse([name for name in tensors if "biasbias" in name])
        own, _ = weights.read(run.directory / "weights.safetensors")
        self.assertEqual(len(tensors), len(own) + 2 * 6 + 1)

    def test_llama(self):
        files, config, tensors, run = self.export(
            "smoke+dot", POS="rope", NORM="rms", FFN="swiglu", ATTENTION_KV_HEADS=1, MODEL_BIAS="n")
        self.assertEqual(files, ALWAYS)
        self.assertEqual((config["model_type"], config["num_key_value_heads"]), ("llama", 1))
        self.assertEqual(tensors["model.layers.0.self_attn.k_proj.weight"].shape, [16, 32])
        own, _ = weights.read(run.directory / "weights.safetensors")
        self.assertEqual(tensors["model.layers.1.mlp.gate_proj.weight"],
                         own["h.1.mlp.w3.weight"].transposed())
        self.assertEqual(sum(len(t.data) for t in tensors.values()),
                         sum(len(t.data) for t in own.values()))

    def test_our_own(self):
        files, config, tensors, run = self.export("smoke+mla+gate+cross+latent")
        self.assertEqual(files, ALWAYS | CARRIED)
        self.assertEqual(config["auto_map"]["AutoModelForCausalLM"],
                         "modeling_kablate.KablateForCausalLM")
        self.assertEqual((config["reference"]["attn"], config["reference"]["latent"],
                          config["reference"]["attn_gate"]), ("mla", 8, True))
        self.assertEqual(tensors, weights.read(run.directory / "weights.safetensors")[0])


if __name__ == "__main__":
    tap.main()
