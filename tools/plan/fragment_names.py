"""Does the name of a fragment say what it sets?  latent-dim-8 sets no 16, and adamw no muon.

Numbers in a name are those of the symbols with which it shares a word, or of an alias: lr-5e-3 and
dot-kv2 share none.  A name that is a mechanism or a kind of attention, feed-forward or optimizer
must set it.  A part of the model sets nothing of training or data.
"""
import re

from tools.plan import kconfig

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
NUMBERS = re.compile(NUMBER)
ALIASES = {"lr": ("LEARNING_RATE", "MUON_LEARNING_RATE"), "score": ("RA_MLA_RA_ALPHA",),
           "kv": ("ATTENTION_KV_HEADS",), "e": ("MODEL_EMBD",), "topk": ("RA_MLA_MLP_SPARSE_K",)}
ALIASED = re.compile(rf"(?<![a-z0-9.])({'|'.join(ALIASES)})[-_]?({NUMBER})(?![a-z0-9.])")
SWITCHES = {"gate": "RA_MLA_MLP_ATTN_GATE", "cross": "RA_MLA_MLP_CROSS_TOKEN", "latent": "RA_MLA_MLP_LATENT_RECIP"}
KINDS = ("ATTENTION", "FFN", "OPTIMIZER")
TRAINING = "core/", "data/"     # whose Kconfig files


def is_spelled(word, value):
    """Is it in the name, perhaps with a number behind it?  tying-per-head-scalar has per_head_scalar."""
    return re.search(rf"(?<![a-z0-9]){value.replace('_', '[-_]')}[0-9.]*(?![a-z0-9])", word)


def says(tree, word, a):
    """None: the name says nothing of this symbol."""
    choice = tree.named_choices.get(a.name)
    if choice:
        named = [value for value in tree.values_of(choice) if is_spelled(word, value)]
        return a.value in named if named else None
    its_numbers = {float(number) for number in NUMBERS.findall(word)}
    values = [part for part in a.value.split(",") if kconfig.NUMBER.fullmatch(part)]
    if not (its_numbers and values and set(re.split(r"[-_]", word)).intersection(a.name.lower().split("_"))):
        return None
    return not its_numbers.isdisjoint(map(float, values))


def claims(tree, word):
    """What the name promises: (symbols, value), of which one symbol must have it."""
    found = [(ALIASES[alias], number) for alias, number in ALIASED.findall(word)]
    found += [((SWITCHES[word],), "y")] if word in SWITCHES else []
    return found + [((name,), word) for name in KINDS if word in tree.values_of(tree.named_choices[name])]


def is_told(tree, word, a):
    return says(tree, word, a) is not None or any(a.name in symbols for symbols, _ in claims(tree, word))


def is_equal(value, other):
    return value == other or bool(kconfig.NUMBER.fullmatch(value)) and kconfig.NUMBER.fullmatch(other) and \
        float(value) == float(other)


def is_of_model(tree, word):
    return any(symbols[0] != "OPTIMIZER" and value in (word, "y") for symbols, value in claims(tree, word))


def is_of_training(tree, name):
    return tree.find(name).nodes[0].filename.startswith(TRAINING)


def problem(tree, word, assignments):
    """A sentence; None: the name is right."""
    for a in assignments:
        if says(tree, word, a) is False:
            return f"{a}: the name of the fragment says something else"
    for symbols, value in claims(tree, word):
        if not any(a.name in symbols and is_equal(a.value, value) for a in assignments):
            told = [str(a) for a in assignments if a.name in symbols]
            return f"{told[0]}: the name of the fragment says something else" if told else \
                f"the name of the fragment {word} says CONFIG_{symbols[0]}={value}, but it does not set that"
    stray = next((a for a in assignments if is_of_model(tree, word) and is_of_training(tree, a.name)), None)
    return stray and f"{stray}: the name of the fragment says nothing of training or data; another fragment can set it"
