/*
 * scores - attention scores in global memory, for ops that need whole rows of P and for shapes that
 * flash attention does not support. core/ops/score.h says what a score is; P_ij = exp(S_ij -
 * lse_i).
 *
 * Queries are processed in blocks of consecutive rows, against all keys up to the block's last
 * query. So the memory is linear in T. One batched cuBLAS call computes the scores of all heads.
 * Positions count from the first token of the sequence, queries from the first token of this run.
 */
#ifndef CUDA_ATTENTION_SCORES_CUH
#define CUDA_ATTENTION_SCORES_CUH

#include "core/backend/cuda/gemm/gemm.cuh"
#include "core/backend/cuda/primitives/formulas.cuh"

/* ---------------------------------------------------------------- layout */

/* A tensor [B,T,n,width] or [B,T,n] as H query heads see it; H / n query heads share each head. */
struct heads {
	int64_t T, pitch; /* elements between tokens */
	int64_t width;
	int64_t group_size; /* query heads per head */

	/*
	 * Offset of token t of query head h in example b. The 32-bit division is faster than a
	 * 64-bit one.
	 */
	__host__ __device__ int64_t at(int64_t b, int64_t h, int64_t t) const
	{
		return (b * T + t) * pitch + (uint32_t)h / (uint32_t)group_size * width;
	}
};

static inline struct heads heads_of(const struct tensor *t, int64_t query_heads)
{
	const int64_t width = t->ndim == 4 ? t->dim[3] : 1;

	return { t->dim[1], tensor_contiguous(t) ? t->dim[2] * width : t->pitch, width,
		 query_heads / t->dim[2] };
}

/*
 * A matrix per example b and query head h, at `at + b * batch_stride + h / group_size *
 * head_stride`; rows are `pitch` apart. `at` is a pointer or an output_view.
 */
template <typename At> struct head_matrix {
	At at;
	int64_t pitch, batch_stride, head_stride, group_size;
};

/* The rows of a tensor from token `token` on. */
template <typename At> static head_matrix<At> from_token(At data, struct heads x, int64_t token)
{
	return { data + token * x.pitch, x.pitch, x.T * x.pitch, x.width, x.group_size };
}

/* A buffer [B,H,rows,pitch] from column `column` on. */
template <typename At>
static head_matrix<At> from_buffer(At data, int64_t H, int64_t rows, int64_t pitch,
				   int64_t column = 0)
{
	return { data + column, pitch, H * rows * pitch, rows * pitch, 1 };
}

/* Device pointer arrays of one batched product. */
template <typename P> struct pointers {
	const typename P::factor **a, **b;
	void **out;
};

template <typename P> static pointers<P> alloc_pointers(struct scratch *m, int64_t count)
{
	pointers<P> p;

	p.a = m->alloc<const typename P::factor *>(count);
	p.b = m->alloc<const typename P::factor *>(count);
	p.out = m->alloc<void *>(count);
	return p;
}

template <typename R> static __device__ void *address_of(R *x)
{
	return x;
}

template <typename P> static __device__ void *address_of(const output_view<P> &x)
{
	return x.at;
}

/* out = alpha op(a) op(b) (+ out) for every example and head. */
template <typename P, typename Out>
static void gemm_heads(const struct call *c, pointers<P> operands, int64_t B, int64_t H,
		       bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha,
		       head_matrix<const typename P::factor *> a,
		       head_matrix<const typename P::factor *> b, bool add, head_matrix<Out> out)
{
	each(c, B * H, [=] __device__(int64_t i) {
		const int64_t example = i / H, head = i % H;

		operands.a[i] =
			a.at + example * a.batch_stride + head / a.group_size * a.head_stride;
		operands.b[i] =
			b.at + example * b.batch_stride + head / b.group_size * b.head_stride;
		operands.out[i] = address_of(out.at + example * out.batch_stride +
					     head / out.group_size * out.head_stride);
	});
	gemm_batched(c, trans_a, trans_b, m, n, k, alpha, operands.a, a.pitch, operands.b, b.pitch,
		     add, operands.out, gemm_operand(out.at).type, out.pitch, B * H);
}

/* A tensor of heads as a GEMM operand: in place, or rounded into `copy`, contiguous. */
template <typename P> struct head_factor {
	const typename P::factor *at;
	struct heads layout;
};

template <typename P>
static head_factor<P> rounded_heads(const struct call *c, const struct tensor *t, const void *data,
				    int64_t H, typename P::factor *copy)
{
	const struct heads x = heads_of(t, H);
	const int64_t size = tensor_count(t) / (t->dim[0] * t->dim[1]);
	const auto m =
		rounded<P>(c, { data, is_bf16(t) }, t->dim[0] * t->dim[1], size, x.pitch, copy);

	return { m.at, { x.T, m.pitch, x.width, x.group_size } };
}

/* ---------------------------------------------------------------- blocks */

#define BLOCK_SCORES ((int64_t)1 << 25) /* scores per block over all heads: 128 MiB of floats */
#define MAX_ROWS 256
#define ROW_STEP 16

