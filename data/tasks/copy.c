/*
 * copy - T/2 random tokens, twice ("associative recall" of the W2 benchmark).
 *
 * Each next token within the row is a target, T - 1 in all.  The first T/2 - 1
 * are random and the rest are certain, so the floor is (T/2 - 1)/(T - 1) ln V.
 */
#include <math.h>

#include "data/source.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

static enum status copy_open(struct source *s, struct config *c, struct error *err)
{
	double half = (double)s->length / 2;

	if (option_int(c, "COPY_VOCAB", 2, OPTION_MAX_VOCAB, &s->vocab, err))
		return FAIL;
	if (s->length % 2)
		return fail(err, "MODEL_BLOCK=%lld: a row has two halves, so T is even",
			    (long long)s->length);
	s->chance = log((double)s->vocab);
	s->floor = (half - 1) / (double)(s->length - 1) * s->chance;
	return OK;
}

static void copy_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
			  struct row *out)
{
	struct writer w = writer_start(s, out);
	int64_t half = s->length / 2;

	(void)purpose;
	while (w.at < half)
		writer_put_target(&w, (int32_t)rng_next_below(random, (uint64_t)s->vocab), 0,
				  log((double)s->vocab));
	while (w.at < s->length)
		writer_put_target(&w, out->tokens[w.at - half], 0, 0.0);
}

static const struct task copy = {
	.name = "copy",
	.open = copy_open,
	.generate = copy_generate,
};
TASK(copy);
