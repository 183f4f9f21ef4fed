#include "core/backend/cpu/panel.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/util/bf16.h"
#include "core/backend/cpu/panel_form.h"

#define ALIGNMENT 64 /* a cache line */

/* The right factor is packed up to this many lines at a time, which bounds the workspace. */
#ifdef __x86_64__
#define CHUNK_LINES \
	960 /* stays in the second cache: logits of 256 tokens at 151 GFLOP/s, not 124 */
#else
#define CHUNK_LINES 8160 /* whole panels of every form, as is 960 */
#endif

/* With so few columns the left factor is read in place, not packed. */
#define DIRECT_ALONG 512
#define DIRECT_ACROSS 32

#define SLICE 32		/* elements of a line, a multiple of every form's step */
#define PACK_GRAIN 16384	/* packing fewer elements is not worth waking the other threads */
#define PRODUCT_GRAIN (1 << 19) /* nor are fewer multiply-adds */

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t step)
{
	return (n + step - 1) / step * step;
}

/* A parallel region costs time even with one thread: libgomp makes a team and calls the kernel (2 %
 * of a laptop run). */
static bool works_alone(int64_t work, int64_t grain)
{
	return omp_get_level() > 0 || work <= grain || omp_get_max_threads() == 1;
}

/* ------------------------------------------------------------------- forms */

static const struct panel_form *const bf16_forms[] = {
#ifdef __x86_64__
	&bf16_amx,	    &bf16_rounded_avx512,
	&bf16_rounded_avx2,
#endif
#ifdef __aarch64__
	&bf16_bfmmla,
#endif
	&bf16_plain,	    NULL,
};

static const struct panel_form *const f32_forms[] = {
#ifdef __x86_64__
	&f32_avx512,
	&f32_avx2,
#endif
#ifdef __aarch64__
	&f32_neon,
#endif
	NULL,
};

const struct panel_form *const *panel_forms(enum panel_element element)
{
	return element == PANEL_BF16 ? bf16_forms : f32_forms;
}

const char *panel_name(const struct panel_form *form)
{
	return form->name;
}

const char *panel_obstacle(const struct panel_form *form)
{
	return form->obstacle ? form->obstacle() : NULL;
}

static enum status choose_by_name(const struct panel_form **form, enum panel_element element,
				  const char *variable, const char *name, struct error *err)
{
	const struct panel_form *const *f = panel_forms(element);

	if (element == PANEL_F32 && strcmp(name, "blas") == 0)
		return OK;
	while (*f && strcmp((*f)->name, name) != 0)
		f++;
	if (!*f)
		return fail(err, "%s=%s: this program has no such form", variable, name);
	if (panel_obstacle(*f))
		return fail(err, "%s=%s: %s", variable, name, panel_obstacle(*f));
	*form = *f;
	return OK;
}

const struct panel_form *panel_fastest(enum panel_element element)
{
	const struct panel_form *const *f = panel_forms(element);

	while (*f && panel_obstacle(*f))
		f++;
	return *f;
}

enum status panel_choose(const struct panel_form **form, enum panel_element element,
			 struct error *err)
{
	const char *variable = element == PANEL_BF16 ? PANEL_BF16_VARIABLE : PANEL_F32_VARIABLE;
	const char *name = getenv(variable);

	*form = NULL;
	if (name && *name)
		return choose_by_name(form, element, variable, name, err);
	*form = panel_fastest(element);
	return OK;
}

/* ---------------------------------------------------------------- elements */

/* The most bytes that an element takes in any such form. */
static size_t element_bytes(enum panel_element element)
{
#ifdef __x86_64__
	(void)element;
	return sizeof(float); /* in forms that round */
#else
	return element == PANEL_BF16 ? sizeof(bf16) : sizeof(float);
#endif
}

/* Bytes of so many elements of a packed factor. */
static size_t bytes_of(const struct panel_form *form, int64_t elements)
{
	const bool floats = form->element == PANEL_F32 || form->rounded;

	return (size_t)elements * (floats ? sizeof(float) : sizeof(bf16));
}

/* ----------------------------------------------------------------- packing */

