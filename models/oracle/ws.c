/*
 * ws: swiglu, and losses on h1 = x W1.  z = h1 Wz, in n heads of F/n channels.
 * L_Z = lambda_z mean of |z_head|^2 over tokens and heads.  L_C = lambda_c mean over i of
 * logsumexp_j(s_ij / tau) - s_ii / tau, s the cosines of the means of z over a row, B n vectors.
 */
#include "models/oracle/gated.h"

/* Wz is dense, or one block per head. */
static double *project(struct oracle *o, double *h1, int64_t n)
{
	const bool blocks = config_bool(o->config, "WS_Z_BLOCKS");
	const int64_t F = o->F, width = F / n;
	const double *w = oracle_weights(o, "z_proj.weight", blocks ? F * width : F * F);
	double *z = oracle_array(o, o->B * o->T * F);

	if (!h1 || o->failed)
		return NULL;
	if (!blocks)
		oracle_product(h1, o->B * o->T, F, w, F, z);
	for (int64_t r = 0; blocks && r < o->B * o->T * n; r++)
		oracle_product(h1 + r * width, 1, width, w + r % n * width * width, width,
			       z + r * width);
	return z;
}

/* The mean of z over each row, with length 1: [B,n,F/n] */
static double *unit_means(struct oracle *o, const double *z, int64_t width)
{
	const int64_t F = o->F;
	double *u = oracle_array(o, o->B * F);

	for (int64_t i = 0; u && i < o->B * o->T * F; i++)
		u[i / (o->T * F) * F + i % F] += z[i] / (double)o->T;
	for (int64_t first = 0; u && first < o->B * F; first += width) {
		double squares = 0;

		for (int64_t i = first; i < first + width; i++)
			squares += u[i] * u[i];
		for (int64_t i = first; i < first + width; i++)
			u[i] /= fmax(sqrt(squares), 1e-8);
	}
	return u;
}

static double contrast(const double *u, int64_t vectors, int64_t width, double tau)
{
	double mean = 0;

	for (int64_t i = 0; i < vectors; i++) {
		double sum = 0, own = 0;

		for (int64_t j = 0; j < vectors; j++) {
			double s = 0;

			for (int64_t c = 0; c < width; c++)
				s += u[i * width + c] * u[j * width + c];
			own = i == j ? s / tau : own;
			sum += exp((s - 1) / tau); /* no cosine is above 1 */
		}
		mean += (log(sum) + 1 / tau - own) / (double)vectors;
	}
	return mean;
}

static double *hidden(struct oracle *o, const double *x)
{
	const int64_t n = config_int(o->config, "WS_HEADS"), width = o->F / n;
	double *h1, *h = oracle_gated(o, x, &h1), *z, *u, squares = 0;

	if (!config_bool(o->config, "WS_AUX"))
		return h;
	z = project(o, h1, n);
	u = z ? unit_means(o, z, width) : NULL;
	if (!u)
		return NULL;
	for (int64_t i = 0; i < o->B * o->T * o->F; i++)
		squares += z[i] * z[i];
	oracle_add_loss(o, "aux_z",
			config_real(o->config, "WS_LAMBDA_Z") * squares /
				(double)(o->B * o->T * n));
	if (o->B * n > 1)
		oracle_add_loss(
			o, "aux_c",
			config_real(o->config, "WS_LAMBDA_C") *
				contrast(u, o->B * n, width, config_real(o->config, "WS_TAU")));
	return h;
}

static const struct oracle_ffn ws = { .name = "ws", .hidden = hidden };
ORACLE_FFN(ws);
