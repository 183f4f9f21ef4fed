/*
 * A decoding step reads every weight and the whole state, so its least time is
 * these bytes over the speed at which all threads together can read.  That speed
 * is measured between the steps, because other work on the machine changes it.
 * Of all times the smallest counts.
 *
 * The speed of matrix products, measured in the same way, limits a prompt.  The
 * time of a piece grows in proportion to the tokens before it.  So the time to the
 * first token is the mean time of the first and the last piece, times the number
 * of pieces.  The state of earlier tokens is zeros: no time depends on it.
 *
 * What is done only once is done before time is taken: programs are opened, libraries
 * load what they need, and graphs are captured (core/engine/replay.h).
 *
 * An asynchronous device is waited for after several tokens: nothing that they need
 * travels to the host.  The reading speed of a device with memory of its own is that of
 * its search for NaN, and its products are not measured.
 */
#include "tools/kablate/bench_decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/backend/cpu/blas.h"
#include "models/decode.h"
#include "tools/kablate/run_memory.h"

#define READ_BYTES ((size_t)128 << 20)	    /* more than any cache */
#define DEVICE_READ_BYTES ((size_t)1 << 30) /* so much that its start hardly counts */
#define TOGETHER 16			    /* tokens between two waits */
#define SQUARE 1024			    /* of the matrix product */
#define UNTIL_CAPTURED 2 /* runs of a program after which its graph is captured */

struct machine {
	float *array;
	size_t bytes;	 /* of the array */
	bool has_memory; /* of its own: the host cannot see the array */
	double read_seconds, product_seconds;
};

struct figures {
	int64_t context, weights; /* weights: how many there are */
	size_t state_bytes;
	struct op_cost step, first, last; /* a token; the first and the last piece of a prompt */
	double step_seconds, first_seconds, last_seconds;
};

/* ------------------------------------------------------------- the machine */

static double elapsed(double since)
{
	return omp_get_wtime() - since;
}

/* Keeps the compiler from removing a sum that nobody reads. */
static void use(float value)
{
	volatile float sink = value;

	(void)sink;
}

/* Enough sums side by side that no addition waits for another. */
static float sum_of(const float *restrict x, int64_t n)
{
	enum { SUMS = 64 };
	float partial[SUMS] = { 0 }, sum = 0;

	for (int64_t i = 0; i + SUMS <= n; i += SUMS)
#pragma omp simd
		for (int l = 0; l < SUMS; l++)
			partial[l] += x[i + l];
	for (int l = 0; l < SUMS; l++)
		sum += partial[l];
	return sum;
}

static void read_array(const struct machine *m)
{
	const int64_t n = (int64_t)(m->bytes / sizeof(float));

#pragma omp parallel
	{
		const int64_t share = n / omp_get_num_threads();

		use(sum_of(m->array + share * omp_get_thread_num(), share));
	}
}

static void measure_read(struct machine *m, const struct backend *backend)
{
	const int64_t n = (int64_t)(m->bytes / sizeof(float));
	const double start = omp_get_wtime();

	if (m->has_memory)
		backend->find_nonfinite(backend, m->array, F32, 1, n, n);
	else
		read_array(m);
	m->read_seconds = fmin(m->read_seconds, elapsed(start));
}

static void measure_product(struct machine *m)
{
	const float *a = m->array, *b = a + SQUARE * SQUARE;
	const double start = omp_get_wtime();

	if (m->has_memory)
		return;
	blas_gemm_f32(false, false, SQUARE, SQUARE, SQUARE, 1, a, SQUARE, b, SQUARE, 0,
		      m->array + 2 * SQUARE * SQUARE, SQUARE);
	m->product_seconds = fmin(m->product_seconds, elapsed(start));
}

/* ------------------------------------------------------------ measurements */

struct bench {
	struct run_setup *setup;
	const struct bench_decode_options *o;
	struct machine machine;
	int32_t *tokens; /* a piece: zeros */
};

static enum status open_decoder(const struct bench *b, int64_t capacity, struct decoder **d,
				struct error *err)
{
	const struct run_setup *setup = b->setup;

