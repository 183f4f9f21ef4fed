/*
 * w2_gaussian: heads as Gaussians.  x holds means and raw sigmas; sigma = softplus(raw) + eps.
 *
 *     Wasserstein  y = f (mean, sigma),      bias = -|(mean, sigma)|^2 / (|tau| + eps)
 *     overlap      y = mean / sqrt(sigma),   bias = -(|y|^2 + sum log sigma) / 2
 *
 * Means are rotated by rope if theta > 0.  All passes read x once: bound by memory bandwidth.
 */
#include "core/backend/cuda/primitives/row_sums.cuh"
#include "core/backend/cuda/primitives/softplus.cuh"
#include "core/backend/cuda/primitives/tokens.cuh"
#include "core/backend/cuda/primitives/rotary.cuh"

/*
 * A thread processes N adjacent channels of the means of a head, and their sigmas.  With rope it
 * processes both sides of N pairs: SIDES = 2, channels i and i + D/2.
 */
template <int SIDES, typename R, int N> struct sides {
	vec<R, N> side[SIDES];

	__device__ vec<R, N> &operator[](int s)
	{
		return side[s];
	}
};

template <int SIDES, int N, vec_kind KIND> struct places {
	int64_t first, stride;

	__device__ vec_index<N, KIND> operator[](int s) const
	{
		return { first + s * stride };
	}
	/* The same, `channels` further on. */
	__device__ struct places behind(int64_t channels) const
	{
		return { first + channels, stride };
	}
};

template <typename P, int SIDES, int N, enum vec_kind KIND>
static __device__ sides<SIDES, typename P::real, N> read(const input_view<P> &x,
							 const places<SIDES, N, KIND> &at)
{
	sides<SIDES, typename P::real, N> v;

#pragma unroll
	for (int s = 0; s < SIDES; s++)
		v[s] = x[at[s]];
	return v;
}

template <typename To, typename R, int SIDES, int N, enum vec_kind KIND>
static __device__ void write(const To &y, const places<SIDES, N, KIND> &at, sides<SIDES, R, N> &v)
{
#pragma unroll
	for (int s = 0; s < SIDES; s++)
		y.put(at[s], v[s]);
}

/* f(s, k) for every element of a thread */
template <int SIDES, int N, typename F> static __device__ void each_number(F f)
{
#pragma unroll
	for (int s = 0; s < SIDES; s++)
#pragma unroll
		for (int k = 0; k < N; k++)
			f(s, k);
}

/* The rotations of the thread's pairs. */
template <typename R> struct rotations {
	const R *cosine, *sine;

	template <int N> __device__ void operator()(sides<2, R, N> &x, R direction) const
	{
#pragma unroll
		for (int k = 0; k < N; k++)
			rotate_pair(cosine[k], direction * sine[k], &x[0][k], &x[1][k]);
	}
	template <int N> __device__ void operator()(sides<1, R, N> &, R) const
	{
	}
};

/* ------------------------------------------------------------------ all heads */

/* A head of a token. */
struct row {
	int64_t index; /* index in [token, head] */
	int64_t from;  /* index of its first element in x, which may be a slice */
	int64_t head;
};

/*
 * Channels [first, last) of a side, for one launch; `head_threads` threads share a head.  All are
 * int, to save registers.
 */
struct channel_range {
	int first, last, head_threads;
};

template <typename P, int SIDES, int N, enum vec_kind KIND, typename Head>
static __global__ void w2_gaussian_kernel(struct replicas replicas,
					  const __grid_constant__ struct positions given_p,
					  const __grid_constant__ struct angles given_angles,
					  const __grid_constant__ struct channel_range given_of,
					  const __grid_constant__ Head given_head)
{
	const auto &p = replicas.own(given_p);
	const auto &angles = replicas.own(given_angles);
	const auto &of = replicas.own(given_of);
	const auto &head = replicas.own(given_head);
	typedef typename P::real real;
	__shared__ real cosine[SIDES == 2 ? MAX_ROTATIONS : 1],
		sine[SIDES == 2 ? MAX_ROTATIONS : 1];
	const struct block_heads heads = p.of_block();
	const int thread = threadIdx.x % of.head_threads;
	/* f(row, whether it exists), the same number of times in every thread */
	const auto each_head = [&](auto f) {
		for (int64_t first = 0; first < heads.n;
		     first += POSITION_THREADS / of.head_threads) {
			const int64_t i = first + threadIdx.x / of.head_threads;

			f(head.of.row_at(heads[i]), i < heads.n);
		}
	};
	/* f(channel) for the thread's channels of a head */
	const auto each_channel = [&](bool exists, auto f) {
		for (int i = of.first + thread * N; exists && i < of.last; i += of.head_threads * N)
			f(i);
	};

	if (SIDES == 2)
		compute_rotations<P>(angles, of.first, of.last - of.first, cosine, sine);
	pdl_wait();
	each_head([&](const struct row &at, bool exists) {
		real sum = 0;

		each_channel(exists, [&](int i) {
			const int rotation = SIDES == 2 ? i - of.first : 0;

			sum += head.template apply<SIDES, N, KIND>(
				at, i, { cosine + rotation, sine + rotation });
		});
		for (int bit = of.head_threads / 2; bit > 0; bit /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, bit);
		if (exists && thread == 0)
			head.finish(at, sum, of.first > 0);
	});
}

