/*
 * lower - from a graph to one linear list of instructions.
 *
 * Forward in build order, then backward in reverse.  The last reader of a tensor
 * writes its gradient, and the others add to it.  Where two gradients are equal
 * (an input's and an output's, or those of two inputs), one tensor serves both.
 * What the backward pass can compute again is not kept, unless the program keeps all: it is remade
 * just before it is read.  The backend's precision decides in which type tensors are kept. For
 * lanes, gradients of an op are made by two instructions where that takes less time, and the
 * backward pass of a node comes as early as its gradients allow.
 * Where a backend does several nodes in one call, and nothing flows back, nodes come as early as
 * such a call wants them.
 */
#ifndef CORE_ENGINE_LOWER_H
#define CORE_ENGINE_LOWER_H

#include "core/engine/backend.h"
#include "core/engine/graph.h"

enum instr_kind { INSTR_KERNEL, INSTR_ZERO };

struct instr {
	enum instr_kind kind;
	enum pass pass;
	const struct node *node;
	struct tensor *in[OP_MAX_INPUTS]; /* what the pass reads ... */
	struct tensor *saved_out[OP_MAX_OUTPUTS];
	struct tensor *dout[OP_MAX_OUTPUTS];
	struct tensor *out[OP_MAX_OUTPUTS]; /* ... and writes */
	struct tensor *din[OP_MAX_INPUTS];
	enum grad_mode mode[OP_MAX_INPUTS];
	struct tensor *inner; /* gradient of an output that this instruction makes for itself */
	struct tensor *work;
	struct tensor *zero; /* INSTR_ZERO: filled with zeros (a parameter's: in micro-batch 0) */
	bool in_place;	     /* din[0] may be written over dout[0]; `inner` always may */
	int fused; /* one call does so many instructions, from this one on; 1: itself alone */
};

/* The gradient of a loss or of a seeded output: given from outside. */
struct seed {
	const struct graph_output *output;
	struct tensor *gradient;
};

struct lowered {
	struct pool pool;
	struct instr *instrs;
	int n_instrs, cap_instrs;
	struct tensor **tensors; /* made here: gradients, remade activations, scratch */
	int n_tensors, cap_tensors;
	struct seed *seeds;
	int n_seeds;
};

/* Tensors made here are numbered from g->n_tensors on.  `apart`: the program is for several lanes.
 */
enum status lower_graph(struct lowered *l, const struct graph *g, const struct backend *backend,
			bool train, bool recompute, bool apart, struct error *err) MUST_CHECK;
void lower_free(struct lowered *l);

#endif
