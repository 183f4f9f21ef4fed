/*
 * cpu - the CPU as a backend.
 */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "core/engine/backend.h"

struct panel_form;

/*
 * The CPU with this many threads; sets the threads of OpenMP and of the BLAS, and so of the whole
 * process: programs made for another number must not run after it.
 */
struct backend backend_cpu(int threads);

/* The CPU with kernels for graphs of that precision. */
enum status backend_cpu_open(struct backend *b, enum precision precision, int threads,
			     struct error *err) MUST_CHECK;

/* How its kernels for floats multiply; NULL: by the BLAS. */
static inline const struct panel_form *cpu_form(const struct backend *b)
{
	return b->context;
}

#endif
