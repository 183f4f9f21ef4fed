# kablate: one Makefile for the whole tree.  `make help` lists what it offers.
#
# Everything compiled or generated goes to $(O).  models/Makefile and data/Makefile say which
# variants and tasks a configuration selects; all other sources are always built.  There is no
# recursion, so make sees all dependencies.

# Its own make is too old to read further.
ifeq ($(shell uname -s),Darwin)
$(info kablate runs on Linux.  On macOS use its container:)
$(info     brew install podman && podman machine init --now)
$(info     podman build -t kablate -f tools/container/Dockerfile .)
$(info     podman run --rm -it -v kablate-runs:/kablate/runs kablate)
$(error macOS is not supported)
endif

MAKEFLAGS += -rR --no-print-directory
.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:
all: experiment
FORCE:

# What a user gives is a text.  make would expand it as an expression, here or for the environment of a
# recipe; so it is taken as it is, before anything else happens.  These count on the command line only, because
# a shell may have variables of the same names for other purposes:
words = A B BACKEND BATCHES BENCH_SECONDS CONTEXTS COUNTS CSV E EFFECT FORMS FUZZ_RUNS FUZZ_SECONDS \
	HOST LIMIT LOCKED MEGABYTES MINUTES N NAME NOTE OUT PARTS PORT PRECISION PROMPT ROUNDS ROWS RUN SANITIZER SEED SLURM \
	SLURM_NEW T TABLES TAGS TEMPERATURE TEX_COLUMNS TEXT TIER TOP_K VECTOR $(symbols)
# These also in the environment:
settings := ANY_ENVIRONMENT KCONFIG_CONFIG O ONCE PLAN RUNS TORCH_PYTHON V WANDB_PYTHON
# In the name of a target or of a variable these mean something to make or to a shell.
special := ' " ; & | < > ( ) ` \ * ? [ ] { } : % \# $$
specials_in = $(strip $(foreach c,$(special),$(findstring $c,$1)))
symbols := $(foreach v,$(filter CONFIG_%,$(.VARIABLES)),$(if $(call specials_in,$v),$(if $(filter command,$(origin \
	$v)),$(error $v: a symbol has letters, digits and _)),$v))
given_symbols := $(strip $(foreach v,$(symbols),$(if $(filter command,$(origin $v)),$v)))
$(foreach v,$(words),$(if $(filter environment,$(origin $v)),$(eval override undefine $v)))
$(foreach v,$(words) $(settings),$(if $(filter command environment,$(origin $v)),$(eval override $v := $$(value $v))))

# Settings that are given and empty are those that are not given.
override O := $(or $(O:%/=%),build)
override KCONFIG_CONFIG := $(or $(KCONFIG_CONFIG),.config)
BLAS ?= openblas
CFLAGS ?= -O3 -g
CC := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
AR := $(if $(filter default undefined,$(origin AR)),ar,$(AR))
export O CC SANITIZE BLAS BLAS_CFLAGS BLAS_LIBS NO_INSTALL

# make splits paths at blanks, and rules have a meaning for the others.
spelled = $(if $(filter CURDIR,$1),$(CURDIR),$1=$($1))
$(foreach name,CURDIR O RUNS PLAN KCONFIG_CONFIG,$(if $(word 2,$($(name))),$(error \
	make cannot work in a path with blanks: move $(call spelled,$(name))))$(if $(call specials_in,$($(name))),$(error \
	$(call spelled,$(name)): make cannot work in a path with blanks or any of $(special))))
# `make clean` removes directories of $(O) by name: they must never be the sources.
ifneq ($(filter $(abspath $(O))/%,$(CURDIR)/),)
$(error O=$(O) holds the sources; choose a directory of its own)
endif

# Python and the compilers crash with less.
small_stack := $(shell kib=$$(ulimit -s); test "$$kib" = unlimited || test "$$kib" -ge 1024 || echo "$$kib")
$(if $(small_stack),$(error the limit of the stack (ulimit -s) is $(small_stack) KiB: raise it to 1024 or more))

# ---------------------------------------------------------------- how commands are shown
ifeq ($(V),1)
say = @:
else
Q := @
ifeq ($(findstring s,$(firstword -$(MAKEFLAGS))),)
say = @printf '  %-7s %s\n' $1 $2
else
say = @:
endif
endif

# A stamp file holds one line and is rewritten only when that line changes:
#     $(O)/name: $(call unless_holds,$(O)/name,LINE)
# The comparison happens while make reads this file: no shell, and `make -n` is right.
unless_holds = $(if $(subst x$(strip $2)x,,x$(strip $(file <$1))x),FORCE)
write_stamp = @mkdir -p $(@D) && printf '%s\n' '$(strip $1)' >$@

# make reads its files again after it has made one that is included.  The rule of such a file
# calls stop_restarting first: then a file that never becomes up to date is an error, not a loop.
most_restarts := 5
stop_restarting = $(if $(shell test 0$(MAKE_RESTARTS) -le $(most_restarts) || echo stop),$(error \
	$@ was made $(MAKE_RESTARTS) times and is still out of date, because of $(or $?,nothing that make can name); \
	is its time in the future?))

# Was an option of one letter given to make?  (Known when recipes run.)
given = $(or $(findstring $1,$(firstword -$(MAKEFLAGS))),$(filter -$1%,$(MAKEFLAGS)))

# Quotes a text as one word of a shell.  (make ends a command where a line ends.)
define newline


endef
quoted = $(if $(findstring $(newline),$1),$(error what is given must be one line: $1))'$(subst ','\'',$1)'
# An option of a command, with the value of a variable that the user may give: $(call option,--rows,ROWS)
option = $(if $($2),$1 $(call quoted,$($2)))

# ---------------------------------------------------------------- what is built
sources := $(sort $(shell find core data models tools -name '[!.]*.c' 2>/dev/null))
tests_c := $(filter %_test.c %_longtest.c %_soaktest.c,$(sources))
tools_c := $(filter-out $(tests_c),$(filter tools/%,$(sources)))
# kablate is not built here: every step links its own (tools/make/steps.mk).
step_main := tools/kablate/kablate.c
programs_c := $(shell grep -ls '^int main\b' $(filter-out $(step_main),$(tools_c)) /dev/null)
# Sources beside a program in tools/ are linked only to the programs of that directory; sources
# beside kablate.c are linked to every program.
own_c := $(filter-out $(programs_c) $(dir $(step_main))%,$(tools_c))
own_objects := $(own_c:%.c=$(O)/%.o)
# MPI's transport is a library of its own (tools/make/ranks.mk).
parts := $(filter-out $(tests_c) $(programs_c) $(own_c) $(step_main) %_fuzz.c core/ranks/mpi.c,$(sources))

# These files say which configuration symbol selects which variant or task.  No symbol is set here,
# so all variants collect in obj-: tools and tests link all of them, a step only its own.
# The tests of core/ and data/ link without models/, so they fail if core/ or data/ needs it.
selections := models/Makefile data/Makefile
include $(selections)
variants := $(addprefix $(O)/,$(sort $(obj-y) $(obj-)))
tasks := $(filter $(O)/data/%,$(variants))
forgotten := $(filter-out $(variants:$(O)/%.o=%.c),$(filter models/%,$(parts)))
$(if $(forgotten),$(warning models/Makefile does not mention $(forgotten)))

# Kernels are written once and compiled for float, double, and float with products in bfloat16.
kernels := $(filter core/backend/cpu/kernels/%,$(parts))
kernel_objects := $(foreach real,f32 f64,$(kernels:%.c=$(O)/%.$(real).o)) \
	$(patsubst %.c,$(O)/%.bf16.o,$(filter-out %/optim.c,$(kernels)))
part_objects := $(filter-out $(variants),$(patsubst %.c,$(O)/%.o,$(filter-out $(kernels),$(parts)))) $(kernel_objects)

program = $(O)/bin/$(basename $(notdir $1))
programs := $(foreach c,$(programs_c),$(call program,$c))
test_programs := $(tests_c:%.c=$(O)/%)
model_tests := $(filter $(O)/models/% $(O)/tools/%,$(test_programs))
data_tests := $(filter $(O)/data/%,$(test_programs))

# ---------------------------------------------------------------- flags
machine := $(shell uname -m)
native := $(if $(filter aarch64,$(machine)),-mcpu=native,-march=native)
# clang goes by the processor's name and uses SVE even if the (virtual) machine hides it.
ifneq ($(and $(filter aarch64,$(machine)),$(findstring clang,$(CC))),)
native := $(native)$(if $(shell grep -wm1 sve /proc/cpuinfo),,+nosve)
endif

