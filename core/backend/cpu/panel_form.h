/*
 * bf16_form - what one set of matrix instructions brings to a product.
 *
 * A panel holds `lines` lines of a factor, `group` elements of each side by
 * side: element i of line l is at ((i / group) * lines + l) * group + i % group.
 * Lines and elements that the matrix lacks are zeros.
 */
#ifndef CPU_BF16_FORM_H
#define CPU_BF16_FORM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/backend/cpu/bf16.h"

typedef uint16_t bf16;

/* Bounds over all forms. */
#define BF16_MAX_LINES 32
#define BF16_MAX_STEP 32
#define BF16_MAX_DEPTH 1024
#define BF16_MAX_ROWS 256

/* Packs a whole panel of k elements, a multiple of the form's step, in either layout. */
typedef void (*bf16_packer)(bf16 *panel, const float *data, int64_t pitch, int64_t k);

struct bf16_layout {
	int lines, group;
	bf16_packer along, across; /* NULL: element by element */
};

struct bf16_form {
	const char *name;
	struct bf16_layout side[2];
	int step; /* k is padded to multiples of this, a multiple of both groups */
	/* The part of C that is made at a time: its panels stay in the second cache, one in the
	 * first. */
	int depth, rows, columns;
	const char *(*obstacle)(void);
	/* Set up the calling thread, and leave it as it was; NULL: nothing to do. */
	void (*begin)(void), (*end)(void);
	/* C of left lines x right lines = alpha A B + (add ? C : 0); k is a multiple of step. */
	void (*tile)(int64_t k, const bf16 *a, const bf16 *b, float alpha, bool add, float *c,
		     int64_t pitch);
};

extern const struct bf16_form bf16_amx, bf16_avx512, bf16_bfmmla, bf16_plain;

static inline float bf16_widen(bf16 x)
{
	const uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* To nearest, ties to even; a NaN stays one. */
static inline bf16 bf16_round(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (bf16)(bits >> 16 | 0x40);
	return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
