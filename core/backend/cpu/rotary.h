/*
 * rotary - the rotations of rope: angles, and the pairs of a head that are rotated by them.
 */
#ifndef CORE_BACKEND_CPU_ROTARY_H
#define CORE_BACKEND_CPU_ROTARY_H

#include "core/backend/cpu/real.h"

/*
 * Sines and cosines are costly, so they are computed only for two short lists of
 * positions: past + 0, ROTATION_STEP, 2 ROTATION_STEP, .. and 0, 1, .., ROTATION_STEP - 1.  The
 * others follow by the addition theorem, in double.
 */
#define ROTATION_STEP 32

struct rotation {
	double cosine, sine;
};

static inline int64_t fine_positions(int64_t length)
{
	return length < ROTATION_STEP ? length : ROTATION_STEP;
}

static inline int64_t listed_positions(int64_t length)
{
	return fine_positions(length) + (length + ROTATION_STEP - 1) / ROTATION_STEP;
}

/* rotations [listed positions, width/2]: the fine ones, then the coarse ones */
static inline void list_rotations(double theta, int64_t width, int64_t past, int64_t length,
				  struct rotation *rotations)
{
	const int64_t half = width / 2, fine = fine_positions(length);

#pragma omp for schedule(static)
	for (int64_t p = 0; p < listed_positions(length); p++) {
		const double position = (double)(p < fine ? p : past + (p - fine) * ROTATION_STEP);

		for (int64_t i = 0; i < half; i++) {
			double angle = position * pow(theta, -2 * (double)i / (double)width);

			rotations[p * half + i] = (struct rotation){ cos(angle), sin(angle) };
		}
	}
}

/* All pairs at position past + t; `direction` is -1 for the gradient. */
static inline void rotations_at(const struct rotation *rotations, int64_t t, int64_t length,
				int64_t half, real direction, real *restrict cosine,
				real *restrict sine)
{
	const struct rotation *fine = rotations + t % ROTATION_STEP * half;
	const struct rotation *coarse =
		rotations + (fine_positions(length) + t / ROTATION_STEP) * half;

	for (int64_t i = 0; i < half; i++) {
		const struct rotation a = coarse[i], b = fine[i];

		cosine[i] = (real)(a.cosine * b.cosine - a.sine * b.sine);
		sine[i] = direction * (real)(a.sine * b.cosine + a.cosine * b.sine);
	}
}

/* y may be x. */
static inline void rotate(const real *x, const real *restrict cosine, const real *restrict sine,
			  int64_t half, real *y, bool add)
{
	if (add) {
#pragma omp simd
		for (int64_t i = 0; i < half; i++) {
			y[i] += x[i] * cosine[i] - x[i + half] * sine[i];
			y[i + half] += x[i + half] * cosine[i] + x[i] * sine[i];
		}
	} else {
#pragma omp simd
		for (int64_t i = 0; i < half; i++) {
			real u = x[i], v = x[i + half];

			y[i] = u * cosine[i] - v * sine[i];
			y[i + half] = v * cosine[i] + u * sine[i];
		}
	}
}

/* Bytes for the list and, for each thread, cosines and sines of a position. */
static inline size_t rotations_bytes(int64_t length, int64_t half, int threads)
{
	return (size_t)(listed_positions(length) * half) * sizeof(struct rotation) +
	       (size_t)threads * 2 * (size_t)half * sizeof(real);
}

#endif
