#!/usr/bin/env python3
"""Tables, verdicts and plots from runs/results.db.

    report.py report [EXPERIMENT]   to the terminal, and as report.{md,csv,tex,json,html} to
                                    RUNS/EXPERIMENT/report/
    report.py power [EXPERIMENT]    how many seeds an effect needs, by the noise of its runs
    report.py compare A B           any two experiments, steps or runs
    report.py diff A B              their configurations only
    report.py values [EXPERIMENT]   the final values of every run, as docs/findings/*.csv keeps them
    report.py judge FILE            the table of such a file, without runs
    report.py chance FILE...        how many verdicts of such files chance may have made

A and B are EXPERIMENT, EXPERIMENT/STEP (its name or number) or the beginning of a run's identity.
Exit status 1: nothing could be reported, or a step was not reproduced.

It is Python because kconfiglib, which knows the defaults, needs Python anyway.
"""
import argparse
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import re
import sys

from tools.plan import config_difference, declaration, estimate, kconfig, tuning
from tools.report import (ablation, about, decoding, forecast, judging, kept_tokens, memo, page, plots, pruning,
                          samples, sizes, specialisation, spread, stats, values)
from tools.report.ablation import short_number
from tools.report.judging import plural
from tools.results import metric_names, notes, records, time_left
from tools.results.records import Problem
from tools.terminal import terminal

READING, CONTROLS, EFFECTS, REMARKS, PROBLEMS, UNFINISHED = "How to read the verdicts", \
    "Against matched controls", "Effects of the grid", "Remarks", "Problems: not averaged", "Not finished: not averaged"
DELTA, ACCURACY_DELTA = "Δ nats [simultaneous 95%]", "Δ accuracy % [simultaneous 95%]"
JUDGED, SOLVED = "Δ judged [simultaneous 95%]", "seeds that solve it, here / there"
POWER = f"{100 * stats.POWER:.0f}% power from"
BEYOND, DECODING = "Beyond the trained length", "Decoding"
DIFFERS = "What differs"
SPREAD = "Spread between seeds"
ON_PAGE = "Components", "Samples", "Environment", kept_tokens.SECTION, specialisation.SECTION  # not in the terminal
NAME, LEAST_NAME = 24, 10       # columns of a step's name: enough, and at least
SHORTER = ((" \\([^)]* seeds[^)]*\\)", ""), (", within the margin", ", in margin"))    # of verdicts
NEXT = "Next look"

# ---------------------------------------------------------------- cells

def number_cell(name, form):
    def cell(row):
        found = row.numbers[name]
        return form(found.mean) if found else ""
    return cell


def mean_sd(mean, scale=1, form=".4f"):
    text = f"{scale * mean.mean:{form}}"
    if mean.sd is not None:
        text += f" ± {scale * mean.sd:{form}}"
    return f"{text} ({mean.n})"


def loss_cell(row):
    return mean_sd(row.numbers["loss"]) if row.numbers["loss"] else ""


def accuracy_cell(row):
    return mean_sd(row.numbers["accuracy"], 100, ".1f") if row.numbers["accuracy"] else ""


def interval(d, scale=1, form="+.4f"):
    if d is None:
        return ""
    text = f"{scale * d.mean:{form}}"
    if d.low is None:
        return text
    # An end that is not zero must not read as zero where this decides.
    while d.leaves_out_zero and "0" in (f"{scale * end:{form}}".strip("+-0.") or "0"
                                        for end in (d.low, d.high)):
        form = f"+.{int(form.strip('+.f')) + 1}f"
    return f"{text} [{scale * d.low:{form}}, {scale * d.high:{form}}]"


def marked(text, row, mark):
    return text + mark if mark in row.marks else text


def audit_cell(row):
    if row.failed_audits:
        return f"{len(row.failed_audits)} failed"
    if not row.audits:
        return "not audited"
    without = f", not audited: {', '.join(row.skipped_audits)}" if row.skipped_audits else ""
    return f"{row.audits} passed{', no oracle' if row.no_oracle else ''}{without}"


def power_cell(row):
    """The smallest effect, in the unit that is judged."""
    if row.smallest_effect is None:
        return ""
    return f"{100 * row.smallest_effect:.1f} %" if row.by_accuracy else f"{row.smallest_effect:.4f}"


def judged_cell(row):
    return interval(row.accuracy_delta, 100, "+.1f") + " %" * bool(row.accuracy_delta) \
        if row.by_accuracy else interval(row.delta)


def accuracy_delta_cell(row):
    return interval(row.accuracy_delta, 100, "+.1f")


def solved_cell(row):
    here, there, of = row.solved or (0, 0, 0)
    return f"{here} / {there} of {of}" if row.solved else ""


def seeds_needed(row):
    """How many would settle what is open."""
    if row.seeds_needed:
        least, most = row.seeds_needed
        return f"{least} to {most} seeds" if most else f"{least} seeds or more"
    is_far = row.verdict == stats.OPEN and row.judged.low is not None and row.judged.sd
    return f"over {stats.MOST_SEEDS} seeds" if is_far else ""


def verdict_cell(row):
    text = row.verdict + (", exploratory" if row.is_exploratory else "")
    needed = seeds_needed(row)
    return text + f" ({needed})" * bool(needed) + "".join(
        mark for mark in (ablation.OTHER_ENVIRONMENT, ablation.LOST_SEEDS, ablation.UNEQUAL_NOISE, ablation.DAMAGED,
                          ablation.NOT_LEARNT) if mark in row.marks)