/* Queries per block; depends on the shape alone. */
static inline int64_t block_rows(int64_t B, int64_t H, int64_t T, int64_t S)
{
	int64_t rows = BLOCK_SCORES / (B * H * S) / ROW_STEP * ROW_STEP;

	rows = rows < ROW_STEP ? ROW_STEP : rows > MAX_ROWS ? MAX_ROWS : rows;
	return rows < T ? rows : T;
}

template <typename P> struct scores {
	typedef typename P::real real;

	struct attention_attr attr;
	int64_t B, T, H, S;
	int64_t past;	      /* position of the first query */
	int64_t rows, pitch;  /* of the buffers [B,H,rows,pitch] */
	int64_t recent_first; /* position of the first recent query */
	int64_t cross_window; /* cross is needed where i - j <= cross_window; < 0: nowhere */
	struct heads bias_layout;
	const real *key_bias;	   /* or NULL */
	const real *distance_bias; /* [H,S], or NULL */
	const real *learned_band;
	struct score_window window;
	real softcap, inverse_softcap; /* 0: no cap */
	head_factor<P> q, k, recent;
	pointers<P> operands;
	real *score, *cross; /* buffers; cross may be NULL */

	__device__ real band() const
	{
		return learned_band ? *learned_band : (real)attr.band;
	}
	/* First key in the band of the query at position i. */
	__device__ int64_t band_start(int64_t i) const
	{
		return i > attr.band_window ? i - attr.band_window : 0;
	}
	__device__ real bias(int64_t b, int64_t h, int64_t j) const
	{
		return key_bias ? key_bias[bias_layout.at(b, h, j)] : 0;
	}
};

/* Input indices of a node; recent < 0: none. */
struct score_inputs {
	int q, k, key_bias, band, recent, distance_bias;
};

template <typename P>
static scores<P> alloc_scores(struct scratch *m, const struct node *n,
			      const struct attention_attr *attr, struct score_inputs at,
			      int64_t cross_window, typename P::factor *buffers[3])
{
	const struct tensor *q = n->in[at.q], *k = n->in[at.k];
	const struct tensor *recent = at.recent >= 0 ? n->in[at.recent] : NULL;
	scores<P> s;

	s.attr = *attr;
	s.B = q->dim[0];
	s.T = q->dim[1];
	s.H = q->dim[2];
	s.S = k->dim[1];
	s.rows = block_rows(s.B, s.H, s.T, s.S);
	s.pitch = (s.S + 15) / 16 * 16;
	s.cross_window = cross_window;
	s.operands = alloc_pointers<P>(m, s.B * s.H);
	s.score = m->alloc<typename P::real>(s.B * s.H * s.rows * s.pitch);
	s.cross =
		cross_window >= 0 ? m->alloc<typename P::real>(s.B * s.H * s.rows * s.pitch) : NULL;
	buffers[0] = m->alloc<typename P::factor>(rounded_size<P>(q, tensor_count(q)));
	buffers[1] = m->alloc<typename P::factor>(rounded_size<P>(k, tensor_count(k)));
	buffers[2] = m->alloc<typename P::factor>(
		recent ? rounded_size<P>(recent, tensor_count(recent)) : 0);
	return s;
}

/* The same, with the tensors of a call. */
template <typename P>
static scores<P> open_scores(const struct call *c, struct scratch *m,
			     const struct attention_attr *attr, struct score_inputs at,
			     int64_t cross_window)
{
	struct tensor *const *in = c->node->in;
	typename P::factor *buffers[3];
	scores<P> s = alloc_scores<P>(m, c->node, attr, at, cross_window, buffers);

	s.past = c->run->past;
	s.q = rounded_heads<P>(c, in[at.q], c->in[at.q], s.H, buffers[0]);
	s.k = rounded_heads<P>(c, in[at.k], c->in[at.k], s.H, buffers[1]);
	s.recent = s.q;
	s.recent_first = s.past;
	if (at.recent >= 0 && in[at.recent]) {
		s.recent = rounded_heads<P>(c, in[at.recent], c->in[at.recent], s.H, buffers[2]);
		s.recent_first = s.past + s.T - in[at.recent]->dim[1];
	}
	s.key_bias = real_input<P>(c, at.key_bias);
	s.distance_bias = real_input<P>(c, at.distance_bias);
	s.window = { attr->window, attr->sinks };
	s.softcap = (typename P::real)attr->softcap;
	s.inverse_softcap = (typename P::real)(attr->softcap > 0 ? 1 / attr->softcap : 0);
	s.learned_band = real_input<P>(c, at.band);
	if (s.key_bias)
		s.bias_layout = heads_of(in[at.key_bias], s.H);
	return s;
}

/* A block of queries, and the keys that its last query sees. */
struct query_block {
	int64_t first, n; /* queries */
	int64_t keys;
	int64_t cross_first; /* first column of cross */
};

template <typename P> static struct query_block block_at(const scores<P> &s, int64_t first)
{
	const int64_t n = s.T - first < s.rows ? s.T - first : s.rows, position = s.past + first;

	return { first, n, position + n,
		 position > s.cross_window ? position - s.cross_window : 0 };
}

