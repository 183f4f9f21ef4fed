/*
 * linear_attention: chunks of all heads as batches of small matrix products.  The formulas are in
 * core/ops/linear_attention.h, and so are the names of the matrices.
 *
 * Scratch matrices are ordered [chunk, example, head], padded with zeros to whole chunks.  u
 * depends on the state S that its chunk begins with: u = y - w S', where y and w solve the same
 * triangular system for all chunks at once.  So only one or two products per chunk are sequential,
 * and none without the delta rule, where the states are an elementwise scan.  Products are in
 * P::real.
 */
#include "core/backend/cuda/gemm/gemm.cuh"
#include "core/backend/cuda/primitives/tokens.cuh"

extern "C" {
#include "core/ops/linear_attention.h"
}

/* Where row i of chunk m lies in a tensor [B,T,H,..]. */
struct chunk_layout : linear_attention_sizes {
	int64_t heads, N; /* of all examples; chunks of all heads */

	__device__ int64_t token(int64_t m, int64_t i) const
	{
		return m / heads * C + i;
	}
	__device__ int64_t place(int64_t m, int64_t i, int64_t pitch, int64_t width) const
	{
		const int64_t head = m % heads;

		return (head / H * T + token(m, i)) * pitch + head % H * width;
	}
};

/* An input or output [B,T,H,width] of the call, or its gradient. */
template <typename V> struct head_view {
	V view;
	int64_t pitch, width;

	__device__ auto at(const chunk_layout &s, int64_t m, int64_t i, int64_t c) const
	{
		return view[s.place(m, i, pitch, width) + c];
	}
};

template <typename V> static head_view<V> heads_of(V view, const struct tensor *t)
{
	if (!t)
		return { view, 0, 0 };
	return { view, tokens_of(t).pitch, t->ndim == 4 ? t->dim[3] : 1 };
}

template <typename P> static head_view<input_view<P>> head_input(const struct call *c, int i)
{
	return heads_of(input<P>(c, i), c->node->in[i]);
}

template <typename P> static head_view<gradient_view<P>> head_gradient(const struct call *c, int i)
{
	return heads_of(input_gradient<P>(c, i), c->node->in[i]);
}

/* x (m, i, c), or 0 in padded rows; an absent tensor is 1. */
template <typename P>
static __device__ typename P::real
value_at(const chunk_layout &s, const head_view<input_view<P>> &x, int64_t m, int64_t i, int64_t c)
{
	if (s.token(m, i) >= s.T)
		return 0;
	return x.view ? x.at(s, m, i, c) : (typename P::real)1;
}

template <typename P>
static __device__ void put_at(const chunk_layout &s, const head_view<gradient_view<P>> &d,
			      int64_t m, int64_t i, int64_t c, typename P::real value)
{
	if (d.view && s.token(m, i) < s.T)
		d.view.put(s.place(m, i, d.pitch, d.width) + c, value);
}

/* Scratch matrices of all chunks; those below `o` for the backward pass only. */
template <typename R> struct chunks {
	chunk_layout s;
	R *states;		/* [n+1,heads,D,K] */
	R *q, *k, *L;		/* [N,C,K], [N,C,K], [N,C,G] */
	R *q_at, *k_at, *k_end; /* Q~, K~, K^ [N,C,K] */
	R *A, *M;		/* [N,C,C] */
	R *u, *w, *o;		/* [N,C,D], [N,C,K], [N,C,D]: o or its gradient */
	R *r, *du, *dr;		/* [N,C,D] */
	R *dstates;		/* as states */
	R *dA, *dM;		/* [N,C,C] */
	R *dq, *left, *right;	/* [N,C,K] */

	/* exp(L_i - L_j) of channel c; i or j < 0: L is 0. */
	__device__ R factor(int64_t m, int64_t i, int64_t j, int64_t c) const
	{
		const R *own = L + m * s.C * s.G + (s.G > 1 ? c : 0);

		if (s.G == 0)
			return 1;
		return exp((i < 0 ? 0 : own[i * s.G]) - (j < 0 ? 0 : own[j * s.G]));
	}
};

