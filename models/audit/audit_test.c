/*
 * The audits pass on every committed model.  This test builds in every fault that the
 * audits exist for: the right audit must catch it and name it.
 *
 * Faulty parts are registered like real ones; faulty kernels replace the
 * backend's.
 */
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/util/test.h"
#include "models/audit/audit.h"
#include "models/oracle/oracle.h"
#include "models/test_vector.h"

/* ------------------------------------------------------------- faulty parts */

struct test_options {
	double weight;
};

static enum status read_weight(void *options, const struct model *m, struct config *c,
			       struct error *err)
{
	struct test_options *o = options;

	(void)m, (void)err;
	o->weight = config_real(c, "TEST_WEIGHT");
	return OK;
}

/* Has parameters, but their output goes nowhere. */
static struct tensor *drop(struct block *b, const void *options, struct tensor *h,
			   struct message *out)
{
	(void)options, (void)out;
	block_linear(b, "unwired", h, 4, false);
	return h;
}

static const struct mechanism unwired = {
	.name = "unwired",
	.symbol = "TEST_UNWIRED",
	.order = 8,
	.hidden = drop,
};
MECHANISM(unwired);

/* The gate of the original: its context is the mean over all positions, also later ones. */
static struct tensor *send_mean(struct block *b, const void *options, struct tensor *h,
				struct message *out)
{
	const struct test_options *o = options;

	if (b->last)
		return h;
	out->value =
		op_mean(b->g, "ahead_mean", block_linear(b, "ahead", h, b->m->heads, false), 1);
	out->alpha = block_vector(b, "ahead_alpha", 1, o->weight);
	return h;
}

static struct tensor *receive_mean(struct block *b, const void *options, const struct message *in,
				   struct tensor *o)
{
	(void)options;
	return in->value ? op_head_gate(b->g, "ahead_gated", o, in->value, 0, in->alpha) : o;
}

static const struct mechanism ahead = {
	.name = "ahead",
	.symbol = "TEST_AHEAD",
	.order = 9,
	.options_size = sizeof(struct test_options),
	.read = read_weight,
	.hidden = send_mean,
	.heads = receive_mean,
};
MECHANISM(ahead);

/* It acts on the layer itself, but no layer reads what it sends. */
static struct tensor *act_and_send(struct block *b, const void *options, struct tensor *h,
				   struct message *out)
{
	(void)options;
	if (!b->last)
		out->value = h;
	return op_gelu(b->g, "acted", h);
}

static struct tensor *ignore(struct block *b, const void *options, const struct message *in,
			     struct tensor *o)
{
	(void)b, (void)options, (void)in;
	return o;
}

static const struct mechanism unheard = {
	.name = "unheard",
	.symbol = "TEST_UNHEARD",
	.order = 10,
	.hidden = act_and_send,
	.heads = ignore,
};
MECHANISM(unheard);

/* It acts in the first layer only. */
static struct tensor *act_first(struct block *b, const void *options, struct tensor *h,
				struct message *out)
{
	(void)options, (void)out;
	return b->layer == 0 ? op_gelu(b->g, "acted", h) : h;
}

static bool first_layer(const void *options, const struct model *m, int layer)
{
	(void)options, (void)m;
	return layer == 0;
}

static const struct mechanism lazy = {
	.name = "lazy",
	.symbol = "TEST_LAZY",
	.hidden = act_first,
};
MECHANISM(lazy);

static const struct mechanism modest = {
	.name = "modest",
	.symbol = "TEST_MODEST",
	.acts = first_layer,
	.hidden = act_first,
};
MECHANISM(modest);

/* h + weight gelu(h W) */
static struct tensor *act_weighted(struct block *b, const void *options, struct tensor *h,
				   struct message *out)
{
	const struct test_options *o = options;

	(void)out;
	return op_add_scaled(
		b->g, "weighted_sum", h,
		op_gelu(b->g, "weighted_gelu", block_linear(b, "weighted", h, b->m->hidden, false)),
		o->weight, NULL);
}

static const struct mechanism weighted = {
	.name = "weighted",
	.symbol = "TEST_WEIGHTED",
	.options_size = sizeof(struct test_options),
	.read = read_weight,
	.hidden = act_weighted,
};
MECHANISM(weighted);

/* Dropout that nobody configured. */
static struct tensor *act_by_chance(struct block *b, const void *options, struct tensor *h,
				    struct message *out)
{
	(void)options, (void)out;
	return op_dropout(b->g, "by_chance", op_gelu(b->g, "acted", h), 0.5);
}

static const struct mechanism by_chance = {
	.name = "by chance",
	.symbol = "TEST_BY_CHANCE",
	.hidden = act_by_chance,
};
MECHANISM(by_chance);

/* All layers read the first one's matrix. */
static struct tensor *act_shared(struct block *b, const void *options, struct tensor *h,
				 struct message *out)
{
	const char *const scope = b->g->scope;

	(void)options, (void)out;
	b->g->scope = "h.0.mlp.";
	h = op_linear(b->g, b->layer ? "later" : "first", h,
		      block_matrix(b, "shared.weight", b->m->hidden, b->m->hidden), NULL);
	b->g->scope = scope;
	return h;
}

static const struct mechanism shared = {
	.name = "shared",
	.symbol = "TEST_SHARED",
	.hidden = act_shared,
};
MECHANISM(shared);

/* Together with itself it is more than a model can hold. */
static const struct mechanism many[MAX_MECHANISMS + 1] = {
	[0 ... MAX_MECHANISMS] = { .name = "many", .symbol = "TEST_MANY" },
};
static const struct mechanism *const many_entries[]
	__attribute__((used, aligned(sizeof(void *)),
		       section("mechanisms"))) = { &many[0], &many[1], &many[2], &many[3], &many[4],
						   &many[5], &many[6], &many[7], &many[8] };
_Static_assert(sizeof(many_entries) / sizeof(*many_entries) == MAX_MECHANISMS + 1,
	       "one mechanism too many");

