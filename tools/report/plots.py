"""Plots of a table as SVG for the page, drawn by gnuplot.

The page defines the colours: gnuplot gets a code for each, and the code becomes a CSS variable.  So
one drawing serves light, dark and paper.  The page also makes the legend.
"""
import math
import re
import shutil
import statistics
import subprocess
from dataclasses import dataclass

from tools.report import ablation, label_layout, stats
from tools.results import records

COLOURS = 8             # of series; more steps than that share them, with other points and dashes
GRID = 99               # the code of the grid's colour
WIDTH, HEIGHT = 440, 300    # a phone shows it without shrinking
FRAME = 64, 60, 16, 12  # pixels left of, below, right of and above a scatter plot ...
ROWS_FRAME = 24, 32, 24, 6  # ... and a line per step
POINTS = (7, 5, 9, 13)  # gnuplot's filled circle, square, triangle, diamond
LABEL = 46              # letters of a step's name across a plot
ROW = 42                # pixels of a step's line and its name


@dataclass
class Figure:
    title: str
    about: str      # one line for readers
    svg: str


def is_there():
    return shutil.which("gnuplot") is not None


# ---------------------------------------------------------------- gnuplot

def colour(code):
    return f"rgb '#0101{code:02x}'"


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def block(name, rows):
    """Inline data; a missing number is NaN."""
    lines = (" ".join("NaN" if v is None else f"{v:.10g}" for v in row) for row in rows)
    return f"${name} << EOD\n" + "\n".join(lines) + "\nEOD\n"


def clean(svg, name):
    """The SVG for inlining: no prologue, colours and fonts of the page, unique ids."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<title>.*?</title>|<desc>.*?</desc>", "", svg, flags=re.S)
    svg = re.sub(r'<svg\s+width="\d+" height="\d+"', '<svg role="img"', svg, count=1)
    svg = re.sub(rf"rgb\(\s*1,\s*1,\s*{GRID}\)", "var(--grid)", svg)
    svg = re.sub(r"rgb\(\s*1,\s*1,\s*(\d+)\)", r"var(--c\1)", svg)
    svg = re.sub(r"black|#000000|rgb\(\s*0,\s*0,\s*0\)", "currentColor", svg)
    svg = re.sub(r'font-family="[^"]*"', 'font-family="inherit"', svg)
    for old in set(re.findall(r"""\bid=["']([^"']+)["']""", svg)):
        svg = re.sub(rf"""(\bid=["']|#){re.escape(old)}(["')])""", rf"\g<1>{name}-{old}\g<2>", svg)
    return svg.strip()


def run_gnuplot(script, name, height=HEIGHT):
    head = f"""set terminal svg size {WIDTH},{height} noenhanced font 'sans-serif,13' rounded
set border 3 lc {colour(GRID)}
set grid lc {colour(GRID)} lw 0.5 lt 1
set tics nomirror textcolor 'black'
set xtics autofreq
unset key
set style fill transparent solid 0.18 noborder
"""
    done = subprocess.run(["gnuplot", "-"], input=head + script, text=True, capture_output=True,
                          timeout=120, check=False)
    if done.returncode or "</svg>" not in done.stdout:
        raise records.Problem(f"gnuplot: {done.stderr.strip() or 'no drawing'}")
    return clean(done.stdout, name)


def look(i):
    """Colour and point of a series."""
    return f"lc {colour(i % COLOURS)} pt {POINTS[i // COLOURS % len(POINTS)]}"


def dash(i):
    return f"dt {1 + i // COLOURS % 4}"


def short(name):
    return name if len(name) <= LABEL else name[:LABEL - 1] + "…"


def framed(margins, height):
    """Axes at fixed places."""
    left, bottom, right, top = margins
    return (f"set lmargin at screen {left / WIDTH}\nset rmargin at screen {1 - right / WIDTH}\n"
            f"set bmargin at screen {bottom / height}\nset tmargin at screen {1 - top / height}\n")


def x_tics(values, form):
    """Ticks few enough that their labels do not touch."""
    values = [v for v in values if v is not None]
    low, high = min(values), max(values)
    wanted = (high - low or abs(high) or 1) / 4
    power = 10 ** math.floor(math.log10(wanted))
    step = power * min((1, 2, 5, 10), key=lambda s: abs(math.log(s * power / wanted)))
    places = [k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1)]
    return "set xtics (" + ", ".join(f"{quoted(form(v))} {v:.10g}" for v in places) + ")\n"


# ---------------------------------------------------------------- figures

def curve(step):
    """(iteration, mean, lowest, highest) over the seeds that reached it."""
    points = {}
    for run in step.usable.values():
        for iteration, value in run.series.get(records.LOSS, []):
            if math.isfinite(value):
                points.setdefault(iteration, []).append(value)
    whole = max(map(len, points.values()), default=0)
    return [(i, statistics.fmean(v), min(v), max(v)) for i, v in sorted(points.items())
            if len(v) == whole]


def curves(steps, name):
    found = [(i, curve(step)) for i, step in enumerate(steps)]
    found = [(i, rows) for i, rows in found if len(rows) > 1]
    if not found:
        return None
    last = max(rows[-1][0] for _, rows in found)
    # The first fall would flatten everything else.
    late = [row for _, rows in found for row in rows if row[0] >= 0.1 * last]
    low, high = min(row[2] for row in late), max(row[3] for row in late)
    room = 0.05 * (high - low) or 0.01
    script = "".join(block(f"d{i}", rows) for i, rows in found)
    script += f"set xlabel 'iteration'\nset xrange [0:{last}]\n"
    script += f"set yrange [{low - room}:{high + room}]\n"
    bands = [f"$d{i} using 1:3:4 with filledcurves lc {colour(i % COLOURS)}" for i, _ in found]
    lines = [f"$d{i} using 1:2 with lines lw 2 lc {colour(i % COLOURS)} {dash(i)}"
             for i, _ in found]
    return Figure("Validation loss", "Nats per token; lines are means, bands reach from the lowest "
                  "to the highest seed; the first tenth may be cut off.",
                  run_gnuplot(script + "plot " + ", ".join(bands + lines), name))


def upright(x, low="graph 0", high="graph 1"):
    return f"set arrow from {x}, {low} to {x}, {high} nohead dt 2 lc 'black'\n"


def doublings(places):
    """A logarithmic axis of lengths."""
    labels = ", ".join(f"{quoted(length_text(n))} {n}" for n in places)
    return f"set logscale x 2\nset xtics ({labels})\n"


def length_text(n):
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)


