#!/usr/bin/env python3
"""A published experiment: one small file with all that tables are made of, and nothing that is run.

    archive.py publish RUNS EXPERIMENT FILE     write it
    archive.py unpack FILE DIRECTORY            check it whole, then write DIRECTORY/EXPERIMENT/...

It is a tar file, compressed by xz. First comes archive.json (format, experiment, commit, and
of every file its path, size and SHA-256), then these files: of each run run.json
(configuration and environment), journal.jsonl and done, and the experiment's declaration,
measurements and report. Weights stay where they are.

Everything in it is data of a stranger: each path must be one that we write, each file must be
what archive.json says, and nothing is written before all of it was checked.
"""
import concurrent.futures
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import sys
import tarfile
import tempfile

from tools.results import names, plain
from tools.terminal import terminal

FORMAT = "kablate experiment 1"
HEAD = "archive.json"
MOST_FILES, MOST_BYTES, MOST_IN_ALL, MOST_OF_A_NAME = 50_000, 256 << 20, 4 << 30, 16 << 10
PART = 8 << 20
RUN_FILES = ("run.json", "journal.jsonl", "done")
REPORTS = ("report.md", "report.csv", "report.json", "report.tex", "report.html")
OWN = ("declaration.json", "planned.json")
REVISION = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
DIGEST = names.IDENTITY


class Refused(Exception):
    """What is wrong with an archive, or why none can be written."""


# ---------------------------------------------------------------- which files

def is_ours(path, experiment):
    """Is it a path below RUNS that an archive of this experiment may have?"""
    top, *rest = path.split("/")
    if top not in (experiment, f"{experiment}-tuning") or not rest:
        return False
    if len(rest) == 1:
        return rest[0] in OWN
    if rest[0] == "report":
        return len(rest) == 2 and rest[1] in REPORTS
    if rest[0] == "decode":
        return len(rest) == 2 and rest[1].endswith(".json") and bool(names.NAME.fullmatch(rest[1]))
    return len(rest) == 2 and bool(names.STEP.fullmatch(rest[0])) and rest[1] in RUN_FILES


def files_of(runs, experiment):
    """Sorted paths below RUNS; links and what else lies there are left out."""
    found = []
    for top in (experiment, f"{experiment}-tuning"):
        for directory, below, files in os.walk(os.path.join(runs, top)):
            below.sort()
            for name in sorted(files):
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, runs)
                if is_ours(relative, experiment) and not os.path.islink(path):
                    found.append(relative)
    return found


# ---------------------------------------------------------------- writing

def revision_of(runs, paths):
    """The commits of all runs, each once."""
    found = set()
    for path in paths:
        if path.endswith("/run.json"):
            text = plain.text(os.path.join(runs, path))
            try:
                record = json.loads(text)
                found.add(str(record.get("git_revision") or "none") + ("-dirty" if record.get("git_dirty") else ""))
            except (ValueError, AttributeError, RecursionError) as error:
                raise Refused(f"{path} is damaged: {error}") from None
    return sorted(found)


