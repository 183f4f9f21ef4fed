#define _GNU_SOURCE /* asprintf */
#include "tools/results/collect.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <sqlite3.h>

#include "core/record/database.h"
#include "core/record/journal.h"
#include "core/record/lease.h"
#include "core/record/metrics.h"
#include "core/util/file.h"
#include "core/util/name.h"

#define DECODE_DIRECTORY "decode" /* of an experiment: what `make bench-decode` measured */

/* --------------------------------------------------------------- every run of a directory */

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static bool holds_run(const char *directory)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/" RUN_RECORD_FILE, directory);
	return access(path, F_OK) == 0;
}

/* RUNS/EXPERIMENT/decode/STEP.json */
static bool is_measurement(const FTSENT *entry)
{
	const char *ending = strrchr(entry->fts_name, '.');

	return entry->fts_info == FTS_F && entry->fts_level >= 2 && ending &&
	       !strcmp(ending, ".json") && !strcmp(entry->fts_parent->fts_name, DECODE_DIRECTORY);
}

/* RUNS/EXPERIMENT/declaration.json (tools/plan/declaration.py) */
static bool is_declaration(const FTSENT *entry)
{
	return entry->fts_info == FTS_F && entry->fts_level >= 1 &&
	       !strcmp(entry->fts_name, DECLARATION_FILE);
}

/* RUNS/EXPERIMENT/report/said.json (tools/report/memo.py) */
static bool is_report(const FTSENT *entry)
{
	return entry->fts_info == FTS_F && entry->fts_level >= 2 &&
	       !strcmp(entry->fts_name, "said.json") &&
	       !strcmp(entry->fts_parent->fts_name, "report");
}

/* Reports and counts a problem; the other runs are still visited. */
static void visit_one(struct collect *c, struct database *d, const char *path, visitor visit)
{
	struct error err;

	if (visit(c, d, path, &err) == OK)
		return;
	fprintf(c->out, "problem: %s\n", err.text);
	c->problems++;
}

enum status collect_visit(struct collect *c, struct database *d, const char *directory,
			  const struct visitors *visit, struct error *err)
{
	char *roots[] = { (char *)directory, NULL };
	enum status status = OK;
	struct stat about;
	FTSENT *entry;
	FTS *tree;

	if (stat(directory, &about) || !S_ISDIR(about.st_mode))
		return fail(err, "%s: no such directory", directory);
	tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
	if (!tree)
		return fail_errno(err, "%s", directory);
	while ((entry = fts_read(tree)) && status == OK) {
		if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR) {
			errno = entry->fts_errno;
			status = fail_errno(err, "%s", entry->fts_path);
		} else if (entry->fts_info == FTS_D && holds_run(entry->fts_path)) {
			visit_one(c, d, entry->fts_path, visit->run);
			fts_set(tree, entry, FTS_SKIP);
		} else if (visit->measurement && is_measurement(entry)) {
			visit_one(c, d, entry->fts_path, visit->measurement);
		} else if (visit->declaration && is_declaration(entry)) {
			visit_one(c, d, entry->fts_path, visit->declaration);
		} else if (visit->report && is_report(entry)) {
			visit_one(c, d, entry->fts_path, visit->report);
		}
	}
	fts_close(tree);
	return status;
}

/* --------------------------------------------------------------- rebuild */

#define TAIL_BYTES 4096 /* most lines of a journal have some hundred */

struct last_line {
	double time; /* NAN: not known */
	bool is_end;
};

static struct last_line parse_last(const char *line)
{
	cJSON *json = cJSON_Parse(line);
	const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "kind"));
	const struct last_line last = {
		.time = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "time")),
		.is_end = kind && !strcmp(kind, "end"),
	};

	cJSON_Delete(json);
	return last;
}

/* The journal's last whole line, if its end shows that. */
static struct last_line last_line(const char *run_dir)
{
	char path[PATH_MAX], tail[TAIL_BYTES + 1], *line;
	ssize_t size = -1;
	struct stat about;
	int fd;

