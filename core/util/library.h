/*
 * library - the parts of kablate that a program loads on request: GPU backends, transports.
 *
 * A program finds them by its run path, which names the build directory relative to the program:
 * so a tree that is copied or moved loads its own libraries.  A library that was built from other
 * sources than the program is refused, because a run's identity names the sources of the program.
 */
#ifndef CORE_UTIL_LIBRARY_H
#define CORE_UTIL_LIBRARY_H

#include "core/util/status.h"

bool library_is_built(const char *name);

/* Load a library with dlopen()'s mode and find a function in it.  It is never unloaded. */
enum status library_load(const char *name, int mode, const char *function, void **address,
			 struct error *err) MUST_CHECK;

#endif
