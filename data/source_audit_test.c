/*
 * The data audit passes on sound rows, and names the fault of faulty ones.
 */
#include <stdlib.h>
#include <string.h>

#include "core/util/test.h"
#include "data/source_audit.h"

#define T 16
#define STREAM 5000

struct found {
	int n;
	struct source_finding failed;
	char overlap[160];
};

static void note(void *context, const struct source_finding *f)
{
	struct found *found = context;

	found->n++;
	if (!f->passed)
		found->failed = *f;
	if (strcmp(f->subject, "overlap") == 0)
		memcpy(found->overlap, f->detail, sizeof(found->overlap));
}

static void train_row(void *context, uint64_t seed, uint64_t iteration, uint64_t row,
		      struct row *out)
{
	struct source s = *(const struct source *)context;

	s.seed = seed;
	source_train(&s, iteration, row, out);
}

static void valid_row(void *context, uint64_t index, struct row *out)
{
	source_valid(context, index, out);
}

static struct found audit(const struct task *task)
{
	struct source s = { .task = task, .seed = 1, .length = T, .vocab = 100, .valid_rows = 50 };
	const struct source_rows rows = { &s, train_row, valid_row };
	struct found found = { 0 };
	struct error err;

	must(source_audit(&s, &rows, 100, 4, note, &found, &err), &err);
	assert_int_equal(found.n, 3);
	return found;
}

/* ------------------------------------------------------------ drawn by rows */

static void generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
		     struct row *out)
{
	(void)purpose;
	for (int64_t t = 0; t < s->length; t++)
		out->tokens[t] = (int32_t)rng_next_below(random, (uint64_t)s->vocab);
	for (int64_t t = 0; t + 1 < s->length; t++)
		out->targets[t] = out->tokens[t + 1];
}

static void generate_inputs(const struct source *s, enum purpose purpose, struct rng_reader *random,
			    struct row *out)
{
	generate(s, purpose, random, out);
	memcpy(out->targets, out->tokens, (size_t)s->length * sizeof(*out->targets));
}

static void generate_unscored(const struct source *s, enum purpose purpose,
			      struct rng_reader *random, struct row *out)
{
	generate(s, purpose, random, out);
	for (int64_t t = 0; t < s->length; t++)
		out->targets[t] = -1;
}

/* Few different rows: they repeat in training, too. */
static void generate_few(const struct source *s, enum purpose purpose, struct rng_reader *random,
			 struct row *out)
{
	const int32_t token = (int32_t)rng_next_below(random, 3);

	(void)purpose;
	for (int64_t t = 0; t < s->length; t++)
		out->tokens[t] = out->targets[t] = token;
}

static void train_once(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	struct rng_reader random = { .key = rng_subkey(rng_subkey(rng_key(7, "once"), iteration),
						       row) };

	generate(s, TRAINING, &random, out);
}

static void train_stuck(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	(void)iteration;
	train_once(s, s->seed, row, out);
}

static void valid_own(const struct source *s, uint64_t index, struct row *out)
{
	struct rng_reader random = { .key = rng_subkey(rng_key(0, "valid"), index) };

	generate(s, VALIDATION, &random, out);
}

static void train_by_seed(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	train_once(s, iteration + 1000 * s->seed, row, out);
}

static void valid_on_training(const struct source *s, uint64_t index, struct row *out)
{
	train_by_seed(s, 1 + index / 4, index % 4, out);
}

static void test_drawn(void **state)
{
	const struct task sound = { .name = "sound", .generate = generate };
	struct found found = audit(&sound);

	(void)state;
	assert_null(found.failed.subject);
	assert_string_equal(found.overlap, "0 of 50 rows of validation occur in training");
}

static void assert_fault(const struct task *task, const char *subject, const char *detail)
{
	struct found found = audit(task);

	assert_non_null(found.failed.subject);
	assert_string_equal(found.failed.subject, subject);
	assert_string_equal(found.failed.detail, detail);
}

static void test_targets(void **state)
{
	const struct task inputs = { .name = "inputs", .generate = generate_inputs };
	const struct task own = { .name = "own", .generate = generate_inputs, .own_targets = true };
	const struct task none = { .name = "none", .generate = generate_unscored };
	const struct task rebuilt = { .name = "rebuilt",
				      .generate = generate_inputs,
				      .reconstructs = true };
	const struct task next = { .name = "next", .generate = generate, .reconstructs = true };

	(void)state;
	assert_fault(&inputs, "targets", "some are not the next token of their row");
	assert_fault(&own, "targets", "every target is the token that the model is given");
	assert_fault(&none, "targets", "no target is scored");
	assert_fault(&next, "targets", "some are not the row's own token");
	assert_null(audit(&rebuilt).failed.subject);
}

