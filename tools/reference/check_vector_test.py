#!/usr/bin/env python3
"""check_vector as its users see it: what it prints and how it exits."""
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

from tools.plan import kconfig
from tools.testing import tap

BUILD = os.environ.get("O", "build")
PROGRAM = pathlib.Path(BUILD, "bin/check_vector")
VECTORS = pathlib.Path("models/vectors")


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


def changed(path, tensor, offset):
    """The bytes of a vector with `offset` added to the first entry of an F64 tensor."""
    data = bytearray(path.read_bytes())
    size, = struct.unpack_from("<Q", data)
    begin = 8 + size + json.loads(data[8:8 + size])[tensor]["data_offsets"][0]
    struct.pack_into("<d", data, begin, struct.unpack_from("<d", data, begin)[0] + offset)
    return bytes(data)


class Fields(unittest.TestCase):
    def test_every_field_is_in_the_table(self):
        """The Makefile makes a table for C of the reference's fields, and each has a symbol of Kconfig."""
        source = pathlib.Path("tools/reference/model.py").read_text(encoding="utf-8")
        names = re.findall(r"^    (\w+): ", source.split("class Config:")[1].split("@property")[0], re.M)
        table = pathlib.Path(BUILD, "generated/reference_fields.h").read_text(encoding="utf-8")
        found = dict(re.findall(r'{ "(\w+)", FIELD_[A-Z]+, "[^"]+", "(\w+)" },\n', table))
        tree = kconfig.Tree()
        self.assertEqual(list(found), names)
        self.assertEqual([symbol for symbol in found.values() if tree.find(symbol) is None], [])


class CheckVector(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.file = pathlib.Path(directory.name, "file")

    def test_agreement(self):
        done = run(VECTORS / "all.safetensors", VECTORS / "w2.safetensors")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for kind in "logits", "loss", "gradient":
            self.assertEqual(done.stdout.count(f"  f64  {kind} "), 2)
            self.assertEqual(done.stdout.count(f"  f32  {kind} "), 2)
        self.assertIn("2 of 2 vectors agree\n", done.stdout)
        self.assertNotIn("EXCEEDED", done.stdout)

    def test_near_tie(self):
        done = run(VECTORS / "cross-near-tie.safetensors")
        self.assertEqual(done.returncode, 0)
        self.assertIn("f32  a routing choice is nearly tied: judged in double only", done.stdout)

    def test_difference(self):
        cases = {"logits": "logits", "main": "loss", "grad.h.0.ln_2.bias": "gradient"}
        for tensor, kind in cases.items():
            self.file.write_bytes(changed(VECTORS / "all.safetensors", tensor, 1e-6))
            done = run(self.file, VECTORS / "all.safetensors")
            self.assertEqual(done.returncode, 1)
            exceeded = [line.split()[:2] for line in done.stdout.splitlines() if "EXCEEDED" in line]
            self.assertEqual(exceeded, [["f64", kind]])
            self.assertIn("1 of 2 vectors agree\n", done.stdout)

    def test_unusable(self):
        self.file.write_bytes(b"no vector")
        for path, reason in (self.file, str(self.file)), ("nowhere", "No such file"):
            done = run(path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(reason, done.stderr)

    def test_not_expressible(self):
        data = (VECTORS / "dot.safetensors").read_bytes()
        self.file.write_bytes(data.replace(b'\\"ffn\\": \\"gelu\\"', b'\\"ffn\\": \\"relu\\"'))
        done = run(self.file)
        self.assertEqual(done.returncode, 1)
        self.assertIn("'relu' is not part of this program", done.stderr)

    def test_usage(self):
        self.assertEqual(run("--help").returncode, 0)
        self.assertIn("Example:", run("--help").stdout)
        vector = VECTORS / "dot.safetensors"
        for arguments in (), ("--nonsense", vector), ("--export", "x", vector, vector), \
                ("--export", "x", "--weights", "y", vector):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("--help", done.stderr)

    def test_exported_weights(self):
        vector = VECTORS / "all-ws.safetensors"
        self.assertEqual(run("--export", self.file, vector).returncode, 0)
        exceeded = [line for line in run("--weights", self.file, vector).stdout.splitlines()
                    if "f32" in line and "EXCEEDED" in line]
        self.assertEqual(exceeded, [])   # in double, weights rounded to float are other weights
        done = run("--weights", self.file, VECTORS / "gate.safetensors")
        self.assertEqual(done.returncode, 1)
        self.assertIn("which this model lacks", done.stderr)
        done = run("--export", "/nonexistent/file", vector)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/file", done.stderr)

    def test_make_target(self):
        make = ["make", f"O={BUILD}", "check-vector"]
        given = make + ["VECTOR=models/vectors/dot.safetensors"]
        done = subprocess.run(given, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 of 1 vectors agree", done.stdout)
        done = subprocess.run(make, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("VECTOR=", done.stderr)


if __name__ == "__main__":
    tap.main()
