/*
 * An op: what a node can compute.
 *
 * One descriptor per op, in core/ops/NAME.c: its typed attributes, shape rule, cost, gradient
 * properties and test cases.  The arithmetic is in the backend's kernel of the same name.  OP_LIST
 * is the only list of ops; the descriptor table, every backend's kernel table and the tests follow
 * it.
 */
#ifndef CORE_ENGINE_OP_H
#define CORE_ENGINE_OP_H

#include "core/util/status.h"
#include "core/engine/origin.h"
#include "core/engine/tensor.h"

#define OP_MAX_INPUTS 8
#define OP_MAX_OUTPUTS 6

#define OP_LIST(X)            \
	X(embedding)          \
	X(linear)             \
	X(head_linear)        \
	X(concat)             \
	X(matmul)             \
	X(permute)            \
	X(expand)             \
	X(sum)                \
	X(softmax)            \
	X(logsumexp)          \
	X(max)                \
	X(add_constant)       \
	X(add)                \
	X(multiply)           \
	X(silu)               \
	X(relu)               \
	X(tanh)               \
	X(abs)                \
	X(square)             \
	X(rsqrt)              \
	X(log)                \
	X(exp)                \
	X(maximum)            \
	X(divide)             \
	X(subtract)           \
	X(scale)              \
	X(add_scaled)         \
	X(add_scaled_learned) \
	X(add_linear)         \
	X(add_linear_learned) \
	X(norm)               \
	X(norm_residual)      \
	X(rope)               \
	X(gelu)               \
	X(linear_gelu)        \
	X(linear_gelu_linear) \
	X(silu_gate)          \
	X(softplus)           \
	X(sigmoid)            \
	X(cache)              \
	X(recent_tokens)      \
	X(dropout)            \
	X(attention)          \
	X(mix_topk)           \
	X(mix_rows)           \
	X(running_mean)       \
	X(head_gate)          \
	X(w2_gaussian)        \
	X(scalar_expand)      \
	X(scalar_pool)        \
	X(ws_energy)          \
	X(ws_contrast)        \
	X(head_loss)          \
	X(attention_probe)    \
	X(cumsum)             \
	X(scan)               \
	X(shift)              \
	X(gather)             \
	X(scatter)            \
	X(linear_attention)

enum op_id {
#define X(name) OP_##name,
	OP_LIST(X)
#undef X
		OP_COUNT
};

struct graph;
struct op_case;

struct node {
	const struct op *op;
	enum op_id id; /* index into the op tables */
	int index;     /* position in the graph */
	const char *name;
	struct origin origin;
	const void *attr; /* the op's own struct */
	int n_in, n_out;
	struct tensor *in[OP_MAX_INPUTS]; /* NULL: an optional input that is absent */
	struct tensor *out[OP_MAX_OUTPUTS];
};

/* Work of one node: floating-point operations, and bytes that must move at least. */
struct op_cost {
	double forward_flops, backward_flops;
	double forward_bytes, backward_bytes;
};

#define BIT(i) (1u << (i))

/* The kinds of passes.  A backend provides the kernels that each op needs. */
enum pass {
	PASS_FORWARD,
	PASS_BACKWARD,
	PASS_RECOMPUTE, /* recompute outputs for the backward pass */
	PASS_LOSS,	/* forward and backward of a loss in one kernel */
};

const char *pass_name(enum pass pass);

struct op;

/* May this tensor be input `i` of the op, even if it is a slice? */
bool op_takes(const struct op *op, int i, const struct tensor *t);

/* Which outputs can be recomputed together, from which inputs and other outputs. */
struct recompute_rule {
	unsigned made, in, out; /* bit masks; made 0: none can */
};

struct op {
	const char *name;
	size_t attr_size;
	int min_inputs, max_inputs;
	unsigned optional_in; /* inputs among the first min_inputs that may be NULL */

	/*
	 * Shape rule: check n->in and n->attr, declare every output with
	 * graph_out(), or return graph_misfit().  The first min_inputs are not
	 * NULL unless optional_in says so; the others may be.
	 */
	enum status (*infer)(struct graph *g, struct node *n);

	void (*cost)(const struct node *n, struct op_cost *cost);

	/* Sets of inputs and outputs are bit masks. */
	bool no_gradient;     /* nothing flows back through this op at all */
	unsigned constant_in; /* inputs that never receive a gradient */
	/* Inputs that may be slices of wider tensors, with rows of the last dimension .. */
	unsigned strided_in;
	/* .. and of these, inputs whose rows may be the last two: all heads of a token. */
	unsigned strided_heads_in;
	unsigned saves_in;  /* inputs that the backward kernel reads */
	unsigned saves_out; /* outputs that the backward kernel reads */
	/* Inputs and outputs that may be stored in bfloat16 (storage.h) .. */
	unsigned bf16_in, bf16_out;
	/* .. and those that may, too, if the residual stream is stored in bfloat16. */
	unsigned bf16_residual_in, bf16_residual_out;
	/* Of bf16_out, outputs whose gradients keep the type of the graph. */
	unsigned full_gradient_out;
	/*
	 * > 0: this output stores the rounding error of output 0, in bfloat16, for the backward
	 * kernel; it is NOTHING if output 0 is not rounded.
	 */
	int rounding_error_out;

	bool passes_gradient; /* the gradient of every input is that of output 0, unchanged */
	bool shares_gradient; /* the gradients of inputs 0 and 1 are equal */
	bool grad_in_place;   /* din[0] may overwrite dout[0] */
	int inner_out; /* > 0: the backward kernel first computes the gradient of this output, which
			  no node reads; it may overwrite dout[0] */
	/* Inputs whose gradients share little work with the others: instructions of their own. */
	unsigned separate_gradient_in;

	/*
	 * Builds one node for n nodes of this op with the same attribute and input 0, from their
	 * other inputs.  Returns its output, which holds their columns side by side, or NULL if it
	 * cannot.  (merge_linears.h)
	 */
	struct tensor *(*merge)(struct graph *g, int n, struct node *const *nodes);

	struct recompute_rule recompute_rule; /* for the kernel `recompute`; a backend may override
						 it (struct kernels) */

	bool loss; /* outputs 0.. are scalars whose gradient is a constant weight */

	const struct op_case *cases; /* ends with a NULL name */
};

extern const struct op *const op_table[OP_COUNT];

#endif
