/* Tests of metrics, journal and database in core/record: queries find what was recorded. */
#include <float.h>
#include <glob.h>
#include <sys/wait.h>
#include <time.h>

#include "core/record/lease.h"
#include "core/record/metrics_case.h"
#include "core/util/process.h"

static void append_to(const char *path, const void *bytes, size_t size)
{
	FILE *file = fopen(path, "ab");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, size, file), size);
	fclose(file);
}

static off_t size_of(const char *path)
{
	struct stat about;

	assert_int_equal(stat(path, &about), 0);
	return about.st_size;
}

/* --------------------------------------------------------------- rows */

static void test_every_table_gets_its_rows(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	assert_answer(p, "SELECT state = 'running' FROM runs", 1);
	metrics_audit(m, "causality", "h.0", true, "difference 0");
	metrics_audit(m, "wiring", NULL, false, NULL);
	tell(m, 1, 3);
	metrics_artifact(m, "weights", "final.safetensors", "abc", 123);
	finish(m);

	assert_int_equal(p->warnings, 0);
	check_iterations(p, 3);
	assert_answer(p, "SELECT count(*) FROM experiments WHERE name = 'ra-score'", 1);
	assert_answer(
		p,
		"SELECT count(*) FROM runs WHERE step = '0-baseline' AND identity LIKE 'a0%'"
		" AND git_dirty = 1 AND compiler = 'gcc 12' AND flags IS NULL"
		" AND directory = 'run0' AND state = 'done' AND exit_reason = 'all iterations'"
		" AND ended >= started AND heartbeat = ended AND iterations = 100",
		1);
	assert_answer(p,
		      "SELECT count(*) FROM config WHERE symbol = 'NOTE'"
		      " AND value = 'a \"quoted\" text, \\ and \xc3\xbc'",
		      1);
	assert_answer(p, "SELECT count(*) FROM config", 2);
	assert_answer(p,
		      "SELECT passed FROM audits WHERE audit = 'causality' AND subject = 'h.0'"
		      " AND detail = 'difference 0'",
		      1);
	assert_answer(p, "SELECT passed FROM audits WHERE audit = 'wiring' AND subject = ''", 0);
	assert_answer(p, "SELECT bytes FROM artifacts WHERE kind = 'weights' AND sha256 = 'abc'",
		      123);
	assert_answer(p, "SELECT iteration FROM overview", 3);
	assert_answer(p, "SELECT train_loss FROM overview", loss_at(3));
}

/* Every double comes back with all its bits, also through the journal; NaN is NULL. */
static void test_values_are_exact(void **state)
{
	static const double values[] = { 0.1,	  -0.0, DBL_MAX,  DBL_MIN,  4.9e-324,
					 1.0 / 3, 1e22, INFINITY, -INFINITY };
	const int n = sizeof(values) / sizeof(values[0]);
	struct place *p = *state;

	for (int pass = 0; pass < 2; pass++) { /* the second one reads the journal */
		struct metrics *m = begin_run(p, pass ? n + 1 : -1);
		char question[128];

		for (int i = 0; i < n && pass == 0; i++)
			metrics_value(m, i, "x", values[i]);
		if (pass == 0)
			metrics_value(m, n, "x", NAN);
		finish(m);
		for (int i = 0; i < n; i++) {
			snprintf(question, sizeof(question),
				 "SELECT value FROM metrics WHERE iteration = %d", i);
			assert_true(ask(p, question) == values[i]);
		}
		assert_answer(p, "SELECT value IS NULL FROM metrics ORDER BY iteration DESC", 1);
	}
}

static void test_texts_are_exact(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	metrics_event(m, 0, "odd", "two\nlines\t\"'; DROP TABLE runs; --\x01 \xf0\x9f\x8c\xb1 %s");
	finish(m);
	for (int pass = 0; pass < 2; pass++) {
		assert_answer(p,
			      "SELECT text = 'two' || char(10) || 'lines' || char(9) ||"
			      " '\"''; DROP TABLE runs; --' || char(1) || ' ' || char(127793) ||"
			      " ' %s' FROM events",
			      1);
		finish(begin_run(p, 0));
	}
}

