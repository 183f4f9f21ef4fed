/*
 * Tests of the optimizers and of the schedule: against the reference (core/optim/optim_vectors.h),
 * against sequences worked out by hand, and against themselves after a restart.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/backend.h"
#include "core/util/config.h"
#include "core/optim/optim.h"
#include "core/optim/kernels.h"
#include "core/optim/optim_vectors.h"
#include "core/train/schedule.h"
#include "core/util/test.h"

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))
#define UPDATES 50

/* Worst of all values after 50 updates, gcc 12 and clang 14 on aarch64: 1e-14 and 7.5e-7. */
#define TOLERANCE_F64 1e-13
#define TOLERANCE_F32 3e-6

static void assert_near(double value, double expected, double tolerance)
{
	if (!(fabs(value - expected) <= tolerance))
		fail_msg("%.17g is not %.17g to within %g", value, expected, tolerance);
}

/* --------------------------------------------------------------- one run */

struct shape {
	const char *name;
	int ndim;
	int64_t dim[3];
	bool embedding;
};

/* The parameters of tools/reference/optim_vectors.py. */
static const struct shape shapes[] = {
	{ "wte.weight", 2, { 4, 3 }, true },
	{ "wide.weight", 2, { 3, 5 }, false },
	{ "bias", 1, { 5 }, false },
	{ "tall.weight", 2, { 5, 2 }, false },
	{ "slices.weight", 3, { 2, 3, 2 }, false },
	{ "scale", 0, { 0 }, false },
};

struct fixture {
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
};

static const struct optim_options defaults = {
	.beta1 = 0.9,
	.beta2 = 0.95,
	.eps = 1e-8,
	.weight_decay = 0.1,
	.clip = 1,
	.sgd = { .momentum = 0.9 },
	.spam = { .theta = 20, .spike = 2, .interval = 15, .warmup = 10, .clip_elements = true },
	.muon = { .lr_ratio = 0.5, .momentum = 0.95, .eps = 1e-7, .nesterov = true, .steps = 5 },
};

static const struct schedule schedule = { .lr = 0.05, .min_lr = 0.01, .warmup = 5, .total = 45 };

static void start(struct fixture *f, enum dtype type, const struct optim_options *options,
		  const struct shape *list, int n)
{
	const struct param_init zero = { .kind = INIT_CONSTANT };
	struct error err;
	int index;

	f->backend = backend_for_tests(FLOAT32, 2);
	must(params_create(&f->params, type, &err), &err);
	for (int i = 0; i < n; i++) {
		struct param_init init = zero;

		init.embedding = list[i].embedding;
		must(params_name(f->params, list[i].name, &init, list[i].ndim, list[i].dim, &index,
				 &err),
		     &err);
	}
	must(params_allocate(f->params, &f->backend, true, &err), &err);
	must(optimizer_create(&f->optimizer, options, f->params, &err), &err);
}

static void stop(struct fixture *f)
{
	optimizer_destroy(f->optimizer);
	params_destroy(f->params);
}

static void put(const struct params *p, void *block, int64_t at, double value)
{
	const float narrow = (float)value;

	if (p->type == F64)
		p->backend->upload(p->backend, (double *)block + at, &value, sizeof(value));
	else
		p->backend->upload(p->backend, (float *)block + at, &narrow, sizeof(narrow));
}

static double get(const struct params *p, const void *block, int64_t at)
{
	double value;
	float narrow;

	if (p->type == F64) {
		p->backend->download(p->backend, &value, (const double *)block + at, sizeof(value));
		return value;
	}
	p->backend->download(p->backend, &narrow, (const float *)block + at, sizeof(narrow));
	return (double)narrow;
}

static double gradient(int64_t i, int t)
{
	const double size = t == 20 || t == 35 ? 3 : 0.3;

	return size * (sin(0.7 * (double)i + 1.3 * t) + 0.5 * cos(0.3 * (double)i * t));
}

static void set_parameters(struct fixture *f)
{
	const struct params *p = f->params;
	int64_t i = 0;

	for (int k = 0; k < p->n; k++)
		for (int64_t j = 0; j < p->list[k].count; j++, i++)
			put(p, p->data, p->list[k].offset + j, sin((double)i + 1));
}

static void set_gradients(struct fixture *f, int t)
{
	const struct params *p = f->params;
	int64_t i = 0;

	for (int k = 0; k < p->n; k++)
		for (int64_t j = 0; j < p->list[k].count; j++, i++)
			put(p, p->grad, p->list[k].offset + j,
			    gradient(i, t) * (t == 28 && j == 0 ? 30 : 1));
}

/* Updates first .. last; returns the sum of the norms. */
static double run(struct fixture *f, int first, int last)
{
	struct optim_report report;
	double norms = 0;

	for (int t = first; t <= last; t++) {
		set_gradients(f, t);
		optimizer_update(f->optimizer, t, schedule_rate(&schedule, t), &report);
		assert_true(report.finite);
		assert_int_equal(report.clipped, report.norm > 1);
		norms += report.norm;
	}
	return norms;
}

