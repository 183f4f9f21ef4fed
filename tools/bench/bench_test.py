#!/usr/bin/env python3
"""The benchmark: its rows are configurations that exist, and its numbers say what they should."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from tools.bench import (bench, bench_compare, bench_decode, bench_decode_rows, bench_forms, bench_process,
                         bench_result, bench_rows, bench_worker, op_profile)
from tools.plan import kconfig
from tools.report import decoding
from tools.testing import tap

BUILD = os.path.abspath(os.environ.get("O", "build"))


class Rows(unittest.TestCase):
    def test_every_row_resolves(self):
        tree = kconfig.Tree()
        for backend in bench_rows.BACKENDS:
            for row in bench_rows.rows(backend):
                with self.subTest(row.name):
                    bench_rows.resolve(tree, row.start, row.fragments, row.set | {"BACKEND": backend})
                    self.assertEqual(tree.values()["OPTIMIZER"], "adamw")

    def test_a_precision_that_is_named_counts(self):
        row = next(row for row in bench_rows.rows("cuda") if row.name == "124m-mla-16x1024")
        self.assertEqual(bench_rows.precisions(row, "*"), ["bfloat16"])
        self.assertEqual(bench_rows.precisions(row, "float32"), ["float32"])
        whole = next(row for row in bench_rows.rows() if row.whole)
        self.assertEqual(bench_rows.precisions(whole, "bfloat16"), [])

    def test_wrong_symbol_is_refused(self):
        with self.assertRaises(kconfig.Unfit):
            bench_rows.resolve(kconfig.Tree(), "", "", {"MODEL_LAYER": 3})


class Numbers(unittest.TestCase):
    def result(self, ours, theirs, goal, products=100.0):
        return bench_result.Result("row", "float32", goal, tokens=10, parameters=1, flops=100.0, rounds=[
            {"ours": o, "theirs": t, "products": products} for o, t in zip(ours, theirs)])

    def test_ratio_is_taken_within_rounds(self):
        r = self.result([1, 2, 4], [2, 2, 12], 1.5)
        self.assertEqual(r.ratio(), (2, 1, 3))
        self.assertTrue(r.reached())

    def test_more_than_the_bound_allows(self):
        r = self.result([1.1], [2], 2.5)    # the ceiling needs 1 s: no more than 2 can be had
        self.assertEqual(r.bound()[0], 2)
        self.assertFalse(r.reached())
        self.assertEqual(bench_result.goal_text(r), "2.5 missed, above the bound")
        r.goal = 1.9                        # can be had
        self.assertEqual(bench_result.goal_text(r), "1.9 missed")
        r.goal = 1.8
        self.assertEqual(bench_result.goal_text(r), "1.8 reached")

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
        self.assertIn("\r\033[K0-mla: 1 of 4", stream.getvalue())
        self.assertIn("\r\033[K1-mla+gate: 2 of 4, 1.5 min left", stream.getvalue())
        pipe = io.StringIO()
        progress = bench_decode.Progress(4, pipe)
        progress.show("0-mla")
        progress.step()
        self.assertEqual(pipe.getvalue(), "")


class Forms(unittest.TestCase):
    def test_every_way_with_every_attention(self):
        forms = bench_forms.forms("cuda", "bfloat16", tokens=16384)
        self.assertEqual(forms[:3], [f"compiled {attention} narrow" for attention in bench_forms.ATTENTIONS["bfloat16"]])
        self.assertIn("reduce-overhead sdpa-flash narrow", forms)
        self.assertEqual(bench_forms.forms("cuda", "bfloat16", tokens=16384, flex=True)[-1], "graph flex narrow")

    def test_small_batches_begin_with_graphs_and_routed_rows_are_gathered(self):
        self.assertEqual(bench_forms.forms("cuda", "bfloat16", tokens=2048, routed=True)[:4],
                         [f"graph {attention} gather" for attention in (*bench_forms.ATTENTIONS["bfloat16"], "plain")])

    def test_only_wanted_forms(self):
        self.assertEqual(bench_forms.forms("cuda", "float32", "compiled*", tokens=16384), ["compiled sdpa-efficient"])
        self.assertEqual(bench_forms.forms("cpu", "float32", "graph*"), [])
        self.assertEqual(bench_forms.forms("cuda", "bfloat16", explicit=True), ["eager plain"])

    def test_wrong_losses_come_last(self):
        tried = {"a": {"seconds": 1, "agrees": False}, "b": {"seconds": 2, "agrees": True}, "c": {"failed": "no"}}
        self.assertEqual(bench_forms.fastest(tried), "b")
        self.assertIsNone(bench_forms.fastest({"c": {"failed": "no"}}))


# Stands for PyTorch: a form takes as many milliseconds as it has letters; the captured ones fail.
STUB = """#!{python}
import json, sys, time
if sys.argv[1] == "-c":
    sys.exit(print("2.0"))