def positions(rows, table, name):
    """The loss within the longest rows."""
    longest = {x.step: x for x in table.lengths if len(x.positions) > 1}     # they rise
    found = [(i, longest[row.step]) for i, row in enumerate(rows) if row.step in longest]
    if not found:
        return None
    script, firsts = "", sorted({first for _, x in found for first, _ in x.positions})
    for i, x in found:
        ends = [*(first for first, _ in x.positions[1:]), x.length]
        # A stretch is drawn at its middle.
        script += block(f"p{i}", [((first + end) / 2, loss)
                                  for (first, loss), end in zip(x.positions, ends)])
    script += doublings(firsts[1:]) + "set xlabel 'position'\n"
    for trained in {x.trained for _, x in found if x.trained}:
        script += upright(trained)
    parts = [f"$p{i} with linespoints lw 2 ps 0.6 {look(i)} {dash(i)}" for i, _ in found]
    return Figure("Loss by position", "Nats per token within the longest rows; right of the dashed "
                  "line lies what no training row was long enough for.",
                  run_gnuplot(script + "plot " + ", ".join(parts), name))


def against_context(rows, table, title, about, axis, read, name, limit=None):
    """Plots measured numbers, and their limits, if any, as thin lines."""
    script, parts, contexts = "", [], set()
    for i, row in enumerate(rows):
        own = [m for m in table.decoding.measured if m.step == row.step]
        if not own:
            continue
        contexts.update(m.context for m in own)
        script += block(f"c{i}", [(m.context, read(m), limit and limit(m)) for m in own])
        parts.append(f"$c{i} using 1:2 with linespoints lw 2 ps 0.6 {look(i)} {dash(i)}")
        if limit:
            parts.append(f"$c{i} using 1:3 with lines lw 0.8 dt 3 lc {colour(i % COLOURS)}")
    if not parts:
        return None
    # Room for the outer labels.
    script += f"set xrange [{0.95 * min(contexts)}:{1.05 * max(contexts)}]\n"
    script += doublings(sorted(contexts)) + f"set xlabel 'context'\n{axis}\n"
    return Figure(title, about, run_gnuplot(script + "plot " + ", ".join(parts), name))


