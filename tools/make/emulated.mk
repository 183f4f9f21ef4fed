# The GPU backend with its GPU emulated on the CPU: the same sources, compiled by g++ with the headers of
# core/backend/cuda/emulated instead of CUDA's.  Included by the Makefile.  docs/gpu.md says what it finds.

CXX := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
emulated_room := core/backend/cuda/emulated
emulated_library := $(O)/kablate_emulated.so
emulated_own := $(sort $(wildcard $(emulated_room)/*.cpp))
emulated_objects := $(patsubst %,$(O)/emulated/%.o,$(cuda_c) $(filter-out %_test.cpp,$(emulated_own)))
# As in cuda.mk: a second library, of the same sources, for replicas.
emulated_replicas := $(O)/kablate_emulated_replicas.so
replica_objects := $(cuda_c:%=$(O)/emulated/replicas/%.o) $(filter %.cpp.o,$(emulated_objects))
# Threads of a block.  Sums have as many blocks, so a GPU's 256 would take 16 times as long.
EMULATED_BLOCK ?= 64
# -O2 and -g1, for line numbers only: the time to compile counts, too.  Kernels read numbers of one type as another one, and write `#pragma
# unroll`; a fortified longjmp() does not expect threads with stacks of their own.
emulated_flags := -std=gnu++17 $(if $(SANITIZE),-O1,-O2) -g1 $(if $(PORTABLE),,$(native)) -fPIC -fno-math-errno -fno-strict-aliasing \
	-U_FORTIFY_SOURCE -DBLOCK=$(EMULATED_BLOCK) $(if $(SANITIZE),$(sanitize) -fsanitize-sections=emulated_shared) \
	-Wall -Wextra $(if $(WERROR),-Werror) -Wno-unknown-pragmas -Wno-missing-field-initializers
emulated_stamp = $(CXX) $(emulated_flags) $(shell $(CXX) --version 2>/dev/null | head -n 1)

$(O)/emulated/flags: $(O)/setup-emulated $(call unless_holds,$(O)/emulated/flags,$(emulated_stamp))
	$(call write_stamp,$(emulated_stamp))
$(O)/emulated/%.cu.o: %.cu $(O)/emulated/flags $(formula_headers)
	$(emulated_compile)
$(O)/emulated/replicas/%.cu.o: %.cu $(O)/emulated/flags $(formula_headers)
	$(emulated_compile)
$(replica_objects): emulated_extra = $(if $(filter %.cu,$<),-DREPLICAS)
$(O)/emulated/%.cpp.o: %.cpp $(O)/emulated/flags
	$(emulated_compile)
define emulated_compile
	$(call say,CXX,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(CXX) $(emulated_flags) $(emulated_extra) -I$(emulated_room) -I. -I$(O) -MMD -MP -MF $(@:.o=.d) -x c++ -c $< -o $@
endef
define emulated_link
	$(call say,LD,$(@:$(O)/%=%))
	$(Q)$(CXX) $(emulated_flags) -Wl,--no-undefined $1 $(filter %.o,$^) -o $@.new && mv $@.new $@
endef
$(emulated_library): $(emulated_objects) $(cuda_needs:%.c=$(O)/%.pic.o)
$(emulated_replicas): $(replica_objects) $(cuda_needs:%.c=$(O)/%.pic.o)
$(emulated_library) $(emulated_replicas):
	$(call emulated_link,-shared)
emulated_test := $(O)/emulated/$(emulated_room)/emulated_test
$(emulated_test): $(emulated_own:%=$(O)/emulated/%.o)
	$(call emulated_link)
-include $(emulated_objects:.o=.d) $(replica_objects:.o=.d) $(emulated_test).cpp.d

emulated: $(emulated_library) $(emulated_replicas) $(emulated_test)

# ---------------------------------------------------------------- tests
# As on a GPU (tools/make/cuda.mk), after the test of the emulation itself.
emulated_tests := $(filter-out core/ranks/%,$(gpu_tests))
emulated_results := $(emulated_tests:%=$(O)/emulated/%.result)
$(emulated_results): $(O)/emulated/%.result: $(O)/% $(emulated_library) $(emulated_replicas) FORCE
	@KABLATE_TEST_BACKEND=emulated sh tools/testing/runtest.sh 'emulated $*' $@ $(or $(TEST_SECONDS),3600) $<
$(emulated_test).result: $(emulated_test) FORCE
	@sh tools/testing/runtest.sh $(emulated_test:$(O)/emulated/%=%) $@ $(or $(TEST_SECONDS),300) $<
which-emulated:
	@echo $(emulated_tests)
check-emulated: $(emulated_test).result $(emulated_results)
	@sh tools/testing/summary.sh $(O) $(emulated_test:$(O)/%=%) $(emulated_tests:%=emulated/%)

# The long test runs some of them, the soak test all.  Without g++ they install it, or are skipped.
emulated_scripts := $(addprefix tools/testing/,emulated_longtest.sh emulated_soaktest.sh)
emulated_scripts_need := $(addprefix $(O)/,$(emulated_tests)) \
	$(if $(shell command -v $(firstword $(CXX)) 2>/dev/null),$(emulated_library) $(emulated_replicas) $(emulated_test))
$(call results,$(emulated_scripts)): $(emulated_scripts_need)
tests-built: $(if $(filter $(emulated_scripts),$(chosen_tests)),$(emulated_scripts_need))
# Training on it, with calls that fail, and with replicas.
emulated_faults := $(addprefix tools/kablate/,gpu_fault_longtest.py gpu_fault_soaktest.py replicas_longtest.py)
emulated_faults_need := $(filter $(emulated_library) $(emulated_replicas),$(emulated_scripts_need))
$(call results,$(emulated_faults)): $(emulated_faults_need)
tests-built: $(if $(filter $(emulated_faults),$(chosen_tests)),$(emulated_faults_need))

.PHONY: emulated which-emulated check-emulated

#:   emulated      the GPU backend by g++;  check-emulated: test it;  ranks: MPI and NCCL
