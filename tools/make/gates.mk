# Other compilers and checkers over the C sources: what `make check` with gcc does not see.  Included by the
# Makefile.  Each gate is a target, so -k goes on after one that fails, and `make gate-asan` is one alone; T= chooses tests.

c_tests := $(filter $(or $(T),%_test),$(filter %_test,$(tests_c:.c=)))
# Rooms with threads of OpenMP.
threaded_tests := $(filter core/backend/% core/engine/% core/ops/% core/optim/% core/train/% data/%,$(c_tests))

comma := ,
gates := gate-cppcheck gate-clang gate-asan gate-tsan
check-gates: $(gates)
	@skipped=$$(ls $(gates:%=$(O)/%.skipped) 2>/dev/null | wc -l); passed=$$(($(words $(gates)) - skipped)); \
		echo "gates: $$passed passed, $$skipped skipped"; [ $$passed -gt 0 ]

# What is missing is installed, or the gate is skipped by name.
gate_needs = rm -f $(O)/$@.skipped; $1 bash tools/make/setup.sh $2 >/dev/null || { \
	mkdir -p $(O) && touch $(O)/$@.skipped && echo 'skipped: $@'; exit; }

gate-clang:
	+$(Q)$(call gate_needs,CC=clang,build); for part in programs check; do \
		$(MAKE) O=$(O)-clang CC=clang WERROR=1 T='$(c_tests)' $$part || exit; done
gate-asan:
	+$(Q)$(call gate_needs,SANITIZE=address$(comma)undefined,build); $(MAKE) asan T='$(c_tests)'
gate-tsan:
	+$(Q)$(call gate_needs,CC=clang SANITIZE=thread,build); $(MAKE) tsan T='$(threaded_tests)'

# cppcheck reads no headers of the system, so it is told the macro of cJSON that looks like no C.
cppcheck_options := '-DcJSON_ArrayForEach(item,array)=for(item=(array)->child;item;item=item->next)' \
	--quiet --std=c11 --language=c --enable=warning,portability --error-exitcode=1 -I. -DREAL_F32 \
	--suppressions-list=tools/make/cppcheck.txt -j$(shell nproc)
gate-cppcheck:
	$(Q)$(call gate_needs,,cppcheck); cppcheck $(cppcheck_options) $(filter-out $(tests_c) %_fuzz.c,$(sources))

.PHONY: check-gates $(gates)
