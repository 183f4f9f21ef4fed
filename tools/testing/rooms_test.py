#!/usr/bin/env python3
"""The rooms keep their order: the README.md of a room names its users, and no other room uses it.

A room is a directory of sources.  Its README.md says in a few lines what it is for and ends with
"May be used by: ROOM, ...", where a room stands for everything below it.  Tests may use more: those
of core/ and data/ may use all of core/ and data/, the others everything.
"""
import collections
import re
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import tap
from tools.testing.as_user import ROOT

TOPS = ("core", "data", "models", "tools")
LINES = 12  # of a README.md
IS_TEST = re.compile(r"_(long|soak)?test\.|_fuzz\.|_case\.h|/test(_dir)?\.h|/fixture\.|tools/testing/")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)/[^"/]+"', re.M)
HEADER = re.compile(r'^\s*#\s*include "([^"]+)"', re.M)
IMPORT = re.compile(r"^\s*(?:from|import) (tools\.\w+)", re.M)


def sources():
    """Every source file below the top directories, from the root."""
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh", ".py"):
                yield path.relative_to(ROOT)


def used_by(path):
    """The rooms that a file reaches into."""
    text = (ROOT / path).read_text()
    rooms = {name for name in INCLUDE.findall(text) if name.split("/")[0] in TOPS}
    rooms |= {name.replace(".", "/") for name in IMPORT.findall(text)}
    return rooms - {str(path.parent)}


def below(room, other):
    return room == other or room.startswith(other + "/")


def users_of(room):
    """The rooms that may use it; None: all."""
    line = (ROOT / room / "README.md").read_text().rstrip().splitlines()[-1]
    names = re.fullmatch(r"May be used by: (.*)", line)
    assert names, f"{room}/README.md does not end with 'May be used by: ...'"
    if names[1] == "everything":
        return None
    return [] if names[1] in ("nothing", "tests") else names[1].split(", ")


class Rooms(unittest.TestCase):
    def test_every_room_says_what_it_is_for(self):
        for room in sorted({path.parent for path in sources()}):
            if room.name == "vectors":
                continue
            with self.subTest(room=room):
                text = (ROOT / room / "README.md").read_text()
                self.assertTrue(text.startswith(f"# {room}\n"))
                self.assertLessEqual(len(text.splitlines()), LINES)
                for user in users_of(room) or []:
                    self.assertTrue((ROOT / user).is_dir(), f"{user} is no room")

    def test_includes_and_imports_follow_the_order(self):
        for path in sources():
            test = bool(IS_TEST.search(str(path)))
            for room in used_by(path):
                with self.subTest(file=str(path), uses=room):
                    if test:
                        if path.parts[0] in ("core", "data"):
                            self.assertIn(room.split("/")[0], ("core", "data"))
                        continue
                    users = users_of(room)
                    self.assertTrue(users is None or
                                    any(below(str(path.parent), user) for user in users),
                                    f"{room}/README.md does not name {path.parent}")

    def test_no_circle(self):
        """The rooms have an order in which each uses only earlier ones."""
        uses = collections.defaultdict(set)
        for path in sources():
            if not IS_TEST.search(str(path)):
                uses[str(path.parent)] |= used_by(path)
        rooms = set(uses) | set().union(*uses.values())
        while rooms:
            free = {room for room in rooms if not uses[room] & rooms}
            self.assertTrue(free, f"a circle among {sorted(rooms)}")
            rooms -= free

    def test_the_oracle_shares_no_code(self):
        """It is the second of two programs that must agree: models/oracle/oracle.h."""
        for path in sources():
            if str(path.parent) == "models/oracle" and not IS_TEST.search(str(path)):
                self.assertLessEqual(used_by(path), {"core/util"}, path)

    def test_a_wrong_include_is_seen(self):
        """The patterns find what they look for: planted lines are edges."""
        self.assertEqual(INCLUDE.findall('#include "models/model.h"\n#include <math.h>\n'),
                         ["models"])
        self.assertEqual(IMPORT.findall("from tools.plan import kconfig\nimport os\n"), ["tools.plan"])
        self.assertIsNotNone(users_of("core/engine"))
        self.assertFalse(any(below("core/util", user) for user in users_of("core/engine")))


class Headers(unittest.TestCase):
    """A header needs no header that needs it."""

    @classmethod
    def setUpClass(cls):
        cls.includes = {str(path): HEADER.findall((ROOT / path).read_text())
                        for path in sources() if path.suffix != ".py"}

    def all_headers(self, path):
        """Every header that a file includes, directly or indirectly."""
        found, rest = set(), list(self.includes.get(path, ()))
        while rest:
            header = rest.pop()
            if header not in found:
                found.add(header)
                rest += self.includes.get(header, ())
        return found

    def test_no_circle(self):
        for path in filter(lambda name: name.endswith((".h", ".cuh")), self.includes):
            self.assertNotIn(path, self.all_headers(path))

    def test_a_module_of_kablate_needs_no_user_of_its_own(self):
        """Elsewhere a source may include private headers of its module."""
        for path in filter(lambda name: name.startswith("tools/kablate/"), self.includes):
            own = re.sub(r"\.c$", ".h", path)
            for header in self.includes[path]:
                self.assertNotIn(own, self.all_headers(header), f"{path} includes {header}")


class Threads(unittest.TestCase):
    def test_no_tasks(self):
        """The thread sanitizer reports tasks that have no race: docs/reliability.md."""
        for path in sources():
            if path.suffix != ".py":
                self.assertNotRegex((ROOT / path).read_text(), r"#pragma omp.*\btask", path)


if __name__ == "__main__":
    tap.main()
