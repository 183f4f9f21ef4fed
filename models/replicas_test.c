/*
 * A run among replicas keeps the bits of the run alone, whatever the others do: other seeds, data
 * and rates, a gradient that is not finite, or an end before theirs.
 *
 * Parameters, moments, scalars of the optimizer, losses and reports are compared after a few
 * updates, of which a GPU replays the last as one graph.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/optim/optim.h"
#include "core/util/test.h"
#include "models/model_case.h"
#include "models/model_program.h"

enum { ROWS = 2, LENGTH = 7, MICRO_BATCHES = 2, UPDATES = 3, REPLICAS = 3 };

/* Less than some models need, so that their memory lies in several slabs. */
#define REPLICA_BYTES ((size_t)2 << 20)

/* What is done to one replica of a group. */
enum trouble { NONE, NOT_FINITE, SWITCHED_OFF };

struct group {
	struct model_case k;
	struct token_program t;
	struct optimizer *optimizer;
	double *losses; /* on the device: of the micro-batches of an update */
	int n_losses;
	int count;
	int first; /* the seed of replica 0 is first + 1 */
};

/* What a run leaves. */
struct result {
	char *bytes;
	size_t size;
	struct optim_reports reports;
	struct optim_scalars scalars;
};

static const struct optim_options common_options = {
	.beta1 = 0.9,
	.beta2 = 0.95,
	.eps = 1e-8,
	.weight_decay = 0.1,
	.clip = 1,
	.sgd = { .momentum = 0.9 },
	.spam = { .theta = 20, .spike = 2, .interval = 2, .warmup = 10, .clip_elements = true },
	.muon = { .lr_ratio = 0.5, .momentum = 0.95, .eps = 1e-7, .nesterov = true, .steps = 5 },
};

static const double rates[REPLICAS] = { 1e-2, 3e-3, 2e-2 };

static struct backend open_replicas(enum precision precision, int count)
{
	const struct backend_options options = {
		.name = backend_name_for_tests(),
		.precision = precision,
		.threads = 1,
		.replicas = count,
		.replica_bytes = REPLICA_BYTES,
	};
	struct backend b;
	struct error err;

	must(backend_open(&b, &options, &err), &err);
	assert_int_equal(b.replicas, count);
	return b;
}

/* With dropout, whose masks follow from each run's own seed. */
static void configure(struct model_case *k, const char *vector)
{
	const struct model_task untrained = { 0 };
	struct safetensors file;
	struct error err;
	char path[200];

	snprintf(path, sizeof(path), "models/vectors/%s.safetensors", vector);
	must(safetensors_open(&file, path, &err), &err);
	must(vector_config(&file, &k->config, &err), &err);
	safetensors_close(&file);
	must(config_set(k->config, "DROPOUT", "0.1", &err), &err);
	must(model_read(&k->model, k->config, &untrained, &err), &err);
}

static void start(struct group *g, const char *vector, enum precision precision,
		  enum optim_kind optimizer, int first, int count)
{
	const struct model_use use = { .purpose = MODEL_TRAIN, .rows = ROWS, .length = LENGTH };
	struct model_case *k = &g->k;
	struct optim_options options = common_options;
	struct error err;

	*g = (struct group){ .first = first, .count = count };
	k->backend = open_replicas(precision, count);
	configure(k, vector);
	options.kind = optimizer;
	must(params_create(&k->params, precision_type(precision), &err), &err);
	must(model_program_open(&g->t, k->model, &use, k->params, &k->backend, &err), &err);
	must(optimizer_create(&g->optimizer, &options, k->params, &err), &err);
	g->n_losses = program_loss_count(g->t.p);
	g->losses = k->backend.alloc(&k->backend,
				     (size_t)(MICRO_BATCHES * g->n_losses) * sizeof(*g->losses));
	assert_non_null(g->losses);
	for (int r = 0; r < count; r++) {
		backend_choose(&k->backend, r);
		must(params_initialise(k->params, (uint64_t)(first + r + 1), &err), &err);
	}
	backend_choose(&k->backend, REPLICAS_ALL);
	token_program_weigh(&g->t, 0.125, 0.0625);
}

