/*
 * mix_rows: y = R x with the routing matrix R of an attention.  The rows of R
 * are thresholded or dense, too large to keep: the op computes them again, a
 * block at a time, from the inputs of the scores.  No gradient flows into R.
 */
#include "core/ops/op_case.h"
#include "core/ops/attention.h"

enum { X, Q, K, LSE, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

struct tensor *op_mix_rows(struct graph *g, const char *name, struct tensor *x,
			   const struct attention_attr *attr, const struct attention_inputs *in,
			   struct tensor *lse)
{
	struct tensor *const inputs[] = {
		x, in->q, in->k, lse, in->key_bias, in->band, in->recent, in->distance_bias
	};

	return node_out(graph_node(g, OP_mix_rows, name, attr, 8, inputs), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct attention_attr *a = n->attr;
	const struct tensor *x = n->in[X], *q = n->in[Q], *k = n->in[K];
	const struct attention_inputs in = { .q = n->in[Q],
					     .k = n->in[K],
					     .key_bias = n->in[KEY_BIAS],
					     .band = n->in[BAND],
					     .recent = n->in[RECENT],
					     .distance_bias = n->in[DISTANCE_BIAS] };

	if (attention_check(g, n, a, &in) != OK || attention_check_lse(g, n, q, n->in[LSE]) != OK)
		return FAIL;
	if (a->route.mode != ROUTE_RMS && a->route.mode != ROUTE_DENSE)
		return graph_misfit(g, n, "the routing must be by threshold or dense");
	if (x->type != q->type || x->ndim != 3 || x->dim[0] != k->dim[0] || x->dim[1] != k->dim[1])
		return graph_misfit(g, n, "x must be real [%lld,%lld,F]", (long long)k->dim[0],
				    (long long)k->dim[1]);
	return graph_out(g, n, NULL, x->type, 3, SHAPE(q->dim[0], q->dim[1], x->dim[2]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	const struct tensor *x = n->in[X];

	c->forward_flops =
		attention_score_flops(n->attr, n->in[Q], n->in[K]) +
		2.0 * (double)(x->dim[0] * x->dim[2]) * attention_pairs(n->in[Q], n->in[K], -1);
	c->backward_flops = c->forward_flops;
	c->forward_bytes = attention_bytes(n);
	c->backward_bytes = attention_bytes(n);
}

/* Routing does not depend on a parameter here, so that differences see x alone. */
static void mix(struct graph *g, int64_t B, int64_t T, int64_t F, int64_t H, int64_t G,
		bool key_bias, bool terms, const struct attention_attr *a)
{
	struct tensor *lse = case_input(g, "lse", g->type, B, H, T);
	const struct attention_inputs in = {
		.q = case_input(g, "q", g->type, B, T, H, 3),
		.k = case_input(g, "k", g->type, B, T, G, 3),
		.key_bias = key_bias ? case_input(g, "bias", g->type, B, T, G) : NULL,
		.band = terms ? case_input(g, "band", g->type, 1) : NULL,
		.distance_bias = terms ? case_input(g, "distance", g->type, H, T) : NULL,
	};

	graph_seeded_output(g, "y",
			    op_mix_rows(g, "mix", case_param(g, "x", B, T, F), a, &in, lse));
}

BUILD_CASE(case_dense,
	   mix(g, 2, 39, 5, 2, 1, true, false,
	       &(struct attention_attr){
		       .scale = 0.5, .band_window = -1, .route = { .mode = ROUTE_DENSE } }))
BUILD_CASE(case_rms, mix(g, 1, 70, 3, 3, 3, false, true,
			 &(struct attention_attr){
				 .scale = 0.5,
				 .softcap = 3,
				 .band_window = 5,
				 .route = { .mode = ROUTE_RMS, .tau = 0.9, .normalize = true } }))
BUILD_CASE(case_maximum,
	   mix(g, 3, 33, 1, 4, 2, false, false,
	       &(struct attention_attr){
		       .scale = 0.5,
		       .band_window = -1,
		       .route = { .mode = ROUTE_RMS, .tau = 1.1, .head_maximum = true } }))
BUILD_CASE(case_one_token,
	   mix(g, 1, 1, 4, 1, 1, false, false,
	       &(struct attention_attr){ .scale = 0.5,
					 .band_window = -1,
					 .route = { .mode = ROUTE_DENSE, .normalize = true } }))

OP_CASES(mix_rows) = {
	OP_CASE("dense", case_dense),
	OP_CASE("rms", case_rms),
	OP_CASE("rms of the maximum", case_maximum, .chooses = true),
	OP_CASE("one token", case_one_token),
	OP_CASES_END,
};

const struct op op_desc_mix_rows = {
	.name = "mix_rows",
	.attr_size = sizeof(struct attention_attr),
	.min_inputs = 4,
	.max_inputs = 8,
	.infer = infer,
	.cost = cost,
	.constant_in = BIT(Q) | BIT(K) | BIT(LSE) | BIT(KEY_BIAS) | BIT(BAND) | BIT(RECENT) |
		       BIT(DISTANCE_BIAS),
	.strided_in = BIT(Q) | BIT(K) | BIT(KEY_BIAS) | BIT(RECENT),
	.strided_heads_in = BIT(Q) | BIT(K) | BIT(RECENT),
	.saves_in = BIT(Q) | BIT(K) | BIT(LSE) | BIT(KEY_BIAS) | BIT(BAND) | BIT(DISTANCE_BIAS),
	.bf16_in = BIT(Q) | BIT(K) | BIT(RECENT),
	.cases = mix_rows_cases,
};
