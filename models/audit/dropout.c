#include "models/audit/auditor.h"

#include <stdlib.h>
#include <string.h>

#include "core/ops/ops.h"

static enum status run_evaluation(const struct auditor *a, struct token_program *t, uint64_t seed,
				  double *nll, struct error *err)
{
	const struct run run = { .seed = seed, .iteration = seed };

	token_program_feed(t, a->tokens, a->tokens);
	token_program_weigh(t, 1, 1);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_read(t->p, t->io.nll, nll);
	return OK;
}

/* Two evaluations with different seeds of dropout must agree. */
static enum status audit_evaluation(struct auditor *a, struct error *err)
{
	const size_t n = (size_t)(TRAINING_ROWS * auditor_training_length(a));
	double *nll = malloc(2 * n * sizeof(*nll));
	struct token_program t = { 0 };
	enum status status = FAIL;
	bool same = false;

	if (!nll)
		return fail_memory(err, "audit", 2 * n * sizeof(*nll));
	if (auditor_open_small(a, a->model, MODEL_EVAL, &t, err) == OK &&
	    run_evaluation(a, &t, 1, nll, err) == OK &&
	    run_evaluation(a, &t, 2, nll + n, err) == OK) {
		same = memcmp(nll, nll + n, n * sizeof(*nll)) == 0;
		status = OK;
	}
	token_program_close(&t);
	free(nll);
	if (status != OK)
		return FAIL;
	return auditor_add(a, "training", "evaluation without dropout", same,
			   same ? "" : "two evaluations with different seeds differ", err);
}

/* Does another seed change the gradients of a batch? */
static enum status find_seed_effect(struct auditor *a, bool *differ, struct error *err)
{
	enum status status = FAIL;
	bool same;
	char *copy;

	*differ = false;
	if (auditor_gradients_repeat(a, &same, err) != OK)
		return FAIL;
	if (same)
		return OK;
	if (auditor_train_seeded(a, &a->training, 0, 1, err) != OK)
		return FAIL;
	copy = auditor_copy_gradients(a, err);
	if (copy && auditor_train_seeded(a, &a->training, 0, 2, err) == OK)
		status = auditor_gradients_differ(a, copy, differ, err);
	free(copy);
	return status;
}

/* The first place of the training graph that drops another share; NULL: none. */
static const struct node *find_other_rate(const struct graph *g, double rate)
{
	for (int i = 0; i < g->n_nodes; i++) {
		const struct node *n = g->nodes[i];

		if (n->id == OP_dropout &&
		    ((const struct dropout_attr *)n->attr)->probability != rate)
			return n;
		if (n->id == OP_attention &&
		    ((const struct attention_attr *)n->attr)->dropout != rate)
			return n;
	}
	return NULL;
}

/* What the kernels and the places make of it, the oracle compares. */
static enum status audit_rate(struct auditor *a, struct error *err)
{
	const double rate = config_real(a->config, "DROPOUT");
	const struct node *n = find_other_rate(a->training.g, rate);
	char detail[160] = "";

	if (n)
		snprintf(detail, sizeof(detail), "DROPOUT=%g, and %.80s drops another share", rate,
			 n->name);
	return auditor_add(a, "training", "dropout rate", !n, detail, err);
}

/* In training, the seed must matter with dropout, and only with dropout. */
static enum status audit_training(struct auditor *a, struct error *err)
{
	const double dropout = config_real(a->config, "DROPOUT");
	char detail[160];
	bool differ;

	if (find_seed_effect(a, &differ, err) != OK)
		return FAIL;
	snprintf(detail, sizeof(detail), "DROPOUT=%g, and another seed changes %s gradient",
		 dropout, differ ? "the" : "no");
	return auditor_add(a, "training", "dropout", differ == (dropout > 0), detail, err);
}

enum status audit_dropout(struct auditor *a, struct error *err)
{
	if (audit_evaluation(a, err) != OK || audit_rate(a, err) != OK)
		return FAIL;
	return audit_training(a, err);
}