static void stop(struct group *g)
{
	struct backend b = g->k.backend;

	b.release(&b, g->losses);
	optimizer_destroy(g->optimizer);
	token_program_close(&g->t);
	case_close(&g->k);
	b.close(&b);
}

static void feed(struct group *g, int update, int micro)
{
	int32_t tokens[REPLICAS][ROWS * LENGTH], targets[REPLICAS][ROWS * LENGTH];

	for (int r = 0; r < g->count; r++)
		for (int row = 0; row < ROWS; row++)
			case_row(g->k.model, 10 * (g->first + r) + update, micro * ROWS + row,
				 LENGTH, tokens[r] + row * LENGTH, targets[r] + row * LENGTH);
	backend_choose(&g->k.backend, REPLICAS_EACH);
	token_program_feed(&g->t, tokens[0], targets[0]);
	backend_choose(&g->k.backend, REPLICAS_ALL);
}

static void run_update(struct group *g, int update)
{
	struct run runs[REPLICAS];
	struct error err;

	for (int micro = 0; micro < MICRO_BATCHES; micro++) {
		for (int r = 0; r < g->count; r++)
			runs[r] = (struct run){ .seed = (uint64_t)(g->first + r + 1),
						.iteration = (uint64_t)update,
						.micro = (uint64_t)micro };
		feed(g, update, micro);
		must(program_run(g->t.p, runs, &err), &err);
		program_collect_losses(g->t.p, g->losses + micro * g->n_losses);
	}
	optimizer_ask(g->optimizer, update, rates + g->first, g->losses,
		      MICRO_BATCHES * g->n_losses);
}

/* Replica `which` gets a parameter that is not finite, or no further updates. */
static void cause(struct group *g, enum trouble trouble, int which)
{
	const double bad = NAN;
	struct error err;

	if (trouble == SWITCHED_OFF)
		optimizer_switch(g->optimizer, which, false);
	if (trouble != NOT_FINITE)
		return;
	backend_choose(&g->k.backend, which);
	must(param_set_part(g->k.params, 0, 0, 1, &bad, &err), &err);
	backend_choose(&g->k.backend, REPLICAS_ALL);
}

static void append(struct result *x, const struct backend *b, const void *device, size_t bytes)
{
	x->bytes = realloc(x->bytes, x->size + bytes);
	assert_non_null(x->bytes);
	b->download(b, x->bytes + x->size, device, bytes);
	x->size += bytes;
}

static struct result result_of(struct group *g, int r)
{
	const struct params *p = g->k.params;
	const struct backend *b = &g->k.backend;
	const size_t size = dtype_size(p->type);
	const struct optim_tensor *tensors;
	struct result x = { 0 };
	int n;

	backend_choose(b, r);
	append(&x, b, p->data, (size_t)p->total * size);
	append(&x, b, p->grad, (size_t)p->total * size);
	append(&x, b, g->losses, (size_t)(MICRO_BATCHES * g->n_losses) * sizeof(*g->losses));
	tensors = optimizer_tensors(g->optimizer, &n);
	for (int i = 0; i < n; i++)
		append(&x, b, tensors[i].data, (size_t)tensors[i].param->count * size);
	x.scalars = optimizer_scalars(g->optimizer);
	backend_choose(b, REPLICAS_ALL);
	return x;
}

/* Trains `count` replicas; the trouble comes before update 2. */
static void train(const char *vector, enum precision precision, enum optim_kind optimizer,
		  int first, int count, enum trouble trouble, int which, struct result *results)
{
	struct optim_reports reports[REPLICAS];
	struct group g;
	struct error err;

	start(&g, vector, precision, optimizer, first, count);
	for (int update = 1; update <= UPDATES; update++) {
		if (update == 2)
			cause(&g, trouble, which);
		run_update(&g, update);
	}
	must(optimizer_read_each(g.optimizer, reports, &err), &err);
	must(g.k.backend.wait(&g.k.backend, &err), &err);
	for (int r = 0; r < count; r++) {
		results[r] = result_of(&g, r);
		results[r].reports = reports[r];
	}
	stop(&g);
}

