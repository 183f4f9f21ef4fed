#include "core/backend/cpu/bf16.h"

#include <assert.h>
#include <stdlib.h>

#include <omp.h>

#include "core/backend/cpu/bf16_form.h"

#define ALIGNMENT 64 /* a cache line */

/* The right factor is packed up to this many k at a time: bounds the workspace, C is seldom reread.
 */
#define CHUNK 4096

#define SLICE 32    /* elements of a line, a multiple of every form's step */
#define GRAIN 16384 /* packing fewer elements is not worth waking the other threads */

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t step)
{
	return (n + step - 1) / step * step;
}

/* ------------------------------------------------------------------- forms */

const struct bf16_form *const bf16_forms[] = {
#ifdef __x86_64__
	&bf16_amx,    &bf16_avx512,
#endif
#ifdef __aarch64__
	&bf16_bfmmla,
#endif
	&bf16_plain,  NULL,
};

const char *bf16_name(const struct bf16_form *form)
{
	return form->name;
}

const char *bf16_obstacle(const struct bf16_form *form)
{
	return form->obstacle ? form->obstacle() : NULL;
}

static enum status choose_by_name(const struct bf16_form **form, const char *name,
				  struct error *err)
{
	for (int i = 0; bf16_forms[i]; i++) {
		if (strcmp(bf16_forms[i]->name, name) != 0)
			continue;
		if (bf16_obstacle(bf16_forms[i]))
			return fail(err, BF16_VARIABLE "=%s: %s", name,
				    bf16_obstacle(bf16_forms[i]));
		*form = bf16_forms[i];
		return OK;
	}
	return fail(err, BF16_VARIABLE "=%s: this program has no such form", name);
}

enum status bf16_choose(const struct bf16_form **form, struct error *err)
{
	const char *name = getenv(BF16_VARIABLE);

	if (name && *name)
		return choose_by_name(form, name, err);
	for (int i = 0; bf16_forms[i]; i++)
		if (!bf16_obstacle(bf16_forms[i])) {
			*form = bf16_forms[i];
			return OK;
		}
	return fail(err, "no form of the bfloat16 product runs on this machine");
}

/* ----------------------------------------------------------------- packing */

static float element(const struct bf16_factor *from, int64_t line, int64_t i)
{
	return from->across ? from->data[i * from->pitch + line]
			    : from->data[line * from->pitch + i];
}

/* From one element of a line to the next. */
static int64_t step_of(const struct bf16_factor *from)
{
	return from->across ? from->pitch : 1;
}

/* Elements [first, padded) of a panel whose lines begin at `line`, one by one. */
static void pack_slowly(const struct bf16_layout *l, const struct bf16_factor *from, int64_t line,
			int64_t lines, int64_t first, int64_t k, int64_t padded, bf16 *panel)
{
	for (int64_t i = first; i < padded; i++)
		for (int64_t j = 0; j < l->lines; j++)
			panel[(i / l->group * l->lines + j) * l->group + i % l->group] =
				i < k && j < lines ? bf16_round(element(from, line + j, i)) : 0;
}

/* Elements [first, first + k) of one panel, whose lines begin at `line`. */
static void pack_panel(const struct bf16_form *form, enum bf16_side side,
		       const struct bf16_factor *from, int64_t line, int64_t lines, int64_t first,
		       int64_t k, bf16 *panel)
{
	const struct bf16_layout *l = &form->side[side];
	const bf16_packer packer = from->across ? l->across : l->along;
	const float *data =
		&from->data[from->across ? first * from->pitch + line : line * from->pitch + first];
	int64_t whole = 0;

	if (packer && lines >= l->lines)
		whole = k / form->step * form->step;
	if (whole)
		packer(panel + first * l->lines, data, from->pitch, whole);
	pack_slowly(l, from, line, lines, first + whole, first + k, first + round_up(k, form->step),
		    panel);
}

/*
 * Panels of the lines [line, last), a slice of a few elements of all of them at a time where
 * neighbouring elements are on different pages (768 x 3072: 0.55 ms, in whole panels 1.1).
 */
static void pack_lines(const struct bf16_form *form, enum bf16_side side,
		       const struct bf16_factor *from, int64_t line, int64_t last, int64_t k,
		       bf16 *packed)
{
	const int64_t step = form->side[side].lines, padded = round_up(k, form->step);
	const int64_t slice = from->across ? SLICE : k;

	for (int64_t first = 0; first < k; first += slice)
		for (int64_t i = line; i < last; i += step)
			pack_panel(form, side, from, i, last - i, first, smaller(slice, k - first),
				   packed + (i - line) * padded);
}

size_t bf16_packed_bytes(int64_t lines, int64_t k)
{
	return (size_t)((lines + BF16_MAX_LINES) * round_up(k, BF16_MAX_STEP)) * sizeof(bf16);
}

void bf16_pack(const struct bf16_form *form, enum bf16_side side, int64_t lines, int64_t k,
	       const struct bf16_factor *from, void *packed)
{
	const int64_t step = form->side[side].lines, panels = round_up(lines, step) / step;
	const int64_t padded = round_up(k, form->step);

#pragma omp parallel if (omp_get_level() == 0 && lines * k > GRAIN)
	{
		const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
		const int64_t line = panels * me / threads * step;

		pack_lines(form, side, from, line,
			   smaller(lines, panels * (me + 1) / threads * step), k,
			   (bf16 *)packed + line * padded);
	}
}

/* ----------------------------------------------------------------- product */

struct product {
	const struct bf16_form *form;
	int64_t m, n, k;
	float alpha;
	bool add;
	struct bf16_factor a, b; /* b is packed */
	float *c;
	int64_t pitch;
};

/* What a thread packs of the left factor. */
static size_t block_bytes(int64_t m, int64_t k)
{
	return bf16_packed_bytes(smaller(m, BF16_MAX_ROWS), smaller(k, BF16_MAX_DEPTH));
}

size_t bf16_work_bytes(int64_t m, int64_t n, int64_t k, bool b_packed, int threads)
{
	return (b_packed ? 0 : bf16_packed_bytes(n, smaller(k, CHUNK))) +
	       (size_t)threads * block_bytes(m, k);
}

/* A tile of which only rows x columns exist. */
static void edge_tile(const struct product *p, int64_t k, const bf16 *a, const bf16 *b, bool add,
		      int64_t rows, int64_t columns, float *c)
{
	_Alignas(ALIGNMENT) float whole[BF16_MAX_LINES * BF16_MAX_LINES];
	const int64_t pitch = p->form->side[BF16_RIGHT].lines;

	p->form->tile(k, a, b, p->alpha, false, whole, pitch);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			c[i * p->pitch + j] =
				(add ? c[i * p->pitch + j] : 0) + whole[i * pitch + j];
}

/*
 * Elements [first, first + k) of rows [row, row + rows), whose panels are at `a`, times columns
 * [from, to).  C is written along its rows: pages and cache lines are met once.
 */
static void multiply_block(const struct product *p, const bf16 *a, int64_t a_panel, int64_t row,
			   int64_t rows, int64_t from, int64_t to, int64_t first, int64_t k)
{
	const int64_t tall = p->form->side[BF16_LEFT].lines, wide = p->form->side[BF16_RIGHT].lines;
	const int64_t padded = round_up(k, p->form->step);
	const int64_t b_depth = round_up(p->b.packed_k, p->form->step);
	const bool add = p->add || first > 0;

	for (int64_t i = 0; i < rows; i += tall, a += a_panel) {
		float *c = p->c + (row + i) * p->pitch;

		for (int64_t j = from; j < to; j += wide) {
			const bf16 *b = (const bf16 *)p->b.packed + j * b_depth + first * wide;

			if (i + tall <= rows && j + wide <= to)
				p->form->tile(padded, a, b, p->alpha, add, c + j, p->pitch);
			else
				edge_tile(p, padded, a, b, add, smaller(tall, rows - i),
					  smaller(wide, to - j), c + j);
		}
	}
}

