/*
 * weights - parameters from a safetensors file: ours, or a public GPT-2.
 *
 * Names may carry the prefix "transformer."; the buffers attn.bias and
 * attn.masked_bias of public checkpoints are no weights, and an lm_head.weight
 * equal to wte.weight is what tying means.
 */
#ifndef CORE_TRAIN_WEIGHTS_H
#define CORE_TRAIN_WEIGHTS_H

#include "core/engine/params.h"

/*
 * Load every parameter that the file has.  What it lacks keeps its value and is
 * told to `note`; what the model lacks is an error unless the beginning of its
 * name matches one of the comma-separated patterns `allow` ("h.*.mlp.z_proj").
 */
enum status weights_load(struct params *params, const char *path, const char *allow,
			 void (*note)(void *context, const char *text), void *context,
			 struct error *err) MUST_CHECK;

#endif
