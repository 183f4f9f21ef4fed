/*
 * w2 - every token is a diagonal Gaussian.
 *
 * q_proj, k_proj [E,2E]: per head D means, then D raw sigmas; sigma =
 * softplus(raw) + eps; rope on the means.  Scores:
 *     wasserstein  -(|mu_q - mu_k|^2 + |sigma_q - sigma_k|^2) / (|tau| + eps)
 *     overlap      q~.k~ - |k~|^2/2 - sum(log sigma_k)/2,  q~ = mu / sqrt(sigma)
 * Terms of the query alone cancel in the softmax, so both are dot attention
 * (of width 2D, or D) with a bias per key.  Decoding keeps, per token and
 * layer, keys, values and the bias: 3E + H (overlap 2E + H).
 */
#include <math.h>

#include "models/model.h"

struct w2_options {
	enum w2_score score;
	double eps;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	static const char *const scores[] = { "wasserstein", "overlap", NULL };
	struct w2_options *o = options;

	o->score = config_choice(c, "W2_SCORE", scores) == 1 ? W2_OVERLAP : W2_WASSERSTEIN;
	o->eps = config_real(c, "W2_EPS");
	if (!(o->eps > 0))
		return fail(err, "W2_EPS=%g must be positive", o->eps);
	if (m->position == POS_ROPE && m->head_dim % 2)
		return fail(err, "rope needs an even head width, not %lld", (long long)m->head_dim);
	return OK;
}

/* The Gaussian of every head: [B,T,H,2D] or [B,T,H,D], rotated. */
static struct tensor *gaussian(struct block *b, const char *role, struct tensor *x,
			       struct tensor **logdet)
{
	const struct w2_options *o = b->m->attention_options;
	char proj[20], form[20], rotated[20];
	struct tensor *y;

	snprintf(proj, sizeof(proj), "%s_proj", role);
	snprintf(form, sizeof(form), "%s_gaussian", role);
	snprintf(rotated, sizeof(rotated), "%s_rotated", role);
	y = block_heads(b, block_linear(b, proj, x, 2 * b->m->embd, false), b->m->heads);
	y = op_w2_gaussian(b->g, form, y, o->score, o->eps, logdet);
	return block_rope(b, rotated, y, b->m->head_dim);
}

static void project(struct block *b, struct tensor *x, struct projection *p)
{
	const struct w2_options *o = b->m->attention_options;
	const bool distance = o->score == W2_WASSERSTEIN;
	struct tensor *q_logdet = NULL, *k_logdet = NULL, *tau = NULL, *q;

	q = gaussian(b, "q", x, &q_logdet);
	p->in.k = gaussian(b, "k", x, &k_logdet);
	p->in.v = block_heads(b, block_linear(b, "v_proj", x, b->m->embd, false), b->m->heads);
	if (distance)
		tau = block_vector(b, "tau", b->m->heads, 2 * sqrt((double)b->m->head_dim));
	p->in.key_bias = op_w2_key_bias(b->g, "key_bias", p->in.k, distance ? tau : k_logdet,
					o->score, o->eps);
	p->in.q = distance ? op_w2_scale(b->g, "q_scaled", q, tau, o->eps) : q;
	p->query_bias = op_w2_key_bias(b->g, "query_bias", q, distance ? tau : q_logdet, o->score,
				       o->eps);
}

static const struct attention_variant w2 = {
	.name = "w2",
	.options_size = sizeof(struct w2_options),
	.read = read,
	.project = project,
};
ATTENTION(w2);
