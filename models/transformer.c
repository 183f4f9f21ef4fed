/*
 * transformer - the decoder's wiring, the same for all variants.
 *
 *     x = wte[tok] (+ wpe[pos])
 *     per layer, norm before the branch:  x += Attn(ln_1(x)); x += FFN(ln_2(x))
 *     or after the residual:              x = ln_1(x + Attn(x)); x = ln_2(x + FFN(x))
 *     logits = ln_f(x) W'
 *     or, with MODEL_DECODER, of all places t from the last token alone:
 *     y = ln_f(x)[T-1] + P[t];  twice y = GELU(norm(y) W + b);  logits = norm(y) W'
 *
 * The next norm adds a branch's output to x and normalises, in one pass.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/gpt2_names.h"
#include "models/model.h"

REGISTERED(attention_variants, attention_variant);
REGISTERED(position_variants, position_variant);
REGISTERED(ffn_variants, ffn_variant);
REGISTERED(mechanisms, mechanism);

/* ------------------------------------------------------------------ options */

static void *variant_options(struct model *m, size_t size, struct error *err)
{
	void *options = pool_alloc(&m->pool, size + 1);

	if (!options)
		fail_memory(err, "model options", size);
	return options;
}

static enum status read_attention(struct model *m, struct config *c, struct error *err)
{
	const char *name = config_text(c, "ATTENTION");

	for (const struct attention_variant *const *v = __start_attention_variants;
	     name && v < __stop_attention_variants; v++)
		if (strcmp((*v)->name, name) == 0)
			m->attention = *v;
	if (!m->attention)
		return fail(err, "attention type '%s' is not part of this program",
			    name ? name : "");
	if (!m->attention->project == !m->attention->mix)
		return fail(err, "attention '%s' needs one of .project and .mix in its descriptor",
			    name);
	m->attention_options = variant_options(m, m->attention->options_size, err);
	if (!m->attention_options)
		return FAIL;
	if (m->attention->mix && (m->distance || m->score_window > 0 || m->softcap > 0))
		return fail(err, "CONFIG_%s needs attention scores, and ATTENTION=%s has none",
			    m->distance		  ? "POS"
			    : m->score_window > 0 ? "ATTENTION_WINDOWED"
						  : "ATTENTION_SOFTCAP",
			    name);
	return m->attention->read ? m->attention->read(m->attention_options, m, c, err) : OK;
}

/* Positions that the embedding or a rotation knows, or a bias of distances. */
static enum status read_position(struct model *m, struct config *c, struct error *err)
{
	static const char *const positions[] = { "learned", "rope", "none", NULL };
	const char *name = config_text(c, "POS");

	for (const struct position_variant *const *v = __start_position_variants;
	     name && v < __stop_position_variants; v++)
		if (strcmp((*v)->name, name) == 0)
			m->distance = *v;
	m->position =
		m->distance ? POS_DISTANCE : (enum position)config_choice(c, "POS", positions);
	if (m->position == POS_ROPE)
		m->rope_theta = config_real(c, "ROPE_THETA");
	if (!m->distance)
		return OK;
	if (!m->distance->biases)
		return fail(err, "position '%s' has no .biases in its descriptor", name);
	m->distance_options = variant_options(m, m->distance->options_size, err);
	if (!m->distance_options)
		return FAIL;
	return m->distance->read ? m->distance->read(m->distance_options, m, c, err) : OK;
}

/* Terms of the scores that no variant brings. */
static enum status read_scores(struct model *m, struct config *c, struct error *err)
{
	m->softcap = config_real(c, "ATTENTION_SOFTCAP");
	if (!(m->softcap >= 0 && isfinite(m->softcap)))
		return fail(err, "ATTENTION_SOFTCAP=%g must be finite and not negative",
			    m->softcap);
	if (!config_bool(c, "ATTENTION_WINDOWED"))
		return OK;
	m->score_window = config_int(c, "ATTENTION_WINDOW");
	m->score_sinks = config_int(c, "ATTENTION_SINKS");
	if (m->score_window < 1 || m->score_sinks < 0)
		return fail(
			err,
			"ATTENTION_WINDOW=%lld must be at least 1, because a query sees its own "
			"key, and ATTENTION_SINKS=%lld must not be negative",
			(long long)m->score_window, (long long)m->score_sinks);
	return OK;
}

static enum status read_ffn(struct model *m, struct config *c, struct error *err)
{
	const char *name = config_text(c, "FFN");

