"""How far the runs of a plan are, and how long the rest takes.  Everyone who shows it reads it here.

Make writes the plan of an experiment to RUNS/EXPERIMENT/planned.json before its first run begins: a list of
runs with kind ("run" or "tuning"), experiment, step, seed, and the first 12 digits of the identity (None: the
learning rate is still to be chosen).  The database has the runs that have begun.
"""
import contextlib
import json
import os
from dataclasses import dataclass

from tools.results import names, plain, records

FILE = "planned.json"
WAITING, RUNNING, DIED = "waiting", "running", "died"
RESUMABLE = (WAITING, DIED, "interrupted")      # make trains them when their turn comes


@dataclass
class Progress:
    """A planned run."""
    kind: str
    experiment: str
    step: str
    seed: int
    identity: str = None        # its first digits
    state: str = WAITING        # or RUNNING, DIED, or an end as in the database
    iteration: int = 0
    iterations: int = None      # None: it has not begun
    seconds: float = None       # of the whole run, at its pace so far
    seconds_left: float = None  # None: not known

    @property
    def is_finished(self):
        return self.state in records.FINISHED

    @property
    def share(self):
        """From 0 to 1."""
        return 1.0 if self.is_finished else min(1.0, self.iteration / self.iterations) if self.iterations else 0.0


# ---------------------------------------------------------------- the plan

def path_of(runs, experiment):
    return os.path.join(runs, experiment, FILE)


def checked(run):
    """A file may say anything."""
    found = Progress(*(run[name] for name in ("kind", "experiment", "step", "seed", "identity")))
    names.checked(names.NAME, "experiment", found.experiment)
    names.checked(names.STEP, "step", found.step)
    names.whole("seed", found.seed)
    if not isinstance(found.identity, (str, type(None))) or found.kind not in ("run", "tuning"):
        raise ValueError(f"{found.kind} {found.identity!r}: no run of a plan")
    return found


def read_plan(runs, experiment):
    """The planned runs, all of them waiting; none if nothing was planned here."""
    path = path_of(runs, experiment)
    try:
        return [checked(run) for run in json.loads(plain.text(path))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise records.Problem(f"{path}: {error}; 'make' writes it again") from None


# ---------------------------------------------------------------- how far it is

def pace(started, resumed, resumed_iteration, until, iteration):
    """Seconds per iteration since the run last started; None: not known yet."""
    begun = started if resumed is None else resumed
    made = (iteration or 0) - (resumed_iteration or 0)
    took = (until or 0) - (begun or 0)
    return took / made if begun and made > 0 and took > 0 else None


QUESTION = "SELECT substr(identity, 1, 12), state, host, pid, iterations, started, resumed, resumed_iteration," \
    " coalesce(ended, heartbeat), CASE state WHEN 'done' THEN iterations" \
    " ELSE (SELECT max(iteration) FROM metrics WHERE run = runs.id) END" \
    " FROM runs WHERE substr(identity, 1, 12) IN ({})"
AT_ONCE = 500   # SQLite takes at least 999 parameters


def rows_of(db, identities):
    for first in range(0, len(identities), AT_ONCE):
        some = identities[first:first + AT_ONCE]
        yield from db.execute(QUESTION.format(",".join("?" * len(some))), some).fetchall()


def read(db, planned):
    """Fills in what the database knows about the planned runs, and the time that each still takes."""
    by_identity = {run.identity: run for run in planned if run.identity}
    for identity, state, host, pid, iterations, *times, iteration in rows_of(db, [*by_identity]):
        run = by_identity[identity]
        run.state = DIED if state == RUNNING and records.is_gone(host, pid) else state
        run.iteration, run.iterations = iteration or 0, iterations
        seconds = pace(*times, iteration)
        run.seconds = seconds and seconds * iterations
    estimate(planned)
    return planned


# ---------------------------------------------------------------- how long the rest takes

def mean(values):
    return sum(values) / len(values) if values else None


def estimate(planned):
    """A run takes as long as the others of its step, or as the others of the plan, until its own pace is known."""
    def expected(step=None):
        own = [run for run in planned if run.seconds and step in (None, run.step)]
        return mean([run.seconds for run in own if run.is_finished] or [run.seconds for run in own])
    by_step, of_all = {step: expected(step) for step in {run.step for run in planned}}, expected()
    for run in planned:
        whole = run.seconds or by_step[run.step] or of_all
        if run.state in (RUNNING, *RESUMABLE):
            run.seconds_left = None if whole is None else whole * (1 - run.share)
        else:
            run.seconds_left = 0


def seconds_left(planned, jobs):
    """Until all have ended, if `jobs` runs train side by side; None: not known."""
    left = [run.seconds_left for run in planned]
    return None if None in left or not left else max(sum(left) / max(1, jobs), *left)


def going(database):
    """The numbers of the runs that go on: the process of a run may end without a change of any file."""
    with contextlib.closing(records.connect(database)) as db:
        return [run for run, host, pid in db.execute("SELECT id, host, pid FROM runs WHERE state = 'running'")
                if not records.is_gone(host, pid)]


def running_jobs(planned):
    """How many train side by side; at least one, even while none does."""
    return max(1, count(planned, RUNNING))


def count(planned, state):
    return sum(run.is_finished if state == "done" else run.state == state for run in planned)
