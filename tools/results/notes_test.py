#!/usr/bin/env python3
"""Tags and notes: what is written is found again, and a damaged file hides nothing."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.results import notes, records
from tools.testing import as_user, tap


class Notes(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="kablate-notes-")
        self.addCleanup(place.cleanup)
        self.runs = pathlib.Path(place.name)
        for name in "norms", "sizes":
            (self.runs / name).mkdir()

    def call(self, *words):
        """What is said, or why it failed."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                notes.main(["--runs", str(self.runs), *words])
            except SystemExit as end:
                return end.code
        return said.getvalue()

    def test_set_and_find(self):
        self.assertEqual(self.call("set", "norms", "--tags", "text,norm text", "--note", "was it the Rate?"),
                         "norms\nTags: text, norm\nNote: was it the Rate?\n")
        self.call("set", "sizes", "--tags", "text")
        self.assertEqual(self.call("find", "rate", "NORMS"), "norms\n  Tags: text, norm\n  Note: was it the Rate?\n")
        self.assertEqual(self.call("find", "text").splitlines()[3:], ["sizes", "  Tags: text"])
        self.assertIn("no experiment has rope", self.call("find", "rope"))

    def test_only_what_is_given_changes(self):
        self.call("set", "norms", "--tags", "a", "--note", "b")
        self.call("set", "norms", "--tags", "")
        self.assertEqual(notes.read(self.runs, "norms"), notes.Note([], "b"))
        self.assertEqual(self.call("set", "norms", "--note", ""), "norms: no tags, no note\n")
        self.assertFalse((self.runs / "norms" / notes.FILE).exists())

    def test_bad_input(self):
        self.assertIn("tag '<b>'", self.call("set", "norms", "--tags", "<b>"))
        self.assertIn("one line", self.call("set", "norms", "--note", "a\nb"))
        self.assertIn("no such experiment; there are", self.call("set", "nrms", "--note", "a"))
        self.assertIn("a name has letters", self.call("set", "../norms", "--note", "a"))

    def test_a_damaged_file(self):
        for text in "", "[]", '{"tags": "a"}', '{"tags": [1], "note": ""}', "[" * 100000:
            (self.runs / "norms" / notes.FILE).write_text(text)
            with self.assertRaisesRegex(records.Problem, "note.json: .*'make note' writes it again"):
                notes.read(self.runs, "norms")
            self.assertIn("note.json", notes.shown(self.runs, "norms").note)
        self.assertEqual(self.call("set", "norms", "--note", "a"), "norms\nNote: a\n")

    def test_by_make(self):
        said = as_user.make(f"RUNS={self.runs}", "note", "E=norms", "TAGS=a, b", "NOTE=it's $(HOME) & `so`")
        self.assertEqual(said.stdout, "norms\nTags: a, b\nNote: it's $(HOME) & `so`\n", said.stderr)
        said = as_user.make(f"RUNS={self.runs}", "find", "TEXT=b it's")
        self.assertEqual(said.stdout.splitlines()[0], "norms", said.stderr)


if __name__ == "__main__":
    tap.main()
