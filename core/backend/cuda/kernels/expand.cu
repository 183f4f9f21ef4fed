/*
 * expand and sum: the forward pass of one is the backward pass of the other.  Bound by memory
 * bandwidth.
 */
#include "core/backend/cuda/primitives/row_sums.cuh"
#include "core/backend/cuda/primitives/token_blocks.cuh"

extern "C" {
#include "core/ops/repeat.h"
}

/* Of a sum: partial sums of everything, or of token blocks. */
template <typename P>
static typename P::real *alloc_parts(struct scratch *m, const struct repeat &r)
{
	if (r.inner == 1)
		return (typename P::real *)m->alloc<char>(r.outer == 1 ? SUM_WORK : 0);
	return alloc_token_blocks<typename P::real>(m, token_blocks_of(r.outer, r.n, r.inner));
}

/* small = f sum(large), or += */
template <typename P>
static void put_sum(const struct call *c, const struct repeat &r, typename P::real f,
		    input_view<P> large, gradient_view<P> small)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	real *parts = alloc_parts<P>(&m, r);
	const auto finish = [=] __device__(int64_t i, real sum) { small.put(i, f * sum); };

	if (r.inner > 1)
		sum_tokens<P>(c, token_blocks_of(r.outer, r.n, r.inner), large, parts, finish);
	else if (r.outer == 1)
		sum_all(
			c, r.n, [=] __device__(int64_t i) { return large[i]; }, parts,
			[=] __device__(double sum) { finish(0, (real)sum); });
	else
		sum_rows<P>(
			c, r.outer, r.n, all_of<P>(large),
			[=] __device__(int64_t, auto p) {
				const auto v = large[p];
				real sum = 0;

				for (int k = 0; k < p.n; k++)
					sum += v[k];
				return sum;
			},
			finish);
}

/* large = f small, repeated, or += */
template <typename P>
static void put_repeated(const struct call *c, const struct repeat &given, typename P::real f,
			 input_view<P> small, gradient_view<P> large)
{
	const struct repeat r = given;
	const int64_t n = r.outer * r.n * r.inner, width = r.inner > 1 ? r.inner : r.n;
	const struct divisor per_row = divisor_of(width, n), rows = divisor_of(r.n, n);

	each_vec(c, n, width, [=] __device__(auto p) {
		const int64_t row = per_row.quotient(p.first), column = p.first - row * width;
		vec<typename P::real, decltype(p)::n> v;

		if (r.inner > 1)
			v = small[decltype(p){ rows.quotient(row) * width + column }];
#pragma unroll
		for (int k = 0; k < p.n; k++)
			v[k] = f * (r.inner > 1 ? v[k] : small[row]);
		large.put(p, v);
	});
}

/* --------------------------------------------------------------------- expand */

template <typename P> static void expand_forward(const struct call *c)
{
	put_repeated<P>(c, repeat_of(c->node->in[0], c->node->out[0]), 1, input<P>(c, 0),
			{ output<P>(c, 0), false });
}

template <typename P> static void expand_backward(const struct call *c)
{
	put_sum<P>(c, repeat_of(c->node->in[0], c->node->out[0]), 1, output_gradient<P>(c, 0),
		   input_gradient<P>(c, 0));
}

template <typename P>
static void expand_scratch(struct scratch *m, const struct node *n, enum pass pass)
{
	if (pass == PASS_BACKWARD)
		alloc_parts<P>(m, repeat_of(n->in[0], n->out[0]));
}

KERNELS(expand, expand_forward<P>, expand_backward<P>, expand_forward<P>, NULL,
	workspace_of<expand_scratch<P>>)

/* ------------------------------------------------------------------------ sum */

template <typename P> static typename P::real sum_factor(const struct call *c)
{
	return (typename P::real)((const struct sum_attr *)c->node->attr)->factor;
}

template <typename P> static void sum_forward(const struct call *c)
{
	put_sum<P>(c, repeat_of(c->node->out[0], c->node->in[0]), sum_factor<P>(c), input<P>(c, 0),
		   { output<P>(c, 0), false });
}

template <typename P> static void sum_backward(const struct call *c)
{
	put_repeated<P>(c, repeat_of(c->node->out[0], c->node->in[0]), sum_factor<P>(c),
			output_gradient<P>(c, 0), input_gradient<P>(c, 0));
}

template <typename P>
static void sum_scratch(struct scratch *m, const struct node *n, enum pass pass)
{
	if (pass == PASS_FORWARD)
		alloc_parts<P>(m, repeat_of(n->out[0], n->in[0]));
}

KERNELS(sum, sum_forward<P>, sum_backward<P>, NULL, NULL, workspace_of<sum_scratch<P>>)
