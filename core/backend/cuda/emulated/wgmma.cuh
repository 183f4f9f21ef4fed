/*
 * The emulated form of core/backend/cuda/primitives/wgmma.cuh: wgmma as the PTX ISA defines it,
 * with operands in the 128-byte swizzle.  Every thread computes its own elements.  Results are NaN
 * until they were waited for.
 */
#ifndef EMULATED_WGMMA_CUH
#define EMULATED_WGMMA_CUH

#include <array>

#include "core/backend/cuda/emulated/ptx.cuh"

#define HAS_WGMMA true

static inline uint64_t smem_descriptor(uint32_t at, int column)
{
	return (uint64_t)(uint32_t)column << 32 | at;
}

static inline uint64_t advance_descriptor(uint64_t factor, int bytes)
{
	return factor + (uint64_t)bytes;
}

/*
 * The element at a byte offset in an operand.  The swizzle xors bits 4 to 6 of the address with
 * bits 7 to 9.
 */
static inline float emulated_element_at(uint64_t factor, int offset, const char *file, int line)
{
	const uint32_t plain = (uint32_t)factor + (uint32_t)offset;
	__nv_bfloat16 x;

	memcpy(&x.bits, emulated::shared_at(plain ^ (plain >> 7 & 7) << 4, 2, file, line), 2);
	return (float)x;
}

/* Element k of a row, for an operand stored by rows. */
static inline float emulated_of_row(uint64_t factor, int row, int k, const char *file, int line)
{
	return emulated_element_at(factor, row * SWIZZLE_ROW_BYTES + 2 * k, file, line);
}

/* Element of a column in row k. */
static inline float emulated_of_column(uint64_t factor, int column, int k, const char *file,
				       int line)
{
	return emulated_element_at(
		factor, column / 64 * (int)(factor >> 32) + k * SWIZZLE_ROW_BYTES + column % 64 * 2,
		file, line);
}

static inline int emulated_row(int e)
{
	return emulated_lane() / 4 + 8 * (e / 2);
}

static inline int emulated_column(int n, int e)
{
	return 8 * n + 2 * (emulated_lane() % 4) + e % 2;
}

template <int COLUMNS>
static inline void wgmma(float (&x)[COLUMNS][4], uint64_t a, uint64_t b, int add, EMULATED_PLACE)
{
	const int first = (int)threadIdx.x / 32 % 4 * 16;
	const auto multiply = [=](float *sums) {
		for (int n = 0; n < COLUMNS; n++)
			for (int e = 0; e < 4; e++) {
				float sum = add ? sums[4 * n + e] : 0;

				for (int k = 0; k < 16; k++)
					sum += emulated_of_row(a, first + emulated_row(e), k, file,
							       line) *
					       emulated_of_row(b, emulated_column(n, e), k, file,
							       line);
				sums[4 * n + e] = sum;
			}
	};

	emulated::begin_product(x[0], 4 * COLUMNS, NULL, 0, multiply, file, line);
}

template <int COLUMNS>
static inline void wgmma(float (&x)[COLUMNS][4], const uint32_t (&a)[4], uint64_t b, EMULATED_PLACE)
{
	const struct emulated::message *all =
		emulated::exchange_in_warp(a, sizeof(a), NULL, file, line);
	std::array<std::array<float, 16>, 2> left;

	/* Lane q of the four of a row holds elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. */
	for (int k = 0; k < 16; k++) {
		const int lane = emulated_lane() / 4 * 4 + k % 8 / 2;
		const uint32_t *words = (const uint32_t *)all[lane].bytes;

		for (size_t half = 0; half < 2; half++)
			left[half][(size_t)k] = emulated_half(words[k / 8 * 2 + (int)half], k % 2);
	}
	const auto multiply = [=](float *sums) {
		for (int n = 0; n < COLUMNS; n++)
			for (int e = 0; e < 4; e++)
				for (int k = 0; k < 16; k++)
					sums[4 * n + e] +=
						left[(size_t)e / 2][(size_t)k] *
						emulated_of_column(b, emulated_column(n, e), k,
								   file, line);
	};

	emulated::begin_product(x[0], 4 * COLUMNS, a, sizeof(a), multiply, file, line);
}

static inline void wgmma_fence(void)
{
}

static inline void wgmma_commit(void)
{
	emulated::end_products();
}

template <int LEFT, int COLUMNS>
static inline void wgmma_wait(float (&x)[1][COLUMNS][4], EMULATED_PLACE)
{
	emulated::wait_for_products(x[0][0], LEFT, file, line);
}

static inline void fence_proxy_async(void)
{
}

#endif
