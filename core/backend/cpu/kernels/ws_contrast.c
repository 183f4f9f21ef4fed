#include "core/backend/cpu/elementwise.h"

static const real SMALLEST_NORM = (real)1e-8; /* by definition of the loss */

/* What both passes work with; M = batch * heads vectors. */
struct contrast {
	int64_t batch, length, heads, width, count; /* B, T, n, w, M */
	real tau;
	real *unit;	/* u [M,w] */
	real *norm;	/* max(|m|, 1e-8) [M] */
	real *score;	/* u.u / tau [M,M] */
	real *gradient; /* backward: du, then dm [M,w] */
};

static struct contrast contrast_of(const struct call *c)
{
	const struct ws_attr *attr = c->node->attr;
	const int64_t *dim = c->node->in[0]->dim;
	struct contrast k = {
		.batch = dim[0],
		.length = dim[1],
		.heads = dim[2],
		.width = dim[3],
		.count = dim[0] * dim[2],
		.tau = (real)attr->tau,
	};

	k.unit = c->work;
	k.norm = k.unit + k.count * k.width;
	k.score = k.norm + k.count;
	k.gradient = k.score + k.count * k.count;
	return k;
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const size_t width = (size_t)n->in[0]->dim[3];
	const size_t count = (size_t)(n->in[0]->dim[0] * n->in[0]->dim[2]);

	(void)threads;
	return count * ((pass == PASS_BACKWARD ? 2 : 1) * width + 1 + count) * sizeof(real);
}

/* m = mean over positions: of n w neighbouring numbers per example, CHUNK at a time */
static void average(const struct contrast *k, const real *z, real *means)
{
	const int64_t columns = k->heads * k->width, work = k->batch * k->length * columns;

#pragma omp parallel for collapse(2) schedule(static) if (work > GRAIN)
	for (int64_t b = 0; b < k->batch; b++) {
		for (int64_t i = 0; i < columns; i += CHUNK) {
			const int64_t n = chunk_length(i, columns);
			real *mean = means + b * columns + i;

			for (int64_t t = 0; t < k->length; t++)
				put_scaled(mean, t > 0, 1, z + (b * k->length + t) * columns + i,
					   n);
			put_scaled(mean, false, 1 / (real)k->length, mean, n);
		}
	}
}

static void compare(const struct contrast *k, const real *means)
{
	for (int64_t i = 0; i < k->count; i++) {
		const real *m = means + i * k->width;
		const real norm = (real)sqrt((double)dot(m, m, k->width));

		k->norm[i] = norm < SMALLEST_NORM ? SMALLEST_NORM : norm;
		put_scaled(k->unit + i * k->width, false, 1 / k->norm[i], m, k->width);
	}
	gemm(false, true, k->count, k->count, k->width, 1 / k->tau, k->unit, k->width, k->unit,
	     k->width, 0, k->score, k->count);
}

/* Turn a row of scores into probabilities; returns the logarithm of their sum before. */
static real soften(real *row, int64_t n)
{
	real most = row[0], total = 0;

	for (int64_t j = 1; j < n; j++)
		most = row[j] > most ? row[j] : most;
	for (int64_t j = 0; j < n; j++) {
		row[j] = fast_exp(row[j] - most);
		total += row[j];
	}
	put_scaled(row, false, 1 / total, row, n);
	return most + (real)log((double)total);
}

static real mean_similarity(const struct contrast *k)
{
	const int64_t pairs = k->count * (k->heads - 1);
	double total = 0;

	for (int64_t i = 0; i < k->count; i++)
		for (int64_t j = i / k->heads * k->heads; j < (i / k->heads + 1) * k->heads; j++)
			total += i == j ? 0 : (double)k->score[i * k->count + j];
	return pairs ? (real)(total / (double)pairs) * k->tau : 0;
}

static void forward(const struct call *c)
{
	const struct contrast k = contrast_of(c);
	real *loss = c->out[0], *similarity = c->out[1], *means = c->out[2];
	double total = 0;

	average(&k, c->in[0], means);
	compare(&k, means);
	*similarity = mean_similarity(&k);
	for (int64_t i = 0; i < k.count; i++) {
		const real own = k.score[i * k.count + i];

		total += (double)(soften(k.score + i * k.count, k.count) - own);
	}
	*loss = k.count < 2 ? 0 : (real)(total / (double)k.count);
}

/*
 * loss = mean_i(logsumexp_j s_ij - s_ii), s = u u' / tau: with p = softmax(s) by rows,
 * du = (p + p' - 2) u weight / (M tau), 2 standing on the diagonal.  In place over p.
 */
static void symmetrise(const struct contrast *k, real weight)
{
	const real f = weight / ((real)k->count * k->tau);

	for (int64_t i = 0; i < k->count; i++) {
		for (int64_t j = 0; j <= i; j++) {
			real *a = k->score + i * k->count + j, *b = k->score + j * k->count + i;

			*a = *b = f * (*a + *b - (i == j ? 2 : 0));
		}
	}
}

/* u = m / norm: dm = (du - u (u.du)) / norm, or du / norm where the norm is the constant */
static void through_norm(const struct contrast *k)
{
	for (int64_t i = 0; i < k->count; i++) {
		const real *u = k->unit + i * k->width;
		real *d = k->gradient + i * k->width;

		if (k->norm[i] > SMALLEST_NORM)
			put_scaled(d, true, -dot(u, d, k->width), u, k->width);
		put_scaled(d, false, 1 / k->norm[i], d, k->width);
	}
}

/* m = sum_t z_t / T */
static void through_average(const struct contrast *k, real *dz, bool add)
{
	const int64_t columns = k->heads * k->width;

#pragma omp parallel for schedule(static) if (k->batch * k->length * columns > GRAIN)
	for (int64_t row = 0; row < k->batch * k->length; row++)
		put_scaled(dz + row * columns, add, 1 / (real)k->length,
			   k->gradient + row / k->length * columns, columns);
}

static void backward(const struct call *c)
{
	const struct contrast k = contrast_of(c);
	const real weight = k.count < 2 ? 0 : *(const real *)c->dout[0];

	compare(&k, c->out[2]);
	for (int64_t i = 0; i < k.count; i++)
		soften(k.score + i * k.count, k.count);
	symmetrise(&k, weight);
	gemm(false, false, k.count, k.width, k.count, 1, k.score, k.count, k.unit, k.width, 0,
	     k.gradient, k.width);
	through_norm(&k);
	through_average(&k, c->din[0], call_adds(c, 0));
}

KERNELS(ws_contrast) = { .forward = forward, .backward = backward, .workspace = workspace };
