/*
 * Reductions in a fixed order: of a warp, of a block, of all elements, and of columns.
 * kernel.cuh includes this file.
 *
 * No floating-point atomics.  Each block writes a partial result, and the partial results are added
 * in an order that depends only on the shape, so the same input always gives the same bits.
 */
#ifndef CUDA_PRIMITIVES_REDUCE_CUH
#define CUDA_PRIMITIVES_REDUCE_CUH

/* -------------------------------------------------- reductions within a block */

struct add_values {
	template <typename R> __device__ R operator()(R a, R b) const
	{
		return a + b;
	}
};

struct larger_value {
	template <typename R> __device__ R operator()(R a, R b) const
	{
		return b > a ? b : a;
	}
};

/*
 * Reduces the values of a warp, or of each LANES threads of it, in a fixed tree.  Every thread gets
 * the result.
 */
template <int LANES = WARP, typename R, typename Op> static __device__ R warp_reduce(R value, Op op)
{
	for (int step = LANES / 2; step > 0; step /= 2)
		value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
	return value;
}

template <int LANES = WARP, typename R> static __device__ R warp_sum(R value)
{
	return warp_reduce<LANES>(value, add_values());
}

/* The same for the BLOCK threads of a block. */
template <typename R, typename Op> static __device__ R block_reduce(R value, Op op)
{
	__shared__ R warp[BLOCK / WARP];
	const int lane = threadIdx.x % WARP, warp_index = threadIdx.x / WARP;

	value = warp_reduce(value, op);
	__syncthreads(); /* all threads have read warp[] of the previous call */
	if (lane == 0)
		warp[warp_index] = value;
	__syncthreads();
	value = warp[0];
	for (int i = 1; i < BLOCK / WARP; i++)
		value = op(value, warp[i]);
	return value;
}

template <typename R> static __device__ R block_sum(R value)
{
	return block_reduce(value, add_values());
}

template <typename R> static __device__ R block_max(R value)
{
	return block_reduce(value, larger_value());
}

/* The largest value and its index; of equal values the lowest index. */
template <typename R> struct argmax {
	R value;
	int index;
};

template <typename R> struct first_of_largest {
	__device__ argmax<R> operator()(argmax<R> a, argmax<R> b) const
	{
		return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
	}
};

template <typename R> static __device__ argmax<R> block_argmax(argmax<R> p)
{
	__shared__ argmax<R> warp[BLOCK / WARP];
	const first_of_largest<R> op;

	for (int step = WARP / 2; step > 0; step /= 2) {
		const argmax<R> other = { __shfl_xor_sync(0xffffffffu, p.value, step),
					  __shfl_xor_sync(0xffffffffu, p.index, step) };

		p = op(p, other);
	}
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		warp[threadIdx.x / WARP] = p;
	__syncthreads();
	p = warp[0];
	for (int i = 1; i < BLOCK / WARP; i++)
		p = op(p, warp[i]);
	return p;
}

/* ----------------------------------------------- sums of all elements */

/*
 * Counts the blocks that call it.  It returns true in the last of n blocks, which then sees the
 * writes of the others; the counter is 0 again.
 */
static inline __device__ bool is_last_block(unsigned *arrivals, unsigned n)
{
	__shared__ bool last;

	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		last = atomicInc(arrivals, n - 1) == n - 1;
		__threadfence();
	}
	__syncthreads();
	return last;
}

/*
 * A sum has this many partial sums over equal shares.  The last block to finish adds them in a
 * fixed tree, so the result does not depend on which block that is.
 */
#define SUM_PARTS BLOCK
#define SUM_WORK (SUM_PARTS * sizeof(double))

template <typename F, typename G>
static __global__ void reduce_kernel(struct replicas replicas, int64_t n,
				     const __grid_constant__ F given_value, double *parts,
				     unsigned *arrivals, const __grid_constant__ G given_finish)
{
	replicas.to_own(parts, arrivals);
	const auto &value = replicas.own(given_value);
	const auto &finish = replicas.own(given_finish);
	const int64_t first = n * blockIdx.x / SUM_PARTS, last = n * (blockIdx.x + 1) / SUM_PARTS;
	double sum = 0;

	pdl_wait();
#pragma unroll 8
	for (int64_t i = first + threadIdx.x; i < last; i += BLOCK)
		sum += (double)value(i);
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
	if (!is_last_block(arrivals, SUM_PARTS))
		return;
	sum = block_sum(__ldcg(parts + threadIdx.x));
	if (threadIdx.x == 0)
		finish(sum);
}

