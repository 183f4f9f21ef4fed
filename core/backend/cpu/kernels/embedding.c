#include "core/backend/cpu/real.h"

static void add_row(real *restrict to, const real *restrict row, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		to[i] += row[i];
}

static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim;
	const int64_t length = dim[1], rows = dim[0] * length, e = dim[2];
	const real *table = c->in[0], *positions = c->in[2];
	const int64_t past = c->run->past;
	const int32_t *tokens = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (rows * e > GRAIN)
	for (int64_t r = 0; r < rows; r++) {
		memcpy(y + r * e, table + tokens[r] * e, (size_t)e * sizeof(real));
		if (positions)
			add_row(y + r * e, positions + (past + r % length) * e, e);
	}
}

static void zero_rows(real *rows, int64_t n, int64_t e)
{
#pragma omp for schedule(static)
	for (int64_t r = 0; r < n; r++)
		memset(rows + r * e, 0, (size_t)e * sizeof(real));
}

/* y[r] = table[tokens[r]] + ..; each thread owns a range of channels, so no thread waits. */
static void backward_table(const struct call *c, int64_t rows, int64_t e)
{
	const int32_t *tokens = c->in[1];
	const real *dy = c->dout[0];
	real *dtable = c->din[0];
	int64_t first, last;

	if (!call_adds(c, 0))
		zero_rows(dtable, c->node->in[0]->dim[0], e);
	thread_share(e, &first, &last);
	for (int64_t r = 0; r < rows; r++)
		add_row(dtable + tokens[r] * e + first, dy + r * e + first, last - first);
}

/* y[b,t] = .. + positions[t]; positions beyond the sequence have no gradient. */
static void backward_positions(const struct call *c, int64_t rows, int64_t length, int64_t e)
{
	const real *dy = c->dout[0];
	real *dpositions = c->din[2];

	if (!call_adds(c, 2))
		zero_rows(dpositions, c->node->in[2]->dim[0], e);
#pragma omp for schedule(static)
	for (int64_t t = 0; t < length; t++)
		for (int64_t r = t; r < rows; r += length)
			add_row(dpositions + t * e, dy + r * e, e);
}

static void backward(const struct call *c)
{
	const struct tensor *y = c->node->out[0];
	const int64_t rows = y->dim[0] * y->dim[1], e = y->dim[2];

#pragma omp parallel if (rows * e > GRAIN)
	{
		if (c->din[0])
			backward_table(c, rows, e);
		if (c->din[2])
			backward_positions(c, rows, y->dim[1], e);
	}
}

KERNELS(embedding) = { .forward = forward, .backward = backward };
