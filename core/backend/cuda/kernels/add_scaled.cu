/* add_scaled: y = a + f b with a constant or learned f.  a may be a slice.  Bound by memory
 * bandwidth. */
#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

/* The position of element i of input a: in a contiguous tensor .. */
struct contiguous_index {
	__device__ int64_t operator()(int64_t i) const
	{
		return i;
	}
	int64_t vec_width(int64_t n) const
	{
		return n;
	}
};

/* .. or in a slice, whose rows start `pitch` elements apart. */
struct slice_index {
	struct divisor row;
	int64_t pitch;

	__device__ int64_t operator()(int64_t i) const
	{
		return i + row.quotient(i) * (pitch - row.d);
	}
	/* Vectors are aligned if the pitch is a multiple of VEC. */
	int64_t vec_width(int64_t) const
	{
		return pitch % VEC == 0 ? row.d : 1;
	}
};

static struct slice_index slice_index_of(const struct tensor *t)
{
	return { divisor_of(t->row, count_of(t)), t->pitch };
}

template <typename P, typename Index> static void add(const struct call *c, Index index)
{
	const auto f = factor<P>(c, 2);
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, index.vec_width(n), all_of<P>(a, b, y), [=] __device__(auto p) {
		const typename P::real by = f.get();
		const auto u = a[decltype(p){ index(p.first) }], v = b[p];
		auto sum = u;

		for (int k = 0; k < p.n; k++)
			sum[k] += by * v[k];
		y.put(p, sum);
	});
}

template <typename P> static void forward(const struct call *c)
{
	const struct tensor *a = c->node->in[0];

	if (tensor_contiguous(a))
		add<P>(c, contiguous_index());
	else
		add<P>(c, slice_index_of(a));
}

/* y = a + f b: da and db */
template <typename P, typename Index> static void backward_terms(const struct call *c, Index index)
{
	const int64_t n = count_of(c->node->in[0]);
	const auto f = factor<P>(c, 2);
	const auto dy = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), db = input_gradient<P>(c, 1);

	each_vec(c, n, index.vec_width(n), all_of<P>(dy, da, db), [=] __device__(auto p) {
		const typename P::real by = f.get();
		auto d = dy[p];

		if (da && da.to.at != dy.at)
			da.put(decltype(p){ index(p.first) }, d);
		for (int k = 0; k < p.n; k++)
			d[k] *= by;
		if (db)
			db.put(p, d);
	});
}

/* df = sum dy b */
template <typename P> static void backward_factor(const struct call *c)
{
	const auto b = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto df = input_gradient<P>(c, 2);

	sum_vecs(
		c, count_of(c->node->in[0]), all_of<P>(dy, b),
		[=] __device__(auto p) {
			const auto d = dy[p], v = b[p];
			typename P::real sum = 0;

#pragma unroll
			for (int k = 0; k < p.n; k++)
				sum += d[k] * v[k];
			return sum;
		},
		c->work, [=] __device__(double sum) { df.put(0, (typename P::real)sum); });
}

template <typename P> static void backward(const struct call *c)
{
	const struct tensor *a = c->node->in[0];

	if (c->din[2])
		backward_factor<P>(c);
	if (tensor_contiguous(a))
		backward_terms<P>(c, contiguous_index());
	else
		backward_terms<P>(c, slice_index_of(a));
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	(void)sms;
	return pass == PASS_BACKWARD && n->in[2] ? SUM_WORK : 0;
}

KERNELS(add_scaled, forward<P>, backward<P>)
KERNELS(add_scaled_learned, forward<P>, backward<P>, NULL, NULL, workspace<P>)
