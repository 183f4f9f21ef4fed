/*
 * The audit of updates on every device and in both types: it passes what the optimizers do to
 * tensors of all kinds, with gradients from 1e-20 to 1, and finds one weight in which an update
 * went wrong.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/backend.h"
#include "core/train/schedule.h"
#include "core/train/update_audit.h"
#include "core/util/test.h"

enum { UPDATES = 25 };

#define CONFIGURED                                                                                 \
	"CONFIG_TRAIN_BATCH=1\nCONFIG_TRAIN_ACCUMULATE=1\nCONFIG_EVAL_ROWS=1\n"                    \
	"CONFIG_LEARNING_RATE=\"0.01\"\nCONFIG_SCHEDULE=\"cosine\"\n"                              \
	"CONFIG_MIN_LEARNING_RATE=\"0.001\"\nCONFIG_WARMUP_ITERS=5\nCONFIG_GPT2_MAX_ITERS=20\n"    \
	"CONFIG_WEIGHT_DECAY=\"0.1\"\nCONFIG_DECAY_GROUP=\"matrices\"\nCONFIG_GRAD_CLIP=\"1.0\"\n" \
	"CONFIG_BETA1=\"0.9\"\nCONFIG_BETA2=\"0.95\"\nCONFIG_OPTIMIZER_EPS=\"1e-8\"\n"             \
	"CONFIG_SGD_MOMENTUM=\"0.9\"\nCONFIG_SPAM_THETA=\"5\"\nCONFIG_SPAM_SPIKE=\"1.5\"\n"        \
	"CONFIG_SPAM_INTERVAL=8\nCONFIG_SPAM_WARMUP=4\nCONFIG_SPAM_CLIP_ELEMENTS=y\n"              \
	"CONFIG_MUON_LEARNING_RATE=\"0.02\"\nCONFIG_MUON_MOMENTUM=\"0.95\"\n"                      \
	"CONFIG_MUON_EPS=\"1e-7\"\nCONFIG_MUON_STEPS=5\nCONFIG_MUON_NESTEROV=y\n"                  \
	"CONFIG_MUON_ADJUST=\"match_rms_adamw\"\n"

static const struct {
	const char *name;
	int ndim;
	int64_t dim[3];
	bool embedding;
} shapes[] = {
	{ "table", 2, { 100, 40 }, true }, { "wide", 2, { 24, 40 }, false },
	{ "tall", 2, { 40, 24 }, false },  { "slices", 3, { 3, 8, 16 }, false },
	{ "vector", 1, { 40 }, false },	   { "scalar", 1, { 1 }, false },
};

struct fixture {
	struct backend backend;
	struct config *config;
	struct params *params;
	struct optimizer *optimizer;
	struct update_audit *audit;
	struct schedule schedule;
	struct error err;
};

static void name_parameters(struct fixture *f)
{
	int index;

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		const struct param_init init = { .kind = INIT_NORMAL,
						 .value = 0.1,
						 .embedding = shapes[i].embedding };

		must(params_name(f->params, shapes[i].name, &init, shapes[i].ndim, shapes[i].dim,
				 &index, &f->err),
		     &f->err);
	}
}

static void start(struct fixture *f, enum dtype type, const char *optimizer)
{
	struct optim_options options;
	char text[2000];

	snprintf(text, sizeof(text), CONFIGURED "CONFIG_OPTIMIZER=\"%s\"\n", optimizer);
	must(config_parse(&f->config, text, &f->err), &f->err);
	options = optim_configured(f->config);
	f->schedule = schedule_configured(f->config);
	f->backend = backend_for_tests(FLOAT32, 2);
	must(params_create(&f->params, type, &f->err), &f->err);
	name_parameters(f);
	must(params_allocate(f->params, &f->backend, true, &f->err), &f->err);
	must(params_initialise(f->params, 1, &f->err), &f->err);
	must(optimizer_create(&f->optimizer, &options, f->params, &f->err), &f->err);
	must(update_audit_create(&f->audit, f->config, f->params, f->optimizer, NULL, &f->err),
	     &f->err);
}

static void stop(struct fixture *f)
{
	update_audit_destroy(f->audit);
	optimizer_destroy(f->optimizer);
	params_destroy(f->params);
	config_free(f->config);
}

/* Of many sizes; now and then all of them are large. */
static double gradient(int64_t i, int64_t t)
{
	const double size = pow(10, -(double)((i * 7 + t) % 21)) * (t % 11 == 0 ? 20 : 0.5);

	return size * sin(0.7 * (double)i + 1.3 * (double)t);
}

