/*
 * Every committed vector passes in double, float and bfloat16; changed vectors fail; files that are
 * not vectors are refused, with the reason.
 */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/test.h"
#include "core/backend/open.h"
#include "models/test_vector.h"

static void check(const char *path, enum precision precision, int *near_ties)
{
	struct vector_report report;
	struct safetensors file;
	struct error err;

	must(safetensors_open(&file, path, &err), &err);
	must(vector_compare(&file, NULL, backend_name_for_tests(), precision, &report, &err), &err);
	if (!vector_passed(&report))
		for (int i = 0; i < VECTOR_KINDS; i++)
			if (report.worst[i].error > report.worst[i].allowed)
				fail_msg("%s in %s: '%s' is off by %.3g, allowed %.3g", path,
					 precision_names[precision], report.worst[i].name,
					 report.worst[i].error, report.worst[i].allowed);
	if (strstr(path, "near-tie"))
		assert_int_equal(report.near_tie, precision != FLOAT64);
	*near_ties += report.near_tie;
	safetensors_close(&file);
}

/* A sample takes the precisions in turns. */
static bool is_left_out(size_t number, enum precision precision)
{
	const size_t precisions = backend_stores_for_tests() ? 5 : 3;

	return test_is_sampled() && number % precisions != (size_t)precision % precisions;
}

static void test_vectors(enum precision precision, int most_ties)
{
	int near_ties = 0;
	glob_t paths;

	assert_int_equal(glob("models/vectors/*.safetensors", 0, NULL, &paths), 0);
	assert_true(paths.gl_pathc >= 80);
	for (size_t i = 0; i < paths.gl_pathc; i++)
		if (!is_left_out(i, precision))
			check(paths.gl_pathv[i], precision, &near_ties);
	globfree(&paths);
	assert_true(near_ties <= most_ties); /* more would hide errors */
}

static void test_vectors_in_double(void **state)
{
	(void)state;
	test_vectors(FLOAT64, 0);
}

static void test_vectors_in_float(void **state)
{
	(void)state;
	test_vectors(FLOAT32, 3); /* seen: the one that is made to be */
}

static void test_vectors_in_bfloat16(void **state)
{
	(void)state;
	test_vectors(BFLOAT16, 3);
}

static void test_vectors_stored_in_bfloat16(void **state)
{
	(void)state;
	test_vectors(BFLOAT16_STORED, 3);
}

static void test_vectors_with_a_narrow_stream(void **state)
{
	(void)state;
	test_vectors(BFLOAT16_STREAM, 3);
}

/* --------------------------------------------------------------- other files */

#define BASE "models/vectors/all.safetensors"

/* A copy of the base vector, to be changed and written. */
struct changed {
	struct safetensors base;
	struct safetensors_tensor list[400];
	int n;
	struct safetensors_pair metadata;
	double values[4096]; /* instead of one tensor's */
	char path[200];
	struct error err;
};

static int open_base(void **state)
{
	struct changed *c = calloc(1, sizeof(*c));
	int fd;

	*state = c;
	must(safetensors_open(&c->base, BASE, &c->err), &c->err);
	assert_true(c->base.count < 400);
	c->n = c->base.count;
	memcpy(c->list, c->base.tensors, (size_t)c->n * sizeof(*c->list));
	c->metadata =
		(struct safetensors_pair){ "config", safetensors_metadata(&c->base, "config") };
	test_template(c->path, sizeof(c->path), "vector");
	fd = mkstemp(c->path);
	if (fd < 0)
		return -1;
	return close(fd);
}

static int close_base(void **state)
{
	struct changed *c = *state;

	safetensors_close(&c->base);
	unlink(c->path);
	free(c);
	return 0;
}

static struct safetensors_tensor *tensor(struct changed *c, const char *name)
{
	for (int i = 0; i < c->n; i++)
		if (strcmp(c->list[i].name, name) == 0)
			return &c->list[i];
	fail_msg("%s has no tensor '%s'", BASE, name);
	return NULL;
}

/* The tensor's values, of its own, as doubles. */
static double *own_values(struct changed *c, const char *name)
{
	struct safetensors_tensor *t = tensor(c, name);

	assert_true(safetensors_elements(t) <= 4096);
	safetensors_read_double(t, c->values);
	t->type = ST_F64;
	t->data = c->values;
	return c->values;
}

static void drop(struct changed *c, const char *name)
{
	*tensor(c, name) = c->list[--c->n];
}

static enum status compare_changed(struct changed *c, enum precision precision,
				   struct vector_report *report)
{
	struct safetensors file;
	enum status status;

