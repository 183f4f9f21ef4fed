/*
 * The counts of parameters of the study and of the W2 benchmark, to the last digit; and
 * configurations that must be refused, with the reason.
 */
#include "models/model_case.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define GPT2_124M                                                                           \
	"MODEL_VOCAB=50304 MODEL_BLOCK=1024 MODEL_LAYERS=12 MODEL_HEADS=12 MODEL_EMBD=768 " \
	"RA_MLA_LATENT_DIM=128 GATE_DIM=64 RECIP_LATENT=128 "
#define MLA GPT2_124M "ATTENTION=mla "
#define GATE MLA "RA_MLA_MLP_ATTN_GATE=y "
#define CROSS GATE "RA_MLA_MLP_CROSS_TOKEN=y "
#define LATENT CROSS "RA_MLA_MLP_LATENT_RECIP=y "

/* The models of the W2 benchmark. */
#define BENCHMARK                                                                             \
	"MODEL_VOCAB=1024 MODEL_LAYERS=2 NORM=rms NORM_EPS=1e-6 FINAL_NORM=layer FFN=swiglu " \
	"POS=rope MODEL_BIAS=n MODEL_TIE_HEAD=n "

static const struct {
	const char *symbols;
	int64_t parameters;
} counts[] = {
	{ GPT2_124M, 124475904 },
	{ MLA, 115001856 },
	{ GATE, 117172992 },
	{ CROSS, 230419200 },
	{ LATENT, 235137792 },
	{ LATENT "RA_MLA_MLP_TYING_MODE=bottleneck", 239643392 },
	{ BENCHMARK "ATTENTION=w2 MODEL_EMBD=64 MODEL_HEADS=4", 278912 + 2 * 4 }, /* tau [N,H] */
	{ BENCHMARK "ATTENTION=w2 W2_SCORE=overlap MODEL_EMBD=64 MODEL_HEADS=4", 278912 },
	{ BENCHMARK "ATTENTION=w2cov MODEL_EMBD=64 MODEL_HEADS=32", 278912 + 2 * (64 * 64 + 32) },
	{ BENCHMARK "MODEL_EMBD=96 MODEL_HEADS=6", 492096 },
	{ BENCHMARK "MODEL_EMBD=64 MODEL_HEADS=4", 262528 },
	/* 12 E^2 + 13 E per layer, V E + T E + 2 E. */
	{ GPT2_124M "MODEL_LAYERS=24 MODEL_HEADS=16 MODEL_EMBD=1024", 354871296 },
	{ GPT2_124M "MODEL_LAYERS=36 MODEL_HEADS=20 MODEL_EMBD=1280", 774090240 },
	{ GPT2_124M "MODEL_LAYERS=48 MODEL_HEADS=25 MODEL_EMBD=1600", 1557686400 },
	/* The vocabulary of the public checkpoints, unpadded. */
	{ GPT2_124M "MODEL_VOCAB=50257", 124439808 },
};

static void test_counts(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(counts); i++) {
		struct model_case k;

		case_open(&k, F32, counts[i].symbols);
		if (params_count(k.params) != counts[i].parameters)
			fail_msg("%s: %lld parameters, not %lld", counts[i].symbols,
				 (long long)params_count(k.params),
				 (long long)counts[i].parameters);
		case_close(&k);
	}
}

/* Evaluation and logits read only parameters of the training graph. */
static void test_every_purpose_has_the_same_parameters(void **state)
{
	static const enum model_purpose purposes[] = { MODEL_EVAL, MODEL_LOGITS, MODEL_NEXT,
						       MODEL_PROBE };
	static const char *const symbols[] = { "", LATENT, LATENT "FFN=ws RECIP_LEARN_ALPHA=y",
					       "ATTENTION=w2 FFN=ws ATTENTION_OUT_GATE=head" };

	(void)state;
	for (size_t i = 0; i < COUNT(symbols); i++)
		for (size_t j = 0; j < COUNT(purposes); j++) {
			struct model_case k;
			struct token_io io;
			struct graph *g;
			struct error err;
			int n;

			case_open(&k, F32, symbols[i]);
			n = k.params->n;
			must(graph_create(&g, k.params, false, &err), &err);
			model_build(k.model, g, purposes[j], 2, 8, &io);
			must(graph_finish(g, &err), &err);
			assert_int_equal(k.params->n, n);
			graph_destroy(g);
			case_close(&k);
		}
}

