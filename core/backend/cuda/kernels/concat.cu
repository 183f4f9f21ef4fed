/* concat: y = the columns of all inputs side by side.  One launch copies all; memory bandwidth
 * bounds it. */
#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

#define CONCAT_VEC 4 /* elements that a thread copies at a time: 16 bytes of float32 */

/*
 * The columns of an input: `count` elements in all, the pitch of its rows, and its first column in
 * y.
 */
struct columns {
	int64_t count, pitch, first;
	struct divisor by_width;
};

struct all_columns {
	struct columns of[OP_MAX_INPUTS];
	int64_t pitch;	 /* elements of a row of y */
	bool vectorized; /* every width, and so every first column, is a multiple of CONCAT_VEC */
};

static struct all_columns columns_of(const struct node *n)
{
	const struct concat_attr *attr = (const struct concat_attr *)n->attr;
	const int64_t pitch = tensor_dim(n->out[0], -1), rows = count_of(n->out[0]) / pitch;
	struct all_columns s = { {}, pitch, true };
	int64_t first = 0;

	for (int i = 0; i < n->n_in; i++) {
		const int64_t width = attr->width[i], count = rows * width;

		s.of[i] = { count, n->in[i] ? n->in[i]->pitch : 0, first,
			    divisor_of(width, count) };
		s.vectorized = s.vectorized && width % CONCAT_VEC == 0;
		first += width;
	}
	return s;
}

/* blockIdx.y selects the input. */
template <int N, typename F>
static __global__ void concat_columns_kernel(struct replicas replicas, struct all_columns s,
					     F given)
{
	const auto &f = replicas.own_copy(given);
	const struct columns &of = s.of[blockIdx.y];

	pdl_wait();
	for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < of.count;
	     i += (int64_t)gridDim.x * blockDim.x * N) {
		const int64_t row = of.by_width.quotient(i), column = i - row * of.by_width.d;

		f(blockIdx.y, vec_index<N>{ row * of.pitch + column },
		  vec_index<N>{ row * s.pitch + of.first + column });
	}
}

template <int N, typename F>
static void launch_columns(const struct call *c, const struct all_columns &s, F f)
{
	int64_t max = 0;

	for (int i = 0; i < c->node->n_in; i++)
		max = s.of[i].count > max ? s.of[i].count : max;
	const int64_t blocks = (max / N + BLOCK - 1) / BLOCK;

	launch_for(c, concat_columns_kernel<N, F>,
		   dim3((unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS),
			(unsigned)c->node->n_in),
		   BLOCK, 0, s, f);
}

/* f(input, vector of it, the same vector of y) for all elements of all inputs */
template <typename F> static void each_column(const struct call *c, F f)
{
	const struct all_columns s = columns_of(c->node);

	if (count_of(c->node->out[0]) == 0)
		return;
	if (s.vectorized)
		launch_columns<CONCAT_VEC>(c, s, f);
	else
		launch_columns<1>(c, s, f);
}

template <typename P> struct inputs {
	input_view<P> of[OP_MAX_INPUTS];
};

template <typename P> static void forward(const struct call *c)
{
	const auto y = output<P>(c, 0);
	inputs<P> x;

	for (int i = 0; i < c->node->n_in; i++)
		x.of[i] = input<P>(c, i);
	each_column(c, [=] __device__(int i, auto from, auto to) {
		y.put(to, x.of[i] ? x.of[i][from] : vec<typename P::real, from.n>{});
	});
}

template <typename P> struct gradients {
	gradient_view<P> of[OP_MAX_INPUTS];
};

template <typename P> static void backward(const struct call *c)
{
	const auto dy = output_gradient<P>(c, 0);
	gradients<P> dx;

	for (int i = 0; i < c->node->n_in; i++)
		dx.of[i] = input_gradient<P>(c, i);
	each_column(c, [=] __device__(int i, auto from, auto to) {
		if (dx.of[i])
			dx.of[i].put(from, dy[to]);
	});
}

KERNELS(concat, forward<P>, backward<P>, forward<P>)
