#!/usr/bin/env python3
"""Configure kablate, strictly.

kconfiglib drops unknown symbols, values with unmet dependencies and values out of range, with a
warning at most.  Here each of them is an error that names file, line and reason: what runs is
what .config says.  Choices have names: CONFIG_ATTENTION="mla" selects CONFIG_ATTENTION_MLA, and
the program reads the choice as the text symbol ATTENTION.

KCONFIG_CONFIG names another file than .config.
"""
import argparse
import difflib
import errno
import os
import pathlib
import re
import sys
import textwrap
from typing import NamedTuple

import kconfiglib
from kconfiglib import AND, BOOL, INT, OR, STRING, Choice, Symbol, expr_str, expr_value

from tools.plan import ranges
from tools.plan.ranges import NUMBER
from tools.results import plain, renamed
from tools.results.names import IN_A_NAME, NAME

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
DEFCONFIGS = os.path.join(ROOT, "defconfigs")
FRAGMENTS = os.path.join(DEFCONFIGS, "fragments")
DIALOG_WIDTH, HELP_WIDTH = 72, 68   # in a terminal of 80 columns
PARAGRAPH = re.compile(r"(?:^(?!List|Range|\s).+\n?)+", re.MULTILINE)
# Their symbols are for the tools, the program never sees them.
TOOLS_KCONFIG = ("tools/plan/Kconfig", "tools/cluster/Kconfig")

ASSIGNMENT = re.compile(r"CONFIG_(\w+)=(.*)")
NOT_SET = re.compile(r"# CONFIG_(\w+) is not set")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
OWN = "# set by the user: "     # a line of .config: what does not follow the device


class Assignment(NamedTuple):
    """A line of a file.  A chosen member of a choice is written as the choice and its value."""
    name: str
    value: str
    where: str

    def __str__(self):
        return f"{self.where}: CONFIG_{self.name}={self.value}"


class Unfit(OSError):
    """What is wrong, one line each.  (kconfiglib's menus show an OSError in a dialog.)"""

    def __init__(self, problems, assignments=()):
        super().__init__(errno.EINVAL, "\n".join(textwrap.fill(one, DIALOG_WIDTH) for one in problems))
        self.problems = problems
        self.assignments = assignments      # that must go for the rest to fit

    def __str__(self):
        return "\n".join(self.problems)


