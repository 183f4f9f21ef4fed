#include "core/backend/cuda/cuda.cuh"
#include "core/backend/cuda/division.cuh"

/* A tensor [B,T,H,n] whose rows may be apart. */
struct layout {
	struct divisor per_row; /* heads */
	int64_t pitch, width;

	/* Where head number `head`, counted over all tokens, begins. */
	__device__ int64_t at(int64_t head) const
	{
		const int64_t row = per_row.quotient(head);

		return row * pitch + (head - row * per_row.d) * width;
	}
};

/* Position past + t turns pair i by (past + t) theta^(-2i/width), computed in double. */
struct angles {
	const struct run *run;
	double theta, width;

	template <typename R> __device__ void turn(int64_t t, int64_t i, R *cosine, R *sine) const
	{
		const double position = (double)(run->past + t);
		double s, k;

		sincos(position * pow(theta, -2 * (double)i / width), &s, &k);
		*cosine = (R)k;
		*sine = (R)s;
	}
};

/* What turns, how far, and where it goes. */
template <typename P> struct rotation {
	struct numbers<P> x;
	struct layout from;
	struct gradient<P> y;
	struct layout to;
	typename P::real direction; /* -1: back */
	int64_t half;

	/*
	 * N neighbouring pairs (i, i + half) of a head, by their turns from cosine[0] and sine[0] on; or, if i >=
	 * half, N channels that pass.
	 */
	template <int N, enum span_kind KIND>
	__device__ void apply(int64_t head, int64_t i, const typename P::real *cosine,
			      const typename P::real *sine) const
	{
		const span<N, KIND> low = { from.at(head) + i }, high = { low.first + half };
		const span<N, KIND> out = { to.at(head) + i }, out_high = { out.first + half };

		if (i >= half) {
			y.put(out_high, x[high]);
			return;
		}
		struct values<typename P::real, N> a = x[low], b = x[high];

#pragma unroll
		for (int k = 0; k < N; k++) {
			const typename P::real s = direction * sine[k], u = a[k];

			a[k] = u * cosine[k] - b[k] * s;
			b[k] = b[k] * cosine[k] + u * s;
		}
		y.put(out, a);
		y.put(out_high, b);
	}
};

/* Few pairs, as in decoding: each thread computes the turn of its own. */
template <typename P>
static void rotate_few(const struct call *c, const struct rotation<P> &given, const struct angles &a)
{
	const struct rotation<P> r = given;
	const struct angles angles = a;
	const int64_t *dim = c->node->in[0]->dim, heads = dim[0] * dim[1] * dim[2];
	const int64_t lines = dim[3] - r.half; /* pairs, and channels that pass */
	const struct divisor per_head = divisor_of(lines, heads * lines);
	const struct divisor per_token = divisor_of(dim[2], heads), length = divisor_of(dim[1], heads);

	each(c, heads * lines, [=] __device__(int64_t item) {
		const int64_t head = per_head.quotient(item), i = item - head * lines;
		typename P::real cosine = 1, sine = 0;

		if (i < r.half)
			angles.turn(length.remainder(per_token.quotient(head)), i, &cosine, &sine);
		r.template apply<1, SPAN_OF_ANY>(head, i, &cosine, &sine);
	});
}

/* ------------------------------------------------------------------ many pairs */

/* A block takes a position of some examples, whose heads share its turns. */
struct positions {
	int64_t batch, length;
	struct divisor heads, lines; /* of a token; of a head, each of N pairs or channels that pass */
};

#define MOST_TURNS 1024	     /* of a position */
#define POSITION_BLOCKS 4096 /* that keep a large GPU busy; more would compute more turns */

