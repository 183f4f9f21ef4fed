/*
 * Adds many rows to the rows of another matrix, by a key of each row, without atomics.
 *
 * A stable sort orders the rows by key; then one block sums the rows of each key in their order.
 * There is a block for every key, or for every row if there are fewer: most of those find that
 * their row is not the first of its key.
 * Include this before kernel.cuh, as sort.cuh demands.
 */
#ifndef CUDA_PRIMITIVES_SCATTER_ROWS_CUH
#define CUDA_PRIMITIVES_SCATTER_ROWS_CUH

#include "core/backend/cuda/primitives/sort.cuh"
#include "core/backend/cuda/primitives/kernel.cuh"

/* Rows sorted by key; rows of one key keep their order. */
struct sorted_rows {
	int32_t *keys, *rows, *row_index;
	void *sort_work;
	size_t sort_bytes;
};

/* The scratch memory of scatter_rows(). */
static inline struct sorted_rows alloc_sorted_rows(struct scratch *m, int64_t rows)
{
	struct sorted_rows s;

	s.keys = m->alloc<int32_t>(rows);
	s.rows = m->alloc<int32_t>(rows);
	s.row_index = m->alloc<int32_t>(rows);
	s.sort_bytes = sort_work((int)rows);
	s.sort_work = m->alloc<char>((int64_t)s.sort_bytes);
	return s;
}

#define READS 8 /* loads of a thread in flight */

/*
 * The sum of x[row] over a thread's share of the sorted rows with the key of row `first`, in
 * order: READS rows from row `own` on, then again every `step` rows.
 */
template <typename R, typename T>
static __device__ R sum_of_key(const struct sorted_rows &s, int64_t first, int64_t own,
			       int64_t step, int64_t n, const T *x, int64_t width)
{
	const int32_t key = s.keys[first];
	R sum = 0;
	bool more = true;

	for (int64_t i = own; more; i += step) {
		int32_t row[READS];
		R value[READS];

#pragma unroll
		for (int k = 0; k < READS; k++)
			row[k] = i + k < n && s.keys[i + k] == key ? s.rows[i + k] : -1;
#pragma unroll
		for (int k = 0; k < READS; k++)
			value[k] = row[k] >= 0 ? (R)x[row[k] * width] : 0;
#pragma unroll
		for (int k = 0; k < READS; k++)
			sum += value[k];
		more = row[READS - 1] >= 0;
	}
	return sum;
}

/*
 * d[channel] += the sum over all rows of the key, by one block.  With few channels, groups of
 * threads share the rows.
 */
template <typename P, typename T>
static __device__ void add_key(const struct sorted_rows &s, int64_t first, int64_t n, const T *x,
			       int64_t width, output_view<P> d)
{
	typedef typename P::real real;
	__shared__ real sums[BLOCK];
	const int groups = width < BLOCK ? BLOCK / (int)width : 1,
		  group = groups > 1 ? (int)threadIdx.x / (int)width : 0;
	const int64_t own = first + group * READS;

	for (int64_t channel = threadIdx.x - group * width; group < groups && channel < width;
	     channel += BLOCK) {
		const real sum =
			sum_of_key<real>(s, first, own, groups * READS, n, x + channel, width);

		if (groups == 1)
			d[channel] = d[channel] + sum;
		else
			sums[threadIdx.x] = sum;
	}
	if (groups == 1)
		return;
	__syncthreads();
	if ((int)threadIdx.x < width) {
		real sum = 0;

		for (int k = 0; k < groups; k++)
			sum += sums[k * width + threadIdx.x];
		d[threadIdx.x] = d[threadIdx.x] + sum;
	}
}

