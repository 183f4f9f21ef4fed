/*
 * Pruning: the choice against a sort of all scores, ties, 2of4, the schedule, and what is refused.
 * On every device, the weights of a small model are pruned by each method, and the audit sees what
 * goes wrong.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/backend.h"
#include "core/train/prune.h"
#include "core/util/config.h"
#include "core/util/rng.h"
#include "core/util/test.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---------------------------------------------------------------- the choice */

static const struct prune_matrices matrices[] = { { 1, 8, 5 }, { 3, 4, 7 }, { 1, 16, 16 } };

enum { FIRST = 40, SECOND = 84, THIRD = 256, ALL = FIRST + SECOND + THIRD };

struct ranked {
	double score;
	int index;
};

static int compare(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->score != y->score)
		return x->score < y->score ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/* The lowest by sorting; `left_out`: not to be chosen, or NULL. */
static void sort_and_mark(const double *scores, int n, double share, const bool *left_out,
			  bool *marked)
{
	const int k = (int)floor(share * n + 0.5);
	struct ranked list[ALL];
	int found = 0;

	for (int i = 0; i < n; i++)
		list[i] = (struct ranked){ scores[i], i };
	qsort(list, (size_t)n, sizeof(*list), compare);
	for (int i = 0; i < n; i++)
		marked[i] = false;
	for (int i = 0; i < n && found < k; i++)
		if (!left_out || !left_out[list[i].index]) {
			marked[list[i].index] = true;
			found++;
		}
}

/* Two of every four neighbouring inputs of an output are left out: those that a sort puts last. */
static void find_kept(const struct prune_matrices *m, const double *scores, bool *kept)
{
	for (int64_t row = 0; row < m->n * m->rows; row += 4)
		for (int64_t column = 0; column < m->columns; column++) {
			struct ranked four[4];

			for (int i = 0; i < 4; i++) {
				const int at = (int)((row + i) * m->columns + column);

				four[i] = (struct ranked){ scores[at], at };
			}
			qsort(four, 4, sizeof(*four), compare);
			for (int i = 0; i < 4; i++)
				kept[four[i].index] = i >= 2;
		}
}

static void mark_by_hand(enum prune_scope scope, double share, const double *scores, bool *marked)
{
	static const int sizes[] = { FIRST, SECOND, THIRD };
	bool kept[ALL];

	if (scope == PRUNE_GLOBAL) {
		sort_and_mark(scores, ALL, share, NULL, marked);
		return;
	}
	for (int i = 0, at = 0; i < COUNT(sizes); at += sizes[i++]) {
		if (scope == PRUNE_2OF4)
			find_kept(&matrices[i], scores + at, kept);
		sort_and_mark(scores + at, sizes[i], share, scope == PRUNE_2OF4 ? kept : NULL,
			      marked + at);
	}
}

/* Few different values, so that there are many ties; both zeros, and both signs. */
static void draw(double *scores, int seed)
{
	struct rng_key key = rng_key((uint64_t)seed, "scores");

	for (int i = 0; i < ALL; i++) {
		const double x = floor(12 * rng_uniform(key, (uint64_t)i)) - 6;

		scores[i] = seed % 2 ? rng_normal(key, (uint64_t)i) : x == 0 && i % 2 ? -0.0 : x;
	}
}

static void check_choice(enum prune_scope scope, double share, double *scores)
{
	bool expected[ALL];

	mark_by_hand(scope, share, scores, expected);
	prune_mark(scope, share, matrices, COUNT(matrices), scores);
	for (int i = 0; i < ALL; i++)
		if ((scores[i] == -INFINITY) != expected[i])
			fail_msg("scope %d, share %g: weight %d is %spruned", (int)scope, share, i,
				 expected[i] ? "not " : "");
}

