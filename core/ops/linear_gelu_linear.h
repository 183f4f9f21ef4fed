/*
 * linear_gelu_linear - the op by the kernels of linear and gelu.
 *
 *     first: a = x W + b        gelu: h = gelu(a)        second: y = h V + c
 *
 * In the backward pass the gradient of h lies in the workspace, and then that of
 * a in its place.
 */
#ifndef CORE_OPS_LINEAR_GELU_LINEAR_H
#define CORE_OPS_LINEAR_GELU_LINEAR_H

#include <string.h>

#include "core/engine/backend.h"
#include "core/ops/ops.h"

struct three_nodes {
	const struct kernels *linear_kernels, *gelu_kernels;
	struct linear_attr attr;
	struct node first, gelu, second;
};

static inline void three_nodes_of(struct three_nodes *p, const struct node *n,
				  const struct kernels *linear, const struct kernels *gelu)
{
	memset(p, 0, sizeof(*p));
	p->linear_kernels = linear;
	p->gelu_kernels = gelu;
	p->first = p->gelu = p->second = *n;
	p->first.id = p->second.id = OP_linear;
	p->first.attr = p->second.attr = &p->attr;
	p->first.n_in = p->second.n_in = 3;
	p->first.out[0] = n->out[1];
	p->gelu.id = OP_gelu;
	p->gelu.n_in = 1;
	p->gelu.in[0] = n->out[1];
	p->gelu.out[0] = p->second.in[0] = n->out[2];
	p->second.in[1] = n->in[3];
	p->second.in[2] = n->in[4];
	p->first.n_out = p->gelu.n_out = p->second.n_out = 1;
}

static inline size_t gradient_bytes(const struct tensor *h)
{
	return (tensor_bytes(h) + 255) / 256 * 256;
}

/* Backward room for a gradient; behind it what one of the nodes needs. */
static inline size_t three_workspaces(const struct three_nodes *p, enum pass pass, int threads)
{
	const size_t first = p->linear_kernels->workspace(&p->first, pass, threads);
	const size_t second = p->linear_kernels->workspace(&p->second, pass, threads);

	return (pass == PASS_BACKWARD ? gradient_bytes(p->gelu.out[0]) : 0) +
	       (first > second ? first : second);
}

static inline size_t three_copies(const struct three_nodes *p, enum pass pass, int input, int which)
{
	return input < 3 ? p->linear_kernels->copy_bytes(&p->first, pass, input, which)
			 : p->linear_kernels->copy_bytes(&p->second, pass, input - 2, which);
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

static inline struct call first_call(const struct three_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->first);

	for (int i = 0; i < 3; i++)
		take_input(&call, i, c, i);
	call.out[0] = c->out[1];
	return call;
}

static inline struct call gelu_call(const struct three_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->gelu);

	call.in[0] = c->out[1];
	call.out[0] = c->out[2];
	return call;
}

static inline struct call second_call(const struct three_nodes *p, const struct call *c)
{
	struct call call = call_of(c, &p->second);

	take_input(&call, 1, c, 3);
	take_input(&call, 2, c, 4);
	call.in[0] = c->out[2];
	call.out[0] = c->out[0];
	call.dout[0] = c->dout[0];
	return call;
}

static inline void run_forward(const struct kernels *kernels, struct call call)
{
	kernels->forward(&call);
}

/* ------------------------------------------------------------- the backward pass */

static inline void run_backward(const struct kernels *kernels, const struct call *c,
				struct call call)
{
	call.work = (char *)c->work + gradient_bytes(c->node->out[2]);
	kernels->backward(&call);
}

/* The gradients of V and c. */
static inline void second_backward(const struct three_nodes *p, const struct call *c)
{
	run_backward(p->linear_kernels, c, second_call(p, c));
}

/* The gradient of h, into the workspace. */
static inline void hidden_backward(const struct three_nodes *p, const struct call *c)
{
	struct call call = second_call(p, c);

	call.din[0] = c->work;
	call.din[1] = call.din[2] = NULL;
	call.mode[0] = GRAD_WRITE;
	run_backward(p->linear_kernels, c, call);
}

/* From the gradient of h to that of a, in its place. */
static inline void gelu_backward(const struct three_nodes *p, const struct call *c)
{
	struct call call = gelu_call(p, c);

	call.din[0] = c->work;
	call.dout[0] = c->work;
	call.mode[0] = GRAD_WRITE;
	run_backward(p->gelu_kernels, c, call);
}

/* From the gradient of a to those of x, W and b. */
static inline void first_backward(const struct three_nodes *p, const struct call *c)
{
	struct call call = first_call(p, c);

	call.dout[0] = c->work;
	run_backward(p->linear_kernels, c, call);
}

#endif