/* From one element of a line to the next, and from one line to the next. */
static int64_t element_step(const struct panel_factor *from)
{
	return from->across ? from->pitch : 1;
}

static int64_t line_step(const struct panel_factor *from)
{
	return from->across ? 1 : from->pitch;
}

/* Up to SLICE elements of an incomplete panel: missing lines and elements are zeros. */
static void pack_edge(const struct panel_form *form, const struct panel_layout *l,
		      const struct panel_factor *from, const float *data, int64_t lines, int64_t k,
		      void *to)
{
	const int64_t rows = from->across ? k : lines, columns = from->across ? lines : k;
	const int64_t pitch = from->across ? l->lines : SLICE;
	float block[PANEL_MAX_LINES * SLICE];

	memset(block, 0, (size_t)l->lines * SLICE * sizeof(*block));
	for (int64_t i = 0; i < rows; i++)
		memcpy(block + i * pitch, data + i * from->pitch, (size_t)columns * sizeof(*block));
	(from->across ? l->across : l->along)(to, block, pitch, round_up(k, form->step));
}

/* Elements [first, first + k) of one panel, whose lines begin at `line`. */
static void pack_panel(const struct panel_form *form, enum panel_side side,
		       const struct panel_factor *from, int64_t line, int64_t lines, int64_t first,
		       int64_t k, char *panel)
{
	const struct panel_layout *l = &form->side[side];
	const float *data = from->data + line * line_step(from) + first * element_step(from);
	const int64_t whole = lines < l->lines ? 0 : k / form->step * form->step;

	panel += bytes_of(form, first * l->lines);
	if (whole)
		(from->across ? l->across : l->along)(panel, data, from->pitch, whole);
	for (int64_t i = whole; i < k; i += SLICE)
		pack_edge(form, l, from, data + i * element_step(from), smaller(lines, l->lines),
			  smaller(SLICE, k - i), panel + bytes_of(form, i * l->lines));
}

/*
 * Panels of the lines [line, last).  Where neighbouring elements lie on different pages, a slice of
 * a few elements of all panels at a time (768 x 3072: 0.55 ms; whole panels: 1.1 ms).
 */
static void pack_lines(const struct panel_form *form, enum panel_side side,
		       const struct panel_factor *from, int64_t line, int64_t last, int64_t k,
		       void *packed)
{
	const int64_t step = form->side[side].lines, padded = round_up(k, form->step);
	const int64_t slice = from->across ? SLICE : k;

	for (int64_t first = 0; first < k; first += slice)
		for (int64_t i = line; i < last; i += step)
			pack_panel(form, side, from, i, last - i, first, smaller(slice, k - first),
				   (char *)packed + bytes_of(form, (i - line) * padded));
}

size_t panel_bytes(enum panel_element element, int64_t lines, int64_t k)
{
	return (size_t)((lines + PANEL_MAX_LINES) * round_up(k, PANEL_MAX_STEP)) *
	       element_bytes(element);
}

/*
 * Panels [line, last) of every layer: a packed right factor consists of layers as deep as a block,
 * and a layer of panels, so that the panels of a block follow each other.
 */
static void pack_layers(const struct panel_form *form, const struct panel_factor *from,
			int64_t lines, int64_t line, int64_t last, int64_t k, char *packed)
{
	struct panel_factor layer = *from;

	for (int64_t first = 0; first < k; first += form->depth) {
		const int64_t depth = smaller(form->depth, k - first);

		layer.data = from->data + first * element_step(from);
		pack_lines(form, PANEL_RIGHT, &layer, line, last, depth,
			   packed + bytes_of(form,
					     first * lines + line * round_up(depth, form->step)));
	}
}

static void pack_share(const struct panel_form *form, int64_t lines, int64_t k,
		       const struct panel_factor *from, void *packed, int thread, int threads)
{
	const int64_t wide = form->side[PANEL_RIGHT].lines, panels = round_up(lines, wide) / wide;

	pack_layers(form, from, panels * wide, panels * thread / threads * wide,
		    smaller(lines, panels * (thread + 1) / threads * wide), k, packed);
}

