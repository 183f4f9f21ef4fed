/* dropout: y = mask x.  Philox draws the mask, the same as on the CPU; backward draws it again. */
#include "core/backend/cuda/primitives/dropout_key.cuh"

/* Word i of the random stream of this node, iteration and micro-batch decides element i. */
template <typename P> static void apply(const struct call *c, input_view<P> x, gradient_view<P> y)
{
	const struct dropout_attr *attr = (const struct dropout_attr *)c->node->attr;
	const double probability = attr->probability;
	/*
	 * A word below the limit drops its element; the largest word never does.  Its upper half is
	 * zero, since 32 bits near 2^32 could be taken for an address (replicas.cuh).
	 */
	const uint64_t limit = (uint64_t)fmin(ceil(probability * 0x1p32), (double)UINT32_MAX);
	const typename P::real scale = (typename P::real)(1 / (1 - probability));
	const int64_t n = count_of(c->node->in[0]);
	const uint32_t *key = dropout_key(c);

	launch_vecs<4>(c, (n + 3) / 4, [=] __device__(auto p) {
		uint32_t word[4];

		philox_block(key, (uint64_t)p.first / 4, word);
		if (p.first + 4 > n) {
			for (int64_t i = p.first; i < n; i++)
				y.put(i, word[i % 4] < limit ? 0 : scale * x[i]);
			return;
		}
		auto v = x[p];

		for (int k = 0; k < 4; k++)
			v[k] = word[k] < limit ? 0 : scale * v[k];
		y.put(p, v);
	});
}

template <typename P> static void forward(const struct call *c)
{
	apply<P>(c, input<P>(c, 0), { output<P>(c, 0), false });
}

/* y = mask x, so dx = mask dy */
template <typename P> static void backward(const struct call *c)
{
	apply<P>(c, output_gradient<P>(c, 0), input_gradient<P>(c, 0));
}

KERNELS(dropout, forward<P>, backward<P>)
