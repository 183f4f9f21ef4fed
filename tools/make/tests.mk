# Tests in three tiers, by the end of a file's name: *_test (short), *_longtest, *_soaktest.
# Included by the Makefile.  docs/testing.md explains the tiers.

scripts := $(sort $(shell find core data models tools -name '[!.]*_*test.[ps][yh]' 2>/dev/null))
test_kinds := test longtest soaktest
all_tests := $(filter $(foreach kind,$(test_kinds),%_$(kind).py %_$(kind).sh),$(scripts)) $(tests_c:.c=)
tests_of_kind = $(filter %_$1.py %_$1.sh %_$1,$(all_tests))
short_tests := $(call tests_of_kind,test)
long_tests := $(call tests_of_kind,longtest)
soak_tests := $(call tests_of_kind,soaktest)
tests_of_tier = $(if $(filter all,$1),$(short_tests) $(long_tests),$($1_tests))
# make starts tests in the order of their names, but these first, the longest by the clock at the
# beginning: it must not begin last.
slow := tools/cluster/slurm_longtest.py $(addprefix tools/testing/,cuda_longtest.sh emulated_longtest.sh cross_longtest.sh) \
	$(addprefix tools/kablate/,defconfigs_longtest.py train_longtest.py fault_longtest.py train_test.py) \
	tools/testing/readme_test.py models/planted_longtest.py $(addprefix tools/plan/,plan_test.py kconfig_test.py) \
	tools/data/fuzz_longtest.py tools/kablate/mpi_longtest.py tools/results/run_program_test.py
slow_first = $(filter $1,$(slow)) $(filter-out $(slow),$1)

# A tier runs in its own make (the target tests); TIER names it.
TIER ?= short
ifdef T
chosen_tests := $(filter $(T) $(T:=.sh) $(T:=.py),$(all_tests))
$(if $(chosen_tests),,$(error T=$(T): no such test; there are: $(all_tests)))
else
chosen_tests := $(call slow_first,$(call tests_of_tier,$(TIER)))
endif
results = $(patsubst %,$(O)/%.result,$1)

# With ONCE=1 the result of a test stands if all its cases passed (none failed, none was skipped) and it is newer
# than every file of the tree and every program of the test, in the same environment.
unexport ONCE
# What runtest.sh wrote: PASSED FAILED SKIPPED...
all_passed = $(filter 0-0,$(subst $() ,-,$(wordlist 2,3,$(strip $(file <$(O)/$1.result)))))
tests_to_repeat := $(if $(ONCE),$(foreach test,$(chosen_tests),$(if $(call all_passed,$(test)),,$(test))),$(all_tests))
$(call results,$(tests_to_repeat)): FORCE
tree := $(if $(ONCE),$(shell find .ci Kconfig Makefile README.md core data defconfigs docs models tools -type f \
	-regex '[A-Za-z0-9_./+-]*' ! -name '.*' ! -name '*.pyc' ! -path 'data/text/*' ! -path 'data/fineweb-edu/*'))
environment := $(subst ',,$(foreach name,$(sort EMULATOR $(filter-out KABLATE_BEGAN,$(filter KABLATE_% OMP_%,\
	$(.VARIABLES)))),$(name)=$($(name))))
$(O)/test-environment: $(call unless_holds,$(O)/test-environment,$(environment))
	$(call write_stamp,$(environment))
$(call results,$(all_tests)): $(O)/test-environment $(tree)

# Seconds that a test may take: at least ten times what it takes on two quiet cores, so that only
# a test that hangs exceeds them on a busy machine.
limit-tools/kablate/train_test.py := 1200
limit-tools/testing/readme_test.py := 900
limit-tools/plan/plan_test.py := 1200
limit-tools/kablate/defconfigs_longtest.py := 3000
# Hours: ten million inputs of 0.1 to 3 ms for each of thirty parsers, on all processors.
limit-tools/testing/parsers_soaktest.py := 172800
limit = $(or $(TEST_SECONDS),$(limit-$1),$(if $(filter $1,$(soak_tests)),7200),$(if \
	$(filter $1,$(long_tests)),1800),$(if $(filter %.py %.sh,$1),600,300))

# EMULATOR runs programs that were made for another machine (tools/testing/cross_longtest.sh).
run_test = @sh tools/testing/runtest.sh $1 $@ $(call limit,$1)
$(call results,$(tests_c:.c=)): %.result: %
	$(call run_test,$(@:$(O)/%.result=%)) $(EMULATOR) $<
$(call results,$(filter %.sh,$(all_tests))): $(O)/%.result: % $(programs) $(O)/setup-python
	$(call run_test,$*) bash $<
$(call results,$(filter %.py,$(all_tests))): $(O)/%.result: % $(programs) $(O)/setup-python
	$(call run_test,$*) $(python) -m $(subst /,.,$(basename $*))
# Scripts may build steps.  What all steps share is built first, so that no two scripts build it at once.
$(call results,$(filter %.sh %.py,$(all_tests))): $(step_main:%.c=$(O)/%.o)
# Long scripts may call test programs on data of their own.
$(call results,$(filter %.py,$(long_tests) $(soak_tests))): $(test_programs)

tests_that_measure_time := core/train/train_test tools/kablate/timing_test.py
# Tests that measure time have the machine to themselves: each waits for all others.
alone_tests := $(filter $(tests_that_measure_time),$(chosen_tests))
others :=
$(foreach test,$(alone_tests),$(eval $(call results,$(test)): | \
	$(call results,$(filter-out $(alone_tests),$(chosen_tests)) $(others)))$(eval others += $(test)))

# All that the tests need is built before the first one runs: what waits for a program when make comes
# to it is started late, whatever its place in the list.
tests-built: $(patsubst %,$(O)/%,$(filter $(chosen_tests),$(tests_c:.c=))) $(if $(filter %.sh %.py,$(chosen_tests)),\
	$(programs) $(O)/setup-python $(step_main:%.c=$(O)/%.o))
tests: $(call results,$(chosen_tests))
	@sh tools/testing/summary.sh $(O) $(chosen_tests)

# As many tests at once as there are processors, unless -j says otherwise.
run_tier = +$(Q)for part in tests-built tests; do \
	$(MAKE) $(if $(call given,j),,-j$(shell nproc)) TIER=$1 $2 ONCE=$(if $(ONCE),1) $$part || exit; done
# Nothing else brings MPI, so without this the tests of several ranks would be skipped.
find_mpi = $(Q)bash tools/make/setup.sh ranks || echo 'tests of several ranks are skipped'
check:
	$(call run_tier,short)
check-long:
	$(find_mpi)
	$(call run_tier,long)
check-all:
	$(find_mpi)
	$(call run_tier,all)
check-soak:
	$(call run_tier,soak)
check-cross:
	$(call run_tier,long,T=tools/testing/cross_longtest)

# As tools/testing/format_test.sh wants it.
format:
	$(Q)find core data models tools -regex '.*\.\(c\|h\|cu\|cuh\|cpp\)' -exec clang-format -i {} +

.PHONY: check check-long check-all check-soak check-cross tests tests-built format

#:   check         build and run the tests;  T=core/%: of a directory;  format: run clang-format 14
#:   check-all     also long ones;  check-long: only long;  check-soak: by hand;  check-cross: emulated
