#!/usr/bin/env python3
"""Everything in Python that reads a file of others, with damaged files: it returns, or raises the error of its own
that its callers show in a sentence.

Inputs are seeds that were changed at random: bits, bytes, pieces, words that mean something to JSON or make, and in JSON
also whole values.  Here some hundred inputs for each parser; many more in parsers_soaktest.py.
PARSERS_SEED=N repeats a sequence; a failure prints the input.
"""
import contextlib
import copy
import functools
import gzip
import hashlib
import io
import json
import os
import pathlib
import random
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.cluster import jobs, journals, slurm
from tools.data import corpus
from tools.export import tokenizer, weights
from tools.kablate import launch
from tools.plan import declaration, factors, kconfig, plan_words, token_files
from tools.report import decoding, memo, serve, values
from tools.results import archive, notes, records, reproduce, run_program, time_left
from tools.testing import made_up, tap

INPUTS = 400
MOST_MEMORY = 2 << 30
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None     # writing there takes a fifth of the time

# ---------------------------------------------------------------- changing inputs

WORDS = [b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1", b"1e999", b"NaN", b"-Infinity", b"9" * 400, b"1" + b"0" * 5000, b"\0",
         b"\n", b"\r", b",", b":", b'"', b"\\", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"../../x", b"$(id)", b"\x1b[2J", b"[" * 3000,
         b'{"a":' * 3000, b"=" * 9, b"CONFIG_", b"%00", b"n" * 70000]
VALUES = [None, True, False, 0, -1, 1, 2 ** 70, -2 ** 63, 1e308, 5e-324, float("nan"), float("inf"), "", "\0", "../x", "-rf",
          "$(id)", "\ud800", "x" * 300, [], {}, [[]], {"": None}, [None] * 50, ["a", 1]]


def damaged_bytes(chance, data):
    """A few random changes."""
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        match chance.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.randrange(256)
            case 2:
                del data[at:min(end, at + chance.choice((1, 4, 100)))]
            case 3:
                data[at:at] = data[at:end][:chance.choice((1, 8, 500))]
            case 4:
                data[at:at + chance.choice((0, 0, 1, 5))] = chance.choice(WORDS)
            case 5:
                data[at:at] = chance.randbytes(chance.choice((1, 3, 20)))
            case 6 if chance.random() < 0.3:
                del data[at:]
    return bytes(data)


def places_in(value, found):
    """All containers in a value, with the keys of what they hold."""
    if isinstance(value, (dict, list)):
        for key in (value if isinstance(value, dict) else range(len(value))):
            found.append((value, key))
            places_in(value[key], found)
    return found


def damaged_json(chance, value):
    """Values replaced, removed or put elsewhere."""
    value = json.loads(json.dumps([value]))     # a copy, in a list: all of it can be replaced
    for _ in range(chance.choice((1, 1, 2, 4))):
        found = places_in(value, [])
        if not found:
            break
        place, key = chance.choice(found)
        match chance.randrange(4):
            case 0 if place is not value:
                del place[key]
            case 1 if isinstance(place, dict):
                place[chance.choice(["", "x", "\0", "__class__", "__metadata__"])] = place[key]
            case 2:
                other, at = chance.choice(found)
                place[key] = json.loads(json.dumps(other[at]))
            case _:
                place[key] = copy.deepcopy(chance.choice(VALUES))
    return json.dumps(value[0] if value else None).encode()