static bool same_reports(const struct optim_reports *a, const struct optim_reports *b)
{
	bool same = a->n == b->n;

	for (int i = 0; same && i < a->n; i++)
		same = a->list[i].t == b->list[i].t && a->list[i].norm == b->list[i].norm &&
		       a->list[i].finite == b->list[i].finite &&
		       a->list[i].clipped == b->list[i].clipped &&
		       a->list[i].spike == b->list[i].spike && a->list[i].reset == b->list[i].reset;
	return same;
}

static bool same_result(const struct result *a, const struct result *b)
{
	return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0 &&
	       memcmp(&a->scalars, &b->scalars, sizeof(a->scalars)) == 0 &&
	       same_reports(&a->reports, &b->reports);
}

static void free_results(struct result *results, int n)
{
	for (int i = 0; i < n; i++)
		free(results[i].bytes);
}

/* The neighbours of a troubled replica keep the bits of their runs alone. */
static void check_neighbours(const char *vector, enum precision precision,
			     enum optim_kind optimizer, enum trouble trouble,
			     const struct result *alone)
{
	const int which = trouble == NOT_FINITE ? 1 : 0;
	struct result group[REPLICAS];

	train(vector, precision, optimizer, 0, REPLICAS, trouble, which, group);
	for (int r = 0; r < REPLICAS; r++)
		if (r != which && !same_result(&group[r], &alone[r]))
			fail_msg("%s, %s, %s: trouble of replica %d changes replica %d", vector,
				 precision_names[precision], optim_names[optimizer], which, r);
	assert_int_equal(group[which].reports.n, trouble == NOT_FINITE ? 2 : 1);
	assert_int_equal(group[which].scalars.updates, 1);
	if (trouble == NOT_FINITE)
		assert_false(group[which].reports.list[1].finite);
	free_results(group, REPLICAS);
}

static void check(const char *vector, enum precision precision, enum optim_kind optimizer)
{
	struct result alone[REPLICAS], group[REPLICAS];

	for (int r = 0; r < REPLICAS; r++)
		train(vector, precision, optimizer, r, 1, NONE, 0, &alone[r]);
	assert_false(same_result(&alone[0], &alone[1]));
	train(vector, precision, optimizer, 0, REPLICAS, NONE, 0, group);
	for (int r = 0; r < REPLICAS; r++) {
		assert_int_equal(alone[r].reports.n, UPDATES);
		if (!same_result(&group[r], &alone[r]))
			fail_msg("%s, %s, %s: replica %d differs from its run alone", vector,
				 precision_names[precision], optim_names[optimizer], r);
	}
	free_results(group, REPLICAS);
	check_neighbours(vector, precision, optimizer, NOT_FINITE, alone);
	check_neighbours(vector, precision, optimizer, SWITCHED_OFF, alone);
	free_results(alone, REPLICAS);
}

/* Every mechanism in one precision at least, and every optimizer. */
static void test_float32(void **state)
{
	(void)state;
	check("dot-benchmark", FLOAT32, OPTIM_ADAMW);
	check("all", FLOAT32, OPTIM_ADAMWSPAM);
	check("all-ws", FLOAT32, OPTIM_SGD);
	check("cross-w2", FLOAT32, OPTIM_MUON);
}

static void test_float64(void **state)
{
	(void)state;
	check("all", FLOAT64, OPTIM_MUON);
	check("differential-rope", FLOAT64, OPTIM_ADAMWSPAM);
}

static void test_bfloat16(void **state)
{
	(void)state;
	check("all", BFLOAT16_STORED, OPTIM_ADAMWSPAM);
	check("all-ws", BFLOAT16_STORED, OPTIM_ADAMW);
	check("gla", BFLOAT16_STORED, OPTIM_ADAMW);
	check("delta", BFLOAT16_STORED, OPTIM_ADAMW);
	check("dot-benchmark", BFLOAT16, OPTIM_MUON);
}

