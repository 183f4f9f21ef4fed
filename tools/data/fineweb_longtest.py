#!/usr/bin/env python3
"""Hold tools/data/fineweb.py against parquet files made here: every text must come back from the shards.

Makes an environment of its own with pyarrow.
"""
import functools
import http.server
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import venv

from tools.testing import tap

TOOLS = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("O", "build"), "bin/data").resolve()
TEXTS = [f"Document {i}: l'été, 数字 🙂\n\"{'x' * (i % 97)}\" \\ \0 end{i * i}" for i in range(3000)]
END_OF_TEXT = 256


def in_environment(directory):
    """Run this file again with an interpreter that has pyarrow."""
    venv.create(directory, with_pip=True)
    python = pathlib.Path(directory, "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", "pyarrow"], check=True)
    return subprocess.run([python, "-m", "tools.data.fineweb_longtest", "inside"]).returncode


def documents(directory, split):
    """The texts in the shards of a split, for the tokenizer bytes."""
    ids = []
    for path in sorted(pathlib.Path(directory).glob(f"{split}-*.bin")):
        content = path.read_bytes()
        magic, version, count = struct.unpack_from("<3i", content)
        assert (magic, version, len(content)) == (20240520, 1, 1024 + 2 * count)
        ids += struct.unpack_from(f"<{count}H", content, 1024)
    text = b"".join(b"\xff" if i == END_OF_TEXT else bytes([i]) for i in ids)
    return [part.decode() for part in text.split(b"\xff")]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Fineweb(unittest.TestCase):
    def setUp(self):
        import pyarrow
        import pyarrow.parquet
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        for name, part in ("b", TEXTS[1000:]), ("a", TEXTS[:1000]):
            table = pyarrow.table({"id": list(range(len(part))), "text": part})
            pyarrow.parquet.write_table(table, self.dir / f"{name}.parquet")

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, TOOLS / "fineweb.py", "--data", DATA, "--out",
                               self.dir / "out", *arguments], capture_output=True, text=True)

    def check_output(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        train = documents(self.dir / "out", "train")
        valid = documents(self.dir / "out", "valid")
        self.assertGreater(len(valid), 200)
        held_out = set(valid)
        self.assertEqual(train, [text for text in TEXTS if text not in held_out])
        self.assertEqual(valid, [text for text in TEXTS if text in held_out])
        side = json.loads((self.dir / "out/data.json").read_text())
        self.assertEqual(side["train"]["documents"], len(train))
        self.assertEqual(side["valid"]["bytes"], sum(len(text.encode()) for text in valid))

    def test_directory(self):
        self.check_output(self.run_tool("--shard", "10000", self.dir))

    def test_url(self):
        handler = functools.partial(Quiet, directory=self.dir)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            base = f"http://127.0.0.1:{server.server_port}"
            self.check_output(self.run_tool(f"{base}/a.parquet", f"{base}/b.parquet"))
            server.shutdown()

    def test_failures_leave_nothing(self):
        for arguments, reason in ((["--column", "body", self.dir], "has no column 'body'"),
                                  ([self.dir / "a.parquet", self.dir / "absent"], "absent"),
                                  (["--tokenizer", "absent.bpe", self.dir], "absent.bpe")):
            result = self.run_tool(*arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(reason, result.stderr)
            self.assertFalse((self.dir / "out").exists())

    def test_text_that_is_cut_off_leaves_nothing(self):
        for text, status in (b'{"text": "a"}\n', 1), (b'{"text": "a"}\n{"end": true}\n', 0):
            result = subprocess.run([DATA, "prepare", "--end-line", "--valid", "0", "--out",
                                     self.dir / "out", "-"], input=text, capture_output=True)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertEqual((self.dir / "out").exists(), status == 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        del sys.argv[1]
        tap.main()
    else:
        with tempfile.TemporaryDirectory() as place:
            sys.exit(in_environment(place))