	snprintf(path, sizeof(path), "%s/" JOURNAL_FILE, run_dir);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 && fstat(fd, &about) == 0)
		size = pread(fd, tail, TAIL_BYTES,
			     about.st_size > TAIL_BYTES ? about.st_size - TAIL_BYTES : 0);
	if (fd >= 0)
		close(fd);
	while (size > 0 && tail[size - 1] != '\n') /* half a line */
		size--;
	if (size <= 0)
		return (struct last_line){ .time = NAN };
	tail[size - 1] = '\0';
	line = strrchr(tail, '\n');
	return parse_last(line ? line + 1 : tail);
}

bool run_is_done(const char *run_dir)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/done", run_dir);
	return access(path, F_OK) == 0;
}

/* If whole lines are lost, the missing end of a run that is done may be the only trace. */
static enum status check_end(const char *run_dir, struct error *err)
{
	if (!run_is_done(run_dir) || last_line(run_dir).is_end)
		return OK;
	return fail(err,
		    "%s is done, but the end of its " JOURNAL_FILE " is lost: 'results merge COPY' "
		    "brings a whole journal back, 'make rerun RUN=%s' trains the run again",
		    run_dir, run_dir);
}

#define BATCH_SECONDS 1 /* for which other writers wait: a tenth of their patience */

static double clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Thousands of runs need few transactions. */
static enum status next_batch(struct collect *c, struct database *d, struct error *err)
{
	const double now = clock_seconds();

	if (c->batch_began > 0 && now < c->batch_began + BATCH_SECONDS)
		return OK;
	if (c->batch_began > 0 && database_end_batch(d, err))
		return FAIL;
	c->batch_began = 0;
	if (database_begin_batch(d, err))
		return FAIL;
	c->batch_began = now;
	return OK;
}

static enum status end_batch(struct collect *c, struct database *d, struct error *err)
{
	const bool is_open = c->batch_began > 0;

	c->batch_began = 0;
	return is_open ? database_end_batch(d, err) : OK;
}

enum status collect_lock(struct collect *c, const char *run_dir, int how, int *lock,
			 struct error *err)
{
	*lock = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*lock < 0)
		return fail_errno(err, "%s", run_dir);
	c->is_busy = flock(*lock, how | LOCK_NB) && errno == EWOULDBLOCK;
	return OK;
}

static enum status import_run(struct collect *c, struct database *d, const char *run_dir,
			      struct error *err)
{
	enum status status;
	int64_t run;
	int lock;

	if (next_batch(c, d, err) || collect_lock(c, run_dir, LOCK_SH, &lock, err))
		return FAIL;
	status = database_import(d, run_dir, c->is_busy, &run, err);
	close(lock);
	if (status)
		return FAIL;
	c->updated++;
	return check_end(run_dir, err);
}

static enum status rename_if_there(const char *path, const char *suffix, struct error *err)
{
	enum status status = OK;
	char *aside;

	if (asprintf(&aside, "%s%s", path, suffix) < 0)
		return fail_memory(err, path, 0);
	if (rename(path, aside) && errno != ENOENT)
		status = fail_errno(err, "%s", aside);
	free(aside);
	return status;
}

/* Its rollback journal goes first: otherwise SQLite would apply it to the new database. */
static enum status put_aside(const char *path, struct error *err)
{
	char rollback[PATH_MAX], suffix[64];

	snprintf(suffix, sizeof(suffix), ".damaged-%lld", (long long)time(NULL));
	snprintf(rollback, sizeof(rollback), "%s-journal", path);
	if (rename_if_there(rollback, suffix, err) || rename_if_there(path, suffix, err))
		return FAIL;
	return OK;
}

enum status collect_rebuild(struct collect *c, struct error *err)
{
	struct database *d;
	struct error why;
	enum status status;

	if (lease_wait(c->db_path, PATIENCE_SECONDS, err))
		return FAIL;
	if (database_is_damaged(c->db_path, &why)) {
		fprintf(c->out, "%s is damaged (%s): put aside\n", c->db_path, why.text);
		if (put_aside(c->db_path, err))
			return FAIL;
	}
	if (database_open(&d, c->db_path, METRICS_BUSY_SECONDS, err))
		return FAIL;
	status = collect_visit(c, d, c->runs, &(struct visitors){ .run = import_run }, err);
	if (status == OK)
		status = end_batch(c, d, err);
	database_close(d);
	return status;
}

