#include "data/source_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are looked at for targets and seeds. */
#define SAMPLED_ROWS 64

/* Of the targets that validation scores in a row; some tasks draw their number. */
#define LEAST_TRAINED 0.75

/* Rows whose repetitions are counted, and the share that must be different, of those that can be.
 */
#define COUNTED_ROWS 1024
#define LEAST_DIFFERENT 0.5

/* Stretches of so many tokens seldom repeat by chance. */
#define WINDOW 64

/* Of larger data a spread part is looked at: less than a second of work. */
#define MOST_WINDOWS (1 << 18)
#define MOST_ROWS (1 << 14)
#define MOST_TOKENS (1 << 24)
#define PIECE 4096 /* tokens that are read at once */

/* Repeated text is natural.  A larger share than this means that the ranges overlap. */
#define MOST_REPEATED 0.1

struct auditor {
	const struct source *s;
	const struct source_rows *rows;
	int64_t updates, batch;
	void (*visit)(void *context, const struct source_finding *finding);
	void *context;
	struct row row, other;
	int32_t *memory;
};

static void train_row(const struct auditor *a, uint64_t iteration, uint64_t row, struct row *out)
{
	a->rows->train(a->rows->context, a->s->seed, iteration, row, out);
}

static void valid_row(const struct auditor *a, uint64_t index, struct row *out)
{
	a->rows->valid(a->rows->context, index, out);
}

static void tell(const struct auditor *a, const char *subject, bool passed, const char *detail)
{
	struct source_finding f = { .subject = subject, .passed = passed };

	snprintf(f.detail, sizeof(f.detail), "%s", detail);
	a->visit(a->context, &f);
}

/* ------------------------------------------------------------------ targets */

struct targets {
	int64_t scored, next, same; /* how many are scored, the next token, the token itself */
	int64_t inside;		    /* how many have a next token within the row */
};

static void count_targets(const struct source *s, const struct row *row, struct targets *n)
{
	for (int64_t t = 0; t < s->length; t++) {
		if (row->targets[t] < 0)
			continue;
		n->scored++;
		n->same += row->targets[t] == row->tokens[t];
		if (t + 1 == s->length)
			continue;
		n->inside++;
		n->next += row->targets[t] == row->tokens[t + 1];
	}
}

static void audit_targets(struct auditor *a)
{
	const struct source *s = a->s;
	struct targets n = { 0 };
	int64_t trained = 0;

	for (uint64_t i = 0; i < SAMPLED_ROWS; i++) {
		const int64_t before = n.scored;

		train_row(a, 1 + i, 0, &a->row);
		count_targets(s, &a->row, &n);
		trained += n.scored - before;
		valid_row(a, i % s->valid_rows, &a->row);
		count_targets(s, &a->row, &n);
	}
	if (n.scored == 0)
		tell(a, "targets", false, "no target is scored");
	else if ((double)trained < LEAST_TRAINED * (double)(n.scored - trained))
		tell(a, "targets", false, "training scores fewer targets of a row than validation");
	else if (s->task->reconstructs)
		tell(a, "targets", n.same == n.scored,
		     n.same == n.scored ? "each is the row's own token"
					: "some are not the row's own token");
	else if (s->task->own_targets)
		tell(a, "targets", n.same < n.scored,
		     n.same < n.scored ? "follow the task's own rule"
				       : "every target is the token that the model is given");
	else
		tell(a, "targets", n.next == n.inside,
		     n.next == n.inside ? "each is the next token"
					: "some are not the next token of their row");
}

/* -------------------------------------------------------------------- seeds */

static bool same_row(const struct auditor *a)
{
	const size_t bytes = (size_t)a->s->length * sizeof(int32_t);

	return memcmp(a->row.tokens, a->other.tokens, bytes) == 0 &&
	       memcmp(a->row.targets, a->other.targets, bytes) == 0;
}

/* Do all sampled rows agree with those of another seed, or with those some iterations later? */
static bool all_same(struct auditor *a, uint64_t seed, uint64_t later)
{
	for (uint64_t i = 0; i < SAMPLED_ROWS; i++) {
		train_row(a, 1 + i, 0, &a->row);
		a->rows->train(a->rows->context, seed, 1 + i + later, 0, &a->other);
		if (!same_row(a))
			return false;
	}
	return true;
}

/* ------------------------------------------------------------------ overlap */

/* A set of hashes; 0 marks a free place. */
struct set {
	uint64_t *hash;
	bool *found;
	size_t room, size;
};

