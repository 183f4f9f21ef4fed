"""How far a plan is, from planned.json and a database that `results` made."""
import json
import platform
import sys

sys.dont_write_bytecode = True  # the tree stays as it was

from tools.results import records, time_left
from tools.results.results_test import Case, write_run
from tools.testing import tap

NOW = 1.7e9
GONE = 2**22 + 1        # the kernel gives no greater number to a process than 2**22


def start(time=NOW, iteration=0, host="elsewhere", pid=1):
    return {"kind": "start", "time": time, "iteration": iteration, "host": host, "pid": pid, "process": "p"}


def value(time, iteration):
    return {"kind": "value", "time": time, "iteration": iteration, "name": "train/loss", "value": 1}


def end(time, state="done"):
    return {"kind": "end", "time": time, "state": state}


class Plan(Case):
    """Step 0 has seeds 1 and 2, step 1 too; runs have 20 iterations."""

    def setUp(self):
        super().setUp()
        self.names = {(step, seed): f"{i}{seed}" + "0" * 10 for i, step in enumerate(("0-a", "1-b")) for seed in (1, 2)}
        self.write([{"kind": "run", "experiment": "ra", "step": step, "seed": seed, "identity": identity}
                    for (step, seed), identity in self.names.items()])

    def write(self, runs):
        path = time_left.path_of(self.runs, "ra")
        (self.runs / "ra").mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(runs, file)

    def add(self, step, seed, *lines):
        write_run(self.runs, f"{step}-{seed}", lines, step=step, seed=seed,
                  identity=self.names[step, seed] + "f" * 52)

    def look(self):
        self.results("rebuild")
        db = records.connect(str(self.runs / "results.db"))
        self.addCleanup(db.close)
        return time_left.read(db, time_left.read_plan(self.runs, "ra"))

    def states(self, planned):
        return [(run.state, round(run.share, 2), run.seconds_left) for run in planned]

    def test_nothing_has_begun(self):
        planned = time_left.read_plan(self.runs, "ra")
        time_left.estimate(planned)
        self.assertEqual(self.states(planned), [("waiting", 0, None)] * 4)
        self.assertIsNone(time_left.seconds_left(planned, 1))

    def test_the_first_run_tells_its_pace(self):
        self.add("0-a", 1, start(), value(NOW + 25, 5))
        planned = self.look()
        self.assertEqual(self.states(planned), [("running", 0.25, 75), *[("waiting", 0, 100)] * 3])
        self.assertEqual(time_left.seconds_left(planned, 1), 375)
        self.assertEqual(time_left.seconds_left(planned, 2), 187.5)
        self.assertEqual(time_left.seconds_left(planned, 100), 100)      # no run is shared

    def test_a_run_takes_as_long_as_its_step(self):
        self.add("0-a", 1, start(), end(NOW + 40))
        self.add("1-b", 1, start(), end(NOW + 200))
        self.assertEqual(self.states(self.look()), [("done", 1, 0), ("waiting", 0, 40), ("done", 1, 0), ("waiting", 0, 200)])

    def test_pauses_do_not_count(self):
        self.add("0-a", 1, start(), value(NOW + 10, 10), end(NOW + 11, "interrupted"),
                 start(NOW + 9000, 10), value(NOW + 9010, 20), end(NOW + 9010))
        self.assertEqual(self.states(self.look()), [("done", 1, 0), *[("waiting", 0, 20)] * 3])

    def test_ends_that_are_none(self):
        """What make trains on and what it does not."""
        self.add("0-a", 1, start(host=platform.node(), pid=GONE), value(NOW + 10, 10))
        self.add("0-a", 2, start(), value(NOW + 10, 10), end(NOW + 10, "interrupted"))
        self.add("1-b", 1, start(), value(NOW + 10, 10), end(NOW + 10, "diverged"))
        self.assertEqual(self.states(self.look()), [("died", 0.5, 10), ("interrupted", 0.5, 10), ("diverged", 0.5, 0),
                                                    ("waiting", 0, 20)])

    def test_a_rate_that_is_still_to_be_chosen(self):
        self.write([{"kind": "tuning", "experiment": "ra-tuning", "step": "0-a@1e-3", "seed": 101, "identity": "a" * 12},
                    {"kind": "run", "experiment": "ra", "step": "0-a", "seed": 1, "identity": None}])
        self.add("1-b", 1, start(), end(NOW + 40))      # not of this plan
        planned = self.look()
        self.assertEqual([(run.kind, run.state) for run in planned], [("tuning", "waiting"), ("run", "waiting")])

    def test_no_plan(self):
        self.assertEqual(time_left.read_plan(self.runs, "other"), [])

    def test_damaged_plans(self):
        whole = {"kind": "run", "experiment": "ra", "step": "0-a", "seed": 1, "identity": "a" * 12}
        for wrong in ("x", 5, [5], [{}], [{**whole, "step": "<b>"}], [{**whole, "seed": "1"}],
                      [{**whole, "kind": "other"}], [{**whole, "identity": 5}], [{**whole, "experiment": "../x"}]):
            self.write(wrong)
            with self.subTest(wrong=wrong), self.assertRaisesRegex(records.Problem, "planned.json: .*'make' writes it again"):
                time_left.read_plan(self.runs, "ra")


if __name__ == "__main__":
    tap.main()
