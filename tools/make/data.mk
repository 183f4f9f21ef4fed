# Text to token files, as .config says; and fuzzers for everything that parses a file.

data_vocabulary = $(if $(CONFIG_TOKENIZER_BYTE),--tokenizer bytes) \
	$(if $(CONFIG_TOKENIZER_CHAR),--tokenizer characters) \
	$(if $(CONFIG_TOKENIZER_GPT2),--tokenizer $(call quoted,$(CONFIG_TOKENIZER_MERGES))) \
	$(if $(CONFIG_TOKENIZER_TRAINED),--size $(CONFIG_TOKENIZER_SIZE))

ifneq ($(filter data data-pack data-unpack,$(MAKECMDGOALS)),)
$(need_config)
# The rule runs every time, and rewrites the file only when it changes.
$(plan)/data.conf: $(kconfig_needs) FORCE
	$(stop_restarting)
	$(Q)$(kconfig) generate --auto $@
include $(plan)/data.conf
endif

data: $(O)/bin/data
	$(if $(CONFIG_TASK_TEXT),,$(error 'make data' is for the task text: make set CONFIG_TASK=text CONFIG_DATA_TEXT=FILE))
	$(if $(CONFIG_DATA_TEXT),,$(error there is no text: make set CONFIG_DATA_TEXT=FILE_OR_DIRECTORY))
	$(if $(CONFIG_TOKENIZER_GPT2),$(if $(CONFIG_TOKENIZER_MERGES),,$(error \
		CONFIG_TOKENIZER_MERGES is empty: make set CONFIG_TOKENIZER_MERGES=FILE, the published vocab.bpe)))
	$(Q)out=$$(dirname $(call quoted,$(CONFIG_DATA_TRAIN))) && mkdir -p "$$(dirname "$$out")" && \
		set -- $(call quoted,$(CONFIG_DATA_TEXT)) && { test -e "$$1" || \
		set -- $(foreach path,$(CONFIG_DATA_TEXT),$(call quoted,$(path))); } && \
		$< prepare --out "$$out" $(data_vocabulary) --valid $(call quoted,$(CONFIG_DATA_VALID_SHARE)) \
		$(if $(CONFIG_DATA_DISTINCT),--distinct) $(if $(CONFIG_DATA_COMPONENTS),--components) "$$@"

# Text from Debian's packages (tools/data/corpus.py), and prepared data in parts for a machine without a network.
corpus_dir := data/corpus
corpus: $(O)/setup-python
	$(if $(NAME),,$(error make corpus NAME=linux, NAME=docs or NAME=linux+docs))
	$(Q)$(python) -m tools.data.corpus --out $(corpus_dir) -- $(call quoted,$(NAME))
	@echo 'next: make defconfig-NAME+corpus && make data && make'

# The directory of DATA_TRAIN, as OUT/part-*: `make data-unpack OUT=DIR` checks them and puts it back.
pack_to = $(if $(OUT),$(call quoted,$(OUT)),$(error make $@: give OUT=, a directory for the parts))
pack_megabytes = $(or $(MEGABYTES),60)
data-pack:
	$(Q)from=$$(dirname $(call quoted,$(CONFIG_DATA_TRAIN))) && to=$(pack_to) && mkdir -p "$$to" && \
		sh tools/data/pack.sh pack "$$from" "$$to" $(call quoted,$(pack_megabytes))
data-unpack:
	$(Q)sh tools/data/pack.sh unpack "$$(dirname $(call quoted,$(CONFIG_DATA_TRAIN)))" $(pack_to)

# Each fuzzer starts from the seeds in data/fuzz and runs for FUZZ_SECONDS, or FUZZ_RUNS inputs.  Inputs
# that crash are kept as crash-* beside it.  Always clang, for its libFuzzer.  All fuzzers share the
# compiled parts.
FUZZ_SECONDS ?= 20
FUZZ_CC := $(if $(findstring clang,$(CC)),$(CC),clang)
fuzz_c := $(filter %_fuzz.c,$(sources))
fuzzers := $(fuzz_c:%.c=$(O)/fuzz/%)
fuzzed := core/record/journal.c core/record/line_sum.c core/train/state_text.c \
	$(filter-out core/util/builtin.c core/util/config.c data/source.c data/source_audit.c data/tasks/%,$(filter core/util/% data/%,$(parts)))
fuzz_compile = $(FUZZ_CC) -std=gnu17 -O1 -g -fopenmp -fsanitize=address,undefined \
	-fno-sanitize-recover=all -I. $(call compile_part,$(strip $(file <$(O)/fuzz/libraries))) -MMD -MP
# libFuzzer takes what is no number for 0, which is for ever.
fuzz_number = $(or $(shell echo $(call quoted,$($1)) | grep -x '[1-9][0-9]*'),$(error \
	$1=$($1): expected a whole number))
fuzz_stop = $(if $(FUZZ_RUNS),-runs=$(call fuzz_number,FUZZ_RUNS),-max_total_time=$(call fuzz_number,FUZZ_SECONDS))
# A wrong number is refused before anything is compiled.
ifneq ($(filter fuzz,$(MAKECMDGOALS)),)
fuzz_stop := $(fuzz_stop)
endif

$(O)/fuzz/libraries: tools/make/setup.sh
	@mkdir -p $(@D)
	$(Q)CC=$(FUZZ_CC) SANITIZE=address,undefined bash $< build >$@.new && mv $@.new $@
$(O)/fuzz/%.o: %.c $(O)/fuzz/libraries
	$(call say,CC,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)$(fuzz_compile) -fsanitize=fuzzer-no-link -c $< -o $@
$(fuzzers): %: %.o $(fuzzed:%.c=$(O)/fuzz/%.o)
	$(call say,LD,$(@:$(O)/%=%))
	$(Q)$(fuzz_compile) $(LDFLAGS) -fsanitize=fuzzer $^ $(call link_part,$(strip $(file <$(O)/fuzz/libraries))) -lm -o $@
# It has a table of symbols of its own.
$(O)/fuzz/core/util/config_fuzz: $(O)/fuzz/core/util/config.o
$(O)/fuzz/data/tokenizer/bpe_fuzz: private LDFLAGS += -Wl,--wrap=split_new,--wrap=split_free
-include $(addprefix $(O)/fuzz/,$(fuzz_c:.c=.d) $(fuzzed:.c=.d) core/util/config.d)

# Several at once with -j: each one says in one piece what it tried.
fuzz_runs := $(fuzzers:=.run)
$(fuzz_runs): $(O)/fuzz/%.run: $(O)/fuzz/% FORCE
	$(Q)mkdir -p $<.corpus && cd $(<D) && { $(abspath $<) $(fuzz_stop) -verbosity=0 -print_final_stats=1 \
		-timeout=10 -rss_limit_mb=2048 $(abspath $<).corpus $(abspath data/fuzz/$(<F)) >$(<F).log 2>&1; \
		status=$$?; printf '%s\n%s\n' $(<F) "$$(cat $(<F).log)"; exit $$status; }
fuzz: $(fuzz_runs)

.PHONY: data corpus data-pack data-unpack fuzz

#: Data, tests, upkeep
#:   corpus NAME=linux+docs        text of Debian's packages;  data: text (CONFIG_DATA_TEXT) to tokens
#:   data-pack, data-unpack OUT=DIR  token files in parts (MEGABYTES=60), for a machine without network