template <int N, enum span_kind KIND, typename P>
static __global__ void rotate_kernel(struct rotation<P> r, struct angles angles, struct positions p)
{
	typedef typename P::real real;
	__shared__ real cosine[MOST_TURNS], sine[MOST_TURNS];
	const int64_t t = blockIdx.x, first = p.batch * blockIdx.y / gridDim.y;
	const int64_t examples = p.batch * (blockIdx.y + 1) / gridDim.y - first;

	previous_done();
	for (int64_t i = threadIdx.x; i < r.half; i += BLOCK)
		angles.turn(t, i, &cosine[i], &sine[i]);
	__syncthreads();
#pragma unroll 2
	for (int64_t item = threadIdx.x; item < examples * p.heads.d * p.lines.d; item += BLOCK) {
		const int64_t head = p.lines.quotient(item), example = p.heads.quotient(head);
		const int64_t i = (item - head * p.lines.d) * N, all = p.length * p.heads.d;

		r.template apply<N, KIND>((first + example) * all + t * p.heads.d + head -
						  example * p.heads.d,
					  i, cosine + i, sine + i);
	}
}

template <int N, enum span_kind KIND, typename P>
static void rotate_many(const struct call *c, const struct rotation<P> &r, const struct angles &angles)
{
	const int64_t *dim = c->node->in[0]->dim, lines = (dim[3] - r.half) / N;
	const int64_t heads = dim[0] * dim[2], wanted = (POSITION_BLOCKS + dim[1] - 1) / dim[1];
	const struct positions p = { dim[0], dim[1], divisor_of(dim[2], heads),
				     divisor_of(lines, heads * lines) };

	launch_next(context_of(c)->overlaps, rotate_kernel<N, KIND, P>,
		    dim3((unsigned)dim[1], (unsigned)(wanted < dim[0] ? wanted : dim[0])), BLOCK, 0,
		    stream_of(c), r, angles, p);
	note_launch(c);
}

/* Fewer are turned by threads that compute each turn for themselves. */
#define MANY_PAIRS 32768

template <typename P> static void apply(const struct call *c, const struct rotation<P> &r)
{
	const struct rope_attr *attr = (const struct rope_attr *)c->node->attr;
	const struct angles angles = { run_of(c), attr->theta, (double)attr->width };
	const int64_t *dim = c->node->in[0]->dim;
	const auto of = all_of<P>(r.x, r.y);

	if (dim[0] * dim[1] * dim[2] * r.half <= MANY_PAIRS || r.half > MOST_TURNS)
		rotate_few(c, r, angles);
	else if ((dim[3] | r.half | r.from.pitch | r.to.pitch) % SPAN != 0)
		rotate_many<1, SPAN_OF_ANY>(c, r, angles);
	else if (ROUNDS<P> && of.kind() == SPAN_OF_NARROW)
		rotate_many<SPAN, ROUNDS<P> ? SPAN_OF_NARROW : SPAN_OF_WIDE>(c, r, angles);
	else if (of.kind() == SPAN_OF_WIDE)
		rotate_many<SPAN, SPAN_OF_WIDE>(c, r, angles);
	else
		rotate_many<SPAN, SPAN_OF_ANY>(c, r, angles);
}

static struct layout layout_of(const struct tensor *t)
{
	return { divisor_of(t->row / t->dim[3], tensor_count(t)), t->pitch, t->dim[3] };
}

static int64_t half_of(const struct node *n)
{
	return ((const struct rope_attr *)n->attr)->width / 2;
}

template <typename P> static void forward(const struct call *c)
{
	apply<P>(c, { input<P>(c, 0), layout_of(c->node->in[0]), { output<P>(c, 0), false },
		      layout_of(c->node->out[0]), 1, half_of(c->node) });
}

/* y = R x with a rotation R, so dx = R' dy: the same turns backwards. */
template <typename P> static void backward(const struct call *c)
{
	apply<P>(c, { output_gradient<P>(c, 0), layout_of(c->node->out[0]), input_gradient<P>(c, 0),
		      layout_of(c->node->in[0]), -1, half_of(c->node) });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(rope, set)
