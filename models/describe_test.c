/*
 * What a configuration costs: parameters per module, work against a count by hand, decode state
 * against the specification's formulas, and JSON that parses.
 */
#include <math.h>

#include "core/backend/open.h"
#include "models/describe.h"
#include "models/model_case.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* GPT-2 124M: E 768, N 12, T 1024, V 50304. */
#define GPT2                                                                                \
	"MODEL_VOCAB=50304 MODEL_BLOCK=1024 MODEL_LAYERS=12 MODEL_HEADS=12 MODEL_EMBD=768 " \
	"RA_MLA_LATENT_DIM=128 GATE_DIM=64 "

static const struct description_options options = {
	.batch = 4,
	.length = 1024,
	.optimizer = { .kind = OPTIM_ADAMW },
	.context = 1000,
	.recompute = true,
	.planner = true,
};

static struct description describe(const char *symbols, const struct description_options *o)
{
	struct config *c = case_config(symbols);
	const struct backend backend = backend_for_tests(FLOAT32, 1);
	const struct model_task task = { .batch = o->batch };
	struct description d;
	struct model *m;
	struct error err;

	must(model_read(&m, c, &task, &err), &err);
	must(describe_model(m, &backend, o, &d, &err), &err);
	model_free(m);
	config_free(c);
	return d;
}

static void assert_number(const char *what, double value, double expected)
{
	if (!(fabs(value - expected) <= 1e-9 * fabs(expected)))
		fail_msg("%s is %.17g, not %.17g", what, value, expected);
}

static void test_parameters_add_up(void **state)
{
	static const char *const symbols[] = {
		GPT2,
		GPT2 "MODEL_TIE_HEAD=n POS=rope",
		GPT2 "ATTENTION=mla RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_CROSS_TOKEN=y "
		     "RA_MLA_MLP_LATENT_RECIP=y RECIP_LEARN_ALPHA=y",
		"ATTENTION=w2 FFN=ws NORM=rms ATTENTION_OUT_GATE=channel",
		"MODEL_DECODER=y",
		"FFN=soft_moe MOE_PREFIX=y",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(symbols); i++) {
		const struct description_options small = { .batch = 1, .length = 8, .context = 1 };
		const struct description d = describe(symbols[i], &small);
		int64_t sum = 0;

		for (int j = 0; j < MODULES; j++)
			sum += d.module_parameters[j];
		assert_int_equal(sum, d.parameters);
	}
}

static void test_modules_of_gpt2(void **state)
{
	const int64_t E = 768, N = 12, T = 1024, V = 50304;
	const struct description d = describe(GPT2, &options),
				 untied = describe(GPT2 "MODEL_TIE_HEAD=n", &options);
	struct description_options muon = options;

	(void)state;
	assert_int_equal(d.module_parameters[MODULE_EMBEDDING], V * E + T * E);
	assert_int_equal(d.module_parameters[MODULE_ATTENTION], N * (4 * E * E + 4 * E));
	assert_int_equal(d.module_parameters[MODULE_FFN], N * (8 * E * E + 5 * E));
	assert_int_equal(d.module_parameters[MODULE_NORM], N * 4 * E + 2 * E);
	assert_int_equal(d.module_parameters[MODULE_HEAD], 0);
	assert_int_equal(untied.module_parameters[MODULE_HEAD], V * E);
	assert_number("feed-forward per attention", d.ffn_per_attention,
		      (double)(8 * E + 5) / (double)(4 * E + 4));
	assert_int_equal(d.weights_bytes, 4 * 124475904);
	assert_int_equal(d.gradient_bytes, 4 * 124475904);
	assert_int_equal(d.optimizer_bytes, 8 * 124475904);
	muon.optimizer.kind = OPTIM_MUON;
	/* Muon keeps one number for an element of a matrix, two for any other. */
	assert_int_equal(describe(GPT2, &muon).optimizer_bytes,
			 8 * 124475904 - 4 * (int64_t)(N * 12 * E * E));
	/* At least the residual stream once per layer; at most forty times that. */
	assert_true(d.activation_bytes > (size_t)(options.batch * T * E * N) * sizeof(float));
	assert_true(d.activation_bytes < (size_t)(options.batch * T * E * N) * sizeof(float) * 40);
}

