#include "core/backend/cuda/few_rows.cuh"
#include "core/ops/linear_gelu_linear.h"

extern "C" {
extern const struct kernels cuda_linear_f32, cuda_linear_f64, cuda_linear_bf16;
extern const struct kernels cuda_gelu_f32, cuda_gelu_f64, cuda_gelu_bf16;
}

template <typename P>
static const struct kernels *choose(const struct kernels *f32, const struct kernels *f64,
				    const struct kernels *bf16)
{
	return ROUNDS<P> ? bf16 : sizeof(typename P::real) == sizeof(double) ? f64 : f32;
}

/* The op as three, with the kernels of the precision. */
template <typename P> struct nodes : three_nodes {
	nodes(const struct node *n)
	{
		three_nodes_of(this, n,
			       choose<P>(&cuda_linear_f32, &cuda_linear_f64, &cuda_linear_bf16),
			       choose<P>(&cuda_gelu_f32, &cuda_gelu_f64, &cuda_gelu_bf16));
	}
};

/* a = x W + b and h = gelu(a) at once.  false: nothing was done. */
template <typename P> static bool forward_at_once(const struct call *c, const struct three_nodes *p)
{
	typedef typename P::factor factor;
	const struct tensor *x = c->node->in[0];
	const struct tensor *h = c->node->out[2];
	const int64_t i = tensor_dim(x, -1), f = tensor_dim(h, -1);
	const void *bias = c->copy[2][0] ? c->copy[2][0]->memory : NULL;

	if (!ROUNDS<P> || !is_narrow(x) || !is_narrow(h) || few_rows<P>::takes(&p->first) ||
	    !c->copy[1][0] || (c->in[2] && !bias))
		return false;
	return finished_gemm<factor>(
		c, EPILOGUE_GELU, false, false, tensor_count(x) / i, f, i,
		{ (const factor *)c->in[0], tensor_contiguous(x) ? i : x->pitch, 0 },
		{ (const factor *)c->copy[1][0]->memory, f, 0 }, bias, c->out[1],
		results<P>{ c->out[2], true }, f);
}

template <typename P> static void forward(const struct call *c)
{
	const struct nodes<P> n(c->node);

	if (!forward_at_once<P>(c, &n)) {
		run_forward(n.linear_kernels, first_call(&n, c));
		run_forward(n.gelu_kernels, gelu_call(&n, c));
	}
	run_forward(n.linear_kernels, second_call(&n, c));
}

/* da = dy V' gelu'(a) at once, into the workspace.  false: nothing was done. */
template <typename P> static bool backward_at_once(const struct call *c)
{
	typedef typename P::factor factor;
	const struct tensor *y = c->node->out[0], *h = c->node->out[2];
	const int64_t o = tensor_dim(y, -1), f = tensor_dim(h, -1);

	if (!ROUNDS<P> || !is_narrow(y) || !is_narrow(h) || !c->copy[3][0])
		return false;
	return finished_gemm<factor>(c, EPILOGUE_GELU_GRADIENT, false, true, tensor_count(y) / o, f,
				     o, { (const factor *)c->dout[0], o, 0 },
				     { (const factor *)c->copy[3][0]->memory, o, 0 }, NULL,
				     c->out[1], results<P>{ c->work, true }, f);
}

/* y = gelu(x W + b) V + c */
template <typename P> static void backward(const struct call *c)
{
	const struct nodes<P> n(c->node);

	second_backward(&n, c);
	if (!c->din[0] && !c->din[1] && !c->din[2])
		return;
	if (!backward_at_once<P>(c)) {
		hidden_backward(&n, c);
		gelu_backward(&n, c);
	}
	first_backward(&n, c);
}

/* h = gelu(a) */
template <typename P> static void remake(const struct call *c)
{
	const struct nodes<P> n(c->node);

	run_forward(n.gelu_kernels, gelu_call(&n, c));
}

template <typename P> static size_t workspace(const struct node *node, enum pass pass, int threads)
{
	const struct nodes<P> n(node);

	return three_workspaces(&n, pass, threads);
}

template <typename P>
static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	const struct nodes<P> n(node);

	return three_copies(&n, pass, input, which);
}

/* In bfloat16 h is kept: it is gelu of what was not yet rounded to a, so a remake would differ. */
template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, ROUNDS<P> ? NULL : remake<P>, NULL, workspace<P>, copies<P> };
}
KERNELS(linear_gelu_linear, set)
