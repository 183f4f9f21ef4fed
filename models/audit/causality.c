#include "models/audit/auditor.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"

/* Of the positions whose logits are compared, if not of all: every SPARSE-th in a loss. */
#define SPARSE 4

/* Every row is cut at a position of its own; from that position on, its tokens are changed. */
struct cuts {
	int64_t count, passes;
};

static struct cuts cuts_of(const struct auditor *a, int64_t positions)
{
	const int64_t all = a->options->length - 1, rows = a->options->rows;
	const int64_t count = positions < all ? positions : all;

	return (struct cuts){ count, (count + rows - 1) / rows };
}

/* The position of a row's cut in a pass.  A row without a cut has it at its end. */
static int64_t cut_at(const struct auditor *a, const struct cuts *c, int64_t pass, int64_t row)
{
	const int64_t T = a->options->length, number = row * c->passes + pass;

	if (number >= c->count)
		return T;
	return c->count > 1 ? 1 + number * (T - 2) / (c->count - 1) : T - 1;
}

/* `what` names the stream of the changes. */
static void change_tokens(const struct auditor *a, const struct cuts *c, int64_t pass,
			  const char *what, const int32_t *tokens, int32_t *changed)
{
	const int64_t T = a->options->length, V = a->model->vocab;
	const struct rng_key key = rng_subkey(rng_key(a->options->seed, what), (uint64_t)pass);

	memcpy(changed, tokens, (size_t)(a->options->rows * T) * sizeof(*tokens));
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t i = row * T + cut_at(a, c, pass, row); i < (row + 1) * T; i++) {
			const int64_t shift =
				1 + (int64_t)rng_below(key, (uint64_t)i, (uint64_t)V - 1);

			changed[i] = (int32_t)((tokens[i] + shift) % V);
		}
}

/* What is compared: the same numbers for every token, of batch 0 and with changes. */
struct compared {
	const char *name;
	const char *base, *now;
	size_t bytes;
};

/* A fault is a difference before a row's cut, or no difference at all. */
static bool find_fault(const struct auditor *a, const struct cuts *c, int64_t pass,
		       const struct compared *x, char *detail, size_t size)
{
	const int64_t T = a->options->length;
	const size_t per_token = x->bytes / (size_t)(a->options->rows * T);

	if (memcmp(x->base, x->now, x->bytes) == 0) {
		snprintf(detail, size, "other tokens change no %s", x->name);
		return true;
	}
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t t = 0; t < cut_at(a, c, pass, row); t++) {
			const size_t at = (size_t)(row * T + t) * per_token;

			if (memcmp(x->base + at, x->now + at, per_token) == 0)
				continue;
			snprintf(detail, size, "other tokens from %lld on change the %s at %lld",
				 (long long)cut_at(a, c, pass, row), x->name, (long long)t);
			return true;
		}
	return false;
}

static enum status tell(const struct auditor *a, const char *graph, const struct cuts *c,
			bool fault, const char *detail, struct error *err)
{
	char subject[128];

	snprintf(subject, sizeof(subject), "%s%s%lld of %lld positions", graph,
		 a->model->decoder ? "before the decoder, " : "", (long long)c->count,
		 (long long)a->options->length - 1);
	return auditor_add(a, "causality", subject, !fault, detail, err);
}

static enum status open_logits(struct auditor *a, struct error *err)
{
	token_program_close(&a->logits);
	if (auditor_open(a, a->model, MODEL_LOGITS, &a->logits, err) != OK)
		return FAIL;
	return auditor_logits(&a->logits, a->tokens, a->base, err);
}

static enum status audit_logits(struct auditor *a, struct error *err)
{
	const struct cuts c = cuts_of(a, a->options->positions);
	const struct compared logits = { "logits", a->base, a->now, a->bytes };
	char detail[160] = "";
	bool fault = false;

	if (open_logits(a, err) != OK)
		return FAIL;
	for (int64_t pass = 0; pass < c.passes && !fault; pass++) {
		change_tokens(a, &c, pass, "audit/changes", a->tokens, a->changed);
		if (auditor_logits(&a->logits, a->changed, a->now, err) != OK)
			return FAIL;
		fault = find_fault(a, &c, pass, &logits, detail, sizeof(detail));
	}
	return tell(a, "", &c, fault, detail, err);
}

