/*
 * generate - text from trained weights, streamed token by token.  Tokens of a
 * generated task are spelt, with their component unless it is the task's first.
 */
#ifndef TOOLS_KABLATE_GENERATE_H
#define TOOLS_KABLATE_GENERATE_H

#include "tools/kablate/run_setup.h"

struct generate_options {
	const char *weights;   /* safetensors */
	const char *tokenizer; /* as tokenizer_open() takes it; NULL: that of the configured data */
	const char *prompt;    /* NULL: the beginning of a validation row; "": of a text */
	int64_t tokens;
	int64_t context;    /* tokens it can look back on; 0: the trained length */
	double temperature; /* 0: always the most likely token */
	int64_t top_k;	    /* draw among the k most likely; 0: among all */
};

enum status generate(struct run_setup *setup, const struct generate_options *options, FILE *out,
		     struct error *err) MUST_CHECK;

/*
 * Records the beginning of a validation row, and so many tokens that the setup's weights add to it,
 * as the events "prompt" and "sample".  Records nothing if the model cannot decode.
 */
enum status record_sample(const struct run_setup *setup, int64_t tokens, struct metrics *m,
			  int64_t iteration, struct error *err) MUST_CHECK;

/* The next token, drawn from these logits.  Has no side effects, for tests. */
int64_t sample_token(const double *logits, int64_t vocab, double temperature, int64_t top_k,
		     double uniform);

#endif
