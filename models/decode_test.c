/*
 * Decoding is exact: a prompt and then one token at a time give the logits of the full pass, for
 * every variant, their combinations and every committed vector.  The decoder's state has the size
 * that describe predicts, and its memory is measured before it is taken.
 */
#include <glob.h>
#include <math.h>

#include "core/backend/open.h"
#include "models/decode.h"
#include "models/describe.h"
#include "models/model_case.h"
#include "models/model_program.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define SEED 3
#define DOUBLE_ERROR 1e-9 /* of the largest logit; measured: at most 8e-15 */
#define FLOAT_ERROR 1e-4  /* measured: at most 5e-6 where no routing choice is nearly tied */

/* Sums in another order, which round to a neighbour; measured: at most 1.6e-2. */
#define STORED_ERROR 3e-2

static const int64_t prompts[] = { 1, 2, 7 };

/*
 * [B,T].  A token does not come back soon: without positions its twin would have
 * the same key, and rounding would decide which of the two is routed.
 */
static int32_t *make_tokens(const struct model *m, int64_t B, int64_t T)
{
	int32_t *tokens = malloc((size_t)(B * T) * sizeof(*tokens));

	for (int64_t i = 0; i < B * T; i++)
		tokens[i] = (int32_t)((5 * (i / T) + 11 * (i % T)) % m->vocab);
	return tokens;
}

/* Logits [B,T,V] of the full pass. */
static double *full_pass(const struct model_case *k, int64_t B, int64_t T, const int32_t *tokens)
{
	const struct model_use use = { .purpose = MODEL_LOGITS, .rows = B, .length = T };
	const struct run run = { 0 };
	double *logits = malloc((size_t)(B * T * k->model->vocab) * sizeof(*logits));
	struct token_program full;
	struct error err;

	must(model_program_open(&full, k->model, &use, k->params, &k->backend, &err), &err);
	token_program_feed(&full, tokens, NULL);
	must(program_run(full.p, &run, &err), &err);
	program_read(full.p, graph_find_output(full.g, "logits")->tensor, logits);
	token_program_close(&full);
	return logits;
}

static double largest(const double *values, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(values[i]));
	return most;
}

/* The worst error of tokens first .. first + n - 1, in units of the largest logit. */
static double piece_error(struct decoder *d, const struct model *m, int64_t B, int64_t T,
			  int64_t first, int64_t n, const int32_t *tokens, const double *expected)
{
	const double scale = largest(expected, B * T * m->vocab);
	double *logits = malloc((size_t)(B * n * m->vocab) * sizeof(*logits)), worst = 0;
	int32_t *piece = malloc((size_t)(B * n) * sizeof(*piece));
	struct error err;

	for (int64_t i = 0; i < B * n; i++)
		piece[i] = tokens[i / n * T + first + i % n];
	must(decoder_feed(d, n, piece, NULL, &err), &err);
	decoder_output(d, "logits", logits);
	for (int64_t i = 0; i < B * n * m->vocab; i++) {
		const int64_t row = i / m->vocab, b = row / n, t = first + row % n;
		const double e = logits[i] - expected[(b * T + t) * m->vocab + i % m->vocab];

		worst = fabs(e) <= worst ? worst : fabs(e); /* NAN is worse than any */
	}
	free(piece);
	free(logits);
	return worst / scale;
}

static double decode_error(const struct model_case *k, int64_t B, int64_t T, int64_t prompt,
			   const int32_t *tokens, const double *expected)
{
	struct decoder *d;
	struct error err;
	double worst;

	must(decoder_create(&d, k->model, k->params, &k->backend, MODEL_LOGITS, B, T, &err), &err);
	/* An earlier text must not change the results. */
	must(decoder_prompt(d, T, tokens, &err), &err);
	decoder_reset(d);
	worst = piece_error(d, k->model, B, T, 0, prompt, tokens, expected);
	for (int64_t t = prompt; t < T; t++) {
		const double e = piece_error(d, k->model, B, T, t, 1, tokens, expected);

		worst = e <= worst ? worst : e;
	}
	decoder_destroy(d);
	return worst;
}

