/*
 * A symbol that is said not to decide the function changes no bit of a logit, and a symbol that
 * changes a logit is said to decide the function.
 */
#include "models/decode.h"
#include "models/function.h"
#include "models/model_case.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { TOKENS = 8, MAX_VOCAB = 256 };

struct change {
	const char *vector, *symbol, *value;
};

/* The logits of the model of this configuration, with the weights of the case. */
static void logits_of(struct model_case *k, struct config *c, double *logits)
{
	int32_t tokens[TOKENS], targets[TOKENS];
	struct decoder *d;
	struct model *m;
	struct error err;

	must(model_read(&m, c, &(struct model_task){ .vocab = k->model->vocab }, &err), &err);
	assert_true(m->vocab <= MAX_VOCAB && m->length >= TOKENS);
	case_row(m, 0, 0, TOKENS, tokens, targets);
	must(decoder_create(&d, m, k->params, &k->backend, MODEL_NEXT, 1, TOKENS, &err), &err);
	must(decoder_prompt(d, TOKENS, tokens, &err), &err);
	decoder_output(d, "logits", logits);
	decoder_destroy(d);
	model_free(m);
}

/* Does this setting change any logit? */
static bool acts(const struct change *change)
{
	double before[MAX_VOCAB] = { 0 }, after[MAX_VOCAB] = { 0 };
	struct model_case k;
	struct config *c;
	struct error err;

	case_open_vector(&k, F64, change->vector);
	must(config_copy(&c, k.config, &err), &err);
	logits_of(&k, c, before);
	must(config_set(c, change->symbol, change->value, &err), &err);
	logits_of(&k, c, after);
	config_free(c);
	case_close(&k);
	return memcmp(before, after, sizeof(before)) != 0;
}

struct wanted {
	const char *symbol;
	bool found;
};

static void look_for(void *context, const char *name, const char *value)
{
	struct wanted *w = context;

	assert_non_null(value);
	w->found |= strcmp(name, w->symbol) == 0;
}

static bool decides(const struct change *change)
{
	struct wanted wanted = { .symbol = change->symbol };
	struct model_case k;
	struct error err;

	case_open_vector(&k, F64, change->vector);
	must(model_function(k.config, k.model->vocab, look_for, &wanted, &err), &err);
	case_close(&k);
	return wanted.found;
}

static void test_what_acts_decides(void **state)
{
	static const struct change changes[] = {
		{ "dot-rope", "POS", "alibi" },	       { "dot-rope", "ROPE_THETA", "77" },
		{ "dot-rope", "NORM_EPS", "0.1" },     { "dot-rope", "NORM_PLACE", "post" },
		{ "mla-ra", "RA_MLA_RA_WINDOW", "1" }, { "mla-ra", "RA_MLA_RA_ALPHA", "0.9" },
		{ "w2", "W2_SCORE", "overlap" },       { "w2", "W2_EPS", "0.5" },
		{ "gate", "GATE_ALPHA", "0.9" },       { "gate", "GATE_POOL", "token" },
		{ "cross", "CROSS_ALPHA", "0.9" },     { "cross", "RA_MLA_MLP_SPARSE_K", "1" },
		{ "recip", "RECIP_ALPHA", "0.9" },     { "dot", "MODEL_HEADS", "1" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(changes); i++) {
		if (!acts(&changes[i]))
			fail_msg("CONFIG_%s of %s changes no logit", changes[i].symbol,
				 changes[i].vector);
		if (!decides(&changes[i]))
			fail_msg("CONFIG_%s decides the function", changes[i].symbol);
	}
}

static void test_what_is_ignored_does_not_act(void **state)
{
	static const struct change changes[] = {
		{ "dot", "INIT", "orthogonal" },
		{ "dot", "INIT_STD", "0.5" },
		{ "dot", "DROPOUT", "0.3" },
		{ "all", "MERGE_LINEARS", "y" },
		{ "dot", "LOSS_LOGITS_Z", "0.1" },
		{ "recip", "RECIP_DETACH", "y" },
		{ "cross", "CROSS_GRADIENT", "y" },
		{ "ws", "WS_LAMBDA_Z", "0.7" },
		{ "ws", "WS_LAMBDA_C", "0.7" },
		{ "ws", "WS_TAU", "0.7" },
		{ "ws", "WS_AUX", "n" },
		{ "ws", "WS_HEADS", "1" },
		{ "ws", "WS_Z_BLOCKS", "y" },
		{ "dot-rope", "MODEL_BLOCK", "100" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(changes); i++) {
		if (acts(&changes[i]))
			fail_msg("CONFIG_%s of %s changes the logits", changes[i].symbol,
				 changes[i].vector);
		if (!function_ignores(changes[i].symbol) || decides(&changes[i]))
			fail_msg("CONFIG_%s does not decide the function", changes[i].symbol);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_acts_decides),
		cmocka_unit_test(test_what_is_ignored_does_not_act),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
