#!/usr/bin/env python3
"""Training on a GPU, end to end: the promises that hold on the CPU hold there."""
import json
import shutil
import signal
import subprocess
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # write no __pycache__ into the tree

from tools.kablate import mpi_longtest, train_test
from tools.kablate.train_test import DIVERGED, OUTPUT, RESUMABLE, STUDY, STUDY_SETTINGS, Case, Run, program
from tools.testing import tap

tearDownModule = train_test.tearDownModule

# What may differ between devices: sums in another order, over 60 updates.
LOSS_ERROR = 2e-3
FLOAT32 = {"BACKEND": "cuda", "PRECISION": "float32"}     # the default is bfloat16
TRIAL = OUTPUT / "trial/kablate_cuda.so"        # tools/make/cuda.mk


def there_is_a_gpu():
    listed = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return bool(listed) and "GPU 0" in listed.stdout


HAS_GPU, IS_BUILT = there_is_a_gpu(), (OUTPUT / "kablate_cuda.so").exists()


def on_gpu(**settings):
    return program(STUDY, STUDY_SETTINGS, **{**FLOAT32, **settings})


@unittest.skipUnless(IS_BUILT, "the GPU backend is not built: no nvcc")
class Gpu(Case):
    def test_same_seed_same_bits(self):
        first, second = Run(on_gpu()), Run(on_gpu())
        first.train()
        second.train()
        self.assert_same(second, first)

    def test_two_at_once_change_nothing(self):
        alone, beside = Run(on_gpu()), [Run(on_gpu()) for _ in range(2)]
        alone.train()
        for run in [run.start() for run in beside]:
            self.assertEqual(run.end(), 0, run.text)
        for run in beside:
            self.assert_same(run, alone)

    def test_resumes_bit_by_bit(self):
        straight, run = Run(on_gpu()), Run(on_gpu())
        straight.train()
        started = run.held_at(" 30/60 ").send(signal.SIGTERM)
        self.assertEqual(started.end(), RESUMABLE, started.text)
        run.train()
        self.assert_same(run, straight)

    def test_switches_change_no_bit(self):
        """The planner, recomputation and the search for NaN."""
        for precision in ({"PRECISION": "float32"}, {"PRECISION": "bfloat16"},
                          {"PRECISION": "bfloat16", "STORE_ACTIVATIONS": "bfloat16_residual"}):
            plain = Run(on_gpu(**precision))
            plain.train()
            for settings in ({"PLANNER": "n"}, {"RECOMPUTE": "y"}, {"CHECK_NAN": "y"}):
                run = Run(on_gpu(**precision, **settings))
                run.train()
                self.assertEqual(run.weights(), plain.weights(), (precision, settings))

    def test_graphs_change_no_bit(self):
        """Captured graphs, kernels launched one by one, those that never come before the last one ends, and one stream."""
        for settings in ({}, {"TRAIN_ACCUMULATE": 3, "TRAIN_BATCH": 2}, {"PRECISION": "bfloat16"},
                         {"PRECISION": "bfloat16", "MERGE_LINEARS": "y"}):
            usual = Run(on_gpu(**settings))
            usual.train()
            for switch in ("KABLATE_CUDA_GRAPHS", "KABLATE_CUDA_PDL", "KABLATE_CUDA_STREAMS"):
                without = Run(on_gpu(**settings))
                with mock.patch.dict(train_test.ENVIRONMENT, {switch: "off"}):
                    without.train()
                self.assert_same(without, usual)

    def test_reading_rarely_changes_nothing(self):
        """Updates whose outcome is read together: also those with spikes and restarts."""
        rare = {"LOG_INTERVAL": 60, "CHECKPOINT_INTERVAL": 0, "EVAL_INTERVAL": 60}
        often, rarely = Run(on_gpu(LOG_INTERVAL=1)), Run(on_gpu(**rare))
        often.train()
        rarely.train()
        self.assertEqual(rarely.weights(), often.weights())
        events = "SELECT kind, iteration, text FROM events WHERE kind IN ('spike', 'reset') ORDER BY iteration, kind"
        self.assertEqual(rarely.ask(events), often.ask(events))
        self.assertGreater(len(often.ask(events)), 2)

    def test_divergence_is_told_as_if_each_update_were_read(self):
        """Updates after the one that is not finite do nothing, and the explanation is of that one."""
        wild = {"LEARNING_RATE": "1e30", "WARMUP_ITERS": 0, **FLOAT32, "CHECKPOINT_INTERVAL": 0, "EVAL_INTERVAL": 60}
        often, rarely = Run(program(LOG_INTERVAL=1, **wild)), Run(program(LOG_INTERVAL=60, **wild))
        often.train(expect=DIVERGED)
        rarely.train(expect=DIVERGED)
        self.assertRegex(often.state()[1], r"diverged in iteration [1-9]: .*'[\w./]+'")
        self.assertEqual(rarely.state(), often.state())

    def test_killed_twenty_times(self):
        self.kill_often(20, on_gpu())

    def test_losses_are_those_of_the_cpu(self):
        gpu, cpu = Run(on_gpu(DROPOUT="0.0")), Run(program(STUDY, STUDY_SETTINGS, DROPOUT="0.0"))
        gpu.train()
        cpu.train()
        ours, theirs = gpu.values("val/loss"), cpu.values("val/loss")
        self.assertEqual(set(ours), set(theirs))
        for iteration, loss in ours.items():
            self.assertAlmostEqual(loss, theirs[iteration], delta=LOSS_ERROR)

    def test_dropout_masks_are_those_of_the_cpu(self):
        """Other masks would move the loss by far more than sums in another order."""
        gpu, cpu = Run(on_gpu(DROPOUT="0.5")), Run(program(STUDY, STUDY_SETTINGS, DROPOUT="0.5"))
        gpu.train()
        cpu.train()
        for iteration in (3, 6):
            self.assertAlmostEqual(gpu.values("train/loss")[iteration], cpu.values("train/loss")[iteration],
                                   delta=LOSS_ERROR)

    def test_audits_pass(self):
        for settings in ({}, {"PRECISION": "bfloat16"}, {"PRECISION": "bfloat16", "MERGE_LINEARS": "y"},
                         {"PRECISION": "bfloat16", "STORE_ACTIVATIONS": "bfloat16_residual"}):
            run = Run(on_gpu(AUDIT_WIRING="y", AUDIT_CAUSALITY="y", AUDIT_ONE_BATCH="y", GPT2_MAX_ITERS=2, **settings))
            run.train()
            self.assertEqual(run.ask("SELECT audit, subject FROM audits WHERE NOT passed"), [])
            self.assertGreater(run.ask("SELECT count(*) FROM audits")[0][0], 20)

    def test_activations_in_bfloat16(self):
        """The precision has a name of its own, takes less memory, and learns the same."""
        settings = {"PRECISION": "bfloat16", "GPT2_MAX_ITERS": 6}
        kept, wide = Run(on_gpu(**settings)), Run(on_gpu(STORE_ACTIVATIONS="float32", **settings))
        stream = Run(on_gpu(STORE_ACTIVATIONS="bfloat16_residual", **settings))
        kept.train()
        wide.train()
        stream.train()
        self.assertEqual(kept.ask("SELECT precision FROM runs"), [("bfloat16 stored",)])
        self.assertEqual(wide.ask("SELECT precision FROM runs"), [("bfloat16",)])
        self.assertEqual(stream.ask("SELECT precision FROM runs"), [("bfloat16 stored with residual",)])
        self.assertLess(kept.values("device_megabytes")[3], wide.values("device_megabytes")[3])
        self.assertLess(stream.values("device_megabytes")[3], kept.values("device_megabytes")[3])
        for run in (kept, stream):
            self.assertAlmostEqual(run.values("train/loss")[6], wide.values("train/loss")[6], delta=5 * LOSS_ERROR)

    def test_memory_is_predicted(self):
        """Our own blocks to the byte, before the end: the sample after the last update takes more."""
        for settings in ({}, {"PRECISION": "bfloat16"}, {"PRECISION": "bfloat16", "STORE_ACTIVATIONS": "float32"},
                         {"PRECISION": "bfloat16", "STORE_ACTIVATIONS": "bfloat16_residual"},
                         {"TRAIN_ACCUMULATE": 3, "RECOMPUTE": "y"}, {"PRECISION": "bfloat16", "MERGE_LINEARS": "y"}):
            run = Run(on_gpu(GPT2_MAX_ITERS=6, **settings))
            run.train()
            words = [run.binary, "describe", "--json"]
            done = subprocess.run(words, cwd=train_test.TREE, check=True, capture_output=True, text=True)
            taken = run.values("device_megabytes")[3] * 2**20
            self.assertEqual(json.loads(done.stdout)["device_own_bytes"], taken, settings)

    def test_a_run_that_does_not_fit(self):
        run = Run(on_gpu(TRAIN_BATCH=1 << 16, MODEL_BLOCK=1024))
        said = run.train(expect=1)
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        self.assertRegex(said, r"MiB of memory are needed, but the GPU leaves \d+ MiB.*: "
                               r"CONFIG_TRAIN_BATCH=\d+ with CONFIG_TRAIN_ACCUMULATE=\d+ and CONFIG_RECOMPUTE=y would fit")

    def test_the_record_names_the_gpu(self):
        run = Run(on_gpu(GPT2_MAX_ITERS=2))
        run.train()
        self.assertRegex(run.ask("SELECT blas FROM runs")[0][0], r"CUDA \d+\.\d+, cuBLAS \d+")

    def test_a_gpu_that_is_not_there(self):
        run = Run(on_gpu(GPT2_MAX_ITERS=2, CUDA_DEVICE=63))
        self.assertIn("there is no GPU number 63", run.train(expect=1))


