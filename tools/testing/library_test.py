#!/usr/bin/env python3
"""A program loads only the libraries of its own build, also in a copied tree."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from tools.testing import as_user, tap

# Stands for the GPU backend: it opens nothing and says so.
BACKEND = """
#include <stdio.h>
#include "core/util/status.h"
enum status cuda_backend_open(void *b, int precision, int device, int replicas, size_t bytes, struct error *err);
enum status cuda_backend_open(void *b, int precision, int device, int replicas, size_t bytes, struct error *err)
{
	(void)b, (void)precision, (void)device, (void)replicas, (void)bytes;
	snprintf(err->text, sizeof(err->text), "the backend of the copy");
	return FAIL;
}
"""


class Copied(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kablate-copy-")
        self.addCleanup(directory.cleanup)
        self.build = pathlib.Path(directory.name, "build")
        self.program = self.build / "bin/check_vector"
        self.program.parent.mkdir(parents=True)
        shutil.copy(as_user.BUILD / "bin/check_vector", self.program)

    def make_library(self, *sources, build_id=""):
        subprocess.run([*os.environ.get("CC", "gcc").split(), "-shared", "-fPIC", "-I.", f'-DBUILD_ID="{build_id}"',
                        "-x", "c", "-", *sources, "-o", self.build / "kablate_cuda.so"],
                       input=BACKEND, text=True, check=True, cwd=as_user.ROOT)

    def said(self):
        done = subprocess.run([self.program, "--backend", "cuda", "models/vectors/all.safetensors"],
                              cwd=as_user.ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        return done.stderr

    def test_its_own_library(self):
        self.assertIn("this build has no GPU backend", self.said())    # whatever the other tree has
        self.make_library("core/util/build_id.c", build_id=(as_user.BUILD / "build-id").read_text().strip())
        self.assertIn("the backend of the copy", self.said())
        shutil.move(self.build / "kablate_cuda.so", self.build / "bin")
        self.assertIn("the backend of the copy", self.said())      # a library beside the program
        shutil.move(self.build / "bin/kablate_cuda.so", self.build)
        shutil.move(self.build, self.build.with_name("moved"))
        self.program = self.build.with_name("moved") / "bin/check_vector"
        self.assertIn("the backend of the copy", self.said())

    def test_a_library_of_another_build(self):
        for sources in ((), ("core/util/build_id.c",)):
            self.make_library(*sources, build_id="0" * 64)
            self.assertIn(f"the GPU backend cannot be loaded: {self.program.parent}/../kablate_cuda.so was built from "
                          "other sources than this program: remove it, then make", self.said())

    def test_a_broken_library(self):
        (self.build / "kablate_cuda.so").write_text("no library")
        self.assertIn("the GPU backend cannot be loaded: ", self.said())


class BuildId(unittest.TestCase):
    def test_it_follows_the_sources(self):
        """Of core/ alone, without tests."""
        directory = tempfile.TemporaryDirectory(prefix="kablate-copy-")
        self.addCleanup(directory.cleanup)
        tree = pathlib.Path(directory.name, "tree")
        shutil.copytree(as_user.ROOT, tree, ignore=lambda at, names: [
            name for name in names if at == str(as_user.ROOT) and name.startswith((".", "build", "runs"))])

        def id_after_change(*names):
            for name in names:
                with open(tree / name, "a", encoding="utf-8") as file:
                    file.write("\n")
            subprocess.run(["make", "-s", "build/build-id"], cwd=tree, env=as_user.environment(), check=True)
            return (tree / "build/build-id").read_text()

        last = id_after_change("core/util/rng_test.c", "models/transformer.c")
        self.assertEqual(last, (as_user.BUILD / "build-id").read_text())
        for name in ("core/util/rng.c", "core/engine/backend.h", "core/backend/cuda/backend.cu"):
            last, before = id_after_change(name), last
            self.assertNotEqual(last, before, name)


if __name__ == "__main__":
    tap.main()
