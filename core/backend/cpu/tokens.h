/*
 * tokens - a tensor [B,T,..] as rows of whole tokens, which may lie apart.
 */
#ifndef CPU_TOKENS_H
#define CPU_TOKENS_H

#include "core/backend/cpu/real.h"

struct tokens {
	int64_t T, size, pitch; /* elements of a token, and from one to the next */
};

static inline struct tokens tokens_of(const struct tensor *t)
{
	const int64_t size = tensor_count(t) / (t->dim[0] * t->dim[1]);

	return (struct tokens){
		.T = t->dim[1],
		.size = size,
		.pitch = tensor_contiguous(t) ? size : t->pitch,
	};
}

/* `count` tokens of example b, from token `first` of `from` to token `at` of `to`. */
static inline void copy_tokens(real *to, const struct tokens *to_layout, int64_t at,
			       const real *from, const struct tokens *from_layout, int64_t first,
			       int64_t b, int64_t count)
{
	to += (b * to_layout->T + at) * to_layout->pitch;
	from += (b * from_layout->T + first) * from_layout->pitch;
	for (int64_t t = 0; t < count; t++)
		memcpy(to + t * to_layout->pitch, from + t * from_layout->pitch,
		       (size_t)to_layout->size * sizeof(real));
}

#endif