/* --------------------------------------------------------------- update */

/* A run's directory below RUNS, and the time of the last line that the database has of it. */
struct known_run {
	char *directory;
	double heartbeat;
};

struct known {
	struct known_run *list;
	size_t n, room;
};

static int by_directory(const void *a, const void *b)
{
	return strcmp(((const struct known_run *)a)->directory,
		      ((const struct known_run *)b)->directory);
}

static void forget_known(struct known *k)
{
	for (size_t i = 0; i < k->n; i++)
		free(k->list[i].directory);
	free(k->list);
}

static enum status add_known(struct known *k, const char *directory, double heartbeat,
			     struct error *err)
{
	if (k->n == k->room) {
		const size_t room = k->room ? 2 * k->room : 64;
		struct known_run *grown = realloc(k->list, room * sizeof(*grown));

		if (!grown)
			return fail_memory(err, "runs", room * sizeof(*grown));
		k->list = grown;
		k->room = room;
	}
	k->list[k->n].directory = strdup(directory);
	k->list[k->n].heartbeat = heartbeat;
	return k->list[k->n].directory ? (k->n++, OK) : fail_memory(err, directory, 0);
}

static enum status read_known(struct known *k, struct database *d, struct error *err)
{
	enum status status = OK;
	sqlite3_stmt *row = NULL;
	int code;

	code = sqlite3_prepare_v2(database_handle(d),
				  "SELECT directory, heartbeat FROM runs"
				  " WHERE heartbeat IS NOT NULL ORDER BY directory",
				  -1, &row, NULL);
	while (code == SQLITE_OK && status == OK && (code = sqlite3_step(row)) == SQLITE_ROW) {
		status = add_known(k, (const char *)sqlite3_column_text(row, 0),
				   sqlite3_column_double(row, 1), err);
		code = SQLITE_OK;
	}
	if (status == OK && code != SQLITE_DONE)
		status = database_fail(d, err);
	sqlite3_finalize(row);
	return status;
}

/* Does the database have the journal's last line? */
static bool is_known(const struct collect *c, const char *run_dir)
{
	const size_t above = strlen(c->runs);
	struct known_run key = { .directory = (char *)run_dir };
	const struct known_run *found;

	if (strncmp(run_dir, c->runs, above) == 0)
		key.directory += above + strspn(run_dir + above, "/");
	found = bsearch(&key, c->known->list, c->known->n, sizeof(key), by_directory);
	return found && found->heartbeat == last_line(run_dir).time;
}

static enum status import_unknown(struct collect *c, struct database *d, const char *run_dir,
				  struct error *err)
{
	if (!is_known(c, run_dir))
		return import_run(c, d, run_dir, err);
	if (check_end(run_dir, err))
		return FAIL;
	c->unchanged++;
	return OK;
}

/* As collect_visit(), with our database, for visitors that call is_known(). */
static enum status visit_knowing(struct collect *c, const char *directory,
				 const struct visitors *visit, struct error *err)
{
	struct known known = { 0 };
	enum status status;
	struct database *d;

	if (lease_wait(c->db_path, PATIENCE_SECONDS, err) ||
	    database_open(&d, c->db_path, METRICS_BUSY_SECONDS, err))
		return FAIL;
	status = read_known(&known, d, err);
	c->known = &known;
	if (status == OK)
		status = collect_visit(c, d, directory, visit, err);
	if (status == OK)
		status = end_batch(c, d, err);
	c->known = NULL;
	forget_known(&known);
	database_close(d);
	return status;
}

enum status collect_update(struct collect *c, struct error *err)
{
	return visit_knowing(c, c->runs, &(struct visitors){ .run = import_unknown }, err);
}

/* --------------------------------------------------------------- merge */

struct text {
	char *bytes;
	size_t size;
};

static bool begins_with(const struct text *a, const struct text *b)
{
	return a->size >= b->size && !memcmp(a->bytes, b->bytes, b->size);
}

static long long first_different_line(const struct text *a, const struct text *b)
{
	long long line = 1;

	for (size_t i = 0; i < a->size && i < b->size && a->bytes[i] == b->bytes[i]; i++)
		line += a->bytes[i] == '\n';
	return line;
}

