#include "core/backend/cpu/elementwise.h"

/*
 * Both ops in one shape: where each tensor is; NULL: the op or the call does not
 * have it.
 */
struct norm {
	enum norm_kind kind;
	real eps;
	int64_t rows, width;
	int64_t residual_pitch; /* from a row of residual to the next */
	int weight;		/* number of the input w; b follows it */
	const real *x, *residual, *w, *b;
	real *s, *y;
	real *statistics; /* [rows,2]: mean, 1 / deviation */
};

static struct norm read_call(const struct call *c)
{
	const struct norm_attr *attr = c->node->attr;
	const int64_t width = tensor_dim(c->node->in[0], -1);
	const bool has_residual = c->node->id == OP_norm_residual;
	const bool is_sliced = has_residual && !tensor_contiguous(c->node->in[1]);
	const int w = has_residual ? 2 : 1;

	return (struct norm){
		.kind = attr->kind,
		.eps = (real)attr->eps,
		.rows = tensor_count(c->node->in[0]) / width,
		.width = width,
		.residual_pitch = is_sliced ? c->node->in[1]->pitch : width,
		.weight = w,
		.x = c->in[0],
		.residual = has_residual ? c->in[1] : NULL,
		.w = c->in[w],
		.b = c->in[w + 1],
		.s = has_residual ? c->out[0] : NULL,
		.y = c->out[has_residual ? 1 : 0],
		.statistics = c->out[has_residual ? 2 : 1],
	};
}

/* sum (s_i - mean)^2 */
static real square_deviation(const real *s, real mean, int64_t n)
{
	real lane[LANES] = { 0 }, total;
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] += (s[i + l] - mean) * (s[i + l] - mean);
	total = sum_lanes(lane);
	for (; i < n; i++)
		total += (s[i] - mean) * (s[i] - mean);
	return total;
}

static void measure(const struct norm *m, const real *s, real statistics[2])
{
	const real width = (real)m->width;
	const real mean = m->kind == NORM_LAYER ? sum(s, m->width) / width : 0;

	statistics[0] = mean;
	statistics[1] = 1 / root(square_deviation(s, mean, m->width) / width + m->eps);
}

static inline void normalise_lanes(const real *restrict s, const real *restrict w,
				   const real *restrict b, const real statistics[2], int n,
				   real *restrict y)
{
	const real mean = statistics[0], inverse = statistics[1];

#pragma omp simd
	for (int l = 0; l < n; l++)
		y[l] = w[l] * ((s[l] - mean) * inverse) + (b ? b[l] : 0);
}

/* y = w (s - mean) / deviation + b */
static void normalise(const struct norm *m, const real *s, const real statistics[2], real *y)
{
	const real *w = m->w, *b = m->b;
	int64_t i = 0;

	for (; i + LANES <= m->width; i += LANES) {
		__builtin_prefetch(s + i + m->width); /* the next row, which comes at once */
		normalise_lanes(s + i, w + i, b ? b + i : NULL, statistics, LANES, y + i);
	}
	normalise_lanes(s + i, w + i, b ? b + i : NULL, statistics, (int)(m->width - i), y + i);
}

static void add_residual(const real *x, const real *residual, int64_t n, real *s)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		s[i] = x[i] + residual[i];
}

static void forward(const struct call *c)
{
	const struct norm m = read_call(c);

#pragma omp parallel for schedule(static) if (m.rows * m.width > GRAIN)
	for (int64_t r = 0; r < m.rows; r++) {
		const int64_t at = r * m.width;
		const real *s = m.s ? m.s + at : m.x + at;

		if (m.s)
			add_residual(m.x + at, m.residual + r * m.residual_pitch, m.width,
				     m.s + at);
		measure(&m, s, m.statistics + 2 * r);
		normalise(&m, s, m.statistics + 2 * r, m.y + at);
	}
}

static void recompute(const struct call *c)
{
	const struct norm m = read_call(c);
	const real *s = m.s ? m.s : m.x;

#pragma omp parallel for schedule(static) if (m.rows * m.width > GRAIN)
	for (int64_t r = 0; r < m.rows; r++)
		normalise(&m, s + r * m.width, m.statistics + 2 * r, m.y + r * m.width);
}

/* One element of a row: dw += dy n, db += dy; w dy and w dy n join two sums. */
static inline void collect_one(real n, real w, real dy, real *dw, real *db, real *plain,
			       real *weighted)
{
	*dw += dy * n;
	*db += dy;
	*plain += w * dy;
	*weighted += w * dy * n;
}

