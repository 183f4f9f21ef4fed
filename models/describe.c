#include "models/describe.h"

#include <math.h>
#include <string.h>

#include "core/engine/program.h"
#include "core/util/metric_names.h"

const char *const module_names[MODULES] = { "embedding", "attention", "feed_forward", "norm",
					    "head" };

static void count_parameters(const struct params *params, struct description *d)
{
	for (int i = 0; i < params->n; i++)
		d->module_parameters[params->list[i].origin.module] += params->list[i].count;
	d->parameters = params_count(params);
	d->ffn_per_attention = (double)d->module_parameters[MODULE_FFN] /
			       (double)d->module_parameters[MODULE_ATTENTION];
}

static size_t optimizer_bytes_of(const struct params *params, const struct optim_options *options)
{
	int64_t numbers = 0;

	for (int i = 0; i < params->n; i++)
		numbers += params->list[i].count * optim_states(options, &params->list[i], NULL);
	return (size_t)numbers * sizeof(float);
}

static void count_flops(const struct graph *g, int64_t tokens, struct description *d)
{
	for (int i = 0; i < g->n_nodes; i++) {
		const struct node *n = g->nodes[i];
		const int module = n->origin.module;
		struct op_cost cost = { 0 };

		n->op->cost(n, &cost);
		d->forward_flops[module] += cost.forward_flops / (double)tokens;
		d->backward_flops[module] += cost.backward_flops / (double)tokens;
	}
}

/* State of op_cache() grows with every token; other state has a fixed size. */
static void count_state(const struct graph *g, struct description *d)
{
	for (int i = 0; i < g->n_tensors; i++) {
		const struct tensor *t = g->tensors[i];

		if (t->kind == TENSOR_STATE && t->producer->id == OP_cache)
			d->decode_token_bytes += (double)tensor_bytes(t);
		else if (t->kind == TENSOR_STATE)
			d->decode_fixed_bytes += (double)tensor_bytes(t);
	}
}

/* Reads the graph that decodes one token of one row, with room for one token. */
static enum status describe_state(const struct model *m, struct params *params,
				  const struct backend *backend, struct description *d,
				  struct error *err)
{
	struct params *state = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;
	struct token_io io;

	if (params_create(&state, params->type, err) != OK ||
	    graph_create(&g, params, false, err) != OK)
		goto destroy;
	graph_continue(g, state, 1);
	model_build(m, g, MODEL_NEXT, 1, 1, &io);
	if (graph_finish(g, &d->decode_refusal) == OK && model_keeps_state(m, &d->decode_refusal)) {
		storage_assign(g, backend->precision);
		count_state(g, d);
	} else if (is_lack_of_memory(&d->decode_refusal)) {
		*err = d->decode_refusal;
		goto destroy;
	} else {
		d->decode_token_bytes = d->decode_fixed_bytes = NAN;
	}
	d->decode_total_bytes = d->decode_token_bytes * (double)d->context + d->decode_fixed_bytes;
	status = OK;
destroy:
	graph_destroy(g);
	params_destroy(state);
	return status;
}

enum status describe_model(const struct model *m, const struct backend *backend,
			   const struct description_options *options, struct description *d,
			   struct error *err)
{
	const struct program_options program = {
		.train = true,
		.no_planner = !options->planner,
		.no_recompute = !options->recompute,
	};
	struct params *params = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;
	struct token_io io;

	*d = (struct description){ 0 };
	if (params_create(&params, F32, err) != OK || graph_create(&g, params, true, err) != OK)
		goto destroy;
	model_build(m, g, MODEL_TRAIN, options->batch, options->length, &io);
	count_flops(g, options->batch * options->length, d); /* whether linears are merged or not */
	if (graph_finish(g, err) != OK ||
	    program_measure(g, backend, &program, &d->activation_bytes, err) != OK)
		goto destroy;
	if (prune_check(&options->prune, &options->optimizer, params, err) != OK)
		goto destroy;
	count_parameters(params, d);
	d->sparsity = options->prune.method == PRUNE_NONE ? 0 : options->prune.sparsity;
	d->choice_bytes = prune_host_bytes(&options->prune, params);
	d->compressed_bytes = prune_bytes(&options->prune, params, d->sparsity);
	d->gradient_bytes = (size_t)d->parameters * sizeof(float);
	d->weights_bytes = d->gradient_bytes + params->copy_bytes;
	d->optimizer_bytes = optimizer_bytes_of(params, &options->optimizer);
	d->context = options->context;
	status = describe_state(m, params, backend, d, err);
destroy:
	graph_destroy(g);
	params_destroy(params);
	return status;
}

