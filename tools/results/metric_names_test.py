#!/usr/bin/env python3
"""A name of a metric is spelled in core/util/metric_names.h and nowhere else, except in tests."""
import ast
import re
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.results import metric_names
from tools.testing import rooms_test, tap
from tools.testing.as_user import ROOT

COMMENT_OR_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"((?:[^"\\\n]|\\.)*)"', re.S)


def texts_of(path):
    """The string literals of a source file."""
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".py":
        return COMMENT_OR_TEXT.findall(source)
    return [node.value for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def spelled(text):
    """The names that a text spells.  A plain word may mean something else."""
    return [name for name in metric_names.NAMES.values() if text.startswith(name + "/") or
            ("/" in name and name in text) or ("_" in name and name == text)]


def is_test(path):
    return rooms_test.IS_TEST.search(str(path)) or \
        "import unittest" in (ROOT / path).read_text(encoding="utf-8")


class Names(unittest.TestCase):
    def test_every_line_of_the_header_is_read(self):
        defined = metric_names.HEADER.read_text(encoding="utf-8").count("#define METRIC_")
        self.assertEqual(len(set(metric_names.NAMES.values())), defined)
        self.assertEqual(metric_names.TRAIN_LOSS, "train/loss")

    def test_no_other_file_spells_a_name(self):
        for path in rooms_test.sources():
            if ROOT / path == metric_names.HEADER or is_test(path):
                continue
            for text in texts_of(path):
                with self.subTest(file=str(path), text=text):
                    self.assertEqual(spelled(text), [])

    def test_a_second_spelling_is_seen(self):
        for text in ("train/loss", "val/loss%s", "name = 'val/loss'", "grad_norm", "length/"):
            self.assertTrue(spelled(text), text)
        self.assertEqual(COMMENT_OR_TEXT.findall('f("val/loss"); /* "a" */'), ["val/loss", ""])


if __name__ == "__main__":
    tap.main()
