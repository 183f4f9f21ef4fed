#include "core/backend/cpu/elementwise.h"

/* A slice has its rows apart. */
static void forward_rows(const struct call *c)
{
	const struct tensor *t = c->node->in[0];
	const int64_t n = tensor_count(t), width = t->row;
	const real f = factor(c, 2);

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t row = 0; row < n / width; row++) {
		const real *a = (const real *)c->in[0] + row * t->pitch;
		const real *b = (const real *)c->in[1] + row * width;
		real *y = (real *)c->out[0] + row * width;

#pragma omp simd
		for (int64_t i = 0; i < width; i++)
			y[i] = a[i] + f * b[i];
	}
}

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real f = factor(c, 2);
	const real *a = c->in[0], *b = c->in[1];
	real *y = c->out[0];

	if (!tensor_contiguous(c->node->in[0])) {
		forward_rows(c);
		return;
	}
#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		y[i] = a[i] + f * b[i];
}

/* da = dy, or da += dy, for elements [first, first + n) of a tensor whose rows may be apart. */
static void put_part(real *da, const struct tensor *a, bool add, const real *dy, int64_t first,
		     int64_t n)
{
	const int64_t row = tensor_contiguous(a) ? tensor_count(a) : a->row;

	for (int64_t i = first, m; i < first + n; i += m) {
		m = row - i % row < first + n - i ? row - i % row : first + n - i;
		put_scaled(da + i / row * a->pitch + i % row, add, 1, dy + i, m);
	}
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real f = factor(c, 2);
	const real *b = c->in[1], *dy = c->dout[0];
	real *da = c->din[0], *db = c->din[1], *df = c->din[2];
	double *partial = c->work; /* one per chunk */

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);

		/* y = a + f b */
		if (df)
			partial[i / CHUNK] = dot(dy + i, b + i, m);
		if (da && da != dy)
			put_part(da, c->node->in[0], call_adds(c, 0), dy, i, m);
		if (db)
			put_scaled(db + i, call_adds(c, 1), f, dy + i, m);
	}
	if (df)
		put(df, call_adds(c, 2), (real)sum_partial(partial, chunk_count(n)));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD && n->in[2]
		       ? (size_t)chunk_count(tensor_count(n->in[0])) * sizeof(double)
		       : 0;
}

KERNELS(add_scaled) = { .forward = forward, .backward = backward };
KERNELS(add_scaled_learned) = {
	.forward = forward,
	.backward = backward,
	.workspace = workspace,
};
