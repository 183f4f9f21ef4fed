/*
 * gated - h = SiLU(x W3) (x W1), elementwise, for swiglu and ws.
 */
#ifndef MODELS_ORACLE_GATED_H
#define MODELS_ORACLE_GATED_H

#include "models/oracle/oracle.h"

static inline double *oracle_gated(struct oracle *o, const double *x, double **h1)
{
	double *h = oracle_linear(o, "w3", x, o->E, o->F, false);

	*h1 = oracle_linear(o, "w1", x, o->E, o->F, false);
	for (int64_t i = 0; *h1 && i < o->B * o->T * o->F; i++)
		h[i] = h[i] * oracle_sigmoid(h[i]) * (*h1)[i];
	return h;
}

#endif
