#include "models/audit/auditor.h"

#include <string.h>

#include "core/util/rng.h"

/* Every row is cut at a position of its own; from that position on, its tokens are changed. */
struct cuts {
	int64_t count, passes;
};

/* The position of a row's cut in a pass.  A row without a cut has it at its end. */
static int64_t cut_at(const struct auditor *a, const struct cuts *c, int64_t pass, int64_t row)
{
	const int64_t T = a->options->length, number = row * c->passes + pass;

	if (number >= c->count)
		return T;
	return c->count > 1 ? 1 + number * (T - 2) / (c->count - 1) : T - 1;
}

static void change_tokens(struct auditor *a, const struct cuts *c, int64_t pass)
{
	const int64_t T = a->options->length, V = a->model->vocab;
	const struct rng_key key =
		rng_subkey(rng_key(a->options->seed, "audit/changes"), (uint64_t)pass);

	memcpy(a->changed, a->tokens, (size_t)(a->options->rows * T) * sizeof(*a->tokens));
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t i = row * T + cut_at(a, c, pass, row); i < (row + 1) * T; i++) {
			const int64_t shift =
				1 + (int64_t)rng_below(key, (uint64_t)i, (uint64_t)V - 1);

			a->changed[i] = (int32_t)((a->tokens[i] + shift) % V);
		}
}

/* A fault is a logit that differs before its row's cut, or no difference at all. */
static bool find_fault(const struct auditor *a, const struct cuts *c, int64_t pass, char *detail,
		       size_t size)
{
	const int64_t T = a->options->length;
	const size_t per_token = a->bytes / (size_t)(a->options->rows * T);

	if (memcmp(a->base, a->now, a->bytes) == 0) {
		snprintf(detail, size, "other tokens change no logit");
		return true;
	}
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t t = 0; t < cut_at(a, c, pass, row); t++) {
			const size_t at = (size_t)(row * T + t) * per_token;

			if (memcmp(a->base + at, a->now + at, per_token) == 0)
				continue;
			snprintf(detail, size,
				 "other tokens from %lld on change the logits at %lld",
				 (long long)cut_at(a, c, pass, row), (long long)t);
			return true;
		}
	return false;
}

enum status audit_causality(struct auditor *a, struct error *err)
{
	const int64_t all = a->options->length - 1, rows = a->options->rows;
	struct cuts c = { .count = a->options->positions < all ? a->options->positions : all };
	char subject[128], detail[160] = "";
	bool fault = false;

	if (auditor_open(a, a->model, MODEL_LOGITS, &a->logits, err) != OK ||
	    auditor_logits(&a->logits, a->tokens, a->base, err) != OK)
		return FAIL;
	c.passes = (c.count + rows - 1) / rows;
	for (int64_t pass = 0; pass < c.passes && !fault; pass++) {
		change_tokens(a, &c, pass);
		if (auditor_logits(&a->logits, a->changed, a->now, err) != OK)
			return FAIL;
		fault = find_fault(a, &c, pass, detail, sizeof(detail));
	}
	snprintf(subject, sizeof(subject), "%lld of %lld positions", (long long)c.count,
		 (long long)all);
	return auditor_add(a, "causality", subject, !fault, detail, err);
}