# The verdict and the difference that it judges stand beside the step: they stay together in a narrow terminal.
COLUMNS = {
    "step": lambda row: row.step,
    "verdict": verdict_cell,
    DELTA: lambda row: interval(row.delta),
    ACCURACY_DELTA: accuracy_delta_cell,
    SOLVED: solved_cell,
    "val. loss ± sd (seeds)": loss_cell,
    "accuracy % ± sd (seeds)": accuracy_cell,
    "Δ ppl": lambda row: "" if row.delta is None else f"{row.perplexity_percent:+.2f}%",
    "bits/byte": number_cell("bits_per_byte", "{:.4f}".format),
    POWER: power_cell,
    "parameters": lambda row: marked(number_cell(metric_names.PARAMETERS, short_number)(row), row,
                                     ablation.MORE_PARAMETERS),
    "FLOPs/token": number_cell(metric_names.FLOPS_PER_TOKEN, short_number),
    "peak MB": number_cell(metric_names.PEAK_MEGABYTES, lambda v: f"{v:.0f}"),
    "GPU MB": number_cell(metric_names.DEVICE_MEGABYTES, lambda v: f"{v:.0f}"),
    "tokens/s": number_cell(metric_names.TOKENS_PER_SECOND, short_number),
    "state B/token": number_cell(metric_names.DECODE_TOKEN_BYTES, short_number),
    "audits": audit_cell,
}


def without_empty(headings, cells):
    """Columns that say nothing are left out."""
    kept = [i for i in range(len(headings)) if any(line[i] for line in cells)]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in cells]


def grid(table):
    """Headings, and the cells of each row; columns without information are left out."""
    columns = dict(COLUMNS)
    by_accuracy = {group.by_accuracy for group in table.groups}
    if True not in by_accuracy:
        del columns["accuracy % ± sd (seeds)"]
    else:
        first = {JUDGED: judged_cell} if False in by_accuracy else {ACCURACY_DELTA: accuracy_delta_cell}
        columns = {name: COLUMNS[name] for name in ("step", "verdict")} | first | columns
    return without_empty([*columns], [[cell(row) for cell in columns.values()]
                                      for row in table.rows])


# ---------------------------------------------------------------- sentences

VERBS = {stats.BETTER: "is better than", stats.WORSE: "is worse than", stats.EQUIVALENT: "is equivalent to"}


def conclusion(row):
    """A comparison as a sentence."""
    verb = next((VERBS[word] for word in VERBS if row.verdict.startswith(word)), "against")
    what = f"{row.step} {verb} {row.baseline}" if row.baseline else f"{row.kind} of {row.step}"
    word = "" if row.baseline and verb != "against" else f" {row.verdict}"
    found = f"{judged_cell(row)}{'' if row.by_accuracy else ' nats'}, {plural(row.judged.n, 'seed')}" \
        if row.judged and not row.reason else ""
    needed = seeds_needed(row)
    settled = f"{needed} would settle it" if needed else ""
    rest = "; ".join(filter(None, [found, row.reason, settled, "exploratory" if row.is_exploratory else ""]))
    return f"{what}:{word}{'; ' if word and rest else ' ' if rest else ''}{rest}."


def conclusions(table):
    return [conclusion(row) for row in table.comparisons if row.kind != judging.TREND] + \
        [sizes.conclusion(trend, judged_cell, trend.row.is_exploratory) for trend in table.trends]


def symbol_text(symbol, a, b):
    return f"{symbol}: {'-' if a is None else a} → {'-' if b is None else b}"


def reading_lines(table):
    """What was corrected for, and what the words beside verdicts mean."""
    judgement, rows = table.judgement, table.comparisons
    if judgement.family:
        yield f"Intervals {stats.TOGETHER}: corrected for {plural(judgement.family, 'comparison')}."
    elif not (judgement.lines or judgement.exploratory):
        yield "No comparison can be judged."
    yield from judgement.lines
    if judgement.exploratory:
        yield f"Exploratory: {plural(judgement.exploratory, 'comparison')}, corrected for among themselves" \
            f"{'' if judgement.family else f': their intervals {stats.TOGETHER}'}; they were not declared " \
            "before the runs, so they are ideas to test."
    if any(row.smallest_effect is not None for row in rows):
        yield f"{POWER}: 4 of 5 such experiments find an effect of this size; they find a smaller one " \
              "less often."
    if any(row.seeds_needed for row in rows):
        settled = "make the interval as short as the margin." if table.margin else "find the difference in 4 of 5 " \
            'experiments. "Or more": there may be no difference, and then no number of seeds shows one.'
        yield f"open (N to M seeds): with {100 * stats.RANGE:.0f}% confidence, that many seeds {settled}"


def mark_lines(table):
    used = {mark for row in table.rows for mark in row.marks}
    used |= {mark for row in table.controls + table.effects for mark in row.marks
             if mark in verdict_cell(row)}
    return [f"{mark} {meaning}" for mark, meaning in ablation.MARKS.items() if mark in used]


def reason_lines(table):
    beside = [row for row in table.controls + table.effects + [trend.row for trend in table.trends] if row.reason]
    return [f"{row.step}: {row.verdict}: {row.reason}" for row in table.rows if row.reason] + \
        [row.step + (f" against {row.baseline}" if row.baseline else "")
         + f": {row.verdict}: {row.reason}" for row in beside]


def difference_lines(table):
    for row in table.rows:
        if row.difference:
            yield f"{row.step} against {row.baseline}: " + \
                "; ".join(symbol_text(*change) for change in row.difference)