/* finish(sum of value(i) for i in [0, n)), on the device.  `work` has SUM_WORK bytes. */
template <typename F, typename G>
static void sum_all(const struct call *c, int64_t n, F value, void *work, G finish)
{
	launch_for(c, reduce_kernel<F, G>, SUM_PARTS, BLOCK, 0, n, value, (double *)work,
		   context_of(c)->arrivals, finish);
}

template <int N, enum vec_kind KIND, typename F, typename G>
static void sum_vecs_of(const struct call *c, int64_t n, F value, void *work, G finish)
{
	sum_all(
		c, n / N, [=] __device__(int64_t i) { return value(vec_index<N, KIND>{ i * N }); },
		work, finish);
}

/* The same for value(p) over the vectors p of each_vec(c, n, n, of, ...). */
template <typename P, typename F, typename G>
static void sum_vecs(const struct call *c, int64_t n, const tensors<P> &of, F value, void *work,
		     G finish)
{
	with_vec_form<P>(n, of, [&](auto form) {
		sum_vecs_of<decltype(form)::N, decltype(form)::KIND>(c, n, value, work, finish);
	});
}

/* -------------------------------------------------- sums of columns */

/*
 * The rows of a column sum are split into parts, one per blockIdx.y.  Their number depends only on
 * the shape and the GPU: enough blocks to fill it, but no part of few rows.  One part needs no
 * second launch.
 */
#define COLUMN_BLOCKS_PER_SM 4
#define COLUMN_ROWS 64 /* minimum rows of a part, if there are several */

static inline int64_t column_parts(int sms, int64_t rows, int64_t columns)
{
	const int64_t blocks = (columns + WARP * VEC - 1) / (WARP * VEC);
	const int64_t wanted = (blocks_to_fill(sms, COLUMN_BLOCKS_PER_SM) + blocks - 1) / blocks;
	const int64_t max = rows <= 4 * COLUMN_ROWS ? 1 : rows / COLUMN_ROWS;

	return wanted < max ? wanted : max;
}

/* Elements of scratch memory for sum_columns(). */
static inline int64_t column_scratch(int sms, int64_t rows, int64_t columns)
{
	return column_parts(sms, rows, columns) * columns;
}

/*
 * A block has `across` threads across the columns and BLOCK / across threads down the rows.  Adds
 * the sums of the latter in a fixed tree; the first `across` threads get the result.
 */
template <typename R, int N> static __device__ vec<R, N> add_slices(vec<R, N> sum, int across)
{
	__shared__ R other[N][BLOCK];

	for (int half = BLOCK / 2; half >= across; half /= 2) {
		__syncthreads();
#pragma unroll
		for (int k = 0; k < N; k++)
			other[k][threadIdx.x] = sum[k];
		__syncthreads();
		if ((int)threadIdx.x >= half)
			continue;
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += other[k][threadIdx.x + half];
	}
	return sum;
}

template <typename R, int N, enum vec_kind KIND, typename F, typename G>
static __global__ void column_reduce_kernel(struct replicas replicas, int64_t rows, int64_t columns,
					    int across, const __grid_constant__ F given_value,
					    R *partial, const __grid_constant__ G given_finish)
{
	replicas.to_own(partial);
	const auto &value = replicas.own(given_value);
	const auto &finish = replicas.own(given_finish);
	const int64_t parts = gridDim.y, part = blockIdx.y, last = rows * (part + 1) / parts;
	const int64_t column = ((int64_t)blockIdx.x * across + threadIdx.x % across) * N;
	vec<R, N> sum = {};

	pdl_wait();
	if (column < columns) {
		/*
		 * the trip count is known before the loop, so loads of several iterations overlap
		 */
		const int64_t first = rows * part / parts + threadIdx.x / across,
			      step = BLOCK / across;
		const int64_t iterations = first < last ? (last - first - 1) / step + 1 : 0;

#pragma unroll 4
		for (int64_t i = 0; i < iterations; i++) {
			const vec<R, N> x = value(first + i * step, vec_index<N, KIND>{ column });

#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += x[k];
		}
	}
	sum = add_slices(sum, across);
	if ((int)threadIdx.x >= across || column >= columns)
		return;
#pragma unroll
	for (int k = 0; k < N; k++) {
		if (parts == 1)
			finish(column + k, sum[k]);
		else
			partial[part * columns + column + k] = sum[k];
	}
}