	for (const struct ffn_variant *const *v = __start_ffn_variants;
	     name && v < __stop_ffn_variants; v++)
		if (strcmp((*v)->name, name) == 0)
			m->ffn = *v;
	if (!m->ffn)
		return fail(err, "feed-forward '%s' is not part of this program", name ? name : "");
	if (!m->ffn->hidden)
		return fail(err, "feed-forward '%s' has no .hidden in its descriptor", name);
	m->ffn_options = variant_options(m, m->ffn->options_size, err);
	if (!m->ffn_options)
		return FAIL;
	return m->ffn->read ? m->ffn->read(m->ffn_options, m, c, err) : OK;
}

/* Keeps the list sorted by the order in which the mechanisms change the hidden activation. */
static enum status insert_mechanism(struct model *m, const struct mechanism *mechanism,
				    struct error *err)
{
	int at = m->n_mechanisms;

	if (at == MAX_MECHANISMS)
		return fail(err, "CONFIG_%s is one mechanism too many: a model has at most %d",
			    mechanism->symbol, MAX_MECHANISMS);
	m->n_mechanisms++;
	for (; at > 0 && m->mechanism[at - 1]->order > mechanism->order; at--)
		m->mechanism[at] = m->mechanism[at - 1];
	m->mechanism[at] = mechanism;
	return OK;
}

static enum status read_mechanisms(struct model *m, struct config *c, struct error *err)
{
	for (const struct mechanism *const *v = __start_mechanisms; v < __stop_mechanisms; v++)
		if (config_bool(c, (*v)->symbol) && insert_mechanism(m, *v, err) != OK)
			return FAIL;
	if (m->n_mechanisms)
		m->learn_alpha = config_bool(c, "RECIP_LEARN_ALPHA");
	for (int i = 0; i < m->n_mechanisms; i++) {
		const struct mechanism *mechanism = m->mechanism[i];

		if (mechanism->attend && m->attention->mix)
			return fail(err,
				    "CONFIG_%s needs attention scores, and ATTENTION=%s has none",
				    mechanism->symbol, m->attention->name);
		m->mechanism_options[i] = variant_options(m, mechanism->options_size, err);
		if (!m->mechanism_options[i])
			return FAIL;
		if (mechanism->read && mechanism->read(m->mechanism_options[i], m, c, err) != OK)
			return FAIL;
	}
	return OK;
}

static void read_norms(struct model *m, struct config *c)
{
	static const char *const kinds[] = { "layer", "rms", NULL };
	static const char *const final_kinds[] = { "same", "layer", "rms", NULL };
	static const char *const places[] = { "pre", "post", NULL };
	int final_kind;

	m->norm = config_choice(c, "NORM", kinds) == 1 ? NORM_RMS : NORM_LAYER;
	m->norm_eps = config_real(c, "NORM_EPS");
	m->norm_after = config_choice(c, "NORM_PLACE", places) == 1;
	m->final_norm = m->norm;
	m->final_norm_bias = m->norm == NORM_LAYER && m->bias;
	if (m->norm_after)
		return;
	final_kind = config_choice(c, "FINAL_NORM", final_kinds);
	if (final_kind == 0)
		return;
	m->final_norm = final_kind == 2 ? NORM_RMS : NORM_LAYER;
	m->final_norm_bias = final_kind == 1;
}

static void read_sizes(struct model *m, struct config *c, const struct model_task *task)
{
	static const char *const schemes[] = { "gpt2", "orthogonal", NULL };
	static const char *const gates[] = { "none", "head", "channel", NULL };
	const double multiple =
		config_real(c, "FFN_MULT"); /* of the width, unless FFN_HIDDEN is given */

	m->vocab = config_int(c, "MODEL_VOCAB");
	if (m->vocab == 0)
		m->vocab = task->vocab;
	m->batch = task->batch;
	m->length = config_int(c, "MODEL_BLOCK");
	m->layers = config_int(c, "MODEL_LAYERS");
	m->heads = config_int(c, "MODEL_HEADS");
	m->embd = config_int(c, "MODEL_EMBD");
	m->hidden = config_int(c, "FFN_HIDDEN");
	if (m->hidden == 0)
		m->hidden = (int64_t)(multiple * (double)m->embd);
	m->bias = config_bool(c, "MODEL_BIAS");
	m->tied = config_bool(c, "MODEL_TIE_HEAD");
	m->decoder = config_bool(c, "MODEL_DECODER");
	m->merges_linears = config_bool(c, "MERGE_LINEARS");
	m->init = (enum init_scheme)config_choice(c, "INIT", schemes);
	if (m->init == SCHEME_GPT2)
		m->init_deviation = config_real(c, "INIT_STD");
	m->out_gate = (enum out_gate)config_choice(c, "ATTENTION_OUT_GATE", gates);
	m->window = config_int(c, "RA_MLA_RA_WINDOW");
	m->dropout = config_real(c, "DROPOUT");
	m->logits_z = config_real(c, "LOSS_LOGITS_Z");
}

