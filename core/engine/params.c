#include "core/engine/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/util/hash.h"
#include "core/util/rng.h"

/* Each parameter starts on a cache line: 16 floats, 8 doubles. */
#define ALIGN_ELEMENTS 16

enum status params_create(struct params **out, enum dtype type, struct error *err)
{
	struct params *p = calloc(1, sizeof(*p));

	if (!p)
		return fail_memory(err, "parameters", sizeof(*p));
	p->type = type;
	*out = p;
	return OK;
}

void params_destroy(struct params *p)
{
	if (!p)
		return;
	if (p->backend) {
		for (int i = 0; i < p->n; i++)
			for (int which = 0; which < PARAM_COPIES; which++)
				p->backend->release(p->backend, p->list[i].copy[which].memory);
		p->backend->release(p->backend, p->data);
		p->backend->release(p->backend, p->grad);
	}
	pool_free(&p->pool);
	free(p->list);
	free(p);
}

int params_find(const struct params *p, const char *name)
{
	for (int i = 0; i < p->n; i++)
		if (strcmp(p->list[i].name, name) == 0)
			return i;
	return -1;
}

static bool same_shape(const struct param *p, int ndim, const int64_t *dim)
{
	return p->ndim == ndim && memcmp(p->dim, dim, (size_t)ndim * sizeof(*dim)) == 0;
}

static enum param_role role_of(const struct param_init *init, int ndim)
{
	if (init->embedding)
		return PARAM_EMBEDDING;
	return ndim >= 2 ? PARAM_MATRIX : PARAM_VECTOR;
}

