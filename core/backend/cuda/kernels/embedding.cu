/*
 * embedding: y[r] = table[tokens[r]] + positions[past + t].
 *
 * Backward must add many rows of dy to one row of dtable without atomics.  It sorts the rows by
 * token with a stable sort; then one block sums the rows of each token in their order.
 */
#include "core/backend/cuda/primitives/sort.cuh"
#include "core/backend/cuda/primitives/kernel.cuh"

/* y[r] = table[tokens[r]] + positions[past + t] */
template <typename P> static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, length = dim[1], e = dim[2];
	const struct run *run = run_of(c);
	const auto table = input<P>(c, 0), positions = input<P>(c, 2);
	const int32_t *tokens = (const int32_t *)c->in[1];
	const auto y = output<P>(c, 0);

	each_vec(c, dim[0] * length * e, e, [=] __device__(auto p) {
		const int64_t row = p.first / e, channel = p.first % e;
		auto x = table[decltype(p){ tokens[row] * e + channel }];

		if (positions) {
			const auto place =
				positions[decltype(p){ (run->past + row % length) * e + channel }];

			for (int k = 0; k < p.n; k++)
				x[k] += place[k];
		}
		y.put(p, x);
	});
}

/* The rows of dy sorted by token; rows of one token keep their order. */
struct sorted {
	int32_t *tokens, *rows, *row_index;
	void *sort_work;
	size_t sort_bytes;
};

static struct sorted alloc_sorted(struct scratch *m, int64_t rows)
{
	struct sorted s;

	s.tokens = m->alloc<int32_t>(rows);
	s.rows = m->alloc<int32_t>(rows);
	s.row_index = m->alloc<int32_t>(rows);
	s.sort_bytes = sort_work((int)rows);
	s.sort_work = m->alloc<char>((int64_t)s.sort_bytes);
	return s;
}

#define READS 8 /* loads of a thread in flight */

/*
 * The sum of dy[row] over a thread's share of the sorted rows with the token of row `first`, in
 * order: READS rows from row `own` on, then again every `step` rows.
 */
template <typename R, typename T>
static __device__ R sum_of_token(const struct sorted &s, int64_t first, int64_t own, int64_t step,
				 int64_t n, const T *dy, int64_t e)
{
	const int32_t token = s.tokens[first];
	R sum = 0;
	bool more = true;

	for (int64_t i = own; more; i += step) {
		int32_t row[READS];
		R x[READS];

#pragma unroll
		for (int k = 0; k < READS; k++)
			row[k] = i + k < n && s.tokens[i + k] == token ? s.rows[i + k] : -1;
#pragma unroll
		for (int k = 0; k < READS; k++)
			x[k] = row[k] >= 0 ? (R)dy[row[k] * e] : 0;
#pragma unroll
		for (int k = 0; k < READS; k++)
			sum += x[k];
		more = row[READS - 1] >= 0;
	}
	return sum;
}

/*
 * d[channel] += the sum over all rows of the token, by one block.  With few channels, groups of
 * threads share the rows.
 */
template <typename R, typename T>
static __device__ void add_token(const struct sorted &s, int64_t first, int64_t n, const T *dy,
				 int64_t e, R *d)
{
	__shared__ R sums[BLOCK];
	const int groups = e < BLOCK ? BLOCK / (int)e : 1,
		  group = groups > 1 ? (int)threadIdx.x / (int)e : 0;
	const int64_t own = first + group * READS;

	for (int64_t channel = threadIdx.x - group * e; group < groups && channel < e;
	     channel += BLOCK) {
		const R sum = sum_of_token<R>(s, first, own, groups * READS, n, dy + channel, e);

		if (groups == 1)
			d[channel] += sum;
		else
			sums[threadIdx.x] = sum;
	}
	if (groups == 1)
		return;
	__syncthreads();
	if ((int)threadIdx.x < e) {
		R sum = 0;

		for (int k = 0; k < groups; k++)
			sum += sums[k * e + threadIdx.x];
		d[threadIdx.x] += sum;
	}
}

/* Bits that hold every integer below n. */
static int bits_of(int64_t n)
{
	int bits = 1;

	while (n > (int64_t)1 << bits)
		bits++;
	return bits;
}

/* dtable[token] = sum of dy over the rows with that token, in a fixed order */
template <typename P, typename T>
static void backward_table(const struct call *c, const T *dy, int64_t rows, int64_t e)
{
	struct scratch m = { (char *)c->work, 0 };
	const struct sorted s = alloc_sorted(&m, rows);
	auto *d = real_input_gradient<P>(c, 0);

	each(c, rows, [=] __device__(int64_t i) { s.row_index[i] = (int32_t)i; });
	cuda_note(context_of(c),
		  sort_pairs(s.sort_work, s.sort_bytes, (const int32_t *)c->in[1], s.tokens,
			     s.row_index, s.rows, (int)rows, bits_of(c->node->in[0]->dim[0]),
			     stream_of(c)),
		  "sort of tokens");
	if (!call_adds(c, 0))
		each(c, c->node->in[0]->dim[0] * e, [=] __device__(int64_t i) { d[i] = 0; });
	each_row(c, rows, [=] __device__(int64_t first) {
		const int32_t token = s.tokens[first];

		if (first > 0 && s.tokens[first - 1] == token)
			return;
		add_token(s, first, rows, dy, e, d + token * e);
	});
}

/* y[b,t] = .. + positions[t]; positions beyond the sequence have no gradient. */
template <typename P>
static void backward_positions(const struct call *c, const input_view<P> &dy, int64_t examples,
			       int64_t length, int64_t e)
{
	const auto d = input_gradient<P>(c, 2);

	each_vec(c, c->node->in[2]->dim[0] * e, e, all_of<P>(dy), [=] __device__(auto p) {
		const int64_t from = p.first < length * e ? examples : 0;
		vec<typename P::real, p.n> sum = {};

#pragma unroll 8
		for (int64_t b = 0; b < from; b++) {
			const auto x = dy[decltype(p){ b * length * e + p.first }];

			for (int k = 0; k < p.n; k++)
				sum[k] += x[k];
		}
		d.put(vec_index<p.n>{ p.first }, sum);
	});
}

/* The loops are instantiated for the type of dy, so that their loads overlap. */
template <typename P> static void backward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, rows = dim[0] * dim[1];
	const input_view<P> dy = output_gradient<P>(c, 0);

	if (c->din[0] && ROUNDS<P> && dy.bf16_storage)
		backward_table<P>(c, (const typename P::factor *)dy.at, rows, dim[2]);
	else if (c->din[0])
		backward_table<P>(c, (const typename P::real *)dy.at, rows, dim[2]);
	if (c->din[2])
		backward_positions<P>(c, dy, dim[0], dim[1], dim[2]);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct scratch m = { NULL, 0 };

	(void)threads;
	if (pass == PASS_BACKWARD)
		alloc_sorted(&m, n->out[0]->dim[0] * n->out[0]->dim[1]);
	return m.used;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace<P> };
}
KERNELS(embedding, set)
