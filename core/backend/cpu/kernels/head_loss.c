/*
 * Tokens pass in chunks.  The logits of a chunk become losses and, in training, their
 * own gradient, which goes at once into dx and dW.  So logits are computed once and
 * never held as a whole.
 */
#include "core/backend/cpu/gemm.h"

/*
 * Tokens in a chunk: enough that reading W and dW once per chunk hides behind
 * the products (measured at N = 1024, E = 768, V = 50304 on one core whose
 * products reach 61 GFLOP/s: 51 with 64 tokens, 56 with 128, 59 with 256 or
 * 512), more when the vocabulary is so small that the logits still stay in the
 * second cache.  Products of AMX are so fast that twice as many are needed: in
 * bfloat16 an iteration of GPT-2 124M takes 8 % less time with 512 than with 256.
 */
#ifdef __x86_64__
#define CHUNK_TOKENS 512
#else
#define CHUNK_TOKENS 256
#endif
#define CHUNK_LOGITS (1 << 19)

#define SUM_BLOCK 1024 /* terms summed in real before the sum goes on in double */

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Chunks of nearly equal size. */
static int64_t chunk_tokens(const struct node *n)
{
	const int64_t tokens = tensor_count(n->in[2]), vocabulary = n->in[1]->dim[0];
	const int64_t cached = CHUNK_LOGITS / vocabulary;
	const int64_t most = cached > CHUNK_TOKENS ? cached : CHUNK_TOKENS;
	const int64_t chunks = (tokens + most - 1) / most;

	return (tokens + chunks - 1) / chunks;
}

/* lse and logits of a chunk, in whole cache lines. */
static size_t logits_bytes(const struct node *n)
{
	const size_t chunk = (size_t)chunk_tokens(n), line = 64;
	const size_t bytes = chunk * ((size_t)n->in[1]->dim[0] * sizeof(real) + sizeof(double));

	return (bytes + line - 1) / line * line;
}

/* Of the logits, dx and dW of a chunk. */
static size_t largest_work(int64_t v, int64_t e, int64_t chunk, bool packed, int threads)
{
	const size_t work[] = {
		product_work(chunk, v, e, packed, threads),
		product_work(chunk, e, v, packed, threads),
		product_work(v, e, chunk, false, threads),
	};
	size_t most = 0;

	for (int i = 0; i < 3; i++)
		most = work[i] > most ? work[i] : most;
	return most;
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const int64_t v = n->in[1]->dim[0], e = n->in[1]->dim[1], chunk = chunk_tokens(n);

	(void)pass;
	return logits_bytes(n) + largest_work(v, e, chunk, keeps_copies(n->in[1]), threads);
}

static size_t copies(const struct node *n, enum pass pass, int input, int which)
{
	return pass == PASS_LOSS || which == 1 ? copy_bytes(n, input, which) : 0;
}

/* d(total loss) / d(nll) of a scored token, and / d(lse^2) of any. */
struct slope {
	real nll, square;
};

static real weight_of(const struct call *c, int output)
{
	const real *dout = c->dout[output], *weights = c->in[3];

	return dout ? dout[0] * weights[output] : 0;
}

/* Several maxima side by side, because clang does not make SIMD of a single one. */
static real row_maximum(const real *row, int64_t n)
{
	real lane[LANES], most = row[0];
	int64_t i = 0;

	for (int l = 0; l < LANES; l++)
		lane[l] = row[0];
	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] = row[i + l] > lane[l] ? row[i + l] : lane[l];
	for (int l = 0; l < LANES; l++)
		most = lane[l] > most ? lane[l] : most;
	for (; i < n; i++)
		most = row[i] > most ? row[i] : most;
	return most;
}

static double sum_of_exp(const real *row, int64_t n, real most)
{
	double total = 0;

	for (int64_t first = 0; first < n; first += SUM_BLOCK) {
		const int64_t last = smaller(first + SUM_BLOCK, n);
		real sum = 0;

#pragma omp simd reduction(+ : sum)
		for (int64_t i = first; i < last; i++)
			sum += fast_exp(row[i] - most);
		total += sum;
	}
	return total;
}

/* As sum_of_exp(), and every logit becomes its exponential. */
static double exponentiate(real *restrict row, int64_t n, real most)
{
	double total = 0;

	for (int64_t first = 0; first < n; first += SUM_BLOCK) {
		const int64_t last = smaller(first + SUM_BLOCK, n);
		real sum = 0;

#pragma omp simd reduction(+ : sum)
		for (int64_t i = first; i < last; i++) {
			row[i] = fast_exp(row[i] - most);
			sum += row[i];
		}
		total += sum;
	}
	return total;
}

/* The argmax is the first of equals. */
static bool is_argmax(const real *row, int32_t target, real most)
{
	if (row[target] != most)
		return false;
	for (int32_t i = 0; i < target; i++)
		if (row[i] == most)
			return false;
	return true;
}

/*
 * One token: its logits give nll, hit and lse; with a slope they become
 * (slope.nll [target >= 0] + slope.square 2 lse) softmax - slope.nll onehot(target).
 */
static double score_token(real *row, int64_t n, int32_t target, const struct slope *slope,
			  real *nll, real *hit)
{
	const real most = row_maximum(row, n);
	const bool scored = target >= 0;
	const double logit = scored ? (double)row[target] : 0;
	double sum, lse;

	*hit = scored && is_argmax(row, target, most);
	sum = slope ? exponentiate(row, n, most) : sum_of_exp(row, n, most);
	lse = (double)most + log(sum);
	*nll = scored ? (real)(lse - logit) : 0;
	if (slope) {
		const double main = scored ? (double)slope->nll : 0;
		const real factor = (real)((main + (double)slope->square * 2 * lse) / sum);

#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			row[i] *= factor;
		if (scored)
			row[target] -= slope->nll;
	}
	return lse;
}

/* Scores all tokens of a chunk; returns the sum of lse^2 in the order of the tokens. */
static double score_chunk(const struct call *c, int64_t first, int64_t tokens, real *logits,
			  double *lse, const struct slope *slope)
{
	const int64_t n = c->node->in[1]->dim[0];
	const int32_t *targets = c->in[2];
	real *nll = c->out[2], *hit = c->out[3];
	double squares = 0;

#pragma omp parallel for schedule(static) if (tokens * n > GRAIN)
	for (int64_t t = 0; t < tokens; t++)
		lse[t] = score_token(logits + t * n, n, targets[first + t], slope, nll + first + t,
				     hit + first + t);
	for (int64_t t = 0; t < tokens; t++)
		squares += lse[t] * lse[t];
	return squares;
}

/* logits = x W': dx = dlogits W, dW = dlogits' x summed over chunks */
static void chunk_gradients(const struct call *c, const struct multiplier *by, int64_t first,
			    int64_t tokens, const real *dlogits)
{
	const int64_t n = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const real *x = c->in[0], *w = c->in[1];
	real *dx = c->din[0], *dw = c->din[1];

	if (dx)
		product(by, packed_copy(c, 0), false, false, tokens, e, n, 1, dlogits, n, w, e,
			call_adds(c, 0), dx + first * e, e);
	if (dw)
		product(by, NOT_PACKED, true, false, n, e, tokens, 1, dlogits, n, x + first * e, e,
			call_adds(c, 1) || first > 0, dw, e);
}

static void all_chunks(const struct call *c, const struct slope *slope)
{
	const int64_t n = c->node->in[1]->dim[0], e = c->node->in[1]->dim[1];
	const int64_t tokens = tensor_count(c->node->in[2]), chunk = chunk_tokens(c->node);
	const real *x = c->in[0], *w = c->in[1], *weights = c->in[3];
	real *main = c->out[0], *z = c->out[1], *nll = c->out[2];
	const struct multiplier by = multiplier_of(c, (char *)c->work + logits_bytes(c->node));
	double *lse = c->work;
	real *logits = (real *)(lse + chunk);
	double total = 0, squares = 0;

	for (int64_t first = 0; first < tokens; first += chunk) {
		const int64_t count = smaller(chunk, tokens - first);

		product(&by, packed_copy(c, 1), false, true, count, n, e, 1, x + first * e, e, w, e,
			0, logits, n);
		squares += score_chunk(c, first, count, logits, lse, slope);
		if (slope)
			chunk_gradients(c, &by, first, count, logits);
	}
	for (int64_t t = 0; t < tokens; t++)
		total += (double)nll[t];
	main[0] = (real)((double)weights[0] * total);
	z[0] = (real)((double)weights[1] * squares);
}

static void forward(const struct call *c)
{
	all_chunks(c, NULL);
}

static void loss(const struct call *c)
{
	const struct slope slope = { .nll = weight_of(c, 0), .square = weight_of(c, 1) };

	all_chunks(c, &slope);
}

KERNELS(head_loss) = {
	.forward = forward, .loss = loss, .workspace = workspace, .copy_bytes = copies
};