def same_lines(table):
    for row in table.rows:
        if row.difference:
            continue
        if row.is_null:
            yield f"{row.step}: the same configuration as {row.baseline} with other seeds, paired " \
                  "in their order: a difference would be a false one"
        elif row.step != row.baseline and not row.is_repeat:
            yield f"{row.step}: the same symbols as {row.baseline}"


def control_grid(table):
    """Each step beside the control that is as large; what the width could not make up for."""
    sizes, lines = {row.step: row.numbers for row in table.rows}, []
    for row in table.controls:
        remaining = []
        for name, unit in ((metric_names.PARAMETERS, "parameters"),
                           (metric_names.FLOPS_PER_TOKEN, "FLOPs/token")):
            mine, theirs = (sizes[step][name] for step in (row.step, row.baseline))
            if mine and theirs:
                remaining.append(f"{mine.mean - theirs.mean:+,.0f} {unit}")
        lines.append([row.step, row.baseline, ", ".join(remaining), judged_cell(row),
                      power_cell(row), verdict_cell(row)])
    return ["step", "against", "it has", DELTA, POWER, "verdict"], lines


def effect_grid(table):
    return ["effect", "kind", DELTA, POWER, "verdict"], [
        [row.step, row.kind, judged_cell(row), power_cell(row), verdict_cell(row)]
        for row in table.effects]


def effect_lines(table):
    lines = []
    if any(row.kind == judging.MAIN for row in table.effects):
        lines.append("Main effects are means over all settings of the other changes.")
    if any(row.kind == judging.INTERACTION for row in table.effects):
        lines.append("An interaction is what two changes do together beyond the sum of what each "
                     "does alone: better means that they gain more than that sum.")
    return lines


def environment_lines(table):
    for environment, steps in table.environments:
        where = steps if len(table.environments) > 1 else ["all steps"]
        yield ", ".join(f"{key} {value}" for key, value in environment.items()
                        if value is not None) + f": {', '.join(where)}"


def score_lines(table):
    return [f"{arm}: mean accuracy over {tasks} tasks {mean_sd(mean, 100, '.1f')} %"
            for arm, mean, tasks in table.scores]


def component_grid(table):
    def text(value, form):
        return "" if value is None else format(value, form)
    return ["step", "component", "loss", "accuracy", "chance", "floor", "chance to floor"], [
        [c.step, c.name or "all", f"{c.loss:.4f}", text(c.accuracy, ".1%"), text(c.chance, ".4f"),
         text(c.floor, ".4f"), text(c.share, ".1%")] for c in table.components]


def sweep_grid(table):
    def choice(sweep, rate):
        words = []
        if rate == sweep.chosen:
            words = ["chosen", *["at the end of the list"] * sweep.is_at_end]
        if sweep.groups(rate):
            words.append("seeds in two groups")
        return ", ".join(words)
    return ["step", "learning rate", "val. loss ± sd (seeds)", "every seed", "diverged", "choice"], [
        [sweep.step, rate, mean_sd(mean) if mean else "", " ".join(f"{loss:.3f}" for _, loss in sweep.losses[rate]),
         str(diverged or ""), choice(sweep, rate)]
        for sweep in table.sweeps for rate, mean, diverged in sweep.rates]


def length_grid(table):
    """A column for every stretch of positions: up to where the next one begins."""
    firsts = sorted({first for x in table.lengths for first, _ in x.positions})
    ends = [*(first - 1 for first in firsts[1:]), max(x.length for x in table.lengths) - 1]
    lines = []
    for x in table.lengths:
        at = dict(x.positions)
        lines.append([x.step, str(x.length), str(x.rows), f"{x.state_bytes / 2**20:.2f}",
                      mean_sd(x.loss), interval(x.delta), f"{100 * x.accuracy.mean:.1f}",
                      *(f"{at[first]:.3f}" if first in at else "" for first in firsts)])
    return ["step", "length", "rows", "state MiB", "loss ± sd (seeds)", "Δ nats [95%]",
            "accuracy %", *(f"{first}-{end}" for first, end in zip(firsts, ends))], lines


def length_lines(table):
    trained = sorted({x.trained for x in table.lengths})
    return [f"Trained at {', '.join(map(str, trained))} tokens; the last columns are the loss at "
            "these positions. Differences are paired by seed and not judged; each interval alone holds "
            f"with 95%, {stats.CONDITION}."]


def decoding_lines(table):
    return ["A token reads all weights and all that is kept: the limit is the measured speed of "
            "reading over those bytes. The first token comes after a prompt of the whole context.",
            *table.decoding.notes]


def published_grid(table):
    study = table.published
    base = next(claim["loss"] for claim in study["steps"] if claim["step"] == study["baseline"])
    lines = [[claim["step"], f"{claim['loss']:.4f}", f"{claim['loss'] - base:+.4f}", claim["claim"],
              short_number(claim["parameters"]), claim["memory"] or "",
              mean_sd(claim["ours"]) if claim["ours"] else "", interval(claim["ours_delta"]),
              short_number(claim["ours_parameters"].mean) if claim["ours_parameters"] else ""]
             for claim in study["steps"]]
    return ["step", "published", "Δ published", "claimed", "parameters", "GPU memory",
            "ours ± sd (seeds)", "Δ ours", "our parameters"], lines


def next_lines(table):
    if table.judgement.next_seeds:
        yield f"make set CONFIG_SEEDS={','.join(map(str, table.judgement.next_seeds))} && make    # make looks: all that are left"


