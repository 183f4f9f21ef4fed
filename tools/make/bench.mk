# Whole iterations beside PyTorch, how their cost grows, and studies of many runs.  Included by the Makefile.

TORCH_PYTHON ?= $(python)
bench_needs := $(O)/bin/bench_model $(O)/bin/bench_ops $(step_main:%.c=$(O)/%.o) $(O)/setup-python

bench: $(bench_needs)
	$(Q)$(python) -m tools.bench.bench --build '$(O)' $(call option,--torch,TORCH_PYTHON) $(call option,--rows,ROWS) \
		$(call option,--rounds,ROUNDS) $(call option,--forms,FORMS) $(call option,--precision,PRECISION)

bench-scaling: $(bench_needs)
	$(Q)bash tools/make/setup.sh plot || true
	$(Q)$(python) -m tools.bench.bench_scaling --build '$(O)' $(call option,--longest,LONGEST)

profile: $(bench_needs) $(if $(filter cuda,$(BACKEND)),$(cuda_built))
	$(Q)$(python) -m tools.bench.op_profile --build '$(O)' $(if $(ROWS),--rows '$(ROWS)') \
		$(if $(PRECISION),--precision '$(PRECISION)') $(if $(BACKEND),--backend '$(BACKEND)')

bench-list: $(O)/setup-python
	$(Q)$(python) -m tools.bench.bench --list

bench-runs: $(bench_needs) $(O)/bin/results
	$(Q)$(python) -m tools.bench.bench_runs --build '$(O)' $(if $(COUNTS),--counts $(COUNTS))

.PHONY: bench profile bench-list bench-scaling bench-runs

#:   bench         time iterations beside PyTorch: ROWS='laptop-*' TORCH_PYTHON=;  bench-list: the rows
#:   profile       print where an iteration's time goes, by op: ROWS= PRECISION= BACKEND=cuda
#:   bench-scaling plot time and memory against length, layers and width;  LONGEST=8192
#:   bench-runs    time plan, make, status and report of made-up studies;  COUNTS=100,1000
