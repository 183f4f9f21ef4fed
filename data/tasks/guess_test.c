/* Tests of data/tasks/guess. */
#include "data/tasks/fixture.h"
#include "data/tasks/guess.h"

static void test_known_entropies(void **state)
{
	const uint64_t even[] = { 5, 5, 5, 5, 0 }, certain[] = { 0, 9 }, odd[] = { 1, 3 };

	(void)state;
	expect_near(guess_loss(even, 5), log(4.0), 1e-15);
	expect_near(guess_loss(certain, 2), 0.0, 0.0);
	expect_near(guess_loss(odd, 2), 0.25 * log(4.0) + 0.75 * log(4.0 / 3.0), 1e-15);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_entropies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