class Tree(kconfiglib.Kconfig):
    """The Kconfig files and, after merge(), one configuration."""

    def __init__(self):
        os.environ["srctree"] = ROOT
        os.environ["KCONFIG_WARN_UNDEF"] = "y"
        try:
            super().__init__("Kconfig", warn_to_stderr=False)
        except kconfiglib.KconfigError as error:
            raise Unfit([str(error).strip()]) from None
        if self.warnings:
            raise Unfit(self.warnings)
        self.warn = False  # from here on merge() looks for itself, and more closely
        self.config_header = "# kablate configuration; see make help\n"
        self.members = {}  # member -> its choice and its value there
        for choice in self.unique_choices:
            for sym in choice.syms:
                prefix, _, value = sym.name.partition(choice.name + "_")
                if prefix or not value:
                    raise Unfit([f"{sym.name}: a member of choice X must be named X_SOMETHING"])
                self.members[sym.name] = choice, value.lower()
        backends = set(self.named_choices["BACKEND"].syms)
        self.followers = [item for item in self.items()
                          if any(backends & kconfiglib.expr_items(condition) for _, condition in item.defaults)]
        self.ranges = {item: ranges.ranges_of(item) for item in self.items()}
        for item, listed in self.ranges.items():
            for name in {name for one in listed for name in one.names}:
                if self.find(name) is None:
                    raise Unfit([f"{item.name}: its range names {name}, which is not a symbol"])

    # ------------------------------------------------------------ values

    def values_of(self, choice):
        return [self.members[sym.name][1] for sym in choice.syms]

    def member(self, choice, value):
        return next(sym for sym in choice.syms if self.members[sym.name][1] == value)

    def items(self):
        """Every symbol that is no member of a choice, and every choice, in the files' order."""
        for node in self.node_iter(unique_syms=True):
            item = node.item
            if isinstance(item, Choice) or isinstance(item, Symbol) and not item.choice:
                yield item

    def value(self, item):
        """The value, or None where an unmet dependency makes the item inactive."""
        if isinstance(item, Choice):
            return self.members[item.selection.name][1] if item.selection else None
        return item.str_value if item.config_string else None

    def values(self):
        return {item.name: self.value(item) for item in self.items()}

    def default(self, item):
        """The value that the item would have if it were not set."""
        value, was_set = self.value(item), self.is_set(item)
        self.unset(item)
        default = self.value(item)
        if was_set and value is not None:
            self.assign(Assignment(item.name, value, ""))
        return default

    def unset(self, item):
        for one in (item, *getattr(item, "syms", ())):      # a choice has members
            one.unset_value()

    def is_set(self, item):
        return (item.user_selection if isinstance(item, Choice) else item.user_value) is not None

    def free(self, own=()):
        """The followers that have their default and that the user did not set: a device may change them.

        A .config has a value for every symbol, so it says which of them the user set.
        """
        return [item for item in self.followers
                if item.name not in own and self.value(item) is not None and self.value(item) == self.default(item)]

    def own(self, path):
        """What the .config says that the user set."""
        lines = (read_text(path) or "").split("\n")
        return {renamed.current(name) for line in lines if line.startswith(OWN) for name in line[len(OWN):].split()}

    def release(self, path):
        """Lets what nobody set follow the device."""
        for item in self.free(self.own(path)):
            self.unset(item)

    def find(self, name):
        sym = self.syms.get(name)
        return self.named_choices.get(name) or (sym if sym and sym.nodes else None)

    # ------------------------------------------------------------ reading

    def parse(self, lines, source):
        """The assignments of a text, and a message for each line that is not one."""
        found, problems = {}, []
        for number, line in enumerate(lines, 1):
            where = f"{source}:{number}" if source else "command line"
            line = line.rstrip()
            match = ASSIGNMENT.fullmatch(line) or NOT_SET.fullmatch(line)
            try:
                if match:
                    name, value = renamed.current(match[1]), match[2] if match.re is ASSIGNMENT else "n"
                    one = Assignment(*self.understand(name, value), where)
                    if one.name in found:
                        raise ValueError(f"CONFIG_{one.name} was set before: {found[one.name]}")
                    found[one.name] = one
                elif line and not line.startswith("#"):
                    raise ValueError(f"'{line}' is neither CONFIG_NAME=value nor a comment")
            except ValueError as error:
                problems.append(f"{where}: {error}")
        return list(found.values()), problems

    def understand(self, name, text):
        """Name and value of an assignment in the form the program reads; ValueError if wrong."""
        item = self.find(name)
        if item is None:
            near = difflib.get_close_matches(name.upper(), [*self.syms, *self.named_choices])
            raise ValueError(f"there is no symbol CONFIG_{name}; " + (
                f"did you mean {' or '.join(near)}?" if near else "'make config-reference' lists all"))
        if isinstance(item, Choice):
            known = self.values_of(item)
            if unquote(text) not in known:
                raise ValueError(f"CONFIG_{name}={text}: not one of {', '.join(known)}")
            return name, unquote(text)
        if item.orig_type is BOOL:
            if text not in ("y", "n"):
                raise ValueError(f"CONFIG_{name}={text}: not y or n")
            if text == "y" and item.choice:
                choice, value = self.members[name]
                return choice.name, value
            return name, text
        if item.orig_type is INT:
            if not INTEGER.fullmatch(text):
                raise ValueError(f"CONFIG_{name}={text}: not an integer")
            return name, text
        value = text if NUMBER.fullmatch(text) else unquote(text)
        if value is None:
            raise ValueError(f"CONFIG_{name}={text}: text must stand between double quotes")
        problem = self.text_problem(item, value)
        if problem:
            raise ValueError(f"CONFIG_{name}={text}: {problem}")
        return name, value

    def text_problem(self, item, value):
        """What is wrong with a text, whatever else is configured."""
        from tools.plan import factors      # which needs this module
        if is_number(item) and not NUMBER.fullmatch(value):
            return "not a number"
        if (item.name == "EXPERIMENT" or item.name == "FORECAST" and value) and not NAME.fullmatch(value):
            return IN_A_NAME
        if item.name == "PLAN_FACTORS":
            return factors.problem(self, value)
        return None

    def read(self, path):
        """The assignments of a file; Unfit if it cannot be read or understood."""
        text = read_text(path)
        if text is None:
            raise Unfit([f"{shorten(path)}: no such file"])
        found, problems = self.parse(text.split("\n"), shorten(path))
        if problems:
            raise Unfit(problems)
        return found

    # ------------------------------------------------------------ merging

    def merge(self, *layers):
        """Make the configuration of layers of assignments; later ones win.

        What the last layer sets must hold.  A later layer may make an assignment of an earlier
        one inactive: these are returned.  Anything else is Unfit.  Ranges are checked with the
        values of all layers together.
        """
        idle = self.merge_layers(*layers)
        self.check_ranges([a for layer in layers for a in layer])
        return idle

    def merge_layers(self, *layers):
        for end in range(1, len(layers)):
            self.merge_layers(*layers[:end])
        last = layers[-1] if layers else []
        merged = {}
        for layer in layers:
            chosen = {a.name for a in layer}
            merged = {name: a for name, a in merged.items()
                      if name not in self.members or self.members[name][0].name not in chosen}
            merged.update((a.name, a) for a in layer)
        self.unset_values()
        for a in merged.values():
            self.assign(a)
        lost = [a for a in merged.values() if not self.holds(a)]
        idle = [a for a in lost if a not in last and self.value(self.find(a.name)) is None]
        unfit = [a for a in lost if a not in idle]
        if unfit:
            raise Unfit([f"{a}: {self.reason(a)}" for a in unfit], unfit)
        return idle

    def range_problems(self):
        """Items whose value is out of a range, with all symbols of that range, and why."""
        values = self.values()
        for item, listed in self.ranges.items():
            value = values[item.name]
            if value is None:
                continue
            if isinstance(item, Symbol) and item.orig_type is STRING:
                problem = self.text_problem(item, value)
                if problem:
                    yield [item.name], problem
                    continue
            may_be_empty = any(not default.str_value for default, _ in getattr(item, "defaults", ()))
            for one in listed:
                if any(values.get(name) is None for name in one.names):
                    continue
                problem = one.problem(values, value, may_be_empty)
                if problem:
                    yield [item.name, *sorted(one.names)], problem

    def check_ranges(self, assignments=()):
        """Unfit blames the last assignment to a symbol of the range."""
        last = {a.name: (place, a) for place, a in enumerate(assignments)}
        problems, blamed = [], []
        for names, problem in self.range_problems():
            own = self.find(names[0])
            _, culprit = max((last[name] for name in names if name in last), default=(0, None))
            text = f"CONFIG_{own.name}={self.value(own)}: {problem}"
            if culprit:
                blamed.append(culprit)
            problems.append(f"{culprit.where}: {text}" if culprit else text)
        if problems:
            raise Unfit(problems, blamed)

    def assign(self, a):
        choice = self.named_choices.get(a.name)
        if choice:
            for sym in choice.syms:
                sym.set_value("y" if self.members[sym.name][1] == a.value else "n")
        elif not self.syms[a.name].choice:
            self.syms[a.name].set_value(a.value)

    def holds(self, a):
        item = self.find(a.name)
        if isinstance(item, Symbol) and item.orig_type is BOOL:
            return item.str_value == a.value  # an unavailable switch is off
        return self.value(item) == a.value

    def reason(self, a):
        """Why an assignment does not hold."""
        item = self.find(a.name)
        sym = item
        if isinstance(item, Choice) and item.visibility:
            sym = self.member(item, a.value)
        if not any(node.prompt for node in sym.nodes):
            return f"it cannot be set: it follows from other symbols and is {sym.str_value}"
        if not sym.visibility:
            missing = list(dict.fromkeys(missing_symbols(sym)))
            needs = " and ".join(map(expr_str, unmet_terms(sym)))
            if None in missing:
                return f"it needs {needs}: set that, too"
            return f"it needs {needs}: add {' and '.join(f'CONFIG_{name}=y' for name in missing)}"
        for low, high, condition in getattr(sym, "ranges", ()):
            if expr_value(condition) and sym.orig_type is INT:
                return f"out of range {low.str_value} to {high.str_value}"
        if sym.choice:
            return f"{sym.choice.name} chooses it"
        return f"it is selected by {' and '.join(map(expr_str, terms(sym.rev_dep)))}"

    # ------------------------------------------------------------ files

    def load(self, path):
        """Load a full configuration; Unfit if it is not complete and exact."""
        found = self.read(path)
        self.merge(found)
        names = {a.name for a in found}
        new = [item.name for item in self.items() if item.visibility and item.name not in names]
        if new:
            raise Unfit([f"{shorten(path)}: CONFIG_{name} is new and not set" for name in new])

    def load_config(self, filename=None, replace=True, verbose=None):
        """For kconfiglib's menus."""
        filename = filename or config_path()
        self.missing_syms = []
        if not os.path.exists(filename):
            self.unset_values()
            return "Using the default values"
        self.merge(self.read(filename))
        self.release(filename)
        return f"Loaded configuration '{filename}'"

    def write_config(self, filename=None, header=None, save_old=True, verbose=None):
        """Write .config whole or not at all; keep the previous one as .config.old."""
        filename = filename or config_path()
        try:
            self.check_ranges()     # menus set one symbol at a time
        except Unfit as problem:
            problem.filename = shorten(filename)
            raise
        old, new = read_text(filename), self.saved_text(header)
        if old == new:
            return f"No change to '{filename}'"
        if old and save_old:
            write_text(filename + ".old", old)
        write_text(filename, new)
        return f"Configuration written to '{filename}'"

    def saved_text(self, header=None):
        own = " ".join(item.name for item in self.followers if self.is_set(item) and self.value(item) is not None)
        return self.config_text((header or self.config_header) + (OWN + own + "\n" if own else ""))

    def is_unsaved(self):
        """For kconfiglib's menus, which would call every symbol that follows the device a change."""
        return read_text(config_path()) != self.saved_text()

    def config_text(self, header=None):
        """All of it, as in a .config."""
        return self._config_contents(header)

    def minimal(self):
        """Only what differs from the defaults, as in a defconfig."""
        return self._min_config_contents("")


