#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/linear.h"

/* Inputs: a, W, x, f. */
static struct linear_sizes sizes(const struct node *n)
{
	const struct add_linear_attr *attr = n->attr;

	return linear_sizes_of(n->in[2], n->in[1], attr->transposed);
}

/* y becomes a, and the product is added: as cheap as writing zeros first. */
static void forward(const struct call *c)
{
	const struct linear_sizes s = sizes(c->node);
	const int64_t n = s.n * s.o;
	const real *a = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		memcpy(y + i, a + i, (size_t)chunk_length(i, n) * sizeof(real));
	linear_forward(c, &s, c->work, factor(c, 3), c->in[2], true, y);
}

/* R = x' dy, and a sum for each of its chunks; behind them the workspace of products. */
struct room {
	real *raw;
	double *partial;
	void *work;
};

static size_t whole_lines(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static size_t raw_bytes(int64_t n)
{
	return whole_lines((size_t)n * sizeof(real));
}

static size_t partial_bytes(int64_t n)
{
	return whole_lines((size_t)chunk_count(n) * sizeof(double));
}

static struct room room_of(const struct call *c, int64_t weights)
{
	char *at = c->work;

	return (struct room){ .raw = (real *)at,
			      .partial = (double *)(at + raw_bytes(weights)),
			      .work = at + raw_bytes(weights) + partial_bytes(weights) };
}

/* dW = f R, df = sum R W */
static void weight_and_factor(const struct call *c, const struct linear_sizes *s, real f)
{
	const int64_t n = s->i * s->o;
	const struct room r = room_of(c, n);
	const real *w = c->in[1];
	real *dw = c->din[1], *df = c->din[3];

	linear_to_weight(c, s, r.work, 1, c->in[2], c->dout[0], false, r.raw);
#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);

		r.partial[i / CHUNK] = dot(r.raw + i, w + i, m);
		if (dw)
			put_scaled(dw + i, call_adds(c, 1), f, r.raw + i, m);
	}
	if (df)
		put(df, call_adds(c, 3), (real)sum_partial(r.partial, chunk_count(n)));
}

static void pass_on(const struct call *c, int64_t n)
{
	const real *dy = c->dout[0];
	real *da = c->din[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		put_scaled(da + i, call_adds(c, 0), 1, dy + i, chunk_length(i, n));
}

/* y = a + f x W */
static void backward(const struct call *c)
{
	const struct linear_sizes s = sizes(c->node);
	const real f = factor(c, 3);
	const real *dy = c->dout[0];
	real *da = c->din[0], *dw = c->din[1], *dx = c->din[2];
	void *work = c->node->in[3] ? room_of(c, s.i * s.o).work : c->work;

	if (c->din[3])
		weight_and_factor(c, &s, f);
	else if (dw)
		linear_to_weight(c, &s, work, f, c->in[2], dy, call_adds(c, 1), dw);
	if (dx)
		linear_to_x(c, &s, work, f, dy, call_adds(c, 2), dx);
	if (da && da != dy)
		pass_on(c, s.n * s.o);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct linear_sizes s = sizes(n);
	const int64_t weights = s.i * s.o;
	const size_t products = linear_work(n, &s, pass, threads);

	return pass == PASS_BACKWARD && n->in[3]
		       ? raw_bytes(weights) + partial_bytes(weights) + products
		       : products;
}

static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	const struct linear_sizes s = sizes(n);

	return linear_copies(n, &s, pass, input, which);
}

KERNELS(add_linear) = {
	.forward = forward, .backward = backward, .workspace = workspace, .copy_bytes = copies
};
KERNELS(add_linear_learned) = {
	.forward = forward, .backward = backward, .workspace = workspace, .copy_bytes = copies
};
