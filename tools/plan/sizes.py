"""The plan 'sizes': the same steps at several scales.

CONFIG_PLAN_SCALES names the scales, each as fragments and settings joined by "+", such as "1m+corpus-8k".
What .config has beside the defaults of its own scale holds at every scale; all else has the default of
the scale.  Steps are numbered through all scales.  In CONFIG_PLAN_FRAGMENTS and CONFIG_PRIMARY a
number means the step of that number at every scale: with 5 steps, "parameters-of-2" is step 2 at the
first scale and step 7 at the second.  A step's name begins with its scale: 7-30m.mla+gate.
"""
import re

from tools.plan import kconfig
from tools.plan.kconfig import Unfit

KIND = "sizes"
NUMBERED = re.compile(r"((?:again|null|against|parameters-of|flops-of)-)([0-9]{1,9})")
STEP = re.compile(r"([0-9]+)-([^.]+)\.(.+)")       # number, scale and label in the name of a step


def scales(values):
    return (values["PLAN_SCALES"] or "").split()


def labels(words):
    """The first part of each word; the whole word where two begin alike."""
    first = [word.split("+")[0] for word in words]
    found = [(part if first.count(part) == 1 else word).replace("=", "-") for word, part in zip(words, first)]
    for label in found:
        if "." in label or found.count(label) > 1:
            raise Unfit([f"CONFIG_PLAN_SCALES: {label}: scales have different names, without a '.'"])
    return found


def checked(symbol, word, number, steps):
    if number >= steps:
        raise Unfit([f"{symbol}: {word}: a scale has the steps 0 to {steps - 1}"])
    return number


def moved(word, by, steps):
    """The word of a plan with numbers of steps of another scale."""
    def number(found):
        return found[1] + str(by + checked("CONFIG_PLAN_FRAGMENTS", word, int(found[2]), steps))
    return "+".join(NUMBERED.sub(number, part) if NUMBERED.fullmatch(part) else part for part in word.split("+"))


def at_each_scale(values, words):
    """The words of all steps."""
    named = scales(values)
    if len(named) < 2:
        raise Unfit(["CONFIG_PLAN_SCALES: the plan 'sizes' compares two scales or more, such as \"1m small 30m\""])
    return [moved(word, i * len(words), len(words)) for i in range(len(named)) for word in words]


def primary_words(values, kind):
    """Of CONFIG_PRIMARY: a comparison of steps is made at every scale."""
    words = values["PRIMARY"].split()
    if kind != KIND:
        return words
    steps, found = len(values["PLAN_FRAGMENTS"].split()), []
    for word in words:
        parts = word.split(":")
        found += [word] if not all(part.isdigit() for part in parts) else [
            ":".join(str(i * steps + checked("CONFIG_PRIMARY", word, int(part), steps)) for part in parts)
            for i in range(len(scales(values)))]
    return found


def configurations(tree, words, read_layers):
    """Scale -> its whole configuration, as assignments.  The tree has the present configuration."""
    own, _ = tree.parse(tree.minimal().split("\n"), kconfig.shorten(kconfig.config_path()))
    found = {}
    for label, word in zip(labels(words), words):
        tree.merge(own, *read_layers(tree, word.split("+")))
        found[label], _ = tree.parse(tree.config_text().split("\n"), label)
    return found
