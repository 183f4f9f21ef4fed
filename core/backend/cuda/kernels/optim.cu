/*
 * The updates of the optimizers; core/optim/kernels.h has the equations.
 *
 * One launch updates all parameters.  Memory bandwidth bounds AdamW and SGD; Muon is bound by the
 * GEMMs of its Newton-Schulz steps.  What an update decides (clip, skip, restart) stays in device
 * memory, so the host never waits.
 */
#include "core/backend/cuda/gemm/gemm.cuh"

extern "C" {
#include "core/optim/kernels.h"
}

/* A call without a node, for each() and the like. */
static struct call update_call(const struct backend *b)
{
	struct call c = {};

	c.backend = b;
	return c;
}

/* Elements in 16 bytes. */
template <typename R> static constexpr int VEC_ELEMENTS = 16 / (int)sizeof(R);

/* --------------------------------------------------------------- reductions */

/* Scratch memory for the partial sums of the update. */
static double *sum_work(const struct call *c)
{
	return context_of(c)->scalar + 1;
}

/*
 * Sums of squares of many buffers.  Each buffer is split into parts, a function of its size alone.
 * One launch computes the parts of up to SQUARES_MAX buffers, another adds them in a fixed tree.
 */
#define SQUARES_MAX 128 /* buffers per launch: kernel arguments are limited to 4 KiB */

static __host__ __device__ int parts_of(int64_t n)
{
	const int64_t parts = n / (8 * BLOCK) + 1;

	return (int)(parts < SUM_PARTS ? parts : SUM_PARTS);
}

template <typename R> struct squares {
	struct {
		const R *x;
		int64_t n;
		int before, sum; /* parts of the buffers in front of this one; index of its sum */
	} list[SQUARES_MAX];
	int n, parts, sums; /* `sums`: one more than the largest index of a sum */

	__device__ int64_t before(int i) const
	{
		return list[i].before;
	}
	void add(const struct optim_buffer *s)
	{
		list[n++] = { (const R *)s->x, s->n, parts, s->sum };
		parts += parts_of(s->n);
		sums = s->sum < sums ? sums : s->sum + 1;
	}
	bool has_space(const struct optim_buffer *s) const
	{
		return n < SQUARES_MAX && parts + parts_of(s->n) <= UPDATE_PARTS;
	}
};

/* A thread's sum over part `part`: vectors, then the single elements after the last vector. */
template <bool ALIGNED, typename R>
static __device__ double add_squares_of(const R *x, int64_t n, int64_t part, int64_t of)
{
	constexpr int N = VEC_ELEMENTS<R>;
	const int64_t vecs = n / N, last = vecs * (part + 1) / of;
	double sum = 0;

#pragma unroll 4
	for (int64_t i = vecs * part / of + threadIdx.x; i < last; i += BLOCK) {
		const auto v = load_vec<R, R, N, ALIGNED>(x + i * N);

#pragma unroll
		for (int k = 0; k < N; k++)
			sum += (double)v[k] * (double)v[k];
	}
	if (part == of - 1 && threadIdx.x < n % N)
		sum += (double)x[vecs * N + threadIdx.x] * (double)x[vecs * N + threadIdx.x];
	return sum;
}

