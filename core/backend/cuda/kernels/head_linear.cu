#include "core/backend/cuda/product.cuh"

/* y_h = x_h W_h: all heads are one product of many matrices. */
struct sizes {
	int64_t tokens, heads, i, o;
	int64_t x_head, x_token; /* elements from one of x to the next; x_head 0: all share x */
};

static struct sizes sizes_of(const struct node *node)
{
	const struct tensor *x = node->in[0], *w = node->in[1];
	struct sizes s = { x->dim[0] * x->dim[1], w->dim[0], w->dim[1], w->dim[2] };
	const bool shared = x->ndim == 3;
	/* Rows are heads, unless a slice has rows of whole tokens. */
	const int64_t piece = tensor_contiguous(x) ? s.i : x->pitch;
	const bool token_rows = shared || (!tensor_contiguous(x) && x->row != s.i);

	s.x_head = shared ? 0 : token_rows ? s.i : piece;
	s.x_token = token_rows ? piece : s.heads * piece;
	return s;
}

template <typename P> struct room {
	typename P::factor *x, *w, *dy;
	typename P::factor *turned; /* [heads, O, I], where they share x; or NULL */
};

/* Heads of x that differ. */
static int64_t x_heads(const struct sizes &s)
{
	return s.x_head ? s.heads : 1;
}

template <typename P>
static struct room<P> take_room(struct space *m, const struct node *node, enum pass pass)
{
	const struct sizes s = sizes_of(node);
	struct room<P> r;

	r.x = m->take<typename P::factor>(
		rounded_size<P>(node->in[0], s.tokens * x_heads(s) * s.i));
	r.w = m->take<typename P::factor>(weight_room<P>(node->in[1]));
	r.dy = pass == PASS_BACKWARD
		       ? m->take<typename P::factor>(
				 rounded_size<P>(node->out[0], s.tokens * s.heads * s.o))
		       : NULL;
	r.turned = pass == PASS_BACKWARD && !s.x_head
			   ? m->take<typename P::factor>(s.heads * s.o * s.i)
			   : NULL;
	return r;
}

/* x as products read it: its own layout, or [tokens, heads, I]. */
template <typename P>
static struct matrix<typename P::factor> factor_x(const struct call *c, const struct sizes &given,
						  typename P::factor *room)
{
	typedef typename P::factor factor;
	const struct sizes s = given;
	const int64_t heads = x_heads(s);
	const auto x = input<P>(c, 0);

	if (is_factor<P>(c->node->in[0]))
		return { (const factor *)x.at, s.x_token, s.x_head };
	each_span(c, s.tokens * heads * s.i, s.i, [=] __device__(auto p) {
		const int64_t piece = p.first / s.i, t = piece / heads, h = piece % heads;
		const int64_t at = t * s.x_token + h * s.x_head + p.first % s.i;

		store_span(room + p.first, x[span<decltype(p)::n>{ at }]);
	});
	return { room, heads * s.i, s.x_head ? s.i : 0 };
}

template <typename P> static void forward(const struct call *c)
{
	struct space m = { (char *)c->work, 0 };
	const struct room<P> r = take_room<P>(&m, c->node, PASS_FORWARD);
	const struct sizes s = sizes_of(c->node);
	auto w = weight<P>(c, r.w);

	w.stride = s.i * s.o;
	gemm(c, false, false, s.tokens, s.o, s.i, 1, factor_x<P>(c, s, r.x), w, false,
	     output<P>(c, 0), s.heads * s.o, s.o, s.heads);
}

/* dx_h = dy_h W_h'; for an x that all heads share, dx = dy V, where V [heads x O, I] is every W_h turned. */
template <typename P>
static void backward_x(const struct call *c, const struct sizes &given,
		       struct matrix<typename P::factor> dy, struct matrix<typename P::factor> w,
		       typename P::factor *turned)
{
	const struct sizes s = given;
	const auto dx = input_gradient<P>(c, 0);

	if (s.x_head) {
		gemm(c, false, true, s.tokens, s.i, s.o, 1, dy, w, dx.add, dx.to, s.x_token,
		     s.x_head, s.heads);
		return;
	}
	each(c, s.heads * s.o * s.i, [=] __device__(int64_t at) {
		const int64_t row = at / s.i, h = row / s.o;

		turned[at] = w.at[(h * s.i + at % s.i) * s.o + row % s.o];
	});
	gemm<typename P::factor>(c, false, false, s.tokens, s.i, s.heads * s.o, 1, dy,
				 { turned, s.i, 0 }, dx.add, dx.to, s.x_token);
}

/* y_h = x_h W_h: dW_h = x_h' dy_h */
template <typename P> static void backward(const struct call *c)
{
	struct space m = { (char *)c->work, 0 };
	const struct room<P> r = take_room<P>(&m, c->node, PASS_BACKWARD);
	const struct sizes s = sizes_of(c->node);
	const auto dw = input_gradient<P>(c, 1);
	auto dy = rounded<P>(c, output_gradient<P>(c, 0), s.tokens, s.heads * s.o, s.heads * s.o,
			     r.dy);

	dy.stride = s.o;
	if (dw)
		gemm(c, true, false, s.i, s.o, s.tokens, 1, factor_x<P>(c, s, r.x), dy, dw.add,
		     dw.to, s.o, s.i * s.o, s.heads);
	if (c->din[0]) {
		auto w = weight<P>(c, r.w);

		w.stride = s.i * s.o;
		backward_x<P>(c, s, dy, w, r.turned);
	}
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace_of<take_room<P>>, weight_copies<P> };
}
KERNELS(head_linear, set)
