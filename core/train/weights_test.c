/*
 * Weights from files: what is loaded, told and refused, and names that a file spells otherwise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/engine/backend.h"
#include "core/util/safetensors.h"
#include "core/util/test.h"
#include "core/train/weights.h"

enum { VOCAB = 3, WIDTH = 2 };

struct fixture {
	struct backend backend;
	struct params *params;
	char path[200];
	char notes[512];
	const struct weight_names *names;
	struct error err;
};

static void add_param(struct fixture *f, const char *name, int ndim, int64_t rows, int64_t columns)
{
	const struct param_init init = { .kind = INIT_CONSTANT, .value = -1 };
	int index;

	must(params_name(f->params, name, &init, ndim, (const int64_t[]){ rows, columns }, &index,
			 &f->err),
	     &f->err);
}

/* A model of three parameters, all -1. */
static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	int fd;

	*state = f;
	test_template(f->path, sizeof(f->path), "weights");
	fd = mkstemp(f->path);
	if (fd < 0)
		return -1;
	close(fd);
	f->backend = backend_cpu(1);
	must(params_create(&f->params, F32, &f->err), &f->err);
	add_param(f, "table", 2, VOCAB, WIDTH);
	add_param(f, "block.0.matrix", 2, WIDTH, 3 * WIDTH);
	add_param(f, "block.0.bias", 1, 3 * WIDTH, 0);
	must(params_allocate(f->params, &f->backend, false, &f->err), &f->err);
	must(params_initialise(f->params, 1, &f->err), &f->err);
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	unlink(f->path);
	params_destroy(f->params);
	free(f);
	return 0;
}

/* ------------------------------------------------------------------- files */

static const float numbers[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

#define MATRIX(text, rows, columns)                                                                \
	{                                                                                          \
		.name = text, .type = ST_F32, .ndim = 2, .dim = { rows, columns }, .data = numbers \
	}
#define TABLE(text) MATRIX(text, VOCAB, WIDTH)
#define WIDE(text) MATRIX(text, WIDTH, 3 * WIDTH)
#define BIAS(text)                                                                             \
	{                                                                                      \
		.name = text, .type = ST_F32, .ndim = 1, .dim = { 3 * WIDTH }, .data = numbers \
	}

/* Load the list as a file; `allow` as in weights_load(). */
#define LOAD(f, allow, ...) \
	load(f, allow, (const struct safetensors_tensor[]){ __VA_ARGS__, { .name = NULL } })

static void remember(void *context, const char *text)
{
	struct fixture *f = context;
	const size_t n = strlen(f->notes);

	snprintf(f->notes + n, sizeof(f->notes) - n, "%s\n", text);
}

static enum status load(struct fixture *f, const char *allow, const struct safetensors_tensor *list)
{
	int n = 0;

	while (list[n].name)
		n++;
	must(safetensors_write(f->path, list, n, NULL, 0, &f->err), &f->err);
	f->notes[0] = '\0';
	return weights_load(f->params, f->path, f->names, allow, remember, f, &f->err);
}

static void assert_loaded(const struct fixture *f, const char *name)
{
	const int index = params_find(f->params, name);
	double values[12];
	struct error err;

	assert_true(index >= 0);
	must(param_get(f->params, index, false, values, &err), &err);
	for (int64_t i = 0; i < f->params->list[index].count; i++)
		assert_true(values[i] == (double)i);
}

static void assert_untouched(const struct fixture *f, const char *name)
{
	double values[12];
	struct error err;

	must(param_get(f->params, params_find(f->params, name), false, values, &err), &err);
	assert_true(values[0] == -1);
}

static void assert_all_loaded(const struct fixture *f)
{
	for (int i = 0; i < f->params->n; i++)
		assert_loaded(f, f->params->list[i].name);
	assert_string_equal(f->notes, "");
}

static void assert_reason(const struct fixture *f, const char *reason)
{
	if (!strstr(f->err.text, reason))
		fail_msg("'%s' does not say '%s'", f->err.text, reason);
}

/* ------------------------------------------------------------------- tests */

static void test_same_names(void **state)
{
	struct fixture *f = *state;

	must(LOAD(f, "", TABLE("table"), WIDE("block.0.matrix"), BIAS("block.0.bias")), &f->err);
	assert_all_loaded(f);
}

static void test_other_types_of_numbers(void **state)
{
	static const double wide[] = { 0, 1, 2, 3, 4, 5 };
	struct fixture *f = *state;

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

static void test_missing_are_told(void **state)
{
	struct fixture *f = *state;
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
	struct fixture *f = *state;

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
	struct fixture *f = *state;

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
	struct fixture *f = *state;

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
	struct fixture *f = *state;

	assert_int_equal(LOAD(f, "block.", MATRIX("table", WIDTH, VOCAB)), FAIL);
	assert_reason(f, "'table' has another shape");
	/* As many elements do not make the same shape. */
	assert_int_equal(LOAD(f, "block.",
			      { .name = "table",
				.type = ST_F32,
				.ndim = 1,
				.dim = { VOCAB * WIDTH },
				.data = numbers }),
			 FAIL);
	assert_reason(f, "'table' has another shape");
	assert_untouched(f, "table");
}

static void test_unreadable(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(
		weights_load(f->params, "/nonexistent/weights", NULL, "", remember, f, &f->err),
		FAIL);
	assert_reason(f, "/nonexistent/weights");
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_same_names),	     CASE(test_other_types_of_numbers),
		CASE(test_missing_are_told), CASE(test_missing_must_be_allowed),
		CASE(test_surplus),
		CASE(test_names_of_others),  CASE(test_wrong_shape),
		CASE(test_unreadable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