static void test_the_last_word_counts(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	metrics_value(m, 1, "x", 1);
	metrics_value(m, 1, "x", 2);
	metrics_audit(m, "wiring", "h.0", false, NULL);
	metrics_audit(m, "wiring", "h.0", true, NULL);
	finish(m);
	assert_answer(p, "SELECT value FROM metrics", 2);
	assert_answer(p, "SELECT count(*) FROM metrics", 1);
	assert_answer(p, "SELECT passed FROM audits", 1);
}

static off_t size_of_events(const char *directory)
{
	char pattern[400];
	off_t size = 0;
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/events.out.tfevents.*", directory);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++)
		size += size_of(found.gl_pathv[i]);
	globfree(&found);
	return size;
}

/* Three values are three records of the same size; events are none. */
static void test_values_go_to_tensorboard(void **state)
{
	struct place *p = *state;
	char directory[400];
	struct metrics *m;
	off_t empty, one;

	snprintf(directory, sizeof(directory), "%s/tensorboard", p->run_dir);
	p->options.tensorboard_dir = directory;
	m = begin_run(p, -1);
	empty = size_of_events(directory);
	tell(m, 1, 1);
	one = size_of_events(directory) - empty;
	assert_true(one > 0);
	tell(m, 2, 3);
	assert_int_equal(size_of_events(directory), empty + 3 * one);
	finish(m);
	finish(begin_run(p, 3)); /* a file of its own */
	assert_int_equal(size_of_events(directory), 2 * empty + 3 * one);
	assert_int_equal(p->warnings, 0);
}

/* --------------------------------------------------------------- resume */

static void test_resume_forgets_later_iterations(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	tell(m, 1, 20);
	metrics_abandon(m);
	m = begin_run(p, 10);
	check_iterations(p, 10);
	tell(m, 11, 20);
	finish(m);
	check_iterations(p, 20);
	assert_answer(p, "SELECT resumed_iteration FROM runs", 10);
	assert_answer(p, "SELECT started < resumed AND resumed <= ended FROM runs", 1);
	assert_answer(p, "SELECT count(*) FROM runs", 1);
	check_rebuilt(p, 20);
}

static void test_a_fresh_start_forgets_everything(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	metrics_audit(m, "wiring", "h.0", true, NULL);
	tell(m, 0, 5);
	metrics_abandon(m);
	m = begin_run(p, -1);
	assert_answer(p,
		      "SELECT (SELECT count(*) FROM metrics) + (SELECT count(*) FROM events)"
		      " + (SELECT count(*) FROM audits)",
		      0);
	tell(m, 1, 3);
	finish(m);
	check_iterations(p, 3);
	check_rebuilt(p, 3);
}

/* A kill between journal and database leaves lines out of the database; a resume adds them. */
static void test_resume_brings_what_the_database_lacks(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	p->options.db_path = NULL;
	m = begin_run(p, -1);
	tell(m, 1, 5);
	assert_false(metrics_in_database(m));
	metrics_abandon(m);
	p->options.db_path = p->db;
	m = begin_run(p, 5);
	assert_true(metrics_in_database(m));
	check_iterations(p, 5);
	finish(m);
}

static void test_uncommitted_is_untold(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	tell(m, 1, 2);
	metrics_value(m, 3, METRIC_TRAIN_LOSS, 1);
	metrics_abandon(m);
	check_iterations(p, 2);
	check_rebuilt(p, 2);
}

/* A rebuild may have read the lines that a run is about to put into the database. */
static void test_lines_put_in_twice_leave_one_row(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	struct database *d;
	struct error err;
	int64_t run;
	size_t size;
	char *text;

	metrics_audit(m, "wiring", "h.0", true, NULL);
	metrics_artifact(m, "weights", "w", NULL, 1);
	tell(m, 1, 5);
	finish(m);
	must(database_open(&d, p->db, 1, &err), &err);
	must(database_import(d, p->run_dir, false, &run, &err), &err);
	must(journal_read(p->run_dir, p->options.record.identity, &text, &size, &err), &err);
	must(database_append(d, run, text, size, 1, &err), &err);
	free(text);
	database_close(d);
	check_iterations(p, 5);
	assert_answer(p, "SELECT (SELECT count(*) FROM audits) + (SELECT count(*) FROM artifacts)",
		      2);
	assert_answer(p, "SELECT state = 'done' FROM runs", 1);
}

