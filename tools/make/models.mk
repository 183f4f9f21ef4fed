# Compares models with the reference.  Included by the Makefile.

check-vector: $(O)/bin/check_vector
	$(if $(VECTOR),,$(error check-vector: say which: VECTOR=path.safetensors))
	$(Q)$< $(call option,--backend,BACKEND) $(call quoted,$(VECTOR))

.PHONY: check-vector

#:   check-vector VECTOR=FILE   compare with a test vector;  fuzz: try all parsers, FUZZ_SECONDS=