static void test_choice(void **state)
{
	static const double shares[] = { 0, 0.01, 0.3, 0.5, 0.77, 0.999 };
	double scores[ALL];

	(void)state;
	for (int scope = PRUNE_GLOBAL; scope <= PRUNE_2OF4; scope++)
		for (int i = 0; i < COUNT(shares); i++)
			for (int seed = 0; seed < 8; seed++) {
				if (scope == PRUNE_2OF4 && shares[i] > 0.5)
					continue;
				draw(scores, seed);
				check_choice((enum prune_scope)scope, shares[i], scores);
			}
}

/* Scores change between two choices, and what was pruned stays pruned. */
static void test_pruned_stays_pruned(void **state)
{
	double scores[ALL], later[ALL];

	(void)state;
	for (int scope = PRUNE_GLOBAL; scope <= PRUNE_2OF4; scope++) {
		draw(scores, 1);
		check_choice((enum prune_scope)scope, 0.2, scores);
		draw(later, 3);
		for (int i = 0; i < ALL; i++)
			later[i] = scores[i] == -INFINITY ? scores[i] : later[i];
		check_choice((enum prune_scope)scope, 0.5, later);
		for (int i = 0; i < ALL; i++)
			assert_true(scores[i] != -INFINITY || later[i] == -INFINITY);
	}
}

static void test_ties(void **state)
{
	double scores[ALL] = { 0 };

	(void)state;
	prune_mark(PRUNE_GLOBAL, 0.25, matrices, COUNT(matrices), scores);
	for (int i = 0; i < ALL; i++)
		assert_int_equal(scores[i] == -INFINITY, i < ALL / 4);
}

static void test_two_of_four(void **state)
{
	double scores[ALL];

	(void)state;
	draw(scores, 2);
	prune_mark(PRUNE_2OF4, 0.5, matrices, 1, scores);
	for (int row = 0; row < 8; row += 4)
		for (int column = 0; column < 5; column++) {
			int pruned = 0;

			for (int i = 0; i < 4; i++)
				pruned += scores[(row + i) * 5 + column] == -INFINITY;
			assert_int_equal(pruned, 2);
		}
}

/* -------------------------------------------------------------- the schedule */

static void test_schedule(void **state)
{
	const struct prune_options o = { PRUNE_MAGNITUDE, PRUNE_TENSOR, .sparsity = 0.9,
					 .first = 20,	  .last = 70,	.interval = 15 };
	const struct prune_options at_once = { PRUNE_MAGNITUDE, PRUNE_TENSOR, .sparsity = 0.9,
					       .first = 20,	.last = 20,   .interval = 15 };
	const struct prune_options none = { .sparsity = 0.9, .interval = 1 };
	static const struct {
		int t;
		double left; /* of the way */
	} expected[] = { { 1, 1 },    { 20, 1 },   { 34, 1 },	{ 35, 0.7 }, { 49, 0.7 },
			 { 50, 0.4 }, { 65, 0.1 }, { 69, 0.1 }, { 70, 0 },   { 99, 0 } };

	(void)state;
	for (int i = 0; i < COUNT(expected); i++)
		assert_true(fabs(prune_share(&o, expected[i].t) -
				 0.9 * (1 - pow(expected[i].left, 3))) < 1e-12);
	for (int t = 1; t < 100; t++) {
		assert_int_equal(prune_due(&o, t), t == 35 || t == 50 || t == 65 || t == 70);
		assert_int_equal(prune_due(&at_once, t), t == 20);
		assert_true(prune_share(&at_once, t) == (t < 20 ? 0 : 0.9));
		assert_true(!prune_due(&none, t) && prune_share(&none, t) == 0);
	}
}

#define CONFIGURED                                                                      \
	"CONFIG_PRUNE=\"movement\"\nCONFIG_PRUNE_SCOPE=\"%s\"\nCONFIG_PRUNE_START=25\n" \
	"CONFIG_PRUNE_END=80\nCONFIG_PRUNE_INTERVAL=7\nCONFIG_GPT2_MAX_ITERS=30\n"      \
	"CONFIG_PRUNE_SPARSITY=\"0.7\"\n"

static struct prune_options configured(const char *scope)
{
	struct prune_options o;
	struct config *c;
	struct error err;
	char text[400];

