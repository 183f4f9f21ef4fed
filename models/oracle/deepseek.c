/*
 * deepseek: cq = RMSNorm(x Wdq), c = RMSNorm(x Wdkv); q_h = cq Wuq_h, k_h = c U_h', v_h = c Up_h;
 * with rope also qr_h = rope(cq Wqr_h) and kr = rope(x Wkr), one for all heads.
 * S = (q.k + qr.kr) / sqrt(D + R).
 */
#include "models/oracle/oracle.h"

/* RMSNorm(x W): [tokens,width] */
static double *latent(struct oracle *o, const char *down, const char *norm, const double *x,
		      int64_t width)
{
	double *y = oracle_linear(o, down, x, o->E, width, false);
	const double *weight = oracle_weights(o, norm, width);
	const double eps = config_real(o->config, "NORM_EPS");

	for (int64_t t = 0; y && weight && t < o->B * o->T; t++) {
		double squares = 0;

		for (int64_t i = 0; i < width; i++)
			squares += y[t * width + i] * y[t * width + i] / (double)width;
		for (int64_t i = 0; i < width; i++)
			y[t * width + i] *= weight[i] / sqrt(squares + eps);
	}
	return y;
}

/* Key or value channel d of head h: sum_l c_l w[h,d,l] or w[h,l,d] */
static double lifted(const struct oracle *o, const double *c, const double *w, int64_t L, int64_t h,
		     int64_t d, bool transposed)
{
	double sum = 0;

	for (int64_t l = 0; l < L; l++)
		sum += c[l] * w[transposed ? (h * o->D + d) * L + l : (h * L + l) * o->D + d];
	return sum;
}

static void attend(struct oracle *o, const double *x, double *scores, double *values)
{
	const int64_t T = o->T, H = o->H, D = o->D, E = o->E, tokens = o->B * T;
	const int64_t L = config_int(o->config, "RA_MLA_LATENT_DIM");
	const int64_t q_given = config_int(o->config, "DEEPSEEK_QUERY_LATENT_DIM");
	const int64_t r_given = config_int(o->config, "DEEPSEEK_ROPE_DIM");
	const int64_t Q = q_given ? q_given : E > 4 ? E / 4 : 1;
	const int64_t R = !oracle_is(o, "POS", "rope") ? 0
			  : r_given		       ? r_given
			  : D > 4		       ? D / 4 * 2
						       : 2;
	const double *cq = latent(o, "q_down", "q_norm.weight", x, Q);
	const double *q = oracle_linear(o, "q_proj", cq, Q, E, false);
	double *c = latent(o, "kv_down", "kv_norm.weight", x, L);
	double *qr = R ? oracle_linear(o, "q_rope", cq, Q, H * R, false) : NULL;
	double *kr = R ? oracle_linear(o, "k_rope", x, E, R, false) : NULL;
	const double *u = oracle_weights(o, "q_to_latent.weight", H * D * L);
	const double *up = oracle_weights(o, "v_up.weight", H * L * D);
	double *k = oracle_array(o, tokens * E);

	oracle_latent(o, c, L);
	if (R) {
		oracle_rope(o, qr, H, R, R);
		oracle_rope(o, kr, 1, R, R);
	}
	if (o->failed)
		return;
	for (int64_t i = 0; i < tokens * E; i++) {
		const double *own = c + i / E * L;

		k[i] = lifted(o, own, u, L, i % E / D, i % D, true);
		values[i] = lifted(o, own, up, L, i % E / D, i % D, false);
	}
	for (int64_t r = 0; r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = b * T + r % T;

		for (int64_t j = b * T; j <= i; j++) {
			double s = 0;

			for (int64_t d = 0; d < D; d++)
				s += q[i * E + h * D + d] * k[j * E + h * D + d];
			for (int64_t d = 0; d < R; d++)
				s += qr[(i * H + h) * R + d] * kr[j * R + d];
			scores[r * T + j - b * T] = s / sqrt((double)(D + R));
		}
	}
}

static const struct oracle_attention deepseek = { .name = "deepseek", .attend = attend };
ORACLE_ATTENTION(deepseek);
