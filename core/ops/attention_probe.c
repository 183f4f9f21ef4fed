/*
 * attention_probe: numbers about an attention, without gradient.
 *
 *     entropy      mean over examples, heads and queries i of -sum_j P_ij log P_ij
 *     reciprocity  mean over heads of the correlation of M_ij and M_ji, j < i <= j + window,
 *                  M_ij = scale q_i.k_j + key_bias_j + query_bias_i
 *     kept, mass   mean number of entries per row of the routing matrix, and their
 *                  sum before any normalisation
 *     margin       how close the choice of entries came to another one
 */
#include "core/ops/op_case.h"
#include "core/ops/attention.h"

enum { Q, K, LSE, KEY_BIAS, BAND, QUERY_BIAS, DISTANCE_BIAS };

struct tensor *op_attention_probe(struct graph *g, const char *name,
				  const struct attention_attr *attr,
				  const struct attention_inputs *in, struct tensor *query_bias,
				  struct tensor *lse, int64_t window)
{
	struct tensor *const inputs[] = {
		in->q, in->k, lse, in->key_bias, in->band, query_bias, in->distance_bias
	};
	const struct probe_attr probe = { .attention = *attr, .window = window };

	return node_out(graph_node(g, OP_attention_probe, name, &probe, 7, inputs), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct probe_attr *a = n->attr;
	const struct tensor *q = n->in[Q], *bias = n->in[QUERY_BIAS];
	const struct attention_inputs in = {
		.q = n->in[Q],
		.k = n->in[K],
		.key_bias = n->in[KEY_BIAS],
		.band = n->in[BAND],
		.distance_bias = n->in[DISTANCE_BIAS],
	};

	if (g->state)
		return graph_misfit(g, n, "it looks at whole rows, not at a sequence that goes on");
	if (attention_check(g, n, &a->attention, &in) != OK ||
	    attention_check_lse(g, n, q, n->in[LSE]) != OK)
		return FAIL;
	if (bias && (bias->type != q->type || bias->ndim != 3 || bias->dim[0] != q->dim[0] ||
		     bias->dim[1] != q->dim[1] || bias->dim[2] != q->dim[2]))
		return graph_misfit(g, n, "the bias of the queries must be real [%lld,%lld,%lld]",
				    (long long)q->dim[0], (long long)q->dim[1],
				    (long long)q->dim[2]);
	if (a->window < 1)
		return graph_misfit(g, n,
				    "the window of the reciprocity must be at least 1, not %lld",
				    (long long)a->window);
	return graph_out(g, n, NULL, q->type, 1, SHAPE(PROBE_METRICS));
}

static void cost(const struct node *n, struct op_cost *c)
{
	const struct probe_attr *a = n->attr;

	c->forward_flops = attention_score_flops(&a->attention, n->in[Q], n->in[K]);
	c->forward_bytes = attention_bytes(n);
}

static void probe(struct graph *g, int64_t T, bool biases, enum route_mode mode, int64_t window)
{
	const struct attention_attr a = { .scale = 0.5,
					  .window = window,
					  .band_window = biases ? 3 : -1,
					  .band = 0.4,
					  .route = { .mode = mode, .k = 2, .tau = 0.7 } };
	const struct attention_inputs in = {
		.q = case_input(g, "q", g->type, 2, T, 2, 3),
		.k = case_input(g, "k", g->type, 2, T, 1, 3),
		.key_bias = biases ? case_input(g, "key_bias", g->type, 2, T, 1) : NULL,
		.distance_bias = biases ? case_input(g, "distance", g->type, 2, T) : NULL,
	};
	struct tensor *query_bias = biases ? case_input(g, "query_bias", g->type, 2, T, 2) : NULL;
	struct tensor *lse = case_input(g, "lse", g->type, 2, 2, T);

	graph_output(g, "probe", op_attention_probe(g, "probe", &a, &in, query_bias, lse, 5));
}

BUILD_CASE(case_plain, probe(g, 9, false, ROUTE_NONE, 0))
BUILD_CASE(case_biases, probe(g, 67, true, ROUTE_TOPK, 0))
BUILD_CASE(case_one_token, probe(g, 1, false, ROUTE_RMS, 0))
BUILD_CASE(case_window, probe(g, 67, true, ROUTE_NONE, 10))

OP_CASES(attention_probe) = {
	OP_CASE("plain", case_plain),
	OP_CASE("biases, band and topk", case_biases),
	OP_CASE("one token, rms", case_one_token),
	OP_CASE("window", case_window),
	OP_CASES_END,
};

const struct op op_desc_attention_probe = {
	.name = "attention_probe",
	.attr_size = sizeof(struct probe_attr),
	.min_inputs = 3,
	.max_inputs = 7,
	.infer = infer,
	.cost = cost,
	.no_gradient = true,
	.constant_in = BIT(Q) | BIT(K) | BIT(LSE) | BIT(KEY_BIAS) | BIT(BAND) | BIT(QUERY_BIAS) |
		       BIT(DISTANCE_BIAS),
	.strided_in = BIT(Q) | BIT(K) | BIT(KEY_BIAS),
	.strided_heads_in = BIT(Q) | BIT(K),
	.bf16_in = BIT(Q) | BIT(K),
	.cases = attention_probe_cases,
};
