/*
 * attention - what the kernels of op attention share: fused ones, and those made of products.
 */
#ifndef CUDA_ATTENTION_ATTENTION_CUH
#define CUDA_ATTENTION_ATTENTION_CUH

#include "core/backend/cuda/primitives/dropout_key.cuh"
#include "core/backend/cuda/attention/scores.cuh"

enum { Q, K, V, KEY_BIAS, BAND, RECENT };
enum { O, LSE, LOST, ROUTE_INDEX, ROUTE_WEIGHT };

/* --------------------------------------------------------------- dropout */

struct dropout_mask {
	const uint32_t *key; /* device memory */
	uint64_t limit;	     /* words below it drop their element */
	double factor;	     /* of what is kept; 0: no dropout */

	/* factor or 0 for element number `index` of the stream */
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

/* Combined rows [B,rows,pitch] of the queries of a block; rows of examples are `rows` apart. */
template <typename R> struct combined {
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

/* The largest of the entries first, first + step .. of a row. */
template <typename R>
static __device__ argmax<R> largest_of(const R *row, int64_t first, int64_t step, int64_t n)
{
	argmax<R> most = { -1, INT32_MAX };

	for (int64_t j = first; j < n; j += step)
		most = first_of_largest<R>()(most, { row[j], (int)j });
	return most;
}

/*
 * take_largest() by a warp.  Every thread knows the largest of each WARP-th entry; where one of
 * them is taken, all look for the next one of that thread.  Of a row without numbers the first
 * entry is taken.
 */
template <typename R>
static __device__ void warp_take_largest(R *row, int64_t n, int64_t k, int32_t *index, R *weight)
{
	const int lane = threadIdx.x % WARP;
	argmax<R> mine = largest_of(row, lane, WARP, n), most, next;

	for (int64_t at = 0; at < k && at < n; at++) {
		most = warp_argmax(mine);
		if (most.index >= n)
			most = { row[0], 0 };
		__syncwarp();
		if (lane == 0) {
			index[at] = most.index;
			weight[at] = most.value;
			row[most.index] = -1;
		}
		__syncwarp();
		next = warp_argmax(largest_of(row, most.index % WARP + (int64_t)lane * WARP,
					      (int64_t)WARP * WARP, n));
		if (lane == most.index % WARP)
			mine = next;
	}
	for (int64_t at = n + lane; at < k; at += WARP) {
		index[at] = -1;
		weight[at] = 0;
	}
	__syncwarp();
}

/* The k largest entries of every combined row; past: position of the first query of this run. */
template <typename P>
static void write_routes(const struct call *c, combined<typename P::real> route, int64_t past,
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

		warp_take_largest(route.at + (b * route.rows + r) * route.pitch,
				  past + x.first + r + 1, k, index + first, weight + first);
		for (int64_t at = 0; at < k; at++)
			sum += weight[first + at];
		__syncwarp();
		for (int64_t at = item % WARP; at < k; at += WARP)
			weight[first + at] *= route_factor(attr, sum);
	});
}

/* ---------------------------------------------- gradients that heads share */

/* The gradient of an input is the sum over the query heads that share it, in their order. */
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
		const int64_t first = b * H + head * x.sharing;
		typename P::real sum = 0;

#pragma unroll 4
		for (int64_t h = first; h < first + x.sharing; h++)
			sum += sums[(h * S + token) * w + channel];
		d.put(x.at(b, head * x.sharing, token) + channel, sum);
	});
}

/* ----------------------------------------------------------------- fused */

/*
 * Kernels that keep scores on the chip (fused_attention.cuh).  Whether they take a node depends on
 * the node alone.
 */
template <typename P> struct flash {
	static bool takes(const struct node *n);
	static void forward(const struct call *c);
	static void backward(const struct call *c);
	static size_t workspace(const struct node *n, enum pass pass);
};

extern template struct flash<single_precision>;
extern template struct flash<double_precision>;
extern template struct flash<bfloat16_products>;

#endif
