#!/usr/bin/env python3
"""Tests of the pages: links lead somewhere, commands exist, quoted messages are in the sources,
and docs/references.md lists every publication that the sources cite."""
import re
import sys
import unittest

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.testing import as_user, tap
from tools.testing.as_user import BUILD, ROOT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
SOURCES = [path for directory in ("core", "data", "models", "tools")
           for path in sorted((ROOT / directory).rglob("*"))
           if path.suffix in (".c", ".h", ".py", ".sh", ".mk")
           and not re.search(r"_(long|soak)?test\.", path.name)] + [ROOT / "Makefile"]


def anchors(text):
    """The anchors of headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.*)", text, re.M):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def prose(text):
    """A source on one line: literals and comments without line breaks."""
    text = re.sub(r'(?<!\\)"\s*(?:PRI[a-zA-Z0-9]+\s*)?\\?\s*\+?\s*f?"', "", text)
    return re.sub(r"\s*\n[\s*#]*", " ", text)


class Links(unittest.TestCase):
    def test_they_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
                name, _, anchor = target.partition("#")
                if "://" in target:
                    continue
                with self.subTest(page=page.name, target=target):
                    other = page.parent / name if name else page
                    self.assertTrue(other.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(other.read_text()))

    def test_the_readme_leads_to_every_page_and_the_picture(self):
        text = (ROOT / "README.md").read_text()
        reachable = " ".join(re.findall(r"\]\(([^)#]+)", text))
        for page in (ROOT / "docs").glob("*.md"):
            self.assertTrue(page.name in reachable, page.name)
        self.assertTrue("docs/report.png" in reachable)
        self.assertLess((ROOT / "docs/report.png").stat().st_size, 100_000)


class Commands(unittest.TestCase):
    def test_targets_and_programs_exist(self):
        targets = as_user.targets()
        for page in PAGES:
            text = page.read_text()
            code = re.findall(r"^    (.*)", text, re.M) + re.findall(r"`([^`\n]+)`", text)
            for line in code:
                for words in re.findall(r"(?:^|&& )make ((?:[\w+.=/%~-]+ ?)+)", line):
                    for word in words.split():
                        if not re.search(r"=|^-|^defconfig-|[A-Z]", word):
                            self.assertTrue(word in targets, f"{page.name}: {line}")
                for program in re.findall(r"build/bin/(\w+)", line):
                    self.assertTrue((BUILD / "bin" / program).exists(), f"{page.name}: {line}")
                for name in re.findall(r"\bdefconfig-([\w-]+)", line):
                    self.assertTrue((ROOT / "defconfigs" / name).exists() or name == "NAME",
                                    f"{page.name}: {line}")


class Findings(unittest.TestCase):
    def test_what_chance_may_have_made_is_counted_from_all_files(self):
        told = as_user.make("chance").stdout
        page = (ROOT / "docs/findings/chance.md").read_text()
        [total] = re.findall(r"^\| all \|.*", told, re.M)
        self.assertIn(total, page)
        self.assertIn(f"their {re.search('in ([0-9]+) families', told)[1]} families", page)


class Messages(unittest.TestCase):
    def test_every_quoted_message_is_in_the_sources(self):
        sources = [prose(path.read_text()) for path in SOURCES]
        rows = re.findall(r"^\|(`[^|]*)\|", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
        messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
        self.assertGreater(len(messages), 50)
        for message in messages:
            pattern = re.compile(".{1,60}?".join(map(re.escape, message.split("..."))))
            with self.subTest(message=message):
                self.assertTrue(any(map(pattern.search, sources)))


class References(unittest.TestCase):
    page = (ROOT / "docs/references.md").read_text()

    def test_every_citation_is_listed(self):
        listed = self.page.lower()
        found = 0
        for path in SOURCES:
            text = prose(path.read_text())
            cited = re.findall(r'et al\.,\s+"([^"]+)"|"([^"]+)", (?:[A-Z]+ )?(?:19\d\d|20[0-3]\d)\b',
                               text)
            for title in filter(None, (title for pair in cited for title in pair)):
                found += 1
                self.assertTrue(title.lower() in listed, f"{path}: {title}")
            for number in re.findall(r"arXiv:[\d.]+\d", text):
                self.assertTrue(number.lower() in listed, f"{path}: {number}")
        self.assertGreater(found, 8)

    def test_the_places_exist(self):
        for place in re.findall(r"`([\w./-]+/[\w./-]*)`", self.page):
            self.assertTrue((ROOT / place).exists(), place)


if __name__ == "__main__":
    tap.main()
