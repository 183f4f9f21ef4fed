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

	run_forward(p->linear_kernels, first_call(p, c));
	run_forward(p->gelu_kernels, gelu_call(p, c));
	run_forward(p->linear_kernels, second_call(p, c));
}

/* y = gelu(x W + b) V + c */
static void backward(const struct call *c)
{
	struct three_nodes nodes, *p = nodes_of(&nodes, c->node);

	second_backward(p, c);
	hidden_backward(p, c);
	gelu_backward(p, c);
	first_backward(p, c);
}

/* h = gelu(a) */
static void remake(const struct call *c)
{
	struct three_nodes nodes, *p = nodes_of(&nodes, c->node);

	run_forward(p->gelu_kernels, gelu_call(p, c));
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
	.remake = remake,
	.workspace = workspace,
	.copy_bytes = copies,
};