/* --------------------------------------------------------------- reference */

static void follow(const struct optim_options *options, enum dtype type,
		   const struct vector *expected, double tolerance)
{
	struct fixture f;
	int64_t i = 0;

	start(&f, type, options, shapes, COUNT(shapes));
	set_parameters(&f);
	assert_near(run(&f, 1, UPDATES), expected->norms, tolerance * expected->norms);
	for (int k = 0; k < f.params->n; k++)
		for (int64_t j = 0; j < f.params->list[k].count; j++, i++) {
			double value = get(f.params, f.params->data, f.params->list[k].offset + j);

			if (fabs(value - expected->values[i]) > tolerance)
				fail_msg("%s %s[%lld]: %.17g, reference %.17g",
					 optim_names[options->kind], f.params->list[k].name,
					 (long long)j, value, expected->values[i]);
		}
	assert_int_equal(i, VECTOR_COUNT);
	assert_int_equal(optimizer_scalars(f.optimizer).updates, UPDATES);
	assert_int_equal(optimizer_scalars(f.optimizer).spikes, expected->spikes);
	assert_int_equal(optimizer_scalars(f.optimizer).resets, expected->resets);
	stop(&f);
}

static void test_follows_the_reference(void **state)
{
	static const struct vector *const vectors[] = {
		[OPTIM_ADAMW] = &adamw_vector,
		[OPTIM_ADAMWSPAM] = &adamwspam_vector,
		[OPTIM_SGD] = &sgd_vector,
		[OPTIM_MUON] = &muon_vector,
	};
	struct optim_options options = defaults;

	(void)state;
	for (int kind = 0; kind < COUNT(vectors); kind++) {
		options.kind = (enum optim_kind)kind;
		follow(&options, F64, vectors[kind], TOLERANCE_F64);
		follow(&options, F32, vectors[kind], TOLERANCE_F32);
	}
}

static void test_decay_reaches_all_when_asked(void **state)
{
	struct optim_options options = defaults;

	(void)state;
	options.decay_all = true;
	follow(&options, F64, &adamw_decay_all_vector, TOLERANCE_F64);
}

static void test_muon_without_nesterov(void **state)
{
	struct optim_options options = defaults;

	(void)state;
	options.kind = OPTIM_MUON;
	options.muon.nesterov = false;
	follow(&options, F64, &muon_plain_vector, TOLERANCE_F64);
}

/* --------------------------------------------------------------- by hand */

static const struct shape one_number[] = { { "x", 1, { 1 }, false } };

static struct optim_report update_number(struct fixture *f, int t, double g, double lr)
{
	struct optim_report report;

	put(f->params, f->params->grad, 0, g);
	optimizer_update(f->optimizer, t, lr, &report);
	return report;
}

/*
 * A constant gradient makes every AdamW step -lr g/|g|, whatever the age; so the steps show
 * the warm-up alone.  Interval and warm-up 4: the factors (1 - cos(pi k/4))/2 for k = 1, 2, 3,
 * then one full step, then the next reset.
 */
static void test_spam_warms_up_after_a_reset(void **state)
{
	static const double factors[] = { 1,   1,
					  1,   0.14644660940672624,
					  0.5, 0.85355339059327376,
					  1,   0.14644660940672624,
					  0.5, 0.85355339059327376,
					  1,   0.14644660940672624 };
	struct optim_options options = defaults;
	struct fixture f;
	double before = 0;

	(void)state;
	options.kind = OPTIM_ADAMWSPAM;
	options.eps = 0;
	options.spam.interval = options.spam.warmup = 4;
	start(&f, F64, &options, one_number, 1);
	for (int t = 1; t <= COUNT(factors); t++) {
		struct optim_report report = update_number(&f, t, 0.5, 0.01);
		double now = get(f.params, f.params->data, 0);

		assert_int_equal(report.reset, t % 4 == 0);
		assert_false(report.spike);
		assert_near(before - now, 0.01 * factors[t - 1], 1e-15);
		before = now;
	}
	assert_int_equal(optimizer_scalars(f.optimizer).resets, 3);
	assert_int_equal(optimizer_scalars(f.optimizer).reset_at, 11);
	stop(&f);
}

/* Warm-up never begins with less than a thousandth of the rate: (1 - cos(pi/1000))/2 is 2.5e-6. */
static void test_spam_warm_up_has_a_floor(void **state)
{
	struct optim_options options = defaults;
	struct fixture f;

	(void)state;
	options.kind = OPTIM_ADAMWSPAM;
	options.eps = 0;
	options.spam.interval = 1;
	options.spam.warmup = 1000;
	start(&f, F64, &options, one_number, 1);
	assert_true(update_number(&f, 1, 0.5, 0.01).reset);
	assert_near(get(f.params, f.params->data, 0), -1e-5, 1e-18);
	stop(&f);
}