void panel_pack(const struct panel_form *form, int64_t lines, int64_t k,
		const struct panel_factor *from, void *packed)
{
	if (works_alone(lines * k, PACK_GRAIN)) {
		pack_share(form, lines, k, from, packed, 0, 1);
		return;
	}
#pragma omp parallel
	pack_share(form, lines, k, from, packed, omp_get_thread_num(), omp_get_num_threads());
}

/* ----------------------------------------------------------------- product */

struct product {
	const struct panel_form *form;
	int64_t m, n, k;
	float alpha;
	bool add;
	struct panel_factor a, b; /* b is packed */
	float *c;
	int64_t pitch;
};

/* What a thread packs of the left factor. */
static size_t block_bytes(enum panel_element element, int64_t m, int64_t k)
{
	return panel_bytes(element, smaller(m, PANEL_MAX_ROWS), smaller(k, PANEL_MAX_DEPTH));
}

static size_t chunk_bytes(enum panel_element element, int64_t n, int64_t k)
{
	return panel_bytes(element, smaller(n, CHUNK_LINES), smaller(k, PANEL_MAX_DEPTH));
}

size_t panel_work(enum panel_element element, int64_t m, int64_t n, int64_t k, bool b_packed,
		  int threads)
{
	return (b_packed ? 0 : chunk_bytes(element, n, k)) +
	       (size_t)threads * block_bytes(element, m, k);
}

/* A tile at the edge of C, with only rows x columns elements. */
static void edge_tile(const struct product *p, int64_t k, const void *a, const void *b, bool add,
		      int64_t rows, int64_t columns, float *c)
{
	_Alignas(ALIGNMENT) float whole[PANEL_MAX_LINES * PANEL_MAX_LINES];
	const struct panel_form *form = p->form;
	const int64_t pitch = form->side[PANEL_RIGHT].lines;

	if (form->narrow && rows == form->side[PANEL_LEFT].lines && columns % 4 == 0) {
		form->narrow(k, a, b, p->alpha, add, c, p->pitch, columns);
		return;
	}
	if (form->part) {
		form->part(k, a, 1, form->side[PANEL_LEFT].lines, b, p->alpha, add, c, p->pitch,
			   rows, columns);
		return;
	}
	form->tile(k, a, b, p->alpha, false, whole, pitch);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			c[i * p->pitch + j] =
				(add ? c[i * p->pitch + j] : 0) + whole[i * pitch + j];
}

/* The panels of B's columns from `column` on, in the layer that begins with element `first`. */
static const char *layer_panels(const struct product *p, int64_t first, int64_t column)
{
	const struct panel_form *form = p->form;
	const int64_t lines = round_up(p->b.packed_lines, form->side[PANEL_RIGHT].lines);
	const int64_t depth = round_up(smaller(form->depth, p->b.packed_k - first), form->step);

	return (const char *)p->b.packed + bytes_of(form, first * lines + column * depth);
}

/*
 * Elements [first, first + k) of rows [row, row + rows), whose panels are at `a`, times columns
 * [from, to).  C is written along its rows: pages and cache lines are met once.
 */
static void multiply_block(const struct product *p, const char *a, int64_t row, int64_t rows,
			   int64_t from, int64_t to, int64_t first, int64_t k)
{
	const struct panel_form *form = p->form;
	const int64_t tall = form->side[PANEL_LEFT].lines, wide = form->side[PANEL_RIGHT].lines;
	const int64_t padded = round_up(k, form->step);
	const bool add = p->add || first > 0;

	for (int64_t i = 0; i < rows; i += tall, a += bytes_of(form, tall * padded)) {
		float *c = p->c + (row + i) * p->pitch;

		for (int64_t j = from; j < to; j += wide) {
			const char *b = layer_panels(p, first, j);

			if (i + tall <= rows && j + wide <= to)
				form->tile(padded, a, b, p->alpha, add, c + j, p->pitch);
			else
				edge_tile(p, padded, a, b, add, smaller(tall, rows - i),
					  smaller(wide, to - j), c + j);
		}
	}
}