/* An auxiliary loss of z = h W, cut off from W, or from the model. */
static struct tensor *with_loss(struct block *b, struct tensor *x, bool cut_weight)
{
	const struct test_options *o = b->m->ffn_options;
	struct tensor *h = op_gelu(b->g, "gelu", block_linear(b, "c_fc", x, b->m->hidden, false));
	struct tensor *z;

	if (!b->g->training)
		return h;
	z = block_linear(b, "z_proj", cut_weight ? h : graph_detach(b->g, h), 4, false);
	if (cut_weight)
		z = graph_detach(b->g, z);
	graph_loss(b->g, "aux_z", op_ws_energy(b->g, "aux_z", block_heads(b, z, 2)), o->weight);
	return h;
}

static struct tensor *loss_without_gradient(struct block *b, struct tensor *x)
{
	return with_loss(b, x, true);
}

static struct tensor *loss_beside_model(struct block *b, struct tensor *x)
{
	return with_loss(b, x, false);
}

static const struct model_switch test_switches[] = {
	{ .symbol = "TEST_WEIGHT", .off = "0", .through_loss = true },
	{ .symbol = NULL },
};

static bool weighs(const void *options, const struct model_switch *s)
{
	(void)s;
	return ((const struct test_options *)options)->weight > 0;
}

static const struct ffn_variant detached = {
	.name = "detached",
	.options_size = sizeof(struct test_options),
	.read = read_weight,
	.hidden = loss_without_gradient,
	.switches = test_switches,
	.switched_on = weighs,
};
FFN(detached);

static const struct ffn_variant beside = {
	.name = "beside",
	.options_size = sizeof(struct test_options),
	.read = read_weight,
	.hidden = loss_beside_model,
	.switches = test_switches, /* always on */
};
FFN(beside);

/* Queries, keys and values are x itself.  It has no symbols, so there is nothing to read. */
static void project_nothing(struct block *b, struct tensor *x, struct projection *p)
{
	p->in.q = p->in.k = p->in.v = block_heads(b, x, b->m->heads);
}

static const struct attention_variant bare = { .name = "bare", .project = project_nothing };
ATTENTION(bare);

/* Descriptors whose author forgot what they compute, or said it twice. */
static const struct attention_variant no_attention = { .name = "nothing" };
ATTENTION(no_attention);
static const struct attention_variant two_attentions = {
	.name = "two",
	.project = project_nothing,
	.mix = loss_without_gradient,
};
ATTENTION(two_attentions);
static const struct ffn_variant no_ffn = { .name = "nothing" };
FFN(no_ffn);
static const struct position_variant no_position = { .name = "nothing" };
POSITION(no_position);

/* Twice h; its oracle takes the factor from the configuration. */
static struct tensor *act_doubled(struct block *b, const void *options, struct tensor *h,
				  struct message *out)
{
	(void)options, (void)out;
	return op_scale(b->g, "doubled", h, 2);
}

static void tell_doubled(struct oracle *o, double *h, struct oracle_message *out)
{
	(void)out;
	for (int64_t i = 0; i < o->B * o->T * o->F; i++)
		h[i] *= config_real(o->config, "TEST_WEIGHT");
}

static const struct mechanism doubled = {
	.name = "doubled",
	.symbol = "TEST_DOUBLED",
	.hidden = act_doubled,
};
MECHANISM(doubled);

static const struct oracle_mechanism doubled_oracle = {
	.symbol = "TEST_DOUBLED",
	.hidden = tell_doubled,
};
ORACLE_MECHANISM(doubled_oracle);

/* Twice h in training, a little more in every other graph. */
static struct tensor *act_twofold(struct block *b, const void *options, struct tensor *h,
				  struct message *out)
{
	const struct test_options *o = options;

	(void)out;
	return op_scale(b->g, "twofold", h, b->g->training ? 2 : 2 + o->weight / 10);
}

static const struct mechanism twofold = {
	.name = "twofold",
	.symbol = "TEST_TWOFOLD",
	.options_size = sizeof(struct test_options),
	.read = read_weight,
	.hidden = act_twofold,
};
MECHANISM(twofold);

/* ----------------------------------------------------------- faulty kernels */

/* Only those for float: the precision audit compares with double, and sees them, too. */

static const struct kernels *faulty_table[OP_COUNT];
static struct kernels faulty, sound;

static const struct kernels *const *faulty_kernels(enum dtype type)
{
	assert_int_equal(type, F32);
	return faulty_table;
}

/* A backend whose kernels of one op are `faulty`, for now a copy of the sound ones. */
static struct backend faulty_backend(enum op_id id)
{
	struct backend b = backend_for_tests(FLOAT32, 1);

	memcpy(faulty_table, b.kernels(F32), sizeof(faulty_table));
	faulty = sound = *faulty_table[id];
	faulty_table[id] = &faulty;
	b.kernels = faulty_kernels;
	return b;
}

/* A mask off by one: position t also gets a little of what t + 1 attends to. */
static void attend_ahead(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, row = dim[2] * dim[3];
	float *o = c->out[0];

	sound.forward(c);
	for (int64_t b = 0; b < dim[0]; b++)
		for (int64_t i = 0; i < (dim[1] - 1) * row; i++)
			o[b * dim[1] * row + i] += 0.01f * o[b * dim[1] * row + i + row];
}

/* Routing that sees the future: the first choice of position t is t + 1. */
static void route_ahead(const struct call *c)
{
	enum { ROUTE_INDEX = 3 }; /* among the outputs of attention */
	const int64_t *dim;
	int32_t *index = c->out[ROUTE_INDEX];

	sound.forward(c);
	if (!index)
		return;
	dim = c->node->out[ROUTE_INDEX]->dim;
	for (int64_t b = 0; b < dim[0]; b++)
		for (int64_t t = 0; t + 1 < dim[1]; t++)
			index[(b * dim[1] + t) * dim[2]] = (int32_t)t + 1;
}

