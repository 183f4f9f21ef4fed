/*
 * linear_gelu_linear: y = gelu(a) V + c, a = x W + b, the whole feed-forward.
 *
 * In bfloat16 the GEMM of backward applies the derivative in its epilogue: da = dy V' gelu'(a).
 */
#include "core/backend/cuda/gemm/linear_gelu.cuh"
#include "core/ops/linear_gelu_linear.h"

/* The op as three nodes, linear, gelu and linear, with their kernels. */
template <typename P> struct nodes : three_nodes {
	nodes(const struct node *n)
	{
		three_nodes_of(this, n, kernels_of<P>::linear(), kernels_of<P>::gelu());
	}
};

template <typename P> static void forward(const struct call *c)
{
	const nodes<P> n(c->node);

	linear_gelu<P>(&n.two, c);
	last_forward(&n, c);
}

/*
 * Writes da = dy V' gelu'(a) to the workspace with one GEMM.  Returns false, with nothing done, if
 * it cannot.
 */
template <typename P> static bool backward_fused(const struct call *c)
{
	typedef typename P::factor factor;
	const struct tensor *y = c->node->out[0], *h = c->node->out[2];
	const int64_t o = tensor_dim(y, -1), f = tensor_dim(h, -1);

	if (!ROUNDS<P> || !is_bf16(y) || !is_bf16(h) || !c->copy[3][0])
		return false;
	return gemm_with_epilogue<factor>(c, EPILOGUE_GELU_GRADIENT, false, true,
					  tensor_count(y) / o, f, o,
					  { (const factor *)c->dout[0], o, 0 },
					  { (const factor *)c->copy[3][0]->memory, o, 0, true },
					  NULL, c->out[1], output_view<P>{ c->work, true }, f);
}

/* y = gelu(x W + b) V + c */
template <typename P> static void backward(const struct call *c)
{
	const nodes<P> n(c->node);

	last_backward(&n, c);
	if (!c->din[0] && !c->din[1] && !c->din[2])
		return;
	if (!backward_fused<P>(c)) {
		hidden_backward(&n, c);
		gelu_backward(&n.two, c, c->work, c->work);
	}
	linear_backward(&n.two, c, c->work, work_behind(&n, c));
}

/* h = gelu(a); with rounded products also a = x W + b */
template <typename P> static void recompute(const struct call *c)
{
	const nodes<P> n(c->node);

	recompute_gelu<P>(&n.two, c);
}

template <typename P> static size_t workspace(const struct node *node, enum pass pass, int sms)
{
	const nodes<P> n(node);

	return three_workspaces(&n, pass_of_recompute<P>(pass), sms);
}

template <typename P>
static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	const nodes<P> n(node);

	return three_copies(&n, pass_of_recompute<P>(pass), input, which);
}

KERNELS(linear_gelu_linear, forward<P>, backward<P>, recompute<P>, NULL, workspace<P>, copies<P>,
	NULL, recompute_rule_of_gelu<P>(BIT(1) | BIT(2)))
