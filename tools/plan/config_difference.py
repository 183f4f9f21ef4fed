"""The symbols in which two configurations differ, without those that only follow from others.

A switch brings symbols with it: if a step has a gate and its baseline has none, the gate's default
width says nothing new.  Kconfig knows the default of a symbol, given all the others.
"""
import functools

from tools.plan import kconfig


@functools.cache
def kconfig_tree():
    return kconfig.Tree()


def load(tree, config, scale):
    """Loads the configuration, without symbols that no longer exist."""
    tree.unset_values()
    for name, value in [("SCALE", scale), *config.items()]:
        if value is not None and tree.find(name):
            tree.assign(kconfig.Assignment(name, value, ""))


def usual(config, scale, names):
    """The names whose symbols have their default value."""
    tree = kconfig_tree()
    load(tree, config, scale)
    for name in filter(tree.find, names):
        if tree.default(tree.find(name)) == config[name]:
            yield name


def difference(a, b):
    """Of two steps: (symbol, in a, in b); None where a symbol is inactive."""
    noise = set()
    for has, lacks in ((a, b), (b, a)):
        only = [name for name in has.config if name not in lacks.config]
        noise.update(usual(has.config, has.runs[0].scale, only))
    return [(symbol, a.config.get(symbol), b.config.get(symbol))
            for symbol in sorted(a.config.keys() | b.config.keys())
            if a.config.get(symbol) != b.config.get(symbol) and symbol not in noise]
