/*
 * reduced - the configuration of a step with fewer layers, heads, channels and tokens.
 *
 * Its structure stays: the same parts and options, heads that share a key still share it, windows
 * and sparsity that act still act.  Dropout is off.
 */
#ifndef MODELS_AUDIT_REDUCED_H
#define MODELS_AUDIT_REDUCED_H

#include "models/model.h"

enum { REDUCED_ROWS = 2, REDUCED_LENGTH = 32, REDUCED_LAYERS = 3, REDUCED_VOCAB = 64 };

/* Changes `c`, the configuration of `m`. */
enum status reduce_config(struct config *c, const struct model *m, struct error *err) MUST_CHECK;

#endif
