/*
 * The storage type of tensors.
 *
 * A graph computes in one type.  In some precisions, activations of the branches and their
 * gradients are stored in bfloat16, which halves memory and traffic.  Kernels read them as float,
 * compute in float, and round once when they write.
 *
 * The ops decide which tensors may be stored so (op.h: bf16_in, bf16_out).  A tensor is stored
 * in bfloat16 if the op that writes it and every op that reads it allow it.  So the residual
 * stream, which norms read, statistics and losses keep the graph's type, and so do scalars.  One
 * precision also stores the residual stream in bfloat16: there ops allow more (bf16_residual_in,
 * bf16_residual_out). Parameters, their gradients, optimizer moments and inputs always keep the
 * graph's type.  The state of decoding follows the same rule, and never rounds what it stores.  The
 * first graph that names a state fixes its layout.
 *
 * If the backward pass of an op depends on a value that was rounded, the op also stores the
 * rounding error (rounding_error_out).  A gradient has the type of its tensor, unless the op that
 * writes the tensor demands the graph's type (full_gradient_out), as concat does for merged
 * weights: products round weights, but not their gradients.
 */
#ifndef CORE_ENGINE_STORAGE_H
#define CORE_ENGINE_STORAGE_H

#include "core/engine/graph.h"

/* FLOAT32, FLOAT64: everything is of that type.  The others compute in float. */
enum precision {
	FLOAT32,
	FLOAT64,
	BFLOAT16,	 /* products read their operands rounded to bfloat16 */
	BFLOAT16_STORED, /* and activations are stored in bfloat16 */
	BFLOAT16_STREAM, /* and so is the residual stream */
	PRECISIONS
};
extern const char *const precision_names[]; /* NULL at the end */

/* The type in which graphs of this precision compute and parameters are stored. */
enum dtype precision_type(enum precision precision);

/* Do products read rounded operands? */
static inline bool precision_rounds(enum precision precision)
{
	return precision >= BFLOAT16;
}

/* Are activations stored in bfloat16? */
static inline bool precision_stores(enum precision precision)
{
	return precision >= BFLOAT16_STORED;
}

/* Inputs and outputs of an op that may be stored in bfloat16. */
static inline unsigned storage_narrow_in(const struct op *op, enum precision precision)
{
	return op->bf16_in | (precision == BFLOAT16_STREAM ? op->bf16_residual_in : 0);
}

static inline unsigned storage_narrow_out(const struct op *op, enum precision precision)
{
	return op->bf16_out | (precision == BFLOAT16_STREAM ? op->bf16_residual_out : 0);
}

/*
 * Chooses the storage type of every activation, its gradient, and every state of a finished graph.
 */
void storage_assign(const struct graph *g, enum precision precision);

#endif