/* A decoder reads the whole row on purpose: the layers below it must be causal without it. */
enum status audit_causality(struct auditor *a, struct error *err)
{
	enum status status;

	a->model->undecoded = true;
	status = audit_logits(a, err);
	a->model->undecoded = false;
	return status == OK && a->model->decoder ? open_logits(a, err) : status;
}

/* ------------------------------------------------------------- what is scored */

/* Targets and losses of batch 0, and with changes. */
struct scored {
	int32_t *targets, *changed;
	double *base, *now;
};

/* On a GPU at all positions. */
static struct cuts scored_cuts(const struct auditor *a)
{
	const int64_t all = a->options->length - 1, positions = a->options->positions;

	if (a->backend->memory || positions >= all)
		return cuts_of(a, all);
	return cuts_of(a, positions / SPARSE > a->options->rows ? positions / SPARSE
								: a->options->rows);
}

/* The same seed always: with dropout, every run drops the same numbers. */
static enum status run_scored(struct auditor *a, struct token_program *t, const int32_t *tokens,
			      const int32_t *targets, double *nll, struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };
	const double share = 1 / (double)(a->options->rows * a->options->length);

	token_program_feed(t, tokens, targets);
	token_program_weigh(t, share, share);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_read(t->p, t->io.nll, nll);
	return OK;
}

static enum status audit_losses(struct auditor *a, struct token_program *t, const char *graph,
				const struct scored *s, struct error *err)
{
	const size_t bytes = (size_t)(a->options->rows * a->options->length) * sizeof(*s->base);
	const struct compared losses = { "losses", (const char *)s->base, (const char *)s->now,
					 bytes };
	const struct cuts c = scored_cuts(a);
	char detail[160] = "";
	bool fault = false;

	if (run_scored(a, t, a->tokens, s->targets, s->base, err) != OK)
		return FAIL;
	for (int64_t pass = 0; pass < c.passes && !fault; pass++) {
		change_tokens(a, &c, pass, "audit/changes", a->tokens, a->changed);
		change_tokens(a, &c, pass, "audit/targets", s->targets, s->changed);
		if (run_scored(a, t, a->changed, s->changed, s->now, err) != OK)
			return FAIL;
		fault = find_fault(a, &c, pass, &losses, detail, sizeof(detail));
	}
	return tell(a, graph, &c, fault, detail, err);
}

static enum status audit_graph(struct auditor *a, enum model_purpose purpose, const char *graph,
			       const struct scored *s, struct error *err)
{
	const struct model_use use = { .purpose = purpose,
				       .rows = a->options->rows,
				       .length = a->options->length,
				       .program = a->options->program };
	struct token_program t;
	enum status status;

	if (model_program_open(&t, a->model, &use, a->params, a->backend, err) != OK)
		return FAIL;
	status = audit_losses(a, &t, graph, s, err);
	token_program_close(&t);
	return status;
}

enum status audit_scored_causality(struct auditor *a, struct error *err)
{
	const size_t n = (size_t)(a->options->rows * a->options->length);
	struct scored s = {
		.targets = malloc(n * sizeof(*s.targets)),
		.changed = malloc(n * sizeof(*s.changed)),
		.base = malloc(n * sizeof(*s.base)),
		.now = malloc(n * sizeof(*s.now)),
	};
	enum status status = FAIL;

	if (!s.targets || !s.changed || !s.base || !s.now) {
		fail_memory(err, "audit", n * sizeof(*s.base));
	} else {
		auditor_draw_tokens(a, TARGETS, s.targets, (int64_t)n);
		a->model->undecoded = true;
		status = audit_graph(a, MODEL_EVAL, "evaluation, ", &s, err);
		if (status == OK)
			status = audit_graph(a, MODEL_TRAIN, "training, ", &s, err);
		a->model->undecoded = false;
	}
	free(s.targets);
	free(s.changed);
	free(s.base);
	free(s.now);
	return status;
}