/* The first of the sorted rows whose key is not smaller; `rows` if there is none. */
static __device__ int64_t first_of_key(const struct sorted_rows &s, int64_t key, int64_t rows)
{
	int64_t low = 0, high = rows;

	while (low < high) {
		const int64_t middle = (low + high) / 2;

		if (s.keys[middle] < key)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Bits that hold every integer below n. */
static inline int bits_of(int64_t n)
{
	int bits = 1;

	while (n > (int64_t)1 << bits)
		bits++;
	return bits;
}

/* Replicas with more rows are sorted one after another. */
#define RANKED_ROWS 4096

/*
 * A stable sort by counting, for few rows: a row goes behind all smaller keys, and behind the equal
 * keys in front of it.
 */
static inline void sort_by_rank(const struct call *c, const struct sorted_rows &sorted,
				const int32_t *keys, int64_t rows)
{
	const struct sorted_rows s = sorted;

	each(c, rows, [=] __device__(int64_t i) {
		const int n = (int)rows, own = (int)i;
		const int32_t key = keys[own];
		int rank = 0;

#pragma unroll 16
		for (int k = 0; k < own; k++)
			rank += keys[k] <= key;
#pragma unroll 16
		for (int k = own + 1; k < n; k++)
			rank += keys[k] < key;
		s.keys[rank] = key;
		s.rows[rank] = own;
	});
}

static inline void sort_rows(const struct call *c, const struct sorted_rows &s, const int32_t *keys,
			     int64_t rows, int64_t n_keys)
{
	const struct replicas &all = context_of(c)->replicas;
	int32_t *row_index = s.row_index;

	if (REPLICA_FORM && rows <= RANKED_ROWS) {
		sort_by_rank(c, s, keys, rows);
		return;
	}
	each(c, rows, [=] __device__(int64_t i) { row_index[i] = (int32_t)i; });
	for (int r = 0; r < replica_count(all); r++)
		cuda_note(context_of(c),
			  sort_pairs(in_replica(all, s.sort_work, r), s.sort_bytes,
				     in_replica(all, keys, r), in_replica(all, s.keys, r),
				     in_replica(all, s.row_index, r), in_replica(all, s.rows, r),
				     (int)rows, bits_of(n_keys + 1), stream_of(c)),
			  "sort of rows");
}

/* The loops are instantiated for the type of x, so that their loads overlap. */
template <typename P, typename T>
static void scatter_rows_of(const struct call *c, const struct sorted_rows &sorted,
			    const int32_t *keys, int64_t rows, const T *x, int64_t width,
			    int64_t n_keys, gradient_view<P> d)
{
	const struct sorted_rows s = sorted;

	sort_rows(c, s, keys, rows, n_keys);
	if (!d.add)
		each(c, n_keys * width, [=] __device__(int64_t i) { d.to[i] = 0; });
	if (n_keys < rows) {
		each_row(c, n_keys, [=] __device__(int64_t key) {
			const int64_t first = first_of_key(s, key, rows);

			if (first < rows && s.keys[first] == key)
				add_key<P>(s, first, rows, x, width, d.to + key * width);
		});
		return;
	}
	each_row(c, rows, [=] __device__(int64_t first) {
		const int32_t key = s.keys[first];

		if (key == n_keys || (first > 0 && s.keys[first - 1] == key))
			return;
		add_key<P>(s, first, rows, x, width, d.to + key * width);
	});
}

/*
 * Row `key` of d [n_keys,width] becomes, or is added, the sum of the rows of x [rows,width] with
 * that key.  Rows with the key n_keys are dropped.
 */
template <typename P>
static void scatter_rows(const struct call *c, const struct sorted_rows &s, const int32_t *keys,
			 int64_t rows, input_view<P> x, int64_t width, int64_t n_keys,
			 gradient_view<P> d)
{
	if (ROUNDS<P> && x.bf16_storage)
		scatter_rows_of<P>(c, s, keys, rows, (const typename P::factor *)x.at, width,
				   n_keys, d);
	else
		scatter_rows_of<P>(c, s, keys, rows, (const typename P::real *)x.at, width, n_keys,
				   d);
}

#endif