/* Every token is token 0. */
static void embed_nothing(const struct call *c)
{
	static const int32_t zeros[4096];
	struct call blind = *c;

	assert_true(tensor_bytes(c->node->in[1]) <= sizeof(zeros));
	blind.in[1] = zeros;
	sound.forward(&blind);
}

/* The gates are those of the batch before, where there was one. */
static void gate_from_last_batch(const struct call *c)
{
	static float kept[4096], now[4096];
	static size_t kept_bytes;
	const size_t bytes = tensor_bytes(c->node->in[1]);
	struct call stale = *c;

	assert_true(bytes <= sizeof(kept));
	memcpy(now, c->in[1], bytes);
	if (kept_bytes == bytes)
		stale.in[1] = kept;
	sound.forward(&stale);
	memcpy(kept, now, bytes);
	kept_bytes = bytes;
}

/* The loss on logits has no gradient, as in the original of WsFFN. */
static void loss_without_z(const struct call *c)
{
	struct call deaf = *c;

	deaf.dout[1] = NULL;
	sound.loss(&deaf);
}

static void loss_uphill(const struct call *c)
{
	static const float minus = -1;
	struct call wrong = *c;

	wrong.dout[0] = &minus;
	sound.loss(&wrong);
}

/* -------------------------------------------------------------------- tools */

static const struct model_task untrained;

struct setting {
	const char *symbol, *value;
};

static const struct setting standard[] = {
	{ "AUDIT_ORACLE", "n" }, /* it would find most faults, too: its own tests switch it on */
	{ "AUDIT_WIRING", "y" },    { "AUDIT_CAUSALITY", "y" },
	{ "AUDIT_ONE_BATCH", "y" }, { "AUDIT_LEAK_DECLARED", "n" },
	{ "TEST_UNWIRED", "n" },    { "TEST_AHEAD", "n" },
	{ "TEST_UNHEARD", "n" },    { "TEST_WEIGHT", "0.1" },
	{ "TEST_MANY", "n" },	    { "AUDIT_PAIRING", "y" },
	{ "AUDIT_DATA", "y" },	    { "AUDIT_TRAINING", "y" },
	{ "TEST_LAZY", "n" },	    { "TEST_MODEST", "n" },
	{ "TEST_WEIGHTED", "n" },   { "TEST_BY_CHANCE", "n" },
	{ "TEST_SHARED", "n" },	    { "TEST_DOUBLED", "n" },
	{ "TEST_TWOFOLD", "n" },    { NULL, NULL },
};

static void set(struct config *c, const struct setting *list)
{
	struct error err;

	for (; list->symbol; list++)
		must(config_set(c, list->symbol, list->value, &err), &err);
}

#define SETTINGS(...) ((const struct setting[]){ __VA_ARGS__, { NULL, NULL } })

static struct config *configured(const struct setting *list)
{
	struct config *c;
	struct error err;

	must(vector_defaults(&c, &err), &err);
	set(c, standard);
	set(c, list);
	return c;
}

static struct audit_report audit_as(struct config *c, const struct backend *backend,
				    enum dtype type)
{
	struct audit_options options;
	struct audit_report report;
	struct model *m;
	struct error err;

	must(model_read(&m, c, &untrained, &err), &err);
	options = audit_configured(c, m, type, 1);
	model_free(m);
	must(audit_model(c, &untrained, backend, &options, &report, &err), &err);
	return report;
}

static struct audit_report audit_with(const struct backend *backend, const struct setting *list)
{
	struct config *c = configured(list);
	struct audit_report report = audit_as(c, backend, F32);

	config_free(c);
	return report;
}

static struct audit_report audit(const struct setting *list)
{
	const struct backend backend = backend_for_tests(FLOAT32, 1);

	return audit_with(&backend, list);
}

static const struct audit_finding *find(const struct audit_report *r, const char *name,
					const char *subject)
{
	for (int i = 0; i < r->n; i++)
		if (strcmp(r->list[i].audit, name) == 0 &&
		    (!subject || strcmp(r->list[i].subject, subject) == 0))
			return &r->list[i];
	return NULL;
}

/* The findings of an audit, or those about one subject, have failed: how many are they? */
static int count_failed(const struct audit_report *r, const struct setting *expected)
{
	int count = 0;

	for (int i = 0; i < r->n; i++) {
		const struct audit_finding *f = &r->list[i];

		if (strcmp(f->audit, expected->symbol) != 0 ||
		    (expected->value && strcmp(f->subject, expected->value) != 0))
			continue;
		if (f->passed || !f->detail[0])
			fail_msg("%s %s should have failed", f->audit, f->subject);
		count++;
	}
	if (count == 0)
		fail_msg("no finding of %s %s", expected->symbol,
			 expected->value ? expected->value : "");
	return count;
}

/* Exactly these findings failed: pairs of audit and subject; subject NULL: all of that audit. */
static void assert_failed(const struct audit_report *r, const struct setting *expected)
{
	int failed = 0, wanted = 0;

	for (int i = 0; i < r->n; i++)
		failed += !r->list[i].passed;
	for (; expected->symbol; expected++)
		wanted += count_failed(r, expected);
	if (failed != wanted) {
		audit_print(r, stderr);
		fail_msg("%d findings failed, not %d", failed, wanted);
	}
}

static void assert_passed(const struct audit_report *r)
{
	assert_failed(r, SETTINGS({ NULL, NULL }));
	assert_true(audit_passed(r));
}

/* -------------------------------------------------------------- sound models */

/* Committed models that must fail, with the findings that must name them. */
static const struct {
	const char *vector;
	struct setting failed[4];
} unsound[] = {
	{ "models/vectors/gate-one-layer.safetensors",
	  { { "mechanism", "CONFIG_RA_MLA_MLP_ATTN_GATE" } } },
	{ "models/vectors/gate-sequence.safetensors", { { "causality", NULL } } },
	{ "models/vectors/cross-rms-high.safetensors", /* nothing passes the threshold */
	  { { "mechanism", "CONFIG_RA_MLA_MLP_CROSS_TOKEN" },
	    { "wiring", "h.0.mlp.cross_proj.weight" },
	    { "wiring", "h.1.mlp.cross_proj.weight" } } },
};

