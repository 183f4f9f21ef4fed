/*
 * AMX: tiles of 16 rows hold 32 elements of A or 16 pairs of rows of B.
 */
#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/util/bf16.h"
#include "core/backend/cpu/panel_form.h"

enum { LINES = 32, STEP = 32, HALF = 16 }; /* HALF: floats in a vector, rows of a tile register */

#define ALWAYS static inline __attribute__((always_inline))
#define VECTOR_CODE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TILE_CODE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))

/* ----------------------------------------------------------------- packing */

/* Fetches what is packed next: rows of a matrix lie on different pages. */
VECTOR_CODE ALWAYS void prefetch(const float *from)
{
	_mm_prefetch((const char *)from, _MM_HINT_T0);
}

/* 32 neighbours. */
VECTOR_CODE ALWAYS __m512i narrow(const float *from)
{
	return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + HALF), _mm512_loadu_ps(from));
}

/* The pairs (low[i], high[i]). */
VECTOR_CODE ALWAYS __m512i narrow_pairs(const float *low, const float *high)
{
	const __m256i l = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(low));
	const __m256i h = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(high));

	return _mm512_or_si512(_mm512_cvtepu16_epi32(l),
			       _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* 16 x 16 numbers of 32 bits: within quarters first, then the quarters themselves. */
VECTOR_CODE ALWAYS void transpose(__m512i r[HALF])
{
	__m512i t[HALF];

	for (int i = 0; i < HALF; i += 2) {
		t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
	}
	for (int i = 0; i < HALF; i += 4) {
		r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
		r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
		r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
		r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
	}
	for (int j = 0; j < 4; j++) { /* 0x88: quarters 0 and 2 of either, 0xdd: 1 and 3 */
		t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
		t[4 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
		t[8 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
		t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
	}
	for (int j = 0; j < 4; j++) {
		r[j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88);
		r[4 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
		r[8 + j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xdd);
		r[12 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xdd);
	}
}

/* The left side has lines of 32 elements. */
VECTOR_CODE static void left_along(void *to, const float *data, int64_t pitch, int64_t k)
{
	bf16 *panel = to;

	for (int64_t i = 0; i < k; i += STEP)
		for (int l = 0; l < LINES; l++)
			_mm512_storeu_si512(panel + i * LINES + l * STEP,
					    narrow(data + l * pitch + i));
}

VECTOR_CODE static void left_across(void *to, const float *data, int64_t pitch, int64_t k)
{
	bf16 *panel = to;

	for (int64_t i = 0; i < k; i += STEP)
		for (int l = 0; l < LINES; l += HALF) {
			const float *from = data + i * pitch + l;
			__m512i r[HALF];

			for (int j = 0; j < HALF; j++) {
				prefetch(from + 2 * j * pitch + LINES);
				prefetch(from + (2 * j + 1) * pitch + LINES);
				r[j] = narrow_pairs(from + 2 * j * pitch,
						    from + (2 * j + 1) * pitch);
			}
			transpose(r);
			for (int j = 0; j < HALF; j++)
				_mm512_storeu_si512(panel + i * LINES + (l + j) * STEP, r[j]);
		}
}

/* The right side has pairs of elements of 32 lines. */
VECTOR_CODE static void right_along(void *to, const float *data, int64_t pitch, int64_t k)
{
	bf16 *panel = to;

	for (int64_t i = 0; i < k; i += STEP)
		for (int l = 0; l < LINES; l += HALF) {
			__m512i r[HALF];

			for (int j = 0; j < HALF; j++)
				r[j] = narrow(data + (l + j) * pitch + i);
			transpose(r);
			for (int j = 0; j < HALF; j++)
				_mm512_storeu_si512(panel + (i + 2 * j) * LINES + 2 * l, r[j]);
		}
}

VECTOR_CODE static void right_across(void *to, const float *data, int64_t pitch, int64_t k)
{
	bf16 *panel = to;

	for (int64_t i = 0; i < k; i += 2)
		for (int l = 0; l < LINES; l += HALF) {
			const float *from = data + i * pitch + l;

			prefetch(from + LINES);
			prefetch(from + pitch + LINES);
			_mm512_storeu_si512(panel + i * LINES + 2 * l,
					    narrow_pairs(from, from + pitch));
		}
}

/* ----------------------------------------------------------------- products */

VECTOR_CODE ALWAYS void put(float *c, __m512 sum, float alpha, bool add)
{
	const __m512 old = add ? _mm512_loadu_ps(c) : _mm512_setzero_ps();

	_mm512_storeu_ps(c, _mm512_fmadd_ps(sum, _mm512_set1_ps(alpha), old));
}

/* A program must ask Linux before it uses tiles (Documentation/x86/xstate.rst). */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

static const char *tile_obstacle(void)
{
	const unsigned tile = 1u << 24, multiply = 1u << 22; /* leaf 7, register D */
	unsigned a, b, c, d = 0;

	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
	    !__builtin_cpu_supports("avx512vl"))
		return "this processor has no AVX512-BF16 instructions";
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & tile) || !(d & multiply))
		return "this processor has no AMX-BF16 instructions";
	if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0)
		return "the kernel does not allow AMX tiles";
	return NULL;
}