/* Of B rows of T tokens, the prompt first. */
static double text_error(const struct model_case *k, int64_t B, int64_t T, int64_t prompt)
{
	int32_t *tokens = make_tokens(k->model, B, T);
	double *expected = full_pass(k, B, T, tokens);
	const double e = decode_error(k, B, T, prompt, tokens, expected);

	free(expected);
	free(tokens);
	return e;
}

/* With prompts[i] first (or 1, if no token would be left). */
static double rows_error(const struct model_case *k, int64_t B, size_t i)
{
	const int64_t T = k->model->length < 20 ? k->model->length : 20;

	return text_error(k, B, T, prompts[i] < T ? prompts[i] : 1);
}

static void check_error(const struct model_case *k, int64_t B, size_t i, const char *what)
{
	const double e = rows_error(k, B, i);

	if (!(e <= (k->params->type == F64 ? DOUBLE_ERROR : FLOAT_ERROR)))
		fail_msg("%s: %lld rows, prompt of %lld: %s differs by %g of the largest logit",
			 what, (long long)B, (long long)prompts[i], dtype_name(k->params->type), e);
}

static void open_drawn_on(struct model_case *k, enum dtype type, enum precision precision,
			  const char *symbols)
{
	struct error err;

	case_open(k, type, symbols);
	k->backend = backend_for_tests(precision, 2);
	must(params_allocate(k->params, &k->backend, false, &err), &err);
	must(params_initialise(k->params, SEED, &err), &err);
}

static void open_drawn(struct model_case *k, enum dtype type, const char *symbols)
{
	open_drawn_on(k, type, FLOAT32, symbols);
}

/* Case number n: rows and prompts take turns. */
static void check_symbols(const char *symbols, size_t n)
{
	static const enum dtype types[] = { F64, F32 };

	for (size_t i = 0; i < COUNT(types); i++) {
		struct model_case k;

		open_drawn(&k, types[i], symbols);
		check_error(&k, n % 2 ? 3 : 1, n / 2 % COUNT(prompts), symbols);
		case_close(&k);
	}
}

/* ---------------------------------------------------------- the table of variants */

static const char *const attentions[] = {
	"ATTENTION=dot",
	"ATTENTION=dot ATTENTION_KV_HEADS=2",
	"ATTENTION=dot ATTENTION_KV_HEADS=1",
	"ATTENTION=mla",
	"ATTENTION=mla MLA_PER_HEAD_Q=n MLA_PER_HEAD_V=n",
	"ATTENTION=mla RA_MLA_RA_ALPHA=0.5 RA_MLA_RA_WINDOW=4",
	"ATTENTION=deepseek",
	"ATTENTION=w2",
	"ATTENTION=w2 W2_SCORE=overlap",
};

static const char *const positions[] = { "POS=learned", "POS=rope", "POS=t5", "POS=none" };

#define GATE "RA_MLA_MLP_ATTN_GATE=y GATE_ALPHA=0.7 "
#define CROSS "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_K=3 "
#define RMS CROSS "RA_MLA_MLP_SPARSE_MODE=rms "

static const char *const mechanisms[] = {
	"",
	GATE,
	GATE "GATE_POOL=token",
	CROSS,
	CROSS "RA_MLA_MLP_SPARSE_HEAD_AVERAGE=n CROSS_RANK=5",
	RMS,
	GATE RMS "RA_MLA_MLP_SPARSE_HEAD_AVERAGE=n RA_MLA_MLP_SPARSE_NORMALIZE=n",
	CROSS "RA_MLA_MLP_SPARSE_MODE=none CROSS_RANK=5",
	GATE CROSS "RECIP_LEARN_ALPHA=y",
	GATE CROSS "CROSS_FOLDED=y",
	RMS "CROSS_FOLDED=y",
	GATE CROSS "CROSS_FOLDED=y MERGE_LINEARS=y",
};

static const char *const others[] = {
	"NORM_PLACE=post FFN=swiglu NORM=rms",
	"ATTENTION_OUT_GATE=head FFN=ws",
	"ATTENTION_OUT_GATE=channel MODEL_TIE_HEAD=n MODEL_BIAS=n FFN_HIDDEN=37",
	"FFN=soft_moe MOE_PREFIX=y",
};

