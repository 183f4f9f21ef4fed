/*
 * A program leaves the same bits whether its instructions are done one by one, each with a look at
 * its results, or as the device likes: some at the same time, and later all as one piece.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/util/test.h"
#include "models/model_case.h"
#include "models/model_program.h"

/* Micro-batches of an update: gradients of the first overwrite, those of the others are added. */
enum { ROWS = 2, LENGTH = 7, MICRO_BATCHES = 3 };

/* The third update is the first of which all is kept work on a GPU. */
#define UPDATES 3

struct running {
	struct model_case k;
	struct token_program t;
	struct safetensors file;
	size_t gradient_bytes;
};

/* With dropout: its keys are memory that instructions write, too. */
static void start(struct running *r, const char *path, enum precision precision)
{
	const struct model_use use = { .purpose = MODEL_TRAIN, .rows = ROWS, .length = LENGTH };
	const struct model_task untrained = { 0 };
	struct model_case *k = &r->k;
	struct error err;

	*r = (struct running){ .k.backend = backend_for_tests(precision, 1) };
	must(safetensors_open(&r->file, path, &err), &err);
	must(vector_config(&r->file, &k->config, &err), &err);
	must(config_set(k->config, "DROPOUT", "0.1", &err), &err);
	must(model_read(&k->model, k->config, &untrained, &err), &err);
	must(params_create(&k->params, precision_type(precision), &err), &err);
	must(model_program_open(&r->t, k->model, &use, k->params, &k->backend, &err), &err);
	must(vector_load(&r->file, k->params, &err), &err);
	r->gradient_bytes = (size_t)k->params->total * dtype_size(k->params->type);
}

static void end(struct running *r)
{
	token_program_close(&r->t);
	case_close(&r->k);
	safetensors_close(&r->file);
}

/* The gradients of an update, then the losses of its last micro-batch. */
static void run_update(struct running *r, int update, char *left)
{
	const struct backend *b = &r->k.backend;
	int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH];
	double loss;
	struct error err;

	for (int micro = 0; micro < MICRO_BATCHES; micro++) {
		const struct run run = { .seed = 1,
					 .iteration = (uint64_t)update,
					 .micro = (uint64_t)micro };

		for (int row = 0; row < ROWS; row++)
			case_row(r->k.model, update, micro * ROWS + row, LENGTH,
				 tokens + row * LENGTH, targets + row * LENGTH);
		token_program_feed(&r->t, tokens, targets);
		token_program_weigh(&r->t, 0.125, 0.0625);
		must(program_run(r->t.p, &run, &err), &err);
	}
	b->download(b, left, r->k.params->grad, r->gradient_bytes);
	left += r->gradient_bytes;
	for (int i = 0; i < r->t.g->n_outputs; i++)
		if (r->t.g->outputs[i].is_loss) {
			loss = program_scalar(r->t.p, r->t.g->outputs[i].tensor);
			memcpy(left, &loss, sizeof(loss));
			left += sizeof(loss);
		}
}

static void check(const char *path, enum precision precision)
{
	char *one_by_one, *free_order;
	struct running r;
	size_t bytes;

	start(&r, path, precision);
	bytes = r.gradient_bytes + (size_t)program_loss_count(r.t.p) * sizeof(double);
	one_by_one = malloc(bytes);
	free_order = malloc(bytes);
	assert_true(one_by_one && free_order);
	for (int update = 1; update <= UPDATES; update++) {
		program_check_nan(r.t.p, true);
		run_update(&r, update, one_by_one);
		program_check_nan(r.t.p, false);
		run_update(&r, update, free_order);
		if (memcmp(one_by_one, free_order, bytes) != 0)
			fail_msg("%s in %s: update %d differs", path, precision_names[precision],
				 update);
	}
	free(one_by_one);
	free(free_order);
	end(&r);
}

/* Models with many small parts. */
static void check_models(enum precision precision)
{
	check("models/vectors/all.safetensors", precision);
	check("models/vectors/all-ws.safetensors", precision);
	check("models/vectors/mla-ra-rope.safetensors", precision);
	check("models/vectors/dot-post-rms.safetensors", precision);
}

static void test_double(void **state)
{
	(void)state;
	check_models(FLOAT64);
}

static void test_bfloat16(void **state)
{
	(void)state;
	check_models(backend_stores_for_tests() ? BFLOAT16_STORED : BFLOAT16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_double),
		cmocka_unit_test(test_bfloat16),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
