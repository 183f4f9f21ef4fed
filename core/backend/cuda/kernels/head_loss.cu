/*
 * Tokens pass in chunks.  The logits of a chunk become losses and, in training, their
 * own gradient, which goes at once into dx and dW.  So logits are computed once and
 * never held as a whole.  Where x is kept in bfloat16, logits are, too.
 *
 * A block looks at the logits of a token three times: for the largest, for the sum of exp(logit -
 * largest), and for the gradient.  So it keeps them on the chip, if they fit.  Where those of two
 * tokens fit, blocks stay and take many: the logits of the next are under way while those of one
 * are looked at.
 */
#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/primitives/ptx.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define CHUNK_LOGITS ((int64_t)256 << 20) /* few chunks: each adds to all of dW */
#define CHUNK_TOKENS 256 /* at least, so that reading W hides behind the products */
#define WHOLE 64	 /* rows begin at a multiple of this */

static __host__ __device__ int64_t whole(int64_t n)
{
	return (n + WHOLE - 1) / WHOLE * WHOLE;
}

/* Elements from the logits of a token to those of the next. */
static int64_t logit_pitch(const struct node *n)
{
	return whole(n->in[1]->dim[0]);
}

/* Are logits kept as factors of products, so that their gradient can take their place? */
template <typename P> static bool keeps_factors(const struct node *n)
{
	return is_factor<P>(n->in[0]);
}

/*
 * A power of two, if there is more than one chunk: on an H200 the logits of 4096 tokens are made at
 * 740 TFLOP/s, those of 5056 at 497; in float32 their gradient dx at 53, that of 2048 at 49.
 */
static int64_t chunk_tokens(const struct node *n)
{
	const int64_t tokens = tensor_count(n->in[2]), buffers = CHUNK_LOGITS / logit_pitch(n);
	int64_t most = CHUNK_TOKENS;

	while (2 * most <= buffers)
		most *= 2;
	return tokens < most ? tokens : most;
}

template <typename P> struct buffers {
	double *sum_work, *lse; /* lse [tokens] */
	void *logits;		/* [chunk, pitch]: factors, or P::real */
	typename P::factor
		*dlogits; /* [chunk, pitch]: in place of the logits if they are factors */
	typename P::factor *x, *w;
};

template <typename P>
static buffers<P> alloc_scratch(struct scratch *m, const struct node *n, enum pass pass)
{
	const int64_t tokens = tensor_count(n->in[2]), e = n->in[1]->dim[1];
	const int64_t logits = chunk_tokens(n) * logit_pitch(n);
	buffers<P> r;

	r.sum_work = m->alloc<double>(SUM_PARTS);
	r.lse = m->alloc<double>(tokens);
	if (keeps_factors<P>(n)) {
		r.dlogits = m->alloc<typename P::factor>(logits);
		r.logits = r.dlogits;
	} else {
		r.logits = m->alloc<typename P::real>(logits);
		r.dlogits = pass == PASS_LOSS ? m->alloc<typename P::factor>(logits) : NULL;
	}
	r.x = m->alloc<typename P::factor>(rounded_size<P>(n->in[0], tokens * e));
	r.w = m->alloc<typename P::factor>(weight_scratch<P>(n->in[1]));
	return r;
}

/* ------------------------------------------------------------ logits of a token */

#define MAX_THREADS (4 * BLOCK)
#define JOIN_BYTES 640 /* of shared memory that joins take, at most */

/* L: the type of the logits. */
template <typename P, typename L> struct scores {
	typedef typename P::real real;

	L *logits;
	typename P::factor *dlogits; /* may be the logits; NULL: no training */
	int v;
	int64_t tokens, pitch;
	const int32_t *targets;
	const real *weights, *dmain, *dsquare; /* dmain, dsquare: or NULL */
	real *nll, *hit;
	double *lse;
};

template <typename P>
static __device__ typename P::real exp_from(typename P::real x, typename P::real largest)
{
	typedef typename P::real real;

	if constexpr (ROUNDS<P>)
		return ex2_approx(x * (real)M_LOG2E - largest * (real)M_LOG2E);
	else
		return exp2((x - largest) * (real)M_LOG2E);
}

