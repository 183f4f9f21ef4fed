#!/usr/bin/env python3
"""Tests of tools/data/corpus.py, `data prepare --distinct --components` and pack.sh, with packages made here."""
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.data import corpus
from tools.testing import tap

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("O", "build"), "bin/data").resolve()
SENTENCE = "This is sentence number {0} of the text, which is here for the tests that are made of it and no other. "


def prose(number):
    return "".join(SENTENCE.format(f"{number}-{i}") for i in range(8))


def source(number):
    return "".join(f"int function_{'abcdefghij'[number % 10]}_{'abcdefghij'[i % 10]}(struct thing *t);\n" for i in range(20))


def tar_of(files, mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Corpus(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        (self.dir / "packages").mkdir()

    def package(self, name, files):
        root = self.dir / "root"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: m <m@m>\n"
                                             "Description: d\n")
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, self.dir / f"packages/{name}_1.0_all.deb"],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["rm", "-r", root], check=True)

    def linux(self):
        files = {f"linux/kernel/{i}.c": source(i).encode() for i in range(5)}
        files["linux/drivers/asic_reg/big.h"] = source(9).encode()
        files["linux/table.h"] = b"".join(b"0x%08x, " % i for i in range(400))
        files["linux/Makefile"] = source(8).encode()
        self.package("linux-source-6.1", {"usr/src/linux-source-6.1.tar.xz": tar_of(files, "w:xz")})

    def run_it(self, name, *more, path=None):
        return subprocess.run([sys.executable, "-B", "-m", "tools.data.corpus", "--out", self.dir / "out", "--packages",
                               self.dir / "packages", *more, name], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, **({"PATH": path} if path else {})})

    def texts(self, name):
        return [json.loads(line)["text"] for line in (self.dir / "out" / name).read_text().splitlines()]

    def test_linux(self):
        self.linux()
        done = self.run_it("linux")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.texts("code.jsonl"), [source(i) for i in range(5)])
        record = json.loads((self.dir / "out/linux.json").read_text())
        self.assertEqual((record["packages"][0]["version"], record["packages"][0]["documents"]), ("1.0", 5))
        first = (self.dir / "out/code.jsonl").read_bytes()
        self.assertEqual(self.run_it("linux").stdout, done.stdout)
        self.assertEqual((self.dir / "out/code.jsonl").read_bytes(), first)

    def test_docs(self):
        page = f"<html><head><title>{prose(0)}</title></head><p>{prose(1)}</p><pre>{prose(2)}</pre>" \
               f"<p>Dies ist ein deutscher Satz, der mit keinem der englischen Texte verwechselt werden kann.</p>" \
               f"<div>{prose(3).replace('tests', '<b>te</b>sts')}</div><p>short</p></html>"
        self.package("a-doc", {"usr/share/doc/a/1.html": page.encode(),
                               "usr/share/doc/a/2.txt.gz": gzip.compress(f"{prose(4)}\n\n{prose(1)}\n\n    {prose(5)}".encode(), 0),
                               "usr/share/doc/a/_sources/1.rst": prose(6).encode(), "usr/share/doc/a/3.bin": prose(7).encode()})
        done = self.run_it("docs", "--only", "a-doc")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.texts("prose.jsonl"), ["\n\n".join([prose(1).strip(), prose(3).strip()]), prose(4).strip()])

    def refusal(self, *arguments, **options):
        done = self.run_it(*arguments, **options)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertFalse(list((self.dir / "out").glob("*.json*")) if (self.dir / "out").exists() else [])
        return done.stderr

    def test_refusals(self):
        self.assertIn("there are linux and docs", self.refusal("windows"))
        os.symlink(subprocess.check_output(["which", "dpkg-deb"], text=True).strip(), self.dir / "dpkg-deb")
        self.assertIn("there is no apt-get here", self.refusal("linux", path=str(self.dir)))
        (self.dir / "apt-get").write_text("#!/bin/sh\necho 'E: Unable to locate package linux-source-6.1' >&2\nexit 100\n")
        (self.dir / "apt-get").chmod(0o755)
        with_apt = f"{self.dir}:{os.environ['PATH']}"
        self.assertIn("(E: Unable to locate package linux-source-6.1)", self.refusal("linux", path=with_apt))
        (self.dir / "packages/linux-source-6.1_1.0_all.deb").write_bytes(b"!<arch>\ndamaged")
        self.assertIn("damaged", self.refusal("linux"))
        (self.dir / "packages/linux-source-6.1_2.0_all.deb").write_bytes(b"")
        self.assertIn("2 versions", self.refusal("linux"))

    def test_cut_inside(self):
        """The package is whole, but not the archive in it."""
        whole = tar_of({f"linux/kernel/{i}.c": random.Random(i).randbytes(50000) for i in range(3)}, "w")
        for cut in (lzma.compress(whole)[:-70000], lzma.compress(whole[:-70000])):
            self.package("linux-source-6.1", {"usr/src/linux-source-6.1.tar.xz": cut})
            self.assertIn("damaged", self.refusal("linux"))

    def test_full_disk(self):
        self.linux()
        (self.dir / "out").mkdir()
        os.symlink("/dev/full", self.dir / "out/code.jsonl.tmp")
        self.assertIn("No space left on device; nothing was changed", self.refusal("linux"))

    def prepare(self):
        """Two components with a tenth of their documents twice."""
        for name in "code", "prose":
            words = [f"{name}{i}" for i in range(1000)]
            lines = [json.dumps({"text": " ".join(random.Random(f"{name} {i}").choices(words, k=200))}) for i in range(100)]
            (self.dir / f"{name}.jsonl").write_text("\n".join(lines + lines[:10]) + "\n")
        subprocess.run([DATA, "prepare", "--quiet", "--distinct", "--components", "--valid", "0.2", "--out",
                        self.dir / "tokens", self.dir / "code.jsonl", self.dir / "prose.jsonl"], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads((self.dir / "tokens/data.json").read_text())

    def test_components(self):
        found = self.prepare()
        self.assertEqual([c["name"] for c in found["components"]], ["code", "prose"])
        for split in "train", "valid":
            self.assertEqual(sum(c[split] for c in found["components"]), found[split]["tokens"])
            self.assertGreater(min(c[split] for c in found["components"]), 0)
        self.assertEqual(found["left_out"], {"duplicates": 20, "leaks": 0})
        self.assertEqual(found["train"]["documents"] + found["valid"]["documents"], 200)

    def pack(self, *words):
        return subprocess.run(["sh", ROOT / "tools/data/pack.sh", *words], capture_output=True, text=True)

    def test_parts_of_a_stranger(self):
        """No link or device is unpacked, and no right that a file should not have."""
        parts, out = self.dir / "hostile", self.dir / "unpacked"
        parts.mkdir()

        def unpack(name, kind, link="", mode=0o644):
            with tarfile.open(parts / "part-000", "w:xz") as tar:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname, entry.mode = kind, link, mode
                tar.addfile(entry)
            digest = hashlib.sha256((parts / "part-000").read_bytes()).hexdigest()
            (parts / "SHA256SUMS").write_text(f"{digest}  part-000\n")
            done = self.pack("unpack", out, parts)
            self.assertFalse((self.dir / "unpacked.tmp").exists())
            return done

        for name, kind in (("train.bin", tarfile.SYMTYPE), ("train.bin", tarfile.FIFOTYPE), ("a\x1b[2J", tarfile.REGTYPE)):
            done = unpack(name, kind, "/etc/passwd")
            self.assertEqual((done.returncode, out.exists()), (1, False))
            self.assertIn(f"{name.replace(chr(27), '?')} is no plain file; nothing was unpacked", done.stderr)
        done = unpack("../x", tarfile.REGTYPE)
        self.assertEqual((done.returncode, out.exists(), (self.dir / "x").exists()), (1, False, False))
        self.assertEqual(unpack("train.bin", tarfile.REGTYPE, mode=0o4777).returncode, 0)
        self.assertEqual((out / "train.bin").stat().st_mode & 0o7022, 0)

    def test_pack(self):
        self.prepare()
        (self.dir / "tokens/train-000001.bin").write_bytes(os.urandom(1_500_000))
        (self.dir / "parts").mkdir()
        tokens, parts, other = self.dir / "tokens", self.dir / "parts", self.dir / "other"
        self.assertEqual(self.pack("pack", tokens, parts, "1").returncode, 0)
        self.assertGreater(len(list(parts.glob("part-*"))), 1)
        self.assertLessEqual(max(part.stat().st_size for part in parts.glob("part-*")), 1_000_000)
        self.assertEqual(self.pack("unpack", other, parts).returncode, 0)
        subprocess.run(["diff", "-r", tokens, other], check=True)
        self.assertIn("there already", self.pack("unpack", other, parts).stderr)
        with open(parts / "part-001", "r+b") as file:
            file.write(b"x")
        self.assertIn("damaged; nothing was unpacked", self.pack("unpack", self.dir / "third", parts).stderr)
        self.assertFalse((self.dir / "third").exists())
        self.assertIn("not empty", self.pack("pack", tokens, parts, "1").stderr)
        (parts / "SHA256SUMS").write_text("0" * 64 + "  ../tokens/data.json\n")
        self.assertIn("not a list of parts", self.pack("unpack", self.dir / "third", parts).stderr)


if __name__ == "__main__":
    tap.main()
