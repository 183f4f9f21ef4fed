#include "core/backend/cpu/gemv.h"
#include "core/backend/cpu/linear.h"

static struct linear_sizes sizes(const struct node *node)
{
	const struct linear_attr *attr = node->attr;

	return linear_sizes_of(node->in[0], node->in[1], attr->transposed);
}

/* Every row of y becomes b, and the product is added: as cheap as writing zeros first. */
static void fill_rows(const struct linear_sizes *s, real *restrict y, const real *restrict b)
{
#pragma omp parallel for schedule(static) if (s->n * s->o > GRAIN)
	for (int64_t r = 0; r < s->n; r++)
		memcpy(y + r * s->o, b, (size_t)s->o * sizeof(real));
}

static void forward_few(const struct call *c, const struct linear_sizes *s)
{
	const real *x = c->in[0], *w = c->in[1], *b = c->in[2];

#pragma omp parallel if (s->i * s->o > GRAIN)
	{
		if (s->transposed)
			skinny_dots(x, s->x_pitch, s->n, s->i, w, s->o, c->out[0]);
		else
			skinny_product(x, s->x_pitch, s->n, s->i, w, s->o, b, c->work, c->out[0]);
	}
}

static void forward(const struct call *c)
{
	const struct linear_sizes s = sizes(c->node);
	const real *b = c->in[2];

	if (s.n <= SKINNY_ROWS) {
		forward_few(c, &s);
		return;
	}
	if (b)
		fill_rows(&s, c->out[0], b);
	linear_forward(c, &s, c->work, 1, c->in[0], b != NULL, c->out[0]);
}

#define SUM_ROWS 64    /* summed in one go: keeps the error of long float sums small */
#define SUM_COLUMNS 64 /* columns whose sums stay in registers or the first cache */

/* db[o] for `width` <= SUM_COLUMNS columns of dy, whose rows are O apart. */
static void sum_columns(const struct linear_sizes *s, const real *restrict dy, int64_t width,
			bool add, real *restrict db)
{
	real total[SUM_COLUMNS] = { 0 };

	for (int64_t first = 0; first < s->n; first += SUM_ROWS) {
		const int64_t last = first + SUM_ROWS < s->n ? first + SUM_ROWS : s->n;
		real block[SUM_COLUMNS] = { 0 };

		for (int64_t r = first; r < last; r++)
#pragma omp simd
			for (int64_t o = 0; o < width; o++)
				block[o] += dy[r * s->o + o];
		for (int64_t o = 0; o < width; o++)
			total[o] += block[o];
	}
	for (int64_t o = 0; o < width; o++)
		db[o] = (add ? db[o] : 0) + total[o];
}

static void backward(const struct call *c)
{
	const struct linear_sizes s = sizes(c->node);
	const real *dy = c->dout[0];
	real *dx = c->din[0], *dw = c->din[1], *db = c->din[2];

	/* y = x W + b */
	if (dx)
		linear_to_x(c, &s, c->work, 1, dy, call_adds(c, 0), dx);
	if (dw)
		linear_to_weight(c, &s, c->work, 1, c->in[0], dy, call_adds(c, 1), dw);
	if (db) {
#pragma omp parallel for schedule(static) if (s.n * s.o > GRAIN)
		for (int64_t o = 0; o < s.o; o += SUM_COLUMNS)
			sum_columns(&s, dy + o, s.o - o < SUM_COLUMNS ? s.o - o : SUM_COLUMNS,
				    call_adds(c, 2), db + o);
	}
}

static size_t workspace(const struct node *node, enum pass pass, int threads)
{
	const struct linear_sizes s = sizes(node);

	if (pass == PASS_FORWARD && s.n <= SKINNY_ROWS)
		return s.transposed ? 0 : skinny_workspace(s.n, s.o, threads);
	return linear_work(node, &s, pass, threads);
}

/* Few rows read the parameter itself. */
static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	const struct linear_sizes s = sizes(node);

	if (pass == PASS_FORWARD && s.n <= SKINNY_ROWS)
		return 0;
	return linear_copies(node, &s, pass, input, which);
}

KERNELS(linear) = {
	.forward = forward, .backward = backward, .workspace = workspace, .copy_bytes = copies
};
