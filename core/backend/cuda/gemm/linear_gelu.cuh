/*
 * linear_gelu - a = x W + b, h = gelu(a) as one product with a gelu epilogue, if all are bfloat16.
 */
#ifndef CUDA_GEMM_LINEAR_GELU_CUH
#define CUDA_GEMM_LINEAR_GELU_CUH

#include "core/backend/cuda/gemm/gemv.cuh"
#include "core/ops/linear_gelu.h"

extern "C" {
extern const struct kernels cuda_linear_f32, cuda_linear_f64, cuda_linear_bf16;
extern const struct kernels cuda_gelu_f32, cuda_gelu_f64, cuda_gelu_bf16;
}

/* The kernel tables of precision P. */
template <typename P> struct kernels_of {
	static const struct kernels *choose(const struct kernels *f32, const struct kernels *f64,
					    const struct kernels *bf16)
	{
		return ROUNDS<P> ? bf16 : sizeof(typename P::real) == sizeof(double) ? f64 : f32;
	}
	static const struct kernels *linear()
	{
		return choose(&cuda_linear_f32, &cuda_linear_f64, &cuda_linear_bf16);
	}
	static const struct kernels *gelu()
	{
		return choose(&cuda_gelu_f32, &cuda_gelu_f64, &cuda_gelu_bf16);
	}
};

/* Returns false, and does nothing, if the fused product does not apply. */
template <typename P> static bool fused_linear_gelu(const struct two_nodes *p, const struct call *c)
{
	typedef typename P::factor factor;
	const struct tensor *x = p->linear.in[0];
	const struct tensor *a = p->linear.out[0], *h = p->gelu.out[0];
	const int64_t i = tensor_dim(x, -1), f = tensor_dim(h, -1);
	const void *bias = c->copy[2][0] ? c->copy[2][0]->memory : NULL;

	if (!ROUNDS<P> || !is_bf16(x) || !is_bf16(a) || !is_bf16(h) || gemv<P>::takes(&p->linear) ||
	    !c->copy[1][0] || (c->in[2] && !bias))
		return false;
	return gemm_with_epilogue<factor>(
		c, EPILOGUE_GELU, false, false, tensor_count(x) / i, f, i,
		{ (const factor *)c->in[0], tensor_contiguous(x) ? i : x->pitch, 0 },
		{ (const factor *)c->copy[1][0]->memory, f, 0, true }, bias, c->out[p->a],
		output_view<P>{ c->out[p->h], true }, f);
}

template <typename P> static void linear_gelu(const struct two_nodes *p, const struct call *c)
{
	if (fused_linear_gelu<P>(p, c))
		return;
	linear_forward(p, c);
	gelu_forward(p, c);
}

/*
 * The fused product computes h from the unrounded a, so gelu of the stored a would give other bits.
 * With rounding, a recomputation therefore repeats the whole forward pass, including a.
 */
template <typename P> static void recompute_gelu(const struct two_nodes *p, const struct call *c)
{
	if (ROUNDS<P>)
		linear_gelu<P>(p, c);
	else
		gelu_forward(p, c);
}

template <typename P> static enum pass pass_of_recompute(enum pass pass)
{
	return ROUNDS<P> && pass == PASS_RECOMPUTE ? PASS_FORWARD : pass;
}

/* Recomputes a and h from x, W and b. */
template <typename P>
static constexpr struct recompute_rule recompute_rule_of_gelu(unsigned outputs)
{
	return { ROUNDS<P> ? outputs : 0, BIT(0) | BIT(1) | BIT(2), 0 };
}

#endif