template <typename P>
static chunks<typename P::real> alloc_chunks(struct scratch *m, const struct node *n,
					     enum pass pass)
{
	typedef typename P::real real;
	chunks<real> x = {};
	chunk_layout &s = x.s;

	(struct linear_attention_sizes &)s = linear_attention_sizes_of(n);
	s.heads = s.B * s.H;
	s.N = s.n * s.heads;
	const int64_t NCK = s.N * s.C * s.K, NCD = s.N * s.C * s.D, NCC = s.N * s.C * s.C;
	const int64_t states = (s.n + 1) * s.heads * s.D * s.K;

	if (n->out[1]->kind == TENSOR_STATE)
		x.states = m->alloc<real>(states);
	x.q = m->alloc<real>(NCK);
	x.k = m->alloc<real>(NCK);
	x.L = m->alloc<real>(s.N * s.C * s.G);
	x.q_at = m->alloc<real>(NCK);
	x.k_at = m->alloc<real>(NCK);
	x.k_end = m->alloc<real>(NCK);
	x.A = m->alloc<real>(NCC);
	x.u = m->alloc<real>(NCD);
	x.o = m->alloc<real>(NCD);
	if (s.delta) {
		x.M = m->alloc<real>(NCC);
		x.w = m->alloc<real>(NCK);
	}
	if (pass == PASS_FORWARD)
		return x;
	x.r = m->alloc<real>(NCD);
	x.du = m->alloc<real>(NCD);
	x.dr = m->alloc<real>(NCD);
	x.dstates = m->alloc<real>(states);
	x.dA = m->alloc<real>(NCC);
	x.dM = m->alloc<real>(s.delta ? NCC : 0);
	x.dq = m->alloc<real>(NCK);
	x.left = m->alloc<real>(NCK);
	x.right = m->alloc<real>(NCK);
	return x;
}

/* The matrices [rows,columns] of `count` chunks, one after the other. */
template <typename R> static matrix<R> batch(const R *at, int64_t rows, int64_t columns)
{
	return { at, columns, rows * columns, false };
}

/*
 * out [m,n] of `count` chunks = (add: out +) alpha op(a) op(b), all contiguous, with a sum over k.
 */
template <typename R>
static void products(const struct call *c, bool trans_a, bool trans_b, int64_t m, int64_t n,
		     int64_t k, double alpha, const R *a, const R *b, bool add, R *out,
		     int64_t count)
{
	gemm(c, trans_a, trans_b, m, n, k, alpha, trans_a ? batch(a, k, m) : batch(a, m, k),
	     trans_b ? batch(b, n, k) : batch(b, k, n), add, out, n, m * n, count);
}

/* q, k, L, and what follows from them elementwise. */
template <typename P>
static void load_keys(const struct call *c, const chunks<typename P::real> &all)
{
	typedef typename P::real real;
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const auto q = head_input<P>(c, LA_Q), k = head_input<P>(c, LA_K),
		   decay = head_input<P>(c, LA_DECAY);

	each(c, s.N * s.G, [=] __device__(int64_t at) {
		const int64_t m = at / s.G, g = at % s.G;
		real sum = 0;

		for (int64_t i = 0; i < s.C; i++) {
			sum += value_at<P>(s, decay, m, i, g);
			x.L[(m * s.C + i) * s.G + g] = sum;
		}
	});
	each(c, s.N * s.C * s.K, [=] __device__(int64_t at) {
		const int64_t channel = at % s.K, i = at / s.K % s.C, m = at / (s.K * s.C);
		const real own_q = value_at<P>(s, q, m, i, channel),
			   own_k = value_at<P>(s, k, m, i, channel),
			   decayed = x.factor(m, i, -1, channel);

		x.q[at] = own_q;
		x.k[at] = own_k;
		x.q_at[at] = own_q * decayed;
		x.k_at[at] = own_k * decayed;
		x.k_end[at] = own_k * x.factor(m, s.C - 1, i, channel);
	});
}