/*
 * Norms 1 and 1.2 alternate: mean 1.1, standard deviation 0.1.  The eleventh is a spike if above
 * 1.3; then m is halved and v multiplied by 0.9 first.  v is the largest so far all the time.
 */
static void check_spike(double last, bool expected)
{
	const double b1 = 0.9, b2 = 0.95, lr = 0.01;
	struct optim_options options = defaults;
	double m = 0, v = 0, before;
	struct fixture f;

	options.kind = OPTIM_ADAMWSPAM;
	options.clip = 0;
	options.spam.clip_elements = false;
	options.spam.interval = 0;
	start(&f, F64, &options, one_number, 1);
	for (int t = 1; t <= 10; t++) {
		const double g = t % 2 ? 1 : 1.2;

		assert_false(update_number(&f, t, g, lr).spike);
		m = b1 * m + (1 - b1) * g;
		v = b2 * v + (1 - b2) * g * g;
	}
	before = get(f.params, f.params->data, 0);
	assert_int_equal(update_number(&f, 11, last, lr).spike, expected);
	m = b1 * (expected ? 0.5 : 1) * m + (1 - b1) * last;
	v = b2 * (expected ? 0.9 : 1) * v + (1 - b2) * last * last;
	assert_near(before - get(f.params, f.params->data, 0),
		    lr * m / (1 - pow(b1, 11)) / (sqrt(v / (1 - pow(b2, 11))) + options.eps),
		    1e-15);
	assert_int_equal(optimizer_scalars(f.optimizer).spikes, expected);
	stop(&f);
}

static void test_spam_damps_the_moments_on_a_spike(void **state)
{
	(void)state;
	check_spike(1.29, false);
	check_spike(3, true);
}

/* Equal norms have no deviation, so no norm is a spike. */
static void test_spam_needs_a_deviation(void **state)
{
	struct optim_options options = defaults;
	struct optim_scalars s;
	struct fixture f;

	(void)state;
	options.kind = OPTIM_ADAMWSPAM;
	options.spam.clip_elements = false;
	options.spam.interval = 0;
	start(&f, F64, &options, one_number, 1);
	for (int t = 1; t <= 150; t++)
		assert_false(update_number(&f, t, 0.5, 0.01).spike);
	assert_int_equal(optimizer_scalars(f.optimizer).norm_count, OPTIM_NORMS);
	assert_false(update_number(&f, 151, 100, 0.01).spike);
	s = optimizer_scalars(f.optimizer);
	assert_int_equal(s.norm_count, OPTIM_NORMS);
	assert_true(s.norms[OPTIM_NORMS - 1] == 100 && s.norms[0] == 0.5);
	assert_true(update_number(&f, 152, 100, 0.01).spike);
	stop(&f);
}

/* v = 0.05 after g = 1: an entry of 100 becomes sqrt(20 * 0.05) = 1, of either sign. */
static void test_spam_clips_entries(void **state)
{
	static const double entries[] = { 100, -100, 0.5 }, clipped[] = { 1, -1, 0.5 };
	struct optim_options options = defaults;

	(void)state;
	options.kind = OPTIM_ADAMWSPAM;
	options.clip = 0;
	for (int i = 0; i < COUNT(entries); i++) {
		struct optim_report report;
		struct fixture f;

		start(&f, F64, &options, one_number, 1);
		update_number(&f, 1, 1, 0.01);
		report = update_number(&f, 2, entries[i], 0.01);
		assert_near(get(f.params, f.params->grad, 0), clipped[i], 1e-10);
		assert_near(report.norm, fabs(clipped[i]), 1e-10);
		stop(&f);
	}
}

/* Clipped by norm 2 to 1, then one SGD step: half the gradient, times the rate; not again. */
static void test_clips_once(void **state)
{
	static const struct shape two[] = { { "a", 1, { 1 }, false }, { "b", 1, { 1 }, false } };
	struct optim_options options = defaults;
	struct optim_report report;
	struct fixture f;
	int64_t b;

	(void)state;
	options.kind = OPTIM_SGD;
	start(&f, F64, &options, two, 2);
	b = f.params->list[1].offset;
	put(f.params, f.params->grad, 0, 1.2);
	put(f.params, f.params->grad, b, -1.6);
	optimizer_update(f.optimizer, 1, 0.1, &report);
	assert_near(report.norm, 2, 1e-15);
	assert_true(report.clipped);
	assert_near(get(f.params, f.params->data, 0), -0.06, 1e-15);
	assert_near(get(f.params, f.params->data, b), 0.08, 1e-15);
	stop(&f);
}

