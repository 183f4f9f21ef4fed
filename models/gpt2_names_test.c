/*
 * Names of public GPT-2 checkpoints: what is understood, and what must be refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/engine/backend.h"
#include "core/util/safetensors.h"
#include "core/util/test.h"
#include "models/gpt2_names.h"

enum { VOCAB = 3, WIDTH = 2 };

struct fixture {
	struct backend backend;
	struct params *params;
	char path[200];
	char notes[512];
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
	add_param(f, "wte.weight", 2, VOCAB, WIDTH);
	add_param(f, "h.0.attn.c_attn.weight", 2, WIDTH, 3 * WIDTH);
	add_param(f, "h.0.attn.c_attn.bias", 1, 3 * WIDTH, 0);
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
static const float others[] = { 5, 4, 3, 2, 1, 0 };

#define MATRIX(text, rows, columns)                                                                \
	{                                                                                          \
		.name = text, .type = ST_F32, .ndim = 2, .dim = { rows, columns }, .data = numbers \
	}
#define WTE(text) MATRIX(text, VOCAB, WIDTH)
#define C_ATTN(text) MATRIX(text, WIDTH, 3 * WIDTH)
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
	return weights_load(f->params, f->path, &gpt2_names, allow, remember, f, &f->err);
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

static void test_prefix(void **state)
{
	struct fixture *f = *state;

	must(LOAD(f, "", WTE("transformer.wte.weight"),
		  C_ATTN("transformer.h.0.attn.c_attn.weight"),
		  BIAS("transformer.h.0.attn.c_attn.bias")),
	     &f->err);
	assert_all_loaded(f);
}

static void test_buffers_are_no_weights(void **state)
{
	struct fixture *f = *state;

	must(LOAD(f, "", WTE("wte.weight"), C_ATTN("h.0.attn.c_attn.weight"),
		  BIAS("h.0.attn.c_attn.bias"), WTE("h.0.attn.bias"),
		  { .name = "transformer.h.0.attn.masked_bias", .type = ST_F32, .data = numbers }),
	     &f->err);
	assert_all_loaded(f);
}

static void test_tied_head(void **state)
{
	struct fixture *f = *state;

	must(LOAD(f, "", WTE("transformer.wte.weight"),
		  C_ATTN("transformer.h.0.attn.c_attn.weight"),
		  BIAS("transformer.h.0.attn.c_attn.bias"), WTE("lm_head.weight")),
	     &f->err);
	assert_all_loaded(f);
}

static void test_different_head(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(LOAD(f, "", WTE("wte.weight"), C_ATTN("h.0.attn.c_attn.weight"),
			      BIAS("h.0.attn.c_attn.bias"),
			      { .name = "lm_head.weight",
				.type = ST_F32,
				.ndim = 2,
				.dim = { VOCAB, WIDTH },
				.data = others }),
			 FAIL);
	assert_reason(f, "'lm_head.weight', which this model lacks");
	assert_untouched(f, "wte.weight");
}

static void test_same_name_twice(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(LOAD(f, "", WTE("wte.weight"), WTE("transformer.wte.weight")), FAIL);
	assert_reason(f, "'wte.weight' twice, as 'transformer.wte.weight' and as 'wte.weight'");
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_prefix),	   CASE(test_buffers_are_no_weights), CASE(test_tied_head),
		CASE(test_different_head), CASE(test_same_name_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
