/*
 * describe - what a configuration will cost, before anything is trained.
 */
#ifndef MODELS_DESCRIBE_H
#define MODELS_DESCRIBE_H

#include "core/engine/backend.h"
#include "core/train/prune.h"
#include "models/model.h"

extern const char *const module_names[MODULES];

struct description {
	int64_t parameters, module_parameters[MODULES];
	double forward_flops[MODULES], backward_flops[MODULES]; /* per token */
	size_t weights_bytes; /* including the copies that kernels keep */
	size_t gradient_bytes, optimizer_bytes, activation_bytes;
	/* State of all layers when decoding. */
	struct error
		decode_refusal;	   /* "", or why the model cannot decode: the bytes are NAN then */
	double decode_token_bytes; /* per token */
	double decode_fixed_bytes; /* per sequence of any length */
	int64_t context;	   /* tokens ... */
	double decode_total_bytes; /* ... and their state, with the fixed part */
	double device_bytes,
		device_own_bytes;	   /* of the process, and of its blocks; 0: the host's */
	double sparsity, compressed_bytes; /* of the trained weights; sparsity 0: not pruned */
	double choice_bytes;		   /* of the host, while it is chosen what is pruned */
	double ffn_per_attention;	   /* parameters of the feed-forward / of the attention */
};

struct description_options {
	int64_t batch, length; /* of a training batch */
	struct optim_options optimizer;
	struct prune_options prune;
	int64_t context; /* tokens of decode state */
	bool recompute, planner;
};

enum status describe_model(const struct model *m, const struct backend *backend,
			   const struct description_options *options, struct description *d,
			   struct error *err) MUST_CHECK;

/* Forward and backward, per token. */
double description_flops(const struct description *d);

void description_print(const struct description *d, FILE *file);
void description_json(const struct description *d, FILE *file);

#endif
