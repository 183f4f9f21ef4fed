/*
 * The oracle agrees with every committed vector: its logits, its losses, and its derivatives along
 * random directions with the gradients of the reference.
 */
#include <glob.h>
#include <string.h>

#include "core/util/rng.h"
#include "core/util/test.h"
#include "models/oracle/oracle.h"
#include "models/test_vector.h"

/* Of the largest number.  The worst seen: 2e-9 in derivatives; logits and losses pass with 1e-13.
 */
#define TOLERANCE 1e-13
#define DERIVATIVE 1e-8
#define STEP 1.5e-3

struct vector_case {
	struct safetensors file;
	struct config *config;
	struct oracle *oracle;
};

static double *read_numbers(const struct vector_case *k, const char *prefix, const char *name,
			    int64_t *count)
{
	const struct safetensors_tensor *t;
	double *values;
	char full[120];

	snprintf(full, sizeof(full), "%s%s", prefix, name);
	t = safetensors_find(&k->file, full);
	if (!t)
		fail_msg("no tensor '%s'", full);
	*count = safetensors_elements(t);
	values = malloc((size_t)*count * sizeof(*values));
	assert_non_null(values);
	safetensors_read_double(t, values);
	return values;
}

static void read_tokens(const struct vector_case *k, const char *name, int32_t *tokens)
{
	int64_t count;
	double *values = read_numbers(k, "", name, &count);

	assert_int_equal(count, k->oracle->B * k->oracle->T);
	for (int64_t i = 0; i < count; i++)
		tokens[i] = (int32_t)values[i];
	free(values);
}

static void open_case(struct vector_case *k, const char *path)
{
	const struct safetensors_tensor *tokens;
	struct error err;
	char missing[64];

	must(safetensors_open(&k->file, path, &err), &err);
	must(vector_config(&k->file, &k->config, &err), &err);
	tokens = safetensors_find(&k->file, "tokens");
	assert_non_null(tokens);
	must(oracle_create(&k->oracle, k->config, tokens->dim[0], tokens->dim[1], missing, &err),
	     &err);
	assert_string_equal(missing, "");
	read_tokens(k, "tokens", k->oracle->tokens);
	read_tokens(k, "targets", k->oracle->targets);
	for (int i = 0; i < k->file.count; i++) {
		const char *name = k->file.tensors[i].name;
		int64_t count;
		double *values;

		if (strncmp(name, "param.", 6) != 0)
			continue;
		values = read_numbers(k, "", name, &count);
		must(oracle_add_weight(k->oracle, name + 6, values, count, &err), &err);
		free(values);
	}
}

static void close_case(struct vector_case *k)
{
	oracle_destroy(k->oracle);
	config_free(k->config);
	safetensors_close(&k->file);
}

static void compare(const char *path, const char *what, const double *mine, const double *theirs,
		    int64_t n, double floor)
{
	double largest = floor, error = 0;

	for (int64_t i = 0; i < n; i++) {
		largest = fmax(largest, fabs(theirs[i]));
		error = mine[i] == mine[i] ? fmax(error, fabs(mine[i] - theirs[i])) : INFINITY;
	}
	if (!(error <= TOLERANCE * largest))
		fail_msg("%s: %s differs by %.2e of %.2e", path, what, error, largest);
}

static double loss_of(const struct oracle *o, const char *name)
{
	for (int i = 0; i < o->n_losses; i++)
		if (strcmp(o->loss[i].name, name) == 0)
			return o->loss[i].value;
	return 0;
}

static void check_outputs(struct vector_case *k, const char *path)
{
	const struct oracle *o = k->oracle;
	const double aux = loss_of(o, "aux_z") + loss_of(o, "aux_c") + loss_of(o, "aux_l");
	const struct oracle_loss mine[] = { { "main", loss_of(o, "main") },
					    { "aux", aux },
					    { "z", loss_of(o, "logits_z") } };
	int64_t count;
	double *theirs = read_numbers(k, "", "logits", &count);

	assert_int_equal(count, o->B * o->T * o->V);
	compare(path, "the logits", o->logits, theirs, count, 0);
	free(theirs);
	for (int i = 0; i < 3; i++) {
		theirs = read_numbers(k, "", mine[i].name, &count);
		compare(path, mine[i].name, &mine[i].value, theirs, 1, 1e-3);
		free(theirs);
	}
}

/* Differences with three steps: the errors of second and fourth order cancel. */
static double derivative(struct oracle *o, int index, const double *direction)
{
	struct error err;
	double d[3], finer[2];

	for (int i = 0; i < 3; i++)
		must(oracle_derivative(o, index, direction, STEP / (1 << i), &d[i], &err), &err);
	for (int i = 0; i < 2; i++)
		finer[i] = (4 * d[i + 1] - d[i]) / 3;
	return (16 * finer[1] - finer[0]) / 15;
}

/* The error of one weight's derivative, as a share of what a random direction sees of |gradient|.
 */
