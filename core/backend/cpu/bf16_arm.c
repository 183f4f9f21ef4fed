/*
 * Arm's bfmmla: sums the product of 2 x 4 and 4 x 2 numbers to a square of
 * 2 x 2 floats.  A tile of 8 x 12 keeps 24 squares in registers and leaves 8
 * for what they are made of.
 */
#ifdef __aarch64__

#include <sys/auxv.h>

#include "core/util/bf16.h"
#include "core/backend/cpu/panel_arm.h"

enum { ROWS = 8, COLUMNS = 12, GROUP = 4, STEP = 8 };

#ifdef __clang__
#define BF16_CODE __attribute__((target("bf16")))
#else
#define BF16_CODE __attribute__((target("+bf16")))
#endif

/* Older versions of asm/hwcap.h lack this. */
#define HWCAP2_BIT_BF16 (1ul << 14)

static const char *obstacle(void)
{
	return getauxval(AT_HWCAP2) & HWCAP2_BIT_BF16 ? NULL
						      : "this processor has no bfmmla instruction";
}

/*
 * Instructions as text: gcc 12 and clang 14 have the intrinsics only if the whole file is
 * compiled for processors with these instructions.
 */
BF16_CODE ALWAYS uint16x8_t narrow(float32x4_t low, float32x4_t high)
{
	uint16x8_t both;

	__asm__("bfcvtn %0.4h, %1.4s" : "=w"(both) : "w"(low));
	__asm__("bfcvtn2 %0.8h, %1.4s" : "+w"(both) : "w"(high));
	return both;
}

/* --------------------------------------------------------------------- tile */

/* Two squares side by side are two rows of four. */
ALWAYS void put_squares(float *c, int64_t pitch, float32x4_t left, float32x4_t right, float alpha,
			bool add)
{
	const float64x2_t l = vreinterpretq_f64_f32(left), r = vreinterpretq_f64_f32(right);

	put(c, vreinterpretq_f32_f64(vzip1q_f64(l, r)), alpha, add);
	put(c + pitch, vreinterpretq_f32_f64(vzip2q_f64(l, r)), alpha, add);
}

/* clang-format off */

/* The square of row pair i, which register 24 + i holds, and column pair j is register 4 j + i. */
#define MULTIPLY(sum, a, b) "bfmmla v" #sum ".4s, v" #a ".8h, v" #b ".8h\n"
#define FOUR(s0, s1, s2, s3, a0, a1, b0, b1) \
	MULTIPLY(s0, a0, b0) MULTIPLY(s1, a1, b0) MULTIPLY(s2, a0, b1) MULTIPLY(s3, a1, b1)

/* Four elements, which are at these bytes of A and B. */
#define ADVANCE(a0, a1, b0, b1, b2)               \
	"ldp q28, q29, [%[b], " #b0 "]\n"         \
	"ldp q24, q25, [%[a], " #a0 "]\n"         \
	FOUR(0, 1, 4, 5, 24, 25, 28, 29)          \
	"ldp q26, q27, [%[a], " #a1 "]\n"         \
	"ldp q30, q31, [%[b], " #b1 "]\n"         \
	FOUR(2, 3, 6, 7, 26, 27, 28, 29)          \
	"ldp q28, q29, [%[b], " #b2 "]\n"         \
	FOUR(8, 9, 12, 13, 24, 25, 30, 31)        \
	FOUR(10, 11, 14, 15, 26, 27, 30, 31)      \
	FOUR(16, 17, 20, 21, 24, 25, 28, 29)      \
	FOUR(18, 19, 22, 23, 26, 27, 28, 29)

#define STORE(s0, s1, s2, s3, at) \
	"stp q" #s0 ", q" #s1 ", [%[sum], " #at "]\nstp q" #s2 ", q" #s3 ", [%[sum], " #at " + 32]\n"

/*
 * All in one piece: written in any other way, the loop makes compilers run out of
 * registers.  In this order it reaches 303 of the 331 GFLOP/s of bfmmla alone; with
 * all loads first it reaches 278 (one core of a Neoverse V1, panels of 1024).
 */
BF16_CODE static void tile(int64_t k, const void *a, const void *b, float alpha, bool add, float *c,
			   int64_t pitch)
{
	float32x4_t sum[COLUMNS / 2][ROWS / 2];

	prefetch_tile(c, pitch, ROWS, COLUMNS);
	__asm__ volatile(
		CLEAR_SUMS
		"1:\n"
		ADVANCE(0, 32, 0, 32, 64)
		"subs %[k], %[k], 8\n"
		ADVANCE(64, 96, 96, 128, 160)
		"add %[a], %[a], 128\n"
		"add %[b], %[b], 192\n"
		"b.ne 1b\n"
		STORE(0, 1, 2, 3, 0) STORE(4, 5, 6, 7, 64) STORE(8, 9, 10, 11, 128)
		STORE(12, 13, 14, 15, 192) STORE(16, 17, 18, 19, 256) STORE(20, 21, 22, 23, 320)
		: [k] "+&r"(k), [a] "+&r"(a), [b] "+&r"(b)
		: [sum] "r"(sum)
		: "cc", "memory", ALL_REGISTERS);
	for (int i = 0; i < ROWS / 2; i++)
		for (int j = 0; j < COLUMNS / 2; j += 2)
			put_squares(c + 2 * i * pitch + 2 * j, pitch, sum[j][i], sum[j + 1][i],
				    alpha, add);
}

/* clang-format on */

/* ------------------------------------------------------------------ packing */

BF16_CODE ALWAYS void pack_along(int lines, bf16 *panel, const float *data, int64_t pitch,
				 int64_t k)
{
	for (int64_t i = 0; i < k; i += GROUP)
#pragma GCC unroll 6
		for (int l = 0; l < lines; l += 2)
			vst1q_u16(panel + i * lines + l * GROUP,
				  narrow(vld1q_f32(data + l * pitch + i),
					 vld1q_f32(data + (l + 1) * pitch + i)));
}

/* Four elements of four lines, from columns to rows. */
BF16_CODE ALWAYS void pack_square(bf16 *to, const float *from, int64_t pitch)
{
	const uint16x8_t even = narrow(vld1q_f32(from), vld1q_f32(from + 2 * pitch));
	const uint16x8_t odd = narrow(vld1q_f32(from + pitch), vld1q_f32(from + 3 * pitch));
	const uint32x4_t first = vreinterpretq_u32_u16(vzip1q_u16(even, odd)); /* elements 0, 1 */
	const uint32x4_t last = vreinterpretq_u32_u16(vzip2q_u16(even, odd));  /* elements 2, 3 */

	vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(first, last)));
	vst1q_u16(to + 2 * GROUP, vreinterpretq_u16_u32(vzip2q_u32(first, last)));
}

BF16_CODE ALWAYS void pack_across(int lines, bf16 *panel, const float *data, int64_t pitch,
				  int64_t k)
{
	for (int64_t i = 0; i < k; i += GROUP)
		for (int l = 0; l < lines; l += 4)
			pack_square(panel + i * lines + l * GROUP, data + i * pitch + l, pitch);
}

BF16_CODE PANEL_PACKER(left_along, pack_along, ROWS)
BF16_CODE PANEL_PACKER(left_across, pack_across, ROWS)
BF16_CODE PANEL_PACKER(right_along, pack_along, COLUMNS)
BF16_CODE PANEL_PACKER(right_across, pack_across, COLUMNS)

	const struct panel_form bf16_bfmmla = {
		.name = "bfmmla",
		.element = PANEL_BF16,
		.side = { [PANEL_LEFT] = { ROWS, GROUP, left_along, left_across },
			  [PANEL_RIGHT] = { COLUMNS, GROUP, right_along, right_across } },
		.step = STEP,
		.depth = 1024,
		.rows = 256,
		.columns = 120,
		.obstacle = obstacle,
		.tile = tile,
	};

#endif