template <typename P, int SIDES, int N, enum vec_kind KIND, typename Head>
static void launch_heads(const struct call *c, const Head &head)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int width = (int)c->node->in[0]->dim[3] / 2, side = width / SIDES;
	const int max = SIDES == 2 ? MAX_ROTATIONS : side;
	const struct positions p = positions_of(c->node->in[0]);
	int head_threads = 1;

	while (head_threads < WARP && head_threads * N < side)
		head_threads *= 2;
	for (int first = 0; first < side; first += max) {
		const struct channel_range of = { first, first + max < side ? first + max : side,
						  head_threads };

		launch_for(c, w2_gaussian_kernel<P, SIDES, N, KIND, Head>, p.blocks(),
			   POSITION_THREADS, 0, p, angles_of(c, attr->theta, (double)width), of,
			   head);
	}
}

template <typename P, int SIDES, typename Head>
static void launch_sides(const struct call *c, enum vec_kind kind, const Head &head)
{
	const struct tensor *x = c->node->in[0];
	const bool whole = x->dim[3] / 2 % (SIDES * VEC) == 0 && tokens_of(x).pitch % VEC == 0;

	if (ROUNDS<P> && whole && kind == VEC_OF_BF16)
		launch_heads<P, SIDES, VEC, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL>(c, head);
	else if (whole && kind == VEC_OF_REAL)
		launch_heads<P, SIDES, VEC, VEC_OF_REAL>(c, head);
	else
		launch_heads<P, SIDES, 1, VEC_OF_ANY>(c, head);
}

/*
 * Calls head.apply() for all channels of all heads, and head.finish() with the sum of its results
 * for each head.
 */
template <typename P, typename Head>
static void launch_all_heads(const struct call *c, const tensors<P> &of, const Head &head)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;

	if (attr->theta > 0)
		launch_sides<P, 2>(c, of.kind(), head);
	else
		launch_sides<P, 1>(c, of.kind(), head);
}

/* The temperatures of the heads; inverse() = 1 / (|tau| + eps). */
template <typename P> struct temperatures {
	typedef typename P::real real;
	const real *tau;
	real eps;

	__device__ real inverse(int64_t head) const
	{
		return fast_divide<P>(1, (tau[head] < 0 ? -tau[head] : tau[head]) + eps);
	}
	/* d inverse / d tau; |tau| has the slope 0 at 0 */
	__device__ real slope(int64_t head) const
	{
		const real i = inverse(head);

		return -i * i * (real)((tau[head] > 0) - (tau[head] < 0));
	}
};

/* The input of all passes: x [tokens, heads, 2 width], means before raw sigmas. */
template <typename P> struct gaussians {
	input_view<P> x;
	int64_t heads, width;
	int64_t pitch; /* of x: elements from one token to the next */
	typename P::real eps;

	__device__ struct row row_at(const struct head_index &at) const
	{
		return { at.token * heads + at.head, at.token * pitch + 2 * at.head * width,
			 at.head };
	}
	/* Positions of the means in x and in dx. */
	template <int SIDES, int N, enum vec_kind KIND>
	__device__ places<SIDES, N, KIND> means(const struct row &at, int i) const
	{
		return { at.from + i, width / SIDES };
	}
	/* Positions in y = (mean, sigma), [rows, 2 width]. */
	template <int SIDES, int N, enum vec_kind KIND>
	__device__ places<SIDES, N, KIND> stored(const struct row &at, int i) const
	{
		return { 2 * at.index * width + i, width / SIDES };
	}
	/* Positions in y of the overlap, [rows, width]. */
	template <int SIDES, int N, enum vec_kind KIND>
	__device__ places<SIDES, N, KIND> whitened(const struct row &at, int i) const
	{
		return { at.index * width + i, width / SIDES };
	}
};

template <typename P> static gaussians<P> gaussians_of(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const struct tensor *x = c->node->in[0];

	return { input<P>(c, 0), x->dim[2], x->dim[3] / 2, tokens_of(x).pitch,
		 (typename P::real)attr->eps };
}

template <typename P> static temperatures<P> temperatures_of(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;

	return { real_input<P>(c, 1), (typename P::real)attr->eps };
}