# tools/make/setup.sh finds libraries and their flags and leaves them in these stamps.  Recipes read
# the stamps, that is after they were made.  (Always with strip: whether GNU Make 4.3 keeps the last
# newline of $(file <) is chance.)
library_flags = $(strip $(file <$(O)/setup-build))
test_library_flags = $(strip $(file <$(O)/setup-test))
python = $(strip $(file <$(O)/setup-python))
compile_part = $(filter -I% -isystem% -D% -pthread,$1)
link_part = $(filter-out -I% -isystem% -D%,$1)

sanitize := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
# No code asks errno about sqrt().  Compilers that know this make SIMD of loops with a root (AdamW:
# 3.5 x faster).
base_flags := -std=gnu17 $(CFLAGS) -fno-math-errno $(if $(PORTABLE),,$(native)) -fopenmp \
	$(if $(SANITIZE),$(sanitize))
# Not warned about: loops that clang cannot make SIMD; messages that gcc sees cut to their buffer.
warnings := -Wall -Wextra -Wshadow $(if $(WERROR),-Werror) \
	$(if $(findstring clang,$(CC)),-Wno-pass-failed,-Wno-format-truncation)
compile = $(CC) $(base_flags) $(warnings) -I. -I$(O) $(CPPFLAGS) \
	$(call compile_part,$(library_flags)) -MMD -MP
link = $(CC) $(base_flags) $(LDFLAGS)
libraries = $(call link_part,$(library_flags)) -lm -ldl

# ---------------------------------------------------------------- set-up
# The compiler's version belongs to the stamp, so a new compiler rebuilds everything.
toolchain := $(strip $(CC) $(SANITIZE) $(BLAS) $(BLAS_CFLAGS) $(BLAS_LIBS) $(PYTHON))
compiler_version = $(shell $(CC) --version 2>/dev/null | head -n 1)
# Another spelling of $(O) rebuilds nothing.
flags = $(filter-out -I$(O),$(compile)) $(LDFLAGS) $(compiler_version)

$(O)/toolchain: $(call unless_holds,$(O)/toolchain,$(toolchain))
	$(call write_stamp,$(toolchain))

$(O)/setup-%: tools/make/setup.sh $(O)/toolchain
	$(Q)PYTHON='$(PYTHON)' bash tools/make/setup.sh $* >$@.new$$$$ && mv $@.new$$$$ $@ || { rm -f $@.new$$$$; exit 1; }

$(O)/flags: $(O)/setup-build $(call unless_holds,$(O)/flags,$(flags))
	$(call write_stamp,$(flags))

# A source that was added or removed changes what is linked, although no object is newer.
# (Named without $(O), which one make may give as a relative path and another as an absolute one.)
linked := $(patsubst $(O)/%,%,$(part_objects) $(variants) $(own_objects))
$(O)/objects: $(call unless_holds,$(O)/objects,$(linked))
	$(call write_stamp,$(linked))