#define SMALL "MODEL_LAYERS=3 INIT_STD=0.2 "

static void test_combinations(void **state)
{
	char symbols[600];
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < COUNT(attentions); i++)
		for (size_t j = 0; j < COUNT(positions); j++)
			for (size_t l = 0; l < COUNT(mechanisms); l++, n++) {
				snprintf(symbols, sizeof(symbols), SMALL "%s %s %s %s",
					 attentions[i], positions[j], mechanisms[l],
					 others[n % COUNT(others)]);
				check_symbols(symbols, n);
			}
}

static void test_linear_attention(void **state)
{
	static const char *const settings[] = {
		"ATTENTION=gla POS=none",
		"ATTENTION=gla POS=rope GLA_KEY_DIM=6",
		"ATTENTION=gla POS=learned " GATE,
		"ATTENTION=gla POS=none GLA_TAU=1",
		"ATTENTION=delta POS=none",
		"ATTENTION=delta POS=rope DELTA_KEY_DIM=6 DELTA_CONV=2",
		"ATTENTION=delta POS=learned DELTA_CONV=1 " GATE,
	};

	(void)state;
	for (size_t i = 0; i < COUNT(settings); i++) {
		char symbols[600];

		snprintf(symbols, sizeof(symbols), SMALL "%s %s", settings[i],
			 others[i % COUNT(others)]);
		check_symbols(symbols, i);
	}
}

/* The cache holds the numbers of the full pass, and in bfloat16 where the full pass does. */
static void test_activations_stored(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(attentions); i++) {
		struct model_case k;
		char symbols[600];
		double e;

		snprintf(symbols, sizeof(symbols), SMALL "%s POS=rope %s", attentions[i], GATE);
		open_drawn_on(&k, F32, BFLOAT16_STORED, symbols);
		e = rows_error(&k, 2, i % COUNT(prompts));
		if (!(e <= STORED_ERROR))
			fail_msg("%s: differs by %g of the largest logit", symbols, e);
		case_close(&k);
	}
}

static void check_precision(enum precision precision, const char *symbols, int64_t B, int64_t T,
			    int64_t prompt)
{
	struct model_case k;
	double e;

	open_drawn_on(&k, F32, precision, symbols);
	e = text_error(&k, B, T, prompt);
	if (!(e <= STORED_ERROR))
		fail_msg("%s: %lld rows of %lld: differs by %g of the largest logit", symbols,
			 (long long)B, (long long)T, e);
	case_close(&k);
}

static void check_stored(const char *symbols, int64_t B, int64_t T, int64_t prompt)
{
	check_precision(BFLOAT16_STORED, symbols, B, T, prompt);
}

/*
 * A device may do several nodes of a token at once: a norm, products of what it made, gelu and
 * cache. Without the last of the attentions: seven rows of it differ by 4e-2 with a kernel for each
 * node, too.
 */
static void test_fused_nodes_stored(void **state)
{
	static const char *const rest[] = { "POS=learned",
					    "POS=none NORM=rms ATTENTION_OUT_GATE=head",
					    "POS=alibi MODEL_BIAS=n FFN=swiglu" };
	static const int64_t rows[] = { 1, 3, 7 };
	char symbols[600];

	(void)state;
	for (size_t i = 0; i + 1 < COUNT(attentions); i++)
		for (size_t j = 0; j < COUNT(rows); j++) {
			if (test_is_sampled() && j != i % COUNT(rows))
				continue;
			snprintf(symbols, sizeof(symbols),
				 SMALL "MODEL_EMBD=64 MODEL_HEADS=4 %s %s", attentions[i],
				 rest[(i + j) % COUNT(rest)]);
			check_stored(symbols, rows[j], 12, 9);
			check_precision(BFLOAT16_STREAM, symbols, rows[j], 12, 9);
		}
}

#define FEW_KEYS 400 /* of all rows together; samples have no more */

/*
 * So many keys that parts of them are summed apart, for heads that share them and heads of their
 * own; heads that fill more than one tile, or have wide keys; more parts than groups of threads;
 * and so many examples that a warp has more keys than are on their way at once, in a few parts (86
 * heads) and in many blocks (128).
 */
