/*
 * gpt2_names - how GPT-2 names its parameters, and what public checkpoints make of these names.
 */
#ifndef MODELS_GPT2_NAMES_H
#define MODELS_GPT2_NAMES_H

/* The names in layer 3 begin with "h.3."; metrics call the layer "h.3". */
#define LAYER_PREFIX "h."

#endif