static const struct setting *expected_failures(const char *path)
{
	static const struct setting none = { NULL, NULL };

	for (size_t i = 0; i < sizeof(unsound) / sizeof(*unsound); i++)
		if (strcmp(unsound[i].vector, path) == 0)
			return unsound[i].failed;
	return &none;
}

static void test_every_vector(void **state)
{
	const struct backend backend = backend_for_tests(FLOAT32, 1);
	glob_t paths;

	(void)state;
	assert_int_equal(glob("models/vectors/*.safetensors", 0, NULL, &paths), 0);
	assert_true(paths.gl_pathc >= 80);
	for (size_t i = 0; i < paths.gl_pathc; i++) {
		const struct setting *expected = expected_failures(paths.gl_pathv[i]);
		struct audit_report report;
		struct safetensors file;
		struct config *c;
		struct error err;

		print_message("# %s\n", paths.gl_pathv[i]);
		must(safetensors_open(&file, paths.gl_pathv[i], &err), &err);
		must(vector_config(&file, &c, &err), &err);
		set(c, standard);
		set(c, SETTINGS({ "AUDIT_ORACLE", "y" }, { "DROPOUT", "0.1" }));
		report = audit_as(c, &backend, F32);
		assert_non_null(find(&report, "oracle", "gradients in float32"));
		assert_failed(&report, expected);
		assert_int_equal(audit_passed(&report), expected->symbol == NULL);
		audit_free(&report);
		config_free(c);
		safetensors_close(&file);
	}
	globfree(&paths);
}

static const struct setting everything[] = {
	{ "ATTENTION", "mla" },
	{ "FFN", "ws" },
	{ "RA_MLA_RA_ALPHA", "0.1" },
	{ "ATTENTION_OUT_GATE", "head" },
	{ "RA_MLA_MLP_ATTN_GATE", "y" },
	{ "RA_MLA_MLP_CROSS_TOKEN", "y" },
	{ "CROSS_FOLDED", "y" },
	{ "MERGE_LINEARS", "y" },
	{ "RA_MLA_MLP_LATENT_RECIP", "y" },
	{ "LOSS_LOGITS_Z", "1e-4" },
	{ "DROPOUT", "0.1" },
	{ "AUDIT_ORACLE", "y" },
	{ NULL, NULL },
};

static void test_everything_in_double(void **state)
{
	static const char *const symbols[] = {
		"CONFIG_RA_MLA_RA_ALPHA",
		"CONFIG_ATTENTION_OUT_GATE",
		"CONFIG_LOSS_LOGITS_Z",
		"CONFIG_WS_LAMBDA_Z",
		"CONFIG_WS_LAMBDA_C",
		"CONFIG_RA_MLA_MLP_ATTN_GATE",
		"CONFIG_RA_MLA_MLP_CROSS_TOKEN",
		"CONFIG_RA_MLA_MLP_LATENT_RECIP",
	};
	const struct backend backend = backend_for_tests(FLOAT32, 2);
	struct config *c = configured(everything);
	struct audit_report report = audit_as(c, &backend, F64);

	(void)state;
	assert_passed(&report);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
		assert_non_null(find(&report, "mechanism", symbols[i]));
	for (const struct setting *s = everything; s->symbol; s++)
		assert_string_equal(config_raw(c, s->symbol), s->value);
	audit_free(&report);
	config_free(c);
}

/* A weight that is learnt may start at zero. */
static void test_learned_zero(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "RA_MLA_MLP_ATTN_GATE", "y" }, { "GATE_ALPHA", "0" },
			       { "RA_MLA_MLP_CROSS_TOKEN", "y" }, { "CROSS_ALPHA", "0" },
			       { "RECIP_LEARN_ALPHA", "y" }));

	(void)state;
	assert_passed(&report);
	audit_free(&report);
}

static void test_auxiliary_only(void **state)
{
	struct audit_report report = audit(SETTINGS({ "FFN", "ws" }));
	const struct audit_finding *f = find(&report, "wiring", "h.0.mlp.z_proj.weight");

	(void)state;
	assert_passed(&report);
	assert_non_null(f);
	assert_string_equal(f->detail, "reached only by an auxiliary loss");
	assert_string_equal(find(&report, "wiring", "h.0.mlp.w1.weight")->detail, "");
	audit_free(&report);
}

/* A decoder reads the whole row on purpose; the layers below it are held to be causal. */
static void test_decoder(void **state)
{
	struct audit_report report = audit(SETTINGS({ "MODEL_DECODER", "y" }));

	(void)state;
	assert_passed(&report);
	assert_non_null(find(&report, "causality", "before the decoder, 63 of 63 positions"));
	assert_non_null(find(&report, "mechanism", "CONFIG_MODEL_DECODER"));
	audit_free(&report);
	report = audit(SETTINGS({ "MODEL_DECODER", "y" }, { "RA_MLA_MLP_ATTN_GATE", "y" },
				{ "GATE_POOL", "sequence" }));
	assert_failed(&report, SETTINGS({ "causality", NULL }));
	audit_free(&report);
}

/* An attention, a feed-forward and a mechanism without symbols leave `read` out. */
static void test_nothing_to_read(void **state)
{
	struct audit_report report = audit(
		SETTINGS({ "ATTENTION", "bare" }, { "FFN", "swiglu" }, { "TEST_MODEST", "y" }));

	(void)state;
	assert_passed(&report);
	audit_free(&report);
}

/* ------------------------------------------------------------------- faults */

static void test_unwired(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_UNWIRED", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "wiring", "h.0.mlp.unwired.weight" },
					{ "wiring", "h.1.mlp.unwired.weight" },
					{ "mechanism", "CONFIG_TEST_UNWIRED" }));
	assert_false(audit_passed(&report));
	audit_free(&report);
}

