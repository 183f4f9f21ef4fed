/*
 * Fingerprints of a step and of its baseline: what is compared, what is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "core/util/test.h"
#include "tools/kablate/fingerprint.h"

struct parts {
	const char *symbols, *data, *start, *training, *graph, *gate, *norm, *loss, *gradient;
	const char *rule, *symbol;
};

static const struct parts baseline = { "s0", "d0",     "-",  "r0",    "g0", "",
				       "w0", "0x1p+0", "v0", "0:1:4", "l0" };

static char *text_of(const struct parts *p)
{
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	fprintf(file,
		"symbols - - %s\nsymbol LAYERS - %s\ndata - - %s\nstart - - %s\nrows training - %s\nrows validation - "
		"r1\n"
		"graph - - %s\n%sinitial norm %s %s\nloss - - %s\ngradient - - %s\n",
		p->symbols, p->symbol, p->data, p->start, p->training, p->graph, p->gate, p->rule,
		p->norm, p->loss, p->gradient);
	fclose(file);
	return text;
}

struct found {
	int n, failed;
	char failure[128], detail[160], subjects[400];
};

static void note(void *context, const struct audit_finding *f)
{
	struct found *found = context;

	assert_string_equal(f->audit, "pairing");
	found->n++;
	strcat(strcat(found->subjects, f->subject), ";");
	if (f->passed)
		return;
	found->failed++;
	snprintf(found->failure, sizeof(found->failure), "%s", f->subject);
	snprintf(found->detail, sizeof(found->detail), "%s", f->detail);
}

/* The fingerprints of step and baseline, but for what both share. */
static struct found compare_texts(const char *step, const char *other)
{
	static const char *const shared = "data - - d0\nstart - - -\nrows training - r0\n"
					  "rows validation - r1\nsymbols - - s0\n"
					  "gradient - - v0\n";
	char mine[600], theirs[600];
	struct found found = { 0 };
	struct error err;

	snprintf(mine, sizeof(mine), "%s%s", shared, step);
	snprintf(theirs, sizeof(theirs), "%s%s", shared, other);
	must(fingerprint_compare(mine, theirs, note, &found, &err), &err);
	return found;
}

static struct found compare(const struct parts *step)
{
	char *mine = text_of(step), *theirs = text_of(&baseline);
	struct found found = { 0 };
	struct error err;

	must(fingerprint_compare(mine, theirs, note, &found, &err), &err);
	free(mine);
	free(theirs);
	return found;
}

static void test_same_step(void **state)
{
	struct found found = compare(&baseline); /* a repeat, or a null step */

	(void)state;
	assert_int_equal(found.failed, 0);
	assert_string_equal(found.subjects, "training rows;validation rows;initial weights;");
}

/* Graph, parameters, loss or gradient: one difference is enough. */
static void test_different_step(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		struct parts step = baseline;
		struct found found;

		step.symbols = "s1";
		step.graph = i == 0 ? "g1" : "g0";
		step.gate = i == 1 ? "initial gate 1:1:8 x\n" : "";
		step.loss = i == 2 ? "0x1p+1" : "0x1p+0";
		step.gradient = i == 3 ? "v1" : "v0";
		found = compare(&step);
		assert_int_equal(found.failed, 0);
		assert_non_null(strstr(found.subjects, "difference;"));
	}
}

static void test_trains_its_baseline(void **state)
{
	struct parts step = baseline;
	struct found found;

	(void)state;
	step.symbols = "s1";
	found = compare(&step);
	assert_int_equal(found.failed, 1);
	assert_string_equal(found.failure, "difference");
	assert_non_null(strstr(found.detail, "this step trains its baseline"));
}

static void test_other_rows(void **state)
{
	struct parts step = baseline;
	struct found found;

	(void)state;
	step.training = "r7";
	found = compare(&step);
	assert_int_equal(found.failed, 1);
	assert_string_equal(found.failure, "training rows");
	step.data = "d1"; /* another task has other rows */
	assert_int_equal(compare(&step).failed, 0);
}

static void test_other_weights(void **state)
{
	struct parts step = baseline;
	struct found found;

	(void)state;
	step.symbols = "s1";
	step.norm = "w1";
	found = compare(&step);
	assert_int_equal(found.failed, 1);
	assert_string_equal(found.failure, "initial weights");
	assert_string_equal(found.detail, "norm starts with other values than in the baseline");
	step.start = "file"; /* these are not drawn */
	assert_int_equal(compare(&step).failed, 0);
}

/* A tensor of both arms that begins otherwise: is there a symbol that can say so? */
static void test_other_rule(void **state)
{
	struct parts step = baseline;
	struct found found;

	(void)state;
	step.symbols = "s1";
	step.norm = "w1";
	step.rule = "0:2:4";
	found = compare(&step);
	assert_int_equal(found.failed, 1);
	assert_string_equal(found.failure, "initial weights");
	assert_string_equal(found.detail, "norm is drawn by another rule than in the baseline, and "
					  "no symbol says so");
	step.symbol = "l1";
	assert_int_equal(compare(&step).failed, 0);
	step.symbol = "l0";
	step.rule = "0:1:5"; /* a tensor of another shape */
	assert_int_equal(compare(&step).failed, 0);
}

/* Both arms have the tensor and the symbol; both begin otherwise: does the symbol excuse it? */
static bool excuses(const char *symbol, const char *tensor)
{
	char step[200], other[200];

	snprintf(step, sizeof(step), "symbol %s - l1\ninitial %s 0:2:4 w1\n", symbol, tensor);
	snprintf(other, sizeof(other), "symbol %s - l0\ninitial %s 0:1:4 w0\n", symbol, tensor);
	return compare_texts(step, other).failed == 0;
}

static void test_symbols_of_a_tensor(void **state)
{
	(void)state;
	assert_true(excuses("INIT_STD", "h.0.mlp.c_fc.weight"));
	assert_true(excuses("INIT", "wte.weight"));
	assert_true(excuses("MODEL_LAYERS", "h.1.attn.c_proj.weight"));
	assert_true(excuses("GATE_ALPHA", "h.0.mlp.gate_alpha"));
	assert_true(excuses("MODEL_HEADS", "h.0.attn.tau"));
	assert_true(excuses("WS_HEADS", "h.0.mlp.z_proj.weight"));
	assert_true(excuses("ANY", "h.0.mlp.a_tensor_of_a_user"));
	assert_false(excuses("GATE_ALPHA", "h.0.mlp.c_fc.weight"));
	assert_false(excuses("MODEL_LAYERS", "h.0.mlp.c_fc.weight"));
	assert_false(excuses("INIT_STD", "h.0.mlp.gate_alpha"));
	assert_false(excuses("INIT_STD", "ln_f.bias"));
}

static void test_silent_baseline(void **state)
{
	char *mine = text_of(&baseline);
	struct found found = { 0 };
	struct error err;

	(void)state;
	assert_int_equal(fingerprint_compare(mine, "", note, &found, &err), FAIL);
	assert_string_equal(err.text, "the baseline's program does not say what it trains");
	free(mine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_step),	    cmocka_unit_test(test_different_step),
		cmocka_unit_test(test_trains_its_baseline), cmocka_unit_test(test_other_rows),
		cmocka_unit_test(test_other_weights),	    cmocka_unit_test(test_other_rule),
		cmocka_unit_test(test_symbols_of_a_tensor), cmocka_unit_test(test_silent_baseline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
