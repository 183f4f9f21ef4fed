# Results: tables and plots from runs/results.db.  Included by the Makefile.

report_tool = $(python) -m tools.report.report --runs $(call quoted,$(RUNS))

# E=NAME reports another experiment than that of .config.  Plots need gnuplot; without it the report
# says that they are missing.
configured = $(shell sed -n 's/^CONFIG_EXPERIMENT="\([[:alnum:]._+-]*\)"$$/\1/p' '$(KCONFIG_CONFIG)' 2>/dev/null)
reported = $(or $(E),$(configured))
report: $(O)/setup-python
	$(Q)bash tools/make/setup.sh plot || true
	$(Q)$(report_tool) report $(if $(reported),$(call quoted,$(reported)))

compare diff: $(O)/setup-python
	$(if $(and $(A),$(B)),,$(error $@: give A= and B=, each EXPERIMENT, EXPERIMENT/STEP or the \
		beginning of a run's identity))
	$(Q)$(report_tool) $@ $(call quoted,$(A)) $(call quoted,$(B))

.PHONY: report compare diff

#: Results
#:   report                        table, verdicts and plots of the experiment;  E=NAME: of another
#:   compare A=.. B=..             two experiments, steps (EXPERIMENT/STEP) or runs (identity)
#:   diff A=.. B=..                the configurations of the two
#:
