/*
 * linear_gelu_linear - the op by the kernels of linear and gelu.
 *
 *     first two: a = x W + b, h = gelu(a)        last: y = h V + c
 *
 * In the backward pass the gradient of h lies in the workspace, and then that of
 * a in its place.
 */
#ifndef CORE_OPS_LINEAR_GELU_LINEAR_H
#define CORE_OPS_LINEAR_GELU_LINEAR_H

#include "core/ops/linear_gelu.h"

struct three_nodes {
	struct two_nodes two;
	struct node last;
};

static inline void three_nodes_of(struct three_nodes *p, const struct node *n,
				  const struct kernels *linear, const struct kernels *gelu)
{
	two_nodes_of(&p->two, n, 1, 2, linear, gelu);
	p->last = p->two.linear;
	p->last.in[0] = n->out[2];
	p->last.in[1] = n->in[3];
	p->last.in[2] = n->in[4];
	p->last.out[0] = n->out[0];
}

static inline size_t gradient_bytes(const struct three_nodes *p)
{
	return (tensor_bytes(p->last.in[0]) + 255) / 256 * 256;
}

/* What follows the gradient. */
static inline void *work_behind(const struct three_nodes *p, const struct call *c)
{
	return (char *)c->work + gradient_bytes(p);
}

/* Backward room for a gradient; behind it what one of the nodes needs. */
static inline size_t three_workspaces(const struct three_nodes *p, enum pass pass, int threads)
{
	const size_t two = two_workspaces(&p->two, pass, threads);
	const size_t last = pass == PASS_RECOMPUTE
				    ? 0
				    : p->two.linear_kernels->workspace(&p->last, pass, threads);

	return (pass == PASS_BACKWARD ? gradient_bytes(p) : 0) + (two > last ? two : last);
}

static inline size_t three_copies(const struct three_nodes *p, enum pass pass, int input, int which)
{
	return input < 3 ? two_copies(&p->two, pass, input, which)
			 : p->two.linear_kernels->copy_bytes(&p->last, pass, input - 2, which);
}

static inline struct call last_call(const struct three_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->last);

	take_input(&call, 1, c, 3);
	take_input(&call, 2, c, 4);
	call.in[0] = c->out[2];
	call.out[0] = c->out[0];
	call.dout[0] = c->dout[0];
	return call;
}

static inline void last_forward(const struct three_nodes *p, const struct call *c)
{
	run_forward(p->two.linear_kernels, last_call(p, c));
}

static inline void run_last_backward(const struct three_nodes *p, const struct call *c,
				     struct call call)
{
	call.work = work_behind(p, c);
	p->two.linear_kernels->backward(&call);
}

/* The gradients of V and c. */
static inline void last_backward(const struct three_nodes *p, const struct call *c)
{
	run_last_backward(p, c, last_call(p, c));
}

/* The gradient of h, into the workspace. */
static inline void hidden_backward(const struct three_nodes *p, const struct call *c)
{
	struct call call = last_call(p, c);

	call.din[0] = c->work;
	call.din[1] = call.din[2] = NULL;
	call.mode[0] = GRAD_WRITE;
	run_last_backward(p, c, call);
}

#endif