/* scores_ij = sum_c left_ic k_jc exp(L_ic - L_jc) for j <= i, or j < i; else 0. */
template <typename R>
static void decayed_scores(const struct call *c, const chunks<R> &all, const R *left, bool strict,
			   R *scores)
{
	const chunks<R> x = all;
	const chunk_layout s = x.s;

	each(c, s.N * s.C * s.C, [=] __device__(int64_t at) {
		const int64_t j = at % s.C, i = at / s.C % s.C, m = at / (s.C * s.C);
		const R *a = left + (m * s.C + i) * s.K, *b = x.k + (m * s.C + j) * s.K;
		R sum = 0;

		if (j < i || (j == i && !strict)) {
			for (int64_t channel = 0; channel < s.K; channel++)
				sum += a[channel] * b[channel] *
				       (s.G > 1 ? x.factor(m, i, j, channel) : (R)1);
			sum *= s.G == 1 ? x.factor(m, i, j, 0) : (R)1;
		}
		scores[at] = sum;
	});
}

/* u, and w: y_i = beta_i (right_i - sum_(j<i) M_ij y_j), column by column. */
template <typename P> static void solve(const struct call *c, const chunks<typename P::real> &all)
{
	typedef typename P::real real;
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const auto v = head_input<P>(c, LA_V), beta = head_input<P>(c, LA_BETA);
	const int64_t columns = s.D + (s.delta ? s.K : 0);

	each(c, s.N * columns, [=] __device__(int64_t at) {
		const int64_t column = at % columns, m = at / columns;
		const bool is_value = column < s.D;
		const int64_t width = is_value ? s.D : s.K, own = is_value ? column : column - s.D;
		real *y = (is_value ? x.u : x.w) + m * s.C * width + own;

		for (int64_t i = 0; i < s.C; i++) {
			real sum = is_value ? value_at<P>(s, v, m, i, own)
					    : x.k_at[(m * s.C + i) * s.K + own];

			for (int64_t j = 0; s.delta && j < i; j++)
				sum -= x.M[(m * s.C + i) * s.C + j] * y[j * width];
			y[i * width] = value_at<P>(s, beta, m, i, 0) * sum;
		}
	});
}

/* Everything but u - w S', which needs the states. */
template <typename P>
static void open_chunks(const struct call *c, const chunks<typename P::real> &x)
{
	load_keys<P>(c, x);
	decayed_scores(c, x, x.q, false, x.A);
	if (x.s.delta)
		decayed_scores(c, x, x.k, true, x.M);
	solve<P>(c, x);
}

/* to += from diag(exp(L_C)), or =, for chunk `number` of all heads. */
template <typename R>
static void decay_states(const struct call *c, const chunks<R> &all, int64_t number, const R *from,
			 bool add, R *to)
{
	const chunks<R> x = all;
	const chunk_layout s = x.s;

	each(c, s.heads * s.D * s.K, [=] __device__(int64_t at) {
		const int64_t m = number * s.heads + at / (s.D * s.K);
		const R value = from[at] * x.factor(m, s.C - 1, -1, at % s.K);

		to[at] = add ? to[at] + value : value;
	});
}

/* The state after each chunk, and u, one chunk after the other. */
template <typename R> static void scan_delta(const struct call *c, const chunks<R> &x)
{
	const chunk_layout &s = x.s;
	const int64_t size = s.heads * s.D * s.K;

	for (int64_t number = 0; number < s.n; number++) {
		const int64_t first = number * s.heads * s.C;
		R *state = x.states + number * size, *u = x.u + first * s.D;

		products(c, false, true, s.C, s.D, s.K, -1, (const R *)x.w + first * s.K,
			 (const R *)state, true, u, s.heads);
		decay_states(c, x, number, (const R *)state, false, state + size);
		products(c, true, false, s.D, s.K, s.C, 1, (const R *)u,
			 (const R *)x.k_end + first * s.K, true, state + size, s.heads);
	}
}