/* Joins a value of each thread in a fixed tree.  Two calls with the same room need another one
 * between them. */
template <typename R, typename Join>
static __device__ R row_reduce(R value, R nothing, R (&buffers)[MAX_THREADS / WARP], Join join)
{
	const int lane = (int)threadIdx.x % WARP;

	value = warp_reduce(value, join);
	if (lane == 0)
		buffers[threadIdx.x / WARP] = value;
	__syncthreads();
	return warp_reduce(lane < (int)blockDim.x / WARP ? buffers[lane] : nothing, join);
}

/* The largest number so far. */
template <typename L> struct largest_number {
	L most = (L)-INFINITY;

	template <int N> __device__ void add(const packed_vec<L, N> &x)
	{
#pragma unroll
		for (int k = 0; k < N; k++)
			most = x[k] > most ? x[k] : most;
	}
	__device__ L value() const
	{
		return most;
	}
};

/* Of bfloat16 in pairs, which one instruction compares. */
template <> struct largest_number<__nv_bfloat16> {
	__nv_bfloat162 most = { (__nv_bfloat16)-INFINITY, (__nv_bfloat16)-INFINITY };

	__device__ void add(const packed_vec<__nv_bfloat16, 1> &x)
	{
		most = __hmax2(most, { x[0], x[0] });
	}
	template <int N> __device__ void add(const packed_vec<__nv_bfloat16, N> &x)
	{
#pragma unroll
		for (int k = 0; k < N / 2; k++)
			most = __hmax2(most, *(const __nv_bfloat162 *)&x.words[k]);
	}
	__device__ float value() const
	{
		return (float)most.x > (float)most.y ? (float)most.x : (float)most.y;
	}
};

/*
 * The logits of a token: spans of one access, which may lie on the chip, and the numbers after the
 * last whole one.  A thread always takes the same spans, so it waits for nobody else's copies.
 */
template <typename L> struct token_row {
	static constexpr int N = 16 / (int)sizeof(L);

	const L *vecs, *rest;

	/* f(number of the first, the numbers) for the thread's numbers among the first n. */
	template <typename F> __device__ void each(int n, F f) const
	{
		const int end = n / N * N, left = end + (int)threadIdx.x;

		for (int at = (int)threadIdx.x * N; at < end; at += (int)blockDim.x * N)
			f(at, load_packed<N>(vecs + at));
		if (left < n)
			f(left, load_packed<1>(rest + left));
	}
	/* Is it this thread that takes number i of n? */
	static __device__ bool takes(int i, int n)
	{
		const int end = n / N * N;

		return (i < end ? i / N % (int)blockDim.x : i - end) == (int)threadIdx.x;
	}
};

/* Has one of the v numbers before number n this value? */
template <typename L, typename R>
static __device__ bool occurs_before(const token_row<L> &row, int v, int n, R value,
				     int (&buffers)[MAX_THREADS / WARP])
{
	int found = 0;

	row.each(v, [&](int first, auto x) {
#pragma unroll
		for (int k = 0; k < x.n; k++)
			found |= first + k < n && (R)x[k] == value;
	});
	return row_reduce(found, 0, buffers, larger_value());
}

template <typename T, typename R, int N> static __device__ void write_vec(T *to, const vec<R, N> &x)
{
	if constexpr (std::is_same_v<T, __nv_bfloat16> && N == 8)
		st_global_vec16(to, { pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]),
				      pack_bf16x2(x[4], x[5]), pack_bf16x2(x[6], x[7]) });
	else
		store_vec<true>(to, x);
}

/*
 * Token t: its logits give nll, hit and lse; in training they become
 * (slope_nll [target >= 0] + slope_square 2 lse) softmax - slope_nll onehot(target).
 */
