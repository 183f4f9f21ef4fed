#include "core/backend/cuda/cuda.cuh"

/* A tensor [B,T,H,n] whose rows may be apart. */
struct layout {
	int64_t row, pitch;

	/* Where head number `head`, counted over all tokens, begins. */
	__device__ int64_t at(int64_t head, int64_t width) const
	{
		const int64_t per_row = row / width;

		return head / per_row * pitch + head % per_row * width;
	}
};

/* Pairs (i, i + half) turn by direction (past + t) theta^(-2i/width); other channels pass. */
template <typename P>
static void apply(const struct call *c, struct numbers<P> x, struct layout from,
		  struct gradient<P> y, struct layout to, double direction)
{
	typedef typename P::real real;
	const struct rope_attr *attr = (const struct rope_attr *)c->node->attr;
	const int64_t *dim = c->node->in[0]->dim;
	const int64_t length = dim[1], heads = dim[2], n = dim[3], half = attr->width / 2;
	const int64_t lines = n - half; /* pairs, and channels that pass */
	const struct run *run = run_of(c);
	const double theta = attr->theta, width = (double)attr->width;

	each(c, dim[0] * length * heads * lines, [=] __device__(int64_t item) {
		const int64_t head = item / lines, i = item % lines;
		const auto u = x + from.at(head, n);
		const int64_t out = to.at(head, n);

		if (i >= half) {
			y.put(out + i + half, u[i + half]);
			return;
		}
		const double position = (double)(run->past + head / heads % length);
		double sine, cosine;

		sincos(position * pow(theta, -2 * (double)i / width), &sine, &cosine);
		const real s = (real)(direction * sine), k = (real)cosine;
		const real a = u[i], b = u[i + half];

		y.put(out + i, a * k - b * s);
		y.put(out + i + half, b * k + a * s);
	});
}

static struct layout layout_of(const struct tensor *t)
{
	return { t->row, t->pitch };
}

template <typename P> static void forward(const struct call *c)
{
	apply<P>(c, input<P>(c, 0), layout_of(c->node->in[0]), { output<P>(c, 0), false },
		 layout_of(c->node->out[0]), 1);
}

/* y = R x with a rotation R, so dx = R' dy: the same turns backwards. */
template <typename P> static void backward(const struct call *c)
{
	apply<P>(c, output_gradient<P>(c, 0), layout_of(c->node->out[0]), input_gradient<P>(c, 0),
		 layout_of(c->node->in[0]), -1);
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(rope, set)
