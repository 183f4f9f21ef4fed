/*
 * score - what an attention score is.  Every kernel that computes or recomputes one includes this.
 *
 *     score_ij = cap(scale q_i.k_j + key_bias_j + distance_bias_h(i - j)
 *                    + band scale q_j.k_i [i - j <= band_window])      if query i sees key j
 *     cap(s)   = softcap tanh(s / softcap), or s where softcap is 0
 *     i sees j if j <= i and (i - j < window or j < sinks); without a window, if j <= i
 *
 * Terms of a score:
 *
 *     key_bias       a number per key, from the model (W2 attention)
 *     distance_bias  a number per head and distance i - j, from the model: ALiBi, T5's buckets, or
 *                    any function of the distance that ops can express.  So a term of this kind is
 *                    a file in models/position/, and needs no kernel.
 *     band           the reciprocal score (models/attention/mla.c)
 *     softcap        below; all other terms are added before it
 *     window, sinks  below: a sliding window, and first keys that stay visible
 *                    (I. Beltagy et al., 2020; G. Xiao et al., 2023)
 *
 * Backward: dS_ij = P_ij (dP_ij - delta_i) cap'(.) is the derivative with respect to the sum inside
 * cap(); the gradient of distance_bias_h(d) is the sum of dS_ij over all examples and i - j = d.
 */
#ifndef CORE_OPS_SCORE_H
#define CORE_OPS_SCORE_H

#ifndef SCORE_INDEX
#define SCORE_INDEX static inline
#endif

struct score_window {
	int64_t size;  /* keys that a query sees, itself included; 0: all */
	int64_t sinks; /* first keys that are always seen */
};

/* The first key in the window of the query at position i. */
SCORE_INDEX int64_t score_window_start(struct score_window w, int64_t i)
{
	return w.size > 0 && i >= w.size ? i - w.size + 1 : 0;
}

/* The first key that it sees. */
SCORE_INDEX int64_t score_first_key(struct score_window w, int64_t i)
{
	return w.sinks > 0 ? 0 : score_window_start(w, i);
}

#endif

/* For each type `real` of a backend, with its fast_tanh() and larger(). */
#ifdef FORMULA
FORMULA real score_cap(real s, real softcap, real inverse_softcap)
{
	return softcap * fast_tanh(s * inverse_softcap);
}

/* cap'(s) from cap(s); 0 for keys that are not seen, whose score is -infinity. */
FORMULA real score_cap_slope(real capped, real inverse_softcap)
{
	const real u = larger(capped * inverse_softcap, -1);

	return (1 - u) * (1 + u);
}
#endif
