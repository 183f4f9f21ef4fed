/* sequence_mean: y = sum_t x_t / T.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/token_blocks.cuh"

static struct token_blocks token_blocks_of_node(const struct node *n)
{
	const int64_t *dim = n->in[0]->dim;

	return token_blocks_of(dim[0], dim[1], dim[2]);
}

template <typename P>
static typename P::real *alloc_sums(struct scratch *m, const struct node *n, enum pass pass)
{
	return pass == PASS_FORWARD
		       ? alloc_token_blocks<typename P::real>(m, token_blocks_of_node(n))
		       : NULL;
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct token_blocks p = token_blocks_of_node(c->node);
	struct scratch m = { (char *)c->work, 0 };
	const auto y = output<P>(c, 0);

	sum_tokens<P>(c, p, input<P>(c, 0), alloc_sums<P>(&m, c->node, PASS_FORWARD),
		      [=] __device__(int64_t i, real sum) { y[i] = sum * (1 / (real)p.T); });
}

/* dx_t = dy / T */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct token_blocks p = token_blocks_of_node(c->node);
	const int64_t n = p.B * p.T * p.C;
	const struct divisor per_token = divisor_of(p.C, n), length = divisor_of(p.T, n);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each_vec(c, n, p.C, [=] __device__(auto at) {
		const int64_t token = per_token.quotient(at.first);
		auto from = at;

		from.first += (length.quotient(token) - token) * p.C;
		auto d = dy[from];

		for (int k = 0; k < at.n; k++)
			d[k] *= 1 / (real)p.T;
		dx.put(at, d);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_sums<P>> };
}
KERNELS(sequence_mean, set)