static void set_gradients(struct fixture *f, int64_t t)
{
	const size_t size = dtype_size(f->params->type);
	char *host = calloc((size_t)f->params->total, size);

	assert_non_null(host);
	for (int p = 0; p < f->params->n; p++)
		for (int64_t i = 0; i < f->params->list[p].count; i++) {
			const int64_t at = f->params->list[p].offset + i;

			if (f->params->type == F64)
				((double *)(void *)host)[at] = gradient(at, t);
			else
				((float *)(void *)host)[at] = (float)gradient(at, t);
		}
	f->backend.upload(&f->backend, f->params->grad, host, (size_t)f->params->total * size);
	free(host);
}

/* Moves a weight as far as a rate 1.001 times as high would move it. */
static void disturb(struct fixture *f, double rate)
{
	double weight;

	must(param_get(f->params, params_find(f->params, "scalar"), false, &weight, &f->err),
	     &f->err);
	weight += 0.001 * rate;
	must(param_set(f->params, params_find(f->params, "scalar"), &weight, &f->err), &f->err);
}

static void update(struct fixture *f, int64_t t, bool wrong, struct error *finding)
{
	struct optim_report report;

	set_gradients(f, t);
	update_audit_before(f->audit);
	must(update_audit_gradient(f->audit, t, &f->err), &f->err);
	optimizer_update(f->optimizer, t, schedule_rate(&f->schedule, t), &report);
	if (wrong)
		disturb(f, schedule_rate(&f->schedule, t));
	must(update_audit_after(f->audit, t, report.norm, finding, &f->err), &f->err);
}

static void check(enum dtype type)
{
	struct error finding;

	for (const char *const *name = optim_names; *name; name++) {
		struct fixture f = { .params = NULL };

		start(&f, type, *name);
		for (int64_t t = 1; t <= UPDATES; t++) {
			update(&f, t, false, &finding);
			if (finding.text[0])
				fail_msg("%s, update %d: %s", *name, (int)t, finding.text);
		}
		update(&f, UPDATES + 1, true, &finding);
		if (!strstr(finding.text,
			    "audit update FAILED: scalar: after update 26 the weight"))
			fail_msg("%s: a wrong weight is not found: '%s'", *name, finding.text);
		stop(&f);
	}
}

static void test_in_float(void **state)
{
	(void)state;
	check(F32);
}

static void test_in_double(void **state)
{
	(void)state;
	check(F64);
}

/* Replicas differ in rates: an update is judged by those of its own run. */
static void test_follows_a_run(void **state)
{
	struct fixture f = { .params = NULL };
	struct config *faster;
	struct error finding;

	(void)state;
	start(&f, F32, "adamw");
	must(config_vary(&faster, f.config, "LEARNING_RATE", "0.02", &f.err), &f.err);
	f.schedule = schedule_configured(faster);
	must(update_audit_follow(f.audit, faster, &f.err), &f.err);
	update(&f, 1, false, &finding);
	assert_string_equal(finding.text, "");
	must(update_audit_follow(f.audit, f.config, &f.err), &f.err);
	update(&f, 2, false, &finding);
	assert_non_null(strstr(finding.text, "after update 2 the weight"));
	stop(&f);
	config_free(faster);
}

/* Any element that differs changes the digest. */
static void test_digest(void **state)
{
	struct fixture f = { .params = NULL };
	uint64_t before, same, after;

	(void)state;
	start(&f, F32, "adamwspam");
	must(update_audit_digest(f.audit, &before, &f.err), &f.err);
	must(update_audit_digest(f.audit, &same, &f.err), &f.err);
	disturb(&f, 1);
	must(update_audit_digest(f.audit, &after, &f.err), &f.err);
	assert_true(before == same && before != after);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_float),
		cmocka_unit_test(test_in_double),
		cmocka_unit_test(test_follows_a_run),
		cmocka_unit_test(test_digest),
	};

	return cmocka_run_group_tests_name("update audit", tests, NULL, NULL);
}