static enum status check_sizes(struct model *m, int64_t task_vocab, struct error *err)
{
	if (m->vocab < 1 || m->length < 1 || m->layers < 1 || m->heads < 1 || m->embd < 1)
		return fail(err, "layers, heads, width, length and vocabulary must be positive");
	if (m->vocab < task_vocab)
		return fail(err, "MODEL_VOCAB=%lld is smaller than the data's vocabulary of %lld",
			    (long long)m->vocab, (long long)task_vocab);
	if (m->embd % m->heads)
		return fail(err, "MODEL_EMBD=%lld is not divisible by MODEL_HEADS=%lld",
			    (long long)m->embd, (long long)m->heads);
	if (m->hidden < 1)
		return fail(err, "the feed-forward has no hidden channels");
	if (!(m->dropout >= 0 && m->dropout < 1))
		return fail(err, "DROPOUT=%g must be at least 0 and below 1", m->dropout);
	if (m->init == SCHEME_GPT2 && !(m->init_deviation > 0))
		return fail(err, "INIT_STD=%g must be positive", m->init_deviation);
	if (!(m->logits_z >= 0))
		return fail(err, "LOSS_LOGITS_Z=%g must not be negative", m->logits_z);
	if (!(m->norm_eps > 0))
		return fail(err, "NORM_EPS=%g must be positive", m->norm_eps);
	if (m->position == POS_ROPE && !(m->rope_theta > 0))
		return fail(err, "ROPE_THETA=%g must be positive", m->rope_theta);
	m->head_dim = m->embd / m->heads;
	return OK;
}

enum status model_read(struct model **out, struct config *c, const struct model_task *task,
		       struct error *err)
{
	struct model *m = calloc(1, sizeof(*m));

	if (!m)
		return fail_memory(err, "model", sizeof(*m));
	read_sizes(m, c, task);
	read_norms(m, c);
	if (read_position(m, c, err) != OK || read_scores(m, c, err) != OK ||
	    config_check(c, err) != OK || check_sizes(m, task->vocab, err) != OK ||
	    read_attention(m, c, err) != OK || read_ffn(m, c, err) != OK ||
	    read_mechanisms(m, c, err) != OK || config_check(c, err) != OK) {
		model_free(m);
		return FAIL;
	}
	*out = m;
	return OK;
}

void model_free(struct model *m)
{
	if (!m)
		return;
	pool_free(&m->pool);
	free(m);
}

/* -------------------------------------------------------------------- names */

/*
 * Everything that is added from now on belongs to this module of this layer (-1: of no layer).
 * Names begin with "h.3.attn." or "h.3.mlp."; names of norms with "h.3."; outside of layers there
 * is no prefix.
 */
static void enter(struct graph *g, int layer, enum module module)
{
	static const char *const names[MODULES] = {
		[MODULE_EMBEDDING] = "", [MODULE_ATTENTION] = "attn.", [MODULE_FFN] = "mlp.",
		[MODULE_NORM] = "",	 [MODULE_HEAD] = "",
	};

	graph_origin(g, layer, module);
	if (layer < 0)
		graph_scope_end(g);
	else
		graph_scope(g, LAYER_PREFIX "%d.%s", layer, names[module]);
}

/* --------------------------------------------------------------- parameters */

/* Mechanism i is part of this layer, unless an audit wants to see the layer without it. */
static bool present(const struct block *b, int i)
{
	return b->m->muted != i + 1 || b->m->muted_layer != b->layer;
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), k = strlen(end);

	return n >= k && strcmp(text + n - k, end) == 0;
}

static struct param_init matrix_init(const struct model *m, const char *name)
{
	double deviation = m->init_deviation;

	if (m->init == SCHEME_ORTHOGONAL)
		return (struct param_init){ .kind = INIT_ORTHOGONAL, .value = 1 };
	if (ends_with(name, "c_proj.weight"))
		deviation /= sqrt(2 * (double)m->layers);
	return (struct param_init){ .kind = INIT_NORMAL, .value = deviation };
}

