#define _GNU_SOURCE /* asprintf */
#include "core/record/database.h"

#include <assert.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "core/record/journal.h"
#include "core/record/lease.h"
#include "core/util/name.h"

/* --------------------------------------------------------------- the schema */

/* migrations[v] leads from version v to v + 1.  Never change a migration: add another. */
static const char *const migrations[] = {
	"CREATE TABLE experiments ("
	"  id INTEGER PRIMARY KEY,"
	"  name TEXT NOT NULL UNIQUE);"
	"CREATE TABLE runs ("
	"  id INTEGER PRIMARY KEY,"
	"  experiment INTEGER NOT NULL REFERENCES experiments(id),"
	"  step TEXT NOT NULL, identity TEXT NOT NULL, baseline TEXT,"
	"  seed INTEGER NOT NULL, repeat INTEGER NOT NULL, iterations INTEGER NOT NULL,"
	"  precision TEXT, scale TEXT, git_revision TEXT, git_dirty INTEGER NOT NULL,"
	"  compiler TEXT, flags TEXT, blas TEXT, threads INTEGER NOT NULL, machine TEXT,"
	"  directory TEXT NOT NULL,"
	"  state TEXT NOT NULL, exit_reason TEXT,"
	"  started REAL, ended REAL, heartbeat REAL,"
	"  resumed REAL, resumed_iteration INTEGER,"
	"  host TEXT, pid INTEGER, process TEXT,"
	"  UNIQUE (experiment, step, identity));"
	"CREATE TABLE config ("
	"  run INTEGER NOT NULL REFERENCES runs(id), symbol TEXT NOT NULL, value TEXT NOT NULL,"
	"  PRIMARY KEY (run, symbol)) WITHOUT ROWID;"
	"CREATE TABLE metrics ("
	"  run INTEGER NOT NULL REFERENCES runs(id), name TEXT NOT NULL,"
	"  iteration INTEGER NOT NULL, value REAL,"
	"  PRIMARY KEY (run, name, iteration)) WITHOUT ROWID;"
	"CREATE TABLE events ("
	"  run INTEGER NOT NULL REFERENCES runs(id), line INTEGER NOT NULL,"
	"  time REAL NOT NULL, iteration INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT,"
	"  PRIMARY KEY (run, line)) WITHOUT ROWID;"
	"CREATE TABLE audits ("
	"  run INTEGER NOT NULL REFERENCES runs(id), audit TEXT NOT NULL, subject TEXT NOT NULL,"
	"  passed INTEGER NOT NULL, detail TEXT, time REAL NOT NULL,"
	"  PRIMARY KEY (run, audit, subject)) WITHOUT ROWID;"
	"CREATE TABLE artifacts ("
	"  run INTEGER NOT NULL REFERENCES runs(id), kind TEXT NOT NULL, path TEXT NOT NULL,"
	"  sha256 TEXT, bytes INTEGER NOT NULL, time REAL NOT NULL,"
	"  PRIMARY KEY (run, kind, path)) WITHOUT ROWID;",

	/* SQLite takes the other columns of an aggregate from the row that max() found. */
	"CREATE VIEW latest AS"
	"  SELECT run, name, max(iteration) AS iteration, value FROM metrics GROUP BY run, name;"
	"CREATE VIEW overview AS"
	"  SELECT runs.id AS run, experiments.name AS experiment, step, seed, repeat, state,"
	"    (SELECT max(iteration) FROM metrics WHERE run = runs.id) AS iteration, iterations,"
	"    (SELECT value FROM metrics WHERE run = runs.id AND name = '" METRIC_TRAIN_LOSS "'"
	"     ORDER BY iteration DESC LIMIT 1) AS train_loss,"
	"    (SELECT value FROM metrics WHERE run = runs.id AND name = '" METRIC_VALIDATION_LOSS "'"
	"     ORDER BY iteration DESC LIMIT 1) AS validation_loss,"
	"    exit_reason, directory"
	"  FROM runs JOIN experiments ON experiments.id = runs.experiment;",
};

static_assert(sizeof(migrations) / sizeof(migrations[0]) == DATABASE_VERSION, "one per version");

/* --------------------------------------------------------------- statements */