/* Few columns per block, so that many threads share the parts of a column. */
#define FINISH_COLUMNS 8

template <typename R, typename G>
static __global__ void column_reduce_finish_kernel(struct replicas replicas, int64_t parts,
						   int64_t columns, const R *partial,
						   const __grid_constant__ G given_finish)
{
	replicas.to_own(partial);
	const auto &finish = replicas.own(given_finish);
	const int64_t column = (int64_t)blockIdx.x * FINISH_COLUMNS + threadIdx.x % FINISH_COLUMNS;
	vec<R, 1> sum = {};

	pdl_wait();
	if (column < columns) {
#pragma unroll 8
		for (int64_t part = threadIdx.x / FINISH_COLUMNS; part < parts;
		     part += BLOCK / FINISH_COLUMNS)
			sum[0] += partial[part * columns + column];
	}
	sum = add_slices(sum, FINISH_COLUMNS);
	if (threadIdx.x < FINISH_COLUMNS && column < columns)
		finish(column, sum[0]);
}

/* finish(column, sum of partial [parts, columns] over the parts) */
template <typename R, typename G>
static void finish_columns(const struct call *c, int64_t parts, int64_t columns, const R *partial,
			   G finish)
{
	launch_for(c, column_reduce_finish_kernel<R, G>,
		   (unsigned)((columns + FINISH_COLUMNS - 1) / FINISH_COLUMNS), BLOCK, 0, parts,
		   columns, partial, finish);
}

template <typename R, int N, enum vec_kind KIND = VEC_OF_ANY, typename F, typename G>
static void launch_columns(const struct call *c, int64_t rows, int64_t columns, F value, R *work,
			   G finish)
{
	const int64_t parts = column_parts(context_of(c)->sm_count, rows, columns);
	int across = 1;

	while (across < WARP && across * N < columns)
		across *= 2;
	launch_for(c, column_reduce_kernel<R, N, KIND, F, G>,
		   dim3((unsigned)((columns + across * N - 1) / (across * N)), (unsigned)parts),
		   BLOCK, 0, rows, columns, across, value, work, finish);
	if (parts > 1)
		finish_columns(c, parts, columns, (const R *)work, finish);
}

/*
 * finish(column, sum of value(row, p) over the rows) for every vector p of columns.  `work` has
 * column_scratch() elements.  value takes a parameter `auto p` and returns a vector, as x[p] does.
 * It reads only the tensors of all_of<P>(...), whose rows have `columns` elements.
 */
template <typename P, typename F, typename G>
static void sum_column_vecs(const struct call *c, int64_t rows, int64_t columns,
			    const tensors<P> &of, F value, void *work, G finish)
{
	typedef typename P::real R;

	if (columns == 0)
		return;
	with_vec_form<P>(columns, of, [&](auto form) {
		launch_columns<R, decltype(form)::N, decltype(form)::KIND>(c, rows, columns, value,
									   (R *)work, finish);
	});
}

/* The same for value(row, column), which returns one element. */
template <typename R, typename F, typename G>
static void sum_columns(const struct call *c, int64_t rows, int64_t columns, F value, void *work,
			G finish)
{
	if (columns > 0)
		launch_columns<R, 1>(
			c, rows, columns,
			[=] __device__(int64_t row, vec_index<1> p) {
				return vec<R, 1>{ { value(row, p.first) } };
			},
			(R *)work, finish);
}

#endif