/*
 * A product of a token with an [i,o] matrix is 2 i o operations, its backward pass twice that.  A
 * query sees (T + 1) / 2 keys on average; scores and values cost 2 E each per key, and the backward
 * pass makes the scores again: 3 products for them, 2 for the values.
 */
static void test_work_of_gpt2(void **state)
{
	const double E = 768, N = 12, T = 1024, V = 50304, keys = (T + 1) / 2;
	const struct description d = describe(GPT2, &options);
	double forward = 0;

	(void)state;
	assert_number("attention forward", d.forward_flops[MODULE_ATTENTION],
		      N * (2 * 4 * E * E + 4 * E * keys));
	assert_number("attention backward", d.backward_flops[MODULE_ATTENTION],
		      N * (4 * 4 * E * E + 10 * E * keys));
	assert_number("feed-forward forward", d.forward_flops[MODULE_FFN], N * 2 * 8 * E * E);
	assert_number("feed-forward backward", d.backward_flops[MODULE_FFN], N * 4 * 8 * E * E);
	assert_number("head forward", d.forward_flops[MODULE_HEAD], 2 * V * E);
	assert_number("head backward", d.backward_flops[MODULE_HEAD], 4 * V * E);
	for (int i = 0; i < MODULES; i++)
		forward += d.forward_flops[i];
	/* The rule of thumb, 2 per parameter (positions cost nothing), and the scores. */
	assert_number("all forward, roughly", round(forward / 2e7),
		      round((2 * (124475904 - T * E) + N * 4 * E * keys) / 2e7));
}

#define ALL \
	GPT2 "ATTENTION=mla RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_LATENT_RECIP=y CROSS_FOLDED=y "

/* What mechanism 2 adds to the forward work of the feed-forward, with so many rows in a batch. */
static double cross_flops(int64_t rows, const char *folded)
{
	const struct description_options o = { .batch = rows, .length = 1024, .context = 1 };
	char symbols[400];

	snprintf(symbols, sizeof(symbols),
		 GPT2 "ATTENTION=mla RA_MLA_MLP_CROSS_TOKEN=y CROSS_FOLDED=%s", folded);
	return describe(symbols, &o).forward_flops[MODULE_FFN] -
	       describe(GPT2 "ATTENTION=mla", &o).forward_flops[MODULE_FFN];
}

static void test_work_of_folding(void **state)
{
	const double E = 768, N = 12, F = 3072, k = 8, tokens = 16 * 1024;

	(void)state;
	assert_number("mixed, projected, added", cross_flops(16, "n"),
		      N * (2 * k * F + 2 * F * F + 2 * F));
	assert_number("folded", cross_flops(16, "y"),
		      N * (2 * k * E + 2 * F * E + 2 * F * F * E / tokens + 2 * E));
	assert_number("few tokens", cross_flops(1, "y"), cross_flops(1, "n"));
}

/* How the engine makes products changes no figure of the model. */
static void test_work_of_merged_linears(void **state)
{
	const struct description_options o = { .batch = 16, .length = 1024, .context = 1 };
	const struct description apart = describe(ALL "MERGE_LINEARS=n", &o);
	const struct description merged = describe(ALL "MERGE_LINEARS=y", &o);

	(void)state;
	assert_int_equal(merged.parameters, apart.parameters);
	assert_number("merged", description_flops(&merged), description_flops(&apart));
	assert_true(merged.activation_bytes != apart.activation_bytes);
}

/* The forward work of a model whose gate is, or is not, known to read h by products alone. */
static double flops_with_gate(const char *folded, bool plain_reader)
{
	const struct description_options o = { .batch = 16, .length = 1024, .context = 1 };
	const struct backend backend = backend_for_tests(FLOAT32, 1);
	struct mechanism gate;
	struct description d;
	struct model_case k;
	struct error err;
	char symbols[400];

	snprintf(symbols, sizeof(symbols),
		 GPT2 "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_ATTN_GATE=y CROSS_FOLDED=%s", folded);
	case_open(&k, F32, symbols);
	gate = *k.model->mechanism[1];
	assert_string_equal(gate.name, "attn_gate");
	gate.plain_reader = plain_reader;
	k.model->mechanism[1] = &gate;
	must(describe_model(k.model, &backend, &o, &d, &err), &err);
	case_close(&k);
	return d.forward_flops[MODULE_FFN];
}