def terms(expression):
    """The conditions that must hold, without the condition that a member's choice is visible."""
    return [e for e in kconfiglib.split_expr(expression, AND) if not isinstance(e, Choice)]


def unmet_terms(item):
    """The conditions of its prompt that do not hold."""
    conditions = [node.prompt[1] for node in item.nodes if node.prompt]
    return [e for e in terms(conditions[0]) if not expr_value(e)] if conditions else []


def missing_symbols(item):
    """The switches that are still to be set, of alternatives the first; None stands for any other condition."""
    for e in unmet_terms(item):
        while isinstance(e, tuple) and e[0] is OR:
            e = e[1]
        if not isinstance(e, Symbol) or e.orig_type is not BOOL:
            yield None
            continue
        yield from missing_symbols(e)
        if not e.user_value:
            yield e.name


def is_for_tools(item):
    return item.nodes[0].filename in TOOLS_KCONFIG


def is_number(sym):
    """Kconfig has no real numbers: a string whose defaults are all numbers is one."""
    return sym.orig_type is STRING and bool(sym.defaults) and \
        all(NUMBER.fullmatch(value.str_value) for value, _ in sym.defaults)


def unquote(text):
    match = QUOTED.fullmatch(text)
    return kconfiglib.unescape(match[1]) if match else None


