#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/rotary.h"

struct shape {
	int64_t tokens, length, heads;
	int64_t pitch;	    /* of x: elements from one token to the next */
	int64_t width, out; /* of a head: means, channels of y */
	int64_t half;	    /* pairs that are rotated */
};

static struct shape shape_of(const struct node *n)
{
	const struct w2_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	const int64_t *dim = x->dim;

	return (struct shape){
		.tokens = dim[0] * dim[1],
		.length = dim[1],
		.heads = dim[2],
		.pitch = tensor_contiguous(x) ? dim[2] * dim[3] : x->pitch,
		.width = dim[3] / 2,
		.out = n->out[0]->dim[3],
		.half = attr->theta > 0 ? dim[3] / 4 : 0,
	};
}

/* One head of a token, and what its thread has for it. */
struct head {
	struct shape of;
	int64_t row;  /* its number: [token, head] */
	int64_t from; /* its first element in x */
	real eps;
	real inverse; /* wasserstein: 1 / (|tau| + eps) */
	bool scaled;
	real factor; /* of y: 1 unless it is scaled */
	const real *cosine, *sine;
	real *room;	  /* backward: [3,width] */
	double *products; /* backward: of all heads */
};

static void rotation(const struct head *h, const real *x, real *y)
{
	if (h->of.half)
		rotate(x, h->cosine, h->sine, h->of.half, y, false);
	else if (y != x)
		put_scaled(y, false, 1, x, h->of.width);
}

static int64_t listed_rotations(const struct shape *s)
{
	return s->half ? listed_positions(s->length) * s->half : 0;
}

/* Of a thread: cosines and sines of a position, and the room of a head. */
static int64_t thread_room(const struct shape *s, enum pass pass)
{
	return 2 * s->half + (pass == PASS_BACKWARD ? 3 * s->width : 0);
}

static int64_t products_of(const struct shape *s, enum pass pass)
{
	return pass == PASS_BACKWARD ? s->tokens * s->heads : 0;
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct shape s = shape_of(n);

	return (size_t)listed_rotations(&s) * sizeof(struct rotation) +
	       (size_t)products_of(&s, pass) * sizeof(double) +
	       (size_t)(threads * thread_room(&s, pass)) * sizeof(real);
}

/* 1 / (|tau| + eps) */
static real inverse_temperature(real tau, real eps)
{
	return 1 / ((tau < 0 ? -tau : tau) + eps);
}

/* take() for the heads of all tokens; the gradient is rotated back. */
static inline void each_head(const struct call *c, enum pass pass,
			     void (*take)(const struct call *c, const struct head *h))
{
	const struct w2_attr *attr = c->node->attr;
	const struct shape s = shape_of(c->node);
	const real direction = pass == PASS_BACKWARD ? -1 : 1, *tau = c->in[1];
	struct rotation *rotations = c->work;
	double *products = (double *)(rotations + listed_rotations(&s));
	real *rooms = (real *)(products + products_of(&s, pass));

#pragma omp parallel if (s.tokens * s.heads * s.width > GRAIN)
	{
		real *cosine = rooms + omp_get_thread_num() * thread_room(&s, pass);
		real *sine = cosine + s.half;
		struct head h = { .of = s,
				  .eps = (real)attr->eps,
				  .scaled = attr->scaled,
				  .cosine = cosine,
				  .sine = sine,
				  .room = sine + s.half,
				  .products = products };

		if (s.half)
			list_rotations(attr->theta, s.width, c->run->past, s.length, rotations);
#pragma omp for schedule(static)
		for (int64_t token = 0; token < s.tokens; token++) {
			if (s.half)
				rotations_at(rotations, token % s.length, s.length, s.half,
					     direction, cosine, sine);
			for (int64_t i = 0; i < s.heads; i++) {
				h.row = token * s.heads + i;
				h.from = token * s.pitch + 2 * i * s.width;
				h.inverse = tau ? inverse_temperature(tau[i], h.eps) : 0;
				h.factor = h.scaled ? 2 * h.inverse : 1;
				take(c, &h);
			}
		}
	}
}

/* -------------------------------------------------------------------- forward */

/* y = (mean, sigma); returns its bias. */
static real pair_row(const struct head *h, const real *x, real *y)
{
	const int64_t width = h->of.width;
	real bias;

	rotation(h, x, y);
	softplus_row(x + width, width, h->eps, y + width);
	bias = -dot(y, y, 2 * width) * h->inverse;
	if (h->scaled)
		put_scaled(y, false, h->factor, y, 2 * width);
	return bias;
}

