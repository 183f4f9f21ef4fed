/*
 * one_query - attention of one query per example, the shape of a decoding step.
 *
 * Reading keys and values once takes the time.  So threads share them by tokens (one
 * thread gets all heads of a token), not by heads.  All threads of a parallel region
 * call these functions.
 */
#ifndef CPU_ONE_QUERY_H
#define CPU_ONE_QUERY_H

#include "core/backend/cpu/scores.h"
#include "core/backend/cpu/elementwise.h"

/* Heads that read one key are worth a product of matrices from this number on. */
#define MANY_HEADS 4

struct one_query {
	real *score;		/* [B,H,pitch], of all threads */
	real *cross, *key_bias; /* [pitch], of the thread */
	int64_t pitch;
};

static inline struct one_query one_query_take(struct space *shared, struct space *own,
					      int64_t heads, int64_t capacity)
{
	const int64_t pitch = tile_pitch(capacity);

	return (struct one_query){
		.score = space_take(shared, heads * pitch),
		.cross = space_take(own, pitch),
		.key_bias = space_take(own, pitch),
		.pitch = pitch,
	};
}

/* A vector of the processor, at addresses that need not be aligned. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef real vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

#define SIDE 4 /* heads and keys whose 16 sums are made together: a load serves 4 products */

/*
 * y[h,j] = scale q_h.k_j for SIDE heads and SIDE keys of `width` channels.  The library's
 * product takes twice as long for the 12 heads of GPT-2.
 */
static inline void scores_of_square(const real *q, int64_t q_pitch, const real *k, int64_t k_pitch,
				    int64_t width, real scale, real *y, int64_t y_pitch)
{
	const int64_t lanes = VECTOR_BYTES / (int64_t)sizeof(real), whole = width - width % lanes;
	vector sum[SIDE][SIDE] = { 0 };

	for (int64_t i = 0; i < whole; i += lanes)
		for (int h = 0; h < SIDE; h++)
			for (int j = 0; j < SIDE; j++)
				sum[h][j] += *(const vector *)(q + h * q_pitch + i) *
					     *(const vector *)(k + j * k_pitch + i);
	for (int h = 0; h < SIDE; h++)
		for (int j = 0; j < SIDE; j++) {
			real total = 0;

			for (int64_t l = 0; l < lanes; l++)
				total += sum[h][j][l];
			for (int64_t i = whole; i < width; i++)
				total += q[h * q_pitch + i] * k[j * k_pitch + i];
			y[h * y_pitch + j] = scale * total;
		}
}

/* The same for any number of heads and keys. */
static inline void scores_of_group(const real *q, int64_t q_pitch, int64_t heads, const real *k,
				   int64_t k_pitch, int64_t keys, int64_t width, real scale,
				   real *y, int64_t y_pitch)
{
	const int64_t h_whole = heads - heads % SIDE, j_whole = keys - keys % SIDE;

	for (int64_t j = 0; j < j_whole; j += SIDE)
		for (int64_t h = 0; h < h_whole; h += SIDE)
			scores_of_square(q + h * q_pitch, q_pitch, k + j * k_pitch, k_pitch, width,
					 scale, y + h * y_pitch + j, y_pitch);
	for (int64_t h = 0; h < heads; h++)
		for (int64_t j = h < h_whole ? j_whole : 0; j < keys; j++)
			y[h * y_pitch + j] = scale * dot(q + h * q_pitch, k + j * k_pitch, width);
}

/* score = scale q.k of the thread's tokens, then a barrier. */
static inline void one_query_products(const struct one_query *x, const struct scores *s)
{
	const struct heads *ql = &s->q_layout, *kl = &s->k_layout;
	const real scale = (real)s->attr->scale;
	int64_t from, to;

	thread_share(s->past + 1, &from, &to);
	for (int64_t b = 0; b < s->B && from < to; b++) {
		const real *q = s->q + head_offset(ql, b, 0, 0);
		real *score = x->score + b * s->H * x->pitch;

		if (kl->sharing >= MANY_HEADS)
			for (int64_t h = 0; h < s->H; h += kl->sharing)
				scores_of_group(q + h * ql->width, ql->width, kl->sharing,
						s->k + head_offset(kl, b, h, from), kl->pitch,
						to - from, ql->width, scale,
						score + h * x->pitch + from, x->pitch);
		else
			for (int64_t j = from; j < to; j++)
				for (int64_t h = 0; h < s->H; h++)
					score[h * x->pitch + j] =
						scale * dot(q + h * ql->width,
							    s->k + head_offset(kl, b, h, j),
							    ql->width);
	}
#pragma omp barrier
}

/* The finished scores of one head, padded as tile_row() does. */
static inline real *one_query_row(const struct one_query *x, const struct scores *s, int64_t head)
{
	const struct heads *kl = &s->k_layout, *rl = &s->recent_layout;
	const int64_t b = head / s->H, h = head % s->H, i = s->past;
	const struct tile t = {
		.score = x->score + head * x->pitch,
		.cross = x->cross,
		.key_bias = x->key_bias,
		.pitch = x->pitch,
		.h = h,
	};

	for (int64_t j = 0; s->key_bias && j <= i; j++)
		x->key_bias[j] = s->key_bias[head_offset(&s->bias_layout, b, h, j)];
	for (int64_t j = band_start(&t, s, i); s->attr->band_window >= 0 && j <= i; j++)
		x->cross[j] = (real)s->attr->scale *
			      dot(s->recent + head_offset(rl, b, h, j - s->recent_first),
				  s->k + head_offset(kl, b, h, i), kl->width);
	return tile_row(&t, s, 0);
}

/* sum [B,H,D] = the thread's part of sum_j p_j v_j, p in score. */
static inline void one_query_values(const struct one_query *x, const struct scores *s,
				    const struct heads *vl, const real *v, real *sum)
{
	const int64_t D = vl->width;
	int64_t from, to;

	thread_share(s->past + 1, &from, &to);
	row_clear(sum, 0, s->B * s->H * D);
	for (int64_t b = 0; b < s->B && from < to; b++) {
		const real *p = x->score + b * s->H * x->pitch;
		real *o = sum + b * s->H * D;

		if (vl->sharing >= MANY_HEADS)
			for (int64_t h = 0; h < s->H; h += vl->sharing)
				gemm(false, false, vl->sharing, D, to - from, 1,
				     p + h * x->pitch + from, x->pitch,
				     v + head_offset(vl, b, h, from), vl->pitch, 0, o + h * D, D);
		else
			for (int64_t j = from; j < to; j++)
				for (int64_t h = 0; h < s->H; h++)
					put_scaled(o + h * D, true, p[h * x->pitch + j],
						   v + head_offset(vl, b, h, j), D);
	}
}

#endif
