/*
 * option - symbols with a range.  Kconfig checks the same ranges for users.  A
 * task checks again what its memory depends on, whatever wrote the symbols.
 */
#ifndef DATA_TASKS_OPTION_H
#define DATA_TASKS_OPTION_H

#include <stdint.h>

#include "core/util/config.h"
#include "core/util/status.h"

/* Token files hold 16 bits, so no task has a larger vocabulary. */
#define OPTION_MAX_VOCAB 65536

enum status option_int(struct config *c, const char *name, int64_t least, int64_t most,
		       int64_t *value, struct error *err) MUST_CHECK;

enum status option_real(struct config *c, const char *name, double least, double most,
			double *value, struct error *err) MUST_CHECK;

#endif