/* Decay alone: with no gradient a matrix shrinks by lr * decay, the rest does not move. */
static void test_decay_reaches_matrices_only(void **state)
{
	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		struct optim_options options = defaults;
		struct optim_report report;
		struct fixture f;

		options.kind = (enum optim_kind)kind;
		options.muon.lr_ratio = 1;
		start(&f, F64, &options, shapes, COUNT(shapes));
		for (int64_t i = 0; i < f.params->total; i++)
			put(f.params, f.params->data, i, 1);
		optimizer_update(f.optimizer, 1, 0.5, &report);
		assert_true(report.finite && report.norm == 0 && !report.clipped);
		for (int k = 0; k < f.params->n; k++)
			assert_near(get(f.params, f.params->data, f.params->list[k].offset),
				    f.params->list[k].role == PARAM_MATRIX ? 0.95 : 1, 1e-15);
		stop(&f);
	}
}

/* Rates of the two adjustments: 6 x 2 moves sqrt(3), or 0.2 sqrt(6) times what 2 x 2 would. */
/* 6 matrices of 12 MB: more than a GPU takes at a time. */
#define LONG_ROW 1500000
static const struct shape long_rows[] = {
	{ "a", 2, { 2, LONG_ROW }, false }, { "b", 3, { 3, 2, LONG_ROW }, false },
	{ "scale", 0, { 0 }, false },	    { "c", 2, { 2, LONG_ROW }, false },
	{ "d", 2, { 2, LONG_ROW }, false },
};
static const struct shape long_row[] = { { "a", 2, { 2, LONG_ROW }, false } };

/* Each matrix has another gradient. */
static void set_long_gradient(const struct params *p, int64_t offset, int matrix, float *room)
{
	for (int64_t i = 0; i < 2 * LONG_ROW; i++)
		room[i] = (float)((i * (2 * matrix + 3) + matrix) % 1009) / 1009 - 0.4F;
	p->backend->upload(p->backend, (float *)p->grad + offset, room,
			   2 * LONG_ROW * sizeof(*room));
}

static void update_long_rows(struct fixture *f)
{
	struct optim_report report;

	for (int t = 1; t <= 2; t++) {
		optimizer_update(f->optimizer, t, 100, &report);
		assert_true(report.finite);
	}
}

/*
 * Each of many matrices moves as if it were alone, but for rounding: a GPU may add up the products
 * of a batch in another order.
 */
static void test_muon_treats_each_matrix_alone(void **state)
{
	static const int64_t elements = 2 * LONG_ROW;
	const size_t bytes = (size_t)elements * sizeof(float);
	float *together = malloc(bytes), *alone = malloc(bytes);
	struct optim_options options = defaults;
	struct fixture all, one;
	int64_t offsets[6];
	int n = 0;

	(void)state;
	options.kind = OPTIM_MUON;
	options.clip = options.weight_decay = 0;
	start(&all, F32, &options, long_rows, COUNT(long_rows));
	for (int i = 0; i < all.params->n; i++)
		for (int64_t at = 0; at + elements <= all.params->list[i].count; at += elements)
			offsets[n++] = all.params->list[i].offset + at;
	assert_int_equal(n, 6);
	for (int i = 0; i < n; i++)
		set_long_gradient(all.params, offsets[i], i, together);
	update_long_rows(&all);
	for (int i = 0; i < n; i++) {
		start(&one, F32, &options, long_row, 1);
		set_long_gradient(one.params, 0, i, alone);
		update_long_rows(&one);
		all.backend.download(&all.backend, together, (float *)all.params->data + offsets[i],
				     bytes);
		one.backend.download(&one.backend, alone, one.params->data, bytes);
		for (int64_t k = 0; k < elements; k++)
			if (!(fabsf(together[k] - alone[k]) <= 1e-4F))
				fail_msg("matrix %d [%lld]: %.9g, alone %.9g", i, (long long)k,
					 (double)together[k], (double)alone[k]);
		stop(&one);
	}
	stop(&all);
	free(together);
	free(alone);
}

static void test_muon_adjusts_the_rate(void **state)
{
	static const struct shape tall[] = { { "w", 2, { 6, 2 }, false } };
	double moved[2];

	(void)state;
	for (int adjust = 0; adjust < 2; adjust++) {
		struct optim_options options = defaults;
		struct fixture f;

		options.kind = OPTIM_MUON;
		options.muon.adjust = (enum muon_adjust)adjust;
		start(&f, F64, &options, tall, 1);
		run(&f, 1, 1);
		moved[adjust] = get(f.params, f.params->data, 0);
		stop(&f);
	}
	assert_true(fabs(moved[0]) > 1e-5);
	assert_near(moved[1] / moved[0], 0.2 * sqrt(6) / sqrt(3), 1e-12);
}

/* --------------------------------------------------------------- robustness */

static void fill_state(const struct fixture *f, double value)
{
	const struct optim_tensor *tensors;
	int count;

	tensors = optimizer_tensors(f->optimizer, &count);
	for (int i = 0; i < count; i++)
		for (int64_t j = 0; j < tensors[i].param->count; j++)
			put(f->params, tensors[i].data, j, value);
}

