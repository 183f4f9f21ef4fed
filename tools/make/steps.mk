# Steps and runs: one program per step, one make target per run.  Included by the Makefile.
#
#   .config, fragments --plan.py--> $(O)/plan/STEP/{config,auto.conf,generated/config_table.h}
#   --> $(O)/plan/STEP/kablate --identity--> $(O)/plan/runs.mk: a rule for runs/.../done
#
# A tuned step has candidates, which are built and run first; $(O)/plan/STEP/rate holds the chosen
# rate, and the plan is made again with it.
#
# The name of a run's directory ends in its identity: another run has another name.  So make needs
# to know only whether the target exists.

# The plan of a make is fixed when it starts.  The make claims a directory that no make with another
# configuration uses ($(O)/plan unless there is one), and calls itself with that directory and the copy of
# .config in it.  So the next experiment can be configured, planned and trained at the same time.

override RUNS := $(or $(RUNS),runs)
plans := $(or $(PLAN),$(O)/plan)

# Targets that need a configuration; all others work without one.
run_goals := all experiment built runs plan plan-examined step steps describe audit rerun unread \
	$(if $(BACKEND),,bench-decode) \
	runs-% step-% slurm-next
ifeq ($(filter $(run_goals),$(or $(MAKECMDGOALS),all)),)
plan := $(plans)
else

$(need_config)
plan := $(or $(PLAN_CLAIMED),$(shell sh tools/make/claim_plan.sh '$(plans)' '$(KCONFIG_CONFIG)' $$PPID),$(error \
	$(plans): too many experiments train in this tree at once; wait for one, or 'make stop'))
again = $(MAKE) PLAN_CLAIMED=$(plan) KCONFIG_CONFIG=$(plan)/configuration

# Of two makes in one tree, one builds; the other waits and finds everything built.
locked = $(if $(LOCKED),,flock $(O)) $(again) LOCKED=1

# Matched controls depend on the models: bin/match_width counts their parameters and FLOPs.
configuration := $(strip $(file <$(KCONFIG_CONFIG)))
matched := $(or $(findstring -of-,$(configuration)),$(filter CONFIG_PLAN_CONTROLS_PARAMETERS=y \
	CONFIG_PLAN_CONTROLS_FLOPS=y,$(configuration)))
