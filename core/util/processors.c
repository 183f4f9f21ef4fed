#define _GNU_SOURCE /* cpu_set_t */
#include "core/util/processors.h"

#include <sched.h>
#include <unistd.h>

int usable_processors(void)
{
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more of them than a cpu_set_t holds */
	return CPU_COUNT(&allowed);
}