/* --------------------------------------------------------------- damage to the journal */

static void test_a_torn_end_is_cut_off(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
	} ends[] = {
		{ "{\"kind\":\"value\",\"ti", 19 }, /* killed while writing */
		{ "{\"kind\":\"val\n{\"time\":\n", 22 },
		{ "\0\0\0\0\0\0\0\0\n\0\0\0", 12 }, /* blocks that never reached the disk */
		{ "\n", 1 },
		{ "{\"kind\":\"value\",\"time\":1,\"iteration\":0,\"name\":\"x\",\"value\":1}",
		  58 },
	};
	struct place *p = *state;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct metrics *m = begin_run(p, -1);
		off_t sound;

		tell(m, 1, 4);
		metrics_abandon(m);
		sound = size_of(p->journal);
		append_to(p->journal, ends[i].bytes, ends[i].size);
		check_rebuilt(p, 4);
		m = begin_run(p, 4);
		assert_true(size_of(p->journal) > sound); /* the line of the new start */
		tell(m, 5, 6);
		finish(m);
		check_iterations(p, 6);
		check_rebuilt(p, 6);
	}
}

static void test_damage_before_the_end_is_an_error(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	struct error err;
	FILE *file;

	tell(m, 1, 4);
	metrics_abandon(m);
	file = fopen(p->journal, "r+b");
	assert_non_null(file);
	fseek(file, 20, SEEK_SET);
	fputc('"', file);
	fclose(file);
	assert_int_equal(metrics_open(&m, &p->options, 4, &err), FAIL);
	assert_non_null(strstr(err.text, JOURNAL_FILE ": line 1 is damaged"));
	finish(begin_run(p, -1)); /* a fresh start needs no old journal */
}

/* A prefix of a journal, cut anywhere, is a journal. */
static void test_a_journal_cut_anywhere_is_read(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	struct error err;
	off_t full;

	tell(m, 1, 3);
	finish(m);
	full = size_of(p->journal);
	for (off_t size = full; size >= 0; size--) {
		size_t sound;
		char *text;

		assert_int_equal(truncate(p->journal, size), 0);
		must(journal_read(p->run_dir, p->options.record.identity, &text, &sound, &err),
		     &err);
		assert_true((off_t)sound <= size);
		assert_true(sound == 0 || text[sound - 1] == '\n');
		free(text);
	}
}

static void test_lines_that_are_no_entries(void **state)
{
	static const char *const lines[] = {
		"[]\n",
		"{}\n",
		"{\"kind\":\"value\"}\n",
		"{\"kind\":\"other\",\"time\":1}\n",
		"{\"kind\":\"end\",\"time\":1,\"state\":7}\n",
		"{\"kind\":\"end\",\"time\":\"soon\",\"state\":\"done\"}\n",
		"{\"kind\":\"event\",\"time\":1,\"iteration\":1.5,\"name\":\"x\"}\n",
		"{\"kind\":\"event\",\"time\":1,\"iteration\":1,\"name\":\"x\"} x\n",
		"{\"kind\":\"value\",\"time\":1,\"iteration\":1,\"name\":\"x\",\"value\":\"1\"}\n",
	};
	struct place *p = *state;
	struct error err;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		size_t sound;
		char *text;

		unlink(p->journal);
		append_to(p->journal, lines[i], strlen(lines[i]));
		must(journal_read(p->run_dir, p->options.record.identity, &text, &sound, &err),
		     &err);
		assert_int_equal(sound, 0);
		free(text);
	}
}

/* --------------------------------------------------------------- the record */

