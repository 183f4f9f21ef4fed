#include "tools/kablate/run_memory.h"

#include <math.h>

#include "core/backend/cpu/blas.h"
#include "core/util/memory.h"

enum status run_memory_program(const struct run_setup *setup, struct params *params,
			       const struct model_use *use, size_t *bytes, int *losses,
			       struct error *err)
{
	struct program_options options = use->program;
	enum status status = FAIL;
	struct token_io io;
	struct graph *g;

	options.train = use->purpose == MODEL_TRAIN;
	if (graph_create(&g, params, options.train, err) != OK)
		return FAIL;
	model_build(setup->model, g, use->purpose, use->rows, use->length, &io);
	if (graph_finish(g, err) == OK)
		status = program_measure(g, &setup->backend, &options, bytes, err);
	*losses = 0;
	for (int i = 0; i < g->n_outputs; i++)
		*losses += g->outputs[i].is_loss;
	graph_destroy(g);
	return status;
}

/* The arena of a graph that is only evaluated, and the numbers of the largest parameter. */
static enum status measure_forward(const struct run_setup *setup, enum model_purpose purpose,
				   int64_t rows, double *arena, double *largest, struct error *err)
{
	const struct model_use use = { .purpose = purpose,
				       .rows = rows,
				       .length = setup->source.length,
				       .program = setup->train.program };
	struct params *params;
	enum status status;
	size_t bytes;
	int ignored;

	if (params_create(&params, precision_type(setup->precision), err) != OK)
		return FAIL;
	status = run_memory_program(setup, params, &use, &bytes, &ignored, err);
	if (status == OK)
		*arena = (double)bytes;
	for (int i = 0; status == OK && i < params->n; i++)
		*largest = fmax(*largest, (double)params->list[i].count);
	params_destroy(params);
	return status;
}

/* Libraries, and what BLAS touches of its buffers: 60 to 110 MiB. */
static const double LIBRARY_BYTES = 128 << 20;

/*
 * What CUDA and its libraries take of the host.  In all a small run took 430 MiB, and a run of 74
 * million parameters without audits 530 MiB.
 */
#define CUDA_HOST_BYTES (512 << 20)

/* Drawing and loading: the largest parameter once more, in double and float. */
static double draw_bytes(double largest)
{
	return largest * (sizeof(float) + sizeof(double));
}

/*
 * Audits have weights, gradients and an optimizer of their own, and compare logits.  Before, they
 * train on the same batch.
 */
static double audit_bytes(const struct run_setup *setup, const struct description *d,
			  double largest)
{
	const struct audit_options *a = &setup->audit;
	const struct optim_options adamw = { .kind = OPTIM_ADAMW };
	const struct param any = { .role = PARAM_MATRIX };
	const double state = a->one_batch ? optim_states(&adamw, &any, NULL) : 0;
	const double logits =
		(double)(a->rows * a->length * setup->model->vocab) * (double)dtype_size(a->type);
	const double activations = a->causality ? (double)d->activation_bytes * (double)a->rows /
							  (double)setup->train.batch
						: 0;

	return (double)d->weights_bytes + (1 + state) * (double)d->gradient_bytes +
	       draw_bytes(largest) + 2 * logits + activations;
}

/* What a rank has beside weights and gradients, without the optimizer's state that others have. */
static double shard_bytes(const struct run_setup *setup, const struct description *d)
{
	const double ranks = setup->ranks ? setup->ranks->size : 1;
	const double gradients = (double)d->gradient_bytes;

	if (!run_setup_is_divided(setup))
		return 0;
	return 2 * gradients / ranks + (ranks > 1 ? gradients : 0) -
	       (double)d->optimizer_bytes * (1 - 1 / ranks);
}

static enum status measure_decoder(const struct run_setup *setup, const struct decoder_use *use,
				   struct decoder_memory *memory, struct error *err)
{
	return decoder_measure(memory, setup->model, precision_type(setup->precision),
			       &setup->backend, use, err);
}

enum status run_memory_conclusion(const struct run_setup *setup, double *bytes, struct error *err)
{
	const char *lengths = setup->lengths;
	struct decoder_memory memory;
	struct decoder_use use;
	bool samples;

	*bytes = 0;
	while (lengths[0]) {
		if (next_length_use(&lengths, &use, err) != OK ||
		    measure_decoder(setup, &use, &memory, err) != OK)
			return FAIL;
		*bytes = fmax(*bytes, memory.own);
	}
	use = sample_use(setup->model, 0);
	if (setup->sample == 0)
		return OK;
	if (decoder_can(setup->model, use.capacity, &samples, err) != OK)
		return FAIL;
	if (!samples)
		return OK;
	if (measure_decoder(setup, &use, &memory, err) != OK)
		return FAIL;
	*bytes = fmax(*bytes, memory.own);
	return OK;
}

enum status run_memory_reserve_decoder(const struct run_setup *setup, const struct decoder_use *use,
				       struct error *err)
{
	struct decoder_memory memory;
	double bytes;

	if (measure_decoder(setup, use, &memory, err) != OK)
		return FAIL;
	bytes = setup->backend.memory ? LIBRARY_BYTES + CUDA_HOST_BYTES + memory.weights +
						draw_bytes(memory.largest)
				      : LIBRARY_BYTES + memory.weights +
						fmax(memory.own, draw_bytes(memory.largest));
	return memory_reserve(NULL, bytes, blas_buffer_bytes(setup->backend.threads), err);
}

/* Audits end before training touches its first activation. */
enum status run_memory_measure(const struct run_setup *setup, const struct description *d,
			       struct run_memory *memory, struct error *err)
{
	double arena = 0, probe = 0, largest = 0, conclusion, audits;

	if (measure_forward(setup, MODEL_EVAL, setup->train.batch, &arena, &largest, err) != OK ||
	    measure_forward(setup, MODEL_PROBE, SAMPLE_ROWS, &probe, &largest, err) != OK ||
	    run_memory_conclusion(setup, &conclusion, err) != OK)
		return FAIL;
	arena += (double)d->activation_bytes + conclusion;
	audits = audit_bytes(setup, d, largest);
	if (setup->backend.memory) { /* a GPU holds all but the numbers that are looked at */
		*memory = (struct run_memory){ .resident = LIBRARY_BYTES + CUDA_HOST_BYTES +
							   fmax(audits, d->choice_bytes) };
		return OK;
	}
	memory->resident = LIBRARY_BYTES + probe + (double)d->weights_bytes +
			   (double)d->gradient_bytes + (double)d->optimizer_bytes +
			   shard_bytes(setup, d) + fmax(arena + d->choice_bytes, audits);
	memory->idle = fmin(arena, audits);
	return OK;
}
