/*
 * op_case - a small graph around one op, for the tests that walk op_table.
 *
 * build() adds parameters with case_param(), applies the op and marks its
 * outputs with graph_seeded_output() or graph_loss().  The tests draw the
 * parameters, fill i32 inputs with numbers below int_limit and other inputs
 * with numbers in (0, 1), and compare the gradients of all parameters with
 * central differences.
 */
#ifndef CORE_OPS_OP_CASE_H
#define CORE_OPS_OP_CASE_H

#include "core/ops/ops.h"

struct op_case {
	const char *name;
	void (*build)(struct graph *g);
	int int_limit;	 /* i32 inputs are in [0, int_limit) */
	bool int_ignore; /* ... and some of them -1 */
	bool chooses;	 /* so narrowly that rounding to bfloat16 changes the choice */
};

/* A function that builds the graph of a case by one statement. */
#define BUILD_CASE(function, ...)             \
	static void function(struct graph *g) \
	{                                     \
		__VA_ARGS__;                  \
	}

/* One entry; further fields may follow: OP_CASE("ties", case_ties, .int_limit = 7). */
#define OP_CASE(label, function, ...)                         \
	{                                                     \
		.name = label, .build = function, __VA_ARGS__ \
	}
#define OP_CASES(op) static const struct op_case op##_cases[]
#define OP_CASES_END         \
	{                    \
		.name = NULL \
	}

/* A parameter drawn from N(0,1). */
#define case_param(g, name, ...)                                                              \
	graph_param(g, name, &(const struct param_init){ .kind = INIT_NORMAL, .value = 1.0 }, \
		    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),              \
		    SHAPE(__VA_ARGS__))

#define case_input(g, name, type, ...)                                                          \
	graph_input(g, name, type, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
		    SHAPE(__VA_ARGS__))

/* An op that reads x, which may be a slice: output `name` is x + f b, with a b of its own; f: or
 * NULL. */
static inline void case_add_to(struct graph *g, const char *name, struct tensor *x,
			       struct tensor *f)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 1 };
	struct tensor *b;

	graph_scope(g, "%s.", name);
	b = graph_param(g, "b", &init, x->ndim, x->dim);
	graph_seeded_output(g, name, op_add_scaled(g, "add", x, b, 0.3, f));
	graph_scope_end(g);
}

#endif
