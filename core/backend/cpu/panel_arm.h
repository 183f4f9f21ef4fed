/*
 * panel_arm - what the tiles of Arm's forms share: 24 registers of sums, eight
 * for what they are made of.
 */
#ifndef CPU_PANEL_ARM_H
#define CPU_PANEL_ARM_H

#include <arm_neon.h>

#include "core/backend/cpu/panel_form.h"

#define ALWAYS static inline __attribute__((always_inline))

/* clang-format off */

#define CLEAR(s0, s1, s2, s3)                                                       \
	"movi v" #s0 ".4s, 0\nmovi v" #s1 ".4s, 0\nmovi v" #s2 ".4s, 0\nmovi v" #s3 ".4s, 0\n"
#define CLEAR_SUMS                                        \
	CLEAR(0, 1, 2, 3) CLEAR(4, 5, 6, 7) CLEAR(8, 9, 10, 11) \
	CLEAR(12, 13, 14, 15) CLEAR(16, 17, 18, 19) CLEAR(20, 21, 22, 23)

/* For the list of what the instructions change. */
#define ALL_REGISTERS                                                                              \
	"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
	"v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",     \
	"v28", "v29", "v30", "v31"

/* clang-format on */

ALWAYS void prefetch_tile(const float *c, int64_t pitch, int rows, int columns)
{
	for (int i = 0; i < rows; i++) {
		__builtin_prefetch(c + i * pitch, 1);
		__builtin_prefetch(c + i * pitch + columns - 1, 1);
	}
}

ALWAYS void put(float *c, float32x4_t sum, float alpha, bool add)
{
	const float32x4_t old = add ? vld1q_f32(c) : vdupq_n_f32(0);

	vst1q_f32(c, vfmaq_n_f32(old, sum, alpha));
}

#endif
