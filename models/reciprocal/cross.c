/*
 * cross - mechanism 2: the feed-forward mixes hidden states with the
 * attention weights of its own layer.
 *
 *     h += alpha (R h) Wc,  Wc [F,F];  or through r channels: h += alpha (R (h Wd)) Wc
 *
 * R: the mean (or maximum) over heads of the softmax, before gate and dropout,
 * without gradient, made sparse per row (topk, rms, none), optionally normalised.
 * Names: Wc cross_proj, Wd cross_down.  Decoding keeps F (or r) more numbers
 * per token and layer.
 *
 * Folded: every reader of h multiplies h by some W.  The term above adds
 * alpha R (h (Wc W)) to that product.  So h stays as it is, and each reader
 * adds this share: a few narrow products replace one as wide as h, and R mixes
 * fewer channels.  A product Wc W costs as much as F tokens, so a batch of few
 * tokens is not folded.
 */
#include "models/model.h"

struct cross_options {
	double alpha;
	int64_t rank;
	bool folded;
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
	o->folded = o->folded && folding_saves_work(m);
	return OK;
}

static void attend(struct block *b, const void *options, struct attention_attr *attr)
{
	const struct cross_options *o = options;

	(void)b;
	attr->route = o->route;
}

static struct tensor *mix(struct block *b, const struct cross_options *o, struct tensor *x)
{
	x = op_cache(b->g, "cross_kept", x);
	if (o->route.mode == ROUTE_TOPK)
		return op_mix_topk(b->g, "cross_mixed", x, b->attention.route_index,
				   b->attention.route_weight);
	return op_mix_rows(b->g, "cross_mixed", x, &b->projection.attr, &b->projection.in,
			   b->attention.lse);
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