	return decoder_create(d, setup->model, setup->params, &setup->backend, MODEL_NEXT,
			      b->o->batch, capacity, err);
}

/* Feeds n tokens after `past` others. */
static enum status feed(const struct bench *b, struct decoder *d, int64_t past, int64_t n,
			double *seconds, struct error *err)
{
	const struct backend *backend = &b->setup->backend;
	const int times = backend->is_async && n == 1 ? TOGETHER : 1;
	const double start = omp_get_wtime();

	for (int i = 0; i < times; i++) {
		decoder_seek(d, past);
		if (decoder_feed(d, n, b->tokens, NULL, err) != OK)
			return FAIL;
	}
	if (backend->wait(backend, err) != OK)
		return FAIL;
	*seconds = fmin(*seconds, elapsed(start) / times);
	return OK;
}

static enum status warm_up(const struct bench *b, struct decoder *d, int64_t past, int64_t n,
			   struct error *err)
{
	const int times = b->setup->backend.capture ? UNTIL_CAPTURED : 1;
	double unused = INFINITY;

	for (int i = 0; i < times; i++)
		if (feed(b, d, past, n, &unused, err) != OK)
			return FAIL;
	return OK;
}

static enum status time_steps(struct bench *b, struct decoder *d, struct figures *f,
			      struct error *err)
{
	const double start = omp_get_wtime();

	do {
		measure_read(&b->machine, &b->setup->backend);
		if (feed(b, d, f->context - 1, 1, &f->step_seconds, err) != OK)
			return FAIL;
	} while (elapsed(start) < b->o->seconds);
	return OK;
}

static enum status measure_steps(struct bench *b, struct decoder *d, struct figures *f,
				 struct error *err)
{
	if (warm_up(b, d, f->context - 1, 1, err) != OK || time_steps(b, d, f, err) != OK)
		return FAIL;
	return decoder_cost(d, 1, &f->step, err);
}

static enum status time_pieces(struct bench *b, struct decoder *fresh, struct decoder *d, int64_t n,
			       struct figures *f, struct error *err)
{
	const double start = omp_get_wtime();

	do {
		measure_product(&b->machine);
		if (feed(b, fresh, 0, n, &f->first_seconds, err) != OK ||
		    feed(b, d, f->context - n, n, &f->last_seconds, err) != OK)
			return FAIL;
	} while (elapsed(start) < b->o->seconds);
	return OK;
}

/* The first piece of n tokens, by a decoder without room for more, and the last one. */
static enum status measure_pieces(struct bench *b, struct decoder *fresh, struct decoder *d,
				  int64_t n, struct figures *f, struct error *err)
{
	if (warm_up(b, fresh, 0, n, err) != OK || warm_up(b, d, f->context - n, n, err) != OK ||
	    time_pieces(b, fresh, d, n, f, err) != OK ||
	    decoder_cost(fresh, n, &f->first, err) != OK)
		return FAIL;
	return decoder_cost(d, n, &f->last, err);
}

static enum status measure_prompt(struct bench *b, struct decoder *d, struct figures *f,
				  struct error *err)
{
	const int64_t n = f->context < DECODER_CHUNK_TOKENS ? f->context : DECODER_CHUNK_TOKENS;
	enum status status;
	struct decoder *fresh;

	if (open_decoder(b, n, &fresh, err) != OK)
		return FAIL;
	status = measure_pieces(b, fresh, d, n, f, err);
	decoder_destroy(fresh);
	return status;
}

static enum status measure_context(struct bench *b, int64_t context, struct figures *f,
				   struct error *err)
{
	enum status status = FAIL;
	struct decoder *d;

	*f = (struct figures){ .context = context,
			       .weights = params_count(b->setup->params),
			       .step_seconds = INFINITY,
			       .first_seconds = INFINITY,
			       .last_seconds = INFINITY };
	if (open_decoder(b, context, &d, err) != OK)
		return FAIL;
	f->state_bytes = decoder_state_bytes(d);
	if (measure_prompt(b, d, f, err) == OK)
		status = measure_steps(b, d, f, err);
	decoder_destroy(d);
	return status;
}

