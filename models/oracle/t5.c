/*
 * t5: score + b_h(bucket(i - j)).  Of n buckets the first n/2 hold one distance each; bucket
 * n/2 + k begins at the distance n/2 (distance / (n/2))^(k / (n - n/2)).
 */
#include "models/oracle/oracle.h"

static double bias(struct oracle *o, int64_t head, int64_t distance)
{
	const int64_t buckets = config_int(o->config, "T5_BUCKETS"), near = buckets / 2;
	const double *table =
		oracle_shared_weights(o, "relative_attention_bias.weight", buckets * o->H);
	const double ratio = (double)config_int(o->config, "T5_DISTANCE") / (double)near;
	int64_t n = distance < near ? distance : near;

	while (n >= near && n < buckets - 1 &&
	       (double)near * pow(ratio, (double)(n + 1 - near) / (double)(buckets - near)) <=
		       (double)distance * (1 + 1e-12))
		n++;
	return table ? table[n * o->H + head] : 0;
}

static const struct oracle_position t5 = { .name = "t5", .bias = bias };
ORACLE_POSITION(t5);
