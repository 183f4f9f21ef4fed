/*
 * gather: y[r] = x[index[r]]; scatter: y[i] = sum of x[r] with index[r] = i, in a fixed order.
 * Each is the other's backward pass.  Memory bandwidth bounds both.
 */
#include "core/backend/cuda/primitives/scatter_rows.cuh"

extern "C" {
#include "core/ops/gather_sizes.h"
}

/* The row that pick number `pick` means, in the tables of all examples; `none` if there is none. */
static __device__ int64_t row_of(const struct gather_sizes &s, const int32_t *index, int64_t pick,
				 int64_t none)
{
	const int64_t number = index[pick];

	return number >= 0 && number < s.rows ? pick / s.picks * s.rows + number : none;
}

/* picked[r] = table[index[r]], or += */
template <typename P>
static void read_rows(const struct call *c, const struct gather_sizes &sizes, input_view<P> table,
		      gradient_view<P> picked)
{
	const struct gather_sizes s = sizes;
	const int32_t *index = (const int32_t *)c->in[1];

	each_vec(c, s.examples * s.picks * s.width, s.width, [=] __device__(auto p) {
		const int64_t row = row_of(s, index, p.first / s.width, -1);
		vec<typename P::real, p.n> x = {};

		if (row >= 0)
			x = table[decltype(p){ row * s.width + p.first % s.width }];
		picked.put(p, x);
	});
}

struct row_keys {
	int32_t *keys;
	struct sorted_rows sorted;
};

static struct row_keys alloc_keys(struct scratch *m, int64_t picks)
{
	struct row_keys k;

	k.keys = m->alloc<int32_t>(picks);
	k.sorted = alloc_sorted_rows(m, picks);
	return k;
}

/* table[index[r]] = sum of picked[r], or += */
template <typename P>
static void add_rows(const struct call *c, const struct gather_sizes &sizes, input_view<P> picked,
		     gradient_view<P> table)
{
	const struct gather_sizes s = sizes;
	const int64_t picks = s.examples * s.picks, rows = s.examples * s.rows;
	const int32_t *index = (const int32_t *)c->in[1];
	struct scratch m = scratch_of(c);
	const struct row_keys k = alloc_keys(&m, picks);

	each(c, picks, [=] __device__(int64_t pick) {
		k.keys[pick] = (int32_t)row_of(s, index, pick, rows);
	});
	scatter_rows<P>(c, k.sorted, k.keys, picks, picked, s.width, rows, table);
}

template <typename P> static void gather_forward(const struct call *c)
{
	read_rows<P>(c, gather_sizes_of(c->node->in[0], c->node->in[1]), input<P>(c, 0),
		     gradient_view<P>{ output<P>(c, 0), false });
}

template <typename P> static void gather_backward(const struct call *c)
{
	add_rows<P>(c, gather_sizes_of(c->node->in[0], c->node->in[1]), output_gradient<P>(c, 0),
		    input_gradient<P>(c, 0));
}

template <typename P> static void scatter_forward(const struct call *c)
{
	add_rows<P>(c, gather_sizes_of(c->node->out[0], c->node->in[1]), input<P>(c, 0),
		    gradient_view<P>{ output<P>(c, 0), false });
}

template <typename P> static void scatter_backward(const struct call *c)
{
	read_rows<P>(c, gather_sizes_of(c->node->out[0], c->node->in[1]), output_gradient<P>(c, 0),
		     input_gradient<P>(c, 0));
}

template <enum pass SUMS> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	struct scratch m = count_scratch(sms);

	if (pass == SUMS)
		alloc_keys(&m, tensor_count(n->in[1]));
	return m.used;
}

KERNELS(gather, gather_forward<P>, gather_backward<P>, NULL, NULL, workspace<PASS_BACKWARD>)
KERNELS(scatter, scatter_forward<P>, scatter_backward<P>, NULL, NULL, workspace<PASS_FORWARD>)
