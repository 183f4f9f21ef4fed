#include "models/audit/initial.h"

#include <math.h>
#include <string.h>

#include "core/util/hash.h"
#include "core/util/rng.h"

#define MOST_ELEMENTS 64
#define SHARE 1e-6   /* of a value that is rounded to a float once */
#define SQUARES 1e-4 /* of the sum of squares of an orthogonal matrix in floats */

/* What the elements of a tensor are. */
struct rule {
	enum param_distribution kind;
	double value;
	int64_t blocks;
};

struct initial {
	struct config *config;
	const struct params *params;
	uint64_t seed;
};

static bool ends(const struct param *p, const char *end)
{
	const size_t n = strlen(p->name), k = strlen(end);

	return n >= k && strcmp(p->name + n - k, end) == 0;
}

static bool has(const struct param *p, const char *part)
{
	return strstr(p->name, part) != NULL;
}

/* Vectors that do not begin at 0 (biases) or 1 (norms), by the end of their names. */
static struct rule vector_rule(const struct initial *a, const struct param *p)
{
	static const struct {
		const char *end, *symbol;
	} alphas[] = { { ".ra_alpha", "RA_MLA_RA_ALPHA" },
		       { ".gate_alpha", "GATE_ALPHA" },
		       { ".cross_alpha", "CROSS_ALPHA" },
		       { ".recip_alpha", "RECIP_ALPHA" },
		       { ".recip_alpha_next", "RECIP_ALPHA" } };
	struct config *c = a->config;

	for (size_t i = 0; i < sizeof(alphas) / sizeof(alphas[0]); i++)
		if (ends(p, alphas[i].end))
			return (struct rule){ INIT_CONSTANT, config_real(c, alphas[i].symbol), 0 };
	if (has(p, ".lambda_q") || has(p, ".lambda_k"))
		return (struct rule){ INIT_NORMAL, 0.1, 0 };
	if (ends(p, ".tau"))
		return (struct rule){ INIT_CONSTANT,
				      2 * sqrt((double)config_int(c, "MODEL_EMBD") /
					       (double)config_int(c, "MODEL_HEADS")),
				      0 };
	if (ends(p, ".bias"))
		return (struct rule){ INIT_CONSTANT, 0, 0 };
	if (ends(p, ".weight") || has(p, ".coupler."))
		return (struct rule){ INIT_CONSTANT, 1, 0 };
	return (struct rule){ p->init.kind, p->init.value, p->init.blocks };
}

static struct rule rule_of(const struct initial *a, const struct param *p)
{
	struct config *c = a->config;
	double deviation;

	if (p->ndim < 2)
		return vector_rule(a, p);
	if (ends(p, ".z_proj.weight")) {
		const double heads = (double)config_int(c, "WS_HEADS");
		const double width = p->ndim == 3 ? (double)p->dim[1] : (double)p->dim[0] / heads;

		return (struct rule){ INIT_UNIFORM_BLOCKS, 1 / sqrt(width), (int64_t)heads };
	}
	if (strcmp(config_text(c, "INIT"), "orthogonal") == 0)
		return (struct rule){ INIT_ORTHOGONAL, 1, 0 };
	deviation = config_real(c, "INIT_STD");
	if (ends(p, "c_proj.weight"))
		deviation /= sqrt(2 * (double)config_int(c, "MODEL_LAYERS"));
	return (struct rule){ INIT_NORMAL, deviation, 0 };
}

/* One of each of 64 stretches. */
static int64_t place(const struct param *p, int64_t k, int64_t n)
{
	const int64_t first = p->count * k / n, length = p->count * (k + 1) / n - first;

	return first + (k * 7919) % length;
}

/* Is the element of a diagonal block?  Slices of a 3-D tensor are blocks. */
static bool is_inside(const struct param *p, const struct rule *r, int64_t i)
{
	return p->ndim == 3 ||
	       i / p->dim[1] * r->blocks / p->dim[0] == i % p->dim[1] * r->blocks / p->dim[1];
}

static double drawn(const struct initial *a, const struct param *p, const struct rule *r, int64_t i)
{
	const struct rng_key key = rng_subkey(rng_key(a->seed, "init"), hash_text(p->name));

	if (r->kind == INIT_CONSTANT)
		return r->value;
	if (r->kind == INIT_NORMAL)
		return r->value * rng_normal(key, (uint64_t)i);
	return is_inside(p, r, i) ? r->value * (2 * rng_uniform(key, (uint64_t)i) - 1) : 0;
}

struct walk {
	const struct initial *a;
	const struct param *p;
	struct rule rule;
	int64_t k, n;	/* the next element to be looked at, and how many there are */
	double squares; /* of all elements */
	char *detail;
	size_t size;
};

static void look(void *context, int64_t first, int64_t n, double *values)
{
	struct walk *w = context;

	for (int64_t i = 0; i < n && w->rule.kind == INIT_ORTHOGONAL; i++)
		w->squares += values[i] * values[i];
	for (; w->rule.kind != INIT_ORTHOGONAL && w->k < w->n; w->k++) {
		const int64_t i = place(w->p, w->k, w->n);
		double expected;

		if (i >= first + n)
			return;
		expected = drawn(w->a, w->p, &w->rule, i);
		if (!(fabs(values[i - first] - expected) <= SHARE * fabs(expected)) &&
		    !w->detail[0])
			snprintf(w->detail, w->size, "element %lld is %.6g; configured is %.6g",
				 (long long)i, values[i - first], expected);
	}
}

/* Rows of length 1, or columns, of each slice. */
static void judge_orthogonal(const struct walk *w)
{
	const struct param *p = w->p;
	const int64_t rows = p->dim[p->ndim - 2], columns = p->dim[p->ndim - 1];
	const double each = (double)(rows < columns ? rows : columns);
	const double expected =
		w->rule.value * w->rule.value * each * (double)(p->count / (rows * columns));

	if (!(fabs(w->squares - expected) <= SQUARES * expected))
		snprintf(w->detail, w->size,
			 "the squares add up to %.6g; those of an orthogonal matrix to %.6g",
			 w->squares, expected);
}

static enum status judge(const struct initial *a, int index, char *detail, size_t size,
			 struct error *err)
{
	const struct param *p = &a->params->list[index];
	struct walk w = { .a = a,
			  .p = p,
			  .rule = rule_of(a, p),
			  .n = p->count < MOST_ELEMENTS ? p->count : MOST_ELEMENTS,
			  .detail = detail,
			  .size = size };

	detail[0] = '\0';
	if (config_check(a->config, err) != OK ||
	    param_visit(a->params, index, false, look, &w, err) != OK)
		return FAIL;
	if (w.rule.kind == INIT_ORTHOGONAL)
		judge_orthogonal(&w);
	return OK;
}

enum status audit_initial(const struct config *config, const struct params *params, uint64_t seed,
			  struct audit_report *report, struct error *err)
{
	struct initial a = { .params = params, .seed = seed };
	enum status status = OK;
	char detail[160] = "";
	int i = 0;

	if (config_copy(&a.config, config, err) != OK)
		return FAIL;
	while (i < params->n && status == OK && !detail[0])
		status = judge(&a, i++, detail, sizeof(detail), err);
	config_free(a.config);
	if (status != OK)
		return FAIL;
	if (detail[0])
		return audit_add(report, "training", params->list[i - 1].name, false, detail, err);
	snprintf(detail, sizeof(detail), "%d tensors are drawn as configured", params->n);
	return audit_add(report, "training", "initial values", true, detail, err);
}
