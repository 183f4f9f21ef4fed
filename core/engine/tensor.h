/*
 * tensor - a name, a type, a shape and a place; never the numbers themselves.
 *
 * Shapes read outermost first: (B,T,C) is batch, position, channel.  A
 * tensor's elements are rows of `row` contiguous elements, `pitch` elements
 * apart; for everything but a slice of a wider tensor pitch equals row, and
 * the tensor is contiguous.
 */
#ifndef CORE_ENGINE_TENSOR_H
#define CORE_ENGINE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/util/dtype.h"

#define TENSOR_MAX_DIMS 4

enum tensor_kind {
	TENSOR_PARAM,	   /* lives in a struct params, shared by graphs */
	TENSOR_INPUT,	   /* filled from outside before a run */
	TENSOR_CONSTANT,   /* filled once, when a program is made */
	TENSOR_ACTIVATION, /* computed by a node */
	TENSOR_STATE,	   /* written by a node, outlives the run */
	TENSOR_VIEW,	   /* a window onto `base` */
	TENSOR_GRADIENT,   /* made by the program builder */
	TENSOR_SCRATCH,	   /* workspace of one instruction */
};

struct node;

struct tensor {
	const char *name;
	enum dtype type;
	enum dtype gradient_type; /* of the gradient with respect to it (storage.h) */
	enum tensor_kind kind;
	int ndim;
	int64_t dim[TENSOR_MAX_DIMS];
	int64_t row, pitch;
	int id; /* index in its graph or program */

	struct tensor *base; /* views: the tensor seen through, never itself a view */
	int64_t offset;	     /* views: first element inside base */

	struct node *producer; /* activations and state: the node that writes it */
	bool needs_grad;       /* a trainable parameter lies below it */
	int param;	       /* TENSOR_PARAM, TENSOR_STATE: index in its struct params */
	const void *values;    /* TENSOR_CONSTANT: its elements, on the host */
};

/* Number of elements, and of bytes when contiguous. */
int64_t tensor_count(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t);

bool tensor_contiguous(const struct tensor *t);

/* Size of dimension i, counted from the end when negative. */
int64_t tensor_dim(const struct tensor *t, int i);

bool tensor_same_shape(const struct tensor *a, const struct tensor *b);

/* "f32[2,12,32]" */
#define TENSOR_SHAPE_TEXT 128
const char *tensor_shape_text(const struct tensor *t, char text[TENSOR_SHAPE_TEXT]);

/* The tensor that owns the memory: itself, or the base of a view. */
static inline const struct tensor *tensor_root(const struct tensor *t)
{
	return t->base ? t->base : t;
}

#endif