def damaged_lines(chance, data):
    """One line of JSON among others, changed as a value."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    with contextlib.suppress(ValueError):
        lines[at] = damaged_json(chance, json.loads(lines[at]))
    return b"\n".join(lines)


def damaged(chance, data):
    if chance.random() < 0.6:
        return damaged_bytes(chance, data)
    try:
        return damaged_json(chance, json.loads(data))
    except ValueError:
        changed = damaged_lines(chance, data)
        return changed if changed != data else damaged_bytes(chance, data)


# ---------------------------------------------------------------- seeds

RECORD = {"identity": "0123456789abcdef" * 4, "experiment": "e", "step": "0-mla", "baseline": None, "seed": 1, "iterations": 100,
          "threads": 2, "compiler": "gcc 12", "config": {"STEP": "mla", "MODEL_LAYERS": "2", "TASK": "language", "DROPOUT": "0.1"}}
JOURNAL = [{"kind": "start", "time": 10.5, "iteration": 0},
           *({"kind": "value", "time": 11 + i, "iteration": i, "name": name, "value": 3.5 / i}
             for i in (10, 20) for name in ("train/loss", "val/loss")),
           {"kind": "end", "time": 99, "state": "done", "reason": None}]
DECLARED = {"asked": "steps", "primary": [["1-mla+gate", "0-mla"], "interactions"], "steps": ["0-mla", "1-mla+gate"],
            "margin": 0.01, "looks": [3, 5], "seeds": [1, 2, 3, 4, 5]}
CHARACTERS = {"characters": [97, 98, 228, 8364], "end_of_text": True}
MERGES = "#version: 0.2\nt h\nth e\ni n\n\u0120 t\n"


def lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def tensor_file():
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "b": {"dtype": "F64", "shape": [1], "data_offsets": [24, 32]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(32))


PUBLISHED = {"e/0-mla-1-0123456789ab/run.json": b"{}", "e/0-mla-1-0123456789ab/journal.jsonl": b"{}\n",
             "e/declaration.json": b"{}"}
HEAD = {"format": archive.FORMAT, "experiment": "e", "commits": ["a" * 40],
        "files": [{"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in PUBLISHED.items()]}
PLANNED = [{"kind": "run", "experiment": "e", "step": "0-mla", "seed": 1, "identity": "0123456789ab"}]
VERIFIED = {"runs": {"e/0-mla/x": {"heartbeat": 1.5, "bound": True, "wrong": ["w"]}}}
PROSE = ("<html><head><title>t</title></head><p>This is a <b>sentence</b> of the text that has all of the words that it has to "
         "have &amp; more.</p><pre>x</pre><!-- c --><script>1</script></html>")
POD = "=head1 NAME\n\nThis is B<a> sentence of the C<< text >> that has all of the words that it has to have and more.\n"
SYMBOLS = ['CONFIG_SEEDS="1,2,3"', "CONFIG_TASK_LANGUAGE=y", "# CONFIG_TASK_TEXT is not set", "CONFIG_MODEL_LAYERS=2",
           'CONFIG_DROPOUT="0.1"']


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in files.items():
            archive.add(tar, path, data)
    return out.getvalue()


def measured_decoding():
    own = {name: 1.5 for name in decoding.QUANTITIES}
    return {"own": {"batch": 1, "contexts": [{"context": 64, **own}, {"context": 128, **own}],
                    "record": {**dict.fromkeys(decoding.ENVIRONMENT, "x"), "config": RECORD["config"]}},
            "peer": {"torch": "2.0", "contexts": [{"context": 64, "token_seconds": 0.1}]}}


# ---------------------------------------------------------------- the parsers

class Place:
    """A directory with a study, in which one file at a time is damaged."""

    def __init__(self, parent=MEMORY):
        tempfile.tempdir = parent
        self.runs = made_up.Runs()
        self.runs.study(seeds=(1, 2, 3))
        self.runs.rebuild()
        self.path = pathlib.Path(self.runs.path)
        with contextlib.closing(records.connect(self.path / "results.db")) as db:
            self.name = records.experiments(db)[0]
            self.steps = records.read_experiment(db, self.name)
        self.pages = serve.Pages(self.runs.path)

    @functools.cached_property
    def tree(self):
        return kconfig.Tree()

    def file(self, name, data):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    # Each one reads the bytes as its file.

    def run_record(self, data):
        return run_program.read_record(self.file("run/run.json", data).parent)

    def planned(self, data):
        return journals.planned(self.file("run/run.json", data).parent)

    def journal(self, data):
        found = journals.read(self.file("run/journal.jsonl", data).parent)
        return found.seconds_left

    def declaration(self, data):
        found = declaration.read(self.path, self.file(f"declared/{declaration.FILE}", data).parent.name)
        return found and found.text

    def values(self, data):
        return values.table(self.file("values.csv", data))

    def decoding(self, data):
        self.file(f"{self.name}/{decoding.DIRECTORY}/{self.steps[0].name}.json", data)
        found = decoding.read(self.runs.path, self.name, self.steps[:1])
        return decoding.grid(found.measured)

    def tensors(self, data):
        return weights.read(self.file("weights.safetensors", data))

    def vocabulary(self, data):
        return tokenizer.convert({"tokenizer": self.file("vocabulary", data)})

    def configuration(self, data):
        return self.tree.load(str(self.file("config", data)))

    def lines_of_configuration(self, data):
        return self.tree.parse(data.decode(errors="replace").split("\n"), "config")

    def numbers(self, data):
        return plan_words.numbers("SEEDS", data.decode(errors="replace"))

    def steps_of_plan(self, data):
        return plan_words.check_names(plan_words.listed_steps(data.decode(errors="replace").split()))

    def factors(self, data):
        return factors.problem(self.tree, data.decode(errors="replace"))

    def tokens(self, data):
        return token_files.count(str(self.file("tokens.bin", data)))

    def jobs(self, data):
        self.file("slurm/tasks-1.json", json.dumps([{"directory": "d"}]).encode())
        return jobs.Records(self.file("slurm/jobs.jsonl", data).parent).places()

    def tasks(self, data):
        self.file("slurm/jobs.jsonl", lines([{"job": 5, "kind": "runs", "tasks": "tasks-1.json"}]))
        return jobs.Records(self.file("slurm/tasks-1.json", data).parent).places()

    def queue(self, data):
        return [slurm.read_task(line) for line in data.decode(errors="replace").splitlines() if line.strip()]

    def mpirun(self, data):
        return launch.told(data.decode(errors="replace").splitlines(keepends=True))

    def memo(self, data):
        memory = memo.Memory(self.path / "memo", "key", io.StringIO())
        self.file(f"memo/{memo.FILE}", data)
        return memory.recall([])

    def archived(self, data):
        archive.unpack(str(self.file("e.tar.xz", data)), str(self.path / "unpacked"))
        shutil.rmtree(self.path / "unpacked")

    def tar(self, data):
        archive.unpack_tar(io.BytesIO(data), str(self.path / "unpacked"))
        shutil.rmtree(self.path / "unpacked")

    def head(self, data):
        self.tar(tar_of({archive.HEAD: data, **PUBLISHED}))

    def published_run(self, name, data):
        for file, whole in (("run.json", json.dumps(RECORD).encode()), ("journal.jsonl", lines(JOURNAL)), ("done", b"")):
            self.file(f"published/r/{file}", data if file == name else whole)
        return reproduce.finished(self.path / "published")

    def note(self, data):
        return notes.read(self.runs.path, self.file("noted/note.json", data).parent.name).lines()

    def waiting(self, data):
        return time_left.read_plan(self.runs.path, self.file("waiting/planned.json", data).parent.name)

    def verified(self, data):
        return records.verifications(self.file("verified/verified.json", data).parent / "results.db")

    def prose(self, name, data):
        return corpus.prose_of((name, data))

    def package(self, data):
        return [corpus.content(entry, tar, "a package") for entry, tar in corpus.tar_entries(io.BytesIO(data), "a package")]

    def address(self, data):
        status, _ = self.pages.get(data.decode("iso-8859-1").replace("\n", ""))
        assert status in (200, 404), status


def parsers(place):
    """Name, how it reads, the errors that its callers show, and its seeds."""
    published = values.text(place.steps[:2]).encode()
    with open(archive_path := place.path / "e.tar.xz", "wb"):
        archive.publish(str(place.path), place.name, str(archive_path))
    memory = {"key": "key", "said": {"80 False": {"text": "report", "failure": None}}}
    config = place.tree
    config.merge([])
    return [
        ("run.json, for a program", place.run_record, records.Problem, [json.dumps(RECORD).encode()]),
        ("run.json, for status", place.planned, (), [json.dumps(RECORD).encode()]),
        ("journal.jsonl, for status", place.journal, (), [lines(JOURNAL), lines(JOURNAL[:-1])]),
        ("declaration.json", place.declaration, kconfig.Unfit,
         [json.dumps({"declarations": [{"time": 1, "declared": one} for one in kept]}).encode()
          for kept in ([DECLARED], [DECLARED, None])]),
        ("published values", place.values, records.Problem, [published]),
        ("decoding measured", place.decoding, (), [json.dumps(measured_decoding()).encode()]),
        ("safetensors, for export", place.tensors, weights.Damaged, [tensor_file()]),
        ("vocabulary, for export", place.vocabulary, tokenizer.Unfit, [json.dumps(CHARACTERS).encode(), MERGES.encode()]),
        (".config", place.configuration, kconfig.Unfit, [config.config_text().encode()]),
        (".config, a part", place.lines_of_configuration, (), ["\n".join(SYMBOLS).encode()]),
        ("numbers of a plan", place.numbers, kconfig.Unfit, [b"1,2,3"]),
        ("steps of a plan", place.steps_of_plan, kconfig.Unfit, [b"mla mla+gate again-0"]),
        ("factors of a plan", place.factors, (), [b"NORM=layer|rms; MODEL_HEADS=2|8|16",
                                                  b"per:ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8; DROPOUT=0|0.1"]),
        ("token files", place.tokens, (), [bytes(64), struct.pack("<3i", token_files.MAGIC, 1, 8).ljust(token_files.HEADER + 16, b"\0")]),
        ("jobs of Slurm", place.jobs, jobs.Problem, [lines([{"job": 5, "kind": "runs", "tasks": "tasks-1.json"}])]),
        ("tasks of Slurm", place.tasks, jobs.Problem, [json.dumps([{"directory": "d", "command": ["x"]}]).encode()]),
        ("squeue", place.queue, slurm.Problem, [b"1|0|PENDING||Priority\n2|N/A|RUNNING|n1|None\n"]),
        ("mpirun", place.mpirun, (), [b"mpirun noticed that process rank 1 with PID 7 on\nnode far exited on signal 9 (Killed).\n"]),
        ("memory of reports", place.memo, (), [json.dumps(memory).encode()]),
        ("archive", place.archived, archive.Refused, [archive_path.read_bytes()]),
        ("archive, inside xz", place.tar, archive.Refused, [tar_of({archive.HEAD: json.dumps(HEAD).encode(), **PUBLISHED})]),
        ("archive.json", place.head, archive.Refused, [json.dumps(HEAD).encode()]),
        ("run.json, to train again", functools.partial(place.published_run, "run.json"), reproduce.DAMAGED,
         [json.dumps(RECORD).encode()]),
        ("journal.jsonl, to train again", functools.partial(place.published_run, "journal.jsonl"), reproduce.DAMAGED, [lines(JOURNAL)]),
        ("note.json", place.note, records.Problem, [json.dumps({"tags": ["a", "b"], "note": "n"}).encode()]),
        ("planned.json", place.waiting, records.Problem, [json.dumps(PLANNED).encode()]),
        ("verified.json", place.verified, (), [json.dumps(VERIFIED).encode()]),
        ("pages of packages", functools.partial(place.prose, "a.html"), (), [PROSE.encode()]),
        ("pages of Perl", functools.partial(place.prose, "a.pod"), (), [POD.encode()]),
        ("compressed pages", functools.partial(place.prose, "a.html.gz"), (), [gzip.compress(PROSE.encode())]),
        ("files of packages", place.package, corpus.Refusal, [tar_of({"a/b.html": PROSE.encode(), "a/c.c": b"int c;"})]),
        ("addresses of pages", place.address, (), [b"/", b"/experiment/e", b"/run/0001", b"/compare?a=0001&b=0002"]),
    ]


def limit_memory():
    """An input that takes all memory is a failure, not the end of other programs; returns the limits of before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, before[1]))
    return before


def seed_of_test():
    seed = int(os.environ.get("PARSERS_SEED") or random.randrange(1 << 32))
    print(f"# PARSERS_SEED={seed}")
    return seed


def try_parser(chance, read, known, seeds, inputs):
    """How many of these inputs were accepted; AssertionError if one raises another error than those known."""
    accepted = 0
    for _ in range(inputs):
        data = damaged(chance, chance.choice(seeds))
        try:
            read(data)
            accepted += 1
        except known:
            pass
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}, for {data[:2000]!r}") from error
    return accepted


class Parsers(unittest.TestCase):
    def test_no_other_error(self):
        self.addCleanup(resource.setrlimit, resource.RLIMIT_AS, limit_memory())
        place = Place()
        self.addCleanup(shutil.rmtree, place.path)
        seed = seed_of_test()
        for name, read, known, seeds in parsers(place):
            with self.subTest(name):
                for whole in seeds:
                    read(whole)
                accepted = try_parser(random.Random(f"{seed} {name}"), read, known, seeds, INPUTS)
                print(f"# {name}: {INPUTS} inputs, {accepted} accepted", flush=True)
                if known:
                    self.assertLess(accepted, INPUTS)


if __name__ == "__main__":
    tap.main()
