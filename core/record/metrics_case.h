/*
 * metrics_case - a directory of runs for the tests of metrics, and questions to its database.
 */
#ifndef CORE_RECORD_METRICS_CASE_H
#define CORE_RECORD_METRICS_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "core/record/database.h"
#include "core/record/journal.h"
#include "core/record/metrics.h"
#include "core/util/test.h"

struct place {
	char root[256], run_dir[300], db[300], journal[400];
	struct metrics_options options;
	char warning[2048]; /* the last one */
	int warnings;
	sqlite3 *lock; /* of the database, where a test holds one */
};

static const struct run_symbol place_config[] = {
	{ "GPT2_N_LAYER", "2" },
	{ "NOTE", "a \"quoted\" text, \\ and \xc3\xbc" },
};

static inline void place_take_warning(void *context, const char *text)
{
	struct place *p = context;

	snprintf(p->warning, sizeof(p->warning), "%s", text);
	p->warnings++;
}

/* As long as a SHA-256 sum. */
#define PLACE_IDENTITY(start) start "00000000000000000000000000000000000000000000000000000000000000"

/* Run directory number `i` of a place. */
static inline void place_run(struct place *p, int i)
{
	static const char *const identities[] = { PLACE_IDENTITY("a0"), PLACE_IDENTITY("a1"),
						  PLACE_IDENTITY("a2"), PLACE_IDENTITY("a3") };

	snprintf(p->run_dir, sizeof(p->run_dir), "%s/run%d", p->root, i);
	snprintf(p->journal, sizeof(p->journal), "%s/" JOURNAL_FILE, p->run_dir);
	mkdir(p->run_dir, 0777);
	p->options.run_dir = p->run_dir;
	p->options.record.identity = identities[i];
	p->options.record.seed = i;
}

static inline int place_make(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	*state = p;
	test_template(p->root, sizeof(p->root), "metrics");
	if (!mkdtemp(p->root))
		return -1;
	snprintf(p->db, sizeof(p->db), "%s/results.db", p->root);
	p->options = (struct metrics_options){
		.db_path = p->db,
		.warn = place_take_warning,
		.warn_context = p,
		.record = {
			.experiment = "ra-score", .step = "0-baseline", .baseline = "0-baseline",
			.iterations = 100, .threads = 2, .git_dirty = true, .compiler = "gcc 12",
			.config = place_config, .symbols = 2,
		},
	};
	place_run(p, 0);
	return 0;
}

static inline int place_remove(void **state)
{
	struct place *p = *state;
	const int result = test_remove(p->root);

	free(p);
	return result;
}

/* The first column of the first row of an answer, as a number; NAN when it is NULL. */
static inline double ask(const struct place *p, const char *question)
{
	double answer = NAN;
	sqlite3_stmt *s;
	sqlite3 *db;

	assert_int_equal(sqlite3_open(p->db, &db), SQLITE_OK);
	if (sqlite3_prepare_v2(db, question, -1, &s, NULL))
		fail_msg("%s: %s", question, sqlite3_errmsg(db));
	assert_int_equal(sqlite3_step(s), SQLITE_ROW);
	if (sqlite3_column_type(s, 0) != SQLITE_NULL)
		answer = sqlite3_column_double(s, 0);
	sqlite3_finalize(s);
	sqlite3_close(db);
	return answer;
}

#define assert_answer(place, question, answer)                                             \
	do {                                                                               \
		const double got = ask(place, question);                                   \
                                                                                           \
		if (got != (double)(answer))                                               \
			fail_msg("%s: %.17g, not %.17g", question, got, (double)(answer)); \
	} while (0)

static inline struct metrics *begin_run(struct place *p, int64_t resume_iteration)
{
	struct metrics *m;
	struct error err;

	must(metrics_open(&m, &p->options, resume_iteration, &err), &err);
	return m;
}

static inline double loss_at(int64_t iteration)
{
	return 1.0 / (double)(3 + iteration);
}

/* Iterations first..last, each with a value, an event and a commit. */
static inline void tell(struct metrics *m, int64_t first, int64_t last)
{
	struct error err;

	for (int64_t i = first; i <= last; i++) {
		metrics_value(m, i, METRIC_TRAIN_LOSS, loss_at(i));
		metrics_event(m, i, "note", "something");
		must(metrics_commit(m, &err), &err);
	}
}

static inline void finish(struct metrics *m)
{
	struct error err;

	must(metrics_close(m, RUN_DONE, "all iterations", &err), &err);
}

/* Metrics and events have every iteration 1..last exactly once, with its own value. */
static inline void check_iterations(const struct place *p, int64_t last)
{
	char question[256];

	assert_answer(p, "SELECT count(*) FROM metrics", last);
	assert_answer(p, "SELECT max(iteration) FROM metrics", last);
	assert_answer(p, "SELECT count(*) FROM events", last);
	assert_answer(p, "SELECT count(DISTINCT iteration) FROM events", last);
	for (int64_t i = 1; i <= last; i++) {
		snprintf(question, sizeof(question),
			 "SELECT value FROM metrics WHERE iteration = %lld", (long long)i);
		assert_answer(p, question, loss_at(i));
	}
}

/* The same from the run directories alone. */
static inline void check_rebuilt(struct place *p, int64_t last)
{
	struct database *d;
	struct error err;
	int64_t run;

	unlink(p->db);
	must(database_open(&d, p->db, 1, &err), &err);
	must(database_import(d, p->run_dir, false, &run, &err), &err);
	database_close(d);
	check_iterations(p, last);
}

#endif
