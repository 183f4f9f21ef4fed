# Text to token files, by what .config says; and the fuzzers of everything that parses a file.

data_dir = $(patsubst "%,%,$(dir $(CONFIG_DATA_TRAIN)))
data_text = $(patsubst "%",%,$(CONFIG_DATA_TEXT))
data_vocabulary = $(if $(CONFIG_TOKENIZER_BYTE),--tokenizer bytes) \
	$(if $(CONFIG_TOKENIZER_CHAR),--tokenizer characters) \
	$(if $(CONFIG_TOKENIZER_GPT2),--tokenizer $(CONFIG_TOKENIZER_MERGES)) \
	$(if $(CONFIG_TOKENIZER_TRAINED),--size $(CONFIG_TOKENIZER_SIZE))

ifneq ($(filter data,$(MAKECMDGOALS)),)
$(need_config)
$(plan)/data.conf: $(KCONFIG_CONFIG) $(kconfig_needs)
	$(Q)mkdir -p $(@D) && $(kconfig) generate --auto $@ && touch $@
include $(plan)/data.conf
endif

data: $(O)/bin/data
	$(if $(CONFIG_TASK_TEXT),,$(error 'make data' is for the task text: make set CONFIG_TASK=text CONFIG_DATA_TEXT=FILE))
	$(if $(data_text),,$(error there is no text: make set CONFIG_DATA_TEXT=FILE_OR_DIRECTORY))
	$(Q)mkdir -p $(patsubst %/,%,$(dir $(patsubst %/,%,$(data_dir))))
	$(Q)$< prepare --out $(data_dir:%/=%) $(data_vocabulary) $(data_text)

# Each fuzzer runs for FUZZ_SECONDS; what it finds is kept as crash-* in its directory.
FUZZ_SECONDS ?= 20
fuzz_c := $(filter %_fuzz.c,$(sources))
fuzzers := $(fuzz_c:%.c=$(O)/%)
$(fuzzers): $(O)/%: %.c $(filter-out core/backend/% models/%,$(parts)) $(O)/flags
	$(call say,FUZZ,$(@:$(O)/%=%))
	@mkdir -p $(@D)
	$(Q)clang -std=gnu17 -O1 -g -fsanitize=fuzzer,address,undefined -I. -I$(O) \
		$(call compile_part,$(library_flags)) $< $(filter-out %_test.c %_longtest.c %_fuzz.c data/source.c,$(wildcard data/*.c)) \
		core/hash.c core/rng.c core/status.c core/region.c core/replace.c core/safetensors.c \
		core/tensor.c $(libraries) -o $@
fuzz: $(fuzzers)
	$(Q)$(foreach f,$(fuzzers),mkdir -p $(f).corpus && (cd $(dir $(f)) && \
		$(abspath $(f)) -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
		$(abspath $(f)).corpus) &&) true

.PHONY: data fuzz

#: Data, tests, upkeep
#:   data          text (CONFIG_DATA_TEXT) to token files;   fuzz: every parser (needs clang)
