/*
 * The kernels of all pointwise ops (core/ops/pointwise.h): a thread maps a vector of 16 bytes.
 */
#include "core/backend/cuda/primitives/formulas.cuh"
#include "generated/pointwise_ops.h"

template <typename R> struct constants {
	R k[POINTWISE_MAX_CONSTANTS];
};

template <typename R> static constants<R> constants_of(const struct node *n)
{
	const struct pointwise_attr *attr = (const struct pointwise_attr *)n->attr;
	constants<R> c = {};

	for (int i = 0; attr && i < POINTWISE_MAX_CONSTANTS; i++)
		c.k[i] = (R)attr->k[i];
	return c;
}

template <typename P, typename OP> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const auto a = input<P>(c, 0), b = input<P>(c, OP::INPUTS - 1);
	const auto y = output<P>(c, 0);
	const auto k = constants_of<real>(c->node);
	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(a, b, y), [=] __device__(auto p) {
		const auto u = a[p], v = OP::INPUTS > 1 ? b[p] : u;
		auto out = u;

#pragma unroll
		for (int e = 0; e < p.n; e++) {
			const real in[] = { u[e], v[e] };

			out[e] = OP::forward(in, k.k);
		}
		y.put(p, out);
	});
}

/* din[0] may be written over dy, and din[1] may be the same as din[0] and add to it. */
template <typename P, typename OP> static void backward(const struct call *c)
{
	typedef typename P::real real;
	constexpr bool READS = OP::SAVES == SAVES_INPUTS, READS_Y = OP::SAVES == SAVES_OUTPUT;
	const auto dy = output_gradient<P>(c, 0);
	const input_view<P> nothing = {}, y = READS_Y ? (input_view<P>)output<P>(c, 0) : nothing;
	const auto a = READS ? input<P>(c, 0) : nothing;
	const auto b = READS ? input<P>(c, OP::INPUTS - 1) : nothing;
	const auto da = input_gradient<P>(c, 0);
	const auto db = OP::INPUTS > 1 ? input_gradient<P>(c, 1) : gradient_view<P>{};
	const auto k = constants_of<real>(c->node);
	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(a, b, y, dy, da, db), [=] __device__(auto p) {
		const auto given = dy[p], w = READS_Y ? y[p] : given;
		const auto u = READS ? a[p] : given, v = READS && OP::INPUTS > 1 ? b[p] : given;
		auto left = given, right = given;

#pragma unroll
		for (int e = 0; e < p.n; e++) {
			const real in[] = { u[e], v[e] };
			real d[POINTWISE_MAX_INPUTS];

			OP::backward(in, k.k, w[e], given[e], d);
			left[e] = d[0];
			right[e] = OP::INPUTS > 1 ? d[1] : 0;
		}
		if (da)
			da.put(p, left);
		if (OP::INPUTS > 1 && db)
			db.put(p, right);
	});
}

template <typename P, typename OP> static constexpr struct kernels set()
{
	return { forward<P, OP>, backward<P, OP>,
		 OP::SAVES == SAVES_INPUTS ? forward<P, OP> : NULL };
}

#define PUBLISH(op, type, P)                                \
	extern "C" const struct kernels cuda_##op##_##type; \
	const struct kernels cuda_##op##_##type = set<P, formulas<P>::op##_op>();
#define X(op)                              \
	PUBLISH(op, f32, single_precision) \
	PUBLISH(op, f64, double_precision) \
	PUBLISH(op, bf16, bfloat16_products)
POINTWISE_OPS(X)
