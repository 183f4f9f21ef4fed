/*
 * matmul - the three products of op matmul, for its kernels.
 *
 *     y = op(A) op(B),  dA = dy op(B)' or its transpose,  dB = op(A)' dy or its transpose
 *
 * Each is a batch of products of matrices, batch[0] x batch[1] of them.  A stride of 0: all share
 * the matrix; if it is the product, it sums up theirs.
 */
#ifndef CORE_OPS_MATMUL_H
#define CORE_OPS_MATMUL_H

#include "core/ops/ops.h"

struct matmul_matrix {
	int64_t pitch, stride[2];
};

struct matmul_sizes {
	int64_t m, n, k; /* of op(A) [m,k] op(B) [k,n] */
	bool transpose_a, transpose_b;
	int64_t batch[2];
	struct matmul_matrix a, b, y;
};

/* left [m,k] right [k,n], each transposed on request */
struct matmul_product {
	int64_t m, n, k;
	bool transpose_left, transpose_right;
	int64_t batch[2];
	struct matmul_matrix left, right, out;
};

/* Dimension `outer` places before the last two; 1 if there is none. */
static inline int64_t matmul_batch(const struct tensor *t, int outer)
{
	return t->ndim > 2 + outer ? t->dim[t->ndim - 3 - outer] : 1;
}

static inline int64_t matmul_pitch(const struct tensor *t)
{
	return tensor_contiguous(t) ? tensor_dim(t, -1) : t->pitch;
}

static inline struct matmul_matrix matmul_matrix_of(const struct tensor *t, int64_t pitch)
{
	const int64_t size = tensor_dim(t, -2) * pitch;
	const int64_t inner = matmul_batch(t, 0), outer = matmul_batch(t, 1);
	struct matmul_matrix x;

	x.pitch = pitch;
	x.stride[0] = outer > 1 ? inner * size : 0;
	x.stride[1] = inner > 1 ? size : 0;
	return x;
}

/* Removes the inner dimension of the batch: it has size 1, or has become part of m. */
static inline void matmul_drop_inner(struct matmul_sizes *s)
{
	struct matmul_matrix *const all[] = { &s->a, &s->b, &s->y };

	s->batch[1] = s->batch[0];
	s->batch[0] = 1;
	for (int i = 0; i < 3; i++) {
		all[i]->stride[1] = all[i]->stride[0];
		all[i]->stride[0] = 0;
	}
}

static inline bool matmul_is_even(const struct matmul_matrix *x, int64_t inner)
{
	return x->stride[0] == inner * x->stride[1];
}

/*
 * The sizes, where the rows of A and B are so many elements apart.  Matrices of A that share one of
 * B are one matrix with more rows; two dimensions of the batch are one where the strides allow it.
 */
static inline struct matmul_sizes matmul_sizes_of(const struct node *n, int64_t a_pitch,
						  int64_t b_pitch)
{
	const struct matmul_attr *attr = (const struct matmul_attr *)n->attr;
	struct matmul_sizes s;

	s.m = tensor_dim(n->out[0], -2);
	s.n = tensor_dim(n->out[0], -1);
	s.k = tensor_dim(n->in[0], attr->transpose_a ? -2 : -1);
	s.transpose_a = attr->transpose_a;
	s.transpose_b = attr->transpose_b;
	s.batch[0] = matmul_batch(n->out[0], 1);
	s.batch[1] = matmul_batch(n->out[0], 0);
	s.a = matmul_matrix_of(n->in[0], a_pitch);
	s.b = matmul_matrix_of(n->in[1], b_pitch);
	s.y = matmul_matrix_of(n->out[0], s.n);
	for (int i = 0; i < 2; i++) {
		const bool rows =
			!s.transpose_a && s.b.stride[1] == 0 && s.a.stride[1] == s.m * s.a.pitch;

		if (s.batch[1] > 1 && !rows)
			break;
		s.m *= s.batch[1];
		matmul_drop_inner(&s);
	}
	if (matmul_is_even(&s.a, s.batch[1]) && matmul_is_even(&s.b, s.batch[1])) {
		s.batch[1] *= s.batch[0];
		s.batch[0] = 1;
	}
	return s;
}

static inline struct matmul_product matmul_forward(const struct matmul_sizes *s)
{
	return (struct matmul_product){
		s->m, s->n, s->k, s->transpose_a, s->transpose_b, { s->batch[0], s->batch[1] },
		s->a, s->b, s->y
	};
}

/* dA = dy op(B)' [m,k], or A' is transposed: op(B) dy' [k,m] */
static inline struct matmul_product matmul_backward_a(const struct matmul_sizes *s)
{
	const bool t = s->transpose_a;

	return (struct matmul_product){
		t ? s->k : s->m,     t ? s->m : s->k,	   s->n,
		t && s->transpose_b, t || !s->transpose_b, { s->batch[0], s->batch[1] },
		t ? s->b : s->y,     t ? s->y : s->b,	   s->a
	};
}

/* dB = op(A)' dy [k,n], or B' is transposed: dy' op(A) [n,k] */
static inline struct matmul_product matmul_backward_b(const struct matmul_sizes *s)
{
	const bool t = s->transpose_b;

	return (struct matmul_product){
		t ? s->n : s->k,      t ? s->k : s->n,	   s->m,
		t || !s->transpose_a, t && s->transpose_a, { s->batch[0], s->batch[1] },
		t ? s->y : s->a,      t ? s->a : s->y,	   s->b
	};
}

#endif
