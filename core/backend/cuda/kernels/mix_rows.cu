/*
 * mix_rows: y = R x, with the routing matrix R [T,T] of a rms or dense mode.
 *
 * R is recomputed from q, k and lse, a block of queries [rows, keys] at a time:
 *
 *     forward   y_block = R_block x
 *     backward  dx += R_block' dy_block
 */
#include "core/backend/cuda/attention/scores.cuh"

enum { X, Q, K, LSE, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

/* Computes the rows of R of one block of queries, [B,rows,pitch].  Keys after the query are 0. */
template <typename P>
static void compute_route(const struct call *c, const scores<P> &given, struct query_block x,
			  typename P::real *route)
{
	typedef typename P::real real;
	const scores<P> s = given;
	const auto *lse = real_input<P>(c, LSE);

	block_products(c, s, x);
	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t head = b * s.H + h, i = s.past + x.first + r;
		const int64_t at = (head * s.rows + r) * s.pitch;
		const real normal = lse[head * s.T + x.first + r];

		finish_row(s, b, h, i, s.score + at, s.cross + at);
		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK)
			s.score[at + j] = j <= i ? exp(s.score[at + j] - normal) : 0;
	});
	combine_heads(c, s, x, route);
	each_row(c, s.B * x.n, [=] __device__(int64_t item) {
		const int64_t r = item % x.n, n = s.past + x.first + r + 1;
		real *row = route + (item / x.n * s.rows + r) * s.pitch, sum = 0;
		const real least = route_least(s.attr.route, row, n);

		for (int64_t j = threadIdx.x; j < n; j += BLOCK)
			sum += row[j] >= least ? row[j] : 0;
		sum = block_sum(sum);
		for (int64_t j = threadIdx.x; j < n; j += BLOCK)
			row[j] = row[j] >= least ? row[j] * route_factor(s.attr.route, sum) : 0;
	});
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	struct scratch m = scratch_of(c);
	const scores<P> s = open_scores<P>(c, &m, a, INPUTS, a->band_window);
	real *route = m.alloc<real>(s.B * s.rows * s.pitch);
	const int64_t F = c->node->in[X]->dim[2], S = c->node->in[X]->dim[1];
	const matrix<real> values = { real_input<P>(c, X), F, S * F };

	for (int64_t first = 0; first < s.T; first += s.rows) {
		const struct query_block x = block_at(s, first);
		const matrix<real> R = { route, s.pitch, s.rows * s.pitch };

		compute_route<P>(c, s, x, route);
		gemm(c, false, false, x.n, F, x.keys, 1, R, values, false,
		     real_output<P>(c, 0) + first * F, F, s.T * F, s.B);
	}
}

template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	struct scratch m = scratch_of(c);
	const scores<P> s = open_scores<P>(c, &m, a, INPUTS, a->band_window);
	real *route = m.alloc<real>(s.B * s.rows * s.pitch);
	const int64_t F = c->node->in[X]->dim[2];
	real *dx = real_input_gradient<P>(c, X);

	if (!call_adds(c, X))
		each(c, count_of(c->node->in[X]), [=] __device__(int64_t i) { dx[i] = 0; });
	for (int64_t first = 0; first < s.T; first += s.rows) {
		const struct query_block x = block_at(s, first);
		const matrix<real> R = { route, s.pitch, s.rows * s.pitch };
		const matrix<real> dy = { real_output_gradient<P>(c, 0) + first * F, F, s.T * F };

		compute_route<P>(c, s, x, route);
		gemm(c, true, false, x.keys, F, x.n, 1, R, dy, true, dx, F, s.T * F, s.B);
	}
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	struct scratch m = count_scratch(sms);
	typename P::factor *buffers[3];
	const scores<P> s = alloc_scores<P>(&m, n, a, INPUTS, a->band_window, buffers);

	(void)pass;
	m.alloc<typename P::real>(s.B * s.rows * s.pitch);
	return m.used;
}

/* The width of a block of scores is the number of keys, which depends on run->past. */
static bool follows_past(const struct node *n)
{
	(void)n;
	return true;
}

KERNELS(mix_rows, forward<P>, backward<P>, NULL, NULL, workspace<P>, NULL, follows_past)