	snprintf(text, sizeof(text), CONFIGURED, scope);
	must(config_parse(&c, text, &err), &err);
	o = prune_configured(c);
	must(config_check(c, &err), &err);
	config_free(c);
	return o;
}

static void test_configuration(void **state)
{
	const struct prune_options global = configured("global"), fours = configured("2of4");

	(void)state;
	assert_true(global.method == PRUNE_MOVEMENT && global.scope == PRUNE_GLOBAL);
	assert_true(global.sparsity == 0.7 && fours.sparsity == 0.5);
	assert_true(global.first == 7 && global.last == 24 && global.interval == 7);
}

/* ----------------------------------------------------------- a model on a device */

enum { LAYERLESS = 3 }; /* parameters that may not be pruned come first */

static const struct {
	const char *name;
	int ndim;
	int64_t dim[3];
	bool embedding;
	int layer;
} shapes[] = {
	{ "table", 2, { 9, 8 }, true, 0 },  { "head", 2, { 8, 8 }, false, -1 },
	{ "bias", 1, { 8 }, false, 0 },	    { "wide", 2, { 8, 24 }, false, 0 },
	{ "tall", 2, { 28, 8 }, false, 1 }, { "slices", 3, { 3, 8, 4 }, false, 1 },
};

struct fixture {
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
	struct optim_options optim;
	struct error err;
};

static void start(struct fixture *f, enum dtype type, enum optim_kind kind, bool movement)
{
	int index;

	f->backend = backend_for_tests(FLOAT32, 2);
	f->optim = (struct optim_options){
		.kind = kind,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
		.sgd.momentum = 0.9,
		.spam = { .theta = 20, .spike = 2 },
		.muon = { .lr_ratio = 1, .momentum = 0.95, .eps = 1e-7, .steps = 5 },
		.prune = { .on = true, .movement = movement },
	};
	must(params_create(&f->params, type, &f->err), &f->err);
	for (int i = 0; i < COUNT(shapes); i++) {
		const struct param_init init = { .kind = INIT_NORMAL,
						 .value = 1,
						 .embedding = shapes[i].embedding };

		must(params_name(f->params, shapes[i].name, &init, shapes[i].ndim, shapes[i].dim,
				 &index, &f->err),
		     &f->err);
		f->params->list[index].origin.layer = shapes[i].layer;
	}
	must(params_allocate(f->params, &f->backend, true, &f->err), &f->err);
	must(params_initialise(f->params, 1, &f->err), &f->err);
	must(optimizer_create(&f->optimizer, &f->optim, f->params, &f->err), &f->err);
}

static void stop(struct fixture *f)
{
	optimizer_destroy(f->optimizer);
	params_destroy(f->params);
}

/* A block of all parameters, as doubles; the caller frees it. */
static double *read_block(const struct fixture *f, const void *block, int64_t n)
{
	const size_t size = dtype_size(f->params->type);
	double *values = malloc((size_t)n * sizeof(*values));
	void *raw = malloc((size_t)n * size);

	assert_true(values && raw);
	f->backend.download(&f->backend, raw, block, (size_t)n * size);
	for (int64_t i = 0; i < n; i++)
		values[i] = size == 8 ? ((double *)raw)[i] : (double)((float *)raw)[i];
	free(raw);
	return values;
}

static double *read_state(const struct fixture *f, int param, const char *name)
{
	char wanted[80];
	int n;
	const struct optim_tensor *t = optimizer_tensors(f->optimizer, &n);

	snprintf(wanted, sizeof(wanted), "optim.%s.%s", name, shapes[param].name);
	for (int i = 0; i < n; i++)
		if (strcmp(t[i].name, wanted) == 0)
			return read_block(f, t[i].data, t[i].param->count);
	return NULL;
}

