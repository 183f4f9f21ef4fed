#include "core/train/layer_norms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/optim/optim.h"

static int count_layers(const struct params *params)
{
	int layers = 0;

	for (int i = 0; i < params->n; i++)
		if (params->list[i].origin.layer >= layers)
			layers = params->list[i].origin.layer + 1;
	return layers;
}

static size_t squares_bytes(const struct layer_norms *n)
{
	return ((size_t)n->layers + 1) * sizeof(*n->squares);
}

enum status layer_norms_open(struct layer_norms *n, const struct params *params,
			     const struct backend *backend, struct error *err)
{
	*n = (struct layer_norms){
		.params = params,
		.backend = backend,
		.layers = count_layers(params),
	};
	n->squares = backend->alloc(backend, squares_bytes(n));
	n->seen = malloc((size_t)backend_replicas(backend) * squares_bytes(n));
	if (!n->seen)
		return fail_memory(err, "gradient norms", squares_bytes(n));
	return n->squares ? OK : fail_alloc(backend, "gradient norms", squares_bytes(n), err);
}

void layer_norms_close(struct layer_norms *n)
{
	if (n->backend)
		n->backend->release(n->backend, n->squares);
	free(n->seen);
}

enum status layer_norms_read(struct layer_norms *n, struct error *err)
{
	const size_t bytes = (size_t)n->params->n * sizeof(int);
	int *number = malloc(bytes), chosen;
	enum status status;

	if (!number)
		return fail_memory(err, "gradient norms", bytes);
	for (int i = 0; i < n->params->n; i++) {
		const int layer = n->params->list[i].origin.layer;

		number[i] = layer < 0 ? n->layers : layer;
	}
	n->backend->zero(n->backend, n->squares, squares_bytes(n));
	status = optim_add_squares(n->params, number, n->squares, err);
	free(number);
	chosen = backend_choose(n->backend, REPLICAS_EACH);
	n->backend->download(n->backend, n->seen, n->squares, squares_bytes(n));
	backend_choose(n->backend, chosen);
	return status;
}

void layer_norms_record(const struct layer_norms *n, int i, struct metrics *m, int64_t iteration,
			const char *prefix)
{
	const double *squares = n->seen + i * (n->layers + 1);
	char name[64];

	for (int layer = 0; layer < n->layers; layer++) {
		snprintf(name, sizeof(name), METRIC_GRAD_NORM "/%s%d", prefix, layer);
		if (squares[layer] > 0)
			metrics_value(m, iteration, name, sqrt(squares[layer]));
	}
	metrics_value(m, iteration, METRIC_GRAD_NORM "/other", sqrt(squares[n->layers]));
}
