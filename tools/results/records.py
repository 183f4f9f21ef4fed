"""Reads runs and their steps from runs/results.db.  docs/database.md has the tables."""
import functools
import json
import math
import os
import sqlite3
import sys
import urllib.parse
from dataclasses import dataclass, field

SCHEMA = (1, 2)     # versions of the tables that are understood; the second only adds views
FINISHED = ("done", "budget")
LOSS = "val/loss"
ENVIRONMENT = ("machine", "compiler", "flags", "blas", "threads", "precision")


def for_readers(environment, config):
    """The environment with "blas" called "gpu" where it describes one."""
    blas = "blas" if config.get("BACKEND", "cpu") == "cpu" else "gpu"
    return {blas if name == "blas" else name: value for name, value in environment.items()}


class Problem(Exception):
    """Something a user can act on."""


@dataclass
class Verification:
    """What `results verify` found about a run."""
    is_known: bool = False      # it was verified as it is now
    is_bound: bool = True       # its journal names it
    wrong: list = ()


@dataclass
class Run:
    id: int
    experiment: str
    step: str
    identity: str
    baseline: str
    seed: int
    repeat: int
    state: str
    exit_reason: str
    scale: str
    git_revision: str
    git_dirty: bool
    directory: str
    iterations: int
    started: float
    ended: float
    heartbeat: float
    environment: dict
    config: dict = field(default_factory=dict)
    series: dict = field(default_factory=dict)      # name -> [(iteration, value)], in order
    audits: list = field(default_factory=list)      # (audit, subject, passed, detail)
    weights: str = None                             # sha256 of the final weights
    prompt: str = None                              # of the sample at the end, or None
    sample: str = None
    moved: str = None                               # how the environment changed on the way
    verification: "Verification" = None             # None: not known, as in a file of values

    def __str__(self):
        return f"{self.step}, seed {self.seed}"

    def last(self, name):
        points = self.series.get(name)
        return points[-1][1] if points else None

    def tail_mean(self, name, iterations):
        """The mean of the values recorded in the last `iterations` iterations."""
        points = self.series.get(name, [])
        values = [v for i, v in points if i > points[-1][0] - iterations]
        return sum(values) / len(values) if values else None

    def best(self, name):
        return min((v for _, v in self.series.get(name, []) if math.isfinite(v)), default=None)

    @property
    def failed_audits(self):
        return [audit for audit in self.audits if not audit[2]]

    @property
    def trouble(self):
        """Why the run has no headline; None if it has one."""
        if self.state == "running":
            return "still running, or died (see 'make status')"
        if self.state not in FINISHED:
            return self.state + (f": {self.exit_reason}" if self.exit_reason else "")
        loss = self.last(LOSS)
        if loss is None:
            return f"{self.state}, but without {LOSS}"
        return None if math.isfinite(loss) else f"{LOSS} is not finite"


@dataclass
class Step:
    """The runs of one step, one per seed, all of the same configuration."""
    name: str
    runs: list
    older: int = 0      # runs of this step that newer ones replace

    @property
    def config(self):
        return self.runs[0].config

    @property
    def baseline(self):
        return self.runs[0].baseline

    @property
    def repeat(self):
        return self.runs[0].repeat

    @functools.cached_property
    def usable(self):
        """Runs with a headline, by seed; looked up once, as a grid asks for each of its seeds."""
        return {run.seed: run for run in self.runs if run.trouble is None}

    @property
    def failed_audits(self):
        """Each failed audit once, whatever the number of seeds."""
        return list({audit[:2]: audit for run in self.runs for audit in run.failed_audits}.values())

    @property
    def is_invalid(self):
        return bool(self.failed_audits) or any(run.state == "invalid" for run in self.runs)

    @property
    def is_leaky(self):
        """Does the configuration declare a leak?  The audits may be off."""
        return self.config.get("AUDIT_LEAK_DECLARED") == "y"


# ---------------------------------------------------------------- reading

class Database(sqlite3.Connection):
    """A database whose damage becomes a Problem, which a user can act on."""
    path = ""

    def execute(self, *arguments):
        """Reads all rows at once, so that damage shows here."""
        try:
            return Rows(super().execute(*arguments).fetchall())
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise Problem(f"{self.path}: {error}; 'results rebuild' makes it anew") from error


class Rows(list):
    def fetchall(self):
        return self

    def fetchone(self):
        return self[0] if self else None


def connect(path):
    if not os.path.exists(path):
        raise Problem(f"{path}: no database; 'make' trains and writes it, and 'results rebuild' "
                      "makes it from the run directories")
    try:
        address = urllib.parse.quote(os.path.abspath(path))
        db = sqlite3.connect(f"file:{address}?mode=ro", uri=True, timeout=10, factory=Database)
        db.path, db.row_factory = path, sqlite3.Row
        db.text_factory = bytes.decode      # says which byte is wrong
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise Problem(f"{path}: {error}; 'results rebuild' makes it anew") from error
    if version not in SCHEMA:
        raise Problem(f"{path}: schema version {version}, known here: {SCHEMA[0]} to {SCHEMA[-1]}")
    return db


def experiments(db):
    return [name for name, in db.execute("SELECT name FROM experiments ORDER BY name")]


