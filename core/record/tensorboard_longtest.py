#!/usr/bin/env python3
"""Have TensorBoard itself read what core/tensorboard wrote.

Makes an environment of its own with that package.  The C side is core/tensorboard_test: a run
that was killed at iteration 57 after a checkpoint at 40, and resumed.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

WRITER = pathlib.Path(os.environ.get("O", "build"), "core/record/tensorboard_test")
PACKAGES = ["tensorboard", "setuptools<81"]  # tensorboard imports pkg_resources


def in_environment(directory):
    """Run this file again with an interpreter that has the packages."""
    venv.create(directory, with_pip=True)
    python = pathlib.Path(directory, "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return subprocess.run([python, __file__, "inside"]).returncode


def read_as_tensorboard(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(directory, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]}


def read_as_server(directory):
    """Through the multiplexer of runs that the web server is built on."""
    from tensorboard.backend.event_processing import plugin_event_multiplexer

    runs = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
    runs.AddRunsFromDirectory(directory)
    runs.Reload()
    return {tag: [e.step for e in runs.Tensors(".", tag)]
            for tag in runs.GetAccumulator(".").Tags()["tensors"]}


def cut_last_file(directory):
    """As a kill in the middle of a record leaves it."""
    last = sorted(pathlib.Path(directory).iterdir())[-1]
    os.truncate(last, last.stat().st_size - 7)


def close(points, expected):
    return [p[0] for p in points] == [e[0] for e in expected] and all(
        abs(p[1] - e[1]) <= 1e-6 * abs(e[1]) for p, e in zip(points, expected))  # floats


def check_files():
    loss = [(i, 1 / (1 + i)) for i in range(101)]
    validation = [(i, float(i)) for i in range(0, 101, 10)]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([WRITER, "write", directory], check=True)
        read = read_as_tensorboard(directory)
        steps = read_as_server(directory)
        cut_last_file(directory)
        torn = read_as_tensorboard(directory)
    return {"the tags": sorted(read) == ["train/loss", "validation/loss"],
            "every point once, those after the checkpoint from the resumed run":
                close(read["train/loss"], loss),
            "a tag that is told less often": close(read["validation/loss"], validation),
            "the same steps through the multiplexer of runs":
                steps == {tag: [p[0] for p in read[tag]] for tag in read},
            "a file whose last record is torn":
                close(torn["train/loss"], loss)
                and close(torn["validation/loss"], validation[:-1])}


def inside():
    results = check_files()
    for name, passed in results.items():
        print("ok" if passed else "not ok", name)
    return not all(results.values())


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        sys.exit(inside())
    with tempfile.TemporaryDirectory() as place:
        sys.exit(in_environment(place))
