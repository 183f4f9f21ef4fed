/*
 * The emulated form of core/backend/cuda/primitives/ptx.cuh: ld.shared, ldmatrix, mma.sync,
 * cp.async and ex2 as the PTX ISA defines them.
 */
#ifndef EMULATED_INSTRUCTIONS_CUH
#define EMULATED_INSTRUCTIONS_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#define FLASH_BLOCKS_PER_SM 0  /* so that small tests reach the kernels for many blocks */
#define STORED_BYTES (3 << 18) /* three heads of 256 tokens in float */

/* --------------------------------------------------------------- shared memory */

static inline char *dynamic_smem(void)
{
	return emulated::shared_memory;
}

static inline uint32_t smem_address(const void *p)
{
	return (uint32_t)((const char *)p - emulated::shared_memory);
}

template <typename R, int N>
static inline void ld_shared_vec16(R (&x)[N], uint32_t address, EMULATED_PLACE)
{
	memcpy(x, emulated::shared_at(address, sizeof(x), file, line), sizeof(x));
}

static inline void st_shared_vec16(uint32_t address, uint4 x, EMULATED_PLACE)
{
	memcpy(emulated::shared_at(address, sizeof(x), file, line), &x, sizeof(x));
}

static inline void st_global_vec16(void *to, uint4 x)
{
	memcpy(to, &x, sizeof(x));
}

/* --------------------------------------------------------------- tensor cores */

static inline uint32_t pack_bf16x2(float low, float high)
{
	const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
	uint32_t both;

	memcpy(&both, &two, sizeof(both));
	return both;
}

/* A lane's elements of a [16, 16], b [8, 16] and d [16, 8]. */
struct emulated_fragments {
	uint32_t a[4], b[2];
	float d[4];
};

static inline float emulated_half(uint32_t two, int which)
{
	__nv_bfloat16 x;

	x.bits = (uint16_t)(which ? two >> 16 : two);
	return (float)x;
}

/* Element i of the lane's four of d. */
static inline float &emulated_result(float (&d)[16][8], int lane, int i)
{
	return d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
}

static inline void emulated_multiply(struct emulated::message *lanes)
{
	float a[16][16], b[16][8], d[16][8];

	for (int lane = 0; lane < EMULATED_LANES; lane++) {
		const auto *mine = (const struct emulated_fragments *)lanes[lane].bytes;
		const int group = lane / 4, pair = 2 * (lane % 4);

		for (int i = 0; i < 8; i++)
			a[group + 8 * (i / 2 % 2)][pair + i % 2 + 8 * (i / 4)] =
				emulated_half(mine->a[i / 2], i % 2);
		for (int i = 0; i < 4; i++)
			b[pair + i % 2 + 8 * (i / 2)][group] = emulated_half(mine->b[i / 2], i % 2);
		for (int i = 0; i < 4; i++)
			emulated_result(d, lane, i) = mine->d[i];
	}
	for (int row = 0; row < 16; row++)
		for (int k = 0; k < 16; k++)
			for (int column = 0; column < 8; column++)
				d[row][column] += a[row][k] * b[k][column];
	for (int lane = 0; lane < EMULATED_LANES; lane++)
		for (int i = 0; i < 4; i++)
			((struct emulated_fragments *)lanes[lane].bytes)->d[i] =
				emulated_result(d, lane, i);
}

static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
		       EMULATED_PLACE)
{
	struct emulated_fragments mine = { { a[0], a[1], a[2], a[3] }, { b0, b1 }, {} };
	const struct emulated::message *all;

	memcpy(mine.d, d, sizeof(d));
	all = emulated::exchange_in_warp(&mine, sizeof(mine), emulated_multiply, file, line);
	memcpy(d, ((const struct emulated_fragments *)all[emulated_lane()].bytes)->d, sizeof(d));
}

/* Element i of the two that a lane gets of an 8 x 8 matrix whose rows start at rows[]. */
static inline uint16_t emulated_element(const struct emulated::message *rows, int i,
					bool transposed)
{
	const int line = emulated_lane() / 4, position = 2 * (emulated_lane() % 4) + i;
	const char *row;
	uint16_t bits;

	memcpy(&row, rows[transposed ? position : line].bytes, sizeof(row));
	memcpy(&bits, row + 2 * (transposed ? line : position), sizeof(bits));
	return bits;
}

static inline void emulated_ldmatrix(uint32_t (&x)[4], uint32_t address, bool transposed,
				     const char *file, int line)
{
	const char *row = emulated::shared_at(address, 16, file, line);
	const struct emulated::message *all =
		emulated::exchange_in_warp(&row, sizeof(row), NULL, file, line);

	for (int i = 0; i < 4; i++)
		x[i] = emulated_element(all + 8 * i, 0, transposed) |
		       (uint32_t)emulated_element(all + 8 * i, 1, transposed) << 16;
}

static inline void ldmatrix(uint32_t (&x)[4], uint32_t address, EMULATED_PLACE)
{
	emulated_ldmatrix(x, address, false, file, line);
}

static inline void ldmatrix_trans(uint32_t (&x)[4], uint32_t address, EMULATED_PLACE)
{
	emulated_ldmatrix(x, address, true, file, line);
}

/* ------------------------------------------------------------------ arithmetic */

static inline float ex2_approx(float x)
{
	const float y = exp2f(x);

	return y < 0x1p-126f ? 0 : y;
}

static inline float rcp_approx(float x)
{
	return 1 / x;
}

static inline float lg2_approx(float x)
{
	return log2f(x);
}

static inline float sin_approx(float x)
{
	return sinf(x);
}

static inline float cos_approx(float x)
{
	return cosf(x);
}

/* --------------------------------------------------------------------- copies */

static inline void cp_async_vec16(uint32_t to, const void *from, bool valid, EMULATED_PLACE)
{
	emulated::begin_copy(to, valid ? from : NULL, 16, file, line);
}

template <typename R>
static inline void cp_async_element(uint32_t to, const R *from, bool valid, EMULATED_PLACE)
{
	emulated::begin_copy(to, valid ? from : NULL, sizeof(R), file, line);
}

static inline void cp_async_commit(void)
{
	emulated::end_group();
}

template <int LEFT> static inline void cp_async_wait(void)
{
	emulated::wait_for_cp_async(LEFT);
}

#endif
