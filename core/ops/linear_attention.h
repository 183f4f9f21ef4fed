/*
 * The sizes of linear attention, and the chunks in which kernels compute it.
 *
 * A chunk has tokens 1..C and begins with the state S.  With L_i the sum of the decays up to token
 * i, everything in a chunk is a product of matrices:
 *     Q~_i = q_i exp(L_i),  K~_i = k_i exp(L_i),  K^_i = k_i exp(L_C - L_i)
 *     A_ij = sum_c q_ic k_jc exp(L_ic - L_jc) for j <= i,  M_ij the same of k_i for j < i
 *     u_i  = beta_i r_i,  r_i = v_i - S K~_i - sum_j M_ij u_j  (without the delta rule r_i = v_i)
 *     o_i  = S Q~_i + sum_j A_ij u_j
 *     the next S = S diag(exp(L_C)) + sum_i u_i K^_i'
 * No exponent is positive, so nothing overflows.  A chunk of one token is a step of the scan.
 *
 * Backward goes from the last chunk to the first.  Each begins with the state that the forward pass
 * saved and computes u again.  d is the gradient of the next S:
 *     du_i = sum_j A_ji do_j + d K^_i - sum_(j>i) M_ji dr_j,  dr_i = beta_i du_i = dv_i
 *     dbeta_i = du_i.r_i,  dA_ij = do_i.u_j,  dM_ij = -dr_i.u_j
 *     dS = d diag(exp(L_C)) + sum_i do_i Q~_i' - sum_i dr_i K~_i'
 * and dq, dk follow.  A q_i comes with exp(L_i - ..), and a k_j with exp(.. - L_j), or as the left
 * factor of M with exp(L_j - ..).  So dL_i = q_i dq_i + k_i (dk_i on the left - dk_i on the right),
 * and dL_C has the sum over rows of d * (the next S) in addition.  ddecay_t is the sum of dL_i, i
 * >= t.
 */
#ifndef OPS_LINEAR_ATTENTION_H
#define OPS_LINEAR_ATTENTION_H

#include "core/ops/ops.h"

#define LINEAR_ATTENTION_CHUNK 64

enum { LA_Q, LA_K, LA_V, LA_DECAY, LA_BETA, LA_INPUTS };

struct linear_attention_sizes {
	int64_t B, T, H, K, D;
	int64_t G;    /* decays per head: 0, 1 or K */
	int64_t C, n; /* tokens of a chunk, chunks of an example */
	bool delta;
};

static inline struct linear_attention_sizes linear_attention_sizes_of(const struct node *n)
{
	const int64_t *q = n->in[LA_Q]->dim;
	const struct tensor *decay = n->n_in > LA_DECAY ? n->in[LA_DECAY] : NULL;
	const int64_t C = q[1] < LINEAR_ATTENTION_CHUNK ? q[1] : LINEAR_ATTENTION_CHUNK;
	const struct linear_attention_sizes s = {
		.B = q[0],
		.T = q[1],
		.H = q[2],
		.K = q[3],
		.D = n->in[LA_V]->dim[3],
		.G = !decay		? 0
		     : decay->ndim == 4 ? q[3]
					: 1,
		.C = C,
		.n = (q[1] + C - 1) / C,
		.delta = ((const struct linear_attention_attr *)n->attr)->delta,
	};

	return s;
}

#endif