def config_path():
    return kconfiglib.standard_config_filename()


def shorten(path):
    """The path as messages show it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def read_text(path):
    """None if there is no such file."""
    try:
        with open(path, encoding="utf-8", newline="", opener=plain.opener) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unfit([f"{shorten(path)}: {reason}"]) from None
    if "\r" in text:    # make and shells would read others
        raise Unfit([f"{shorten(path)}: its lines end as those of Windows; sed -i 's/\\r$//' mends that"])
    return text


def values_in(path):
    """Of a configuration file, by symbol; what is off is missing."""
    lines = (read_text(path) or "").splitlines()
    pairs = (line.split("=", 1) for line in lines if line.startswith("CONFIG_") and "=" in line)
    return {name.removeprefix("CONFIG_"): value.strip('"') for name, value in pairs}


def write_text(path, text):
    """Replaces a file as a whole, and only if it changes; True: it did."""
    if read_text(path) == text:
        return False
    new = f"{path}.new{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException as problem:
        if os.path.exists(new):
            os.unlink(new)
        if isinstance(problem, OSError):    # which seldom names the file
            raise Unfit([f"{shorten(path)}: {problem.strerror}"]) from None
        raise
    return True


# ---------------------------------------------------------------- what the build reads

def c_string(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}"
                         for b in text.encode()) + '"'


def table(tree):
    """config_table.h: the symbols the program reads."""
    types = {BOOL: "CONFIG_BOOL", INT: "CONFIG_INT", STRING: "CONFIG_TEXT"}
    lines = ["/* Generated from the configuration: name, type and value of each symbol. */"]
    for item in tree.items():
        if is_for_tools(item):
            continue
        kind = types[STRING if isinstance(item, Choice) else item.orig_type]
        value = tree.value(item)
        lines.append(f'INACTIVE("{item.name}", {kind})' if value is None else
                     f'SYMBOL("{item.name}", {kind}, {c_string(value)})')
    return "\n".join(lines) + "\n"


def program_symbols(tree):
    """The same as lines of a .config, with choices by their names, for tools that read text."""
    lines = []
    for item in tree.items():
        value = tree.value(item)
        if is_for_tools(item):
            continue
        if value is not None:
            lines.append(assignment_text(item, value))
        elif isinstance(item, Symbol) and item.orig_type is BOOL:
            lines.append(f"# CONFIG_{item.name} is not set")
    return "\n".join(lines) + "\n"


def assignment_text(item, value):
    is_text = isinstance(item, Choice) or item.orig_type is STRING
    return f'CONFIG_{item.name}="{kconfiglib.escape(value)}"' if is_text else \
        f"CONFIG_{item.name}={value}"


def make_text(value):
    """As the value of a make variable, which ends at a # and goes on after a \\ at its end."""
    text = re.sub(r"(\\*)#", r"\1\1\\#", value.replace("$", "$$"))
    return text + "$()" if text.endswith("\\") else text