struct tensor *block_matrix(struct block *b, const char *name, int64_t in, int64_t out)
{
	struct param_init init = matrix_init(b->m, name);

	return graph_param(b->g, name, &init, 2, SHAPE(in, out));
}

struct tensor *block_heads_matrix(struct block *b, const char *name, int64_t heads, int64_t in,
				  int64_t out)
{
	struct param_init init = matrix_init(b->m, name);

	return graph_param(b->g, name, &init, 3, SHAPE(heads, in, out));
}

static struct tensor *vector(struct graph *g, const char *name, int64_t n, double value)
{
	struct param_init init = { .kind = INIT_CONSTANT, .value = value };

	return graph_param(g, name, &init, 1, SHAPE(n));
}

struct tensor *block_vector(struct block *b, const char *name, int64_t n, double value)
{
	return vector(b->g, name, n, value);
}

static struct tensor *table(const struct model *m, struct graph *g, const char *name, int64_t rows,
			    int64_t width)
{
	struct param_init init = matrix_init(m, name);

	init.embedding = true;
	return graph_param(g, name, &init, 2, SHAPE(rows, width));
}

struct tensor *block_shared_table(struct block *b, const char *name, int64_t rows, int64_t width)
{
	const char *const scope = b->g->scope;
	const struct origin origin = b->g->origin;
	struct tensor *t;

	enter(b->g, -1, MODULE_EMBEDDING);
	t = table(b->m, b->g, name, rows, width);
	b->g->scope = scope;
	b->g->origin = origin;
	return t;
}

static struct tensor *linear_map(struct block *b, const char *name, struct tensor *x,
				 struct tensor *w, bool bias)
{
	char bias_name[80];

	if (!x || !w)
		return NULL;
	snprintf(bias_name, sizeof(bias_name), "%s.bias", name);
	return op_linear(b->g, name, x, w,
			 bias ? block_vector(b, bias_name, tensor_dim(w, -1), 0) : NULL);
}

struct tensor *block_linear(struct block *b, const char *name, struct tensor *x, int64_t out,
			    bool bias)
{
	char weight[80];

	if (!x)
		return NULL;
	snprintf(weight, sizeof(weight), "%s.weight", name);
	return linear_map(b, name, x, block_matrix(b, weight, tensor_dim(x, -1), out), bias);
}

struct tensor *block_read_hidden(struct block *b, const char *name, struct tensor *h,
				 struct tensor *w, bool bias)
{
	const struct model *m = b->m;
	struct tensor *y = linear_map(b, name, h, w, bias);

	graph_scope(b->g, "%s%s.", b->g->scope, name);
	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->reading && present(b, i))
			y = m->mechanism[i]->reading(b, m->mechanism_options[i], &b->out[i], h, w,
						     y);
	enter(b->g, b->layer, MODULE_FFN);
	return y;
}

struct tensor *block_alpha(struct block *b, const char *name, double value)
{
	return b->m->learn_alpha ? block_vector(b, name, 1, value) : NULL;
}

struct tensor *block_heads(struct block *b, struct tensor *x, int64_t heads)
{
	if (!x)
		return NULL;
	return graph_reshape(b->g, x, 4, SHAPE(b->B, b->T, heads, tensor_dim(x, -1) / heads));
}

struct tensor *block_latent(struct block *b, struct tensor *latent)
{
	const struct model *m = b->m;

	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->latent && present(b, i))
			latent = m->mechanism[i]->latent(b, m->mechanism_options[i], &b->in[i],
							 latent);
	return latent;
}

struct tensor *block_distance_table(struct block *b, const char *name, enum dtype type,
				    int64_t rows, int64_t distances,
				    double (*value)(const struct block *b, int64_t row,
						    int64_t distance))
{
	double *values = malloc((size_t)(rows * distances) * sizeof(*values));
	struct tensor *t;

	if (!values) {
		graph_fail(b->g, "no memory for a table of %lld distances", (long long)distances);
		return NULL;
	}
	for (int64_t i = 0; i < rows * distances; i++)
		values[i] = value(b, i / distances, i % distances);
	t = graph_constant(b->g, name, type, 2, SHAPE(rows, distances), values);
	free(values);
	return t;
}

