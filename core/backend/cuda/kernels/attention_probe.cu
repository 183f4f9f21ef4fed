/*
 * attention_probe: entropy, reciprocity and routing statistics of attention.
 *
 * Every query of every head writes its values in double.  Two last kernels combine them in a fixed
 * order.
 */
#include "core/backend/cuda/attention/scores.cuh"

enum { Q, K, LSE, KEY_BIAS, BAND, QUERY_BIAS, DISTANCE_BIAS };

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, -1, DISTANCE_BIAS };

/* Count, means, sums of squared deviations and of their products, for pairs (a, b). */
struct moments {
	double n, a, b, aa, bb, ab;
};

/* (T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm", 1979.) */
static __device__ void merge_moments(struct moments *m, const struct moments *x)
{
	const double n = m->n + x->n, da = x->a - m->a, db = x->b - m->b;

	if (n == 0)
		return;
	m->aa += x->aa + da * da * m->n * x->n / n;
	m->bb += x->bb + db * db * m->n * x->n / n;
	m->ab += x->ab + da * db * m->n * x->n / n;
	m->a += da * x->n / n;
	m->b += db * x->n / n;
	m->n = n;
}

/* The routing statistics of a query. */
struct routed {
	double kept, mass, margin;
};

template <typename P> struct buffers {
	scores<P> s;
	typename P::real *route, *weight; /* [B,rows,pitch], [B,rows,k + 1] */
	int32_t *index;
	double *entropy;	 /* [B,H,T] */
	struct moments *moments; /* [B,H,T] */
	struct routed *routed;	 /* [B,T] */
	double *correlation;	 /* [H] */
};

static int64_t cross_window(const struct probe_attr *a)
{
	return a->attention.band_window > a->window ? a->attention.band_window : a->window;
}

template <typename P> static buffers<P> alloc_buffers(struct scratch *m, const scores<P> &s)
{
	buffers<P> f;

	f.s = s;
	f.route = m->alloc<typename P::real>(s.B * s.rows * s.pitch);
	f.weight = m->alloc<typename P::real>(s.B * s.rows * (s.S + 1));
	f.index = m->alloc<int32_t>(s.B * s.rows * (s.S + 1));
	f.entropy = m->alloc<double>(s.B * s.H * s.T);
	f.moments = m->alloc<struct moments>(s.B * s.H * s.T);
	f.routed = m->alloc<struct routed>(s.B * s.T);
	f.correlation = m->alloc<double>(s.H);
	return f;
}

/* Pairs (M_ij, M_ji) of a query: M_ij = scale q_i.k_j + key_bias_j + query_bias_i. */
template <typename P> struct content {
	scores<P> s;
	const typename P::real *query_bias; /* or NULL */
	struct heads layout;

	__device__ double query(int64_t b, int64_t h, int64_t i) const
	{
		return query_bias ? (double)query_bias[layout.at(b, h, i)] : 0;
	}
	__device__ double score(int64_t b, int64_t h, int64_t i, int64_t j, double product) const
	{
		return product + (double)s.bias(b, h, j) + query(b, h, i);
	}
};

template <typename P>
static __device__ struct moments reciprocal_row(const content<P> &k, int64_t b, int64_t h,
						int64_t i, const typename P::real *score,
						const typename P::real *cross, int64_t window)
{
	const int64_t from = i > window ? i - window : 0;
	struct moments m = { (double)(i - from) };
	double a = 0, c = 0;

	for (int64_t j = from + threadIdx.x; j < i; j += BLOCK) {
		a += k.score(b, h, i, j, (double)score[j]);
		c += k.score(b, h, j, i, (double)cross[j]);
	}
	m.a = i == from ? 0 : block_sum(a) / m.n;
	m.b = i == from ? 0 : block_sum(c) / m.n;
	for (int64_t j = from + threadIdx.x; j < i; j += BLOCK) {
		a = k.score(b, h, i, j, (double)score[j]) - m.a;
		c = k.score(b, h, j, i, (double)cross[j]) - m.b;
		m.aa += a * a;
		m.bb += c * c;
		m.ab += a * c;
	}
	m.aa = block_sum(m.aa);
	m.bb = block_sum(m.bb);
	m.ab = block_sum(m.ab);
	return m;
}

template <typename P>
static void probe_queries(const struct call *c, const buffers<P> &given, struct query_block x)
{
	typedef typename P::real real;
	const struct probe_attr *a = (const struct probe_attr *)c->node->attr;
	const struct tensor *bias = c->node->in[QUERY_BIAS];
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const struct heads none = { 0, 0, 0, 1 };
	const content<P> k = { s, real_input<P>(c, QUERY_BIAS), bias ? heads_of(bias, s.H) : none };
	const int64_t window = a->window;
	const auto *lse = real_input<P>(c, LSE);

	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t head = b * s.H + h, i = x.first + r, query = head * s.T + i;
		real *row = s.score + (head * s.rows + r) * s.pitch;
		const real *cross = s.cross + (head * s.rows + r) * s.pitch;
		const struct moments m = reciprocal_row(k, b, h, i, row, cross, window);
		double entropy = 0;

		__syncthreads(); /* all threads have read the row before finish_row() changes it */
		finish_row(s, b, h, i, row, cross);
		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK) {
			const real l = j <= i ? row[j] - lse[query] : 0;
			const real p = j <= i ? exp(l) : 0;

			row[j] = p;
			entropy -= p > 0 ? (double)p * (double)l : 0;
		}
		entropy = block_sum(entropy);
		if (threadIdx.x == 0) {
			f.entropy[query] = entropy;
			f.moments[query] = m;
		}
	});
}

