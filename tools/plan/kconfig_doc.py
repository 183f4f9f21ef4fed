#!/usr/bin/env python3
"""Write the configuration reference: every symbol of the Kconfig files, menu by menu, as Markdown.

The page goes to standard output; `make config-reference` keeps it in the build directory.  Only
help texts explain symbols, so the page is made from them and never edited.
"""
import sys

import kconfiglib
from kconfiglib import BOOL, INT, MENU, Choice, Symbol, expr_str

from tools.plan import kconfig
from tools.terminal import terminal

TITLE = "# Configuration reference\n\nMade from the Kconfig files by `make config-reference`.\n"


def main(argv=None):
    terminal.parser(__doc__, "python3 -m tools.plan.kconfig_doc > configuration.md").parse_args(argv)
    print(reference(kconfig.Tree()))


def reference(tree):
    return "\n".join([TITLE, *entries(tree, tree.top_node.list, 2)])


def entries(tree, node, level):
    """The lines of a list of nodes; what stands in a menu is one level deeper."""
    while node:
        if node.item is MENU:
            yield f"{'#' * level} {node.prompt[0]}\n"
            yield from entries(tree, node.list, min(level + 1, 4))
        else:
            if isinstance(node.item, (Symbol, Choice)) and node.prompt and not is_member(node.item):
                yield from entry(tree, node)
            yield from entries(tree, node.list, level)
        node = node.next


def is_member(item):
    return isinstance(item, Symbol) and item.choice is not None


def entry(tree, node):
    item = node.item
    needs = conditions(node.dep)
    yield f"**CONFIG_{item.name}** {node.prompt[0]} ({kind(tree, item, needs)})\n"
    if needs:
        yield f"Needs {' and '.join(needs)}.\n"
    if node.help:
        yield f"{quoted(node.help)}\n"
    if isinstance(item, Choice):
        for member in item.syms:
            yield from choice_member(tree, member)


def conditions(expression):
    return [text for text in map(expr_str, kconfig.terms(expression)) if text != "y"]


def choice_member(tree, member):
    value = tree.members[member.name][1]
    text = next((n.help for n in member.nodes if n.help), "")
    yield f"- `{value}`: {member.nodes[0].prompt[0].removeprefix(value + ': ')}"
    if text:
        yield "\n" + quoted(text, "  ")
    yield ""


def quoted(text, indent=""):
    """As it was laid out: help texts hold formulas and tables."""
    return "\n".join(f"{indent}    {line}".rstrip() for line in text.strip("\n").split("\n"))


def kind(tree, item, needs):
    if isinstance(item, Choice):
        return f"a choice; default {choice_defaults(tree, item, needs)}"
    name = {BOOL: "y or n", INT: "integer"}.get(item.orig_type)
    if name is None:
        name = "number" if kconfig.is_number(item) else "text"
    ranges = [f"{low.str_value} to {high.str_value}" for low, high, _ in item.ranges[:1]]
    return "; ".join([name, *ranges, f"default {symbol_defaults(item, needs)}"])


def choice_defaults(tree, choice, needs):
    chosen = choice.defaults or [(choice.syms[0], tree.y)]
    return alternatives([(tree.members[sym.name][1], condition) for sym, condition in chosen],
                        needs)


def symbol_defaults(item, needs):
    if not item.defaults:
        return "`n`" if item.orig_type is BOOL else '`""`'
    return alternatives([(expr_str(value), condition) for value, condition in item.defaults],
                        needs)


def alternatives(values, needs):
    """`value` if condition, else `value`; conditions that the item needs anyway are left out."""
    texts = []
    for value, condition in values:
        only = [text for text in conditions(condition) if text not in needs]
        texts.append(f"`{value}`" + (f" if {' and '.join(only)}" if only else ""))
    return ", else ".join(texts)


if __name__ == "__main__":
    try:
        main()
    except kconfig.Unfit as error:
        sys.exit("\n".join(error.problems))
    except kconfiglib.KconfigError as error:
        sys.exit(str(error))
