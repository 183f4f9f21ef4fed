#!/usr/bin/env python3
"""Tests of tools/results/archive.py and reproduce.py: what is published comes back; what is foreign is refused by name."""
import hashlib
import io
import json
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.results import archive, reproduce
from tools.testing import tap

RUN = "e/0-a-1-0123456789ab"


class Archive(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        self.runs, self.file = self.dir / "runs", str(self.dir / "e.tar.xz")
        self.put(f"{RUN}/run.json", json.dumps({"git_revision": "a" * 40, "git_dirty": False}))
        self.put(f"{RUN}/journal.jsonl", '{"kind":"start"}\n')
        self.put(f"{RUN}/done", "")
        self.put("e/declaration.json", "{}")
        self.put("e-tuning/0-a@1e-3-101-0123456789ab/run.json", "{}")

    def put(self, path, text):
        (self.runs / path).parent.mkdir(parents=True, exist_ok=True)
        (self.runs / path).write_text(text)

    def test_there_and_back(self):
        self.put(f"{RUN}/weights.safetensors", "large")
        os.symlink("/etc/passwd", self.runs / "e/planned.json")
        head = archive.publish(str(self.runs), "e", self.file)
        self.assertEqual(head["commits"], ["a" * 40, "none"])
        archive.unpack(self.file, str(self.dir / "there"))
        found = sorted(str(path.relative_to(self.dir / "there")) for path in (self.dir / "there").rglob("*") if path.is_file())
        self.assertEqual(found, ["e-tuning/0-a@1e-3-101-0123456789ab/run.json", f"{RUN}/done", f"{RUN}/journal.jsonl",
                                 f"{RUN}/run.json", "e/declaration.json"])
        self.assertEqual((self.dir / "there" / RUN / "journal.jsonl").read_text(), '{"kind":"start"}\n')

    def test_several_parts(self):
        with mock.patch.object(archive, "PART", 1000):
            archive.publish(str(self.runs), "e", self.file)
        with open(self.file, "rb") as file:
            self.assertGreater(file.read().count(b"\xfd7zXZ\0"), 3)
        archive.unpack(self.file, str(self.dir / "there"))
        self.assertEqual((self.dir / "there" / RUN / "journal.jsonl").read_text(), '{"kind":"start"}\n')

    def test_nothing_to_publish(self):
        with self.assertRaisesRegex(archive.Refused, "no runs below"):
            archive.publish(str(self.runs), "other", self.file)
        with self.assertRaisesRegex(ValueError, "a name has letters"):
            archive.publish(str(self.runs), "../e", self.file)

    def refusal(self):
        with self.assertRaises(archive.Refused) as caught:
            archive.unpack(self.file, str(self.dir / "there"))
        self.assertFalse((self.dir / "there").exists())
        self.assertEqual([path.name for path in self.dir.iterdir() if path.name.startswith("tmp")], [])
        return str(caught.exception)

    def test_no_archive(self):
        self.assertEqual(self.refusal(), "no such file")
        os.mkdir(self.file)
        self.assertEqual(self.refusal(), "no plain file")

    def hostile(self, files, listed=None, entries=()):
        """An archive of these files; `listed` overrides what archive.json says of them."""
        head = {"format": archive.FORMAT, "experiment": "e", "commits": ["a" * 40],
                "files": [{"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
                           **(listed or {}).get(path, {})} for path, data in files.items()]}
        with tarfile.open(self.file, "w:xz") as tar:
            archive.add(tar, archive.HEAD, json.dumps(head).encode())
            for path, data in files.items():
                archive.add(tar, path, data)
            for entry in entries:
                tar.addfile(entry, io.BytesIO(b"x" * entry.size))

    def test_paths(self):
        for path in ("../x", "/etc/x", "e/../../x", "e/0-a/run.json/..", "f/0-a/run.json", "e/0-a/weights", "e/.git/run.json",
                     "e/0-a$(id)/run.json", "e//run.json", "e/report/../x", "e/decode/x\n.json", "e"):
            self.hostile({path: b"x"})
            self.assertIn("has no place in an archive of e", self.refusal(), path)

    def test_contents(self):
        path = f"{RUN}/done"
        self.hostile({path: b"x"}, {path: {"sha256": "0" * 64}})
        self.assertIn(f"{path} is not what archive.json says", self.refusal())
        self.hostile({path: b"xy"}, {path: {"bytes": 1}})
        self.assertIn("has more than 1 bytes", self.refusal())
        self.hostile({path: b"x"}, {path: {"bytes": 1 << 50}})
        self.assertIn(f"{path}: {1 << 50} bytes", self.refusal())
        self.hostile({path: b"x"}, {path: {"bytes": "1"}})
        self.assertIn("expected a whole number", self.refusal())

    def test_entries(self):
        path = f"{RUN}/done"
        link = tarfile.TarInfo(path)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        self.hostile({}, entries=[tarfile.TarInfo(path)])
        self.assertIn("is not listed", self.refusal())
        self.hostile({path: b""}, entries=[tarfile.TarInfo(path)])
        self.assertIn("there twice", self.refusal())
        with tarfile.open(self.file, "w:xz") as tar:
            head = {"format": archive.FORMAT, "experiment": "e", "commits": [],
                    "files": [{"path": path, "bytes": 0, "sha256": "0" * 64}]}
            archive.add(tar, archive.HEAD, json.dumps(head).encode())
            tar.addfile(link)
        self.assertIn("is no plain file", self.refusal())
        with tarfile.open(self.file, "w:xz") as tar:
            archive.add(tar, archive.HEAD, json.dumps(head).encode())
        self.assertIn(f"{path} is missing", self.refusal())

    def test_what_tar_reads_whole(self):
        """A header that describes the next file could claim gigabytes, which xz makes of nothing."""
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
                     tarfile.GNUTYPE_SPARSE, tarfile.FIFOTYPE):
            entry = tarfile.TarInfo("e/name")
            entry.type, entry.size = kind, 1 << 20
            self.hostile({f"{RUN}/done": b"x"}, entries=[entry])
            self.assertIn("is no plain file", self.refusal())

    def test_records_that_are_none(self):
        for text in ("[]", "1", "[" * 100000, "{", '{"git_revision":'):
            self.put(f"{RUN}/run.json", text)
            with self.assertRaisesRegex(archive.Refused, "run.json is damaged"):
                archive.publish(str(self.runs), "e", self.file)

    def test_damage(self):
        archive.publish(str(self.runs), "e", self.file)
        whole = pathlib.Path(self.file).read_bytes()
        for at in range(0, len(whole) - 1, 7):
            pathlib.Path(self.file).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
            self.refusal()
            pathlib.Path(self.file).write_bytes(whole[:at])
            self.refusal()
        for head in (b"", b"[]", b"{}", b"[" * 100000, b'{"format":"kablate experiment 1","experiment":"../e"}'):
            with tarfile.open(self.file, "w:xz") as tar:
                archive.add(tar, archive.HEAD, head)
            self.refusal()


