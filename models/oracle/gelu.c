/*
 * gelu: h = GELU(x Wfc + b), in its tanh form.
 */
#include "models/oracle/oracle.h"

static double *hidden(struct oracle *o, const double *x)
{
	double *h = oracle_linear(o, "c_fc", x, o->E, o->F, o->bias);

	for (int64_t i = 0; h && i < o->B * o->T * o->F; i++) {
		const double cube = h[i] * h[i] * h[i];

		h[i] = 0.5 * h[i] * (1 + tanh(sqrt(2 / M_PI) * (h[i] + 0.044715 * cube)));
	}
	return h;
}

static const struct oracle_ffn gelu = { .name = "gelu", .hidden = hidden, .projection_bias = true };
ORACLE_FFN(gelu);
