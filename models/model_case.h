/*
 * model_case - models for tests: from a few symbols, or from a committed vector.
 */
#ifndef MODELS_MODEL_CASE_H
#define MODELS_MODEL_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/backend/open.h"
#include "core/engine/backend.h"
#include "core/util/test.h"
#include "models/test_vector.h"

struct model_case {
	struct config *config;
	struct model *model;
	struct backend backend;
	struct params *params;
};

/* The reference's defaults with some symbols changed: "ATTENTION=mla MODEL_HEADS=2". */
static inline struct config *case_config(const char *symbols)
{
	char *copy = strdup(symbols), *rest = copy, *name;
	struct config *c;
	struct error err;

	must(vector_defaults(&c, &err), &err);
	while ((name = strtok_r(rest, " ", &rest))) {
		char *value = strchr(name, '=');

		assert_non_null(value);
		*value++ = '\0';
		must(config_set(c, name, value, &err), &err);
	}
	free(copy);
	return c;
}

/* Names every parameter without allocating memory for it. */
static inline void case_name_params(struct model_case *k)
{
	struct token_io io;
	struct graph *g;
	struct error err;

	must(graph_create(&g, k->params, true, &err), &err);
	model_build(k->model, g, MODEL_TRAIN, 1, 1, &io);
	must(graph_finish(g, &err), &err);
	graph_destroy(g);
}

static inline void case_open_config(struct model_case *k, enum dtype type, struct config *config)
{
	const struct model_task untrained = { 0 };
	struct error err;

	*k = (struct model_case){ .config = config, .backend = backend_for_tests(FLOAT32, 1) };
	must(model_read(&k->model, k->config, &untrained, &err), &err);
	must(params_create(&k->params, type, &err), &err);
	case_name_params(k);
}

static inline void case_open(struct model_case *k, enum dtype type, const char *symbols)
{
	case_open_config(k, type, case_config(symbols));
}

/* The model and the weights of models/vectors/NAME.safetensors. */
static inline void case_open_vector(struct model_case *k, enum dtype type, const char *name)
{
	struct safetensors file;
	struct config *config;
	struct error err;
	char path[200];

	snprintf(path, sizeof(path), "models/vectors/%s.safetensors", name);
	must(safetensors_open(&file, path, &err), &err);
	must(vector_config(&file, &config, &err), &err);
	case_open_config(k, type, config);
	must(params_allocate(k->params, &k->backend, true, &err), &err);
	must(vector_load(&file, k->params, &err), &err);
	safetensors_close(&file);
}

static inline void case_close(struct model_case *k)
{
	params_destroy(k->params);
	model_free(k->model);
	config_free(k->config);
}

/* --------------------------------------------- models/parity.json and its tokens */

static inline cJSON *case_expected(void)
{
	static char text[1 << 18];
	FILE *file = fopen("models/parity.json", "r");
	size_t n;
	cJSON *json;

	assert_non_null(file);
	n = fread(text, 1, sizeof(text) - 1, file);
	assert_true(n < sizeof(text) - 1);
	fclose(file);
	text[n] = '\0';
	json = cJSON_Parse(text);
	assert_non_null(json);
	return json;
}

static inline const cJSON *case_item(const cJSON *json, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

	if (!item)
		fail_msg("models/parity.json lacks '%s'", name);
	return item;
}

static inline double case_number(const cJSON *json, const char *name)
{
	return case_item(json, name)->valuedouble;
}

/* The formulas of tools/reference/parity.py. */
static inline int32_t case_token(const struct model *m, int64_t update, int64_t row, int64_t i)
{
	return (int32_t)((7 * update + 5 * row * row + (3 + row) * i + update * i * i) % m->vocab);
}

static inline void case_row(const struct model *m, int64_t update, int64_t row, int64_t length,
			    int32_t *tokens, int32_t *targets)
{
	for (int64_t i = 0; i < length; i++) {
		tokens[i] = case_token(m, update, row, i);
		targets[i] = (update + row + i) % 5 ? case_token(m, update, row, i + 1) : -1;
	}
}

#endif