class Difference(unittest.TestCase):
    def run_of(self, loss, weights, **changed):
        return ("d", {"step": "0-a", "seed": 1, "identity": "i", "machine": "m", **changed}, loss, weights)

    def test_words(self):
        was = self.run_of(2.0, "w")
        self.assertEqual(reproduce.difference(was, self.run_of(2.0, "w"), 0.1), "0-a, seed 1: same bits")
        said = reproduce.difference(was, self.run_of(2.05, "v", machine="n"), 0.1)
        self.assertIn("+0.50 standard deviations of its seeds; other machine", said)
        self.assertIn("no second seed", reproduce.difference(was, self.run_of(2.05, "v"), None))
        self.assertNotIn("same bits", reproduce.difference(self.run_of(2.0, None), self.run_of(2.0, None), 0.1))

    def test_data_that_is_lent(self):
        """Only data is linked into the clone, nothing that its make writes."""
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            self.addCleanup(os.chdir, before)
            for name in ("data/text", "build", "build/x", "again-0/x", ".git", "clone"):
                os.makedirs(name, exist_ok=True)
                reproduce.lend_data({"DATA_TRAIN": f"{name}/train.bin", "DATA_VALID": f"../{name}/valid.bin"}, "clone")
            os.chdir(before)
            self.assertEqual(sorted(os.listdir(os.path.join(place, "clone"))), ["clone", "data"])

    def test_damaged(self):
        """Numbers that no float holds, and what nests too deep."""
        with tempfile.TemporaryDirectory() as place:
            runs, file = pathlib.Path(place, "runs"), os.path.join(place, "e.tar.xz")
            (runs / RUN).mkdir(parents=True)
            (runs / RUN / "done").write_text("")
            (runs / RUN / "run.json").write_text(json.dumps({
                "experiment": "e", "step": "0-a", "baseline": None, "identity": "0" * 64, "seed": 1, "config": {}}))
            for line in ('{"kind":"value","name":"val/loss","value":' + "9" * 400 + "}", "[" * 100000):
                (runs / RUN / "journal.jsonl").write_text(line + "\n")
                archive.publish(str(runs), "e", file)
                with self.assertRaisesRegex(SystemExit, "damaged: "):
                    reproduce.main([file, os.path.join(place, "again")])
                shutil.rmtree(os.path.join(place, "again"))

    def test_commit(self):
        for commits in ([], ["a" * 40 + "-dirty"], ["a" * 40, "b" * 40], ["none"], ["--upload-pack"]):
            with self.assertRaisesRegex(archive.Refused, "only runs of one whole commit"):
                reproduce.commit_of({"commits": commits})
        self.assertEqual(reproduce.commit_of({"commits": ["a" * 40]}), "a" * 40)
        with self.assertRaisesRegex(archive.Refused, "git fetch"):
            reproduce.check_out("0" * 40, "never")


if __name__ == "__main__":
    tap.main()