# ---------------------------------------------------------------- formulas
# Pointwise and row-wise ops state their formulas in their own files; kernels of all devices include them from here.
pointwise := $(shell grep -ls '^POINTWISE.[a-z]' core/ops/*.c)
rowwise := $(shell grep -ls '^ROWWISE.[a-z]' core/ops/*.c)
formula_headers := $(foreach kind,pointwise rowwise,$(O)/generated/$(kind)_formulas.h $(O)/generated/$(kind)_ops.h)
formula_kernels := $(foreach kind,pointwise rowwise,$(foreach real,f32 f64 bf16,$(O)/core/backend/cpu/kernels/$(kind).$(real).o))
# $1: pointwise or rowwise
define formula_rules
$(O)/generated/$1_ops: $(call unless_holds,$(O)/generated/$1_ops,$($1))
	$$(call write_stamp,$($1))
$(O)/generated/$1_formulas.h: $(O)/generated/$1_ops
	@printf '#include "%s"\n' $($1) >$$@
$(O)/generated/$1_ops.h: $(O)/generated/$1_ops
	@printf '#define $2_OPS(X)$(foreach c,$($1), X(%s))\n' $(basename $(notdir $($1))) >$$@
endef
$(eval $(call formula_rules,pointwise,POINTWISE))
$(eval $(call formula_rules,rowwise,ROWWISE))
$(formula_kernels) $(O)/tools/bench/cases.o: $(formula_headers)

# ---------------------------------------------------------------- compile and link
# A compiler that is killed leaves half a file.  So files are made under another name.
define cc
	$(call say,CC,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(compile) $1 -MF $@.d -MT $@ -c $< -o $@.new && mv $@.d $(@:.o=.d) && mv $@.new $@
endef
# A program finds libraries beside itself or in its build directory: the whole tree can be moved.
define ld
	$(call say,LD,$(@:$(O)/%=%))
	$(Q)$(link) $(filter %.o,$^) $(filter %.a,$^) $1 $(libraries) \
		-Xlinker -rpath -Xlinker '$$ORIGIN:$$ORIGIN/$(shell realpath -m --relative-to=$(@D) $(O))' -o $@.new && mv $@.new $@
endef

$(O)/%.o: %.c $(O)/flags
	$(call cc)
$(O)/%.f32.o: %.c $(O)/flags
	$(call cc,-DREAL_F32)
$(O)/%.f64.o: %.c $(O)/flags
	$(call cc,-DREAL_F64)
$(O)/%.bf16.o: %.c $(O)/flags
	$(call cc,-DREAL_BF16)
$(test_programs:=.o): $(O)/%.o: %.c $(O)/flags $(O)/setup-test
	$(call cc,$(call compile_part,$(test_library_flags)))

# Programs and the libraries that they load carry a hash of the sources in core/ (core/util/library.h).
build_id := $(shell find core \( -name '[!.]*.[ch]' -o -name '[!.]*.cu' -o -name '[!.]*.cuh' \) ! -name '*_test.c' \
	! -name '*_fuzz.c' -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum | cut -c1-64)
$(O)/build-id: $(call unless_holds,$(O)/build-id,$(build_id))
	$(call write_stamp,$(build_id))
$(O)/core/util/build_id.o $(O)/core/util/build_id.pic.o: private CPPFLAGS += -DBUILD_ID='"$(build_id)"'
$(O)/core/util/build_id.o $(O)/core/util/build_id.pic.o: $(O)/build-id

# All kernels are one member: the backend's table refers to them weakly, since an op may lack a kernel.
$(O)/parts.a: $(part_objects) $(O)/objects
	$(call say,AR,$(@F))
	$(Q)$(CC) -r -nostdlib $(kernel_objects) -o $(O)/cpu_kernels.o && rm -f $@.new && \
		$(AR) rcs $@.new $(O)/cpu_kernels.o $(filter-out $(kernel_objects),$(part_objects)) && mv $@.new $@

$(foreach c,$(programs_c),$(eval $(call program,$c): $(c:%.c=$(O)/%.o) $(filter $(O)/$(dir $c)%,$(own_objects))))
$(programs): $(variants) $(O)/parts.a $(O)/objects
	@mkdir -p $(@D)
	$(call ld)
$(model_tests): $(variants)
$(data_tests): $(tasks)
$(test_programs): %: %.o $(O)/parts.a $(O)/objects
	$(call ld,$(call link_part,$(test_library_flags)))

-include $(part_objects:.o=.d) $(variants:.o=.d) $(patsubst %.c,$(O)/%.d,$(programs_c) $(own_c) $(step_main)) \
	$(test_programs:=.d)

# alloc_test counts and refuses allocations: it wraps these functions.
$(O)/core/ops/alloc_test: private LDFLAGS += \
	-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=free

# The fields of the reference model: name, type, default, symbol.
fields_of_python := s/^    (\w+): (\w+) = symbol\("(\w+)", "?([^")]*)"?\).*/\t{ "\1", FIELD_\U\2\E, "\4", "\3" },/p
$(O)/generated/reference_fields.h: tools/reference/model.py
	@mkdir -p $(@D)
	$(Q)sed -nE '$(fields_of_python)' $< | sed 's/"True"/"y"/; s/"False"/"n"/' >$@.new && mv $@.new $@
$(O)/models/test_vector.o: $(O)/generated/reference_fields.h

make_files := $(addprefix tools/make/,steps.mk slurm.mk report.mk kconfig.mk data.mk models.mk bench.mk \
	tests.mk gates.mk cuda.mk emulated.mk ranks.mk)
include tools/make/kconfig.mk $(filter-out %/kconfig.mk,$(make_files))

# make itself would say only that there is no rule.
ifeq ($(MAKELEVEL),0)
phony := $(shell sed -ne ':a' -e '/\\$$/{N;ba' -e '}' -e 's/\\\n//g' -e 's/^\.PHONY://p' Makefile $(make_files))
targets := $(foreach name,$(phony),$(if $(findstring $$,$(name)),,$(name))) $(kconfig_targets) $(defconfigs) $(gates)
is_known = $(or $(findstring /,$1),$(findstring .,$1),$(wildcard $1),$(filter $(targets) defconfig-% runs-% step-%,$1))
unknown := $(firstword $(foreach goal,$(MAKECMDGOALS),$(if $(call is_known,$(goal)),,$(goal))))
ifneq ($(unknown),)
# Those that 'make help' names: others are steps of these.
offered = $(filter help $(shell sed -n 's/^\#://p' $(make_files) Makefile | tr -cs '[:alnum:]-' ' '),$(filter-out tests,$(targets)))
meant := $(shell printf '%s\n' $(offered) $(defconfigs) $(gates) | awk -v wanted=$(call quoted,$(unknown)) -f tools/make/did_you_mean.awk)
$(error there is no target '$(unknown)'$(if $(meant),: did you mean '$(meant)'?) ('make help' lists all))
endif
endif

# ---------------------------------------------------------------- sanitizers
# Programs with sanitizers take several times as long, so their tests get more time.
asan:
	$(Q)TEST_SECONDS=3600 LSAN_OPTIONS=suppressions=$(CURDIR)/tools/make/lsan.txt:print_suppressions=0 \
		$(MAKE) O=$(O)-asan SANITIZE=address,undefined CFLAGS='-O1 -g' check
# Always clang: its OpenMP runtime reports barriers to the sanitizer.  gcc's does not, so every
# correct parallel loop would be reported.
tsan:
	$(Q)TEST_SECONDS=3600 TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
		$(MAKE) O=$(O)-tsan CC=clang SANITIZE=thread CFLAGS='-O1 -g' check

# ---------------------------------------------------------------- the rest
programs: $(programs)
bench-ops: $(O)/bin/bench_ops
	$(Q)$(O)/bin/bench_ops
setup:
	$(Q)rm -f $(O)/setup-*
	$(Q)$(MAKE) $(O)/setup-build $(O)/setup-python $(O)/setup-test

made := core data models tools bin generated plan plan.[2-9] plan.claims of-run foreign emulated trial fuzz toolchain flags \
	objects cpu_kernels.o parts.a build-id test-environment $(gates:=.skipped) \
	setup-build setup-python setup-test setup-ranks setup-emulated mpi-compiler cuda-flags \
	kablate_mpi.so kablate_nccl.so kablate_cuda.so kablate_emulated.so
# Others may have directories of these names where nothing was built, say in O=$HOME.
build_directories = $(strip $(foreach o,$(O) $(O)-asan $(O)-tsan $(O)-clang,$(if $(wildcard $(o)/toolchain),$(o))))
clean:
	$(if $(build_directories),,$(if $(wildcard $(O)/*),$(error O=$(O): nothing was built there, so \
		nothing is removed)))
	$(Q)rm -rf $(foreach o,$(build_directories),$(addprefix $(o)/,$(made)))
mrproper: clean
	$(Q)rm -f $(KCONFIG_CONFIG) $(KCONFIG_CONFIG).old
	$(Q)for o in $(O) $(O)-asan $(O)-tsan $(O)-clang; do rmdir "$$o" 2>/dev/null || true; done
	@echo 'runs/ holds results and is kept; remove it by hand if you want to.'

help:
	@sed -n 's/^#: \{0,1\}//p' $(make_files) Makefile

.PHONY: all programs asan tsan bench-ops setup clean mrproper help FORCE

#:   asan, tsan    tests with sanitizers: addresses, threads;  check-gates: both, clang, cppcheck
#:   bench-ops     measure the kernels;   programs: build the tools only;   setup: find libraries again
#:   clean         remove compiled files;   mrproper: also .config;   both keep runs/
#:
#: Settings
#:   O=DIR         build there instead of build/        V=1          show the commands
#:   CC=clang      another compiler                     CFLAGS=      instead of -O3 -g
#:   WERROR=1      warnings are errors                  PORTABLE=1   for other processors, too
#:   NO_INSTALL=1  never call apt                       PYTHON=      instead of python3
#:   ANY_ENVIRONMENT=1   resume runs that began with another compiler, BLAS or machine
#:   SLURM=1       queue the runs of all, runs, step, rerun on a cluster (docs/cluster.md)
#:   BLAS=blis     instead of openblas: also any pkg-config name, or BLAS_CFLAGS= and BLAS_LIBS=
