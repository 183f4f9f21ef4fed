#!/usr/bin/env python3
"""Hold core/safetensors against the safetensors package: each must read what the other wrote.

Makes an environment of its own with that package.  The C side is core/safetensors_test, which
copies a file through our reader and writer.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

COPY = pathlib.Path(os.environ.get("O", "build"), "core/util/safetensors_test")
PACKAGES = ["safetensors", "numpy"]


def in_environment(directory):
    """Run this file again with an interpreter that has the packages."""
    venv.create(directory, with_pip=True)
    python = pathlib.Path(directory, "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return subprocess.run([python, __file__, "inside"]).returncode


def random_tensors(numpy):
    rng = numpy.random.default_rng(1)
    kinds = ["bool", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "f8", "i8", "u8"]
    shapes = [(), (3,), (2, 0), (5, 7), (2, 3, 4), (1, 2, 1, 3)]
    tensors = {}
    for kind in kinds:
        for i, shape in enumerate(shapes):
            values = rng.integers(0, 2 if kind == "bool" else 100, shape)
            tensors[f"{kind}.{i}.ü\"\\"] = numpy.asarray(values).astype(kind)
    return tensors


def check_copies():
    import numpy
    import safetensors
    import safetensors.numpy

    tensors = random_tensors(numpy)
    metadata = {"format": "pt", "config": '{"a": "\\n\\"", "é": [1]}', "empty": ""}
    with tempfile.TemporaryDirectory() as directory:
        theirs, ours = f"{directory}/theirs", f"{directory}/ours"
        safetensors.numpy.save_file(tensors, theirs, metadata)
        subprocess.run([COPY, "copy", theirs, ours], check=True)
        loaded = safetensors.numpy.load_file(ours)
        with safetensors.safe_open(ours, "numpy") as file:
            same_metadata = file.metadata() == metadata
        same = loaded.keys() == tensors.keys() and all(
            loaded[name].dtype == t.dtype and loaded[name].shape == t.shape
            and loaded[name].tobytes() == t.tobytes() for name, t in tensors.items())
        no_metadata = copies_without_metadata(safetensors, numpy, directory)
    return {"tensors of every type and shape survive a copy": same,
            "metadata survives a copy": same_metadata,
            "a file without metadata stays without": no_metadata}


def copies_without_metadata(safetensors, numpy, directory):
    theirs, ours = f"{directory}/plain", f"{directory}/plain-copy"
    safetensors.numpy.save_file({"x": numpy.zeros(3)}, theirs)
    subprocess.run([COPY, "copy", theirs, ours], check=True)
    with safetensors.safe_open(ours, "numpy") as file:
        return file.metadata() is None and list(file.keys()) == ["x"]


def main():
    if sys.argv[1:] != ["inside"]:
        with tempfile.TemporaryDirectory() as directory:
            return in_environment(directory)
    results = check_copies()
    for name, good in results.items():
        print("ok" if good else "not ok", name)
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
