#include "core/backend/cpu/vector.h"

/* What elements [first, first + n) are multiplied by; first is a multiple of 4. */
static void draw_mask(real *mask, int64_t n, int64_t first, struct rng_key key, double probability)
{
	const uint64_t limit = (uint64_t)ceil(probability * 0x1p32); /* words below it drop */
	const real kept = (real)(1 / (1 - probability));

	for (int64_t i = 0; i < n; i += 4) {
		uint32_t word[4];

		rng_block(key, (uint64_t)(first + i) / 4, word);
		for (int j = 0; j < 4; j++)
			mask[i + j] = word[j] < limit ? 0 : kept;
	}
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
		real mask[CHUNK]; /* whole blocks of 4 even where m is not */

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
