/* head_gate: y = o (1 - a + a gate), one gate per head and token, or per head of an example. */
#include "core/backend/cuda/primitives/row_sums.cuh"

struct shape {
	int64_t batch, length, heads, width;
	int64_t rows;	     /* batch * length * heads, of `width` channels */
	int64_t gate_length; /* T, or 1: the gate is the same for all tokens */

	struct divisor channels, per_token, per_example; /* width, heads, length * heads */

	/* The index of a row's gate. */
	__device__ int64_t gate_at(int64_t row) const
	{
		return gate_length == 1
			       ? per_example.quotient(row) * heads + per_token.remainder(row)
			       : row;
	}
};

static struct shape shape_of(const struct node *n)
{
	const int64_t *o = n->in[0]->dim, all = tensor_count(n->in[0]);

	return { o[0],
		 o[1],
		 o[2],
		 o[3],
		 o[0] * o[1] * o[2],
		 n->in[1]->dim[1],
		 divisor_of(o[3], all),
		 divisor_of(o[2], all),
		 divisor_of(o[1] * o[2], all) };
}

template <typename P> static void forward(const struct call *c)
{
	const struct shape s = shape_of(c->node);
	const auto f = factor<P>(c, 2);
	const auto o = input<P>(c, 0), gate = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each_vec(c, s.rows * s.width, s.width, [=] __device__(auto p) {
		const typename P::real a = f.get();
		const typename P::real g =
			1 - a + a * gate[s.gate_at(s.channels.quotient(p.first))];
		auto v = o[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= g;
		y.put(p, v);
	});
}

/* y = o (1 - a + a gate); dots [rows] = dy.o */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct shape s = shape_of(c->node);
	const auto f = factor<P>(c, 2);
	const auto o = input<P>(c, 0), gate = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto d_o = input_gradient<P>(c, 0), dgate = input_gradient<P>(c, 1);
	const auto da = input_gradient<P>(c, 2);
	struct scratch m = scratch_of(c);
	double *sum_work = m.alloc<double>(SUM_PARTS);
	real *dots = m.alloc<real>(s.rows);

	sum_rows<real>(
		c, s.rows, s.width,
		[=] __device__(int64_t row, auto p) {
			const real a = f.get(), g = 1 - a + a * gate[s.gate_at(row)];
			const auto v = o[p];
			auto d = dy[p];
			real sum = 0;

			for (int k = 0; k < p.n; k++) {
				sum += d[k] * v[k];
				d[k] *= g;
			}
			if (d_o)
				d_o.put(p, d);
			return sum;
		},
		[=] __device__(int64_t row, real sum) { dots[row] = sum; });
	if (dgate && s.gate_length == s.length)
		each(c, s.rows, [=] __device__(int64_t i) { dgate.put(i, f.get() * dots[i]); });
	else if (dgate)
		each_row(c, s.batch * s.heads, [=] __device__(int64_t i) {
			const int64_t first = i / s.heads * s.length * s.heads + i % s.heads;
			real sum = 0;

			for (int64_t t = threadIdx.x; t < s.length; t += BLOCK)
				sum += dots[first + t * s.heads];
			sum = block_sum(sum);
			if (threadIdx.x == 0)
				dgate.put(i, f.get() * sum);
		});
	if (da)
		sum_all(
			c, s.rows,
			[=] __device__(int64_t r) { return dots[r] * (gate[s.gate_at(r)] - 1); },
			sum_work, [=] __device__(double sum) { da.put(0, (real)sum); });
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	struct scratch m = count_scratch(sms);

	if (pass != PASS_BACKWARD)
		return 0;
	m.alloc<double>(SUM_PARTS);
	m.alloc<typename P::real>(shape_of(n).rows);
	return m.used;
}

KERNELS(head_gate, forward<P>, backward<P>, forward<P>, NULL, workspace<P>)
