"""Factors of a plan: symbols with the values to compare, in one line.

    NORM=layer|rms; MODEL_HEADS=2|8|16

A factor is separated from the next by ";", its values by "|".  The first value of each is the
baseline's.  A value may bring other words of a plan with it: ATTENTION=dot|mla+RA_MLA_LATENT_DIM=8.
A grid gives each value of a factor that begins with "per:" a baseline of its own.
"""
import re

from kconfiglib import BOOL, INT, Choice

from tools.plan import kconfig
from tools.plan.compared import either

PER = "per:"
FACTOR = re.compile(r"(per:)?\s*(?:CONFIG_)?(\w+)\s*=\s*(.*)")
VALUE = re.compile(r"[A-Za-z0-9._-]+")     # it becomes part of a step's name


def parse(text):
    """(prefix, symbol, values) of each factor; ValueError: it is not written as above."""
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = FACTOR.fullmatch(part)
        if not match:
            raise ValueError(f"'{part}' is no factor, which is written as NORM=layer|rms")
        values = [value.strip() for value in match[3].split("|")]
        if len(values) < 2:
            raise ValueError(f"{match[2]} has a single value; a factor has several, as in "
                             "NORM=layer|rms")
        if match[2] in (symbol for _, symbol, _ in found):
            raise ValueError(f"{match[2]} occurs twice")
        found.append((match[1] or "", match[2], values))
    return found


def words(text):
    """As words of a grid: "NORM=layer|NORM=rms"."""
    return [prefix + "|".join(f"{symbol}={value}" for value in values)
            for prefix, symbol, values in parse(text)]


def problem(tree, text):
    """What is wrong with the text of CONFIG_PLAN_FACTORS, in one sentence; None: nothing."""
    try:
        for word in words(text):
            for setting in re.split(r"[|+]", word.removeprefix(PER)):
                if "=" in setting:
                    read_setting(tree, setting)
    except ValueError as error:
        return str(error)
    return None


# ---------------------------------------------------------------- one symbol

def name_of(setting):
    """As in the name of a step: norm-rms."""
    symbol, _, value = setting.partition("=")
    return f"{symbol.lower().replace('_', '-')}-{value}"


def read_setting(tree, setting):
    """Symbol and value of a word such as NORM=rms; ValueError: the symbol does not take the value."""
    symbol, _, value = setting.removeprefix("CONFIG_").partition("=")
    item = tree.find(symbol)
    if item is None:
        tree.understand(symbol, value)      # has a sentence for it
    if symbol in tree.members:
        choice, own = tree.members[symbol]
        raise ValueError(f"{symbol} is a value of {choice.name}: write {choice.name}={own}")
    if kconfig.is_for_tools(item):
        raise ValueError(f"{symbol}: a step cannot change what only the tools read")
    if not fits(tree, item, value):
        raise ValueError(f"{symbol} takes {what_it_takes(tree, item)}, not '{value}'")
    if not VALUE.fullmatch(value):
        raise ValueError(f"{symbol}={value}: a value in a plan has letters, digits and ._-; write any "
                         "other value into a fragment")
    return symbol, value


def bounds(item):
    """Of an integer; None where they depend on other symbols."""
    return [int(end.str_value) for end in item.ranges[0][:2]] if len(item.ranges) == 1 else None


def own_ranges(tree, item):
    """Those that name no other symbol: the others are checked with the whole configuration."""
    return [one for one in tree.ranges[item] if not one.names]


def fits(tree, item, value):
    """Whatever else is configured."""
    if isinstance(item, Choice):
        return value in tree.values_of(item)
    if item.orig_type is BOOL:
        return value in ("y", "n")
    if item.orig_type is INT:
        low, high = bounds(item) or (-float("inf"), float("inf"))
        return bool(kconfig.INTEGER.fullmatch(value)) and low <= int(value) <= high
    return not tree.text_problem(item, value) and \
        not any(one.problem({}, value, False) for one in own_ranges(tree, item))


def what_it_takes(tree, item):
    """In words."""
    if isinstance(item, Choice):
        return either(tree.values_of(item))
    if item.orig_type is BOOL:
        return "y or n"
    if item.orig_type is INT:
        return "integers from {} to {}".format(*bounds(item)) if bounds(item) else "integers"
    kinds = [("a list of numbers x" if one.kind.startswith("List") else "numbers x") + f" with {one.text}"
             for one in own_ranges(tree, item) if one.text != "any"]
    return either(kinds) or ("numbers" if kconfig.is_number(item) else "text")