static void update(struct fixture *f, int64_t t)
{
	const int64_t n = f->params->total;
	const size_t size = dtype_size(f->params->type);
	struct rng_key key = rng_subkey(rng_key(5, "gradient"), (uint64_t)t);
	struct optim_report report;
	char *raw = calloc((size_t)n, size);

	assert_non_null(raw);
	for (int p = 0; p < f->params->n; p++)
		for (int64_t i = 0; i < f->params->list[p].count; i++) {
			const int64_t at = f->params->list[p].offset + i;

			if (size == 8)
				((double *)(void *)raw)[at] = rng_normal(key, (uint64_t)at);
			else
				((float *)(void *)raw)[at] = (float)rng_normal(key, (uint64_t)at);
		}
	f->backend.upload(&f->backend, f->params->grad, raw, (size_t)n * size);
	free(raw);
	optimizer_update(f->optimizer, t, 0.01, &report);
	assert_true(report.finite);
}

/* By the values on the device, without the module that is tested. */
static double score(const struct fixture *f, enum prune_method method, int param, int64_t i)
{
	double *w = read_block(f, param_data(f->params, param), f->params->list[param].count);
	double *state = read_state(f, param, method == PRUNE_MOVEMENT ? "movement" : "v");
	const double found = method == PRUNE_MAGNITUDE	? fabs(w[i])
			     : method == PRUNE_MOVEMENT ? state[i]
							: w[i] * w[i] * state[i];

	free(w);
	free(state);
	return found;
}

/* Three updates, a choice by tensor, and two more updates. */
static void check_method(enum dtype type, enum optim_kind kind, enum prune_method method)
{
	const struct prune_options o = { method, PRUNE_TENSOR, 0.7, 0, 4, 1 };
	struct fixture f = { .params = NULL };
	bool expected[COUNT(shapes)][ALL];
	double scores[ALL], share;

	start(&f, type, kind, method == PRUNE_MOVEMENT);
	must(prune_check(&o, &f.optim, f.params, &f.err), &f.err);
	for (int t = 1; t <= 3; t++)
		update(&f, t);
	for (int p = LAYERLESS; p < COUNT(shapes); p++) {
		for (int64_t i = 0; i < f.params->list[p].count; i++)
			scores[i] = score(&f, method, p, i);
		sort_and_mark(scores, (int)f.params->list[p].count, 0.7, NULL, expected[p]);
	}
	must(prune_choose(&o, 4, f.params, f.optimizer, NULL, &f.err), &f.err);
	for (int t = 4; t <= 5; t++)
		update(&f, t);
	for (int p = 0; p < COUNT(shapes); p++) {
		double *w = read_block(&f, param_data(f.params, p), f.params->list[p].count);

		for (int64_t i = 0; i < f.params->list[p].count; i++) {
			const bool pruned = p >= LAYERLESS && expected[p][i];

			if (pruned ? w[i] != 0 || signbit(w[i]) : w[i] == 0)
				fail_msg("method %d, %s: weight %d is %g", (int)method,
					 shapes[p].name, (int)i, w[i]);
		}
		free(w);
	}
	must(prune_measure(f.params, &share, &f.err), &f.err);
	/* 134 of 192, 157 of 224, 67 of 96 */
	assert_true(share == 358.0 / 512);
	stop(&f);
}

static void test_methods(void **state)
{
	static const enum dtype types[] = { F32, F64 };

	(void)state;
	for (int i = 0; i < COUNT(types); i++)
		for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
			check_method(types[i], (enum optim_kind)kind, PRUNE_MAGNITUDE);
			check_method(types[i], (enum optim_kind)kind, PRUNE_MOVEMENT);
			if (kind == OPTIM_ADAMW || kind == OPTIM_ADAMWSPAM)
				check_method(types[i], (enum optim_kind)kind, PRUNE_SECOND_MOMENT);
		}
}