def auto_conf(tree):
    """auto.conf: the configuration as make variables; a symbol that is off is not defined."""
    values = tree.values()
    values.update((name, "y") for name in tree.members if tree.syms[name].str_value == "y")
    lines = ["# Generated from the configuration, for make."]
    for name, value in values.items():
        if value not in (None, "", "n"):
            lines.append(f"CONFIG_{name} := " + make_text(value))
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- names of files

def names_in(directory):
    return sorted(name for name in os.listdir(directory)
                  if os.path.isfile(os.path.join(directory, name)) and not name.startswith("."))


def named_file(directory, kind, name):
    names = names_in(directory)
    if name in names:
        return os.path.join(directory, name)
    near = difflib.get_close_matches(name, names, cutoff=0.5)
    raise Unfit([f"there is no {kind} '{name}'" +
                 (f"; did you mean {' or '.join(near)}?" if near else "") +
                 f"\n  there are: {' '.join(names)}"])


def read_fragment(tree, name):
    return tree.read(named_file(FRAGMENTS, "fragment", name))


def question(path):
    """The first line of a defconfig, or of a fragment: what it asks or does."""
    first = (read_text(path) or "").partition("\n")[0]
    return first.lstrip("# ") if first.startswith("#") else ""


# ---------------------------------------------------------------- commands

def load_present(tree):
    path = config_path()
    if not os.path.exists(path):
        raise Unfit([f"there is no {path}: choose with 'make defconfig' (plain GPT-2), 'make menuconfig' or 'make defconfig-NAME'"
                     f"\n  names: {' '.join(names_in(DEFCONFIGS))}"])
    try:
        tree.load(path)
    except Unfit as unfit:
        raise Unfit(unfit.problems + ["'make olddefconfig' drops values that do not fit and gives "
                                      "new symbols their defaults"]) from None


def load_leniently(tree):
    """Keeps the assignments of .config that still fit; returns them and what is wrong with others."""
    path = config_path()
    found, problems = tree.parse((read_text(path) or "").split("\n"), shorten(path))
    while True:
        try:
            tree.merge(found)
            break
        except Unfit as unfit:
            if not unfit.assignments:
                raise
            problems += unfit.problems
            found = [a for a in found if a not in unfit.assignments]
    return found, problems


def tell_dropped(problems):
    for problem in problems:
        print("dropped", problem)


