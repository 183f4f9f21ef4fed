"""Reads runs and their steps from runs/results.db.  docs/database.md has the tables."""
import functools
import json
import math
import os
import platform
import sqlite3
import sys
import urllib.parse
from dataclasses import dataclass, field

from tools.results import metric_names, names, plain, renamed

SCHEMA = (1, 2)     # versions of the tables that are understood; the second only adds views
ADVICE = "'results rebuild' recreates it"
FINISHED = ("done", "budget")
NO_ORACLE = "oracle", "no oracle"       # an audit, and its subject
LOSS = metric_names.VALIDATION_LOSS
ENVIRONMENT = ("machine", "compiler", "flags", "blas", "threads", "precision")
NUMBERS = ("id", "seed", "repeat", "git_dirty", "iterations", "started", "ended", "heartbeat", "threads", "pid")
COLUMNS = ("runs.id", "step", "identity", "baseline", "seed", "repeat", "state", "exit_reason", "scale",
           "git_revision", "git_dirty", "directory", "iterations", "started", "ended", "heartbeat", "host", "pid")


def for_readers(environment, config):
    """The environment with "blas" called "gpu" where it describes one."""
    blas = "blas" if config.get("BACKEND", "cpu") == "cpu" else "gpu"
    return {blas if name == "blas" else name: value for name, value in environment.items()}


def is_gone(host, pid):
    """Has the process of a run ended on this machine?"""
    return host == platform.node() and not os.path.exists(f"/proc/{pid}")


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
    host: str
    pid: int
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

    def first(self, name):
        """Before the first update."""
        points = self.series.get(name)
        return points[0][1] if points and points[0][0] == 0 and len(points) > 1 else None

    def tail_mean(self, name, iterations):
        """The mean of the values recorded in the last `iterations` iterations."""
        points = self.series.get(name, [])
        values = [v for i, v in points if i > points[-1][0] - iterations]
        return sum(values) / len(values) if values else None

    def parts(self, name):
        """The names below it, such as those of layers."""
        return [part for part in self.series if part.startswith(name + "/")]

    def last_mean(self, name):
        """The mean over the parts of a name."""
        values = [self.last(part) for part in self.parts(name)]
        return sum(values) / len(values) if values else None

    def best(self, name):
        return min((v for _, v in self.series.get(name, []) if math.isfinite(v)), default=None)

    @property
    def failed_audits(self):
        return [audit for audit in self.audits if not audit[2]]

    @property
    def has_no_oracle(self):
        """No second program computed its model."""
        return any(audit[:2] == NO_ORACLE for audit in self.audits)

    @property
    def is_of_values(self):
        """Read from a file of values (tools/report/values.py), without its directory."""
        return self.directory is None

    @property
    def is_going(self):
        """Does it run now?  On another machine nobody can tell, and it is believed."""
        return self.state == "running" and not is_gone(self.host, self.pid)

    @property
    def trouble(self):
        """Why the run has no headline; None if it has one."""
        if self.state == "running":
            return "still running" if self.is_going else "died: its process is gone; 'make' resumes it"
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
            raise Problem(f"{self.path}: {error}; {ADVICE}") from error


class Rows(list):
    def fetchall(self):
        return self

    def fetchone(self):
        return self[0] if self else None


def connect(path):
    if not os.path.exists(path):
        raise Problem(f"{path}: no database; 'make' trains and writes it, and 'results rebuild' "
                      "makes it from the run directories")
    if not os.path.isfile(path):    # SQLite would wait for the other end of a FIFO
        raise Problem(f"{path} is not a regular file")
    try:
        address = urllib.parse.quote(os.path.abspath(path))
        db = sqlite3.connect(f"file:{address}?mode=ro", uri=True, timeout=10, factory=Database)
        db.path, db.row_factory = path, sqlite3.Row
        db.text_factory = bytes.decode      # says which byte is wrong
        version = db.execute("PRAGMA user_version").fetchone()[0]
        # No list would show these runs.
        nowhere = version in SCHEMA and db.execute("PRAGMA foreign_key_check(runs)").fetchone()
    except sqlite3.Error as error:
        raise Problem(f"{path}: {error}; {ADVICE}") from error
    if nowhere:
        raise Problem(f"{path}: a run belongs to no experiment; {ADVICE}")
    if version not in SCHEMA:
        raise Problem(f"{path}: schema version {version}, known here: {SCHEMA[0]} to {SCHEMA[-1]}"
                      + f"; {ADVICE}" * (version < SCHEMA[0]))
    return db


def checked(db, check, *values):
    """What is no name becomes a Problem before anything is named after it."""
    try:
        return check(*values)
    except (ValueError, TypeError) as error:
        raise Problem(f"{db.path}: {error}; {ADVICE}") from None


