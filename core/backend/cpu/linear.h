/*
 * linear - the products of ops with a linear map, y [N,O] = x [N,I] W, whose weight is input 1:
 *
 *     y = f x W        dx = f dy W'        dW = f x' dy        each may be added to what is there
 */
#ifndef CPU_LINEAR_H
#define CPU_LINEAR_H

#include "core/backend/cpu/gemm.h"
#include "core/ops/linear_sizes.h"

static inline void linear_forward(const struct call *c, const struct linear_sizes *s, void *work,
				  real f, const real *x, bool add, real *y)
{
	const struct multiplier by = multiplier_of(c, work);

	product(&by, packed_copy(c, s->transposed), false, s->transposed, s->n, s->o, s->i, f, x,
		s->x_pitch, c->in[1], s->w_pitch, add, y, s->o);
}

static inline void linear_to_x(const struct call *c, const struct linear_sizes *s, void *work,
			       real f, const real *dy, bool add, real *dx)
{
	const struct multiplier by = multiplier_of(c, work);

	product(&by, packed_copy(c, !s->transposed), false, !s->transposed, s->n, s->i, s->o, f, dy,
		s->o, c->in[1], s->w_pitch, add, dx, s->x_pitch);
}

static inline void linear_to_weight(const struct call *c, const struct linear_sizes *s, void *work,
				    real f, const real *x, const real *dy, bool add, real *dw)
{
	const struct multiplier by = multiplier_of(c, work);

	if (s->transposed)
		product(&by, NOT_PACKED, true, false, s->o, s->i, s->n, f, dy, s->o, x, s->x_pitch,
			add, dw, s->i);
	else
		product(&by, NOT_PACKED, true, false, s->i, s->o, s->n, f, x, s->x_pitch, dy, s->o,
			add, dw, s->o);
}

/* Bytes of `work`: of the largest product of the pass. */
static inline size_t linear_work(const struct node *n, const struct linear_sizes *s, enum pass pass,
				 int threads)
{
	const bool packed = keeps_copies(n->in[1]);
	size_t to_x, to_weight;

	if (pass == PASS_FORWARD)
		return product_work(s->n, s->o, s->i, packed, threads);
	to_x = product_work(s->n, s->i, s->o, packed, threads);
	to_weight = s->transposed ? product_work(s->o, s->i, s->n, false, threads)
				  : product_work(s->i, s->o, s->n, false, threads);
	return to_x > to_weight ? to_x : to_weight;
}

/* The copy of the weight that the products of a pass read. */
static inline size_t linear_copies(const struct node *n, const struct linear_sizes *s,
				   enum pass pass, int input, int which)
{
	const int wanted = s->transposed ^ (pass == PASS_BACKWARD);

	return which == wanted ? copy_bytes(n, input, which) : 0;
}

#endif
