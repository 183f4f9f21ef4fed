/*
 * A tensor [B,T,..] as rows of one token each, and a copy of token ranges.
 * The rows of a slice start `pitch` elements apart.
 */
#ifndef CUDA_PRIMITIVES_TOKENS_CUH
#define CUDA_PRIMITIVES_TOKENS_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

struct tokens {
	int64_t B, T, size,
		pitch; /* size: elements of a token; pitch: elements from one token to the next */
};

static inline struct tokens tokens_of(const struct tensor *t)
{
	const int64_t size = tensor_count(t) / (t->dim[0] * t->dim[1]);

	return { t->dim[0], t->dim[1], size, tensor_contiguous(t) ? size : t->pitch };
}

/* Copies `count` tokens of every example, from token `first` of `from` to token `at` of `to`. */
template <typename P>
static void copy_tokens(const struct call *c, output_view<P> to, struct tokens y, int64_t at,
			input_view<P> from, struct tokens x, int64_t first, int64_t count)
{
	each(c, y.B * count * y.size, [=] __device__(int64_t i) {
		const int64_t b = i / (count * y.size), t = i / y.size % count,
			      channel = i % y.size;

		to[(b * y.T + at + t) * y.pitch + channel] =
			from[(b * x.T + first + t) * x.pitch + channel];
	});
}

#endif