template <typename P, typename L>
static __device__ void score_row(const scores<P, L> &s, int64_t t, const token_row<L> &row)
{
	typedef typename P::real real;
	__shared__ real largest_scratch[MAX_THREADS / WARP];
	__shared__ double sum_scratch[MAX_THREADS / WARP];
	__shared__ int found_room[MAX_THREADS / WARP];
	static_assert(sizeof(largest_scratch) + sizeof(sum_scratch) + sizeof(found_room) <=
			      JOIN_BYTES,
		      "they lie beside the rows");
	const int target = s.targets[t];
	const bool scored = target >= 0;
	const real logit = scored ? (real)s.logits[t * s.pitch + target] : 0;
	largest_number<L> thread_largest;
	real thread_sum = 0;

	row.each(s.v, [&](int, auto x) { thread_largest.add(x); });
	const real largest = row_reduce((real)thread_largest.value(), (real)-INFINITY,
					largest_scratch, larger_value());

	row.each(s.v, [&](int, auto x) {
#pragma unroll
		for (int k = 0; k < x.n; k++)
			thread_sum += exp_from<P>((real)x[k], largest);
	});
	const double sum = row_reduce((double)thread_sum, 0.0, sum_scratch, add_values());
	const double lse = (double)largest + log(sum);
	const bool hit =
		scored && logit == largest && !occurs_before(row, s.v, target, logit, found_room);

	if (threadIdx.x == 0) {
		s.hit[t] = hit;
		s.nll[t] = scored ? (real)(lse - (double)logit) : 0;
		s.lse[t] = lse;
	}
	if (!s.dlogits)
		return;
	const double slope = s.dmain && scored ? (double)(*s.dmain * s.weights[0]) : 0;
	const double square = s.dsquare ? (double)(*s.dsquare * s.weights[1]) : 0;
	const real scale = (real)((slope + square * 2 * lse) / sum);
	typename P::factor *const to = s.dlogits + t * s.pitch;

	row.each(s.v, [&](int first, auto x) {
		vec<real, x.n> d;

#pragma unroll
		for (int k = 0; k < x.n; k++)
			d[k] = exp_from<P>((real)x[k], largest) * scale;
		write_vec(to + first, d);
	});
	if (scored && row.takes(target, s.v))
		to[target] =
			(typename P::factor)(exp_from<P>(logit, largest) * scale - (real)slope);
}

/* Bytes of a row on the chip. */
template <typename L> static __host__ __device__ int64_t row_bytes(int v)
{
	return whole(v) * (int64_t)sizeof(L);
}

/* Begin to copy the thread's spans of token t, if there is one; `stage`: an address in shared
 * memory. */
template <typename P, typename L>
static __device__ void copy_row(const scores<P, L> &s, int64_t t, uint32_t stage)
{
	constexpr int N = token_row<L>::N;
	const int end = t < s.tokens ? s.v / N * N : 0;
	const L *from = s.logits + t * s.pitch;

	for (int at = (int)threadIdx.x * N; at < end; at += (int)blockDim.x * N)
		cp_async_vec16(stage + (uint32_t)(at * (int)sizeof(L)), from + at, true);
	cp_async_commit();
}

/* A block takes tokens that are gridDim.x apart; the logits of HELD of them are on the chip, or on
 * their way. */
template <typename P, typename L, int HELD>
static __global__ void __launch_bounds__(MAX_THREADS) score_kernel(scores<P, L> s)
{
	char *shared = dynamic_smem();
	const int64_t bytes = row_bytes<L>(s.v);
	int half = 0;

	pdl_wait();
	if (HELD > 0)
		copy_row(s, blockIdx.x, smem_address(shared));
	for (int64_t t = blockIdx.x; t < s.tokens; t += gridDim.x, half = !half) {
		const L *from = s.logits + t * s.pitch;

		if (HELD > 1)
			copy_row(s, t + gridDim.x, smem_address(shared + !half * bytes));
		cp_async_wait<(HELD > 1)>();
		score_row<P, L>(s, t,
				{ HELD > 0 ? (const L *)(shared + half * bytes) : from, from });
	}
}

template <int HELD, typename P, typename L>
static void launch_scores(const struct call *c, int64_t blocks, int threads, const scores<P, L> &s)
{
	const int bytes = HELD * (int)row_bytes<L>(s.v);

	set_max_dynamic_smem(c, score_kernel<P, L, HELD>, bytes);
	launch_pdl(context_of(c)->pdl, score_kernel<P, L, HELD>, (unsigned)blocks, threads, bytes,
		   stream_of(c), s);
	note_launch(c);
}

