/*
 * open - the devices by name.
 *
 * The CPU is always there.  "cuda" is a library of its own, built where nvcc is and
 * loaded when it is asked for: a program starts, and trains on the CPU, where no CUDA is.
 */
#ifndef CORE_BACKEND_OPEN_H
#define CORE_BACKEND_OPEN_H

#include "core/engine/backend.h"

struct backend_options {
	const char *name; /* "cpu", "cuda" */
	enum precision precision;
	int threads; /* of the CPU */
	int device;  /* number of the GPU */
};

enum status backend_open(struct backend *b, const struct backend_options *options,
			 struct error *err) MUST_CHECK;

/* For tests: "cpu", or what KABLATE_TEST_BACKEND names. */
const char *backend_name_for_tests(void);

/* For tests: the device of that name.  It is never closed. */
struct backend backend_for_tests(enum precision precision, int threads);

#endif
