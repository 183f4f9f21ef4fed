/*
 * head_linear: y_h = x_h W_h for every head h, as one strided batched GEMM.
 *
 * In decoding, up to 4 tokens, reading W bounds the op: head_linear_few_tokens_kernel() streams it
 * once.
 */
#include "core/backend/cuda/gemm/gemm.cuh"

/* I = i, O = o */
struct sizes {
	int64_t tokens, heads, i, o;
	int64_t x_head, x_token; /* elements from one head, and token, of x to the next; x_head 0:
				    all heads share x */
};

static struct sizes sizes_of(const struct node *node)
{
	const struct tensor *x = node->in[0], *w = node->in[1];
	struct sizes s = { x->dim[0] * x->dim[1], w->dim[0], w->dim[1], w->dim[2] };
	const bool shared = x->ndim == 3;
	/* A row of x is one head, or in some slices a whole token. */
	const int64_t row = tensor_contiguous(x) ? s.i : x->pitch;
	const bool token_rows = shared || (!tensor_contiguous(x) && x->row != s.i);

	s.x_head = shared ? 0 : token_rows ? s.i : row;
	s.x_token = token_rows ? row : s.heads * row;
	return s;
}

template <typename P> struct buffers {
	typename P::factor *x, *w, *dy;
	typename P::factor *transposed; /* [heads, O, I], if all heads share x; else NULL */
};

/* The heads of x: 1 if all share it. */
static int64_t x_heads(const struct sizes &s)
{
	return s.x_head ? s.heads : 1;
}

template <typename P>
static buffers<P> alloc_scratch(struct scratch *m, const struct node *node, enum pass pass)
{
	const struct sizes s = sizes_of(node);
	buffers<P> r;

	r.x = m->alloc<typename P::factor>(
		rounded_size<P>(node->in[0], s.tokens * x_heads(s) * s.i));
	r.w = m->alloc<typename P::factor>(weight_scratch<P>(node->in[1]));
	r.dy = pass == PASS_BACKWARD ? m->alloc<typename P::factor>(rounded_size<P>(
					       node->out[0], s.tokens * s.heads * s.o))
				     : NULL;
	r.transposed = pass == PASS_BACKWARD && !s.x_head
			       ? m->alloc<typename P::factor>(s.heads * s.o * s.i)
			       : NULL;
	return r;
}

/* x in the type that the product reads: in its own layout, or rounded to [tokens, heads, I]. */
template <typename P>
static matrix<typename P::factor> factor_x(const struct call *c, const struct sizes &given,
					   typename P::factor *buffers)
{
	typedef typename P::factor factor;
	const struct sizes s = given;
	const int64_t heads = x_heads(s);
	const auto x = input<P>(c, 0);

	if (is_factor<P>(c->node->in[0]))
		return { (const factor *)x.at, s.x_token, s.x_head };
	each_vec(c, s.tokens * heads * s.i, s.i, [=] __device__(auto p) {
		const int64_t row = p.first / s.i, t = row / heads, h = row % heads;
		const int64_t at = t * s.x_token + h * s.x_head + p.first % s.i;

		store_vec(buffers + p.first, x[vec_index<decltype(p)::n>{ at }]);
	});
	return { buffers, heads * s.i, s.x_head ? s.i : 0 };
}

/* ------------------------------------------------------- few tokens (decoding) */

/*
 * A block computes up to 128 outputs of one head.  A thread computes 8 adjacent outputs over a
 * slice of the inputs; slices are added in order.  W is no result of the run, so it is loaded
 * before pdl_wait(), as in gemv.cuh.
 */
#define MAX_FEW_TOKENS 4
#define FEW_TOKENS_THREADS 128
#define FEW_TOKENS_ROWS 8 /* rows of W that a thread loads at a time */

template <typename P> struct few_tokens {
	typedef typename P::real real;
	typedef typename P::factor factor;

	struct sizes s;
	int across, slices; /* threads across the outputs; slices of the inputs */
	input_view<P> x;
	const factor *w; /* [heads,I,O] */
	output_view<P> y;

	/* Depends only on the node. */
	static bool takes(const struct node *node)
	{
		const struct sizes s = sizes_of(node);

		return ROUNDS<P> && s.tokens <= MAX_FEW_TOKENS && s.o % 8 == 0 &&
		       node->in[1]->kind == TENSOR_PARAM;
	}

	explicit few_tokens(const struct call *c)
	    : s(sizes_of(c->node)), x(input<P>(c, 0)), w((const factor *)c->copy[1][0]->memory),
	      y(output<P>(c, 0))
	{
		across = s.o / 8 < 16 ? (int)(s.o / 8) : 16;
		slices = FEW_TOKENS_THREADS / across;
	}
	__device__ void read(vec16 (&row)[FEW_TOKENS_ROWS], int64_t column, int64_t first) const
	{
		const factor *at = w + (int64_t)blockIdx.y * s.i * s.o + column;

#pragma unroll
		for (int k = 0; k < FEW_TOKENS_ROWS; k++) {
			row[k] = {};
			if (first + k * slices < s.i && column < s.o)
				row[k] = *(const vec16 *)(at + (first + k * slices) * s.o);
		}
	}
	__device__ void add(vec<real, 8> &sum, const vec16 (&row)[FEW_TOKENS_ROWS], int64_t token,
			    int64_t first) const
	{
		const input_view<P> from = x + token * s.x_token + blockIdx.y * s.x_head;

#pragma unroll
		for (int k = 0; k < FEW_TOKENS_ROWS; k++) {
			if (first + k * slices >= s.i)
				break;
			const real factor_x = (real)(factor)from[first + k * slices];

#pragma unroll
			for (int e = 0; e < 8; e++)
				sum[e] += factor_x * (real)((const factor *)&row[k])[e];
		}
	}
};

