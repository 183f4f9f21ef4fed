# Whole iterations beside PyTorch, and studies of many runs.  Included by the Makefile.

TORCH_PYTHON ?= $(python)
bench_needs := $(O)/bin/bench_model $(O)/bin/bench_ops $(step_main:%.c=$(O)/%.o) $(O)/setup-python

bench_needs += $(filter cuda,$(BACKEND))
# What all of these commands take.
bench_options = --build '$(O)' $(call option,--backend,BACKEND)

bench: $(bench_needs)
	$(Q)$(python) -m tools.bench.bench $(bench_options) $(call option,--torch,TORCH_PYTHON) $(call option,--rows,ROWS) \
		$(call option,--rounds,ROUNDS) $(call option,--forms,FORMS) $(call option,--precision,PRECISION) \
		$(call option,--limit,LIMIT)

# Without BACKEND the steps of .config are measured (tools/make/steps.mk).
ifdef BACKEND
bench-decode: $(bench_needs)
	$(Q)$(python) -m tools.bench.bench_decode_rows $(bench_options) $(call option,--torch,TORCH_PYTHON) \
		$(call option,--rows,ROWS) $(call option,--lengths,CONTEXTS) $(call option,--batches,BATCHES) \
		$(call option,--rounds,ROUNDS) $(call option,--seconds,BENCH_SECONDS) $(call option,--precision,PRECISION)
.PHONY: bench-decode
endif

profile: $(bench_needs)
	$(Q)$(python) -m tools.bench.op_profile $(bench_options) $(call option,--rows,ROWS) \
		$(call option,--precision,PRECISION)

bench-list: $(O)/setup-python
	$(Q)$(python) -m tools.bench.bench --list $(call option,--backend,BACKEND)

bench-runs: $(bench_needs) $(O)/bin/results
	$(Q)$(python) -m tools.bench.bench_runs --build '$(O)' $(call option,--counts,COUNTS)

# SET=CONFIG_A=B,..: further symbols.
bench-worker: $(bench_needs)
	$(Q)$(python) -m tools.bench.bench_worker $(bench_options) $(call option,--counts,COUNTS) $(call option,--set,SET) \
		$(call option,--torch,TORCH_PYTHON)

.PHONY: bench profile bench-list bench-runs bench-worker

#:   bench         time iterations beside PyTorch: ROWS='laptop-*' TORCH_PYTHON=;  bench-list: the rows
#:                 BACKEND=cuda: on a GPU; also bench-list, bench-decode, bench-worker
#:   profile       print where an iteration's time goes, by op: ROWS= PRECISION= BACKEND=cuda
#:   bench-runs    studies of many runs;  bench-worker: seeds of a step
