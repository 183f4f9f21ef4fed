/*
 * blas - the only door to the BLAS library.
 *
 * Row-major C = alpha op(A) op(B) + beta C, where op transposes on request;
 * with beta 0 the old C is not read.  Inside an OpenMP parallel region only the
 * calling thread works.
 */
#ifndef CPU_BLAS_H
#define CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>

void blas_gemm_f32(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
		   const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
		   int64_t ldc);
void blas_gemm_f64(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha,
		   const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
		   double *c, int64_t ldc);

void blas_set_threads(int threads);

/* "OpenBLAS 0.3.21 neoversev1 openmp" */
#define BLAS_DESCRIPTION_TEXT 128
const char *blas_description(char text[BLAS_DESCRIPTION_TEXT]);

/* Address space that the library may still take for its buffers; it uses little of it. */
double blas_buffer_bytes(int threads);

/*
 * The library chooses its kernels while it loads.  If its choice does not fit the
 * CPU, this starts the program again with the right choice set (the user's own
 * setting wins).  Warns once if the library's threads compete with OpenMP's.  main()
 * calls this first.
 */
void blas_start(char **argv);

/* The instruction sets for which OpenBLAS has kernels of their own. */
struct cpu_features {
	bool avx2;   /* with fma */
	bool avx512; /* f, cd, bw, dq and vl: the set of Skylake-X */
	bool bf16;   /* avx512_bf16 */
};

/* The core that OpenBLAS should use on such a CPU instead of `core`; NULL: `core` fits. */
const char *blas_better_core(const char *core, const struct cpu_features *cpu);

#endif
