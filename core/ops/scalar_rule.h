/*
 * scalar_rule - what scalar_expand and scalar_pool share.
 *
 * Both couple a hidden activation [B,T,F] with a latent [B,T,L], F >= L, by
 * scalars s [H]: one reads x [B,T,L] and gives y [B,T,F], the other the reverse.
 */
#ifndef OPS_SCALAR_RULE_H
#define OPS_SCALAR_RULE_H

#include "core/ops/rule.h"

static inline struct tensor *scalar_node(struct graph *g, enum op_id id, const char *name,
					 struct tensor *x, struct tensor *s, int64_t width)
{
	const struct scalar_attr attr = { width };
	struct tensor *in[] = { x, s };

	return node_out(graph_node(g, id, name, &attr, 2, in), 0);
}

static inline enum status infer_scalar(struct graph *g, struct node *n, bool expands)
{
	const struct scalar_attr *attr = n->attr;
	const struct tensor *x = n->in[0];

	if (!all_real(n) || x->ndim != 3 || n->in[1]->ndim != 1)
		return graph_misfit(g, n, "inputs must be real, x [B,T,%s] and the scalars [H]",
				    expands ? "L" : "F");
	if (expands && attr->width < x->dim[2])
		return graph_misfit(g, n, "a width of %lld leaves some of %lld channels unread",
				    (long long)attr->width, (long long)x->dim[2]);
	if (!expands && attr->width > x->dim[2])
		return graph_misfit(g, n,
				    "a width of %lld leaves some channels without any of %lld",
				    (long long)attr->width, (long long)x->dim[2]);
	return graph_out(g, n, NULL, x->type, 3, SHAPE(x->dim[0], x->dim[1], attr->width));
}

/* One operation per hidden channel forward, and so many times as many backward. */
static inline void cost_scalar(const struct node *n, struct op_cost *c, const struct tensor *hidden,
			       double backward)
{
	const double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);

	c->forward_flops = (double)tensor_count(hidden);
	c->backward_flops = backward * c->forward_flops;
	c->forward_bytes = x + y;
	c->backward_bytes = 2 * x + y; /* x, dx, dy */
}

/* ------------------------------------------------------------------- cases */

typedef struct tensor *(*scalar_op)(struct graph *g, const char *name, struct tensor *x,
				    struct tensor *s, int64_t width);

static inline void scalar_alone(struct graph *g, scalar_op op, struct tensor *x, int64_t scalars,
				int64_t width)
{
	graph_seeded_output(g, "y", op(g, "coupled", x, case_param(g, "s", scalars), width));
}

/* Between other ops, through three widths; x and s are read twice. */
static inline void scalar_chain(struct graph *g, scalar_op op, int64_t first, int64_t second,
				int64_t third)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 4, first));
	struct tensor *s = case_param(g, "s", 2);
	struct tensor *y = op(g, "first", x, s, second);

	graph_seeded_output(g, "y", op_gelu(g, "after", op(g, "second", y, s, third)));
	graph_seeded_output(g, "z", op(g, "third", x, s, first));
}

#endif
