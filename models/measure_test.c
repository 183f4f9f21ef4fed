/*
 * Metrics: against the reference's attention_metrics (models/parity.json), and cases whose values
 * follow from their weights by hand.
 */
#include <math.h>

#include "models/measure.h"
#include "models/model_case.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Worst error, gcc 12 on aarch64: 8.9e-16 in double, 9.8e-8 in float. */
#define TOLERANCE_F64 1e-13
#define TOLERANCE_F32 1e-6

enum { ROWS = 3, MAX_VALUES = 64 };

struct value {
	char name[80];
	double value;
};

struct values {
	struct value list[MAX_VALUES];
	int n;
};

static void take(void *context, const char *name, double value)
{
	struct values *v = context;

	assert_true(v->n < MAX_VALUES);
	snprintf(v->list[v->n].name, sizeof(v->list[v->n].name), "%s", name);
	v->list[v->n++].value = value;
}

static bool has(const struct values *v, const char *name)
{
	for (int i = 0; i < v->n; i++)
		if (strcmp(v->list[i].name, name) == 0)
			return true;
	return false;
}

static double value_of(const struct values *v, const char *name)
{
	for (int i = 0; i < v->n; i++)
		if (strcmp(v->list[i].name, name) == 0)
			return v->list[i].value;
	fail_msg("'%s' was not measured", name);
	return NAN;
}

static void assert_near(const char *name, double value, double expected, double tolerance)
{
	if (!(fabs(value - expected) <= tolerance))
		fail_msg("%s is %.17g, not %.17g", name, value, expected);
}

static void assert_value(const struct values *v, const char *name, double expected)
{
	assert_near(name, value_of(v, name), expected, TOLERANCE_F64);
}

/* A sample of the rows of tools/reference/parity.py, of the model's length. */
static struct values measured(struct model_case *k)
{
	const int64_t T = k->model->length;
	int32_t *tokens = malloc((size_t)(ROWS * T) * sizeof(*tokens));
	int32_t *targets = malloc((size_t)T * sizeof(*targets));
	struct values v = { .n = 0 };
	struct measurer *m;
	struct error err;

	for (int64_t row = 0; row < ROWS; row++)
		case_row(k->model, 0, row, T, tokens + row * T, targets);
	must(measurer_create(&m, k->model, k->params, &k->backend,
			     &(struct measure_sample){ .rows = ROWS,
						       .tokens = tokens,
						       .classes = tokens,
						       .n_classes = k->model->vocab },
			     &err),
	     &err);
	must(measurer_run(m, &err), &err);
	must(measure(m, take, &v, &err), &err);
	measurer_destroy(m);
	free(tokens);
	free(targets);
	return v;
}

/* ---------------------------------------------------------------- reference */

static double compare_layer(const struct values *v, const cJSON *layer, int number,
			    double tolerance)
{
	static const char *const prefixes[] = { "attention/entropy", "attention/reciprocity",
						"routing/kept", "routing/mass" };
	static const char *const keys[] = { "entropy", "reciprocity", "kept", "mass" };
	double worst = 0;

	for (size_t i = 0; i < COUNT(keys); i++) {
		const cJSON *expected = cJSON_GetObjectItemCaseSensitive(layer, keys[i]);
		char name[80];

		snprintf(name, sizeof(name), "%s/h.%d", prefixes[i], number);
		if (!expected) {
			assert_false(has(v, name));
			continue;
		}
		assert_near(name, value_of(v, name), expected->valuedouble, tolerance);
		worst = fmax(worst, fabs(value_of(v, name) - expected->valuedouble));
	}
	/* An entry compared with itself would be 1. */
	assert_true(fabs(case_number(layer, "reciprocity")) < 0.5);
	return worst;
}

