/*
 * linear_attention: a thread takes a head of an example, one chunk after the other.  The formulas
 * are in core/ops/linear_attention.h, and so are the names of the matrices.
 */
#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/tokens.h"
#include "core/ops/linear_attention.h"

/* One chunk of one head: rows of all matrices are tokens. */
struct chunk {
	struct linear_attention_sizes s;
	int64_t first, rows;	/* its tokens */
	real *q, *k, *v, *beta; /* copies [C,K], [C,K], [C,D], [C] */
	real *L, *at;		/* [C,G]; [C,K] exp(L_i) */
	real *q_at, *k_at;	/* Q~, K~ */
	real *to_end, *k_end;	/* [C,K] exp(L_C - L_i), K^ */
	real *A, *M;		/* [C,C], 0 where they are not defined */
	real *u, *r, *o;	/* [C,D] */
};

struct gradients {
	real *q, *left, *right, *L; /* [C,K] */
	real *u, *r;		    /* [C,D] */
	real *A, *M, *state, *beta; /* [C,C], [C,C], [D,K], [C] */
};

struct space {
	real *at;
	int64_t used;
};

static real *take(struct space *m, int64_t n)
{
	real *piece = m->at ? m->at + m->used : NULL;

	m->used += (n + LANES - 1) / LANES * LANES;
	return piece;
}

static struct chunk take_chunk(struct space *m, const struct linear_attention_sizes *s)
{
	const int64_t CK = s->C * s->K, CD = s->C * s->D, CC = s->C * s->C;
	struct chunk x = { .s = *s };

	x.q = take(m, CK);
	x.k = take(m, CK);
	x.v = take(m, CD);
	x.beta = take(m, s->C);
	x.L = take(m, s->C * s->G);
	x.at = take(m, CK);
	x.q_at = take(m, CK);
	x.k_at = take(m, CK);
	x.to_end = take(m, CK);
	x.k_end = take(m, CK);
	x.A = take(m, CC);
	x.M = take(m, CC);
	x.u = take(m, CD);
	x.r = take(m, CD);
	x.o = take(m, CD);
	return x;
}

static struct gradients take_gradients(struct space *m, const struct linear_attention_sizes *s)
{
	const int64_t CK = s->C * s->K, CD = s->C * s->D, CC = s->C * s->C;
	struct gradients d;

	d.q = take(m, CK);
	d.left = take(m, CK);
	d.right = take(m, CK);
	d.L = take(m, CK);
	d.u = take(m, CD);
	d.r = take(m, CD);
	d.A = take(m, CC);
	d.M = take(m, CC);
	d.state = take(m, s->D * s->K);
	d.beta = take(m, s->C);
	return d;
}

/* Element 0 of head h of token t of example b, in input or output tensor `t`. */
static int64_t place(const struct tensor *x, int64_t b, int64_t t, int64_t h)
{
	const struct tokens tokens = tokens_of(x);

	return (b * tokens.T + t) * tokens.pitch + h * (x->ndim == 4 ? x->dim[3] : 1);
}

static void copy_rows(const struct call *c, int input, const struct chunk *x, int64_t b, int64_t h,
		      int64_t width, real *to)
{
	const struct tensor *t = c->node->in[input];

	for (int64_t i = 0; i < x->rows; i++)
		memcpy(to + i * width, (const real *)c->in[input] + place(t, b, x->first + i, h),
		       (size_t)width * sizeof(real));
}

static void put_rows(const struct call *c, int input, const struct chunk *x, int64_t b, int64_t h,
		     int64_t width, const real *from)
{
	const struct tensor *t = c->node->in[input];

	for (int64_t i = 0; c->din[input] && i < x->rows; i++)
		put_scaled((real *)c->din[input] + place(t, b, x->first + i, h),
			   call_adds(c, input), 1, from + i * width, width);
}

/* exp(L_i) and exp(L_C - L_i) of all channels. */
static void decay_factors(struct chunk *x)
{
	const int64_t K = x->s.K, G = x->s.G;
	const real *end = x->L + (x->rows - 1) * G;

	for (int64_t i = 0; i < x->rows * K; i++) {
		const int64_t g = G > 1 ? i % K : 0;
		const real L = G ? x->L[i / K * G + g] : 0;

		x->at[i] = G ? fast_exp(L) : 1;
		x->to_end[i] = G ? fast_exp(end[g] - L) : 1;
	}
}