def headline(table):
    return f"{table.experiment}: scale {', '.join(table.scales)}, " \
        f"seeds {', '.join(map(str, table.seeds))}"


def sections(table):
    """What stands below the table: (title, lines, (headings, cells) or None)."""
    yield READING, list(reading_lines(table)), None
    if table.controls:
        yield CONTROLS, [], control_grid(table)
    if table.effects:
        yield EFFECTS, effect_lines(table), effect_grid(table)
    varied = spread.spreads(table.comparisons)
    if varied:
        yield SPREAD, [spread.ABOUT], spread.grid(varied)
    if pruning.arms(table.rows):
        yield pruning.SECTION, [pruning.ABOUT], pruning.grid(table.rows, loss_cell, judged_cell)
    yield from measured_sections(table)
    if table.trends:
        yield sizes.SECTION, list(sizes.lines(table.trends)), sizes.grid(table.trends, judged_cell, verdict_cell)
    if table.forecast:
        yield forecast.SECTION, list(forecast.lines(table.forecast)), forecast.grid(table.forecast, table.comparisons, interval)
    yield REMARKS, mark_lines(table) + reason_lines(table) + table.verification + table.notes, None
    yield PROBLEMS, table.problems, None
    yield UNFINISHED, table.unfinished, None
    yield DIFFERS, [*difference_lines(table), *same_lines(table)], None
    yield "Score", score_lines(table), None
    if table.sweeps:
        yield "Tuning", ["On seeds that no verdict uses: the rate with the lowest mean plus its standard error "
                         "is taken, but none with which a run diverged."], sweep_grid(table)
    if table.components:
        yield "Components", [], component_grid(table)
    if table.lengths:
        yield BEYOND, length_lines(table), length_grid(table)
    if table.decoding.measured:
        yield DECODING, decoding_lines(table), decoding.grid(table.decoding.measured)
    if table.published:
        study = table.published
        yield "Published numbers", [study["source"] + ".", study["caution"],
                                    f"Published and ours: {study['quantity']}; ours at scale "
                                    f"{', '.join(table.scales)}."], published_grid(table)
    yield "Samples", list(samples.lines(table.samples)), None
    yield "Environment", list(environment_lines(table)), None
    yield NEXT, list(next_lines(table)), None


def measured_sections(table):
    """Of what some variants record about themselves."""
    routed, with_heads = kept_tokens.routed(table.rows), specialisation.measured(table.rows)
    if routed:
        yield kept_tokens.SECTION, [kept_tokens.ABOUT], without_empty(*kept_tokens.grid(routed, mean_sd))
    if with_heads:
        yield specialisation.SECTION, [specialisation.ABOUT], \
            without_empty(*specialisation.grid(with_heads, mean_sd, interval))


def told_sections(table):
    return [section for section in sections(table) if section[1] or section[2]]


# ---------------------------------------------------------------- formats

def is_text_column(name):
    return name in ("step", "verdict", "component", "claimed", "audits", "choice", "A", "B",
                    "verdict on B", "against", "it has", "effect", "kind", "run", "state",
                    "started", "revision", "experiment", "family", "question", "symbol", "text",
                    "time", "now", "done", "progress", "runs", "tags", "note", "effect with size", "pruned by",
                    specialisation.WORD)


def aligned(headings, cells, indent="", stream=None):
    """For a file; or for a stream, with what its terminal can do."""
    room, colours = (terminal.width(stream), terminal.has_colours(stream)) if stream else (None, False)
    return terminal.table(headings, cells, is_text_column, room, indent, page.tone if colours else None)


def as_text(table, stream=None, written=""):
    """For a terminal.  What is long or seldom needed is on the page; answers and what to do next come last."""
    room = terminal.width(stream) if stream else None
    title_tone = "head" if stream and terminal.has_colours(stream) else None
    parts = [terminal.painted(headline(table), title_tone), terminal.wrapped(table.compared, room),
             *(terminal.wrapped(line, room) for line in table.note.lines()), "",
             aligned(*narrowed(*grid(table), room), stream=stream) + "\n"]
    for title, lines, extra in told_sections(table):
        if title in (*ON_PAGE, NEXT):
            continue
        parts += titled(title, lines, room, title_tone)
        if extra:
            parts.append(aligned(*extra, indent="  ", stream=stream))
    parts += [""] * bool(parts) + [terminal.wrapped(written, room)] * bool(written)
    for title, lines in (("Answers", conclusions(table)), (NEXT, list(next_lines(table)))):
        parts += titled(title, lines, room, title_tone) if lines else []
    return "\n".join(parts) + "\n"


def titled(title, lines, room, tone):
    return [terminal.painted(f"{title}:", tone), *(terminal.wrapped(line, room, "  ") for line in lines)]


def narrowed(headings, cells, room):
    """Verdicts and names of steps become shorter where they and the difference would not stand side by side.

    The answers below the table have all words.
    """
    if room is None or len(headings) < 3:
        return headings, cells

    def left():
        return room - sum(2 + max(len(line[i]) for line in [headings, *cells]) for i in (1, 2))
    enough = min(NAME, max(len(line[0]) for line in cells))
    for words, fewer in SHORTER:
        if left() < enough:
            cells = [[line[0], re.sub(words, fewer, line[1]), *line[2:]] for line in cells]
    return headings, [[shortened(line[0], max(LEAST_NAME, left())), *line[1:]] for line in cells]


def shortened(name, most):
    """The beginning has the step's number, the end what was added last."""
    end = (most - 3) // 2
    return name if len(name) <= most else name[:most - 3 - end] + "..." + name[-end:]


