#include "core/backend/cuda/cuda.cuh"

/* Tokens times heads. */
static int64_t vectors(const struct node *n)
{
	return tensor_count(n->in[0]) / n->in[0]->dim[3];
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const real count = (real)vectors(c->node);
	const auto z = input<P>(c, 0);
	auto *energy = wide_output<P>(c, 0);

	sum_all(
		c, count_of(c->node->in[0]), [=] __device__(int64_t i) { return z[i] * z[i]; },
		c->work, [=] __device__(double sum) { *energy = (real)sum / count; });
}

/* energy = sum z^2 / vectors */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const real count = (real)vectors(c->node);
	const auto z = input<P>(c, 0);
	const auto *weight = wide_output_gradient<P>(c, 0);
	const auto dz = input_gradient<P>(c, 0);

	each(c, count_of(c->node->in[0]),
	     [=] __device__(int64_t i) { dz.put(i, 2 * *weight / count * z[i]); });
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)n, (void)threads;
	return pass == PASS_FORWARD ? SUM_WORK : 0;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace<P> };
}
KERNELS(ws_energy, set)
