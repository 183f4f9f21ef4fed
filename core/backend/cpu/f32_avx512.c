/* Floats with AVX-512: 28 of 32 registers hold sums. */
#ifdef __x86_64__

#include <immintrin.h>

enum { ROWS = 14, VECTORS = 2, LANES = 16 };

#define EACH_ROWS(x) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14)
#define CODE __attribute__((target("avx512f")))

typedef __m512 vector;
typedef __mmask16 mask;

#define zeros() _mm512_setzero_ps()
#define load(p) _mm512_loadu_ps(p)
#define broadcast(p) _mm512_set1_ps(*(p))
#define multiply_add(a, b, c) _mm512_fmadd_ps(a, b, c)
#define store(p, v) _mm512_storeu_ps(p, v)
#define first_lanes(n) ((mask)((1u << (n)) - 1))
#define load_some(some, p) _mm512_maskz_loadu_ps(some, p)
#define store_some(some, p, v) _mm512_mask_storeu_ps(p, some, v)

#include "core/backend/cpu/f32_x86.h"

static const char *obstacle(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512f") ? NULL
						 : "this processor has no AVX-512 instructions";
}

const struct panel_form f32_avx512 = { .name = "avx512f", F32_PANELS, TILES };
const struct panel_form bf16_rounded_avx512 = { .name = "avx512f-rounded", ROUNDED_PANELS, TILES };

#endif
