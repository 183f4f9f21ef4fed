/*
 * The kernels of all pointwise ops (core/ops/pointwise.h).
 *
 * A thread takes chunks of a tensor, and of a chunk LANES elements at a time: an inner loop of
 * fixed length, of which the compiler interleaves several vectors.
 */
#include "core/backend/cpu/elementwise.h"

#define POINTWISE_DEVICE
#include "core/ops/pointwise.h"
#define FORMULA static inline __attribute__((always_inline))

FORMULA real fast_divide(real a, real b)
{
	return a / b;
}

FORMULA real reciprocal_root(real x)
{
	return 1 / root(x);
}

FORMULA real larger(real a, real b)
{
	return a > b ? a : b;
}

FORMULA real size_of(real x)
{
	return x < 0 ? -x : x;
}

struct pointwise {
	const real *in[POINTWISE_MAX_INPUTS];
	real k[POINTWISE_MAX_CONSTANTS];
	int64_t n;
};

static struct pointwise open_pointwise(const struct call *c)
{
	const struct pointwise_attr *attr = c->node->attr;
	struct pointwise p = { .n = tensor_count(c->node->in[0]) };

	for (int i = 0; i < c->node->n_in; i++)
		p.in[i] = c->in[i];
	for (int i = 0; attr && i < POINTWISE_MAX_CONSTANTS; i++)
		p.k[i] = (real)attr->k[i];
	return p;
}

typedef real (*forward_formula)(const real *in, const real *k);
typedef void (*backward_formula)(const real *in, const real *k, real y, real dy, real *d);

FORMULA void forward_lanes(forward_formula f, int inputs, const real *restrict a,
			   const real *restrict b, const real *k, int n, real *restrict y)
{
#pragma omp simd
	for (int l = 0; l < n; l++) {
		const real in[] = { a[l], inputs > 1 ? b[l] : 0 };

		y[l] = f(in, k);
	}
}

FORMULA void forward_chunk(forward_formula f, int inputs, const struct pointwise *p, int64_t first,
			   real *restrict y)
{
	const int64_t n = chunk_length(first, p->n);
	const real *a = p->in[0] + first, *b = inputs > 1 ? p->in[1] + first : NULL;
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
		forward_lanes(f, inputs, a + i, b + i, p->k, LANES, y + first + i);
	forward_lanes(f, inputs, a + i, b + i, p->k, (int)(n - i), y + first + i);
}

/* The gradients of n elements, to d[0] and d[1]. */
FORMULA void backward_lanes(backward_formula f, int inputs, int saves, const real *restrict a,
			    const real *restrict b, const real *k, const real *restrict y,
			    const real *restrict dy, int n, real *restrict da, real *restrict db)
{
#pragma omp simd
	for (int l = 0; l < n; l++) {
		const bool reads = saves == SAVES_INPUTS;
		const real in[] = { reads ? a[l] : 0, reads && inputs > 1 ? b[l] : 0 };
		real d[POINTWISE_MAX_INPUTS];

		f(in, k, saves == SAVES_OUTPUT ? y[l] : 0, dy[l], d);
		da[l] = d[0];
		if (inputs > 1)
			db[l] = d[1];
	}
}

/* din[0] may be written over dy, and din[1] may be the same as din[0] and add to it. */
FORMULA void backward_chunk(backward_formula f, int inputs, int saves, const struct call *c,
			    const struct pointwise *p, int64_t first)
{
	const int64_t n = chunk_length(first, p->n);
	const real *a = saves == SAVES_INPUTS ? p->in[0] + first : NULL;
	const real *b = saves == SAVES_INPUTS && inputs > 1 ? p->in[1] + first : NULL;
	const real *y = saves == SAVES_OUTPUT ? (const real *)c->out[0] + first : NULL;
	const real *dy = (const real *)c->dout[0] + first;
	real d[POINTWISE_MAX_INPUTS][CHUNK];
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
		backward_lanes(f, inputs, saves, a + i, b + i, p->k, y + i, dy + i, LANES, d[0] + i,
			       d[1] + i);
	backward_lanes(f, inputs, saves, a + i, b + i, p->k, y + i, dy + i, (int)(n - i), d[0] + i,
		       d[1] + i);
	for (int k = 0; k < inputs; k++)
		if (c->din[k])
			put_scaled((real *)c->din[k] + first, call_adds(c, k), 1, d[k], n);
}

/* The loops stand in functions of their own, so that each formula becomes part of its loop. */
#define POINTWISE(name, inputs, constants, saves, domain, flops)                                  \
	static void name##_forward_kernel(const struct call *c)                                   \
	{                                                                                         \
		const struct pointwise p = open_pointwise(c);                                     \
		real *y = c->out[0];                                                              \
                                                                                                  \
		_Pragma("omp parallel for schedule(static) if (p.n > GRAIN)") for (int64_t i = 0; \
										   i < p.n;       \
										   i += CHUNK)    \
			forward_chunk(name##_forward, inputs, &p, i, y);                          \
	}                                                                                         \
	static void name##_backward_kernel(const struct call *c)                                  \
	{                                                                                         \
		const struct pointwise p = open_pointwise(c);                                     \
                                                                                                  \
		_Pragma("omp parallel for schedule(static) if (p.n > GRAIN)") for (int64_t i = 0; \
										   i < p.n;       \
										   i += CHUNK)    \
			backward_chunk(name##_backward, inputs, saves, c, &p, i);                 \
	}                                                                                         \
	KERNELS(name) = { .forward = name##_forward_kernel,                                       \
			  .backward = name##_backward_kernel,                                     \
			  .recompute = saves == SAVES_INPUTS ? name##_forward_kernel : NULL };

#include "generated/pointwise_formulas.h"