static enum status make_directory(const char *path, struct error *err)
{
	return mkdir(path, 0777) && errno != EEXIST ? fail_errno(err, "%s", path) : OK;
}

/* Makes RUNS/EXPERIMENT if it does not exist. */
static enum status our_experiment(const struct collect *c, const char *name, const char *theirs,
				  char path[PATH_MAX], struct error *err)
{
	if (name_check("experiment", name, err))
		return fail_prefix(err, "%s", theirs);
	snprintf(path, PATH_MAX, "%s/%s", c->runs, name);
	return make_directory(path, err);
}

/* Likewise RUNS/EXPERIMENT/NAME. */
static enum status our_directory(const struct collect *c, const struct run_record *r,
				 const char *theirs, char **ours, struct error *err)
{
	char experiment[PATH_MAX], copy[PATH_MAX];

	if (our_experiment(c, r->experiment, theirs, experiment, err))
		return FAIL;
	if (!realpath(theirs, copy)) /* the path may be "." */
		return fail_errno(err, "%s", theirs);
	if (step_check("directory", basename(copy), err))
		return fail_prefix(err, "%s", theirs);
	if (asprintf(ours, "%s/%s", experiment, basename(copy)) < 0)
		return fail_memory(err, theirs, 0);
	if (make_directory(*ours, err)) {
		free(*ours);
		return FAIL;
	}
	return OK;
}

bool entry_ends_well(const struct entry *e)
{
	return e->kind == ENTRY_END && (!strcmp(e->name, run_state_name(RUN_DONE)) ||
					!strcmp(e->name, run_state_name(RUN_BUDGET)));
}

static enum status note_end(void *context, const struct entry *e, struct error *err)
{
	bool *ended = context;

	(void)err;
	*ended = entry_ends_well(e);
	return OK;
}

/* make looks for this file: it does not train a run again that ended elsewhere. */
static enum status mark_done(const char *ours, const struct text *journal, struct error *err)
{
	char path[PATH_MAX];
	bool ended = false;

	snprintf(path, sizeof(path), "%s/done", ours);
	if (journal_visit(journal->bytes, journal->size, 1, note_end, &ended, err))
		return FAIL;
	return ended ? file_write(path, "", 0, err) : OK;
}

/* The record comes after the journal: a directory without a record is not a run yet. */
static enum status take_over(const struct collect *c, struct database *d, const char *ours,
			     const struct run_record *r, const struct text *journal,
			     struct error *err)
{
	char path[PATH_MAX];
	int64_t run;

	if (c->is_busy || journal_is_open(ours))
		return fail(err, "%s: a process is working on this run; merge again later", ours);
	snprintf(path, sizeof(path), "%s/" JOURNAL_FILE, ours);
	if (file_write(path, journal->bytes, journal->size, err) || record_write(r, ours, err) ||
	    mark_done(ours, journal, err))
		return FAIL;
	return database_import(d, ours, false, &run, err);
}

static enum status add_run(struct collect *c, struct database *d, const char *ours,
			   const struct run_record *r, const struct text *journal,
			   struct error *err)
{
	if (take_over(c, d, ours, r, journal, err))
		return FAIL;
	fprintf(c->out, "added %s\n", ours);
	c->added++;
	return OK;
}

static enum status same_run(const char *ours, const char *theirs, const struct run_record *r,
			    struct error *err)
{
	struct record_file file;
	enum status status = OK;

	if (record_read(&file, ours, err))
		return FAIL;
	if (strcmp(file.record.identity, r->identity) || strcmp(file.record.step, r->step))
		status = fail(err, "%s and %s are different runs with the same name", ours, theirs);
	record_free(&file);
	return status;
}

/* Where journals are equal: a merge that was killed may have written the files, but nothing into
 * the database. */
static bool is_complete(const struct collect *c, const char *ours)
{
	return c->is_busy || is_known(c, ours);
}