/* An older program left out the ninth mechanism and said nothing. */
static void test_too_many(void **state)
{
	struct config *c = configured(SETTINGS({ "TEST_MANY", "y" }));
	struct model *m;
	struct error err;

	(void)state;
	assert_int_equal(model_read(&m, c, &untrained, &err), FAIL);
	assert_string_equal(err.text,
			    "CONFIG_TEST_MANY is one mechanism too many: a model has at most 8");
	config_free(c);
}

static void expect_refused(const char *symbol, const char *value, const char *text)
{
	struct config *c = configured(SETTINGS({ symbol, value }));
	struct model *m;
	struct error err;

	assert_int_equal(model_read(&m, c, &untrained, &err), FAIL);
	assert_string_equal(err.text, text);
	config_free(c);
}

static void test_nothing_to_compute(void **state)
{
	(void)state;
	expect_refused("ATTENTION", "nothing",
		       "attention 'nothing' needs one of .project and .mix in its descriptor");
	expect_refused("ATTENTION", "two",
		       "attention 'two' needs one of .project and .mix in its descriptor");
	expect_refused("FFN", "nothing", "feed-forward 'nothing' has no .hidden in its descriptor");
	expect_refused("POS", "nothing", "position 'nothing' has no .biases in its descriptor");
}

static void test_unheard(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_UNHEARD", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_TEST_UNHEARD" }));
	assert_string_equal(
		find(&report, "mechanism", "CONFIG_TEST_UNHEARD")->detail,
		"what layer 0 sends to the next changes 0.0e+00 of the logits, less than "
		"1e-05");
	audit_free(&report);
}

/* A mechanism acts in every layer, unless it says where it acts. */
static void test_one_layer_only(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_LAZY", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_TEST_LAZY" }));
	assert_string_equal(find(&report, "mechanism", NULL)->detail,
			    "in layer 1 it changes 0.0e+00 of the logits, less than 1e-05");
	audit_free(&report);
	report = audit(SETTINGS({ "TEST_MODEST", "y" }));
	assert_passed(&report);
	audit_free(&report);
}

/* One changed bit is no effect. */
static void test_too_small(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "TEST_WEIGHTED", "y" }, { "TEST_WEIGHT", "0.1" }));

	(void)state;
	assert_passed(&report);
	audit_free(&report);
	report = audit(SETTINGS({ "TEST_WEIGHTED", "y" }, { "TEST_WEIGHT", "1e-6" }));
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_TEST_WEIGHTED" }));
	assert_non_null(strstr(find(&report, "mechanism", NULL)->detail, "less than 1e-05"));
	audit_free(&report);
}

static void test_undeclared_dropout(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_BY_CHANCE", "y" }));

	(void)state;
	assert_false(find(&report, "training", "dropout")->passed);
	assert_string_equal(find(&report, "training", "dropout")->detail,
			    "DROPOUT=0, and another seed changes the gradient");
	assert_true(find(&report, "training", "evaluation without dropout")->passed);
	audit_free(&report);
	report = audit(SETTINGS({ "TEST_BY_CHANCE", "y" }, { "DROPOUT", "0.1" }));
	assert_true(find(&report, "training", "dropout")->passed);
	assert_false(find(&report, "training", "dropout rate")->passed);
	assert_string_equal(find(&report, "training", "dropout rate")->detail,
			    "DROPOUT=0.1, and h.0.mlp.by_chance drops another share");
	audit_free(&report);
}

/* Keeps what it should drop; the graph says 0.1. */
static void drop_nothing(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);

	memcpy(c->out[0], c->in[0], (size_t)n * sizeof(float));
}

static void test_kernel_without_dropout(void **state)
{
	const struct setting list[] = { { "AUDIT_ORACLE", "y" },
					{ "AUDIT_WIRING", "n" },
					{ "AUDIT_CAUSALITY", "n" },
					{ "AUDIT_ONE_BATCH", "n" },
					{ "AUDIT_TRAINING", "n" },
					{ "DROPOUT", "0.1" },
					{ NULL, NULL } };
	struct backend backend = faulty_backend(OP_dropout);
	struct audit_report report;

	(void)state;
	report = audit_with(&backend, list);
	assert_passed(&report);
	audit_free(&report);
	faulty.forward = drop_nothing;
	report = audit_with(&backend, list);
	assert_failed(&report, SETTINGS({ "oracle", "losses in float32, with dropout" },
					{ "oracle", "graphs in float32, with dropout" },
					{ "oracle", "gradients in float32, with dropout" }));
	audit_free(&report);
}

/* ------------------------------------------------------------------ storage */

static void test_storage(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_SHARED", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "wiring", "layers" }));
	assert_string_equal(find(&report, "wiring", "layers")->detail,
			    "layers 0 and 1 read h.0.mlp.shared.weight");
	audit_free(&report);
	report = audit(SETTINGS({ "MODEL_TIE_HEAD", "n" }));
	assert_string_equal(find(&report, "wiring", "tied head")->detail,
			    "MODEL_TIE_HEAD=n, and embedding and head read two tables");
	assert_passed(&report);
	audit_free(&report);
}

/* An older audit, of 128 positions only, did not see a leak after them. */
static void leak_late(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, row = dim[2] * dim[3];
	float *o = c->out[0];

	sound.forward(c);
	for (int64_t b = 0; b < dim[0]; b++)
		for (int64_t i = 130 * row; i < (dim[1] - 1) * row; i++)
			o[b * dim[1] * row + i] += 0.01f * o[b * dim[1] * row + i + row];
}

static void test_late_leak(void **state)
{
	struct backend backend = faulty_backend(OP_attention);
	struct audit_report report;

	(void)state;
	faulty.forward = leak_late;
	report = audit_with(&backend, SETTINGS({ "ATTENTION", "dot" }, { "MODEL_BLOCK", "256" }));
	assert_failed(&report, SETTINGS({ "causality", NULL }));
	audit_free(&report);
}

