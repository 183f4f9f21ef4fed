"""What a page says about its runs: question, dates, revision, environment, configuration."""
import os
import time
import urllib.parse

from tools.plan import kconfig
from tools.report import page
from tools.results import records


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
    going = sum(run.state == "running" for run in runs)
    until = f"{going} of {len(runs)} still running" if going else moment(max(ended, default=None))
    found = {
        "Scale": [str(run.scale) for run in runs],
        "Seeds": [str(seed) for seed in sorted({run.seed for run in runs})],
        "Runs": [f"{len(runs)}, from {moment(min(started, default=None))} to {until}"],
        "Revision": map(revision, runs), "Environment": map(environment, runs)}
    return [(name, ("; " if name == "Environment" else ", ").join(dict.fromkeys(texts)))
            for name, texts in found.items()]


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
        return f"running, last sign {moment(run.heartbeat)}"
    return run.state + (f": {run.exit_reason}" if run.exit_reason else "")


def last_iteration(run):
    return max((points[-1][0] for points in run.series.values()), default=0)


def runs_grid(runs, link):
    """link(run) is the address behind the run's name; empty: no link."""
    def loss(run):
        value = run.last(records.LOSS)
        return "" if value is None else f"{value:.4f}"
    headings = ["run", "seed", "state", "iteration", "of", "val. loss", "started", "minutes",
                "revision"]
    return headings, [
        [page.Link.to(link(run), f"{run.step}, {run.identity[:12]}"), str(run.seed), state(run),
         str(last_iteration(run)), str(run.iterations), loss(run), moment(run.started),
         minutes(run), revision(run)] for run in runs]


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
