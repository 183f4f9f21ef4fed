"""labels: every name has its place, however near the points are."""
import itertools
import math
import random
import unittest

from tools.report import label_layout
from tools.testing import tap

WIDTH, HEIGHT = 360, 228


def named(places):
    return [(x, y, str(i)) for i, (x, y) in enumerate(places)]


class Lines(unittest.TestCase):
    def test_crossing(self):
        box = label_layout.Box(10, 10, 20, 20)
        for line, crosses in ((((0, 0), (30, 30)), True), (((12, 12), (14, 13)), True),
                              (((15, 0), (15, 30)), True), (((0, 0), (9, 9)), False),
                              (((0, 15), (30, 15)), True), (((0, 25), (30, 25)), False),
                              (((0, 15), (15, 45)), False), ((), False)):
            self.assertEqual(box.is_crossed(line), crosses)
            self.assertEqual(box.is_crossed(line[::-1]), crosses)


class Place(unittest.TestCase):
    def check(self, points):
        """All names, none outside, none on another, on a point or on a line."""
        found = label_layout.place(points, WIDTH, HEIGHT)
        self.assertEqual([label.text for label in found], [text for _, _, text in points])
        frame = label_layout.Box(0, 0, WIDTH, HEIGHT)
        for label in found:
            self.assertTrue(label.box.within(frame))
            for x, y, _ in points:
                self.assertFalse(label.box.meets(label_layout.Box.around(x, y, 12, 12)))
        for one, other in itertools.permutations(found, 2):
            self.assertFalse(one.box.meets(other.box))
            self.assertFalse(one.box.is_crossed(other.line))
        return found

    def test_alone(self):
        label, = self.check([(100, 100, "7")])
        self.assertLess(math.dist((label.x, label.y), (100, 100)), label_layout.APART)
        self.assertGreater(label.x, 100)
        self.assertFalse(label.line)

    def test_corners(self):
        self.check(named([(6, 6), (WIDTH - 6, 6), (6, HEIGHT - 6), (WIDTH - 6, HEIGHT - 6)]))

    def test_one_on_the_other(self):
        lines = [label.line for label in self.check(named([(180, 100)] * 18)) if label.line]
        self.assertTrue(lines)
        for begin, end in lines:
            self.assertEqual(begin, (180, 100))
            self.assertGreater(math.dist(begin, end), label_layout.POINT)

    def test_a_column(self):
        found = self.check(named([(20, 30 + 7 * i) for i in range(18)]))
        for i, label in enumerate(found):   # those beside another point have lines
            if not label.line:
                self.assertEqual(min(range(18), key=lambda k: math.dist(
                    (label.x, label.y), (20, 30 + 7 * k))), i)

    def test_crowds(self):
        draw = random.Random(1)
        for n, spread in itertools.product((3, 8, 18), (0.5, 5, 20, 60)):
            self.check(named([(min(max(draw.gauss(120, spread), 6), WIDTH - 6),
                               min(max(draw.gauss(110, spread), 6), HEIGHT - 6))
                              for _ in range(n)]))

    def test_a_full_frame(self):
        self.assertLess(len(label_layout.place(named([(20, 20)] * 9), 40, 40)), 9)


if __name__ == "__main__":
    tap.main()
