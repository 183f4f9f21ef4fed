/* The optimizers' updates: equations in core/optim/kernels.h. */
#include "core/backend/cpu/real.h"
#include "core/optim/kernels.h"

#ifdef REAL_F64
#define OPTIM_KERNELS const struct optim_kernels cpu_optim_f64
#else
#define OPTIM_KERNELS const struct optim_kernels cpu_optim_f32
#endif

/* --------------------------------------------------------------- reductions */

/*
 * A sum consists of this many partial sums over equal parts, added in order: which
 * thread makes which part does not change a bit.
 */
#define PARTS 512

static double part_squares(const real *x, int64_t n)
{
	double sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sum;
}

static double add_in_order(const double parts[PARTS])
{
	double sum = 0;

	for (int i = 0; i < PARTS; i++)
		sum += parts[i];
	return sum;
}

static double squares_of(const real *x, int64_t n)
{
	double parts[PARTS];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < PARTS; i++) {
		const int64_t first = n * i / PARTS, last = n * (i + 1) / PARTS;

		parts[i] = part_squares(x + first, last - first);
	}
	return add_in_order(parts);
}

static void sum_squares(const struct backend *b, const struct optim_buffer *buffers, int n,
			double *sums)
{
	(void)b;
	for (int i = 0; i < n; i++)
		sums[buffers[i].sum] = squares_of(buffers[i].x, buffers[i].n);
}

static void add_squares(const struct backend *b, const struct optim_buffer *buffers, int n,
			double *sums)
{
	(void)b;
	for (int k = 0; k < n; k++) {
		const real *x = buffers[k].x;
		double more = sums[buffers[k].sum];

		for (int64_t i = 0; i < buffers[k].n; i++)
			more += (double)x[i] * (double)x[i];
		sums[buffers[k].sum] = more;
	}
}

/* NaN stays NaN, so that the sum tells of it. */
static void clip_part(real *restrict g, const real *restrict v, real theta, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		const real limit = root(theta * (v[i] + (real)1e-12));
		const real below = g[i] > limit ? limit : g[i];

		g[i] = below < -limit ? -limit : below;
	}
}

static double clipped_squares(real *g, const real *v, double theta, int64_t n)
{
	double parts[PARTS];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < PARTS; i++) {
		const int64_t first = n * i / PARTS, last = n * (i + 1) / PARTS;

		clip_part(g + first, v + first, (real)theta, last - first);
		parts[i] = part_squares(g + first, last - first);
	}
	return add_in_order(parts);
}

static void clip_elements(const struct backend *b, const struct optim_rule *rule,
			  const struct optim_state *s, void *g, const void *v, int64_t n,
			  double *sum)
{
	(void)b;
	*sum = optim_clips_elements(rule, s) ? clipped_squares(g, v, rule->theta, n)
					     : squares_of(g, n);
}

/* --------------------------------------------------------------- decisions */

static void decide(const struct backend *b, const struct optim_rule *rule, struct optim_state *s,
		   const double *losses, int n)
{
	(void)b;
	optim_decide(rule, s, losses, n);
}

static void restart(const struct backend *b, const struct optim_factors *f,
		    const struct optim_segments *segments, const struct optim_blocks *blocks)
{
	const size_t bytes = (size_t)segments->total * sizeof(real);

	(void)b;
	if (!f->restart)
		return;
	memset(blocks->m, 0, bytes);
	memset(blocks->v, 0, bytes);
	memset(blocks->vmax, 0, bytes);
}

/* --------------------------------------------------------------- element by element */

static inline void adamw_part(const struct optim_factors *f, const struct adamw_constants *s,
			      bool decays, int64_t n, real *restrict p, const real *restrict g,
			      real *restrict m, real *restrict v, real *restrict vmax,
			      const bool amsgrad)
{
	const real shrink = decays ? (real)f->shrink : 1, scale = (real)f->scale;
	const real old_m = (real)s->beta1, new_m = (real)(1 - s->beta1), damp_m = (real)f->damp_m;
	const real old_v = (real)s->beta2, new_v = (real)(1 - s->beta2), damp_v = (real)f->damp_v;
	const real rate = (real)f->rate, bias = (real)f->bias;
	const real eps = (real)s->eps;

#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		const real gi = scale * g[i];
		const real mi = old_m * (damp_m * m[i]) + new_m * gi;
		const real vi = old_v * (damp_v * v[i]) + new_v * gi * gi;
		real d = vi;

		m[i] = mi;
		v[i] = vi;
		if (amsgrad) {
			d = vmax[i] > vi ? vmax[i] : vi;
			vmax[i] = d;
		}
		p[i] = shrink * p[i] - rate * mi / (root(bias * d) + eps);
	}
}

