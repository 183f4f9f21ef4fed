#include "core/backend/cpu/real.h"
#include "core/ops/linear_gelu.h"

extern KERNELS(linear);
extern KERNELS(gelu);

static struct two_nodes *nodes_of(struct two_nodes *p, const struct node *n)
{
	two_nodes_of(p, n, 1, 0, &KERNELS_OF(linear), &KERNELS_OF(gelu));
	return p;
}

static void forward(const struct call *c)
{
	struct two_nodes nodes, *p = nodes_of(&nodes, c->node);

	linear_forward(p, c);
	gelu_forward(p, c);
}

/* y = gelu(x W + b) */
static void backward(const struct call *c)
{
	struct two_nodes nodes, *p = nodes_of(&nodes, c->node);

	gelu_backward(p, c, c->dout[0], c->inner);
	linear_backward(p, c, c->inner, c->work);
}

/* y = gelu(s) */
static void recompute(const struct call *c)
{
	struct two_nodes nodes;

	gelu_forward(nodes_of(&nodes, c->node), c);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct two_nodes nodes;

	return two_workspaces(nodes_of(&nodes, n), pass, threads);
}

static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	struct two_nodes nodes;

	return two_copies(nodes_of(&nodes, n), pass, input, which);
}

KERNELS(linear_gelu) = {
	.forward = forward,
	.backward = backward,
	.recompute = recompute,
	.workspace = workspace,
	.copy_bytes = copies,
};