enum statement {
	/* The first ENTRY_KINDS statements insert a journal line of that kind. */
	HEARTBEAT = ENTRY_KINDS,
	ADD_EXPERIMENT,
	ADD_RUN,
	FIND_RUN,
	COUNT_ROWS,
	ADD_SYMBOL,
	CLEAR_CONFIG,
	CLEAR_METRICS,
	CLEAR_EVENTS,
	CLEAR_AUDITS,
	CLEAR_ARTIFACTS,
	STATEMENTS
};

static const char *const sql[STATEMENTS] = {
	[ENTRY_START] = "UPDATE runs SET state = 'running', exit_reason = NULL, ended = NULL,"
			" started = coalesce(started, :time), resumed = :time,"
			" resumed_iteration = :iteration, host = :subject, pid = :number,"
			" process = :text WHERE id = :run",
	[ENTRY_VALUE] = "INSERT OR REPLACE INTO metrics (run, name, iteration, value)"
			" VALUES (:run, :name, :iteration, :value)",
	[ENTRY_EVENT] = "INSERT OR REPLACE INTO events (run, line, time, iteration, kind, text)"
			" VALUES (:run, :line, :time, :iteration, :name, :text)",
	[ENTRY_AUDIT] = "INSERT OR REPLACE INTO audits (run, audit, subject, passed, detail, time)"
			" VALUES (:run, :name, coalesce(:subject, ''), :number, :text, :time)",
	[ENTRY_ARTIFACT] = "INSERT OR REPLACE INTO artifacts (run, kind, path, sha256, bytes, time)"
			   " VALUES (:run, :name, coalesce(:subject, ''), :text, :number, :time)",
	[ENTRY_END] = "UPDATE runs SET state = :name, exit_reason = :text, ended = :time"
		      " WHERE id = :run",
	[HEARTBEAT] = "UPDATE runs SET heartbeat = :time WHERE id = :run",
	[ADD_EXPERIMENT] = "INSERT OR IGNORE INTO experiments (name) VALUES (:experiment)",
	[ADD_RUN] =
		"INSERT INTO runs (experiment, step, identity, baseline, seed, repeat, iterations,"
		" precision, scale, git_revision, git_dirty, compiler, flags, blas, threads,"
		" machine, directory, state)"
		" VALUES ((SELECT id FROM experiments WHERE name = :experiment), :step, :identity,"
		" :baseline, :seed, :repeat, :iterations, :precision, :scale, :git_revision,"
		" :git_dirty, :compiler, :flags, :blas, :threads, :machine, :directory, 'running')"
		" ON CONFLICT (experiment, step, identity) DO UPDATE SET"
		" baseline = excluded.baseline, seed = excluded.seed, repeat = excluded.repeat,"
		" iterations = excluded.iterations, precision = excluded.precision,"
		" scale = excluded.scale, git_revision = excluded.git_revision,"
		" git_dirty = excluded.git_dirty, compiler = excluded.compiler,"
		" flags = excluded.flags, blas = excluded.blas, threads = excluded.threads,"
		" machine = excluded.machine, directory = excluded.directory,"
		" state = excluded.state, exit_reason = NULL, started = NULL, ended = NULL,"
		" heartbeat = NULL, resumed = NULL, resumed_iteration = NULL, host = NULL,"
		" pid = NULL, process = NULL",
	[FIND_RUN] = "SELECT runs.id, directory FROM runs"
		     " JOIN experiments ON experiments.id = runs.experiment"
		     " WHERE name = :experiment AND step = :step AND identity = :identity",
	[COUNT_ROWS] = "SELECT resumed, ended IS NOT NULL,"
		       " (SELECT count(*) FROM metrics WHERE run = :run),"
		       " (SELECT count(*) FROM events WHERE run = :run),"
		       " (SELECT count(*) FROM audits WHERE run = :run),"
		       " (SELECT count(*) FROM artifacts WHERE run = :run)"
		       " FROM runs WHERE id = :run",
	[ADD_SYMBOL] = "INSERT INTO config (run, symbol, value) VALUES (:run, :name, :text)",
	[CLEAR_CONFIG] = "DELETE FROM config WHERE run = :run",
	[CLEAR_METRICS] = "DELETE FROM metrics WHERE run = :run",
	[CLEAR_EVENTS] = "DELETE FROM events WHERE run = :run",
	[CLEAR_AUDITS] = "DELETE FROM audits WHERE run = :run",
	[CLEAR_ARTIFACTS] = "DELETE FROM artifacts WHERE run = :run",
};

