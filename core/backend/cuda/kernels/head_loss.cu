/*
 * Tokens pass in chunks.  The logits of a chunk become losses and, in training, their
 * own gradient, which goes at once into dx and dW.  So logits are computed once and
 * never held as a whole.  Where x is kept in bfloat16, logits are, too.
 *
 * A block reads the logits of a token once.  It sums exp(logit - largest so far) while it looks for the
 * largest, and keeps the row on the chip for the gradient, if the row fits.
 */
#include "core/backend/cuda/instructions.cuh"
#include "core/backend/cuda/product.cuh"

#define CHUNK_LOGITS ((int64_t)256 << 20) /* few chunks: each adds to all of dW */
#define CHUNK_TOKENS 256		 /* at least, so that reading W hides behind the products */
#define WHOLE 64			 /* rows begin at a multiple of this */

static int64_t whole(int64_t n)
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
 * A power of two, if there is more than one chunk: on an H200 the logits of 4096 tokens are made at 740
 * TFLOP/s, those of 5056 at 497; in float32 their gradient dx at 53, that of 2048 at 49.
 */
static int64_t chunk_tokens(const struct node *n)
{
	const int64_t tokens = tensor_count(n->in[2]), room = CHUNK_LOGITS / logit_pitch(n);
	int64_t most = CHUNK_TOKENS;

	while (2 * most <= room)
		most *= 2;
	return tokens < most ? tokens : most;
}

template <typename P> struct room {
	double *sum_work, *lse;	     /* lse [tokens] */
	void *logits;		     /* [chunk, pitch]: factors, or P::real */
	typename P::factor *dlogits; /* [chunk, pitch]: in place of the logits if they are factors */
	typename P::factor *x, *w;
};

template <typename P>
static struct room<P> take_room(struct space *m, const struct node *n, enum pass pass)
{
	const int64_t tokens = tensor_count(n->in[2]), e = n->in[1]->dim[1];
	const int64_t logits = chunk_tokens(n) * logit_pitch(n);
	struct room<P> r;

	r.sum_work = m->take<double>(SUM_PARTS);
	r.lse = m->take<double>(tokens);
	if (keeps_factors<P>(n)) {
		r.dlogits = m->take<typename P::factor>(logits);
		r.logits = r.dlogits;
	} else {
		r.logits = m->take<typename P::real>(logits);
		r.dlogits = pass == PASS_LOSS ? m->take<typename P::factor>(logits) : NULL;
	}
	r.x = m->take<typename P::factor>(rounded_size<P>(n->in[0], tokens * e));
	r.w = m->take<typename P::factor>(weight_room<P>(n->in[1]));
	return r;
}

/* ------------------------------------------------------------ logits of a token */

#define ROW_THREADS (2 * BLOCK)
#define LOADS 4 /* that a thread has under way */
/* Every GPU since 8.0 gives a block 99 KiB of shared memory; row_join() takes less than 512 bytes. */
#define ROW_BYTES (99 * 1024 - 512)

/* L: the type of the logits. */
template <typename P, typename L> struct scores {
	typedef typename P::real real;

	L *logits;
	typename P::factor *dlogits; /* may be the logits; NULL: no training */
	bool staged;		     /* does a row fit on the chip? */
	int64_t v, pitch;
	const int32_t *targets;
	const real *weights, *dmain, *dsquare; /* dmain, dsquare: or NULL */
	real *nll, *hit;
	double *lse;
};

/* The largest of some logits, its place, and the sum of exp(logit - largest). */
template <typename R> struct softmax_part {
	struct place<R> most;
	double sum;
};

template <typename R> static __device__ R exp_from(R x, R largest)
{
	return exp2((x - largest) * (R)M_LOG2E);
}

template <typename R>
static __device__ softmax_part<R> join(const softmax_part<R> &a, const softmax_part<R> &b)
{
	const place<R> most = first_of_largest<R>()(a.most, b.most);
	const double left = a.most.value == most.value ? 1 : exp_from(a.most.value, most.value);
	const double right = b.most.value == most.value ? 1 : exp_from(b.most.value, most.value);

	return { most, a.sum * left + b.sum * right };
}

