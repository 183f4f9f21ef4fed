/*
 * attention: o_i = sum_{j <= i} dropout(P_ij) v_j,  P_ij = exp(score_ij - lse_i),
 *
 *     lse_i = log sum_{j <= i} exp(score_ij), with the scores of core/ops/score.h
 *
 * (A. Vaswani et al., 2017; heads that share keys or values: N. Shazeer, 2019;
 * caps: Gemma team, 2024.)  With ROUTE_TOPK it also gives
 * the routing matrix, because only this op sees whole rows of probabilities.
 */
#include "core/ops/attention.h"

#include <math.h>

#include "core/ops/rule.h"

enum { Q, K, V, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

struct attention_outputs op_attention(struct graph *g, const char *name,
				      const struct attention_attr *attr,
				      const struct attention_inputs *in)
{
	struct tensor *const inputs[] = {
		in->q, in->k, in->v, in->key_bias, in->band, in->recent, in->distance_bias
	};
	struct attention_attr acting = *attr;
	const struct node *n;

	if (!g->training)
		acting.dropout = 0;
	n = graph_node(g, OP_attention, name, &acting, 7, inputs);
	return (struct attention_outputs){
		.o = node_out(n, 0),
		.lse = node_out(n, 1),
		.route_index = node_out(n, 3),
		.route_weight = node_out(n, 4),
	};
}

/* ----------------------------------------------------------------- checks */

/* Real [B,S,n,*] with the B of q, and n a divisor of its heads. */
static bool heads_fit(const struct tensor *q, const struct tensor *t, int64_t S, int ndim)
{
	return t->type == q->type && t->ndim == ndim && t->dim[0] == q->dim[0] && t->dim[1] == S &&
	       q->dim[2] % t->dim[2] == 0;
}

/* Tokens that keys and values hold. */
static int64_t held(const struct graph *g, const struct tensor *q)
{
	return g->state ? g->capacity : q->dim[1];
}

static enum status check_band(struct graph *g, const struct node *n,
			      const struct attention_attr *attr, const struct attention_inputs *in)
{
	const struct tensor *q = in->q, *recent = in->recent;
	const int64_t before = g->state && attr->band_window > 0 ? attr->band_window : 0;

	if (in->band && (in->band->type != q->type || tensor_count(in->band) != 1))
		return graph_misfit(g, n, "the weight of the reciprocal term must be real [1]");
	if (in->band && attr->band_window < 0)
		return graph_misfit(g, n, "a weight of the reciprocal term, but no window for it");
	if (before && !recent)
		return graph_misfit(g, n, "the reciprocal term needs the queries of earlier runs");
	if (recent && (!heads_fit(q, recent, before + q->dim[1], 4) || !tokens_whole(recent) ||
		       recent->dim[2] != q->dim[2] || recent->dim[3] != q->dim[3]))
		return graph_misfit(g, n, "the recent queries must be real [%lld,%lld,%lld,%lld]",
				    (long long)q->dim[0], (long long)(before + q->dim[1]),
				    (long long)q->dim[2], (long long)q->dim[3]);
	return OK;
}

static enum status check_terms(struct graph *g, const struct node *n,
			       const struct attention_attr *attr, const struct attention_inputs *in)
{
	const struct tensor *q = in->q, *bias = in->distance_bias;

	if (attr->window < 0 || attr->sinks < 0)
		return graph_misfit(g, n,
				    "a window of %lld keys and %lld sinks must not be negative",
				    (long long)attr->window, (long long)attr->sinks);
	if (attr->sinks > 0 && attr->window == 0)
		return graph_misfit(g, n, "sinks need a window: without one all keys are seen");
	if (attr->window > 0 && attr->route.mode != ROUTE_NONE)
		return graph_misfit(g, n,
				    "routing reads all earlier keys, but a window hides some");
	if (!(attr->softcap >= 0 && isfinite(attr->softcap)))
		return graph_misfit(g, n, "the softcap %g must be finite and not negative",
				    attr->softcap);
	if (bias && (bias->type != q->type || bias->ndim != 2 || bias->dim[0] != q->dim[2] ||
		     bias->dim[1] != held(g, q)))
		return graph_misfit(g, n, "the bias of distances must be real [%lld,%lld]",
				    (long long)q->dim[2], (long long)held(g, q));
	return OK;
}

static enum status check_route(struct graph *g, const struct node *n, const struct route_attr *a)
{
	if (a->mode == ROUTE_TOPK && a->k < 1)
		return graph_misfit(g, n, "routing must keep at least 1 entry, not %lld",
				    (long long)a->k);
	if (a->mode == ROUTE_RMS && !(a->tau >= 0 && isfinite(a->tau)))
		return graph_misfit(
			g, n, "the routing threshold %g must be finite and not negative", a->tau);
	return OK;
}

enum status attention_check(struct graph *g, const struct node *n,
			    const struct attention_attr *attr, const struct attention_inputs *in)
{
	const struct tensor *q = in->q, *k = in->k, *key_bias = in->key_bias;

	if (q->type == I32 || q->ndim != 4)
		return graph_misfit(g, n, "q must be real [B,T,H,K]");
	if (held(g, q) > INT32_MAX)
		return graph_misfit(g, n, "%lld positions are too many", (long long)held(g, q));
	if (!heads_fit(q, k, held(g, q), 4) || k->dim[3] != q->dim[3])
		return graph_misfit(g, n,
				    "k must be real [%lld,%lld,G,%lld], G a divisor of %lld heads",
				    (long long)q->dim[0], (long long)held(g, q),
				    (long long)q->dim[3], (long long)q->dim[2]);
	if (key_bias && (!heads_fit(q, key_bias, k->dim[1], 3) || key_bias->dim[2] != k->dim[2]))
		return graph_misfit(g, n, "the bias of the keys must be real [%lld,%lld,%lld]",
				    (long long)k->dim[0], (long long)k->dim[1],
				    (long long)k->dim[2]);
	if (!tokens_whole(q) || !tokens_whole(k) || (key_bias && !tokens_whole(key_bias)))
		return graph_misfit(g, n, "a slice must hold all heads of a token side by side");
	if (check_band(g, n, attr, in) != OK || check_terms(g, n, attr, in) != OK)
		return FAIL;
	if (!isfinite(attr->scale) || !isfinite(attr->band))
		return graph_misfit(g, n, "scale %g and reciprocal weight %g must be finite",
				    attr->scale, attr->band);
	if (!(attr->dropout >= 0 && attr->dropout < 1))
		return graph_misfit(g, n, "the dropout probability %g is not in [0, 1)",
				    attr->dropout);
	return check_route(g, n, &attr->route);
}

enum status attention_check_lse(struct graph *g, const struct node *n, const struct tensor *q,
				const struct tensor *lse)
{
	if (lse->type != q->type || lse->ndim != 3 || lse->dim[0] != q->dim[0] ||
	    lse->dim[1] != q->dim[2] || lse->dim[2] != q->dim[1])
		return graph_misfit(g, n, "lse must be real [%lld,%lld,%lld]", (long long)q->dim[0],
				    (long long)q->dim[2], (long long)q->dim[1]);
	return OK;
}

/* Do two tensors have elements in common?  Slices of one tensor need not. */
static bool overlap(const struct tensor *a, const struct tensor *b)
{
	const struct tensor *root = tensor_root(a);
	const int64_t whole = tensor_count(root);
	const int64_t a_row = tensor_count(a) == whole ? whole : a->row;
	const int64_t b_row = tensor_count(b) == whole ? whole : b->row;

	return tensor_root(b) == root && a->offset < b->offset + b_row &&
	       b->offset < a->offset + a_row;
}

/*
 * Different threads add up their gradients, so they must not overlap; one tensor read twice may.
 * Decoding has no gradients: there values may be channels of the keys.
 */
static enum status check_apart(struct graph *g, const struct node *n)
{
	for (int i = Q; i <= V && !g->state; i++)
		for (int j = Q; j < i; j++)
			if (n->in[i] != n->in[j] && overlap(n->in[i], n->in[j]))
				return graph_misfit(
					g, n, "q, k and v must be one tensor, or apart in memory");
	return OK;
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct attention_attr *a = n->attr;
	const struct tensor *q = n->in[Q], *v = n->in[V];
	const struct attention_inputs in = { .q = n->in[Q],
					     .k = n->in[K],
					     .key_bias = n->in[KEY_BIAS],
					     .band = n->in[BAND],
					     .recent = n->in[RECENT],
					     .distance_bias = n->in[DISTANCE_BIAS] };
	int64_t B, T, H, k;

