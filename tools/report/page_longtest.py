"""The page in a real browser: wide and narrow, light and dark, by mouse and by keys alone, offline
and live."""
import collections
import csv
import itertools
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import unittest
from unittest import mock
from xml.etree import ElementTree

from tools.report import report, serve
from tools.testing import as_user, browser, made_up, tap

DESKTOP, TABLET, PHONE = (1400, 1000), (800, 1000), (390, 844)
SIZES = (DESKTOP, TABLET, PHONE)
STEPS = ("0-mla", "1-gate", "2-gate+cross")
CURVES = ("grad_norm", "grad_norm/h.0", "grad_norm/h.10", "learning_rate", "attention/entropy/h.0")


def install():
    """Where it may be installed; otherwise the tests are skipped."""
    subprocess.run(["bash", "tools/make/setup.sh", "browser"], cwd=as_user.ROOT, check=False,
                   capture_output=True)
    return browser.is_there()


def losses(step):
    """By seed; the steps differ by much more than the seeds do, and far from zero."""
    number = STEPS.index(step)
    return {seed: 3 - 0.2 * number + 0.01 * seed + 0.003 * number * seed for seed in (1, 2, 3)}


def config_of(number):
    """An update has 12 * 64 tokens."""
    return {"TASK": "language", "WIDTH": str(number), "TRAIN_BATCH": "12", "TRAIN_ACCUMULATE": "1", "MODEL_BLOCK": "64",
            "GPT2_MAX_ITERS": "100", "TRAIN_TOKENS_BUDGET": "0"}


def add_study(runs, experiment="study"):
    for number, step in enumerate(STEPS):
        for seed, loss in losses(step).items():
            runs.add(experiment, step, seed, loss, curves=CURVES, config=config_of(number),
                     values={"parameters": 1.890e6 * (1 + 0.02 * number), "peak_megabytes": 69.0,
                             "flops_per_token": 6e6 * (1 + number)})


@unittest.skipUnless(install(), "chromium is not installed, and cannot be installed here")
class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chromium = cls.enterClassContext(browser.Browser())
        cls.runs = made_up.Runs()
        cls.addClassCleanup(shutil.rmtree, cls.runs.path)
        add_study(cls.runs)
        cls.runs.rebuild()
        cls.address = cls.write_report("study")

    @classmethod
    def write_report(cls, experiment):
        """Where it is."""
        with mock.patch("sys.stdout"):
            report.main(["--runs", cls.runs.path, "report", experiment])
        return pathlib.Path(cls.runs.path, experiment, "report/report.html").as_uri()

    def show(self, size=DESKTOP, dark=False, address=None, script=True):
        page = self.chromium.page(width=size[0], height=size[1], dark=dark, script=script)
        self.addCleanup(page.close)
        page.open(address or self.address)
        return page

    def place(self, page, title):
        """Of a picture in the window: left, top, width, height."""
        return page.value(f"(() => {{ const svg = {svg_of(title)};"
                          "svg.scrollIntoView({ block: 'center' });"
                          "const r = svg.getBoundingClientRect();"
                          "return [r.left, r.top, r.width, r.height]; })()")

    def values(self, page, title):
        """The text of a picture's box of values; empty: hidden."""
        return page.value(f"(() => {{ const box = {svg_of(title)}.nextSibling;"
                          "return box.hidden ? '' : box.innerText; })()")

    def ticks(self, page, title):
        """Texts of the axes."""
        return page.value(f"[...{svg_of(title)}.querySelectorAll('.axes text')]"
                          ".map(t => t.textContent)")

    def count(self, page, title, selector):
        return page.value(f"{svg_of(title)}.querySelectorAll('{selector}').length")

    def drawn(self, page, title):
        """The steps in a picture."""
        return page.value(f"[...new Set([...{svg_of(title)}.querySelectorAll('[data-step]')]"
                          ".map(g => g.dataset.step))]")

    def tab_to(self, page, condition, most=400):
        """Presses Tab until the element `e` in focus fulfils the condition, in JavaScript."""
        for _ in range(most):
            page.press("Tab")
            if page.value(f"(e => Boolean({condition}))(document.activeElement)"):
                return
        self.fail(f"the Tab key never reaches {condition}")


def svg_of(title):
    return "[...document.querySelectorAll('figure')].find(" \
        f"f => f.querySelector('h3').textContent === '{title}').querySelector('svg')"


TITLES = ["Difference to the baseline", "Final loss", "Validation loss", "Training loss",
          "Loss of components", "Accuracy", "Gradient norm", "Learning rate", "Attention entropy",
          "Other records", "Components", "Loss against parameters", "Loss against computation"]

