/*
 * database - all runs in one SQLite file, made from their directories.
 *
 * docs/database.md describes the tables.  Every row comes from a run.json or
 * from a journal line, and putting the same line in twice leaves one row: so
 * writers, rebuilds and merges may meet in any order.
 *
 * The file stays in SQLite's rollback-journal mode.  Its transactions are few
 * and short (one per logging interval and run; 15 ms on a busy virtual disk,
 * WAL: 5 ms), so that readers beside a writer would gain little from WAL, which
 * would cost network file systems, reading where the directory is not writable,
 * and copying the database as one file.
 */
#ifndef CORE_RECORD_DATABASE_H
#define CORE_RECORD_DATABASE_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

#define DATABASE_VERSION 2

struct sqlite3;
struct database;

/* Opens, or creates; an older schema is brought up to date, a newer one is refused. */
enum status database_open(struct database **d, const char *path, double busy_seconds,
			  struct error *err) MUST_CHECK;
void database_close(struct database *d);

/*
 * In one transaction: make the rows of the run in this directory what its
 * record and journal say.  Fails without a change if another directory already
 * stands for the same run.
 */
enum status database_import(struct database *d, const char *run_dir, int64_t *run,
			    struct error *err) MUST_CHECK;

/* In one transaction: add journal lines, of which the first has this number. */
enum status database_append(struct database *d, int64_t run, const char *lines, size_t size,
			    int64_t first_line, struct error *err) MUST_CHECK;

/* Did the last call fail because another process held the database too long? */
bool database_was_busy(const struct database *d);

/* Is there a file that is no sound SQLite database?  (One that is locked may be sound.) */
bool database_is_damaged(const char *path, struct error *why);

/* For queries. */
struct sqlite3 *database_handle(struct database *d);

#endif
