/*
 * dtype - the type of a tensor's elements.
 */
#ifndef CORE_UTIL_DTYPE_H
#define CORE_UTIL_DTYPE_H

#include <stddef.h>

/* NOTHING: the tensor takes no memory, and holds no numbers. */
enum dtype { F32, F64, I32, BF16, NOTHING };

size_t dtype_size(enum dtype type);
const char *dtype_name(enum dtype type);

#endif