# The plan does not change while rates are being chosen.
rates := $(if $(filter runs-%,$(MAKECMDGOALS)),,$(wildcard $(plan)/*/rate))
fragments := $(shell find defconfigs -type f)
plan_tools := $(addprefix tools/plan/,plan.py plan_words.py factors.py compared.py matching.py tuning.py declaration.py sizes.py)
# Compare contents, not only times: somebody may have put another or an older file in its place.
# (cmp, not $(file <): GNU Make 4.3 may or may not keep a file's last newline.)
$(plan)/plan.mk: $(shell cmp -s '$(KCONFIG_CONFIG)' $(plan)/configuration || echo FORCE)
$(plan)/plan.mk: $(KCONFIG_CONFIG) $(fragments) $(kconfig_needs) $(plan_tools) $(selections) $(rates) $(if $(matched),$(parts))
	$(stop_restarting)
	$(call say,PLAN,$(KCONFIG_CONFIG))
	+$(if $(matched),$(Q)$(if $(LOCKED),,flock $(O)) $(MAKE) LOCKED=1 match-width)
	$(Q)$(python) -m tools.plan.plan --output $(plan) --quiet && touch $@
# An old file instead of none: about none, make has a word to say that explains nothing.
$(if $(wildcard $(plan)/plan.mk),,$(shell mkdir -p $(plan) && touch -d @0 $(plan)/plan.mk))
include $(plan)/plan.mk

# Files of the user that make watches.
as_targets = $(if $(call specials_in,$1),$(error $1: make cannot work with files whose names have any of $(special)))$1
# The objects that a step selects: the selections are read once per step, with its symbols.
define select_objects
$(foreach v,$(filter CONFIG_%,$(.VARIABLES)),$(eval undefine $v))
obj-y :=
obj- :=
include $(plan)/$1/auto.conf
include $(selections)
objects-$1 := $$(addprefix $$(O)/,$$(sort $$(obj-y)))
ranks-$1 := $$(filter-out 1,$$(CONFIG_RANKS))
replicas-$1 := $$(CONFIG_REPLICAS)
on-gpu-$1 := $$(CONFIG_BACKEND_CUDA)
inputs += $$(call as_targets,$$(wildcard $$(CONFIG_INIT_FROM) $$(CONFIG_DATA_TRAIN) $$(CONFIG_DATA_VALID)))
endef
inputs :=
built-steps := $(plan-steps) $(plan-candidates)
$(foreach step,$(built-steps),$(eval $(call select_objects,$(step))))
# Steps whose runs are replicas.
together := $(strip $(foreach s,$(built-steps),$(if $(replicas-$s),$s)))

step_programs := $(built-steps:%=$(plan)/%/kablate)
step_name = $(patsubst $(plan)/%/,%,$(dir $1))

$(built-steps:%=$(plan)/%/builtin.o): $(plan)/%/builtin.o: core/util/builtin.c $(plan)/%/generated/config_table.h $(O)/flags
	$(call say,CC,$(@:$(O)/%=%))
	$(Q)$(CC) $(base_flags) $(warnings) -I. -I$(@D) $(CPPFLAGS) -c $< -o $@.new && mv $@.new $@
$(built-steps:%=$(plan)/%/generated/config_table.h): $(plan)/plan.mk ;

# The identity of a run includes the sources of its program, but not the table of symbols: the
# values that the program reads are part of the identity anyway.  No training reads the fields of the reference.
sources_of = $(filter-out %/config_table.h %/reference_fields.h,$(filter %.c %.h %.cu %.cuh,$(foreach o,$1,$(strip $(file <$(o:.o=.d))))))
# For a step on a GPU these are also the sources of the GPU backend; a step on the CPU ignores them.
objects_of = $(part_objects) $(objects-$1) $(if $(on-gpu-$1),$(cuda_objects)) $(step_main:%.c=$(O)/%.o)
sources_hash = $(shell cat $(sort $(sources_of)) | sha256sum | cut -c1-64)
# `kablate --version` prints this; it is not part of an identity.
revision := $(or $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null),unknown)
$(plan)/revision: $(call unless_holds,$(plan)/revision,$(revision))
	$(call write_stamp,$(revision))
.SECONDEXPANSION:
$(built-steps:%=$(plan)/%/build_info.o): $(plan)/%/build_info.o: tools/kablate/build_info.c $(plan)/revision $(O)/flags $(O)/parts.a $(step_main:%.c=$(O)/%.o) $(variants) $$(if $$(on-gpu-$$*),$$(cuda_built))
	$(call say,CC,$(@:$(O)/%=%))
	$(Q)$(compile) -DBUILD_REVISION='"$(revision)"' -DBUILD_FLAGS='"$(strip $(base_flags))"' \
		-DBUILD_SOURCES='"$(call sources_hash,$(call objects_of,$(call step_name,$@)))"' \
		-MF $@.d -MT $@ -c $< -o $@.new && mv $@.new $@

$(step_programs): $(plan)/%/kablate: $(step_main:%.c=$(O)/%.o) $(plan)/%/builtin.o $(plan)/%/build_info.o $$(objects-$$*) $(O)/parts.a \
		| $$(if $$(ranks-$$*),$$(mpi_library) $$(if $$(on-gpu-$$*),$$(nccl_built)))
	$(call ld)

steps: $(step_programs)
	@:
built:
	+$(Q)$(locked) steps

# ---------------------------------------------------------------- runs
# A user's target builds the programs and then calls make again, because only the programs know
# the identities of the runs.
ifneq ($(filter runs-% step-%,$(MAKECMDGOALS)),)
$(plan)/runs.mk: $(step_programs) $(plan)/plan.mk $(sort $(inputs))
	$(stop_restarting)
	$(Q)$(python) -m tools.plan.plan --output $(plan) --list && touch $@
include $(plan)/runs.mk
together-parts := $(sort $(foreach s,$(together),$(parts-of-$s)))
together-targets := $(foreach p,$(together-parts),$(targets-of-$p))

# Two makes may have two RUNS and one plan: what both of them write does not name RUNS.
below_runs = $(1:$(RUNS)/%=%)
# A rate is chosen again when the list of its runs changes, or a run is new.
$(foreach s,$(plan-tuned),$(eval $(plan)/$s/rate: $(tuning-targets-of-$s)) \
	$(eval $(plan)/$s/asked: $(call unless_holds,$(plan)/$s/asked,$(call below_runs,$(tuning-targets-of-$s)))))
$(plan-tuned:%=$(plan)/%/asked): $(plan)/%/asked:
	$(call write_stamp,$(call below_runs,$(tuning-targets-of-$*)))
$(plan-tuned:%=$(plan)/%/rate): $(plan)/%/rate: $(plan)/%/asked
	$(Q)$(python) -m tools.plan.plan --output $(plan) --runs $(RUNS) --choose $* && touch $@
$(plan-tuned:%=runs-rate-%): runs-rate-%: $(plan)/%/rate
	@:
endif

git_revision = $(shell git rev-parse HEAD 2>/dev/null)
git_dirty = $(shell git diff --quiet HEAD 2>/dev/null || echo --dirty)
# Exit status of kablate after a divergence.  For tuning, a divergence is a result.
diverged := 76
# After a stop no run begins until make is called again; with -k make would otherwise begin the next.
export KABLATE_BEGAN := $(or $(KABLATE_BEGAN),$(shell date +%s%N))
# The baseline's program prints what it trains, so that a step that trains the same is noticed.  There is
# nothing to compare if a step is its own baseline, or if its baseline is not in this plan.
baseline_program = $(addprefix --baseline-program $(plan)/,$(addsuffix /kablate,$(filter-out $(STEP),\
	$(filter $(baseline-$(STEP)),$(built-steps)))))
# Several ranks are started by mpirun.
launch = $(if $(ranks-$(STEP)),$(python) -m tools.kablate.launch --ranks $(ranks-$(STEP)) \
	--mpirun $(call quoted,$(MPIRUN)))
# Pages and terminals show the runs that wait, too (tools/results/time_left.py).  If it cannot be written, a run
# that begins says why.
planned:
	$(Q)to=$(RUNS)/$(plan-experiment)/planned.json; cmp -s $(plan)/planned.json $$to || \
		{ mkdir -p $${to%/*} && cp $(plan)/planned.json $$to.$$$$ && mv $$to.$$$$ $$to; } 2>/dev/null || :
# A run that has ended stays ended, whatever becomes of those that train with it.
.PRECIOUS: $(run-targets) $(tuning-targets)
# $1: the run or runs, as a person calls them.
define begin_run
	@test "$$(cat $(plan)/stopped 2>/dev/null || echo 0)" -lt $(KABLATE_BEGAN) || \
		{ echo 'stopped before $(EXPERIMENT) $(STEP) $1'; exit 75; }
	$(if $(KABLATE_LIVE),,$(call say,RUN,"$(EXPERIMENT) $(STEP) $1: $$($(python) -m tools.results.runs_left \
		--runs $(RUNS) --this $(@D) $(known_runs))"))
endef
train_here = $(launch) $(plan)/$(STEP)/kablate train --runs $(RUNS) --experiment $(EXPERIMENT) --step $(STEP) \
	--repeat $(repeat-$(STEP)) --baseline $(baseline-$(STEP)) $(baseline_program) \
	--scale $(or $(scale-$(STEP)),$(plan-scale)) $(if $(git_revision),--git $(git_revision)) $(git_dirty) \
	$(if $(KABLATE_LIVE),--records,--lines) $(if $(ANY_ENVIRONMENT),--any-environment) \
	$(if $(filter $@,$(tuning-targets)),--keep-diverged)
# Of a divergence that is a result, the run is done.
end_run = $(if $(filter $@,$(tuning-targets)),|| test $$? -eq $(diverged))
$(run-targets) $(tuning-targets): | planned
$(filter-out $(together-targets),$(run-targets) $(tuning-targets)):
	$(call begin_run,seed $(SEED))
	$(Q)$(train_here) --seed $(SEED) --identity $(IDENTITY) $(end_run)
# Where the runs of a step are replicas, one process trains those that are missing of a part: the seeds that one look
# adds, or all rates with all tuning seeds.  So every step reaches a look before any begins the next.
# $1: a part, STEP.LOOK or STEP@rates.0; its runs are SEED:IDENTITY:STEP:RATES
define train_together
$(targets-of-$1) &:
	$$(call begin_run,$$(words $$(missing-of-$1)) of $$(words $$(targets-of-$(basename $1))) $(if $(call of_rates,$1),runs,seeds))
	$$(Q)$$(sleeping) $$(train_here) $$(call list_seeds,$$(missing-of-$1)) $(if \
		$(call of_rates,$1),$$(call list_rates,$$(missing-of-$1))) $$(end_run)
endef
of_rates = $(filter %@rates,$(basename $1))
# All processors fill the rows of an update.  Until the next they sleep, not spin: another process may need them.
sleeping := OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-passive}
list_seeds = --seeds $(call in_list,1,$1) --identity $(call in_list,2,$1)
list_rates = --steps $(call in_list,3,$1) --rates $(call in_list,4,$1)
field = $(word $1,$(subst :, ,$2))
missing_of = $(foreach r,$(runs-of-$1),$(foreach t,$(filter %/$(call field,3,$r)-$(call field,1,$r)-$(call field,2,$r)/done,$(filter \
	$(or $(in-time),%),$(targets-of-$1))),$(if $(wildcard $t),,$r)))
blank := $(subst ,, )
in_list = $(subst $(blank),$(comma),$(foreach r,$2,$(call field,$1,$r)))
$(foreach part,$(together-parts),$(eval missing-of-$(part) = $$(call missing_of,$(part)))$(eval \
	$(call train_together,$(part))))
runs-all: $(run-targets)
	@:
$(foreach s,$(plan-steps),$(eval step-$s: $(run-targets-of-$s)))
# RUN= must be one word and a run of the plan, because its directory is removed.
known_runs = $(patsubst %/done,%,$(run-targets) $(tuning-targets))
run_to_forget = $(if $(word 2,$(RUN)),,$(filter $(known_runs),$(RUN:%/=%)))
runs-forget:
	$(if $(run_to_forget),,$(error make rerun RUN=DIRECTORY: one of $(known_runs)))
	$(if $(SLURM),$(Q)$(cluster_submit) --forget $(call quoted,$(run_to_forget)))
	$(Q)test ! -d '$(run_to_forget)' || flock -n '$(run_to_forget)' rm -rf '$(run_to_forget)' || \
		{ echo '$(run_to_forget): a process is working on it, so make stop first' >&2; exit 1; }

# As many runs side by side as there are processors for their threads, unless -j says otherwise.
# A worker on a GPU trains while others start, audit and record.
processors := $(shell nproc)
workers := 2
threads := $(foreach n,$(filter-out 0,$(plan-threads)),$(shell echo $$(( $n * $(plan-ranks) ))))
jobs := $(if $(together),$(workers),$(if $(threads),$(shell echo $$(( $(processors) / $(threads) > 1 ? $(processors) / $(threads) : 1 ))),1))
side_by_side = $(if $(call given,j),,-j$(jobs))

# MINUTES=25: only the first runs that are missing and end in this time (tools/plan/budget.py).
minutes := $(if $(MINUTES),$(or $(shell echo $(call quoted,$(MINUTES)) | grep -xE '[0-9]{1,6}'),$(error \
	MINUTES=$(MINUTES): expected a whole number)))
budget = $(python) -m tools.plan.budget --plan $(plan) --runs $(RUNS) --minutes $(minutes) \
	--jobs $(jobs) --since $(KABLATE_BEGAN)
in_time = $(filter $(run-targets) $(tuning-targets),$(shell $(budget) --kind $1))
# Asked only where it is wanted.
$(if $(minutes),$(foreach kind,$(filter run tuning,$(MAKECMDGOALS:runs-%-in-time=%)),\
	$(eval in-time := $$(call in_time,$(kind)))$(eval runs-$(kind)-in-time: $$(in-time))))
runs-run-in-time runs-tuning-in-time:
	@:
runs-that-fit:
	$(Q)$(budget)

# Rates first, then the programs with these rates, then the runs of $2.  Under -k a failure does not
# stop the rest.  With SLURM=1 the runs are submitted instead (tools/make/slurm.mk).
and_then = || $(if $(call given,k),status=$$?,exit $$?);
tune_and_run = $(if $(SLURM),$(tune_and_submit),$(if $(minutes),$(tune_and_run_in_time),$(tune_and_run_here)))
# Rates are chosen when all of their runs have ended; else the next make goes on.  While the list of a rate grows, no
# run begins: the other steps would run ahead of its step.
tune_and_run_in_time = status=0; $(again) -j1 plan-examined && $(if $1,while $(again) $(side_by_side) \
	runs-tuning-in-time $(and_then) $(budget) --kind tuning 2>&1 | grep -q 'all runs have ended'; do \
	$(again) $(side_by_side) $(1:%=runs-rate-%) $(and_then) $(again) built $(and_then) \
	if test $$status = 0 && find $(1:%=$(plan)/%/rate) -empty | grep -q .; then continue; fi; \
	$(again) $(side_by_side) runs-run-in-time $(and_then) break; done; exit $$status,$(again) $(side_by_side) runs-run-in-time)
# A rate stays empty while its list grows: then the plan has more runs that choose it.
tune_and_run_here = status=0; $(if $1,while $(again) $(side_by_side) $(1:%=runs-rate-%) $(and_then) \
	$(again) built $(and_then) test $$status = 0 && find $(1:%=$(plan)/%/rate) -empty | grep -q .; do :; done; \
	)$(again) $(side_by_side) $2 $(and_then) exit $$status
# On a terminal one process draws all runs: what make and they write goes to it.  (It ends make by a signal
# after Ctrl-C, so it takes the place of the shell.)
is_live = $(and $(MAKE_TERMOUT),$(MAKE_TERMERR),$(filter-out dumb,$(TERM)),$(if $(or $(SLURM),$(KABLATE_LIVE)),,yes))
train = $(if $(is_live),exec $(python) -m tools.results.live --runs $(RUNS) --experiment $(plan-experiment) -- \
	env KABLATE_LIVE=1 sh -c $(call quoted,$(call tune_and_run,$1,$2)),$(call tune_and_run,$1,$2))

# Records what the plan declares before the first run begins.
declared: built
	$(Q)$(python) -m $(if $(plan-forecast),tools.report.forecast,tools.plan.declaration) $(plan)/plan.json '$(RUNS)'
runs: declared
	+$(Q)$(call train,$(plan-tuned),runs-all)
experiment: runs
	+$(Q)$(report_unless_queued) $(again) --no-print-directory report

# One step alone: make step N=3
wanted := $(if $(word 2,$(N)),,$(filter $(N)-%,$(plan-steps) $(plan-open)))
step: declared
	$(if $(wanted),,$(error make step N=NUMBER: there are $(strip $(plan-steps) $(plan-open))))
	+$(Q)$(call train,$(tuned-for-$(wanted)),step-$(wanted))

# Remove a run and train it again: make rerun RUN=DIRECTORY
rerun: declared
	+$(Q)$(again) runs-forget
	+$(Q)$(call train,$(plan-tuned),runs-all)

# Keeps what programs say about themselves.  If a program cannot say it (the data is missing), the plan
# is shown without it.
$(plan-examined:%=$(plan)/%/describe.json): $(plan)/%/describe.json: $(plan)/%/kablate
	$(Q)$< describe --json >$@ || rm -f $@
$(plan-examined:%=$(plan)/%/estimate.json): $(plan)/%/estimate.json: $(plan)/%/kablate
	$(call say,TIME,$*)
	$(Q)$< estimate 2>/dev/null >$@ || rm -f $@
plan-examined: $(foreach s,$(plan-examined),$(plan)/$s/describe.json $(plan)/$s/estimate.json)
	@:
plan: built
	+$(Q)$(again) -j1 plan-examined
	$(Q)$(python) -m tools.plan.plan --output $(plan) --show $(RUNS) --jobs $(jobs)
	+$(if $(minutes),$(Q)echo && $(again) runs-that-fit)
# A tuned step whose rate is still to be found is seen through its first candidate.
seen := $(plan-steps) $(filter-out $(plan-steps),$(plan-examined))
describe: built
	$(Q)$(foreach s,$(seen),echo '$s' && $(plan)/$s/kablate describe && echo &&) true
bench-decode: built
	$(Q)$(python) -m tools.bench.bench_decode $(plan) $(RUNS)/$(plan-experiment)/decode \
		$(foreach s,$(plan-steps),$(if $(filter 0,$(repeat-$s)),$s)) \
		$(call option,--lengths,CONTEXTS) $(call option,--rounds,ROUNDS) \
		$(call option,--seconds,BENCH_SECONDS) $(call option,--python,TORCH_PYTHON)
audit: built
	$(Q)status=0; $(foreach s,$(seen),echo '$s'; $(plan)/$s/kablate audit || status=1;) exit $$status
unread: built
	$(Q)status=0; $(foreach s,$(seen),$(plan)/$s/kablate unread || status=1;) exit $$status
endif

# Of a program that is up to date, make itself would say so.
match-width: $(O)/bin/match_width
	@:

# Finds the processes without .config: a bad configuration must not keep them from being stopped.
# Signal each run only once: a second signal would end it at once.  The second round meets runs that
# were just beginning.
stop:
	$(Q)mkdir -p $(plans); for plan in $(plans) $(plans).[2-9]; do \
		test ! -d $$plan || date +%s%N >$$plan/stopped; done; told=:; for round in 1 2; do \
		for line in $$(grep -lz '^$(plans)\(\.[2-9]\)\?/[^ ]*/kablate$$' /proc/[0-9]*/cmdline 2>/dev/null); do \
			pid=$${line#/proc/}; pid=$${pid%/cmdline}; \
			case $$told in *:$$pid:*) continue; esac; \
			grep -qzx train $$line && test /proc/$$pid/cwd -ef . && \
				kill -TERM $$pid && told=$$told$$pid: && \
				echo "process $$pid will save and stop"; \
		done; sleep 0.3; \
	done
	$(stop_cluster)

.PHONY: runs-run-in-time runs-tuning-in-time runs-that-fit experiment steps built declared planned runs runs-all plan-examined runs-forget step plan describe audit \
	bench-decode unread stop rerun match-width

#: The experiment of .config (after make defconfig-NAME, e.g. defconfig-gpt2-ra-mla-full)
#:   all           build, audit and train every step with every seed, then report (default)
#:   plan          show the steps, nothing runs;  MINUTES=25: which fit, and make MINUTES=25 runs these
#:   step N=3      train one step;   runs: every step, no report;   looks: until nothing is open
#:   describe      parameters, work, memory, decode state;   audit: is every step wired and causal?
#:   bench-decode  speed and state of decoding: CONTEXTS=1024,4096;   unread: symbols no code reads
#:   rerun RUN=DIR remove a run and train it again;   stop: save and stop the runs of this tree
#:
