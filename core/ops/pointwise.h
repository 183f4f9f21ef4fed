/*
 * pointwise - ops that map elements: y[i] = f(a[i], b[i]; k).
 *
 * An op is one file.  It states its formula twice, forward and backward, in the common subset of C
 * and C++ and without branches, so that compilers vectorise it:
 *
 *     FORMULA real NAME_forward(const real *in, const real *k)
 *     FORMULA void NAME_backward(const real *in, const real *k, real y, real dy, real *d)
 *     POINTWISE(NAME, inputs, constants, SAVES, DOMAIN, flops)
 *
 *     in[]    an element of each input
 *     k[]     constants of the node
 *     d[]     what the formula adds to the gradient of each input
 *     SAVES   what the backward formula reads beside dy: SAVES_NOTHING, SAVES_INPUTS, SAVES_OUTPUT;
 *             PASSES_GRADIENT: nothing, and the gradient of every input is dy
 *     DOMAIN  where f is defined: ANY, POSITIVE; CHOICE: ANY, and rounding may change its choice
 *     flops   arithmetic operations an element that a model's work counts; functions count as none
 *
 * `real` is the device's, and so are the functions: fast_exp, fast_log, fast_log1p (of 0 to 1),
 * fast_sigmoid, fast_tanh, fast_divide, one_plus_exp2, reciprocal_root, larger, size_of.
 *
 * Every backend compiles all formulas for its precisions (generated/pointwise_formulas.h, which
 * make writes from the files that use POINTWISE).  Here they are compiled once more, in double, and
 * POINTWISE defines the op: constructor, shape rule, cost and cases.
 */
#ifndef CORE_OPS_POINTWISE_H
#define CORE_OPS_POINTWISE_H

#define POINTWISE_MAX_INPUTS 2
#define POINTWISE_MAX_CONSTANTS 2

#define SAVES_NOTHING 0
#define SAVES_INPUTS 1
#define SAVES_OUTPUT 2
#define PASSES_GRADIENT 4

#ifndef POINTWISE_DEVICE
#include <math.h>

#include "core/ops/rule.h"

typedef double real;
#define FORMULA static inline

FORMULA real fast_exp(real x)
{
	return exp(x);
}
FORMULA real fast_log(real x)
{
	return log(x);
}
FORMULA real fast_log1p(real x)
{
	return log1p(x);
}
FORMULA real fast_tanh(real x)
{
	return tanh(x);
}
FORMULA real fast_divide(real a, real b)
{
	return a / b;
}
FORMULA real one_plus_exp2(real t)
{
	return 1 + exp2(t);
}
FORMULA real fast_sigmoid(real x)
{
	return 1 / (1 + exp(-x));
}
FORMULA real reciprocal_root(real x)
{
	return 1 / sqrt(x);
}
FORMULA real larger(real a, real b)
{
	return fmax(a, b);
}
FORMULA real size_of(real x)
{
	return fabs(x);
}

#define ALL_INPUTS(n) (BIT(n) - 1)

#define POINTWISE(name_, inputs_, constants_, saves_, domain_, flops_)                            \
	POINTWISE_CONSTRUCTOR_##inputs_##_##constants_(name_) static void name_##_cost(           \
		const struct node *n, struct op_cost *c)                                          \
	{                                                                                         \
		pointwise_cost(n, c, saves_, flops_);                                             \
		(void)name_##_forward, (void)name_##_backward;                                    \
	}                                                                                         \
	static struct tensor *name_##_apply(struct graph *g, const char *name, struct tensor *a,  \
					    struct tensor *b)                                     \
	{                                                                                         \
		return POINTWISE_APPLY_##inputs_##_##constants_(name_);                           \
	}                                                                                         \
	POINTWISE_CASES_##inputs_(name_, POINTWISE_##domain_) const struct op op_desc_##name_ = { \
		.name = #name_,                                                                   \
		.attr_size = constants_ ? sizeof(struct pointwise_attr) : 0,                      \
		.min_inputs = inputs_,                                                            \
		.max_inputs = inputs_,                                                            \
		.infer = constants_ ? infer_with_constant : infer_elementwise,                    \
		.cost = name_##_cost,                                                             \
		.saves_in = saves_ == SAVES_INPUTS ? ALL_INPUTS(inputs_) : 0,                     \
		.saves_out = saves_ == SAVES_OUTPUT ? BIT(0) : 0,                                 \
		.passes_gradient = saves_ == PASSES_GRADIENT,                                     \
		.grad_in_place = saves_ != PASSES_GRADIENT,                                       \
		.recompute_rule = { .made = saves_ == SAVES_INPUTS ? BIT(0) : 0,                  \
				    .in = saves_ == SAVES_INPUTS ? ALL_INPUTS(inputs_) : 0 },     \
		.bf16_in = ALL_INPUTS(inputs_),                                                   \
		.bf16_out = BIT(0),                                                               \
		.cases = name_##_cases,                                                           \
	};

static inline enum status infer_with_constant(struct graph *g, struct node *n)
{
	const struct pointwise_attr *attr = n->attr;

	if (!isfinite(attr->k[0]))
		return graph_misfit(g, n, "the constant %g must be finite", attr->k[0]);
	return infer_elementwise(g, n);
}

static inline struct tensor *pointwise_node(struct graph *g, enum op_id id, const char *name, int n,
					    struct tensor *a, struct tensor *b,
					    const struct pointwise_attr *attr)
{
	struct tensor *in[] = { a, b };

	op_broadcast(g, name, &in[0], &in[1]);
	return node_out(graph_node(g, id, name, attr, n, in), 0);
}

#define POINTWISE_CONSTRUCTOR_1_0(op)                                               \
	struct tensor *op_##op(struct graph *g, const char *name, struct tensor *x) \
	{                                                                           \
		return pointwise_node(g, OP_##op, name, 1, x, NULL, NULL);          \
	}
#define POINTWISE_CONSTRUCTOR_1_1(op)                                               \
	struct tensor *op_##op(struct graph *g, const char *name, struct tensor *x, \
			       double constant)                                     \
	{                                                                           \
		const struct pointwise_attr attr = { { constant } };                \
                                                                                    \
		return pointwise_node(g, OP_##op, name, 1, x, NULL, &attr);         \
	}
#define POINTWISE_CONSTRUCTOR_2_0(op)                                               \
	struct tensor *op_##op(struct graph *g, const char *name, struct tensor *a, \
			       struct tensor *b)                                    \
	{                                                                           \
		return pointwise_node(g, OP_##op, name, 2, a, b, NULL);             \
	}
#define POINTWISE_APPLY_1_0(op) ((void)b, op_##op(g, name, a))
#define POINTWISE_APPLY_1_1(op) ((void)b, op_##op(g, name, a, 0.3))
#define POINTWISE_APPLY_2_0(op) op_##op(g, name, a, b)

static inline void pointwise_cost(const struct node *n, struct op_cost *c, int saves, int flops)
{
	const double bytes = (double)tensor_bytes(n->in[0]);
	const double saved = saves == SAVES_INPUTS ? n->n_in : saves == SAVES_OUTPUT ? 1 : 0;

	c->forward_flops = flops * (double)tensor_count(n->in[0]);
	c->forward_bytes = (n->n_in + 1) * bytes;
	if (saves == PASSES_GRADIENT)
		return;
	c->backward_flops = n->n_in * c->forward_flops;
	c->backward_bytes = (saved + 1 + n->n_in) * bytes;
}

/* ------------------------------------------------------------------------- cases */

typedef struct tensor *(*pointwise_op)(struct graph *g, const char *name, struct tensor *a,
				       struct tensor *b);
enum pointwise_domain { POINTWISE_ANY, POINTWISE_POSITIVE, POINTWISE_CHOICE };

static inline struct tensor *pointwise_in(struct graph *g, const char *name, struct tensor *x,
					  enum pointwise_domain domain)
{
	return domain == POINTWISE_POSITIVE ? op_softplus(g, name, x, 0.2) : x;
}

/* One node of inputs of this shape. */
static inline void pointwise_alone(struct graph *g, pointwise_op op, enum pointwise_domain domain,
				   int ndim, const int64_t *dim)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 1 };
	struct tensor *a = graph_param(g, "a", &init, ndim, dim);
	struct tensor *b = graph_param(g, "b", &init, ndim, dim);

	graph_seeded_output(g, "y",
			    op(g, "op", pointwise_in(g, "left", a, domain),
			       pointwise_in(g, "right", b, domain)));
}

