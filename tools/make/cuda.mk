# The GPU backend, a library of its own that programs load when asked to.  Included by the Makefile.
#
# It is built where nvcc is found.  Code is made for the GPUs of CUDA_GPUS, and as PTX of the first,
# from which a driver makes code for any newer one.

NVCC ?= $(firstword $(wildcard $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_GPUS ?= 80 90
nvcc_flags := -std=c++17 -O3 --extended-lambda -lineinfo -Xcompiler -fPIC \
	$(foreach gpu,$(CUDA_GPUS),-gencode arch=compute_$(gpu),code=sm_$(gpu)) \
	-gencode arch=compute_$(firstword $(CUDA_GPUS)),code=compute_$(firstword $(CUDA_GPUS))

cuda_c := $(sort $(shell find core/backend/cuda -name '[!.]*.cu' 2>/dev/null))
# What kernels use of the engine: the library holds it a second time.
cuda_needs := core/engine/tensor.c core/util/dtype.c core/util/hash.c core/util/rng.c core/util/status.c
cuda_objects := $(cuda_c:%.cu=$(O)/%.cu.o) $(cuda_needs:%.c=$(O)/%.pic.o)
cuda_library := $(O)/kablate_cuda.so

# The compiler's version belongs to the stamp, as for C.
cuda_flags = $(NVCC) $(nvcc_flags) $(if $(NVCC),$(shell $(NVCC) --version | tail -n 1))
$(O)/cuda-flags: $(call unless_holds,$(O)/cuda-flags,$(cuda_flags))
	$(call write_stamp,$(cuda_flags))

$(O)/%.cu.o: %.cu $(O)/cuda-flags
	$(call say,NVCC,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(nvcc_flags) -I. -MMD -MF $(@:.o=.d) -c $< -o $@
$(O)/%.pic.o: %.c $(O)/flags
	$(call cc,-fPIC)
$(cuda_library): $(cuda_objects)
	$(call say,NVCC,$(@F))
	$(Q)$(NVCC) -shared -cudart static $^ -lcublas -o $@
-include $(cuda_objects:.o=.d)

cuda: $(if $(NVCC),$(cuda_library))
	$(if $(NVCC),@:,@echo 'no nvcc: the GPU backend is not built; set NVCC= or CUDA_HOME=')

.PHONY: cuda

#:   cuda          build the GPU backend (needs nvcc):  CUDA_GPUS='80 90', NVCC=
