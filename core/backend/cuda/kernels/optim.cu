/* The optimizers' updates: equations in core/optim/kernels.h. */
#include "core/backend/cuda/product.cuh"

extern "C" {
#include "core/optim/kernels.h"
}

/* each() and the like take a call; for an update it has no node. */
static struct call update_call(const struct backend *b)
{
	struct call c = {};

	c.backend = b;
	return c;
}

/* --------------------------------------------------------------- reductions */

/* A sum for the host, which waits for it. */
static double read_scalar(const struct call *c)
{
	struct cuda_context *g = context_of(c);
	double value = NAN;

	cuda_note(g, cudaMemcpyAsync(&value, g->scalar, sizeof(value), cudaMemcpyDeviceToHost, g->stream),
		  "reading a sum");
	cuda_note(g, cudaStreamSynchronize(g->stream), "waiting for a sum");
	return value;
}

template <typename R> static double sum_squares(const struct backend *b, const void *values, int64_t n)
{
	const struct call c = update_call(b);
	double *scalar = context_of(&c)->scalar;
	const R *x = (const R *)values;

	sum_all(
		&c, n, [=] __device__(int64_t i) { return (double)x[i] * (double)x[i]; }, scalar + 1,
		[=] __device__(double sum) { *scalar = sum; });
	return read_scalar(&c);
}

/* NaN stays NaN, so that the sum tells of it. */
template <typename R>
static double clip_elements(const struct backend *b, void *gradient, const void *second_moment,
			    double theta, int64_t n)
{
	const struct call c = update_call(b);
	const R *v = (const R *)second_moment;
	R *g = (R *)gradient;

	each(&c, n, [=] __device__(int64_t i) {
		const R limit = sqrt((R)theta * (v[i] + (R)1e-12));
		const R below = g[i] > limit ? limit : g[i];

		g[i] = below < -limit ? -limit : below;
	});
	return sum_squares<R>(b, gradient, n);
}

/* --------------------------------------------------------------- element by element */

template <typename R>
static void adamw(const struct backend *b, const struct adamw_step *given,
		  const struct optim_segments *segments, void *params, const void *gradient,
		  void *moment, void *second, void *largest)
{
	const struct call c = update_call(b);
	const struct adamw_step s = *given;

	for (int i = 0; i < segments->n; i++) {
		const struct optim_segment part = segments->list[i];
		R *p = (R *)params + part.offset, *m = (R *)moment + part.offset;
		R *v = (R *)second + part.second, *vmax = largest ? (R *)largest + part.second : NULL;
		const R *g = (const R *)gradient + part.offset;
		const R shrink = part.decays ? (R)s.shrink : 1, scale = (R)s.scale;
		const R old_m = (R)s.beta1, new_m = (R)(1 - s.beta1), damp_m = (R)s.damp_m;
		const R old_v = (R)s.beta2, new_v = (R)(1 - s.beta2), damp_v = (R)s.damp_v;
		const R rate = (R)(s.lr / s.correction1), bias = (R)(1 / s.correction2);
		const R eps = (R)s.eps;

		each(&c, part.count, [=] __device__(int64_t j) {
			const R gj = scale * g[j];
			const R mj = old_m * (damp_m * m[j]) + new_m * gj;
			const R vj = old_v * (damp_v * v[j]) + new_v * gj * gj;
			R d = vj;

			m[j] = mj;
			v[j] = vj;
			if (vmax) {
				d = vmax[j] > vj ? vmax[j] : vj;
				vmax[j] = d;
			}
			p[j] = shrink * p[j] - rate * mj / (sqrt(bias * d) + eps);
		});
	}
}

template <typename R>
static void sgd(const struct backend *b, const struct sgd_step *given,
		const struct optim_segments *segments, void *params, const void *gradient,
		void *moment)
{
	const struct call c = update_call(b);
	const struct sgd_step s = *given;

	for (int i = 0; i < segments->n; i++) {
		const struct optim_segment part = segments->list[i];
		R *p = (R *)params + part.offset, *m = (R *)moment + part.offset;
		const R *g = (const R *)gradient + part.offset;
		const R shrink = part.decays ? (R)s.shrink : 1;

		each(&c, part.count, [=] __device__(int64_t j) {
			m[j] = (R)s.momentum * m[j] + (R)s.scale * g[j];
			p[j] = shrink * p[j] - (R)s.lr * m[j];
		});
	}
}

