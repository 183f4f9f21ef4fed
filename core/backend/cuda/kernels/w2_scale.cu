#include "core/backend/cuda/w2.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), tau = input<P>(c, 1);
	const auto z = output<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) {
		z[i] = 2 * inverse_temperature(tau[i / width % heads], eps) * y[i];
	});
}

/* z = 2 y i, i = 1 / (|tau| + eps), so dz / dtau = -2 y i^2 sign */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->in[0]) / width;
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), tau = input<P>(c, 1), dz = output_gradient<P>(c, 0);
	const auto dy = input_gradient<P>(c, 0), dtau = input_gradient<P>(c, 1);

	if (dtau)
		sum_heads(
			c, rows, heads,
			[=] __device__(int64_t r) {
				real sum = 0;

				for (int64_t i = r * width; i < (r + 1) * width; i++)
					sum += dz[i] * y[i];
				return sum;
			},
			[=] __device__(int64_t h, double sum) {
				const real inverse = inverse_temperature(tau[h], eps);

				dtau.put(h, (real)sum * -2 * inverse * inverse * sign(tau[h]));
			});
	if (dy)
		each(c, rows * width, [=] __device__(int64_t i) {
			dy.put(i, 2 * inverse_temperature(tau[i / width % heads], eps) * dz[i]);
		});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(w2_scale, set)
