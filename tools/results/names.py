"""What files say and programs use as a name, a path, or a word of make or of a shell.

Every reader of such files checks it here, where the file's text becomes a value.  core/util/name.h has
the same rules for the programs in C.
"""
import re

NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*")     # nothing that make, a shell or a path reads
IN_A_NAME = "a name has letters, digits and ._+- and begins with neither . nor -"
STEP = re.compile(NAME.pattern + r"(@[A-Za-z0-9._+-]+)?")   # with a rate that is tried
IDENTITY = re.compile("[0-9a-f]{64}")
BEGINNING = re.compile("[0-9a-f]{16,64}")               # as far as small files keep identities
SYMBOL = re.compile("[A-Za-z0-9_]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def checked(rule, what, text):
    """The text itself; ValueError if the rule does not allow it."""
    if not isinstance(text, str) or not rule.fullmatch(text):
        reason = IN_A_NAME if rule in (NAME, STEP) else \
            "expected 64 hexadecimal digits" if rule in (IDENTITY, BEGINNING) else "no symbol"
        raise ValueError(f"{what} {text!r}: {reason}")
    return text


def whole(what, value):
    if type(value) is not int:      # SQLite's columns take values of any type
        raise ValueError(f"{what} {value!r}: expected a whole number")
    return value


def check_run(experiment, step, baseline, identity, seed, identity_rule=IDENTITY):
    """ValueError if something in the name of a run, or of its directory, is none."""
    checked(NAME, "experiment", experiment)
    checked(STEP, "step", step)
    checked(identity_rule, "identity", identity)
    whole("seed", seed)
    if baseline is not None:
        checked(STEP, "baseline", baseline)


def checked_symbols(symbols):
    """CONFIG_ names and their values, as a record has them."""
    if not isinstance(symbols, dict):
        raise ValueError("config: expected symbols and their values")
    for name, value in symbols.items():
        checked(SYMBOL, "symbol", name)
        if not isinstance(value, str) or CONTROL.search(value):
            raise ValueError(f"symbol {name}: {value!r} is not one line of text")
    return symbols
