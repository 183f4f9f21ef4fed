/* Floats with AVX2 and FMA: 12 of 16 registers hold sums. */
#ifdef __x86_64__

#include <immintrin.h>

enum { ROWS = 6, VECTORS = 2, LANES = 8 };

#define EACH_ROWS(x) x(1) x(2) x(3) x(4) x(5) x(6)
#define CODE __attribute__((target("avx2,fma")))

typedef __m256 vector;
typedef __m256i mask;

#define zeros() _mm256_setzero_ps()
#define load(p) _mm256_loadu_ps(p)
#define broadcast(p) _mm256_set1_ps(*(p))
#define multiply_add(a, b, c) _mm256_fmadd_ps(a, b, c)
#define store(p, v) _mm256_storeu_ps(p, v)
#define first_lanes(n) \
	_mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define load_some(some, p) _mm256_maskload_ps(p, some)
#define store_some(some, p, v) _mm256_maskstore_ps(p, some, v)

#include "core/backend/cpu/f32_x86.h"

static const char *obstacle(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
		       ? NULL
		       : "this processor has no AVX2 and FMA instructions";
}

const struct panel_form f32_avx2 = { .name = "avx2", F32_PANELS, TILES };
const struct panel_form bf16_rounded_avx2 = { .name = "avx2-rounded", ROUNDED_PANELS, TILES };

#endif