def read_details(db, run, names):
    """Thousands of runs have the same texts: each is kept once."""
    run.config = {sys.intern(symbol): sys.intern(value) for symbol, value in db.execute(
        "SELECT symbol, value FROM config WHERE run = ?", (run.id,))}
    wanted = f"AND name IN ({','.join('?' * len(names))})" if names else ""
    for name, iteration, value in db.execute(
            f"SELECT name, iteration, value FROM metrics WHERE run = ? {wanted}"
            " ORDER BY name, iteration", (run.id, *names)):
        # SQLite has no NaN: it stores NULL.
        run.series.setdefault(sys.intern(name), []).append(
            (iteration, math.nan if value is None else value))
    run.audits = [tuple(row) for row in db.execute(
        "SELECT audit, subject, passed, detail FROM audits WHERE run = ?", (run.id,))]
    weights = db.execute("SELECT sha256 FROM artifacts WHERE run = ? AND kind = 'weights'"
                         " ORDER BY time DESC", (run.id,)).fetchone()
    run.weights = weights and weights[0]
    moved = db.execute("SELECT text FROM events WHERE run = ? AND kind = 'environment'",
                       (run.id,)).fetchone()
    run.moved = moved and moved[0]
    told = dict(db.execute("SELECT kind, text FROM events WHERE run = ?"
                           " AND kind IN ('prompt', 'sample') ORDER BY time", (run.id,)).fetchall())
    run.prompt, run.sample = told.get("prompt"), told.get("sample")


def verified_path(database):
    return os.path.join(os.path.dirname(os.path.abspath(database)), "verified.json")


def verifications(database):
    """By EXPERIMENT/STEP/IDENTITY; an unreadable file verifies nothing."""
    try:
        with open(verified_path(database), encoding="utf-8") as file:
            return {key: (entry["heartbeat"], Verification(True, entry["bound"] is True,
                                                           list(map(str, entry["wrong"]))))
                    for key, entry in json.load(file)["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def verification_of(run, known):
    heartbeat, found = known.get(f"{run.experiment}/{run.step}/{run.identity}", (None, None))
    return found if found and heartbeat == run.heartbeat else Verification()


def run_lines(db):
    """What a list of all runs shows, without their curves."""
    return db.execute("SELECT experiments.name AS experiment, step, identity, seed, state, heartbeat"
                      " FROM runs JOIN experiments ON experiments.id = runs.experiment")


def events(db, run):
    """(time, iteration, kind, text) of what training met."""
    return [tuple(row) for row in db.execute("SELECT time, iteration, kind, text FROM events"
                                             " WHERE run = ? ORDER BY line", (run.id,))]


def runs_where(db, condition, *values, names=()):
    """With the metrics of these names, or of all."""
    rows = db.execute("SELECT runs.*, experiments.name AS experiment_name FROM runs"
                      " JOIN experiments ON experiments.id = runs.experiment"
                      f" WHERE {condition} ORDER BY runs.id", values).fetchall()
    runs = [Run(environment={key: row[key] for key in ENVIRONMENT},
                experiment=row["experiment_name"],
                **{key: row[key] for key in ("id", "step", "identity", "baseline", "seed", "repeat",
                                             "state", "exit_reason", "scale", "git_revision",
                                             "git_dirty", "directory", "iterations", "started",
                                             "ended", "heartbeat")})
            for row in rows]
    known = verifications(db.path)
    for run in runs:
        read_details(db, run, names)
        run.verification = verification_of(run, known)
    return runs


# ---------------------------------------------------------------- steps

def step_order(name):
    """Sorts steps by the number in front."""
    number = name.split("-", 1)[0]
    return (0, int(number), name) if number.isdigit() else (1, 0, name)


def age(run):
    return (run.started or 0, run.id)


def newest_runs(name, runs):
    """The runs of the newest configuration of the step; a changed setting makes other runs."""
    config = max(runs, key=age).config
    by_seed = {run.seed: run for run in sorted(runs, key=age) if run.config == config}
    chosen = [by_seed[seed] for seed in sorted(by_seed)]
    return Step(name, chosen, len(runs) - len(chosen))


def steps_of(runs):
    by_name = {}
    for run in runs:
        by_name.setdefault(run.step, []).append(run)
    return [newest_runs(name, by_name[name]) for name in sorted(by_name, key=step_order)]


def read_experiment(db, name, names=()):
    known = experiments(db)
    if name not in known:
        raise Problem(f"{name}: no such experiment; there are: {', '.join(known) or 'none'}")
    steps = steps_of(runs_where(db, "experiments.name = ?", name, names=names))
    if not steps:
        raise Problem(f"{name}: the experiment has no runs yet")
    return steps


def find(db, name):
    """The steps that EXPERIMENT, EXPERIMENT/STEP or the beginning of an identity names."""
    if name in experiments(db):
        return read_experiment(db, name)
    if "/" in name:
        experiment, wanted = name.split("/", 1)
        steps = read_experiment(db, experiment)
        found = [s for s in steps if wanted in (s.name, *s.name.split("-", 1))]
        if len(found) != 1:
            raise Problem(f"{name}: {'no such step' if not found else 'several steps'}; there are: "
                          + ", ".join(s.name for s in found or steps))
        return found
    # Letters of a pattern would match more than themselves.
    runs = runs_where(db, "identity LIKE ? || '%'", name) if name.isalnum() else []
    if not runs:
        raise Problem(f"{name}: no experiment, EXPERIMENT/STEP or identity of a run; "
                      f"experiments: {', '.join(experiments(db)) or 'none'}")
    if len({run.identity for run in runs}) > 1:
        raise Problem(f"{name}: stands for {len(runs)} runs: "
                      + ", ".join(f"{r.identity} ({r.experiment}/{r})" for r in runs))
    return [Step(runs[0].step, runs[:1])]
