"""Ranges of values, as lines in the help of a symbol.

Kconfig knows ranges of integers only.  Here a line of a symbol's help says what must hold:

    Range: 0 < x < 1                    x is the symbol's own value
    Range: x = 0 or MODEL_HEADS % x = 0     a name is the value of another symbol
    Range: any                          every number is allowed
    List: 0 <= x                        whole numbers separated by commas, none twice; x is each
    List of reals: 0 < x                likewise

A list may be empty if a default of the symbol is empty.  A line that names an inactive symbol is
ignored.
"""
import ast
import math
import operator
import re

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MARK = re.compile(r"(Range|List|List of reals): (.+)")
OWN = "x"
ANY = "any"

BINARY = {ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Add: operator.add,
          ast.Sub: operator.sub, ast.Div: operator.truediv}
COMPARISON = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
              ast.GtE: operator.ge, ast.Eq: operator.eq}


class Range:
    """One such line.  ValueError if this module does not understand it."""

    def __init__(self, kind, text):
        self.kind, self.text = kind, text
        try:
            self.tree = ast.parse(re.sub(r"(?<![<>=])=", "==", text), mode="eval").body
        except SyntaxError:
            raise ValueError(f"'{kind}: {text}' cannot be understood") from None
        self.names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} - {OWN}
        if text == ANY:
            self.tree, self.names = ast.Constant(True), set()
        self.holds(dict.fromkeys(self.names, 1), 1)     # fails on an unknown part

    def holds(self, values, own):
        return evaluate(self.tree, {**values, OWN: own})

    def problem(self, values, text, may_be_empty):
        """What is wrong with a value in the text of a file; None: nothing."""
        try:
            numbers = [number(text)] if self.kind == "Range" else \
                list_of(text, number if self.kind == "List of reals" else whole_number)
        except ValueError as error:
            return None if may_be_empty and not text else str(error)
        others = {name: number(values[name]) for name in self.names}
        if all(self.holds(others, own) for own in numbers):
            return None
        known = "".join(f", and {name} is {values[name]}" for name in sorted(self.names))
        return f"out of range, which is {self.text}{known}"


def evaluate(node, values):
    """Of an expression with numbers, names, comparisons, 'and' and 'or'."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return BINARY[type(node.op)](evaluate(node.left, values), evaluate(node.right, values))
    if isinstance(node, ast.BoolOp):
        combine = all if isinstance(node.op, ast.And) else any
        return combine(evaluate(part, values) for part in node.values)
    if isinstance(node, ast.Compare) and all(type(op) in COMPARISON for op in node.ops):
        sides = [evaluate(side, values) for side in (node.left, *node.comparators)]
        return all(COMPARISON[type(op)](left, right)
                   for op, left, right in zip(node.ops, sides, sides[1:]))
    raise ValueError(f"'{ast.unparse(node)}' cannot be understood")


def number(text):
    """Finite, and exact where it is an integer."""
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError("not a number")
    return int(text) if re.fullmatch("[+-]?[0-9]+", text) else float(text)


def whole_number(text):
    if not re.fullmatch("[0-9]+", text):
        raise ValueError("not a whole number")
    return int(text)


def list_of(text, read):
    """Numbers of a list such as "0, 1,2"."""
    try:
        found = [read(word) for word in re.split(r"\s*,\s*", text.strip())]
    except ValueError:
        kind = "whole numbers" if read is whole_number else "numbers"
        raise ValueError(f"expected {kind} separated by commas") from None
    if len(set(found)) < len(found):
        raise ValueError("a number occurs twice")
    return found


def ranges_of(item):
    """The ranges in the help of a symbol or choice."""
    lines = [line.strip() for node in item.nodes for line in (node.help or "").split("\n")]
    return [Range(*match.groups()) for match in map(MARK.fullmatch, lines) if match]