static void assert_untouched(const struct fixture *f, const struct optim_scalars *scalars)
{
	const struct optim_scalars now = optimizer_scalars(f->optimizer);
	const struct optim_tensor *tensors;
	int count;

	for (int k = 0; k < f->params->n; k++)
		assert_true(get(f->params, f->params->data, f->params->list[k].offset) == 0);
	tensors = optimizer_tensors(f->optimizer, &count);
	for (int i = 0; i < count; i++)
		for (int64_t j = 0; j < tensors[i].param->count; j++)
			assert_true(get(f->params, tensors[i].data, j) == 0.25);
	assert_memory_equal(&now, scalars, sizeof(*scalars));
}

static void test_a_nonfinite_gradient_changes_nothing(void **state)
{
	static const double bad[] = { NAN, INFINITY, -INFINITY };

	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		for (int i = 0; i < COUNT(bad); i++) {
			struct optim_options options = defaults;
			struct optim_scalars before;
			struct optim_report report;
			struct fixture f;

			options.kind = (enum optim_kind)kind;
			start(&f, F32, &options, shapes, COUNT(shapes));
			fill_state(&f, 0.25);
			set_gradients(&f, 15);
			put(f.params, f.params->grad, f.params->list[3].offset + 2, bad[i]);
			before = optimizer_scalars(f.optimizer);
			optimizer_update(f.optimizer, 15, 0.1, &report); /* would be a reset, too */
			assert_false(report.finite);
			assert_untouched(&f, &before);
			stop(&f);
		}
	}
}

/* The first update that counts is the first for spam's clipping, whatever its number. */
static void test_spam_starts_after_skipped_updates(void **state)
{
	struct optim_options options = defaults;
	struct fixture f;

	(void)state;
	options.kind = OPTIM_ADAMWSPAM;
	start(&f, F64, &options, one_number, 1);
	assert_false(update_number(&f, 1, NAN, 0.01).finite);
	assert_near(update_number(&f, 2, 0.5, 0.01).norm, 0.5, 1e-15);
	stop(&f);
}

/* Updates that are issued together do what they do one by one. */
static void test_updates_can_be_read_together(void **state)
{
	struct optim_report apart[UPDATES], together[OPTIM_REPORTS], none[OPTIM_REPORTS];

	const double rate = 0.01;

	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		struct optim_options options = defaults;
		struct fixture one, all;

		options.kind = (enum optim_kind)kind;
		start(&one, F32, &options, shapes, COUNT(shapes));
		start(&all, F32, &options, shapes, COUNT(shapes));
		for (int t = 1; t <= UPDATES; t++) {
			set_gradients(&one, t);
			set_gradients(&all, t);
			optimizer_update(one.optimizer, t, rate, &apart[t - 1]);
			optimizer_ask(all.optimizer, t, &rate, NULL, 0);
		}
		assert_int_equal(optimizer_read(all.optimizer, together), UPDATES);
		assert_int_equal(optimizer_read(all.optimizer, none), 0);
		for (int i = 0; i < UPDATES; i++)
			assert_true(together[i].t == i + 1 && together[i].norm == apart[i].norm &&
				    together[i].clipped == apart[i].clipped &&
				    together[i].spike == apart[i].spike &&
				    together[i].reset == apart[i].reset);
		for (int64_t i = 0; i < all.params->total; i++)
			assert_true(get(all.params, all.params->data, i) ==
				    get(one.params, one.params->data, i));
		stop(&one);
		stop(&all);
	}
}

/* While it is off, nothing changes and nothing is reported; then it goes on as if nothing had been.
 */
static void test_updates_can_be_switched_off(void **state)
{
	struct optim_report reports[OPTIM_REPORTS];
	struct optim_options options = defaults;
	struct fixture straight, paused;
	const double rate = 0.01;

	(void)state;
	start(&straight, F32, &options, shapes, COUNT(shapes));
	start(&paused, F32, &options, shapes, COUNT(shapes));
	for (int t = 1; t <= 4; t++) {
		set_gradients(&paused, t);
		optimizer_switch(paused.optimizer, 0, t != 2 && t != 3);
		optimizer_ask(paused.optimizer, t, &rate, NULL, 0);
		if (t == 2 || t == 3)
			continue;
		set_gradients(&straight, t);
		optimizer_ask(straight.optimizer, t, &rate, NULL, 0);
	}
	assert_int_equal(optimizer_read(straight.optimizer, reports), 2);
	assert_int_equal(optimizer_read(paused.optimizer, reports), 2);
	assert_int_equal(reports[1].t, 4);
	assert_int_equal(optimizer_scalars(paused.optimizer).updates, 2);
	for (int64_t i = 0; i < straight.params->total; i++)
		assert_true(get(paused.params, paused.params->data, i) ==
			    get(straight.params, straight.params->data, i));
	stop(&straight);
	stop(&paused);
}

