"""The page in a real browser: wide and narrow, light and dark, by mouse and by keys alone, offline
and live."""
import collections
import itertools
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time
import unittest
from unittest import mock

from tools.report import made_up, report, serve
from tools.testing import as_user, browser, tap

DESKTOP, PHONE = (1400, 1000), (390, 844)
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
    return {"TASK": "language", "WIDTH": str(number)}


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
        for size in (DESKTOP, PHONE):
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
        for size in (DESKTOP, PHONE):
            with self.subTest(size=size):
                page = self.show(size, address=address)
                self.assertEqual(page.faults(), [])
                self.assertEqual(page.value("document.documentElement.scrollWidth"), size[0])
                self.assertEqual(page.value(COVERED), [])
                self.assertEqual(page.value(CUT), [])
                numbers = page.value(f"[...{svg_of('Loss against parameters')}"
                                     ".querySelectorAll('[data-step] text')].map(t => t.textContent)")
                self.assertEqual(sorted(map(int, numbers)), list(range(18)))

    def test_axes(self):
        page = self.show()
        for title in TITLES:
            with self.subTest(title=title):
                ticks = self.ticks(page, title)
                self.assertLessEqual(max(collections.Counter(ticks).values()), 2)   # once per axis
        self.assertIn("0", self.ticks(page, "Difference to the baseline"))
        parameters = [t for t in self.ticks(page, "Loss against parameters") if t.endswith("M")]
        self.assertGreater(len(set(parameters)), 2)

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
                          "e.getAttribute('aria-label').startsWith('Gradient norm')")
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
        self.wait_for(page, "document.body.innerText.includes('running, last sign')")
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

    def wait_for(self, page, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if page.value(condition):
                return
            time.sleep(0.1)
        self.fail(f"after {seconds} seconds still not: {condition}")


if __name__ == "__main__":
    tap.main()