	if (attention_check(g, n, a, &in) != OK)
		return FAIL;
	B = q->dim[0];
	T = q->dim[1];
	H = q->dim[2];
	if (!heads_fit(q, v, held(g, q), 4))
		return graph_misfit(g, n,
				    "v must be real [%lld,%lld,G,D], G a divisor of %lld heads",
				    (long long)B, (long long)held(g, q), (long long)H);
	if (!tokens_whole(v))
		return graph_misfit(g, n, "a slice must hold all heads of a token side by side");
	if (check_apart(g, n) != OK)
		return FAIL;
	if (graph_out(g, n, NULL, q->type, 4, SHAPE(B, T, H, v->dim[3])) != OK ||
	    graph_out_constant(g, n, "lse", q->type, 3, SHAPE(B, H, T)) != OK ||
	    graph_out_constant(g, n, "lost", NOTHING, 4, SHAPE(B, T, H, v->dim[3])) != OK)
		return FAIL;
	if (a->route.mode != ROUTE_TOPK)
		return OK;
	k = a->route.k < held(g, q) ? a->route.k : held(g, q);
	if (graph_out_constant(g, n, "route_index", I32, 3, SHAPE(B, T, k)) != OK)
		return FAIL;
	return graph_out_constant(g, n, "route_weight", q->type, 3, SHAPE(B, T, k));
}

/* ------------------------------------------------------------------- cost */

/* Of the first T queries. */
static double first_pairs(int64_t T, int64_t window)
{
	double near = (double)(window < 0 || window >= T ? T : window + 1);

	return near * (near + 1) / 2 + ((double)T - near) * near;
}

double attention_pairs(const struct tensor *q, const struct tensor *k, int64_t window)
{
	return first_pairs(k->dim[1], window) - first_pairs(k->dim[1] - q->dim[1], window);
}

/* How far a query sees; < 0: any distance.  Sinks count as if they were near. */
static int64_t attention_reach(const struct attention_attr *attr)
{
	return attr->window > 0 ? attr->window + attr->sinks - 1 : -1;
}

double attention_score_flops(const struct attention_attr *attr, const struct tensor *q,
			     const struct tensor *k)
{
	double pairs = attention_pairs(q, k, attention_reach(attr));

	if (attr->band_window >= 0)
		pairs += attention_pairs(q, k, attr->band_window);
	return 2.0 * (double)(q->dim[0] * q->dim[2] * q->dim[3]) * pairs;
}

double attention_bytes(const struct node *n)
{
	double bytes = 0;

	for (int i = 0; i < n->n_in; i++)
		bytes += n->in[i] ? (double)tensor_bytes(n->in[i]) : 0;
	for (int i = 0; i < n->n_out; i++)
		bytes += (double)tensor_bytes(n->out[i]);
	return bytes;
}

static void cost(const struct node *n, struct op_cost *c)
{
	double scores = attention_score_flops(n->attr, n->in[Q], n->in[K]);
	double values = 2.0 * (double)tensor_count(n->out[0]) / (double)n->in[Q]->dim[1] *
			attention_pairs(n->in[Q], n->in[K], attention_reach(n->attr));

	c->forward_flops = scores + values;
	c->backward_flops = 3 * scores + 2 * values; /* P, dQ, dK; dP, dV */
	c->forward_bytes = attention_bytes(n);
	c->backward_bytes = 2 * attention_bytes(n);
}

/* ------------------------------------------------------------------ cases */

struct shape {
	int64_t B, T, H, K, D, key_heads, value_heads;
};

#define SIZES(...) (&(const struct shape){ __VA_ARGS__ })
#define NO_BAND .band_window = -1

enum { WITH_KEY_BIAS = 1, WITH_LEARNED_BAND = 2, WITH_DISTANCE_BIAS = 4 };

static struct attention_outputs attend(struct graph *g, const struct shape *s, unsigned extra,
				       const struct attention_attr *a)
{
	const struct attention_inputs in = {
		.q = case_param(g, "q", s->B, s->T, s->H, s->K),
		.k = case_param(g, "k", s->B, s->T, s->key_heads, s->K),
		.v = case_param(g, "v", s->B, s->T, s->value_heads, s->D),
		.key_bias = extra & WITH_KEY_BIAS ? case_param(g, "bias", s->B, s->T, s->key_heads)
						  : NULL,
		.band = extra & WITH_LEARNED_BAND ? case_param(g, "band", 1) : NULL,
		.distance_bias =
			extra & WITH_DISTANCE_BIAS ? case_param(g, "distance", s->H, s->T) : NULL,
	};
	const struct attention_outputs out = op_attention(g, "attention", a, &in);

	graph_seeded_output(g, "o", out.o);
	return out;
}

BUILD_CASE(case_plain, attend(g, SIZES(2, 5, 2, 4, 3, 2, 2), 0,
			      &(struct attention_attr){ .scale = 0.5, NO_BAND }))
BUILD_CASE(case_one_token, attend(g, SIZES(3, 1, 2, 3, 2, 2, 1), 0,
				  &(struct attention_attr){ .scale = 1, NO_BAND }))
BUILD_CASE(case_one_head, attend(g, SIZES(1, 65, 1, 3, 2, 1, 1), 0,
				 &(struct attention_attr){ .scale = 0.6, NO_BAND }))

/* More than 256 positions use larger blocks. */
BUILD_CASE(case_long, attend(g, SIZES(1, 259, 1, 2, 3, 1, 1), WITH_KEY_BIAS,
			     &(struct attention_attr){ .scale = 0.6, NO_BAND }))

/* Three heads on two threads: the heads of the one key are split between them. */
BUILD_CASE(case_shared_keys, attend(g, SIZES(1, 37, 3, 4, 3, 1, 3), WITH_KEY_BIAS,
				    &(struct attention_attr){ .scale = 0.5, NO_BAND }))
BUILD_CASE(case_groups, attend(g, SIZES(3, 9, 6, 2, 3, 2, 3), WITH_KEY_BIAS,
			       &(struct attention_attr){ .scale = 0.7, NO_BAND }))
BUILD_CASE(case_distance, attend(g, SIZES(2, 40, 3, 2, 2, 3, 1), WITH_DISTANCE_BIAS,
				 &(struct attention_attr){ .scale = 0.5, NO_BAND }))

/* More tiles than one, and a window that ends inside of one. */
BUILD_CASE(case_window, attend(g, SIZES(1, 150, 2, 2, 3, 1, 2), WITH_KEY_BIAS,
			       &(struct attention_attr){ .scale = 0.5, NO_BAND, .window = 37 }))
BUILD_CASE(case_window_one, attend(g, SIZES(1, 34, 1, 2, 2, 1, 1), 0,
				   &(struct attention_attr){ .scale = 0.5, NO_BAND, .window = 1 }))
BUILD_CASE(case_sinks,
	   attend(g, SIZES(1, 150, 2, 2, 3, 2, 1), WITH_DISTANCE_BIAS,
		  &(struct attention_attr){ .scale = 0.5, NO_BAND, .window = 20, .sinks = 3 }))
BUILD_CASE(case_softcap, attend(g, SIZES(2, 37, 2, 3, 2, 1, 2), WITH_KEY_BIAS,
				&(struct attention_attr){ .scale = 0.9, NO_BAND, .softcap = 1.5 }))
BUILD_CASE(case_all_terms, attend(g, SIZES(1, 135, 2, 2, 2, 1, 2),
				  WITH_KEY_BIAS | WITH_DISTANCE_BIAS | WITH_LEARNED_BAND,
				  &(struct attention_attr){ .scale = 0.5,
							    .band_window = 30,
							    .window = 40,
							    .sinks = 2,
							    .softcap = 2,
							    .dropout = 0.3 }))
BUILD_CASE(case_band,
	   attend(g, SIZES(2, 39, 2, 3, 2, 1, 2), WITH_KEY_BIAS,
		  &(struct attention_attr){ .scale = 0.5, .band_window = 4, .band = 0.7 }))
BUILD_CASE(case_band_own,
	   attend(g, SIZES(1, 34, 1, 2, 2, 1, 1), 0,
		  &(struct attention_attr){ .scale = 0.5, .band_window = 0, .band = -1.5 }))
BUILD_CASE(case_band_learned,
	   attend(g, SIZES(1, 35, 3, 2, 2, 1, 1), WITH_LEARNED_BAND | WITH_DISTANCE_BIAS,
		  &(struct attention_attr){ .scale = 0.5, .band_window = 99 }))
BUILD_CASE(case_dropout, attend(g, SIZES(2, 35, 2, 3, 2, 1, 2), 0,
				&(struct attention_attr){ .scale = 0.5, .dropout = 0.4, NO_BAND }))

static void route(struct graph *g, const struct shape *s, const struct route_attr *r)
{
	const struct attention_attr a = { .scale = 0.5, NO_BAND, .route = *r };

	graph_output(g, "weight", attend(g, s, 0, &a).route_weight);
}

BUILD_CASE(case_topk, route(g, SIZES(2, 37, 2, 3, 2, 2, 2),
			    &(struct route_attr){ .mode = ROUTE_TOPK, .k = 4, .normalize = true }))
BUILD_CASE(case_topk_all,
	   route(g, SIZES(1, 3, 2, 3, 2, 2, 2),
		 &(struct route_attr){ .mode = ROUTE_TOPK, .k = 7, .head_maximum = true }))

/* All inputs as slices of one tensor. */
static void case_slices(struct graph *g)
{
	struct tensor *all = case_param(g, "all", 2, 33, 8 + 4 + 6 + 2);
	const struct attention_inputs in = {
		.q = graph_reshape(g, graph_slice(g, all, 0, 8), 4, SHAPE(2, 33, 4, 2)),
		.k = graph_reshape(g, graph_slice(g, all, 8, 4), 4, SHAPE(2, 33, 2, 2)),
		.v = graph_reshape(g, graph_slice(g, all, 12, 6), 4, SHAPE(2, 33, 2, 3)),
		.key_bias = graph_slice(g, all, 18, 2),
	};
	const struct attention_attr a = { .scale = 0.5, NO_BAND };

	graph_seeded_output(g, "o", op_attention(g, "attention", &a, &in).o);
}

/* One tensor as queries, keys and values, on more threads than heads. */
static void case_all_one(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 1, 70, 1, 2);
	const struct attention_inputs in = { .q = x, .k = x, .v = x };
	const struct attention_attr a = { .scale = 0.5, NO_BAND };

