/*
 * journal - what a run directory says about its run: run.json and journal.jsonl.
 *
 * run.json is the run's record, written once.  journal.jsonl has a line for
 * everything that happened, in that order:
 *
 *     {"kind":"start","time":1760000000.5,"iteration":0,"host":"a","pid":7,"process":"..",
 *      "run":"<identity>"}
 *     {"kind":"audit","time":..,"name":"causality","subject":"h.0","passed":1,"detail":".."}
 *     {"kind":"value","time":..,"iteration":10,"name":"train/loss","value":3.25}
 *     {"kind":"event","time":..,"iteration":10,"name":"warning","text":".."}
 *     {"kind":"artifact","time":..,"name":"weights","path":"..","sha256":"..","bytes":9}
 *     {"kind":"end","time":..,"state":"done","reason":".."}
 *
 * Each line also has its number in the file and a sum (core/record/line_sum.h):
 *
 *     {.. ,"line":17,"sum":"0123456789abcdef"}
 *
 * The first line is a start.  It names the run, and every later sum depends on it: a
 * journal in the directory of another run is refused.  Older programs wrote starts
 * without a run, which leave the journal unbound, and lines without number and sum;
 * such lines may stand at the start of a journal.  The texts "nan", "inf" and "-inf" stand for the
 * numbers that JSON lacks.  Unreadable lines that a crash left at the end do not count.
 */
#ifndef CORE_RECORD_JOURNAL_H
#define CORE_RECORD_JOURNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/record/line_sum.h"
#include "core/record/metrics.h"
#include "core/util/status.h"

#define RUN_RECORD_FILE "run.json"
#define JOURNAL_FILE "journal.jsonl"
#define DECLARATION_FILE "declaration.json" /* of an experiment: tools/plan/declaration.py */

/* ---------------------------------------------------------------- the record */

/* The name of each member of struct run_record in run.json and in the database. */
enum record_type { RECORD_TEXT, RECORD_INT, RECORD_BOOL };

struct record_field {
	const char *name;
	enum record_type type;
	size_t offset;
	bool required;
};

extern const struct record_field record_fields[];
extern const int n_record_fields;

const char *record_text(const struct run_record *r, const struct record_field *f);
int64_t record_number(const struct run_record *r, const struct record_field *f);

/* A record that was read; its texts live until record_free(). */
struct record_file {
	struct run_record record;
	struct cJSON *json;
	struct run_symbol *symbols;
};

enum status record_read(struct record_file *file, const char *run_dir,
			struct error *err) MUST_CHECK;
enum status record_parse(struct record_file *file, const char *text, struct error *err) MUST_CHECK;
void record_free(struct record_file *file);
enum status record_write(const struct run_record *r, const char *run_dir,
			 struct error *err) MUST_CHECK;

/* The text of a run.json, which the caller frees; NULL: out of memory. */
char *record_json(const struct run_record *r);

/*
 * Do two records of one run come from environments that may compute other bits?  `how` gets the
 * first difference.  Threads and precision are part of the identity, so they do not differ.
 */
bool record_environment_differs(const struct run_record *then, const struct run_record *now,
				struct error *how);

/* ---------------------------------------------------------------- lines */

enum entry_kind {
	ENTRY_START,
	ENTRY_VALUE,
	ENTRY_EVENT,
	ENTRY_AUDIT,
	ENTRY_ARTIFACT,
	ENTRY_END,
	ENTRY_KINDS
};

/* One line.  A table in journal.c maps the members to the keys of each kind. */
struct entry {
	enum entry_kind kind;
	int64_t line;	   /* its number in the file, from 1 */
	double time;	   /* seconds since 1970 */
	int64_t iteration; /* of a start: the iteration after which the run goes on */
	int64_t number;	   /* pid, passed, bytes */
	double value;
	const char *name, *subject, *text; /* subject and text may be NULL */
	const char *run;		   /* of a start: the identity; NULL: unbound */
};

typedef enum status (*entry_visitor)(void *context, const struct entry *e, struct error *err);

/* Visits every line of a text of whole lines; `first_line` is the number of the first. */
enum status journal_visit(const char *text, size_t size, int64_t first_line, entry_visitor visit,
			  void *context, struct error *err) MUST_CHECK;

/*
 * The sound lines of the journal of the run with this identity; no file, no lines.  FAIL if it is
 * the journal of another run.  The caller frees the text.
 */
enum status journal_read(const char *run_dir, const char *identity, char **text, size_t *size,
			 struct error *err) MUST_CHECK;

/* Do these lines name their run? */
bool journal_is_bound(const char *text, size_t size);

/*
 * Does the run's journal still hold everything that it held at the mark?  FAIL: no, and err says
 * what is lost.  Old checkpoints have a mark of no lines, which every journal holds.
 */
enum status journal_holds(const char *run_dir, const struct journal_mark *mark,
			  struct error *err) MUST_CHECK;

/* Does a process have the journal open for writing? */
bool journal_is_open(const char *run_dir);

/* ---------------------------------------------------------------- writing */

struct journal {
	int fd;
	char *path;
	off_t size;	     /* committed bytes */
	int64_t lines;	     /* committed */
	struct line_sum sum; /* of the last line, pending or not */

	char *pending; /* lines not yet committed */
	size_t pending_size, pending_room;
	int64_t pending_lines;
	bool out_of_memory;
};

/*
 * Takes the journal of this run for this process alone, and cuts it before the first line about
 * an iteration after resume_iteration: the checkpoint does not hold these.  -1 empties
 * the journal.  It is also cut at a damaged line if sums vouch for all lines before;
 * journal_holds() tells whether these are enough for the checkpoint.
 */
enum status journal_open(struct journal *j, const char *run_dir, const char *identity,
			 int64_t resume_iteration, struct error *err) MUST_CHECK;
void journal_close(struct journal *j);

/* Adds a pending line with the current time. */
void journal_add(struct journal *j, struct entry e);

/* Brings the pending lines to the disk.  On failure they stay pending, and the file is as before.
 */
enum status journal_commit(struct journal *j, struct error *err) MUST_CHECK;

/* How far the journal has come.  Nothing may be pending. */
struct journal_mark journal_mark(const struct journal *j);

/* After a commit, when the pending lines are no longer needed. */
void journal_forget_pending(struct journal *j);

#endif
