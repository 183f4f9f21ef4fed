/*
 * attention - code shared by the flash, decode and general attention kernels.
 *
 * It holds the tensor indices of the op, the dropout mask, top-k routing, and the reduction of
 * gradients over query heads that share a key/value head (grouped-query attention).
 */
#ifndef CUDA_ATTENTION_ATTENTION_CUH
#define CUDA_ATTENTION_ATTENTION_CUH

#include "core/backend/cuda/primitives/dropout_key.cuh"
#include "core/backend/cuda/attention/scores.cuh"

enum { Q, K, V, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };
enum { O, LSE, LOST, ROUTE_INDEX, ROUTE_WEIGHT };

/* --------------------------------------------------------------- dropout */

struct dropout_mask {
	const uint32_t *key; /* device memory */
	uint64_t limit;	     /* a Philox word below this limit drops its element */
	double factor;	     /* 1 / (1 - rate) for kept elements; 0: no dropout */

	/* Returns the factor of element `index` of the random stream: `factor` if kept, else 0. */
	__device__ double at(uint64_t index) const
	{
		uint32_t word[4];

		if (factor == 0)
			return 1;
		philox_block(key, index / 4, word);
		const uint32_t low = index & 1 ? word[1] : word[0];
		const uint32_t high = index & 1 ? word[3] : word[2];

		return (index & 2 ? high : low) < limit ? 0 : factor;
	}
};

static inline struct dropout_mask dropout_mask_of(const struct call *c)
{
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;

	if (a->dropout == 0)
		return { NULL, 0, 0 };
	return { dropout_key(c), (uint64_t)ceil(a->dropout * 0x1p32), 1 / (1 - a->dropout) };
}

/* --------------------------------------------------------------- routing */

/* Head-combined probabilities [B,rows,pitch] of one block of queries. */
template <typename R> struct routing_scores {
	R *at;
	int64_t rows, pitch;
};

template <typename R> static __device__ argmax<R> warp_argmax(argmax<R> p)
{
	for (int step = WARP / 2; step > 0; step /= 2) {
		const argmax<R> other = { __shfl_xor_sync(0xffffffffu, p.value, step),
					  __shfl_xor_sync(0xffffffffu, p.index, step) };

		p = first_of_largest<R>()(p, other);
	}
	return p;
}

/* Returns the argmax over entries first, first + step, ... of a row of n. */
template <typename R>
static __device__ argmax<R> strided_argmax(const R *row, int64_t first, int64_t step, int64_t n)
{
	argmax<R> best = { -1, INT32_MAX };

	for (int64_t j = first; j < n; j += step)
		best = first_of_largest<R>()(best, { row[j], (int)j });
	return best;
}

/*
 * Top-k of one row by a warp; take_largest() is the same for a thread block. Lane l caches the
 * argmax over entries l, l + 32, ... After each selection the warp rescans only the entries of the
 * lane whose maximum was removed. A row whose entries are all NaN yields entry 0.
 */
template <typename R>
static __device__ void warp_topk(R *row, int64_t n, int64_t k, int32_t *index, R *weight)
{
	const int lane = threadIdx.x % WARP;
	argmax<R> lane_best = strided_argmax(row, lane, WARP, n), best, next;

	for (int64_t rank = 0; rank < k && rank < n; rank++) {
		best = warp_argmax(lane_best);
		if (best.index >= n)
			best = { row[0], 0 };
		__syncwarp();
		if (lane == 0) {
			index[rank] = best.index;
			weight[rank] = best.value;
			row[best.index] = -1;
		}
		__syncwarp();
		next = warp_argmax(strided_argmax(row, best.index % WARP + (int64_t)lane * WARP,
						  (int64_t)WARP * WARP, n));
		if (lane == best.index % WARP)
			lane_best = next;
	}
	for (int64_t rank = n + lane; rank < k; rank += WARP) {
		index[rank] = -1;
		weight[rank] = 0;
	}
	__syncwarp();
}

/*
 * Writes the top-k of each row of combined probabilities. past: position of the run's first query.
 */
template <typename P>
static void write_routes(const struct call *c, routing_scores<typename P::real> route, int64_t past,
			 struct query_block x)
{
	typedef typename P::real real;
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	const struct tensor *t = c->node->out[ROUTE_INDEX];
	const int64_t B = t->dim[0], T = t->dim[1], k = t->dim[2];
	const struct route_attr attr = a->route;
	int32_t *index = (int32_t *)c->out[ROUTE_INDEX];
	real *weight = real_output<P>(c, ROUTE_WEIGHT);

	each(c, B * x.n * WARP, [=] __device__(int64_t item) {
		const int64_t row = item / WARP, b = row / x.n, r = row % x.n;
		const int64_t first = (b * T + x.first + r) * k;
		real sum = 0;

		warp_topk(route.at + (b * route.rows + r) * route.pitch, past + x.first + r + 1, k,
			  index + first, weight + first);
		for (int64_t rank = 0; rank < k; rank++)
			sum += weight[first + rank];
		__syncwarp();
		for (int64_t rank = item % WARP; rank < k; rank += WARP)
			weight[first + rank] *= route_factor(attr, sum);
	});
}

/* ------------------------------------------------- grouped-query gradients */

/*
 * Sums a per-query-head gradient over the query heads that share a key/value head, in head order.
 * `sums` is [B,H,S,width].
 */
template <typename P>
static void put_shared(const struct call *c, int input, const typename P::real *sums, int64_t H)
{
	const struct tensor *t = c->node->in[input];
	const auto d = input_gradient<P>(c, input);

	if (!d)
		return;
	const struct heads x = heads_of(t, H);
	const uint32_t heads = (uint32_t)t->dim[2], S = (uint32_t)x.T, w = (uint32_t)x.width;

	each(c, tensor_count(t), [=] __device__(int64_t item) {
		const uint32_t line = (uint32_t)item / w, channel = (uint32_t)item % w;
		const uint32_t head = line % heads, row = line / heads, token = row % S,
			       b = row / S;
		const int64_t first = b * H + head * x.group_size;
		typename P::real sum = 0;

#pragma unroll 4
		for (int64_t h = first; h < first + x.group_size; h++)
			sum += sums[(h * S + token) * w + channel];
		d.put(x.at(b, head * x.group_size, token) + channel, sum);
	});
}

/* ------------------------------------------------------- flash attention */

/*
 * Flash attention: scores stay on chip (flash_launch.cuh). takes() depends on the node alone, so
 * all passes agree.
 */
template <typename P> struct flash {
	static bool takes(const struct node *n);
	static void forward(const struct call *c);
	static void backward(const struct call *c);
	static size_t workspace(const struct node *n, enum pass pass, int sms);
};

extern template struct flash<single_precision>;
extern template struct flash<double_precision>;
extern template struct flash<bfloat16_products>;

#endif