	graph_seeded_output(g, "o", op_attention(g, "attention", &a, &in).o);
}

OP_CASES(attention) = {
	OP_CASE("plain", case_plain),
	OP_CASE("one token", case_one_token),
	OP_CASE("one head", case_one_head),
	OP_CASE("long", case_long),
	OP_CASE("shared keys", case_shared_keys),
	OP_CASE("groups of heads", case_groups),
	OP_CASE("distance bias", case_distance),
	OP_CASE("window", case_window),
	OP_CASE("window of one", case_window_one),
	OP_CASE("window with sinks", case_sinks),
	OP_CASE("softcap", case_softcap),
	OP_CASE("all terms", case_all_terms),
	OP_CASE("band", case_band),
	OP_CASE("band of the diagonal", case_band_own),
	OP_CASE("learned band wider than the sequence", case_band_learned),
	OP_CASE("dropout", case_dropout),
	OP_CASE("topk", case_topk),
	OP_CASE("topk keeps all", case_topk_all),
	OP_CASE("slices", case_slices),
	OP_CASE("one tensor thrice", case_all_one),
	OP_CASES_END,
};

const struct op op_desc_attention = {
	.name = "attention",
	.attr_size = sizeof(struct attention_attr),
	.min_inputs = 3,
	.max_inputs = 7,
	.infer = infer,
	.cost = cost,
	.constant_in = BIT(RECENT),
	.strided_in = BIT(Q) | BIT(K) | BIT(V) | BIT(KEY_BIAS) | BIT(RECENT),
	.strided_heads_in = BIT(Q) | BIT(K) | BIT(V) | BIT(RECENT),
	.saves_in = BIT(Q) | BIT(K) | BIT(V) | BIT(KEY_BIAS) | BIT(BAND) | BIT(DISTANCE_BIAS),
	.saves_out = BIT(0) | BIT(1) | BIT(2),
	.bf16_in = BIT(Q) | BIT(K) | BIT(V) | BIT(RECENT),
	.bf16_out = BIT(0),
	.rounding_error_out =
		2, /* the backward pass relies on dO.o, whose rounding every key would feel alike */
	.cases = attention_cases,
};
