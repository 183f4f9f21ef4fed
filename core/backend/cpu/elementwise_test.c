/*
 * The loops of elementwise.h at every length around whole LANES, on small whole
 * numbers: sums of these are exact in any order.
 */
#include "core/util/test.h"

#include "core/backend/cpu/elementwise.h"

enum { LONGEST = 3 * LANES + 2 };

static real number(int64_t i)
{
	return (real)(i * 7 % 11 - 4);
}

static real square_plus_one(real x)
{
	return x * x + 1;
}

static void test_sums(void **state)
{
	real x[LONGEST], y[LONGEST], sum_x = 0, sum_xy = 0;

	(void)state;
	for (int64_t n = 0; n < LONGEST; n++) {
		assert_true(sum(x, n) == sum_x);
		assert_true(dot(x, y, n) == sum_xy);
		x[n] = number(n);
		y[n] = number(n + 3);
		sum_x += x[n];
		sum_xy += x[n] * y[n];
	}
}

static void test_map(void **state)
{
	real x[LONGEST], y[LONGEST];

	(void)state;
	for (int64_t n = 0; n < LONGEST; n++) {
		x[n] = number(n);
		y[n] = -1;
		map(square_plus_one, x, n, y);
		for (int64_t i = 0; i < n; i++)
			assert_true(y[i] == x[i] * x[i] + 1);
		assert_true(y[n] == -1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sums),
		cmocka_unit_test(test_map),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