/* Minus the sum of weight times gradient: against the weights before each update. */
static void test_movement(void **state)
{
	struct fixture f = { .params = NULL };
	double sum[192] = { 0 }, *got;
	const int wide = LAYERLESS;

	(void)state;
	start(&f, F64, OPTIM_ADAMW, true);
	for (int t = 1; t <= 4; t++) {
		struct rng_key key = rng_subkey(rng_key(5, "gradient"), (uint64_t)t);
		double *w = read_block(&f, param_data(f.params, wide), COUNT(sum));

		for (int i = 0; i < COUNT(sum); i++)
			sum[i] -=
				w[i] * rng_normal(key, (uint64_t)(f.params->list[wide].offset + i));
		free(w);
		update(&f, t);
	}
	got = read_state(&f, wide, "movement");
	for (int i = 0; i < COUNT(sum); i++)
		assert_true(fabs(got[i] - sum[i]) < 1e-14);
	free(got);
	stop(&f);
}

/* State is kept for what may be pruned alone, and without pruning there is none. */
static void test_state(void **state)
{
	struct fixture f = { .params = NULL };

	(void)state;
	start(&f, F32, OPTIM_SGD, true);
	for (int p = 0; p < COUNT(shapes); p++) {
		double *pruned = read_state(&f, p, "pruned"), *v = read_state(&f, p, "v");

		assert_int_equal(pruned != NULL, p >= LAYERLESS);
		assert_null(v);
		free(pruned);
	}
	f.optim.prune.on = f.optim.prune.movement = false;
	assert_int_equal(optim_states(&f.optim, &f.params->list[LAYERLESS], NULL), 1);
	stop(&f);
}

static void refuse(struct fixture *f, enum prune_method method, enum prune_scope scope,
		   const char *words)
{
	const struct prune_options o = { method, scope, 0.5, 0, 4, 1 };

	assert_int_equal(prune_check(&o, &f->optim, f->params, &f->err), FAIL);
	if (!strstr(f->err.text, words))
		fail_msg("%s", f->err.text);
}

static void test_refusals(void **state)
{
	struct fixture f = { .params = NULL };

	(void)state;
	start(&f, F32, OPTIM_SGD, false);
	refuse(&f, PRUNE_SECOND_MOMENT, PRUNE_TENSOR,
	       "CONFIG_PRUNE=second_moment: CONFIG_OPTIMIZER=sgd has no second moment of wide");
	f.optim.kind = OPTIM_MUON;
	refuse(&f, PRUNE_SECOND_MOMENT, PRUNE_TENSOR, "CONFIG_OPTIMIZER=muon has no second");
	f.params->list[LAYERLESS + 1].dim[0] = 26;
	refuse(&f, PRUNE_MAGNITUDE, PRUNE_2OF4,
	       "CONFIG_PRUNE_SCOPE=2of4: tall has 26 inputs, a number that 4 does not divide");
	stop(&f);
}

/* 72 + 64 + 8 weights are never pruned, 512 may be. */
static void test_bytes(void **state)
{
	const struct prune_options tensor = { PRUNE_MAGNITUDE, PRUNE_TENSOR, 0.75, 0, 4, 1 };
	const struct prune_options fours = { PRUNE_MAGNITUDE, PRUNE_2OF4, 0.5, 0, 4, 1 };
	struct fixture f = { .params = NULL };

	(void)state;
	start(&f, F32, OPTIM_SGD, false);
	assert_true(prune_bytes(&tensor, f.params, 0) == 4 * 656);
	assert_true(prune_bytes(&tensor, f.params, 0.75) == 4 * (144 + 128) + 512 / 8);
	assert_true(prune_bytes(&fours, f.params, 0.5) == 4 * (144 + 256) + 256 * 2 / 8);
	assert_true(prune_bytes(&fours, f.params, 0.25) == 4 * (144 + 384) + 512 / 8);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),	 cmocka_unit_test(test_pruned_stays_pruned),
		cmocka_unit_test(test_ties),	 cmocka_unit_test(test_two_of_four),
		cmocka_unit_test(test_schedule), cmocka_unit_test(test_configuration),
		cmocka_unit_test(test_methods),	 cmocka_unit_test(test_movement),
		cmocka_unit_test(test_state),	 cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_bytes),
	};

	return cmocka_run_group_tests_name("prune", tests, NULL, NULL);
}