static double mebibytes(double bytes)
{
	return bytes / (1024.0 * 1024.0);
}

double description_flops(const struct description *d)
{
	double flops = 0;

	for (int i = 0; i < MODULES; i++)
		flops += d->forward_flops[i] + d->backward_flops[i];
	return flops;
}

void description_print(const struct description *d, FILE *file)
{
	double forward = 0, backward = 0;

	fprintf(file, "%-14s %14s %16s %16s\n", "", "parameters", "forward flop", "backward flop");
	for (int i = 0; i < MODULES; i++) {
		fprintf(file, "%-14s %14lld %16.0f %16.0f\n", module_names[i],
			(long long)d->module_parameters[i], d->forward_flops[i],
			d->backward_flops[i]);
		forward += d->forward_flops[i];
		backward += d->backward_flops[i];
	}
	fprintf(file, "%-14s %14lld %16.0f %16.0f   per token\n", "all", (long long)d->parameters,
		forward, backward);
	fprintf(file, "attention : feed-forward parameters  1 : %.2f\n", d->ffn_per_attention);
	fprintf(file,
		"memory in training, MiB: weights %.1f, gradients %.1f, optimizer %.1f, "
		"activations %.1f\n",
		mebibytes((double)d->weights_bytes), mebibytes((double)d->gradient_bytes),
		mebibytes((double)d->optimizer_bytes), mebibytes((double)d->activation_bytes));
	if (d->sparsity > 0)
		fprintf(file,
			"pruned: %g %% of the matrices of layers; compressed weights: %.0f bytes\n",
			100 * d->sparsity, d->compressed_bytes);
	if (d->decode_refusal.text[0])
		fprintf(file, "decode state: %s\n", d->decode_refusal.text);
	else
		fprintf(file,
			"decode state: %.0f bytes per token, %.0f per sequence, %.1f MiB at "
			"%lld tokens\n",
			d->decode_token_bytes, d->decode_fixed_bytes,
			mebibytes(d->decode_total_bytes), (long long)d->context);
}

void description_json(const struct description *d, FILE *file)
{
	const size_t host =
		d->weights_bytes + d->gradient_bytes + d->optimizer_bytes + d->activation_bytes;

	fprintf(file,
		"{\"" METRIC_PARAMETERS "\": %lld, \"" METRIC_FLOPS_PER_TOKEN
		"\": %.0f, \"memory_bytes\": %.0f, "
		"\"modules\": {",
		(long long)d->parameters, description_flops(d),
		d->device_bytes > 0 ? d->device_bytes : (double)host);
	for (int i = 0; i < MODULES; i++)
		fprintf(file,
			"%s\"%s\": {\"parameters\": %lld, \"forward_flops\": %.0f, "
			"\"backward_flops\": %.0f}",
			i ? ", " : "", module_names[i], (long long)d->module_parameters[i],
			d->forward_flops[i], d->backward_flops[i]);
	fprintf(file,
		"}, \"ffn_per_attention\": %.4f, \"weights_bytes\": %zu, "
		"\"gradient_bytes\": %zu, \"optimizer_bytes\": %zu, \"activation_bytes\": %zu, ",
		d->ffn_per_attention, d->weights_bytes, d->gradient_bytes, d->optimizer_bytes,
		d->activation_bytes);
	if (d->device_bytes > 0)
		fprintf(file, "\"device_own_bytes\": %.0f, ", d->device_own_bytes);
	if (d->sparsity > 0)
		fprintf(file,
			"\"" METRIC_SPARSITY "\": %g, \"" METRIC_COMPRESSED_BYTES "\": %.0f, ",
			d->sparsity, d->compressed_bytes);
	fprintf(file, "\"context\": %lld, ", (long long)d->context);
	if (d->decode_refusal.text[0])
		fprintf(file, "\"decode_refusal\": \"%s\"}\n", d->decode_refusal.text);
	else
		fprintf(file,
			"\"" METRIC_DECODE_TOKEN_BYTES "\": %.0f, \"decode_fixed_bytes\": %.0f, "
			"\"decode_total_bytes\": %.0f}\n",
			d->decode_token_bytes, d->decode_fixed_bytes, d->decode_total_bytes);
}