/* The same without the delta rule: what each chunk adds, then their scan. */
template <typename R> static void scan_plain(const struct call *c, const chunks<R> &all)
{
	const chunks<R> x = all;
	const chunk_layout s = x.s;
	const int64_t size = s.heads * s.D * s.K;

	products(c, true, false, s.D, s.K, s.C, 1, (const R *)x.u, (const R *)x.k_end, false,
		 x.states + size, s.N);
	each(c, size, [=] __device__(int64_t at) {
		R state = x.states[at];

		for (int64_t number = 0; number < s.n; number++) {
			R *next = x.states + (number + 1) * size + at;

			state = state * x.factor(number * s.heads + at / (s.D * s.K), s.C - 1, -1,
						 at % s.K) +
				*next;
			*next = state;
		}
	});
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	chunks<real> x = alloc_chunks<P>(&m, c->node, PASS_FORWARD);
	const chunk_layout s = x.s;
	const int64_t size = s.heads * s.D * s.K;
	real *kept = x.states ? real_output<P>(c, 1) : NULL;
	const auto o = heads_of(output<P>(c, 0), c->node->out[0]);
	const struct run *run = run_of(c);

	if (!kept)
		x.states = real_output<P>(c, 1);
	real *states = x.states;
	const real *outputs = x.o;

	each(c, size, [=] __device__(int64_t at) {
		states[at] = kept && run->past > 0 ? kept[at] : (real)0;
	});
	open_chunks<P>(c, x);
	if (s.delta)
		scan_delta(c, x);
	else
		scan_plain(c, x);
	products(c, false, true, s.C, s.D, s.K, 1, (const real *)x.q_at, (const real *)x.states,
		 false, x.o, s.N);
	products(c, false, false, s.C, s.D, s.C, 1, (const real *)x.A, (const real *)x.u, true, x.o,
		 s.N);
	each(c, s.N * s.C * s.D, [=] __device__(int64_t at) {
		const int64_t channel = at % s.D, i = at / s.D % s.C, chunk = at / (s.D * s.C);

		if (s.token(chunk, i) < s.T)
			o.view[s.place(chunk, i, o.pitch, o.width) + channel] = outputs[at];
	});
	if (kept)
		each(c, size, [=] __device__(int64_t at) { kept[at] = states[s.n * size + at]; });
}

/* du without M, and the gradient of the state before each chunk, from the last chunk on. */
template <typename R> static void scan_delta_backward(const struct call *c, const chunks<R> &x)
{
	const chunk_layout &s = x.s;
	const int64_t size = s.heads * s.D * s.K;

	for (int64_t number = s.n - 1; number >= 0; number--) {
		const int64_t first = number * s.heads * s.C;
		R *state = x.dstates + number * size, *du = x.du + first * s.D;

		products(c, false, true, s.C, s.D, s.K, 1, (const R *)x.k_end + first * s.K,
			 (const R *)state + size, true, du, s.heads);
		decay_states(c, x, number, (const R *)state + size, true, state);
		products(c, true, false, s.D, s.K, s.C, -1, (const R *)du,
			 (const R *)x.w + first * s.K, true, state, s.heads);
	}
}

template <typename R> static void scan_plain_backward(const struct call *c, const chunks<R> &all)
{
	const chunks<R> x = all;
	const chunk_layout s = x.s;
	const int64_t size = s.heads * s.D * s.K;

	each(c, size, [=] __device__(int64_t at) {
		R later = 0;

		for (int64_t number = s.n - 1; number >= 0; number--) {
			R *own = x.dstates + number * size + at;

			later = later * x.factor(number * s.heads + at / (s.D * s.K), s.C - 1, -1,
						 at % s.K) +
				*own;
			*own = later;
		}
	});
	products(c, false, true, s.C, s.D, s.K, 1, (const R *)x.k_end, (const R *)x.dstates + size,
		 true, x.du, s.N);
}