/* -------------------------------------------------------------------- forward */

/*
 * y = f (mean, sigma), f = 2 / (|tau| + eps) or 1.  The bias is that of the rounded, unscaled
 * values.
 */
template <typename P> struct pair_head {
	typedef typename P::real real;
	gaussians<P> of;
	temperatures<P> tau;
	bool scaled;
	output_view<P> y;
	real *bias; /* or NULL */

	template <int SIDES, int N, enum vec_kind KIND>
	__device__ real apply(const struct row &at, int i, const rotations<real> &rotation) const
	{
		const auto from = of.template means<SIDES, N, KIND>(at, i);
		const auto to = of.template stored<SIDES, N, KIND>(at, i);
		auto mean = read(of.x, from), sigma = read(of.x, from.behind(of.width));

		issue_loads();
		const real factor = scaled ? 2 * tau.inverse(at.head) : 1;
		real sum = 0;

		rotation(mean, 1);
		each_number<SIDES, N>([&](int s, int k) {
			sigma[s][k] = softplus<P>(sigma[s][k]) + of.eps;

			const real a = as_stored(y, mean[s][k]), b = as_stored(y, sigma[s][k]);

			sum += a * a + b * b;
			mean[s][k] *= factor;
			sigma[s][k] *= factor;
		});
		write(y, to, mean);
		write(y, to.behind(of.width), sigma);
		return sum;
	}
	__device__ void finish(const struct row &at, real sum, bool more) const
	{
		if (bias)
			bias[at.index] = (more ? bias[at.index] : 0) - sum * tau.inverse(at.head);
	}
};

/* y = mean / sqrt(sigma) */
template <typename P> struct whitened_head {
	typedef typename P::real real;
	gaussians<P> of;
	output_view<P> y;
	real *bias; /* or NULL */

	template <int SIDES, int N, enum vec_kind KIND>
	__device__ real apply(const struct row &at, int i, const rotations<real> &rotation) const
	{
		const auto from = of.template means<SIDES, N, KIND>(at, i);
		auto v = read(of.x, from), sigma = read(of.x, from.behind(of.width));
		real sum = 0;

		each_number<SIDES, N>([&](int s, int k) {
			sigma[s][k] = softplus<P>(sigma[s][k]) + of.eps;
			v[s][k] /= sqrt(sigma[s][k]);
			sum += bias ? log(sigma[s][k]) : 0;
		});
		rotation(v, 1);
		each_number<SIDES, N>([&](int s, int k) {
			const real rounded = as_stored(y, v[s][k]);

			sum += rounded * rounded;
		});
		write(y, of.template whitened<SIDES, N, KIND>(at, i), v);
		return sum;
	}
	__device__ void finish(const struct row &at, real sum, bool more) const
	{
		if (bias)
			bias[at.index] = (more ? bias[at.index] : 0) - (real)0.5 * sum;
	}
};

/* Also the recompute pass, which needs no bias. */
template <typename P> static void forward(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const gaussians<P> of = gaussians_of<P>(c);
	const auto y = output<P>(c, 0);
	auto *bias = real_output<P>(c, 1);

	if (attr->score == W2_WASSERSTEIN)
		launch_all_heads(c, all_of<P>(of.x, y),
				 pair_head<P>{ of, temperatures_of<P>(c), attr->scaled, y, bias });
	else
		launch_all_heads(c, all_of<P>(of.x, y), whitened_head<P>{ of, y, bias });
}

/* ------------------------------------------------------------------- backward */

/*
 * y = f g, g = (mean, sigma), bias = -i |g|^2, i = 1 / (|tau| + eps), f = 2 i or 1, so
 *     dg = f dy - 2 i dbias g
 *     di = 2 dy.g (if y is scaled) - dbias |g|^2
 * A rotation keeps dot products, so only dy is rotated back.
 */
