/*
 * storage - in which type a tensor is kept.
 *
 * A graph computes in one type.  Where the precision says so, activations of the branches and
 * their gradients are kept in bfloat16: half the memory, and half the traffic.  Kernels read them
 * as float, compute in float, and round once when they write.
 *
 * The ops decide which tensors that are (op.h: narrow_in, narrow_out).  A tensor is kept narrow if
 * the op that writes it allows that, and every op that reads it does.  So the residual stream,
 * which norms read, statistics and losses keep the graph's type.  One precision has the stream
 * narrow, too: there ops allow more (narrow_stream_in, narrow_stream_out).  Parameters, their
 * gradients, the moments of the optimizer and inputs always keep the graph's type.  The state of
 * decoding follows the same rule, and is never narrower than what it keeps.  Its memory is laid out
 * by the first graph that names it.
 *
 * Where the backward pass of an op relies on what it rounded, it keeps what rounding lost, too
 * (lost_out).
 *
 * A gradient is kept as its tensor is, unless the op that writes the tensor wants it wide
 * (wide_gradient_out).  Joined weights are so: products round weights anyway, but not their
 * gradients.
 */
#ifndef CORE_ENGINE_STORAGE_H
#define CORE_ENGINE_STORAGE_H

#include "core/engine/graph.h"

/* FLOAT32, FLOAT64: everything is of that type.  The others compute in float. */
enum precision {
	FLOAT32,
	FLOAT64,
	BFLOAT16,	 /* products take their factors rounded to bfloat16 */
	BFLOAT16_STORED, /* and activations are kept in bfloat16 */
	BFLOAT16_STREAM, /* and so is the residual stream */
	PRECISIONS
};
extern const char *const precision_names[]; /* NULL at the end */

/* The type in which graphs of this precision compute, and in which parameters are kept. */
enum dtype precision_type(enum precision precision);

/* Do products take rounded factors? */
static inline bool precision_rounds(enum precision precision)
{
	return precision >= BFLOAT16;
}

/* Are activations kept in bfloat16? */
static inline bool precision_stores(enum precision precision)
{
	return precision >= BFLOAT16_STORED;
}

/* Inputs and outputs of an op that may be kept in bfloat16, where activations are. */
static inline unsigned storage_narrow_in(const struct op *op, enum precision precision)
{
	return op->narrow_in | (precision == BFLOAT16_STREAM ? op->narrow_stream_in : 0);
}

static inline unsigned storage_narrow_out(const struct op *op, enum precision precision)
{
	return op->narrow_out | (precision == BFLOAT16_STREAM ? op->narrow_stream_out : 0);
}

/* Choose the type of every activation and its gradient, and of every state, of a finished graph. */
void storage_assign(const struct graph *g, enum precision precision);

#endif