class WithoutGpu(Case):
    def test_one_sentence(self):
        """No library, no driver or no GPU: an error at once, and nothing is left behind."""
        run = Run(on_gpu(GPT2_MAX_ITERS=2))
        said = run.train(expect=1)
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        self.assertRegex(said, "no GPU|no GPU backend|GPU backend cannot be loaded")
        self.assertEqual(list(run.runs.iterdir()), [])

    @unittest.skipUnless(TRIAL.exists(), "no trial was compiled: there is no nvcc")
    def test_what_was_compiled_can_be_loaded(self):
        """In a process of its own, with every symbol that it needs."""
        load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_NOW).cuda_backend_open"
        subprocess.run([sys.executable, "-c", load, TRIAL], check=True)


@unittest.skipUnless(IS_BUILT, "the GPU backend is not built: no nvcc")
class GpuRanks(Case):
    """Several processes on GPUs: as many GPUs as there are, or one that they share."""

    SETTINGS = {**STUDY_SETTINGS, "GPT2_MAX_ITERS": 20, "TRAIN_BATCH": 2, "TRAIN_ACCUMULATE": 4, "ORDERED_SUM": "y",
                **FLOAT32}

    def run_with(self, ranks, **settings):
        run = mpi_longtest.Ranks(ranks, base=self.SETTINGS, **settings)
        run.train()
        return run

    @unittest.skipUnless((OUTPUT / "kablate_nccl.so").exists(), "the transport of NCCL is not built")
    def test_nccl_with_one_rank(self):
        """It sends every piece to itself, beside the kernels."""
        self.assert_same(self.run_with(1, RANKS_TRANSPORT="nccl"), self.run_with(1))

    @unittest.skipIf(mpi_longtest.why_no_mpi(), mpi_longtest.why_no_mpi())
    def test_two_ranks_share_a_gpu(self):
        """The files differ, since each names its run; weights and records are equal."""
        _, *two = self.run_with(2, RANKS_PER_GPU=2).story()
        _, *one = self.run_with(1).story()
        self.assertEqual(two, one)


# What this machine can never run is not registered.
if HAS_GPU:
    del WithoutGpu
else:
    del Gpu, GpuRanks

if __name__ == "__main__":
    tap.main()
