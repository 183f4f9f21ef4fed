/*
 * ops - the operations that a model is made of.
 *
 * Every function adds one node to the graph and returns its (first) output.
 * Gradients, memory and device are the engine's business.  Letters: B batch,
 * T positions, E width, H heads, D head width, F hidden width, V vocabulary.
 * A tensor argument marked "or NULL" is optional.  Kernels read the attribute
 * structs.
 */
#ifndef CORE_OPS_OPS_H
#define CORE_OPS_OPS_H

#include "core/engine/graph.h"

/*
 * y = table[tokens] + positions[past..]; table [V,E], positions [>=T,E] or NULL,
 * tokens i32 [B,T].  `past`: the number of earlier tokens if runs continue
 * each other, else 0.
 */
struct tensor *op_embedding(struct graph *g, const char *name, struct tensor *table,
			    struct tensor *positions, struct tensor *tokens);

/* y = x W + b: x [..,I], W [I,O], b [O] or NULL. */
struct tensor *op_linear(struct graph *g, const char *name, struct tensor *x, struct tensor *w,
			 struct tensor *b);

/* y = x W': x [..,I], W [O,I].  The same W may also serve op_linear(). */
struct tensor *op_linear_transposed(struct graph *g, const char *name, struct tensor *x,
				    struct tensor *w);

struct linear_attr {
	bool transposed;
};

/*
 * y_h = x_h W_h for every head (or diagonal block) h: W [H,I,O];
 * x [B,T,H,I], or [B,T,I] which all heads read; y [B,T,H,O].
 */
struct tensor *op_head_linear(struct graph *g, const char *name, struct tensor *x,
			      struct tensor *w);

/*
 * y = [a | b | ..]: n matrices with the same rows, or vectors, beside each other, of these widths.
 * An absent one gives zeros.
 */
struct tensor *op_concat(struct graph *g, const char *name, int n, struct tensor *const *in,
			 const int64_t *width);

struct concat_attr {
	int64_t width[OP_MAX_INPUTS];
};

/*
 * y = op(a) op(b), where op transposes the last two dimensions on request: a [..,M,K], b [..,K,N],
 * y [..,M,N].  Leading dimensions broadcast.
 */
struct matmul_attr {
	bool transpose_a, transpose_b;
};
struct tensor *op_matmul(struct graph *g, const char *name, struct tensor *a, bool transpose_a,
			 struct tensor *b, bool transpose_b);

/* Dimension i of y is dimension order[i] of x.  (Channels are split off by graph_slice().) */
struct permute_attr {
	int order[TENSOR_MAX_DIMS];
};
struct tensor *op_permute(struct graph *g, const char *name, struct tensor *x, const int *order);

/*
 * x repeated to a shape, by NumPy's rule: along dimensions of size 1, and along leading dimensions
 * that x does not have.
 */
struct expand_attr {
	int64_t ndim, dim[TENSOR_MAX_DIMS];
};
struct tensor *op_expand(struct graph *g, const char *name, struct tensor *x, int ndim,
			 const int64_t *dim);

/* Expands *a and *b to the shape that both broadcast to; leaves them alone if there is none. */
void op_broadcast(struct graph *g, const char *name, struct tensor **a, struct tensor **b);

/* Sum and mean over a dimension, counted from the end when negative; it keeps size 1. */
struct sum_attr {
	double factor;
	int64_t dim;
};
struct tensor *op_sum(struct graph *g, const char *name, struct tensor *x, int dim);
struct tensor *op_mean(struct graph *g, const char *name, struct tensor *x, int dim);

/*
 * The keys that each query of x [..,queries,keys] sees: all, those up to its own, or the last
 * `window` of these.  The last query is at the last key.
 */
enum mask_kind { MASK_NONE, MASK_CAUSAL, MASK_WINDOW };
struct row_mask {
	int64_t window;
	enum mask_kind kind;
};
#define UNMASKED ((struct row_mask){ .kind = MASK_NONE })
#define CAUSAL ((struct row_mask){ .kind = MASK_CAUSAL })
#define CAUSAL_WINDOW(n) ((struct row_mask){ .kind = MASK_WINDOW, .window = (n) })

