#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/rotary.h"

/* Where head number `head`, counted over all tokens, begins. */
static int64_t head_offset(int64_t head, int64_t width, int64_t row, int64_t pitch)
{
	const int64_t per_row = row / width;

	return head / per_row * pitch + head % per_row * width;
}

/* A tensor [B,T,H,n] whose rows may be apart. */
struct layout {
	int64_t row, pitch;
};

static void apply(const struct call *c, const real *x, struct layout from, real *y,
		  struct layout to, real direction, bool add)
{
	const struct rope_attr *attr = c->node->attr;
	const int64_t *dim = c->node->in[0]->dim;
	const int64_t length = dim[1], heads = dim[2], n = dim[3], half = attr->width / 2;
	struct rotation *rotations = c->work;
	real *tables = (real *)(rotations + listed_positions(length) * half);

#pragma omp parallel if (dim[0] * length * heads * n > GRAIN)
	{
		real *cosine = tables + omp_get_thread_num() * 2 * half, *sine = cosine + half;

		list_rotations(attr->theta, attr->width, c->run->past, length, rotations);
#pragma omp for schedule(static)
		for (int64_t t = 0; t < length; t++) {
			rotations_at(rotations, t, length, half, direction, cosine, sine);
			for (int64_t i = 0; i < dim[0] * heads; i++) {
				int64_t head = (i / heads * length + t) * heads + i % heads;
				const real *u = x + head_offset(head, n, from.row, from.pitch);
				real *v = y + head_offset(head, n, to.row, to.pitch);

				rotate(u, cosine, sine, half, v, add);
				put_scaled(v + 2 * half, add, 1, u + 2 * half, n - 2 * half);
			}
		}
	}
}

static struct layout layout_of(const struct tensor *t)
{
	return (struct layout){ t->row, t->pitch };
}

static void forward(const struct call *c)
{
	apply(c, c->in[0], layout_of(c->node->in[0]), c->out[0], layout_of(c->node->out[0]), 1,
	      false);
}

/* y = R x with a rotation R, so dx = R' dy: the same rotations backwards. */
static void backward(const struct call *c)
{
	apply(c, c->dout[0], layout_of(c->node->out[0]), c->din[0], layout_of(c->node->in[0]), -1,
	      call_adds(c, 0));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct rope_attr *attr = n->attr;

	(void)pass;
	return rotations_bytes(n->in[0]->dim[1], attr->width / 2, threads);
}

KERNELS(rope) = {
	.forward = forward,
	.backward = backward,
	.recompute = forward,
	.workspace = workspace,
};
