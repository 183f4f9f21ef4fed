/*
 * scan: y_t = a_t y_(t-1) + b_t per channel; cumsum: a = 1.
 *
 * Three launches: each block of 32 tokens from 0, with the product of its a; then the value with
 * which each block begins; then all blocks again from there.  Backward is the same scan in reverse,
 * h_t = a_(t+1) h_(t+1) + dy_t.  Memory bandwidth bounds it.
 */
#include "core/backend/cuda/primitives/tokens.cuh"

#define SCAN_TOKENS 32

/* Scratch [B,n,C] for n blocks of tokens. */
template <typename R> struct scan_blocks {
	int64_t B, T, C, n;
	R *end, *product; /* NULL: there is one block */
};

template <typename P>
static scan_blocks<typename P::real> alloc_blocks(struct scratch *m, const struct node *n,
						  enum pass)
{
	typedef typename P::real real;
	const struct tokens x = tokens_of(n->in[0]);
	scan_blocks<real> s = {
		x.B, x.T, x.size, (x.T + SCAN_TOKENS - 1) / SCAN_TOKENS, NULL, NULL
	};

	if (s.n > 1) {
		s.end = m->alloc<real>(s.B * s.n * s.C);
		s.product = m->alloc<real>(s.B * s.n * s.C);
	}
	return s;
}

/*
 * z = factor(b, step, channel) z + value(b, step, channel) for step 0 to T - 1, from begin(b,
 * channel) on; write(b, step, channel, z) after each step.
 */
template <typename R, typename F, typename V, typename G, typename W>
static void scan_tokens(const struct call *c, const scan_blocks<R> &blocks, F factor, V value,
			G begin, W write)
{
	const scan_blocks<R> s = blocks;

	if (s.n > 1) {
		each(c, s.B * s.n * s.C, [=] __device__(int64_t i) {
			const int64_t channel = i % s.C, b = i / (s.n * s.C);
			const int64_t first = i / s.C % s.n * SCAN_TOKENS;
			const int64_t last = first + SCAN_TOKENS < s.T ? first + SCAN_TOKENS : s.T;
			R z = 0, product = 1;

#pragma unroll 4
			for (int64_t t = first; t < last; t++) {
				const R f = factor(b, t, channel);

				z = f * z + value(b, t, channel);
				product *= f;
			}
			s.end[i] = z;
			s.product[i] = product;
		});
		each(c, s.B * s.C, [=] __device__(int64_t i) {
			const int64_t at = i / s.C * s.n * s.C + i % s.C;
			R z = begin(i / s.C, i % s.C);

#pragma unroll 4
			for (int64_t k = 0; k < s.n; k++) {
				const R end = s.end[at + k * s.C], f = s.product[at + k * s.C];

				s.end[at + k * s.C] = z;
				z = f * z + end;
			}
		});
	}
	each(c, s.B * s.n * s.C, [=] __device__(int64_t i) {
		const int64_t channel = i % s.C, b = i / (s.n * s.C);
		const int64_t first = i / s.C % s.n * SCAN_TOKENS;
		const int64_t last = first + SCAN_TOKENS < s.T ? first + SCAN_TOKENS : s.T;
		R z = s.end ? s.end[i] : begin(b, channel);

#pragma unroll 4
		for (int64_t t = first; t < last; t++) {
			z = factor(b, t, channel) * z + value(b, t, channel);
			write(b, t, channel, z);
		}
	});
}

/* y_t = a_t y_(t-1) + b_t */
template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct node *n = c->node;
	struct scratch m = scratch_of(c);
	const scan_blocks<real> s = alloc_blocks<P>(&m, n, PASS_FORWARD);
	const struct tokens bs = tokens_of(n->in[0]), as = tokens_of(n->in[n->n_in - 1]);
	const auto b = input<P>(c, 0), a = n->n_in > 1 ? input<P>(c, 1) : input_view<P>{};
	const auto y = output<P>(c, 0);
	real *state = n->n_out > 1 ? real_output<P>(c, 1) : NULL;
	const struct run *run = run_of(c);

	scan_tokens(
		c, s,
		[=] __device__(int64_t e, int64_t t, int64_t i) {
			return a ? a[(e * s.T + t) * as.pitch + i] : (real)1;
		},
		[=] __device__(int64_t e, int64_t t, int64_t i) {
			return b[(e * s.T + t) * bs.pitch + i];
		},
		[=] __device__(int64_t e, int64_t i) {
			return state && run->past > 0 ? state[e * s.C + i] : (real)0;
		},
		[=] __device__(int64_t e, int64_t t, int64_t i, real z) {
			y[(e * s.T + t) * s.C + i] = z;
			if (state && t == s.T - 1)
				state[e * s.C + i] = z;
		});
}

/* h_t = a_(t+1) h_(t+1) + dy_t; db_t = h_t, da_t = h_t y_(t-1).  db may be written over dy. */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct node *n = c->node;
	struct scratch m = scratch_of(c);
	const scan_blocks<real> s = alloc_blocks<P>(&m, n, PASS_BACKWARD);
	const struct tokens bs = tokens_of(n->in[0]), as = tokens_of(n->in[n->n_in - 1]);
	const bool gated = n->n_in > 1;
	const auto a = gated ? input<P>(c, 1) : input_view<P>{};
	const auto y = gated ? (input_view<P>)output<P>(c, 0) : input_view<P>{};
	const auto dy = output_gradient<P>(c, 0);
	const auto db = input_gradient<P>(c, 0);
	const auto da = gated ? input_gradient<P>(c, 1) : gradient_view<P>{};

	scan_tokens(
		c, s,
		[=] __device__(int64_t e, int64_t step, int64_t i) {
			return a && step > 0 ? a[(e * s.T + s.T - step) * as.pitch + i] : (real)1;
		},
		[=] __device__(int64_t e, int64_t step, int64_t i) {
			return dy[(e * s.T + s.T - 1 - step) * s.C + i];
		},
		[=] __device__(int64_t, int64_t) { return (real)0; },
		[=] __device__(int64_t e, int64_t step, int64_t i, real h) {
			const int64_t row = e * s.T + s.T - 1 - step;

			if (db)
				db.put(row * bs.pitch + i, h);
			if (da)
				da.put(row * as.pitch + i,
				       step < s.T - 1 ? h * y[(row - 1) * s.C + i] : (real)0);
		});
}

KERNELS(cumsum, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_blocks<P>>)
KERNELS(scan, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_blocks<P>>)
