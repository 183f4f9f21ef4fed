#include "models/audit/auditor.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"
#include "models/decode.h"

enum status auditor_add(const struct auditor *a, const char *audit, const char *subject,
			bool passed, const char *detail, struct error *err)
{
	return audit_add(a->report, audit, subject, passed, detail, err);
}

int64_t auditor_training_length(const struct auditor *a)
{
	return a->options->length < TRAINING_LENGTH ? a->options->length : TRAINING_LENGTH;
}

enum status auditor_can_decode(const struct auditor *a, const struct model *m, int64_t length,
			       bool *can, struct error *err)
{
	*can = false;
	return a->options->declared_leak ? OK : decoder_can(m, length, can, err);
}

size_t auditor_small_logits(const struct auditor *a)
{
	return (size_t)(TRAINING_ROWS * auditor_training_length(a) * a->model->vocab);
}

enum status auditor_open_small(const struct auditor *a, const struct model *m,
			       enum model_purpose purpose, struct token_program *t,
			       struct error *err)
{
	const struct model_use use = {
		.purpose = purpose,
		.rows = TRAINING_ROWS,
		.length = auditor_training_length(a),
		.program = a->options->program,
	};

	return model_program_open(t, m, &use, a->params, a->backend, err);
}

enum status auditor_open(const struct auditor *a, const struct model *m, enum model_purpose purpose,
			 struct token_program *t, struct error *err)
{
	const struct model_use use = {
		.purpose = purpose,
		.rows = a->options->rows,
		.length = a->options->length,
		.program = a->options->program,
	};

	if (purpose == MODEL_TRAIN)
		return auditor_open_small(a, m, purpose, t, err);
	return model_program_open(t, m, &use, a->params, a->backend, err);
}

void auditor_draw_tokens(const struct auditor *a, uint64_t number, int32_t *tokens, int64_t count)
{
	const struct rng_key key = rng_subkey(rng_key(a->options->seed, "audit/tokens"), number);

	for (int64_t i = 0; i < count; i++)
		tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)a->model->vocab);
}

enum status auditor_train_seeded(const struct auditor *a, struct token_program *t, int batch,
				 uint64_t seed, struct error *err)
{
	const int64_t n = TRAINING_ROWS * auditor_training_length(a);
	const struct run run = { .seed = seed, .iteration = 1 + (uint64_t)batch };
	int32_t *tokens = malloc((size_t)(n + 1) * sizeof(*tokens));

	if (!tokens)
		return fail_memory(err, "audit", (size_t)(n + 1) * sizeof(*tokens));
	auditor_draw_tokens(a, (uint64_t)batch, tokens, n + 1);
	token_program_feed(t, tokens, tokens + 1);
	token_program_weigh(t, 1 / (double)n, 1 / (double)n);
	free(tokens);
	return program_run(t->p, &run, err);
}

enum status auditor_train(const struct auditor *a, struct token_program *t, int batch,
			  struct error *err)
{
	return auditor_train_seeded(a, t, batch, a->options->seed, err);
}

enum status auditor_logits(struct token_program *t, const int32_t *tokens, char *logits,
			   struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };

	token_program_feed(t, tokens, NULL);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_download(t->p, graph_find_output(t->g, "logits")->tensor, logits);
	return OK;
}

char *auditor_copy_gradients(const struct auditor *a, struct error *err)
{
	const size_t bytes = (size_t)a->params->total * dtype_size(a->params->type);
	char *copy = malloc(bytes);

	if (copy)
		a->backend->download(a->backend, copy, a->params->grad, bytes);
	else
		fail_memory(err, "audit", bytes);
	return copy;
}

enum status auditor_gradients_differ(const struct auditor *a, const char *copy, bool *differ,
				     struct error *err)
{
	const size_t size = dtype_size(a->params->type), most = PARAM_CHUNK * size;
	char *now = malloc(most);

	if (!now)
		return fail_memory(err, "audit", most);
	*differ = false;
	for (int i = 0; i < a->params->n && !*differ; i++) {
		const struct param *p = &a->params->list[i];
		const char *device = param_grad(a->params, i);
		const char *then = copy + (size_t)p->offset * size;
		const size_t end = (size_t)p->count * size;

		for (size_t at = 0; at < end && !*differ; at += most) {
			const size_t bytes = end - at < most ? end - at : most;

			a->backend->download(a->backend, now, device + at, bytes);
			*differ = memcmp(then + at, now, bytes) != 0;
		}
	}
	free(now);
	return OK;
}

static enum status compare_repeated(struct auditor *a, bool *same, struct error *err)
{
	const uint64_t seed = a->options->seed;
	enum status status = FAIL;
	bool differ = true;
	char *copy;

	if (auditor_train_seeded(a, &a->training, 0, seed, err) != OK)
		return FAIL;
	copy = auditor_copy_gradients(a, err);
	if (copy && auditor_train_seeded(a, &a->training, 1, seed, err) == OK &&
	    auditor_train_seeded(a, &a->training, 0, seed + 1, err) == OK)
		status = auditor_gradients_differ(a, copy, &differ, err);
	free(copy);
	*same = !differ;
	return status;
}

enum status auditor_gradients_repeat(struct auditor *a, bool *same, struct error *err)
{
	if (!a->compared && config_real(a->config, "DROPOUT") <= 0 &&
	    compare_repeated(a, &a->repeat, err) != OK)
		return FAIL;
	a->compared = true;
	*same = a->repeat;
	return OK;
}

static void add_squares(void *context, int64_t first, int64_t n, double *values)
{
	double sum = *(double *)context;

	(void)first;
	for (int64_t i = 0; i < n; i++)
		sum += values[i] * values[i];
	*(double *)context = sum;
}

enum status auditor_squares(const struct auditor *a, int index, bool gradient, double *squares,
			    struct error *err)
{
	*squares = 0;
	return param_visit(a->params, index, gradient, add_squares, squares, err);
}
