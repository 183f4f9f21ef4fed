/*
 * add_linear: y = a + f x W, where f is a constant or a learned scalar.
 *
 * cuBLASLt reads a and writes y in the epilogue of the product, so the sum is rounded once.
 * Backward needs only R = x' dy, as small as W: dW = f R and df = sum R W.  So x W is never stored.
 */
#include "core/backend/cuda/gemm/linear.cuh"

/* Inputs: a, W, x, f. */
static struct linear_sizes sizes_of(const struct node *node)
{
	const struct add_linear_attr *attr = (const struct add_linear_attr *)node->attr;

	return linear_sizes_of(node->in[2], node->in[1], attr->transposed);
}

/* Scratch memory: rounded copies of x, W (or f W) and dy; R; the partial sums of df. */
template <typename P> struct buffers {
	typename P::factor *x, *w, *dy;
	typename P::real *raw;
	char *sum;
};

template <typename P>
static buffers<P> alloc_scratch(struct scratch *m, const struct node *node, enum pass pass)
{
	typedef typename P::factor factor;
	const struct linear_sizes s = sizes_of(node);
	const bool back = pass == PASS_BACKWARD, learned = node->in[3];
	buffers<P> r;

	r.x = m->alloc<factor>(rounded_size<P>(node->in[2], s.n * s.i));
	r.w = m->alloc<factor>(learned ? s.i * s.o : weight_scratch<P>(node->in[1]));
	r.dy = m->alloc<factor>(back ? rounded_size<P>(node->out[0], s.n * s.o) : 0);
	r.raw = m->alloc<typename P::real>(back && learned ? s.i * s.o : 0);
	r.sum = m->alloc<char>(back && learned ? SUM_WORK : 0);
	return r;
}

/* f W as alpha w */
template <typename P> struct scaled_weight {
	matrix<typename P::factor> w;
	double alpha;
};

/*
 * Only the device can read a learned f.  It scales the parameter before rounding, so W is rounded
 * once, as without f.
 */
template <typename P>
static scaled_weight<P> scale_weight(const struct call *c, typename P::factor *buffers)
{
	const struct tensor *t = c->node->in[1];
	const auto w = input<P>(c, 1);
	const auto f = factor<P>(c, 3);

	if (!f.learned)
		return { weight<P>(c, buffers), f.constant };
	each_vec(c, count_of(t), count_of(t), all_of<P>(w), [=] __device__(auto p) {
		const typename P::real by = f.get();
		auto v = w[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= by;
		store_vec(buffers + p.first, v);
	});
	return { { buffers, tensor_dim(t, -1), 0 }, 1 };
}

template <typename P> static void forward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_FORWARD);
	const struct linear_sizes s = sizes_of(c->node);
	const auto x = rounded<P>(c, input<P>(c, 2), s.n, s.i, s.x_pitch, r.x);
	const auto by = scale_weight<P>(c, r.w);
	const auto a = input<P>(c, 0);
	const auto y = output<P>(c, 0);
	const int64_t n = s.n * s.o;

	if (a.bf16_storage == y.bf16_storage &&
	    gemm_accumulate(c, false, s.transposed, s.n, s.o, s.i, by.alpha, x, by.w, a.at, y, s.o))
		return;
	each_vec(c, n, n, all_of<P>(a, y), [=] __device__(auto p) { y.put(p, a[p]); });
	gemm(c, false, s.transposed, s.n, s.o, s.i, by.alpha, x, by.w, true, y, s.o);
}

/* dW = f R, df = sum R W */
template <typename P>
static void backward_weight_and_factor(const struct call *c, const struct linear_sizes &s,
				       const buffers<P> &r)
{
	typedef typename P::real real;
	const auto f = factor<P>(c, 3);
	const auto w = input<P>(c, 1), raw = (input_view<P>)real_view<P>(r.raw);
	const auto dw = input_gradient<P>(c, 1), df = input_gradient<P>(c, 3);

	sum_vecs(
		c, s.i * s.o, all_of<P>(raw, w, dw),
		[=] __device__(auto p) {
			const real by = f.get();
			const auto v = w[p];
			auto d = raw[p];
			real sum = 0;

#pragma unroll
			for (int k = 0; k < p.n; k++) {
				sum += d[k] * v[k];
				d[k] *= by;
			}
			if (dw)
				dw.put(p, d);
			return sum;
		},
		r.sum,
		[=] __device__(double sum) {
			if (df)
				df.put(0, (real)sum);
		});
}

/* y = a + f x W */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_BACKWARD);
	const struct linear_sizes s = sizes_of(c->node);
	const auto given = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);
	const auto dx = input_gradient<P>(c, 2), df = input_gradient<P>(c, 3);
	const int64_t n = s.n * s.o;
	matrix<typename P::factor> dy = {};

	if (dx || dw || df)
		dy = rounded<P>(c, given, s.n, s.o, s.o, r.dy);
	if (dw || df) {
		const auto x = rounded<P>(c, input<P>(c, 2), s.n, s.i, s.x_pitch, r.x);
		const real constant = factor<P>(c, 3).constant;

		if (c->in[3]) {
			linear_to_weight(c, s, 1, x, dy, false, r.raw);
			backward_weight_and_factor<P>(c, s, r);
		} else {
			linear_to_weight(c, s, constant, x, dy, dw.add, dw.to);
		}
	}
	if (dx) {
		const auto by = scale_weight<P>(c, r.w);

		gemm(c, false, !s.transposed, s.n, s.i, s.o, by.alpha, dy, by.w, dx.add, dx.to,
		     s.x_pitch);
	}
	if (da && da.to.at != given.at)
		each_vec(c, n, n, all_of<P>(given, da),
			 [=] __device__(auto p) { da.put(p, given[p]); });
}

/* Copies of the weight: only for a constant f, since a learned f scales it first. */
template <typename P>
static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	return n->in[3] ? 0 : weight_copies<P>(n, pass, input, which);
}

KERNELS(add_linear, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_scratch<P>>, copies<P>)
KERNELS(add_linear_learned, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_scratch<P>>,
	copies<P>)
