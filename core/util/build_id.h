/*
 * build_id - a hash of the sources in core/ that a program or a library was built from.
 *
 * Every program and every library that programs load has its own copy of it (core/util/library.h).
 */
#ifndef CORE_UTIL_BUILD_ID_H
#define CORE_UTIL_BUILD_ID_H

extern const char build_id[];

#endif
