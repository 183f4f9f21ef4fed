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
