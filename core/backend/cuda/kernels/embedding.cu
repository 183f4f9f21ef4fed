#include "core/backend/cuda/sort.cuh"
#include "core/backend/cuda/cuda.cuh"

/* y[r] = table[tokens[r]] + positions[past + t] */
template <typename P> static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, length = dim[1], e = dim[2];
	const struct run *run = run_of(c);
	const auto table = input<P>(c, 0), positions = input<P>(c, 2);
	const int32_t *tokens = (const int32_t *)c->in[1];
	const auto y = output<P>(c, 0);

	each_span(c, dim[0] * length * e, e, [=] __device__(auto p) {
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

/* The rows of dy sorted by their token, equal ones in their order. */
struct sorted {
	int32_t *tokens, *rows, *numbers;
	void *sort_work;
	size_t sort_bytes;
};

static struct sorted take_sorted(struct space *m, int64_t rows)
{
	struct sorted s;

	s.tokens = m->take<int32_t>(rows);
	s.rows = m->take<int32_t>(rows);
	s.numbers = m->take<int32_t>(rows);
	s.sort_bytes = sort_work((int)rows);
	s.sort_work = m->take<char>((int64_t)s.sort_bytes);
	return s;
}

/* dtable[token] = sum of dy over the rows with that token, in their order: no atomics. */
template <typename P, typename T>
static void backward_table(const struct call *c, const T *dy, int64_t rows, int64_t e)
{
	struct space m = { (char *)c->work, 0 };
	const struct sorted s = take_sorted(&m, rows);
	auto *d = wide_input_gradient<P>(c, 0);

	each(c, rows, [=] __device__(int64_t i) { s.numbers[i] = (int32_t)i; });
	cuda_note(context_of(c),
		  sort_pairs(s.sort_work, s.sort_bytes, (const int32_t *)c->in[1], s.tokens,
			     s.numbers, s.rows, (int)rows, stream_of(c)),
		  "sort of tokens");
	if (!call_adds(c, 0))
		each(c, c->node->in[0]->dim[0] * e, [=] __device__(int64_t i) { d[i] = 0; });
	each_row(c, rows, [=] __device__(int64_t first) {
		const int32_t token = s.tokens[first];

		if (first > 0 && s.tokens[first - 1] == token)
			return;
		for (int64_t channel = threadIdx.x; channel < e; channel += BLOCK) {
			typename P::real sum = 0;

			for (int64_t i = first; i < rows && s.tokens[i] == token; i++)
				sum += (typename P::real)dy[s.rows[i] * e + channel];
			d[token * e + channel] += sum;
		}
	});
}

/* y[b,t] = .. + positions[t]; positions beyond the sequence have no gradient. */
template <typename P, typename T>
static void backward_positions(const struct call *c, const T *dy, int64_t rows, int64_t length,
			       int64_t e)
{
	const auto d = input_gradient<P>(c, 2);

	each(c, c->node->in[2]->dim[0] * e, [=] __device__(int64_t i) {
		typename P::real sum = 0;

		for (int64_t r = i / e; i / e < length && r < rows; r += length)
			sum += (typename P::real)dy[r * e + i % e];
		d.put(i, sum);
	});
}

template <typename P, typename T> static void backward_from(const struct call *c, const T *dy)
{
	const int64_t *dim = c->node->out[0]->dim;

	if (c->din[0])
		backward_table<P>(c, dy, dim[0] * dim[1], dim[2]);
	if (c->din[2])
		backward_positions<P>(c, dy, dim[0] * dim[1], dim[1], dim[2]);
}

/* The type of dy is known to the loops: their reads do not wait for a decision. */
template <typename P> static void backward(const struct call *c)
{
	const struct numbers<P> dy = output_gradient<P>(c, 0);

	if (ROUNDS<P> && dy.narrow)
		backward_from<P>(c, (const typename P::factor *)dy.at);
	else
		backward_from<P>(c, (const typename P::real *)dy.at);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct space m = { NULL, 0 };

	(void)threads;
	if (pass == PASS_BACKWARD)
		take_sorted(&m, n->out[0]->dim[0] * n->out[0]->dim[1]);
	return m.used;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace<P> };
}
KERNELS(embedding, set)