/* Updates 1 and 2, then one that is not finite, then two that would be: these do nothing. */
static void check_stop(enum optim_kind kind, double gradient, double loss)
{
	struct optim_report reports[OPTIM_REPORTS];
	struct optim_options options = defaults;
	struct fixture straight, stopped;
	const double rate = 0.01;
	double *losses;

	options.kind = kind;
	start(&straight, F32, &options, shapes, COUNT(shapes));
	start(&stopped, F32, &options, shapes, COUNT(shapes));
	losses = stopped.backend.alloc(&stopped.backend, 2 * sizeof(*losses));
	for (int t = 1; t <= 5; t++) {
		const double now[] = { 1, t == 3 ? loss : 2 };

		set_gradients(&stopped, t);
		if (t == 3)
			put(stopped.params, stopped.params->grad, 0, gradient);
		stopped.backend.upload(&stopped.backend, losses, now, sizeof(now));
		optimizer_ask(stopped.optimizer, t, &rate, losses, 2);
		set_gradients(&straight, t);
		if (t < 3)
			optimizer_ask(straight.optimizer, t, &rate, NULL, 0);
	}
	assert_int_equal(optimizer_read(stopped.optimizer, reports), 3);
	assert_true(reports[0].finite && reports[1].finite && !reports[2].finite);
	assert_int_equal(reports[2].t, 3);
	assert_int_equal(optimizer_scalars(stopped.optimizer).updates, 2);
	for (int64_t i = 0; i < straight.params->total; i++)
		assert_true(get(stopped.params, stopped.params->data, i) ==
			    get(straight.params, straight.params->data, i));
	optimizer_ask(stopped.optimizer, 3, &rate, NULL, 0); /* once read, it goes on */
	assert_int_equal(optimizer_read(stopped.optimizer, reports), 1);
	assert_true(reports[0].finite);
	stopped.backend.release(&stopped.backend, losses);
	stop(&straight);
	stop(&stopped);
}

static void test_a_nonfinite_update_stops_those_after_it(void **state)
{
	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		check_stop((enum optim_kind)kind, NAN, 2);
		check_stop((enum optim_kind)kind, 1, INFINITY);
	}
}

static void test_squares_are_added(void **state)
{
	static const int number[COUNT(shapes)] = { 2, 0, 0, 2, 0, 2 };
	double expected[] = { 0.5, 0.25, 0 }, *sums;
	struct error err;
	struct fixture f;

	(void)state;
	start(&f, F64, &defaults, shapes, COUNT(shapes));
	set_gradients(&f, 1);
	sums = f.backend.alloc(&f.backend, sizeof(expected));
	f.backend.upload(&f.backend, sums, expected, sizeof(expected));
	must(optim_add_squares(f.params, number, sums, &err), &err);
	for (int k = 0; k < f.params->n; k++)
		for (int64_t j = 0; j < f.params->list[k].count; j++) {
			const double g =
				get(f.params, f.params->grad, f.params->list[k].offset + j);

			expected[number[k]] += g * g;
		}
	for (int i = 0; i < 3; i++)
		assert_near(get(f.params, sums, i), expected[i], 1e-12 * expected[i]);
	f.backend.release(&f.backend, sums);
	stop(&f);
}

/* From one place of the device to another. */
static void copy_block(const struct fixture *f, const void *from, void *to, int64_t count)
{
	const size_t bytes = (size_t)count * dtype_size(f->params->type);
	void *host = malloc(bytes);

	f->backend.download(&f->backend, host, from, bytes);
	f->backend.upload(&f->backend, to, host, bytes);
	free(host);
}

static void copy_state(const struct fixture *from, struct fixture *to)
{
	const struct optim_tensor *a, *b;
	struct optim_scalars scalars;
	int count, other;

	a = optimizer_tensors(from->optimizer, &count);
	b = optimizer_tensors(to->optimizer, &other);
	assert_int_equal(count, other);
	for (int i = 0; i < count; i++) {
		assert_string_equal(a[i].name, b[i].name);
		copy_block(from, a[i].data, b[i].data, a[i].param->count);
	}
	scalars = optimizer_scalars(from->optimizer);
	optimizer_set_scalars(to->optimizer, &scalars);
	copy_block(from, from->params->data, to->params->data, to->params->total);
}

/* Tensors and scalars are the whole memory of an optimizer. */
static void test_resumes_bit_by_bit(void **state)
{
	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		struct optim_options options = defaults;
		struct fixture straight, first, second;

		options.kind = (enum optim_kind)kind;
		start(&straight, F32, &options, shapes, COUNT(shapes));
		start(&first, F32, &options, shapes, COUNT(shapes));
		start(&second, F32, &options, shapes, COUNT(shapes));
		set_parameters(&straight);
		set_parameters(&first);
		run(&straight, 1, UPDATES);
		run(&first, 1, 26);
		copy_state(&first, &second);
		run(&second, 27, UPDATES);
		for (int64_t i = 0; i < second.params->total; i++)
			assert_true(get(second.params, second.params->data, i) ==
				    get(straight.params, straight.params->data, i));
		stop(&second);
		stop(&first);
		stop(&straight);
	}
}

