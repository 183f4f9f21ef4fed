#!/usr/bin/env python3
"""Event files that `make export-tensorboard` writes, read back by the rules of their format."""
import contextlib
import io
import pathlib
import shutil
import struct
import sys
import types
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.export import tensorboard, trackers
from tools.results import notes
from tools.testing import tap
from tools.testing.made_up import Runs


def events(path):
    """The data of every record; its checksums must hold."""
    data = path.read_bytes()
    while data:
        head, (length, head_sum) = data[:8], struct.unpack("<QI", data[:12])
        body, (body_sum,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        assert head_sum == tensorboard.masked_crc(head) and body_sum == tensorboard.masked_crc(body)
        yield body
        data = data[16 + length:]


class Export(unittest.TestCase):
    def setUp(self):
        self.runs = Runs()
        self.addCleanup(shutil.rmtree, self.runs.path)
        for step, norm in (("0-layer", "layer"), ("1-rms", "rms")):
            self.runs.add("e", step, 1, 3.0, config={"NORM": norm}, values={"grad_norm/h.0": 0.5})
        self.runs.rebuild()
        notes.write(self.runs.path, "e", notes.Note(["norm"], "a note"))
        self.place = pathlib.Path(self.runs.path, "out")

    def call(self, form):
        with contextlib.redirect_stdout(io.StringIO()):
            trackers.main(["--runs", self.runs.path, form, "e", str(self.place)])

    def test_tensorboard(self):
        self.call("tensorboard")
        self.call("tensorboard")    # replaces the first
        directories = sorted(self.place.iterdir())
        self.assertEqual([path.name[:8] for path in directories], ["0-layer-", "1-rms-1-"])
        path, = directories[1].iterdir()
        found = [*events(path)]
        self.assertIn(b"brain.Event:2", found[0])
        start = next(event for event in found if b"_hparams_/session_start_info" in event)
        for part in (b"NORM", tensorboard.inside(3, "rms"), tensorboard.inside(4, "1-rms"), b"seed", b"hparams"):
            self.assertIn(part, start)
        self.assertIn(b"|NORM|rms|", next(event for event in found if b"configuration/text_summary" in event))
        self.assertTrue(any(b"Tags: norm" in event for event in found))
        self.assertTrue(any(b"grad_norm/h.0" in event and tensorboard.single(2, 0.5) in event for event in found))
        self.assertIn(b"_hparams_/session_end_info", found[-1])

    def test_values_beyond_single_precision(self):
        self.runs.add("e", "1-rms", 2, 3.0, config={"NORM": "rms"}, values={"grad_norm/h.0": -1e39, "grad_norm/h.1": 1e300})
        self.runs.rebuild()
        self.call("tensorboard")
        path, = next(self.place.glob("1-rms-2-*")).iterdir()
        found = b"".join(events(path))
        for name, value in (("grad_norm/h.0", -float("inf")), ("grad_norm/h.1", float("inf"))):
            self.assertIn(tensorboard.inside(1, name) + tensorboard.single(2, value), found)

    def test_wandb(self):
        """The package itself is not needed to see what it is given."""
        begun, logged, ended = [], [], []
        run = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)),
                                    finish=lambda exit_code: ended.append(exit_code))
        package = types.SimpleNamespace(init=lambda **words: begun.append(words) or run, Settings=lambda **words: words)
        with unittest.mock.patch.dict(sys.modules, wandb=package):
            self.call("wandb")
        self.assertEqual([words["config"]["NORM"] for words in begun], ["layer", "rms"])
        self.assertEqual({(words["mode"], words["project"], *words["tags"]) for words in begun}, {("offline", "e", "norm")})
        self.assertIn("grad_norm/h.0", {name for _, values in logged for name in values})
        self.assertEqual(ended, [0, 0])

    def test_without_the_package(self):
        with unittest.mock.patch.dict(sys.modules, wandb=None), self.assertRaisesRegex(SystemExit, "no package wandb"):
            self.call("wandb")

    def test_checksum(self):
        """RFC 3720 B.4: 32 bytes of zeros have the CRC 8a9136aa."""
        crc = 0x8a9136aa
        self.assertEqual(tensorboard.masked_crc(bytes(32)),
                         ((crc >> 15 | crc << 17) + tensorboard.CRC_MASK) & 0xffffffff)

    def test_numbers(self):
        self.assertEqual([*map(trackers.number, ("8", "1e-3", "0.0", "y", "inf", "1e400"))], [8, 0.001, 0.0, "y", "inf", "1e400"])


if __name__ == "__main__":
    tap.main()