static const struct {
	const char *symbols, *reason;
} refused[] = {
	{ "MODEL_LAYERS=0", "must be positive" },
	{ "MODEL_HEADS=0", "must be positive" },
	{ "MODEL_EMBD=0", "must be positive" },
	{ "MODEL_BLOCK=0", "must be positive" },
	{ "MODEL_VOCAB=0", "must be positive" }, /* and the data has none either */
	{ "MODEL_LAYERS=-1", "must be positive" },
	{ "MODEL_HEADS=3", "MODEL_EMBD=32 is not divisible by MODEL_HEADS=3" },
	{ "FFN_MULT=0.01", "no hidden channels" },
	{ "FFN_HIDDEN=-4", "no hidden channels" },
	{ "DROPOUT=1", "DROPOUT=1 must be at least 0" },
	{ "DROPOUT=-0.1", "DROPOUT=-0.1 must be at least 0" },
	{ "DROPOUT=much", "DROPOUT" },
	{ "NORM_EPS=0", "NORM_EPS=0 must be positive" },
	{ "INIT_STD=0", "INIT_STD=0 must be positive" },
	{ "POS=rope ROPE_THETA=0", "ROPE_THETA=0 must be positive" },
	{ "POS=rope MODEL_EMBD=36", "even head width, not 9" },
	{ "NORM=batch", "NORM" },
	{ "ATTENTION=linear", "'linear' is not part of this program" },
	{ "ATTENTION_KV_HEADS=3", "MODEL_HEADS=4 is not divisible by ATTENTION_KV_HEADS=3" },
	{ "ATTENTION_KV_HEADS=8", "MODEL_HEADS=4 is not divisible by ATTENTION_KV_HEADS=8" },
	{ "ATTENTION_KV_HEADS=-1", "ATTENTION_KV_HEADS=-1" },
	{ "ATTENTION=mla RA_MLA_LATENT_DIM=0", "RA_MLA_LATENT_DIM=0 must be positive" },
	{ "ATTENTION=mla POS=rope RA_MLA_LATENT_DIM=7", "even RA_MLA_LATENT_DIM, not 7" },
	{ "ATTENTION=mla RA_MLA_RA_ALPHA=-1", "RA_MLA_RA_ALPHA=-1 must not be negative" },
	{ "ATTENTION=mla RA_MLA_RA_WINDOW=-1", "RA_MLA_RA_WINDOW=-1 must not be negative" },
	{ "ATTENTION=w2 W2_EPS=0", "W2_EPS=0 must be positive" },
	{ "ATTENTION=w2 POS=rope MODEL_EMBD=36", "even head width, not 9" },
	{ "ATTENTION=w2cov W2COV_EPS=0", "W2COV_EPS=0 must be positive" },
	{ "ATTENTION=w2cov MODEL_EMBD=36", "the head width 9 is not even" },
	{ "ATTENTION=w2cov POS=alibi", "CONFIG_POS needs attention scores" },
	{ "ATTENTION=gla GLA_TAU=0", "GLA_TAU=0 must be positive" },
	{ "ATTENTION=gla GLA_GATE_RANK=0", "GLA_GATE_RANK=0 must be positive" },
	{ "ATTENTION=gla GLA_KEY_DIM=3 POS=rope", "rope needs an even key width, not 3" },
	{ "ATTENTION=delta DELTA_CONV=0", "DELTA_CONV=0 must be 1 to 16" },
	{ "ATTENTION=delta DELTA_KEY_DIM=-1", "DELTA_KEY_DIM=-1 must not be negative" },
	{ "ATTENTION=delta DELTA_KEY_DIM=3 POS=rope", "rope needs an even key width, not 3" },
	{ "ATTENTION=delta RA_MLA_MLP_CROSS_TOKEN=y", "CROSS_TOKEN needs attention scores" },
	{ "POS=t5 T5_BUCKETS=1", "T5_BUCKETS=1 must be at least 2" },
	{ "POS=t5 T5_DISTANCE=16", "T5_DISTANCE=16 must be more than half of T5_BUCKETS=32" },
	{ "ATTENTION=gla POS=alibi", "CONFIG_POS needs attention scores" },
	{ "ATTENTION=gla RA_MLA_MLP_CROSS_TOKEN=y", "CROSS_TOKEN needs attention scores" },
	{ "ATTENTION=deepseek POS=rope DEEPSEEK_ROPE_DIM=3",
	  "rope needs an even DEEPSEEK_ROPE_DIM, not 3" },
	{ "ATTENTION=deepseek RA_MLA_LATENT_DIM=0", "RA_MLA_LATENT_DIM=0 must be positive" },
	{ "FFN=relu", "'relu' is not part of this program" },
	{ "FFN=soft_moe MOE_EXPERTS=1", "MOE_EXPERTS=1: one expert needs no router" },
	{ "FFN=soft_moe MOE_EXPERTS=5", "hidden width 128 is not divisible by MOE_EXPERTS=5" },
	{ "FFN=ws WS_HEADS=5", "hidden width 128 is not divisible by WS_HEADS=5" },
	{ "FFN=ws WS_HEADS=0", "WS_HEADS=0" },
	{ "FFN=ws WS_TAU=0", "WS_TAU=0 must be positive" },
	{ "FFN=ws WS_LAMBDA_C=-1", "must not be negative" },
	{ "RA_MLA_MLP_ATTN_GATE=y GATE_DIM=0", "GATE_DIM=0 must be positive" },
	{ "RA_MLA_MLP_ATTN_GATE=y GATE_POOL=future", "GATE_POOL" },
	{ "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_K=0",
	  "RA_MLA_MLP_SPARSE_K=0 must be positive" },
	{ "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=some", "RA_MLA_MLP_SPARSE_MODE" },
	{ "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_RMS_THRESHOLD=-1", "must not be negative" },
	{ "RA_MLA_MLP_CROSS_TOKEN=y CROSS_RANK=-1", "CROSS_RANK=-1 must not be negative" },
	{ "RA_MLA_MLP_CROSS_TOKEN=y CROSS_FOLDED=y CROSS_RANK=4",
	  "CROSS_FOLDED needs CROSS_RANK=0" },
	{ "RA_MLA_MLP_LATENT_RECIP=y",
	  "needs an attention with latents (mla, deepseek); 'dot' has none" },
	{ "ATTENTION=w2 RA_MLA_MLP_LATENT_RECIP=y", "needs an attention with latents" },
	{ "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y RA_MLA_MLP_TYING_MODE=bottleneck RECIP_LATENT=0",
	  "RECIP_LATENT=0 must be positive" },
	{ "ATTENTION=differential MODEL_EMBD=36", "the head width 9 is no multiple of 2" },
	{ "ATTENTION=differential POS=rope MODEL_EMBD=24", "the head width 6 is no multiple of 4" },
};

