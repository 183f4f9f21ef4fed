/*
 * lease - one machine at a time writes the database.
 *
 * SQLite's locks keep the processes of one machine apart.  On a network file system they may not
 * hold between machines.  So a file beside the database, results.db-writer, names the machine that
 * may write, by the identity of its boot, and until when:
 *
 *     BOOT SECONDS-SINCE-1970 HOST
 *
 * Every transaction takes the lease or renews it.  A machine that has not written for
 * LEASE_SECONDS has lost it.  The clocks of the machines must agree better than that: a lease of
 * more than twice as long is void, because only a wrong clock can have written it.
 */
#ifndef CORE_RECORD_LEASE_H
#define CORE_RECORD_LEASE_H

#include "core/util/status.h"

#define LEASE_SECONDS 60

/* Does another machine have it?  FAIL: it does, and err says which. */
enum status lease_check(const char *db_path, struct error *err) MUST_CHECK;

/* The same, after so many seconds at most: a lease ends if its machine writes no more. */
enum status lease_wait(const char *db_path, double seconds, struct error *err) MUST_CHECK;

/* Take it or renew it; one process of this machine at a time, that is, in a transaction. */
enum status lease_take(const char *db_path, struct error *err) MUST_CHECK;

#endif