	must(safetensors_write(c->path, c->list, c->n, &c->metadata, c->metadata.value != NULL,
			       &c->err),
	     &c->err);
	must(safetensors_open(&file, c->path, &c->err), &c->err);
	status = vector_compare(&file, NULL, backend_name_for_tests(), precision, report, &c->err);
	safetensors_close(&file);
	return status;
}

static void refused(struct changed *c, const char *reason)
{
	struct vector_report report;

	assert_int_equal(compare_changed(c, FLOAT64, &report), FAIL);
	if (!strstr(c->err.text, reason))
		fail_msg("'%s' does not say '%s'", c->err.text, reason);
	/* The next change starts from the base again. */
	c->n = c->base.count;
	memcpy(c->list, c->base.tensors, (size_t)c->n * sizeof(*c->list));
	c->metadata.value = safetensors_metadata(&c->base, "config");
}

static void test_configuration(void **state)
{
	static const struct {
		const char *config, *reason;
	} cases[] = {
		{ NULL, "holds no configuration" },
		{ "layers=2", "holds no configuration" },
		{ "[1]", "holds no configuration" },
		{ "{\"layers\": 2, \"dilation\": 3}",
		  "nothing that expresses the field 'dilation'" },
		{ "{\"layers\": \"2\"}",
		  "'layers' of the vector's configuration has the wrong type" },
		{ "{\"layers\": 2.5}",
		  "'layers' of the vector's configuration has the wrong type" },
		{ "{\"bias\": 1}", "'bias' of the vector's configuration has the wrong type" },
		{ "{\"attn\": \"linear\"}", "'linear' is not part of this program" },
		{ "{\"heads\": 3}", "not divisible by MODEL_HEADS=3" },
		{ "{\"latent_recip\": true}", "needs an attention with latents" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct changed *c = *state;

		c->metadata.value = cases[i].config;
		refused(c, cases[i].reason);
	}
}

static void test_parameters(void **state)
{
	struct changed *c = *state;

	drop(c, "param.h.0.mlp.cross_proj.weight");
	refused(c, "the vector has no tensor 'param.h.0.mlp.cross_proj.weight'");
	tensor(c, "param.h.0.mlp.cross_proj.weight")->name = "param.h.0.mlp.other.weight";
	refused(c, "the model has no parameter 'h.0.mlp.other.weight'");
	tensor(c, "param.h.0.mlp.cross_proj.weight")->ndim = 1;
	tensor(c, "param.h.0.mlp.cross_proj.weight")->dim[0] = 16 * 16;
	refused(c, "'h.0.mlp.cross_proj.weight' has another shape");
	own_values(c, "param.wte.weight")[3] = NAN;
	refused(c, "'param.wte.weight' holds a value that is not finite");
}

static void test_gradients(void **state)
{
	struct changed *c = *state;

	drop(c, "grad.ln_f.bias");
	refused(c, "no fitting gradient of 'ln_f.bias'");
	tensor(c, "grad.ln_f.bias")->ndim = 2;
	tensor(c, "grad.ln_f.bias")->dim[1] = 1;
	refused(c, "no fitting gradient of 'ln_f.bias'");
	own_values(c, "grad.ln_f.bias")[0] = INFINITY;
	refused(c, "'grad.ln_f.bias' holds a value that is not finite");
}

static void test_tokens(void **state)
{
	struct changed *c = *state;

	drop(c, "tokens");
	refused(c, "no tensor 'tokens'");
	tensor(c, "tokens")->ndim = 1;
	tensor(c, "tokens")->dim[0] = 14;
	refused(c, "'tokens' is not a matrix");
	own_values(c, "tokens")[5] = 11;
	refused(c, "'tokens' holds a token outside of the vocabulary");
	own_values(c, "tokens")[5] = -1;
	refused(c, "'tokens' holds a token outside of the vocabulary");
	tensor(c, "targets")->dim[0] = 7;
	tensor(c, "targets")->dim[1] = 2;
	refused(c, "'targets' is not a matrix like the tokens");
	own_values(c, "targets")[5] = -2;
	refused(c, "'targets' holds a token outside of the vocabulary");
	for (int i = 0; i < 2; i++) {
		const char *const names[] = { "tokens", "targets" };

		tensor(c, names[i])->dim[0] = 1;
		tensor(c, names[i])->dim[1] = 14;
	}
	refused(c, "14 positions are more than the learned table of 9 holds");
}

static void test_results(void **state)
{
	struct changed *c = *state;

	drop(c, "logits");
	refused(c, "no tensor 'logits'");
	tensor(c, "logits")->dim[1] = 11;
	tensor(c, "logits")->dim[2] = 7;
	refused(c, "logits have another shape");
	drop(c, "main");
	refused(c, "no tensor 'main'");
	own_values(c, "loss");
	tensor(c, "loss")->dim[0] = 2;
	refused(c, "'loss' is not one number");
	own_values(c, "logits")[3] = NAN;
	refused(c, "'logits' holds a value that is not finite");
	own_values(c, "aux")[0] = NAN;
	refused(c, "'aux' holds a value that is not finite");
}

static bool exceeded(const struct vector_worst *w)
{
	return w->error > w->allowed;
}

static void test_differences_are_found(void **state)
{
	static const struct {
		const char *tensor;
		enum vector_kind kind;
	} cases[] = {
		{ "logits", VECTOR_LOGITS },
		{ "loss", VECTOR_LOSS },
		{ "main", VECTOR_LOSS },
		{ "grad.h.1.attn.k_down.weight", VECTOR_GRADIENT },
		{ "grad.h.0.mlp.gate_to_heads.weight", VECTOR_GRADIENT },
	};
	/* Just above what is allowed, of the tensor's largest entry; in float also absolutely. */
	static const double errors[] = { [FLOAT32] = 3e-4, [FLOAT64] = 2e-9 };
	struct changed *c = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int pass = 0; pass < 2; pass++) {
			const enum precision precision = pass ? FLOAT32 : FLOAT64;
			struct vector_report report;
			double *values, most = 0;
			int64_t n, at = 0;

			memcpy(c->list, c->base.tensors, (size_t)c->n * sizeof(*c->list));
			n = safetensors_elements(tensor(c, cases[i].tensor));
			values = own_values(c, cases[i].tensor);
			for (int64_t j = 0; j < n; j++)
				if (fabs(values[j]) > most)
					most = fabs(values[at = j]);
			values[at] += errors[precision] * most + (precision == FLOAT32 ? 1e-4 : 0);
			must(compare_changed(c, precision, &report), &c->err);
			assert_false(vector_passed(&report));
			for (int kind = 0; kind < VECTOR_KINDS; kind++)
				assert_int_equal(exceeded(&report.worst[kind]),
						 kind == (int)cases[i].kind);
			assert_non_null(strstr(cases[i].tensor, report.worst[cases[i].kind].name));
		}
}

