/*
 * The products are narrow (a head's channels), so threads do not share a product:
 * each makes whole products for its own range of tokens in y and dx, and for its own
 * range of the H*I rows in dW, which can be divided evenly for any number of heads.
 * If there are few tokens, threads share the heads.
 */
#include "core/backend/cpu/gemv.h"
#include "core/backend/cpu/gemm.h"

struct sizes {
	int64_t tokens, heads, i, o;
	int64_t x_head, x_token; /* elements from one of x to the next; x_head 0: all share x */
};

static struct sizes sizes(const struct node *node)
{
	const struct tensor *x = node->in[0], *w = node->in[1];
	struct sizes s = {
		.tokens = x->dim[0] * x->dim[1],
		.heads = w->dim[0],
		.i = w->dim[1],
		.o = w->dim[2],
	};
	const bool shared = x->ndim == 3;
	/* Rows are heads, unless a slice has rows of whole tokens. */
	const int64_t piece = tensor_contiguous(x) ? s.i : x->pitch;
	const bool token_rows = shared || (!tensor_contiguous(x) && x->row != s.i);

	s.x_head = shared ? 0 : token_rows ? s.i : piece;
	s.x_token = token_rows ? piece : s.heads * piece;
	return s;
}

/* Multiply-adds of all heads; below GRAIN one thread makes them. */
static int64_t work(const struct sizes *s)
{
	return s->tokens * s->heads * s->i * s->o / 16;
}

static void forward_few(const struct sizes *s, const real *x, const real *w, real *y)
{
	memset(y, 0, (size_t)(s->tokens * s->heads * s->o) * sizeof(real));
#pragma omp parallel for schedule(static) if (s->heads * s->i * s->o > GRAIN)
	for (int64_t h = 0; h < s->heads; h++)
		skinny_add(x + h * s->x_head, s->x_token, s->tokens, s->i, w + h * s->i * s->o,
			   s->o, s->o, y + h * s->o, s->heads * s->o);
}

/* Bytes of workspace for one thread. */
static size_t thread_work(const struct node *node, enum pass pass)
{
	const struct sizes s = sizes(node);
	const bool packed = keeps_copies(node->in[1]);
	const size_t dx = product_work(s.tokens, s.i, s.o, packed, 1);
	const size_t dw = product_work(s.i, s.o, s.tokens, false, 1);

	if (pass == PASS_FORWARD)
		return product_work(s.tokens, s.o, s.i, packed, 1);
	return dx > dw ? dx : dw;
}

static struct multiplier thread_multiplier(const struct call *c, enum pass pass)
{
	const size_t bytes = thread_work(c->node, pass);

	return multiplier_of(c,
			     bytes ? (char *)c->work + (size_t)omp_get_thread_num() * bytes : NULL);
}

static void forward(const struct call *c)
{
	const struct sizes s = sizes(c->node);
	const real *x = c->in[0], *w = c->in[1];
	real *y = c->out[0];

	if (s.tokens <= SKINNY_ROWS) {
		forward_few(&s, x, w, y);
		return;
	}
#pragma omp parallel if (work(&s) > GRAIN)
	{
		const struct multiplier by = thread_multiplier(c, PASS_FORWARD);
		int64_t t, end;

		thread_share(s.tokens, &t, &end);
		for (int64_t h = 0; h < s.heads && t < end; h++)
			product(&by, copy_slice(c, 0, h), false, false, end - t, s.o, s.i, 1,
				x + t * s.x_token + h * s.x_head, s.x_token, w + h * s.i * s.o, s.o,
				0, y + (t * s.heads + h) * s.o, s.heads * s.o);
	}
}

/* y_h = x_h W_h: dx_h = dy_h W_h'; an x that all heads share collects them. */
static void backward_x(const struct call *c, const struct sizes *s, const struct multiplier *by)
{
	const real *w = c->in[1], *dy = c->dout[0];
	const bool add = call_adds(c, 0);
	real *dx = c->din[0];
	int64_t t, end;

	thread_share(s->tokens, &t, &end);
	for (int64_t h = 0; h < s->heads && t < end; h++)
		product(by, copy_slice(c, 1, h), false, true, end - t, s->i, s->o, 1,
			dy + (t * s->heads + h) * s->o, s->heads * s->o, w + h * s->i * s->o, s->o,
			add || (h && !s->x_head), dx + t * s->x_token + h * s->x_head, s->x_token);
}

/* y_h = x_h W_h: dW_h = x_h' dy_h */
static void backward_w(const struct call *c, const struct sizes *s, const struct multiplier *by)
{
	const real *x = c->in[0], *dy = c->dout[0];
	real *dw = c->din[1];
	int64_t row, end;

	thread_share(s->heads * s->i, &row, &end);
	while (row < end) {
		const int64_t h = row / s->i, first = row % s->i;
		const int64_t rows = s->i - first < end - row ? s->i - first : end - row;

		product(by, NOT_PACKED, true, false, rows, s->o, s->tokens, 1,
			x + h * s->x_head + first, s->x_token, dy + h * s->o, s->heads * s->o,
			call_adds(c, 1), dw + row * s->o, s->o);
		row += rows;
	}
}

static void backward(const struct call *c)
{
	const struct sizes s = sizes(c->node);

#pragma omp parallel if (work(&s) > GRAIN)
	{
		const struct multiplier by = thread_multiplier(c, PASS_BACKWARD);

		if (c->din[0])
			backward_x(c, &s, &by);
		if (c->din[1])
			backward_w(c, &s, &by);
	}
}

static size_t workspace(const struct node *node, enum pass pass, int threads)
{
	return (size_t)threads * thread_work(node, pass);
}

static size_t copies(const struct node *node, enum pass pass, int input, int which)
{
	if (which != (pass == PASS_BACKWARD) ||
	    (pass == PASS_FORWARD && sizes(node).tokens <= SKINNY_ROWS))
		return 0;
	return copy_bytes(node, input, which);
}

KERNELS(head_linear) = {
	.forward = forward, .backward = backward, .workspace = workspace, .copy_bytes = copies
};