static void test_broken_records_are_refused(void **state)
{
	static const struct {
		const char *text, *complaint;
	} cases[] = {
		{ "", "not a JSON object" },
		{ "[1]", "not a JSON object" },
		{ "{\"format\":2}", "\"format\" is not 1" },
		{ "{\"format\":1}", "\"experiment\" is missing" },
		{ "{\"format\":1,\"experiment\":3}", "\"experiment\" is missing or of the wrong" },
		{ "{\"format\":1} x", "not a JSON object" },
	};
	struct place *p = *state;
	struct record_file file;
	struct error err;
	char path[400];

	snprintf(path, sizeof(path), "%s/" RUN_RECORD_FILE, p->run_dir);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unlink(path);
		append_to(path, cases[i].text, strlen(cases[i].text));
		assert_int_equal(record_read(&file, p->run_dir, &err), FAIL);
		if (!strstr(err.text, cases[i].complaint))
			fail_msg("'%s' instead of '%s'", err.text, cases[i].complaint);
	}
	finish(begin_run(p, -1)); /* overwrites it */
	must(record_read(&file, p->run_dir, &err), &err);
	assert_string_equal(file.record.config[1].value, place_config[1].value);
	assert_null(file.record.flags);
	record_free(&file);
}

static void test_a_directory_belongs_to_one_run(void **state)
{
	struct place *p = *state;
	size_t before, after;
	struct metrics *m;
	struct error err;
	char *text;

	finish(begin_run(p, -1));
	p->options.record.identity = PLACE_IDENTITY("b7");
	must(journal_read(p->run_dir, PLACE_IDENTITY("a0"), &text, &before, &err), &err);
	free(text);
	assert_int_equal(metrics_open(&m, &p->options, -1, &err), FAIL);
	assert_non_null(
		strstr(err.text, "holds another run: step 0-baseline of ra-score, identity a0"));
	must(journal_read(p->run_dir, PLACE_IDENTITY("a0"), &text, &after, &err), &err);
	free(text);
	assert_int_equal(before, after);
}

/* Exchanges the journals of runs 0 and 1; the place is at run 1 afterwards. */
static void swap_journals(struct place *p)
{
	char first[400], aside[400];

	place_run(p, 0);
	snprintf(first, sizeof(first), "%s", p->journal);
	snprintf(aside, sizeof(aside), "%s/aside", p->root);
	place_run(p, 1);
	assert_int_equal(rename(first, aside), 0);
	assert_int_equal(rename(p->journal, first), 0);
	assert_int_equal(rename(aside, p->journal), 0);
}

static void test_a_journal_belongs_to_one_run(void **state)
{
	struct place *p = *state;
	struct database *d;
	struct metrics *m;
	struct error err;
	int64_t run;

	for (int i = 0; i < 2; i++) {
		place_run(p, i);
		m = begin_run(p, -1);
		tell(m, 1, 5 + i);
		finish(m);
	}
	swap_journals(p);
	must(database_open(&d, p->db, 1, &err), &err);
	assert_int_equal(database_import(d, p->run_dir, false, &run, &err), FAIL);
	assert_non_null(strstr(err.text,
			       "is the journal of another run: line 1 is of a00000000000, this run "
			       "is a10000000000"));
	database_close(d);
	for (int64_t resume = -1; resume < 6; resume += 6) {
		assert_int_equal(metrics_open(&m, &p->options, resume, &err), FAIL);
		assert_non_null(strstr(err.text, "is the journal of another run"));
	}
	swap_journals(p); /* neither attempt changed one */
	assert_answer(p, "SELECT count(*) FROM metrics WHERE name = 'train/loss'", 11);
	finish(begin_run(p, 6));
	assert_answer(p, "SELECT count(*) FROM metrics WHERE name = 'train/loss'", 11);
}

static void expect_bound(const struct place *p, bool bound)
{
	struct error err;
	size_t size;
	char *text;

	must(journal_read(p->run_dir, p->options.record.identity, &text, &size, &err), &err);
	assert_int_equal(journal_is_bound(text, size), bound);
	free(text);
}