/* --------------------------------------------------------------- muon */

template <typename R> struct muon_room {
	double *norm; /* and its SUM_WORK */
	R *x, *y, *gram, *polynomial;
};

template <typename R>
static struct muon_room<R> take_muon(struct space *m, int64_t rows, int64_t columns)
{
	const int64_t small = rows < columns ? rows : columns;
	struct muon_room<R> r;

	r.norm = m->take<double>(1 + SUM_PARTS);
	r.x = m->take<R>(rows * columns);
	r.y = m->take<R>(rows * columns);
	r.gram = m->take<R>(small * small);
	r.polynomial = m->take<R>(small * small);
	return r;
}

template <typename R> static size_t muon_workspace(int64_t rows, int64_t columns)
{
	struct space m = { NULL, 0 };

	take_muon<R>(&m, rows, columns);
	return m.used;
}

/*
 * One Newton-Schulz step y = (a + b A + c A^2) x, A = x x': every singular value s of x
 * becomes a s + b s^3 + c s^5, which drives those in (0, 1] towards 1.  A tall x is
 * multiplied from the right, A = x' x, so that A is as small as it can be.
 */
template <typename R>
static void newton_schulz(const struct call *call, int64_t rows, int64_t columns, const R *x, R *y,
			  R *gram, R *polynomial)
{
	/* Keller Jordan's, chosen for the steepest slope at 0; torch.optim.Muon has the same. */
	const double a = 3.4445, b = -4.7750, c = 2.0315;
	const bool tall = rows > columns;
	const int64_t n = tall ? columns : rows;
	const struct matrix<R> factor = { x, columns, 0 }, square = { gram, n, 0 };
	const struct matrix<R> left = { polynomial, n, 0 };

	gemm(call, tall, !tall, n, n, tall ? rows : columns, 1, factor, factor, false, gram, n);
	each(call, n * n, [=] __device__(int64_t i) {
		polynomial[i] = (R)b * gram[i] + (i / n == i % n ? (R)a : 0);
	});
	gemm(call, false, false, n, n, n, c, square, square, true, polynomial, n);
	if (tall)
		gemm(call, false, false, rows, n, n, 1, factor, left, false, y, n);
	else
		gemm(call, false, false, n, columns, n, 1, left, factor, false, y, columns);
}

template <typename R>
static void muon(const struct backend *b, const struct muon_step *given, int64_t rows,
		 int64_t columns, void *params, const void *gradient, void *moment, void *work)
{
	const struct call c = update_call(b);
	const struct muon_step s = *given;
	const int64_t n = rows * columns;
	struct space space = { (char *)work, 0 };
	const struct muon_room<R> r = take_muon<R>(&space, rows, columns);
	R *x = r.x, *y = r.y, *p = (R *)params, *m = (R *)moment;
	const R *g = (const R *)gradient;

	each(&c, n, [=] __device__(int64_t i) {
		const R gi = (R)s.scale * g[i], old = (R)s.momentum, fresh = (R)(1 - s.momentum);

		m[i] = old * m[i] + fresh * gi;
		x[i] = s.nesterov ? old * m[i] + fresh * gi : m[i];
	});
	sum_all(
		&c, n, [=] __device__(int64_t i) { return (double)x[i] * (double)x[i]; }, r.norm + 1,
		[=] __device__(double sum) { *r.norm = sqrt(sum); });
	each(&c, n, [=] __device__(int64_t i) { x[i] *= (R)(1 / fmax(*r.norm, s.eps)); });
	for (int i = 0; i < s.steps; i++) {
		R *swap = x;

		newton_schulz<R>(&c, rows, columns, x, y, r.gram, r.polynomial);
		x = y;
		y = swap;
	}
	each(&c, n, [=] __device__(int64_t i) { p[i] = (R)s.shrink * p[i] - (R)s.lr * x[i]; });
}

template <typename R> static constexpr struct optim_kernels set()
{
	return { sum_squares<R>, clip_elements<R>, adamw<R>, sgd<R>, muon<R>, muon_workspace<R> };
}

extern "C" {
extern const struct optim_kernels cuda_optim_f32, cuda_optim_f64;
const struct optim_kernels cuda_optim_f32 = set<float>();
const struct optim_kernels cuda_optim_f64 = set<double>();
}
