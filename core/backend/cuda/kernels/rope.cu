/*
 * rope: rotates the pairs (i, i + half) of every head by the angles of its position.
 *
 * Channels beyond 2 half pass unchanged.  Bound by memory bandwidth: a block computes the rotations
 * of its position once (primitives/rotary.cuh).
 */
#include "core/backend/cuda/primitives/rotary.cuh"

/* A tensor [B,T,H,n], possibly a slice. */
struct layout {
	struct divisor per_row; /* heads per row */
	int64_t pitch, width;

	/* The index of the first element of head `head`, counted over all tokens. */
	__device__ int64_t at(int64_t head) const
	{
		const int64_t row = per_row.quotient(head);

		return row * pitch + (head - row * per_row.d) * width;
	}
};

/* Elements from one token, and one head, to the next, if these are constant. */
struct strides {
	int64_t token, head;
};

/* The arguments of a pass. */
template <typename P> struct rotation {
	input_view<P> x;
	struct layout from;
	gradient_view<P> y;
	struct layout to;
	typename P::real direction; /* 1, or -1 to rotate back */
	int64_t half, width;	    /* pairs to rotate, and channels, of a head */
};

/*
 * A thread's work on a head: N adjacent pairs (i, i + half), or up to 2 N channels that pass
 * unchanged.
 */
struct item {
	int64_t low, high; /* channels */
	bool rotates, has_high;
};

template <int N> static __host__ __device__ int64_t items_of(int64_t half, int64_t width)
{
	return half / N + (width - 2 * half + 2 * N - 1) / (2 * N);
}

template <int N, typename P> static __device__ struct item item_of(const rotation<P> &r, int64_t i)
{
	const int64_t low = i * N,
		      passing = 2 * low; /* 2 half, plus 2 N channels per item after the pairs */

	if (low < r.half)
		return { low, low + r.half, true, true };
	return { passing, passing + N, false, passing + N < r.width };
}

/* Reads both sides before it writes, whether they rotate or pass.  So threads do not diverge. */
template <int N, enum vec_kind KIND, typename P>
static __device__ void rotate(const rotation<P> &r, int64_t from, int64_t to,
			      const struct item &item, const typename P::real *cosine,
			      const typename P::real *sine)
{
	const vec_index<N, KIND> low = { from + item.low }, high = { from + item.high };
	vec<typename P::real, N> a = r.x[low], b = a;

	if (item.has_high)
		b = r.x[high];
#pragma unroll
	for (int k = 0; k < N; k++) {
		typename P::real u = a[k], v = b[k];

		rotate_pair(cosine[k], r.direction * sine[k], &u, &v);
		a[k] = item.rotates ? u : a[k];
		b[k] = item.rotates ? v : b[k];
	}
	r.y.put(vec_index<N, KIND>{ to + item.low }, a);
	if (item.has_high)
		r.y.put(vec_index<N, KIND>{ to + item.high }, b);
}

/* Few pairs, as in decoding: each thread computes the rotation of its own pair. */
template <typename P>
static void rotate_few(const struct call *c, const rotation<P> &given, const struct angles &a)
{
	const rotation<P> r = given;
	const struct angles angles = a;
	const int64_t *dim = c->node->in[0]->dim, heads = dim[0] * dim[1] * dim[2];
	const int64_t items = items_of<1>(r.half, r.width);
	const struct divisor per_head = divisor_of(items, heads * items);
	const struct divisor per_token = divisor_of(dim[2], heads),
			     length = divisor_of(dim[1], heads);

	each(c, heads * items, [=] __device__(int64_t i) {
		const int64_t head = per_head.quotient(i);
		const struct item item = item_of<1>(r, i - head * items);
		typename P::real cosine = 1, sine = 0;

		if (item.rotates)
			angles.rotation<P>(length.remainder(per_token.quotient(head)), item.low,
					   &cosine, &sine);
		rotate<1, VEC_OF_ANY>(r, r.from.at(head), r.to.at(head), item, &cosine, &sine);
	});
}

/* ------------------------------------------------------------------ many pairs */

struct items {
	struct divisor per_head;
	struct strides from, to;
};

