#include "tools/results/verify.h"

#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <sqlite3.h>

#include "core/record/database.h"
#include "core/record/journal.h"
#include "core/record/lease.h"
#include "core/record/metrics.h"
#include "core/train/checkpoint.h"
#include "core/util/file.h"
#include "core/util/hash.h"
#include "core/util/replace.h"
#include "core/util/safetensors.h"

#define VERIFIED_FILE "verified.json"
#define WEIGHTS_FILE "weights.safetensors"
#define BEST_FILE "best.safetensors"
#define IDENTITY_DIGITS 12 /* in the name of a run's directory */

struct verify {
	struct collect *c;
	cJSON *runs;		   /* for VERIFIED_FILE */
	cJSON *wrong;		   /* of the run that is visited; NULL: something else is */
	struct database *database; /* NULL: there is none to compare with */
	bool no_memory;		   /* for VERIFIED_FILE */
	int sound, damaged, unbound, unchecked, without_weights, at_work, without_directory;
};

/* --------------------------------------------------------------- findings */

static void report_wrong(void *context, const char *text)
{
	struct verify *v = context;
	cJSON *item = v->wrong ? cJSON_CreateString(text) : NULL;

	fprintf(v->c->out, "wrong: %s\n", text);
	v->c->problems++;
	if (v->wrong && !cJSON_AddItemToArray(v->wrong, item))
		v->no_memory = true;
}

static void PRINTF_LIKE(2, 3) wrong(struct verify *v, const char *format, ...)
{
	char text[ERROR_TEXT_SIZE];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	report_wrong(v, text);
}

static void note(struct verify *v, int *count, const char *what, const char *text)
{
	fprintf(v->c->out, "note: %s: %s\n", what, text);
	++*count;
}