/* An older program's journal names no run; one that goes on with it binds it. */
static void test_an_older_journal_is_unbound(void **state)
{
	struct place *p = *state;
	FILE *file;

	finish(begin_run(p, -1));
	expect_bound(p, true);
	file = fopen(p->journal, "w");
	fputs("{\"kind\":\"start\",\"time\":1,\"iteration\":0,\"pid\":1}\n", file);
	assert_int_equal(fclose(file), 0);
	expect_bound(p, false);
	finish(begin_run(p, 0));
	expect_bound(p, true);
}

static void test_a_run_has_one_directory(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	finish(begin_run(p, -1));
	place_run(p, 1);
	p->options.record.identity = PLACE_IDENTITY("a0");
	m = begin_run(p, -1);
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->warning, "run1 is the same run as run0"));
	metrics_abandon(m);
	assert_answer(p, "SELECT count(*) FROM runs", 1);
}

/* A directory that was moved is found again under its new name. */
static void test_a_run_may_move(void **state)
{
	struct place *p = *state;
	char moved[300];

	finish(begin_run(p, -1));
	snprintf(moved, sizeof(moved), "%s/moved", p->root);
	assert_int_equal(rename(p->run_dir, moved), 0);
	p->options.run_dir = moved;
	finish(begin_run(p, 0));
	assert_int_equal(p->warnings, 0);
	assert_answer(p, "SELECT count(*) FROM runs WHERE directory = 'moved'", 1);
}

/* --------------------------------------------------------------- the schema */

/* As version 1 made it. */
static const char version_1[] =
	"CREATE TABLE experiments (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
	"CREATE TABLE runs (id INTEGER PRIMARY KEY,"
	" experiment INTEGER NOT NULL REFERENCES experiments(id), step TEXT NOT NULL,"
	" identity TEXT NOT NULL, baseline TEXT, seed INTEGER NOT NULL, repeat INTEGER NOT NULL,"
	" iterations INTEGER NOT NULL, precision TEXT, scale TEXT, git_revision TEXT,"
	" git_dirty INTEGER NOT NULL, compiler TEXT, flags TEXT, blas TEXT, threads INTEGER NOT "
	"NULL,"
	" machine TEXT, directory TEXT NOT NULL, state TEXT NOT NULL, exit_reason TEXT, started "
	"REAL,"
	" ended REAL, heartbeat REAL, resumed REAL, resumed_iteration INTEGER, host TEXT, pid "
	"INTEGER,"
	" process TEXT, UNIQUE (experiment, step, identity));"
	"CREATE TABLE config (run INTEGER NOT NULL REFERENCES runs(id), symbol TEXT NOT NULL,"
	" value TEXT NOT NULL, PRIMARY KEY (run, symbol)) WITHOUT ROWID;"
	"CREATE TABLE metrics (run INTEGER NOT NULL REFERENCES runs(id), name TEXT NOT NULL,"
	" iteration INTEGER NOT NULL, value REAL, PRIMARY KEY (run, name, iteration)) WITHOUT "
	"ROWID;"
	"CREATE TABLE events (run INTEGER NOT NULL REFERENCES runs(id), line INTEGER NOT NULL,"
	" time REAL NOT NULL, iteration INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT,"
	" PRIMARY KEY (run, line)) WITHOUT ROWID;"
	"CREATE TABLE audits (run INTEGER NOT NULL REFERENCES runs(id), audit TEXT NOT NULL,"
	" subject TEXT NOT NULL, passed INTEGER NOT NULL, detail TEXT, time REAL NOT NULL,"
	" PRIMARY KEY (run, audit, subject)) WITHOUT ROWID;"
	"CREATE TABLE artifacts (run INTEGER NOT NULL REFERENCES runs(id), kind TEXT NOT NULL,"
	" path TEXT NOT NULL, sha256 TEXT, bytes INTEGER NOT NULL, time REAL NOT NULL,"
	" PRIMARY KEY (run, kind, path)) WITHOUT ROWID;"
	"INSERT INTO experiments VALUES (1, 'old');"
	"INSERT INTO runs (id, experiment, step, identity, seed, repeat, iterations, git_dirty,"
	" threads, directory, state) VALUES (1, 1, '0', 'ff', 1, 0, 10, 0, 2, 'gone', 'done');"
	"INSERT INTO metrics VALUES (1, 'train/loss', 5, 2.5), (1, 'train/loss', 10, 1.5);"
	"PRAGMA user_version = 1";

