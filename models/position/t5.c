/*
 * t5 - score + b_h(bucket(i - j)), with a learned table b of buckets and heads.
 *
 *     bucket(d) = d                                                        for d < n = buckets / 2
 *               = n + floor(log(d / n) / log(distance / n) (buckets - n))  at most buckets - 1
 *
 * (C. Raffel et al., "Exploring the limits of transfer learning", 2020.)  As there, all layers
 * share the table.
 */
#include <math.h>

#include "models/model.h"

struct t5_options {
	int64_t buckets, distance;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct t5_options *o = options;

	(void)m;
	o->buckets = config_int(c, "T5_BUCKETS");
	o->distance = config_int(c, "T5_DISTANCE");
	if (o->buckets < 2)
		return fail(err, "T5_BUCKETS=%lld must be at least 2", (long long)o->buckets);
	if (o->distance <= o->buckets / 2)
		return fail(err, "T5_DISTANCE=%lld must be more than half of T5_BUCKETS=%lld",
			    (long long)o->distance, (long long)o->buckets);
	return OK;
}

/* Rounding must not put a distance on an edge below it. */
static const double EDGE = 1e-9;

static double bucket(const struct block *b, int64_t row, int64_t distance)
{
	const struct t5_options *o = b->m->distance_options;
	const double near = (double)(o->buckets / 2), most = (double)o->buckets - 1;
	const double d = (double)distance;

	(void)row;
	if (d < near)
		return d;
	return fmin(near + floor(log(d / near) / log((double)o->distance / near) *
					 ((double)o->buckets - near) +
				 EDGE),
		    most);
}

static struct tensor *biases(struct block *b, int64_t distances)
{
	const struct t5_options *o = b->m->distance_options;
	const int64_t H = b->m->heads;
	struct tensor *t = block_shared_table(b, "relative_attention_bias.weight", o->buckets, H);

	t = op_gather(b->g, "t5", t, block_distance_table(b, "buckets", I32, 1, distances, bucket));
	t = op_permute(b->g, "by_head", t, (const int[]){ 0, 2, 1 });
	return graph_reshape(b->g, t, 2, SHAPE(H, distances));
}

static const struct position_variant t5 = {
	.name = "t5",
	.options_size = sizeof(struct t5_options),
	.read = read,
	.biases = biases,
};
POSITION(t5);