/* ------------------------------------------------------------------ output */

static double pieces(const struct figures *f)
{
	return fmax(1, (double)f->context / DECODER_CHUNK_TOKENS);
}

static void print_figures(const struct figures *f, const struct machine *m, const char *comma,
			  FILE *out)
{
	const double flops = (f->first.forward_flops + f->last.forward_flops) / 2;
	const double seconds = (f->first_seconds + f->last_seconds) / 2;
	char products[32] = "null";

	if (isfinite(m->product_seconds))
		snprintf(products, sizeof(products), "%.4g",
			 2.0 * SQUARE * SQUARE * SQUARE / m->product_seconds);
	fprintf(out,
		"%s{\"context\": %lld, \"weights\": %lld, \"state_bytes\": %zu, "
		"\"first_token_seconds\": %.6g, \"prompt_flops\": %.6g, "
		"\"token_seconds\": %.6g, \"token_bytes\": %.0f, "
		"\"read_bytes_per_second\": %.4g, \"sgemm_flops_per_second\": %s}",
		comma, (long long)f->context, (long long)f->weights, f->state_bytes,
		pieces(f) * seconds, pieces(f) * flops, f->step_seconds, f->step.forward_bytes,
		(double)m->bytes / m->read_seconds, products);
}

static enum status measure_contexts(struct bench *b, FILE *out, struct error *err)
{
	const char *rest = b->o->contexts, *comma = "";
	int64_t context;

	fprintf(out, "{\"record\": %s, \"batch\": %lld, \"contexts\": [", b->o->record,
		(long long)b->o->batch);
	while (rest[0]) {
		struct figures f;

		if (next_length(&rest, &context, err) != OK ||
		    measure_context(b, context, &f, err) != OK)
			return FAIL;
		print_figures(&f, &b->machine, comma, out);
		comma = ", ";
	}
	fprintf(out, "]}\n");
	return OK;
}

static enum status longest_context(const char *contexts, int64_t *longest, struct error *err)
{
	int64_t context;

	for (*longest = 0; contexts[0];) {
		if (next_length(&contexts, &context, err) != OK)
			return FAIL;
		if (context > *longest)
			*longest = context;
	}
	return OK;
}

/* A learned table of positions is drawn as long as the longest context needs. */
static enum status make_room(struct run_setup *setup, const struct bench_decode_options *o,
			     struct error *err)
{
	struct decoder_use use = { MODEL_NEXT, o->batch, 0, 0 };
	int64_t longest;

	if (longest_context(o->contexts, &longest, err) != OK)
		return FAIL;
	if (longest > setup->model->length)
		setup->model->length = longest;
	use.capacity = longest;
	use.rest = longest < DECODER_CHUNK_TOKENS ? longest : 0;
	return run_memory_reserve_decoder(setup, &use, err);
}

enum status bench_decode(struct run_setup *setup, const struct bench_decode_options *o, FILE *out,
			 struct error *err)
{
	const bool has_memory = setup->backend.memory != NULL;
	struct bench b = {
		.setup = setup,
		.o = o,
		.machine = { .bytes = has_memory ? DEVICE_READ_BYTES : READ_BYTES,
			     .has_memory = has_memory,
			     .read_seconds = INFINITY,
			     .product_seconds = INFINITY },
		.tokens = calloc((size_t)(o->batch * DECODER_CHUNK_TOKENS), sizeof(*b.tokens)),
	};
	enum status status = FAIL;

	b.machine.array = setup->backend.alloc(&setup->backend, b.machine.bytes);
	if (!b.machine.array || !b.tokens)
		fail_memory(err, "measurement", b.machine.bytes);
	else if (make_room(setup, o, err) == OK && run_setup_draw(setup, err) == OK)
		status = measure_contexts(&b, out, err);
	setup->backend.release(&setup->backend, b.machine.array);
	free(b.tokens);
	return status;
}