template <typename P, int TOKENS>
static __global__ void __launch_bounds__(FEW_TOKENS_THREADS)
	head_linear_few_tokens_kernel(struct replicas replicas,
				      const __grid_constant__ few_tokens<P> given)
{
	const auto &p = replicas.own(given);
	typedef typename P::real real;
	__shared__ real shared[FEW_TOKENS_THREADS * 8];
	const int slice = (int)threadIdx.x / p.across, place = (int)threadIdx.x % p.across;
	const int64_t column = ((int64_t)blockIdx.x * p.across + place) * 8;
	const int64_t step = p.slices * FEW_TOKENS_ROWS;
	vec<real, 8> sum[TOKENS] = {};
	vec16 row[FEW_TOKENS_ROWS];

	p.read(row, column, slice);
	pdl_wait();
	for (int64_t first = slice; slice < p.slices && first < p.s.i; first += step) {
		if (first > slice)
			p.read(row, column, first);
#pragma unroll
		for (int t = 0; t < TOKENS; t++)
			if (t < p.s.tokens)
				p.add(sum[t], row, t, first);
	}
#pragma unroll
	for (int t = 0; t < TOKENS; t++) {
		__syncthreads();
#pragma unroll
		for (int e = 0; e < 8; e++)
			shared[threadIdx.x * 8 + e] = sum[t][e];
		__syncthreads();
		for (int at = (int)threadIdx.x; at < 8 * p.across; at += FEW_TOKENS_THREADS) {
			const int64_t o = (int64_t)blockIdx.x * p.across * 8 + at;
			real total = 0;

			for (int k = 0; k < p.slices; k++)
				total += shared[k * p.across * 8 + at];
			if (t < p.s.tokens && o < p.s.o)
				p.y[(t * p.s.heads + blockIdx.y) * p.s.o + o] = total;
		}
	}
}

template <typename P> static void forward_few(const struct call *c)
{
	const few_tokens<P> p(c);
	const dim3 blocks((unsigned)((p.s.o / 8 + p.across - 1) / p.across), (unsigned)p.s.heads);

	if (p.s.tokens == 1)
		launch_for(c, head_linear_few_tokens_kernel<P, 1>, blocks, FEW_TOKENS_THREADS, 0,
			   p);
	else
		launch_for(c, head_linear_few_tokens_kernel<P, MAX_FEW_TOKENS>, blocks,
			   FEW_TOKENS_THREADS, 0, p);
}

/* --------------------------------------------------------------------- passes */

template <typename P> static void forward(const struct call *c)
{
	if constexpr (ROUNDS<P>)
		if (few_tokens<P>::takes(c->node)) {
			forward_few<P>(c);
			return;
		}
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_FORWARD);
	const struct sizes s = sizes_of(c->node);
	auto w = weight<P>(c, r.w);

	w.stride = s.i * s.o;
	gemm(c, false, false, s.tokens, s.o, s.i, 1, factor_x<P>(c, s, r.x), w, false,
	     output<P>(c, 0), s.heads * s.o, s.o, s.heads);
}

/*
 * dx_h = dy_h W_h'.  If all heads share x, dx = dy V, where V [heads x O, I] stacks the transposed
 * W_h.
 */
template <typename P>
static void backward_x(const struct call *c, const struct sizes &given,
		       matrix<typename P::factor> dy, matrix<typename P::factor> w,
		       typename P::factor *transposed)
{
	const struct sizes s = given;
	const auto dx = input_gradient<P>(c, 0);

	if (s.x_head) {
		gemm(c, false, true, s.tokens, s.i, s.o, 1, dy, w, dx.add, dx.to, s.x_token,
		     s.x_head, s.heads);
		return;
	}
	each(c, s.heads * s.o * s.i, [=] __device__(int64_t at) {
		const int64_t row = at / s.i, h = row / s.o;

		transposed[at] = w.at[(h * s.i + at % s.i) * s.o + row % s.o];
	});
	gemm<typename P::factor>(c, false, false, s.tokens, s.i, s.heads * s.o, 1, dy,
				 { transposed, s.i, 0 }, dx.add, dx.to, s.x_token);
}

/* y_h = x_h W_h: dW_h = x_h' dy_h */
template <typename P> static void backward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_BACKWARD);
	const struct sizes s = sizes_of(c->node);
	const auto dw = input_gradient<P>(c, 1);
	auto dy = rounded<P>(c, output_gradient<P>(c, 0), s.tokens, s.heads * s.o, s.heads * s.o,
			     r.dy);

	dy.stride = s.o;
	if (dw)
		gemm(c, true, false, s.i, s.o, s.tokens, 1, factor_x<P>(c, s, r.x), dy, dw.add,
		     dw.to, s.o, s.i * s.o, s.heads);
	if (c->din[0]) {
		auto w = weight<P>(c, r.w);

		w.stride = s.i * s.o;
		backward_x<P>(c, s, dy, w, r.transposed);
	}
}

KERNELS(head_linear, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_scratch<P>>,
	weight_copies<P>)