/* We have this run already: keeps the journal that continues the other. */
static enum status join_run(struct collect *c, struct database *d, const char *ours,
			    const char *theirs, const struct run_record *r,
			    const struct text *their_journal, struct error *err)
{
	struct text our_journal;
	enum status status = OK;

	if (same_run(ours, theirs, r, err) ||
	    journal_read(ours, r->identity, &our_journal.bytes, &our_journal.size, err))
		return FAIL;
	if (begins_with(&our_journal, their_journal) &&
	    (our_journal.size > their_journal->size || is_complete(c, ours))) {
		c->unchanged++;
	} else if (begins_with(their_journal, &our_journal)) {
		status = take_over(c, d, ours, r, their_journal, err);
		if (status == OK) {
			fprintf(c->out, "updated %s\n", ours);
			c->updated++;
		}
	} else {
		status = fail(err,
			      "%s and %s record the same run differently from line %lld of their"
			      " journals on; ours is kept: remove it to take theirs",
			      ours, theirs, first_different_line(&our_journal, their_journal));
	}
	free(our_journal.bytes);
	return status;
}

static enum status merge_run(struct collect *c, struct database *d, const char *theirs,
			     struct error *err)
{
	struct record_file file;
	struct text journal;
	enum status status = FAIL;
	char *ours;
	int lock;

	if (record_read(&file, theirs, err))
		return FAIL;
	if (journal_read(theirs, file.record.identity, &journal.bytes, &journal.size, err))
		goto free_record;
	if (our_directory(c, &file.record, theirs, &ours, err))
		goto free_journal;
	if (collect_lock(c, ours, LOCK_EX, &lock, err))
		goto free_ours;
	if (holds_run(ours))
		status = join_run(c, d, ours, theirs, &file.record, &journal, err);
	else
		status = add_run(c, d, ours, &file.record, &journal, err);
	close(lock);
free_ours:
	free(ours);
free_journal:
	free(journal.bytes);
free_record:
	record_free(&file);
	return status;
}

/* --------------------------------------------------------------- merge measurements */

/* A whole file without a zero byte; the caller frees it. */
static enum status read_text(const char *path, struct text *t, struct error *err)
{
	FILE *file = fopen(path, "r");
	size_t room = 0;
	ssize_t size;
	bool whole;

	if (!file)
		return fail_errno(err, "%s", path);
	*t = (struct text){ 0 };
	size = getdelim(&t->bytes, &room, '\0', file);
	whole = size >= 0 && feof(file);
	fclose(file);
	if (!whole) {
		free(t->bytes);
		return fail(err, "%s is empty or not a text", path);
	}
	t->size = (size_t)size;
	return OK;
}

static bool is_json_object(const struct text *t)
{
	cJSON *json = cJSON_ParseWithOpts(t->bytes, NULL, true);
	const bool is_object = cJSON_IsObject(json);

	cJSON_Delete(json);
	return is_object;
}

/* RUNS/EXPERIMENT/decode/STEP.json, with the names of theirs; makes its directory. */
static enum status our_measurement(const struct collect *c, const char *theirs, char ours[PATH_MAX],
				   struct error *err)
{
	char real[PATH_MAX], experiment[PATH_MAX], directory[PATH_MAX];
	const char *file;

	if (!realpath(theirs, real))
		return fail_errno(err, "%s", theirs);
	file = strrchr(real, '/') + 1; /* dirname() ends the path before it */
	if (step_check("file", file, err))
		return fail_prefix(err, "%s", theirs);
	if (our_experiment(c, basename(dirname(dirname(real))), theirs, experiment, err))
		return FAIL;
	snprintf(directory, sizeof(directory), "%s/" DECODE_DIRECTORY, experiment);
	snprintf(ours, PATH_MAX, "%s/%s", directory, file);
	return make_directory(directory, err);
}

static enum status add_file(struct collect *c, const char *ours, const struct text *t,
			    struct error *err)
{
	if (file_write(ours, t->bytes, t->size, err))
		return FAIL;
	fprintf(c->out, "added %s\n", ours);
	c->added++;
	return OK;
}