def speed(rows, table, name):
    return against_context(
        rows, table, "Decoding speed", "Tokens per second against context; dotted: the limit that "
        "reading sets.", "set yrange [0:*]", lambda m: m.tokens_per_second, name,
        lambda m: m.limit)


def state(rows, table, name):
    return against_context(
        rows, table, "Decode state", "MiB kept, against context.", "set logscale y 2",
        lambda m: m.numbers["state_bytes"] / 2**20, name)


def dots(title, about, entries, name, zero=False):
    """A line per step: the values of its seeds, their mean and its interval."""
    entries = [entry for entry in entries if entry[1]]
    if not entries:
        return None
    script, parts = "unset ytics\n", []
    for place, (step, values, low, high, i) in enumerate(reversed(entries)):
        # A name has the whole width, above its line; nothing crosses it.
        script += f"set label {quoted(short(step))} at graph 0, first {place + 0.24} front\n"
        if zero:
            script += upright(0, f"first {place - 0.5}", f"first {place + 0.06}")
        mean = statistics.fmean(values)
        script += block(f"s{place}", [(v, place) for v in values])
        script += block(f"m{place}", [(mean, place, mean if low is None else low,
                                       mean if high is None else high)])
        parts.append(f"$m{place} using 1:($2-0.12):3:4 with xerrorbars lw 2 ps 0.9 {look(i)}")
        parts.append(f"$s{place} using 1:($2-0.35) with points ps 0.35 {look(i)}")
    height = ROW * len(entries) + ROWS_FRAME[1] + ROWS_FRAME[3]
    script += framed(ROWS_FRAME, height) + f"set yrange [-0.6:{len(entries) - 0.4}]\n"
    script += "set grid noytics\nset offsets graph 0.04, graph 0.04, 0, 0\n"
    script += x_tics([v for _, values, low, high, _ in entries for v in (*values, low, high)],
                     "{:.4g}".format)
    return Figure(title, about, run_gnuplot(script + "plot " + ", ".join(parts), name, height))


def finals(rows, name):
    def entry(i, row):
        values = row.numbers["loss"].values if row.numbers["loss"] else []
        spread = stats.difference(values)
        return row.step, values, spread and spread.low, spread and spread.high, i
    return dots("Final loss", "Nats per token after the last update: mean, its 95% interval over "
                "seeds, and every seed.", [entry(i, row) for i, row in enumerate(rows)], name)


def deltas(rows, by_name, baseline, name):
    by_accuracy = any(row.accuracy_delta for row in rows)
    number, scale = ("accuracy", 100) if by_accuracy else ("loss", 1)
    entries = []
    for i, row in enumerate(rows):
        d = row.accuracy_delta if by_accuracy else row.delta
        if d and row.step != baseline:      # it may itself be compared with another one
            values = ablation.paired_values(by_name[row.step], by_name[row.baseline],
                                            ablation.NUMBERS[number])
            entries.append((row.step, [scale * v for v in values], d.low and scale * d.low,
                            d.high and scale * d.high, i))
    unit, side = ("Points of accuracy", "right") if by_accuracy else ("Nats per token", "left")
    return dots("Difference to the baseline", f"{unit}, paired by seed, with simultaneous 95% "
                f"interval; {side} of zero is better.", entries, name, zero=True)


