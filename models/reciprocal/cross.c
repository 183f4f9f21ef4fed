/*
 * cross - mechanism 2: the feed-forward mixes hidden states with the
 * attention weights of its own layer.
 *
 *     h += alpha (R h) Wc,  Wc [F,F];  or through r channels: h += alpha (R (h Wd)) Wc
 *
 * R: the mean (or maximum) over heads of the softmax, before gate and dropout,
 * made sparse per row (topk, rms, none), optionally normalised.  It is constant: no gradient flows
 * through it, unless CROSS_GRADIENT is set.
 * Names: Wc cross_proj, Wd cross_down.  Decoding keeps F (or r) more numbers
 * per token and layer.
 *
 * Folded: every reader of h multiplies h by some W.  The term above adds
 * alpha R (h (Wc W)) to that product.  So h stays as it is, and each reader
 * adds this share: a few narrow products replace one as wide as h, and R mixes
 * fewer channels.  A product Wc W costs as much as F tokens, so a batch of few
 * tokens is not folded.
 *
 * With a gradient: R [B,T,T] is computed a second time, by general ops, which store about 4 H T^2
 * numbers per layer and row.  Which entries are kept stays what the attention's kernel decided.
 */
#include "models/model.h"

struct cross_options {
	double alpha;
	int64_t rank;
	bool folded, gradient;
	struct route_attr route;
};

/*
 * The size of the training batch decides, so that evaluations and audits use the form that is
 * trained.  A model without a training batch (of a test vector) is folded.
 */
static bool folding_saves_work(const struct model *m)
{
	const int64_t readers = m->embd + m->heads; /* channels of c_proj and of a gate */
	const int64_t tokens = m->batch * m->length;

	return tokens == 0 || readers * (tokens + m->hidden) < tokens * m->hidden;
}

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	static const char *const modes[] = { "topk", "rms", "none", NULL };
	static const enum route_mode routes[] = { ROUTE_TOPK, ROUTE_RMS, ROUTE_DENSE, ROUTE_NONE };
	struct cross_options *o = options;

	o->alpha = config_real(c, "CROSS_ALPHA");
	o->rank = config_int(c, "CROSS_RANK");
	o->folded = config_bool(c, "CROSS_FOLDED");
	/* Records from before it was a setting lack it. */
	o->gradient = config_raw(c, "CROSS_GRADIENT") && config_bool(c, "CROSS_GRADIENT");
	o->route.mode = routes[config_choice(c, "RA_MLA_MLP_SPARSE_MODE", modes) & 3];
	o->route.k = config_int(c, "RA_MLA_MLP_SPARSE_K");
	o->route.tau = config_real(c, "RA_MLA_MLP_SPARSE_RMS_THRESHOLD");
	o->route.normalize = config_bool(c, "RA_MLA_MLP_SPARSE_NORMALIZE");
	o->route.head_maximum = !config_bool(c, "RA_MLA_MLP_SPARSE_HEAD_AVERAGE");
	if (o->route.k < 1)
		return fail(err, "RA_MLA_MLP_SPARSE_K=%lld must be positive",
			    (long long)o->route.k);
	if (!(o->route.tau >= 0))
		return fail(err, "RA_MLA_MLP_SPARSE_RMS_THRESHOLD=%g must not be negative",
			    o->route.tau);
	if (o->rank < 0)
		return fail(err, "CROSS_RANK=%lld must not be negative", (long long)o->rank);
	if (o->folded && o->rank)
		return fail(err, "CROSS_FOLDED needs CROSS_RANK=0");
	o->folded = o->folded && !o->gradient && folding_saves_work(m);
	return OK;
}

static void attend(struct block *b, const void *options, struct attention_attr *attr)
{
	const struct cross_options *o = options;

	(void)b;
	attr->route = o->route;
}

