"""Tags and notes of an experiment: what its researcher wants to find again.

    notes.py set EXPERIMENT [--tags "norm, text"] [--note ".."]    an empty text removes it
    notes.py find TEXT...       experiments with all these words in their name, tags or note

They stand in RUNS/EXPERIMENT/note.json, change no run and no verdict, and may be written at
any time.
"""
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field

from tools.results import names, plain, records
from tools.terminal import terminal

FILE = "note.json"
TAG = re.compile(r"\w[\w.+/-]*")


@dataclass
class Note:
    tags: list = field(default_factory=list)
    note: str = ""

    def lines(self):
        """As a report shows them."""
        return [f"Tags: {', '.join(self.tags)}"] * bool(self.tags) + [f"Note: {self.note}"] * bool(self.note)


def path_of(runs, experiment):
    return os.path.join(runs, experiment, FILE)


def tags_of(text):
    tags = list(dict.fromkeys(word for word in re.split(r"[\s,]+", text) if word))
    wrong = next((tag for tag in tags if not TAG.fullmatch(tag)), None)
    if wrong:
        raise ValueError(f"tag {wrong!r}: a tag has letters, digits and _.+/-, and begins with a letter or digit")
    return tags


def note_of(text):
    if names.CONTROL.search(text):
        raise ValueError("a note is one line of text")
    return text.strip()


def read(runs, experiment):
    """An empty note where there is none."""
    path = path_of(runs, experiment)
    try:
        found = json.loads(plain.text(path))
        return Note(tags_of(" ".join(found["tags"])), note_of(found["note"]))
    except FileNotFoundError:
        return Note()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise records.Problem(f"{path}: {error}; 'make note' writes it again") from None


def shown(runs, experiment):
    """As a page shows it: a damaged file hides no result."""
    try:
        return read(runs, experiment)
    except records.Problem as problem:
        return Note(note=str(problem))


def write(runs, experiment, note):
    path = path_of(runs, experiment)
    if note == Note():
        if os.path.exists(path):
            os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(note), indent=1, ensure_ascii=False) + "\n")
    os.replace(f"{path}.new", path)


def matches(experiment, note, words, question=""):
    """Are all words somewhere in name, tags, note and question?  Case does not count."""
    text = " ".join((experiment, *note.tags, note.note, question)).lower()
    return all(word.lower() in text for word in words)


# ---------------------------------------------------------------- commands

def experiments(runs):
    """Those with runs, and those with a note."""
    database = os.path.join(runs, "results.db")
    known = records.experiments(records.connect(database)) if os.path.exists(database) else []
    noted = [entry.name for entry in os.scandir(runs) if os.path.exists(path_of(runs, entry.name))] \
        if os.path.isdir(runs) else []
    return sorted({*known, *noted})


def set_note(args):
    names.checked(names.NAME, "experiment", args.experiment)
    try:
        note = read(args.runs, args.experiment)
    except records.Problem:     # it is damaged, and written again
        note = Note()
    if args.tags is not None:
        note.tags = tags_of(args.tags)
    if args.note is not None:
        note.note = note_of(args.note)
    if not os.path.isdir(os.path.join(args.runs, args.experiment)):
        raise records.Problem(f"{args.experiment}: no such experiment; there are: "
                              f"{', '.join(experiments(args.runs)) or 'none'}")
    write(args.runs, args.experiment, note)
    print("\n".join([args.experiment, *note.lines()]) if note != Note() else f"{args.experiment}: no tags, no note")


def find(args):
    found = [(name, note) for name in experiments(args.runs)
             if matches(name, note := read(args.runs, name), args.words)]
    if not found:
        raise records.Problem(f"no experiment has {' and '.join(args.words)} in its name, tags or note")
    for name, note in found:
        print("\n  ".join([name, *note.lines()]))


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.results.notes find norm")
    parser.add_argument("--runs", default="runs", help="the directory of runs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("set", help="write tags and note")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.add_argument("--tags", help="words, with commas or blanks between them")
    command.add_argument("--note", help="one line of text")
    command.set_defaults(run=set_note)
    command = commands.add_parser("find", help="experiments with these words")
    command.add_argument("words", nargs="+", metavar="TEXT")
    command.set_defaults(run=find)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (records.Problem, records.sqlite3.Error, OSError, ValueError) as problem:
        sys.exit(f"notes: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
