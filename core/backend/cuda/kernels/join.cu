#include "core/backend/cuda/cuda.cuh"
#include "core/backend/cuda/division.cuh"

/* The columns of y, and which of them are those of an input. */
struct columns {
	int inputs;
	int64_t count, pitch, step; /* numbers of y, a row of it, and a divisor of all widths */
	struct divisor by_pitch;
	int64_t first[OP_MAX_INPUTS + 1], input_pitch[OP_MAX_INPUTS];

	/* The input of a column. */
	__device__ int owner(int64_t column) const
	{
		int input = 0;

		while (column >= first[input + 1])
			input++;
		return input;
	}
	/* Number `column` of row `row` in that input. */
	__device__ int64_t place(int input, int64_t row, int64_t column) const
	{
		return row * input_pitch[input] + column - first[input];
	}
};

static struct columns columns_of(const struct node *n)
{
	const struct join_attr *attr = (const struct join_attr *)n->attr;
	struct columns s = { n->n_in, count_of(n->out[0]), tensor_dim(n->out[0], -1), SPAN };

	s.by_pitch = divisor_of(s.pitch, s.count);
	for (int i = 0; i < s.inputs; i++) {
		s.first[i + 1] = s.first[i] + attr->width[i];
		s.input_pitch[i] = n->in[i] ? n->in[i]->pitch : 0;
		if (attr->width[i] % SPAN != 0)
			s.step = 1;
	}
	return s;
}

template <typename P> struct inputs {
	struct numbers<P> of[OP_MAX_INPUTS];
};

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct columns s = columns_of(c->node);
	const auto y = output<P>(c, 0);
	struct inputs<P> x;

	for (int i = 0; i < s.inputs; i++)
		x.of[i] = input<P>(c, i);
	each_span(c, s.count, s.step, [=] __device__(auto p) {
		const int64_t row = s.by_pitch.quotient(p.first), column = p.first - row * s.pitch;
		const int input = s.owner(column);
		const span<p.n> from = { s.place(input, row, column) };

		y.put(p, x.of[input] ? x.of[input][from] : values<real, p.n>{});
	});
}

template <typename P> struct gradients {
	struct gradient<P> of[OP_MAX_INPUTS];
};

template <typename P> static void backward(const struct call *c)
{
	const struct columns s = columns_of(c->node);
	const auto dy = output_gradient<P>(c, 0);
	struct gradients<P> dx;

	for (int i = 0; i < s.inputs; i++)
		dx.of[i] = input_gradient<P>(c, i);
	each_span(c, s.count, s.step, [=] __device__(auto p) {
		const int64_t row = s.by_pitch.quotient(p.first), column = p.first - row * s.pitch;
		const int input = s.owner(column);

		if (dx.of[input])
			dx.of[input].put(span<p.n>{ s.place(input, row, column) }, dy[p]);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(join, set)
