# Whole iterations beside PyTorch, and how their cost grows.  Included by the Makefile.

TORCH_PYTHON ?= $(python)
bench_needs := $(O)/bin/bench_model $(O)/bin/bench_ops $(step_main:%.c=$(O)/%.o) $(O)/setup-python
bench_tool = $(python) tools/bench.py --build '$(O)'

bench: $(bench_needs)
	$(Q)$(bench_tool) --torch '$(TORCH_PYTHON)' $(if $(ROWS),--rows '$(ROWS)') \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(FORMS),--forms '$(FORMS)') \
		$(if $(PRECISION),--precision '$(PRECISION)')

.PHONY: bench

#:   bench         iterations beside PyTorch's: ROWS='laptop-*' ROUNDS=5 FORMS= TORCH_PYTHON=
