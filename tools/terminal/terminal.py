"""Tables and colours for the person at a terminal; a file or a pipe gets plain, whole lines."""
import argparse
import os
import re
import textwrap
import time

COLOURS = {"good": "32", "bad": "31", "soft": "2", "head": "1"}     # ECMA-48: SGR parameters
CLEAR_SCREEN, CLEAR_LINE = "\033[H\033[J", "\r\033[K"     # ECMA-48: to the start, erase what follows
LEAST_WIDTH = 40
GAP = "  "     # between columns
# What a terminal obeys.  A text that comes from a file is shown, not obeyed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
OWN = re.compile(rf"(\033\[(?:{'|'.join(COLOURS.values())})?m)")


def plain(text):
    """With control characters as Python writes them; newlines and tabs stay."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Guard:
    """A stream that passes no escape sequence but our own colours.  (tools/__init__.py sets it up.)"""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write("".join(part if place % 2 else plain(part)
                                  for place, part in enumerate(OWN.split(text))))
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self.stream, name)


def control(stream, sequence):
    """Our own sequences that are not colours."""
    stream.flush()
    getattr(stream, "stream", stream).write(sequence)


def is_terminal(stream):
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def repeated(show, seconds, stream):
    """Once, or every so many seconds on a cleared screen."""
    while seconds:
        control(stream, CLEAR_SCREEN if is_terminal(stream) else "\n")
        show()
        time.sleep(seconds)
    show()


def width(stream):
    """In columns; None: as wide as it gets."""
    if not stream.isatty():
        return None
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return None
    return max(columns, LEAST_WIDTH) if columns > 0 else None


def has_colours(stream):
    """https://no-color.org: any value but an empty one means none."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def painted(text, tone):
    """Blanks around the text stay as they are."""
    text = plain(text)
    return f"\033[{COLOURS[tone]}m{text}\033[m" if tone and text.strip() else text


def parser(description, example, **more):
    """Of a command line; its help keeps the lines of the description."""
    return argparse.ArgumentParser(description=description, epilog=f"example: {example}",
                                   formatter_class=argparse.RawDescriptionHelpFormatter, **more)


def count(text):
    """A whole number of a command line, 1 or more: a type for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 1 or more")
    return int(text)


def duration(seconds):
    """Never negative: a clock may have been set back."""
    seconds = max(0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def wrapped(line, room, indent="", more="  "):
    """A sentence on as many lines as it takes; further ones are indented by `more` more."""
    line = plain(line)
    if room is None:
        return indent + line
    return textwrap.fill(line, room, initial_indent=indent, subsequent_indent=indent + more,
                         break_on_hyphens=False, break_long_words=False) or indent


def column_groups(widths, room):
    """Numbers of columns that fit beside each other: the first column stands in each group."""
    groups, used = [[0]], widths[0]
    for column in range(1, len(widths)):
        needed = len(GAP) + widths[column]
        if room is not None and used + needed > room and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(column)
        used += needed
    return groups


def table(headings, cells, is_text, room=None, indent="", tone=None):
    """Columns under their headings, folded into blocks if they do not fit.

    `tone(heading, cell)` names a colour or nothing; None: no colours at all.
    """
    cells = [[plain(cell) for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(headings, *cells)]

    def line(words, group, is_head):
        shown = []
        for i in group:
            text = words[i].ljust(widths[i]) if is_text(headings[i]) else words[i].rjust(widths[i])
            if i == group[-1]:
                text = text.rstrip()
            paint = tone and ("head" if is_head else tone(headings[i], words[i]))
            shown.append(painted(text, paint))
        return (indent + GAP.join(shown)).rstrip()

    blocks = []
    for group in column_groups(widths, room and room - len(indent)):
        blocks.append("\n".join([line(headings, group, True)]
                                + [line(words, group, False) for words in cells]))
    return "\n\n".join(blocks)


def markdown(headings, cells, is_text):
    """The same in Markdown."""
    rule = ["---" if is_text(name) else "---:" for name in headings]
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, rule, *cells))
