#include "core/backend/cpu/few_rows.h"
#include "core/backend/cpu/product.h"

/* y [N,O] = x [N,I] W + b; W is [I,O], or [O,I] when transposed. */
struct sizes {
	int64_t n, i, o;
	int64_t x_pitch, w_pitch;
	bool transposed;
};

static struct sizes sizes(const struct node *node)
{
	const struct linear_attr *attr = node->attr;
	const struct tensor *x = node->in[0];
	struct sizes s = { .i = tensor_dim(x, -1), .o = tensor_dim(node->out[0], -1) };

	s.n = tensor_count(x) / s.i;
	s.x_pitch = tensor_contiguous(x) ? s.i : x->pitch;
	s.w_pitch = node->in[1]->dim[1];
	s.transposed = attr->transposed;
	return s;
}

/* Every row of y becomes b, and the product is added: as cheap as writing zeros first. */
static void fill_rows(const struct sizes *s, real *restrict y, const real *restrict b)
{
#pragma omp parallel for schedule(static) if (s->n * s->o > GRAIN)
	for (int64_t r = 0; r < s->n; r++)
		memcpy(y + r * s->o, b, (size_t)s->o * sizeof(real));
}

static void forward_few(const struct call *c, const struct sizes *s)
{
	const real *x = c->in[0], *w = c->in[1], *b = c->in[2];

#pragma omp parallel if (s->i * s->o > GRAIN)
	{
		if (s->transposed)
			few_rows_dots(x, s->x_pitch, s->n, s->i, w, s->o, c->out[0]);
		else
			few_rows_product(x, s->x_pitch, s->n, s->i, w, s->o, b, c->work, c->out[0]);
	}
}

static void forward(const struct call *c)
{
	const struct sizes s = sizes(c->node);
	const struct multiplier by = multiplier_of(c, c->work);
	const real *x = c->in[0], *w = c->in[1], *b = c->in[2];
	real *y = c->out[0];

	if (s.n <= FEW_ROWS) {
		forward_few(c, &s);
		return;
	}
	if (b)
		fill_rows(&s, y, b);
	product(&by, packed_copy(c, s.transposed), false, s.transposed, s.n, s.o, s.i, 1, x,
		s.x_pitch, w, s.w_pitch, b ? 1 : 0, y, s.o);
}

#define SUM_ROWS 64    /* summed in one go: keeps the error of long float sums small */
#define SUM_COLUMNS 64 /* columns whose sums stay in registers or the first cache */

/* db[o] for `width` <= SUM_COLUMNS columns of dy, whose rows are O apart. */
static void sum_columns(const struct sizes *s, const real *restrict dy, int64_t width, bool add,
			real *restrict db)
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
	const struct sizes s = sizes(c->node);
	const struct multiplier by = multiplier_of(c, c->work);
	const real *x = c->in[0], *w = c->in[1], *dy = c->dout[0];
	real *dx = c->din[0], *dw = c->din[1], *db = c->din[2];

	/* y = x W + b */
	if (dx)
		product(&by, packed_copy(c, !s.transposed), false, !s.transposed, s.n, s.i, s.o, 1,
			dy, s.o, w, s.w_pitch, call_adds(c, 0), dx, s.x_pitch);
	if (dw && s.transposed)
		product(&by, NOT_PACKED, true, false, s.o, s.i, s.n, 1, dy, s.o, x, s.x_pitch,
			call_adds(c, 1), dw, s.i);
	else if (dw)
		product(&by, NOT_PACKED, true, false, s.i, s.o, s.n, 1, x, s.x_pitch, dy, s.o,
			call_adds(c, 1), dw, s.o);
	if (db) {
#pragma omp parallel for schedule(static) if (s.n * s.o > GRAIN)
		for (int64_t o = 0; o < s.o; o += SUM_COLUMNS)
			sum_columns(&s, dy + o, s.o - o < SUM_COLUMNS ? s.o - o : SUM_COLUMNS,
				    call_adds(c, 2), db + o);
	}
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static size_t workspace(const struct node *node, enum pass pass, int threads)
{
	const struct sizes s = sizes(node);
	const bool packed = keeps_copies(node->in[1]);
	size_t most;

	if (pass == PASS_FORWARD && s.n <= FEW_ROWS)
		return s.transposed ? 0 : few_rows_workspace(s.n, s.o, threads);
	if (pass == PASS_FORWARD)
		return product_work(s.n, s.o, s.i, packed, threads);
	most = s.transposed ? product_work(s.o, s.i, s.n, false, threads)
			    : product_work(s.i, s.o, s.n, false, threads);
	return larger(most, product_work(s.n, s.i, s.o, packed, threads));
}

/* Few rows read the parameter itself. */
static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	const struct sizes s = sizes(node);
	const int wanted = s.transposed ^ (pass == PASS_BACKWARD);

	if (which != wanted || (pass == PASS_FORWARD && s.n <= FEW_ROWS))
		return 0;
	return copy_bytes(node, input, which);
}

KERNELS(linear) = {
	.forward = forward, .backward = backward, .workspace = workspace, .copy_bytes = copies
};
