#include "core/backend/cuda/cuda.cuh"

/* (1 + tanh(u)) / 2 = sigmoid(2u), so y = x s, s = 1 / (1 + exp(t)), t = x (LINEAR + CUBIC x^2). */
#define LINEAR -1.5957691216057308   /* -2 sqrt(2/pi) */
#define CUBIC -0.0713548162726009    /* -2 sqrt(2/pi) 0.044715 */

template <typename R> static __device__ R sigmoid(R x)
{
	return 1 / (1 + exp(x * ((R)LINEAR + (R)CUBIC * (x * x))));
}

template <typename P> static void forward(const struct call *c)
{
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) { y[i] = x[i] * sigmoid(x[i]); });
}

/* y = x s, so dy/dx = s - s (1 - s) x dt/dx */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) {
		const real s = sigmoid(x[i]);
		const real steep = x[i] * ((real)LINEAR + 3 * (real)CUBIC * (x[i] * x[i]));

		dx.put(i, dy[i] * (s - s * (1 - s) * steep));
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(gelu, set)
