/*
 * Weights from files: what is loaded, reported and refused, and names that a file spells otherwise.
 */
#include <math.h>

#include "core/train/weights_case.h"

static int set_up(void **state)
{
	return case_open(state, "table", "block.0.matrix", "block.0.bias");
}

/* ------------------------------------------------------------------- tests */

static void test_same_names(void **state)
{
	struct weights_case *f = *state;

	must(LOAD(f, "", TABLE("table"), WIDE("block.0.matrix"), BIAS("block.0.bias")), &f->err);
	assert_all_loaded(f);
}

static void test_other_types_of_numbers(void **state)
{
	static const double wide[] = { 0, 1, 2, 3, 4, 5 };
	struct weights_case *f = *state;

	must(LOAD(f, "",
		  { .name = "table",
		    .type = ST_F64,
		    .ndim = 2,
		    .dim = { VOCAB, WIDTH },
		    .data = wide },
		  WIDE("block.0.matrix"), BIAS("block.0.bias")),
	     &f->err);
	assert_all_loaded(f);
}

static void test_what_is_not_finite(void **state)
{
	static const struct {
		double value;
		const char *reason;
	} wrong[] = { { NAN, "'table' holds NaN" },
		      { INFINITY, "'table' holds infinity" },
		      { -INFINITY, "'table' holds infinity" },
		      { 1e300, "'table' holds infinity" } }; /* as a float */
	struct weights_case *f = *state;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const double values[VOCAB * WIDTH] = { 0, 1, 2, 3, 4, wrong[i].value };

		assert_int_equal(LOAD(f, "",
				      { .name = "table",
					.type = ST_F64,
					.ndim = 2,
					.dim = { VOCAB, WIDTH },
					.data = values },
				      WIDE("block.0.matrix"), BIAS("block.0.bias")),
				 FAIL);
		assert_reason(f, wrong[i].reason);
		assert_reason(f, f->path);
		assert_untouched(f, "table");
	}
}

static void test_missing_are_told(void **state)
{
	struct weights_case *f = *state;
	char expected[600];

	must(LOAD(f, "block.*.", TABLE("table")), &f->err);
	assert_loaded(f, "table");
	assert_untouched(f, "block.0.matrix");
	assert_untouched(f, "block.0.bias");
	snprintf(expected, sizeof(expected),
		 "'block.0.matrix' is not in %s: it starts fresh\n"
		 "'block.0.bias' is not in %s: it starts fresh\n",
		 f->path, f->path);
	assert_string_equal(f->notes, expected);
}

static void test_missing_must_be_allowed(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "", TABLE("table")), FAIL);
	assert_reason(f, "lacks 'block.0.matrix' and 1 more parameters of this model");
	assert_reason(f, "CONFIG_INIT_FROM_ALLOW");
	assert_untouched(f, "table");
	assert_int_equal(LOAD(f, "block.0.matrix", TABLE("table")), FAIL);
	assert_reason(f, "lacks 'block.0.bias', which this model has");
	assert_int_equal(LOAD(f, NULL, TABLE("table")), FAIL);
	assert_null(strstr(f->err.text, "CONFIG_INIT_FROM_ALLOW"));
}

static void test_surplus(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "", TABLE("table"), TABLE("block.1.matrix")), FAIL);
	assert_reason(f, "'block.1.matrix', which this model lacks");
	assert_reason(f, "CONFIG_INIT_FROM_ALLOW");
	assert_untouched(f, "table");
	assert_int_equal(LOAD(f, "block.2.,other", TABLE("table"), TABLE("block.1.matrix")), FAIL);
	must(LOAD(f, "other,block.", TABLE("table"), TABLE("block.1.matrix")), &f->err);
	assert_loaded(f, "table");
	/* An empty name in the list allows nothing. */
	assert_int_equal(LOAD(f, ",,", TABLE("table"), TABLE("block.1.matrix")), FAIL);
}

static const char *without_prefix(const char *name)
{
	return strncmp(name, "their.", 6) == 0 ? name + 6 : name;
}

static bool is_mask(const struct safetensors *file, const struct safetensors_tensor *t)
{
	assert_true(file->count > 0);
	return strstr(t->name, "mask") != NULL;
}

static const struct weight_names theirs = { .plain = without_prefix, .redundant = is_mask };

static void test_names_of_others(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "", TABLE("their.table"), WIDE("block.0.matrix"),
			      BIAS("their.block.0.bias")),
			 FAIL);
	assert_reason(f, "which this model lacks");
	f->names = &theirs;
	must(LOAD(f, "", TABLE("their.table"), WIDE("block.0.matrix"), BIAS("their.block.0.bias"),
		  TABLE("their.mask")),
	     &f->err);
	assert_all_loaded(f);
	assert_int_equal(LOAD(f, "", TABLE("table"), TABLE("their.table")), FAIL);
	assert_reason(f, "'table' twice, as 'table' and as 'their.table'");
}

static void test_wrong_shape(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "block.", MATRIX("table", WIDTH, VOCAB)), FAIL);
	assert_reason(f, "'table' has another shape");
	/* As many elements do not make the same shape. */
	assert_int_equal(LOAD(f, "block.",
			      { .name = "table",
				.type = ST_F32,
				.ndim = 1,
				.dim = { VOCAB * WIDTH },
				.data = case_numbers }),
			 FAIL);
	assert_reason(f, "'table' has another shape");
	assert_untouched(f, "table");
}

static void test_unreadable(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(weights_load(f->params, "/nonexistent/weights", NULL, "", case_remember, f,
				      &f->err),
			 FAIL);
	assert_reason(f, "/nonexistent/weights");
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, case_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_same_names),
		CASE(test_other_types_of_numbers),
		CASE(test_what_is_not_finite),
		CASE(test_missing_are_told),
		CASE(test_missing_must_be_allowed),
		CASE(test_surplus),
		CASE(test_names_of_others),
		CASE(test_wrong_shape),
		CASE(test_unreadable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