/* A NaN anywhere is found; where one replica is chosen, only its own. */
static void test_nonfinite_is_found_by_replica(void **state)
{
	const double bad = NAN;
	struct group g;
	struct error err;

	(void)state;
	start(&g, "dot-benchmark", FLOAT32, OPTIM_ADAMW, 0, REPLICAS);
	backend_choose(&g.k.backend, 2);
	must(param_set_part(g.k.params, 0, 5, 1, &bad, &err), &err);
	for (int r = REPLICAS_ALL; r < REPLICAS; r++) {
		const struct backend *b = &g.k.backend;

		backend_choose(b, r);
		assert_int_equal(b->find_nonfinite(b, g.k.params->data, F32, 1, 64, 64),
				 r == 2 || r == REPLICAS_ALL ? 5 : -1);
	}
	stop(&g);
}

/* Bytes go to the chosen replicas only, and each part of the memory is used again. */
static void test_memory_of_replicas(void **state)
{
	struct backend b = open_replicas(FLOAT32, REPLICAS);
	int32_t each[REPLICAS] = { 1, 2, 3 }, seen[REPLICAS], one = 7;
	int32_t *at = b.alloc(&b, sizeof(one)), *next = b.alloc(&b, 3 * REPLICA_BYTES / 4);
	struct backend_memory before, after;

	(void)state;
	b.memory(&b, &before);
	assert_true(at && next);
	backend_choose(&b, REPLICAS_EACH);
	b.download(&b, seen, at, sizeof(one));
	for (int r = 0; r < REPLICAS; r++)
		assert_int_equal(seen[r], 0);
	b.upload(&b, at, each, sizeof(one));
	backend_choose(&b, 1);
	b.upload(&b, at, &one, sizeof(one));
	backend_choose(&b, REPLICAS_EACH);
	b.download(&b, seen, at, sizeof(one));
	assert_true(seen[0] == 1 && seen[1] == 7 && seen[2] == 3);
	backend_choose(&b, REPLICAS_ALL);
	b.upload(&b, at, &one, sizeof(one));
	backend_choose(&b, REPLICAS_EACH);
	b.download(&b, seen, at, sizeof(one));
	assert_true(seen[0] == 7 && seen[1] == 7 && seen[2] == 7);
	assert_null(b.alloc(&b, REPLICA_BYTES + 1));
	assert_ptr_not_equal(b.alloc(&b, 3 * REPLICA_BYTES / 4), NULL); /* a second slab */
	b.memory(&b, &after);
	assert_true(after.taken == before.taken + (double)(REPLICAS * REPLICA_BYTES));
	b.release(&b, next);
	assert_ptr_equal(b.alloc(&b, 3 * REPLICA_BYTES / 4), next);
	b.close(&b);
}

static void test_too_many_replicas_are_refused(void **state)
{
	const struct backend_options options = {
		.name = backend_name_for_tests(),
		.replicas = 1000000,
		.replica_bytes = (size_t)1 << 30,
	};
	struct backend b;
	struct error err;

	(void)state;
	assert_int_equal(backend_open(&b, &options, &err), FAIL);
	assert_non_null(strstr(err.text, "1000000 replicas of 1073741824 bytes need"));
}

static void test_cpu_refuses_replicas(void **state)
{
	const struct backend_options options = { .name = "cpu", .threads = 1, .replicas = 2 };
	struct backend b;
	struct error err;

	(void)state;
	assert_int_equal(backend_open(&b, &options, &err), FAIL);
	assert_non_null(strstr(err.text, "only a GPU can train replicas"));
}

int main(void)
{
	const struct CMUnitTest everywhere[] = {
		cmocka_unit_test(test_cpu_refuses_replicas),
	};
	const struct CMUnitTest on_gpu[] = {
		cmocka_unit_test(test_cpu_refuses_replicas),
		cmocka_unit_test(test_memory_of_replicas),
		cmocka_unit_test(test_too_many_replicas_are_refused),
		cmocka_unit_test(test_nonfinite_is_found_by_replica),
		cmocka_unit_test(test_float32),
		cmocka_unit_test(test_float64),
		cmocka_unit_test(test_bfloat16),
	};

	if (strcmp(backend_name_for_tests(), "cpu") == 0)
		return cmocka_run_group_tests(everywhere, NULL, NULL);
	return cmocka_run_group_tests(on_gpu, NULL, NULL);
}
