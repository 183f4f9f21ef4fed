#!/usr/bin/env python3
"""The benchmark: its rows are configurations that exist, and its numbers say what they should."""
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from tools.bench import bench, bench_decode, bench_forms, bench_process, bench_result, bench_rows, op_profile
from tools.plan import kconfig
from tools.testing import tap

BUILD = os.path.abspath(os.environ.get("O", "build"))


class Rows(unittest.TestCase):
    def test_every_row_resolves(self):
        tree = kconfig.Tree()
        for row in bench_rows.rows():
            with self.subTest(row.name):
                bench_rows.resolve(tree, row.start, row.fragments, row.set)
                self.assertEqual(tree.values()["OPTIMIZER"], "adamw")

    def test_wrong_symbol_is_refused(self):
        with self.assertRaises(kconfig.Unfit):
            bench_rows.resolve(kconfig.Tree(), "", "", {"MODEL_LAYER": 3})


class Numbers(unittest.TestCase):
    def result(self, ours, theirs, asked, products=100.0):
        return bench_result.Result("row", "float32", asked, tokens=10, parameters=1, flops=100.0, rounds=[
            {"ours": o, "theirs": t, "products": products} for o, t in zip(ours, theirs)])

    def test_ratio_is_taken_within_rounds(self):
        r = self.result([1, 2, 4], [2, 2, 12], 1.5)
        self.assertEqual(r.ratio(), (2, 1, 3))
        self.assertTrue(r.reached())

    def test_bound_softens_what_it_forbids(self):
        r = self.result([1.9], [2], 2.5)    # the ceiling needs 1 s: no more than 2 can be had
        self.assertEqual(r.bound()[0], 2)
        self.assertFalse(r.reached())
        r.rounds = [{"ours": 1.1, "theirs": 2, "products": 100.0}]
        self.assertTrue(r.reached())        # 1.82 of at least 1.7
        r.asked = 1.9                       # can be had
        self.assertFalse(r.reached())

    def test_percent_of_ceiling(self):
        self.assertEqual(self.result([2], [2], None).of_ceiling()[0], 0.5)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Decode(unittest.TestCase):
    def test_contexts_fit_the_trained_length(self):
        self.assertEqual(bench_decode.usual_lengths({"MODEL_BLOCK": "1024"}), "256,512,1024")
        self.assertEqual(bench_decode.usual_lengths({"MODEL_BLOCK": "4"}), "2,4")

    def test_progress(self):
        stream = Terminal()
        with unittest.mock.patch.dict(os.environ, COLUMNS="60"), \
                unittest.mock.patch("time.monotonic", side_effect=[0, 0, 30]):
            progress = bench_decode.Progress(4, stream)
            progress.show("0-mla")
            progress.step()
            progress.show("1-mla+gate")
        self.assertIn("0-mla: 1 of 4\033[K", stream.getvalue())
        self.assertIn("1-mla+gate: 2 of 4, 1.5 min left\033[K", stream.getvalue())
        pipe = io.StringIO()
        progress = bench_decode.Progress(4, pipe)
        progress.show("0-mla")
        progress.step()
        self.assertEqual(pipe.getvalue(), "")


class Process(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        tree = kconfig.Tree()
        bench_rows.resolve(tree, "smoke", "mla gate cross latent", {})
        self.config = os.path.join(self.directory.name, "config")
        kconfig.write_text(self.config, bench_rows.program_config(tree))

    def tearDown(self):
        self.directory.cleanup()

    def start(self, config):
        return bench_process.Process([os.path.join(BUILD, "bin/bench_model"), config],
                             os.path.join(self.directory.name, "log"), os.sched_getaffinity(0))

    def test_answers(self):
        process = self.start(self.config)
        self.assertEqual(process.about["tokens"], 4 * 32)
        self.assertGreater(process.about["flops"], 6 * 128 * process.about["parameters"] / 10)
        self.assertEqual(len(process.ask(3)), 3)
        steps = process.ask("profile 2")
        self.assertEqual({s["module"] for s in steps} - {"zero"},
                         {"embedding", "attention", "feed_forward", "norm", "head"})
        seconds, peak = process.warm_up()
        self.assertTrue(0 < seconds < 60)
        self.assertGreater(peak, 16 * process.about["parameters"])
        process.end()
        self.assertEqual(process.child.returncode, 0)

    def test_broken_configuration_is_told(self):
        kconfig.write_text(self.config, "CONFIG_THREADS=1\n")
        with self.assertRaisesRegex(bench_process.Lost, "there is no symbol CONFIG_"):
            self.start(self.config)


class Names(unittest.TestCase):
    def test_no_module_hides_one_of_python(self):
        """PyTorch's side is started by its path: what lies beside it is found before Python's own modules."""
        here = {name[:-3] for name in os.listdir(os.path.dirname(bench_forms.TORCH_TOOL)) if name.endswith(".py")}
        self.assertEqual(here & set(sys.stdlib_module_names), set())


class Profile(unittest.TestCase):
    def test_ops_are_added_up_and_the_largest_comes_first(self):
        steps = [{"op": op, "pass": name, "seconds": seconds} for op, name, seconds in
                 (("gelu", "forward", 1), ("linear", "forward", 2), ("gelu", "forward", 3), ("gelu", "backward", 1))]
        groups = op_profile.by_op(steps)
        self.assertEqual(groups, [(("gelu", "forward"), [2, 4]), (("linear", "forward"), [1, 2]),
                                  (("gelu", "backward"), [1, 1])])
        self.assertIn("57.1%", next(op_profile.lines(groups, 10)))


class Table(unittest.TestCase):
    def test_without_torch_only_ours(self):
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(os.path.join(BUILD, "bin"), os.path.join(directory, "bin"))
            no_torch = os.path.join(directory, "python")
            kconfig.write_text(no_torch, "#!/bin/sh\nexit 1\n")
            os.chmod(no_torch, 0o755)
            done = subprocess.run(
                [sys.executable, "-m", "tools.bench.bench", "--build", directory, "--rows", "laptop-mla", "--rounds", "1",
                 "--torch", no_torch], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("our columns only", done.stdout)
            with open(os.path.join(directory, "bench/bench.json"), encoding="utf-8") as file:
                row = json.load(file)["rows"]["laptop-mla float32"]
        self.assertIsNone(row["ratio"])
        self.assertTrue(0 < row["of_ceiling"][0] < 1.5)


if __name__ == "__main__":
    tap.main()