/* Of all threads, in a fixed tree; every thread gets the result. */
template <typename R> static __device__ softmax_part<R> row_join(softmax_part<R> part)
{
	__shared__ softmax_part<R> warp[ROW_THREADS / WARP];

	for (int step = WARP / 2; step > 0; step /= 2) {
		const softmax_part<R> other = {
			{ __shfl_xor_sync(0xffffffffu, part.most.value, step),
			  __shfl_xor_sync(0xffffffffu, part.most.index, step) },
			__shfl_xor_sync(0xffffffffu, part.sum, step),
		};

		part = join(part, other);
	}
	if (threadIdx.x % WARP == 0)
		warp[threadIdx.x / WARP] = part;
	__syncthreads();
	part = warp[0];
	for (int i = 1; i < ROW_THREADS / WARP; i++)
		part = join(part, warp[i]);
	return part;
}

/* What a thread has seen of a row. */
template <typename R> struct running_part {
	R most, sum;
	int index;

	template <int N> __device__ void add(const struct values<R, N> &x, int64_t first)
	{
		R largest = x[0];

#pragma unroll
		for (int k = 1; k < N; k++)
			largest = x[k] > largest ? x[k] : largest;
		if (largest > most) {
			sum *= exp_from(most, largest);
			most = largest;
#pragma unroll
			for (int k = N - 1; k >= 0; k--)
				index = x[k] == largest ? (int)first + k : index;
		}
#pragma unroll
		for (int k = 0; k < N; k++)
			sum += exp_from(x[k], most);
	}
};

/* Spans of one access; numbers after the last whole span are spans of their own. */
template <typename L> struct row_spans {
	static constexpr int N = 16 / (int)sizeof(L);
	static constexpr int64_t STEP = (int64_t)ROW_THREADS * N;

	/* f(first, number of neighbours) for all spans of the thread. */
	template <typename F> static __device__ void each(int64_t v, F f)
	{
		const int64_t end = v / N * N, rest = end + threadIdx.x;

		for (int64_t at = (int64_t)threadIdx.x * N; at < end; at += STEP)
			f(span<N>{ at });
		if (rest < v)
			f(span<1>{ rest });
	}
};

template <typename R, typename L>
static __device__ softmax_part<R> read_row(const L *row, L *stage, int64_t v)
{
	constexpr int N = row_spans<L>::N;
	constexpr int64_t STEP = row_spans<L>::STEP;
	const int64_t end = v / N * N, rest = end + threadIdx.x;
	struct running_part<R> part = { (R)-INFINITY, 0, INT32_MAX };

	for (int64_t at = (int64_t)threadIdx.x * N; at < end; at += LOADS * STEP) {
		sixteen_bytes piece[LOADS];

#pragma unroll
		for (int i = 0; i < LOADS; i++)
			if (at + i * STEP < end)
				piece[i] = *(const sixteen_bytes *)(row + at + i * STEP);
#pragma unroll
		for (int i = 0; i < LOADS; i++)
			if (at + i * STEP < end) {
				part.add(load_span<L, R, N>((const L *)&piece[i]), at + i * STEP);
				if (stage)
					*(sixteen_bytes *)(stage + at + i * STEP) = piece[i];
			}
	}
	if (rest < v) {
		part.add(load_span<L, R, 1>(row + rest), rest);
		if (stage)
			stage[rest] = row[rest];
	}
	return { { part.most, part.index }, (double)part.sum };
}

/*
 * One token: its logits give nll, hit and lse; in training they become
 * (slope_nll [target >= 0] + slope_square 2 lse) softmax - slope_nll onehot(target).
 */
