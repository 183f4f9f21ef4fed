"""Places the names of points in a plot, so that no name covers another name or a point.

All in pixels.  A name stands as near to its point as there is room; a name farther away gets a line
to its point.  The names of a crowd stand around it, as far away as they need room.
"""
import itertools
import math
from dataclasses import dataclass

LETTER, LINE = 9, 14    # room for a letter of 13 pixels
POINT = 6               # from a point's centre to its edge
NEAR, STEP = 12, 4      # the first distance that is tried, and how much farther the next
APART = 22              # the distance from which on a name has a line
CROWD = 14              # nearer points have their names farther away: as far as one of ...
AWAY = (NEAR, 26, 40, 60, 80, 110)
TRIES = 4               # at each of these
TURNS = sorted(range(-15, 17), key=abs)     # of which 32 are a whole one, from the upper right on


@dataclass
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x, y, width, height):
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    @property
    def middle(self):
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def meets(self, other):
        return (self.left < other.right and other.left < self.right
                and self.top < other.bottom and other.top < self.bottom)

    def within(self, other):
        return (other.left <= self.left and self.right <= other.right
                and other.top <= self.top and self.bottom <= other.bottom)

    def is_crossed(self, line):
        """Does a part of the line lie inside?  A line is a pair of points, or None."""
        if not line:
            return False
        (x, y), (to_x, to_y) = line
        enters, leaves = 0, 1   # parts of the way
        for at, way, low, high in ((x, to_x - x, self.left, self.right),
                                   (y, to_y - y, self.top, self.bottom)):
            if abs(way) < 1e-9:
                if not low < at < high:
                    return False
                continue
            one, other = sorted(((low - at) / way, (high - at) / way))
            enters, leaves = max(enters, one), min(leaves, other)
        return enters < leaves


@dataclass
class Label:
    text: str
    x: float        # its middle
    y: float
    line: tuple     # both ends, or nothing

    def __post_init__(self):
        self.box = Box.around(self.x, self.y, LETTER * len(self.text), LINE)

    def disturbs(self, other):
        return (self.box.meets(other.box) or self.box.is_crossed(other.line)
                or other.box.is_crossed(self.line))


def candidates(x, y, text, nearest, farthest):
    """Nearest first."""
    for distance in range(nearest, farthest, STEP):
        for turn in TURNS:
            angle = math.pi / 4 + math.pi / 16 * turn
            right, down = math.cos(angle), -math.sin(angle)
            end = distance - LINE / 2 - 1   # before the text
            yield Label(text, x + distance * right, y + distance * down,
                        ((x, y), (x + end * right, y + end * down)) if distance >= APART else ())


def is_told(label, own, points):
    """Does the place show whose name it is?  Without a line no other point may be nearer; a line
    may cross only points that cover its own."""
    if label.line:
        return not any(point.is_crossed(label.line) for point in points
                       if not point.meets(Box.around(*own.middle, 1, 1)))
    away = [math.dist(point.middle, (label.x, label.y)) for point in points]
    return math.dist(own.middle, (label.x, label.y)) <= min(away) + 1


def find(own, text, points, others, frame, away, strict):
    """The nearest good place, or None; a crowd's names stand at least this far away."""
    near = sum(math.dist(own.middle, point.middle) < CROWD for point in points)
    for label in candidates(*own.middle, text, away if near > 1 else NEAR, 2 * AWAY[-1]):
        if label.box.within(frame) and not any(map(label.box.meets, points)) \
                and not any(map(label.disturbs, others)) \
                and (not strict or is_told(label, own, points)):
            return label
    return None


def place(points, width, height):
    """The labels of points (x, y, text) in a frame of this size; a full frame lacks some."""
    boxes = [Box.around(x, y, 2 * POINT, 2 * POINT) for x, y, _ in points]
    frame = Box(0, 0, width, height)
    # From above; a point that found no place comes first the next time.
    order = sorted(range(len(points)), key=lambda i: boxes[i].top)
    for strict, away, _ in itertools.product((True, False), AWAY, range(TRIES)):
        labels = {}
        for i in order:
            found = find(boxes[i], points[i][2], boxes, labels.values(), frame, away, strict)
            labels |= {i: found} if found else {}
        if len(labels) == len(points):
            break
        order.sort(key=labels.__contains__)
    return [label for _, label in sorted(labels.items())]