/* score = scale QK^T, cross = scale KQ^T */
template <typename P>
static void block_products(const struct call *c, const scores<P> &s, struct query_block x)
{
	const struct heads &ql = s.q.layout, &kl = s.k.layout, &rl = s.recent.layout;

	gemm_heads<P>(c, s.operands, s.B, s.H, false, true, x.n, x.keys, ql.width, s.attr.scale,
		      from_token(s.q.at, ql, x.first), from_token(s.k.at, kl, 0), false,
		      from_buffer(s.score, s.H, s.rows, s.pitch));
	if (s.cross_window >= 0)
		gemm_heads<P>(c, s.operands, s.B, s.H, false, true, x.n, x.keys - x.cross_first,
			      ql.width, s.attr.scale, from_token(s.k.at, kl, s.past + x.first),
			      from_token(s.recent.at, rl, x.cross_first - s.recent_first), false,
			      from_buffer(s.cross, s.H, s.rows, s.pitch, x.cross_first));
}

/* Calls f(b, h, r) with one thread block per row of the buffers. */
template <typename P, typename F>
static void each_query(const struct call *c, const scores<P> &s, struct query_block x, F f)
{
	const int64_t H = s.H, n = x.n;

	each_row(c, s.B * H * n, [=] __device__(int64_t i) { f(i / n / H, i / n % H, i % n); });
}

/*
 * Turns the row of QK^T of the query at position i into its scores; keys that it does not see get
 * -infinity. One thread block per row.
 */
template <typename P>
static __device__ void finish_row(const scores<P> &s, int64_t b, int64_t h, int64_t i,
				  typename P::real *row, const typename P::real *cross)
{
	typedef typename P::real real;
	const real band = s.band(), *distance_bias = s.distance_bias + h * s.S;
	const bool banded = s.attr.band_window >= 0;
	const int64_t window_start = score_window_start(s.window, i);

	for (int64_t j = threadIdx.x; j <= i; j += BLOCK) {
		real score = row[j] + s.bias(b, h, j);

		if (s.distance_bias)
			score += distance_bias[i - j];
		if (banded && j >= s.band_start(i))
			score += band * cross[j];
		if (s.softcap > 0)
			score = formulas<P>::score_cap(score, s.softcap, s.inverse_softcap);
		row[j] = j >= window_start || j < s.window.sinks ? score : (real)-INFINITY;
	}
}

/* --------------------------------------------------------------- routing */

/* Combines P over heads by mean or maximum, into [B,rows,pitch]. */
template <typename P>
static void combine_heads(const struct call *c, const scores<P> &given, struct query_block x,
			  typename P::real *route)
{
	typedef typename P::real real;
	const scores<P> s = given;

	each(c, s.B * x.n * x.keys, [=] __device__(int64_t item) {
		const int64_t b = item / (x.n * x.keys), r = item / x.keys % x.n, j = item % x.keys;
		real combined = 0;

		for (int64_t h = 0; h < s.H; h++) {
			const real p = s.score[((b * s.H + h) * s.rows + r) * s.pitch + j];

			if (s.attr.route.head_maximum)
				combined = p > combined ? p : combined;
			else
				combined += p * (1 / (real)s.H);
		}
		route[(b * s.rows + r) * s.pitch + j] = combined;
	});
}

/*
 * Top-k of n entries by a thread block: largest first, ties by index. Entries n .. k - 1 of the
 * result get index -1 and weight 0. Selected entries of `route` become -1.
 */
template <typename R>
static __device__ void take_largest(R *route, int64_t n, int64_t k, int32_t *index, R *weight)
{
	for (int64_t rank = 0; rank < k; rank++) {
		argmax<R> best = { -1, INT32_MAX };

		if (rank < n) {
			for (int64_t j = threadIdx.x; j < n; j += BLOCK)
				best = first_of_largest<R>()(best, { route[j], (int)j });
			best = block_argmax(best);
		}
		if (threadIdx.x == 0) {
			index[rank] = rank < n ? best.index : -1;
			weight[rank] = rank < n ? best.value : 0;
			if (rank < n)
				route[best.index] = -1;
		}
		__syncthreads();
	}
}

/* Smallest entry to keep. ROUTE_RMS: tau times the row's root mean square; ROUTE_DENSE: 0. */
template <typename R>
static __device__ R route_least(const struct route_attr &a, const R *route, int64_t n)
{
	R squares = 0;

	if (a.mode != ROUTE_RMS)
		return 0;
	for (int64_t j = threadIdx.x; j < n; j += BLOCK)
		squares += route[j] * route[j];
	return (R)a.tau * (R)sqrt((double)block_sum(squares) / (double)n);
}

/* Normalization factor of a sparse row with this sum. */
template <typename R> static __device__ R route_factor(const struct route_attr &a, R sum)
{
	const R tiny = (R)1e-8; /* the clamp of the reference */

	return !a.normalize ? 1 : 1 / (sum > tiny ? sum : tiny);
}

#endif
