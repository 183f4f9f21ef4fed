/* linear_gelu: y = gelu(x W + b).  The GEMM's epilogue applies gelu if y is stored in bfloat16. */
#include "core/backend/cuda/gemm/linear_gelu.cuh"

/* The op as two nodes, linear and gelu, with their kernels. */
template <typename P> struct nodes : two_nodes {
	nodes(const struct node *n)
	{
		two_nodes_of(this, n, 1, 0, kernels_of<P>::linear(), kernels_of<P>::gelu());
	}
};

template <typename P> static void forward(const struct call *c)
{
	const nodes<P> n(c->node);

	linear_gelu<P>(&n, c);
}

/* y = gelu(x W + b) */
template <typename P> static void backward(const struct call *c)
{
	const nodes<P> n(c->node);

	gelu_backward(&n, c, c->dout[0], c->inner);
	linear_backward(&n, c, c->inner, c->work);
}

/* y = gelu(s); with rounded products also s = x W + b */
template <typename P> static void recompute(const struct call *c)
{
	const nodes<P> n(c->node);

	recompute_gelu<P>(&n, c);
}

template <typename P> static size_t workspace(const struct node *node, enum pass pass, int sms)
{
	const nodes<P> n(node);

	return two_workspaces(&n, pass_of_recompute<P>(pass), sms);
}

template <typename P>
static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	const nodes<P> n(node);

	return two_copies(&n, pass_of_recompute<P>(pass), input, which);
}

KERNELS(linear_gelu, forward<P>, backward<P>, recompute<P>, NULL, workspace<P>, copies<P>, NULL,
	recompute_rule_of_gelu<P>(BIT(0) | BIT(1)))