struct tensor *block_unit(struct block *b, const char *role, struct tensor *x, int dim)
{
	char squares[32], length[32], shifted[32], inverse[32], name[32];
	struct tensor *r;

	snprintf(squares, sizeof(squares), "%s_squares", role);
	snprintf(length, sizeof(length), "%s_length", role);
	snprintf(shifted, sizeof(shifted), "%s_length_eps", role);
	snprintf(inverse, sizeof(inverse), "%s_inverse", role);
	snprintf(name, sizeof(name), "%s_unit", role);
	r = op_sum(b->g, length, op_square(b->g, squares, x), dim);
	r = op_rsqrt(b->g, inverse, op_add_constant(b->g, shifted, r, 1e-6));
	return op_multiply(b->g, name, x, r);
}

/* The table of the output head. */
static struct tensor *head_table(const struct model *m, struct graph *g)
{
	return table(m, g, m->tied ? "wte.weight" : "lm_head.weight", m->vocab, m->embd);
}

struct tensor *block_target_loss(struct block *b, const char *name, struct tensor *x)
{
	const char *const scope = b->g->scope;
	const struct origin origin = b->g->origin;
	struct tensor *w;

	enter(b->g, -1, MODULE_HEAD);
	w = head_table(b->m, b->g);
	b->g->scope = scope;
	b->g->origin = origin;
	return op_head_loss(b->g, name, x, w, b->io->targets, b->io->weights).main;
}

struct tensor *block_rope(struct block *b, const char *name, struct tensor *x, int64_t width)
{
	if (b->m->position != POS_ROPE)
		return x;
	return op_rope(b->g, name, x, b->m->rope_theta, width);
}

/* ------------------------------------------------------------------- wiring */

/* The residual stream: its sum so far, and the branch that the next norm will add. */
struct stream {
	struct tensor *x, *branch;
};

static struct tensor *normalise(const struct model *m, struct graph *g, const char *name,
				struct stream *s, enum norm_kind kind, bool bias)
{
	char weight[80], bias_name[80];
	struct tensor *y;

	snprintf(weight, sizeof(weight), "%s.weight", name);
	snprintf(bias_name, sizeof(bias_name), "%s.bias", name);
	y = op_norm(g, name, kind, m->norm_eps, s->x, s->branch, vector(g, weight, m->embd, 1),
		    bias ? vector(g, bias_name, m->embd, 0) : NULL, &s->x);
	s->branch = NULL;
	return y;
}

/* What a branch reads ... */
static struct tensor *before_branch(const struct model *m, struct graph *g, const char *name,
				    struct stream *s)
{
	return m->norm_after ? s->x
			     : normalise(m, g, name, s, m->norm, m->norm == NORM_LAYER && m->bias);
}

/* ... and what becomes of its output. */
static void after_branch(const struct model *m, struct graph *g, const char *name, struct stream *s,
			 struct tensor *branch)
{
	s->branch = branch;
	if (m->norm_after)
		s->x = normalise(m, g, name, s, m->norm, m->norm == NORM_LAYER && m->bias);
}

static void probe(struct block *b)
{
	const struct projection *p = &b->projection;

	graph_output(b->g, "probe",
		     op_attention_probe(b->g, "probe", &p->attr, &p->in, p->query_bias,
					b->attention.lse, b->m->window > 0 ? b->m->window : 1));
}

static struct tensor *gate_outputs(struct block *b, struct tensor *x, struct tensor *o)
{
	const struct model *m = b->m;
	struct tensor *gate;

	if (m->out_gate == OUT_GATE_NONE || !o)
		return o;
	gate = block_linear(b, "gate", x, m->out_gate == OUT_GATE_HEAD ? m->heads : m->embd, false);
	gate = op_sigmoid(b->g, "gate_open", gate);
	if (m->out_gate == OUT_GATE_HEAD)
		return op_head_gate(b->g, "gated", o, gate, 1.0, NULL);
	return op_multiply(b->g, "gated", o, block_heads(b, gate, m->heads));
}

/* When decoding, keeps what later tokens will read. */
static void keep(struct block *b)
{
	struct projection *p = &b->projection;
	struct attention_inputs *in = &p->in;

	if (!b->decoding)
		return;
	op_cache_all(b->g, "kept", (struct tensor * *const[]){ &in->k, &in->v, &in->key_bias }, 3);
	if (p->attr.band_window >= 0)
		in->recent = op_recent_tokens(b->g, "queries", in->q, p->attr.band_window);
}