/* R x, R constant */
static struct tensor *mix_constant(struct block *b, const struct cross_options *o, struct tensor *x)
{
	if (o->route.mode == ROUTE_TOPK)
		return op_mix_topk(b->g, "cross_mixed", x, b->attention.route_index,
				   b->attention.route_weight);
	return op_mix_rows(b->g, "cross_mixed", x, &b->projection.attr, &b->projection.in,
			   b->attention.lse);
}

/* ------------------------------------------------------------ with a gradient */

/* Tables [T,T] of query i and key j. */
static double is_own(const struct block *b, int64_t i, int64_t j)
{
	(void)b;
	return i == j;
}

static double is_in_band(const struct block *b, int64_t i, int64_t j)
{
	return j <= i && i - j <= b->projection.attr.band_window;
}

static double distance(const struct block *b, int64_t i, int64_t j)
{
	(void)b;
	return (double)(i - j);
}

static struct tensor *pairs(struct block *b, const char *name, enum dtype type,
			    double (*value)(const struct block *b, int64_t i, int64_t j))
{
	return block_distance_table(b, name, type, b->T, b->T, value);
}

/* cap(s) of core/ops/score.h */
static struct tensor *capped(struct graph *g, struct tensor *s, double softcap)
{
	if (softcap == 0)
		return s;
	s = op_tanh(g, "cross_tanh", op_scale(g, "cross_share_of_cap", s, 1 / softcap));
	return op_scale(g, "cross_capped", s, softcap);
}

/* The attention's scores [B,H,T,T], as core/ops/score.h defines them; routing knows no window. */
static struct tensor *scores(struct block *b)
{
	static const int heads_first[] = { 0, 2, 1, 3 }, swapped[] = { 0, 1, 3, 2 };
	const struct attention_attr *a = &b->projection.attr;
	const struct attention_inputs *in = &b->projection.in;
	const int64_t B = b->B, T = b->T, H = b->m->heads;
	const int64_t G = tensor_dim(in->k, 2), K = tensor_dim(in->k, 3);
	struct tensor *q, *k, *s, *t;

	q = op_permute(b->g, "cross_q", in->q, heads_first);
	q = graph_reshape(b->g, q, 4, SHAPE(B * G, H / G, T, K));
	k = op_permute(b->g, "cross_k", in->k, heads_first);
	k = graph_reshape(b->g, k, 4, SHAPE(B * G, 1, T, K));
	s = op_scale(b->g, "cross_scores", op_matmul(b->g, "cross_products", q, false, k, true),
		     a->scale);
	if (a->band_window >= 0) {
		t = op_permute(b->g, "cross_swapped", s, swapped);
		t = op_multiply(b->g, "cross_band", t, pairs(b, "band", b->g->type, is_in_band));
		s = op_add_scaled(b->g, "cross_reciprocal", s, t, a->band, in->band);
	}
	if (in->key_bias) {
		t = op_permute(b->g, "cross_bias", in->key_bias, (const int[]){ 0, 2, 1 });
		s = op_add(b->g, "cross_biased", s,
			   graph_reshape(b->g, t, 4, SHAPE(B * G, 1, 1, T)));
	}
	s = graph_reshape(b->g, s, 4, SHAPE(B, H, T, T));
	if (in->distance_bias) {
		t = op_permute(b->g, "cross_distances", in->distance_bias, (const int[]){ 1, 0 });
		t = op_gather(b->g, "cross_gathered", t, pairs(b, "distances", I32, distance));
		t = op_permute(b->g, "cross_placed", t, (const int[]){ 2, 0, 1 });
		s = op_add(b->g, "cross_apart", s, t);
	}
	return capped(b->g, s, a->softcap);
}

/* 1 where the constant R keeps an entry, else 0: [B,T,T] */
static struct tensor *kept_entries(struct block *b, const struct cross_options *o)
{
	struct tensor *r = op_expand(b->g, "cross_tokens", pairs(b, "own", b->g->type, is_own), 3,
				     SHAPE(b->B, b->T, b->T));