def check_types(rows, *kinds):
    """SQLite's columns take values of any type, ours hold numbers or texts; both may be missing."""
    for kind, column in zip(kinds, zip(*rows)):
        wrong = {*map(type, column)} - {type(None), *kind}
        if wrong:
            raise TypeError(f"a {wrong.pop().__name__} stands in the place of a {kind[0].__name__}")


TEXT, NUMBER, WHOLE = (str,), (float, int), (int,)


def check_row(row):
    check_types([row], *(NUMBER if name in NUMBERS else TEXT for name in row.keys()))
    names.check_run(*(row[name] for name in ("experiment", "step", "baseline", "identity", "seed")))


def experiments(db):
    return [checked(db, names.checked, names.NAME, "experiment", name)
            for name, in db.execute("SELECT name FROM experiments ORDER BY name")]


def read_details(db, run, metrics):
    """Thousands of runs have the same texts: each is kept once."""
    run.config = {sys.intern(renamed.current(symbol)): sys.intern(value) for symbol, value in db.execute(
        "SELECT symbol, value FROM config WHERE run = ?", (run.id,))}
    wanted = f"AND name IN ({','.join('?' * len(metrics))})" if metrics else ""
    points = db.execute(f"SELECT name, iteration, value FROM metrics WHERE run = ? {wanted}"
                        " ORDER BY name, iteration", (run.id, *metrics))
    check_types(points, TEXT, WHOLE, NUMBER)
    for name, iteration, value in points:
        # SQLite has no NaN: it stores NULL.
        run.series.setdefault(sys.intern(name), []).append(
            (iteration, math.nan if value is None else value))
    run.audits = [tuple(row) for row in db.execute(
        "SELECT audit, subject, passed, detail FROM audits WHERE run = ?", (run.id,))]
    check_types(run.audits, TEXT, TEXT, WHOLE, TEXT)
    weights = db.execute("SELECT sha256 FROM artifacts WHERE run = ? AND kind = 'weights'"
                         " ORDER BY time DESC", (run.id,)).fetchone()
    run.weights = weights and weights[0]
    moved = db.execute("SELECT text FROM events WHERE run = ? AND kind = 'environment'",
                       (run.id,)).fetchone()
    run.moved = moved and moved[0]
    told = dict(db.execute("SELECT kind, text FROM events WHERE run = ?"
                           " AND kind IN ('prompt', 'sample') ORDER BY time", (run.id,)).fetchall())
    run.prompt, run.sample = told.get("prompt"), told.get("sample")
    check_types([(run.weights, run.moved, run.prompt, run.sample)], *[TEXT] * 4)


def verified_path(database):
    return os.path.join(os.path.dirname(os.path.abspath(database)), "verified.json")


def verifications(database):
    """By EXPERIMENT/STEP/IDENTITY; an unreadable file verifies nothing."""
    try:
        found = json.loads(plain.text(verified_path(database)))["runs"]
        return {key: (entry["heartbeat"], Verification(True, entry["bound"] is True, list(map(str, entry["wrong"]))))
                for key, entry in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def verification_of(run, known):
    heartbeat, found = known.get(f"{run.experiment}/{run.step}/{run.identity}", (None, None))
    return found if found and heartbeat == run.heartbeat else Verification()


def run_lines(db):
    """What a list of all runs shows, without their curves."""
    rows = db.execute("SELECT experiments.name AS experiment, step, identity, seed, state, heartbeat"
                      " FROM runs JOIN experiments ON experiments.id = runs.experiment")
    for row in rows:
        checked(db, names.check_run, row["experiment"], row["step"], None, row["identity"], row["seed"])
    return rows


def events(db, run):
    """(time, iteration, kind, text) of what training met."""
    found = [tuple(row) for row in db.execute("SELECT time, iteration, kind, text FROM events"
                                              " WHERE run = ? ORDER BY line", (run.id,))]
    checked(db, check_types, found, NUMBER, WHOLE, TEXT, TEXT)
    return found


def runs_where(db, condition, *values, metrics=()):
    """With the metrics of these names, or of all."""
    rows = db.execute(f"SELECT experiments.name AS experiment, {', '.join(COLUMNS + ENVIRONMENT)} FROM runs"
                      " JOIN experiments ON experiments.id = runs.experiment"
                      f" WHERE {condition} ORDER BY runs.id", values).fetchall()
    for row in rows:
        checked(db, check_row, row)
    runs = [Run(environment={key: row[key] for key in ENVIRONMENT},
                **{key: row[key] for key in ("id", "experiment", *COLUMNS[1:])}) for row in rows]
    known = verifications(db.path)
    for run in runs:
        checked(db, read_details, db, run, metrics)
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


def read_experiment(db, name, metrics=()):
    known = experiments(db)
    if name not in known:
        raise Problem(f"{name}: no such experiment; there are: {', '.join(known) or 'none'}")
    steps = steps_of(runs_where(db, "experiments.name = ?", name, metrics=metrics))
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