static void test_refused(void **state)
{
	const struct model_task few_tokens = { .batch = 1 }; /* a refusal does not depend on them */

	(void)state;
	for (size_t i = 0; i < COUNT(refused); i++) {
		struct config *c = case_config(refused[i].symbols);
		struct model *m;
		struct error err;

		if (model_read(&m, c, &few_tokens, &err) == OK)
			fail_msg("%s is accepted", refused[i].symbols);
		if (!strstr(err.text, refused[i].reason))
			fail_msg("%s: '%s', not '%s'", refused[i].symbols, err.text,
				 refused[i].reason);
		config_free(c);
	}
}

/* An attention whose ops fit together only for `fault` -1. */
static int fault;

static struct tensor *misfit(struct block *b, struct tensor *x)
{
	const int64_t H = b->m->heads, T = b->T;
	struct tensor *y = block_heads(b, x, H);
	struct tensor *scores = graph_input(b->g, "scores", b->g->type, 3, SHAPE(H, T + 1, T));

	if (fault == 0)
		op_softmax(b->g, "no_keys", scores, CAUSAL_WINDOW(0));
	else if (fault == 1)
		op_softmax(b->g, "no_key_for_the_first", scores, CAUSAL);
	else if (fault == 2)
		op_add(b->g, "sum", y, scores);
	return y;
}