/* scores_ij = sum_c left_ic k_jc exp(L_ic - L_jc) for j <= i, or j < i; else 0. */
static void decayed_scores(const struct chunk *x, const real *left, bool strict, real *scores)
{
	const int64_t n = x->rows, K = x->s.K, G = x->s.G, C = x->s.C;

	if (G <= 1)
		gemm(false, true, n, n, K, 1, left, K, x->k, K, 0, scores, C);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++) {
			real *score = scores + i * C + j, sum = 0;

			if (j > i || (strict && j == i)) {
				*score = 0;
			} else if (G == 1) {
				*score *= fast_exp(x->L[i] - x->L[j]);
			} else if (G > 1) {
#pragma omp simd reduction(+ : sum)
				for (int64_t c = 0; c < K; c++)
					sum += left[i * K + c] * x->k[j * K + c] *
					       fast_exp(x->L[i * K + c] - x->L[j * K + c]);
				*score = sum;
			}
		}
}

/* Adds to the gradients of `left` and k what `scores` hands back. */
static void scores_backward(const struct chunk *x, const real *left, const real *d, real *dleft,
			    real *dright)
{
	const int64_t n = x->rows, K = x->s.K, G = x->s.G, C = x->s.C;

	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j <= i; j++) {
			const real score = d[i * C + j];
			const real by = G == 1 ? fast_exp(x->L[i] - x->L[j]) : 1;

#pragma omp simd
			for (int64_t c = 0; c < K; c++) {
				const real f =
					G > 1 ? fast_exp(x->L[i * K + c] - x->L[j * K + c]) : by;

				dleft[i * K + c] += score * f * x->k[j * K + c];
				dright[j * K + c] += score * f * left[i * K + c];
			}
		}
}

/* Everything of a chunk that begins with `state`, up to u. */
static void open_chunk(const struct call *c, struct chunk *x, int64_t b, int64_t h, int64_t number,
		       const real *state)
{
	const struct linear_attention_sizes *s = &x->s;
	const int64_t K = s->K, D = s->D, G = s->G;

	x->first = number * s->C;
	x->rows = s->T - x->first < s->C ? s->T - x->first : s->C;
	copy_rows(c, LA_Q, x, b, h, K, x->q);
	copy_rows(c, LA_K, x, b, h, K, x->k);
	copy_rows(c, LA_V, x, b, h, D, x->v);
	if (G)
		copy_rows(c, LA_DECAY, x, b, h, G, x->L);
	for (int64_t i = G; i < x->rows * G; i++)
		x->L[i] += x->L[i - G];
	for (int64_t i = 0; i < x->rows; i++)
		x->beta[i] = 1;
	if (c->in[LA_BETA])
		copy_rows(c, LA_BETA, x, b, h, 1, x->beta);
	decay_factors(x);
	put_product(x->q_at, false, x->q, x->at, x->rows * K);
	put_product(x->k_at, false, x->k, x->at, x->rows * K);
	put_product(x->k_end, false, x->k, x->to_end, x->rows * K);
	decayed_scores(x, x->q, false, x->A);
	memcpy(x->r, x->v, (size_t)(x->rows * D) * sizeof(real));
	if (s->delta) {
		decayed_scores(x, x->k, true, x->M);
		gemm(false, true, x->rows, D, K, -1, x->k_at, K, state, K, 1, x->r, D);
	}
	for (int64_t i = 0; i < x->rows; i++) {
		for (int64_t j = 0; s->delta && j < i; j++)
			put_scaled(x->r + i * D, true, -x->M[i * s->C + j], x->u + j * D, D);
		put_scaled(x->u + i * D, false, x->beta[i], x->r + i * D, D);
	}
}

/* d = state diag(exp(L_C)) */
static void decay_state(const struct chunk *x, const real *state, real *d)
{
	for (int64_t i = 0; i < x->s.D; i++)
		put_product(d + i * x->s.K, false, state + i * x->s.K,
			    x->at + (x->rows - 1) * x->s.K, x->s.K);
}