static void test_seeds(void **state)
{
	const struct task once = { .name = "once", .train = train_once, .valid = valid_own };
	const struct task stuck = { .name = "stuck", .train = train_stuck, .valid = valid_own };

	(void)state;
	assert_fault(&once, "seeds", "another seed sees the same training rows");
	assert_fault(&stuck, "seeds", "later iterations see the same training rows");
}

/* Validation has 50 rows, training two batches of 4 again and again. */
static void train_cycle(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	train_once(s, 1000 * s->seed + iteration % 2 + (iteration > 60 ? iteration : 0), row, out);
}

static void test_repetition(void **state)
{
	const struct task cycle = { .name = "cycle", .train = train_cycle, .valid = valid_own };

	(void)state;
	assert_fault(&cycle, "seeds", "only 8 of the first 50 training rows are different");
}

static void generate_half(const struct source *s, enum purpose purpose, struct rng_reader *random,
			  struct row *out)
{
	generate(s, purpose, random, out);
	for (int64_t t = 0; t < s->length / 2 && purpose == TRAINING; t++)
		out->targets[t] = -1;
}

static void test_half_of_the_targets(void **state)
{
	const struct task half = { .name = "half", .generate = generate_half };

	(void)state;
	assert_fault(&half, "targets", "training scores fewer targets of a row than validation");
}

static void test_rows_of_training(void **state)
{
	const struct task seen = { .name = "seen",
				   .train = train_by_seed,
				   .valid = valid_on_training };

	(void)state;
	assert_fault(&seen, "overlap",
		     "50 of 50 rows of validation occur in training: the ranges overlap");
}

static void test_few_rows(void **state)
{
	const struct task few = { .name = "few", .generate = generate_few };
	struct found found = audit(&few);

	(void)state;
	assert_null(found.failed.subject);
	assert_string_equal(found.overlap, "3 of 3 rows of validation occur in training");
}

/* --------------------------------------------------------- cut from a stream */

static int32_t token_at(uint64_t place)
{
	return (int32_t)rng_below(rng_key(3, "stream"), place, 100);
}

static uint64_t stream_length(const struct source *s)
{
	(void)s;
	return STREAM;
}

static void stream(const struct source *s, uint64_t start, size_t count, int32_t *tokens)
{
	(void)s;
	for (size_t i = 0; i < count; i++)
		tokens[i] = token_at(start + i);
}

static void cut(const struct source *s, uint64_t start, struct row *out)
{
	stream(s, start, (size_t)s->length, out->tokens);
	stream(s, start + 1, (size_t)s->length, out->targets);
}

static void train_cut(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	cut(s, (iteration * 31 + row * 7 + s->seed) % (STREAM - T), out);
}

/* Behind the training stream. */
static void valid_behind(const struct source *s, uint64_t index, struct row *out)
{
	cut(s, STREAM + index * T, out);
}

/* One row in 25 lies in the training stream: a text that repeats. */
static void valid_repeating(const struct source *s, uint64_t index, struct row *out)
{
	cut(s, index % 25 ? STREAM + index * T : 40 + index, out);
}

/* A fifth of the rows begins too early. */
static void valid_early(const struct source *s, uint64_t index, struct row *out)
{
	cut(s, STREAM - 10 * T + index * T, out);
}

static void test_stream(void **state)
{
	struct task task = { .name = "cut",
			     .train = train_cut,
			     .valid = valid_behind,
			     .stream_length = stream_length,
			     .stream = stream };
	struct found found = audit(&task);

	(void)state;
	assert_null(found.failed.subject);
	assert_string_equal(found.overlap, "0 of 50 windows of validation occur in training");
	task.valid = valid_repeating;
	found = audit(&task);
	assert_null(found.failed.subject);
	assert_string_equal(found.overlap, "2 of 50 windows of validation occur in training");
	task.valid = valid_early;
	assert_fault(&task, "overlap",
		     "10 of 50 windows of validation occur in training: the ranges overlap");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drawn),	   cmocka_unit_test(test_targets),
		cmocka_unit_test(test_seeds),	   cmocka_unit_test(test_rows_of_training),
		cmocka_unit_test(test_few_rows),   cmocka_unit_test(test_stream),
		cmocka_unit_test(test_repetition), cmocka_unit_test(test_half_of_the_targets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
