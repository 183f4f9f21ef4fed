/*
 * Lowering: from a graph to a linear list of instructions.
 *
 * Forward runs in build order, backward in reverse.  The first contribution to a gradient writes
 * it, and later ones add to it.  Two equal gradients (of an input and an output, or of two inputs)
 * share one tensor.  Activations that the backward pass can recompute are not kept, unless the
 * program keeps all: they are recomputed just before they are read.  The backend's precision
 * selects the storage type of tensors.
 *
 * For several streams, the gradients of an op are computed by two instructions where that saves
 * time, and the backward pass of a node comes as early as its gradients allow.  Where a backend can
 * fuse several nodes into one call, and nothing flows back, nodes come as early as such a call
 * needs them.
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
	struct tensor *inner; /* gradient of an output that only this instruction uses */
	struct tensor *work;
	struct tensor *zero; /* INSTR_ZERO: tensor to fill with zeros (of a parameter: only in
				micro-batch 0) */
	bool in_place;	     /* din[0] may overwrite dout[0]; `inner` always may */
	int fused; /* number of instructions, from this one on, that one call runs; 1: only this one
		    */
};

/* The gradient of a loss or of a seeded output, which the caller sets. */
struct seed {
	const struct graph_output *output;
	struct tensor *gradient;
};

struct lowered {
	struct pool pool;
	struct instr *instrs;
	int n_instrs, cap_instrs;
	struct tensor *
		*tensors; /* created by lowering: gradients, recomputed activations, scratch */
	int n_tensors, cap_tensors;
	struct seed *seeds;
	int n_seeds;
};

/*
 * New tensors have ids from g->n_tensors on.  `split_backward`: the program is for several streams.
 */
enum status lower_graph(struct lowered *l, const struct graph *g, const struct backend *backend,
			bool train, bool recompute, bool split_backward,
			struct error *err) MUST_CHECK;
void lower_free(struct lowered *l);

#endif