/* Over the last dimension; rowwise.h says how to write such an op.  logsumexp keeps size 1. */
struct tensor *op_softmax(struct graph *g, const char *name, struct tensor *x,
			  struct row_mask mask);
struct tensor *op_logsumexp(struct graph *g, const char *name, struct tensor *x,
			    struct row_mask mask);

/* Maximum over a dimension, which keeps size 1. */
struct tensor *op_max(struct graph *g, const char *name, struct tensor *x, int dim);

/* y = a + b, a - b, a * b, a / b, max(a, b); the shapes may differ if they broadcast. */
struct tensor *op_add(struct graph *g, const char *name, struct tensor *a, struct tensor *b);
struct tensor *op_subtract(struct graph *g, const char *name, struct tensor *a, struct tensor *b);
struct tensor *op_multiply(struct graph *g, const char *name, struct tensor *a, struct tensor *b);
struct tensor *op_divide(struct graph *g, const char *name, struct tensor *a, struct tensor *b);
struct tensor *op_maximum(struct graph *g, const char *name, struct tensor *a, struct tensor *b);

/* Functions of every element; pointwise.h says how to write one. */
struct pointwise_attr {
	double k[2];
};
struct tensor *op_exp(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_log(struct graph *g, const char *name, struct tensor *x);   /* x > 0 */
struct tensor *op_rsqrt(struct graph *g, const char *name, struct tensor *x); /* 1 / sqrt, x > 0 */
struct tensor *op_square(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_abs(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_tanh(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_relu(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_silu(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_sigmoid(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_scale(struct graph *g, const char *name, struct tensor *x, double constant);
struct tensor *op_add_constant(struct graph *g, const char *name, struct tensor *x,
			       double constant);
/* log(1 + exp(x)) + eps */
struct tensor *op_softplus(struct graph *g, const char *name, struct tensor *x, double eps);

/* A factor is a constant or, if given, the parameter `learned` [1]. */
struct factor_attr {
	double constant;
};

/* y = a + factor * b; the shapes may differ if they broadcast. */
struct tensor *op_add_scaled(struct graph *g, const char *name, struct tensor *a, struct tensor *b,
			     double constant, struct tensor *learned);

/*
 * y = a + factor * x W: a [..,O], x [..,I], W [I,O]; or y = a + factor * x W': W [O,I], transposed.
 * a is no part of x or W.  Inputs a, W, x, factor.
 */
struct tensor *op_add_linear(struct graph *g, const char *name, struct tensor *a, struct tensor *x,
			     struct tensor *w, bool transposed, double constant,
			     struct tensor *learned);

struct add_linear_attr {
	struct factor_attr factor; /* first: it is read as that of every node with a factor */
	bool transposed;
};

enum norm_kind { NORM_LAYER, NORM_RMS };

struct norm_attr {
	enum norm_kind kind;
	double eps;
};

/*
 * s = x + residual, y = norm(s) * w + b over the last dimension.
 * residual, b or NULL; `sum`, or NULL, receives s (x itself when there is no
 * residual).  Ops norm_residual: inputs x, residual, w, b, outputs s, y,
 * statistics [rows,2] (mean, 1/deviation); norm: inputs x, w, b, outputs y, statistics.
 */
struct tensor *op_norm(struct graph *g, const char *name, enum norm_kind kind, double eps,
		       struct tensor *x, struct tensor *residual, struct tensor *w,
		       struct tensor *b, struct tensor **sum);

struct rope_attr {
	double theta;
	int64_t width;
};

/*
 * Rotate the pairs (i, i + width/2) of the first `width` channels of
 * x [B,T,H,n] by the angle (past + t) * theta^(-2i/width); the other channels pass.
 */
struct tensor *op_rope(struct graph *g, const char *name, struct tensor *x, double theta,
		       int64_t width);

/*
 * x [B,T,..] of this run and of all earlier ones.  If runs continue each
 * other: state [B,capacity,..] with this run's rows at past .. past + T - 1;
 * else x itself.
 */
struct tensor *op_cache(struct graph *g, const char *name, struct tensor *x);

/* The same of up to CACHE_MOST tensors at once, which the results replace; NULL stays NULL. */
#define CACHE_MOST 3
void op_cache_all(struct graph *g, const char *name, struct tensor **const x[], int n);

/*
 * If runs continue each other: the last `window` tokens before x [B,T,..],
 * then x: [B,window+T,..]; values before the first token are undefined.
 * Else x itself.
 */
struct recent_tokens_attr {
	int64_t window;
};
struct tensor *op_recent_tokens(struct graph *g, const char *name, struct tensor *x,
				int64_t window);

/* GELU in its tanh form. */
struct tensor *op_gelu(struct graph *g, const char *name, struct tensor *x);

/* y = gelu(x W + b): x [..,I], W [I,O], b [O] or NULL. */
struct tensor *op_linear_gelu(struct graph *g, const char *name, struct tensor *x, struct tensor *w,
			      struct tensor *b);

/* y = gelu(x W + b) V + c: x [..,I], W [I,F], b [F] or NULL, V [F,O], c [O] or NULL. */
struct tensor *op_linear_gelu_linear(struct graph *g, const char *name, struct tensor *x,
				     struct tensor *w, struct tensor *b, struct tensor *v,
				     struct tensor *c);

/* silu(gate) * x */
struct tensor *op_silu_gate(struct graph *g, const char *name, struct tensor *gate,
			    struct tensor *x);

/* Zero with this probability, else divide by 1 - probability; x itself when not training. */
struct dropout_attr {
	double probability;
};
struct tensor *op_dropout(struct graph *g, const char *name, struct tensor *x, double probability);

/*
 * How head probabilities become a routing matrix R [T,T]: the mean or the
 * maximum over heads, made sparse per row, optionally divided by max(row sum,
 * 1e-8).  No gradient flows through R.
 */
enum route_mode { ROUTE_NONE, ROUTE_TOPK, ROUTE_RMS, ROUTE_DENSE };

struct route_attr {
	enum route_mode mode;
	int64_t k;  /* topk: entries kept per row (at most T); ties: smaller index */
	double tau; /* rms: keep entries >= tau * rms of the row over the keys it may see */
	bool normalize;
	bool head_maximum; /* else mean over heads */
};

/*
 * Causal attention of queries i = past .. past + T - 1 to the tokens up to their own: softmax over
 * j of score_ij (core/ops/score.h), dropout, times v_j.
 */
struct attention_attr {
	double scale;
	int64_t band_window;   /* < 0: no reciprocal term */
	double band;	       /* its weight, unless learned */
	int64_t window, sinks; /* a query sees `window` keys (0: all) and the first `sinks` */
	double softcap;	       /* 0: none */
	double dropout;
	struct route_attr route;
};

/* S = T; or, where runs continue each other, the capacity: k, v and key_bias come from op_cache().
 */
struct attention_inputs {
	struct tensor *q;	 /* [B,T,H,K] */
	struct tensor *k;	 /* [B,S,G,K], H a multiple of G: heads share keys in groups */
	struct tensor *v;	 /* [B,S,G',D], H a multiple of G' */
	struct tensor *key_bias; /* [B,S,G] or NULL */
	struct tensor *band;	 /* learned weight [1] or NULL */
	struct tensor
		*recent; /* q as op_recent_tokens() gives it, for the reciprocal term; NULL: q */
	struct tensor *distance_bias; /* [H,S], by i - j; or NULL */
};

struct attention_outputs {
	struct tensor *o;	     /* [B,T,H,D] */
	struct tensor *lse;	     /* logsumexp of the scores [B,H,T] */
	struct tensor *route_index;  /* ROUTE_TOPK: i32 [B,T,k], -1 where a row has fewer keys */
	struct tensor *route_weight; /* ROUTE_TOPK: [B,T,k] */
};

struct attention_outputs op_attention(struct graph *g, const char *name,
				      const struct attention_attr *attr,
				      const struct attention_inputs *in);

/* y [B,T,F] = R x with R from ROUTE_TOPK: x [B,S,F]. */
struct tensor *op_mix_topk(struct graph *g, const char *name, struct tensor *x,
			   struct tensor *route_index, struct tensor *route_weight);

/*
 * y [B,T,F] = R x, x [B,S,F], with R (rms or dense) recomputed in blocks from the attention's
 * inputs and lse.
 */
struct tensor *op_mix_rows(struct graph *g, const char *name, struct tensor *x,
			   const struct attention_attr *attr, const struct attention_inputs *in,
			   struct tensor *lse);

struct probe_attr {
	struct attention_attr attention;
	int64_t window; /* of the reciprocity */
};

/* What op_attention_probe() measures, by index. */
enum probe_metric {
	PROBE_ENTROPY,	   /* nats, mean over examples, heads and queries */
	PROBE_RECIPROCITY, /* Pearson correlation of the content scores M_ij and M_ji over j < i,
			      i - j <= window, pooled per head, mean over heads */
	PROBE_KEPT,	   /* routing: mean kept entries per row */
	PROBE_MASS,	   /* ... and the probability mass they hold */
	PROBE_MARGIN,	   /* ... and the smallest relative distance of an entry from the other side
			      of the choice (topk: (w_k - w_k+1) / w_k; rms: |w - t| / t, t the
			      threshold; 1 where there is no choice) */
	PROBE_SPREAD,	   /* ... and the standard deviation of the kept entries over rows */
	PROBE_METRICS
};

/*
 * Metrics of an attention, without gradient: [PROBE_METRICS].  query_bias
 * [B,T,H], or NULL, is added to the content score, which includes neither the
 * band, nor the bias of distances, nor cap and mask.
 */
struct tensor *op_attention_probe(struct graph *g, const char *name,
				  const struct attention_attr *attr,
				  const struct attention_inputs *in, struct tensor *query_bias,
				  struct tensor *lse, int64_t window);

/* Mean over positions s <= t; x [B,T,C]. */
struct tensor *op_running_mean(struct graph *g, const char *name, struct tensor *x);

/*
 * Scans over positions, x [B,T,..]; if runs continue each other, so does a scan.
 * cumsum: y_t = y_(t-1) + x_t.  scan: y_t = a_t y_(t-1) + b_t, equal shapes.  y_(-1) = 0.
 */
struct tensor *op_cumsum(struct graph *g, const char *name, struct tensor *x);
struct tensor *op_scan(struct graph *g, const char *name, struct tensor *a, struct tensor *b);

/* y_t = x_(t - distance), x [B,T,..]; `fill` where there is no such token.  distance >= 0. */
struct shift_attr {
	int64_t distance;
	double fill;
};
struct tensor *op_shift(struct graph *g, const char *name, struct tensor *x, int64_t distance,
			double fill);

/*
 * Rows by number: x [N,C], index i32 [..] -> y [..,C]; or per example x [B,N,C], index [B,M] ->
 * y [B,M,C].  A number outside [0, N) gives a row of zeros.
 */
struct tensor *op_gather(struct graph *g, const char *name, struct tensor *x, struct tensor *index);

/*
 * The sum of all rows with a number: x [..,C], index i32 [..] -> y [rows,C]; or, if `per_example`,
 * x [B,M,C], index [B,M] -> y [B,rows,C].  Rows with a number outside [0, rows) are dropped.
 */
struct scatter_attr {
	int64_t rows;
	bool per_example;
};
struct tensor *op_scatter(struct graph *g, const char *name, struct tensor *x, struct tensor *index,
			  int64_t rows, bool per_example);

/*
 * Linear attention: a scan with a state S [D,K] per head, S_(-1) = 0.
 *     S'_t = S_(t-1) diag(exp(decay_t))
 *     S_t  = S'_t + beta_t (v_t - S'_t k_t) k_t'     with the delta rule
 *     S_t  = S'_t + beta_t v_t k_t'                  without
 *     o_t  = S_t q_t
 * decay, the logarithm of the gate, is at most 0.  If runs continue each other, S does.  So this
 * is plain linear attention, gated linear attention (a decay per channel; S. Yang et al. 2023) and
 * the gated delta rule (a decay per head, delta; S. Yang et al. 2024).
 */
struct linear_attention_attr {
	bool delta;
};
struct linear_attention_inputs {
	struct tensor *q, *k; /* [B,T,H,K] */
	struct tensor *v;     /* [B,T,H,D] */
	struct tensor *decay; /* [B,T,H], [B,T,H,K], or NULL: 0 */
	struct tensor *beta;  /* [B,T,H] or NULL: 1 */
};
struct tensor *op_linear_attention(struct graph *g, const char *name,
				   const struct linear_attention_attr *attr,
				   const struct linear_attention_inputs *in);

/* o * (1 - a + a gate): o [B,T,H,D], gate [B,T or 1,H], a the factor. */
struct tensor *op_head_gate(struct graph *g, const char *name, struct tensor *o,
			    struct tensor *gate, double constant, struct tensor *learned);

/* The two scores of W2 attention. */
enum w2_score { W2_WASSERSTEIN, W2_OVERLAP };

struct w2_attr {
	enum w2_score score;
	bool scaled; /* wasserstein, for queries */
	double eps;
	double theta; /* of rope; 0: nothing is rotated */
};

/*
 * x [B,T,H,2D], per head D means, then D raw sigmas; sigma = softplus(raw) + eps.
 * wasserstein: y = (mean, sigma) [B,T,H,2D], bias = -|y|^2 / (|tau| + eps), tau [H].
 * overlap: y = mean / sqrt(sigma) [B,T,H,D], bias = -(|y|^2 + sum(log sigma)) / 2, tau NULL.
 * The D channels of y that come from means are rotated as by op_rope(), with a width of D.
 * `bias` [B,T,H], or NULL, receives what the token itself adds to its scores.  If `scaled`, y is
 * 2 / (|tau| + eps) times that, and the bias is the same: then q.k + the biases is the score.
 */
struct tensor *op_w2_gaussian(struct graph *g, const char *name, struct tensor *x,
			      struct tensor *tau, const struct w2_attr *attr, struct tensor **bias);

/*
 * Coupling by scalars s [H].  expand: y_c = s[cH/F] x[cL/F], x [B,T,L] -> [B,T,F].
 * pool: y_i = s[iH/L] * mean of the channels c with cL/F = i, x [B,T,F] -> [B,T,L].
 */
struct scalar_attr {
	int64_t width; /* of the output */
};
struct tensor *op_scalar_expand(struct graph *g, const char *name, struct tensor *x,
				struct tensor *s, int64_t width);
struct tensor *op_scalar_pool(struct graph *g, const char *name, struct tensor *x, struct tensor *s,
			      int64_t width);

/* Losses of WsFFN on z [B,T,n,w]: mean |z|^2 over tokens and heads. */
struct tensor *op_ws_energy(struct graph *g, const char *name, struct tensor *z);

/*
 * InfoNCE over the B*n means of z over positions: mean_i(logsumexp_j(s_ij / tau) - s_ii / tau),
 * s cosine similarity with norms clamped at 1e-8; 0 when B*n < 2.  `similarity`, or NULL, receives
 * the mean of s_ij over heads i != j of the same example (no gradient).
 */
struct ws_attr {
	double tau;
};
struct tensor *op_ws_contrast(struct graph *g, const char *name, struct tensor *z, double tau,
			      struct tensor **similarity);

/*
 * Output head and cross-entropy in one pass over chunks of tokens; the logits
 * x W' never exist as a whole.  x [B,T,E], w [V,E], targets i32 [B,T] (-1:
 * ignored), weights [2].
 *   main = weights[0] * sum over scored targets of -log softmax(logits)[target]
 *   z    = weights[1] * sum over all tokens of logsumexp(logits)^2
 *   nll [B,T] the single terms (0 where ignored), hit [B,T] 1 where the target is the argmax
 */
struct head_loss_outputs {
	struct tensor *main, *z, *nll, *hit;
};
struct head_loss_outputs op_head_loss(struct graph *g, const char *name, struct tensor *x,
				      struct tensor *w, struct tensor *targets,
				      struct tensor *weights);

#endif
