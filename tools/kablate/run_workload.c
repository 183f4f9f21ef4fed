#include "tools/kablate/run_workload.h"

#include <stdlib.h>

#include "models/gpt2_names.h"
#include "tools/kablate/generate.h"
#include "tools/kablate/lengths.h"

static void build(void *context, struct graph *g, int64_t rows, struct token_io *io)
{
	const struct run_setup *setup = context;

	model_build(setup->model, g, g->training ? MODEL_TRAIN : MODEL_EVAL, rows,
		    setup->source.length, io);
}

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	const struct run_setup *setup = context;
	struct row out = { .tokens = tokens, .targets = targets };

	source_train(&setup->source, iteration, row, &out);
}

static void valid_row(void *context, uint64_t index, struct workload_row *row)
{
	const struct run_setup *setup = context;
	struct row out = { row->tokens, row->targets, row->component, row->floor };

	source_valid(&setup->source, index, &out);
}

struct measured {
	struct metrics *metrics;
	int64_t iteration;
};

static void record(void *context, const char *name, double value)
{
	const struct measured *m = context;

	metrics_value(m->metrics, m->iteration, name, value);
}

static enum status probe_model(void *context, struct error *err)
{
	const struct run_setup *setup = context;

	return measurer_run(setup->measurer, err);
}

static enum status measure_model(void *context, struct metrics *m, int64_t iteration,
				 struct error *err)
{
	const struct run_setup *setup = context;
	struct measured measured = { m, iteration };

	return measure(setup->measurer, record, &measured, err);
}

/* Decoders run one model: where there are replicas, the setup of one run becomes that of this one.
 */
static enum status become(struct run_setup *alone, const struct run_setup *run, struct error *err)
{
	const size_t bytes = (size_t)run->params->total * dtype_size(run->params->type);
	void *host = malloc(bytes);

	if (!host)
		return fail_memory(err, "weights", bytes);
	run->backend.download(&run->backend, host, run->params->data, bytes);
	alone->backend.upload(&alone->backend, alone->params->data, host, bytes);
	params_changed(alone->params);
	alone->seed = run->seed;
	free(host);
	return OK;
}

static enum status conclude(void *context, struct metrics *m, int64_t iteration, struct error *err)
{
	struct run_setup *run = context, *setup = run->alone ? run->alone : run;

	if (run->alone && become(run->alone, run, err) != OK)
		return FAIL;
	if (record_lengths(setup, run->lengths, m, iteration, err) != OK)
		return FAIL;
	return record_sample(setup, run->sample, m, iteration, err);
}

struct workload run_workload(struct run_setup *setup)
{
	return (struct workload){
		.context = setup,
		.length = setup->source.length,
		.build = build,
		.train_row = train_row,
		.valid_row = valid_row,
		.valid_rows = setup->source.valid_rows,
		.components = setup->source.components,
		.bytes_per_token = setup->source.bytes_per_token,
		.layer_prefix = LAYER_PREFIX,
		.probe = probe_model,
		.measure = measure_model,
		.conclude = conclude,
	};
}

struct train_run run_of(struct run_setup *setup)
{
	return (struct train_run){ .workload = run_workload(setup), .options = setup->train };
}