def tell_idle(idle):
    for a in idle:
        print(f"now inactive: {a}")


def command_defconfig(tree, args):
    name, *fragments = (args.name or "").split("+")
    path = named_file(DEFCONFIGS, "defconfig", name) if name else None
    layers = [tree.read(path)] if path else [[]]
    tell_idle(tree.merge(*layers, *(read_fragment(tree, f) for f in fragments)))
    tree.write_config()
    scale = tree.value(tree.named_choices["SCALE"])
    asked = question(path) if path else "every default"
    print(f"{args.name or 'defaults'}: {asked} (scale {scale})")


def with_quotes(tree, assignment):
    """The shell removes the quotes of CONFIG_X="text", so a text is accepted without them."""
    match = ASSIGNMENT.fullmatch(assignment)
    item = tree.find(match[1]) if match else None
    is_text = isinstance(item, Choice) or (item is not None and item.orig_type is STRING)
    if not is_text or QUOTED.fullmatch(match[2]) or NUMBER.fullmatch(match[2]):
        return assignment
    return f'CONFIG_{match[1]}="{kconfiglib.escape(match[2])}"'


def settings(tree):
    """Value and default of every item that may be set."""
    return {item: (tree.value(item), tree.default(item)) for item in tree.items() if item.visibility}


def tell_kept(tree, before):
    """What keeps its value has another default now: it had the default of before, or the user set it."""
    for item, (old, old_default) in before.items():
        value, default = tree.value(item), tree.default(item)
        if None in (value, default) or value == default:
            if item in tree.followers and value not in (None, old):
                print(f"now: CONFIG_{item.name}={value}, which was {old}")
        elif old == old_default or item in tree.followers and default != old_default:
            print(f"kept: CONFIG_{item.name}={value}; its default is {default} now: "
                  f"make set {assignment_text(item, default)}")


def refuse_without_prefix(tree, names):
    """make takes NORM=rms for a variable of its own."""
    forgotten = [name for name in names if tree.find(name)]
    if forgotten:
        raise Unfit([f"{name}=: a symbol is written CONFIG_{name}=" for name in forgotten])


def command_set(tree, args):
    refuse_without_prefix(tree, args.besides)
    load_present(tree)
    free = tree.free(tree.own(config_path()))
    names = {name for item in free for name in (item.name, *(sym.name for sym in getattr(item, "syms", ())))}
    present = [a for a in tree.read(config_path()) if a.name not in names]
    before = settings(tree)
    changes, problems = tree.parse([with_quotes(tree, one) for one in args.assignment], "")
    if problems:
        raise Unfit(problems)
    idle = tree.merge(present, changes)
    refuse_without_effect(tree, changes)
    at_default = {item.name for item, (value, default) in before.items() if value == default}
    tell_idle([a for a in idle if a.name not in at_default])
    tell_kept(tree, {item: was for item, was in before.items() if item.name not in {a.name for a in changes}})
    print(tree.write_config())


def refuse_without_effect(tree, changes):
    """Setting an unavailable switch to n changes nothing: it is off, and has its default in a step."""
    lost = [a for a in changes if a.value == "n" and a.name in tree.syms and
            not tree.syms[a.name].visibility]
    if lost:
        raise Unfit([f"{a}: {tree.reason(a)}; for a step of the plan write the line into one of "
                     "its fragments" for a in lost])


def narrow(text):
    """Help with lines that menuconfig, which wraps none, shows in full."""
    def filled(found):
        if max(map(len, found[0].splitlines())) <= HELP_WIDTH:
            return found[0]
        return textwrap.fill(found[0], HELP_WIDTH, break_on_hyphens=False) + "\n" * found[0].endswith("\n")
    return PARAGRAPH.sub(filled, text)


def command_menuconfig(tree, _args):
    import menuconfig
    if os.path.exists(config_path()):
        load_present(tree)
    menuconfig._needs_save = tree.is_unsaved
    for node in tree.node_iter():
        if getattr(node, "help", None):     # menus have none
            node.help = narrow(node.help)
    menuconfig.menuconfig(tree)