/* The heads' outputs by the shared kernel. */
static struct tensor *attend_scores(struct block *b, struct tensor *x)
{
	const struct model *m = b->m;
	struct projection *p = &b->projection;

	*p = (struct projection){ .attr = { .scale = 1, .band_window = -1 } };
	m->attention->project(b, x, p);
	p->attr.window = m->score_window;
	p->attr.sinks = m->score_sinks;
	p->attr.softcap = m->softcap;
	if (m->distance)
		p->in.distance_bias = m->distance->biases(b, b->decoding ? b->g->capacity : b->T);
	p->attr.dropout = m->dropout;
	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->attend && present(b, i))
			m->mechanism[i]->attend(b, m->mechanism_options[i], &p->attr);
	keep(b);
	if (p->values_in_keys)
		p->in.v = graph_slice(b->g, p->in.k, 0, p->values_in_keys);
	b->attention = op_attention(b->g, "heads", &p->attr, &p->in);
	if (b->probing)
		probe(b);
	return m->attention->heads ? m->attention->heads(b, b->attention.o) : b->attention.o;
}

/* The first error of a variant's own code names the variant. */
static void name_culprit(struct graph *g, bool failed_before, const char *symbol, const char *name)
{
	const struct error first = g->err;

	if (g->failed && !failed_before)
		fail(&g->err, "%s=%s: %s", symbol, name, first.text);
}

static struct tensor *attend(struct block *b, struct tensor *x)
{
	const struct model *m = b->m;
	const bool failed = b->g->failed;
	struct tensor *o = m->attention->mix ? m->attention->mix(b, x) : attend_scores(b, x);

	name_culprit(b->g, failed, "ATTENTION", m->attention->name);
	o = gate_outputs(b, x, o);
	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->heads && present(b, i))
			o = m->mechanism[i]->heads(b, m->mechanism_options[i], &b->in[i], o);
	if (!o)
		return NULL;
	o = graph_reshape(b->g, o, 3, SHAPE(b->B, b->T, m->embd));
	o = block_linear(b, "c_proj", o, m->embd, m->bias && m->attention->projection_bias);
	return op_dropout(b->g, "dropped", o, m->dropout);
}

/* Does c_proj alone read the hidden activation, in all layers? */
static bool hides_hidden(const struct model *m)
{
	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->hidden || m->mechanism[i]->reading)
			return false;
	return true;
}

static struct tensor *read_hidden(struct block *b, struct tensor *h)
{
	const struct model *m = b->m;

	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->hidden && present(b, i))
			h = m->mechanism[i]->hidden(b, m->mechanism_options[i], h, &b->out[i]);
	return block_read_hidden(b, "c_proj", h,
				 block_matrix(b, "c_proj.weight", m->hidden, m->embd),
				 m->bias && m->ffn->projection_bias);
}

/* Decoding keeps the nodes apart: devices have kernels of their own for its few rows. */
static struct tensor *feed_forward(struct block *b, struct tensor *x)
{
	const struct model *m = b->m;
	const bool failed = b->g->failed;
	struct tensor *y;

	if (m->ffn->whole && hides_hidden(m) && !b->decoding)
		y = m->ffn->whole(b, x);
	else
		y = read_hidden(b, m->ffn->hidden(b, x));
	name_culprit(b->g, failed, "FFN", m->ffn->name);
	return op_dropout(b->g, "dropped", y, m->dropout);
}

static void build_block(struct block *b, struct stream *s)
{
	const struct model *m = b->m;
	struct tensor *x;

	enter(b->g, b->layer, MODULE_NORM);
	x = before_branch(m, b->g, "ln_1", s);
	enter(b->g, b->layer, MODULE_ATTENTION);
	x = attend(b, x);
	enter(b->g, b->layer, MODULE_NORM);
	after_branch(m, b->g, "ln_1", s, x);

	x = before_branch(m, b->g, "ln_2", s);
	enter(b->g, b->layer, MODULE_FFN);
	x = feed_forward(b, x);
	enter(b->g, b->layer, MODULE_NORM);
	after_branch(m, b->g, "ln_2", s, x);
}

static struct tensor *embed(const struct model *m, struct graph *g, struct tensor *tokens)
{
	struct tensor *positions = NULL;

	enter(g, -1, MODULE_EMBEDDING);
	if (m->position == POS_LEARNED)
		positions = table(m, g, "wpe.weight", m->length, m->embd);
	return op_dropout(g, "embedding_dropped",
			  op_embedding(g, "embedding", table(m, g, "wte.weight", m->vocab, m->embd),
				       positions, tokens),
			  m->dropout);
}

