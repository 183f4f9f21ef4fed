#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <omp.h>

#include "core/backend/cpu/cpu.h"
#include "core/backend/cpu/panel.h"
#include "core/backend/cpu/blas.h"

#define ALIGNMENT 64 /* a cache line */
#define HUGE_PAGE ((size_t)2 << 20)

/* Weak: an op without a kernel is NULL in the tables. */
#define X(name)                                                                               \
	extern __attribute__((weak)) const struct kernels cpu_##name##_f32, cpu_##name##_f64, \
		cpu_##name##_bf16;
OP_LIST(X)
#undef X

static const struct kernels *const kernels_f32[OP_COUNT] = {
#define X(name) [OP_##name] = &cpu_##name##_f32,
	OP_LIST(X)
#undef X
};

static const struct kernels *const kernels_f64[OP_COUNT] = {
#define X(name) [OP_##name] = &cpu_##name##_f64,
	OP_LIST(X)
#undef X
};

static const struct kernels *const kernels_bf16[OP_COUNT] = {
#define X(name) [OP_##name] = &cpu_##name##_bf16,
	OP_LIST(X)
#undef X
};

static const struct kernels *const *cpu_kernels(enum dtype type)
{
	return type == F32 ? kernels_f32 : type == F64 ? kernels_f64 : NULL;
}

static const struct kernels *const *cpu_kernels_bf16(enum dtype type)
{
	return type == F32 ? kernels_bf16 : cpu_kernels(type);
}

extern const struct optim_kernels cpu_optim_f32, cpu_optim_f64;

static const struct optim_kernels *cpu_optim(enum dtype type)
{
	return type == F32 ? &cpu_optim_f32 : &cpu_optim_f64;
}

static void *cpu_alloc(const struct backend *b, size_t bytes)
{
	const size_t unit = bytes < HUGE_PAGE ? ALIGNMENT : HUGE_PAGE;
	const size_t rounded = (bytes + unit - 1) / unit * unit;
	void *memory;

	(void)b;
	if (rounded < bytes)
		return NULL;
	memory = aligned_alloc(unit, rounded ? rounded : unit);
	if (!memory)
		return NULL;
	/* Only a hint: huge pages save time and change no result. */
	if (unit == HUGE_PAGE)
		madvise(memory, rounded, MADV_HUGEPAGE);
	memset(memory, 0, rounded);
	return memory;
}

static void cpu_release(const struct backend *b, void *memory)
{
	(void)b;
	free(memory);
}

static void cpu_copy(const struct backend *b, void *to, const void *from, size_t bytes)
{
	(void)b;
	memcpy(to, from, bytes);
}

static void cpu_zero(const struct backend *b, void *memory, size_t bytes)
{
	(void)b;
	memset(memory, 0, bytes);
}

static double element(const void *memory, enum dtype type, int64_t i)
{
	return type == F32 ? (double)((const float *)memory)[i] : ((const double *)memory)[i];
}

static int64_t cpu_find_nonfinite(const struct backend *b, const void *memory, enum dtype type,
				  int64_t rows, int64_t row, int64_t pitch)
{
	(void)b;
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < row; j++)
			if (!isfinite(element(memory, type, i * pitch + j)))
				return i * row + j;
	return -1;
}

/* The kernels read the run where it is. */
static void cpu_begin_run(const struct backend *b, const struct run *runs)
{
	(void)b, (void)runs;
}

/* Copies are panels of bfloat16, slice by slice: gemm.h says of what. */
static void copy_param(const struct backend *b, const struct param *p, int which, const float *data,
		       void *copy)
{
	const int64_t rows = p->dim[p->ndim - 2], columns = p->dim[p->ndim - 1];
	const int64_t lines = which ? rows : columns, k = which ? columns : rows;
	const size_t bytes = panel_bytes(PANEL_BF16, lines, k);

	for (int64_t i = 0; i < p->count / (rows * columns); i++) {
		const struct panel_factor from = {
			.data = data + i * rows * columns,
			.pitch = columns,
			.across = which == 0,
		};

		panel_pack(cpu_form(b), lines, k, &from, (char *)copy + (size_t)i * bytes);
	}
}

static void cpu_copy_params(const struct backend *b, const struct params *p)
{
	for (int i = 0; i < p->n; i++)
		for (int which = 0; which < PARAM_COPIES; which++)
			if (p->list[i].copy[which].memory)
				copy_param(b, &p->list[i], which,
					   (const float *)p->data + p->list[i].offset,
					   p->list[i].copy[which].memory);
}

static void cpu_collect(const struct backend *b, enum dtype type, const void *const *from, int n,
			double *to)
{
	(void)b;
	for (int i = 0; i < n; i++)
		to[i] = element(from[i], type, 0);
}

/* Every call finishes its work and cannot fail later. */
static enum status cpu_done(const struct backend *b, struct error *err)
{
	(void)b, (void)err;
	return OK;
}

/* "OpenBLAS 0.3.21 neoversev1 openmp, bfloat16 by bfmmla" */
static void cpu_describe(const struct backend *b, char *text, size_t size)
{
	const struct panel_form *form = cpu_form(b);
	char blas[BLAS_DESCRIPTION_TEXT];

	blas_description(blas);
	snprintf(text, size, "%s%s%s%s%s", blas, form ? ", " : "",
		 form ? precision_names[b->precision] : "", form ? " by " : "",
		 form ? panel_name(form) : "");
}

static void cpu_close(struct backend *b)
{
	(void)b;
}

/* A form is constant; the context of other devices is not. */
static void *form_context(const struct panel_form *form)
{
	return (void *)(uintptr_t)form;
}

struct backend backend_cpu(int threads)
{
	omp_set_dynamic(0);
	omp_set_num_threads(threads);
	blas_set_threads(threads);
	return (struct backend){
		.name = "cpu",
		.threads = threads,
		.units = threads,
		.context = form_context(panel_fastest(PANEL_F32)),
		.kernels = cpu_kernels,
		.optim = cpu_optim,
		.alloc = cpu_alloc,
		.release = cpu_release,
		.upload = cpu_copy,
		.download = cpu_copy,
		.zero = cpu_zero,
		.find_nonfinite = cpu_find_nonfinite,
		.begin_run = cpu_begin_run,
		.copy_params = cpu_copy_params,
		.collect = cpu_collect,
		.describe = cpu_describe,
		.check = cpu_done,
		.wait = cpu_done,
		.close = cpu_close,
	};
}

enum status backend_cpu_open(struct backend *b, enum precision precision, int threads,
			     struct error *err)
{
	const struct panel_form *form;

	if (precision_stores(precision))
		return fail(err,
			    "the CPU keeps activations in float32: only a GPU can keep them in "
			    "bfloat16");
	*b = backend_cpu(threads);
	b->precision = precision;
	if (precision == BFLOAT16)
		b->kernels = cpu_kernels_bf16;
	if (panel_choose(&form, precision == BFLOAT16 ? PANEL_BF16 : PANEL_F32, err) != OK)
		return FAIL;
	b->context = form_context(form);
	return OK;
}
