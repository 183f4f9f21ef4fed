# Results: tables and pages from runs/results.db.  Included by the Makefile.

report_tool = $(python) -m tools.report.report --runs $(call quoted,$(RUNS))

# E=NAME reports another experiment than .config's.
configured = $(shell sed -n 's/^CONFIG_EXPERIMENT="\([[:alnum:]._+-]*\)"$$/\1/p' $(call quoted,$(KCONFIG_CONFIG)) 2>/dev/null)
reported = $(or $(E),$(configured))
# A run that cannot be taken in is a failure, but the others are reported.
report: $(O)/setup-python $(O)/bin/results
	$(Q)status=0; $(update_index) || status=$$?; \
		$(report_tool) report $(if $(reported),$(call quoted,$(reported))) && exit $$status

# Runs that went to Slurm are shown by their journals (tools/make/slurm.mk), other experiments by the database.
shown_by_slurm = $(and $(on_cluster),$(if $(E),$(filter $(E),$(configured) $(configured)-tuning),yes))
status: $(O)/bin/results $(if $(on_cluster),$(O)/setup-python)
	$(Q)$(if $(shown_by_slurm),$(cluster_status),$< $(call option,--experiment,E) status $(call quoted,$(RUNS)))
watch: $(O)/bin/results $(if $(on_cluster),$(O)/setup-python)
	$(Q)$(if $(shown_by_slurm),$(cluster_status) --watch 5,$< $(call option,--experiment,E) watch 5 $(call quoted,$(RUNS)))

# Runs that the database does not know yet are taken in first; what cannot be taken in is wrong.
verify: $(O)/bin/results
	$(Q){ $(update_index) >/dev/null || true; }; $(O)/bin/results verify $(call quoted,$(RUNS))

# EFFECT: nats, or the share of right answers.
power: $(O)/setup-python
	$(if $(EFFECT),,$(error power: give EFFECT=, the smallest difference that matters to you))
	$(Q)$(report_tool) power --effect $(call quoted,$(EFFECT)) $(if $(reported),$(call quoted,$(reported)))

# What docs/findings/*.csv keeps of an experiment, and its table made from that again, without runs.
values: $(O)/setup-python
	$(Q)$(report_tool) values $(if $(reported),$(call quoted,$(reported)))
judge: $(O)/setup-python
	$(if $(CSV),,$(error judge: give CSV=, a file that make values wrote, such as docs/findings/ra-controls.csv))
	$(Q)$(report_tool) judge $(call quoted,$(CSV))
chance: $(O)/setup-python
	$(Q)$(report_tool) chance $(or $(foreach path,$(CSV),$(call quoted,$(path))),docs/findings/*.csv)

# Simulates what docs/statistics.md promises.
bench-statistics: $(O)/bin/null_tables $(O)/setup-python
	$(Q)$(python) -m tools.report.simulate $(call option,--tables,TABLES)

compare diff: $(O)/setup-python
	$(if $(and $(A),$(B)),,$(error $@: give A= and B=, each EXPERIMENT, EXPERIMENT/STEP or the \
		beginning of a run's identity))
	$(Q)$(report_tool) $@ $(call quoted,$(A)) $(call quoted,$(B))

# Serves pages of all experiments, live.  -B: it writes nothing.
serve: $(O)/setup-python
	$(Q)$(python) -B -m tools.report.serve --runs $(call quoted,$(RUNS)) \
		$(call option,--host,HOST) $(call option,--port,PORT)

# Makes the program of a run from the run's record; $$run is the run's directory, $$of the program's.
need_run = $(if $(RUN),,$(error make $@ RUN=..: which run? Its directory, EXPERIMENT/STEP or the \
	beginning of its identity))
with_run = found=$$($(python) -m tools.results.run_program --runs $(call quoted,$(RUNS)) --output '$(O)/of-run' \
	-- $(call quoted,$(RUN))) && of=$${found%% *} && run=$${found\#* } && \
	$(MAKE) -s PLAN="$$of/plan" KCONFIG_CONFIG="$$of/config" built && kablate=$$of/plan/0-baseline/kablate

# A prompt may have several lines, which a recipe cannot have: it goes through the environment.
ifneq ($(origin PROMPT),undefined)
export PROMPT
endif
generate: $(O)/setup-python
	$(need_run)
	+$(Q)$(with_run) && "$$kablate" generate --weights "$$run/weights.safetensors" \
		$(if $(filter-out undefined,$(origin PROMPT)),--prompt "$$PROMPT") \
		$(call option,--tokens,N) $(call option,--seed,SEED) \
		$(call option,--temperature,TEMPERATURE) $(call option,--top-k,TOP_K)

export: $(O)/setup-python
	$(need_run)
	+$(Q)$(with_run) && $(python) -m tools.export.export "$$kablate" "$$run/weights.safetensors" \
		$(if $(OUT),$(call quoted,$(OUT)),"$$run/export")

.PHONY: report serve status watch verify power values judge chance bench-statistics compare diff generate export

#: Results
#:   report, status, watch         table, verdicts and plots of the experiment; its runs; live;  E=NAME
#:   serve                         live pages;  PORT=8000 HOST=127.0.0.1;  verify: is runs/ whole?
#:   power EFFECT=0.01             seeds and minutes to see it;  bench-statistics: test the verdicts
#:   values, judge CSV=FILE        final values of all runs; judge them again;  chance: all findings
#:   compare, diff A=.. B=..       two experiments, steps (EXPERIMENT/STEP) or runs; only their symbols
#:   export RUN=.. OUT=DIR         weights, configuration and tokenizer, as transformers loads them
#:   generate RUN=..               a sample;  PROMPT='..' N=200 TEMPERATURE=0.8 TOP_K= SEED=
#:
