/*
 * panel_form - what one set of instructions brings to a product.
 *
 * A panel holds `lines` lines of a factor, `group` elements of each side by
 * side: element i of line l is at ((i / group) * lines + l) * group + i % group.
 * Lines and elements that the matrix lacks are zeros.
 */
#ifndef CPU_PANEL_FORM_H
#define CPU_PANEL_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/backend/cpu/panel.h"

/* Bounds over all forms. */
#define PANEL_MAX_LINES 32
#define PANEL_MAX_STEP 32
#define PANEL_MAX_DEPTH 1024
#define PANEL_MAX_ROWS 256

/* Packs a whole panel of k elements in either layout; k is a multiple of the form's step. */
typedef void (*panel_packer)(void *panel, const float *data, int64_t pitch, int64_t k);

/* One of them, of a function that packs any number of lines. */
#define PANEL_PACKER(name, pack, lines)                                            \
	static void name(void *panel, const float *data, int64_t pitch, int64_t k) \
	{                                                                          \
		pack(lines, panel, data, pitch, k);                                \
	}

enum panel_side { PANEL_LEFT, PANEL_RIGHT }; /* A, B */

struct panel_layout {
	int lines, group;
	panel_packer along, across;
};

struct panel_form {
	const char *name;
	enum panel_element element;
	bool rounded; /* the bfloat16 numbers are packed as floats */
	struct panel_layout side[2];
	int step; /* k is padded to multiples of this, a multiple of both groups */
	/* The part of C that is made at a time: its panels stay in the second cache, and one
	 * panel in the first. */
	int depth, rows, columns;
	const char *(*obstacle)(void); /* NULL: there is none */
	/* Set up the calling thread, and restore it; NULL: nothing to do. */
	void (*begin)(void), (*end)(void);
	/* C of left lines x right lines = alpha A B + (add ? C : 0); k is a multiple of step. */
	void (*tile)(int64_t k, const void *a, const void *b, float alpha, bool add, float *c,
		     int64_t pitch);
	/* Only the first columns of a tile, a multiple of 4; NULL: the form makes whole tiles. */
	void (*narrow)(int64_t k, const void *a, const void *b, float alpha, bool add, float *c,
		       int64_t pitch, int64_t columns);
	/*
	 * The first rows and columns of a tile, one or more of each.  A is not packed: its rows
	 * and elements are so far apart, one of both being 1; k is any.  NULL: there is no such.
	 */
	void (*part)(int64_t k, const float *a, int64_t row_step, int64_t element_step,
		     const void *b, float alpha, bool add, float *c, int64_t pitch, int64_t rows,
		     int64_t columns);
};

extern const struct panel_form bf16_amx, bf16_bfmmla, bf16_plain;
extern const struct panel_form bf16_rounded_avx512, bf16_rounded_avx2;
extern const struct panel_form f32_avx512, f32_avx2, f32_neon;

#endif
