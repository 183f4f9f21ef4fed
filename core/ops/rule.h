/*
 * rule - checks that many shape rules share.
 */
#ifndef OPS_RULE_H
#define OPS_RULE_H

#include <string.h>

#include "core/ops/op_case.h"

static inline bool all_real(const struct node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && n->in[i]->type == I32)
			return false;
	return true;
}

/* An absent input is valid. */
static inline bool is_vector(const struct tensor *t, int64_t size)
{
	return !t || (t->ndim == 1 && t->dim[0] == size);
}

/* For t [B,T,n] or [B,T,n,width]: a slice may cut channels off a token, not off each head. */
static inline bool tokens_whole(const struct tensor *t)
{
	return tensor_contiguous(t) || t->row == t->dim[2] * (t->ndim == 4 ? t->dim[3] : 1);
}

/* Real [B,T,..], in which a slice cuts no token. */
static inline bool is_tokens(const struct tensor *t)
{
	return t->type != I32 && t->ndim >= 3 && tokens_whole(t);
}

/* The rule of an op whose tensors are real and have one shape. */
static inline enum status infer_elementwise(struct graph *g, struct node *n)
{
	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	for (int i = 1; i < n->n_in; i++)
		if (!tensor_same_shape(n->in[0], n->in[i]))
			return graph_misfit(g, n, "the shapes do not broadcast");
	return graph_out_like(g, n, NULL, n->in[0]);
}

#endif