template <typename P, typename L>
static __global__ void __launch_bounds__(ROW_THREADS) score_kernel(struct scores<P, L> s)
{
	typedef typename P::real real;
	typedef typename P::factor factor;
	const int64_t t = blockIdx.x;
	const L *row = s.logits + t * s.pitch;
	L *stage = s.staged ? (L *)launch_memory() : NULL;
	const int32_t target = s.targets[t];
	const bool scored = target >= 0;
	const real logit = scored ? (real)row[target] : 0;
	const softmax_part<real> part = row_join(read_row<real>(row, stage, s.v));
	const double lse = (double)part.most.value + log(part.sum);

	if (threadIdx.x == 0) {
		s.hit[t] = scored && part.most.index == target;
		s.nll[t] = scored ? (real)(lse - (double)logit) : 0;
		s.lse[t] = lse;
	}
	if (!s.dlogits)
		return;
	const double slope = s.dmain && scored ? (double)(*s.dmain * s.weights[0]) : 0;
	const double square = s.dsquare ? (double)(*s.dsquare * s.weights[1]) : 0;
	const real scale = (real)((slope + square * 2 * lse) / part.sum);
	const L *kept = stage ? stage : row;
	factor *to = s.dlogits + t * s.pitch;

	row_spans<L>::each(s.v, [=](auto p) {
		constexpr int N = decltype(p)::n;
		auto d = load_span<L, real, N>(kept + p.first);

#pragma unroll
		for (int k = 0; k < N; k++)
			d[k] = exp_from(d[k], part.most.value) * scale;
		if (target >= p.first && target < p.first + N) {
#pragma unroll
			for (int k = 0; k < N; k++)
				d[k] -= p.first + k == target ? (real)slope : 0;
		}
		store_span(to + p.first, d);
	});
}

/* Kernels of more than 48 KiB of shared memory have to ask for it. */
template <typename P, typename L>
static void score(const struct call *c, int64_t tokens, struct scores<P, L> s)
{
	const int64_t row = s.v * (int64_t)sizeof(L);
	const int bytes = s.dlogits && row <= ROW_BYTES ? (int)row : 0;

	s.staged = bytes > 0;
	cuda_note(context_of(c),
		  cudaFuncSetAttribute(score_kernel<P, L>,
				       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
		  "shared memory");
	launch_kernel(score_kernel<P, L>, (unsigned)tokens, ROW_THREADS, bytes, stream_of(c), s);
	note_launch(c);
}

template <typename P, typename L>
static void score_chunk(const struct call *c, const struct room<P> &r, int64_t first, int64_t tokens,
			bool training)
{
	score<P, L>(c, tokens,
		    { (L *)r.logits, training ? r.dlogits : NULL, false, c->node->in[1]->dim[0],
		      logit_pitch(c->node), (const int32_t *)c->in[2] + first, wide_input<P>(c, 3),
		      wide_output_gradient<P>(c, 0), wide_output_gradient<P>(c, 1),
		      wide_output<P>(c, 2) + first, wide_output<P>(c, 3) + first, r.lse + first });
}

/* logits = x W': dx = dlogits W, dW = dlogits' x summed over chunks */
template <typename P> static void all_chunks(const struct call *c, bool training)
{
	typedef typename P::factor factor;
	struct space m = { (char *)c->work, 0 };
	const struct room<P> r = take_room<P>(&m, c->node, training ? PASS_LOSS : PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]), chunk = chunk_tokens(c->node);
	const int64_t v = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const int64_t pitch = logit_pitch(c->node);
	const bool narrow = keeps_factors<P>(c->node);
	const auto x = rounded<P>(c, input<P>(c, 0), tokens, e, e, r.x), w = weight<P>(c, r.w);
	const auto dx = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);
	const struct results<P> logits = { r.logits, narrow };
	const struct matrix<factor> dlogits = { r.dlogits, pitch, 0 };

	for (int64_t first = 0; first < tokens; first += chunk) {
		const int64_t n = tokens - first < chunk ? tokens - first : chunk;
		const struct matrix<factor> part = { x.at + first * x.pitch, x.pitch, 0 };

		gemm(c, false, true, n, v, e, 1, part, w, false, logits, pitch);
		if (narrow)
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
	struct space m = { (char *)c->work, 0 };
	const struct room<P> r = take_room<P>(&m, c->node, PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]);
	const auto *weights = wide_input<P>(c, 3);
	const auto *nll = wide_output<P>(c, 2);
	auto *main = wide_output<P>(c, 0), *z = wide_output<P>(c, 1);

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
	return { forward<P>, NULL, NULL, loss<P>, workspace_of<take_room<P>>, weight_copies<P> };
}
KERNELS(head_loss, set)
