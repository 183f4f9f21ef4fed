#include "tools/kablate/device_memory.h"

#include <errno.h>
#include <math.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/engine/program.h"
#include "core/util/signals.h"
#include "models/audit/auditor.h"
#include "tools/kablate/run_memory.h"

#define MEBIBYTE 1048576.0
#define LOOK_MICROSECONDS 100000 /* between two looks for free memory */
#define MOST_LOOKS 600

/* ------------------------------------------------------------------ counting */

/* Blocks as requested, and as the device rounds them up. */
struct tally {
	double bytes, rounded, unit;
};

static void tally_add(struct tally *t, double bytes)
{
	t->bytes += bytes;
	t->rounded += bytes >= t->unit / 2 ? ceil(bytes / t->unit) * t->unit : bytes;
}

/* A micro-batch, and how it is computed. */
struct shape {
	int64_t batch, accumulate;
	bool recompute;
};

static struct shape shape_of(const struct run_setup *setup)
{
	return (struct shape){
		.batch = setup->train.batch,
		.accumulate = setup->train.accumulate,
		.recompute = !setup->train.program.no_recompute,
	};
}

static enum status measure_training(const struct run_setup *setup, const struct shape *shape,
				    struct params *params, struct tally *t, struct error *err)
{
	struct model_use use = { .purpose = MODEL_TRAIN,
				 .rows = shape->batch,
				 .length = setup->source.length,
				 .program = setup->train.program };
	int losses, layers = 0;
	size_t bytes;

	use.program.no_recompute = !shape->recompute;
	if (run_memory_program(setup, params, &use, &bytes, &losses, err) != OK)
		return FAIL;
	for (int i = 0; i < params->n; i++)
		layers = params->list[i].origin.layer >= layers ? params->list[i].origin.layer + 1
								: layers;
	tally_add(t, (double)bytes);
	tally_add(t, (double)(losses * shape->accumulate) * sizeof(double));
	tally_add(t, (layers + 1) * (double)sizeof(double));
	return OK;
}

static int64_t probe_rows(const struct run_setup *setup)
{
	const uint64_t rows = setup->source.valid_rows;

	return rows > 0 && rows < SAMPLE_ROWS ? (int64_t)rows : SAMPLE_ROWS;
}

static enum status measure_evaluation(const struct run_setup *setup, const struct shape *shape,
				      struct params *params, struct tally *t, struct error *err)
{
	const struct model_use rows = { .purpose = MODEL_EVAL,
					.rows = shape->batch,
					.length = setup->source.length,
					.program = setup->train.program };
	const struct model_use probe = { .purpose = MODEL_PROBE,
					 .rows = probe_rows(setup),
					 .length = setup->model->length };
	size_t evaluation, measurements;
	int ignored;

	if (run_memory_program(setup, params, &rows, &evaluation, &ignored, err) != OK ||
	    run_memory_program(setup, params, &probe, &measurements, &ignored, err) != OK)
		return FAIL;
	tally_add(t, (double)evaluation);
	tally_add(t, (double)measurements);
	return OK;
}

static void count_weights(const struct params *params, struct tally *t)
{
	tally_add(t, (double)params->total * (double)dtype_size(params->type));
	for (int i = 0; i < params->n; i++)
		for (int which = 0; which < PARAM_COPIES; which++)
			tally_add(t, (double)params->list[i].copy[which].bytes);
}

static enum status count_optimizer(const struct run_setup *setup, struct params *params,
				   struct tally *t, struct error *err)
{
	size_t bytes[OPTIM_BLOCKS];

	if (optim_measure(&setup->optim, params, &setup->backend, bytes, err) != OK)
		return FAIL;
	for (int i = 0; i < OPTIM_BLOCKS; i++)
		tally_add(t, (double)bytes[i]);
	return OK;
}

/*
 * Audits have weights, gradients and an optimizer of their own.  Their programs train on a small
 * batch, two at a time, and make the logits of a larger one, after they trained on that one.  The
 * program of many changed models has no more logits than that one, and is gone before it comes; for
 * the products of weights that the changed models share, and for a decoder of the small batch,
 * there is the room of the optimizer.  A reduced model takes little.
 */
