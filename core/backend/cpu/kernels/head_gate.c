#include "core/backend/cpu/elementwise.h"

struct shape {
	int64_t batch, length, heads, width;
	int64_t rows;	     /* batch * length * heads, of `width` channels */
	int64_t gate_length; /* length or 1 */
};

static struct shape shape_of(const struct node *n)
{
	const int64_t *o = n->in[0]->dim;

	return (struct shape){ o[0], o[1], o[2], o[3], o[0] * o[1] * o[2], n->in[1]->dim[1] };
}

/* The element of the gate that serves a row. */
static int64_t gate_at(const struct shape *s, int64_t row)
{
	const int64_t head = row % s->heads, token = row / s->heads;

	return s->gate_length == 1 ? token / s->length * s->heads + head : row;
}

static void forward(const struct call *c)
{
	const struct shape s = shape_of(c->node);
	const real a = factor(c, 2);
	const real *o = c->in[0], *gate = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (s.rows * s.width > GRAIN)
	for (int64_t r = 0; r < s.rows; r++)
		put_scaled(y + r * s.width, false, 1 - a + a * gate[gate_at(&s, r)],
			   o + r * s.width, s.width);
}

/* dgate = a sum of the dots of its rows: one row, or one per position */
static void gate_gradient(const struct shape *s, const real *dots, real a, real *dgate, bool add)
{
	if (s->gate_length == s->length) {
		put_scaled(dgate, add, a, dots, s->rows);
		return;
	}
	for (int64_t b = 0; b < s->batch; b++)
		for (int64_t t = 0; t < s->length; t++)
			put_scaled(dgate + b * s->heads, add || t > 0, a,
				   dots + (b * s->length + t) * s->heads, s->heads);
}

static double factor_gradient(const struct shape *s, const real *dots, const real *gate)
{
	double total = 0;

	for (int64_t r = 0; r < s->rows; r++)
		total += (double)(dots[r] * (gate[gate_at(s, r)] - 1));
	return total;
}

static void backward(const struct call *c)
{
	const struct shape s = shape_of(c->node);
	const real a = factor(c, 2);
	const real *o = c->in[0], *gate = c->in[1], *dy = c->dout[0];
	real *d_o = c->din[0], *dgate = c->din[1], *da = c->din[2];
	real *dots = c->work; /* dy . o per row */

	/* y = o (1 - a + a gate) */
#pragma omp parallel for schedule(static) if (s.rows * s.width > GRAIN)
	for (int64_t r = 0; r < s.rows; r++) {
		const int64_t at = r * s.width;

		dots[r] = dot(dy + at, o + at, s.width);
		if (d_o)
			put_scaled(d_o + at, call_adds(c, 0), 1 - a + a * gate[gate_at(&s, r)],
				   dy + at, s.width);
	}
	if (dgate)
		gate_gradient(&s, dots, a, dgate, call_adds(c, 1));
	if (da)
		put(da, call_adds(c, 2), (real)factor_gradient(&s, dots, gate));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD ? (size_t)shape_of(n).rows * sizeof(real) : 0;
}

KERNELS(head_gate) = {
	.forward = forward,
	.backward = backward,
	.recompute = forward,
	.workspace = workspace,
};
