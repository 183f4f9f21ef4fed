"""Steps of a table that are the cells of a grid, and the effects that the grid has.

Two steps are cells of a grid if a third one has the changes of both: the configurations decide, not
the words of the plan.  If the grid is complete, the main effect of a change is its mean over all
settings of the others.  The interaction of two changes is what both together do beyond the sum of
what each does alone, again as a mean over the rest.  If combinations are missing, there are only
interactions, each from its own square of four steps.  The learning rates that a tuned step chose
are no change of their own: they belong to what it changes.
"""
import itertools
from dataclasses import dataclass

from tools.plan import tuning


@dataclass
class Effect:
    name: str
    is_interaction: bool
    cells: list         # (step, coefficient)


def changes(root, step, free=()):
    """The symbols in which a step differs from the root, with its values, without the free ones."""
    a, b = root.config, step.config
    return frozenset((name, b.get(name)) for name in (a.keys() | b.keys()).difference(free)
                     if a.get(name) != b.get(name))


def is_atom(change, cells):
    """Is it no sum of two other cells?  (Both may bring the same symbol with them.)"""
    parts = [part for part in cells if part < change]
    return not any(a | b == change for a, b in itertools.combinations(parts, 2))


def exclude_each_other(a, b):
    """One contains the other, or they give a symbol different values."""
    return a <= b or b <= a or len(dict(a | b)) < len(a | b)


def axes_of(cells):
    """Changes that exclude each other are values of one axis."""
    axes = []
    for change in cells:
        if not change or not is_atom(change, cells):
            continue
        own = [axis for axis in axes if any(exclude_each_other(change, other) for other in axis)]
        axes = [axis for axis in axes if axis not in own] + [sum(own, []) + [change]]
    return axes


def label_of(change, cells):
    """The words that a step has and the root has not."""
    root = cells[frozenset()].name.split("-", 1)[-1].split("+")
    words = cells[change].name.split("-", 1)[-1].split("+")
    return "+".join(word for word in words if word not in root) or \
        ", ".join(f"{name}={value}" for name, value in sorted(change))


def contrast(chosen, axes, cells):
    """Each chosen change against no change of its axis; the mean over all values of the other axes."""
    factors = []
    for axis in axes:
        own = [change for change in axis if change in chosen]
        factors.append([(own[0], 1.0), (frozenset(), -1.0)] if own else
                       [(value, 1 / (len(axis) + 1)) for value in [frozenset(), *axis]])
    found = []
    for cell in itertools.product(*factors):
        coefficient = 1.0
        for _, factor in cell:
            coefficient *= factor
        found.append((cells[frozenset().union(*(value for value, _ in cell))], coefficient))
    return found


def is_full(axes, cells):
    combined = {frozenset().union(*values)
                for values in itertools.product(*([frozenset(), *axis] for axis in axes))}
    return combined == cells.keys()


def effects_of(steps, root, tuned=()):
    """Of the steps that can be compared with the root, which is one of them.

    `tuned` names steps.  Where the root and a step are both tuned, their rates are free.
    """
    cells = {}
    for step in [root, *steps]:
        free = tuning.RATES if {root.name, step.name} <= set(tuned) else ()
        cells.setdefault(changes(root, step, free), step)
    axes = axes_of(cells)
    if len(axes) < 2:
        return []
    full, found = is_full(axes, cells), []
    if full:
        found = [Effect(label_of(change, cells), False, contrast([change], axes, cells))
                 for axis in axes for change in axis]
    for one, other in itertools.combinations(axes, 2):
        for a, b in itertools.product(one, other):
            if a | b in cells:
                square = axes if full else [[a], [b]]
                found.append(Effect(f"{label_of(a, cells)} × {label_of(b, cells)}", True,
                                    contrast([a, b], square, cells)))
    return found