def padded(values):
    """A range with room around."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low or abs(high) or 1)
    return low - room, high + room


def beside(points, x_range, y_range):
    """The numbers of points, in a frame whose place and ranges are fixed."""
    (left, bottom, right, top), (x_low, x_high), (y_low, y_high) = FRAME, x_range, y_range
    width, height = WIDTH - left - right, HEIGHT - bottom - top
    script = framed(FRAME, HEIGHT)
    script += f"set xrange [{x_low:.10g}:{x_high:.10g}]\nset yrange [{y_low:.10g}:{y_high:.10g}]\n"

    def graph(x, y):
        return f"graph {x / width:.5f}, {1 - y / height:.5f}"
    for label in label_layout.place([(width * (x - x_low) / (x_high - x_low),
                                height * (y_high - y) / (y_high - y_low), text)
                               for x, y, text in points], width, height):
        script += f"set label {quoted(label.text)} at {graph(label.x, label.y)} center front\n"
        if label.line:
            script += "set arrow from {} to {} nohead lw 0.7 lc 'black'\n".format(
                *(graph(*end) for end in label.line))
    return script


def scatter(rows, quantity, title, unit, name):
    points = [(i, row.numbers[quantity].mean, row.numbers["loss"].mean, row.step.split("-", 1)[0])
              for i, row in enumerate(rows) if row.numbers[quantity] and row.numbers["loss"]]
    if len({x for _, x, _, _ in points}) < 2:
        return None     # nothing to see: all steps have the same
    _, across, up, _ = zip(*points)
    script = f"set xlabel '{unit}'\n" + x_tics(across, ablation.short_number)
    script += beside([point[1:] for point in points], padded(across), padded(up))
    script += "".join(block(f"p{i}", [(x, y)]) for i, x, y, _ in points)
    parts = [f"$p{i} with points ps 1.1 {look(i)}" for i, *_ in points]
    return Figure(f"Loss against {title}", "Final validation loss in nats; numbers are those of "
                  "the steps.", run_gnuplot(script + "plot " + ", ".join(parts), name))


def components(rows, table, name):
    by_step = {}
    for c in table.components:
        if c.share is not None:
            by_step.setdefault(c.step, {})[c.name or "all"] = 100 * c.share
    order = [(i, row.step) for i, row in enumerate(rows) if row.step in by_step]
    names = list(dict.fromkeys(n for _, step in order for n in by_step[step]))
    if not names:
        return None
    width = 0.8 / len(order)
    script, parts = f"set boxwidth {0.85 * width}\nset style fill solid 1 noborder\n", []
    for place, (i, step) in enumerate(order):
        shift = (place - (len(order) - 1) / 2) * width
        script += block(f"b{i}", [(k + shift, by_step[step].get(n)) for k, n in enumerate(names)])
        parts.append(f"$b{i} with boxes lc {colour(i % COLOURS)}")
    labels = ", ".join(f"{quoted(n)} {k}" for k, n in enumerate(names))
    script += f"set xtics ({labels})\nset grid noxtics\nset ylabel '%'\n"
    script += f"set xrange [-0.6:{len(names) - 0.4}]\nset yrange [*<0:100<*]\n"
    return Figure("Components", "Share of the way from chance (0%) to the floor (100%): higher is "
                  "better.", run_gnuplot(script + "plot " + ", ".join(parts), name))


SCATTERS = (("parameters", "parameters", "parameters"),
            ("flops_per_token", "computation", "FLOPs per token"),
            ("peak_megabytes", "memory", "peak MB"),
            ("decode_token_bytes", "decode state", "bytes per token"))


def figures(rows, by_name, baseline, table, prefix):
    steps = [by_name[row.step] for row in rows]
    yield curves(steps, prefix + "curves")
    yield finals(rows, prefix + "finals")
    yield deltas(rows, by_name, baseline, prefix + "deltas")
    yield components(rows, table, prefix + "components")
    yield positions(rows, table, prefix + "positions")
    yield speed(rows, table, prefix + "speed")
    yield state(rows, table, prefix + "state")
    for quantity, title, unit in SCATTERS:
        yield scatter(rows, quantity, title, unit, prefix + quantity)


def draw(table, steps):
    """(heading, [(colour, how often it was taken before, step)], figures) per baseline; or why
    there are none."""
    if not is_there():
        return [], "Plots are missing: gnuplot is not installed."
    by_name = {step.name: step for step in steps}
    shown = [row for row in table.rows if not row.is_repeat and row.seeds]
    groups = [(group.baseline, [row for row in shown if group.baseline in (row.baseline, row.step)])
              for group in table.groups] or [(None, shown)]
    drawn = []
    for number, (baseline, rows) in enumerate(group for group in groups if group[1]):
        try:
            found = [f for f in figures(rows, by_name, baseline, table, f"g{number}-") if f]
        except (records.Problem, OSError, subprocess.TimeoutExpired) as problem:
            return [], f"Plots are missing: {problem}"
        heading = f"Against {baseline}" if len(groups) > 1 else ""
        legend = [(i % COLOURS, i // COLOURS, row.step) for i, row in enumerate(rows)]
        drawn.append((heading, legend, found))
    return drawn, ""
