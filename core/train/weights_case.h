/*
 * weights_case - for tests: a model of three parameters, and files of weights to load into it.
 */
#ifndef CORE_TRAIN_WEIGHTS_CASE_H
#define CORE_TRAIN_WEIGHTS_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cpu/cpu.h"
#include "core/train/weights.h"
#include "core/util/safetensors.h"
#include "core/util/test.h"

enum { VOCAB = 3, WIDTH = 2 };

struct weights_case {
	struct backend backend;
	struct params *params;
	char path[200];
	char notes[512];
	const struct weight_names *names;
	struct error err;
};

static inline void case_param(struct weights_case *w, const char *name, int ndim, int64_t rows,
			      int64_t columns)
{
	const struct param_init init = { .kind = INIT_CONSTANT, .value = -1 };
	int index;

	must(params_name(w->params, name, &init, ndim, (const int64_t[]){ rows, columns }, &index,
			 &w->err),
	     &w->err);
}

/* Three parameters with these names, all -1: [VOCAB,WIDTH], [WIDTH,3*WIDTH] and [3*WIDTH]. */
static inline int case_open(void **state, const char *table, const char *matrix, const char *bias)
{
	struct weights_case *w = calloc(1, sizeof(*w));
	int fd;

	*state = w;
	test_template(w->path, sizeof(w->path), "weights");
	fd = mkstemp(w->path);
	if (fd < 0)
		return -1;
	close(fd);
	w->backend = backend_cpu(1);
	must(params_create(&w->params, F32, &w->err), &w->err);
	case_param(w, table, 2, VOCAB, WIDTH);
	case_param(w, matrix, 2, WIDTH, 3 * WIDTH);
	case_param(w, bias, 1, 3 * WIDTH, 0);
	must(params_allocate(w->params, &w->backend, false, &w->err), &w->err);
	must(params_initialise(w->params, 1, &w->err), &w->err);
	return 0;
}

static inline int case_close(void **state)
{
	struct weights_case *w = *state;

	unlink(w->path);
	params_destroy(w->params);
	free(w);
	return 0;
}

/* ------------------------------------------------------------------- files */

static const float case_numbers[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

/* Tensors of a file, with the shapes of the three parameters. */
#define MATRIX(text, rows, columns)                                                \
	{                                                                          \
		.name = text, .type = ST_F32, .ndim = 2, .dim = { rows, columns }, \
		.data = case_numbers                                               \
	}
#define TABLE(text) MATRIX(text, VOCAB, WIDTH)
#define WIDE(text) MATRIX(text, WIDTH, 3 * WIDTH)
#define BIAS(text)                                                             \
	{                                                                      \
		.name = text, .type = ST_F32, .ndim = 1, .dim = { 3 * WIDTH }, \
		.data = case_numbers                                           \
	}

/* Load the list as a file; `allow` as in weights_load(). */
#define LOAD(w, allow, ...) \
	case_load(w, allow, (const struct safetensors_tensor[]){ __VA_ARGS__, { .name = NULL } })

static inline void case_remember(void *context, const char *text)
{
	struct weights_case *w = context;
	const size_t n = strlen(w->notes);

	snprintf(w->notes + n, sizeof(w->notes) - n, "%s\n", text);
}

static inline enum status case_load(struct weights_case *w, const char *allow,
				    const struct safetensors_tensor *list)
{
	int n = 0;

	while (list[n].name)
		n++;
	must(safetensors_write(w->path, list, n, NULL, 0, &w->err), &w->err);
	w->notes[0] = '\0';
	return weights_load(w->params, w->path, w->names, allow, case_remember, w, &w->err);
}

static inline void assert_loaded(const struct weights_case *w, const char *name)
{
	const int index = params_find(w->params, name);
	double values[12];
	struct error err;

	assert_true(index >= 0);
	must(param_get(w->params, index, false, values, &err), &err);
	for (int64_t i = 0; i < w->params->list[index].count; i++)
		assert_true(values[i] == (double)i);
}

static inline void assert_untouched(const struct weights_case *w, const char *name)
{
	double values[12];
	struct error err;

	must(param_get(w->params, params_find(w->params, name), false, values, &err), &err);
	assert_true(values[0] == -1);
}

static inline void assert_all_loaded(const struct weights_case *w)
{
	for (int i = 0; i < w->params->n; i++)
		assert_loaded(w, w->params->list[i].name);
	assert_string_equal(w->notes, "");
}

static inline void assert_reason(const struct weights_case *w, const char *reason)
{
	if (!strstr(w->err.text, reason))
		fail_msg("'%s' does not say '%s'", w->err.text, reason);
}

#endif
