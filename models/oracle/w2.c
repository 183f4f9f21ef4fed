/*
 * w2: tokens are diagonal Gaussians, per head D means and D sigmas = softplus(raw) + eps.
 * wasserstein: S = -(|mu_q - mu_k|^2 + |sigma_q - sigma_k|^2) / (|tau| + eps), rotated means;
 * overlap, m = mu / sqrt(sigma), rotated: S = m_q.m_k - |m_k|^2 / 2 - sum(log sigma_k) / 2.
 */
#include "models/oracle/oracle.h"

static void gaussians(struct oracle *o, double *x, bool overlap)
{
	const int64_t D = o->D;
	const double eps = config_real(o->config, "W2_EPS");

	for (int64_t r = 0; x && r < o->B * o->T * o->H; r++)
		for (int64_t d = 0; d < D; d++) {
			double *mean = x + r * 2 * D + d, *sigma = mean + D;

			*sigma = fmax(*sigma, 0) + log1p(exp(-fabs(*sigma))) + eps;
			if (overlap)
				*mean /= sqrt(*sigma);
		}
	oracle_rope(o, x, o->H, 2 * D, D);
}

static double distance(const double *q, const double *k, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += (q[i] - k[i]) * (q[i] - k[i]);
	return sum;
}

static double overlap_score(const double *q, const double *k, int64_t D)
{
	double sum = 0;

	for (int64_t d = 0; d < D; d++)
		sum += q[d] * k[d] - k[d] * k[d] / 2 - log(k[D + d]) / 2;
	return sum;
}

static void attend(struct oracle *o, const double *x, double *scores, double *values)
{
	const int64_t T = o->T, H = o->H, D = o->D, E = o->E;
	const bool overlap = oracle_is(o, "W2_SCORE", "overlap");
	const double eps = config_real(o->config, "W2_EPS");
	const double *tau = overlap ? NULL : oracle_weights(o, "tau", H);
	double *q = oracle_linear(o, "q_proj", x, E, 2 * E, false);
	double *k = oracle_linear(o, "k_proj", x, E, 2 * E, false);
	double *v = oracle_linear(o, "v_proj", x, E, E, false);

	gaussians(o, q, overlap);
	gaussians(o, k, overlap);
	if (o->failed)
		return;
	for (int64_t r = 0; r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = b * T + r % T;
		const double *mine = q + (i * H + h) * 2 * D;

		for (int64_t j = b * T; j <= i; j++) {
			const double *theirs = k + (j * H + h) * 2 * D;

			scores[r * T + j - b * T] =
				overlap ? overlap_score(mine, theirs, D)
					: -distance(mine, theirs, 2 * D) / (fabs(tau[h]) + eps);
		}
	}
	for (int64_t i = 0; i < o->B * T * E; i++)
		values[i] = v[i];
}

static const struct oracle_attention w2 = { .name = "w2", .attend = attend };
ORACLE_ATTENTION(w2);