static enum status open_set(struct set *set, size_t most, struct error *err)
{
	*set = (struct set){ .room = 64 };
	while (set->room < 2 * most)
		set->room *= 2;
	set->hash = calloc(set->room, sizeof(*set->hash));
	set->found = calloc(set->room, sizeof(*set->found));
	if (!set->hash || !set->found)
		return fail_memory(err, "hashes", set->room * sizeof(*set->hash));
	return OK;
}

static void close_set(struct set *set)
{
	free(set->hash);
	free(set->found);
}

/* The place of a hash, or the free one where it belongs. */
static size_t place(const struct set *set, uint64_t hash)
{
	uint64_t mixed = hash * UINT64_C(0x9e3779b97f4a7c15);
	size_t at = (size_t)(mixed >> 32) & (set->room - 1);

	while (set->hash[at] && set->hash[at] != hash)
		at = (at + 1) & (set->room - 1);
	return at;
}

static void put(struct set *set, uint64_t hash)
{
	const size_t at = place(set, hash);

	set->size += set->hash[at] == 0;
	set->hash[at] = hash;
}

static void look_for(struct set *set, uint64_t hash)
{
	const size_t at = place(set, hash);

	if (set->hash[at])
		set->found[at] = true;
}

static size_t count_found(const struct set *set)
{
	size_t n = 0;

	for (size_t i = 0; i < set->room; i++)
		n += set->found[i];
	return n;
}

/* A polynomial in BASE: the hash of the next window follows from that of this one. */
#define BASE UINT64_C(0x2545f4914f6cdd1d)

static uint64_t term(int32_t token)
{
	return ((uint64_t)token + 1) * UINT64_C(0xd6e8feb86659fd93);
}

/* Use the hash of every window of `width` tokens. */
static void each_window(struct set *set, const int32_t *tokens, size_t count, size_t width,
			void (*use)(struct set *set, uint64_t hash))
{
	uint64_t hash = 0, highest = 1;

	for (size_t i = 0; i < width; i++)
		highest *= BASE;
	for (size_t i = 0; i < count; i++) {
		hash = hash * BASE + term(tokens[i]);
		if (i >= width)
			hash -= highest * term(tokens[i - width]);
		if (i + 1 >= width)
			use(set, hash | 1);
	}
}

/* Every n-th validation row, so that about MOST_WINDOWS windows are taken. */
static enum status take_validation(struct auditor *a, size_t width, struct set *set,
				   struct error *err)
{
	const struct source *s = a->s;
	const size_t per_row = (size_t)s->length - width + 1;
	const uint64_t every = 1 + s->valid_rows * per_row / MOST_WINDOWS;

	if (open_set(set, (size_t)(s->valid_rows / every + 1) * per_row, err) != OK)
		return FAIL;
	for (uint64_t i = 0; i < s->valid_rows; i += every) {
		valid_row(a, i, &a->row);
		each_window(set, a->row.tokens, (size_t)s->length, width, put);
	}
	return OK;
}

/* Look through the training stream in pieces; returns the share of it that was seen. */
static double scan_stream(struct auditor *a, size_t width, struct set *set)
{
	static const size_t piece = PIECE;
	const uint64_t length = a->s->task->stream_length(a->s);
	const uint64_t pieces = (length + piece - 1) / piece;
	const uint64_t every = 1 + pieces * piece / MOST_TOKENS;
	int32_t tokens[PIECE + WINDOW];
	uint64_t seen = 0;

	for (uint64_t i = 0; i < pieces; i += every) {
		const uint64_t start = i * piece, left = length - start;
		const size_t n = left < piece + width - 1 ? (size_t)left : piece + width - 1;

		a->s->task->stream(a->s, start, n, tokens);
		each_window(set, tokens, n, width, look_for);
		seen += n < piece ? n : piece;
	}
	return (double)seen / (double)length;
}

/* Rows that training will see; returns the share of them that occur more than once. */
static double scan_rows(struct auditor *a, struct set *set, struct error *err)
{
	const uint64_t all = (uint64_t)(a->updates * a->batch);
	const uint64_t every = 1 + all / MOST_ROWS;
	const size_t T = (size_t)a->s->length;
	size_t rows = 0;
	struct set own;
	double repeated;

	if (open_set(&own, (size_t)(all / every) + 1, err) != OK) {
		close_set(&own);
		return -1;
	}
	for (uint64_t i = 0; i < all; i += every, rows++) {
		train_row(a, 1 + i / (uint64_t)a->batch, i % (uint64_t)a->batch, &a->row);
		each_window(set, a->row.tokens, T, T, look_for);
		each_window(&own, a->row.tokens, T, T, put);
	}
	repeated = 1 - (double)own.size / (double)rows;
	close_set(&own);
	return repeated;
}

