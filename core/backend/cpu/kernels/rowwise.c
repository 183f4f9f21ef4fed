/*
 * The kernels of all row-wise ops (core/ops/rowwise.h).  A thread takes whole rows, a few at a
 * time, so that rows of a causal mask are dealt out evenly.
 */
#include "core/backend/cpu/formulas.h"

#define ROWS_AT_A_TIME 8

struct rowwise {
	struct row_mask mask;
	int64_t rows, queries, n; /* n: elements of a row */
};

static struct rowwise open_rowwise(const struct call *c)
{
	const struct tensor *x = c->node->in[0];
	const int64_t n = tensor_dim(x, -1);

	return (struct rowwise){
		.mask = *(const struct row_mask *)c->node->attr,
		.rows = tensor_count(x) / n,
		.queries = x->ndim > 1 ? tensor_dim(x, -2) : 1,
		.n = n,
	};
}

typedef real (*term_formula)(real x, real m);
typedef real (*forward_formula)(real x, real e, real m, real s);
typedef real (*back_term_formula)(real x, real y, real dy);
typedef real (*backward_formula)(real x, real y, real dy, real t);

static real row_max(const real *x, int64_t n)
{
	real lane[LANES], most = x[0];
	int64_t i = LANES;

	for (int l = 0; l < LANES; l++)
		lane[l] = x[l < n ? l : 0];
	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] = larger(x[i + l], lane[l]);
	for (int l = 0; l < LANES; l++)
		most = larger(lane[l], most);
	for (; i < n; i++)
		most = larger(x[i], most);
	return most;
}

/* e_j = term(x_j, m), and their sum; `keeps`: e is written */
FORMULA real sum_terms(term_formula term, bool keeps, const real *restrict x, real m, int64_t n,
		       real *restrict e)
{
	real lane[LANES] = { 0 }, total;
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++) {
			const real value = term(x[i + l], m);

			lane[l] += value;
			if (keeps)
				e[i + l] = value;
		}
	total = sum_lanes(lane);
	for (; i < n; i++) {
		const real value = term(x[i], m);

		total += value;
		if (keeps)
			e[i] = value;
	}
	return total;
}

static void clear(real *x, int64_t first, int64_t last)
{
	if (last > first)
		memset(x + first, 0, (size_t)(last - first) * sizeof(*x));
}

FORMULA void forward_row(term_formula term, forward_formula f, int shape, int reductions,
			 const struct rowwise *p, int64_t row, const real *x, real *y)
{
	const real *restrict from = x + row * p->n;
	real *restrict to = y + (shape == PER_ROW ? row : row * p->n);
	int64_t first, last;
	real m = 0, s = 0;

	ROW_RANGE(p->mask, row, p->queries, p->n, &first, &last);
	if (reductions & ROW_MAX)
		m = row_max(from + first, last - first);
	if (reductions & ROW_SUM)
		s = sum_terms(term, shape == PER_ELEMENT, from + first, m, last - first,
			      shape == PER_ELEMENT ? to + first : NULL);
	if (shape == PER_ROW) {
		*to = f(0, 0, m, s);
		return;
	}
	clear(to, 0, first);
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		to[i] = f(from[i], reductions & ROW_SUM ? to[i] : 0, m, s);
	clear(to, last, p->n);
}

struct gradients {
	const real *x, *y, *dy; /* x, y: NULL if they are not saved */
	real *dx;
	bool add;
};

FORMULA real sum_back_terms(back_term_formula term, int shape, const real *restrict x,
			    const real *restrict y, const real *restrict dy, int64_t first,
			    int64_t last)
{
	real lane[LANES] = { 0 }, total;
	int64_t i = first;

#define BACK_TERM(j) \
	term(x ? x[j] : 0, y ? y[shape == PER_ROW ? 0 : (j)] : 0, dy[shape == PER_ROW ? 0 : (j)])
	for (; i + LANES <= last; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] += BACK_TERM(i + l);
	total = sum_lanes(lane);
	for (; i < last; i++)
		total += BACK_TERM(i);
	return total;
}

/* dx may be written over dy. */
FORMULA void backward_row(back_term_formula term, backward_formula f, int shape, int reductions,
			  int saves, const struct rowwise *p, int64_t row,
			  const struct gradients *g)
{
	const int64_t at = shape == PER_ROW ? row : row * p->n;
	const real *x = saves & SAVES_INPUTS ? g->x + row * p->n : NULL;
	const real *y = saves & SAVES_OUTPUT ? g->y + at : NULL, *dy = g->dy + at;
	real *dx = g->dx + row * p->n;
	int64_t first, last;
	real t = 0;

	ROW_RANGE(p->mask, row, p->queries, p->n, &first, &last);
	if (reductions & GRADIENT_SUM)
		t = sum_back_terms(term, shape, x, y, dy, first, last);
	if (!g->add) {
		clear(dx, 0, first);
		clear(dx, last, p->n);
	}
#pragma omp simd
	for (int64_t i = first; i < last; i++) {
		const int64_t j = shape == PER_ROW ? 0 : i;
		const real d = f(saves & SAVES_INPUTS ? x[i] : 0, saves & SAVES_OUTPUT ? y[j] : 0,
				 dy[j], t);

		dx[i] = g->add ? dx[i] + d : d;
	}
}

/* The loops stand in functions of their own, so that each formula becomes part of its loop. */
#define EACH_ROW                                                                                     \
	_Pragma("omp parallel for schedule(static, ROWS_AT_A_TIME) if (p.rows * p.n > GRAIN)") for ( \
		int64_t row = 0; row < p.rows; row++)
#define ROWWISE(name, shape, reductions, saves, flops)                                             \
	static void name##_forward_kernel(const struct call *c)                                    \
	{                                                                                          \
		const struct rowwise p = open_rowwise(c);                                          \
		const real *x = c->in[0];                                                          \
		real *y = c->out[0];                                                               \
                                                                                                   \
		EACH_ROW forward_row(name##_term, name##_forward, shape, reductions, &p, row, x,   \
				     y);                                                           \
	}                                                                                          \
	static void name##_backward_kernel(const struct call *c)                                   \
	{                                                                                          \
		const struct rowwise p = open_rowwise(c);                                          \
		const struct gradients g = { c->in[0], c->out[0], c->dout[0], c->din[0],           \
					     call_adds(c, 0) };                                    \
                                                                                                   \
		EACH_ROW backward_row(name##_back_term, name##_backward, shape, reductions, saves, \
				      &p, row, &g);                                                \
	}                                                                                          \
	KERNELS(name) = { .forward = name##_forward_kernel, .backward = name##_backward_kernel };

#include "generated/rowwise_formulas.h"