/* The first row gets a little of the last one. */
static void read_neighbour(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, row = dim[1] * dim[2] * dim[3];
	float *o = c->out[0];

	sound.forward(c);
	for (int64_t i = 0; i < row; i++)
		o[i] += 0.01f * o[(dim[0] - 1) * row + i];
}

static void test_neighbour(void **state)
{
	struct backend backend = faulty_backend(OP_attention);
	struct audit_report report;

	(void)state;
	faulty.forward = read_neighbour;
	report = audit_with(&backend, SETTINGS({ "ATTENTION", "dot" }));
	assert_false(find(&report, "state", "neighbours")->passed);
	audit_free(&report);
}

static void test_zero_alpha(void **state)
{
	struct audit_report report;

	(void)state;
	report = audit(SETTINGS({ "RA_MLA_MLP_ATTN_GATE", "y" }, { "GATE_ALPHA", "0" }));
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_RA_MLA_MLP_ATTN_GATE" },
					{ "wiring", "h.0.mlp.gate_proj.weight" },
					{ "wiring", "h.0.mlp.gate_to_heads.weight" }));
	audit_free(&report);
	for (int form = 0; form < 3; form++) {
		report = audit(SETTINGS({ "RA_MLA_MLP_CROSS_TOKEN", "y" }, { "CROSS_ALPHA", "0" },
					{ "CROSS_FOLDED", form > 0 ? "y" : "n" },
					{ "MERGE_LINEARS", form > 1 ? "y" : "n" }));
		assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_RA_MLA_MLP_CROSS_TOKEN" },
						{ "wiring", "h.0.mlp.cross_proj.weight" },
						{ "wiring", "h.1.mlp.cross_proj.weight" }));
		audit_free(&report);
	}
	report = audit(SETTINGS({ "ATTENTION", "mla" }, { "RA_MLA_MLP_LATENT_RECIP", "y" },
				{ "RECIP_ALPHA", "0" }));
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_RA_MLA_MLP_LATENT_RECIP" },
					{ "wiring", "h.0.mlp.coupler.weight" },
					{ "wiring", "h.1.mlp.coupler.weight" }));
	audit_free(&report);
}

static void test_undeclared_leak(void **state)
{
	static const char *const weights[] = { "0.1", "0" }; /* 0: no effect until learnt */

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct audit_report report =
			audit(SETTINGS({ "TEST_AHEAD", "y" }, { "TEST_WEIGHT", weights[i] }));

		assert_failed(&report, SETTINGS({ "causality", NULL }, { "training", "graphs" }));
		assert_false(audit_passed(&report));
		audit_free(&report);
	}
}

/* With the weights of a run, float would round this leak away. */
static void test_faint_leak(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "RA_MLA_MLP_ATTN_GATE", "y" }, { "GATE_POOL", "sequence" },
			       { "GATE_ALPHA", "1e-4" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "causality", NULL }));
	audit_free(&report);
}

/* A declared leak: the model may be trained, and the finding stays. */
static void test_declared_leak(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "RA_MLA_MLP_ATTN_GATE", "y" }, { "GATE_POOL", "sequence" },
			       { "AUDIT_LEAK_DECLARED", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "causality", NULL }));
	assert_true(report.declared_leak);
	assert_true(audit_passed(&report));
	audit_free(&report);
}

/* The declaration excuses the leak and nothing else. */
static void test_declared_but_unwired(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_AHEAD", "y" }, { "TEST_UNWIRED", "y" },
						    { "AUDIT_LEAK_DECLARED", "y" }));

	(void)state;
	assert_false(audit_passed(&report));
	audit_free(&report);
}

static void test_mask_off_by_one(void **state)
{
	struct backend backend = faulty_backend(OP_attention);
	struct audit_report report;

	(void)state;
	faulty.forward = attend_ahead;
	report = audit_with(&backend, SETTINGS({ "ATTENTION", "dot" }));
	assert_failed(&report, SETTINGS({ "causality", NULL }, { "training", "precision" },
					{ "training", "graphs" }));
	audit_free(&report);
}

static void test_routing_ahead(void **state)
{
	struct backend backend = faulty_backend(OP_attention);
	struct audit_report report;

	(void)state;
	faulty.forward = route_ahead;
	report = audit_with(&backend, SETTINGS({ "RA_MLA_MLP_CROSS_TOKEN", "y" }));
	assert_failed(&report, SETTINGS({ "causality", NULL }, { "training", "precision" },
					{ "training", "graphs" }));
	audit_free(&report);
}

/* A model that ignores its tokens cannot leak, but it fails, too. */
static void test_blind(void **state)
{
	struct backend backend = faulty_backend(OP_embedding);
	struct audit_report report;

	(void)state;
	faulty.forward = embed_nothing;
	report = audit_with(&backend, SETTINGS({ "ATTENTION", "dot" }));
	assert_failed(&report,
		      SETTINGS({ "causality", "63 of 63 positions" }, { "training", "precision" }));
	audit_free(&report);
}

static void test_last_batch(void **state)
{
	struct backend backend = faulty_backend(OP_head_gate);
	struct audit_report report;

	(void)state;
	faulty.forward = gate_from_last_batch;
	report = audit_with(&backend, SETTINGS({ "RA_MLA_MLP_ATTN_GATE", "y" }));
	assert_false(find(&report, "state", "logits")->passed);
	assert_false(find(&report, "state", "gradients")->passed);
	assert_false(audit_passed(&report));
	audit_free(&report);
}

static void test_detached_loss(void **state)
{
	struct audit_report report;

	(void)state;
	report = audit(SETTINGS({ "FFN", "detached" }));
	assert_failed(&report, SETTINGS({ "wiring", "h.0.mlp.z_proj.weight" },
					{ "wiring", "h.1.mlp.z_proj.weight" },
					{ "mechanism", "CONFIG_TEST_WEIGHT" }));
	audit_free(&report);
	report = audit(SETTINGS({ "FFN", "beside" }));
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_TEST_WEIGHT" }));
	audit_free(&report);
}

