#include "core/util/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
/* Before version 16 clang knows the instructions only if the whole file may use them. */
#elif defined(__aarch64__) && \
	(!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_SHA2))
#define ARM_SHA
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

#include "core/util/file.h"

/* Round constants of SHA-256: first 32 bits of the fractional parts of cube roots of primes. */
static const uint32_t ROUND[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

/* Letter n of a .. h after k rounds: each round renames them instead of moving them. */
#define AFTER(k, n) s[((n) - (k)) & 7]

static void compress_block(uint32_t state[8], const uint8_t *block)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
		       (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;

		w[i] = w[i - 16] + a + w[i - 7] + b;
	}
	memcpy(s, state, sizeof(s));
	for (int i = 0; i < 64; i += 8)
#pragma GCC unroll 8
		for (int k = 0; k < 8; k++) {
			uint32_t a = AFTER(k, 0), e = AFTER(k, 4);
			uint32_t e1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
			uint32_t choose = (e & AFTER(k, 5)) ^ (~e & AFTER(k, 6));
			uint32_t t1 = AFTER(k, 7) + e1 + choose + ROUND[i + k] + w[i + k];
			uint32_t e0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
			uint32_t majority =
				(a & AFTER(k, 1)) ^ (a & AFTER(k, 2)) ^ (AFTER(k, 1) & AFTER(k, 2));

			AFTER(k, 3) += t1;
			AFTER(k, 7) = t1 + e0 + majority;
		}
	for (int i = 0; i < 8; i++)
		state[i] += s[i];
}

static void compress_plain(uint32_t state[8], const uint8_t *data, size_t blocks)
{
	for (; blocks > 0; blocks--, data += 64)
		compress_block(state, data);
}

/* ------------------------------------------------------- the processor's own instructions */

#if defined(__x86_64__)

#define FOR_SHA __attribute__((target("sha,sse4.1")))

/* The instructions keep the state as a, b, e, f and c, d, g, h, the first in the highest word. */
FOR_SHA static void compress_x86(uint32_t state[8], const uint8_t *data, size_t blocks)
{
	const __m128i turn = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
	const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
	const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
	__m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);

	for (; blocks > 0; blocks--, data += 64) {
		const __m128i abef_before = abef, cdgh_before = cdgh;
		__m128i w[4];

#pragma GCC unroll 16
		for (int i = 0; i < 16; i++) {
			__m128i *now = &w[i % 4], sum;

			if (i < 4) {
				*now = _mm_loadu_si128((const __m128i *)(data + 16 * i));
				*now = _mm_shuffle_epi8(*now, turn);
			} else {
				sum = _mm_sha256msg1_epu32(*now, w[(i + 1) % 4]);
				sum = _mm_add_epi32(
					sum, _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
				*now = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
			}
			sum = _mm_add_epi32(*now,
					    _mm_loadu_si128((const __m128i *)(ROUND + 4 * i)));
			cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
			abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
		}
		abef = _mm_add_epi32(abef, abef_before);
		cdgh = _mm_add_epi32(cdgh, cdgh_before);
	}
	abef = _mm_shuffle_epi32(abef, 0x1b);
	cdgh = _mm_shuffle_epi32(cdgh, 0xb1);
	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(abef, cdgh, 0xf0));
	_mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(cdgh, abef, 8));
}

static sha256_compress *fastest(void)
{
	unsigned a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) &&
			       __builtin_cpu_supports("sse4.1")
		       ? compress_x86
		       : compress_plain;
}

#elif defined(ARM_SHA)

#define HWCAP_BIT_SHA2 (1UL << 6) /* of the Linux kernel */

__attribute__((target("+crypto"))) static void compress_arm(uint32_t state[8], const uint8_t *data,
							    size_t blocks)
{
	uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);

	for (; blocks > 0; blocks--, data += 64) {
		const uint32x4_t abcd_before = abcd, efgh_before = efgh;
		uint32x4_t w[4];

#pragma GCC unroll 16
		for (int i = 0; i < 16; i++) {
			const uint32x4_t abcd_now = abcd;
			uint32x4_t *now = &w[i % 4], sum;

			if (i < 4)
				*now = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
			else
				*now = vsha256su1q_u32(vsha256su0q_u32(*now, w[(i + 1) % 4]),
						       w[(i + 2) % 4], w[(i + 3) % 4]);
			sum = vaddq_u32(*now, vld1q_u32(ROUND + 4 * i));
			abcd = vsha256hq_u32(abcd, efgh, sum);
			efgh = vsha256h2q_u32(efgh, abcd_now, sum);
		}
		abcd = vaddq_u32(abcd, abcd_before);
		efgh = vaddq_u32(efgh, efgh_before);
	}
	vst1q_u32(state, abcd);
	vst1q_u32(state + 4, efgh);
}

static sha256_compress *fastest(void)
{
	return getauxval(AT_HWCAP) & HWCAP_BIT_SHA2 ? compress_arm : compress_plain;
}

#else

static sha256_compress *fastest(void)
{
	return compress_plain;
}

#endif

/* ------------------------------------------------------------------------------- hashes */

void sha256_init_plain(struct sha256 *s)
{
	sha256_init(s);
	s->compress = compress_plain;
}

void sha256_init(struct sha256 *s)
{
	static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

	memcpy(s->state, start, sizeof(start));
	s->length = 0;
	s->compress = fastest();
}

void sha256_add(struct sha256 *s, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	while (size > 0) {
		size_t used = s->length % 64;
		size_t take = 64 - used < size ? 64 - used : size;

		if (used == 0 && size >= 64) {
			take = size / 64 * 64;
			s->compress(s->state, bytes, size / 64);
		} else {
			memcpy(s->block + used, bytes, take);
			if (used + take == 64)
				s->compress(s->state, s->block, 1);
		}
		s->length += take;
		bytes += take;
		size -= take;
	}
}

void sha256_hex(struct sha256 *s, char hex[SHA256_HEX_SIZE])
{
	uint64_t bits = s->length * 8;
	uint8_t tail[8];

	sha256_add(s, "\x80", 1);
	while (s->length % 64 != 56)
		sha256_add(s, "", 1);
	for (int i = 0; i < 8; i++)
		tail[i] = (uint8_t)(bits >> (56 - 8 * i));
	sha256_add(s, tail, sizeof(tail));
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", s->state[i]);
}

enum status sha256_file(const char *path, char hex[SHA256_HEX_SIZE], struct error *err)
{
	enum { PIECE = 1 << 20 };
	enum status status = FAIL;
	struct sha256 s;
	uint8_t *piece;
	FILE *file;
	size_t n;
	int fd;

	if (file_open(path, &fd, err) != OK)
		return FAIL;
	file = fdopen(fd, "rb");
	if (!file) {
		close(fd);
		return fail_errno(err, "cannot open %s", path);
	}
	piece = malloc(PIECE);
	if (!piece) {
		fail_memory(err, path, PIECE);
		goto close_file;
	}
	sha256_init(&s);
	while ((n = fread(piece, 1, PIECE, file)) > 0)
		sha256_add(&s, piece, n);
	if (ferror(file)) {
		fail_errno(err, "cannot read %s", path);
		goto free_piece;
	}
	sha256_hex(&s, hex);
	status = OK;
free_piece:
	free(piece);
close_file:
	fclose(file);
	return status;
}

uint64_t hash_text(const char *text)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * 0x100000001b3u;
	return h;
}
