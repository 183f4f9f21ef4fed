#include "core/backend/cpu/elementwise.h"

/*
 * Sines and cosines are costly, so they are computed only for two short lists of
 * positions: past + 0, STEP, 2 STEP, .. and 0, 1, .., STEP - 1.  The others follow
 * by the addition theorem, in double.
 */
#define STEP 32

struct turn {
	double cosine, sine;
};

static int64_t fine_positions(int64_t length)
{
	return length < STEP ? length : STEP;
}

static int64_t listed_positions(int64_t length)
{
	return fine_positions(length) + (length + STEP - 1) / STEP;
}

/* turns [listed positions, width/2]: the fine ones, then the coarse ones */
static void list_turns(const struct rope_attr *attr, int64_t past, int64_t length,
		       struct turn *turns)
{
	const int64_t half = attr->width / 2, fine = fine_positions(length);

#pragma omp for schedule(static)
	for (int64_t p = 0; p < listed_positions(length); p++) {
		const double position = (double)(p < fine ? p : past + (p - fine) * STEP);

		for (int64_t i = 0; i < half; i++) {
			double angle = position *
				       pow(attr->theta, -2 * (double)i / (double)attr->width);

			turns[p * half + i] = (struct turn){ cos(angle), sin(angle) };
		}
	}
}

/* All pairs at position past + t; `direction` is -1 to turn back. */
static void turns_at(const struct turn *turns, int64_t t, int64_t length, int64_t half,
		     real direction, real *restrict cosine, real *restrict sine)
{
	const struct turn *fine = turns + t % STEP * half;
	const struct turn *coarse = turns + (fine_positions(length) + t / STEP) * half;

	for (int64_t i = 0; i < half; i++) {
		const struct turn a = coarse[i], b = fine[i];

		cosine[i] = (real)(a.cosine * b.cosine - a.sine * b.sine);
		sine[i] = direction * (real)(a.sine * b.cosine + a.cosine * b.sine);
	}
}

static void rotate(const real *x, const real *restrict cosine, const real *restrict sine,
		   int64_t half, real *y, bool add)
{
	if (add) {
#pragma omp simd
		for (int64_t i = 0; i < half; i++) {
			y[i] += x[i] * cosine[i] - x[i + half] * sine[i];
			y[i + half] += x[i + half] * cosine[i] + x[i] * sine[i];
		}
	} else {
#pragma omp simd
		for (int64_t i = 0; i < half; i++) {
			real u = x[i], v = x[i + half];

			y[i] = u * cosine[i] - v * sine[i];
			y[i + half] = v * cosine[i] + u * sine[i];
		}
	}
}

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
	struct turn *turns = c->work;
	real *tables = (real *)(turns + listed_positions(length) * half);

#pragma omp parallel if (dim[0] * length * heads * n > GRAIN)
	{
		real *cosine = tables + omp_get_thread_num() * 2 * half, *sine = cosine + half;

		list_turns(attr, c->run->past, length, turns);
#pragma omp for schedule(static)
		for (int64_t t = 0; t < length; t++) {
			turns_at(turns, t, length, half, direction, cosine, sine);
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

/* y = R x with a rotation R, so dx = R' dy: the same turns backwards. */
static void backward(const struct call *c)
{
	apply(c, c->dout[0], layout_of(c->node->out[0]), c->din[0], layout_of(c->node->in[0]), -1,
	      call_adds(c, 0));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct rope_attr *attr = n->attr;
	const size_t half = (size_t)attr->width / 2;

	(void)pass;
	return (size_t)listed_positions(n->in[0]->dim[1]) * half * sizeof(struct turn) +
	       (size_t)threads * 2 * half * sizeof(real);
}

KERNELS(rope) = {
	.forward = forward,
	.backward = backward,
	.remake = forward,
	.workspace = workspace,
};