static void test_detached_logits_loss(void **state)
{
	struct backend backend = faulty_backend(OP_head_loss);
	struct audit_report report;

	(void)state;
	faulty.loss = loss_without_z;
	report = audit_with(&backend, SETTINGS({ "LOSS_LOGITS_Z", "1e-4" }));
	assert_failed(&report, SETTINGS({ "mechanism", "CONFIG_LOSS_LOGITS_Z" }));
	audit_free(&report);
}

static void test_uphill(void **state)
{
	struct backend backend = faulty_backend(OP_head_loss);
	struct audit_report report;

	(void)state;
	faulty.loss = loss_uphill;
	report = audit_with(&backend, SETTINGS({ "ATTENTION", "dot" }));
	assert_failed(&report, SETTINGS({ "one batch", "loss" }));
	audit_free(&report);
}

/* ------------------------------------------------------------- two programs */

/* One mechanism, one oracle: only the same formula passes. */
static void test_other_formula(void **state)
{
	struct audit_report report = audit(
		SETTINGS({ "AUDIT_ORACLE", "y" }, { "TEST_DOUBLED", "y" }, { "TEST_WEIGHT", "2" }));

	(void)state;
	assert_passed(&report);
	assert_null(find(&report, "oracle", "no oracle"));
	audit_free(&report);
	report = audit(SETTINGS({ "AUDIT_ORACLE", "y" }, { "TEST_DOUBLED", "y" },
				{ "TEST_WEIGHT", "2.00001" }));
	assert_failed(&report,
		      SETTINGS({ "oracle", "logits in double" }, { "oracle", "losses in double" },
			       { "oracle", "graphs in double" },
			       { "oracle", "gradients in double" }));
	audit_free(&report);
}

/* Without an oracle gradients are held to the engine's own loss. */
static void test_no_oracle(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "AUDIT_ORACLE", "y" }, { "TEST_WEIGHTED", "y" }));

	(void)state;
	assert_passed(&report);
	assert_string_equal(find(&report, "oracle", "no oracle")->detail,
			    "mechanism 'weighted' brings none: its formula is not compared");
	assert_non_null(find(&report, "oracle", "gradients in double"));
	assert_non_null(find(&report, "oracle", "gradients in float32"));
	assert_null(find(&report, "oracle", "logits in double"));
	assert_non_null(strstr(find(&report, "oracle", "graphs in double")->detail,
			       "engine and its training differ by"));
	audit_free(&report);
	report = audit(SETTINGS({ "AUDIT_ORACLE", "y" }, { "TEST_WEIGHTED", "y" },
				{ "RA_MLA_MLP_CROSS_TOKEN", "y" }));
	assert_passed(&report);
	assert_non_null(find(&report, "oracle", "gradients in float32"));
	audit_free(&report);
	report = audit(
		SETTINGS({ "AUDIT_ORACLE", "y" }, { "FFN", "beside" }, { "AUDIT_WIRING", "n" }));
	assert_passed(&report);
	assert_non_null(strstr(find(&report, "oracle", "gradients in double")->detail,
			       "not compared: something is constant on purpose"));
	audit_free(&report);
}

/* A kernel whose gradient has the wrong sign, with an oracle and without. */
static void test_wrong_gradient(void **state)
{
	static const char *const weighted_too[] = { "n", "y" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct backend backend = faulty_backend(OP_head_loss);
		struct audit_report report;

		faulty.loss = loss_uphill;
		report = audit_with(&backend,
				    SETTINGS({ "AUDIT_ORACLE", "y" }, { "AUDIT_ONE_BATCH", "n" },
					     { "TEST_WEIGHTED", weighted_too[i] }));
		assert_failed(&report, SETTINGS({ "oracle", "gradients in float32" }));
		audit_free(&report);
	}
}

/* Large scores bend the loss: one step is too coarse for a derivative. */
static void test_sharp_scores(void **state)
{
	struct audit_report report = audit(SETTINGS(
		{ "AUDIT_ORACLE", "y" }, { "AUDIT_WIRING", "n" }, { "AUDIT_CAUSALITY", "n" },
		{ "AUDIT_ONE_BATCH", "n" }, { "AUDIT_TRAINING", "n" }, { "ATTENTION", "w2" },
		{ "W2_SCORE", "overlap" }, { "POS", "rope" }, { "NORM", "rms" },
		{ "FFN", "swiglu" }, { "MODEL_TIE_HEAD", "n" }, { "MODEL_EMBD", "64" },
		{ "MODEL_BIAS", "n" }, { "NORM_EPS", "1e-6" }, { "FINAL_NORM", "layer" }));

	(void)state;
	assert_passed(&report);
	audit_free(&report);
}

/* Training is one model and evaluation another. */
static void test_graphs_differ(void **state)
{
	struct audit_report report = audit(SETTINGS({ "TEST_TWOFOLD", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "training", "graphs" }));
	audit_free(&report);
}

/* So little that only double shows it, in a model without an oracle. */
static void test_graphs_differ_a_little(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "AUDIT_ORACLE", "y" }, { "TEST_TWOFOLD", "y" },
			       { "TEST_WEIGHT", "1e-6" }, { "RA_MLA_MLP_CROSS_TOKEN", "y" }));

	(void)state;
	assert_failed(&report, SETTINGS({ "oracle", "graphs in double" }));
	audit_free(&report);
}

/* ------------------------------------------------------------------ options */

static void *(*plain_alloc)(const struct backend *b, size_t bytes);
static size_t allocated;

static void *count_allocation(const struct backend *b, size_t bytes)
{
	allocated += bytes;
	return plain_alloc(b, bytes);
}