static void forward_chunk(const struct call *c, struct chunk *x, int64_t b, int64_t h,
			  const real *state, real *next)
{
	const struct linear_attention_sizes *s = &x->s;
	const int64_t n = x->rows, K = s->K, D = s->D;
	const struct tensor *out = c->node->out[0];

	gemm(false, true, n, D, K, 1, x->q_at, K, state, K, 0, x->o, D);
	gemm(false, false, n, D, n, 1, x->A, s->C, x->u, D, 1, x->o, D);
	for (int64_t i = 0; i < n; i++)
		memcpy((real *)c->out[0] + place(out, b, x->first + i, h), x->o + i * D,
		       (size_t)D * sizeof(real));
	decay_state(x, state, next);
	gemm(true, false, D, K, n, 1, x->u, D, x->k_end, K, 1, next, K);
}

/* All chunks of a head.  `states` are its first one, `apart` elements from each to the next. */
static void forward_head(const struct call *c, struct chunk *x, int64_t b, int64_t h, real *states,
			 int64_t apart)
{
	for (int64_t number = 0; number < x->s.n; number++) {
		real *state = states + number * apart;

		open_chunk(c, x, b, h, number, state);
		forward_chunk(c, x, b, h, state, state + apart);
	}
}

/* If runs continue each other, a thread has room for the states of one head. */
static int64_t forward_work(const struct linear_attention_sizes *s)
{
	struct space m = { NULL, 0 };

	take_chunk(&m, s);
	take(&m, (s->n + 1) * s->D * s->K);
	return m.used;
}

static void forward(const struct call *c)
{
	const struct linear_attention_sizes s = linear_attention_sizes_of(c->node);
	const bool continues = c->node->out[1]->kind == TENSOR_STATE;
	const int64_t heads = s.B * s.H, size = s.D * s.K;
	const size_t bytes = (size_t)size * sizeof(real);

#pragma omp parallel if (heads * s.T * size > GRAIN)
	{
		struct space m = { (real *)c->work + omp_get_thread_num() * forward_work(&s), 0 };
		struct chunk x = take_chunk(&m, &s);
		real *own = take(&m, (s.n + 1) * size);

#pragma omp for schedule(static)
		for (int64_t head = 0; head < heads; head++) {
			real *saved = (real *)c->out[1] + head * size;
			real *states = continues ? own : saved;

			if (continues && c->run->past > 0)
				memcpy(states, saved, bytes);
			else
				memset(states, 0, bytes);
			forward_head(c, &x, head / s.H, head % s.H, states,
				     continues ? size : heads * size);
			if (continues)
				memcpy(saved, states + s.n * size, bytes);
		}
	}
}

/* du, dr and dbeta: what o and the next state hand back, then the rows of M from the last on. */
static void backward_update(const struct chunk *x, const real *dout, struct gradients *d)
{
	const struct linear_attention_sizes *s = &x->s;
	const int64_t n = x->rows, K = s->K, D = s->D;

	gemm(true, false, n, D, n, 1, x->A, s->C, dout, D, 0, d->u, D);
	gemm(false, true, n, D, K, 1, x->k_end, K, d->state, K, 1, d->u, D);
	for (int64_t i = n - 1; i >= 0; i--) {
		for (int64_t j = i + 1; s->delta && j < n; j++)
			put_scaled(d->u + i * D, true, -x->M[j * s->C + i], d->r + j * D, D);
		d->beta[i] = dot(d->u + i * D, x->r + i * D, D);
		put_scaled(d->r + i * D, false, x->beta[i], d->u + i * D, D);
	}
}

/* dq and both parts of dk. */
static void backward_keys(const struct chunk *x, const real *state, const real *dout,
			  struct gradients *d)
{
	const struct linear_attention_sizes *s = &x->s;
	const int64_t n = x->rows, K = s->K, D = s->D, C = s->C;