static cJSON *member(const cJSON *object, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* --------------------------------------------------------------- the journal */

/* What a journal says about the files beside it. */
struct journal_facts {
	bool ended;		       /* its last line is the end of a run that is done */
	char weights[SHA256_HEX_SIZE]; /* hash of the final parameters; empty: not recorded */
	int64_t bytes;
	char declared[SHA256_HEX_SIZE]; /* hash of the declaration before the run; empty: none */
};

static enum status note_fact(void *context, const struct entry *e, struct error *err)
{
	struct journal_facts *facts = context;

	(void)err;
	facts->ended = entry_ends_well(e);
	if (e->kind == ENTRY_ARTIFACT && !strcmp(e->name, "weights") && e->text) {
		snprintf(facts->weights, sizeof(facts->weights), "%s", e->text);
		facts->bytes = e->number;
	}
	if (e->kind == ENTRY_EVENT && !strcmp(e->name, EVENT_DECLARATION) && e->text)
		snprintf(facts->declared, sizeof(facts->declared), "%s", e->text);
	return OK;
}

static off_t size_of(const char *path)
{
	struct stat about;

	return stat(path, &about) ? -1 : about.st_size;
}

/* True: the rows of the run can be made from it. */
static bool check_journal(struct verify *v, const char *run_dir, const struct run_record *r,
			  struct journal_facts *facts, bool *is_bound)
{
	const int before = v->c->problems;
	char path[PATH_MAX], *text;
	struct error err;
	size_t size;

	snprintf(path, sizeof(path), "%s/" JOURNAL_FILE, run_dir);
	if (journal_read(run_dir, r->identity, &text, &size, &err)) {
		report_wrong(v, err.text);
		return false;
	}
	if (journal_visit(text, size, 1, note_fact, facts, &err))
		wrong(v, "%s: %s", path, err.text);
	*is_bound = journal_is_bound(text, size);
	free(text);
	if (run_is_done(run_dir) && !facts->ended)
		wrong(v, "%s: the run is done, but its end is lost", path);
	else if (run_is_done(run_dir) && size_of(path) != (off_t)size)
		wrong(v, "%s: something follows its end", path);
	return v->c->problems == before;
}

/* --------------------------------------------------------------- what was declared */

/* A whole text, which the caller frees; NULL: there is none. */
static char *read_text(const char *path)
{
	struct error ignored;
	FILE *file = NULL;
	char *text = NULL;
	size_t room = 0;
	int fd;

	if (file_open(path, &fd, &ignored) == OK)
		file = fdopen(fd, "r");
	if (file && getdelim(&text, &room, '\0', file) < 0) {
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	return text;
}

#define ENTRY_BEHIND "\n  }"	/* ends an entry, in the form of json.dumps(indent=1) */
#define LIST_BEHIND "\n ]\n}\n" /* ends the file */

/* Entries are only appended: was there a time when the file had this hash? */
static bool once_had(const char *text, const char *hash)
{
	const char *at = text;
	char hex[SHA256_HEX_SIZE];
	struct sha256 sum;

	while ((at = strstr(at, ENTRY_BEHIND))) {
		at += strlen(ENTRY_BEHIND);
		sha256_init(&sum);
		sha256_add(&sum, text, (size_t)(at - text));
		sha256_add(&sum, LIST_BEHIND, strlen(LIST_BEHIND));
		sha256_hex(&sum, hex);
		if (strcmp(hex, hash) == 0)
			return true;
	}
	return false;
}

static void check_declared(struct verify *v, const char *run_dir, const struct journal_facts *facts)
{
	char copy[PATH_MAX], path[PATH_MAX + sizeof(DECLARATION_FILE)], *text;

	if (!facts->declared[0])
		return;
	snprintf(copy, sizeof(copy), "%s", run_dir);
	snprintf(path, sizeof(path), "%s/" DECLARATION_FILE, dirname(copy));
	text = read_text(path);
	if (!text || !once_had(text, facts->declared))
		wrong(v, "%s: it no longer says what was declared when %s began", path, run_dir);
	free(text);
}

/* --------------------------------------------------------------- weights */

static void check_tensors(struct verify *v, const char *path, const struct safetensors *file,
			  const char *identity)
{
	const char *theirs = safetensors_metadata(file, "identity");
	struct error err;

	if (safetensors_check(file, &err))
		wrong(v, "%s: %s", path, err.text);
	if (!safetensors_metadata(file, SAFETENSORS_HASH))
		note(v, &v->unchecked, path, "an earlier program wrote it, without its hash");
	if (theirs && strcmp(theirs, identity) != 0)
		wrong(v, "%s: these are weights of another run", path);
	for (int i = 0; i < file->count; i++)
		if (!safetensors_is_finite(&file->tensors[i])) {
			wrong(v, "%s: it holds NaN or infinity", path);
			return;
		}
}

static void check_weights(struct verify *v, const char *run_dir, const char *name,
			  const char *identity, const struct journal_facts *facts)
{
	struct safetensors file;
	char path[PATH_MAX];
	struct error err;
	const char *hash;

	snprintf(path, sizeof(path), "%s/%s", run_dir, name);
	if (access(path, F_OK) != 0) {
		v->without_weights += facts && facts->weights[0]; /* merge leaves them behind */
		return;
	}
	if (safetensors_open(&file, path, &err)) {
		report_wrong(v, err.text);
		return;
	}
	check_tensors(v, path, &file, identity);
	hash = safetensors_metadata(&file, WEIGHTS_HASH);
	if (facts && facts->weights[0] &&
	    ((hash && strcmp(hash, facts->weights) != 0) || size_of(path) != (off_t)facts->bytes))
		wrong(v, "%s: these are not the weights that the run recorded", path);
	safetensors_close(&file);
}

/* --------------------------------------------------------------- the database */

static const struct {
	const char *name, *columns;
} tables[] = {
	{ "runs", "baseline, seed, repeat, iterations, precision, scale, git_revision, git_dirty,"
		  " compiler, flags, blas, threads, machine, directory, state, exit_reason,"
		  " started, ended, heartbeat, resumed, resumed_iteration, host, pid, process" },
	{ "config", "symbol, value" },
	{ "metrics", "name, iteration, value" },
	{ "events", "line, time, iteration, kind, text" },
	{ "audits", "audit, subject, passed, detail, time" },
	{ "artifacts", "kind, path, sha256, bytes, time" },
};

/* The first number of an answer; -1: err says why there is none. */
static int64_t ask(sqlite3 *db, const char *question, const char *const *texts, struct error *err)
{
	sqlite3_stmt *s = NULL;
	int64_t answer = -1;

	if (sqlite3_prepare_v2(db, question, -1, &s, NULL) == SQLITE_OK) {
		for (int i = 0; texts && texts[i]; i++)
			sqlite3_bind_text(s, i + 1, texts[i], -1, SQLITE_STATIC);
		if (sqlite3_step(s) == SQLITE_ROW)
			answer = sqlite3_column_int64(s, 0);
	}
	if (answer < 0)
		fail(err, "%s", sqlite3_errmsg(db));
	sqlite3_finalize(s);
	return answer;
}

/* How many rows of a table one has and the other lacks. */
static int64_t count_more(sqlite3 *db, int table, const char *one, int64_t one_run,
			  const char *other, int64_t other_run, struct error *err)
{
	const char *name = tables[table].name, *columns = tables[table].columns;
	const char *key = table == 0 ? "id" : "run";
	char question[2048];

	snprintf(question, sizeof(question),
		 "SELECT count(*) FROM (SELECT %s FROM %s.%s WHERE %s = %" PRId64
		 " EXCEPT SELECT %s FROM %s.%s WHERE %s = %" PRId64 ")",
		 columns, one, name, key, one_run, columns, other, name, key, other_run);
	return ask(db, question, NULL, err);
}

static enum status compare_tables(struct verify *v, sqlite3 *db, const char *run_dir, int64_t fresh,
				  int64_t kept, struct error *err)
{
	for (int i = 0; i < (int)(sizeof(tables) / sizeof(tables[0])); i++) {
		const int64_t lost = count_more(db, i, "main", fresh, "kept", kept, err);
		const int64_t more =
			lost < 0 ? -1 : count_more(db, i, "kept", kept, "main", fresh, err);

		if (more < 0)
			return FAIL;
		if (lost || more)
			wrong(v,
			      "%s: table %s differs from %s: it lacks %" PRId64
			      " rows and has %" PRId64 " others",
			      v->c->db_path, tables[i].name, run_dir, lost, more);
	}
	return OK;
}

/* Makes the rows of the run again, in memory, and compares them with those of the database. */
static enum status compare_with(struct verify *v, struct database *fresh, const char *run_dir,
				const struct run_record *r, struct error *err)
{
	const char *const names[] = { r->experiment, r->step, r->identity, NULL };
	sqlite3 *db = database_handle(fresh);
	int64_t run, kept;

	if (database_import(fresh, run_dir, true, &run, err))
		return FAIL;
	kept = ask(db,
		   "SELECT coalesce(max(runs.id), 0) FROM kept.runs JOIN kept.experiments"
		   " ON experiments.id = experiment WHERE name = ? AND step = ? AND identity = ?",
		   names, err);
	if (kept < 0)
		return FAIL;
	if (kept > 0)
		return compare_tables(v, db, run_dir, run, kept, err);
	wrong(v, "%s: it lacks %s: 'results rebuild' takes it in", v->c->db_path, run_dir);
	return OK;
}

static enum status attach(struct database *fresh, const char *path, struct error *err)
{
	sqlite3 *db = database_handle(fresh);
	sqlite3_stmt *s = NULL;
	int code = sqlite3_prepare_v2(db, "ATTACH ? AS kept", -1, &s, NULL);

	if (code == SQLITE_OK) {
		sqlite3_busy_timeout(db, 1000 * METRICS_BUSY_SECONDS);
		sqlite3_bind_text(s, 1, path, -1, SQLITE_STATIC);
		code = sqlite3_step(s);
	}
	if (code != SQLITE_DONE)
		fail(err, "%s: %s", path, sqlite3_errmsg(db));
	sqlite3_finalize(s);
	return code == SQLITE_DONE ? OK : FAIL;
}

static void check_rows(struct verify *v, const char *run_dir, const struct run_record *r)
{
	struct database *fresh;
	enum status status;
	struct error err;

	if (!v->database)
		return;
	status = database_open_memory(&fresh, v->c->db_path, &err);
	if (status == OK)
		status = attach(fresh, v->c->db_path, &err);
	if (status == OK)
		status = compare_with(v, fresh, run_dir, r, &err);
	if (status)
		report_wrong(v, err.text);
	database_close(fresh);
}

/* --------------------------------------------------------------- one run */

/* RUNS/EXPERIMENT/STEP-SEED-IDENTITY */
static void check_name(struct verify *v, const char *run_dir, const struct run_record *r)
{
	char real[PATH_MAX], expected[PATH_MAX];
	const char *name;

	if (!realpath(run_dir, real))
		return;
	name = strrchr(real, '/') + 1; /* dirname() ends the path before it */
	snprintf(expected, sizeof(expected), "%s-%" PRId64 "-%.*s", r->step, r->seed,
		 IDENTITY_DIGITS, r->identity);
	if (strcmp(name, expected) != 0 || strcmp(basename(dirname(real)), r->experiment) != 0)
		wrong(v, "%s: its " RUN_RECORD_FILE " is of %s/%s", run_dir, r->experiment,
		      expected);
}

/* When the database last heard of the run; NAN: never. */
static double heartbeat_of(const struct verify *v, const struct run_record *r)
{
	sqlite3_stmt *s = NULL;
	double heartbeat = NAN;

	if (v->database &&
	    sqlite3_prepare_v2(database_handle(v->database),
			       "SELECT heartbeat FROM runs JOIN experiments ON experiments.id ="
			       " experiment WHERE name = ? AND step = ? AND identity = ?",
			       -1, &s, NULL) == SQLITE_OK) {
		sqlite3_bind_text(s, 1, r->experiment, -1, SQLITE_STATIC);
		sqlite3_bind_text(s, 2, r->step, -1, SQLITE_STATIC);
		sqlite3_bind_text(s, 3, r->identity, -1, SQLITE_STATIC);
		if (sqlite3_step(s) == SQLITE_ROW && sqlite3_column_type(s, 0) == SQLITE_FLOAT)
			heartbeat = sqlite3_column_double(s, 0);
	}
	sqlite3_finalize(s);
	return heartbeat;
}

/* Moves the list of what is wrong to VERIFIED_FILE. */
static void keep(struct verify *v, const struct run_record *r, bool is_bound)
{
	cJSON *entry = cJSON_CreateObject();
	char key[3 * PATH_MAX];

	snprintf(key, sizeof(key), "%s/%s/%s", r->experiment, r->step, r->identity);
	if (!cJSON_AddNumberToObject(entry, "heartbeat", heartbeat_of(v, r)) ||
	    !cJSON_AddBoolToObject(entry, "bound", is_bound) ||
	    !cJSON_AddItemToObject(entry, "wrong", v->wrong)) {
		cJSON_Delete(v->wrong);
		v->no_memory = true;
	}
	v->wrong = NULL;
	if (!cJSON_AddItemToObject(v->runs, key, entry)) {
		cJSON_Delete(entry);
		v->no_memory = true;
	}
}

static void check_run(struct verify *v, const char *run_dir, const struct run_record *r)
{
	struct journal_facts facts = { 0 };
	const int before = v->c->problems;
	bool is_bound = true;
	struct error err;

	v->wrong = cJSON_CreateArray();
	check_name(v, run_dir, r);
	if (check_journal(v, run_dir, r, &facts, &is_bound))
		check_rows(v, run_dir, r);
	check_declared(v, run_dir, &facts);
	check_weights(v, run_dir, WEIGHTS_FILE, r->identity, &facts);
	check_weights(v, run_dir, BEST_FILE, r->identity, NULL);
	if (checkpoint_check_all(run_dir, r->identity, report_wrong, v, &err))
		report_wrong(v, err.text);
	if (!is_bound)
		note(v, &v->unbound, run_dir, "unbound: its " JOURNAL_FILE " names no run");
	*(v->c->problems > before ? &v->damaged : &v->sound) += 1;
	keep(v, r, is_bound);
}

static enum status verify_run(struct collect *c, struct database *d, const char *run_dir,
			      struct error *err)
{
	struct verify *v = c->verify;
	struct record_file file;
	int lock;

	(void)d;
	if (record_read(&file, run_dir, err)) {
		report_wrong(v, err->text);
		v->damaged++;
		return OK;
	}
	if (collect_lock(c, run_dir, LOCK_SH, &lock, err)) {
		record_free(&file);
		return FAIL;
	}
	if (c->is_busy)
		note(v, &v->at_work, run_dir, "a process is working on it: not verified");
	else
		check_run(v, run_dir, &file.record);
	close(lock);
	record_free(&file);
	return OK;
}

/* --------------------------------------------------------------- declarations and reports */

static cJSON *read_json(struct verify *v, const char *path)
{
	char *text = read_text(path);
	cJSON *json = text ? cJSON_ParseWithOpts(text, NULL, true) : NULL;

	free(text);
	if (!json)
		wrong(v, "%s: not JSON", path);
	return json;
}

/* As tools/plan/declaration.py writes them: in the order of their times. */
static bool is_declaration_list(const cJSON *list)
{
	const cJSON *item;
	double last = 0;

	if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0)
		return false;
	cJSON_ArrayForEach (item, list) {
		const cJSON *declared = member(item, "declared");
		const double time = cJSON_GetNumberValue(member(item, "time"));

		if (!(time >= last) || !(cJSON_IsObject(declared) || cJSON_IsNull(declared)) ||
		    (cJSON_IsObject(declared) && !cJSON_IsArray(member(declared, "primary"))))
			return false;
		last = time;
	}
	return true;
}

static enum status verify_declaration(struct collect *c, struct database *d, const char *path,
				      struct error *err)
{
	struct verify *v = c->verify;
	cJSON *json = read_json(v, path);

	(void)d, (void)err;
	if (json && !is_declaration_list(member(json, "declarations")))
		wrong(v, "%s: no list of declarations in the order of their times", path);
	cJSON_Delete(json);
	return OK;
}

static void check_report_file(struct verify *v, const char *directory, const cJSON *stated)
{
	char path[PATH_MAX], hex[SHA256_HEX_SIZE];
	struct error err;

	if (!cJSON_IsString(stated) || strchr(stated->string, '/'))
		return;
	snprintf(path, sizeof(path), "%s/%s", directory, stated->string);
	if (sha256_file(path, hex, &err))
		report_wrong(v, err.text);
	else if (strcmp(hex, stated->valuestring) != 0)
		wrong(v, "%s: it is not what 'make report' wrote", path);
}

/* tools/report/memo.py keeps the hashes of the files that make a report. */
static enum status verify_report(struct collect *c, struct database *d, const char *path,
				 struct error *err)
{
	struct verify *v = c->verify;
	cJSON *json = read_json(v, path);
	const cJSON *files = member(json, "files"), *item;
	char copy[PATH_MAX];
	const char *directory;

	(void)d, (void)err;
	snprintf(copy, sizeof(copy), "%s", path);
	directory = dirname(copy);
	if (!cJSON_IsObject(files)) {
		files = NULL; /* the elements of a list have no names */
		if (json)
			note(v, &v->unchecked, directory,
			     "an earlier program wrote this report, without hashes");
	}
	cJSON_ArrayForEach (item, files)
		check_report_file(v, directory, item);
	cJSON_Delete(json);
	return OK;
}

/* --------------------------------------------------------------- everything */

static void check_database(struct verify *v)
{
	const char *path = v->c->db_path;
	struct error err;

	if (access(path, F_OK) != 0)
		wrong(v, "%s: there is no database: 'results rebuild' makes it", path);
	else if (database_is_damaged(path, &err))
		wrong(v, "%s: it is damaged (%s): 'results rebuild' recreates it", path, err.text);
	else if (database_open(&v->database, path, METRICS_BUSY_SECONDS, &err))
		report_wrong(v, err.text);
}

static bool has(const char *directory, const char *name)
{
	char path[2 * PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return access(path, F_OK) == 0;
}

/* Rows stay when a directory is removed: nothing is left to compare them with. */
static void check_row_alone(struct verify *v, const char *root, const char *name)
{
	char directory[2 * PATH_MAX - 64];

	snprintf(directory, sizeof(directory), "%s%s%s", name[0] == '/' ? "" : root,
		 name[0] == '/' ? "" : "/", name);
	if (has(directory, RUN_RECORD_FILE))
		return;
	if (has(directory, JOURNAL_FILE))
		wrong(v, "%s: its " RUN_RECORD_FILE " is missing", directory);
	else
		note(v, &v->without_directory, directory,
		     "the database has its rows, but its directory is gone: not verified");
}

static void check_rows_alone(struct verify *v)
{
	sqlite3_stmt *s = NULL;
	char copy[PATH_MAX];
	const char *root;
	int code;

	snprintf(copy, sizeof(copy), "%s", v->c->db_path);
	root = dirname(copy);
	code = sqlite3_prepare_v2(database_handle(v->database),
				  "SELECT directory FROM runs ORDER BY directory", -1, &s, NULL);
	while (code == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
		check_row_alone(v, root, (const char *)sqlite3_column_text(s, 0));
	sqlite3_finalize(s);
}

/* Reports read it; if it cannot be written, they call these runs unverified. */
static void write_verified(struct verify *v)
{
	cJSON *whole = cJSON_CreateObject();
	char path[PATH_MAX + sizeof(VERIFIED_FILE)], root[PATH_MAX], *text = NULL;
	struct replace file;
	struct error err;

	snprintf(root, sizeof(root), "%s", v->c->db_path);
	snprintf(path, sizeof(path), "%s/" VERIFIED_FILE, dirname(root));
	if (!v->no_memory && cJSON_AddItemReferenceToObject(whole, "runs", v->runs))
		text = cJSON_Print(whole);
	cJSON_Delete(whole);
	if (!text) {
		fail_memory(&err, path, 0);
	} else if (replace_begin(&file, path, &err) == OK) {
		fprintf(file.stream, "%s\n", text);
		if (replace_commit(&file, &err) == OK)
			err.text[0] = '\0';
	}
	cJSON_free(text);
	if (err.text[0])
		fprintf(v->c->out, "note: reports will not know of this: %s\n", err.text);
}

static void print_counts(const struct verify *v)
{
	const struct {
		int count;
		const char *what;
	} more[] = {
		{ v->unbound, "with an unbound journal" },
		{ v->without_weights, "without their weights here" },
		{ v->unchecked, "files without a hash" },
		{ v->at_work, "at work, not verified" },
		{ v->without_directory, "without a directory, not verified" },
	};

	fprintf(v->c->out, "%d run%s: %d sound, %d damaged", v->sound + v->damaged + v->at_work,
		v->sound + v->damaged + v->at_work == 1 ? "" : "s", v->sound, v->damaged);
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		if (more[i].count)
			fprintf(v->c->out, ", %d %s", more[i].count, more[i].what);
	fprintf(v->c->out, "; %d wrong\n", v->c->problems);
}

enum status verify_runs(struct collect *c, struct error *err)
{
	const struct visitors verifying = { .run = verify_run,
					    .declaration = verify_declaration,
					    .report = verify_report };
	struct verify v = { .c = c, .runs = cJSON_CreateObject() };
	enum status status = OK;

	c->verify = &v;
	if (!v.runs)
		status = fail_memory(err, VERIFIED_FILE, 0);
	if (status == OK)
		status = lease_wait(c->db_path, PATIENCE_SECONDS, err);
	if (status == OK) {
		check_database(&v);
		status = collect_visit(c, NULL, c->runs, &verifying, err);
	}
	if (status == OK && v.database)
		check_rows_alone(&v);
	if (status == OK) {
		write_verified(&v);
		print_counts(&v);
	}
	cJSON_Delete(v.runs);
	database_close(v.database);
	c->verify = NULL;
	return status;
}