# Texts of one picture that cover each other.
COVERED = """[...document.querySelectorAll('figure')].flatMap(figure => {
  const boxes = [...figure.querySelectorAll('svg text')]
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, r], i) => boxes.slice(i + 1).filter(([, s]) => r.left < s.right - 1 &&
    s.left < r.right - 1 && r.top < s.bottom - 3 && s.top < r.bottom - 3)
    .map(([b]) => `${figure.querySelector('h3').textContent}: ${a} and ${b}`));
})"""
# Texts that reach beyond their picture.
CUT = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const f = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(t => {
    const r = t.getBoundingClientRect();
    return r.left < f.left - 1 || r.right > f.right + 1 || r.bottom > f.bottom + 1 ||
      r.top < f.top - 1;
  }).map(t => t.textContent);
})"""
# Texts that reach beyond a picture that is a file.
BEYOND = """(() => { const all = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < all.left || r.right > all.right || r.top < all.top || r.bottom > all.bottom; })
    .map(t => t.textContent); })()"""
# Tables of which a part is out of sight, and texts in cells that are cut.
CUT_TABLES = """[...document.querySelectorAll('.wide')].filter(w => w.scrollWidth > w.clientWidth + 1)
  .map(w => w.innerText.slice(0, 80))"""
# Figures whose buttons cover the text below the title.
UNDER_BUTTONS = """[...document.querySelectorAll('figure')].filter(f =>
  f.querySelector('.saves').getBoundingClientRect().bottom > f.querySelector('.about').getBoundingClientRect().top + 1)
  .map(f => f.querySelector('h3').textContent)"""
# The least contrast between text and paper.
CONTRAST = """(() => {
  const light = c => {
    const [r, g, b] = c.match(/\\d+(\\.\\d+)?/g).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const texts = document.querySelectorAll('p, td, th, h1, h2, h3, li, dd, button, a, label');
  return Math.min(...[...texts].filter(e => e.textContent.trim())
    .map(e => light(getComputedStyle(e).color))
    .map(l => (Math.max(l, paper) + 0.05) / (Math.min(l, paper) + 0.05)));
})()"""


class Looks(Case):
    def test_every_width_and_scheme(self):
        for size in SIZES:
            for dark in (False, True):
                with self.subTest(size=size, dark=dark):
                    page = self.show(size, dark)
                    self.assertEqual(page.faults(), [])
                    self.assertEqual(page.requests(), [self.address])
                    self.assertEqual(page.value("[...document.querySelectorAll('h3')]"
                                                ".map(h => h.textContent)"), TITLES)
                    self.assertEqual(page.value("document.documentElement.scrollWidth"), size[0])
                    self.assertEqual(page.value(COVERED), [])
                    self.assertEqual(page.value(CUT), [])
                    self.assertEqual(page.value(CUT_TABLES), [])
                    self.assertEqual(page.value(UNDER_BUTTONS), [])
                    self.assertGreater(page.value(CONTRAST), 4.5)
                    paper = page.value("getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(paper, "rgb(18, 22, 27)" if dark else "rgb(255, 255, 255)")

    def test_many_steps_with_long_names(self):
        """Every number has its place in a crowd, and no text covers another."""
        for number, seed in itertools.product(range(18), (1, 2, 3)):
            name = f"{number}-w2+overlap+lr-5e-3+against-{number}" if number else "0-mla"
            self.runs.add("crowd", name, seed, 3 + 0.001 * number + 0.01 * seed,
                          values={"parameters": 1e6 * (1 + number // 9)})
        self.runs.rebuild()
        address = self.write_report("crowd")
        for size in SIZES:
            with self.subTest(size=size):
                page = self.show(size, address=address)
                self.assertEqual(page.faults(), [])
                self.assertEqual(page.value("document.documentElement.scrollWidth"), size[0])
                self.assertEqual(page.value(COVERED), [])
                self.assertEqual(page.value(CUT), [])
                self.assertEqual(page.value(CUT_TABLES), [])
                numbers = page.value(f"[...{svg_of('Loss against parameters')}"
                                     ".querySelectorAll('[data-step] text')].map(t => t.textContent)")
                self.assertEqual(sorted(map(int, numbers)), list(range(18)))

    def test_seeds_that_coincide_can_be_counted(self):
        """Up to eight stand below each other; a text counts the others."""
        for step, seed in itertools.product(("0-mla", "1-x"), range(1, 21)):
            self.runs.add("same", step, seed, 3.0 if step == "0-mla" or seed > 5 else 3 + 0.1 * seed)
        self.runs.rebuild()
        page = self.show(address=self.write_report("same"))
        marks = page.value(f"[...{svg_of('Final loss')}.querySelectorAll('[data-step=\"0-mla\"] [data-of-seed]')]"
                           ".map(m => { const r = m.getBoundingClientRect(); return `${r.left} ${r.top}`; })")
        self.assertEqual((len(marks), len(set(marks))), (8, 8))
        texts = page.value(f"[...{svg_of('Final loss')}.querySelectorAll('.more')].map(t => t.textContent)")
        self.assertEqual(texts, ["+12", "+7"])
        self.assertEqual(page.value(COVERED), [])
        self.assertEqual(page.value(CUT), [])

    def test_axes(self):
        page = self.show()
        for title in TITLES:
            with self.subTest(title=title):
                ticks = self.ticks(page, title)
                self.assertLessEqual(max(collections.Counter(ticks).values()), 2)   # once per axis
        self.assertIn("0", self.ticks(page, "Difference to the baseline"))
        parameters = [t for t in self.ticks(page, "Loss against parameters") if t.endswith("M")]
        self.assertGreater(len(set(parameters)), 2)

    def test_a_short_curve_is_seen_whole(self):
        """Of evaluations at 0, 50 and 100, the first tenth is a third of what there is to see."""
        page = self.show()
        found = page.value("""[[0, 60], [0, 50, 100], [0, 10, 20, 30, 40]].map(xs =>
            rangesOf({ figure: { kind: 'curves' }, view: {} }, [{ xs, ys: xs.map(x => x ? 3 : 6) }], {}).y[1] > 5)""")
        self.assertEqual(found, [True, True, False])

    def test_ticks_read_differently(self):
        page = self.show()
        for low, high in ((1.8901e6, 1.8904e6), (0, 600), (2.1e-7, 9e-7), (-0.02, 0.03),
                          (-0.049, 0.045), (69.02, 69.19), (0, 5e12)):
            for ticks in ("linearTicks", "logTicks") if low > 0 else ("linearTicks",):
                found = page.value(f"{ticks}({low}, {high}, 5)")
                with self.subTest(low=low, high=high, ticks=ticks):
                    self.assertGreaterEqual(len(found), 3)
                    self.assertEqual(len({words for _, words in found}), len(found))
                    self.assertTrue(all(low <= at <= high for at, _ in found))
        self.assertEqual([words for _, words in page.value("logTicks(1e-4, 1e2, 8)")],
                         ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100"])

    def test_names_for_those_who_do_not_see(self):
        """Of every picture, with its values, and of everything that can be operated."""
        page = self.show()
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        found = collections.defaultdict(list)
        for node in nodes:
            if not node.get("ignored"):
                found[node["role"]["value"]].append(node.get("name", {}).get("value", ""))
        self.assertEqual(len(found["image"]), len(TITLES))
        for title, name in zip(TITLES, found["image"]):
            self.assertTrue(name.startswith(title), name)
            self.assertIn("0-mla" if title != TITLES[0] else "1-gate", name)
        self.assertIn(f"0-mla: {statistics.fmean(losses('0-mla').values()):.4g}", found["image"][1])
        for role in ("button", "checkbox", "combobox", "slider", "link"):
            self.assertTrue(found[role], role)
            self.assertNotIn("", found[role], role)

    def test_without_script(self):
        page = self.show(script=False)
        page.call("Emulation.setScriptExecutionDisabled", value=False)      # to ask it
        text = page.value("document.body.innerText")
        self.assertIn("The pictures need JavaScript", text)
        self.assertIn("2-gate+cross", text)


class Mouse(Case):
    def rectangle(self, page, title, element):
        """Of a figure's svg or its box of values: left, top, right, bottom."""
        return page.value(f"(() => {{ const svg = {svg_of(title)}, r = ({element}).getBoundingClientRect();"
                          "return [r.left, r.top, r.right, r.bottom]; })()")

    def test_values_stand_beside_the_curves(self):
        for size in SIZES:
            page = self.show(size)
            for title in TITLES:
                left, top, width, height = self.place(page, title)
                page.hover(left + width / 3, top + height / 2)
                figure, box = (self.rectangle(page, title, element) for element in ("svg", "svg.nextSibling"))
                with self.subTest(size=size, title=title):
                    self.assertTrue(box[0] >= figure[2] or box[2] <= figure[0] or box[1] >= figure[3] - 1, (figure, box))
                    self.assertTrue(0 <= box[0] < box[2] <= size[0], box)

    def test_a_click_pins_the_values(self):
        page = self.show()
        left, top, width, height = self.place(page, "Validation loss")
        page.click(left + width - 16, top + height / 2)
        page.hover(left + width / 2, top + height / 2)
        page.hover(5, 5)
        page.value("document.activeElement.blur()")
        self.assertIn("iteration 100", self.values(page, "Validation loss"))
        page.value("document.querySelector('[data-each]').click()")     # draws it again
        text = self.values(page, "Validation loss")
        self.assertIn("0-mla, seed 1: 3.01", text)
        left, top, width, height = self.place(page, "Validation loss")
        page.click(left + width - 16, top + height / 2)     # the same place again
        page.hover(5, 5)
        page.value("document.activeElement.blur()")
        self.assertEqual(self.values(page, "Validation loss"), "")

    def test_a_tap_pins_the_values(self):
        page = self.show(PHONE)
        page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        for title in ("Validation loss", "Final loss", "Components", "Loss against parameters"):
            left, top, width, height = self.place(page, title)
            page.tap(left + width / 2, top + height / 2)
        for title in ("Validation loss", "Final loss", "Components", "Loss against parameters"):
            self.assertRegex(self.values(page, title), r"\d", title)
        page.value(f"{svg_of('Final loss')}.nextSibling.querySelector('button').click()")
        self.assertEqual(self.values(page, "Final loss"), "")
        self.assertEqual(page.faults(), [])

    def test_equal_values_of_seeds_are_one_line(self):
        page = self.show()
        page.value("document.querySelector('[data-each]').click()")
        page.value(f"(s => {{ s.value = 'val/floor'; s.dispatchEvent(new Event('change')); }})"
                   "(document.querySelector('select[aria-label^=\"Other records\"]'))")
        left, top, width, height = self.place(page, "Other records")
        page.hover(left + width / 2, top + height / 2)
        self.assertIn("0-mla, seeds 1, 2, 3: 2", self.values(page, "Other records"))

    def test_hover_shows_the_values(self):
        page = self.show()
        left, top, width, height = self.place(page, "Validation loss")
        page.hover(left + width - 16, top + height / 2)
        text = self.values(page, "Validation loss")
        self.assertIn("iteration 100", text)
        for step in STEPS:
            self.assertIn(f"{step}, mean of 3: {statistics.fmean(losses(step).values()):.5g}", text)
        page.hover(5, 5)
        self.assertEqual(self.values(page, "Validation loss"), "")

    def test_hover_in_every_picture(self):
        page = self.show()
        for title in TITLES:
            left, top, width, height = self.place(page, title)
            page.hover(left + width / 2, top + height / 3)
            with self.subTest(title=title):
                self.assertRegex(self.values(page, title), r"\d")
                box = page.value(f"(() => {{ const box = {svg_of(title)}.nextSibling;"
                                 "const r = box.getBoundingClientRect();"
                                 "return [r.left, r.right]; })()")
                self.assertGreaterEqual(box[0], 0)
                self.assertLessEqual(box[1], DESKTOP[0])
        self.assertEqual(page.faults(), [])

    def test_drag_zooms_and_a_double_click_shows_all(self):
        page = self.show()
        before = self.ticks(page, "Training loss")
        left, top, width, height = self.place(page, "Training loss")
        page.drag((left + 0.5 * width, top + 40), (left + 0.8 * width, top + 45))
        after = self.ticks(page, "Training loss")
        self.assertNotEqual(after, before)
        numbers = [float(t) for t in after if re.fullmatch(r"\d\d", t)]
        self.assertTrue(numbers and min(numbers) >= 40 and max(numbers) <= 90, after)
        page.mouse("mousePressed", left + 100, top + 50, button="left", clickCount=2)
        page.mouse("mouseReleased", left + 100, top + 50, button="left", clickCount=2)
        self.assertEqual(self.ticks(page, "Training loss"), before)

    def point_at(self, page, selector):
        page.hover(*page.value(f"(() => {{ const b = document.querySelector('{selector}');"
                               "b.scrollIntoView(); const r = b.getBoundingClientRect();"
                               "return [r.left + 5, r.top + 5]; })()"))

    def test_pointing_at_a_seed_lights_it(self):
        page = self.show()
        page.value("document.querySelector('[data-each]').click()")
        self.point_at(page, '[data-seed="2"]')
        self.assertEqual(page.value(f"[...{svg_of('Training loss')}.querySelectorAll('.dim')]"
                                    ".map(g => g.dataset.ofSeed)"), ["1", "3"] * len(STEPS))
        self.assertEqual(self.count(page, "Final loss", ".dim"), 2 * len(STEPS))

    def test_pointing_at_a_step_lights_it(self):
        page = self.show()
        self.point_at(page, '[data-toggles="1-gate"]')
        self.assertEqual(page.value("[...new Set([...document.querySelectorAll('svg .dim')]"
                                    ".map(g => g.dataset.step))].sort()"), ["0-mla", "2-gate+cross"])


class Keys(Case):
    """The mouse is never used."""

    def test_steps_and_seeds(self):
        page = self.show()
        self.tab_to(page, "e.dataset.toggles === '1-gate'")
        page.press(" ")
        self.assertEqual(page.value("document.activeElement.getAttribute('aria-pressed')"), "false")
        for title in ("Validation loss", "Final loss", "Components", "Loss against parameters"):
            self.assertEqual(self.drawn(page, title), ["0-mla", "2-gate+cross"])
        page.press("Enter")
        self.assertEqual(self.drawn(page, "Validation loss"), list(STEPS))
        self.tab_to(page, "e.dataset.key === 'g0-each'")
        page.press(" ")
        self.assertEqual(self.count(page, "Validation loss", "[data-step]"), 9)
        self.tab_to(page, "e.dataset.seed === '2'")
        page.press(" ")
        self.assertEqual(self.count(page, "Validation loss", "[data-step]"), 6)
        self.tab_to(page, "e.dataset.key === 'g0-smooth'")
        before = page.value(f"{svg_of('Training loss')}.innerHTML")
        page.press("ArrowRight")
        self.assertEqual(page.value("document.activeElement.nextSibling.textContent"), "0.02")
        self.assertNotEqual(page.value(f"{svg_of('Training loss')}.innerHTML"), before)
        self.assertEqual(page.faults(), [])

    def test_values_and_zoom(self):
        page = self.show()
        self.tab_to(page, f"e === {svg_of('Validation loss')}")
        before = self.ticks(page, "Validation loss")
        page.press("End")
        self.assertIn("iteration 100", self.values(page, "Validation loss"))
        page.press("ArrowLeft")
        self.assertIn("iteration 90", self.values(page, "Validation loss"))
        page.press("+")
        self.assertNotEqual(self.ticks(page, "Validation loss"), before)
        self.assertIn("iteration 90", self.values(page, "Validation loss"))
        page.press("ArrowLeft", shift=True)
        page.press("0")
        self.assertEqual(self.ticks(page, "Validation loss"), before)
        page.press("Escape")
        self.assertEqual(self.values(page, "Validation loss"), "")
        self.tab_to(page, f"e === {svg_of('Components')}")
        page.press("ArrowRight")
        self.assertIn("all", self.values(page, "Components"))

    def test_rows_go_up_and_down(self):
        page = self.show()
        self.tab_to(page, f"e === {svg_of('Difference to the baseline')}")
        page.press("ArrowDown")
        page.press("ArrowDown")
        text = self.values(page, "Difference to the baseline")
        self.assertTrue(text.startswith("2-gate+cross"), text)
        differences = [losses("2-gate+cross")[seed] - losses("0-mla")[seed] for seed in (1, 2, 3)]
        self.assertIn(f"mean {statistics.fmean(differences):.5g}", text)
        self.assertIn(f"seed 3: {differences[2]:.5g}", text)

    def test_axes_and_records(self):
        page = self.show()
        self.tab_to(page, "e.tagName === 'SELECT' && "
                          "e.getAttribute('aria-label')?.startsWith('Gradient norm')")
        page.press("ArrowDown")
        page.press("Enter")
        self.assertIn("Gradient norm (grad_norm/h.0)",
                      page.value(f"{svg_of('Gradient norm')}.getAttribute('aria-label')"))
        before = self.ticks(page, "Gradient norm")
        self.tab_to(page, "e.dataset.key?.endsWith('-logx')")
        page.press(" ")
        self.assertNotEqual(self.ticks(page, "Gradient norm"), before)
        self.tab_to(page, "e.dataset.key?.endsWith('-wide')")
        page.press(" ")
        page.settle()
        self.assertGreater(self.place(page, "Gradient norm")[2], 1200)

    def test_the_table_sorts_and_folds(self):
        page = self.show()
        rows = "[...document.querySelectorAll('.main tbody tr')].map(r => r.cells[0].textContent)"
        order = "document.activeElement.closest('th').getAttribute('aria-sort')"
        self.tab_to(page, "e.closest('th')?.textContent === 'val. loss ± sd (seeds)'")
        page.press("Enter")
        self.assertEqual(page.value(rows), ["2-gate+cross", "1-gate", "0-mla"])
        self.assertEqual(page.value(order), "ascending")
        page.press("Enter")
        self.assertEqual(page.value(rows), list(STEPS))
        page.press("Enter")
        self.assertEqual(page.value(order), "none")
        page = self.show(PHONE)
        self.tab_to(page, "e.tagName === 'SUMMARY'")
        page.press("Enter")
        self.tab_to(page, "e.dataset.key?.endsWith('-fold-parameters')")
        page.press(" ")
        text = page.value("document.querySelector('.main').innerText")
        self.assertNotIn("1.89M", text)
        self.assertIn("6M", text)       # the FLOPs are still there

    def test_the_focus_is_seen(self):
        page = self.show()
        for condition in ("e.tagName === 'SUMMARY'", "e.closest('th')", "e.dataset.toggles",
                          "e.tagName === 'svg'"):
            self.tab_to(page, condition)
            style = page.value("getComputedStyle(document.activeElement).outlineStyle")
            self.assertEqual(style, "solid", condition)


class Axis(Case):
    def choose(self, page, axis):
        page.value(f"(s => {{ s.value = '{axis}'; s.dispatchEvent(new Event('change')); }})"
                   "(document.querySelector('[data-axis]'))")

    def test_every_axis(self):
        """100 iterations of 768 tokens; 6 MFLOPs a token; at 1000 + i tokens per second until iteration i."""
        page = self.show()
        seconds = sum(10 * 768 / (1000 + i) for i in range(10, 101, 10))
        for axis, last, name in (("tokens", 76800, "tokens"), ("seconds", seconds, "seconds of training"),
                                 ("work", 76800 * 6e6, "FLOPs"), ("iteration", 100, "iteration")):
            self.choose(page, axis)
            xs = page.value(f"seriesOf(plots.find(p => p.figure.title === 'Validation loss'))[0].xs")
            with self.subTest(axis=axis):
                self.assertEqual(len(xs), 10)
                self.assertAlmostEqual(xs[-1] / last, 1, places=4)
                self.assertIn(name, self.ticks(page, "Validation loss"))
                self.assertEqual(page.value(COVERED), [])
                self.assertEqual(page.value(CUT), [])
        self.choose(page, "work")       # the third step does three times the work of the first
        left, top, width, height = self.place(page, "Validation loss")
        page.hover(left + 0.3 * width, top + height / 2)
        text = self.values(page, "Validation loss")
        for step in STEPS:
            self.assertIn(step, text)
        self.assertIn(" at ", text)     # the places of other steps are not the same
        self.assertEqual(page.faults(), [])

    def test_only_axes_that_every_run_has(self):
        self.runs.add("old", "0-mla", 1, 3.0)       # without the symbols that tell its tokens
        self.runs.rebuild()
        page = self.show(address=self.write_report("old") + "#x=tokens")
        self.assertEqual(page.value("[...document.querySelector('[data-axis]').options].map(o => o.value)"), ["iteration"])
        self.assertEqual(page.value("state.axis"), "iteration")
        self.assertEqual(page.faults(), [])


class Address(Case):
    LOOK = """[...document.querySelectorAll('figure svg')].map(s => s.innerHTML.replaceAll(' class=""', '')).join() +
        [...document.querySelectorAll('.values')].map(b => b.hidden ? '' : b.innerText).join() +
        document.querySelector('.main').innerText + document.querySelectorAll('details[open]').length +
        [...document.querySelectorAll('.legend [aria-pressed], .legend input, .legend select')]
          .map(e => e.getAttribute('aria-pressed') + e.checked + e.value).join()"""

    def test_a_reload_and_another_reader_see_the_same(self):
        page = self.show()
        plain = page.value(self.LOOK)
        page.value("document.querySelector('[data-each]').click();"
                   "document.querySelector('[data-toggles=\"1-gate\"]').click();"
                   "document.querySelector('[data-seed=\"2\"]').click();"
                   "document.querySelector('[data-key$=\"Training loss-logy\"]').click();"
                   "document.querySelector('[data-key$=\"Accuracy-wide\"]').click();"
                   "document.querySelector('details[data-key]').open = true;"
                   "document.querySelectorAll('th button')[3].click();"
                   "document.querySelector('[data-key$=\"-fold-parameters\"]').click();"
                   "(s => { s.value = 'tokens'; s.dispatchEvent(new Event('change')); })(document.querySelector('[data-axis]'));"
                   "(s => { s.value = 0.5; s.dispatchEvent(new Event('input')); })(document.querySelector('[data-smooth]'))")
        left, top, width, height = self.place(page, "Validation loss")
        page.drag((left + 0.3 * width, top + 40), (left + 0.8 * width, top + 45))
        left, top, width, height = self.place(page, "Final loss")
        page.click(left + width / 2, top + height / 3)
        page.hover(5, 5)
        page.value("document.activeElement.blur(); new Promise(done => setTimeout(done, 500))")
        page.settle()
        seen, address = page.value(self.LOOK), page.value("location.href")
        self.assertNotEqual(seen, plain)
        page.reload()
        self.assertEqual(page.value(self.LOOK), seen)
        self.assertEqual(self.show(address=address).value(self.LOOK), seen)
        self.assertEqual(page.faults(), [])

    def test_links_to_headings_keep_the_choices(self):
        page = self.show()
        page.value("document.querySelector('[data-each]').click(); new Promise(done => setTimeout(done, 500))")
        self.assertEqual(page.value("location.hash"), "#each=true")
        page.value("document.querySelector('nav a[href=\"#runs\"]').click(); new Promise(done => setTimeout(done, 500))")
        self.assertEqual(page.value("location.hash"), "#each=true")
        self.assertLess(page.value("document.getElementById('runs').getBoundingClientRect().top"), DESKTOP[1])
        page.value("document.querySelector('[data-each]').click(); new Promise(done => setTimeout(done, 500))")
        self.assertEqual(page.value("location.href"), self.address)

    def test_an_address_may_say_anything(self):
        plain = self.show().value(self.LOOK)
        for words in ("__proto__.wide=true", "smooth=5&x=nothing&each=5", "Plots: Validation loss.zoom=[1]",
                      "Plots: Validation loss.zoom={\"x\":[3,\"a\"]}", "Plots: Accuracy.metric=\"no\"", "Table.column=99",
                      "Table.column=-1", "Table.folded=5", "hide=<b>", "hideseed=x", "Plots: Accuracy.pin=null",
                      "%ff", "a.b.c=&=&.=1", "Plots: Accuracy.constructor=1", "runs"):
            with self.subTest(words=words):
                page = self.show(address=f"{self.address}#{words}")
                self.assertEqual(page.value(self.LOOK), plain)
                self.assertEqual(page.faults(), [])


class Saved(Case):
    def saved(self, page, title, kind):
        """The file that the button leaves."""
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        page.keep_downloads(directory)
        page.value(f"document.querySelector('[data-key$=\"{title}-{kind}\"]').click()")
        path, end = directory / f"study-{title.lower().replace(' ', '-')}.{kind.lower()}", time.monotonic() + 60
        while not path.exists():
            self.assertLess(time.monotonic(), end, list(directory.iterdir()))
            time.sleep(0.1)
        return path

    def lines(self, page, title):
        with open(self.saved(page, title, "CSV"), encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def test_csv(self):
        page = self.show()
        head, *lines = self.lines(page, "Validation loss")
        self.assertEqual(head, ["step", "seed", "iteration", "val/loss", "lowest seed", "highest seed"])
        last = [line for line in lines if line[2] == "100"]
        self.assertEqual([line[0] for line in last], list(STEPS))
        for line in last:
            own = losses(line[0]).values()
            for cell, expected in zip(line[3:], (statistics.fmean(own), min(own), max(own))):
                self.assertAlmostEqual(float(cell), expected, places=4)
        page.value("document.querySelector('[data-each]').click();"
                   "document.querySelector('[data-toggles=\"1-gate\"]').click();"
                   "(s => { s.value = 'tokens'; s.dispatchEvent(new Event('change')); })(document.querySelector('[data-axis]'))")
        head, *lines = self.lines(page, "Validation loss")
        self.assertEqual(head, ["step", "seed", "iteration", "tokens", "val/loss"])
        self.assertIn(["0-mla", "2", "100", "76800", "3.02"], lines)
        self.assertEqual({line[0] for line in lines}, {"0-mla", "2-gate+cross"})
        head, *lines = self.lines(page, "Final loss")
        self.assertEqual(head, ["step", "what", "nats per token"])
        self.assertIn(["0-mla", "seed 3", "3.03"], [[*line[:2], str(round(float(line[2]), 4))] for line in lines])
        self.assertEqual(self.lines(page, "Components")[0], ["step", "component", "%"])
        self.assertEqual(len(self.lines(page, "Loss against parameters")), 3)
        self.assertEqual(page.faults(), [])

    def test_svg(self):
        """A picture of its own, the same in the dark: it says all that the page says, and needs no style sheet."""
        drawn = []
        for dark in (False, True):
            path = self.saved(self.show(dark=dark), "Validation loss", "SVG")
            drawn.append(path.read_text(encoding="utf-8"))
            root = ElementTree.fromstring(drawn[-1])
            texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
            self.assertLessEqual({"Validation loss (val/loss)", "iteration", *STEPS}, texts)
            self.assertNotIn("var(", drawn[-1])
            self.assertNotIn("class=", drawn[-1])
            self.assertIn('stroke="rgb(213, 218, 224)"', drawn[-1])     # the grid, on paper
            page = self.show(dark=dark, address=path.as_uri())
            self.assertEqual(page.faults(), [])
            self.assertEqual(page.value("getComputedStyle(document.querySelector('rect')).fill"), "rgb(255, 255, 255)")
        self.assertEqual(*drawn)

    def test_every_figure_can_be_saved(self):
        page = self.show()
        for title in TITLES:
            with self.subTest(title=title):
                path = self.saved(page, title, "SVG")
                ElementTree.parse(path)
                self.assertEqual(self.show(address=path.as_uri()).value(BEYOND), [])
        self.assertEqual(page.faults(), [])


class Numbers(Case):
    def test_sorting_knows_units(self):
        page = self.show()
        cells = ["203.1k*", "1.2M", "-0.0022 [-0.0441, +0.0398]", "", "512", "1e-5"]
        keyed = page.value(f"""{cells}.map(words => {{
            const td = document.createElement('td');
            td.textContent = words;
            return sortValue(td, false); }})""")
        self.assertEqual(keyed, [203100, 1200000, -0.0022, None, 512, 1e-5])
        self.assertEqual(page.value("['10-x', '9-y', null].sort(compareValues)"),
                         ["9-y", "10-x", None])

    def test_smoothing(self):
        """The weights add up to one from the first value on; a gap stays a gap."""
        page = self.show()
        self.assertEqual(page.value("smoothed([4, 4, null, 4], 0.9)"), [4, 4, None, 4])
        first, second = page.value("smoothed([0, 1], 0.5)")
        self.assertEqual(first, 0)
        self.assertAlmostEqual(second, 0.5 / 0.75)

    def test_means_are_over_the_same_iterations(self):
        page = self.show()
        found = page.value("""(() => { data.x.push([1, 2, 3], [1, 2]); const n = data.x.length;
            return meanOf([{ series: { m: [n - 2, [1, 2, 3]] } },
                           { series: { m: [n - 1, [3, 6]] } }], 'm'); })()""")
        self.assertEqual((found["xs"], found["ys"], found["low"], found["high"], found["n"]),
                         ([1, 2], [2, 4], [1, 2], [3, 6], 2))


class Live(Case):
    def serve(self, runs):
        self.enterContext(mock.patch.object(serve, "SECONDS", 0.3))
        server = self.enterContext(serve.Server(runs.path, "127.0.0.1", 0))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return server

    def new_runs(self):
        runs = made_up.Runs()
        self.addCleanup(shutil.rmtree, runs.path)
        return runs

    def test_news_come_and_choices_stay(self):
        runs = self.new_runs()
        add_study(runs)
        runs.rebuild()
        server = self.serve(runs)
        page = self.show(address=server.url + "experiment/study")
        self.tab_to(page, "e.dataset.toggles === '1-gate'")
        page.press(" ")
        runs.add("study", "2-gate+cross", 4, 2.5, ended=False, config=config_of(2))
        runs.rebuild()
        self.wait_for(page, "document.body.innerText.includes('running, last record')")
        self.assertEqual(page.value("document.activeElement.dataset.toggles"), "1-gate")
        self.assertEqual(self.drawn(page, "Validation loss"), ["0-mla", "2-gate+cross"])
        self.assertTrue(all(url.startswith(server.url) for url in page.requests()))
        self.assertEqual(page.faults(), [])
        self.compare(page, server)

    def test_the_first_finished_run_brings_the_table(self):
        """And other pictures before those that are there: each keeps its own choices."""
        runs = self.new_runs()
        runs.add("new", "0-mla", 1, 3.0, ended=False)
        runs.rebuild()
        page = self.show(address=self.serve(runs).url + "experiment/new")
        self.assertIn("no run is finished", page.value("document.body.innerText"))
        self.tab_to(page, "e.dataset.key === 'Plots: Training loss-logy'")
        page.press(" ")
        runs.add("new", "0-mla", 2, 3.1)
        runs.rebuild()
        self.wait_for(page, "document.querySelector('figure h3').textContent === 'Final loss'")
        self.assertEqual(page.value("[...document.querySelectorAll('[data-key$=-logy]:checked')]"
                                    ".map(e => e.dataset.key)"), ["Plots: Training loss-logy"])
        self.assertEqual(page.value("document.activeElement.dataset.key"), "Plots: Training loss-logy")
        self.assertEqual(page.faults(), [])

    def test_progress_comes_and_goes(self):
        runs = self.new_runs()
        add_study(runs)
        runs.add("study", "2-gate+cross", 4, 2.5, ended=False, config=config_of(2), until=40, pace=1)
        runs.plan("study", {step: (1, 2, 3, 4) for step in STEPS})
        runs.rebuild()
        server = self.serve(runs)
        page = self.show(address=server.url + "experiment/study")
        self.assertIn("9 of 12 runs done, 1 running, 2 waiting", page.value("document.body.innerText"))
        self.assertEqual(page.value("[...document.querySelectorAll('.planned progress')].map(p => p.value)"),
                         [0.75, 0.75, 0.85])
        for step in STEPS:
            runs.add("study", step, 4, 2.5, config=config_of(STEPS.index(step)))
        runs.plan("study", {step: (1, 2, 3, 4) for step in STEPS})
        runs.rebuild()
        self.wait_for(page, "!document.querySelector('progress')")
        self.assertEqual(page.faults(), [])

    def test_progress_on_a_phone(self):
        """What runs now is read in a line or two, not word by word."""
        runs = self.new_runs()
        add_study(runs)
        runs.add("study", "2-gate+cross", 4, 2.5, ended=False, config=config_of(2), until=40, pace=1)
        runs.plan("study", {step: (1, 2, 3, 4, 5) for step in STEPS})
        runs.rebuild()
        page = self.show(PHONE, address=self.serve(runs).url + "experiment/study")
        text = page.value("document.querySelector('.planned').innerText")
        self.assertIn("seed 4: iteration 40 of 100", text)
        heights = page.value("[...document.querySelectorAll('.planned td:last-child')].map(c => c.clientHeight)")
        self.assertLess(max(heights), 60)
        self.assertEqual(page.value(CUT_TABLES), [])

    def test_no_legend_before_there_is_a_curve(self):
        runs = self.new_runs()
        runs.add("new", "0-mla", 1, 3.0, until=0, ended=False)
        runs.rebuild()
        page = self.show(address=self.serve(runs).url + "experiment/new")
        self.assertIsNone(page.value("document.querySelector('.legend, #plots')"))
        runs.add("new", "0-mla", 2, 3.0, ended=False)
        runs.rebuild()
        self.wait_for(page, "document.querySelectorAll('figure svg').length > 2")
        self.assertEqual(page.faults(), [])

    def test_every_page_at_every_width(self):
        runs = self.new_runs()
        add_study(runs)
        identity = runs.add("study", "2-gate+cross", 4, 2.5, ended=False, config=config_of(2), until=40, pace=1,
                            audits=[("causality", "h.0", 0, "token 5 changes what token 3 says, by 0.1")])
        runs.plan("study", {step: (1, 2, 3, 4) for step in STEPS})
        runs.add("second", "0-mla", 1, 3.0, ended=False, config=config_of(0))
        runs.rebuild()
        server = self.serve(runs)
        for path, size, dark in itertools.product(
                ("", "experiment/study", "experiment/second", f"run/{identity}", "compare?a=study/0&b=second/0"),
                SIZES, (False, True)):
            with self.subTest(path=path, size=size, dark=dark):
                page = self.show(size, dark, server.url + path)
                self.assertEqual(page.value("document.documentElement.scrollWidth"), size[0])
                for what in (COVERED, CUT, CUT_TABLES):
                    self.assertEqual(page.value(what), [])
                self.assertGreater(page.value(CONTRAST), 4.5)
                self.assertEqual(page.faults(), [])

    def compare(self, page, server):
        """From the index, by keys, to any two."""
        page.open(server.url)
        self.tab_to(page, "e.name === 'b'")
        page.value("document.querySelector('[name=a]').value = 'study/0-mla';"
                   "document.querySelector('[name=b]').value = 'study/2-gate+cross'")
        self.tab_to(page, "e.textContent === 'compare'")
        page.press("Enter")
        self.wait_for(page, "document.querySelector('h1')?.textContent === "
                            "'study/2-gate+cross against study/0-mla'")
        self.wait_for(page, "document.querySelectorAll('figure svg').length > 5")
        self.assertEqual(self.drawn(page, "Validation loss"), ["study/0-mla", "study/2-gate+cross"])
        self.assertEqual(page.value("[...document.querySelectorAll('form select')].map(s => s.selectedOptions[0].text)"),
                         ["study: 0-mla, all seeds", "study: 2-gate+cross, all seeds"])

    def wait_for(self, page, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if page.value(condition):
                return
            time.sleep(0.1)
        self.fail(f"after {seconds} seconds still not: {condition}")


if __name__ == "__main__":
    tap.main()
