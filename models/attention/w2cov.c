/*
 * w2cov - every token is a Gaussian with covariances within pairs of channels.
 *
 *     S_ij = -(|m_i - m_j|^2 + sum_p (tr C_ip + tr C_jp - 2 tr (C_ip^1/2 C_jp C_ip^1/2)^1/2))
 *            / (|tau| + eps)
 *
 * is minus the squared 2-Wasserstein distance of Gaussians with means m [D], rotated by rope, and
 * D/2 covariances C_p [2,2] along the diagonal; w2.c has numbers there.  With D = 2, C is all
 * covariances of a head.  C = A A', A = (a 0; c b), a, b = softplus + eps: any C > 0 has this form.
 *
 * A matrix M [2,2] has tr (M M')^1/2 = sqrt(|M|^2 + 2 |det M|).  M = A_i' A_j gives the last trace:
 *     sqrt(tr C_i C_j + 2 a_i b_i a_j b_j) = sqrt(u_i . u_j),
 *     u = (C_11, C_22, sqrt(2) C_12, sqrt(2) a b) = (a^2, c^2 + b^2, sqrt(2) a c, sqrt(2) a b).
 * So it is general ops.  But a root per pair of tokens is no dot product: they store about
 * 3 T^2 E/2 numbers per layer and row, and keep no state for decoding.  Terms of the query alone
 * cancel in the softmax.  q_proj, q_a, q_b, q_c give m, a, b, c of queries, k_... of keys.
 */
#include <math.h>

#include "models/model.h"

struct w2cov_options {
	double eps;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct w2cov_options *o = options;

	o->eps = config_real(c, "W2COV_EPS");
	if (!(o->eps > 0))
		return fail(err, "W2COV_EPS=%g must be positive", o->eps);
	if (m->head_dim % 2)
		return fail(err,
			    "ATTENTION=w2cov pairs the channels of each head: the head width %lld "
			    "is not even",
			    (long long)m->head_dim);
	return OK;
}

/* The tokens as queries or keys. */
struct gaussians {
	struct tensor *mean; /* [B,H,T,D] */
	struct tensor *u;    /* of all blocks of all heads: [B,E/2,T,4] */
	struct tensor *own;  /* |m|^2 + sum_p tr C_p: [B,H,1,T] */
};

/* "k_a", then "k_a_squared" and so on */
struct name {
	char text[24];
};

static struct name named(const char *role, const char *what)
{
	struct name n;

	snprintf(n.text, sizeof(n.text), "%s_%s", role, what);
	return n;
}

/* One of a, b, c of all blocks: [B,T,E/2] */
static struct tensor *factor(struct block *b, const char *role, const char *which, struct tensor *x)
{
	return block_linear(b, named(role, which).text, x, b->m->embd / 2, false);
}

/* The sum over a head's channels of x [B,T,n] as [B,T,H,1] */
static struct tensor *head_sum(struct block *b, const char *name, struct tensor *x)
{
	return op_sum(b->g, name, block_heads(b, x, b->m->heads), -1);
}

static struct gaussians gaussians(struct block *b, const char *role, struct tensor *x)
{
	const struct w2cov_options *o = b->m->attention_options;
	const int64_t E = b->m->embd, rows = b->B * b->T * E / 2;
	static const int64_t width[] = { 1, 1, 1, 1 };
	struct gaussians y;
	struct tensor *m, *a, *d, *c, *part[4], *u;

