#include "core/record/lease.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/util/file.h"
#include "core/util/process.h"
#include "core/util/replace.h"

#define PAUSE_MICROSECONDS 500000 /* between two looks at the lease of another machine */
#define MOST_SECONDS                                                                \
	(2 * LEASE_SECONDS) /* of a holder whose clock is ahead as far as it may be \
			     */
#define BOOT_SIZE 64

struct lease {
	char boot[BOOT_SIZE]; /* empty: no owner */
	long long until;
	char host[256];
};

static void name_file(const char *db_path, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s-writer", db_path);
}

/* One that cannot be read has no owner. */
static void read_lease(const char *db_path, struct lease *l)
{
	char path[PATH_MAX];
	struct error ignored;
	FILE *file;
	int fd;

	*l = (struct lease){ 0 };
	name_file(db_path, path);
	if (file_open(path, &fd, &ignored))
		return;
	file = fdopen(fd, "r");
	if (!file) {
		close(fd);
		return;
	}
	if (fscanf(file, "%63s %lld %255s", l->boot, &l->until, l->host) != 3)
		*l = (struct lease){ 0 };
	fclose(file);
}

/* This machine's, for the time from now on.  A kernel without a boot id has no network either. */
static void make_own(struct lease *l)
{
	struct process self;

	process_self(&self);
	*l = (struct lease){ .until = (long long)time(NULL) + LEASE_SECONDS };
	snprintf(l->boot, sizeof(l->boot), "%.*s", (int)strcspn(self.birth, ":"), self.birth);
	snprintf(l->host, sizeof(l->host), "%s", self.host[0] ? self.host : "unknown");
}

/* Seconds that another machine still has; 0: none.  A clock that was far ahead gives no lease. */
static int seconds_of_other(const struct lease *l, const struct lease *own)
{
	const long long now = own->until - LEASE_SECONDS;

	if (!l->boot[0] || strcmp(l->boot, own->boot) == 0 || l->until <= now ||
	    l->until > now + MOST_SECONDS)
		return 0;
	return (int)(l->until - now);
}

static enum status look(const char *db_path, struct lease *now, struct lease *own,
			struct error *err)
{
	int seconds;

	read_lease(db_path, now);
	make_own(own);
	seconds = seconds_of_other(now, own);
	if (!seconds)
		return OK;
	return fail(err, "%s: the machine %s writes it, and no other may for %d s more", db_path,
		    now->host, seconds);
}

enum status lease_check(const char *db_path, struct error *err)
{
	struct lease now, own;

	return look(db_path, &now, &own, err);
}

/* By the monotonic clock. */
static double monotonic_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum status lease_wait(const char *db_path, double seconds, struct error *err)
{
	const double until = monotonic_seconds() + seconds;
	enum status status;

	while ((status = lease_check(db_path, err)) != OK && monotonic_seconds() < until)
		usleep(PAUSE_MICROSECONDS);
	return status;
}

static enum status write_lease(const char *db_path, const struct lease *l, struct error *err)
{
	struct replace file;
	char path[PATH_MAX];

	name_file(db_path, path);
	if (replace_begin(&file, path, err))
		return FAIL;
	fprintf(file.stream, "%s %lld %s\n", l->boot, l->until, l->host);
	return replace_commit(&file, err);
}

/* Does this machine have it for a while?  Other machines do not respect one that is too long. */
static bool is_held(const struct lease *now, const struct lease *own)
{
	return strcmp(now->boot, own->boot) == 0 && now->until > own->until - LEASE_SECONDS / 3 &&
	       now->until <= own->until;
}

/* Of two machines that take it at the same instant, the last one to write has it. */
enum status lease_take(const char *db_path, struct error *err)
{
	struct lease now, own;

	if (look(db_path, &now, &own, err))
		return FAIL;
	if (!own.boot[0] || is_held(&now, &own))
		return OK;
	if (write_lease(db_path, &own, err))
		return FAIL;
	return look(db_path, &now, &own, err);
}
