/*
 * gla: S_t = diag(a_t) S_(t-1) + k_t' v_t, o_t = q_t S_t / sqrt(K), a_t = sigmoid(x Wd Wu +
 * b)^(1/tau); heads = RMSNorm(o_t) silu(x Ws).
 */
#include "models/oracle/oracle.h"

/* One head of one row, token after token. */
static void scan(struct oracle *o, int64_t K, int64_t first, const double *q, const double *k,
		 const double *v, const double *gate, double *state, double *out)
{
	const double tau = config_real(o->config, "GLA_TAU");

	for (int64_t t = 0; t < o->T; t++) {
		const int64_t at = first + t * o->H;

		for (int64_t c = 0; c < K; c++)
			for (int64_t d = 0; d < o->D; d++) {
				double *s = state + c * o->D + d;

				*s = pow(oracle_sigmoid(gate[at * K + c]), 1 / tau) * *s +
				     k[at * K + c] * v[at * o->D + d];
				out[at * o->D + d] += q[at * K + c] * *s / sqrt((double)K);
			}
	}
}

static void finish(struct oracle *o, const double *weight, const double *swish, double *head)
{
	const double eps = config_real(o->config, "NORM_EPS");
	double squares = 0;

	for (int64_t d = 0; d < o->D; d++)
		squares += head[d] * head[d];
	for (int64_t d = 0; d < o->D; d++)
		head[d] *= weight[d] / sqrt(squares / (double)o->D + eps) * swish[d] *
			   oracle_sigmoid(swish[d]);
}

static void mix(struct oracle *o, const double *x, double *heads)
{
	const int64_t given = config_int(o->config, "GLA_KEY_DIM"), half = o->D / 2;
	const int64_t K = given ? given : half ? half : 1, H = o->H, E = o->E;
	const int64_t rank = config_int(o->config, "GLA_GATE_RANK");
	double *q = oracle_linear(o, "q_proj", x, E, H * K, false);
	double *k = oracle_linear(o, "k_proj", x, E, H * K, false);
	double *v = oracle_linear(o, "v_proj", x, E, E, false);
	double *low = oracle_linear(o, "forget_down", x, E, rank, false);
	double *gate = oracle_linear(o, "forget_up", low, rank, H * K, true);
	double *swish = oracle_linear(o, "swish", x, E, E, false);
	const double *weight = oracle_weights(o, "o_norm.weight", o->D);
	double *states = oracle_array(o, o->B * H * K * o->D);

	if (o->failed)
		return;
	oracle_rope(o, q, H, K, K);
	oracle_rope(o, k, H, K, K);
	for (int64_t i = 0; i < o->B * H; i++)
		scan(o, K, i / H * o->T * H + i % H, q, k, v, gate, states + i * K * o->D, heads);
	for (int64_t i = 0; i < o->B * o->T * E; i += o->D)
		finish(o, weight, swish + i, heads + i);
}

static const struct oracle_attention gla = { .name = "gla", .mix = mix };
ORACLE_ATTENTION(gla);