static void test_many_keys_stored(void **state)
{
	static const struct {
		const char *heads;
		int64_t rows, tokens;
	} settings[] = {
		{ "ATTENTION=mla RA_MLA_LATENT_DIM=24 MODEL_HEADS=8 POS=alibi", 2, 200 },
		{ "ATTENTION=mla RA_MLA_LATENT_DIM=24 MODEL_HEADS=8 POS=alibi", 17, 200 },
		{ "ATTENTION=mla RA_MLA_LATENT_DIM=128 MODEL_HEADS=16 POS=none", 1, 200 },
		{ "ATTENTION=mla RA_MLA_LATENT_DIM=128 MODEL_HEADS=32 POS=none", 1, 200 },
		{ "ATTENTION=dot MODEL_HEADS=20 MODEL_EMBD=160 ATTENTION_KV_HEADS=1 POS=none", 2,
		  200 },
		{ "ATTENTION=dot MODEL_HEADS=8 ATTENTION_KV_HEADS=2 POS=rope", 1, 200 },
		{ "ATTENTION=dot MODEL_HEADS=4 POS=none", 2, 200 },
		{ "ATTENTION=w2 MODEL_HEADS=1 POS=none", 2, 200 },
		{ "ATTENTION=dot MODEL_HEADS=1 MODEL_EMBD=32 POS=alibi", 1, 3200 },
		{ "ATTENTION=dot MODEL_HEADS=2 MODEL_EMBD=16 POS=alibi", 43, 1400 },
		{ "ATTENTION=dot MODEL_HEADS=8 POS=alibi", 16, 200 },
		{ "ATTENTION=dot MODEL_HEADS=32 MODEL_EMBD=128 ATTENTION_KV_HEADS=8 POS=none", 16,
		  200 },
	};
	char symbols[600];

	(void)state;
	for (size_t i = 0; i < COUNT(settings); i++) {
		if (test_is_sampled() && settings[i].rows * settings[i].tokens > FEW_KEYS)
			continue;
		snprintf(symbols, sizeof(symbols), "MODEL_LAYERS=1 INIT_STD=0.2 MODEL_EMBD=64 %s",
			 settings[i].heads);
		check_stored(symbols, settings[i].rows, settings[i].tokens,
			     settings[i].tokens - 10);
	}
	check_precision(
		FLOAT32,
		"MODEL_LAYERS=1 INIT_STD=0.2 MODEL_EMBD=64 ATTENTION=dot MODEL_HEADS=4 POS=none", 2,
		200, 190);
}

/* Maps with many outputs for some rows, and what is joined to them. */
static void test_wide_rows_stored(void **state)
{
	(void)state;
	check_stored("MODEL_LAYERS=1 MODEL_EMBD=704 MODEL_HEADS=11 ATTENTION=dot POS=learned", 7,
		     12, 9);
}

static void test_latent_reciprocity(void **state)
{
	static const char *const tying[] = { "untied", "tied_transpose", "per_head_scalar",
					     "bottleneck" };
	char symbols[600];

	(void)state;
	for (size_t i = 0; i < COUNT(tying); i++)
		for (size_t j = 0; j < COUNT(positions); j++) {
			snprintf(symbols, sizeof(symbols),
				 SMALL "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y "
				       "RA_MLA_MLP_TYING_MODE=%s %s %s",
				 tying[i], positions[j], i % 2 ? GATE CROSS : "");
			check_symbols(symbols, i + j);
		}
}

/* ------------------------------------------------------------- without a state */

/* Heads that are the mean of all values so far: one whose op keeps a state, one that says none. */
static struct tensor *mix_mean(struct block *b, struct tensor *x)
{
	x = block_linear(b, "v_proj", x, b->m->embd, false);
	return block_heads(b, op_running_mean(b->g, "mean", x), b->m->heads);
}

static const struct attention_variant mean = { .name = "mean",
					       .mix = mix_mean,
					       .keeps_state = true };
static const struct attention_variant repeated_mean = { .name = "repeated_mean", .mix = mix_mean };
ATTENTION(mean);
ATTENTION(repeated_mean);