/* u, r, du, dr and dstates. */
template <typename P>
static void backward_update(const struct call *c, const chunks<typename P::real> &all)
{
	typedef typename P::real real;
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const int64_t size = s.heads * s.D * s.K;
	const auto dout = heads_of(output_gradient<P>(c, 0), c->node->out[0]);
	const auto v = head_input<P>(c, LA_V), beta = head_input<P>(c, LA_BETA);

	each(c, s.N * s.C * s.D, [=] __device__(int64_t at) {
		const int64_t channel = at % s.D, i = at / s.D % s.C, m = at / (s.D * s.C);

		x.o[at] = value_at<P>(s, dout, m, i, channel);
		x.r[at] = value_at<P>(s, v, m, i, channel);
	});
	each(c, size, [=] __device__(int64_t at) { x.dstates[s.n * size + at] = 0; });
	if (s.delta)
		products(c, false, true, s.C, s.D, s.K, -1, (const real *)x.w,
			 (const real *)x.states, true, x.u, s.N);
	products(c, true, false, s.C, s.D, s.C, 1, (const real *)x.A, (const real *)x.o, false,
		 x.du, s.N);
	products(c, true, false, s.D, s.K, s.C, 1, (const real *)x.o, (const real *)x.q_at, false,
		 x.dstates, s.N);
	if (s.delta) {
		scan_delta_backward(c, x);
		products(c, false, true, s.C, s.D, s.K, -1, (const real *)x.k_at,
			 (const real *)x.states, true, x.r, s.N);
		products(c, false, false, s.C, s.D, s.C, -1, (const real *)x.M, (const real *)x.u,
			 true, x.r, s.N);
	} else {
		scan_plain_backward(c, x);
	}
	each(c, s.N * s.D, [=] __device__(int64_t at) {
		const int64_t m = at / s.D;
		real *du = x.du + m * s.C * s.D + at % s.D, *dr = x.dr + m * s.C * s.D + at % s.D;

		for (int64_t i = s.C - 1; i >= 0; i--) {
			real sum = du[i * s.D];

			for (int64_t j = i + 1; s.delta && j < s.C; j++)
				sum -= x.M[(m * s.C + j) * s.C + i] * dr[j * s.D];
			du[i * s.D] = sum;
			dr[i * s.D] = value_at<P>(s, beta, m, i, 0) * sum;
		}
	});
}

/* dq and dk; the gradient of L replaces dq. */
template <typename P>
static void backward_keys(const struct call *c, const chunks<typename P::real> &all)
{
	typedef typename P::real real;
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const int64_t size = s.heads * s.D * s.K;
	const auto dq = head_gradient<P>(c, LA_Q), dk = head_gradient<P>(c, LA_K);

	products(c, false, true, s.C, s.C, s.D, 1, (const real *)x.o, (const real *)x.u, false,
		 x.dA, s.N);
	products(c, false, false, s.C, s.K, s.D, 1, (const real *)x.o, (const real *)x.states,
		 false, x.dq, s.N);
	products(c, false, false, s.C, s.K, s.D, 1, (const real *)x.u,
		 (const real *)x.dstates + size, false, x.right, s.N);
	if (s.delta) {
		products(c, false, true, s.C, s.C, s.D, -1, (const real *)x.dr, (const real *)x.u,
			 false, x.dM, s.N);
		products(c, false, false, s.C, s.K, s.D, -1, (const real *)x.dr,
			 (const real *)x.states, false, x.left, s.N);
	}
	each(c, s.N * s.C * s.K, [=] __device__(int64_t at) {
		const int64_t channel = at % s.K, i = at / s.K % s.C, m = at / (s.K * s.C);
		const int64_t first = m * s.C;
		const real decayed = x.factor(m, i, -1, channel);
		real own_q = x.dq[at] * decayed, left = s.delta ? x.left[at] * decayed : (real)0,
		     right = x.right[at] * x.factor(m, s.C - 1, i, channel);

		for (int64_t j = 0; j <= i; j++) {
			const real by =
				x.k[(first + j) * s.K + channel] * x.factor(m, i, j, channel);

			own_q += x.dA[(first + i) * s.C + j] * by;
			if (s.delta && j < i)
				left += x.dM[(first + i) * s.C + j] * by;
		}
		for (int64_t j = i; j < s.C; j++) {
			const int64_t other = (first + j) * s.K + channel;
			const real by = x.factor(m, j, i, channel);

			right += x.dA[(first + j) * s.C + i] * by * x.q[other];
			if (s.delta && j > i)
				right += x.dM[(first + j) * s.C + i] * by * x.k[other];
		}
		put_at<P>(s, dq, m, i, channel, own_q);
		put_at<P>(s, dk, m, i, channel, left + right);
		x.dq[at] = x.q[at] * own_q + x.k[at] * (left - right);
	});
}