static __device__ double relative(double from, double to)
{
	return fabs(from - to) / to;
}

/*
 * The k + 1 largest weights also give the margin between the last kept entry and the first dropped
 * one.
 */
template <typename R>
static __device__ struct routed probe_topk(R *row, int64_t n, int64_t k, int32_t *index, R *weight)
{
	struct routed x = { (double)(n < k ? n : k), 0, 1 };

	take_largest(row, n, n > k ? k + 1 : n, index, weight);
	for (int64_t at = 0; at < n && at < k; at++)
		x.mass += (double)weight[at];
	if (n > k)
		x.margin = fmin(1.0, relative((double)weight[k], (double)weight[k - 1]));
	return x;
}

template <typename R>
static __device__ struct routed probe_threshold(const struct route_attr &a, const R *row, int64_t n)
{
	const R least = route_least(a, row, n);
	struct routed x = { 0, 0, 1 };

	for (int64_t j = threadIdx.x; j < n; j += BLOCK) {
		x.kept += row[j] >= least;
		x.mass += row[j] >= least ? (double)row[j] : 0;
		if (least > 0)
			x.margin = fmin(x.margin, relative((double)row[j], (double)least));
	}
	x.kept = block_sum(x.kept);
	x.mass = block_sum(x.mass);
	x.margin = -block_max(-x.margin);
	return x;
}

template <typename P>
static void probe_routes(const struct call *c, const buffers<P> &given, struct query_block x)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const int64_t k = s.attr.route.k < s.T ? s.attr.route.k : s.T;

	combine_heads(c, s, x, f.route);
	each_row(c, s.B * x.n, [=] __device__(int64_t item) {
		const int64_t b = item / x.n, r = item % x.n, i = x.first + r;
		typename P::real *row = f.route + (b * s.rows + r) * s.pitch;
		const struct routed found =
			s.attr.route.mode == ROUTE_TOPK
				? probe_topk(row, i + 1, k, f.index + item * (s.S + 1),
					     f.weight + item * (s.S + 1))
				: probe_threshold(s.attr.route, row, i + 1);

		if (threadIdx.x == 0)
			f.routed[b * s.T + i] = found;
	});
}

/* Correlations by head, then all results by one block. */
template <typename P> static void combine(const struct call *c, const buffers<P> &given)
{
	typedef typename P::real real;
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const bool routes = s.attr.route.mode != ROUTE_NONE;
	auto *out = real_output<P>(c, 0);

	each(c, s.H, [=] __device__(int64_t h) {
		const double tiny = 1e-12; /* the reference's clamp */
		struct moments m = { 0 };

		for (int64_t b = 0; b < s.B; b++)
			for (int64_t i = 0; i < s.T; i++)
				merge_moments(&m, &f.moments[(b * s.H + h) * s.T + i]);
		const double deviations = sqrt(m.aa * m.bb);

		f.correlation[h] = m.ab / (deviations > tiny ? deviations : tiny);
	});
	each_row(c, 1, [=] __device__(int64_t) {
		const int64_t queries = s.B * s.T;
		double entropy = 0, reciprocity = 0, kept = 0, squares = 0, mass = 0, margin = 1;

		for (int64_t i = threadIdx.x; i < queries * s.H; i += BLOCK)
			entropy += f.entropy[i];
		for (int64_t h = threadIdx.x; h < s.H; h += BLOCK)
			reciprocity += f.correlation[h];
		for (int64_t i = threadIdx.x; routes && i < queries; i += BLOCK) {
			kept += f.routed[i].kept;
			squares += f.routed[i].kept * f.routed[i].kept;
			mass += f.routed[i].mass;
			margin = fmin(margin, f.routed[i].margin);
		}
		entropy = block_sum(entropy);
		reciprocity = block_sum(reciprocity);
		kept = block_sum(kept) / (double)queries;
		squares = block_sum(squares) / (double)queries;
		mass = block_sum(mass);
		margin = -block_max(-margin);
		if (threadIdx.x == 0) {
			out[PROBE_ENTROPY] = (real)(entropy / (double)(queries * s.H));
			out[PROBE_RECIPROCITY] = (real)(reciprocity / (double)s.H);
			out[PROBE_KEPT] = (real)kept;
			out[PROBE_SPREAD] = (real)sqrt(fmax(0.0, squares - kept * kept));
			out[PROBE_MASS] = (real)(mass / (double)queries);
			out[PROBE_MARGIN] = (real)margin;
		}
	});
}

template <typename P> static void forward(const struct call *c)
{
	const struct probe_attr *a = (const struct probe_attr *)c->node->attr;
	struct scratch m = scratch_of(c);
	const scores<P> s = open_scores<P>(c, &m, &a->attention, INPUTS, cross_window(a));
	const buffers<P> f = alloc_buffers<P>(&m, s);

	for (int64_t first = 0; first < s.T; first += s.rows) {
		const struct query_block x = block_at(s, first);

		block_products(c, s, x);
		probe_queries<P>(c, f, x);
		if (s.attr.route.mode != ROUTE_NONE)
			probe_routes<P>(c, f, x);
	}
	combine<P>(c, f);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	const struct probe_attr *a = (const struct probe_attr *)n->attr;
	struct scratch m = count_scratch(sms);
	typename P::factor *buffers[3];

	(void)pass;
	alloc_buffers<P>(&m,
			 alloc_scores<P>(&m, n, &a->attention, INPUTS, cross_window(a), buffers));
	return m.used;
}

KERNELS(attention_probe, forward<P>, NULL, NULL, NULL, workspace<P>)