/* One row, n = (s - mean) / deviation: dw and db, and the means of w dy and w dy n. */
static void collect(const struct norm *m, const real *restrict s, const real *restrict dy,
		    const real statistics[2], real *restrict dw, real *restrict db, real mean[2])
{
	const real centre = statistics[0], inverse = statistics[1];
	const real *restrict w = m->w;
	real plain[LANES] = { 0 }, weighted[LANES] = { 0 };
	int64_t i = 0;

	for (; i + LANES <= m->width; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			collect_one((s[i + l] - centre) * inverse, w[i + l], dy[i + l], &dw[i + l],
				    &db[i + l], &plain[l], &weighted[l]);
	mean[0] = sum_lanes(plain);
	mean[1] = sum_lanes(weighted);
	for (; i < m->width; i++)
		collect_one((s[i] - centre) * inverse, w[i], dy[i], &dw[i], &db[i], &mean[0],
			    &mean[1]);
	mean[0] = m->kind == NORM_LAYER ? mean[0] / (real)m->width : 0;
	mean[1] /= (real)m->width;
}

static inline void gradient_lanes(const real *s, const real *w, const real *dy, const real *ds,
				  const real statistics[2], const real mean[2], int n, real *d)
{
	const real centre = statistics[0], inverse = statistics[1];
	const real slope = -inverse * inverse * mean[1], offset = -inverse * mean[0];

#pragma omp simd
	for (int l = 0; l < n; l++)
		d[l] = w[l] * dy[l] * inverse + ((s[l] - centre) * slope + offset) +
		       (ds ? ds[l] : 0);
}

/*
 * y = w n + b, n = (s - mean) / deviation, so with g = w dy
 *     d = (g - mean(g) - n mean(g n)) / deviation + ds
 * where RMSNorm, which subtracts no mean, lacks mean(g).  d may be the memory of dy or ds.
 */
static void row_gradient(const struct norm *m, const real *s, const real *dy, const real *ds,
			 const real statistics[2], const real mean[2], real *d)
{
	const real *w = m->w;
	int64_t i = 0;

	for (; i + LANES <= m->width; i += LANES)
		gradient_lanes(s + i, w + i, dy + i, ds ? ds + i : NULL, statistics, mean, LANES,
			       d + i);
	gradient_lanes(s + i, w + i, dy + i, ds ? ds + i : NULL, statistics, mean,
		       (int)(m->width - i), d + i);
}

static void backward_rows(const struct call *c, const struct norm *m, real *partial)
{
	const bool sums = m->s;
	const real *s = sums ? m->s : m->x, *dy = c->dout[sums ? 1 : 0];
	const real *ds = sums ? c->dout[0] : NULL; /* what arrives at the sum itself */
	real *dx = c->din[0], *dresidual = sums ? c->din[1] : NULL;
	real *dw = partial, *db = partial + m->width, *row = partial + 2 * m->width;
	const bool direct = dx && !call_adds(c, 0);
	int64_t first, last;

	thread_share(m->rows, &first, &last);
	memset(partial, 0, 2 * (size_t)m->width * sizeof(*partial));
	for (int64_t r = first; r < last; r++) {
		const int64_t at = r * m->width;
		const real *statistics = m->statistics + 2 * r;
		real mean[2], *d = direct ? dx + at : row;

		collect(m, s + at, dy + at, statistics, dw, db, mean);
		row_gradient(m, s + at, dy + at, ds ? ds + at : NULL, statistics, mean, d);
		if (dx && !direct)
			put_scaled(dx + at, true, 1, d, m->width);
		if (dresidual)
			put_scaled(dresidual + r * m->residual_pitch, call_adds(c, 1), 1, d,
				   m->width);
	}
}

/* Adds the threads' sums in order; each thread adds its own columns. */
static void sum_columns(const real *work, int64_t stride, int64_t width, real *d, bool add)
{
	const int threads = omp_get_num_threads();
	int64_t first, last;

	thread_share(width, &first, &last);
	if (!d)
		return;
	for (int t = 0; t < threads; t++)
		put_scaled(d + first, add || t > 0, 1, work + t * stride + first, last - first);
}

/* Only the sum is on the way to a loss. */
static void backward_sum(const struct call *c, const struct norm *m)
{
	for (int i = 0; i < m->weight; i++) {
		const int64_t pitch = i == 1 ? m->residual_pitch : m->width;

		for (int64_t r = 0; r < m->rows && c->din[i]; r++)
			put_scaled((real *)c->din[i] + r * pitch, call_adds(c, i), 1,
				   (const real *)c->dout[0] + r * m->width, m->width);
	}
	for (int i = m->weight; i <= m->weight + 1; i++)
		if (c->din[i] && !call_adds(c, i))
			memset(c->din[i], 0, (size_t)m->width * sizeof(real));
}

static void backward(const struct call *c)
{
	const struct norm m = read_call(c);
	const int64_t stride = 3 * m.width; /* per thread: dw, db, a row */
	real *work = c->work;

	if (m.s && !c->dout[1]) {
		backward_sum(c, &m);
		return;
	}
#pragma omp parallel if (m.rows * m.width > GRAIN)
	{
		backward_rows(c, &m, work + omp_get_thread_num() * stride);
#pragma omp barrier
		sum_columns(work, stride, m.width, c->din[m.weight], call_adds(c, m.weight));
		sum_columns(work + m.width, stride, m.width, c->din[m.weight + 1],
			    call_adds(c, m.weight + 1));
	}
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	return pass == PASS_BACKWARD
		       ? (size_t)threads * 3 * (size_t)tensor_dim(n->in[0], -1) * sizeof(real)
		       : 0;
}

KERNELS(norm) = {
	.forward = forward,
	.backward = backward,
	.recompute = recompute,
	.workspace = workspace,
};
KERNELS(norm_residual) = {
	.forward = forward,
	.backward = backward,
	.recompute = recompute,
	.workspace = workspace,
};