/* All eight registers are 16 rows of 64 bytes: 0 to 3 sums, 4 and 5 of A, 6 and 7 of B. */
TILE_CODE static void tile_begin(void)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		config.row_bytes[i] = 64;
		config.rows[i] = HALF;
	}
	/* gcc 12's _tile_loadconfig() claims to read 8 bytes, so gcc would not write the rest. */
	__asm__ volatile("ldtilecfg %0" : : "m"(config));
}

TILE_CODE static void tile_end(void)
{
	_tile_release();
}

/* Sums += A B */
TILE_CODE ALWAYS void tile_sums(int64_t k, const bf16 *a, const bf16 *b)
{
	const int a_bytes = STEP * sizeof(*a), b_bytes = 2 * LINES * sizeof(*b);

	for (int64_t i = 0; i < k; i += STEP, a += LINES * STEP, b += LINES * STEP) {
		_tile_loadd(4, a, a_bytes);
		_tile_loadd(6, b, b_bytes);
		_tile_loadd(7, b + LINES, b_bytes);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(5, a + HALF * STEP, a_bytes);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
}

TILE_CODE ALWAYS void tile_store(float *c, int64_t pitch)
{
	const int64_t bytes = pitch * (int64_t)sizeof(*c);

	_tile_stored(0, c, bytes);
	_tile_stored(1, c + HALF, bytes);
	_tile_stored(2, c + HALF * pitch, bytes);
	_tile_stored(3, c + HALF * pitch + HALF, bytes);
}

TILE_CODE static void tile_multiply(int64_t k, const void *a, const void *b, float alpha, bool add,
				    float *c, int64_t pitch)
{
	const int64_t bytes = pitch * (int64_t)sizeof(*c);
	_Alignas(64) float sum[LINES * LINES];

	if (add && alpha == 1) {
		_tile_loadd(0, c, bytes);
		_tile_loadd(1, c + HALF, bytes);
		_tile_loadd(2, c + HALF * pitch, bytes);
		_tile_loadd(3, c + HALF * pitch + HALF, bytes);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	tile_sums(k, a, b);
	if (alpha == 1) {
		tile_store(c, pitch);
		return;
	}
	tile_store(sum, LINES);
	for (int r = 0; r < LINES; r++)
		for (int j = 0; j < LINES; j += HALF)
			put(c + r * pitch + j, _mm512_load_ps(sum + r * LINES + j), alpha, add);
}

const struct panel_form bf16_amx = {
	.name = "amx",
	.element = PANEL_BF16,
	.side = { [PANEL_LEFT] = { LINES, STEP, left_along, left_across },
		  [PANEL_RIGHT] = { LINES, 2, right_along, right_across } },
	.step = STEP,
	.depth = 512,
	.rows = 256,
	.columns = 512,
	.obstacle = tile_obstacle,
	.begin = tile_begin,
	.end = tile_end,
	.tile = tile_multiply,
};

#endif
