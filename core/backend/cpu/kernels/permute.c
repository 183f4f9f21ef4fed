/*
 * The innermost two loops run over the last dimension of y and over that of x.  If these differ,
 * one of the two is read or written with a stride: TILE rows and columns at a time stay in the
 * cache.
 */
#include "core/ops/strides.h"
#include "core/backend/cpu/elementwise.h"

#define TILE 16

static void exchange(int64_t *a, int64_t *b)
{
	const int64_t kept = *a;

	*a = *b;
	*b = kept;
}

/* Dimension 2 becomes the one along which x is contiguous, unless the last is. */
static struct strides strides_of(const struct node *n)
{
	struct strides s = permute_strides(n);

	for (int i = 0; i < 2; i++)
		if (s.x[i] == 1 && s.dim[i] > 1 && s.x[3] != 1) {
			exchange(&s.dim[i], &s.dim[2]);
			exchange(&s.x[i], &s.x[2]);
			exchange(&s.y[i], &s.y[2]);
		}
	return s;
}

/* Rows [first, last) of dimension 2, of the matrix that starts at `to` and `from`. */
static void put_matrix(const struct strides *s, int64_t first, int64_t last, const int64_t *ts,
		       real *to, bool add, const int64_t *fs, const real *from)
{
	if (ts[3] == 1 && fs[3] == 1) {
		for (int64_t i = first; i < last; i++)
			put_scaled(to + i * ts[2], add, 1, from + i * fs[2], s->dim[3]);
		return;
	}
	for (int64_t column = 0; column < s->dim[3]; column += TILE) {
		const int64_t end = column + TILE < s->dim[3] ? column + TILE : s->dim[3];

		for (int64_t i = first; i < last; i++)
			for (int64_t j = column; j < end; j++)
				put(to + i * ts[2] + j * ts[3], add, from[i * fs[2] + j * fs[3]]);
	}
}

/* to = from, or +=, with the strides ts and fs */
static void put_permuted(const struct strides *s, const int64_t *ts, real *to, bool add,
			 const int64_t *fs, const real *from)
{
	const int64_t tiles = (s->dim[2] + TILE - 1) / TILE;

#pragma omp parallel for schedule(static) if (tiles * s->dim[0] * s->dim[1] * s->dim[3] > \
					      GRAIN / TILE)
	for (int64_t task = 0; task < s->dim[0] * s->dim[1] * tiles; task++) {
		const int64_t first = task % tiles * TILE, matrix = task / tiles;
		const int64_t i = matrix / s->dim[1], j = matrix % s->dim[1];
		const int64_t last = first + TILE < s->dim[2] ? first + TILE : s->dim[2];

		put_matrix(s, first, last, ts, to + i * ts[0] + j * ts[1], add, fs,
			   from + i * fs[0] + j * fs[1]);
	}
}

static void forward(const struct call *c)
{
	const struct strides s = strides_of(c->node);

	put_permuted(&s, s.y, c->out[0], false, s.x, c->in[0]);
}

static void backward(const struct call *c)
{
	const struct strides s = strides_of(c->node);

	put_permuted(&s, s.x, c->din[0], call_adds(c, 0), s.y, c->dout[0]);
}

KERNELS(permute) = { .forward = forward, .backward = backward };
