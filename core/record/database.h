/*
 * database - all runs in one SQLite file, made from their directories.
 *
 * docs/database.md describes the tables.  Every row comes from a run.json or
 * from a journal line, and inserting the same line twice leaves one row: so
 * writers, rebuilds and merges may come in any order.
 *
 * The file stays in SQLite's rollback-journal mode.  Its transactions are few
 * and short (one per logging interval and run; 15 ms on a busy virtual disk, with
 * WAL 5 ms), so WAL would help readers little.  And with WAL the database could
 * not lie on a network file system, be read in a read-only directory, or be copied
 * as one file.
 */
#ifndef CORE_RECORD_DATABASE_H
#define CORE_RECORD_DATABASE_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

#define DATABASE_VERSION 2
#define DATABASE_ADVICE "; 'results rebuild' recreates it" /* after what is damaged */

struct sqlite3;
struct database;

/* Can a database be there at all?  FAIL: never, whatever changes later. */
enum status database_check_path(const char *path, struct error *err) MUST_CHECK;

/* Opens or creates a database.  Brings an older schema up to date; refuses a newer one. */
enum status database_open(struct database **d, const char *path, double busy_seconds,
			  struct error *err) MUST_CHECK;
void database_close(struct database *d);

/* An empty database in memory, which calls directories as the database at `path` does. */
enum status database_open_memory(struct database **d, const char *path,
				 struct error *err) MUST_CHECK;

/*
 * Replaces the rows of the run in this directory by what its record and journal
 * say, in one transaction.  Fails without a change if the database has the same
 * run in another directory, and if a journal that lost lines would leave fewer rows.
 * A journal may be shorter if the run went back to a checkpoint: then it has a later
 * start, or `is_at_work`: the process of the run may be about to write that start.
 */
enum status database_import(struct database *d, const char *run_dir, bool is_at_work, int64_t *run,
			    struct error *err) MUST_CHECK;

/* Adds journal lines in one transaction; `first_line` is the number of the first. */
enum status database_append(struct database *d, int64_t run, const char *lines, size_t size,
			    int64_t first_line, struct error *err) MUST_CHECK;

/*
 * Between these two, imports share one transaction, which saves the disk a sync for each of them;
 * one that fails changes nothing.  Other writers wait meanwhile.
 */
enum status database_begin_batch(struct database *d, struct error *err) MUST_CHECK;
enum status database_end_batch(struct database *d, struct error *err) MUST_CHECK;

/* Did the last call fail because another process held the database too long? */
bool database_was_busy(const struct database *d);

/* What SQLite said last, with the file's name and, where that helps, advice.  Always FAIL. */
enum status database_fail(struct database *d, struct error *err);

/* Is the file there but not a sound SQLite database with our tables?  A locked one counts as sound.
 */
bool database_is_damaged(const char *path, struct error *why);

/* For queries. */
struct sqlite3 *database_handle(struct database *d);

#endif
