/*
 * w2cov: tokens are Gaussians with covariances C = A A', A = (a 0; c b), of D/2 pairs of channels;
 * S = -(squared 2-Wasserstein distance) / (|tau| + eps), from the eigenvalues of C_q C_k, which are
 * those of C_q^1/2 C_k C_q^1/2.
 */
#include "models/oracle/oracle.h"

struct matrix {
	double xx, xy, yy;
};

/* Means [B,T,H,D], and covariances [B,T,E/2]. */
struct gaussians {
	double *means;
	struct matrix *c;
};

static double positive(const struct oracle *o, double x)
{
	return fmax(x, 0) + log1p(exp(-fabs(x))) + config_real(o->config, "W2COV_EPS");
}

static struct gaussians gaussians(struct oracle *o, const char *const name[4], const double *x)
{
	const int64_t half = o->E / 2, n = o->B * o->T * half;
	struct gaussians g = { oracle_linear(o, name[0], x, o->E, o->E, false),
			       (struct matrix *)oracle_array(o, 3 * n) };
	const double *a = oracle_linear(o, name[1], x, o->E, half, false);
	const double *b = oracle_linear(o, name[2], x, o->E, half, false);
	const double *c = oracle_linear(o, name[3], x, o->E, half, false);

	oracle_rope(o, g.means, o->H, o->D, o->D);
	for (int64_t i = 0; !o->failed && i < n; i++) {
		const double first = positive(o, a[i]), second = positive(o, b[i]);

		g.c[i] = (struct matrix){ first * first, first * c[i],
					  c[i] * c[i] + second * second };
	}
	return g;
}

/* tr (P + Q - 2 (P^1/2 Q P^1/2)^1/2) */
static double distance(struct matrix p, struct matrix q)
{
	const double trace = p.xx * q.xx + 2 * p.xy * q.xy + p.yy * q.yy;
	const double det = (p.xx * p.yy - p.xy * p.xy) * (q.xx * q.yy - q.xy * q.xy);
	const double large = (trace + sqrt(fmax(trace * trace - 4 * det, 0))) / 2;

	return p.xx + p.yy + q.xx + q.yy - 2 * (sqrt(large) + sqrt(det / large));
}

static void attend(struct oracle *o, const double *x, double *scores, double *values)
{
	static const char *const queries[] = { "q_proj", "q_a", "q_b", "q_c" };
	static const char *const keys[] = { "k_proj", "k_a", "k_b", "k_c" };
	const int64_t T = o->T, H = o->H, D = o->D, E = o->E;
	const double eps = config_real(o->config, "W2COV_EPS");
	const double *tau = oracle_weights(o, "tau", H);
	const struct gaussians q = gaussians(o, queries, x), k = gaussians(o, keys, x);
	const double *v = oracle_linear(o, "v_proj", x, E, E, false);

	for (int64_t at = 0; !o->failed && at < o->B * H * T * T; at++) {
		const int64_t b = at / (H * T * T), h = at / (T * T) % H;
		const int64_t i = (b * T + at / T % T) * H + h, j = (b * T + at % T) * H + h;
		double sum = 0;

		for (int64_t d = 0; d < D; d++)
			sum += pow(q.means[i * D + d] - k.means[j * D + d], 2);
		for (int64_t p = 0; p < D / 2; p++)
			sum += distance(q.c[i * D / 2 + p], k.c[j * D / 2 + p]);
		scores[at] = -sum / (fabs(tau[h]) + eps);
	}
	for (int64_t i = 0; !o->failed && i < o->B * T * E; i++)
		values[i] = v[i];
}

static const struct oracle_attention w2cov = { .name = "w2cov", .attend = attend };
ORACLE_ATTENTION(w2cov);