def add(tar, path, data):
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def write(runs, experiment, file):
    """The archive, into a file that is open; returns the head."""
    names.checked(names.NAME, "experiment", experiment)
    paths = files_of(runs, experiment)
    if not any(path.endswith("/run.json") for path in paths):
        raise Refused(f"{experiment}: no runs below {runs}")
    content = {path: read(os.path.join(runs, path)) for path in paths}
    head = {"format": FORMAT, "experiment": experiment, "commits": revision_of(runs, paths),
            "files": [{"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                      for path, data in content.items()]}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        add(tar, HEAD, json.dumps(head, indent=1).encode())
        for path, data in content.items():
            add(tar, path, data)
    file.writelines(compressed(whole.getbuffer()))
    return head


def compressed(data):
    """As parts that all processors compress; xz reads the parts of a file as one."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lzma.compress, (data[i:i + PART] for i in range(0, len(data), PART)))


def publish(runs, experiment, out):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(out) or ".", delete=False) as file:
        try:
            head = write(runs, experiment, file)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, out)
        except BaseException:
            os.remove(file.name)
            raise
    return head


def read(path):
    with open(path, "rb", opener=plain.opener) as file:
        return file.read()


# ---------------------------------------------------------------- reading

def checked_head(data):
    """archive.json, of which every member is what it should be."""
    head = json.loads(data)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise Refused(f"its format is not {FORMAT!r}")
    names.checked(names.NAME, "experiment", head["experiment"])
    for commit in head["commits"]:
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-z-]{1,80}", commit):
            raise Refused(f"{commit!r} is no commit")
    wanted = {}
    for one in head["files"]:
        path, size = one["path"], names.whole("bytes", one["bytes"])
        if not isinstance(path, str) or not is_ours(path, head["experiment"]) or path in wanted:
            raise Refused(f"{path!r} has no place in an archive of {head['experiment']}")
        if not 0 <= size <= MOST_BYTES:
            raise Refused(f"{path}: {size} bytes")
        wanted[path] = (size, names.checked(DIGEST, "sha256", one["sha256"]))
    if len(wanted) > MOST_FILES or sum(size for size, _ in wanted.values()) > MOST_IN_ALL:
        raise Refused("it is larger than any experiment")
    return head, wanted


class Entry(tarfile.TarInfo):
    """Of the entries that tar knows, those that we write: files, and long names before them.

    tarfile itself reads what describes a file whole, also if it has gigabytes.
    """

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        entry = super().frombuf(buf, encoding, errors)
        if not (entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
                or entry.type == tarfile.XHDTYPE and 0 <= entry.size <= MOST_OF_A_NAME):
            raise Refused(f"{entry.name!r} is no plain file")
        return entry


def take(tar, entry, most):
    if not 0 <= entry.size <= most:
        raise Refused(f"{entry.name!r} has more than {most} bytes")
    data = tar.extractfile(entry).read()
    if len(data) != entry.size:
        raise Refused(f"{entry.name!r} is cut off")
    return data


def unpack_into(directory, tar):
    entries = iter(tar)
    entry = next(entries, None)
    if entry is None or entry.name != HEAD:
        raise Refused(f"it does not begin with {HEAD}")
    head, wanted = checked_head(take(tar, entry, 64 << 20))
    for entry in entries:
        if entry.name not in wanted:
            raise Refused(f"{entry.name!r} is not listed, or there twice")
        size, digest = wanted.pop(entry.name)
        data = take(tar, entry, size)
        if hashlib.sha256(data).hexdigest() != digest:
            raise Refused(f"{entry.name} is not what {HEAD} says")
        to = os.path.join(directory, entry.name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "xb") as file:
            file.write(data)
    if wanted:
        raise Refused(f"{min(wanted)} is missing")
    return head


def unpack(path, directory):
    """Writes DIRECTORY, which must not exist, when all is checked; returns the head."""
    if os.path.lexists(directory):
        raise Refused(f"{directory} is there already")
    if not os.path.isfile(path):
        raise Refused("no plain file" if os.path.lexists(path) else "no such file")
    with lzma.open(path) as file:
        return unpack_tar(file, directory)


def unpack_tar(file, directory):
    parent = os.path.dirname(os.path.abspath(directory))
    os.makedirs(parent, exist_ok=True)
    new = tempfile.mkdtemp(dir=parent)
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=Entry) as tar:
            head = unpack_into(new, tar)
        # What is left is padding; to its end, because there xz has its own sums.
        if file.read(1 << 20).strip(b"\0"):
            raise Refused("something follows the last file")
        os.rename(new, directory)
        return head
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, TypeError, LookupError, AttributeError,
            ArithmeticError, RecursionError) as error:
        raise Refused(f"damaged, or no archive of kablate: {error}") from None
    except MemoryError:
        raise Refused("it needs more memory than there is") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.archive publish runs smoke smoke.tar.xz")
    parser.add_argument("command", choices=("publish", "unpack"))
    parser.add_argument("words", nargs="+", metavar="RUNS EXPERIMENT FILE | FILE DIRECTORY")
    args = parser.parse_args(argv)
    if len(args.words) != (3 if args.command == "publish" else 2):
        parser.error(f"{args.command}: too few or too many arguments")
    try:
        if args.command == "publish":
            head = publish(*args.words)
            print(f"{args.words[2]}: {len(head['files'])} files, {os.path.getsize(args.words[2]) / 1e6:.2f} MB, of "
                  f"commit {', '.join(head['commits'])}")
        else:
            unpack(*args.words)
    except Refused as refused:
        sys.exit(f"{args.words[0] if args.command == 'unpack' else 'publish'}: {refused}")
    except (OSError, ValueError) as error:
        sys.exit(f"{args.command}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