/* What the device wants for matrices 3 x 5, 5 x 2, or two of 3 x 2. */
static size_t workspace(const struct fixture *f, int kind)
{
	const struct optim_kernels *kernels = f->backend.optim(F32);
	const size_t wide = kernels->muon_workspace(3, 5, 1),
		     tall = kernels->muon_workspace(5, 2, 1);
	const size_t slices = kernels->muon_workspace(3, 2, 2);
	const size_t larger = wide > tall ? wide : tall;

	if (kind != OPTIM_MUON)
		return 0;
	return larger > slices ? larger : slices;
}

static void test_state_is_listed_by_name(void **state)
{
	static const struct {
		int tensors;
		size_t numbers; /* padded to 16 per parameter: 6 parameters */
	} expected[] = {
		[OPTIM_ADAMW] = { 12, 2 * 96 },
		[OPTIM_ADAMWSPAM] = { 18, 3 * 96 },
		[OPTIM_SGD] = { 6, 96 },
		[OPTIM_MUON] = { 9, 96 + 48 },
	};

	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++) {
		struct optim_options options = defaults;
		const struct optim_tensor *tensors;
		struct fixture f;
		int count;

		options.kind = (enum optim_kind)kind;
		start(&f, F32, &options, shapes, COUNT(shapes));
		tensors = optimizer_tensors(f.optimizer, &count);
		assert_int_equal(count, expected[kind].tensors);
		assert_string_equal(tensors[0].name, "optim.m.wte.weight");
		assert_int_equal(optimizer_bytes(f.optimizer),
				 4 * expected[kind].numbers + workspace(&f, kind));
		stop(&f);
	}
}

#define STRETCHES 300
#define LONGEST 600000

/* Squares up to each number. */
static double *running_squares(const float *x)
{
	double *before = malloc((LONGEST + 1) * sizeof(*before));

	before[0] = 0;
	for (int i = 0; i < LONGEST; i++)
		before[i + 1] = before[i] + (double)x[i] * (double)x[i];
	return before;
}

/* More stretches than a GPU takes along, and more parts of sums than it keeps at a time. */
static void test_squares_of_many_stretches(void **state)
{
	struct backend b = backend_for_tests(FLOAT32, 2);
	const struct optim_kernels *kernels = b.optim(F32);
	struct optim_buffer each[STRETCHES], shared[STRETCHES];
	double *before, *sums = b.alloc(&b, STRETCHES * sizeof(*sums)), seen[STRETCHES];
	float *x = malloc(LONGEST * sizeof(*x)), *device = b.alloc(&b, LONGEST * sizeof(*x));
	double expected[STRETCHES], together[7] = { 0 };

	(void)state;
	for (int i = 0; i < LONGEST; i++)
		x[i] = (float)(i * 7919LL % 10007) / 10007;
	b.upload(&b, device, x, LONGEST * sizeof(*x));
	before = running_squares(x);
	for (int i = 0; i < STRETCHES; i++) {
		const int first = i * 37, n = i % 15 ? i * 11 : LONGEST - first;

		each[i] = (struct optim_buffer){ device + first, n, STRETCHES - 1 - i };
		shared[i] = (struct optim_buffer){ device + first, n, i % 7 };
		expected[STRETCHES - 1 - i] = before[first + n] - before[first];
		together[i % 7] += before[first + n] - before[first];
	}
	kernels->sum_squares(&b, each, STRETCHES, sums);
	b.download(&b, seen, sums, sizeof(seen));
	for (int i = 0; i < STRETCHES; i++)
		assert_near(seen[i], expected[i], 1e-9 * (1 + expected[i]));
	b.zero(&b, sums, sizeof(together));
	kernels->add_squares(&b, shared, STRETCHES, sums);
	b.download(&b, seen, sums, sizeof(seen));
	for (int i = 0; i < STRETCHES; i++)
		assert_near(seen[i], i < 7 ? together[i] : expected[i],
			    1e-9 * (1 + together[i % 7]));
	b.release(&b, sums);
	b.release(&b, device);
	free(before);
	free(x);
}

static void test_norm_is_the_same_for_any_threads(void **state)
{
	const int64_t n = 1000003;
	float *x = malloc((size_t)n * sizeof(*x));
	double sums[3], exact = 0;

	(void)state;
	for (int64_t i = 0; i < n; i++) {
		x[i] = (float)sin((double)i);
		exact += (double)x[i] * (double)x[i];
	}
	for (int threads = 1; threads <= 3; threads++) {
		struct backend backend = backend_for_tests(FLOAT32, threads);

		void *device = backend.alloc(&backend, (size_t)n * sizeof(*x));
		double *sum;

		backend.upload(&backend, device, x, (size_t)n * sizeof(*x));
		sum = backend.alloc(&backend, sizeof(*sum));
		backend.optim(F32)->sum_squares(&backend, &(struct optim_buffer){ device, n, 0 }, 1,
						sum);
		backend.download(&backend, &sums[threads - 1], sum, sizeof(*sum));
		backend.release(&backend, sum);
		backend.release(&backend, device);
	}
	assert_near(sums[0], exact, 1e-9 * exact);
	assert_memory_equal(&sums[0], &sums[1], sizeof(double));
	assert_memory_equal(&sums[0], &sums[2], sizeof(double));
	free(x);
}

