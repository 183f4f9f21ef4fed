/*
 * graph - a computation, described once.
 *
 * Nodes run in the order in which they were added.  A builder need not check
 * each call: the first error sticks to the graph, every later call returns NULL,
 * and graph_finish() reports it at the end.  A graph owns its nodes and tensors; its
 * parameters belong to a struct params that outlives it.
 */
#ifndef CORE_ENGINE_GRAPH_H
#define CORE_ENGINE_GRAPH_H

#include <stdio.h>

#include "core/engine/op.h"
#include "core/engine/params.h"
#include "core/util/pool.h"

struct graph_output {
	struct tensor *tensor;
	const char *name;
	const char *plain_name; /* without the scope */
	struct origin origin;
	double loss_weight; /* losses: d total / d this */
	bool is_loss;
	bool seeded; /* tests: its gradient is an input of the program */
};

struct graph {
	struct pool pool;
	struct params *params;
	enum dtype type;
	bool training;	      /* dropout acts */
	bool merges_linears;  /* when it is finished: merge_linears.h */
	struct params *state; /* what a run leaves for the next one; NULL: nothing */
	int64_t capacity;     /* maximum tokens per row of the state */
	const char *scope;
	const char *variant;  /* precedes the names of nodes and outputs; NULL: no node is shared */
	struct origin origin; /* of what is added next */

	struct node **nodes;
	int n_nodes, cap_nodes;
	struct tensor **tensors;
	int n_tensors, cap_tensors;
	struct graph_output *outputs;
	int n_outputs, cap_outputs;

	bool failed;
	struct error err;
};

/* `params` may gain parameters; its type is the graph's. */
enum status graph_create(struct graph **g, struct params *params, bool training,
			 struct error *err) MUST_CHECK;
void graph_destroy(struct graph *g);

/*
 * Runs of this graph continue each other: its T tokens come after the
 * run->past tokens of earlier runs.  `state` holds by name, like parameters, what
 * later tokens need of earlier ones, for `capacity` tokens per row.  Graphs that
 * name the same state share it, whatever their T.  To be called before the first
 * node, and not for training.
 */
void graph_continue(struct graph *g, struct params *state, int64_t capacity);

/* Later names get this prefix ("block.3."), until graph_scope_end().  The text is copied. */
void graph_scope(struct graph *g, const char *format, ...) PRINTF_LIKE(2, 3);
void graph_scope_end(struct graph *g);

/*
 * What is added from now on describes the computation once more, with some change: the names of
 * nodes and outputs get this prefix.  A node that would compute what an earlier node computes is
 * not added again, its builder gets the earlier one.  So variants share all that their change does
 * not reach.  Not for training, nor where runs continue each other.  The text is copied.
 */
void graph_variant(struct graph *g, const char *format, ...) PRINTF_LIKE(2, 3);

/* What is added from now on belongs to this layer (-1: none) and this module of the builder's. */
void graph_origin(struct graph *g, int layer, int module);

/* The parameter of this name, with the scope before it. */
struct tensor *graph_param(struct graph *g, const char *name, const struct param_init *init,
			   int ndim, const int64_t *dim);

/* A tensor filled from outside before each run. */
struct tensor *graph_input(struct graph *g, const char *name, enum dtype type, int ndim,
			   const int64_t *dim);

/* A tensor of fixed values, which become elements of this type. */
struct tensor *graph_constant(struct graph *g, const char *name, enum dtype type, int ndim,
			      const int64_t *dim, const double *values);

/* The same elements under another shape. */
struct tensor *graph_reshape(struct graph *g, struct tensor *t, int ndim, const int64_t *dim);

/* Channels [first, first + width) of the last dimension. */
struct tensor *graph_slice(struct graph *g, struct tensor *t, int64_t first, int64_t width);

/* The same values; no gradient flows back. */
struct tensor *graph_detach(struct graph *g, struct tensor *t);

/* Keep a tensor readable after the run, under this name. */
void graph_output(struct graph *g, const char *name, struct tensor *t);

/* Add weight * t to the total loss; t is output of a loss op. */
void graph_loss(struct graph *g, const char *name, struct tensor *t, double weight);

/* For tests: an output whose gradient is given from outside. */
void graph_seeded_output(struct graph *g, const char *name, struct tensor *t);

const struct graph_output *graph_find_output(const struct graph *g, const char *name);

/* Nodes that read the same tensor become one when the graph is finished, where that is possible:
 * merge_linears.h. */
void graph_merge_linears(struct graph *g);

/*
 * Verify the finished graph: names are unique, every tensor has been written
 * before it is read, views stay inside their base, types agree.
 */
enum status graph_finish(struct graph *g, struct error *err) MUST_CHECK;

void graph_dump_json(const struct graph *g, FILE *file);

/* ------------------------------------------------ for the files in core/ops */

/* Add a node; returns NULL when the graph has failed. */
struct node *graph_node(struct graph *g, enum op_id id, const char *name, const void *attr,
			int n_in, struct tensor *const *in);

/* Declare output number n_out of a node: its name is the node's with ".suffix", if any. */
enum status graph_out(struct graph *g, struct node *n, const char *suffix, enum dtype type,
		      int ndim, const int64_t *dim);

/* As graph_out(), with the shape and type of another tensor. */
enum status graph_out_like(struct graph *g, struct node *n, const char *suffix,
			   const struct tensor *like);

/* As graph_out(), for an output through which no gradient flows. */
enum status graph_out_constant(struct graph *g, struct node *n, const char *suffix, enum dtype type,
			       int ndim, const int64_t *dim);

/* As graph_out_constant(), in the graph's state: it still holds what the last run left there. */
enum status graph_out_state(struct graph *g, struct node *n, const char *suffix, int ndim,
			    const int64_t *dim);

/* The text names the node and every input with its shape.  Returns FAIL. */
enum status graph_misfit(struct graph *g, const struct node *n, const char *format, ...)
	PRINTF_LIKE(3, 4);

/* The error of a builder that is no node yet. */
void graph_fail(struct graph *g, const char *format, ...) PRINTF_LIKE(2, 3);

static inline struct tensor *node_out(const struct node *n, int i)
{
	return n ? n->out[i] : NULL;
}

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

#endif
