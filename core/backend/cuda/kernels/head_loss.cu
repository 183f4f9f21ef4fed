/*
 * head_loss: the output head and its cross-entropy, logits = x W'.
 *
 *     nll = lse - logit[target],  lse = log sum exp(logits)
 *     loss = weights[0] sum nll + weights[1] sum lse^2
 *
 * Tokens pass in chunks.  The logits of a chunk become losses and, in training, their own gradient,
 * which goes at once into dx and dW.  So logits are computed once and never stored as a whole.  If
 * x is stored in bfloat16, so are they.
 *
 * A block reads the logits of a token three times: for the maximum, for the sum of exponentials,
 * and for the gradient.  It keeps them in shared memory if they fit.  If those of two tokens fit,
 * blocks are persistent and load the next token while they process the current one.
 */
#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/primitives/ptx.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define CHUNK_LOGITS \
	((int64_t)256 << 20) /* logits of a chunk: few chunks, since each adds to all of dW */
#define CHUNK_TOKENS 256     /* minimum tokens of a chunk, so that the GEMMs hide reading W */
#define ROW_ALIGNMENT 64     /* rows start at a multiple of this many elements */

static __host__ __device__ int64_t round_up(int64_t n)
{
	return (n + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
}

/* Elements from the logits of one token to those of the next. */
static int64_t logit_pitch(const struct node *n)
{
	return round_up(n->in[1]->dim[0]);
}

/* Are logits stored in the type that GEMMs read, so that their gradient can overwrite them? */
template <typename P> static bool stores_factors(const struct node *n)
{
	return is_factor<P>(n->in[0]);
}

/*
 * The tokens of a chunk: a power of two, if there are several chunks.  On an H200 the GEMM of the
 * logits of 4096 tokens runs at 740 TFLOP/s, that of 5056 at 497.  In float32 the GEMM of dx runs
 * at 53 TFLOP/s with 4096 tokens, at 49 with 2048.
 */
static int64_t chunk_tokens(const struct node *n)
{
	const int64_t tokens = tensor_count(n->in[2]), buffers = CHUNK_LOGITS / logit_pitch(n);
	int64_t max = CHUNK_TOKENS;

	while (2 * max <= buffers)
		max *= 2;
	return tokens < max ? tokens : max;
}

template <typename P> struct buffers {
	double *sum_work, *lse; /* lse [tokens] */
	void *logits;		/* [chunk, pitch]: P::factor or P::real */
	typename P::factor
		*dlogits; /* [chunk, pitch]: the memory of the logits, if they are P::factor */
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
	if (stores_factors<P>(n)) {
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
#define REDUCE_BYTES 640 /* maximum shared memory of the reductions */

/* L: the type of the logits. */
template <typename P, typename L> struct cross_entropy {
	typedef typename P::real real;

	L *logits;
	typename P::factor *dlogits; /* may be the memory of the logits; NULL: no training */
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

/*
 * Reduces one value of each thread in a fixed tree.  Between two calls with the same buffers,
 * another call with other buffers must come.
 */
template <typename R, typename Op>
static __device__ R row_reduce(R value, R identity, R (&buffers)[MAX_THREADS / WARP], Op op)
{
	const int lane = (int)threadIdx.x % WARP;

	value = warp_reduce(value, op);
	if (lane == 0)
		buffers[threadIdx.x / WARP] = value;
	__syncthreads();
	return warp_reduce(lane < (int)blockDim.x / WARP ? buffers[lane] : identity, op);
}

/* The maximum so far. */
template <typename L> struct running_max {
	L max = (L)-INFINITY;

	template <int N> __device__ void add(const packed_vec<L, N> &x)
	{
#pragma unroll
		for (int k = 0; k < N; k++)
			max = x[k] > max ? x[k] : max;
	}
	__device__ L value() const
	{
		return max;
	}
};

/* For bfloat16: one instruction compares a pair. */
template <> struct running_max<__nv_bfloat16> {
	__nv_bfloat162 max = { (__nv_bfloat16)-INFINITY, (__nv_bfloat16)-INFINITY };

	__device__ void add(const packed_vec<__nv_bfloat16, 1> &x)
	{
		max = __hmax2(max, { x[0], x[0] });
	}
	template <int N> __device__ void add(const packed_vec<__nv_bfloat16, N> &x)
	{
#pragma unroll
		for (int k = 0; k < N / 2; k++)
			max = __hmax2(max, *(const __nv_bfloat162 *)&x.words[k]);
	}
	__device__ float value() const
	{
		return (float)max.x > (float)max.y ? (float)max.x : (float)max.y;
	}
};

/*
 * The logits of a token: vectors of 16 bytes, which may be in shared memory, and the elements after
 * the last whole vector.  A thread always reads the same vectors, so it waits only for its own
 * copies.
 */
template <typename L> struct token_row {
	static constexpr int N = 16 / (int)sizeof(L);

	const L *vecs, *rest;

	/* f(index, vector) for the thread's vectors of the first n logits. */
	template <typename F> __device__ void each(int n, F f) const
	{
		const int end = n / N * N, left = end + (int)threadIdx.x;

		for (int at = (int)threadIdx.x * N; at < end; at += (int)blockDim.x * N)
			f(at, load_packed<N>(vecs + at));
		if (left < n)
			f(left, load_packed<1>(rest + left));
	}
	/* Does this thread own logit i of n? */
	static __device__ bool owns(int i, int n)
	{
		const int end = n / N * N;

		return (i < end ? i / N % (int)blockDim.x : i - end) == (int)threadIdx.x;
	}
};

/* Does one of the v logits with an index below n have this value? */
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
 * Token t: computes nll, hit and lse.  In training its logits become (slope_nll [target >= 0] +
 * slope_square 2 lse) softmax - slope_nll onehot(target).
 */
template <typename P, typename L>
static __device__ void cross_entropy_row(const cross_entropy<P, L> &s, int64_t t,
					 const token_row<L> &row)
{
	typedef typename P::real real;
	__shared__ real largest_scratch[MAX_THREADS / WARP];
	__shared__ double sum_scratch[MAX_THREADS / WARP];
	__shared__ int found_scratch[MAX_THREADS / WARP];
	static_assert(sizeof(largest_scratch) + sizeof(sum_scratch) + sizeof(found_scratch) <=
			      REDUCE_BYTES,
		      "they need shared memory beside the rows");
	const int target = s.targets[t];
	const bool scored = target >= 0;
	const real logit = scored ? (real)s.logits[t * s.pitch + target] : 0;
	running_max<L> thread_largest;
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
	const bool hit = scored && logit == largest &&
			 !occurs_before(row, s.v, target, logit, found_scratch);

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
	if (scored && row.owns(target, s.v))
		to[target] =
			(typename P::factor)(exp_from<P>(logit, largest) * scale - (real)slope);
}

/* Bytes of a row in shared memory. */
template <typename L> static __host__ __device__ int64_t row_bytes(int v)
{
	return round_up(v) * (int64_t)sizeof(L);
}

/*
 * Starts to copy the thread's vectors of token t, if t exists, to `stage`, an address in shared
 * memory.
 */
template <typename P, typename L>
static __device__ void copy_row(const cross_entropy<P, L> &s, int64_t t, uint32_t stage)
{
	constexpr int N = token_row<L>::N;
	const int end = t < s.tokens ? s.v / N * N : 0;
	const L *from = s.logits + t * s.pitch;

	for (int at = (int)threadIdx.x * N; at < end; at += (int)blockDim.x * N)
		cp_async_vec16(stage + (uint32_t)(at * (int)sizeof(L)), from + at, true);
	cp_async_commit();
}

/* A block processes tokens gridDim.x apart.  Shared memory holds the logits of STAGES of them. */
template <typename P, typename L, int STAGES>
static __global__ void __launch_bounds__(MAX_THREADS)
	cross_entropy_kernel(struct replicas replicas,
			     const __grid_constant__ cross_entropy<P, L> given_s)
{
	const auto &s = replicas.own(given_s);
	char *shared = dynamic_smem();
	const int64_t bytes = row_bytes<L>(s.v);
	int stage = 0;

	pdl_wait();
	if (STAGES > 0)
		copy_row(s, blockIdx.x, smem_address(shared));
	for (int64_t t = blockIdx.x; t < s.tokens; t += gridDim.x, stage = !stage) {
		const L *from = s.logits + t * s.pitch;

		if (STAGES > 1)
			copy_row(s, t + gridDim.x, smem_address(shared + !stage * bytes));
		cp_async_wait<(STAGES > 1)>();
		cross_entropy_row<P, L>(
			s, t, { STAGES > 0 ? (const L *)(shared + stage * bytes) : from, from });
	}
}

template <int STAGES, typename P, typename L>
static void launch_cross_entropy(const struct call *c, int64_t blocks, int threads,
				 const cross_entropy<P, L> &s)
{
	const int bytes = STAGES * (int)row_bytes<L>(s.v);

	set_max_dynamic_smem(c, cross_entropy_kernel<P, L, STAGES>, bytes);
	launch_for(c, cross_entropy_kernel<P, L, STAGES>, (unsigned)blocks, threads, bytes, s);
}

/* Vocabularies up to this size use small blocks, the smallest one thread per vector. */
#define FEW_LOGITS 4096

template <typename P, typename L>
static void run_cross_entropy(const struct call *c, const cross_entropy<P, L> &s)
{
	const int64_t row = row_bytes<L>(s.v), max = context_of(c)->shared_bytes - REDUCE_BYTES;
	const int64_t sms = context_of(c)->sm_count;
	const bool few = s.v <= FEW_LOGITS;
	const int vecs = s.v / token_row<L>::N, warps = vecs > 0 ? (vecs + WARP - 1) / WARP : 1;
	const int threads = !few		       ? MAX_THREADS
			    : warps * WARP < BLOCK / 2 ? warps * WARP
						       : BLOCK / 2;

	if (2 * row <= max && !few && s.tokens > sms)
		launch_cross_entropy<2>(c, sms, threads, s);
	else if (row <= max)
		launch_cross_entropy<1>(c, s.tokens, threads, s);
	else
		launch_cross_entropy<0>(c, s.tokens, threads, s);
}

template <typename P, typename L>
static void cross_entropy_of_chunk(const struct call *c, const buffers<P> &r, int64_t first,
				   int64_t tokens, bool training)
{
	run_cross_entropy<P, L>(c, { (L *)r.logits, training ? r.dlogits : NULL,
				     (int)c->node->in[1]->dim[0], tokens, logit_pitch(c->node),
				     (const int32_t *)c->in[2] + first, real_input<P>(c, 3),
				     real_output_gradient<P>(c, 0), real_output_gradient<P>(c, 1),
				     real_output<P>(c, 2) + first, real_output<P>(c, 3) + first,
				     r.lse + first });
}

/* logits = x W': dx = dlogits W, dW = dlogits' x summed over chunks */
template <typename P> static void all_chunks(const struct call *c, bool training)
{
	typedef typename P::factor factor;
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, training ? PASS_LOSS : PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]), chunk = chunk_tokens(c->node);
	const int64_t v = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const int64_t pitch = logit_pitch(c->node);
	const bool bf16_storage = stores_factors<P>(c->node);
	const auto x = rounded<P>(c, input<P>(c, 0), tokens, e, e, r.x), w = weight<P>(c, r.w);
	const auto dx = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);
	const output_view<P> logits = { r.logits, bf16_storage };
	const matrix<factor> dlogits = { r.dlogits, pitch, 0 };

	for (int64_t first = 0; first < tokens; first += chunk) {
		const int64_t n = tokens - first < chunk ? tokens - first : chunk;
		const matrix<factor> part = { x.at + first * x.pitch, x.pitch, 0 };

		gemm(c, false, true, n, v, e, 1, part, w, false, logits, pitch);
		if (bf16_storage)
			cross_entropy_of_chunk<P, factor>(c, r, first, n, training);
		else
			cross_entropy_of_chunk<P, typename P::real>(c, r, first, n, training);
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
	struct scratch m = scratch_of(c);
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

KERNELS(head_loss, forward<P>, NULL, NULL, loss<P>, workspace_of<alloc_scratch<P>>,
	weight_copies<P>)