/* The part of C in rows [row, last) and columns [from, to). */
static void multiply_part(const struct product *p, int64_t row, int64_t last, int64_t from,
			  int64_t to, bf16 *block)
{
	const struct bf16_form *form = p->form;
	const int64_t tall = form->side[BF16_LEFT].lines;
	struct bf16_factor factor = p->a;
	const int64_t a_depth = round_up(p->a.packed_k, form->step);

	for (; row < last; row += form->rows) {
		const int64_t rows = smaller(form->rows, last - row);

		for (int64_t first = 0; first < p->k; first += form->depth) {
			const int64_t k = smaller(form->depth, p->k - first);
			const bf16 *a = block;
			int64_t a_panel = tall * round_up(k, form->step);

			if (p->a.packed) {
				a = (const bf16 *)p->a.packed + row * a_depth + first * tall;
				a_panel = tall * a_depth;
			} else {
				factor.data = p->a.data + first * step_of(&p->a);
				pack_lines(form, BF16_LEFT, &factor, row, row + rows, k, block);
			}
			for (int64_t j = from; j < to; j += form->columns)
				multiply_block(p, a, a_panel, row, rows, j,
					       smaller(to, j + form->columns), first, k);
		}
	}
}

/* Threads share the rows, or where these are too few, the columns: whole panels of either. */
static void multiply_share(const struct product *p, int thread, int threads, bf16 *blocks)
{
	const int64_t tall = p->form->side[BF16_LEFT].lines, wide = p->form->side[BF16_RIGHT].lines;
	const int64_t rows = round_up(p->m, tall) / tall, columns = round_up(p->n, wide) / wide;
	bf16 *block = (bf16 *)((char *)blocks + (size_t)thread * block_bytes(p->m, p->k));

	if (p->form->begin)
		p->form->begin();
	if (rows >= threads)
		multiply_part(p, rows * thread / threads * tall,
			      smaller(p->m, rows * (thread + 1) / threads * tall), 0, p->n, block);
	else
		multiply_part(p, 0, p->m, columns * thread / threads * wide,
			      smaller(p->n, columns * (thread + 1) / threads * wide), block);
	if (p->form->end)
		p->form->end();
}

static void multiply(const struct product *p, bf16 *blocks)
{
	if (omp_get_level() > 0) {
		multiply_share(p, 0, 1, blocks);
		return;
	}
#pragma omp parallel
	multiply_share(p, omp_get_thread_num(), omp_get_num_threads(), blocks);
}

void bf16_product(const struct bf16_form *form, int64_t m, int64_t n, int64_t k, float alpha,
		  const struct bf16_factor *a, const struct bf16_factor *b, bool add, float *c,
		  int64_t pitch, void *work)
{
	struct product p = {
		.form = form,
		.m = m,
		.n = n,
		.k = k,
		.alpha = alpha,
		.add = add,
		.a = *a,
		.b = *b,
		.c = c,
		.pitch = pitch,
	};

	assert(!a->packed || b->packed);
	if (b->packed) {
		multiply(&p, work);
		return;
	}
	p.b.packed = work;
	for (int64_t first = 0; first < k; first += CHUNK) {
		p.k = smaller(CHUNK, k - first);
		p.a.data = a->data + first * step_of(a);
		p.b.data = b->data + first * step_of(b);
		p.b.packed_k = p.k;
		p.add = add || first > 0;
		bf16_pack(form, BF16_RIGHT, n, p.k, &p.b, work);
		multiply(&p, (bf16 *)((char *)work + bf16_packed_bytes(n, smaller(k, CHUNK))));
	}
}