static void compare_all(enum dtype type, double tolerance)
{
	cJSON *expected = case_expected();
	double worst = 0;
	const cJSON *one, *layer;
	int cases = 0;

	cJSON_ArrayForEach (one, case_item(expected, "attention")) {
		struct model_case k;
		struct values v;
		int number = 0;

		case_open_vector(&k, type, case_item(one, "vector")->valuestring);
		v = measured(&k);
		cJSON_ArrayForEach (layer, case_item(one, "layers"))
			worst = fmax(worst, compare_layer(&v, layer, number++, tolerance));
		assert_int_equal(number, k.model->layers);
		case_close(&k);
		cases++;
	}
	assert_true(cases >= 12);
	print_message("# %s: worst error %.3g\n", dtype_name(type), worst);
	cJSON_Delete(expected);
}

static void test_reference_in_double(void **state)
{
	(void)state;
	compare_all(F64, TOLERANCE_F64);
}

static void test_reference_in_float(void **state)
{
	(void)state;
	compare_all(F32, TOLERANCE_F32);
}

/* ------------------------------------------------------------------ by hand */

/* One or two layers of width 4, one head, 9 positions; all weights zero but norms and alphas. */
static void open_small(struct model_case *k, const char *symbols)
{
	char all[512];
	struct error err;

	snprintf(all, sizeof(all),
		 "MODEL_VOCAB=11 MODEL_BLOCK=9 MODEL_HEADS=1 MODEL_EMBD=4 "
		 "FFN_MULT=2 WS_HEADS=2 RA_MLA_RA_WINDOW=3 %s",
		 symbols);
	case_open(k, F64, all);
	must(params_allocate(k->params, &k->backend, false, &err), &err);
	for (int i = 0; i < k->params->n; i++) {
		const struct param *p = &k->params->list[i];
		double *values = malloc((size_t)p->count * sizeof(*values));

		for (int64_t j = 0; j < p->count; j++)
			values[j] = p->init.kind == INIT_CONSTANT ? p->init.value : 0;
		must(param_set(k->params, i, values, &err), &err);
		free(values);
	}
}

/* Element (row, column) of a matrix becomes value(row, column). */
static void set_matrix(struct model_case *k, const char *name,
		       double (*value)(int64_t row, int64_t column))
{
	const int index = params_find(k->params, name);
	const struct param *p;
	double *values;
	struct error err;

	assert_true(index >= 0);
	p = &k->params->list[index];
	values = malloc((size_t)p->count * sizeof(*values));
	for (int64_t i = 0; i < p->count; i++)
		values[i] = value(i / p->dim[1], i % p->dim[1]);
	must(param_set(k->params, index, values, &err), &err);
	free(values);
}

static double embedding(int64_t token, int64_t channel)
{
	return sin((double)(3 * token + 7 * channel * channel + 1));
}

/* c_attn [4,12]: queries x, keys x, values 0. */
static double keys_are_queries(int64_t row, int64_t column)
{
	return column < 8 && column % 4 == row;
}

/* Keys x J with J antisymmetric: the score of i and j is minus that of j and i. */
static double keys_are_turned(int64_t row, int64_t column)
{
	static const double J[4][4] = {
		{ 0, 1, 2, -3 }, { -1, 0, 0.5, 1 }, { -2, -0.5, 0, 4 }, { 3, -1, -4, 0 }
	};

	if (column < 4)
		return column == row;
	return column < 8 ? J[row][column - 4] : 0;
}

