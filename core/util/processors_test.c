#define _GNU_SOURCE /* cpu_set_t */
#include "core/util/processors.h"

#include <sched.h>

#include "core/util/test.h"

static void test_counts_what_the_process_may_use(void **state)
{
	cpu_set_t before, one;
	int first = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(usable_processors(), CPU_COUNT(&before));
	while (!CPU_ISSET(first, &before))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(usable_processors(), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts_what_the_process_may_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