/* What is exported is the same model: it passes in place of the vector's own parameters. */
static void test_export(void **state)
{
	struct changed *c = *state;
	struct vector_report report;
	struct safetensors other;

	must(vector_export(&c->base, c->path, &c->err), &c->err);
	must(vector_compare(&c->base, c->path, backend_name_for_tests(), FLOAT32, &report, &c->err),
	     &c->err);
	assert_true(vector_passed(&report));

	/* Weights of another model are refused, with the name of a parameter that is missing. */
	must(safetensors_open(&other, "models/vectors/all-learned.safetensors", &c->err), &c->err);
	assert_int_equal(vector_compare(&other, c->path, backend_name_for_tests(), FLOAT32, &report,
					&c->err),
			 FAIL);
	assert_non_null(strstr(c->err.text, "ra_alpha'"));
	safetensors_close(&other);
	must(safetensors_open(&other, "models/vectors/gate.safetensors", &c->err), &c->err);
	assert_int_equal(vector_compare(&other, c->path, backend_name_for_tests(), FLOAT32, &report,
					&c->err),
			 FAIL);
	assert_non_null(strstr(c->err.text, "which this model lacks"));
	safetensors_close(&other);
}

#define CHANGED(function) cmocka_unit_test_setup_teardown(function, open_base, close_base)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors_in_double),
		cmocka_unit_test(test_vectors_in_float),
		cmocka_unit_test(test_vectors_in_bfloat16),
		CHANGED(test_configuration),
		CHANGED(test_parameters),
		CHANGED(test_gradients),
		CHANGED(test_tokens),
		CHANGED(test_results),
		CHANGED(test_differences_are_found),
		CHANGED(test_export),
	};
	const struct CMUnitTest stored[] = {
		cmocka_unit_test(test_vectors_stored_in_bfloat16),
		cmocka_unit_test(test_vectors_with_a_narrow_stream),
	};
	int failed;

	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (backend_stores_for_tests())
		failed += cmocka_run_group_tests(stored, NULL, NULL);
	return failed;
}