/* y = mean / sqrt(sigma); returns its bias. */
static real whitened_row(const struct head *h, const real *x, real *y)
{
	const int64_t width = h->of.width;
	real logdet = 0;

	softplus_row(x + width, width, h->eps, y);
#pragma omp simd reduction(+ : logdet)
	for (int64_t i = 0; i < width; i++) {
		logdet += fast_log(y[i]);
		y[i] = x[i] / root(y[i]);
	}
	rotation(h, y, y);
	return (real)-0.5 * (dot(y, y, width) + logdet);
}

/* Recomputation does not want the bias. */
static inline void put_head(const struct call *c, const struct head *h)
{
	const struct w2_attr *attr = c->node->attr;
	const real *x = (const real *)c->in[0] + h->from;
	real *y = (real *)c->out[0] + h->row * h->of.out, *all = c->out[1];
	const real bias = attr->score == W2_WASSERSTEIN ? pair_row(h, x, y) : whitened_row(h, x, y);

	if (all)
		all[h->row] = bias;
}

static void forward(const struct call *c)
{
	each_head(c, PASS_FORWARD, put_head);
}

/* ------------------------------------------------------------------- backward */

/*
 * y = f g, g = (mean, sigma), bias = -i |g|^2, i = 1 / (|tau| + eps), f = 2 i or 1: of the head,
 * d = f dy - 2 i dbias g.  Returns di.  A rotation keeps products, so it comes last.
 */
static real pair_gradient(const struct head *h, const real *x, const real *y, const real *dy,
			  const real *dbias, real *d)
{
	const int64_t width = h->of.width;
	real *slope = d + 2 * width, di = 0;

	if (dy)
		put_scaled(d, false, h->factor, dy, 2 * width);
	else
		memset(d, 0, 2 * (size_t)width * sizeof(*d));
	if (dy && h->scaled)
		di = 2 * dot(dy, y, 2 * width) / h->factor;
	if (dbias) {
		di -= *dbias * dot(y, y, 2 * width) / (h->factor * h->factor);
		put_scaled(d, true, -2 * h->inverse * *dbias / h->factor, y, 2 * width);
	}
	rotation(h, d, d);
	map(fast_sigmoid, x + width, width, slope);
	put_product(d + width, false, d + width, slope, width);
	return di;
}

/* y = mean p, p = 1 / sqrt(sigma); bias = -(|y|^2 + sum log sigma) / 2 */
static void whitened_gradient(const struct head *h, const real *restrict x, const real *restrict dy,
			      real dbias, real *restrict d)
{
	const int64_t width = h->of.width;
	real *restrict sigma = d + 2 * width;

	if (dy)
		rotation(h, dy, d);
	else
		memset(d, 0, (size_t)width * sizeof(*d));
	map(fast_sigmoid, x + width, width, d + width);
	softplus_row(x + width, width, h->eps, sigma);
#pragma omp simd
	for (int64_t i = 0; i < width; i++) {
		real p = 1 / root(sigma[i]), w = x[i] * p, dw = d[i] - dbias * w;

		d[i] = dw * p;
		d[width + i] *= (real)-0.5 * p * p * (dw * w + dbias);
	}
}

static inline void put_gradient(const struct call *c, const struct head *h)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t out = h->row * h->of.out;
	const real *x = (const real *)c->in[0] + h->from, *y = (const real *)c->out[0] + out;
	const real *dy = c->dout[0] ? (const real *)c->dout[0] + out : NULL;
	const real *dbias = c->dout[1] ? (const real *)c->dout[1] + h->row : NULL;

	if (attr->score == W2_WASSERSTEIN)
		h->products[h->row] = pair_gradient(h, x, y, dy, dbias, h->room);
	else
		whitened_gradient(h, x, dy, dbias ? *dbias : 0, h->room);
	if (c->din[0])
		put_scaled((real *)c->din[0] + h->from, call_adds(c, 0), 1, h->room,
			   2 * h->of.width);
}

/* i = 1 / (|tau| + eps), so di / dtau = -i^2 sign; the sums are in the order of the tokens. */
static void tau_gradient(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const struct shape s = shape_of(c->node);
	const double *products =
		(const double *)((struct rotation *)c->work + listed_rotations(&s));
	const real *tau = c->in[1];
	real *dtau = c->din[1];

	for (int64_t i = 0; i < s.heads; i++) {
		const real inverse = inverse_temperature(tau[i], (real)attr->eps);
		const real sign = (real)((tau[i] > 0) - (tau[i] < 0));
		double sum = 0;

		for (int64_t token = 0; token < s.tokens; token++)
			sum += products[token * s.heads + i];
		put(dtau + i, call_adds(c, 1), -(real)sum * inverse * inverse * sign);
	}
}

static void backward(const struct call *c)
{
	each_head(c, PASS_BACKWARD, put_gradient);
	if (c->din[1])
		tau_gradient(c);
}

KERNELS(w2_gaussian) = {
	.forward = forward,
	.backward = backward,
	.recompute = forward,
	.workspace = workspace,
};