static void execute(const struct place *p, const char *sql)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(p->db, &db), SQLITE_OK);
	if (sqlite3_exec(db, sql, NULL, NULL, NULL))
		fail_msg("%s", sqlite3_errmsg(db));
	sqlite3_close(db);
}

static void test_an_older_database_is_brought_up_to_date(void **state)
{
	struct place *p = *state;

	execute(p, version_1);
	finish(begin_run(p, -1));
	assert_int_equal(p->warnings, 0);
	assert_answer(p, "PRAGMA user_version", DATABASE_VERSION);
	assert_answer(p, "SELECT count(*) FROM runs", 2);
	assert_answer(p, "SELECT train_loss FROM overview WHERE experiment = 'old'", 1.5);
}

static void test_a_newer_database_is_left_alone(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	execute(p, "PRAGMA user_version = 99");
	m = begin_run(p, -1);
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->warning, "newer program (schema version 99"));
	tell(m, 1, 2);
	finish(m);
	assert_answer(p, "PRAGMA user_version", 99);
	assert_answer(p, "SELECT count(*) FROM sqlite_schema", 0);
	check_rebuilt(p, 2);
}

/* SQLite takes no such path, so advice to rebuild the database would not help. */
static void test_a_path_that_sqlite_does_not_take(void **state)
{
	char path[1024], part[102];
	struct place *p = *state;
	struct metrics *m;
	struct error err;

	snprintf(path, sizeof(path), "%s", p->root);
	memset(part, 'x', sizeof(part) - 1);
	part[0] = '/';
	part[sizeof(part) - 1] = '\0';
	for (int i = 0; i < 6; i++) {
		strcat(path, part);
		assert_int_equal(mkdir(path, 0777), 0);
	}
	strcat(path, "/results.db");
	p->options.db_path = path;
	assert_int_equal(metrics_open(&m, &p->options, -1, &err), FAIL);
	assert_non_null(strstr(err.text, "choose a shorter RUNS= than "));
	assert_int_equal(p->warnings, 0);
}

/* --------------------------------------------------------------- processes */

static void test_a_process_lives_and_dies(void **state)
{
	struct process self, child;
	int ends[2];
	pid_t pid;

	(void)state;
	process_self(&self);
	assert_int_equal(process_look(self.host, self.pid, self.birth), PROCESS_LIVES);
	assert_int_equal(process_look("another.host", self.pid, self.birth), PROCESS_ELSEWHERE);
	assert_int_equal(process_look(self.host, self.pid, "another boot:17"), PROCESS_DEAD);
	assert_int_equal(process_look(NULL, 0, NULL), PROCESS_DEAD);

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		process_self(&child);
		_exit(write(ends[1], &child, sizeof(child)) != sizeof(child));
	}
	assert_int_equal(read(ends[0], &child, sizeof(child)), sizeof(child));
	assert_int_equal(child.pid, pid);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(process_look(child.host, child.pid, child.birth), PROCESS_DEAD);
	close(ends[0]);
	close(ends[1]);
}

/* ---------------------------------------------------------------- another machine */

static void write_lease(const struct place *p, const char *boot, long long seconds)
{
	char path[400];
	FILE *file;

	snprintf(path, sizeof(path), "%s-writer", p->db);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "%s %lld there\n", boot, (long long)time(NULL) + seconds);
	assert_int_equal(fclose(file), 0);
}

