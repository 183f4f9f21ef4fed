/*
 * linear_gelu - a linear map and gelu in one op, by the kernels of both.
 *
 *     linear: a = x W + b        gelu: h = gelu(a)
 *
 * x, W and b are the op's first inputs; a and h are two of its outputs.
 */
#ifndef CORE_OPS_LINEAR_GELU_H
#define CORE_OPS_LINEAR_GELU_H

#include <string.h>

#include "core/engine/backend.h"
#include "core/ops/ops.h"

/* Points to itself: do not copy it. */
struct two_nodes {
	const struct kernels *linear_kernels, *gelu_kernels;
	struct linear_attr attr;
	struct node linear, gelu;
	int a, h; /* numbers of the op's outputs */
};

static inline void two_nodes_of(struct two_nodes *p, const struct node *n, int a, int h,
				const struct kernels *linear, const struct kernels *gelu)
{
	memset(p, 0, sizeof(*p));
	p->linear_kernels = linear;
	p->gelu_kernels = gelu;
	p->a = a;
	p->h = h;
	p->linear = p->gelu = *n;
	p->linear.id = OP_linear;
	p->linear.attr = &p->attr;
	p->linear.n_in = 3;
	p->gelu.id = OP_gelu;
	p->gelu.n_in = 1;
	p->linear.out[0] = p->gelu.in[0] = n->out[a];
	p->gelu.out[0] = n->out[h];
	p->linear.n_out = p->gelu.n_out = 1;
}

/* gelu needs no workspace. */
static inline size_t two_workspaces(const struct two_nodes *p, enum pass pass, int threads)
{
	return pass == PASS_RECOMPUTE ? 0 : p->linear_kernels->workspace(&p->linear, pass, threads);
}

static inline size_t two_copies(const struct two_nodes *p, enum pass pass, int input, int which)
{
	return p->linear_kernels->copy_bytes(&p->linear, pass, input, which);
}

/* ------------------------------------------------- calls of one of the nodes */

static inline struct call call_of(const struct call *c, const struct node *node)
{
	struct call call;

	memset(&call, 0, sizeof(call));
	call.node = node;
	call.run = c->run;
	call.backend = c->backend;
	call.work = c->work;
	return call;
}

/* Input i of the node is input `from` of the whole op. */
static inline void take_input(struct call *call, int i, const struct call *c, int from)
{
	call->in[i] = c->in[from];
	call->din[i] = c->din[from];
	call->mode[i] = c->mode[from];
	memcpy(call->copy[i], c->copy[from], sizeof(call->copy[i]));
}

static inline struct call linear_call(const struct two_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->linear);

	for (int i = 0; i < 3; i++)
		take_input(&call, i, c, i);
	call.out[0] = c->out[p->a];
	return call;
}

static inline struct call gelu_call(const struct two_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->gelu);

	call.in[0] = c->out[p->a];
	call.out[0] = c->out[p->h];
	return call;
}

static inline void run_forward(const struct kernels *kernels, struct call call)
{
	kernels->forward(&call);
}

static inline void linear_forward(const struct two_nodes *p, const struct call *c)
{
	run_forward(p->linear_kernels, linear_call(p, c));
}

static inline void gelu_forward(const struct two_nodes *p, const struct call *c)
{
	run_forward(p->gelu_kernels, gelu_call(p, c));
}

/* da from dh, which may take its place. */
static inline void gelu_backward(const struct two_nodes *p, const struct call *c, const void *dh,
				 void *da)
{
	struct call call = gelu_call(p, c);

	call.dout[0] = dh;
	call.din[0] = da;
	call.mode[0] = GRAD_WRITE;
	p->gelu_kernels->backward(&call);
}

/* The gradients of x, W and b from da. */
static inline void linear_backward(const struct two_nodes *p, const struct call *c, const void *da,
				   void *work)
{
	struct call call = linear_call(p, c);

	call.dout[0] = da;
	call.work = work;
	p->linear_kernels->backward(&call);
}

#endif
