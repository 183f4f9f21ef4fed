# Configuration: the targets of Linux, defconfig-NAME, set and plan.  Included by the Makefile.

kconfig = $(python) -m tools.plan.kconfig
kconfig_files := Kconfig \
	$(sort $(shell find core data models tools -name Kconfig -o -name '*.kconfig'))
kconfig_needs := $(kconfig_files) tools/plan/kconfig.py $(O)/setup-python
defconfigs := $(addprefix defconfig-,$(notdir $(shell find defconfigs -maxdepth 1 -type f)))
kconfig_targets := menuconfig nconfig guiconfig oldconfig olddefconfig savedefconfig listnewconfig \
	diffconfig defconfig set config-reference
export KCONFIG_CONFIG

# Called by targets that need a configuration.
need_config = $(if $(wildcard $(KCONFIG_CONFIG)),,$(no_config))
define no_config
$(info There is no configuration yet.  For the main study type:)
$(info $(empty)    make defconfig-gpt2-ra-mla-full && make)
$(info or choose another: $(sort $(defconfigs)))
$(error no $(KCONFIG_CONFIG))
endef

# A symbol on make's command line would bypass .config.  (The Makefile finds them.)
ifneq ($(and $(given_symbols),$(filter-out set,$(or $(MAKECMDGOALS),all))),)
$(error $(given_symbols): only 'make set' takes symbols; everything else follows $(KCONFIG_CONFIG))
endif

menuconfig oldconfig olddefconfig savedefconfig listnewconfig guiconfig: $(O)/setup-python
	$(Q)$(kconfig) $@
nconfig: menuconfig
diffconfig: $(O)/setup-python
	$(Q)$(kconfig) diff
defconfig: $(O)/setup-python
	$(Q)$(kconfig) defconfig
set: $(O)/setup-python
	$(if $(given_symbols),,$(error make set CONFIG_X=value ...: which symbol? 'make menuconfig' shows them all))
	$(Q)$(kconfig) set $(foreach v,$(given_symbols),$(call quoted,$v=$(value $v))) \
		--besides $(foreach v,$(filter-out CONFIG_%,$(.VARIABLES)),$(if $(filter command,$(origin $v)),$(call quoted,$v)))

config-reference: $(O)/setup-python
	$(call say,GEN,configuration.md)
	$(Q)$(python) -m tools.plan.kconfig_doc >$(O)/configuration.md.new && \
		mv $(O)/configuration.md.new $(O)/configuration.md && echo "see $(O)/configuration.md"

studies: $(O)/setup-python $(O)/bin/match_width
	$(Q)$(python) -m tools.plan.studies

# The shell completes the literal names; the pattern takes NAME+FRAGMENT and reports wrong names.
$(defconfigs): defconfig-%: $(O)/setup-python
	$(Q)$(kconfig) defconfig $(call quoted,$*)
defconfig-%: $(O)/setup-python FORCE
	$(Q)$(kconfig) defconfig $(call quoted,$*)

# Tests link a table of the defaults.  It is rewritten only when it changes, so a stamp remembers
# the last check.
$(O)/generated/config_table.h: $(O)/generated/defaults ;
$(O)/generated/defaults: $(kconfig_needs)
	$(call say,GEN,generated/config_table.h)
	$(Q)$(kconfig) generate --defaults --table $(@D)/config_table.h && touch $@
$(O)/core/util/builtin.o: $(O)/generated/config_table.h

.PHONY: $(kconfig_targets) $(defconfigs) studies

#: Configuration
#:   defconfig-NAME[+FRAGMENT...]  start from defconfigs/NAME;  defconfig: from the defaults
#:   menuconfig, nconfig           choose in a menu;  guiconfig: in a window
#:   set CONFIG_X=value ...        change single symbols;   studies: what defconfigs declare
#:   olddefconfig, oldconfig       bring an older .config up to date: by defaults, by asking
#:   savedefconfig, listnewconfig, diffconfig    as in Linux;  config-reference: a page of all symbols
#:
