#include "core/backend/cpu/elementwise.h"

/* What elements [first, first + n) are multiplied by; first is a multiple of 4. */
static void draw_mask(real mask[CHUNK], int64_t n, int64_t first, struct rng_key key,
		      double probability)
{
	/* words below it drop their element; the largest word never does */
	const uint32_t limit = (uint32_t)fmin(ceil(probability * 0x1p32), UINT32_MAX);
	const real kept = (real)(1 / (1 - probability));
	uint32_t word[CHUNK]; /* whole blocks of 4 even where n is not */

	rng_blocks(key, (uint64_t)first / 4, (n + 3) / 4, word);
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		mask[i] = word[i] < limit ? 0 : kept;
}

static void apply(const struct call *c, const real *x, real *y, bool add)
{
	const struct dropout_attr *attr = c->node->attr;
	const int64_t n = tensor_count(c->node->in[0]);
	struct rng_key key = rng_key(c->run->seed, c->node->name);

	key = rng_subkey(rng_subkey(key, c->run->iteration), c->run->micro);
#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);
		real mask[CHUNK];

		draw_mask(mask, m, i, key, attr->probability);
		put_product(y + i, add, x + i, mask, m);
	}
}

static void forward(const struct call *c)
{
	apply(c, c->in[0], c->out[0], false);
}

/* y = mask x, so dx = mask dy */
static void backward(const struct call *c)
{
	apply(c, c->dout[0], c->din[0], call_adds(c, 0));
}

KERNELS(dropout) = { .forward = forward, .backward = backward };