template <typename P, bool HAS_DY> struct pair_gradient {
	typedef typename P::real real;
	gaussians<P> of;
	temperatures<P> tau;
	bool scaled;
	input_view<P> dy;
	const real *dbias; /* or NULL; dx may be absent, too */
	gradient_view<P> dx;
	real *di; /* [rows] */

	template <int SIDES, int N, enum vec_kind KIND>
	__device__ real apply(const struct row &at, int i, const rotations<real> &rotation) const
	{
		const auto from = of.template means<SIDES, N, KIND>(at, i);
		const auto stored = of.template stored<SIDES, N, KIND>(at, i);
		auto mean = read(of.x, from), raw = read(of.x, from.behind(of.width));
		sides<SIDES, real, N> dmean = {}, dsigma = {};

		if constexpr (HAS_DY) {
			dmean = read(dy, stored);
			dsigma = read(dy, stored.behind(of.width));
		}
		issue_loads();
		const real inverse = tau.inverse(at.head), all = dbias ? dbias[at.index] : 0;
		const real factor = scaled ? 2 * inverse : 1, twice = scaled ? 2 : 0;
		const real own = 2 * inverse * all;
		real sum = 0;

		rotation(dmean, -1);
		each_number<SIDES, N>([&](int s, int k) {
			const real m = mean[s][k], dm = dmean[s][k], d = dsigma[s][k];
			real slope;
			const real sigma = softplus<P>(raw[s][k], &slope) + of.eps;

			sum += m * (twice * dm - all * m) + sigma * (twice * d - all * sigma);
			dmean[s][k] = factor * dm - own * m;
			dsigma[s][k] = (factor * d - own * sigma) * slope;
		});
		if (dx) {
			write(dx, from, dmean);
			write(dx, from.behind(of.width), dsigma);
		}
		return sum;
	}
	__device__ void finish(const struct row &at, real sum, bool more) const
	{
		di[at.index] = (more ? di[at.index] : 0) + sum;
	}
};

/* y = mean p, p = 1 / sqrt(sigma); bias = -(|y|^2 + sum log sigma) / 2 */
template <typename P> struct whitened_gradient {
	typedef typename P::real real;
	gaussians<P> of;
	input_view<P> dy; /* dy and dbias may be absent */
	const real *dbias;
	gradient_view<P> dx;

	template <int SIDES, int N, enum vec_kind KIND>
	__device__ real apply(const struct row &at, int i, const rotations<real> &rotation) const
	{
		const auto from = of.template means<SIDES, N, KIND>(at, i);
		auto mean = read(of.x, from), raw = read(of.x, from.behind(of.width));
		sides<SIDES, real, N> d = {};
		const real all = dbias ? dbias[at.index] : 0;

		if (dy)
			d = read(dy, of.template whitened<SIDES, N, KIND>(at, i));
		issue_loads();
		rotation(d, -1);
		each_number<SIDES, N>([&](int s, int k) {
			real slope;
			const real p = 1 / sqrt(softplus<P>(raw[s][k], &slope) + of.eps);
			const real w = mean[s][k] * p, dw = d[s][k] - all * w;

			mean[s][k] = dw * p;
			raw[s][k] = slope * p * p * (real)-0.5 * (dw * w + all);
		});
		write(dx, from, mean);
		write(dx, from.behind(of.width), raw);
		return 0;
	}
	__device__ void finish(const struct row &, real, bool) const
	{
	}
};

template <typename P> struct backward_work {
	double *partial;
	typename P::real *di; /* of each row */
};

template <typename P>
static backward_work<P> alloc_work(struct scratch *m, const struct node *n, enum pass pass)
{
	const int64_t *dim = n->in[0]->dim, tokens = dim[0] * dim[1];

	if (pass != PASS_BACKWARD || !n->in[1])
		return {};
	return { alloc_head_parts(m, tokens, dim[2]), m->alloc<typename P::real>(tokens * dim[2]) };
}

template <typename P> static void backward_wasserstein(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t *dim = c->node->in[0]->dim;
	const gaussians<P> of = gaussians_of<P>(c);
	const auto temperatures = temperatures_of<P>(c);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), dtau = input_gradient<P>(c, 1);
	struct scratch m = scratch_of(c);
	const backward_work<P> work = alloc_work<P>(&m, c->node, PASS_BACKWARD);

	const auto *dbias = real_output_gradient<P>(c, 1);

	if (dy)
		launch_all_heads(c, all_of<P>(of.x, dy, dx),
				 pair_gradient<P, true>{ of, temperatures, attr->scaled, dy, dbias,
							 dx, work.di });
	else
		launch_all_heads(c, all_of<P>(of.x, dx),
				 pair_gradient<P, false>{ of, temperatures, attr->scaled, dy, dbias,
							  dx, work.di });
	if (dtau)
		sum_heads(
			c, dim[0] * dim[1], dim[2],
			[=] __device__(int64_t row) { return work.di[row]; }, work.partial,
			[=] __device__(int64_t head, double sum) {
				dtau.put(head, (typename P::real)sum * temperatures.slope(head));
			});
}

template <typename P> static void backward(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const gaussians<P> of = gaussians_of<P>(c);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	if (attr->score == W2_WASSERSTEIN)
		backward_wasserstein<P>(c);
	else
		launch_all_heads(c, all_of<P>(of.x, dy, dx),
				 whitened_gradient<P>{ of, dy, real_output_gradient<P>(c, 1), dx });
}

KERNELS(w2_gaussian, forward<P>, backward<P>, forward<P>, NULL, workspace_of<alloc_work<P>>)
