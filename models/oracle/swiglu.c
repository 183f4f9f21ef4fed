/*
 * swiglu: h = SiLU(x W3) (x W1).
 */
#include "models/oracle/gated.h"

static double *hidden(struct oracle *o, const double *x)
{
	double *h1;

	return oracle_gated(o, x, &h1);
}

static const struct oracle_ffn swiglu = { .name = "swiglu", .hidden = hidden };
ORACLE_FFN(swiglu);