static void test_another_machine_writes(void **state)
{
	struct place *p = *state;
	struct database *d;
	struct metrics *m;
	struct error err;
	int64_t run;

	write_lease(p, "another-boot", 100);
	m = begin_run(p, -1);
	tell(m, 1, 2);
	assert_false(metrics_in_database(m));
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->warning, "the machine there writes it"));
	write_lease(p, "another-boot", -1); /* it has not written for a while */
	finish(m);
	assert_answer(p, "SELECT count(*) FROM metrics", 2);

	/* What was opened before the other machine came must not write either. */
	must(database_open(&d, p->db, 1, &err), &err);
	write_lease(p, "another-boot", 100);
	assert_int_equal(database_import(d, p->run_dir, false, &run, &err), FAIL);
	assert_true(database_was_busy(d));
	database_close(d);

	/* Reading is free. */
	must(database_open(&d, p->db, 1, &err), &err);
	assert_int_equal(sqlite3_db_readonly(database_handle(d), "main"), 1);
	database_close(d);
}

/* What the file holds now, in seconds from now on. */
static long long lease_seconds(const struct place *p)
{
	char path[400], boot[64];
	long long until;
	FILE *file;

	snprintf(path, sizeof(path), "%s-writer", p->db);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%63s %lld", boot, &until), 2);
	fclose(file);
	return until - (long long)time(NULL);
}

static void test_a_clock_that_was_ahead(void **state)
{
	static const long long ahead[] = { 2 * LEASE_SECONDS + 10, 86400, 4000000000LL, 1LL << 62 };
	struct place *p = *state;
	struct process self;
	struct database *d;
	struct error err;
	int64_t run;

	finish(begin_run(p, -1));
	for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++) {
		write_lease(p, "another-boot", ahead[i]);
		must(lease_check(p->db, &err), &err);
		must(database_open(&d, p->db, 1, &err), &err);
		must(database_import(d, p->run_dir, false, &run, &err), &err);
		database_close(d);
		assert_in_range(lease_seconds(p), 1, LEASE_SECONDS);
	}

	/* Other machines do not respect what our own clock wrote when it was ahead. */
	process_self(&self);
	self.birth[strcspn(self.birth, ":")] = '\0';
	write_lease(p, self.birth, 86400);
	must(lease_take(p->db, &err), &err);
	assert_in_range(lease_seconds(p), 1, LEASE_SECONDS);
}

/* Nothing waits for a writer of a FIFO. */
static void test_a_lease_that_is_no_file(void **state)
{
	struct place *p = *state;
	struct error err;
	char path[400];

	snprintf(path, sizeof(path), "%s-writer", p->db);
	assert_int_equal(mkfifo(path, 0600), 0);
	must(lease_check(p->db, &err), &err);
	assert_int_equal(unlink(path), 0);
}

#define with_place(test) cmocka_unit_test_setup_teardown(test, place_make, place_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_place(test_every_table_gets_its_rows),
		with_place(test_values_are_exact),
		with_place(test_texts_are_exact),
		with_place(test_the_last_word_counts),
		with_place(test_values_go_to_tensorboard),
		with_place(test_resume_forgets_later_iterations),
		with_place(test_a_fresh_start_forgets_everything),
		with_place(test_resume_brings_what_the_database_lacks),
		with_place(test_uncommitted_is_untold),
		with_place(test_lines_put_in_twice_leave_one_row),
		with_place(test_a_torn_end_is_cut_off),
		with_place(test_damage_before_the_end_is_an_error),
		with_place(test_a_journal_cut_anywhere_is_read),
		with_place(test_lines_that_are_no_entries),
		with_place(test_broken_records_are_refused),
		with_place(test_a_directory_belongs_to_one_run),
		with_place(test_a_journal_belongs_to_one_run),
		with_place(test_an_older_journal_is_unbound),
		with_place(test_a_run_has_one_directory),
		with_place(test_a_run_may_move),
		with_place(test_an_older_database_is_brought_up_to_date),
		with_place(test_a_newer_database_is_left_alone),
		with_place(test_a_path_that_sqlite_does_not_take),
		with_place(test_another_machine_writes),
		with_place(test_a_clock_that_was_ahead),
		with_place(test_a_lease_that_is_no_file),
		cmocka_unit_test(test_a_process_lives_and_dies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
