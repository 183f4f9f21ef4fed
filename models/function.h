/*
 * function - which symbols decide what a model computes from its weights.
 *
 * Two programs that agree in these symbols, and in the names and shapes of
 * their parameters, compute the same function of the same weights.
 */
#ifndef MODELS_FUNCTION_H
#define MODELS_FUNCTION_H

#include "models/model.h"

/* Calls `visit` for each such symbol that the model of this configuration reads. */
enum status model_function(const struct config *c, int64_t vocab,
			   void (*visit)(void *context, const char *name, const char *value),
			   void *context, struct error *err) MUST_CHECK;

/* Does only training depend on the symbol, or do the parameters' shapes determine its value? */
bool function_ignores(const char *symbol);

#endif
