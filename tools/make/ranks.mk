# Transports between the ranks of a run: libraries of their own that programs load when CONFIG_RANKS asks for
# them.  Included by the Makefile.  MPI is installed only when a configuration asks for several ranks; NCCL's
# transport is built where nvcc and nccl.h are.

MPICC ?= mpicc
MPIRUN ?= mpirun
mpi_c := core/ranks/mpi.c
mpi_library := $(O)/kablate_mpi.so
mpi_built := $(if $(shell command -v $(MPICC) 2>/dev/null),$(mpi_library))
ranks_needs := $(O)/core/util/build_id.pic.o $(O)/core/util/status.pic.o
# NCCL's ranks find each other by the functions of the interface: the library holds them a second time.
nccl_needs := $(ranks_needs) $(O)/core/ranks/ranks.pic.o $(O)/core/ranks/single.pic.o $(O)/core/util/library.pic.o

$(O)/mpi-compiler: $(call unless_holds,$(O)/mpi-compiler,$(MPICC))
	$(call write_stamp,$(MPICC))
# Under OMPI_CC and MPICH_CC the two common wrappers take the compiler that makes everything else.
$(mpi_library): $(mpi_c) core/ranks/ranks.h $(ranks_needs) $(O)/setup-ranks $(O)/mpi-compiler $(O)/flags
	$(call say,MPICC,$(@F))
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(base_flags) $(warnings) -I. -fPIC -shared \
		$< $(ranks_needs) -o $@.new && mv $@.new $@

nccl_home := $(firstword $(foreach dir,$(NCCL_HOME) $(patsubst %/bin/nvcc,%,$(NVCC)) /usr /usr/local,$(if \
	$(wildcard $(dir)/include/nccl.h),$(dir))))
nccl_library := $(O)/kablate_nccl.so
nccl_built := $(if $(and $(NVCC),$(nccl_home)),$(nccl_library))
$(nccl_library): core/ranks/nccl/nccl.cu core/ranks/ranks.h core/backend/cuda/device/context.cuh $(nccl_needs) $(O)/cuda-flags
	$(call say,NVCC,$(@F))
	$(Q)$(NVCC) $(nvcc_flags) -I. -I$(nccl_home)/include -shared -cudart static $< $(nccl_needs) \
		-L$(nccl_home)/lib64 -L$(nccl_home)/lib -lnccl -o $@.new && mv $@.new $@

ranks: $(mpi_built) $(nccl_built)
	@echo 'built: $(notdir $(or $(strip $(mpi_built) $(nccl_built)),nothing: there is no mpicc and no NCCL))'

# What the tests load, where it can be built.
$(call results,tools/kablate/gpu_test.py): $(mpi_built) $(nccl_built)
$(O)/gpu/core/ranks/ranks_test.result: $(nccl_built)
mpi_tests := core/ranks/mpi_longtest $(addprefix tools/,kablate/mpi_longtest.py kablate/ranks_longtest.py \
	cluster/slurm_longtest.py)
$(call results,$(mpi_tests)): $(mpi_built)
tests-built: $(if $(filter $(mpi_tests),$(chosen_tests)),$(mpi_built))

.PHONY: ranks