def command_guiconfig(tree, _args):
    try:
        import guiconfig
        import tkinter
    except ImportError as error:
        raise Unfit([f"guiconfig needs tkinter (Debian: python3-tk): {error}"]) from None
    if os.path.exists(config_path()):
        load_present(tree)
    guiconfig._needs_save = tree.is_unsaved
    try:
        guiconfig.menuconfig(tree)
    except tkinter.TclError as error:
        raise Unfit([f"guiconfig cannot open a window: {error}; use 'make menuconfig'"]) from None


def command_oldconfig(tree, _args):
    import oldconfig
    tell_dropped(load_leniently(tree)[1])
    oldconfig.conf_changed = True
    try:
        while oldconfig.conf_changed:  # an answer may make earlier questions visible
            oldconfig.conf_changed = False
            for node in tree.node_iter():
                oldconfig.oldconfig(node)
    except EOFError:
        raise Unfit(["no answer: 'make olddefconfig' asks nothing and takes the defaults"]) from None
    tree.release(config_path())
    print(tree.write_config())


def command_olddefconfig(tree, _args):
    tell_dropped(load_leniently(tree)[1])
    tree.release(config_path())
    print(tree.write_config())


def command_savedefconfig(tree, args):
    load_present(tree)
    own = os.path.join(DEFCONFIGS, tree.syms["EXPERIMENT"].str_value)
    write_text(args.output, f"# {question(own) or 'The question asked'}\n" + tree.minimal())
    print(f"Minimal configuration written to '{args.output}'")


def command_listnewconfig(tree, _args):
    names = {a.name for a in load_leniently(tree)[0]}
    for item in tree.items():
        if item.visibility and item.name not in names:
            print(assignment_text(item, tree.value(item)))


def command_check(tree, _args):
    load_present(tree)


def command_generate(tree, args):
    if not args.defaults:
        load_present(tree)
    if args.table:
        write_text(args.table, table(tree))
    if args.auto:
        write_text(args.auto, auto_conf(tree))


def command_diff(tree, args):
    old = args.old or config_path() + ".old"
    before, after = ({a.name: a.value for a in tree.read(path) if a.name not in tree.members}
                     for path in (old, args.new or config_path()))
    for change in difference(before, after):
        print(change)


class Change(NamedTuple):
    """None stands for inactive."""
    symbol: str
    old: str
    new: str

    def __str__(self):
        old, new = ("-" if value is None else value or '""' for value in self[1:])
        return f"{self.symbol} {old} -> {new}"


def difference(before, after):
    """What differs; a switch that is off equals a switch that is not available."""
    names = dict.fromkeys([*before, *after])
    every = (Change(name, before.get(name), after.get(name)) for name in names)
    return [c for c in every if c.old != c.new and {c.old, c.new} != {None, "n"}]


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="example: python3 -m tools.plan.kconfig set CONFIG_ATTENTION=w2")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name, text, /, **options):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=globals()["command_" + name])
        for option, settings in options.items():
            command.add_argument(settings.pop("flag", option), **settings)

    add("defconfig", "start from defconfigs/NAME with fragments merged on it, or all defaults",
        name=dict(nargs="?", metavar="NAME[+FRAGMENT...]"))
    add("set", "change symbols of .config", assignment=dict(nargs="+", metavar="CONFIG_X=value"),
        besides=dict(flag="--besides", nargs="*", default=[], metavar="NAME", help="variables that make was given, too"))
    add("menuconfig", "change .config in a menu")
    add("guiconfig", "change .config in a window")
    add("oldconfig", "ask for each new symbol, drop values that do not fit")
    add("olddefconfig", "give new symbols their default, drop values that do not fit")
    add("savedefconfig", "write what differs from the defaults",
        output=dict(nargs="?", default="defconfig"))
    add("listnewconfig", "list the symbols that .config does not set")
    add("check", "does .config fit?")
    add("generate", "write what the build reads, if it changes",
        table=dict(flag="--table", metavar="FILE", help="C table of symbols"),
        auto=dict(flag="--auto", metavar="FILE", help="variables for make"),
        defaults=dict(flag="--defaults", action="store_true", help="of the defaults, not .config"))
    add("diff", "symbols that differ between two files (.config.old and .config)",
        old=dict(nargs="?"), new=dict(nargs="?"))
    return parser.parse_args(argv)


def main(argv):
    args = parse_arguments(argv)
    try:
        args.run(Tree(), args)
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