static void test_repeated_prefix(void **state)
{
	struct description d;
	struct error why;

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		struct model_case k;

		check_symbols(SMALL GATE "ATTENTION=mean POS=none", i);
		check_symbols(SMALL GATE "ATTENTION=repeated_mean POS=learned", i);
		open_drawn(&k, F32, SMALL "ATTENTION=repeated_mean POS=none");
		assert_false(model_keeps_state(k.model, &why));
		assert_string_equal(why.text, "ATTENTION=repeated_mean keeps no state: each token "
					      "repeats the text before it, which is slow");
		must(describe_model(k.model, &k.backend,
				    &(struct description_options){ .batch = 1, .length = 8 }, &d,
				    &why),
		     &why);
		assert_non_null(strstr(d.decode_refusal.text, "repeats the text before it"));
		case_close(&k);
	}
}

/* The logits after the last token alone, and targets. */
static void test_repeated_purposes(void **state)
{
	const int64_t T = 9, B = 2;
	struct model_case k;
	struct decoder *next, *eval;
	struct error err;
	double logits[2 * 300], nll[2];

	(void)state;
	open_drawn(&k, F64, SMALL "ATTENTION=repeated_mean POS=none");
	assert_true(k.model->vocab <= 300);
	must(decoder_create(&next, k.model, k.params, &k.backend, MODEL_NEXT, B, T, &err), &err);
	must(decoder_create(&eval, k.model, k.params, &k.backend, MODEL_EVAL, B, T, &err), &err);
	for (int32_t t = 0; t < T; t++) {
		const int32_t tokens[] = { t, 2 * t }, targets[] = { 3, 2 * t + 1 };

		must(decoder_feed(next, 1, tokens, NULL, &err), &err);
		must(decoder_feed(eval, 1, tokens, targets, &err), &err);
		decoder_output(next, "logits", logits);
		decoder_output(eval, "nll", nll);
		for (int64_t b = 0; b < B; b++) {
			const double *row = logits + b * k.model->vocab;
			double sum = 0;

			for (int64_t v = 0; v < k.model->vocab; v++)
				sum += exp(row[v]);
			assert_true(fabs(log(sum) - row[targets[b]] - nll[b]) < 1e-9);
		}
	}
	assert_int_equal(decoder_feed(next, 1, (const int32_t[]){ 1, 1 }, NULL, &err), FAIL);
	assert_non_null(strstr(err.text, "do not fit"));
	decoder_destroy(next);
	decoder_destroy(eval);
	case_close(&k);
}

/* What reads scores is refused where there are none. */
static void test_no_scores(void **state)
{
	static const char *const symbols[] = { SMALL CROSS "ATTENTION=mean POS=none",
					       SMALL "ATTENTION=mean POS=alibi" };
	static const char *const reasons[] = {
		"CONFIG_RA_MLA_MLP_CROSS_TOKEN needs attention scores, and ATTENTION=mean has none",
		"CONFIG_POS needs attention scores, and ATTENTION=mean has none",
	};
	const struct model_task task = { 0 };
	struct error err;

	(void)state;
	for (size_t i = 0; i < COUNT(symbols); i++) {
		struct config *config = case_config(symbols[i]);
		struct model *m;

		assert_int_equal(model_read(&m, config, &task, &err), FAIL);
		assert_string_equal(err.text, reasons[i]);
		config_free(config);
	}
}

/* ------------------------------------------------------------- committed vectors */

/* A routing choice so nearly tied that float decides it either way. */
static bool near_tie(const char *path)
{
	return strstr(path, "cross-near-tie") != NULL;
}

static void check_vector(const char *path, enum dtype type)
{
	const char *file = strrchr(path, '/') + 1;
	struct model_case k;
	char name[100];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(file, "."), file);
	if (strcmp(name, "gate-sequence") == 0 || strncmp(name, "decoder", 7) == 0)
		return; /* refused: below */
	case_open_vector(&k, type, name);
	for (size_t i = 0; i < COUNT(prompts); i++)
		check_error(&k, i == 1 ? 3 : 1, i, name);
	case_close(&k);
}

