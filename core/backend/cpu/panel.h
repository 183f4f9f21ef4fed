/*
 * panel - matrix products made of packed panels.
 *
 *     C [m,n] = alpha op(A) op(B) + (add ? C : 0),  m, n, k > 0
 *
 * A, B and C are row-major floats.  A form is a way to multiply on some
 * processor; its elements are floats, or every element of A and B is rounded
 * to the nearest bfloat16, ties to even.  Products are summed up in float.
 * The machine's instructions differ in the order and the rounding of these
 * sums, and bfloat16 instructions treat numbers below 2^-126 as zero.  So two
 * forms with the same elements agree to
 *
 *     |difference| <= PANEL_TOLERANCE k sum_i |a_i b_i|
 *
 * while one form gives the same bits on every run and for any number of threads.
 *
 * A matrix is packed before it is multiplied: rounded, and laid out in panels in
 * the order in which the instructions read it.  panel_pack() packs a matrix that is
 * used often; the product packs others itself, a block that fits in a cache at a
 * time.  Outside a parallel region all threads share the work of both; inside one,
 * even of a single thread, the calling thread works alone.
 */
#ifndef CPU_PANEL_H
#define CPU_PANEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

/* Half a unit in the last place of a float per sum, and as much again for forms that truncate. */
#define PANEL_TOLERANCE 0x1p-23

enum panel_element { PANEL_BF16, PANEL_F32 };

struct panel_form;

/* All forms with such elements, the fastest first, ended by NULL.  In bfloat16 the last one runs
 * everywhere; in float there may be none. */
const struct panel_form *const *panel_forms(enum panel_element element);

const char *panel_name(const struct panel_form *form);

/* NULL if this machine can run the form; else the reason why not. */
const char *panel_obstacle(const struct panel_form *form);

/* The fastest form that runs here; NULL: none does. */
const struct panel_form *panel_fastest(enum panel_element element);

/*
 * The form that an environment variable names, else the fastest.  NULL (only for
 * floats): there is none, or the variable says "blas".
 */
#define PANEL_BF16_VARIABLE "KABLATE_BF16"
#define PANEL_F32_VARIABLE "KABLATE_F32"
enum status panel_choose(const struct panel_form **form, enum panel_element element,
			 struct error *err) MUST_CHECK;

/* One factor: its lines, which are the rows of op(A) or the columns of op(B), have k elements. */
struct panel_factor {
	const float *data;
	int64_t pitch;
	bool across; /* element i of line l is data[i * pitch + l], else data[l * pitch + i] */
	/* B only: made by panel_pack(), of at least these lines and k; or NULL.  The few elements
	 * that follow k may be met by zeros of A, and so must be finite. */
	const void *packed;
	int64_t packed_lines, packed_k; /* as it was packed */
};

/*
 * Whether weights in bfloat16 are packed once per update, and kept beside the
 * floats.  With AMX a product packs them as fast as it would fetch a packed
 * copy: without copies an iteration of GPT-2 124M took 1849 ms instead of
 * 1875 and needed 541 MiB less (one core of a Xeon).
 */
#ifdef __x86_64__
#define PANEL_KEEPS_WEIGHTS false
#else
#define PANEL_KEEPS_WEIGHTS true
#endif

/* Bytes for a packed B, in any form with such elements. */
size_t panel_bytes(enum panel_element element, int64_t lines, int64_t k);
void panel_pack(const struct panel_form *form, int64_t lines, int64_t k,
		const struct panel_factor *from, void *packed);

/* Bytes of `work` that a product needs in any such form; `threads` share the product. */
size_t panel_work(enum panel_element element, int64_t m, int64_t n, int64_t k, bool b_packed,
		  int threads);
void panel_product(const struct panel_form *form, int64_t m, int64_t n, int64_t k, float alpha,
		   const struct panel_factor *a, const struct panel_factor *b, bool add, float *c,
		   int64_t pitch, void *work);

#endif