struct database {
	sqlite3 *handle;
	sqlite3_stmt *statements[STATEMENTS]; /* prepared when first used */
	char *path, *directory;		      /* as given; absolute */
	bool busy;
	bool batch;	/* a transaction is open around those of single runs */
	bool in_memory; /* not shared */
};

/* SQLITE_ERROR: a statement does not fit the tables. */
static bool tells_damage(int code)
{
	return code == SQLITE_ERROR || code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

enum status database_fail(struct database *d, struct error *err)
{
	const int code = sqlite3_errcode(d->handle);

	d->busy = code == SQLITE_BUSY || code == SQLITE_LOCKED;
	return fail(err, "%s: %s%s", d->path, sqlite3_errmsg(d->handle),
		    tells_damage(code) ? DATABASE_ADVICE : "");
}

static enum status execute(struct database *d, const char *text, struct error *err)
{
	return sqlite3_exec(d->handle, text, NULL, NULL, NULL) ? database_fail(d, err) : OK;
}

static enum status prepare(struct database *d, enum statement s, struct error *err)
{
	if (!d->statements[s] &&
	    sqlite3_prepare_v3(d->handle, sql[s], -1, SQLITE_PREPARE_PERSISTENT, &d->statements[s],
			       NULL))
		return database_fail(d, err);
	return OK;
}

/* Binds a value to the parameter of this name, if there is one.  Texts must live until the step. */
static void bind_text(sqlite3_stmt *s, const char *name, const char *value)
{
	const int index = sqlite3_bind_parameter_index(s, name);

	if (index)
		sqlite3_bind_text(s, index, value, -1, SQLITE_STATIC);
}

static void bind_int(sqlite3_stmt *s, const char *name, int64_t value)
{
	const int index = sqlite3_bind_parameter_index(s, name);

	if (index)
		sqlite3_bind_int64(s, index, value);
}

static void bind_real(sqlite3_stmt *s, const char *name, double value)
{
	const int index = sqlite3_bind_parameter_index(s, name);

	if (index)
		sqlite3_bind_double(s, index, value); /* SQLite stores NaN as NULL */
}

/* Run a prepared statement that gives no rows. */
static enum status step(struct database *d, enum statement s, struct error *err)
{
	const int code = sqlite3_step(d->statements[s]);
	const enum status status = code == SQLITE_DONE ? OK : database_fail(d, err);

	sqlite3_reset(d->statements[s]);
	sqlite3_clear_bindings(d->statements[s]);
	return status;
}

/* --------------------------------------------------------------- transactions */

/* Another machine writes: trying again at once does not help, as with another process's lock. */
static enum status fail_foreign(struct database *d)
{
	d->busy = true;
	return FAIL;
}

/* Immediate: SQLite waits for the lock here, before the transaction has changed anything. */
static enum status begin(struct database *d, struct error *err)
{
	struct error ignored;

	d->busy = false;
	if (!d->in_memory && lease_check(d->path, err))
		return fail_foreign(d);
	if (execute(d, d->batch ? "SAVEPOINT one" : "BEGIN IMMEDIATE", err))
		return FAIL;
	if (d->in_memory || lease_take(d->path, err) == OK)
		return OK;
	if (execute(d, d->batch ? "ROLLBACK TO one; RELEASE one" : "ROLLBACK", &ignored))
		return FAIL;
	return fail_foreign(d);
}

/* Commits after OK; otherwise leaves the database as it was. */
static enum status end(struct database *d, enum status status, struct error *err)
{
	struct error ignored;

	if (status == OK)
		status = execute(d, d->batch ? "RELEASE one" : "COMMIT", err);
	if (status && !sqlite3_get_autocommit(d->handle) &&
	    execute(d, d->batch ? "ROLLBACK TO one; RELEASE one" : "ROLLBACK", &ignored))
		return FAIL;
	return status;
}

enum status database_begin_batch(struct database *d, struct error *err)
{
	if (begin(d, err))
		return FAIL;
	d->batch = true;
	return OK;
}

enum status database_end_batch(struct database *d, struct error *err)
{
	d->batch = false;
	return end(d, OK, err);
}

/* --------------------------------------------------------------- open */

static enum status get_version(struct database *d, int *version, struct error *err)
{
	sqlite3_stmt *s;

	*version = 0;
	if (sqlite3_prepare_v2(d->handle, "PRAGMA user_version", -1, &s, NULL))
		return database_fail(d, err);
	if (sqlite3_step(s) != SQLITE_ROW) {
		database_fail(d, err);
		sqlite3_finalize(s);
		return FAIL;
	}
	*version = sqlite3_column_int(s, 0);
	sqlite3_finalize(s);
	return OK;
}

static enum status migrate_from(struct database *d, int version, struct error *err)
{
	char mark[64];

	for (; version < DATABASE_VERSION; version++)
		if (execute(d, migrations[version], err))
			return FAIL;
	snprintf(mark, sizeof(mark), "PRAGMA user_version = %d", version);
	return execute(d, mark, err);
}

/* Another process may migrate at the same time, so the version is read under the lock. */
static enum status migrate(struct database *d, struct error *err)
{
	enum status status;
	int version;

	if (get_version(d, &version, err))
		return FAIL;
	if (version < 0)
		return fail(err, "%s is damaged: its schema version is %d" DATABASE_ADVICE, d->path,
			    version);
	if (version > DATABASE_VERSION)
		return fail(err, "%s: made by a newer program (schema version %d, known here: %d)",
			    d->path, version, DATABASE_VERSION);
	if (version == DATABASE_VERSION)
		return OK;
	if (begin(d, err))
		return FAIL;
	status = get_version(d, &version, err);
	if (status == OK)
		status = migrate_from(d, version, err);
	return end(d, status, err);
}

/* SQLite would wait for the other end of a FIFO. */
static enum status check_regular(const char *path, struct error *err)
{
	struct stat about;

	if (stat(path, &about) || S_ISREG(about.st_mode))
		return OK; /* what is not there can be made */
	return fail(err, "%s is not a regular file", path);
}

/* The absolute path of the database's directory; the caller frees it. */
static enum status find_directory(const char *path, char **directory, struct error *err)
{
	char *copy = strdup(path);

	if (!copy)
		return fail_memory(err, path, strlen(path));
	*directory = realpath(dirname(copy), NULL);
	free(copy);
	return *directory ? OK : fail_errno(err, "%s", path);
}

/* SQLite keeps 8 characters for "-journal". */
static enum status check_length(const char *directory, const char *path, struct error *err)
{
	const int most = sqlite3_vfs_find(NULL)->mxPathname - 8;
	const char *name = strrchr(path, '/');
	const size_t length = strlen(directory) + 1 + strlen(name ? name + 1 : path);

	if (length <= (size_t)most)
		return OK;
	return fail(err,
		    "the path of the database has %zu characters, and SQLite takes at most %d: "
		    "choose a shorter RUNS= than %s",
		    length, most, directory);
}

enum status database_check_path(const char *path, struct error *err)
{
	struct error ignored;
	enum status status;
	char *directory;

	if (check_regular(path, err))
		return FAIL;
	if (find_directory(path, &directory, &ignored))
		return OK; /* database_open() says why */
	status = check_length(directory, path, err);
	free(directory);
	return status;
}

static enum status connect(struct database *d, double busy_seconds, struct error *err)
{
	/* A reader that may write would roll back what a writer elsewhere has just begun. */
	const bool is_foreign = lease_check(d->path, err) != OK;
	const int flags =
		is_foreign ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;

	if (is_foreign && access(d->path, F_OK) != 0)
		return fail_foreign(d);
	if (sqlite3_open_v2(d->path, &d->handle, flags, NULL))
		return d->handle ? database_fail(d, err) : fail_memory(err, d->path, 0);
	sqlite3_busy_timeout(d->handle, (int)(1000 * busy_seconds));
	if (execute(d, "PRAGMA foreign_keys = ON", err))
		return FAIL;
	return migrate(d, err);
}

static enum status connect_memory(struct database *d, struct error *err)
{
	d->in_memory = true;
	if (sqlite3_open(":memory:", &d->handle))
		return d->handle ? database_fail(d, err) : fail_memory(err, d->path, 0);
	return migrate(d, err);
}

static enum status open_at(struct database **d, const char *path, struct error *err)
{
	*d = calloc(1, sizeof(**d));
	if (!*d)
		return fail_memory(err, path, sizeof(**d));
	(*d)->path = strdup(path);
	if (!(*d)->path)
		return fail_memory(err, path, strlen(path));
	if (database_check_path(path, err))
		return FAIL;
	return find_directory(path, &(*d)->directory, err);
}

static enum status end_open(struct database **d, enum status status)
{
	if (status != OK) {
		database_close(*d);
		*d = NULL;
	}
	return status;
}

enum status database_open(struct database **d, const char *path, double busy_seconds,
			  struct error *err)
{
	enum status status = open_at(d, path, err);

	return end_open(d, status == OK ? connect(*d, busy_seconds, err) : FAIL);
}

enum status database_open_memory(struct database **d, const char *path, struct error *err)
{
	enum status status = open_at(d, path, err);

	return end_open(d, status == OK ? connect_memory(*d, err) : FAIL);
}

void database_close(struct database *d)
{
	if (!d)
		return;
	for (int i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(d->statements[i]);
	sqlite3_close(d->handle);
	free(d->directory);
	free(d->path);
	free(d);
}

bool database_was_busy(const struct database *d)
{
	return d->busy;
}

struct sqlite3 *database_handle(struct database *d)
{
	return d->handle;
}

static bool finds_damage(sqlite3 *handle, struct error *why)
{
	const char *found = NULL;
	sqlite3_stmt *s = NULL;
	bool damaged = false;
	int code;

	code = sqlite3_prepare_v2(handle, "PRAGMA integrity_check(1)", -1, &s, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_step(s);
	if (code == SQLITE_ROW)
		found = (const char *)sqlite3_column_text(s, 0);
	else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
		found = sqlite3_errmsg(handle);
	if (found && strcmp(found, "ok")) {
		fail(why, "%s", found);
		damaged = true;
	}
	sqlite3_finalize(s);
	return damaged;
}

/* The length of the UTF-8 character (RFC 3629) at the start of s; 0: there is none. */
static int character_length(const unsigned char *s)
{
	const int length = s[0] < 0x80	  ? 1
			   : s[0] < 0xc2  ? 0
			   : s[0] < 0xe0  ? 2
			   : s[0] < 0xf0  ? 3
			   : s[0] <= 0xf4 ? 4
					  : 0;

	for (int i = 1; i < length; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0; /* an overlong form, a surrogate, or beyond U+10FFFF */
	return length;
}

static bool is_utf8(const unsigned char *s)
{
	while (*s) {
		const int length = character_length(s);

		if (!length)
			return false;
		s += length;
	}
	return true;
}

static bool is_utf8_text(const char *text)
{
	return is_utf8((const unsigned char *)text);
}

static bool is_wrong_if_there(const char *text)
{
	(void)text;
	return false;
}

/* What must hold for a text that readers decode or use as a name. */
struct text_rule {
	const char *question; /* its first column */
	bool (*holds)(const char *text);
	const char *otherwise;
};

#define NOT_UTF8 "a text is not UTF-8"
#define NO_NAME "a name has characters that names do not have"

static const struct text_rule texts[] = {
	{ "SELECT name FROM experiments", is_name, NO_NAME },
	{ "SELECT step FROM runs", is_step, NO_NAME },
	{ "SELECT baseline FROM runs", is_step, NO_NAME },
	{ "SELECT identity FROM runs", is_identity, "an identity is malformed" },
	{ "SELECT symbol FROM config", is_symbol, "a symbol is malformed" },
	{ "SELECT directory || state || coalesce(exit_reason, '') FROM runs", is_utf8_text,
	  NOT_UTF8 },
	{ "SELECT value FROM config", is_utf8_text, NOT_UTF8 },
	{ "SELECT name FROM metrics", is_utf8_text, NOT_UTF8 },
	{ "SELECT kind || coalesce(text, '') FROM events", is_utf8_text, NOT_UTF8 },
	{ "SELECT audit || subject || coalesce(detail, '') FROM audits", is_utf8_text, NOT_UTF8 },
	{ "SELECT kind || path || coalesce(sha256, '') FROM artifacts", is_utf8_text, NOT_UTF8 },
	{ "SELECT \"table\" FROM pragma_foreign_key_check", is_wrong_if_there,
	  "a row belongs to no run or experiment" },
};

/* SQLite's own check does not look into texts. */
static bool finds_wrong_text(sqlite3 *handle, const struct text_rule *rule, struct error *why)
{
	sqlite3_stmt *s = NULL;
	bool sound = true;

	if (sqlite3_prepare_v2(handle, rule->question, -1, &s, NULL) != SQLITE_OK)
		return false; /* the tables of another version */
	while (sound && sqlite3_step(s) == SQLITE_ROW) {
		const char *text = (const char *)sqlite3_column_text(s, 0);

		sound = !text || rule->holds(text);
		if (!sound)
			fail(why, "%s", rule->otherwise);
	}
	sqlite3_finalize(s);
	return !sound;
}

/* Migrations from one version to another, in a database without a lease. */
static bool makes_schema(sqlite3 *model, int from, int to)
{
	bool is_made = true;

	for (int version = from; version < to && is_made; version++)
		is_made = sqlite3_exec(model, migrations[version], NULL, NULL, NULL) == SQLITE_OK;
	return is_made;
}

static bool attach(sqlite3 *model, const char *path)
{
	sqlite3_stmt *s = NULL;
	const bool is_attached =
		sqlite3_prepare_v2(model, "ATTACH ?1 AS file", -1, &s, NULL) == SQLITE_OK &&
		sqlite3_bind_text(s, 1, path, -1, SQLITE_STATIC) == SQLITE_OK &&
		sqlite3_step(s) == SQLITE_DONE;

	sqlite3_finalize(s);
	return is_attached;
}

/* How many tables and views of the attached file are not as the model made them, or are of a later
 * version than those in `old`?  -1: that cannot be said now. */
static int count_other_tables(sqlite3 *model)
{
	sqlite3_stmt *s = NULL;
	int count = -1;

	if (sqlite3_prepare_v2(model,
			       "SELECT count(*) FROM main.sqlite_schema AS right"
			       " LEFT JOIN file.sqlite_schema AS found USING (name)"
			       " WHERE right.sql IS NOT NULL AND found.sql IS NOT"
			       "  iif(name IN (SELECT name FROM old), right.sql, NULL)",
			       -1, &s, NULL) == SQLITE_OK &&
	    sqlite3_step(s) == SQLITE_ROW)
		count = sqlite3_column_int(s, 0);
	sqlite3_finalize(s);
	return count;
}

/* Tables and views must be those of the version.  Others, such as an index, may be beside them. */
static bool finds_other_schema(struct database *d, struct error *why)
{
	static const char remember[] =
		"CREATE TEMP TABLE old AS SELECT name FROM main.sqlite_schema";
	sqlite3 *model = NULL;
	int version, wrong = 0;

	if (get_version(d, &version, why) || version > DATABASE_VERSION)
		return false; /* locked, or for a newer program */
	if (version < 0) {
		fail(why, "its schema version is %d", version);
		return true;
	}
	if (sqlite3_open(":memory:", &model) == SQLITE_OK && makes_schema(model, 0, version) &&
	    sqlite3_exec(model, remember, NULL, NULL, NULL) == SQLITE_OK &&
	    makes_schema(model, version, DATABASE_VERSION) && attach(model, d->path))
		wrong = count_other_tables(model);
	sqlite3_close(model);
	if (wrong > 0)
		fail(why, "%d of its tables and views are not those of schema version %d", wrong,
		     version);
	return wrong > 0;
}

bool database_is_damaged(const char *path, struct error *why)
{
	const int busy_ms = 1000; /* a commit takes far less */
	struct database d = { .path = (char *)path };
	bool damaged = false;

	if (check_regular(path, why))
		return false; /* database_open() refuses it */
	if (sqlite3_open_v2(path, &d.handle, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
		sqlite3_busy_timeout(d.handle, busy_ms);
		damaged = finds_damage(d.handle, why) || finds_other_schema(&d, why);
		for (size_t i = 0; !damaged && i < sizeof(texts) / sizeof(texts[0]); i++)
			damaged = finds_wrong_text(d.handle, &texts[i], why);
	}
	sqlite3_close(d.handle);
	return damaged;
}

/* --------------------------------------------------------------- journal lines */

struct target {
	struct database *database;
	int64_t run;
	double last_time; /* of the lines inserted so far; NAN: none */
};

static enum status put_entry(void *context, const struct entry *e, struct error *err)
{
	struct target *to = context;
	struct database *d = to->database;
	const enum statement kind = (enum statement)e->kind;
	sqlite3_stmt *s;

	if (prepare(d, kind, err))
		return FAIL;
	s = d->statements[kind];
	bind_int(s, ":run", to->run);
	bind_int(s, ":line", e->line);
	bind_real(s, ":time", e->time);
	bind_int(s, ":iteration", e->iteration);
	bind_int(s, ":number", e->number);
	bind_real(s, ":value", e->value);
	bind_text(s, ":name", e->name);
	bind_text(s, ":subject", e->subject);
	bind_text(s, ":text", e->text);
	to->last_time = e->time;
	return step(d, kind, err);
}

static enum status put_lines(struct database *d, int64_t run, const char *lines, size_t size,
			     int64_t first_line, struct error *err)
{
	struct target to = { d, run, NAN };

	if (journal_visit(lines, size, first_line, put_entry, &to, err) ||
	    prepare(d, HEARTBEAT, err))
		return FAIL;
	bind_int(d->statements[HEARTBEAT], ":run", run);
	bind_real(d->statements[HEARTBEAT], ":time", to.last_time);
	if (step(d, HEARTBEAT, err))
		return FAIL;
	if (sqlite3_changes(d->handle) != 1)
		return fail(err, "%s: the run's row has disappeared", d->path);
	return OK;
}

enum status database_append(struct database *d, int64_t run, const char *lines, size_t size,
			    int64_t first_line, struct error *err)
{
	if (size == 0)
		return OK;
	if (begin(d, err))
		return FAIL;
	return end(d, put_lines(d, run, lines, size, first_line, err), err);
}

/* --------------------------------------------------------------- whole runs */

static void bind_record(sqlite3_stmt *s, const struct run_record *r)
{
	char name[64];

	for (int i = 0; i < n_record_fields; i++) {
		const struct record_field *f = &record_fields[i];

		snprintf(name, sizeof(name), ":%s", f->name);
		if (f->type == RECORD_TEXT)
			bind_text(s, name, record_text(r, f));
		else
			bind_int(s, name, record_number(r, f));
	}
}

/* Does this directory hold a run?  Its path is relative to the database's directory. */
static bool holds_run(const struct database *d, const char *directory)
{
	const bool absolute = directory[0] == '/';
	char *path;
	bool there;

	if (asprintf(&path, "%s%s%s/" RUN_RECORD_FILE, absolute ? "" : d->directory,
		     absolute ? "" : "/", directory) < 0)
		return false;
	there = access(path, F_OK) == 0;
	free(path);
	return there;
}

/* *run is 0 if there is no such row.  It is an error if another directory holds the run. */
static enum status find_run(struct database *d, const struct run_record *r, const char *directory,
			    int64_t *run, struct error *err)
{
	enum status status = OK;
	sqlite3_stmt *s;
	int code;

	*run = 0;
	if (prepare(d, FIND_RUN, err))
		return FAIL;
	s = d->statements[FIND_RUN];
	bind_record(s, r);
	code = sqlite3_step(s);
	if (code == SQLITE_ROW) {
		const char *other = (const char *)sqlite3_column_text(s, 1);

		*run = sqlite3_column_int64(s, 0);
		if (strcmp(other, directory) && holds_run(d, other))
			status = fail(err,
				      "%s is the same run as %s, which is already in the database",
				      directory, other);
	} else if (code != SQLITE_DONE) {
		status = database_fail(d, err);
	}
	sqlite3_reset(s);
	sqlite3_clear_bindings(s);
	return status;
}

static enum status put_record(struct database *d, const struct run_record *r, const char *directory,
			      int64_t *run, struct error *err)
{
	if (find_run(d, r, directory, run, err) || prepare(d, ADD_EXPERIMENT, err) ||
	    prepare(d, ADD_RUN, err))
		return FAIL;
	bind_record(d->statements[ADD_EXPERIMENT], r);
	bind_record(d->statements[ADD_RUN], r);
	bind_text(d->statements[ADD_RUN], ":directory", directory);
	if (step(d, ADD_EXPERIMENT, err) || step(d, ADD_RUN, err))
		return FAIL;
	return *run ? OK : find_run(d, r, directory, run, err);
}

static enum status clear_run(struct database *d, int64_t run, struct error *err)
{
	for (enum statement s = CLEAR_CONFIG; s <= CLEAR_ARTIFACTS; s++) {
		if (prepare(d, s, err))
			return FAIL;
		bind_int(d->statements[s], ":run", run);
		if (step(d, s, err))
			return FAIL;
	}
	return OK;
}

static enum status put_config(struct database *d, int64_t run, const struct run_record *r,
			      struct error *err)
{
	if (prepare(d, ADD_SYMBOL, err))
		return FAIL;
	for (int i = 0; i < r->symbols; i++) {
		bind_int(d->statements[ADD_SYMBOL], ":run", run);
		bind_text(d->statements[ADD_SYMBOL], ":name", r->config[i].name);
		bind_text(d->statements[ADD_SYMBOL], ":text", r->config[i].value);
		if (step(d, ADD_SYMBOL, err))
			return fail_prefix(err, "symbol %s", r->config[i].name);
	}
	return OK;
}

static enum status put_journal(struct database *d, int64_t run, const char *run_dir,
			       const char *identity, struct error *err)
{
	enum status status;
	char *text;
	size_t size;

	if (journal_read(run_dir, identity, &text, &size, err))
		return FAIL;
	status = put_lines(d, run, text, size, 1, err);
	free(text);
	return status;
}

enum { ROW_KINDS = 5 };

/* What the database has of a run. */
struct run_rows {
	double resumed;		  /* when the run last started */
	int64_t count[ROW_KINDS]; /* its end, metrics, events, audits, artifacts */
};

/* A run that is not in the database has no rows. */
static enum status count_rows(struct database *d, int64_t run, struct run_rows *rows,
			      struct error *err)
{
	enum status status = OK;
	sqlite3_stmt *s;
	int code;

	*rows = (struct run_rows){ 0 };
	if (prepare(d, COUNT_ROWS, err))
		return FAIL;
	s = d->statements[COUNT_ROWS];
	bind_int(s, ":run", run);
	code = sqlite3_step(s);
	if (code == SQLITE_ROW) {
		rows->resumed = sqlite3_column_double(s, 0);
		for (int i = 0; i < ROW_KINDS; i++)
			rows->count[i] = sqlite3_column_int64(s, 1 + i);
	} else if (code != SQLITE_DONE) {
		status = database_fail(d, err);
	}
	sqlite3_reset(s);
	sqlite3_clear_bindings(s);
	return status;
}

static bool are_fewer(const struct run_rows *now, const struct run_rows *before)
{
	for (int i = 0; i < ROW_KINDS; i++)
		if (now->count[i] < before->count[i])
			return true;
	return false;
}

static enum status put_run(struct database *d, const struct run_record *r, const char *run_dir,
			   const char *directory, int64_t *run, struct error *err)
{
	if (put_record(d, r, directory, run, err) || clear_run(d, *run, err) ||
	    put_config(d, *run, r, err))
		return FAIL;
	return put_journal(d, *run, run_dir, r->identity, err);
}

/* As put_run(), unless a journal without a later start would leave fewer rows. */
static enum status keep_rows(struct database *d, const struct run_record *r, const char *run_dir,
			     const char *directory, int64_t *run, struct error *err)
{
	struct run_rows before, now;

	if (find_run(d, r, directory, run, err) || count_rows(d, *run, &before, err) ||
	    put_run(d, r, run_dir, directory, run, err) || count_rows(d, *run, &now, err))
		return FAIL;
	if (now.resumed > before.resumed || !are_fewer(&now, &before))
		return OK;
	return fail(err,
		    "%s/" JOURNAL_FILE " has lost lines that the database has; its rows are kept.  "
		    "'results merge COPY' brings a whole journal back, 'make rerun RUN=%s' trains "
		    "the run again",
		    run_dir, run_dir);
}

static enum status import_files(struct database *d, const char *run_dir, const char *directory,
				bool is_at_work, int64_t *run, struct error *err)
{
	struct record_file file;
	enum status status;

	if (record_read(&file, run_dir, err))
		return FAIL;
	status = (is_at_work ? put_run : keep_rows)(d, &file.record, run_dir, directory, run, err);
	record_free(&file);
	return status;
}

/* Paths below the database's directory are relative to it, so that both can move together. */
static const char *name_directory(const struct database *d, const char *absolute)
{
	const size_t length = strlen(d->directory);

	if (!strncmp(absolute, d->directory, length) && absolute[length] == '/')
		return absolute + length + 1;
	return absolute;
}

/* Reads the files under the database's lock, so the later of two imports has the later text. */
enum status database_import(struct database *d, const char *run_dir, bool is_at_work, int64_t *run,
			    struct error *err)
{
	char *absolute = realpath(run_dir, NULL);
	enum status status = FAIL;

	if (!absolute)
		return fail_errno(err, "%s", run_dir);
	if (begin(d, err) == OK)
		status = end(
			d,
			import_files(d, run_dir, name_directory(d, absolute), is_at_work, run, err),
			err);
	free(absolute);
	return status;
}