/* Activations, read by two nodes; counts that are a multiple of eight, and such that are not. */
static inline void pointwise_chain(struct graph *g, pointwise_op op, enum pointwise_domain domain,
				   int64_t rows, int64_t columns)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "a", rows, columns));
	struct tensor *b = op_gelu(g, "right", case_param(g, "b", rows, columns));

	a = pointwise_in(g, "a_in", a, domain);
	b = pointwise_in(g, "b_in", b, domain);
	graph_seeded_output(g, "y", op_gelu(g, "after", op(g, "op", a, b)));
	graph_seeded_output(g, "z", op(g, "other", b, a));
}

/* Both inputs are one activation: both gradients go to one tensor. */
static inline void pointwise_same(struct graph *g, pointwise_op op, enum pointwise_domain domain)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "a", 4, 3));

	x = pointwise_in(g, "in", x, domain);
	graph_seeded_output(g, "y", op(g, "op", x, x));
}

/* One input has no gradient. */
static inline void pointwise_fixed(struct graph *g, pointwise_op op, bool left)
{
	struct tensor *a = case_input(g, "a", g->type, 3, 4), *b = case_param(g, "b", 3, 4);

	graph_seeded_output(g, "y", left ? op(g, "op", a, b) : op(g, "op", b, a));
}

#define POINTWISE_CASE(op, label, body)                \
	static void op##_case_##label(struct graph *g) \
	{                                              \
		body;                                  \
	}
#define POINTWISE_CASES_BOTH(op, domain)                                                       \
	POINTWISE_CASE(op, odd, pointwise_alone(g, op##_apply, domain, 3, SHAPE(3, 5, 7)))     \
	POINTWISE_CASE(op, one, pointwise_alone(g, op##_apply, domain, 1, SHAPE(1)))           \
	POINTWISE_CASE(op, threads, pointwise_alone(g, op##_apply, domain, 2, SHAPE(9, 2011))) \
	POINTWISE_CASE(op, chain, pointwise_chain(g, op##_apply, domain, 4, 3))                \
	POINTWISE_CASE(op, eights, pointwise_chain(g, op##_apply, domain, 3, 8))
#define POINTWISE_CASES_1(op, domain)                                                              \
	POINTWISE_CASES_BOTH(op, domain)                                                           \
	OP_CASES(op) = {                                                                           \
		OP_CASE("odd shape", op##_case_odd),   OP_CASE("one element", op##_case_one),      \
		OP_CASE("threads", op##_case_threads), OP_CASE("between others", op##_case_chain), \
		OP_CASE("eights", op##_case_eights),   OP_CASES_END                                \
	};
#define POINTWISE_CASES_2(op, domain)                                        \
	POINTWISE_CASES_BOTH(op, domain)                                     \
	POINTWISE_CASE(op, same, pointwise_same(g, op##_apply, domain))      \
	POINTWISE_CASE(op, left, pointwise_fixed(g, op##_apply, true))       \
	POINTWISE_CASE(op, right, pointwise_fixed(g, op##_apply, false))     \
	OP_CASES(op) = { OP_CASE("odd shape", op##_case_odd),                \
			 OP_CASE("one element", op##_case_one),              \
			 OP_CASE("threads", op##_case_threads,               \
				 .chooses = (domain) == POINTWISE_CHOICE),   \
			 OP_CASE("between others", op##_case_chain),         \
			 OP_CASE("eights", op##_case_eights),                \
			 OP_CASE("one tensor twice", op##_case_same),        \
			 OP_CASE("left without gradient", op##_case_left),   \
			 OP_CASE("right without gradient", op##_case_right), \
			 OP_CASES_END };
#endif
#endif