static struct tensor *build_layers(const struct model *m, struct graph *g,
				   const struct token_io *io, int64_t B, int64_t T, bool probing)
{
	struct stream s = { .x = embed(m, g, io->tokens) };
	struct block b = { .g = g,
			   .m = m,
			   .B = B,
			   .T = T,
			   .io = io,
			   .probing = probing,
			   .decoding = g->state != NULL };

	for (int layer = 0; layer < m->layers; layer++) {
		b.layer = layer;
		b.last = layer == m->layers - 1;
		memset(b.out, 0, sizeof(b.out));
		build_block(&b, &s);
		memcpy(b.in, b.out, sizeof(b.in));
		if (m->silenced && m->silenced_layer == layer)
			b.in[m->silenced - 1] = (struct message){ 0 };
	}
	if (m->norm_after)
		return s.x;
	enter(g, -1, MODULE_NORM);
	return normalise(m, g, "ln_f", &s, m->final_norm, m->final_norm_bias);
}

static void build_losses(const struct model *m, struct graph *g, struct tensor *x, struct tensor *w,
			 struct token_io *io)
{
	struct head_loss_outputs loss;

	loss = op_head_loss(g, "loss", x, w, io->targets, io->weights);
	io->nll = loss.nll;
	io->hit = loss.hit;
	graph_loss(g, "main", loss.main, 1);
	if (m->logits_z > 0 && g->training)
		graph_loss(g, "logits_z", loss.z, m->logits_z);
	graph_output(g, "nll", loss.nll);
	graph_output(g, "hit", loss.hit);
}

/* x [B,T,E] at its last token: [B,E] */
static struct tensor *last_token(struct graph *g, struct tensor *x)
{
	if (!x)
		return NULL;
	return graph_slice(g, graph_reshape(g, x, 2, SHAPE(x->dim[0], x->dim[1] * x->dim[2])),
			   (x->dim[1] - 1) * x->dim[2], x->dim[2]);
}

/* ------------------------------------------------------------------ decoder */

/* A constant [rows,columns] of value(row, column, columns). */
static struct tensor *constant(struct graph *g, const char *name, enum dtype type, int64_t rows,
			       int64_t columns,
			       double (*value)(int64_t row, int64_t column, int64_t columns))
{
	double *values = malloc((size_t)(rows * columns) * sizeof(*values));
	struct tensor *t;

	if (!values) {
		graph_fail(g, "no memory for '%s' of %lld numbers", name,
			   (long long)(rows * columns));
		return NULL;
	}
	for (int64_t i = 0; i < rows * columns; i++)
		values[i] = value(i / columns, i % columns, columns);
	t = graph_constant(g, name, type, 2, SHAPE(rows, columns), values);
	free(values);
	return t;
}

static double last_place(int64_t row, int64_t place, int64_t places)
{
	(void)row, (void)place;
	return (double)(places - 1);
}

/* Sines, then cosines, of t / 10000^(i / half) */
static double sinusoid(int64_t t, int64_t channel, int64_t channels)
{
	const int64_t half = (channels + 1) / 2;
	const double angle = (double)t * pow(10000, -(double)(channel % half) / (double)half);

	return channel < half ? sin(angle) : cos(angle);
}

static struct tensor *decoder_norm(const struct model *m, struct graph *g, const char *name,
				   struct tensor *x)
{
	struct stream s = { .x = x };

	return normalise(m, g, name, &s, m->norm, m->norm == NORM_LAYER && m->bias);
}

static struct tensor *decoder_layer(const struct model *m, struct graph *g, int n, struct tensor *x)
{
	char norm[32], name[32], weight[40], bias[40];
	struct param_init init;

	snprintf(norm, sizeof(norm), "decoder.ln_%d", n);
	snprintf(name, sizeof(name), "decoder.fc_%d", n);
	snprintf(weight, sizeof(weight), "%s.weight", name);
	snprintf(bias, sizeof(bias), "%s.bias", name);
	init = matrix_init(m, weight);
	x = decoder_norm(m, g, norm, x);
	return op_linear_gelu(g, name, x, graph_param(g, weight, &init, 2, SHAPE(m->embd, m->embd)),
			      m->bias ? vector(g, bias, m->embd, 0) : NULL);
}