static const struct attention_variant misfits = { .name = "misfits", .mix = misfit };
ATTENTION(misfits);

/* One sentence: the variant, the op's node, what is wrong, and the tensors with their shapes. */
static void test_misfits_of_a_variant(void **state)
{
	static const char *const expected[] = {
		"ATTENTION=misfits: softmax 'h.0.attn.no_keys': a window of 0 keys is empty; inputs: "
		"h.0.attn.scores f32[4,9,8]",
		"ATTENTION=misfits: softmax 'h.0.attn.no_key_for_the_first': a causal mask needs "
		"[..,queries,keys] with no more queries than keys; inputs: h.0.attn.scores f32[4,9,8]",
		"ATTENTION=misfits: add 'h.0.attn.sum': the shapes do not broadcast; inputs: ",
	};
	struct model_case k;

	(void)state;
	fault = -1;
	case_open(&k, F32, "ATTENTION=misfits POS=none");
	for (fault = 0; fault < (int)COUNT(expected); fault++) {
		struct token_io io;
		struct graph *g;
		struct error err;

		must(graph_create(&g, k.params, false, &err), &err);
		model_build(k.model, g, MODEL_LOGITS, 2, 8, &io);
		assert_int_equal(graph_finish(g, &err), FAIL);
		if (strncmp(err.text, expected[fault], strlen(expected[fault])) != 0)
			fail_msg("'%s', not '%s'", err.text, expected[fault]);
		graph_destroy(g);
	}
	case_close(&k);
}

static void test_data_vocabulary(void **state)
{
	struct config *c = case_config("MODEL_VOCAB=100");
	const struct model_task task = { .vocab = 101 };
	struct model *m;
	struct error err;

	(void)state;
	assert_int_equal(model_read(&m, c, &task, &err), FAIL);
	assert_string_equal(err.text,
			    "MODEL_VOCAB=100 is smaller than the data's vocabulary of 101");
	must(config_set(c, "MODEL_VOCAB", "0", &err), &err);
	must(model_read(&m, c, &task, &err), &err);
	assert_int_equal(m->vocab, 101);
	model_free(m);
	config_free(c);
}

/* A table of positions has an end; positions that are computed have none. */
static void test_positions(void **state)
{
	static const char *const positions[] = { "POS=learned", "POS=rope", "POS=alibi", "POS=t5",
						 "POS=none" };

	(void)state;
	for (size_t i = 0; i < COUNT(positions); i++) {
		struct model_case k;
		struct token_io io;
		struct graph *g;
		struct error err;

		case_open(&k, F32, positions[i]);
		must(graph_create(&g, k.params, false, &err), &err);
		model_build(k.model, g, MODEL_LOGITS, 1, k.model->length + 1, &io);
		if (i == 0) {
			assert_int_equal(graph_finish(g, &err), FAIL);
			assert_non_null(strstr(err.text, "65 positions are more than the learned "
							 "table of 64 holds"));
		} else {
			must(graph_finish(g, &err), &err);
		}
		graph_destroy(g);
		case_close(&k);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_every_purpose_has_the_same_parameters),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_misfits_of_a_variant),
		cmocka_unit_test(test_data_vocabulary),
		cmocka_unit_test(test_positions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