/* Different ones among the first n rows. */
static enum status count_different(struct auditor *a, bool training, uint64_t n, double *different,
				   struct error *err)
{
	const size_t T = (size_t)a->s->length;
	struct set set;

	if (open_set(&set, (size_t)n, err) != OK) {
		close_set(&set);
		return FAIL;
	}
	for (uint64_t i = 0; i < n; i++) {
		if (training)
			train_row(a, 1 + i / (uint64_t)a->batch, i % (uint64_t)a->batch, &a->row);
		else
			valid_row(a, i, &a->row);
		each_window(&set, a->row.tokens, T, T, put);
	}
	*different = (double)set.size;
	close_set(&set);
	return OK;
}

/* Do rows repeat in training far more often than in validation, or than the text is short? */
static enum status repeats(struct auditor *a, bool *often, char detail[160], struct error *err)
{
	const uint64_t all = (uint64_t)(a->updates * a->batch);
	const struct task *task = a->s->task;
	double trained, possible;
	uint64_t n = COUNTED_ROWS;

	n = n < all ? n : all;
	n = n < a->s->valid_rows ? n : a->s->valid_rows;
	if (count_different(a, true, n, &trained, err) != OK ||
	    count_different(a, false, n, &possible, err) != OK)
		return FAIL;
	if (task->stream)
		possible = fmin(possible,
				(double)(task->stream_length(a->s) / (uint64_t)a->s->length));
	snprintf(detail, 160, "only %.0f of the first %llu training rows are different", trained,
		 (unsigned long long)n);
	*often = trained < LEAST_DIFFERENT * possible;
	return OK;
}

static enum status audit_seeds(struct auditor *a, struct error *err)
{
	const bool seeds = !all_same(a, a->s->seed + 1, 0);
	const bool iterations = !all_same(a, a->s->seed, SAMPLED_ROWS);
	char repetition[160];
	bool often;

	if (repeats(a, &often, repetition, err) != OK)
		return FAIL;
	tell(a, "seeds", seeds && iterations && !often,
	     !seeds	   ? "another seed sees the same training rows"
	     : !iterations ? "later iterations see the same training rows"
	     : often	   ? repetition
			   : "another seed sees other training rows");
	return OK;
}

static void tell_overlap(const struct auditor *a, const struct set *set, double share, double most,
			 const char *what)
{
	char detail[160];

	snprintf(detail, sizeof(detail), "%zu of %zu %s of validation occur in training%s",
		 count_found(set), set->size, what, share > most ? ": the ranges overlap" : "");
	tell(a, "overlap", share <= most, detail);
}

static enum status audit_stream(struct auditor *a, struct error *err)
{
	const size_t width = a->s->length < WINDOW ? (size_t)a->s->length : WINDOW;
	enum status status;
	struct set set;
	double seen;

	status = take_validation(a, width, &set, err);
	if (status == OK) {
		seen = scan_stream(a, width, &set);
		tell_overlap(a, &set, (double)count_found(&set) / (double)set.size / seen,
			     MOST_REPEATED, "windows");
	}
	close_set(&set);
	return status;
}

/* A task with few different rows repeats them anyway: in training as in validation. */
static enum status audit_rows(struct auditor *a, struct error *err)
{
	double repeated = -1;
	struct set set;

	if (take_validation(a, (size_t)a->s->length, &set, err) == OK)
		repeated = scan_rows(a, &set, err);
	if (repeated >= 0)
		tell_overlap(a, &set, (double)count_found(&set) / (double)set.size,
			     MOST_REPEATED + 2 * repeated, "rows");
	close_set(&set);
	return repeated >= 0 ? OK : FAIL;
}

/* ---------------------------------------------------------------------- all */

enum status source_audit(const struct source *s, const struct source_rows *rows, int64_t updates,
			 int64_t batch,
			 void (*visit)(void *context, const struct source_finding *finding),
			 void *context, struct error *err)
{
	const size_t T = (size_t)s->length;
	struct auditor a = {
		s, rows, updates, batch, visit, context, .memory = malloc(4 * T * sizeof(int32_t))
	};
	enum status status;

	if (!a.memory)
		return fail_memory(err, "data audit", 4 * T * sizeof(int32_t));
	a.row = (struct row){ .tokens = a.memory, .targets = a.memory + T };
	a.other = (struct row){ .tokens = a.memory + 2 * T, .targets = a.memory + 3 * T };
	audit_targets(&a);
	status = audit_seeds(&a, err);
	if (status == OK)
		status = s->task->stream ? audit_stream(&a, err) : audit_rows(&a, err);
	free(a.memory);
	return status;
}
