"""What a page says about its runs: question, dates, revision, environment, configuration."""
import os
import time
import urllib.parse

from tools.plan import kconfig
from tools.report import page
from tools.results import records, time_left
from tools.terminal import terminal


def question(experiment):
    """The question of the defconfig with the experiment's name, if it exists."""
    return kconfig.question(os.path.join(kconfig.DEFCONFIGS, experiment))


def moment(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else ""


def revision(run):
    return (run.git_revision or "unknown")[:12] + (" with changes" if run.git_dirty else "")


def environment(run):
    return ", ".join(f"{key} {value}" for key, value in
                     records.for_readers(run.environment, run.config).items() if value is not None)


def facts(runs):
    """(name, text) pairs about all runs."""
    started, ended = [r.started for r in runs if r.started], [r.ended for r in runs if r.ended]
    going = sum(run.is_going for run in runs)
    began, end = moment(min(started, default=None)), moment(max(ended, default=None))
    when = f"since {began}; {going} still running" if going else f"from {began} to {end}"
    found = {
        "Scale": [str(run.scale) for run in runs],
        "Seeds": [str(seed) for seed in sorted({run.seed for run in runs})],
        "Runs": [f"{len(runs)}, {when}"],
        "Revision": map(revision, runs), "Environment": map(environment, runs)}
    return [(name, ("; " if name == "Environment" else ", ").join(dict.fromkeys(texts)))
            for name, texts in found.items()]


def noted(note):
    """Facts of an experiment that its researcher wrote (make note)."""
    return [("Tags", ", ".join(note.tags))] * bool(note.tags) + [("Note", note.note)] * bool(note.note)


# ---------------------------------------------------------------- runs

def directory_link(database, page_directory):
    """Returns link(run): from a page in this directory to the run's directory, if it exists."""
    def link(run):
        path = os.path.join(os.path.dirname(os.path.abspath(database)), run.directory)
        if not os.path.isdir(path):
            return ""
        return urllib.parse.quote(os.path.relpath(path, os.path.abspath(page_directory))) + "/"
    return link


def minutes(run):
    until = run.ended or run.heartbeat
    return f"{max(0, until - run.started) / 60:.1f}" if until and run.started else ""


def state(run):
    if run.state == "running":
        return f"{'running' if run.is_going else time_left.DIED}, last record {moment(run.heartbeat)}"
    return run.state + (f": {run.exit_reason}" if run.exit_reason else "")


def last_iteration(run):
    return max((points[-1][0] for points in run.series.values()), default=0)


def left_text(planned):
    left = time_left.seconds_left(planned, time_left.running_jobs(planned))
    return f"{terminal.duration(left)} left" if left else ""


def progress_text(planned):
    """Of all runs of a plan."""
    counts = [f"{time_left.count(planned, 'done')} of {len(planned)} runs done"]
    states = dict.fromkeys(run.state for run in planned if not run.is_finished)
    counts += [f"{time_left.count(planned, state)} {state}" for state in sorted(states, key=time_left.RUNNING.__ne__)]
    return ", ".join(filter(None, [*counts, left_text(planned)]))


def share_of(planned):
    return sum(run.share for run in planned) / len(planned)


def step_progress(step, runs):
    """A row: what runs now, and what waits."""
    now = [f"seed {run.seed}: iteration {run.iteration} of {run.iterations}" +
           (f", {terminal.duration(run.seconds_left)} left" if run.seconds_left is not None else "")
           for run in runs if run.state == time_left.RUNNING]
    waiting = [run for run in runs if run.state == time_left.WAITING]
    if waiting:
        takes, each = waiting[0].seconds_left, " each" * (len(waiting) > 1)
        now.append(f"{len(waiting)} waiting" + (f", about {terminal.duration(takes)}{each}" if takes else ""))
    others = [f"seed {run.seed}: {run.state}" for run in runs if not run.is_finished
              and run.state not in (time_left.RUNNING, time_left.WAITING)]
    return [step, f"{time_left.count(runs, 'done')} of {len(runs)}", page.Bar.of(share_of(runs)),
            "; ".join(now + others)]


def progress_html(planned, is_text):
    """Nothing when nothing is left to do."""
    if all(run.is_finished for run in planned):
        return ""
    steps = dict.fromkeys(run.step for run in planned)
    rows = [step_progress(step, [run for run in planned if run.step == step]) for step in steps]
    return page.heading_html("Progress") + \
        f'<p class="whole-progress">{page.bar_html(share_of(planned))}{page.escape(progress_text(planned))}</p>' + \
        page.table_html(["step", "done", "progress", "now"], rows, is_text, "planned")


def waiting_cells(run):
    return [f"{run.step}, {run.identity or 'its learning rate is still to be chosen'}", str(run.seed), run.state]


def runs_grid(runs, link, planned=()):
    """link(run) is the address behind the run's name; empty: no link.  Runs that wait follow the others."""
    def loss(run):
        value = run.last(records.LOSS)
        return "" if value is None else f"{value:.4f}"
    headings = ["run", "seed", "state", "iteration", "of", "val. loss", "started", "minutes",
                "revision"]
    waiting = [waiting_cells(run) for run in planned if run.state == time_left.WAITING]
    return headings, [
        [page.Link.to(link(run), f"{run.step}, {run.identity[:12]}"), str(run.seed), state(run),
         str(last_iteration(run)), str(run.iterations), loss(run), moment(run.started),
         minutes(run), revision(run)] for run in runs] + \
        [cells + [""] * (len(headings) - len(cells)) for cells in waiting]


# ---------------------------------------------------------------- configurations

def configuration_grid(rows, steps):
    """Every symbol in which a step differs from its baseline, with the values of all steps."""
    symbols = sorted({symbol for row in rows for symbol, *_ in row.difference})
    shown = [step for step in steps if step.repeat == 0]
    return ["symbol", *(step.name for step in shown)], [
        [symbol, *(step.config.get(symbol, "-") for step in shown)] for symbol in symbols]


def differs_from_baseline(steps):
    """Returns differs(line, i) for the grid above: does the cell differ from the baseline's?"""
    shown = [step.name for step in steps if step.repeat == 0]
    baselines = {step.name: step.baseline for step in steps}

    def differs(line, i):
        baseline = baselines[shown[i - 1]] if i else None
        return baseline in shown and line[i] != line[1 + shown.index(baseline)]
    return differs
