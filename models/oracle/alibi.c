/*
 * alibi: score - slope_h (i - j); slopes 2^(-8i/m), i = 1..m, with m the power of two <= H; then
 * every second one of 2m.
 */
#include "models/oracle/oracle.h"

static double bias(struct oracle *o, int64_t head, int64_t distance)
{
	int64_t m = 1;

	while (2 * m <= o->H)
		m *= 2;
	if (head < m)
		return -pow(2, -8.0 * (double)(head + 1) / (double)m) * (double)distance;
	return -pow(2, -8.0 * (double)(2 * (head - m) + 1) / (double)(2 * m)) * (double)distance;
}

static const struct oracle_position alibi = { .name = "alibi", .bias = bias };
ORACLE_POSITION(alibi);
