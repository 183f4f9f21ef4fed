/*
 * Every thread makes the products of its own range of rows, over all matrices of the batch.  What
 * several matrices of a batch share sums up their products in order.
 */
#include "core/ops/matmul.h"
#include "core/backend/cpu/gemm.h"

/* Rows [first, last) of one matrix, the sum of products with other matrices of the batch. */
struct rows {
	const real *left, *right;
	real *out;
	int64_t first, last;
	bool add;
};

static int64_t offset(const struct matmul_matrix *x, const int64_t at[2])
{
	return at[0] * x->stride[0] + at[1] * x->stride[1];
}

/* Is dimension d of the batch summed up? */
static bool is_summed(const struct matmul_product *p, int d)
{
	return p->out.stride[d] == 0 && p->batch[d] > 1;
}

/* The matrix `at` of the result; dimensions that are summed up start at 0. */
static void multiply_rows(const struct matmul_product *p, const struct multiplier *by,
			  const struct rows *r, const int64_t at[2])
{
	const int64_t end[2] = { is_summed(p, 0) ? p->batch[0] : at[0] + 1,
				 is_summed(p, 1) ? p->batch[1] : at[1] + 1 };
	real *out = r->out + offset(&p->out, at) + r->first * p->out.pitch;
	bool add = r->add;

	for (int64_t i = at[0]; i < end[0]; i++)
		for (int64_t j = at[1]; j < end[1]; j++) {
			const int64_t from[2] = { i, j };

			product(by, NOT_PACKED, p->transpose_left, p->transpose_right,
				r->last - r->first, p->n, p->k, 1,
				r->left + offset(&p->left, from) +
					r->first * (p->transpose_left ? 1 : p->left.pitch),
				p->left.pitch, r->right + offset(&p->right, from), p->right.pitch,
				add, out, p->out.pitch);
			add = true;
		}
}

static size_t thread_work(const struct matmul_product *p)
{
	return product_work(p->m, p->n, p->k, false, 1);
}

static void multiply(const struct call *c, const struct matmul_product *p, const real *left,
		     const real *right, real *out, bool add)
{
	const int64_t inner = is_summed(p, 1) ? 1 : p->batch[1];
	const int64_t matrices = (is_summed(p, 0) ? 1 : p->batch[0]) * inner;
	const size_t bytes = thread_work(p);

#pragma omp parallel if (p->batch[0] * p->batch[1] * p->m * p->n * p->k / 16 > GRAIN)
	{
		const struct multiplier by = multiplier_of(
			c, bytes ? (char *)c->work + (size_t)omp_get_thread_num() * bytes : NULL);
		int64_t row, end;

		thread_share(matrices * p->m, &row, &end);
		while (row < end) {
			const int64_t matrix = row / p->m,
				      at[2] = { matrix / inner, matrix % inner };
			const int64_t first = row % p->m, left_over = end - row;
			const int64_t last = left_over < p->m - first ? first + left_over : p->m;

			multiply_rows(p, &by, &(struct rows){ left, right, out, first, last, add },
				      at);
			row += last - first;
		}
	}
}

static struct matmul_sizes sizes_of(const struct node *n)
{
	return matmul_sizes_of(n, matmul_pitch(n->in[0]), matmul_pitch(n->in[1]));
}

static void forward(const struct call *c)
{
	const struct matmul_sizes s = sizes_of(c->node);
	const struct matmul_product p = matmul_forward(&s);

	multiply(c, &p, c->in[0], c->in[1], c->out[0], false);
}

static void backward(const struct call *c)
{
	const struct matmul_sizes s = sizes_of(c->node);
	const struct matmul_product da = matmul_backward_a(&s), db = matmul_backward_b(&s);
	const void *a = c->in[0], *b = c->in[1], *dy = c->dout[0];

	if (c->din[0])
		multiply(c, &da, s.transpose_a ? b : dy, s.transpose_a ? dy : b, c->din[0],
			 call_adds(c, 0));
	if (c->din[1])
		multiply(c, &db, s.transpose_b ? dy : a, s.transpose_b ? a : dy, c->din[1],
			 call_adds(c, 1));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct matmul_sizes s = sizes_of(n);
	const struct matmul_product y = matmul_forward(&s), da = matmul_backward_a(&s),
				    db = matmul_backward_b(&s);
	size_t bytes = thread_work(pass == PASS_BACKWARD ? &da : &y);

	if (pass == PASS_BACKWARD && thread_work(&db) > bytes)
		bytes = thread_work(&db);
	return (size_t)threads * bytes;
}

KERNELS(matmul) = { .forward = forward, .backward = backward, .workspace = workspace };
