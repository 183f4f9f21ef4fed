# Results: tables and pages from runs/results.db.  Included by the Makefile.

report_tool = $(python) -m tools.report.report --runs $(call quoted,$(RUNS))

report_options = $(call option,--tex-columns,TEX_COLUMNS)
# E=NAME reports another experiment than .config's.
configured = $(shell sed -n 's/^CONFIG_EXPERIMENT="\([[:alnum:]._+-]*\)"$$/\1/p' $(call quoted,$(KCONFIG_CONFIG)) 2>/dev/null)
reported = $(or $(E),$(configured))
# A run that cannot be taken in is a failure, but the others are reported.
report: $(O)/setup-python $(O)/bin/results
	$(Q)status=0; $(update_index) || status=$$?; \
		$(report_tool) report $(report_options) $(if $(reported),$(call quoted,$(reported))) && exit $$status

# One look after the other, until nothing declared is open or no look is left.
looks:
	+$(Q)while $(MAKE) experiment || exit; $(if $(call given,n),false,seeds=$$($(report_tool) next $(call quoted,$(configured))) || exit; \
		test -n "$$seeds"); do $(MAKE) set CONFIG_SEEDS="$$seeds" || exit; done

# Runs that went to Slurm are shown by their journals (tools/make/slurm.mk), other experiments by the database.
shown_by_slurm = $(and $(on_cluster),$(if $(E),$(filter $(E),$(configured) $(configured)-tuning),yes))
show_status = $(if $(shown_by_slurm),$(cluster_status),$(python) -m tools.results.status --runs $(call quoted,$(RUNS)) \
	$(call option,--experiment,E))
status: $(O)/setup-python
	$(Q)$(show_status)
watch: $(O)/setup-python
	$(Q)$(show_status) --watch 5

# Runs that the database does not know yet are taken in first; what cannot be taken in is wrong.
verify: $(O)/bin/results
	$(Q){ $(update_index) >/dev/null || true; }; $(O)/bin/results verify $(call quoted,$(RUNS))

# One file with all that the tables of an experiment are made of (tools/results/archive.py); A= takes it elsewhere.
archive_tool = $(python) -m tools.results.archive
need_archive = $(if $(A),,$(error make $@: give A=, the file that make publish wrote))
publish: $(O)/setup-python
	$(if $(reported),,$(error make publish: give E=, the experiment))
	$(Q)$(archive_tool) publish $(call quoted,$(RUNS)) $(call quoted,$(reported)) \
		$(if $(OUT),$(call quoted,$(OUT)),$(call quoted,$(reported).tar.xz))
merge: $(O)/setup-python $(O)/bin/results
	$(need_archive)
	$(Q)from=$$(mktemp -d '$(O)/merge.XXXXXX') && { $(archive_tool) unpack $(call quoted,$(A)) "$$from/runs" && \
		$(O)/bin/results merge "$$from/runs" $(call quoted,$(RUNS)); status=$$?; rm -rf "$$from"; exit $$status; }
# In a directory of its own, which stays.
reproduce: $(O)/setup-python
	$(need_archive)
	+$(Q)$(python) -m tools.results.reproduce $(call option,--runs,N) $(call option,--seed,SEED) -- $(call quoted,$(A)) \
		$(if $(OUT),$(call quoted,$(OUT)),'$(O)/reproduced')

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

# All runs of an experiment, for the programs that track experiments.  (wandb is a package that the user installs.)
need_experiment = $(if $(reported),,$(error make $@ E=NAME: which experiment?))
trackers = -m tools.export.trackers --runs $(call quoted,$(RUNS))
tracked = $(call quoted,$(reported)) $(call quoted,$(or $(OUT),$(RUNS)/$(reported)/$(@:export-%=%)))
export-tensorboard: $(O)/setup-python
	$(need_experiment)
	$(Q)$(python) $(trackers) tensorboard $(tracked)
export-wandb: $(O)/setup-python
	$(need_experiment)
	$(Q)$(if $(WANDB_PYTHON),$(call quoted,$(WANDB_PYTHON)),$(python)) $(trackers) wandb $(tracked)

# Tags and a note of an experiment, and the experiments that have these words.
notes = $(python) -m tools.results.notes --runs $(call quoted,$(RUNS))
given_word = $(if $(filter-out undefined,$(origin $2)),$1 $(call quoted,$($2)))
note: $(O)/setup-python
	$(need_experiment)
	$(Q)$(notes) set $(call quoted,$(reported)) $(call given_word,--tags,TAGS) $(call given_word,--note,NOTE)
find: $(O)/setup-python
	$(if $(TEXT),,$(error make find TEXT=WORDS: words of a name, tag or note))
	$(Q)$(notes) find -- $(foreach word,$(TEXT),$(call quoted,$(word)))

.PHONY: looks publish merge reproduce report serve status watch verify power values judge chance bench-statistics compare diff generate export \
	export-tensorboard export-wandb note find

#: Results
#:   report, status, watch         table, verdicts and plots of the experiment; its runs; live;  E=NAME
#:   serve                         live pages;  PORT=8000 HOST=127.0.0.1;  verify: find damage
#:   power EFFECT=0.01             seeds and minutes to see it;  bench-statistics: test the verdicts
#:   values, judge CSV=FILE        final values of all runs; judge them again;  chance: all findings
#:   compare, diff A=.. B=..       two experiments, steps (EXPERIMENT/STEP) or runs; only their symbols
#:   publish, merge, reproduce     E= as one file; A=FILE into runs/; N=3 runs of A=FILE again
#:   export RUN=.. OUT=DIR         transformers;  export-wandb: W&B;  export-tensorboard: all of E=
#:   note, find                    TAGS='a, b' NOTE='..' for E=NAME; experiments that have TEXT='..'
#:   generate RUN=..               a sample;  PROMPT='..' N=200 TEMPERATURE=0.8 TOP_K= SEED=
#:
