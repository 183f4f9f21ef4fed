/*
 * delta: S_t = a_t S_(t-1) + b_t k_t' (v_t - k_t a_t S_(t-1)), o_t = q_t S_t; heads = RMSNorm(o_t)
 * silu(x Ws).
 */
#include "models/oracle/oracle.h"

/* SiLU of the last tokens of x W, weighed per channel: [B,T,width] */
static double *convolution(struct oracle *o, const char *role, const double *x, int64_t width)
{
	const int64_t taps = config_int(o->config, "DELTA_CONV"), n = o->B * o->T * width;
	double *y = oracle_array(o, n);
	char name[24];

	snprintf(name, sizeof(name), "%s_proj", role);
	x = oracle_linear(o, name, x, o->E, width, false);
	for (int64_t tap = 0; tap < taps; tap++) {
		const double *w;

		snprintf(name, sizeof(name), "%s_conv.%d", role, (int)tap);
		w = oracle_weights(o, name, width);
		for (int64_t i = 0; !o->failed && i < n; i++)
			if (i / width % o->T >= tap)
				y[i] += w[i % width] * x[i - tap * width];
	}
	for (int64_t i = 0; !o->failed && i < n; i++)
		y[i] *= oracle_sigmoid(y[i]);
	return y;
}

/* Queries or keys of length 1: [B,T,H,K] */
static double *unit(struct oracle *o, const char *role, const double *x, int64_t K)
{
	double *y = convolution(o, role, x, o->H * K);

	for (double *head = y; !o->failed && head < y + o->B * o->T * o->H * K; head += K) {
		double squares = 1e-6;

		for (int64_t c = 0; c < K; c++)
			squares += head[c] * head[c];
		for (int64_t c = 0; c < K; c++)
			head[c] /= sqrt(squares);
	}
	oracle_rope(o, y, o->H, K, K);
	return y;
}

/* One token of one head: S [K,D] forgets, learns that k means v, and answers q. */
static void step(int64_t K, int64_t D, const double *q, const double *k, const double *v, double a,
		 double write, double *S, double *out)
{
	for (int64_t d = 0; d < D; d++) {
		double known = 0;

		for (int64_t c = 0; c < K; c++)
			known += k[c] * (S[c * D + d] *= a);
		for (int64_t c = 0; c < K; c++) {
			S[c * D + d] += write * k[c] * (v[d] - known);
			out[d] += q[c] * S[c * D + d];
		}
	}
}

static void finish(struct oracle *o, const double *weight, const double *swish, double *head)
{
	double squares = 0;

	for (int64_t d = 0; d < o->D; d++)
		squares += head[d] * head[d];
	for (int64_t d = 0; d < o->D; d++)
		head[d] *= weight[d] * swish[d] * oracle_sigmoid(swish[d]) /
			   sqrt(squares / (double)o->D + config_real(o->config, "NORM_EPS"));
}

static void mix(struct oracle *o, const double *x, double *heads)
{
	const int64_t given = config_int(o->config, "DELTA_KEY_DIM"), half = o->D / 2;
	const int64_t K = given ? given : half ? half : 1, H = o->H, E = o->E, D = o->D;
	const double *q = unit(o, "q", x, K), *k = unit(o, "k", x, K);
	const double *v = convolution(o, "v", x, E);
	const double *dt = oracle_linear(o, "dt", x, E, H, true);
	const double *beta = oracle_linear(o, "beta", x, E, H, false);
	const double *swish = oracle_linear(o, "swish", x, E, E, false);
	const double *weight = oracle_weights(o, "o_norm.weight", D);
	const double *rate = oracle_weights(o, "a_log", H);
	double *states = oracle_array(o, o->B * H * K * D);

	for (int64_t at = 0; !o->failed && at < o->B * o->T * H; at++) {
		const int64_t h = at % H, row = at / H / o->T;
		const double a = exp(-exp(rate[h]) * log1p(exp(dt[at])));

		step(K, D, q + at * K, k + at * K, v + at * D, a, oracle_sigmoid(beta[at]),
		     states + (row * H + h) * K * D, heads + at * D);
		finish(o, weight, swish + at * D, heads + at * D);
	}
}

static const struct oracle_attention delta = { .name = "delta", .mix = mix };
ORACLE_ATTENTION(delta);
