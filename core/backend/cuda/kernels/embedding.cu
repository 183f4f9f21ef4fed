/*
 * embedding: y[r] = table[tokens[r]] + positions[past + t].
 *
 * Backward adds the rows of dy to the rows of dtable, by their tokens.
 */
#include "core/backend/cuda/primitives/scatter_rows.cuh"

/* y[r] = table[tokens[r]] + positions[past + t] */
template <typename P> static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, length = dim[1], e = dim[2];
	const struct run *run = run_of(c);
	const auto table = input<P>(c, 0), positions = input<P>(c, 2);
	const int32_t *tokens = (const int32_t *)c->in[1];
	const auto y = output<P>(c, 0);

	each_vec(c, dim[0] * length * e, e, [=] __device__(auto p) {
		const int64_t row = p.first / e, channel = p.first % e;
		auto x = table[decltype(p){ tokens[row] * e + channel }];

		if (positions) {
			const auto place =
				positions[decltype(p){ (run->past + row % length) * e + channel }];

			for (int k = 0; k < p.n; k++)
				x[k] += place[k];
		}
		y.put(p, x);
	});
}

/* y[b,t] = .. + positions[t]; positions beyond the sequence have no gradient. */
template <typename P>
static void backward_positions(const struct call *c, const input_view<P> &dy, int64_t examples,
			       int64_t length, int64_t e)
{
	const auto d = input_gradient<P>(c, 2);

	each_vec(c, c->node->in[2]->dim[0] * e, e, all_of<P>(dy), [=] __device__(auto p) {
		const int64_t from = p.first < length * e ? examples : 0;
		vec<typename P::real, p.n> sum = {};

#pragma unroll 8
		for (int64_t b = 0; b < from; b++) {
			const auto x = dy[decltype(p){ b * length * e + p.first }];

			for (int k = 0; k < p.n; k++)
				sum[k] += x[k];
		}
		d.put(vec_index<p.n>{ p.first }, sum);
	});
}

template <typename P> static void backward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, rows = dim[0] * dim[1];
	const input_view<P> dy = output_gradient<P>(c, 0);
	struct scratch m = scratch_of(c);

	if (c->din[0])
		scatter_rows<P>(c, alloc_sorted_rows(&m, rows), (const int32_t *)c->in[1], rows, dy,
				dim[2], c->node->in[0]->dim[0], input_gradient<P>(c, 0));
	if (c->din[2])
		backward_positions<P>(c, dy, dim[0], dim[1], dim[2]);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	struct scratch m = count_scratch(sms);

	if (pass == PASS_BACKWARD)
		alloc_sorted_rows(&m, n->out[0]->dim[0] * n->out[0]->dim[1]);
	return m.used;
}

KERNELS(embedding, forward<P>, backward<P>, NULL, NULL, workspace<P>)
