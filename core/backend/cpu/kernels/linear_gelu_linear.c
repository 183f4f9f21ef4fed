#include "core/backend/cpu/real.h"
#include "core/ops/linear_gelu_linear.h"

extern KERNELS(linear);
extern KERNELS(gelu);

static struct three_nodes *nodes_of(struct three_nodes *p, const struct node *n)
{
	three_nodes_of(p, n, &KERNELS_OF(linear), &KERNELS_OF(gelu));
	return p;
}

static void forward(const struct call *c)
{
	struct three_nodes nodes, *p = nodes_of(&nodes, c->node);

	linear_forward(&p->two, c);
	gelu_forward(&p->two, c);
	last_forward(p, c);
}

/* y = gelu(x W + b) V + c */
static void backward(const struct call *c)
{
	struct three_nodes nodes, *p = nodes_of(&nodes, c->node);

	last_backward(p, c);
	hidden_backward(p, c);
	gelu_backward(&p->two, c, c->work, c->work);
	linear_backward(&p->two, c, c->work, work_behind(p, c));
}

/* h = gelu(a) */
static void recompute(const struct call *c)
{
	struct three_nodes nodes, *p = nodes_of(&nodes, c->node);

	gelu_forward(&p->two, c);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct three_nodes nodes;

	return three_workspaces(nodes_of(&nodes, n), pass, threads);
}

static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	struct three_nodes nodes;

	return three_copies(nodes_of(&nodes, n), pass, input, which);
}

KERNELS(linear_gelu_linear) = {
	.forward = forward,
	.backward = backward,
	.recompute = recompute,
	.workspace = workspace,
	.copy_bytes = copies,
};
