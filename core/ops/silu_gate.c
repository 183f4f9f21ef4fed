/*
 * silu_gate: y = silu(gate) * x, silu(u) = u / (1 + exp(-u)).
 * (N. Shazeer, "GLU variants improve transformer", 2020: the gate of SwiGLU.)
 */
#include "core/ops/pointwise.h"

#define SILU_LOG2_E ((real)1.4426950408889634)

FORMULA real silu_sigmoid(real x)
{
	return fast_divide(1, one_plus_exp2(-SILU_LOG2_E * x));
}

FORMULA real silu_gate_forward(const real *in, const real *k)
{
	const real gate = in[0], x = in[1];

	(void)k;
	return silu_sigmoid(gate) * gate * x;
}

/* With d = dy s: dx = d gate, dgate = d x (1 + gate (1 - s)) */
FORMULA void silu_gate_backward(const real *in, const real *k, real y, real dy, real *d)
{
	const real gate = in[0], x = in[1], s = silu_sigmoid(gate), ds = dy * s;

	(void)k, (void)y;
	d[0] = ds * x * (1 + gate * (1 - s));
	d[1] = ds * gate;
}

POINTWISE(silu_gate, 2, 0, SAVES_INPUTS, ANY, 0)