/* With a mechanism that reads h in any other way, cross is not folded. */
static void test_strange_reader(void **state)
{
	const double unfolded = flops_with_gate("n", true);

	(void)state;
	assert_true(flops_with_gate("y", true) < unfolded);
	assert_number("with a strange reader", flops_with_gate("y", false), unfolded);
}

/* Numbers per token and layer, and per sequence: 11 layers send a gate to the next. */
static const struct {
	const char *symbols;
	int64_t token, fixed;
} decoding[] = {
	{ GPT2, 2 * 768, 0 },
	{ GPT2 "ATTENTION_KV_HEADS=4", 2 * 4 * 64, 0 },
	{ GPT2 "ATTENTION_KV_HEADS=1", 2 * 64, 0 },
	{ GPT2 "ATTENTION=mla", 2 * 128, 0 },
	{ GPT2 "ATTENTION=mla RA_MLA_RA_ALPHA=0.5 RA_MLA_RA_WINDOW=64", 2 * 128,
	  12 * 64 * 12 * 128 },
	{ GPT2 "ATTENTION=deepseek POS=rope", 128 + 32, 0 },
	{ GPT2 "ATTENTION=deepseek POS=rope DEEPSEEK_ROPE_DIM=16", 128 + 16, 0 },
	{ GPT2 "ATTENTION=deepseek POS=alibi", 128, 0 },
	{ GPT2 "ATTENTION=w2", 3 * 768 + 12, 0 },
	{ GPT2 "ATTENTION=w2 W2_SCORE=overlap", 2 * 768 + 12, 0 },
	{ GPT2 "ATTENTION=gla", 0, 12 * 768 * 32 },
	{ GPT2 "ATTENTION=gla GLA_KEY_DIM=7", 0, 12 * 768 * 7 },
	{ GPT2 "ATTENTION=delta", 0, 12 * (768 * 32 + 3 * 2 * 768) },
	{ GPT2 "ATTENTION=delta DELTA_KEY_DIM=16 DELTA_CONV=1", 0, 12 * 768 * 16 },
	{ GPT2 "FFN=soft_moe", 2 * 768, 0 },
	{ GPT2 "FFN=soft_moe MOE_PREFIX=y", 2 * 768, 12 * 4 * 769 },
	{ GPT2 "ATTENTION=mla RA_MLA_MLP_CROSS_TOKEN=y", 2 * 128 + 3072, 0 },
	{ GPT2 "ATTENTION=mla RA_MLA_MLP_CROSS_TOKEN=y CROSS_RANK=32", 2 * 128 + 32, 0 },
	{ GPT2 "ATTENTION=mla RA_MLA_MLP_ATTN_GATE=y", 2 * 128, 11 * 64 },
	{ GPT2 "ATTENTION=mla RA_MLA_MLP_ATTN_GATE=y GATE_POOL=token", 2 * 128, 0 },
	{ GPT2 "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y", 2 * 128, 0 },
	{ GPT2 "ATTENTION=mla RA_MLA_RA_ALPHA=0.5 RA_MLA_RA_WINDOW=64 RA_MLA_MLP_ATTN_GATE=y "
	       "RA_MLA_MLP_CROSS_TOKEN=y",
	  2 * 128 + 3072, 12 * 64 * 12 * 128 + 11 * 64 },
};