/* What the state of the last token of x [B,T,E] says of all places. */
static struct tensor *decode_rows(const struct model *m, struct graph *g, struct tensor *x,
				  int64_t B, int64_t T)
{
	x = op_gather(g, "decoder.state", x, constant(g, "decoder.last", I32, B, T, last_place));
	x = op_add(g, "decoder.places", x,
		   constant(g, "decoder.positions", g->type, T, m->embd, sinusoid));
	x = decoder_layer(m, g, 1, x);
	x = decoder_layer(m, g, 2, x);
	return decoder_norm(m, g, "decoder.ln_3", x);
}

void model_build(const struct model *m, struct graph *g, enum model_purpose purpose, int64_t B,
		 int64_t T, struct token_io *io)
{
	const int64_t positions = g->state ? g->capacity : T;
	const bool decodes = m->decoder && !m->undecoded;
	const bool scores = purpose == MODEL_TRAIN || purpose == MODEL_EVAL;
	struct tensor *x, *w;

	*io = (struct token_io){ 0 };
	if (decodes && (g->state || purpose == MODEL_NEXT)) {
		graph_fail(g, "MODEL_DECODER=y: the model reconstructs a row that is complete, and "
			      "predicts no next token");
		return;
	}
	if (m->position == POS_LEARNED && positions > m->length) {
		graph_fail(g, "%lld positions are more than the learned table of %lld holds",
			   (long long)positions, (long long)m->length);
		return;
	}
	if (m->merges_linears && !g->state)
		graph_merge_linears(g);
	io->tokens = graph_input(g, "tokens", I32, 2, SHAPE(B, T));
	if (scores) {
		io->targets = graph_input(g, "targets", I32, 2, SHAPE(B, T));
		io->weights = graph_input(g, "weights", g->type, 1, SHAPE(2));
	}
	x = build_layers(m, g, io, B, T, purpose == MODEL_PROBE);
	enter(g, -1, MODULE_HEAD);
	if (decodes)
		x = decode_rows(m, g, x, B, T);
	w = head_table(m, g);
	if (scores)
		build_losses(m, g, x, w, io);
	else if (purpose == MODEL_NEXT)
		graph_output(g, "logits", op_linear_transposed(g, "logits", last_token(g, x), w));
	else if (purpose == MODEL_LOGITS)
		graph_output(g, "logits", op_linear_transposed(g, "logits", x, w));
	else if (purpose == MODEL_PROBE && g->n_outputs == 0)
		graph_output(g, "last",
			     x); /* there is nothing to probe, and a graph has an output */
}

bool model_keeps_state(const struct model *m, struct error *why)
{
	if (!m->attention->mix || m->attention->keeps_state)
		return true;
	fail(why,
	     "ATTENTION=%s keeps no state: each token repeats the text before it, which is slow",
	     m->attention->name);
	return false;
}

/* --------------------------------------------------------------- switches */

static void visit_switches(const struct model_switch *list,
			   bool (*on)(const void *options, const struct model_switch *s),
			   const void *options,
			   void (*visit)(void *context, const struct model_switch *s),
			   void *context)
{
	for (; list && list->symbol; list++)
		if (!on || on(options, list))
			visit(context, list);
}

void model_switches(const struct model *m,
		    void (*visit)(void *context, const struct model_switch *s), void *context)
{
	static const struct model_switch out_gate = { .symbol = "ATTENTION_OUT_GATE",
						      .off = "none" };
	static const struct model_switch decoder = { .symbol = "MODEL_DECODER", .off = "n" };
	static const struct model_switch logits_z = { .symbol = "LOSS_LOGITS_Z",
						      .off = "0",
						      .through_loss = true };

	if (m->out_gate != OUT_GATE_NONE)
		visit(context, &out_gate);
	if (m->decoder)
		visit(context, &decoder);
	if (m->logits_z > 0)
		visit(context, &logits_z);
	visit_switches(m->attention->switches, m->attention->switched_on, m->attention_options,
		       visit, context);
	visit_switches(m->ffn->switches, m->ffn->switched_on, m->ffn_options, visit, context);
	for (int i = 0; i < m->n_mechanisms; i++) {
		const struct mechanism *mechanism = m->mechanism[i];
		const bool receives = mechanism->latent || mechanism->heads;

		visit(context, &(struct model_switch){ .symbol = mechanism->symbol,
						       .off = "n",
						       .mechanism = i + 1,
						       .sends = m->layers > 1 && receives });
	}
}
