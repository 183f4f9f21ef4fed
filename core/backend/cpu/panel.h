/*
 * bf16 - matrix products of numbers rounded to bfloat16.
 *
 *     C [m,n] = alpha op(A) op(B) + (add ? C : 0)
 *
 * A, B and C are row-major floats; every element of A and B is rounded to the
 * nearest bfloat16, ties to even, and the products, which are exact, are
 * summed up in float.  The machine's matrix instructions differ in the order
 * and the rounding of these sums and take numbers below 2^-126 for zero.  So
 * two forms agree to
 *
 *     |difference| <= BF16_TOLERANCE k sum_i |a_i b_i|
 *
 * while one form gives the same bits on every run and for any number of threads.
 *
 * Before it is multiplied a matrix is packed: rounded and laid out in panels
 * in the order in which the instructions read it.  What is used often is
 * packed once with bf16_pack(); the rest is packed, a block that fits in the
 * second cache at a time, inside the product.  Outside a parallel region both
 * share the work among all threads; inside one, even of a single thread, the
 * calling thread works alone.
 */
#ifndef CPU_BF16_H
#define CPU_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Half a unit in the last place of a float per sum, and as much again for forms that truncate. */
#define BF16_TOLERANCE 0x1p-23

struct bf16_form;

extern const struct bf16_form *const bf16_forms[]; /* the fastest first, plain last; NULL ends */

const char *bf16_name(const struct bf16_form *form);

/* Can this machine run it?  NULL: yes; else why not. */
const char *bf16_obstacle(const struct bf16_form *form);

/* The fastest form that runs here, or the one that the variable BF16_VARIABLE names. */
#define BF16_VARIABLE "KABLATE_BF16"
enum status bf16_choose(const struct bf16_form **form, struct error *err) MUST_CHECK;

/* One factor: its lines, which are the rows of op(A) or the columns of op(B), have k elements. */
struct bf16_factor {
	const float *data;
	int64_t pitch;
	bool across; /* element i of line l is data[i * pitch + l], else data[l * pitch + i] */
	const void *packed; /* made by bf16_pack(), of at least these lines and k; or NULL */
	int64_t packed_k;   /* the k it was packed with */
};

enum bf16_side { BF16_LEFT, BF16_RIGHT }; /* A, B */

/* Bytes for a packed factor, in any form. */
size_t bf16_packed_bytes(int64_t lines, int64_t k);
void bf16_pack(const struct bf16_form *form, enum bf16_side side, int64_t lines, int64_t k,
	       const struct bf16_factor *from, void *packed);

/* Bytes of `work` that a product wants in any form; pass the threads that share it. */
size_t bf16_work_bytes(int64_t m, int64_t n, int64_t k, bool b_packed, int threads);
void bf16_product(const struct bf16_form *form, int64_t m, int64_t n, int64_t k, float alpha,
		  const struct bf16_factor *a, const struct bf16_factor *b, bool add, float *c,
		  int64_t pitch, void *work);

#endif