static enum status count_audits(const struct run_setup *setup, struct params *params, double unit,
				double *bytes, struct error *err)
{
	const struct audit_options *a = &setup->audit;
	const int64_t length = a->length < TRAINING_LENGTH ? a->length : TRAINING_LENGTH;
	const struct model_use update = { .purpose = MODEL_TRAIN,
					  .rows = TRAINING_ROWS,
					  .length = length,
					  .program = a->program };
	const struct model_use scored = {
		.purpose = MODEL_TRAIN, .rows = a->rows, .length = a->length, .program = a->program
	};
	struct model_use logits = scored;
	struct tally t = { .unit = unit };
	size_t training, evaluation, large;
	int ignored;

	logits.purpose = MODEL_LOGITS;
	*bytes = 0;
	if (!a->oracle && !a->wiring && !a->causality && !a->one_batch && !a->training)
		return OK;
	if (run_memory_program(setup, params, &update, &training, &ignored, err) != OK ||
	    run_memory_program(setup, params, &scored, &large, &ignored, err) != OK ||
	    run_memory_program(setup, params, &logits, &evaluation, &ignored, err) != OK ||
	    count_optimizer(setup, params, &t, err) != OK)
		return FAIL;
	count_weights(params, &t);
	tally_add(&t, (double)params->total * (double)dtype_size(params->type));
	tally_add(&t, (double)training);
	tally_add(&t,
		  fmax((double)training + (double)evaluation, a->causality ? (double)large : 0));
	*bytes = t.rounded;
	return OK;
}

/* What a rank has of its own pieces, and what arrives; its optimizer has less than is counted. */
static void count_shards(const struct run_setup *setup, const struct params *params,
			 struct tally *t)
{
	const double bytes = (double)params->total * (double)dtype_size(params->type);
	const double ranks = setup->rank_count;

	if (!setup->train.ordered_sum && setup->rank_count < 2)
		return;
	tally_add(t, bytes / ranks);
	tally_add(t, bytes / ranks);
	if (setup->rank_count > 1)
		tally_add(t, bytes);
}

static enum status predict(const struct run_setup *setup, const struct shape *shape,
			   struct params *params, struct device_memory *m, struct error *err)
{
	struct backend_memory device;
	struct tally training = { 0 }, evaluation = { 0 }, optimizer = { 0 }, weights = { 0 };
	struct tally gradients = { 0 };
	double rounded;

	setup->backend.memory(&setup->backend, &device);
	training.unit = evaluation.unit = optimizer.unit = weights.unit = gradients.unit =
		device.unit;
	if (measure_training(setup, shape, params, &training, err) != OK ||
	    measure_evaluation(setup, shape, params, &evaluation, err) != OK ||
	    count_optimizer(setup, params, &optimizer, err) != OK)
		return FAIL;
	count_weights(params, &weights);
	tally_add(&gradients, (double)params->total * (double)dtype_size(params->type));
	count_shards(setup, params, &gradients);
	m->weights = weights.bytes;
	m->gradients = gradients.bytes;
	m->optimizer = optimizer.bytes;
	m->activations = training.bytes;
	m->evaluation = evaluation.bytes;
	m->own = m->weights + m->gradients + m->optimizer + m->activations + m->evaluation;
	rounded = weights.rounded + gradients.rounded + optimizer.rounded + training.rounded +
		  evaluation.rounded;
	if (count_audits(setup, params, device.unit, &m->audits, err) != OK ||
	    run_memory_conclusion(setup, &m->conclusion, err) != OK)
		return FAIL;
	m->each = rounded;
	m->whole = rounded + m->conclusion + device.opened + device.later;
	m->needed = rounded + fmax(m->audits, m->conclusion) + device.later;
	return OK;
}

static enum status predict_shape(const struct run_setup *setup, const struct shape *shape,
				 struct device_memory *m, struct error *err)
{
	struct params *params = NULL;
	enum status status = FAIL;

	*m = (struct device_memory){ 0 };
	if (params_create(&params, precision_type(setup->precision), err) == OK)
		status = predict(setup, shape, params, m, err);
	params_destroy(params);
	return status;
}

enum status device_memory_predict(const struct run_setup *setup, struct device_memory *m,
				  struct error *err)
{
	const struct shape shape = shape_of(setup);

	return predict_shape(setup, &shape, m, err);
}

void device_memory_print(const struct device_memory *m, FILE *file)
{
	fprintf(file,
		"GPU memory, MiB: weights %.1f, gradients %.1f, optimizer %.1f, activations %.1f, "
		"evaluation %.1f, conclusion %.1f; with CUDA about %.0f\n",
		m->weights / MEBIBYTE, m->gradients / MEBIBYTE, m->optimizer / MEBIBYTE,
		m->activations / MEBIBYTE, m->evaluation / MEBIBYTE, m->conclusion / MEBIBYTE,
		m->whole / MEBIBYTE);
}

