#include "core/backend/cuda/cuda.cuh"

struct shape {
	int64_t batch, length, heads, width;
	int64_t rows;	     /* batch * length * heads, of `width` channels */
	int64_t gate_length; /* length or 1 */

	/* The element of the gate that serves a row. */
	__device__ int64_t gate_at(int64_t row) const
	{
		return gate_length == 1 ? row / heads / length * heads + row % heads : row;
	}
};

static struct shape shape_of(const struct node *n)
{
	const int64_t *o = n->in[0]->dim;

	return { o[0], o[1], o[2], o[3], o[0] * o[1] * o[2], n->in[1]->dim[1] };
}

template <typename P> static void forward(const struct call *c)
{
	const struct shape s = shape_of(c->node);
	const auto f = factor<P>(c, 2);
	const auto o = input<P>(c, 0), gate = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, s.rows * s.width, [=] __device__(int64_t i) {
		const typename P::real a = f.get();

		y[i] = (1 - a + a * gate[s.gate_at(i / s.width)]) * o[i];
	});
}

/* y = o (1 - a + a gate); dots = dy.o per row */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct shape s = shape_of(c->node);
	const auto f = factor<P>(c, 2);
	const auto o = input<P>(c, 0), gate = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto d_o = input_gradient<P>(c, 0), dgate = input_gradient<P>(c, 1);
	const auto da = input_gradient<P>(c, 2);
	struct space m = { (char *)c->work, 0 };
	double *sum_work = m.take<double>(SUM_PARTS);
	real *dots = m.take<real>(s.rows);

	each(c, s.rows, [=] __device__(int64_t r) {
		real sum = 0;

		for (int64_t i = r * s.width; i < (r + 1) * s.width; i++)
			sum += dy[i] * o[i];
		dots[r] = sum;
	});
	if (d_o)
		each(c, s.rows * s.width, [=] __device__(int64_t i) {
			const real a = f.get();

			d_o.put(i, (1 - a + a * gate[s.gate_at(i / s.width)]) * dy[i]);
		});
	if (dgate)
		each(c, s.batch * s.gate_length * s.heads, [=] __device__(int64_t i) {
			const int64_t b = i / (s.gate_length * s.heads);
			real sum = 0;

			if (s.gate_length == s.length)
				sum = dots[i];
			else
				for (int64_t t = 0; t < s.length; t++)
					sum += dots[(b * s.length + t) * s.heads + i % s.heads];
			dgate.put(i, f.get() * sum);
		});
	if (da)
		sum_all(
			c, s.rows,
			[=] __device__(int64_t r) { return dots[r] * (gate[s.gate_at(r)] - 1); },
			sum_work, [=] __device__(double sum) { da.put(0, (real)sum); });
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct space m = { NULL, 0 };

	(void)threads;
	if (pass != PASS_BACKWARD)
		return 0;
	m.take<double>(SUM_PARTS);
	m.take<typename P::real>(shape_of(n).rows);
	return m.used;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P>, NULL, workspace<P> };
}
KERNELS(head_gate, set)
