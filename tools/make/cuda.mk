# The GPU backend: a library of its own, which programs load when a GPU is asked for.  Included by the
# Makefile.
#
# It is built if nvcc is found.  Kernels are compiled for this machine's GPUs, or for those in CUDA_GPUS,
# and also to PTX, from which a driver makes code for newer GPUs.

NVCC ?= $(firstword $(wildcard $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
here := $(if $(NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d .))
CUDA_GPUS ?= $(if $(PORTABLE),80 90,$(here))
# Code with all instructions of 9.0 is called 90a.
nvcc_flags := -std=c++17 -O3 --extended-lambda -lineinfo -Xcompiler -fPIC \
	$(foreach gpu,$(CUDA_GPUS:90=90a),-gencode arch=compute_$(gpu),code=sm_$(gpu)) \
	-gencode arch=compute_80,code=compute_80

cuda_c := $(sort $(shell find core/backend/cuda -name '[!.]*.cu' 2>/dev/null))
# Kernels use these files of the engine: the library has its own copy of them.
cuda_needs := core/engine/tensor.c $(addprefix core/util/,build_id.c dtype.c file.c hash.c replace.c rng.c status.c)
cuda_objects := $(cuda_c:%.cu=$(O)/%.cu.o) $(cuda_needs:%.c=$(O)/%.pic.o)
$(foreach to,$(O) $(O)/replicas $(O)/trial,$(cuda_c:%.cu=$(to)/%.cu.o)): $(formula_headers)
cuda_library := $(O)/kablate_cuda.so
# The same sources again, for replicas: core/backend/cuda/device/replicas.cuh.
cuda_replicas := $(O)/kablate_cuda_replicas.so
cuda_replica_objects := $(cuda_c:%.cu=$(O)/replicas/%.cu.o) $(cuda_needs:%.c=$(O)/%.pic.o)
cuda_built := $(if $(NVCC),$(cuda_library) $(cuda_replicas))
# Where cuBLAS is, if the system's loader does not know it (tools/make/nvcc.sh).
toolkit := $(wildcard $(patsubst %/bin/nvcc,%,$(lastword $(NVCC)))/lib64)

# The compiler's version belongs to the stamp, as for C.
cuda_flags = $(NVCC) $(nvcc_flags) $(if $(NVCC),$(shell $(NVCC) --version | tail -n 1))
$(O)/cuda-flags: $(call unless_holds,$(O)/cuda-flags,$(cuda_flags))
	$(call write_stamp,$(cuda_flags))

$(O)/%.cu.o: %.cu $(O)/cuda-flags
	$(call cuda_compile)
$(O)/replicas/%.cu.o: %.cu $(O)/cuda-flags
	$(call cuda_compile,-DREPLICAS)
define cuda_compile
	$(call say,NVCC,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(nvcc_flags) $1 -I. -I$(O) -MMD -MF $(@:.o=.d) -c $< -o $@
endef
$(O)/%.pic.o: %.c $(O)/flags
	$(call cc,-fPIC)
-include $(cuda_objects:.o=.d) $(cuda_replica_objects:.o=.d)

# Where no GPU is known, tests only show that the backend compiles and links.  nvcc then hardly optimises, and no
# program loads what it makes.
cuda_trial := $(O)/trial/kablate_cuda.so
trial_objects := $(cuda_c:%.cu=$(O)/trial/%.cu.o)
cuda_tested := $(if $(NVCC),$(if $(CUDA_GPUS),$(cuda_library),$(cuda_trial)))
trial_flags = $(filter-out -O3,$(nvcc_flags)) -O0 $(strip $(file <$(O)/trial/fast))
# Older ones do not know the option.
$(O)/trial/fast: $(O)/cuda-flags
	@mkdir -p $(@D)
	$(Q)$(NVCC) --help | sed -n 's/^--Ofast-compile .*/--Ofast-compile=max/p' >$@
$(O)/trial/%.cu.o: %.cu $(O)/trial/fast
	$(call say,NVCC,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(trial_flags) -I. -I$(O) -MMD -MF $(@:.o=.d) -c $< -o $@
$(cuda_library): $(cuda_objects)
$(cuda_replicas): $(cuda_replica_objects)
$(cuda_trial): $(trial_objects) $(cuda_needs:%.c=$(O)/%.pic.o)
$(cuda_library) $(cuda_replicas) $(cuda_trial):
	$(call say,NVCC,$(@:$(O)/%=%))
	$(Q)$(NVCC) -shared -cudart static $^ -lcublas -lcublasLt $(toolkit:%=-Xlinker -rpath=%) -Xlinker --no-undefined -o $@
-include $(trial_objects:.o=.d)

which-nvcc:
	@echo $(NVCC)
cuda: $(cuda_built)
	$(if $(NVCC),@:,@echo 'no nvcc: the GPU backend is not built; set NVCC= or CUDA_HOME=')

# ---------------------------------------------------------------- tests on a GPU
# The tests of ops, optimizers and models reach a device only through its backend, so the same programs
# test a GPU; gpu_test.py trains on it.  The longest first.
gpu_tests := models/parity_test core/ops/op_test $(addprefix models/,replicas_test decode_test test_vector_test) \
	$(addprefix core/ops/,attention_bf16_test state_test attention_test) core/optim/optim_test \
	$(addprefix models/,autocast_test measure_test streams_test) $(addprefix core/train/,update_audit_test prune_test group_test) \
	$(addprefix core/ops/,product_bf16_test fused_test linear_attention_test) core/backend/backend_test core/ranks/ranks_test
gpu_results := $(gpu_tests:%=$(O)/gpu/%.result)
$(gpu_results): $(O)/gpu/%.result: $(O)/% $(cuda_built) FORCE
	@KABLATE_TEST_BACKEND=cuda sh tools/testing/runtest.sh 'GPU $*' $@ 480 $<
# gpu_test.py needs the library, so `make check` builds it if nvcc is found.
gpu_training := tools/kablate/gpu_test.py
$(call results,$(gpu_training)): $(cuda_tested)
tests-built: $(if $(filter $(gpu_training),$(chosen_tests)),$(cuda_tested))
check-gpu: $(gpu_results) $(call results,$(gpu_training))
	@sh tools/testing/summary.sh $(O) $(gpu_tests:%=gpu/%) $(gpu_training)

# The GPU is shared, full or fails: kills, memory that another process takes, faults in kernels.
check-gpu-faults: $(cuda_built) $(programs) $(O)/setup-python $(step_main:%.c=$(O)/%.o)
	@KABLATE_TEST_BACKEND=cuda sh tools/testing/runtest.sh 'GPU faults' $(O)/gpu/faults.result 480 \
		$(python) -m tools.kablate.gpu_fault_longtest
	@sh tools/testing/summary.sh $(O) gpu/faults

# NVIDIA's checkers look for wrong addresses, races, unset memory and barriers.  They are slow, so each op is a part of its
# own, and -j runs parts side by side; attention has tests of its own.  SANITIZER= and PARTS= choose some of them.
SANITIZER ?= memcheck racecheck initcheck synccheck
# op_test leaves ops without a gradient to other tests.
sanitized_ops := $(filter-out attention_probe cache recent_tokens,$(shell sed -n 's/^\tX(\([a-z0-9_]*\)).*/\1/p' core/engine/op.h))
sanitized_tests := core/optim/optim_test $(addprefix core/ops/,attention_bf16_test attention_test product_bf16_test \
	fused_test state_test)
# The longest first.
PARTS ?= $(notdir $(sanitized_tests)) $(sanitized_ops)
$(if $(call specials_in,$(SANITIZER) $(PARTS)),$(error SANITIZER=$(SANITIZER) PARTS=$(PARTS): names without any of $(special)))
sanitized := $(foreach part,$(PARTS),$(SANITIZER:%=$(O)/sanitize/%/$(part)))
sanitized_command = $(or $(patsubst %,$(O)/%,$(filter %/$(@F),$(sanitized_tests))),$(O)/core/ops/op_test $(@F))
# With the products of Muon, which are cuBLAS's, racecheck takes more than 8 minutes.
$(O)/sanitize/racecheck/optim_test: sanitizer_options := \
	--kernel-name-exclude kernel_substring=nvjet,kernel_substring=gemm,kernel_substring=cutlass
$(sanitized): $(addprefix $(O)/,core/ops/op_test $(sanitized_tests)) $(cuda_built) FORCE
	@mkdir -p $(@D)
	$(Q)KABLATE_TEST_BACKEND=cuda KABLATE_TEST_ENTRIES=1 timeout 480 compute-sanitizer --tool $(notdir $(@D)) --error-exitcode 9 \
		$(sanitizer_options) $(sanitized_command) >$@ 2>&1 || sh tools/testing/foreign_races.sh $@ || \
		{ tail -n 40 $@; echo '$(@:$(O)/%=%): not clean'; exit 1; }
	$(call say,CLEAN,$(notdir $(@D)) $(@F))
check-gpu-sanitize: $(sanitized)
	@echo '$(words $(sanitized)) passed, 0 failed'

.PHONY: cuda which-nvcc check-gpu check-gpu-faults check-gpu-sanitize

#:   check-gpu, check-gpu-faults, check-gpu-sanitize   test the GPU backend;  cuda: build it (nvcc)