/* Equal scores: row i is spread evenly over its i + 1 keys. */
static void test_even_attention(void **state)
{
	double entropy = 0, kept = 0, squares = 0, mass = 0;
	struct model_case k;
	struct values v;

	(void)state;
	open_small(&k, "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_K=4");
	v = measured(&k);
	for (int i = 1; i <= 9; i++) {
		entropy += log(i) / 9;
		kept += fmin(i, 4) / 9;
		squares += fmin(i, 4) * fmin(i, 4) / 9;
		mass += fmin(i, 4) / i / 9;
	}
	assert_value(&v, "attention/entropy/h.0", entropy);
	assert_value(&v, "attention/reciprocity/h.0", 0);
	assert_value(&v, "routing/kept/h.0", kept);
	assert_value(&v, "routing/mass/h.0", mass);
	assert_value(&v, "routing/kept/h.1", kept);
	assert_value(&v, "routing/spread/h.0", sqrt(squares - kept * kept));
	assert_value(&v, "routing/layers", 0);
	case_close(&k);

	open_small(&k, "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=rms "
		       "RA_MLA_MLP_SPARSE_RMS_THRESHOLD=1.001");
	v = measured(&k); /* every entry is the root mean square of its row */
	assert_value(&v, "routing/kept/h.0", 0);
	assert_value(&v, "routing/mass/h.0", 0);
	case_close(&k);

	open_small(&k, "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=rms "
		       "RA_MLA_MLP_SPARSE_RMS_THRESHOLD=0.999");
	v = measured(&k);
	assert_value(&v, "routing/kept/h.0", 5);
	assert_value(&v, "routing/spread/h.0", sqrt(20.0 / 3));
	assert_value(&v, "routing/mass/h.0", 1);
	case_close(&k);
}

static void test_reciprocity(void **state)
{
	struct model_case k;
	struct values v;

	(void)state;
	open_small(&k, "MODEL_LAYERS=1");
	set_matrix(&k, "wte.weight", embedding);
	set_matrix(&k, "h.0.attn.c_attn.weight", keys_are_queries);
	v = measured(&k);
	assert_value(&v, "attention/reciprocity/h.0", 1);
	set_matrix(&k, "h.0.attn.c_attn.weight", keys_are_turned);
	v = measured(&k);
	assert_value(&v, "attention/reciprocity/h.0", -1);
	case_close(&k);
}

static void test_gate_and_alphas(void **state)
{
	struct model_case k;
	struct values v;

	(void)state;
	open_small(&k, "RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_CROSS_TOKEN=y RECIP_LEARN_ALPHA=y");
	v = measured(&k);
	assert_value(&v, "gate/mean/h.0", 0.5); /* sigmoid(0) */
	assert_false(has(&v, "gate/mean/h.1")); /* the last layer sends nothing */
	assert_value(&v, "alpha/h.0.mlp.gate_alpha", 0.1);
	assert_value(&v, "alpha/h.1.mlp.cross_alpha", 0.3);
	assert_false(has(&v, "alpha/h.1.mlp.gate_alpha"));
	case_close(&k);

	open_small(&k, "RA_MLA_MLP_ATTN_GATE=y");
	v = measured(&k);
	assert_false(has(&v, "alpha/h.0.mlp.gate_alpha")); /* not learned */
	assert_false(has(&v, "routing/kept/h.0"));
	case_close(&k);
}

/* w1 [4,8]: h1 of both heads (4 channels each) is x ... */
static double heads_alike(int64_t row, int64_t column)
{
	return column % 4 == row;
}

/* ... or x and -x ... */
static double heads_opposed(int64_t row, int64_t column)
{
	return (column % 4 == row) * (column < 4 ? 1 : -1);
}

/* ... or (x_0, x_1, 0, 0) and (0, 0, x_0, x_1). */
static double heads_apart(int64_t row, int64_t column)
{
	return row < 2 && (column == row || column == row + 6);
}

static double unity(int64_t row, int64_t column)
{
	return row == column;
}

/* Two units outside of the diagonal blocks of 4, of 10 squares in all. */
static double unity_and_more(int64_t row, int64_t column)
{
	return row == column || (row == 1 && column == 6) || (row == 7 && column == 0);
}