static void adamw(const struct backend *b, const struct optim_factors *f,
		  const struct adamw_constants *s, const struct optim_segments *segments,
		  const struct optim_blocks *blocks)
{
	real *p = blocks->p, *m = blocks->m, *v = blocks->v, *vmax = blocks->vmax;
	const real *g = blocks->g;

	(void)b;
	if (f->skip)
		return;
#pragma omp parallel if (segments->total > GRAIN)
	for (int i = 0; i < segments->n; i++) {
		const struct optim_segment *part = &segments->list[i];
		int64_t first, last, a, at_second;

		thread_share(part->count, &first, &last);
		a = part->offset + first;
		at_second = part->second + first;
		if (vmax)
			adamw_part(f, s, part->decays, last - first, p + a, g + a, m + a,
				   v + at_second, vmax + at_second, true);
		else
			adamw_part(f, s, part->decays, last - first, p + a, g + a, m + a,
				   v + at_second, NULL, false);
	}
}

static void sgd_part(const struct optim_factors *f, const struct sgd_constants *s, bool decays,
		     int64_t n, real *restrict p, const real *restrict g, real *restrict m)
{
	const real shrink = decays ? (real)f->shrink : 1, scale = (real)f->scale;
	const real momentum = (real)s->momentum, lr = (real)f->lr;

#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		m[i] = momentum * m[i] + scale * g[i];
		p[i] = shrink * p[i] - lr * m[i];
	}
}

static void sgd(const struct backend *b, const struct optim_factors *f,
		const struct sgd_constants *s, const struct optim_segments *segments,
		const struct optim_blocks *blocks)
{
	real *p = blocks->p, *m = blocks->m;
	const real *g = blocks->g;

	(void)b;
	if (f->skip)
		return;
#pragma omp parallel if (segments->total > GRAIN)
	for (int i = 0; i < segments->n; i++) {
		const struct optim_segment *part = &segments->list[i];
		int64_t first, last;

		thread_share(part->count, &first, &last);
		first += part->offset;
		last += part->offset;
		sgd_part(f, s, part->decays, last - first, p + first, g + first, m + first);
	}
}

static void add(const struct backend *b, void *total_of_all, const void *summand, int64_t n,
		bool first)
{
	real *sum = total_of_all;
	const real *x = summand;

	(void)b;
	if (first) {
		memcpy(sum, x, (size_t)n * sizeof(real));
		return;
	}
#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		sum[i] += x[i];
}

/* --------------------------------------------------------------- muon */

/* One matrix at a time. */
static size_t muon_workspace(int64_t rows, int64_t columns, int n)
{
	const int64_t small = rows < columns ? rows : columns;

	(void)n;
	return (size_t)(2 * rows * columns + 2 * small * small) * sizeof(real);
}

/* m = mu m + (1 - mu) g,  u = nesterov ? mu m + (1 - mu) g : m */
static void momentum_step(const struct muon_constants *s, double scaled, int64_t n,
			  const real *restrict g, real *restrict m, real *restrict u)
{
	const real scale = (real)scaled, old = (real)s->momentum, fresh = (real)(1 - s->momentum);
	const real ahead_m = s->nesterov ? old : 1, ahead_g = s->nesterov ? fresh : 0;

#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++) {
		const real gi = scale * g[i];

		m[i] = old * m[i] + fresh * gi;
		u[i] = ahead_m * m[i] + ahead_g * gi;
	}
}

/*
 * One Newton-Schulz step y = (a + b A + c A^2) x, A = x x': every singular value s of x
 * becomes a s + b s^3 + c s^5, which drives those in (0, 1] towards 1.  A tall x is
 * multiplied from the right, A = x' x, so that A is as small as it can be.
 */
