/*
 * The kernels of all pointwise ops (core/ops/pointwise.h).
 *
 * A thread takes chunks of a tensor, and of a chunk LANES elements at a time: an inner loop of
 * fixed length, of which the compiler interleaves several vectors.
 */
#include "core/backend/cpu/formulas.h"

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

/*
 * One element.  Arrays of a formula stand in functions: in the loop itself they would be memory,
 * and the loop would stay scalar (gcc 12).
 */
FORMULA real forward_element(forward_formula f, real a, real b, const real *k)
{
	const real in[] = { a, b };

	return f(in, k);
}

FORMULA void backward_element(backward_formula f, real a, real b, const real *k, real y, real dy,
			      real *da, real *db)
{
	const real in[] = { a, b };
	real d[POINTWISE_MAX_INPUTS] = { 0 };

	f(in, k, y, dy, d);
	*da = d[0];
	*db = d[1];
}

FORMULA void forward_lanes(forward_formula f, int inputs, const real *restrict a,
			   const real *restrict b, const real *k, int n, real *restrict y)
{
#pragma omp simd
	for (int l = 0; l < n; l++)
		y[l] = forward_element(f, a[l], inputs > 1 ? b[l] : 0, k);
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

/* da may be dy; db is neither. */
FORMULA void backward_lanes(backward_formula f, int inputs, int saves, const real *restrict a,
			    const real *restrict b, const real *k, const real *restrict y,
			    const real *dy, int n, real *da, bool add_a, real *db, bool add_b)
{
#pragma omp simd
	for (int l = 0; l < n; l++) {
		const bool reads = saves == SAVES_INPUTS;
		real first, second;

		backward_element(f, reads ? a[l] : 0, reads && inputs > 1 ? b[l] : 0, k,
				 saves == SAVES_OUTPUT ? y[l] : 0, dy[l], &first, &second);
		put(da + l, add_a, first);
		if (inputs > 1)
			put(db + l, add_b, second);
	}
}

/* Both inputs may be one tensor: then din[1] is din[0], and adds to it. */
FORMULA void backward_chunk(backward_formula f, int inputs, int saves, const struct call *c,
			    const struct pointwise *p, int64_t first)
{
	const int64_t n = chunk_length(first, p->n);
	const bool same = inputs > 1 && c->din[0] && c->din[0] == c->din[1];
	const real *a = saves == SAVES_INPUTS ? p->in[0] + first : NULL;
	const real *b = saves == SAVES_INPUTS && inputs > 1 ? p->in[1] + first : NULL;
	const real *y = saves == SAVES_OUTPUT ? (const real *)c->out[0] + first : NULL;
	const real *dy = (const real *)c->dout[0] + first;
	real *d[POINTWISE_MAX_INPUTS], apart[CHUNK];
	bool add[POINTWISE_MAX_INPUTS];
	int64_t i = 0;

	for (int k = 0; k < POINTWISE_MAX_INPUTS; k++) {
		const bool direct = k < inputs && c->din[k] && !(k == 1 && same);

		d[k] = direct ? (real *)c->din[k] + first : apart;
		add[k] = direct && call_adds(c, k);
	}
	for (; i + LANES <= n; i += LANES)
		backward_lanes(f, inputs, saves, a + i, b + i, p->k, y + i, dy + i, LANES, d[0] + i,
			       add[0], d[1] + i, add[1]);
	backward_lanes(f, inputs, saves, a + i, b + i, p->k, y + i, dy + i, (int)(n - i), d[0] + i,
		       add[0], d[1] + i, add[1]);
	if (same)
		put_scaled((real *)c->din[1] + first, true, 1, apart, n);
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