static void test_vectors(void **state)
{
	glob_t found;

	(void)state;
	assert_int_equal(glob("models/vectors/*.safetensors", 0, NULL, &found), 0);
	assert_true(found.gl_pathc > 100);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		check_vector(found.gl_pathv[i], F64);
		if (!near_tie(found.gl_pathv[i]))
			check_vector(found.gl_pathv[i], F32);
	}
	globfree(&found);
}

/* --------------------------------------------------------------------- the rest */

/* A prompt of more than one piece, with an odd rest; the logits after its last token. */
static void test_long_prompt(void **state)
{
	const int64_t T = 2 * DECODER_CHUNK_TOKENS + 77, B = 2;
	struct model_case k;
	struct decoder *d;
	struct error err;
	int32_t *tokens;
	double *expected, *logits, worst = 0;

	(void)state;
	open_drawn(&k, F64,
		   SMALL "ATTENTION=mla RA_MLA_RA_ALPHA=0.5 RA_MLA_RA_WINDOW=300 "
			 "POS=rope " GATE RMS);
	tokens = make_tokens(k.model, B, T);
	expected = full_pass(&k, B, T, tokens);
	logits = malloc((size_t)(B * k.model->vocab) * sizeof(*logits));
	must(decoder_create(&d, k.model, k.params, &k.backend, MODEL_NEXT, B, T, &err), &err);
	must(decoder_check(k.model, T, &err), &err);
	must(decoder_prompt(d, T, tokens, &err), &err);
	assert_int_equal(decoder_past(d), T);
	decoder_output(d, "logits", logits);
	for (int64_t i = 0; i < B * k.model->vocab; i++)
		worst = fmax(worst,
			     fabs(logits[i] -
				  expected[((i / k.model->vocab + 1) * T - 1) * k.model->vocab +
					   i % k.model->vocab]));
	assert_true(worst <= DOUBLE_ERROR * largest(expected, B * T * k.model->vocab));
	assert_int_equal(decoder_feed(d, 1, tokens, NULL, &err), FAIL);
	assert_non_null(strstr(err.text, "1 tokens after 589 do not fit: there is room for 589"));
	decoder_destroy(d);
	free(logits);
	free(expected);
	free(tokens);
	case_close(&k);
}

static const struct {
	const char *symbols, *reason;
} refused[] = {
	{ "ATTENTION=mla " GATE "GATE_POOL=sequence", "GATE_POOL=sequence" },
	{ "MODEL_DECODER=y", "MODEL_DECODER=y" },
	{ "POS=learned MODEL_BLOCK=32", "40 positions are more than the learned table of 32" },
};

static void test_refusals(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(refused); i++) {
		struct model_case k;
		struct decoder *d;
		struct error err;

		open_drawn(&k, F32, refused[i].symbols);
		assert_int_equal(
			decoder_create(&d, k.model, k.params, &k.backend, MODEL_NEXT, 1, 40, &err),
			FAIL);
		if (!strstr(err.text, refused[i].reason))
			fail_msg("%s: '%s' does not say '%s'", refused[i].symbols, err.text,
				 refused[i].reason);
		err.text[0] = '\0';
		assert_int_equal(decoder_check(k.model, 40, &err), FAIL);
		assert_non_null(strstr(err.text, refused[i].reason));
		case_close(&k);
	}
}

/* Sizes that are whole cache lines, so none is rounded up. */
static void check_described_state(enum precision precision)
{
	const struct description_options options = { .batch = 1, .length = 8, .context = 32 };
	char symbols[600];

	for (size_t i = 0; i < COUNT(attentions); i++)
		for (size_t j = 0; j < COUNT(mechanisms); j++) {
			struct description one;
			struct model_case k;
			struct decoder *d;
			struct error err;

			snprintf(symbols, sizeof(symbols), "POS=rope GATE_DIM=16 %s %s",
				 attentions[i], mechanisms[j]);
			open_drawn_on(&k, F32, precision, symbols);
			must(describe_model(k.model, &k.backend, &options, &one, &err), &err);
			must(decoder_create(&d, k.model, k.params, &k.backend, MODEL_NEXT, 3, 32,
					    &err),
			     &err);
			if ((double)decoder_state_bytes(d) != 3 * one.decode_total_bytes)
				fail_msg("%s: %zu bytes kept, %.0f described", symbols,
					 decoder_state_bytes(d), 3 * one.decode_total_bytes);
			decoder_destroy(d);
			case_close(&k);
		}
}

