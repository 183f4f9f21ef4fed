#include "core/backend/cpu/elementwise.h"
#include "core/ops/gather_sizes.h"

/* The row that pick number `pick` means, in the tables of all examples; -1: none. */
static int64_t row_of(const struct gather_sizes *s, const int32_t *index, int64_t pick)
{
	const int64_t number = index[pick];

	return number >= 0 && number < s->rows ? pick / s->picks * s->rows + number : -1;
}

/* picked[r] = table[index[r]], or += */
static void read_rows(const struct gather_sizes *s, const int32_t *index, const real *table,
		      real *picked, bool add)
{
	const int64_t picks = s->examples * s->picks;

#pragma omp parallel for schedule(static) if (picks * s->width > GRAIN)
	for (int64_t pick = 0; pick < picks; pick++) {
		const int64_t row = row_of(s, index, pick);
		real *to = picked + pick * s->width;

		if (row >= 0)
			put_scaled(to, add, 1, table + row * s->width, s->width);
		else if (!add)
			memset(to, 0, (size_t)s->width * sizeof(real));
	}
}

/*
 * table[index[r]] += picked[r], in the order of r; unless `add`, from 0.  Each thread owns a range
 * of channels, so no thread waits.
 */
static void add_rows(const struct gather_sizes *s, const int32_t *index, const real *picked,
		     real *table, bool add)
{
	const int64_t picks = s->examples * s->picks;

#pragma omp parallel if (picks * s->width > GRAIN)
	{
		int64_t first, last;

		thread_share(s->width, &first, &last);
		for (int64_t row = 0; !add && row < s->examples * s->rows; row++)
			memset(table + row * s->width + first, 0,
			       (size_t)(last - first) * sizeof(real));
		for (int64_t pick = 0; pick < picks; pick++) {
			const int64_t row = row_of(s, index, pick);

			if (row >= 0)
				put_scaled(table + row * s->width + first, true, 1,
					   picked + pick * s->width + first, last - first);
		}
	}
}

static void gather_forward(const struct call *c)
{
	const struct gather_sizes s = gather_sizes_of(c->node->in[0], c->node->in[1]);

	read_rows(&s, c->in[1], c->in[0], c->out[0], false);
}

static void gather_backward(const struct call *c)
{
	const struct gather_sizes s = gather_sizes_of(c->node->in[0], c->node->in[1]);

	add_rows(&s, c->in[1], c->dout[0], c->din[0], call_adds(c, 0));
}

static void scatter_forward(const struct call *c)
{
	const struct gather_sizes s = gather_sizes_of(c->node->out[0], c->node->in[1]);

	add_rows(&s, c->in[1], c->in[0], c->out[0], false);
}

static void scatter_backward(const struct call *c)
{
	const struct gather_sizes s = gather_sizes_of(c->node->out[0], c->node->in[1]);

	read_rows(&s, c->in[1], c->dout[0], c->din[0], call_adds(c, 0));
}

KERNELS(gather) = { .forward = gather_forward, .backward = gather_backward };
KERNELS(scatter) = { .forward = scatter_forward, .backward = scatter_backward };
