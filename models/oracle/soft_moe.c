/*
 * soft_moe: h_e = C_e SiLU(slot_e W3_e) (slot_e W1_e), r_e = s cos(x, phi_e), C = softmax of r over
 * e. slot_e = x; with MOE_PREFIX at t the mean of x_j, j <= t, weighed by softmax of r_je over j.
 */
#include "models/oracle/oracle.h"

/* r [B,T,n] */
static double *route(struct oracle *o, const double *x, int64_t n)
{
	const double *phi = oracle_weights(o, "router.weight", o->E * n);
	const double *scale = oracle_weights(o, "router_scale", 1);
	double *r = oracle_array(o, o->B * o->T * n);

	for (int64_t i = 0; phi && scale && r && i < o->B * o->T * n; i++) {
		const double *token = x + i / n * o->E;
		double product = 0, a = 1e-6, b = 1e-6;

		for (int64_t e = 0; e < o->E; e++) {
			product += token[e] * phi[e * n + i % n];
			a += token[e] * token[e];
			b += phi[e * n + i % n] * phi[e * n + i % n];
		}
		r[i] = scale[0] * product / sqrt(a * b);
	}
	return r;
}

/* What expert e reads at row and place `at`. */
static void fill_slot(const struct oracle *o, const double *x, const double *r, int64_t n,
		      int64_t at, int64_t e, double *slot)
{
	const int64_t E = o->E;
	const int64_t first = config_bool(o->config, "MOE_PREFIX") ? at / o->T * o->T : at;
	double total = 0;

	for (int64_t j = first; j <= at; j++)
		total += exp(r[j * n + e]);
	for (int64_t c = 0; c < E; c++) {
		slot[c] = 0;
		for (int64_t j = first; j <= at; j++)
			slot[c] += exp(r[j * n + e]) / total * x[j * E + c];
	}
}

static double *hidden(struct oracle *o, const double *x)
{
	const int64_t n = config_int(o->config, "MOE_EXPERTS"), width = o->F / n, E = o->E;
	const double *w1 = oracle_weights(o, "w1.weight", E * o->F);
	const double *w3 = oracle_weights(o, "w3.weight", E * o->F), *r = route(o, x, n);
	double *h = oracle_array(o, o->B * o->T * o->F), *slot = oracle_array(o, E);
	double *a = oracle_array(o, width), *b = oracle_array(o, width);

	for (int64_t i = 0; !o->failed && i < o->B * o->T * n; i++) {
		const int64_t at = i / n, e = i % n;
		double total = 0;

		for (int64_t k = 0; k < n; k++)
			total += exp(r[at * n + k]);
		fill_slot(o, x, r, n, at, e, slot);
		for (int64_t c = 0; c < width; c++)
			a[c] = b[c] = 0;
		oracle_product(slot, 1, E, w1 + e * E * width, width, a);
		oracle_product(slot, 1, E, w3 + e * E * width, width, b);
		for (int64_t c = 0; c < width; c++)
			h[at * o->F + e * width + c] =
				exp(r[i]) / total * b[c] * oracle_sigmoid(b[c]) * a[c];
	}
	return h;
}

static const struct oracle_ffn soft_moe = { .name = "soft_moe", .hidden = hidden };
ORACLE_FFN(soft_moe);
