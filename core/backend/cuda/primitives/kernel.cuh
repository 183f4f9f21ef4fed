/*
 * cuda - what the kernel files of this room share.
 *
 * A kernel file is a template over a precision: single_precision, double_precision, or
 * bfloat16_products, which is float with products in bfloat16.  Its functions have the shape of the
 * CPU's: forward and backward take a struct call, whose pointers are device memory. Work is given
 * to the GPU by each() (one thread per element), each_row() (one block per row), each_of_buffers()
 * (elements of many blocks of memory), sum_all() and sum_columns() (fixed order: the same bits
 * every time), and gemm() (cuBLAS).  Everything is ordered on the context's stream.
 */
#ifndef CUDA_PRIMITIVES_KERNEL_CUH
#define CUDA_PRIMITIVES_KERNEL_CUH

#include <math.h>
#include <stdint.h>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "core/engine/backend.h"
#include "core/ops/ops.h"
}

#include "core/backend/cuda/device/context.cuh"
#include "core/backend/cuda/device/launch.cuh"
#include "core/backend/cuda/primitives/view.cuh"

/* Publish `set<P>()`, a struct kernels, under the names that the backend's table expects. */
#define KERNELS(name, set)                                                  \
	extern "C" {                                                        \
	extern const struct kernels cuda_##name##_f32;                      \
	extern const struct kernels cuda_##name##_f64;                      \
	extern const struct kernels cuda_##name##_bf16;                     \
	const struct kernels cuda_##name##_f32 = set<single_precision>();   \
	const struct kernels cuda_##name##_f64 = set<double_precision>();   \
	const struct kernels cuda_##name##_bf16 = set<bfloat16_products>(); \
	}

/* ------------------------------------------------------------------ the call */

/* Of a node with struct factor_attr: input `learned` or the constant, read on the device. */
template <typename R> struct scalar_factor {
	const R *learned;
	R constant;

	__device__ R get() const
	{
		return learned ? *learned : constant;
	}
};

template <typename P>
static scalar_factor<typename P::real> factor(const struct call *c, int learned)
{
	const struct factor_attr *attr = (const struct factor_attr *)c->node->attr;

	return { real_input<P>(c, learned), (typename P::real)attr->constant };
}

/* --------------------------------------------------------------- elements, rows */

#ifndef BLOCK
#define BLOCK 256 /* threads; fewer where they are emulated */
#endif
#define WARP 32

template <typename F> static __global__ void elementwise_kernel(int64_t n, F f)
{
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (int64_t)gridDim.x * blockDim.x)
		f(i);
}

#define MAX_BLOCKS (1 << 16)

/* f(i) for i in [0, n), a thread each. */
template <typename F> static void each(const struct call *c, int64_t n, F f)
{
	const int64_t blocks = (n + BLOCK - 1) / BLOCK;

	if (n == 0)
		return;
	launch_pdl(context_of(c)->pdl, elementwise_kernel<F>,
		   (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), BLOCK, 0, stream_of(c), n,
		   f);
	note_launch(c);
}

template <int N, enum vec_kind KIND, typename F>
static __global__ void vectorized_elementwise_kernel(int64_t vecs, F f)
{
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vecs;
	     i += (int64_t)gridDim.x * blockDim.x)
		f(vec_index<N, KIND>{ i * N });
}

template <int N, enum vec_kind KIND = VEC_OF_ANY, typename F>
static void launch_vecs(const struct call *c, int64_t vecs, F f)
{
	const int64_t blocks = (vecs + BLOCK - 1) / BLOCK;

	launch_pdl(context_of(c)->pdl, vectorized_elementwise_kernel<N, KIND, F>,
		   (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), BLOCK, 0, stream_of(c),
		   vecs, f);
	note_launch(c);
}

/*
 * f(span) for all spans of n elements, a thread each: of VEC elements where `width`, which no span
 * may leave, is a multiple of it; else of one.  f has a parameter `auto p`, reads x[p], writes
 * y.put(p, values).
 */
#define VEC 8

template <typename F> static void each_vec(const struct call *c, int64_t n, int64_t width, F f)
{
	if (n == 0)
		return;
	if (width % VEC == 0)
		launch_vecs<VEC>(c, n / VEC, f);
	else
		launch_vecs<1>(c, n, f);
}

