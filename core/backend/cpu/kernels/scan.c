/* scan and cumsum: a thread takes some channels of an example, one position after the other. */
#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/tokens.h"

#define COLUMNS 64 /* handled together: 4 cache lines of floats per position */

/* Channels [0, width) of one example; rows of b, a and y are `pitch` elements apart. */
struct columns {
	int64_t T, width, b_pitch, a_pitch, y_pitch;
};

/* y_t = a_t y_(t-1) + b_t; a NULL: 1; `last` holds y_(-1), then the last y. */
static void scan_columns(const struct columns *x, const real *b, const real *a, real *y,
			 real last[COLUMNS])
{
	for (int64_t t = 0; t < x->T; t++) {
		if (a)
			put_product(last, false, a + t * x->a_pitch, last, x->width);
		put_scaled(last, true, 1, b + t * x->b_pitch, x->width);
		memcpy(y + t * x->y_pitch, last, (size_t)x->width * sizeof(real));
	}
}

/* h_t = dy_t + a_(t+1) h_(t+1); db_t = h_t, da_t = h_t y_(t-1).  db may be written over dy. */
static void scan_backward(const struct columns *x, const real *a, const real *y, const real *dy,
			  real *db, bool add_b, real *da, bool add_a)
{
	static const real zeros[COLUMNS];
	real h[COLUMNS] = { 0 };

	for (int64_t t = x->T - 1; t >= 0; t--) {
		put_scaled(h, true, 1, dy + t * x->y_pitch, x->width);
		if (db)
			put_scaled(db + t * x->b_pitch, add_b, 1, h, x->width);
		if (da)
			put_product(da + t * x->a_pitch, add_a, h,
				    t > 0 ? y + (t - 1) * x->y_pitch : zeros, x->width);
		if (a)
			put_product(h, false, h, a + t * x->a_pitch, x->width);
	}
}

/* Where column i of example b begins, in a tensor like this. */
static int64_t place(const struct tokens *t, int64_t b, int64_t i)
{
	return b * t->T * t->pitch + i;
}

#define AT(pointer, tokens, b, i) ((pointer) ? (pointer) + place(tokens, b, i) : NULL)

static void forward(const struct call *c)
{
	const struct node *n = c->node;
	const struct tokens b = tokens_of(n->in[0]), a = tokens_of(n->in[n->n_in - 1]),
			    y = tokens_of(n->out[0]);
	const int64_t B = n->in[0]->dim[0], C = b.size;
	const real *b_at = c->in[0], *a_at = n->n_in > 1 ? c->in[1] : NULL;
	real *y_at = c->out[0], *state = n->n_out > 1 ? c->out[1] : NULL;

#pragma omp parallel for collapse(2) schedule(static) if (B * b.T * C > GRAIN)
	for (int64_t e = 0; e < B; e++) {
		for (int64_t i = 0; i < C; i += COLUMNS) {
			const int64_t width = C - i < COLUMNS ? C - i : COLUMNS;
			const struct columns x = { b.T, width, b.pitch, a.pitch, y.pitch };
			real last[COLUMNS] = { 0 };

			if (state && c->run->past > 0)
				memcpy(last, state + e * C + i, (size_t)width * sizeof(real));
			scan_columns(&x, AT(b_at, &b, e, i), AT(a_at, &a, e, i), AT(y_at, &y, e, i),
				     last);
			if (state)
				memcpy(state + e * C + i, last, (size_t)width * sizeof(real));
		}
	}
}

static void backward(const struct call *c)
{
	const struct node *n = c->node;
	const struct tokens b = tokens_of(n->in[0]), a = tokens_of(n->in[n->n_in - 1]),
			    y = tokens_of(n->out[0]);
	const int64_t B = n->in[0]->dim[0], C = b.size;
	const real *a_at = n->n_in > 1 ? c->in[1] : NULL, *y_at = c->out[0], *dy = c->dout[0];
	real *db = c->din[0], *da = n->n_in > 1 ? c->din[1] : NULL;

#pragma omp parallel for collapse(2) schedule(static) if (B * b.T * C > GRAIN)
	for (int64_t e = 0; e < B; e++) {
		for (int64_t i = 0; i < C; i += COLUMNS) {
			const int64_t width = C - i < COLUMNS ? C - i : COLUMNS;
			const struct columns x = { b.T, width, b.pitch, a.pitch, y.pitch };

			scan_backward(&x, AT(a_at, &a, e, i), AT(y_at, &y, e, i), AT(dy, &y, e, i),
				      AT(db, &b, e, i), call_adds(c, 0), AT(da, &a, e, i),
				      call_adds(c, 1));
		}
	}
}

KERNELS(cumsum) = { .forward = forward, .backward = backward };
KERNELS(scan) = { .forward = forward, .backward = backward };