/* ------------------------------------------------------------------ reserving */

/* Of n runs.  Beside replicas, audits and decoders have the weights and gradients of one run. */
static double needed(const struct run_setup *setup, const struct device_memory *m, int n)
{
	const double alone = setup->replicas ? m->weights + m->gradients : 0;

	return m->needed + (n - 1) * m->each + alone;
}

static double free_bytes(void *setup)
{
	const struct backend *b = &((const struct run_setup *)setup)->backend;
	struct backend_memory device;

	b->memory(b, &device);
	return device.free;
}

/* `named` holds the device's name while it is used. */
static struct memory_device device_of(const struct run_setup *setup, struct backend_memory *named)
{
	setup->backend.memory(&setup->backend, named);
	return (struct memory_device){
		.id = named->device,
		.free_bytes = free_bytes,
		.context = (void *)(uintptr_t)setup,
	};
}

static bool would_fit(const struct run_setup *setup, const struct memory_device *device,
		      const struct shape *shape)
{
	struct device_memory m;
	struct error ignored;
	bool starting;

	if (predict_shape(setup, shape, &m, &ignored) != OK ||
	    memory_reserve_device(device, m.needed, &starting, &ignored) != OK)
		return false;
	memory_taken(device, 0);
	return true;
}

/* What to change so that the run fits, in words. */
static void find_fit(const struct run_setup *setup, const struct memory_device *device,
		     struct error *advice)
{
	const struct shape now = shape_of(setup);
	const int64_t rows = now.batch * now.accumulate;
	struct shape try = now;

	try.recompute = true;
	if (!now.recompute && would_fit(setup, device, &try)) {
		fail(advice, "CONFIG_RECOMPUTE=y would fit");
		return;
	}
	for (try.batch = now.batch - 1; try.batch > 0; try.batch--) {
		try.accumulate = rows / try.batch;
		if (rows % try.batch || !would_fit(setup, device, &try))
			continue;
		fail(advice,
		     "CONFIG_TRAIN_BATCH=%lld with CONFIG_TRAIN_ACCUMULATE=%lld%s would fit",
		     (long long)try.batch, (long long)try.accumulate,
		     now.recompute ? "" : " and CONFIG_RECOMPUTE=y");
		return;
	}
	fail(advice,
	     "no micro-batch would fit: make the model or MODEL_BLOCK smaller, or run fewer "
	     "at a time (make -j1)");
}

static enum status refuse(const struct run_setup *setup, const struct memory_device *device,
			  const struct error *why, struct error *err)
{
	struct error advice;

	find_fit(setup, device, &advice);
	return fail(err, "%s: %s", why->text, advice.text);
}

enum status device_memory_reserve(const struct run_setup *setup, int *n, struct error *err)
{
	struct backend_memory named;
	struct memory_device device;
	struct device_memory m;
	struct error why;
	bool starting;
	int looks = 0;

	if (!setup->backend.memory)
		return OK;
	device = device_of(setup, &named);
	if (device_memory_predict(setup, &m, err) != OK)
		return FAIL;
	while (memory_reserve_device(&device, needed(setup, &m, *n), &starting, &why) != OK) {
		if (*n > 1) {
			(*n)--;
			continue;
		}
		if (!starting || ++looks == MOST_LOOKS || signals_stop())
			return refuse(setup, &device, &why, err);
		usleep(LOOK_MICROSECONDS);
	}
	return OK;
}

/* The kernel gives the file to those who wait for it in the order in which they came. */
int device_turn_take(const struct run_setup *setup)
{
	struct backend_memory named;
	int fd;

	if (!setup->replicas)
		return -1;
	setup->backend.memory(&setup->backend, &named);
	fd = memory_open_file("turn", named.device);
	signals_interrupt(true);
	while (fd >= 0 && !signals_stop() && flock(fd, LOCK_EX) != 0 && errno == EINTR)
		;
	signals_interrupt(false);
	return fd;
}

void device_memory_taken(const struct run_setup *setup, bool audits_to_come)
{
	struct backend_memory named;
	struct memory_device device;
	struct device_memory m;
	struct error ignored;

	if (!setup->backend.memory)
		return;
	device = device_of(setup, &named);
	if (!audits_to_come || device_memory_predict(setup, &m, &ignored) != OK)
		m.audits = 0;
	memory_taken(&device, m.audits);
}
