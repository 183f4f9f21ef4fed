/*
 * builtin - the symbols and values that are compiled into a program.
 *
 * Apart from config.c, so that a step compiles no more than its own table.
 */
#ifndef CORE_UTIL_BUILTIN_H
#define CORE_UTIL_BUILTIN_H

#include "core/util/config.h"

struct builtin {
	const char *name; /* NULL ends the table */
	enum config_type type;
	const char *value; /* NULL: inactive, since its dependencies are unmet */
};

extern const struct builtin builtin[];

#endif