template <typename R>
static __global__ void sum_squares_kernel(struct replicas replicas,
					  const __grid_constant__ squares<R> given, double *parts)
{
	replicas.to_own(parts);
	const auto &all = replicas.own_copy(given);
	const int at = buffer_of(all, blockIdx.x);
	const int64_t n = all.list[at].n, of = parts_of(n), part = blockIdx.x - all.before(at);
	const R *x = all.list[at].x;
	double sum;

	pdl_wait();
	sum = (uintptr_t)x % 16 == 0 ? add_squares_of<true>(x, n, part, of)
				     : add_squares_of<false>(x, n, part, of);
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

/* One block per sum. */
template <typename R>
static __global__ void add_partial_squares_kernel(struct replicas replicas,
						  const __grid_constant__ squares<R> given,
						  const double *parts, bool add, double *sums)
{
	replicas.to_own(parts, sums);
	const auto &all = replicas.own_copy(given);
	const int index = blockIdx.x;

	pdl_wait();
	double sum = add ? sums[index] : 0;
	bool found = false;

	for (int at = 0; at < all.n; at++) {
		const int own = all.list[at].before + (int)threadIdx.x;

		if (all.list[at].sum != index)
			continue;
		sum += block_sum((int)threadIdx.x < parts_of(all.list[at].n) ? parts[own] : 0);
		found = true;
	}
	if (found && threadIdx.x == 0)
		sums[index] = sum;
}

template <typename R>
static void launch_squares(const struct call *c, squares<R> *all, bool add, double *sums)
{
	if (all->parts) {
		launch_for(c, sum_squares_kernel<R>, (unsigned)all->parts, BLOCK, 0, *all,
			   sum_work(c));
		launch_for(c, add_partial_squares_kernel<R>, (unsigned)all->sums, BLOCK, 0, *all,
			   (const double *)sum_work(c), add, sums);
	}
	*all = {};
}

template <typename R, bool ADD>
static void sum_squares(const struct backend *b, const struct optim_buffer *list, int n,
			double *sums)
{
	const struct call c = update_call(b);
	squares<R> all = {};

	for (int i = 0; i < n; i++) {
		if (!all.has_space(&list[i]))
			launch_squares(&c, &all, ADD, sums);
		all.add(&list[i]);
	}
	launch_squares(&c, &all, ADD, sums);
}

/* A NaN stays NaN, so that the sum reveals it. */
template <typename R>
static void clip_elements(const struct backend *b, const struct optim_rule *given,
			  const struct optim_state *s, void *gradient, const void *second_moment,
			  int64_t n, double *sum)
{
	const struct call c = update_call(b);
	const struct optim_rule rule = *given;
	const struct optim_buffer clipped = { gradient, n, 0 };
	const R *v = (const R *)second_moment;
	R *g = (R *)gradient;

	each(&c, n, [=] __device__(int64_t i) {
		if (!optim_clips_elements(&rule, s))
			return;
		const R limit = sqrt((R)rule.theta * (v[i] + (R)1e-12));
		const R below = g[i] > limit ? limit : g[i];

		g[i] = below < -limit ? -limit : below;
	});
	sum_squares<R, false>(b, &clipped, 1, sum);
}

/* --------------------------------------------------------------- decisions */

static __global__ void optim_decide_kernel(struct replicas replicas, struct optim_rule rule,
					   struct optim_state *s, const double *losses, int n)
{
	replicas.to_own(s, losses);
	pdl_wait();
	optim_decide(&rule, s, losses, n);
}

static void decide(const struct backend *b, const struct optim_rule *rule, struct optim_state *s,
		   const double *losses, int n)
{
	const struct call c = update_call(b);

	launch_for(&c, optim_decide_kernel, 1, 1, 0, *rule, s, losses, n);
}

template <typename R>
static void restart(const struct backend *b, const struct optim_factors *f,
		    const struct optim_segments *segments, const struct optim_blocks *blocks)
{
	const struct call c = update_call(b);
	R *m = (R *)blocks->m, *v = (R *)blocks->v, *vmax = (R *)blocks->vmax;

	each(&c, segments->total, [=] __device__(int64_t i) {
		if (f->restart)
			m[i] = v[i] = vmax[i] = 0;
	});
}

/* --------------------------------------------------------------- element by element */

/*
 * The segments of the parameters, in vectors of N elements.  optim_segment.second is the number of
 * elements in front of a segment.
 */
template <int N> struct segment_list {
	const struct optim_segment *list;
	int n;

	__device__ int64_t before(int i) const
	{
		return list[i].second / N;
	}
};

/*
 * f(index in p, g and m; index in v and vmax; decays) for all vectors of N elements of all
 * segments, in one launch.
 */
template <int N, typename F>
static void each_segment_vec(const struct call *c, const struct optim_segments *segments, F f)
{
	const segment_list<N> all = { segments->device, segments->n };

	each_of_buffers(c, all, segments->total / N,
			[=] __device__(const segment_list<N> &s, int at, int64_t i) {
				f(s.list[at].offset + i * N - s.list[at].second, i * N,
				  s.list[at].decays);
			});
}

/* Are all blocks and segments aligned to 16 bytes? */
template <typename R>
static bool is_vectorizable(const struct optim_segments *segments,
			    const struct optim_blocks *blocks)
{
	uintptr_t address = (uintptr_t)blocks->p | (uintptr_t)blocks->g | (uintptr_t)blocks->m |
			    (uintptr_t)blocks->v | (uintptr_t)blocks->vmax;
	int64_t place = 0;

	for (int i = 0; i < segments->n; i++)
		place |= segments->list[i].offset | segments->list[i].count |
			 segments->list[i].second;
	return address % 16 == 0 && place % VEC_ELEMENTS<R> == 0;
}

template <int N, typename R>
static void adamw_vec(const struct call *c, const struct optim_factors *f,
		      const struct adamw_constants *s, const struct optim_segments *segments,
		      const struct optim_blocks *blocks)
{
	R *p = (R *)blocks->p, *m = (R *)blocks->m, *v = (R *)blocks->v, *vmax = (R *)blocks->vmax;
	const R *g = (const R *)blocks->g;
	const R old_m = (R)s->beta1, new_m = (R)(1 - s->beta1);
	const R old_v = (R)s->beta2, new_v = (R)(1 - s->beta2), eps = (R)s->eps;

	each_segment_vec<N>(c, segments, [=] __device__(int64_t at, int64_t second, bool decays) {
		if (f->skip)
			return;
		const auto given = load_vec<R, R, N, true>(g + at);
		auto mean = load_vec<R, R, N, true>(m + at),
		     square = load_vec<R, R, N, true>(v + second);
		auto weight = load_vec<R, R, N, true>(p + at), largest = square;
		const R scale = (R)f->scale, damp_m = (R)f->damp_m, damp_v = (R)f->damp_v;
		const R shrink = decays ? (R)f->shrink : 1, rate = (R)f->rate, bias = (R)f->bias;

		if (vmax)
			largest = load_vec<R, R, N, true>(vmax + second);
#pragma unroll
		for (int k = 0; k < N; k++) {
			const R gi = scale * given[k];

			mean[k] = old_m * (damp_m * mean[k]) + new_m * gi;
			square[k] = old_v * (damp_v * square[k]) + new_v * gi * gi;
			largest[k] = vmax && largest[k] > square[k] ? largest[k] : square[k];
			weight[k] = shrink * weight[k] -
				    rate * mean[k] / (sqrt(bias * largest[k]) + eps);
		}
		store_vec<true>(m + at, mean);
		store_vec<true>(v + second, square);
		if (vmax)
			store_vec<true>(vmax + second, largest);
		store_vec<true>(p + at, weight);
	});
}

template <typename R>
static void adamw(const struct backend *b, const struct optim_factors *f,
		  const struct adamw_constants *s, const struct optim_segments *segments,
		  const struct optim_blocks *blocks)
{
	const struct call c = update_call(b);

	if (is_vectorizable<R>(segments, blocks))
		adamw_vec<VEC_ELEMENTS<R>, R>(&c, f, s, segments, blocks);
	else
		adamw_vec<1, R>(&c, f, s, segments, blocks);
}

template <typename R>
static void sgd(const struct backend *b, const struct optim_factors *f,
		const struct sgd_constants *s, const struct optim_segments *segments,
		const struct optim_blocks *blocks)
{
	const struct call c = update_call(b);
	R *p = (R *)blocks->p, *m = (R *)blocks->m;
	const R *g = (const R *)blocks->g;
	const R momentum = (R)s->momentum;

	each_segment_vec<1>(&c, segments, [=] __device__(int64_t i, int64_t second, bool decays) {
		(void)second;
		if (f->skip)
			return;
		m[i] = momentum * m[i] + (R)f->scale * g[i];
		p[i] = (decays ? (R)f->shrink : 1) * p[i] - (R)f->lr * m[i];
	});
}

template <typename R>
static void add(const struct backend *b, void *total, const void *summand, int64_t n, bool first)
{
	const struct call c = update_call(b);
	const R *x = (const R *)summand;
	R *sum = (R *)total;

	each(&c, n, [=] __device__(int64_t i) { sum[i] = first ? x[i] : sum[i] + x[i]; });
}

/* --------------------------------------------------------------- muon */

/*
 * Muon updates `count` matrices of one shape together: each step is one launch or one batched GEMM.
 * Large matrices fill the GPU alone, so scratch memory for few of them suffices.  Each replica has
 * its own.
 */
#define MUON_MEMORY ((size_t)(REPLICA_FORM ? 8 : 128) << 20)

template <typename R> struct muon_scratch {
	int64_t count;
	double *squares; /* partial sums of squares, by matrix and part */
	R *x, *y, *gram, *polynomial;
	int64_t stride, small_stride; /* elements from one matrix to the next: of x and y; of gram
					 and polynomial */
};

/* Each matrix is aligned to 256 bytes, as scratch::alloc() does. */
template <typename R> static int64_t muon_stride(int64_t elements)
{
	const int64_t unit = 256 / (int64_t)sizeof(R);

	return (elements + unit - 1) / unit * unit;
}

template <typename R>
static muon_scratch<R> alloc_muon(struct scratch *m, int64_t rows, int64_t columns, int64_t count)
{
	const int64_t small = rows < columns ? rows : columns;
	muon_scratch<R> r;

	r.count = count;
	r.stride = muon_stride<R>(rows * columns);
	r.small_stride = muon_stride<R>(small * small);
	r.squares = m->alloc<double>(count * parts_of(rows * columns));
	r.x = m->alloc<R>(count * r.stride);
	r.y = m->alloc<R>(count * r.stride);
	r.gram = m->alloc<R>(count * r.small_stride);
	r.polynomial = m->alloc<R>(count * r.small_stride);
	return r;
}

/* Matrices that are updated together: at least one. */
template <typename R> static int64_t muon_batch(int64_t rows, int64_t columns, int n)
{
	struct scratch one = count_scratch(0);
	int64_t max;

	alloc_muon<R>(&one, rows, columns, 1);
	max = (int64_t)(MUON_MEMORY / one.used);
	return max < 1 ? 1 : max < n ? max : n;
}

template <typename R> static size_t muon_workspace(int64_t rows, int64_t columns, int n)
{
	struct scratch m = count_scratch(0);

	alloc_muon<R>(&m, rows, columns, muon_batch<R>(rows, columns, n));
	return m.used;
}

/*
 * One Newton-Schulz step y = (a + b A + c A^2) x, A = x x': every singular value s of x
 * becomes a s + b s^3 + c s^5, which drives those in (0, 1] towards 1.  A tall x is
 * multiplied from the right, A = x' x, so that A is as small as it can be.
 */
template <typename R>
static void newton_schulz(const struct call *call, int64_t rows, int64_t columns,
			  const muon_scratch<R> &r, const R *x, R *y)
{
	/* Keller Jordan's, chosen for the steepest slope at 0; torch.optim.Muon has the same. */
	const double a = 3.4445, b = -4.7750, c = 2.0315;
	const bool tall = rows > columns;
	const int64_t n = tall ? columns : rows, stride = r.small_stride;
	const matrix<R> factor = { x, columns, r.stride }, square = { r.gram, n, stride };
	const matrix<R> left = { r.polynomial, n, stride };
	const R *gram = r.gram;
	R *polynomial = r.polynomial;

	gemm(call, tall, !tall, n, n, tall ? rows : columns, 1, factor, factor, false, r.gram, n,
	     stride, r.count);
	each(call, r.count * n * n, [=] __device__(int64_t i) {
		const int64_t element = i % (n * n), at = i / (n * n) * stride + element;

		polynomial[at] = (R)b * gram[at] + (element / n == element % n ? (R)a : 0);
	});
	gemm(call, false, false, n, n, n, c, square, square, true, polynomial, n, stride, r.count);
	if (tall)
		gemm(call, false, false, rows, n, n, 1, factor, left, false, y, n, r.stride,
		     r.count);
	else
		gemm(call, false, false, n, columns, n, 1, left, factor, false, y, columns,
		     r.stride, r.count);
}

/* Updates the momentum m, and sets x to the update direction, normalised to Frobenius norm 1. */
template <typename R>
static void muon_begin(const struct call *c, const struct optim_factors *f,
		       const struct muon_constants &s, const int64_t *offsets, int64_t n,
		       const struct optim_blocks *blocks, const muon_scratch<R> &r)
{
	const int64_t parts = parts_of(n), stride = r.stride;
	const R *g = (const R *)blocks->g;
	R *m = (R *)blocks->m, *x = r.x;
	double *squares = r.squares;

	each_row(c, r.count * parts, [=] __device__(int64_t row) {
		const int64_t matrix = row / parts, part = row % parts,
			      last = n * (part + 1) / parts;
		const R old = (R)s.momentum, fresh = (R)(1 - s.momentum);
		double sum = 0;

		if (f->skip)
			return;
		for (int64_t i = n * part / parts + threadIdx.x; i < last; i += BLOCK) {
			const int64_t at = offsets[matrix] + i;
			const R gi = (R)f->scale * g[at], mi = old * m[at] + fresh * gi;
			const R u = s.nesterov ? old * mi + fresh * gi : mi;

			m[at] = mi;
			x[matrix * stride + i] = u;
			sum += (double)u * (double)u;
		}
		sum = block_sum(sum);
		if (threadIdx.x == 0)
			squares[row] = sum;
	});
	each_row(c, r.count * parts, [=] __device__(int64_t row) {
		const int64_t matrix = row / parts, part = row % parts,
			      last = n * (part + 1) / parts;
		const double sum =
			block_sum(threadIdx.x < parts ? squares[matrix * parts + threadIdx.x] : 0);
		const R factor = (R)(1 / fmax(sqrt(sum), s.eps));

		for (int64_t i = n * part / parts + threadIdx.x; i < last; i += BLOCK)
			x[matrix * stride + i] *= factor;
	});
}

/* p = (1 - lr decay) p - lr adjust x */
template <typename R>
static void muon_apply(const struct call *c, const struct optim_factors *f,
		       const struct muon_constants &s, const int64_t *offsets, int64_t n, R *p,
		       const R *x, const muon_scratch<R> &r)
{
	const int64_t stride = r.stride;

	each(c, r.count * n, [=] __device__(int64_t i) {
		const int64_t matrix = i / n, element = i % n, at = offsets[matrix] + element;
		const double lr = f->lr * s.lr_ratio;

		if (!f->skip)
			p[at] = (R)(1 - lr * s.weight_decay) * p[at] -
				(R)(lr * s.adjust) * x[matrix * stride + element];
	});
}

template <typename R>
static void muon(const struct backend *b, const struct optim_factors *f,
		 const struct muon_constants *s, const struct optim_matrices *matrices,
		 const struct optim_blocks *blocks, void *work)
{
	const int64_t rows = matrices->rows, columns = matrices->columns, n = rows * columns;
	const int64_t batch = muon_batch<R>(rows, columns, matrices->n);
	const struct call c = update_call(b);

	for (int64_t first = 0; first < matrices->n; first += batch) {
		const int64_t left = matrices->n - first, *offsets = matrices->device + first;
		struct scratch space = { (char *)work, 0 };
		const muon_scratch<R> r =
			alloc_muon<R>(&space, rows, columns, left < batch ? left : batch);
		R *x = r.x, *y = r.y;

		muon_begin<R>(&c, f, *s, offsets, n, blocks, r);
		for (int i = 0; i < s->steps; i++) {
			R *swap = x;

			newton_schulz<R>(&c, rows, columns, r, x, y);
			x = y;
			y = swap;
		}
		muon_apply<R>(&c, f, *s, offsets, n, (R *)blocks->p, x, r);
	}
}

/* --------------------------------------------------------------- pruning */

template <typename R>
static void add_movement(const struct backend *b, const struct optim_segments *prunable,
			 const struct optim_blocks *blocks)
{
	const struct call c = update_call(b);
	const R *p = (const R *)blocks->p, *g = (const R *)blocks->g;
	R *movement = (R *)blocks->movement;

	each_segment_vec<1>(&c, prunable, [=] __device__(int64_t i, int64_t second, bool decays) {
		(void)decays;
		movement[second] -= p[i] * g[i];
	});
}

template <typename R>
static void prune(const struct backend *b, const struct optim_segments *prunable,
		  const struct optim_blocks *blocks)
{
	const struct call c = update_call(b);
	const R *pruned = (const R *)blocks->pruned;
	R *p = (R *)blocks->p;

	each_segment_vec<1>(&c, prunable, [=] __device__(int64_t i, int64_t second, bool decays) {
		(void)decays;
		if (pruned[second] != 0)
			p[i] = 0;
	});
}

template <typename R> static constexpr struct optim_kernels set()
{
	return { sum_squares<R, false>,
		 sum_squares<R, true>,
		 clip_elements<R>,
		 decide,
		 restart<R>,
		 adamw<R>,
		 sgd<R>,
		 add<R>,
		 muon<R>,
		 muon_workspace<R>,
		 add_movement<R>,
		 prune<R> };
}

extern "C" {
extern const struct optim_kernels cuda_optim_f32, cuda_optim_f64;
const struct optim_kernels cuda_optim_f32 = set<float>();
const struct optim_kernels cuda_optim_f64 = set<double>();
}
