/*
 * dot: S = q.k / sqrt(D).  c_attn holds queries (H heads), keys and values (kv heads each);
 * H/kv neighbouring heads share a key and a value.
 */
#include "models/oracle/oracle.h"

static void attend(struct oracle *o, const double *x, double *scores, double *values)
{
	const int64_t T = o->T, H = o->H, D = o->D,
		      given = config_int(o->config, "ATTENTION_KV_HEADS");
	const int64_t kv = given ? given : H, all = H + 2 * kv;
	double *qkv = oracle_linear(o, "c_attn", x, o->E, all * D, o->bias);

	/* Heads H .. H + kv are the keys, which turn like queries. */
	for (int64_t h = 0; qkv && h < H + kv; h++)
		oracle_rope(o, qkv + h * D, 1, all * D, D);
	for (int64_t r = 0; qkv && r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = r % T, g = h / (H / kv);
		const double *q = qkv + ((b * T + i) * all + h) * D;

		for (int64_t j = 0; j <= i; j++)
			for (int64_t d = 0; d < D; d++)
				scores[r * T + j] += q[d] *
						     qkv[((b * T + j) * all + H + g) * D + d] /
						     sqrt((double)D);
		for (int64_t d = 0; d < D; d++)
			values[((b * T + i) * H + h) * D + d] =
				qkv[((b * T + i) * all + H + kv + g) * D + d];
	}
}

static const struct oracle_attention dot = { .name = "dot",
					     .attend = attend,
					     .projection_bias = true };
ORACLE_ATTENTION(dot);