/* Elements of the block's type. */
static int64_t place_of(const struct params *p, const struct param *q)
{
	const int64_t wide = (int64_t)dtype_size(p->type);
	const int64_t n = (q->count * (int64_t)dtype_size(q->type) + wide - 1) / wide;

	return (n + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

void params_keep_as(struct params *p, int index, enum dtype type)
{
	if (p->data || p->list[index].type == type)
		return;
	p->list[index].type = type;
	p->total = 0;
	for (int i = 0; i < p->n; i++) {
		p->list[i].offset = p->total;
		p->total += place_of(p, &p->list[i]);
	}
}

static enum status add_param(struct params *p, const char *name, const struct param_init *init,
			     int ndim, const int64_t *dim, struct error *err)
{
	struct param *list = p->list, *q;

	if (p->backend)
		return fail(err, "parameter '%s' is new, but the parameters are already in use",
			    name);
	if (p->n == p->capacity) {
		list = realloc(list, (size_t)(2 * p->capacity + 64) * sizeof(*list));
		if (!list)
			return fail_memory(err, name, (unsigned long long)p->capacity);
		p->list = list;
		p->capacity = 2 * p->capacity + 64;
	}
	q = &list[p->n];
	*q = (struct param){
		.ndim = ndim, .count = 1, .type = p->type, .init = *init, .offset = p->total
	};
	q->name = pool_printf(&p->pool, "%s", name);
	if (!q->name)
		return fail_memory(err, name, strlen(name));
	for (int i = 0; i < ndim; i++) {
		q->dim[i] = dim[i];
		q->count *= dim[i];
	}
	q->role = role_of(init, ndim);
	q->origin = NO_ORIGIN;
	p->total += place_of(p, q);
	p->n++;
	return OK;
}

enum status params_name(struct params *p, const char *name, const struct param_init *init, int ndim,
			const int64_t *dim, int *index, struct error *err)
{
	*index = params_find(p, name);
	if (*index < 0) {
		*index = p->n;
		return add_param(p, name, init, ndim, dim, err);
	}
	if (!same_shape(&p->list[*index], ndim, dim))
		return fail(err, "parameter '%s' is requested in two different shapes", name);
	return OK;
}

int64_t params_count(const struct params *p)
{
	int64_t count = 0;

	for (int i = 0; i < p->n; i++)
		count += p->list[i].count;
	return count;
}

enum status params_allocate(struct params *p, const struct backend *backend, bool gradients,
			    struct error *err)
{
	const size_t bytes = (size_t)p->total * dtype_size(p->type);

	if (!p->data)
		p->data = backend->alloc(backend, bytes);
	if (!p->data)
		return fail_alloc(backend, "parameters", bytes, err);
	p->backend = backend;
	if (gradients && !p->grad) {
		p->grad = backend->alloc(backend, bytes);
		if (!p->grad)
			return fail_alloc(backend, "gradients", bytes, err);
	}
	return OK;
}

void params_changed(struct params *p)
{
	p->stale = true;
}

void params_prepare(struct params *p)
{
	if (!p->stale)
		return;
	if (p->n_copies)
		p->backend->copy_params(p->backend, p);
	p->stale = false;
}

enum status param_copy_of(struct params *p, int index, int which, size_t bytes,
			  const struct param_copy **copy, struct error *err)
{
	struct param_copy *s = &p->list[index].copy[which];

	*copy = s;
	if (!s->bytes) {
		s->bytes = bytes;
		p->copy_bytes += bytes;
	}
	if (!s->memory && p->data) {
		s->memory = p->backend->alloc(p->backend, bytes);
		if (!s->memory)
			return fail_alloc(p->backend, p->list[index].name, bytes, err);
		p->n_copies++;
		params_changed(p);
	}
	return OK;
}

static char *element(const struct params *p, void *block, int index)
{
	return (char *)block + (size_t)p->list[index].offset * dtype_size(p->type);
}

void *param_data(const struct params *p, int index)
{
	return element(p, p->data, index);
}

void *param_grad(const struct params *p, int index)
{
	return element(p, p->grad, index);
}

/* The rest of `count` values from `first` on, but no more than fit into a chunk. */
static int64_t chunk_of(int64_t count, int64_t first)
{
	return count - first < PARAM_CHUNK ? count - first : PARAM_CHUNK;
}

static void *value_at(const struct params *p, int index, bool gradient, int64_t first)
{
	return element(p, gradient ? p->grad : p->data, index) +
	       (size_t)first * dtype_size(p->type);
}

enum status params_hash(const struct params *p, char *hex, struct error *err)
{
	const size_t size = dtype_size(p->type);
	void *host = malloc(PARAM_CHUNK * size);
	struct sha256 s;

	if (!host)
		return fail_memory(err, "hash of parameters", PARAM_CHUNK * size);
	sha256_init(&s);
	for (int i = 0; i < p->n; i++) {
		const int64_t count = p->list[i].count;

		sha256_add(&s, p->list[i].name, strlen(p->list[i].name) + 1);
		for (int64_t first = 0; first < count; first += PARAM_CHUNK) {
			const size_t bytes = (size_t)chunk_of(count, first) * size;

			p->backend->download(p->backend, host, value_at(p, i, false, first), bytes);
			sha256_add(&s, host, bytes);
		}
	}
	free(host);
	sha256_hex(&s, hex);
	return p->backend->check(p->backend, err);
}

enum status param_set_part(struct params *p, int index, int64_t first, int64_t n,
			   const double *values, struct error *err)
{
	float *narrow;

	params_changed(p);
	if (p->type == F64) {
		p->backend->upload(p->backend, value_at(p, index, false, first), values,
				   (size_t)n * sizeof(*values));
		return OK;
	}
	narrow = malloc(PARAM_CHUNK * sizeof(*narrow));
	if (!narrow)
		return fail_memory(err, p->list[index].name, PARAM_CHUNK * sizeof(*narrow));
	for (int64_t done = 0; done < n; done += PARAM_CHUNK) {
		const int64_t chunk = chunk_of(n, done);

		for (int64_t i = 0; i < chunk; i++)
			narrow[i] = (float)values[done + i];
		p->backend->upload(p->backend, value_at(p, index, false, first + done), narrow,
				   (size_t)chunk * sizeof(*narrow));
	}
	free(narrow);
	return OK;
}

enum status param_set(struct params *p, int index, const double *values, struct error *err)
{
	return param_set_part(p, index, 0, p->list[index].count, values, err);
}

enum status param_visit(const struct params *p, int index, bool gradient, param_visitor visit,
			void *context, struct error *err)
{
	const int64_t count = p->list[index].count, most = chunk_of(count, 0);
	const size_t size = dtype_size(p->type);
	double *values = malloc((size_t)most * sizeof(*values));
	float *narrow = malloc((size_t)most * sizeof(*narrow));
	enum status status = OK;

	if (!values || !narrow)
		status = fail_memory(err, p->list[index].name, (size_t)most * sizeof(*values));
	for (int64_t first = 0; status == OK && first < count; first += PARAM_CHUNK) {
		const int64_t n = chunk_of(count, first);

		p->backend->download(p->backend, p->type == F64 ? (void *)values : narrow,
				     value_at(p, index, gradient, first), (size_t)n * size);
		for (int64_t i = 0; i < n && p->type != F64; i++)
			values[i] = (double)narrow[i];
		status = p->backend->check(p->backend, err);
		if (status == OK)
			visit(context, first, n, values);
	}
	free(narrow);
	free(values);
	return status;
}

static void copy_chunk(void *context, int64_t first, int64_t n, double *values)
{
	memcpy((double *)context + first, values, (size_t)n * sizeof(*values));
}

enum status param_get(const struct params *p, int index, bool gradient, double *values,
		      struct error *err)
{
	return param_visit(p, index, gradient, copy_chunk, values, err);
}

/* ---------------------------------------------------------- initial values */

static void draw_normal(const struct param *p, struct rng_key key, double *out)
{
#pragma omp parallel for schedule(static)
	for (int64_t block = 0; block < (p->count + 1) / 2; block++) {
		double pair[2];

		rng_normal_pair(key, (uint64_t)block, pair);
		out[2 * block] = p->init.value * pair[0];
		if (2 * block + 1 < p->count)
			out[2 * block + 1] = p->init.value * pair[1];
	}
}

/* 2-D: U(-value, value) on the diagonal blocks, 0 elsewhere; 3-D: every slice is a block. */
static void draw_uniform_blocks(const struct param *p, struct rng_key key, double *out)
{
	const int64_t rows = p->dim[p->ndim - 2], columns = p->dim[p->ndim - 1];

	for (int64_t i = 0; i < p->count; i++) {
		int64_t row = i / columns % rows, column = i % columns;
		bool inside = p->ndim == 3 ||
			      row * p->init.blocks / rows == column * p->init.blocks / columns;

		out[i] = inside ? p->init.value * (2 * rng_uniform(key, (uint64_t)i) - 1) : 0;
	}
}

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* Orthonormal rows of m [n,width], n <= width, by Gram-Schmidt done twice (Kahan: twice is enough).
 */
static void orthonormal_rows(double *m, int64_t n, int64_t width)
{
	for (int64_t i = 0; i < n; i++) {
		double *row = m + i * width, norm;

		for (int pass = 0; pass < 2; pass++)
			for (int64_t j = 0; j < i; j++) {
				double projection = dot(row, m + j * width, width);

				for (int64_t k = 0; k < width; k++)
					row[k] -= projection * m[j * width + k];
			}
		norm = sqrt(dot(row, row, width));
		for (int64_t k = 0; k < width; k++)
			row[k] /= norm;
	}
}

static enum status draw_orthogonal(const struct param *p, struct rng_key key, double *out,
				   struct error *err)
{
	const int64_t columns = p->dim[p->ndim - 1], rows = p->ndim > 1 ? p->dim[p->ndim - 2] : 1;
	const int64_t slices = p->count / (rows * columns);
	const int64_t n = rows < columns ? rows : columns, width = rows < columns ? columns : rows;
	double *m = malloc((size_t)(rows * columns) * sizeof(*m));

	if (!m)
		return fail_memory(err, p->name, (size_t)(rows * columns) * sizeof(*m));
	for (int64_t s = 0; s < slices; s++) {
		double *slice = out + s * rows * columns;

		for (int64_t i = 0; i < rows * columns; i++)
			m[i] = rng_normal(key, (uint64_t)(s * rows * columns + i));
		orthonormal_rows(m, n, width);
		for (int64_t i = 0; i < rows; i++)
			for (int64_t j = 0; j < columns; j++)
				slice[i * columns + j] =
					p->init.value *
					(rows < columns ? m[i * width + j] : m[j * width + i]);
	}
	free(m);
	return OK;
}

static enum status draw(const struct param *p, uint64_t seed, double *out, struct error *err)
{
	struct rng_key key = rng_subkey(rng_key(seed, "init"), hash_text(p->name));

	switch (p->init.kind) {
	case INIT_CONSTANT:
		for (int64_t i = 0; i < p->count; i++)
			out[i] = p->init.value;
		return OK;
	case INIT_NORMAL:
		draw_normal(p, key, out);
		return OK;
	case INIT_UNIFORM_BLOCKS:
		draw_uniform_blocks(p, key, out);
		return OK;
	case INIT_ORTHOGONAL:
		return draw_orthogonal(p, key, out, err);
	}
	return fail(err, "parameter '%s' has no initial distribution", p->name);
}

enum status params_initialise(struct params *p, uint64_t seed, struct error *err)
{
	int64_t largest = 1;
	enum status status = OK;
	double *values;

	for (int i = 0; i < p->n; i++)
		largest = p->list[i].count > largest ? p->list[i].count : largest;
	values = malloc((size_t)largest * sizeof(*values));
	if (!values)
		return fail_memory(err, "initial values", (size_t)largest * sizeof(*values));
	for (int i = 0; i < p->n && status == OK; i++) {
		status = draw(&p->list[i], seed, values, err);
		if (status == OK)
			status = param_set(p, i, values, err);
	}
	free(values);
	return status;
}
