"""What a report said last, so that it is made again only when something changed.

The key stands for all that a report is made from: the database, what was declared and measured beside
it, the programs that make it, and how wide and colourful the terminal is.
"""
import hashlib
import json
import os
import pathlib
from dataclasses import asdict, dataclass

from tools.plan import declaration, kconfig
from tools.results import notes, records, time_left
from tools.terminal import terminal

FILE = "said.json"
PROGRAMS = ("tools/report", "tools/results", "tools/plan", "tools/terminal")
CHANGES = slice(24, 28)         # of an SQLite file: the number of its transactions


@dataclass
class Said:
    text: str
    failure: str = None         # the report ends with this, as an error


def file_state(path):
    """Changes when the file does; nothing is read."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return [about.st_size, about.st_mtime_ns, about.st_ino]


def database_state(path):
    with open(path, "rb") as file:
        head = file.read(CHANGES.stop)
    return [head[CHANGES].hex(), file_state(path)]


def sources():
    """The programs, the numbers that they carry, and the symbols with their defaults."""
    root = pathlib.Path(kconfig.ROOT)
    programs = [path for directory in PROGRAMS for path in (root / directory).glob("*")
                if path.is_file()]
    symbols = [path for directory in ("core", "data", "models", "tools")
               for pattern in ("Kconfig", "*.kconfig") for path in (root / directory).rglob(pattern)]
    return sorted([root / "Kconfig", root / "core/util/metric_names.h", *programs, *symbols])


def key_of(args, experiment):
    database = os.path.join(args.runs, "results.db")
    measured = sorted(pathlib.Path(args.runs, experiment, "decode").glob("*.json"))
    parts = [database_state(database), time_left.going(database), args.runs,
             file_state(declaration.path_of(args.runs, experiment)),
             file_state(time_left.path_of(args.runs, experiment)),
             file_state(records.verified_path(database)), file_state(notes.path_of(args.runs, experiment)),
             args.tex_columns,
             file_state(os.path.join(kconfig.DEFCONFIGS, experiment)),      # its question
             *([str(path), file_state(path)] for path in (*measured, *sources()))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Memory:
    def __init__(self, directory, key, stream):
        self.directory, self.key = directory, key
        self.path = os.path.join(directory, FILE)
        self.form = f"{terminal.width(stream)} {terminal.has_colours(stream)}"

    def read(self):
        """What was said in every form of terminal under this key."""
        try:
            found = json.loads(kconfig.read_text(self.path) or "{}")
            return dict(found["said"]) if found["key"] == self.key else {}
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}

    def recall(self, files):
        """None: it is to be made; also where one of its files is gone."""
        if not all(os.path.exists(os.path.join(self.directory, name)) for name in files):
            return None
        try:
            said = Said(**self.read().get(self.form))
        except TypeError:
            return None
        return said if isinstance(said.text, str) and isinstance(said.failure, (str, type(None))) else None

    def keep(self, said, files):
        """With the hashes of its files, which `results verify` compares."""
        hashes = {name: hashlib.sha256(pathlib.Path(self.directory, name).read_bytes()).hexdigest()
                  for name in files}
        whole = {"key": self.key, "files": hashes,
                 "said": {**self.read(), self.form: asdict(said)}}
        kconfig.write_text(self.path, json.dumps(whole) + "\n")