def markdown_table(headings, cells):
    lines = [[word.replace("|", "\\|").replace("*", "\\*") for word in line] for line in (headings, *cells)]
    return terminal.markdown(lines[0], lines[1:], is_text_column)


def as_markdown(table):
    parts = [f"# {headline(table)}\n", table.compared + "\n", *(line + "\n" for line in table.note.lines()), markdown_table(*grid(table))]
    for title, lines, extra in told_sections(table):
        parts.append(f"## {title}\n")
        if lines:
            parts.append("\n".join("- " + line.replace("*", "\\*").replace("_", "\\_")
                                   for line in lines) + "\n")
        if extra:
            parts.append(markdown_table(*extra))
    return "\n".join(parts)


TEX = {"\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
       "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "Δ": r"$\Delta$",
       "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}", "◊": r"$\diamond$", "×": r"$\times$", "→": r"$\to$"}


def tex(text):
    escaped = "".join(TEX.get(letter, letter) for letter in text)
    escaped = re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped)     # a minus, not a hyphen
    return re.sub('"([^"]*)"', r"``\1''", escaped)


# A table that is wider than the page is made smaller.
FITTED = r"\noindent\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"


def tex_table(headings, cells):
    form = "".join("l" if is_text_column(name) else "r" for name in headings)
    return [r"\sbox0{\begin{tabular}{" + form + "}", r"\toprule",
            " & ".join(map(tex, headings)) + r" \\", r"\midrule",
            *(" & ".join(map(tex, line)) + r" \\" for line in cells), r"\bottomrule",
            r"\end{tabular}}", FITTED]


def tex_notes(lines):
    return [r"\par\smallskip\footnotesize " + r"\par ".join(map(tex, lines))] if lines else []


# Columns of the table for LaTeX, by names that are easily typed.
TEX_COLUMNS = {
    "step": "step", "verdict": "verdict", "delta": DELTA, "accuracy_delta": ACCURACY_DELTA, "solved": SOLVED, "loss": "val. loss ± sd (seeds)",
    "accuracy": "accuracy % ± sd (seeds)", "ppl": "Δ ppl", "bits": "bits/byte", "power": POWER, "parameters": "parameters",
    "flops": "FLOPs/token", "memory": "peak MB", "gpu_memory": "GPU MB",
    "speed": "tokens/s", "state": "state B/token", "audits": "audits"}
DEFAULT_TEX = "step", "loss", "delta", "accuracy", "accuracy_delta", "verdict"


def tex_names(text):
    """A list such as "step,loss,verdict", checked."""
    wanted = [name.strip() for name in text.split(",")]
    wrong = next((name for name in wanted if name not in TEX_COLUMNS), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"there is no column '{wrong}'; there are: {', '.join(TEX_COLUMNS)}")
    return wanted


def tex_grid(table, names):
    """The chosen columns, in their order; a column without information is left out."""
    headings, cells = grid(table)
    kept = [headings.index(TEX_COLUMNS[name]) for name in names or DEFAULT_TEX if TEX_COLUMNS[name] in headings]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in cells]


def as_tex(table, names=None):
    """To be \\input; needs nothing but the packages booktabs and graphicx."""
    headings, cells = tex_grid(table, names)
    below = (CONTROLS, EFFECTS, SPREAD, pruning.SECTION, kept_tokens.SECTION, specialisation.SECTION, sizes.SECTION,
             forecast.SECTION, BEYOND, DECODING)
    beside = [section for section in told_sections(table) if section[0] in below]
    shown = str([headings, cells, *(extra for _, _, extra in beside)])
    lines = tex_table(headings, cells) + tex_notes(
        [line for line in mark_lines(table) if line.split()[0] in shown]
        + [line for line in reading_lines(table) if POWER in shown or not line.startswith(POWER)] + table.verification)
    for title, notes, extra in beside:
        lines += [rf"\par\bigskip\normalsize {title}\par\smallskip", *tex_table(*extra), *tex_notes(notes)]
    return "\n".join(lines) + "\n"


def difference_values(d):
    return ["", "", "", ""] if d is None else [d.n, d.mean, d.low, d.high]


def inference_numbers(table):
    """Of lengths and decoding: step -> {name: value}."""
    found = {row.step: {} for row in table.rows}
    for x in table.lengths:
        numbers = {"loss": x.loss.mean, "accuracy": x.accuracy.mean, "state_bytes": x.state_bytes,
                   **{f"loss/{first}": loss for first, loss in x.positions}}
        found[x.step].update({f"{metric_names.LENGTH}/{x.length}/{name}": v for name, v in numbers.items()})
    for m in table.decoding.measured:
        found[m.step].update({f"decode/{m.context}/{name}": v for name, v in m.numbers.items()})
    return found


