/*
 * open - the devices by name.
 *
 * The CPU is always there.  "cuda" is a library of its own: it is built if nvcc is found,
 * and loaded on request.  So a program also starts, and trains on the CPU, without CUDA.
 * "emulated" is the same library with its GPU emulated on the CPU: for tests, and far too slow for
 * anything else.  No configuration can name it.
 */
#ifndef CORE_BACKEND_OPEN_H
#define CORE_BACKEND_OPEN_H

#include "core/engine/backend.h"

struct backend_options {
	const char *name; /* "cpu", "cuda", "emulated" */
	enum precision precision;
	int threads; /* of the CPU */
	int device;  /* number of the GPU */
	/*
	 * Runs that one program trains at once; 0: an ordinary backend.  Bits of a run do not
	 * depend on how many there are, but may differ from those of an ordinary backend.  Only a
	 * GPU can.
	 */
	int replicas;
	/*
	 * Device memory of one replica.  It is allocated at once when the backend opens; when it is
	 * full, as much again.  No single allocation may be larger.
	 */
	size_t replica_bytes;
};

enum status backend_open(struct backend *b, const struct backend_options *options,
			 struct error *err) MUST_CHECK;

/* For tests: the name in KABLATE_TEST_BACKEND, or "cpu". */
const char *backend_name_for_tests(void);

/* For tests: can that device keep activations in bfloat16? */
bool backend_stores_for_tests(void);

/* For tests: that device.  It is never closed. */
struct backend backend_for_tests(enum precision precision, int threads);

#endif