	m = block_linear(b, named(role, "proj").text, x, E, false);
	a = op_softplus(b->g, named(role, "a_positive").text, factor(b, role, "a", x), o->eps);
	d = op_softplus(b->g, named(role, "b_positive").text, factor(b, role, "b", x), o->eps);
	c = factor(b, role, "c", x);
	part[0] = op_square(b->g, named(role, "c11").text, a);
	part[1] = op_add(b->g, named(role, "c22").text,
			 op_square(b->g, named(role, "c_squared").text, c),
			 op_square(b->g, named(role, "b_squared").text, d));
	u = op_scale(b->g, named(role, "a_scaled").text, a, sqrt(2));
	part[2] = op_multiply(b->g, named(role, "c12").text, u, c);
	part[3] = op_multiply(b->g, named(role, "root").text, u, d);
	y.own = op_add(b->g, named(role, "own").text,
		       head_sum(b, named(role, "length").text,
				op_square(b->g, named(role, "mean_squared").text, m)),
		       head_sum(b, named(role, "trace").text,
				op_add(b->g, named(role, "diagonal").text, part[0], part[1])));
	y.own = op_permute(b->g, named(role, "own_turned").text, y.own,
			   (const int[]){ 0, 2, 3, 1 });
	for (int i = 0; i < 4; i++)
		part[i] = graph_reshape(b->g, part[i], 2, SHAPE(rows, 1));
	u = graph_reshape(b->g, op_concat(b->g, named(role, "u").text, 4, part, width), 4,
			  SHAPE(b->B, b->T, E / 2, 4));
	y.u = op_permute(b->g, named(role, "u_turned").text, u, (const int[]){ 0, 2, 1, 3 });
	m = block_rope(b, named(role, "rotated").text, block_heads(b, m, b->m->heads),
		       b->m->head_dim);
	y.mean = op_permute(b->g, named(role, "mean").text, m, (const int[]){ 0, 2, 1, 3 });
	return y;
}

/* sum_p sqrt(u_i . u_j): [B,H,T,T] */
static struct tensor *roots(struct block *b, struct tensor *q, struct tensor *k)
{
	const int64_t B = b->B, T = b->T, H = b->m->heads;
	struct tensor *x = op_matmul(b->g, "traces", q, false, k, true);

	x = op_multiply(b->g, "roots", x, op_rsqrt(b->g, "inverse_roots", x));
	x = op_sum(b->g, "root_sum",
		   graph_reshape(b->g, x, 3, SHAPE(B * H, b->m->head_dim / 2, T * T)), 1);
	return graph_reshape(b->g, x, 4, SHAPE(B, H, T, T));
}

static struct tensor *mix(struct block *b, struct tensor *x)
{
	const struct w2cov_options *o = b->m->attention_options;
	const int64_t H = b->m->heads;
	const struct gaussians q = gaussians(b, "q", x), k = gaussians(b, "k", x);
	struct tensor *tau = block_vector(b, "tau", H, 2 * sqrt((double)b->m->head_dim));
	struct tensor *v = block_heads(b, block_linear(b, "v_proj", x, b->m->embd, false), H);
	struct tensor *s, *p;

	s = op_add(b->g, "cross", op_matmul(b->g, "means", q.mean, false, k.mean, true),
		   roots(b, q.u, k.u));
	s = op_add_scaled(b->g, "distance", k.own, s, -2, NULL);
	tau = op_add_constant(b->g, "temperature", op_abs(b->g, "tau_abs", tau), o->eps);
	tau = op_scale(b->g, "minus_temperature", tau, -1);
	s = op_divide(b->g, "scores", s, graph_reshape(b->g, tau, 3, SHAPE(H, 1, 1)));
	/* It drops what op_attention() drops, so it has that name. */
	p = op_dropout(b->g, "heads", op_softmax(b->g, "probabilities", s, CAUSAL), b->m->dropout);
	v = op_permute(b->g, "values", v, (const int[]){ 0, 2, 1, 3 });
	return op_permute(b->g, "heads_turned", op_matmul(b->g, "mixed", p, false, v, false),
			  (const int[]){ 0, 2, 1, 3 });
}

static const struct attention_variant w2cov = {
	.name = "w2cov",
	.options_size = sizeof(struct w2cov_options),
	.read = read,
	.mix = mix,
};
ATTENTION(w2cov);
