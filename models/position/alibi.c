/*
 * alibi - score - slope_h (i - j), with slopes that fall geometrically from head to head.
 * (O. Press et al., "Train short, test long", 2022.)
 */
#include <math.h>
#include <stdlib.h>

#include "models/model.h"

/* 2^(-8i/m), i = 1..m, with m the power of two <= H; then every second one of 2m. */
static double slope(int64_t h, int64_t H)
{
	int64_t m = 1;

	while (2 * m <= H)
		m *= 2;
	return h < m ? exp2(-8.0 * (double)(h + 1) / (double)m)
		     : exp2(-4.0 * (double)(2 * (h - m) + 1) / (double)m);
}

static double bias(const struct block *b, int64_t h, int64_t distance)
{
	return -slope(h, b->m->heads) * (double)distance;
}

static struct tensor *biases(struct block *b, int64_t distances)
{
	return block_distance_table(b, "alibi", b->g->type, b->m->heads, distances, bias);
}

static const struct position_variant alibi = { .name = "alibi", .biases = biases };
POSITION(alibi);
