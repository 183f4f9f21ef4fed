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

/* Where the turns of the pairs from i on come from: they are computed, or .. */
template <typename P> struct computed_turns {
	struct angles angles;

	template <int N>
	__device__ void get(int64_t t, int64_t i, struct values<typename P::real, N> *cosine,
			    struct values<typename P::real, N> *sine) const
	{
		for (int k = 0; k < N; k++)
			angles.turn(t, i + k, &cosine->x[k], &sine->x[k]);
	}
};

/* .. read from tables [T,half]: heads and examples share them. */
template <typename P> struct listed_turns {
	typename P::real *cosine, *sine;
	int64_t half;

	template <int N>
	__device__ void get(int64_t t, int64_t i, struct values<typename P::real, N> *k,
			    struct values<typename P::real, N> *s) const
	{
		const struct span<N> p = { t * half + i };

		*k = numbers<P>{ cosine, false }[p];
		*s = numbers<P>{ sine, false }[p];
	}
};

/* Fewer pairs are turned without tables, in one launch: decoding has few. */
#define PAIRS_FOR_TABLES 32768

/* Takes the tables; without memory where they are not worth it. */
template <typename P>
static struct listed_turns<P> take_turns(struct space *m, const struct node *n, enum pass pass)
{
	const int64_t half = ((const struct rope_attr *)n->attr)->width / 2, *dim = n->in[0]->dim;
	const int64_t listed = dim[1] * half;

	(void)pass;
	if (dim[0] * dim[2] * listed <= PAIRS_FOR_TABLES)
		return { NULL, NULL, half };
	typename P::real *cosine = m->take<typename P::real>(listed);

	return { cosine, m->take<typename P::real>(listed), half };
}

template <typename P>
static void list_turns(const struct call *c, const struct listed_turns<P> &given,
		       const struct angles &a)
{
	const struct listed_turns<P> turns = given;
	const struct angles angles = a;

	each(c, c->node->in[0]->dim[1] * turns.half, [=] __device__(int64_t i) {
		angles.turn(i / turns.half, i % turns.half, turns.cosine + i, turns.sine + i);
	});
}

/* What turns, how far, and where it goes. */
template <typename P> struct rotation {
	struct numbers<P> x;
	struct layout from;
	struct gradient<P> y;
	struct layout to;
	typename P::real direction; /* -1: back */
};

/* A thread takes N neighbouring pairs (i, i + half) of a head, or N channels that pass. */
template <int N, typename P, typename Turns>
static void rotate(const struct call *c, const struct rotation<P> &given, const Turns &t)
{
	const struct rotation<P> r = given;
	const Turns turns = t;
	const int64_t *dim = c->node->in[0]->dim, heads = dim[0] * dim[1] * dim[2];
	const int64_t half = ((const struct rope_attr *)c->node->attr)->width / 2;
	const int64_t lines = (dim[3] - half) / N; /* pairs, and channels that pass */
	const struct divisor per_head = divisor_of(lines, heads * lines);
	const struct divisor per_token = divisor_of(dim[2], heads), length = divisor_of(dim[1], heads);

	launch_spans<N>(c, heads * lines, [=] __device__(auto p) {
		const int64_t item = p.first / N, head = per_head.quotient(item);
		const int64_t i = (item - head * lines) * N;
		const span<N> low = { r.from.at(head) + i }, high = { low.first + half };
		const span<N> out = { r.to.at(head) + i }, out_high = { out.first + half };

		if (i >= half) {
			r.y.put(out_high, r.x[high]);
			return;
		}
		struct values<typename P::real, N> a = r.x[low], b = r.x[high], cosine, sine;

		turns.get(length.remainder(per_token.quotient(head)), i, &cosine, &sine);
#pragma unroll
		for (int k = 0; k < N; k++) {
			const typename P::real s = r.direction * sine[k], u = a[k];

			a[k] = u * cosine[k] - b[k] * s;
			b[k] = b[k] * cosine[k] + u * s;
		}
		r.y.put(out, a);
		r.y.put(out_high, b);
	});
}

template <typename P> static void apply(const struct call *c, const struct rotation<P> &r)
{
	const struct rope_attr *attr = (const struct rope_attr *)c->node->attr;
	struct space m = { (char *)c->work, 0 };
	const struct listed_turns<P> turns = take_turns<P>(&m, c->node, PASS_FORWARD);
	const struct angles angles = { run_of(c), attr->theta, (double)attr->width };

	if (!turns.cosine) {
		rotate<1>(c, r, computed_turns<P>{ angles });
		return;
	}
	list_turns(c, turns, angles);
	if (c->node->in[0]->dim[3] % SPAN == 0 && turns.half % SPAN == 0)
		rotate<SPAN>(c, r, turns);
	else
		rotate<1>(c, r, turns);
}

static struct layout layout_of(const struct tensor *t)
{
	return { divisor_of(t->row / t->dim[3], tensor_count(t)), t->pitch, t->dim[3] };
}

template <typename P> static void forward(const struct call *c)
{
	apply<P>(c, { input<P>(c, 0), layout_of(c->node->in[0]), { output<P>(c, 0), false },
		      layout_of(c->node->out[0]), 1 });
}

/* y = R x with a rotation R, so dx = R' dy: the same turns backwards. */
template <typename P> static void backward(const struct call *c)
{
	apply<P>(c, { output_gradient<P>(c, 0), layout_of(c->node->out[0]), input_gradient<P>(c, 0),
		      layout_of(c->node->in[0]), -1 });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P>, NULL, workspace_of<take_turns<P>> };
}
KERNELS(rope, set)