/* No measurement continues another: equal ones are kept, others are a problem. */
static enum status compare_measurement(struct collect *c, const char *ours, const char *theirs,
				       const struct text *their_text, struct error *err)
{
	struct text our_text;
	bool same;

	if (read_text(ours, &our_text, err))
		return FAIL;
	same = our_text.size == their_text->size && begins_with(&our_text, their_text);
	free(our_text.bytes);
	if (!same)
		return fail(err,
			    "%s and %s are different measurements; ours is kept: remove it to take "
			    "theirs",
			    ours, theirs);
	c->unchanged++;
	return OK;
}

static enum status merge_measurement(struct collect *c, struct database *d, const char *theirs,
				     struct error *err)
{
	enum status status;
	char ours[PATH_MAX];
	struct text t;

	(void)d; /* only reports read them */
	if (read_text(theirs, &t, err))
		return FAIL;
	if (!is_json_object(&t))
		status = fail(err, "%s: not a JSON object", theirs);
	else if (our_measurement(c, theirs, ours, err))
		status = FAIL;
	else if (access(ours, F_OK) == 0)
		status = compare_measurement(c, ours, theirs, &t, err);
	else
		status = add_file(c, ours, &t, err);
	free(t.bytes);
	return status;
}

/* --------------------------------------------------------------- merge declarations */

static const cJSON *entries_of(const cJSON *json)
{
	return cJSON_GetObjectItemCaseSensitive(json, "declarations");
}

/* Does the one list of declarations begin with the other? */
static bool list_begins_with(const cJSON *list, const cJSON *other)
{
	const int n = cJSON_GetArraySize(other);
	bool same = n <= cJSON_GetArraySize(list);

	for (int i = 0; same && i < n; i++)
		same = cJSON_Compare(cJSON_GetArrayItem(list, i), cJSON_GetArrayItem(other, i),
				     true);
	return same;
}

/* Theirs, or ours, or one that goes on where the other stops; else nobody knows what was declared.
 */
static enum status join_declaration(struct collect *c, const char *ours, const char *theirs,
				    const struct text *their_text, const cJSON *their_list,
				    struct error *err)
{
	struct text our_text;
	enum status status = OK;
	const cJSON *our_list;
	cJSON *our_json;

	if (read_text(ours, &our_text, err))
		return FAIL;
	our_json = cJSON_ParseWithOpts(our_text.bytes, NULL, true);
	our_list = entries_of(our_json);
	if (cJSON_IsArray(our_list) && list_begins_with(our_list, their_list)) {
		c->unchanged++;
	} else if (cJSON_IsArray(our_list) && list_begins_with(their_list, our_list)) {
		status = file_write(ours, their_text->bytes, their_text->size, err);
		c->updated += status == OK;
	} else {
		status = fail(err,
			      "%s and %s declare different things; ours is kept: remove it to "
			      "take theirs",
			      ours, theirs);
	}
	cJSON_Delete(our_json);
	free(our_text.bytes);
	return status;
}

static enum status merge_declaration(struct collect *c, struct database *d, const char *theirs,
				     struct error *err)
{
	char real[PATH_MAX], experiment[PATH_MAX], ours[PATH_MAX + sizeof(DECLARATION_FILE)];
	enum status status;
	struct text t;
	cJSON *json;

	(void)d; /* only reports read it */
	if (!realpath(theirs, real))
		return fail_errno(err, "%s", theirs);
	if (read_text(theirs, &t, err))
		return FAIL;
	json = cJSON_ParseWithOpts(t.bytes, NULL, true);
	if (!cJSON_IsArray(entries_of(json))) {
		status = fail(err, "%s: no list of declarations", theirs);
	} else if (our_experiment(c, basename(dirname(real)), theirs, experiment, err)) {
		status = FAIL;
	} else {
		snprintf(ours, sizeof(ours), "%s/" DECLARATION_FILE, experiment);
		if (access(ours, F_OK) == 0)
			status = join_declaration(c, ours, theirs, &t, entries_of(json), err);
		else
			status = add_file(c, ours, &t, err);
	}
	cJSON_Delete(json);
	free(t.bytes);
	return status;
}

enum status collect_merge(struct collect *c, const char *other, struct error *err)
{
	const struct visitors merging = { .run = merge_run,
					  .measurement = merge_measurement,
					  .declaration = merge_declaration };

	if (make_directory(c->runs, err))
		return FAIL;
	return visit_knowing(c, other, &merging, err);
}