	gemm(false, false, n, K, D, 1, dout, D, state, K, 0, d->q, K);
	put_product(d->q, false, d->q, x->at, n * K);
	gemm(false, false, n, K, D, 1, x->u, D, d->state, K, 0, d->right, K);
	put_product(d->right, false, d->right, x->to_end, n * K);
	gemm(false, true, n, n, D, 1, dout, D, x->u, D, 0, d->A, C);
	scores_backward(x, x->q, d->A, d->q, d->right);
	memset(d->left, 0, (size_t)(n * K) * sizeof(real));
	if (!s->delta)
		return;
	gemm(false, false, n, K, D, -1, d->r, D, state, K, 0, d->left, K);
	put_product(d->left, false, d->left, x->at, n * K);
	gemm(false, true, n, n, D, -1, d->r, D, x->u, D, 0, d->M, C);
	for (int64_t i = 0; i < n; i++)
		d->M[i * C + i] = 0; /* M has no diagonal */
	scores_backward(x, x->k, d->M, d->left, d->right);
}

/* dL, and from it ddecay in its place: [C,K], or [C,1]. */
static void backward_decay(const struct chunk *x, const real *next, struct gradients *d)
{
	const int64_t n = x->rows, K = x->s.K, G = x->s.G;
	real *L = d->L, *last = L + (n - 1) * K;

	for (int64_t i = 0; i < n * K; i++)
		L[i] = x->q[i] * d->q[i] + x->k[i] * (d->left[i] - d->right[i]);
	for (int64_t i = 0; i < x->s.D; i++)
		put_product(last, true, d->state + i * K, next + i * K, K);
	if (G == 1)
		for (int64_t i = 0; i < n; i++)
			L[i] = sum(L + i * K, K);
	for (int64_t i = (n - 1) * G - 1; i >= 0; i--)
		L[i] += L[i + G];
}

static void backward_chunk(const struct call *c, struct chunk *x, int64_t b, int64_t h,
			   int64_t number, const real *state, const real *next, struct gradients *d)
{
	const struct linear_attention_sizes *s = &x->s;
	const int64_t K = s->K, D = s->D;

	open_chunk(c, x, b, h, number, state);
	for (int64_t i = 0; i < x->rows; i++)
		memcpy(x->o + i * D,
		       (const real *)c->dout[0] + place(c->node->out[0], b, x->first + i, h),
		       (size_t)D * sizeof(real));
	backward_update(x, x->o, d);
	backward_keys(x, state, x->o, d);
	if (c->din[LA_DECAY])
		backward_decay(x, next, d);
	put_rows(c, LA_Q, x, b, h, K, d->q);
	put_scaled(d->left, true, 1, d->right, x->rows * K);
	put_rows(c, LA_K, x, b, h, K, d->left);
	put_rows(c, LA_V, x, b, h, D, d->r);
	put_rows(c, LA_DECAY, x, b, h, s->G, d->L);
	put_rows(c, LA_BETA, x, b, h, 1, d->beta);
	decay_state(x, d->state, d->state);
	gemm(true, false, D, K, x->rows, 1, x->o, D, x->q_at, K, 1, d->state, K);
	if (s->delta)
		gemm(true, false, D, K, x->rows, -1, d->r, D, x->k_at, K, 1, d->state, K);
}

static int64_t backward_work(const struct linear_attention_sizes *s)
{
	struct space m = { NULL, 0 };

	take_chunk(&m, s);
	take_gradients(&m, s);
	return m.used;
}

static void backward(const struct call *c)
{
	const struct linear_attention_sizes s = linear_attention_sizes_of(c->node);
	const int64_t heads = s.B * s.H, size = s.D * s.K;
	const real *states = c->out[1];

#pragma omp parallel if (heads * s.T * size > GRAIN)
	{
		struct space m = { (real *)c->work + omp_get_thread_num() * backward_work(&s), 0 };
		struct chunk x = take_chunk(&m, &s);
		struct gradients d = take_gradients(&m, &s);

#pragma omp for schedule(static)
		for (int64_t head = 0; head < heads; head++) {
			memset(d.state, 0, (size_t)size * sizeof(real));
			for (int64_t number = s.n - 1; number >= 0; number--) {
				const real *state = states + (number * heads + head) * size;

				backward_chunk(c, &x, head / s.H, head % s.H, number, state,
					       state + heads * size, &d);
			}
		}
	}
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct linear_attention_sizes s = linear_attention_sizes_of(n);

	return (size_t)(threads * (pass == PASS_FORWARD ? forward_work(&s) : backward_work(&s))) *
	       sizeof(real);
}

KERNELS(linear_attention) = { .forward = forward, .backward = backward, .workspace = workspace };
