/* ws_energy: energy = sum z^2 / vectors, with one vector per head and token.  Bound by memory
 * bandwidth. */
#include "core/backend/cuda/primitives/kernel.cuh"

/* tokens * heads */
static int64_t vectors(const struct node *n)
{
	return tensor_count(n->in[0]) / n->in[0]->dim[3];
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const real count = (real)vectors(c->node);
	const auto z = input<P>(c, 0);
	auto *energy = real_output<P>(c, 0);

	sum_vecs(
		c, count_of(c->node->in[0]), all_of<P>(z),
		[=] __device__(auto p) {
			const auto v = z[p];
			real sum = 0;

#pragma unroll
			for (int k = 0; k < p.n; k++)
				sum += v[k] * v[k];
			return sum;
		},
		c->work, [=] __device__(double sum) { *energy = (real)sum / count; });
}

/* dz = 2 z denergy / vectors */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const real count = (real)vectors(c->node);
	const auto z = input<P>(c, 0);
	const auto *weight = real_output_gradient<P>(c, 0);
	const auto dz = input_gradient<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(z, dz), [=] __device__(auto p) {
		const real f = 2 * *weight / count;
		auto v = z[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= f;
		dz.put(p, v);
	});
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	(void)n, (void)sms;
	return pass == PASS_FORWARD ? SUM_WORK : 0;
}

KERNELS(ws_energy, forward<P>, backward<P>, NULL, NULL, workspace<P>)