static double derivative_error(struct vector_case *k, int index, double floor, double *size)
{
	const struct oracle_weight *w = &k->oracle->weights[index];
	const struct rng_key key = rng_key(1, w->name);
	double dot = 0, squares = 0, *direction;
	int64_t count;
	double *gradient = read_numbers(k, "grad.", w->name, &count);

	assert_int_equal(count, w->count);
	direction = malloc((size_t)count * sizeof(*direction));
	assert_non_null(direction);
	for (int64_t i = 0; i < count; i++) {
		direction[i] = rng_normal(key, (uint64_t)i);
		dot += direction[i] * gradient[i];
		squares += gradient[i] * gradient[i];
	}
	*size = sqrt(squares);
	dot = floor < 0 ? 0
			: fabs(derivative(k->oracle, index, direction) - dot) / fmax(*size, floor);
	free(direction);
	free(gradient);
	return dot;
}

static void check_derivatives(struct vector_case *k, const char *path, double *worst)
{
	double largest = 0, size;

	for (int i = 0; i < k->oracle->n_weights; i++) {
		derivative_error(k, i, -1, &size);
		largest = fmax(largest, size);
	}
	for (int i = 0; i < k->oracle->n_weights; i++) {
		const double error = derivative_error(k, i, 1e-3 * largest, &size);

		*worst = fmax(*worst, error);
		if (!(error <= DERIVATIVE))
			fail_msg("%s: the derivative of %s differs by %.2e of its gradient", path,
				 k->oracle->weights[i].name, error);
	}
}

static void test_vectors(void **state)
{
	struct vector_case k;
	struct error err;
	double worst = 0;
	glob_t paths;

	(void)state;
	assert_int_equal(glob("models/vectors/*.safetensors", 0, NULL, &paths), 0);
	assert_true(paths.gl_pathc >= 80);
	for (size_t i = 0; i < paths.gl_pathc; i++) {
		open_case(&k, paths.gl_pathv[i]);
		must(oracle_run(k.oracle, &err), &err);
		check_outputs(&k, paths.gl_pathv[i]);
		if (!test_is_sampled() || i % 8 == 0)
			check_derivatives(&k, paths.gl_pathv[i], &worst);
		close_case(&k);
	}
	print_message("# worst derivative: %.1e\n", worst);
	globfree(&paths);
}

/* ------------------------------------------------------------------ refusals */

static const char *run_error(struct vector_case *k, struct error *err)
{
	assert_int_equal(oracle_run(k->oracle, err), FAIL);
	return err->text;
}

static void test_other_weights_are_refused(void **state)
{
	const double one = 1;
	struct vector_case k;
	struct error err;

	(void)state;
	open_case(&k, "models/vectors/mla.safetensors");
	must(oracle_add_weight(k.oracle, "h.0.attn.extra", &one, 1, &err), &err);
	assert_string_equal(run_error(&k, &err), "no part of the oracle reads 'h.0.attn.extra'");
	k.oracle->n_weights--;
	free(k.oracle->weights[k.oracle->n_weights].values);
	k.oracle->weights[0].count--;
	assert_non_null(strstr(run_error(&k, &err), " numbers, not "));
	k.oracle->weights[0].count++;
	strcpy(k.oracle->weights[0].name, "other");
	assert_non_null(strstr(run_error(&k, &err), "the model has no parameter '"));
	close_case(&k);
}

static void test_missing_part_is_named(void **state)
{
	struct oracle *o;
	struct config *c;
	struct error err;
	char missing[64];

	(void)state;
	must(vector_defaults(&c, &err), &err);
	must(config_set(c, "ATTENTION", "cos", &err), &err);
	must(oracle_create(&o, c, 1, 2, missing, &err), &err);
	assert_string_equal(missing, "attention 'cos'");
	oracle_destroy(o);
	must(config_set(c, "ATTENTION", "dot", &err), &err);
	must(config_set(c, "FFN", "mine", &err), &err);
	must(oracle_create(&o, c, 1, 2, missing, &err), &err);
	assert_string_equal(missing, "feed-forward 'mine'");
	oracle_destroy(o);
	config_free(c);
}

static void test_targets_are_the_next_tokens(void **state)
{
	const int32_t rows[] = { 1, 2, 3, 4, 5, 6 };
	struct oracle *o;
	struct config *c;
	struct error err;
	char missing[64];

	(void)state;
	must(vector_defaults(&c, &err), &err);
	must(oracle_create(&o, c, 2, 2, missing, &err), &err);
	oracle_rows(o, rows);
	assert_memory_equal(o->tokens, ((int32_t[]){ 1, 2, 4, 5 }), 4 * sizeof(int32_t));
	assert_memory_equal(o->targets, ((int32_t[]){ 2, 3, 5, 6 }), 4 * sizeof(int32_t));
	oracle_destroy(o);
	config_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_other_weights_are_refused),
		cmocka_unit_test(test_missing_part_is_named),
		cmocka_unit_test(test_targets_are_the_next_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