static void test_ws(void **state)
{
	static const struct {
		double (*w1)(int64_t row, int64_t column);
		double similarity;
	} cases[] = { { heads_alike, 1 }, { heads_opposed, -1 }, { heads_apart, 0 } };
	struct model_case k;
	struct values v;

	(void)state;
	open_small(&k, "MODEL_LAYERS=1 FFN=ws");
	set_matrix(&k, "wte.weight", embedding);
	set_matrix(&k, "h.0.mlp.z_proj.weight", unity);
	for (size_t i = 0; i < COUNT(cases); i++) {
		set_matrix(&k, "h.0.mlp.w1.weight", cases[i].w1);
		v = measured(&k);
		assert_value(&v, "ws/similarity/h.0", cases[i].similarity);
		assert_value(&v, "ws/outside/h.0", 0);
	}
	set_matrix(&k, "h.0.mlp.z_proj.weight", unity_and_more);
	v = measured(&k);
	assert_value(&v, "ws/outside/h.0", 0.2);
	case_close(&k);

	open_small(&k, "MODEL_LAYERS=1 FFN=ws WS_Z_BLOCKS=y");
	v = measured(&k);
	assert_false(has(&v, "ws/outside/h.0")); /* Wz cannot leave its blocks */
	case_close(&k);
}

static void test_mutual_information(void **state)
{
	static const int32_t a[8] = { 0, 0, 1, 1, 2, 2, 3, 3 },
			     same[8] = { 3, 3, 1, 1, 0, 0, 2, 2 };
	static const int32_t half[8] = { 0, 0, 0, 0, 1, 1, 1, 1 },
			     none[8] = { 0, 1, 0, 1, 0, 1, 0, 1 };
	double table[16];

	(void)state;
	assert_near("one to one", mutual_information(a, 4, same, 4, 8, table), log(4), 1e-12);
	assert_near("two to one", mutual_information(a, 4, half, 2, 8, table), log(2), 1e-12);
	assert_near("independent", mutual_information(a, 4, none, 2, 8, table), 0, 1e-12);
}

/* The first head reads x_0, the second x_1. */
static double heads_special(int64_t row, int64_t column)
{
	return row < 2 && column == 5 * row;
}

/* Heads that read other channels tell tokens apart; those that all tokens move alike tell nothing.
 */
static void test_specialised_heads(void **state)
{
	struct model_case k;
	struct values v;

	(void)state;
	open_small(&k, "MODEL_LAYERS=1 FFN=ws");
	set_matrix(&k, "wte.weight", embedding);
	set_matrix(&k, "h.0.mlp.z_proj.weight", unity);
	set_matrix(&k, "h.0.mlp.w1.weight", heads_alike);
	v = measured(&k);
	assert_value(&v, "heads/information/h.0", 0);
	set_matrix(&k, "h.0.mlp.w1.weight", heads_special);
	v = measured(&k);
	assert_true(value_of(&v, "heads/information/h.0") > 2 * value_of(&v, "heads/shuffled/h.0"));
	assert_true(value_of(&v, "heads/shuffled/h.0") > 0);
	case_close(&k);
}

static void test_share_outside_blocks(void **state)
{
	static const double w[16] = { 1, 2, 3, 0, 0, 1, 0, 0, 0, 0, 2, 0, 4, 0, 1, 0 };
	static const double zero[4] = { 0 };

	(void)state;
	assert_near("two blocks", share_outside_blocks(w, 4, 2), 25.0 / 36, 1e-15);
	assert_near("one block", share_outside_blocks(w, 4, 1), 0, 0);
	assert_near("four blocks", share_outside_blocks(w, 4, 4), 30.0 / 36, 1e-15);
	assert_near("nothing", share_outside_blocks(zero, 2, 2), 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reference_in_double),
		cmocka_unit_test(test_reference_in_float),
		cmocka_unit_test(test_even_attention),
		cmocka_unit_test(test_reciprocity),
		cmocka_unit_test(test_gate_and_alphas),
		cmocka_unit_test(test_ws),
		cmocka_unit_test(test_mutual_information),
		cmocka_unit_test(test_specialised_heads),
		cmocka_unit_test(test_share_outside_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
