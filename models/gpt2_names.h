/*
 * gpt2_names - GPT-2's names of parameters, and how public checkpoints spell them.
 *
 * Names in a file may carry the prefix "transformer.".  The buffers attn.bias
 * and attn.masked_bias of public checkpoints are not weights.  An lm_head.weight
 * equal to wte.weight is the output head of a model that ties both.
 */
#ifndef MODELS_GPT2_NAMES_H
#define MODELS_GPT2_NAMES_H

#include "core/train/weights.h"

/* The names in layer 3 begin with "h.3."; metrics call the layer "h.3". */
#define LAYER_PREFIX "h."

extern const struct weight_names gpt2_names;

#endif