static void test_state_is_as_described(void **state)
{
	(void)state;
	check_described_state(FLOAT32);
	if (backend_stores_for_tests())
		for (enum precision p = BFLOAT16_STORED; p <= BFLOAT16_STREAM; p++)
			check_described_state(p);
}

/* Keys and values of a dot product, two bytes for each number. */
static void test_cache_is_narrow_stored(void **state)
{
	struct model_case k;
	struct decoder *d;
	struct error err;

	(void)state;
	open_drawn_on(&k, F32, BFLOAT16_STORED, "ATTENTION=dot MODEL_LAYERS=1");
	must(decoder_create(&d, k.model, k.params, &k.backend, MODEL_NEXT, 3, 32, &err), &err);
	assert_int_equal(decoder_state_bytes(d), 2 * 2 * k.model->embd * 3 * 32);
	decoder_destroy(d);
	case_close(&k);
}

static size_t allocated;
static void *(*plain_alloc)(const struct backend *b, size_t bytes);

static void *counted_alloc(const struct backend *b, size_t bytes)
{
	allocated += bytes;
	return plain_alloc(b, bytes);
}

/* What a decoder allocates for so many tokens, which it gets in pieces. */
static double allocated_for(struct model_case *k, int64_t n)
{
	int32_t *tokens = calloc(2 * (size_t)n, sizeof(*tokens));
	struct decoder *d;
	struct error err;

	allocated = 0;
	plain_alloc = k->backend.alloc;
	k->backend.alloc = counted_alloc;
	must(decoder_create(&d, k->model, k->params, &k->backend, MODEL_NEXT, 2, n, &err), &err);
	must(decoder_prompt(d, n, tokens, &err), &err);
	k->backend.alloc = plain_alloc;
	decoder_destroy(d);
	free(tokens);
	return (double)allocated;
}

/* Texts with and without whole pieces and a rest. */
static void test_memory_is_measured(void **state)
{
	static const int64_t numbers[] = { 1, 2, 200, 256, 300, 511 };

	(void)state;
	for (size_t i = 0; i < COUNT(attentions); i++)
		for (size_t j = 0; j < COUNT(numbers); j++) {
			const int64_t n = numbers[j];
			struct decoder_use use = { MODEL_NEXT, 2, n, n % DECODER_CHUNK_TOKENS };
			struct decoder_memory memory;
			struct model_case k;
			struct error err;
			char symbols[300];
			double used;

			snprintf(symbols, sizeof(symbols), "POS=rope %s", attentions[i]);
			open_drawn(&k, F32, symbols);
			must(decoder_measure(&memory, k.model, F32, &k.backend, &use, &err), &err);
			used = allocated_for(&k, n);
			if (used != memory.own)
				fail_msg("%s: %lld tokens take %.0f bytes, %.0f were measured",
					 symbols, (long long)n, used, memory.own);
			assert_true(memory.weights >= 4 * (double)k.params->total);
			case_close(&k);
		}
}

/* An argument names the tests that run: "test_act*". */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_combinations),
		cmocka_unit_test(test_latent_reciprocity),
		cmocka_unit_test(test_linear_attention),
		cmocka_unit_test(test_repeated_prefix),
		cmocka_unit_test(test_repeated_purposes),
		cmocka_unit_test(test_no_scores),
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_long_prompt),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_state_is_as_described),
		cmocka_unit_test(test_memory_is_measured),
	};
	const struct CMUnitTest stored[] = {
		cmocka_unit_test(test_activations_stored),
		cmocka_unit_test(test_fused_nodes_stored),
		cmocka_unit_test(test_many_keys_stored),
		cmocka_unit_test(test_wide_rows_stored),
		cmocka_unit_test(test_cache_is_narrow_stored),
	};
	int failed;

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (backend_stores_for_tests())
		failed += cmocka_run_group_tests(stored, NULL, NULL);
	return failed;
}