#define FEW_LOGITS 4096 /* for a block of few threads for each token */

template <typename P, typename L> static void score(const struct call *c, const scores<P, L> &s)
{
	const int64_t row = row_bytes<L>(s.v), most = context_of(c)->shared_bytes - JOIN_BYTES;
	const int64_t multiprocessors = context_of(c)->multiprocessors;
	const bool few = s.v <= FEW_LOGITS;
	const int threads = few ? BLOCK / 2 : MAX_THREADS;

	if (2 * row <= most && !few && s.tokens > multiprocessors)
		launch_scores<2>(c, multiprocessors, threads, s);
	else if (row <= most)
		launch_scores<1>(c, s.tokens, threads, s);
	else
		launch_scores<0>(c, s.tokens, threads, s);
}

template <typename P, typename L>
static void score_chunk(const struct call *c, const buffers<P> &r, int64_t first, int64_t tokens,
			bool training)
{
	score<P, L>(c, { (L *)r.logits, training ? r.dlogits : NULL, (int)c->node->in[1]->dim[0],
			 tokens, logit_pitch(c->node), (const int32_t *)c->in[2] + first,
			 real_input<P>(c, 3), real_output_gradient<P>(c, 0),
			 real_output_gradient<P>(c, 1), real_output<P>(c, 2) + first,
			 real_output<P>(c, 3) + first, r.lse + first });
}

/* logits = x W': dx = dlogits W, dW = dlogits' x summed over chunks */
template <typename P> static void all_chunks(const struct call *c, bool training)
{
	typedef typename P::factor factor;
	struct scratch m = { (char *)c->work, 0 };
	const buffers<P> r = alloc_scratch<P>(&m, c->node, training ? PASS_LOSS : PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]), chunk = chunk_tokens(c->node);
	const int64_t v = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const int64_t pitch = logit_pitch(c->node);
	const bool bf16_storage = keeps_factors<P>(c->node);
	const auto x = rounded<P>(c, input<P>(c, 0), tokens, e, e, r.x), w = weight<P>(c, r.w);
	const auto dx = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);
	const output_view<P> logits = { r.logits, bf16_storage };
	const matrix<factor> dlogits = { r.dlogits, pitch, 0 };

	for (int64_t first = 0; first < tokens; first += chunk) {
		const int64_t n = tokens - first < chunk ? tokens - first : chunk;
		const matrix<factor> part = { x.at + first * x.pitch, x.pitch, 0 };

		gemm(c, false, true, n, v, e, 1, part, w, false, logits, pitch);
		if (bf16_storage)
			score_chunk<P, factor>(c, r, first, n, training);
		else
			score_chunk<P, typename P::real>(c, r, first, n, training);
		if (training && dx)
			gemm(c, false, false, n, e, v, 1, dlogits, w, dx.add, dx.to + first * e, e);
		if (training && dw)
			gemm(c, true, false, v, e, n, 1, dlogits, part, dw.add || first > 0, dw.to,
			     e);
	}
}

template <typename P> static void totals(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = { (char *)c->work, 0 };
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]);
	const auto *weights = real_input<P>(c, 3);
	const auto *nll = real_output<P>(c, 2);
	auto *main = real_output<P>(c, 0), *z = real_output<P>(c, 1);

	sum_all(
		c, tokens, [=] __device__(int64_t t) { return nll[t]; }, r.sum_work,
		[=] __device__(double sum) { *main = (real)((double)weights[0] * sum); });
	sum_all(
		c, tokens, [=] __device__(int64_t t) { return r.lse[t] * r.lse[t]; }, r.sum_work,
		[=] __device__(double sum) { *z = (real)((double)weights[1] * sum); });
}

template <typename P> static void forward(const struct call *c)
{
	all_chunks<P>(c, false);
	totals<P>(c);
}

template <typename P> static void loss(const struct call *c)
{
	all_chunks<P>(c, true);
	totals<P>(c);
}

template <typename P> static constexpr struct kernels set()
{
	return {
		forward<P>, NULL, NULL, loss<P>, workspace_of<alloc_scratch<P>>, weight_copies<P>
	};
}
KERNELS(head_loss, set)