/* ddecay_t: the sum of dL_i over i >= t; dL_C has that of the next state in addition. */
template <typename P>
static void backward_decay(const struct call *c, const chunks<typename P::real> &all)
{
	typedef typename P::real real;
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const auto d = head_gradient<P>(c, LA_DECAY);

	each(c, s.N * s.K, [=] __device__(int64_t at) {
		const int64_t m = at / s.K, channel = at % s.K;
		const int64_t next = (m + s.heads) * s.D * s.K + channel;
		real *last = x.dq + (m * s.C + s.C - 1) * s.K + channel, sum = *last;

		for (int64_t i = 0; i < s.D; i++)
			sum += x.dstates[next + i * s.K] * x.states[next + i * s.K];
		*last = sum;
	});
	if (s.G == 1)
		each(c, s.N * s.C, [=] __device__(int64_t at) {
			real sum = 0;

			for (int64_t channel = 0; channel < s.K; channel++)
				sum += x.dq[at * s.K + channel];
			x.left[at] = sum;
		});
	const real *dL = s.G == 1 ? x.left : x.dq;

	each(c, s.N * s.G, [=] __device__(int64_t at) {
		const int64_t m = at / s.G, g = at % s.G;
		real sum = 0;

		for (int64_t i = s.C - 1; i >= 0; i--) {
			sum += dL[(m * s.C + i) * s.G + g];
			put_at<P>(s, d, m, i, g, sum);
		}
	});
}

/* Two inputs may be one tensor: their gradients are put in order. */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch memory = scratch_of(c);
	chunks<real> all = alloc_chunks<P>(&memory, c->node, PASS_BACKWARD);
	all.states = real_output<P>(c, 1);
	const chunks<real> x = all;
	const chunk_layout s = x.s;
	const auto dv = head_gradient<P>(c, LA_V), dbeta = head_gradient<P>(c, LA_BETA);

	open_chunks<P>(c, x);
	backward_update<P>(c, x);
	backward_keys<P>(c, x);
	if (dv.view)
		each(c, s.N * s.C * s.D, [=] __device__(int64_t at) {
			put_at<P>(s, dv, at / (s.D * s.C), at / s.D % s.C, at % s.D, x.dr[at]);
		});
	if (c->din[LA_DECAY])
		backward_decay<P>(c, x);
	if (dbeta.view)
		each(c, s.N * s.C, [=] __device__(int64_t at) {
			real sum = 0;

			for (int64_t i = 0; i < s.D; i++)
				sum += x.du[at * s.D + i] * x.r[at * s.D + i];
			put_at<P>(s, dbeta, at / s.C, at % s.C, 0, sum);
		});
}

KERNELS(linear_attention, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_chunks<P>>)
