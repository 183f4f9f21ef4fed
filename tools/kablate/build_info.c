/* How this program was built; the Makefile passes the macros, per step. */
#include "tools/kablate/run_setup.h"

#ifndef BUILD_FLAGS
#define BUILD_FLAGS "unknown"
#endif
#ifndef BUILD_REVISION
#define BUILD_REVISION "unknown"
#endif
#ifndef BUILD_SOURCES
#define BUILD_SOURCES "unknown"
#endif

const struct build_info build_info = {
	.version = "0.1",
	.revision = BUILD_REVISION,
	.compiler = __VERSION__,
	.flags = BUILD_FLAGS,
	.sources = BUILD_SOURCES,
};
