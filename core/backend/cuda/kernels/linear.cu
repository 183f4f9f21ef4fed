/*
 * linear: y = x W + b.
 *
 * Most calls are one cuBLASLt GEMM that adds the bias in its epilogue.  Up to 4 rows use gemv.cuh,
 * up to 16 output channels narrow_linear.cuh.  Backward: dx = dy W', dW = x' dy, db = sum dy.
 */
#include "core/backend/cuda/gemm/narrow_linear.cuh"
#include "core/backend/cuda/gemm/gemv.cuh"

static struct linear_sizes sizes_of(const struct node *node)
{
	const struct linear_attr *attr = (const struct linear_attr *)node->attr;

	return linear_sizes_of(node->in[0], node->in[1], attr->transposed);
}

/*
 * Scratch memory: rounded copies of x, dy, and of W and bias that are no parameters; the partial
 * sums of db.
 */
template <typename P> struct buffers {
	typename P::factor *x, *w, *bias, *dy;
	typename P::real *columns;
	struct narrow_linear_scratch few;
};

template <typename P>
static buffers<P> alloc_scratch(struct scratch *m, const struct node *node, enum pass pass)
{
	const struct linear_sizes s = sizes_of(node);
	buffers<P> r;

	r.x = m->alloc<typename P::factor>(rounded_size<P>(node->in[0], s.n * s.i));
	r.w = m->alloc<typename P::factor>(weight_scratch<P>(node->in[1]));
	r.bias = pass == PASS_FORWARD && node->in[2]
			 ? m->alloc<typename P::factor>(weight_scratch<P>(node->in[2]))
			 : NULL;
	r.dy = pass == PASS_BACKWARD
		       ? m->alloc<typename P::factor>(rounded_size<P>(node->out[0], s.n * s.o))
		       : NULL;
	r.columns = pass == PASS_BACKWARD && node->in[2]
			    ? m->alloc<typename P::real>(column_scratch(m->sms, s.n, s.o))
			    : NULL;
	r.few = alloc_narrow_linear<P>(m, s, pass);
	return r;
}

/*
 * In float32 cuBLAS multiplies by W [O,I] faster than by W [I,O]: 49.9 against 47.7 TFLOP/s on an
 * H200.  So the forward pass reads a transposed copy, if the GEMM is so large that transposing W
 * after each update costs little.  c->copy[1][1] exists if this holds.
 */
#define TRANSPOSED_MIN_ROWS 4096
#define TRANSPOSED_MIN_ELEMENTS (1 << 18)

template <typename P> static bool reads_transposed(const struct node *node)
{
	const struct linear_sizes s = sizes_of(node);

	return sizeof(typename P::factor) == sizeof(float) && !s.transposed &&
	       node->in[1]->kind == TENSOR_PARAM && s.n >= TRANSPOSED_MIN_ROWS &&
	       s.i * s.o >= TRANSPOSED_MIN_ELEMENTS;
}

/* W as the forward GEMM reads it. */
template <typename P>
static matrix<typename P::factor> forward_weight(const struct call *c, typename P::factor *buffers)
{
	const struct param_copy *copy = c->copy[1][1];

	if (copy)
		return { (const typename P::factor *)copy->memory, sizes_of(c->node).i, 0, true };
	return weight<P>(c, buffers);
}

/*
 * The bias in the type of y: itself, its rounded copy, or rounded into `buffers`; NULL: there is
 * none.
 */
template <typename P>
static const void *bias_like(const struct call *c, output_view<P> y, typename P::factor *buffers)
{
	if (!ROUNDS<P> || !y.bf16_storage || !c->in[2])
		return c->in[2];
	if (c->copy[2][0])
		return c->copy[2][0]->memory;
	return rounded<P>(c, input<P>(c, 2), 1, count_of(c->node->in[2]), count_of(c->node->in[2]),
			  buffers)
		.at;
}

template <typename P> static void forward(const struct call *c)
{
	if (gemv<P>::takes(c->node)) {
		gemv<P>::forward(c);
		return;
	}
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_FORWARD);
	const struct linear_sizes s = sizes_of(c->node);
	const auto x = rounded<P>(c, input<P>(c, 0), s.n, s.i, s.x_pitch, r.x);
	const auto w = forward_weight<P>(c, r.w);
	const bool trans_w = s.transposed || c->copy[1][1];
	const auto *b = real_input<P>(c, 2);
	const auto y = output<P>(c, 0);
	const void *like_y = bias_like<P>(c, y, r.bias);

	if (takes_narrow_linear<P>(s, input<P>(c, 0), {})) {
		narrow_linear<P>::forward(c, s, x, w, b, y, r.few);
		return;
	}
	if (like_y && gemm_with_epilogue(c, EPILOGUE_BIAS, false, trans_w, s.n, s.o, s.i, x, w,
					 like_y, NULL, y, s.o))
		return;
	if (b)
		each(c, s.n * s.o, [=] __device__(int64_t i) { y[i] = b[i % s.o]; });
	gemm(c, false, trans_w, s.n, s.o, s.i, 1, x, w, b != NULL, y, s.o);
}

/* y = x W + b */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	const buffers<P> r = alloc_scratch<P>(&m, c->node, PASS_BACKWARD);
	const struct linear_sizes s = sizes_of(c->node);
	const auto x = input<P>(c, 0), given = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), dw = input_gradient<P>(c, 1);
	const auto db = input_gradient<P>(c, 2);
	const bool few = takes_narrow_linear<P>(s, x, dx);
	matrix<typename P::factor> dy = {};

	/* First: dy was just written, so it may still be in L2. */
	if (db)
		sum_column_vecs(
			c, s.n, s.o, all_of<P>(given),
			[=] __device__(int64_t n, auto p) { return (given + n * s.o)[p]; },
			r.columns, [=] __device__(int64_t o, real sum) { db.put(o, sum); });
	if ((dx || dw) && !few)
		dy = rounded<P>(c, given, s.n, s.o, s.o, r.dy);
	if (dw) {
		const auto factor = rounded<P>(c, x, s.n, s.i, s.x_pitch, r.x);

		if (few)
			narrow_linear<P>::to_w(c, s, factor, given, dw, r.few);
		else
			linear_to_weight(c, s, 1, factor, dy, dw.add, dw.to);
	}
	if (dx && few)
		narrow_linear<P>::to_x(c, s, given, weight<P>(c, r.w), dx);
	else if (dx)
		gemm(c, false, !s.transposed, s.n, s.i, s.o, 1, dy, weight<P>(c, r.w), dx.add,
		     dx.to, s.x_pitch);
}

/*
 * Copies of parameters: copy 0 of the weight is rounded; copy 1 is transposed, and rounded in
 * bfloat16.  The bias has a rounded copy if y is stored in bfloat16.
 */
template <typename P>
static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	if (pass == PASS_FORWARD && gemv<P>::takes(n))
		return input == 1 && which == gemv<P>::copy(n) ? rounded_copy<P>(n, 1, 0) : 0;
	if (pass == PASS_FORWARD && input == 1 && which == 1)
		return reads_transposed<P>(n) ? tensor_bytes(n->in[1]) : 0;
	if (input == 2 && pass == PASS_FORWARD && is_bf16(n->out[0]))
		return rounded_copy<P>(n, input, which);
	return weight_copies<P>(n, pass, input, which);
}

KERNELS(linear, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_scratch<P>>, copies<P>)
