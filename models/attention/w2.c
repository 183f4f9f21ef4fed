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

/* The Gaussian of every head, rotated: [B,T,H,2D] or [B,T,H,D]. */
static struct tensor *gaussian(struct block *b, const char *role, struct tensor *x,
			       struct tensor *tau, bool scaled, struct tensor **bias)
{
	const struct w2_options *o = b->m->attention_options;
	const struct w2_attr attr = {
		.score = o->score,
		.scaled = scaled,
		.eps = o->eps,
		.theta = b->m->position == POS_ROPE ? b->m->rope_theta : 0,
	};
	char proj[20], form[20];

	snprintf(proj, sizeof(proj), "%s_proj", role);
	snprintf(form, sizeof(form), "%s_gaussian", role);
	x = block_heads(b, block_linear(b, proj, x, 2 * b->m->embd, false), b->m->heads);
	return op_w2_gaussian(b->g, form, x, tau, &attr, bias);
}

static void project(struct block *b, struct tensor *x, struct projection *p)
{
	const struct w2_options *o = b->m->attention_options;
	const bool distance = o->score == W2_WASSERSTEIN;
	struct tensor *tau = NULL;

	if (distance)
		tau = block_vector(b, "tau", b->m->heads, 2 * sqrt((double)b->m->head_dim));
	p->in.q = gaussian(b, "q", x, tau, distance, &p->query_bias);
	p->in.k = gaussian(b, "k", x, tau, false, &p->in.key_bias);
	p->in.v = block_heads(b, block_linear(b, "v_proj", x, b->m->embd, false), b->m->heads);
}

static const struct attention_variant w2 = {
	.name = "w2",
	.options_size = sizeof(struct w2_options),
	.read = read,
	.project = project,
};
ATTENTION(w2);
