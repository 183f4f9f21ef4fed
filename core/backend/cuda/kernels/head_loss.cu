/*
 * Tokens pass in chunks.  The logits of a chunk become losses and, in training, their
 * own gradient, which goes at once into dx and dW.  So logits are computed once and
 * never held as a whole.
 */
#include "core/backend/cuda/product.cuh"

#define CHUNK_LOGITS ((int64_t)1 << 26) /* 256 MiB of floats */
#define CHUNK_TOKENS 256		/* at least, so that reading W hides behind the products */

/* Chunks of nearly equal size. */
static int64_t chunk_tokens(const struct node *n)
{
	const int64_t tokens = tensor_count(n->in[2]), vocabulary = n->in[1]->dim[0];
	const int64_t room = CHUNK_LOGITS / vocabulary;
	const int64_t most = room > CHUNK_TOKENS ? room : CHUNK_TOKENS;
	const int64_t chunks = (tokens + most - 1) / most;

	return (tokens + chunks - 1) / chunks;
}

template <typename P> struct room {
	double *sum_work, *lse;	      /* lse [tokens] */
	typename P::real *logits;     /* [chunk, V] */
	typename P::factor *dlogits;  /* [chunk, V]: rounded, or the logits themselves */
	typename P::factor *x, *w;
};

template <typename P>
static struct room<P> take_room(struct space *m, const struct node *n, enum pass pass)
{
	const int64_t tokens = tensor_count(n->in[2]), v = n->in[1]->dim[0], e = n->in[1]->dim[1];
	const int64_t chunk = chunk_tokens(n);
	struct room<P> r;

	r.sum_work = m->take<double>(SUM_PARTS);
	r.lse = m->take<double>(tokens);
	r.logits = m->take<typename P::real>(chunk * v);
	r.dlogits = (typename P::factor *)(void *)r.logits;
	if (pass == PASS_LOSS && ROUNDS<P>)
		r.dlogits = m->take<typename P::factor>(chunk * v);
	r.x = m->take<typename P::factor>(rounded_size<P>(n->in[0], tokens * e));
	r.w = m->take<typename P::factor>(weight_room<P>(n->in[1]));
	return r;
}

/*
 * One token: its logits give nll, hit and lse; in training they become
 * (slope_nll [target >= 0] + slope_square 2 lse) softmax - slope_nll onehot(target).
 */
template <typename P>
static void score_chunk(const struct call *c, const struct room<P> &given, int64_t first,
			int64_t tokens, bool training)
{
	typedef typename P::real real;
	const struct room<P> r = given;
	const int64_t v = c->node->in[1]->dim[0];
	const int32_t *targets = (const int32_t *)c->in[2] + first;
	const auto *weights = wide_input<P>(c, 3);
	const auto *dmain = wide_output_gradient<P>(c, 0), *dsquare = wide_output_gradient<P>(c, 1);
	real *nll = wide_output<P>(c, 2) + first, *hit = wide_output<P>(c, 3) + first;
	double *lses = r.lse + first;

	each_row(c, tokens, [=] __device__(int64_t t) {
		real *row = r.logits + t * v;
		const int32_t target = targets[t];
		const bool scored = target >= 0;
		const real logit = scored ? row[target] : 0;
		place<real> most = { (real)-INFINITY, INT32_MAX };
		double sum = 0, lse;

		for (int64_t i = threadIdx.x; i < v; i += BLOCK)
			most = first_of_largest<real>()(most, { row[i], (int)i });
		most = block_argmax(most);
		for (int64_t i = threadIdx.x; i < v; i += BLOCK)
			sum += (double)exp(row[i] - most.value);
		sum = block_sum(sum);
		lse = (double)most.value + log(sum);
		if (threadIdx.x == 0) {
			hit[t] = scored && most.index == target;
			nll[t] = scored ? (real)(lse - (double)logit) : 0;
			lses[t] = lse;
		}
		if (!training)
			return;
		const double slope = dmain ? (double)(*dmain * weights[0]) : 0;
		const double square = dsquare ? (double)(*dsquare * weights[1]) : 0;
		const real factor = (real)(((scored ? slope : 0) + square * 2 * lse) / sum);

		for (int64_t i = threadIdx.x; i < v; i += BLOCK) {
			const real d = exp(row[i] - most.value) * factor -
				       (scored && i == target ? (real)slope : 0);

			r.dlogits[t * v + i] = (typename P::factor)d;
		}
	});
}

/* logits = x W': dx = dlogits W, dW = dlogits' x summed over chunks */
template <typename P> static void all_chunks(const struct call *c, bool training)
{
	struct space m = { (char *)c->work, 0 };
	const struct room<P> r = take_room<P>(&m, c->node, training ? PASS_LOSS : PASS_FORWARD);
	const int64_t tokens = tensor_count(c->node->in[2]), chunk = chunk_tokens(c->node);
	const int64_t v = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const auto x = rounded<P>(c, input<P>(c, 0), tokens, e, e, r.x), w = weight<P>(c, r.w);
	const auto dx = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);

	for (int64_t first = 0; first < tokens; first += chunk) {
		const int64_t n = tokens - first < chunk ? tokens - first : chunk;
		const struct matrix<typename P::factor> part = { x.at + first * x.pitch, x.pitch, 0 };
		const struct matrix<typename P::factor> dlogits = { r.dlogits, v, 0 };

		gemm(c, false, true, n, v, e, 1, part, w, false, r.logits, v);
		score_chunk<P>(c, r, first, n, training);
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