/* Are the strides of tokens and heads constant? */
static bool has_strides(const struct layout &l, int64_t heads)
{
	return l.per_row.d == 1 || l.per_row.d == heads || l.pitch == l.per_row.d * l.width;
}

static struct strides strides_of(const struct layout &l, int64_t heads)
{
	const int64_t head = l.per_row.d == 1 ? l.pitch : l.width;

	return { l.per_row.d == heads ? l.pitch : heads * head, head };
}

template <int N, enum vec_kind KIND, typename P>
static __global__ void
rope_kernel(struct replicas replicas, const __grid_constant__ rotation<P> given_r,
	    const __grid_constant__ struct angles given_angles,
	    const __grid_constant__ struct positions given_p, struct items items)
{
	const auto &r = replicas.own(given_r);
	const auto &angles = replicas.own(given_angles);
	const auto &p = replicas.own(given_p);
	typedef typename P::real real;
	__shared__ real cosine[MAX_ROTATIONS], sine[MAX_ROTATIONS];
	const struct block_heads heads = p.of_block();
	/* f(head, item) for every item of the block */
	const auto each_item = [&](auto f) {
		for (int64_t i = threadIdx.x; i < heads.n * items.per_head.d;
		     i += POSITION_THREADS) {
			const int64_t head = items.per_head.quotient(i);

			f(heads[head], item_of<N>(r, i - head * items.per_head.d));
		}
	};

	compute_rotations<P>(angles, 0, r.half, cosine, sine);
	pdl_wait();
	each_item([&](const struct head_index &at, const struct item &item) {
		const int64_t rotation = item.rotates ? item.low : 0;

		rotate<N, KIND>(r, at.token * items.from.token + at.head * items.from.head,
				at.token * items.to.token + at.head * items.to.head, item,
				cosine + rotation, sine + rotation);
	});
}

template <int N, enum vec_kind KIND, typename P>
static void rotate_many(const struct call *c, const rotation<P> &r, const struct angles &angles)
{
	const int64_t *dim = c->node->in[0]->dim, per_head = items_of<N>(r.half, r.width);
	const struct positions p = positions_of(c->node->in[0]);
	const struct items items = { divisor_of(per_head, dim[0] * dim[2] * per_head),
				     strides_of(r.from, dim[2]), strides_of(r.to, dim[2]) };

	launch_for(c, rope_kernel<N, KIND, P>, p.blocks(), POSITION_THREADS, 0, r, angles, p,
		   items);
}

/* With fewer pairs than this, each thread computes its own rotation. */
#define MANY_PAIRS 32768

template <typename P> static void apply(const struct call *c, const rotation<P> &r)
{
	const struct rope_attr *attr = (const struct rope_attr *)c->node->attr;
	const struct angles angles = angles_of(c, attr->theta, (double)attr->width);
	const int64_t *dim = c->node->in[0]->dim;

	if (dim[0] * dim[1] * dim[2] * r.half <= MANY_PAIRS || r.half > MAX_ROTATIONS ||
	    !has_strides(r.from, dim[2]) || !has_strides(r.to, dim[2]))
		rotate_few(c, r, angles);
	else
		with_vec_form<P>(dim[3] | r.half | r.from.pitch | r.to.pitch, all_of<P>(r.x, r.y),
				 [&](auto form) {
					 rotate_many<decltype(form)::N, decltype(form)::KIND>(
						 c, r, angles);
				 });
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
	apply<P>(c, { input<P>(c, 0),
		      layout_of(c->node->in[0]),
		      { output<P>(c, 0), false },
		      layout_of(c->node->out[0]),
		      1,
		      half_of(c->node),
		      c->node->in[0]->dim[3] });
}

/* y = R x with a rotation R, so dx = R' dy: the inverse rotation. */
template <typename P> static void backward(const struct call *c)
{
	apply<P>(c, { output_gradient<P>(c, 0), layout_of(c->node->out[0]), input_gradient<P>(c, 0),
		      layout_of(c->node->in[0]), -1, half_of(c->node), c->node->in[0]->dim[3] });
}

KERNELS(rope, forward<P>, backward<P>, forward<P>)