/* --------------------------------------------------------------- schedule and configuration */

static void test_schedule(void **state)
{
	struct schedule s = { .lr = 1, .min_lr = 0.2, .warmup = 4, .total = 12 };

	(void)state;
	assert_near(schedule_rate(&s, 1), 0.25, 1e-15);
	assert_near(schedule_rate(&s, 4), 1, 1e-15);
	assert_near(schedule_rate(&s, 6), 0.2 + 0.4 * (1 + sqrt(0.5)), 1e-15);
	assert_near(schedule_rate(&s, 8), 0.6, 1e-15);
	assert_near(schedule_rate(&s, 12), 0.2, 0);
	assert_near(schedule_rate(&s, 1000), 0.2, 0);
	s.kind = SCHEDULE_CONSTANT;
	assert_near(schedule_rate(&s, 2), 0.5, 1e-15);
	assert_near(schedule_rate(&s, 12), 1, 0);
	s.warmup = 0;
	assert_near(schedule_rate(&s, 1), 1, 0);
}

static void test_is_configured(void **state)
{
	static const char text[] =
		"CONFIG_OPTIMIZER=\"muon\"\nCONFIG_SCHEDULE=\"constant\"\nCONFIG_WARMUP_ITERS=3\n"
		"CONFIG_GPT2_MAX_ITERS=9\nCONFIG_LEARNING_RATE=\"4e-3\"\nCONFIG_BETA1=\"0.8\"\n"
		"CONFIG_BETA2=\"0.9\"\nCONFIG_OPTIMIZER_EPS=\"1e-6\"\nCONFIG_WEIGHT_DECAY=\"0.3\"\n"
		"CONFIG_DECAY_GROUP=\"all\"\nCONFIG_GRAD_CLIP=\"2\"\nCONFIG_MUON_LEARNING_RATE="
		"\"1e-3\"\n"
		"CONFIG_MUON_MOMENTUM=\"0.7\"\nCONFIG_MUON_NESTEROV=y\nCONFIG_MUON_STEPS=6\n"
		"CONFIG_MUON_EPS=\"1e-5\"\nCONFIG_MUON_ADJUST=\"match_rms_adamw\"\n";
	struct optim_options o;
	struct schedule s;
	struct config *c;
	struct error err;

	(void)state;
	must(config_parse(&c, text, &err), &err);
	o = optim_configured(c);
	s = schedule_configured(c);
	must(config_check(c, &err), &err);
	assert_int_equal(o.kind, OPTIM_MUON);
	assert_true(o.decay_all && o.weight_decay == 0.3 && o.clip == 2);
	assert_true(o.beta1 == 0.8 && o.beta2 == 0.9 && o.eps == 1e-6);
	assert_true(o.muon.lr_ratio == 0.25 && o.muon.momentum == 0.7 && o.muon.eps == 1e-5);
	assert_true(o.muon.nesterov && o.muon.steps == 6 && o.muon.adjust == MUON_MATCH_RMS_ADAMW);
	assert_true(s.kind == SCHEDULE_CONSTANT && s.lr == 4e-3 && s.warmup == 3 && s.total == 9);
	config_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_follows_the_reference),
		cmocka_unit_test(test_decay_reaches_all_when_asked),
		cmocka_unit_test(test_muon_without_nesterov),
		cmocka_unit_test(test_spam_warms_up_after_a_reset),
		cmocka_unit_test(test_spam_warm_up_has_a_floor),
		cmocka_unit_test(test_spam_damps_the_moments_on_a_spike),
		cmocka_unit_test(test_spam_needs_a_deviation),
		cmocka_unit_test(test_spam_clips_entries),
		cmocka_unit_test(test_clips_once),
		cmocka_unit_test(test_decay_reaches_matrices_only),
		cmocka_unit_test(test_muon_treats_each_matrix_alone),
		cmocka_unit_test(test_muon_adjusts_the_rate),
		cmocka_unit_test(test_a_nonfinite_gradient_changes_nothing),
		cmocka_unit_test(test_spam_starts_after_skipped_updates),
		cmocka_unit_test(test_updates_can_be_read_together),
		cmocka_unit_test(test_updates_can_be_switched_off),
		cmocka_unit_test(test_a_nonfinite_update_stops_those_after_it),
		cmocka_unit_test(test_squares_are_added),
		cmocka_unit_test(test_resumes_bit_by_bit),
		cmocka_unit_test(test_state_is_listed_by_name),
		cmocka_unit_test(test_squares_of_many_stretches),
		cmocka_unit_test(test_norm_is_the_same_for_any_threads),
		cmocka_unit_test(test_schedule),
		cmocka_unit_test(test_is_configured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
