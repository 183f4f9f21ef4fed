/*
 * cases - every op at the shapes of GPT-2 (124M), as a graph of its own.
 */
#ifndef TOOLS_BENCH_CASES_H
#define TOOLS_BENCH_CASES_H

#include "core/engine/graph.h"
#include "core/ops/ops.h"

#define BENCH_VOCAB 50304 /* tokens are below it */
#define BENCH_TOKENS 1024

struct bench {
	enum op_id op;
	const char *label;
	void (*build)(struct graph *g, int64_t T);
};

extern const struct bench benches[];
extern const int n_benches;

/* Every op must have its shapes here, also a new one. */
enum status benches_complete(struct error *err) MUST_CHECK;

#endif
