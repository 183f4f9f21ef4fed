/*
 * differential: two causal softmaxes per head, of the first and of the second half of its queries
 * and keys; their difference weighs the values, and the result is normalised.
 */
#include "models/oracle/oracle.h"

/* Probabilities of the keys 0..i of query i of head h of row b. */
static void attend(const struct oracle *o, const double *q, const double *k, int64_t b, int64_t h,
		   int64_t i, double *p)
{
	const int64_t d = o->D / 2, half = o->E / 2;
	double most = -INFINITY, sum = 0;

	for (int64_t j = 0; j <= i; j++) {
		p[j] = 0;
		for (int64_t c = 0; c < d; c++)
			p[j] += q[(b * o->T + i) * half + h * d + c] *
				k[(b * o->T + j) * half + h * d + c] / sqrt((double)d);
		most = fmax(most, p[j]);
	}
	for (int64_t j = 0; j <= i; j++)
		sum += p[j] = exp(p[j] - most);
	for (int64_t j = 0; j <= i; j++)
		p[j] /= sum;
}

/* Columns [first, first + E/2) of x W, rotated: [B,T,H,D/2] */
static double *half(struct oracle *o, const double *whole, int64_t first)
{
	const int64_t n = o->E / 2;
	double *x = oracle_array(o, o->B * o->T * n);

	for (int64_t i = 0; x && whole && i < o->B * o->T * n; i++)
		x[i] = whole[i / n * o->E + first + i % n];
	oracle_rope(o, x, o->H, o->D / 2, o->D / 2);
	return x;
}

static double exponent(struct oracle *o, const char *q, const char *k)
{
	const double *x = oracle_weights(o, q, o->D / 2), *y = oracle_weights(o, k, o->D / 2);
	double sum = 0;

	for (int64_t i = 0; x && y && i < o->D / 2; i++)
		sum += x[i] * y[i];
	return exp(sum);
}

static void normalise(const struct oracle *o, double *head, const double *weight, double factor)
{
	double squares = 0;

	for (int64_t d = 0; d < o->D; d++)
		squares += head[d] * head[d] / (double)o->D;
	for (int64_t d = 0; d < o->D; d++)
		head[d] *= factor * weight[d] / sqrt(squares + config_real(o->config, "NORM_EPS"));
}

static void mix(struct oracle *o, const double *x, double *heads)
{
	const int64_t T = o->T, H = o->H, D = o->D, E = o->E;
	const double init = 0.8 - 0.6 * exp(-0.3 * (double)o->layer);
	const double *q = oracle_linear(o, "q_proj", x, E, E, false);
	const double *k = oracle_linear(o, "k_proj", x, E, E, false);
	const double *v = oracle_linear(o, "v_proj", x, E, E, false);
	const double *q1 = half(o, q, 0), *q2 = half(o, q, E / 2);
	const double *k1 = half(o, k, 0), *k2 = half(o, k, E / 2);
	const double lambda = exponent(o, "lambda_q1", "lambda_k1") -
			      exponent(o, "lambda_q2", "lambda_k2") + init;
	const double *weight = oracle_weights(o, "subln.weight", D);
	double *p = oracle_array(o, o->B * H * T * T), *p2 = oracle_array(o, T);

	for (int64_t r = 0; !o->failed && r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = r % T;

		attend(o, q1, k1, b, h, i, p + r * T);
		attend(o, q2, k2, b, h, i, p2);
		for (int64_t j = 0; j <= i; j++)
			p[r * T + j] -= lambda * p2[j];
	}
	oracle_drop(o, "probabilities_dropped", p, o->B * H * T * T);
	for (int64_t r = 0; !o->failed && r < o->B * H * T; r++) {
		const int64_t b = r / (H * T), h = r / T % H, i = r % T;
		double *head = heads + ((b * T + i) * H + h) * D;

		for (int64_t j = 0; j <= i; j++)
			for (int64_t d = 0; d < D; d++)
				head[d] += p[r * T + j] * v[((b * T + j) * H + h) * D + d];
		normalise(o, head, weight, 1 - init);
	}
}

static const struct oracle_attention differential = { .name = "differential", .mix = mix };
ORACLE_ATTENTION(differential);
