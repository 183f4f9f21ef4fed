# Text to token files, as .config says; and fuzzers for everything that parses a file.

data_vocabulary = $(if $(CONFIG_TOKENIZER_BYTE),--tokenizer bytes) \
	$(if $(CONFIG_TOKENIZER_CHAR),--tokenizer characters) \
	$(if $(CONFIG_TOKENIZER_GPT2),--tokenizer $(call quoted,$(CONFIG_TOKENIZER_MERGES))) \
	$(if $(CONFIG_TOKENIZER_TRAINED),--size $(CONFIG_TOKENIZER_SIZE))

ifneq ($(filter data,$(MAKECMDGOALS)),)
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
		$< prepare --out "$$out" $(data_vocabulary) "$$@"

# Each fuzzer runs for FUZZ_SECONDS and keeps the inputs that crash as crash-* in its directory.
FUZZ_SECONDS ?= 20
fuzz_c := $(filter %_fuzz.c,$(sources))
fuzzers := $(fuzz_c:%.c=$(O)/%)
fuzzed := $(filter-out core/util/config.c data/source.c data/tasks/%,$(filter core/util/% data/%,$(parts)))
$(fuzzers): $(O)/%: %.c $(fuzzed) $(O)/flags
	$(call say,FUZZ,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)clang -std=gnu17 -O1 -g -fsanitize=fuzzer,address,undefined -I. -I$(O) \
		$(call compile_part,$(library_flags)) $< $(fuzzed) $(libraries) -o $@
fuzz: $(fuzzers)
	$(Q)$(foreach f,$(fuzzers),mkdir -p $(f).corpus && (cd $(dir $(f)) && \
		$(abspath $(f)) -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
		$(abspath $(f)).corpus) &&) true

.PHONY: data fuzz

#: Data, tests, upkeep
#:   data          turn text (CONFIG_DATA_TEXT) into token files;   fuzz: all parsers (needs clang)