if "--ceilings" in sys.argv:
    print(json.dumps({{"torch": "2.0", "device": "stub"}}), flush=True)
    for line in sys.stdin:
        print(json.dumps({{"ceiling_flops": 1e12, "ceiling_flops_bfloat16": 1e13, "ceiling_bytes": 1e12}}), flush=True)
form = sys.argv[sys.argv.index("--form") + 1]
print(json.dumps({{"parameters": {parameters}, "base": 1}}), flush=True)
if form.startswith("graph"):
    sys.exit("RuntimeError: no graphs")
if form.startswith("reduce"):
    time.sleep(600)
for line in sys.stdin:
    print(json.dumps([{{"most": 1 << 30}}] if line == "memory\\n" else
                     {losses} if line.startswith("losses") else [len(form) / 1000]), flush=True)
"""


class OnGpu(unittest.TestCase):
    """The whole procedure with our program on the CPU and a stub of PyTorch."""
    class Rehearsal(bench.Bench):
        def backend_symbols(self):
            return {}

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.build = directory.name
        os.symlink(os.path.join(BUILD, "bin"), os.path.join(self.build, "bin"))
        self.rows = [bench_rows.Row("tiny", "smoke", "mla gate cross latent", {}, {"bfloat16": 1.5})]
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def run_bench(self, losses, limit, *more):
        stub = os.path.join(self.build, "python")
        kconfig.write_text(stub, STUB.format(python=sys.executable, parameters=75520, losses=losses))
        os.chmod(stub, 0o755)
        with unittest.mock.patch.object(bench, "Bench", self.Rehearsal), \
                unittest.mock.patch.object(bench_rows, "gpu_rows", lambda: self.rows), \
                unittest.mock.patch.multiple(bench_compare, RESERVED=1, LEAST=0.5), \
                unittest.mock.patch.object(bench_process, "TURN", 0.01), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            status = bench.main(["--backend", "cuda", "--build", self.build, "--rounds", "2", "--torch", stub,
                                 "--limit", str(limit), *more])
        self.assertEqual(status, 0)
        with open(os.path.join(self.build, "bench/gpu.json"), encoding="utf-8") as file:
            return out.getvalue(), json.load(file)["rows"]["tiny bfloat16"]

    def test_the_fastest_form_competes(self):
        text, row = self.run_bench([5.63] * 9 + [4.78], 30, "--forms", "graph*,compiled*")
        self.assertEqual(row["form"], "compiled plain gather")
        self.assertEqual(row["forms"]["graph plain gather"], {"failed": "RuntimeError: no graphs"})
        self.assertTrue(row["forms"][row["form"]]["agrees"])
        self.assertEqual(row["their_peak"], 1 << 30)
        self.assertEqual(row["flops"], 128 * (6 * 75520 + 12 * 2 * 32 * 32))
        self.assertIn("loss ours 5.63", text)
        self.assertNotIn("DIFFER", text)
        self.assertFalse(os.path.exists(os.path.join(self.build, "bench/tiny-bfloat16/start")))
        text, row = self.run_bench([1] * 10, 30, "--forms", "compiled plain*")
        self.assertIn("DIFFER", text)
        self.assertEqual(row["form"], "compiled plain gather")   # nothing else works

    def test_a_form_that_hangs_is_ended(self):
        _, row = self.run_bench([5.63] * 9 + [4.78], 4, "--forms", "reduce*")
        self.assertIn("its time was over", row["forms"]["reduce-overhead sdpa-cudnn gather"]["failed"])
        self.assertIsNone(row["ratio"])

    def test_rows_follow_each_other(self):
        self.rows = [bench_rows.Row(name, "smoke", "mla gate cross latent", {}, {"bfloat16": None})
                     for name in ("tiny", "other")]
        text, row = self.run_bench([5.63] * 9 + [4.78], 30, "--forms", "compiled sdpa-cudnn*")
        self.assertEqual(len(row["rounds"]), 2)
        self.assertIn("other (bfloat16): compiled sdpa-cudnn gather: 26.000 ms", text)
        self.assertEqual(text.count("| compiled sdpa-cudnn gather |"), 2)

    def interrupt_when_it_hangs(self, started):
        """The third process: after the ceilings and ours."""
        end = time.monotonic() + 60
        while time.monotonic() < end and len(started) < 3:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def test_all_processes_end_with_the_program(self):
        started, process = [], bench_process.Process

        def start(*how):
            started.append(process(*how))
            return started[-1]
        threading.Thread(target=self.interrupt_when_it_hangs, args=(started,)).start()
        with unittest.mock.patch.object(bench, "Process", start), \
                self.assertRaisesRegex(SystemExit, "stopped by signal 2"):
            self.run_bench([], 100, "--forms", "reduce*")
        self.assertEqual(len(started), 3)
        self.assertNotIn(None, [one.child.poll() for one in started])

    def test_rows_collect_over_runs(self):
        path = os.path.join(self.build, "bench/gpu.json")
        for name, seconds in ("a", 1), ("b", 2), ("a", 3):
            result = bench_result.Result(name, "bfloat16", backend="cuda", rounds=[{"ours": seconds}],
                                         forms={"eager": {"failed": "no"}})
            bench_result.Collection(path).put(bench_result.key(result), bench_result.entry(result))
        found = [bench_result.restored(row) for row in bench_result.Collection(path).found.values()]
        self.assertEqual([(r.row, r.ours()[0]) for r in found], [("a", 3), ("b", 2)])
        bench_result.markdown(found, "cuda")

    def test_other_losses_are_told(self):
        r = bench_result.Result("row", "bfloat16", losses=[10.8, 9.0], their_losses=[10.8, 7.9])
        self.assertFalse(r.agrees(r.their_losses))
        self.assertIn("DIFFER", bench_result.losses_text(r))
        self.assertTrue(r.agrees([10.81, 9.1]))
        self.assertIsNone(r.agrees([]))


class DecodeRows(unittest.TestCase):
    OWN = {"contexts": [{"token_seconds": 1e-3, "weights": 1e8, "state_bytes": 2e8,
                         "read_bytes_per_second": 3e12}], "batch": 64}
    PEER = {"contexts": [{"token_seconds": 2e-3, "form": "compiled", "weight_bytes": 3e8, "cache_bytes": 7e8}],
            "batch": 64, "torch": "2.0"}

    def found(self, own, peer):
        found = {"row": "124m-dot", "precision": "bfloat16", "batch": 64, "context": 1024, "goal": 0.6}
        sides = {"own": own and bench_decode_rows.one_context(own), "peer": peer and bench_decode_rows.one_context(peer)}
        found |= {side: answer for side, answer in sides.items() if answer}
        return dict(zip(bench_decode_rows.HEAD,
                        bench_decode_rows.cells(bench_decode_rows.with_limit(found, "bfloat16", 4e12))))

    def test_limit_is_the_bytes_of_the_peer_over_the_bandwidth(self):
        cells = self.found(self.OWN, self.PEER)     # 1e9 bytes at 4e12 bytes/s: 0.25 ms
        self.assertEqual((cells["tokens/s"], cells["PyTorch's"], cells["ratio"]), ("64000", "32000", "2.00"))
        self.assertEqual((cells["limit"], cells["reached"], cells["aim"]), ("256000", "25%", "60% missed"))

    def test_without_a_peer_our_bytes_count_in_the_precision(self):
        self.assertEqual(self.found(self.OWN, None)["limit"], "640000")    # 4e8 bytes: 0.1 ms
        self.assertEqual(self.found(None, self.PEER)["tokens/s"], "")

    def test_a_gpu_has_no_limit_without_a_measured_copy(self):
        own, bandwidth_of = bench_decode_rows.one_context(self.OWN), bench_decode_rows.bandwidth_of
        self.assertEqual(bandwidth_of(own, "cpu", {"ceiling_bytes": 4e12}), 3e12)
        self.assertEqual(bandwidth_of(own, "cuda", {"ceiling_bytes": 4e12}), 4e12)
        self.assertIsNone(bandwidth_of(own, "cuda", {}))

    def test_every_row_resolves_and_has_a_peer_where_it_can(self):
        with tempfile.TemporaryDirectory() as directory:
            runner = bench.Bench(directory)
            runner.torch, runner.python = "2.0", "python"
            options = argparse.Namespace(precision="bfloat16", seconds=0.5, rounds=1)
            peers = {row.name: bench_decode_rows.Subject(runner, row, options, 64, 1024).peer
                     for row in bench_rows.decode_rows()}
        self.assertEqual({name for name, peer in peers.items() if peer}, {"124m-dot", "124m-mla"})
        self.assertIn("--batch=64", peers["124m-dot"])
        self.assertIn("--vocab=50304", peers["124m-mla"])

    def measured(self, own, peer):
        """By processes that run this code."""
        with tempfile.TemporaryDirectory() as directory:
            runner = bench.Bench(directory)
            options = argparse.Namespace(precision="bfloat16", seconds=0.5, rounds=2)
            subject = bench_decode_rows.Subject(runner, next(bench_rows.decode_rows()), options, 64, 1024)
            subject.own, subject.peer = ([sys.executable, "-c", code] for code in (own, peer))
            subject.run()
        return subject.found

    def test_both_sides_are_measured(self):
        found = self.measured(f"print({json.dumps(self.OWN)!r})", f"print({json.dumps(self.PEER)!r})")
        self.assertEqual((found["own"]["token_seconds"], found["peer"]["form"]), (1e-3, "compiled"))

    def test_our_program_answers(self):
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(os.path.join(BUILD, "bin"), os.path.join(directory, "bin"))
            row = bench_rows.Row("tiny", "smoke", "mla", {"TASK": "copy", "COPY_VOCAB": 64}, {})
            options = argparse.Namespace(precision="float32", seconds=0.001, rounds=1)
            subject = bench_decode_rows.Subject(bench.Bench(directory), row, options, 2, 16)
            subject.run()
        self.assertEqual(subject.found["own"].get("context"), 16, subject.found)

    def test_an_answer_that_breaks_off_is_none(self):
        broken = "import sys; print('{\"contexts\": ', end='', flush=True); sys.exit('MemoryError: full')"
        found = self.measured(broken, f"print({json.dumps(self.PEER)!r})")
        self.assertEqual(found["own"], {"failed": "MemoryError: full"})
        self.assertEqual(found["peer"]["form"], "compiled")

    def test_products_that_were_not_measured(self):
        contexts = [{"context": 8, "state_bytes": 1, "first_token_seconds": 1, "prompt_flops": 1, "token_seconds": 1,
                     "token_bytes": 1, "read_bytes_per_second": 1, "sgemm_flops_per_second": None}]
        own = bench_decode.better({"contexts": contexts, "batch": 1}, {"contexts": contexts, "batch": 1})
        _, cells = decoding.grid(decoding.measured("step", {"own": own, "peer": None}))
        self.assertIn("", cells[0])


class Process(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        tree = kconfig.Tree()
        bench_rows.resolve(tree, "smoke", "mla gate cross latent", {})
        self.config = os.path.join(self.directory.name, "config")
        kconfig.write_text(self.config, kconfig.program_symbols(tree))

    def tearDown(self):
        self.directory.cleanup()

    def start(self, config, *more):
        process = bench_process.Process([os.path.join(BUILD, "bin/bench_model"), config, *more],
                                        os.path.join(self.directory.name, "log"), os.sched_getaffinity(0))
        process.wait_until_ready()
        return process

    def test_answers(self):
        process = self.start(self.config)
        self.assertEqual(process.about["tokens"], 4 * 32)
        self.assertGreater(process.about["flops"], 6 * 128 * process.about["parameters"] / 10)
        start = os.path.join(self.directory.name, "start")
        os.makedirs(start)
        self.assertEqual(process.ask(f"share 2 {start}"), [2])
        self.assertEqual(os.path.getsize(os.path.join(start, "batches")), 2 * 2 * 128 * 4)
        self.assertGreater(os.path.getsize(os.path.join(start, "weights.safetensors")),
                           4 * process.about["parameters"])
        self.assertEqual(len(process.ask(3)), 3)
        self.assertTrue(all(3 < loss < 7 for loss in process.ask("losses 2")))
        steps = process.ask("profile 2")
        self.assertLess({"embedding", "attention", "norm", "head_loss"}, {s["op"] for s in steps})
        seconds, peak = process.warm_up()
        self.assertTrue(0 < seconds < 60)
        self.assertGreater(peak, 16 * process.about["parameters"])
        process.end()
        self.assertEqual(process.child.returncode, 0)

    def test_decoding(self):
        process = self.start(self.config, "--decode", "8,16", "2", "0.001")
        process.end()
        self.assertEqual(process.child.returncode, 0)
        self.assertEqual([context["context"] for context in process.about["contexts"]], [8, 16])

    def test_broken_configuration_is_told(self):
        kconfig.write_text(self.config, "CONFIG_THREADS=1\n")
        with self.assertRaisesRegex(bench_process.Lost, "there is no symbol CONFIG_"):
            self.start(self.config)


class Worker(unittest.TestCase):
    SHORT = "CONFIG_GPT2_MAX_ITERS=4,CONFIG_AUDIT_ORACLE=n,CONFIG_AUDIT_WIRING=n,CONFIG_AUDIT_CAUSALITY=n"

    def step(self, directory, backend):
        with unittest.mock.patch.dict(os.environ, {"NVCC": ""}):
            return bench_worker.Step(pathlib.Path(directory), argparse.Namespace(build=BUILD, backend=backend, set=self.SHORT))

    def test_a_gpu_trains_replicas(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.step(directory, "cuda").values["REPLICAS"], "y")

    def test_shares(self):
        """Of the seconds of training: those that its operations and bytes need."""
        with tempfile.TemporaryDirectory() as directory:
            step = self.step(directory, "cpu")
            least = step.least_seconds(argparse.Namespace(build=BUILD, backend="cpu", torch=None))
            times = bench_worker.measure(step, 2)
        self.assertEqual(list(least), ["of products", "of bytes"])
        line = bench_worker.row(step, 2, times, least)
        self.assertEqual(line[0], "2")
        self.assertEqual(line[-2:], [f"{200 * seconds / times['training']:.1f}%" for seconds in least.values()])
        self.assertTrue(all(0 < float(share.rstrip("%")) < 150 for share in line[-2:]), line)


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