/* What parameters and programs of one kind of audit take in all. */
static size_t memory_of(const char *audit, bool no_planner)
{
	struct backend backend = backend_for_tests(FLOAT32, 1);
	struct config *c = configured(SETTINGS(
		{ "AUDIT_ORACLE", "n" }, { "AUDIT_WIRING", "n" }, { "AUDIT_CAUSALITY", "n" },
		{ "AUDIT_ONE_BATCH", "n" }, { "AUDIT_TRAINING", "n" }, { audit, "y" }));
	struct audit_options options;
	struct audit_report report;
	struct model *m;
	struct error err;

	must(model_read(&m, c, &untrained, &err), &err);
	options = audit_configured(c, m, F32, 1);
	options.program.no_planner = no_planner;
	model_free(m);
	plain_alloc = backend.alloc;
	backend.alloc = count_allocation;
	allocated = 0;
	must(audit_model(c, &untrained, &backend, &options, &report, &err), &err);
	assert_passed(&report);
	audit_free(&report);
	config_free(c);
	return allocated;
}

/* Without a planner the programs of all audits take more memory, as those of the run do. */
static void test_programs_of_the_run(void **state)
{
	static const char *const audits[] = { "AUDIT_ORACLE", "AUDIT_WIRING", "AUDIT_CAUSALITY",
					      "AUDIT_ONE_BATCH", "AUDIT_TRAINING" };

	(void)state;
	for (size_t i = 0; i < sizeof(audits) / sizeof(*audits); i++)
		assert_true(memory_of(audits[i], true) > memory_of(audits[i], false));
}

static void test_switched_off(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "AUDIT_WIRING", "n" }, { "TEST_UNWIRED", "y" }));

	(void)state;
	assert_null(find(&report, "wiring", NULL));
	assert_null(find(&report, "mechanism", NULL));
	assert_int_equal(report.n, 12);
	assert_true(report.partial);
	audit_free(&report);
	report = audit(SETTINGS({ "AUDIT_CAUSALITY", "n" }, { "AUDIT_ONE_BATCH", "n" }));
	assert_null(find(&report, "causality", NULL));
	assert_null(find(&report, "state", NULL));
	assert_null(find(&report, "one batch", NULL));
	assert_non_null(find(&report, "wiring", "wte.weight"));
	audit_free(&report);
}

/* All positions of a small model; fewer of a large one. */
static void test_sizes(void **state)
{
	struct config *c = configured(SETTINGS({ "MODEL_BLOCK", "1024" }));
	struct model *m;
	struct error err;

	(void)state;
	must(model_read(&m, c, &untrained, &err), &err);
	assert_int_equal(audit_configured(c, m, F32, 1).length, 1024);
	assert_int_equal(audit_configured(c, m, F32, 1).positions, 297);
	model_free(m);
	set(c, SETTINGS({ "MODEL_BLOCK", "256" }));
	must(model_read(&m, c, &untrained, &err), &err);
	assert_int_equal(audit_configured(c, m, F32, 1).positions, 255);
	model_free(m);
	set(c,
	    SETTINGS({ "MODEL_BLOCK", "1024" }, { "MODEL_EMBD", "768" }, { "MODEL_LAYERS", "12" }));
	must(model_read(&m, c, &untrained, &err), &err);
	assert_int_equal(audit_configured(c, m, F32, 1).positions, 8);
	model_free(m);
	config_free(c);
}

static void test_one_token(void **state)
{
	struct config *c = configured(SETTINGS({ "MODEL_VOCAB", "1" }));
	const struct backend backend = backend_for_tests(FLOAT32, 1);
	const struct audit_options options = {
		.wiring = true, .type = F32, .rows = 1, .length = 2
	};
	struct audit_report report;
	struct error err;

	(void)state;
	assert_int_equal(audit_model(c, &untrained, &backend, &options, &report, &err), FAIL);
	audit_free(&report);
	config_free(c);
}

static void test_print(void **state)
{
	struct audit_report report =
		audit(SETTINGS({ "TEST_UNWIRED", "y" }, { "AUDIT_CAUSALITY", "n" }));
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	assert_non_null(file);
	audit_print(&report, file);
	fclose(file);
	assert_non_null(
		strstr(text, "wiring    FAILED h.0.mlp.unwired.weight: receives no gradient\n"));
	assert_non_null(strstr(text, "mechanism FAILED CONFIG_TEST_UNWIRED: switching it off"));
	assert_non_null(strstr(text, "audits, FAILED; others are switched off\n"));
	free(text);
	audit_free(&report);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_vector),
		cmocka_unit_test(test_everything_in_double),
		cmocka_unit_test(test_learned_zero),
		cmocka_unit_test(test_auxiliary_only),
		cmocka_unit_test(test_decoder),
		cmocka_unit_test(test_nothing_to_read),
		cmocka_unit_test(test_unwired),
		cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_nothing_to_compute),
		cmocka_unit_test(test_unheard),
		cmocka_unit_test(test_one_layer_only),
		cmocka_unit_test(test_too_small),
		cmocka_unit_test(test_undeclared_dropout),
		cmocka_unit_test(test_kernel_without_dropout),
		cmocka_unit_test(test_storage),
		cmocka_unit_test(test_late_leak),
		cmocka_unit_test(test_neighbour),
		cmocka_unit_test(test_zero_alpha),
		cmocka_unit_test(test_undeclared_leak),
		cmocka_unit_test(test_faint_leak),
		cmocka_unit_test(test_declared_leak),
		cmocka_unit_test(test_declared_but_unwired),
		cmocka_unit_test(test_mask_off_by_one),
		cmocka_unit_test(test_routing_ahead),
		cmocka_unit_test(test_blind),
		cmocka_unit_test(test_last_batch),
		cmocka_unit_test(test_detached_loss),
		cmocka_unit_test(test_detached_logits_loss),
		cmocka_unit_test(test_uphill),
		cmocka_unit_test(test_other_formula),
		cmocka_unit_test(test_no_oracle),
		cmocka_unit_test(test_wrong_gradient),
		cmocka_unit_test(test_sharp_scores),
		cmocka_unit_test(test_graphs_differ),
		cmocka_unit_test(test_graphs_differ_a_little),
		cmocka_unit_test(test_programs_of_the_run),
		cmocka_unit_test(test_switched_off),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_one_token),
		cmocka_unit_test(test_print),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