def as_csv(table):
    """Plain numbers in full precision; one line per step, and per comparison beside these."""
    more = inference_numbers(table)
    more_names = list(dict.fromkeys(name for numbers in more.values() for name in numbers))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(ablation.NUMBERS)
    writer.writerow(["step", "baseline", "kind", "seeds", *names, "loss_sd", "pairs", "delta",
                     "delta_low", "delta_high", "accuracy_pairs", "accuracy_delta",
                     "accuracy_delta_low", "accuracy_delta_high", "perplexity_percent", "solved",
                     "baseline_solved", "p_corrected", "smallest_effect", "seeds_needed",
                     "seeds_needed_most", "exploratory", "audits", "audits_failed", "verdict", "reason", "verified",
                     *more_names])
    for row in table.all_rows:
        loss = row.numbers["loss"]
        writer.writerow([row.step, row.baseline, row.kind, len(row.seeds),
                         *(values.plain(name, row.numbers[name].mean) if row.numbers[name] else "" for name in names),
                         loss.sd if loss else "", *difference_values(row.delta),
                         *difference_values(row.accuracy_delta), row.perplexity_percent,
                         *(row.solved or ("", ""))[:2], row.p, row.smallest_effect,
                         *(row.seeds_needed or ("", "")), int(row.is_exploratory), row.audits,
                         len(row.failed_audits), row.verdict, row.reason, row.verified,
                         *(more[row.step].get(name) for name in more_names
                           if row.kind == judging.STEP)])
    return out.getvalue()


def as_json(table):
    whole = dataclasses.asdict(table)
    for group, own in zip(whole["groups"], table.groups):
        group["rows"] = [row.step for row in own.rows]
    for component, own in zip(whole["components"], table.components):
        component["share"] = own.share
    for entry, own in zip(whole["decoding"]["measured"], table.decoding.measured):
        entry.update(tokens_per_second=own.tokens_per_second, limit=own.limit)
    for trend, own in zip(whole["trends"], table.trends):
        trend.update(sizes.as_json(own))
    judged = whole["rows"] + whole["controls"] + whole["effects"] + [trend["row"] for trend in whole["trends"]]
    for row, own in zip(judged, table.all_rows, strict=True):
        percent = own.perplexity_percent    # JSON knows no infinity
        row["perplexity_percent"] = None if percent == math.inf else percent
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def differences_html(table, steps):
    """Symbols and steps as a table; in words, the steps that differ in none."""
    grid_of = about.configuration_grid(table.rows, steps)
    return page.heading_html(DIFFERS) + page.list_html(list(same_lines(table))) + (
        page.table_html(*grid_of, lambda name: name == "symbol",
                        is_other=about.differs_from_baseline(steps)) if grid_of[1] else "") \
        + "".join(page.configuration_html(f"All symbols of {step.name}", step.config)
                  for step in steps if step.repeat == 0)


def runs_html(steps, link, planned=()):
    runs = [run for step in steps for run in step.runs]
    return page.section_html("Runs", [], about.runs_grid(runs, link, planned), is_text_column)


def table_files(directory=""):
    """(name, address) of what `make report` writes beside the page."""
    return [(name, f"{directory}report.{ending}") for name, ending in
            (("CSV", "csv"), ("LaTeX", "tex"), ("Markdown", "md"), ("JSON", "json"))]


def as_html(table, steps, link):
    """link(run): where its name leads."""
    return whole_page(table, steps, link, table_files(), f"make publish E={table.experiment}", told_sections(table))


def as_live_html(table, steps, link, seconds, above_all, files, published, planned):
    """For a server, which makes it again after so many seconds; it shows the planned runs."""
    told = [section for section in told_sections(table) if section[0] != UNFINISHED]
    return whole_page(table, steps, link, files, published, told, seconds, above_all, planned)


def whole_page(table, steps, link, files, published, told, seconds=None, above_all="", planned=()):
    drawn = plots.draw(table, steps)
    above = [section for section in told if section[0] in
             (READING, CONTROLS, EFFECTS, sizes.SECTION, forecast.SECTION, REMARKS, PROBLEMS, UNFINISHED)]
    facts = about.facts([run for step in steps for run in step.runs])
    said = [f"{dict(facts)['Environment']}: all steps"]
    facts += about.noted(table.note)
    below = [section for section in told if section not in above
             and section[0] != DIFFERS and section[1] != said]
    head = page.head_html(table.experiment, about.question(table.experiment), facts, table.compared)
    parts = [about.progress_html(planned, is_text_column),
             page.heading_html("Table") + page.table_html(*grid(table), is_text_column, "main"),
             *(page.section_html(*section, is_text_column) for section in above),
             page.groups_html(drawn), differences_html(table, steps),
             *(page.section_html(*section, is_text_column) for section in below),
             runs_html(steps, link, planned)]
    return page.document(f"{table.experiment}: report",
                         [above_all, head, page.contents_html(parts, files, published), *parts], drawn, seconds)


# ---------------------------------------------------------------- commands

ENDINGS = ("md", "csv", "tex", "json", "html")


def choose(db, name):
    if name:
        return name
    known = records.experiments(db)
    if len(known) != 1:
        raise Problem(f"which experiment? there are: {', '.join(known) or 'none'}")
    return known[0]


def candidates_of(db, name):
    """The steps of the experiment that chose its rates."""
    tuned = tuning.experiment(name)
    return records.read_experiment(db, tuned) if tuned in records.experiments(db) else []


def tabulate(db, runs, name, steps):
    table = ablation.tabulate(name, steps, candidates_of(db, name),
                              decoding.read(runs, name, steps), declaration.read(runs, name),
                              time_left.read_plan(runs, name))
    table.samples = samples.collect(steps)
    table.note = notes.shown(runs, name)
    return table


def report(db, args):
    name = choose(db, args.experiment)
    directory = os.path.join(args.runs, name, "report")
    memory = memo.Memory(directory, memo.key_of(args, name), sys.stdout)
    files = [f"report.{ending}" for ending in ENDINGS]
    said = memory.recall(files)
    if said is None:
        said = make_report(db, args, name, directory)
        memory.keep(said, files)
    print(said.text, end="")
    if said.failure:
        raise Problem(said.failure)