	r = op_scale(b->g, "cross_kept_scaled", mix_constant(b, o, r), 1e30);
	return op_tanh(b->g, "cross_kept_entries", r);
}

/* R [B,T,T] */
static struct tensor *routing(struct block *b, const struct cross_options *o)
{
	const int64_t B = b->B, T = b->T;
	struct tensor *r = op_softmax(b->g, "cross_probabilities", scores(b), CAUSAL), *sum;

	r = graph_reshape(b->g, r, 3, SHAPE(B, b->m->heads, T * T));
	r = o->route.head_maximum ? op_max(b->g, "cross_routing", r, 1)
				  : op_mean(b->g, "cross_routing", r, 1);
	r = graph_reshape(b->g, r, 3, SHAPE(B, T, T));
	if (o->route.mode != ROUTE_DENSE)
		r = op_multiply(b->g, "cross_sparse", r, kept_entries(b, o));
	if (!o->route.normalize)
		return r;
	/* max(sum, 1e-8) */
	sum = op_add_constant(b->g, "cross_excess", op_sum(b->g, "cross_sum", r, -1), -1e-8);
	sum = op_add_constant(b->g, "cross_divisor", op_relu(b->g, "cross_relu", sum), 1e-8);
	return op_divide(b->g, "cross_normalised", r, sum);
}

/* R x.  Decoding has no gradient, and R of earlier tokens is not kept. */
static struct tensor *mix(struct block *b, const struct cross_options *o, struct tensor *x)
{
	x = op_cache(b->g, "cross_kept", x);
	if (x && o->gradient && !b->decoding)
		return op_matmul(b->g, "cross_weighted", routing(b, o), false, x, false);
	return mix_constant(b, o, x);
}

enum { ORDER = 2 };

/* Do all later mechanisms read h only through block_read_hidden()? */
static bool has_plain_readers(const struct model *m)
{
	for (int i = 0; i < m->n_mechanisms; i++)
		if (m->mechanism[i]->order > ORDER && m->mechanism[i]->hidden &&
		    !m->mechanism[i]->plain_reader)
			return false;
	return true;
}

/* Decoding reads few tokens at a time and keeps h of earlier ones, so it does not fold. */
static bool is_folded(const struct block *b, const struct cross_options *o)
{
	return o->folded && !b->decoding && has_plain_readers(b->m);
}

static struct tensor *hidden(struct block *b, const void *options, struct tensor *h,
			     struct message *out)
{
	const struct cross_options *o = options;
	struct tensor *m = h;

	if (is_folded(b, o)) {
		out->value = block_matrix(b, "cross_proj.weight", b->m->hidden, b->m->hidden);
		out->alpha = block_alpha(b, "cross_alpha", o->alpha);
		return h;
	}
	if (o->rank)
		m = block_linear(b, "cross_down", h, o->rank, false);
	m = block_linear(b, "cross_proj", mix(b, o, m), b->m->hidden, false);
	return op_add_scaled(b->g, "cross_added", h, m, o->alpha,
			     block_alpha(b, "cross_alpha", o->alpha));
}

static struct tensor *reading(struct block *b, const void *options, const struct message *left,
			      struct tensor *h, struct tensor *w, struct tensor *y)
{
	const struct cross_options *o = options;
	struct tensor *share;

	if (!left->value)
		return y;
	w = op_linear(b->g, "cross_folded", left->value, w, NULL);
	share = mix(b, o, op_linear(b->g, "cross_share", h, w, NULL));
	return op_add_scaled(b->g, "cross_added", y, share, o->alpha, left->alpha);
}

static const struct mechanism cross = {
	.name = "cross_token",
	.symbol = "RA_MLA_MLP_CROSS_TOKEN",
	.order = ORDER,
	.options_size = sizeof(struct cross_options),
	.read = read,
	.attend = attend,
	.hidden = hidden,
	.reading = reading,
};
MECHANISM(cross);
