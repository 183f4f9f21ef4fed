# Runs as tasks of Slurm: make SLURM=1.  Included by the Makefile; docs/cluster.md explains it.
#
# The programs are built here, the runs are job arrays, and a last job, slurm-next, follows
# them: it chooses the rates of tuned steps and submits their runs, or makes the report.

cluster := $(plans)-slurm
cluster_submit = $(python) -m tools.cluster.submit --plan $(plan) --runs $(RUNS) --records $(cluster)
cluster_status = $(python) -m tools.cluster.status --plan $(plan) --runs $(RUNS) --records $(cluster) \
	$(call option,--experiment,E)
on_cluster := $(wildcard $(cluster)/jobs.jsonl)

ifneq ($(and $(SLURM),$(filter all experiment runs step rerun,$(or $(MAKECMDGOALS),all))),)
$(if $(shell command -v sbatch),,$(error SLURM=1: there is no sbatch on this machine; call make where the \
	commands of Slurm are installed, or without SLURM=1 to run here))
endif

# Runs on nodes write their journals only: the database is brought up to date before it is read.
# It fails if a run cannot be taken in; the others are.
update_index = $(if $(wildcard $(RUNS)/*),$(O)/bin/results update $(call quoted,$(RUNS)),:)

# The next job must find its make, its variables (in MAKEFLAGS), its configuration, whatever .config says by
# then, and nothing that was queued before.
kept_configuration = $(cluster)/configuration-$(plan-experiment)
next_command = $(firstword $(MAKE)) --no-print-directory SLURM=1 PLAN_CLAIMED= KCONFIG_CONFIG=$(kept_configuration) slurm-next
wanted_steps = $(if $(N),$(addprefix --step=,$(wanted) $(tuned-for-$(wanted))))

# Rates that can be chosen already, the programs with these rates, then what is missing.
tune_and_submit = $(again) runs-tuned && $(again) built && $(again) runs-submit
report_unless_queued = $(if $(SLURM),test -e $(cluster)/next ||)

runs-tuned: $(O)/bin/results
	+$(Q)$(if $(plan-tuned),{ $(update_index) || true; } && tuned=$$($(cluster_submit) --tuned $(wanted_steps)) && \
		{ test -z "$$tuned" || $(again) $$(printf 'runs-rate-%s ' $$tuned); },:)
runs-submit: planned
	$(Q)mkdir -p $(cluster) && cp $(plan)/configuration $(kept_configuration)
	$(Q)$(cluster_submit) $(wanted_steps) $(if $(SLURM_NEW),--new) --next '$(next_command)' \
		$(if $(MPIRUN),--mpirun $(call quoted,$(MPIRUN))) \
		--built $(built-steps) $(if $(plan-open),--open $(plan-open)) -- --scale $(plan-scale) \
		$(if $(git_revision),--git $(git_revision)) $(git_dirty) \
		$(if $(ANY_ENVIRONMENT),--any-environment)

# What failed is not tried again before somebody calls make SLURM=1.
slurm-next: built
	+$(Q)$(again) runs-tuned && $(again) built && $(again) SLURM_NEW=1 runs-submit
	+$(Q)test -e $(cluster)/next || $(again) report

stop_cluster = $(if $(on_cluster),$(Q)$(python) -m tools.cluster.status --plan $(plan) \
	--records $(cluster) --stop)

.PHONY: runs-tuned runs-submit slurm-next