def make_report(db, args, name, directory):
    steps = records.read_experiment(db, name)
    table = tabulate(db, args.runs, name, steps)
    link = about.directory_link(db.path, directory)
    texts = (as_markdown(table), as_csv(table), as_tex(table, args.tex_columns), as_json(table),
             as_html(table, steps, link))
    for ending, text in zip(ENDINGS, texts, strict=True):
        kconfig.write_text(os.path.join(directory, f"report.{ending}"), text)
    written = f"Written: {directory}/report.{{{','.join(ENDINGS)}}}"
    return memo.Said(as_text(table, sys.stdout, written),
                     table.not_reproduced and
                     f"FAILED: not reproduced: {', '.join(table.not_reproduced)}")


def next_look(db, args):
    """For make looks; nothing if there is no further look."""
    name = choose(db, args.experiment)
    print(*tabulate(db, args.runs, name, records.read_experiment(db, name)).judgement.next_seeds, sep=",")


def values_of(db, args):
    name = choose(db, args.experiment)
    print(values.text(records.read_experiment(db, name), candidates_of(db, name),
                      declaration.read(args.runs, name)), end="")


def judge(args):
    print(as_text(values.table(args.file), sys.stdout), end="")


def is_verdict(row):
    return row.verdict.startswith((stats.BETTER, stats.WORSE)) or row.verdict == stats.EQUIVALENT


def chance(args):
    """What was compared, in which families, and how often something was said."""
    lines, families = [], 0
    for file in args.files:
        table = values.table(file)
        primary = [row for row in table.comparisons if not row.is_exploratory]
        others = [row for row in table.comparisons if row.is_exploratory]
        for kind, rows, size in (("primary", primary, table.judgement.family),
                                 ("exploratory", others, table.judgement.exploratory)):
            if size:
                families += 1
                said = [row.verdict for row in rows if is_verdict(row)]
                lines.append([table.experiment, kind, size, *(
                    sum(word.startswith(start) for word in said)
                    for start in (stats.BETTER, stats.WORSE, stats.EQUIVALENT))])
    total = [sum(column) for column in zip(*(line[2:] for line in lines))]
    headings = ["experiment", "family", "comparisons", "better", "worse", "equivalent"]
    print(markdown_table(headings, [[str(cell) for cell in line]
                                    for line in [*lines, ["all", "", *total]]]))
    print(f"{plural(total[0], 'comparison')} in {families} famil{'y' if families == 1 else 'ies'}; "
          f"{plural(sum(total[1:]), 'verdict')}. At most {100 * stats.ALPHA:.0f}% of families hold a "
          f"false verdict, {stats.CONDITION}. So on average at most {stats.ALPHA * families:.2f} of these families hold one, "
          f"and with at most {min(100, 100 * stats.ALPHA * families):.0f}% any of them does, even if they share runs. "
          f"Without the correction, {stats.ALPHA * total[0]:.1f} false verdicts would be expected if "
          "nothing differed anywhere.")


def step_seconds(step):
    """What a run of the step takes, on average; None: not known."""
    try:
        _, per_update = estimate.updates_and_tokens(step.config)
    except KeyError:    # runs of an older program may lack symbols
        return None
    taken = [seconds for run in step.usable.values()
             if (seconds := estimate.recorded_seconds(run, per_update))]
    return sum(taken) / len(taken) if taken else None


def power(db, args):
    name = choose(db, args.experiment)
    steps = records.read_experiment(db, name)
    table = ablation.tabulate(name, steps, declared=declaration.read(args.runs, name))
    rows = [row for row in table.comparisons
            if not (row.is_exploratory or row.solved or row.verdict == ablation.INVALID)
            and row.judged and row.judged.sd]
    if not rows:
        raise Problem(f"{name}: no comparison has two seeds: a pilot of 3 shows the noise")
    size = len(rows)
    needed = [[stats.seeds_to_show(args.effect / row.judged.sd,
                                   stats.ALPHA / family, judging.least_seeds(row))
               for family in (size, 1)] for row in rows]
    print(f"{name}: seeds that find an effect of {args.effect:g} in 4 of 5 experiments\n")

    def cell(seeds):
        return str(seeds or f"over {stats.MOST_SEEDS}")
    print(aligned(["step", "against", "seeds now", "sd of Δ", "seeds needed", "seeds needed alone"], [
        [row.step, row.baseline or row.kind, str(row.judged.n), f"{row.judged.sd:.4f}",
         *map(cell, seeds)] for row, seeds in zip(rows, needed)]) + "\n")
    print(f"Corrected for {plural(size, 'comparison')}; CONFIG_PRIMARY can name fewer. The noise of "
          "a few seeds is itself uncertain: an sd of 3 seeds may well be half of the true one.")
    print_cost(steps, max((seeds or stats.MOST_SEEDS for seeds, _ in needed)))


def print_cost(steps, seeds):
    """Of bringing every step to so many seeds."""
    missing = [(step, max(0, seeds - len(step.usable))) for step in steps if step.repeat == 0]
    timed = [(step_seconds(step), runs) for step, runs in missing]
    known = sum(seconds * runs for seconds, runs in timed if seconds)
    print(f"{seeds} seeds for every step: {plural(sum(runs for _, runs in missing), 'run')} more, "
          + (f"about {known / 60:.0f} minutes one after another."
             if all(seconds for seconds, _ in timed) else "of unknown time."))


def pairs(db, a, b):
    """Steps of the same name if both are experiments, else each of A with each of B."""
    mine, theirs = records.find(db, a), records.find(db, b)
    if len(mine) > 1 and len(theirs) > 1:
        matched = [(x, y) for x in mine for y in theirs if x.name == y.name]
        if not matched:
            raise Problem(f"{a} and {b} have no step of the same name; name one of each: "
                          + ", ".join(f"{a}/{x.name}" for x in mine) + "; "
                          + ", ".join(f"{b}/{y.name}" for y in theirs))
        return matched
    return [(x, y) for x in mine for y in theirs]


NOT_PAIRED = "no seed that both have finished: nothing to compare"


def comparison(table, matched):
    """Headings and cells, and the lines below them."""
    headings = ["A", "B", "A: val. loss ± sd (seeds)", "B: val. loss ± sd (seeds)", DELTA,
                "Δ ppl", ACCURACY_DELTA, SOLVED, POWER, "verdict on B"]
    cells = [[a.name, row.step, loss_cell(ablation.row_of(a, a)), loss_cell(row), interval(row.delta),
              COLUMNS["Δ ppl"](row), accuracy_delta_cell(row), solved_cell(row), power_cell(row), verdict_cell(row)]
             for (a, _), row in zip(matched, table.rows)]
    shown = " ".join(itertools.chain(*cells))
    marks = [line for line in mark_lines(table) if line.split()[0] in shown]
    return without_empty(headings, cells), [*reading_lines(table), *marks, *reason_lines(table),
                                            *table.problems, *table.unfinished]


def as_reported(table, db, runs, matched):
    """With the verdicts of the experiment's report, if that has all these comparisons."""
    names = {step.runs[0].experiment for pair in matched for step in pair}
    if len(names) > 1:
        return None
    [name] = names
    steps = {step.name: step for step in records.read_experiment(db, name)}
    if any(steps[step.name].runs != step.runs for pair in matched for step in pair):
        return None     # single runs
    whole = tabulate(db, runs, name, list(steps.values()))
    known = {(row.baseline, row.step): row for row in [*whole.controls, *whole.rows]}
    rows = [known.get((a.name, b.name)) for a, b in matched]
    return dataclasses.replace(table, rows=rows, groups=[ablation.Group("", False, rows)],
                               judgement=whole.judgement) if all(rows) else None


def compare(db, args):
    matched = pairs(db, args.a, args.b)
    table = ablation.tabulate_pairs(args.b, matched)
    table = as_reported(table, db, args.runs, matched) or table
    if not any(row.delta for row in table.rows):
        raise Problem(f"{NOT_PAIRED}\n" + "\n".join(f"  {problem}" for problem in table.problems + table.unfinished))
    print(f"{args.b} against {args.a}\n")
    cells, lines = comparison(table, matched)
    print(aligned(*cells, stream=sys.stdout) + "\n")
    for line in lines:
        print(terminal.wrapped(line, terminal.width(sys.stdout)))
    print()
    print_differences(matched)


def difference_title(a, b, changes):
    return f"{a.runs[0].experiment}/{a.name} → {b.runs[0].experiment}/{b.name}: " \
        + ("the same configuration" if not changes else plural(len(changes), "symbol"))


def print_differences(matched):
    for a, b in matched:
        changes = config_difference.difference(a, b)
        print(difference_title(a, b, changes))
        for change in changes:
            print("  " + symbol_text(*change))


def diff(db, args):
    print_differences(pairs(db, args.a, args.b))


def positive(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected a positive number")
    return value


def main(argv):
    parser = terminal.parser(__doc__, "python3 -m tools.report.report compare smoke/0 smoke/2")
    parser.add_argument("--runs", default="runs", help="directory of the runs (default: runs)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("report", help="the table of an experiment")
    command.add_argument("experiment", nargs="?", metavar="EXPERIMENT")
    command.add_argument("--tex-columns", type=tex_names, metavar="NAME,..",
                         help=f"of the table for LaTeX: {', '.join(TEX_COLUMNS)}")
    command.set_defaults(run=report)
    command = commands.add_parser("power", help="seeds that an effect needs")
    command.add_argument("experiment", nargs="?", metavar="EXPERIMENT")
    command.add_argument("--effect", type=positive, required=True, metavar="SIZE",
                         help="nats, or share of right answers")
    command.set_defaults(run=power)
    for name, run, text in (("compare", compare, "two experiments, steps or runs"),
                            ("diff", diff, "their configurations")):
        command = commands.add_parser(name, help=text)
        command.add_argument("a", metavar="A")
        command.add_argument("b", metavar="B")
        command.set_defaults(run=run)
    command = commands.add_parser("next", help="the seeds of the next look")
    command.add_argument("experiment", metavar="EXPERIMENT")
    command.set_defaults(run=next_look)
    command = commands.add_parser("values", help="the final values of every run")
    command.add_argument("experiment", nargs="?", metavar="EXPERIMENT")
    command.set_defaults(run=values_of)
    command = commands.add_parser("judge", help="the table of a file of values")
    command.add_argument("file", metavar="FILE")
    command.set_defaults(run=judge, has_runs=False)
    command = commands.add_parser("chance", help="verdicts that chance may have made")
    command.add_argument("files", nargs="+", metavar="FILE")
    command.set_defaults(run=chance, has_runs=False)
    parser.set_defaults(has_runs=True)
    args = parser.parse_args(argv)
    try:
        if args.has_runs:
            args.run(records.connect(os.path.join(args.runs, "results.db")), args)
        else:
            args.run(args)
    except (Problem, OSError, records.sqlite3.Error) as problem:
        sys.exit(f"report: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
