/*
 * ws: swiglu, and losses on h1 = x W1.  z = h1 Wz, in n heads of F/n channels.
 * L_Z = lambda_z mean of |z_head|^2 over tokens and heads.  L_C = lambda_c mean over i of
 * logsumexp_j(s_ij / tau) - s_ii / tau, s the cosines of the means of z over a row, B n vectors;
 * with halves s_ij is that of mean i of the first half and mean j of the second. L_L = lambda_l
 * mean over targets of logsumexp(a) - a[target], a = z Wl W', W = wte or lm_head.
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

/* The mean of z over n places of each row, with length 1: [B,n,F/n] */
static double *unit_means(struct oracle *o, const double *z, int64_t width, int64_t at, int64_t n)
{
	const bool whole = n == o->T && !oracle_is(o, "WS_POSITIVES", "halves");
	const int64_t F = o->F;
	double *u = oracle_array(o, o->B * F);

	for (int64_t i = 0; u && i < o->B * o->T * F; i++)
		if (i / F % o->T >= at && i / F % o->T < at + n)
			u[i / (o->T * F) * F + i % F] += z[i] / (double)n;
	for (int64_t first = 0; u && first < o->B * F; first += width) {
		double squares = 0, length;

		for (int64_t i = first; i < first + width; i++)
			squares += u[i] * u[i];
		length = whole ? fmax(sqrt(squares), 1e-8) : sqrt(squares + 1e-6);
		for (int64_t i = first; i < first + width; i++)
			u[i] /= length;
	}
	return u;
}

static double contrast(const double *u, const double *v, int64_t vectors, int64_t width, double tau)
{
	double mean = 0;

	for (int64_t i = 0; i < vectors; i++) {
		double sum = 0, own = 0;

		for (int64_t j = 0; j < vectors; j++) {
			double s = 0;

			for (int64_t c = 0; c < width; c++)
				s += u[i * width + c] * v[j * width + c];
			own = i == j ? s / tau : own;
			sum += exp((s - 1) / tau); /* no cosine is above 1 */
		}
		mean += (log(sum) + 1 / tau - own) / (double)vectors;
	}
	return mean;
}

static double contrast_of(struct oracle *o, const double *z, int64_t n)
{
	const bool halves = oracle_is(o, "WS_POSITIVES", "halves");
	const int64_t places = halves ? (o->T + 1) / 2 : o->T;
	const double *u = unit_means(o, z, o->F / n, 0, places);
	const double *v = unit_means(o, z, o->F / n, o->T - places, places);

	return u && v ? contrast(u, v, o->B * n, o->F / n, config_real(o->config, "WS_TAU")) : 0;
}

static double target_loss(struct oracle *o, const double *z)
{
	const bool tied = config_bool(o->config, "MODEL_TIE_HEAD");
	const double *w =
		oracle_shared_weights(o, tied ? "wte.weight" : "lm_head.weight", o->V * o->E);
	const double *x = oracle_linear(o, "z_logits", z, o->F, o->E, false);
	double sum = 0, scored = 0;

	for (int64_t r = 0; w && x && r < o->B * o->T; r++) {
		double total = 0, own = 0;

		if (o->targets[r] < 0)
			continue;
		for (int64_t v = 0; v < o->V; v++) {
			double a = 0;

			for (int64_t e = 0; e < o->E; e++)
				a += x[r * o->E + e] * w[v * o->E + e];
			total += exp(a);
			own = v == o->targets[r] ? a : own;
		}
		sum += log(total) - own;
		scored++;
	}
	return sum / scored;
}

static double *hidden(struct oracle *o, const double *x)
{
	const int64_t n = config_int(o->config, "WS_HEADS");
	double *h1, *h = oracle_gated(o, x, &h1), *z, squares = 0;

	if (!config_bool(o->config, "WS_AUX"))
		return h;
	z = project(o, h1, n);
	if (!z)
		return NULL;
	for (int64_t i = 0; i < o->B * o->T * o->F; i++)
		squares += z[i] * z[i];
	oracle_add_loss(o, "aux_z",
			config_real(o->config, "WS_LAMBDA_Z") * squares /
				(double)(o->B * o->T * n));
	if (o->B * n > 1)
		oracle_add_loss(o, "aux_c",
				config_real(o->config, "WS_LAMBDA_C") * contrast_of(o, z, n));
	if (config_real(o->config, "WS_LAMBDA_LOGITS") > 0)
		oracle_add_loss(o, "aux_l",
				config_real(o->config, "WS_LAMBDA_LOGITS") * target_loss(o, z));
	return h;
}

static const struct oracle_ffn ws = { .name = "ws", .hidden = hidden };
ORACLE_FFN(ws);
