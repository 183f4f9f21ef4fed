/*
 * product - the matrix product of the kernel templates.
 *
 *     C [m,n] = alpha op(A) op(B) + beta C,  beta 0 or 1
 *
 * The BLAS multiplies doubles.  panel.h multiplies in bfloat16, and floats if it
 * has a form for the machine.  It needs workspace, and packs a B that several
 * products read only once.  In bfloat16 it also packs parameters only once, where
 * that pays (PANEL_KEEPS_WEIGHTS); in float the copies would take as much memory
 * as the moments of the optimizer.  The BLAS packs for itself: there the sizes are
 * zero, and `struct packed` is empty.
 */
#ifndef CORE_BACKEND_CPU_GEMM_H
#define CORE_BACKEND_CPU_GEMM_H

#include "core/backend/cpu/cpu.h"
#include "core/backend/cpu/panel.h"
#include "core/backend/cpu/real.h"

#if defined(REAL_BF16)
#define ELEMENT PANEL_BF16
#elif defined(REAL_F32)
#define ELEMENT PANEL_F32
#endif

/* Who multiplies. */
struct multiplier {
	const struct panel_form *form; /* NULL: the BLAS */
	void *work;		       /* product_work() bytes */
};

/* A packed B, or a part of one that begins with its first column and its first row. */
struct packed {
	const void *panels; /* NULL: not packed */
	int64_t n, k;
};

#ifdef ELEMENT

static inline size_t product_work(int64_t m, int64_t n, int64_t k, bool b_packed, int threads)
{
	return panel_work(ELEMENT, m, n, k, b_packed, threads);
}

static inline void product(const struct multiplier *by, struct packed packed, bool trans_a,
			   bool trans_b, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
			   int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc)
{
	const struct panel_factor left = { .data = a, .pitch = lda, .across = trans_a };
	const struct panel_factor right = {
		.data = b,
		.pitch = ldb,
		.across = !trans_b,
		.packed = packed.panels,
		.packed_lines = packed.n,
		.packed_k = packed.k,
	};

	if (by->form)
		panel_product(by->form, m, n, k, alpha, &left, &right, beta != 0, c, ldc, by->work);
	else
		gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static inline size_t packed_bytes(int64_t n, int64_t k)
{
	return panel_bytes(ELEMENT, n, k);
}

static inline struct packed pack(const struct multiplier *by, bool trans_b, int64_t n, int64_t k,
				 const real *b, int64_t ldb, void *panels)
{
	const struct panel_factor right = { .data = b, .pitch = ldb, .across = !trans_b };

	if (by->form)
		panel_pack(by->form, n, k, &right, panels);
	return (struct packed){ .panels = panels, .n = n, .k = k };
}

#else

static inline size_t product_work(int64_t m, int64_t n, int64_t k, bool b_packed, int threads)
{
	(void)m, (void)n, (void)k, (void)b_packed, (void)threads;
	return 0;
}

static inline void product(const struct multiplier *by, struct packed packed, bool trans_a,
			   bool trans_b, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
			   int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc)
{
	(void)by, (void)packed;
	gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static inline size_t packed_bytes(int64_t n, int64_t k)
{
	(void)n, (void)k;
	return 0;
}

static inline struct packed pack(const struct multiplier *by, bool trans_b, int64_t n, int64_t k,
				 const real *b, int64_t ldb, void *panels)
{
	(void)by, (void)trans_b, (void)n, (void)k, (void)b, (void)ldb, (void)panels;
	return (struct packed){ 0 };
}

#endif

#define NOT_PACKED ((struct packed){ 0 })

static inline bool keeps_copies(const struct tensor *w)
{
#ifdef REAL_BF16
	return PANEL_KEEPS_WEIGHTS && w->kind == TENSOR_PARAM;
#else
	(void)w;
	return false;
#endif
}

/*
 * Copy 0 of a parameter [..,R,C] is B = W, with k = R and n = C; copy 1
 * is B = W', with k = C and n = R; for each of its leading slices one.  The
 * backend's copy_params() makes them.
 */
static inline size_t slice_bytes(const struct tensor *w, int which)
{
	const int64_t rows = tensor_dim(w, -2), columns = tensor_dim(w, -1);

	return which == 0 ? packed_bytes(columns, rows) : packed_bytes(rows, columns);
}

/* Only the weight, input 1, has copies. */
static inline size_t copy_bytes(const struct node *n, int input, int which)
{
	const struct tensor *w = n->in[1];
	const int64_t slice = tensor_dim(w, -2) * tensor_dim(w, -1);

	return input == 1 && keeps_copies(w)
		       ? (size_t)(tensor_count(w) / slice) * slice_bytes(w, which)
		       : 0;
}

/* A slice of a copy; not packed if there is no copy. */
static inline struct packed copy_slice(const struct call *c, int which, int64_t slice)
{
	const struct tensor *w = c->node->in[1];
	const struct param_copy *s = c->copy[1][which];

	if (!s)
		return NOT_PACKED;
	return (struct packed){
		.panels = (const char *)s->memory + (size_t)slice * slice_bytes(w, which),
		.n = tensor_dim(w, which ? -2 : -1),
		.k = tensor_dim(w, which ? -1 : -2),
	};
}

static inline struct packed packed_copy(const struct call *c, int which)
{
	return copy_slice(c, which, 0);
}

static inline struct multiplier multiplier_of(const struct call *c, void *work)
{
	return (struct multiplier){ .form = cpu_form(c->backend), .work = work };
}

#endif