/* The same where f takes spans of no tensors but those of all_of<P>(...): faster if they are alike.
 */
template <typename P, typename F>
static void each_vec(const struct call *c, int64_t n, int64_t width, const tensors<P> &of, F f)
{
	if (n == 0)
		return;
	if (width % VEC != 0)
		launch_vecs<1>(c, n, f);
	else if (ROUNDS<P> && of.kind() == VEC_OF_BF16)
		launch_vecs<VEC, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL>(c, n / VEC, f);
	else if (of.kind() == VEC_OF_REAL)
		launch_vecs<VEC, VEC_OF_REAL>(c, n / VEC, f);
	else
		launch_vecs<VEC>(c, n / VEC, f);
}

template <typename F> static __global__ void rowwise_kernel(int64_t rows, F f)
{
	pdl_wait();
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		f(row);
		__syncthreads();
	}
}

/* f(row) by all BLOCK threads of a block together. */
template <typename F> static void each_row(const struct call *c, int64_t rows, F f)
{
	if (rows == 0)
		return;
	launch_pdl(context_of(c)->pdl, rowwise_kernel<F>,
		   (unsigned)(rows < MAX_BLOCKS ? rows : MAX_BLOCKS), BLOCK, 0, stream_of(c), rows,
		   f);
	note_launch(c);
}

/* Elements that a block takes: one for each thread, until there are more blocks than a GPU runs. */
static inline int64_t elements_per_block(int64_t total)
{
	return total <= 1024 * BLOCK ? BLOCK : 8 * BLOCK;
}

