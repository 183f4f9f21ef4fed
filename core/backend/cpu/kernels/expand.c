/*
 * expand and sum: the forward pass of one is the backward pass of the other.
 *
 * A sum over many rows is split into parts, whose number depends only on the shape; the sums of the
 * parts are added in order.
 */
#include "core/ops/repeat.h"
#include "core/backend/cpu/elementwise.h"

static int64_t columns_of(const struct repeat *r)
{
	return r->inner < CHUNK ? r->inner : CHUNK;
}

/* Rows are summed up in so many parts: each has at least GRAIN elements. */
static int64_t part_count(const struct repeat *r)
{
	const int64_t most = r->n * columns_of(r) / GRAIN;

	return most < 1 ? 1 : most < 64 ? most : 64;
}

/* to [columns] = the sum of rows [first, last) of `inner` elements, of which it takes `columns`. */
static void sum_part(const real *x, int64_t inner, int64_t first, int64_t last, int64_t columns,
		     real *to)
{
	if (inner == 1) {
		*to = sum(x + first, last - first);
		return;
	}
	for (int64_t i = first; i < last; i++)
		put_scaled(to, i > first, 1, x + i * inner, columns);
}

/* small = f sum(large), or += */
static void put_sum(const struct repeat *r, real f, const real *large, real *small, bool add,
		    real *parts)
{
	const int64_t n_parts = part_count(r), chunks = chunk_count(r->inner);
	const int64_t tasks = r->outer * n_parts * chunks;

#pragma omp parallel for schedule(static) if (r->outer * r->n * r->inner > GRAIN)
	for (int64_t task = 0; task < tasks; task++) {
		const int64_t row = task / chunks, part = row % n_parts;
		const int64_t column = task % chunks * CHUNK;

		sum_part(large + row / n_parts * r->n * r->inner + column, r->inner,
			 r->n * part / n_parts, r->n * (part + 1) / n_parts,
			 chunk_length(column, r->inner), parts + row * r->inner + column);
	}
#pragma omp parallel for schedule(static) if (r->outer * r->inner > GRAIN)
	for (int64_t row = 0; row < r->outer; row++)
		for (int64_t part = 0; part < n_parts; part++)
			put_scaled(small + row * r->inner, add || part > 0, f,
				   parts + (row * n_parts + part) * r->inner, r->inner);
}

/* large = f small, repeated, or += */
static void put_repeated(const struct repeat *r, real f, const real *small, real *large, bool add)
{
	if (r->inner > 1) {
#pragma omp parallel for schedule(static) if (r->outer * r->n * r->inner > GRAIN)
		for (int64_t row = 0; row < r->outer * r->n; row++)
			put_scaled(large + row * r->inner, add, f, small + row / r->n * r->inner,
				   r->inner);
		return;
	}
#pragma omp parallel for schedule(static) if (r->outer * r->n > GRAIN)
	for (int64_t row = 0; row < r->outer; row++) {
		const real value = f * small[row];

#pragma omp simd
		for (int64_t i = 0; i < r->n; i++)
			large[row * r->n + i] = add ? large[row * r->n + i] + value : value;
	}
}

static size_t parts_size(const struct tensor *small, const struct tensor *large)
{
	const struct repeat r = repeat_of(small, large);

	return (size_t)(r.outer * part_count(&r) * r.inner) * sizeof(real);
}

/* --------------------------------------------------------------------- expand */

static void expand_forward(const struct call *c)
{
	const struct repeat r = repeat_of(c->node->in[0], c->node->out[0]);

	put_repeated(&r, 1, c->in[0], c->out[0], false);
}

static void expand_backward(const struct call *c)
{
	const struct repeat r = repeat_of(c->node->in[0], c->node->out[0]);

	put_sum(&r, 1, c->dout[0], c->din[0], call_adds(c, 0), c->work);
}

static size_t expand_workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD ? parts_size(n->in[0], n->out[0]) : 0;
}

KERNELS(expand) = {
	.forward = expand_forward,
	.backward = expand_backward,
	.recompute = expand_forward,
	.workspace = expand_workspace,
};

/* ------------------------------------------------------------------------ sum */

static real sum_factor(const struct call *c)
{
	return (real)((const struct sum_attr *)c->node->attr)->factor;
}

static void sum_forward(const struct call *c)
{
	const struct repeat r = repeat_of(c->node->out[0], c->node->in[0]);

	put_sum(&r, sum_factor(c), c->in[0], c->out[0], false, c->work);
}

static void sum_backward(const struct call *c)
{
	const struct repeat r = repeat_of(c->node->out[0], c->node->in[0]);

	put_repeated(&r, sum_factor(c), c->dout[0], c->din[0], call_adds(c, 0));
}

static size_t sum_workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_FORWARD ? parts_size(n->out[0], n->in[0]) : 0;
}

KERNELS(sum) = { .forward = sum_forward, .backward = sum_backward, .workspace = sum_workspace };