static void newton_schulz(int64_t rows, int64_t columns, const real *x, real *y, real *gram,
			  real *polynomial)
{
	/* Keller Jordan's, chosen for the steepest slope at 0; torch.optim.Muon has the same. */
	static const real a = (real)3.4445, b = (real)-4.7750, c = (real)2.0315;
	const bool tall = rows > columns;
	const int64_t n = tall ? columns : rows;

	gemm(tall, !tall, n, n, tall ? rows : columns, 1, x, columns, x, columns, 0, gram, n);
	memcpy(polynomial, gram, (size_t)(n * n) * sizeof(real));
	gemm(false, false, n, n, n, c, gram, n, gram, n, b, polynomial, n);
	for (int64_t i = 0; i < n; i++)
		polynomial[i * n + i] += a;
	if (tall)
		gemm(false, false, rows, n, n, 1, x, n, polynomial, n, 0, y, n);
	else
		gemm(false, false, n, columns, n, 1, polynomial, n, x, columns, 0, y, columns);
}

static void scale_all(real *x, real factor, int64_t n)
{
#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		x[i] *= factor;
}

static void move(real *restrict p, real shrink, real lr, const real *restrict direction, int64_t n)
{
#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		p[i] = shrink * p[i] - lr * direction[i];
}

static void update_matrix(const struct optim_factors *f, const struct muon_constants *s,
			  int64_t rows, int64_t columns, real *p, const real *g, real *m,
			  real *work)
{
	const double lr = f->lr * s->lr_ratio;
	const int64_t n = rows * columns, small = rows < columns ? rows : columns;
	real *x = work, *y = x + n, *gram = y + n, *polynomial = gram + small * small, *swap;

	momentum_step(s, f->scale, n, g, m, x);
	scale_all(x, (real)(1 / fmax(sqrt(squares_of(x, n)), s->eps)), n);
	for (int i = 0; i < s->steps; i++) {
		newton_schulz(rows, columns, x, y, gram, polynomial);
		swap = x;
		x = y;
		y = swap;
	}
	move(p, (real)(1 - lr * s->weight_decay), (real)(lr * s->adjust), x, n);
}

static void muon(const struct backend *b, const struct optim_factors *f,
		 const struct muon_constants *s, const struct optim_matrices *matrices,
		 const struct optim_blocks *blocks, void *work)
{
	real *p = blocks->p, *m = blocks->m;
	const real *g = blocks->g;

	(void)b;
	if (f->skip)
		return;
	for (int i = 0; i < matrices->n; i++) {
		const int64_t at = matrices->offsets[i];

		update_matrix(f, s, matrices->rows, matrices->columns, p + at, g + at, m + at,
			      work);
	}
}

/* --------------------------------------------------------------- pruning */

static void add_movement(const struct backend *b, const struct optim_segments *prunable,
			 const struct optim_blocks *blocks)
{
	real *movement = blocks->movement;
	const real *p = blocks->p, *g = blocks->g;

	(void)b;
	for (int i = 0; i < prunable->n; i++) {
		const struct optim_segment *part = &prunable->list[i];

#pragma omp parallel for simd schedule(static) if (parallel : part->count > GRAIN)
		for (int64_t k = 0; k < part->count; k++)
			movement[part->second + k] -= p[part->offset + k] * g[part->offset + k];
	}
}

static void prune(const struct backend *b, const struct optim_segments *prunable,
		  const struct optim_blocks *blocks)
{
	const real *pruned = blocks->pruned;
	real *p = blocks->p;

	(void)b;
	for (int i = 0; i < prunable->n; i++) {
		const struct optim_segment *part = &prunable->list[i];

#pragma omp parallel for simd schedule(static) if (parallel : part->count > GRAIN)
		for (int64_t k = 0; k < part->count; k++)
			p[part->offset + k] =
				pruned[part->second + k] != 0 ? 0 : p[part->offset + k];
	}
}

OPTIM_KERNELS = {
	.sum_squares = sum_squares,
	.add_squares = add_squares,
	.clip_elements = clip_elements,
	.decide = decide,
	.restart = restart,
	.adamw = adamw,
	.sgd = sgd,
	.add = add,
	.muon = muon,
	.muon_workspace = muon_workspace,
	.add_movement = add_movement,
	.prune = prune,
};
