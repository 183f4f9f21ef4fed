#include "core/util/build_id.h"

#ifndef BUILD_ID /* the Makefile passes it; fuzzers need none */
#define BUILD_ID ""
#endif

const char build_id[] = BUILD_ID;