/* Packing does not pay for so few columns. */
static bool is_direct(const struct product *p)
{
	return p->form->part && !p->form->rounded &&
	       p->n <= (p->a.across ? DIRECT_ACROSS : DIRECT_ALONG);
}

/* The part of C in rows [row, last) and columns [from, to), A not packed. */
static void multiply_direct(const struct product *p, int64_t row, int64_t last, int64_t from,
			    int64_t to)
{
	const struct panel_form *form = p->form;
	const int64_t tall = form->side[PANEL_LEFT].lines, wide = form->side[PANEL_RIGHT].lines;
	const int64_t row_step = line_step(&p->a), step = element_step(&p->a);

	for (int64_t first = 0; first < p->k; first += form->depth)
		for (int64_t i = row; i < last; i += tall)
			for (int64_t j = from; j < to; j += wide)
				form->part(smaller(form->depth, p->k - first),
					   p->a.data + i * row_step + first * step, row_step, step,
					   layer_panels(p, first, j), p->alpha, p->add || first > 0,
					   p->c + i * p->pitch + j, p->pitch,
					   smaller(tall, last - i), smaller(wide, to - j));
}

/* The part of C in rows [row, last) and columns [from, to). */
static void multiply_part(const struct product *p, int64_t row, int64_t last, int64_t from,
			  int64_t to, void *block)
{
	const struct panel_form *form = p->form;
	struct panel_factor factor = p->a;

	if (is_direct(p)) {
		multiply_direct(p, row, last, from, to);
		return;
	}
	for (; row < last; row += form->rows) {
		const int64_t rows = smaller(form->rows, last - row);

		for (int64_t first = 0; first < p->k; first += form->depth) {
			const int64_t k = smaller(form->depth, p->k - first);

			factor.data = p->a.data + first * element_step(&p->a);
			pack_lines(form, PANEL_LEFT, &factor, row, row + rows, k, block);
			for (int64_t j = from; j < to; j += form->columns)
				multiply_block(p, block, row, rows, j,
					       smaller(to, j + form->columns), first, k);
		}
	}
}

/* Threads share whole panels of the rows or, if these are too few, of the columns. */
static void multiply_share(const struct product *p, int thread, int threads, void *blocks)
{
	const int64_t tall = p->form->side[PANEL_LEFT].lines;
	const int64_t wide = p->form->side[PANEL_RIGHT].lines;
	const int64_t rows = round_up(p->m, tall) / tall, columns = round_up(p->n, wide) / wide;
	void *block = (char *)blocks + (size_t)thread * block_bytes(p->form->element, p->m, p->k);

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

static void multiply(const struct product *p, void *blocks)
{
	if (works_alone(p->m * p->n * p->k, PRODUCT_GRAIN)) {
		multiply_share(p, 0, 1, blocks);
		return;
	}
#pragma omp parallel
	multiply_share(p, omp_get_thread_num(), omp_get_num_threads(), blocks);
}

/* Packs and uses a right factor that is not packed yet, a part at a time. */
static void multiply_in_chunks(const struct product *whole, void *work)
{
	const int depth = whole->form->depth;
	void *blocks = (char *)work + chunk_bytes(whole->form->element, whole->n, whole->k);

	for (int64_t line = 0; line < whole->n; line += CHUNK_LINES)
		for (int64_t first = 0; first < whole->k; first += depth) {
			struct product p = *whole;

			p.n = smaller(CHUNK_LINES, whole->n - line);
			p.k = smaller(depth, whole->k - first);
			p.a.data += first * element_step(&p.a);
			p.b.data += first * element_step(&p.b) + line * line_step(&p.b);
			p.b.packed = work;
			p.b.packed_lines = p.n;
			p.b.packed_k = p.k;
			p.c += line;
			p.add = whole->add || first > 0;
			panel_pack(p.form, p.n, p.k, &p.b, work);
			multiply(&p, blocks);
		}
}

void panel_product(const struct panel_form *form, int64_t m, int64_t n, int64_t k, float alpha,
		   const struct panel_factor *a, const struct panel_factor *b, bool add, float *c,
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

	if (b->packed)
		multiply(&p, work);
	else
		multiply_in_chunks(&p, work);
}