/* The stretch with element number i of all. */
template <typename L> static __device__ int buffer_of(const L &list, int64_t i)
{
	int low = 0, high = list.n - 1;

	while (low < high) {
		const int middle = (low + high + 1) / 2;

		if (list.before(middle) <= i)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

template <typename L, typename F>
static __global__ void multi_buffer_kernel(const __grid_constant__ L list, int64_t total,
					   int64_t part, F f)
{
	const int64_t first = blockIdx.x * part, last = first + part < total ? first + part : total;

	pdl_wait();
	int at = buffer_of(list, first);

	for (int64_t i = first + threadIdx.x; i < last; i += BLOCK) {
		while (at + 1 < list.n && i >= list.before(at + 1))
			at++;
		f(list, at, i);
	}
}

/*
 * f(stretches, number of the stretch, i) for i in [0, total): the elements of stretches.n stretches
 * of memory, counted through.  stretches.before(k) elements lie before stretch k.
 */
template <typename L, typename F>
static void each_of_buffers(const struct call *c, const L &list, int64_t total, F f)
{
	const int64_t part = elements_per_block(total), blocks = (total + part - 1) / part;

	if (total == 0)
		return;
	launch_pdl(context_of(c)->pdl, multi_buffer_kernel<L, F>, (unsigned)blocks, BLOCK, 0,
		   stream_of(c), list, total, part, f);
	note_launch(c);
}

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

/* Joins the values of a warp in a fixed tree; every thread gets the result. */
template <typename R, typename Join> static __device__ R warp_reduce(R value, Join join)
{
	for (int step = WARP / 2; step > 0; step /= 2)
		value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
	return value;
}

template <typename R> static __device__ R warp_sum(R value)
{
	return warp_reduce(value, add_values());
}

/* The same for all BLOCK threads. */
template <typename R, typename Join> static __device__ R block_reduce(R value, Join join)
{
	__shared__ R warp[BLOCK / WARP];
	const int lane = threadIdx.x % WARP, number = threadIdx.x / WARP;

	value = warp_reduce(value, join);
	__syncthreads(); /* the last use of warp[] is over */
	if (lane == 0)
		warp[number] = value;
	__syncthreads();
	value = warp[0];
	for (int i = 1; i < BLOCK / WARP; i++)
		value = join(value, warp[i]);
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

/* The largest value, and where it is; among equals the first. */
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
	const first_of_largest<R> join;

	for (int step = WARP / 2; step > 0; step /= 2) {
		const argmax<R> other = { __shfl_xor_sync(0xffffffffu, p.value, step),
					  __shfl_xor_sync(0xffffffffu, p.index, step) };

		p = join(p, other);
	}
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		warp[threadIdx.x / WARP] = p;
	__syncthreads();
	p = warp[0];
	for (int i = 1; i < BLOCK / WARP; i++)
		p = join(p, warp[i]);
	return p;
}

/* ----------------------------------------------- sums over everything, in order */

/* Counts the arrival of a block.  The last of n sees what the others wrote, and counts from 0
 * again. */
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
 * A sum consists of this many partial sums over equal parts, which the last block adds in a fixed
 * tree: the result does not depend on which block that is.
 */
#define SUM_PARTS BLOCK
#define SUM_WORK (SUM_PARTS * sizeof(double))

template <typename F, typename G>
static __global__ void reduce_kernel(int64_t n, F value, double *parts, unsigned *arrivals,
				     G finish)
{
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

/* finish(sum of value(i) over [0, n)) on the device; `work` has SUM_WORK bytes. */
template <typename F, typename G>
static void sum_all(const struct call *c, int64_t n, F value, void *work, G finish)
{
	launch_pdl(context_of(c)->pdl, reduce_kernel<F, G>, SUM_PARTS, BLOCK, 0, stream_of(c), n,
		   value, (double *)work, context_of(c)->arrivals, finish);
	note_launch(c);
}

template <int N, enum vec_kind KIND, typename F, typename G>
static void sum_vecs_of(const struct call *c, int64_t n, F value, void *work, G finish)
{
	sum_all(
		c, n / N, [=] __device__(int64_t i) { return value(vec_index<N, KIND>{ i * N }); },
		work, finish);
}

/* The same of value(span), over the spans that each_vec(c, n, n, of, ...) takes. */
template <typename P, typename F, typename G>
static void sum_vecs(const struct call *c, int64_t n, const tensors<P> &of, F value, void *work,
		     G finish)
{
	if (n % VEC != 0)
		sum_vecs_of<1, VEC_OF_ANY>(c, n, value, work, finish);
	else if (ROUNDS<P> && of.kind() == VEC_OF_BF16)
		sum_vecs_of<VEC, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL>(c, n, value, work, finish);
	else if (of.kind() == VEC_OF_REAL)
		sum_vecs_of<VEC, VEC_OF_REAL>(c, n, value, work, finish);
	else
		sum_vecs_of<VEC, VEC_OF_ANY>(c, n, value, work, finish);
}

/* -------------------------------------------------- sums of columns, in order */

/*
 * Parts into which the rows of a column sum are cut, a function of the shape alone: as many as a
 * large GPU needs, but none of few rows.  A single part needs no second launch.
 */
#define COLUMN_BLOCKS 512
#define COLUMN_ROWS 64 /* of one of many parts, at least */

static inline int64_t column_parts(int64_t rows, int64_t columns)
{
	const int64_t groups = (columns + WARP * VEC - 1) / (WARP * VEC);
	const int64_t wanted = (COLUMN_BLOCKS + groups - 1) / groups;
	const int64_t most = rows <= 4 * COLUMN_ROWS ? 1 : rows / COLUMN_ROWS;

	return wanted < most ? wanted : most;
}

/* Elements of workspace for sum_columns(). */
static inline int64_t column_scratch(int64_t rows, int64_t columns)
{
	return column_parts(rows, columns) * columns;
}

/* The threads of a block: `lanes` spans of columns, and slices of its rows. */
template <typename R, int N> static __device__ vec<R, N> add_slices(vec<R, N> sum, int lanes)
{
	__shared__ R other[N][BLOCK];

	for (int half = BLOCK / 2; half >= lanes; half /= 2) {
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
static __global__ void column_reduce_kernel(int64_t rows, int64_t columns, int lanes, F value,
					    R *partial, G finish)
{
	const int64_t parts = gridDim.y, part = blockIdx.y, last = rows * (part + 1) / parts;
	const int64_t column = ((int64_t)blockIdx.x * lanes + threadIdx.x % lanes) * N;
	vec<R, N> sum = {};

	pdl_wait();
	if (column < columns) {
		/* a count of turns that is known before the loop: loads of several turns are under
		 * way */
		const int64_t first = rows * part / parts + threadIdx.x / lanes,
			      step = BLOCK / lanes;
		const int64_t turns = first < last ? (last - first - 1) / step + 1 : 0;

#pragma unroll 4
		for (int64_t i = 0; i < turns; i++) {
			const vec<R, N> x = value(first + i * step, vec_index<N, KIND>{ column });

#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += x[k];
		}
	}
	sum = add_slices(sum, lanes);
	if ((int)threadIdx.x >= lanes || column >= columns)
		return;
#pragma unroll
	for (int k = 0; k < N; k++) {
		if (parts == 1)
			finish(column + k, sum[k]);
		else
			partial[part * columns + column + k] = sum[k];
	}
}

/* Few columns a block, whose threads share the parts: then none adds many. */
#define FINISH_COLUMNS 8

template <typename R, typename G>
static __global__ void column_reduce_finish_kernel(int64_t parts, int64_t columns, const R *partial,
						   G finish)
{
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
	launch_pdl(context_of(c)->pdl, column_reduce_finish_kernel<R, G>,
		   (unsigned)((columns + FINISH_COLUMNS - 1) / FINISH_COLUMNS), BLOCK, 0,
		   stream_of(c), parts, columns, partial, finish);
	note_launch(c);
}

template <typename R, int N, enum vec_kind KIND = VEC_OF_ANY, typename F, typename G>
static void launch_columns(const struct call *c, int64_t rows, int64_t columns, F value, R *work,
			   G finish)
{
	const int64_t parts = column_parts(rows, columns);
	int lanes = 1;

	while (lanes < WARP && lanes * N < columns)
		lanes *= 2;
	launch_pdl(context_of(c)->pdl, column_reduce_kernel<R, N, KIND, F, G>,
		   dim3((unsigned)((columns + lanes * N - 1) / (lanes * N)), (unsigned)parts),
		   BLOCK, 0, stream_of(c), rows, columns, lanes, value, work, finish);
	note_launch(c);
	if (parts > 1)
		finish_columns(c, parts, columns, (const R *)work, finish);
}

/*
 * finish(column, sum of value(row, span of columns) over the rows); `work` has room for
 * column_scratch() numbers. value has a parameter `auto p` and returns values, as x[p] does.  Spans
 * are those of each_vec(), and of nothing but the tensors of all_of<P>(...), whose rows have
 * `columns` numbers.
 */
template <typename P, typename F, typename G>
static void sum_column_vecs(const struct call *c, int64_t rows, int64_t columns,
			    const tensors<P> &of, F value, void *work, G finish)
{
	typedef typename P::real R;

	if (columns == 0)
		return;
	if (columns % VEC != 0)
		launch_columns<R, 1>(c, rows, columns, value, (R *)work, finish);
	else if (ROUNDS<P> && of.kind() == VEC_OF_BF16)
		launch_columns<R, VEC, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL>(
			c, rows, columns, value, (R *)work, finish);
	else if (of.kind() == VEC_OF_REAL)
		launch_columns<R, VEC, VEC_OF_REAL>(c, rows, columns, value, (R *)work, finish);
	else
		launch_columns<R, VEC>(c, rows, columns, value, (R *)work, finish);
}

/* The same of value(row, column), a number. */
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

/* ------------------------------------------------------------------ workspace */

/* Hands out pieces of c->work; if `at` is NULL it only counts bytes. */
struct scratch {
	char *at;
	size_t used;

	template <typename R> R *alloc(int64_t elements)
	{
		R *vec = at ? (R *)(at + used) : NULL;

		used += ((size_t)elements * sizeof(R) + 255) / 256 * 256;
		return vec;
	}
};

/* The `workspace` of kernels whose function `take` takes all that a pass needs. */
template <auto take> static size_t workspace_of(const struct node *n, enum pass pass, int threads)
{
	struct scratch m = { NULL, 0 };

	(void)threads;
	take(&m, n, pass);
	return m.used;
}

static inline int64_t count_of(const struct tensor *t)
{
	return tensor_count(t);
}

#endif
