/*
 * mla: q = x Wq; latents ck = x Wk, cv = x Wv; ql_h = q_h U_h; S = ql.ck / sqrt(L); v_h = cv Up_h.
 * Reciprocal score, for i - j <= window: S_ij += alpha ql_j . ck_i / sqrt(L).
 */
#include "models/oracle/oracle.h"

/* y[token,h] = x[token,h] W_h, where all heads may share one x or one W. */
static double *per_head(struct oracle *o, const double *x, bool one_x, int64_t in, const double *w,
			bool one_w, int64_t out)
{
	double *y = oracle_array(o, o->B * o->T * o->H * out);

	for (int64_t r = 0; x && w && y && r < o->B * o->T * o->H; r++)
		oracle_product(x + (one_x ? r / o->H : r) * in, 1, in,
			       w + (one_w ? 0 : r % o->H * in * out), out, y + r * out);
	return y;
}

static double product(const double *a, const double *b, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static void attend(struct oracle *o, const double *x, double *scores, double *values)
{
	const int64_t T = o->T, H = o->H, D = o->D, E = o->E;
	const int64_t L = config_int(o->config, "RA_MLA_LATENT_DIM");
	const int64_t window = config_int(o->config, "RA_MLA_RA_WINDOW");
	const bool one_u = !config_bool(o->config, "MLA_PER_HEAD_Q");
	const bool one_up = !config_bool(o->config, "MLA_PER_HEAD_V");
	const bool reciprocal = config_real(o->config, "RA_MLA_RA_ALPHA") > 0;
	const double alpha = reciprocal ? oracle_alpha(o, "ra_alpha", "RA_MLA_RA_ALPHA") : 0;
	const double *u = oracle_weights(o, "q_to_latent.weight", (one_u ? 1 : H) * D * L);
	const double *up = oracle_weights(o, "v_up.weight", (one_up ? 1 : H) * L * D), *v;
	double *ck = oracle_linear(o, "k_down", x, E, L, false);
	double *cv = oracle_linear(o, "v_down", x, E, L, false);
	double *ql = per_head(o, oracle_linear(o, "q_proj", x, E, E, false), false, D, u, one_u, L);

	v = per_head(o, cv, true, L, up, one_up, D);
	oracle_latent(o, ck, L);
	if (!o->failed) { /* the latent that is read by others is not rotated */
		double *kept = oracle_array(o, o->B * T * L);

		for (int64_t i = 0; kept && i < o->B * T * L; i++)
			kept[i] = ck[i];
		o->latent = kept;
	}
	oracle_rope(o, ck, 1, L, L);
	oracle_rope(o, ql, H, L, L);
	if (o->failed)
		return;
	for (int64_t r = 0; r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = b * T + r % T;

		for (int64_t j = b * T; j <= i; j++) {
			double s = product(ql + (i * H + h) * L, ck + j * L, L);

			if (i - j <= window)
				s += alpha * product(ql + (j * H + h) * L, ck + i * L, L);
			scores[r * T + j - b * T] = s / sqrt((double)L);
		}
	}
	for (int64_t i = 0; i < o->B * T * E; i++)
		values[i] = v[i];
}

static const struct oracle_attention mla = { .name = "mla", .attend = attend };
ORACLE_ATTENTION(mla);