static void test_decode_state(void **state)
{
	const struct description_options small = { .batch = 1, .length = 8, .context = 1000 };

	(void)state;
	for (size_t i = 0; i < COUNT(decoding); i++) {
		const struct description d = describe(decoding[i].symbols, &small);
		const double token = (double)decoding[i].token, fixed = (double)decoding[i].fixed;

		assert_number(decoding[i].symbols, d.decode_token_bytes, 4 * 12 * token);
		assert_number(decoding[i].symbols, d.decode_fixed_bytes, 4 * fixed);
		assert_number("bytes in all", d.decode_total_bytes,
			      4 * (12 * 1000 * token + fixed));
		assert_string_equal(d.decode_refusal.text, "");
	}
}

static void test_decode_refusal(void **state)
{
	const struct description_options small = { .batch = 1, .length = 8, .context = 9 };
	const struct description d =
		describe("ATTENTION=mla RA_MLA_MLP_ATTN_GATE=y GATE_POOL=sequence", &small);
	const struct description decoder = describe(GPT2 "MODEL_DECODER=y", &small);

	(void)state;
	assert_non_null(strstr(decoder.decode_refusal.text, "MODEL_DECODER=y"));
	assert_int_equal(decoder.module_parameters[MODULE_HEAD], 2 * 768 * 769 + 3 * 2 * 768);
	assert_non_null(strstr(d.decode_refusal.text, "GATE_POOL=sequence"));
	assert_true(isnan(d.decode_token_bytes) && isnan(d.decode_total_bytes));
}

/* Printed by the function, as text that the caller frees. */
static char *printed(void (*print)(const struct description *d, FILE *file),
		     const struct description *d)
{
	char *text;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	print(d, file);
	fclose(file);
	return text;
}

static void test_json(void **state)
{
	const struct description d =
		describe(GPT2 "ATTENTION=mla RA_MLA_MLP_ATTN_GATE=y", &options);
	char *text = printed(description_json, &d);
	cJSON *json = cJSON_Parse(text);
	const cJSON *modules;
	double sum = 0;

	(void)state;
	assert_non_null(json);
	assert_int_equal(case_number(json, "parameters"), 117172992);
	modules = case_item(json, "modules");
	for (int i = 0; i < MODULES; i++) {
		const cJSON *module = case_item(modules, module_names[i]);

		sum += case_number(module, "parameters");
		assert_number("forward", case_number(module, "forward_flops"),
			      round(d.forward_flops[i]));
		assert_number("backward", case_number(module, "backward_flops"),
			      round(d.backward_flops[i]));
	}
	assert_int_equal(sum, 117172992);
	assert_int_equal(case_number(json, "decode_token_bytes"), 4 * 12 * 256);
	assert_int_equal(case_number(json, "decode_fixed_bytes"), 4 * 11 * 64);
	assert_int_equal(case_number(json, "context"), 1000);
	assert_int_equal(case_number(json, "decode_total_bytes"), 4 * (12 * 256 * 1000 + 11 * 64));
	assert_int_equal(case_number(json, "activation_bytes"), d.activation_bytes);
	cJSON_Delete(json);
	free(text);
}

static void test_text(void **state)
{
	const struct description d = describe(GPT2 "ATTENTION=mla", &options);
	char *text = printed(description_print, &d);

	(void)state;
	assert_non_null(strstr(text, "115001856"));
	assert_non_null(strstr(text, "decode state: 12288 bytes per token, 0 per sequence"));
	free(text);
}

/* The planner saves memory by sharing it; making tensors again saves more. */
static void test_planner_saves(void **state)
{
	struct description_options small = { .batch = 2, .length = 64, .context = 1 };
	const struct description none = describe("", &small);
	struct description planned, both;

	(void)state;
	small.planner = true;
	planned = describe("", &small);
	small.recompute = true;
	both = describe("", &small);
	assert_true(planned.activation_bytes < none.activation_bytes);
	assert_true(both.activation_bytes < planned.activation_bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parameters_add_up),
		cmocka_unit_test(test_modules_of_gpt2),
		cmocka_unit_test(test_work_of_gpt2),
		cmocka_unit_test(test_work_of_folding),
		cmocka_unit_test(test_work_of_merged_linears),
		cmocka_unit_test(test_strange_reader),
		cmocka_unit_test(test_decode_state),
		cmocka_unit_test(test_decode_refusal),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_planner_saves),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
