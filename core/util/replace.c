#define _GNU_SOURCE /* asprintf */
#include "core/util/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void forget(struct replace *r)
{
	free(r->temporary);
	free(r->path);
	*r = (struct replace){ 0 };
}

enum status replace_begin(struct replace *r, const char *path, struct error *err)
{
	*r = (struct replace){ .path = strdup(path) };
	if (!r->path || asprintf(&r->temporary, "%s.tmp", path) < 0) {
		r->temporary = NULL;
		forget(r);
		return fail_memory(err, path, strlen(path));
	}
	r->stream = fopen(r->temporary, "wbe");
	if (!r->stream) {
		fail_errno(err, "%s", r->temporary);
		forget(r);
		return FAIL;
	}
	return OK;
}

/* A renamed file survives a crash only after its directory is on the disk. */
static int sync_directory(char *path)
{
	int fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC), result, reason;

	if (fd < 0)
		return -1;
	result = fsync(fd);
	reason = errno;
	close(fd);
	errno = reason;
	return result;
}

/* Closes the stream in any case; errno is the first failure. */
static int flush_and_close(FILE *stream)
{
	int reason = 0;

	if (ferror(stream) || fflush(stream) || fsync(fileno(stream)))
		reason = errno ? errno : EIO;
	if (fclose(stream) && !reason)
		reason = errno;
	errno = reason;
	return reason ? -1 : 0;
}

enum status replace_commit(struct replace *r, struct error *err)
{
	enum status status = OK;

	if (flush_and_close(r->stream) || rename(r->temporary, r->path)) {
		status = fail_errno(err, "%s", r->path);
		unlink(r->temporary);
	} else if (sync_directory(r->path)) {
		status = fail_errno(err, "directory of %s", r->path);
	}
	forget(r);
	return status;
}

void replace_abort(struct replace *r)
{
	fclose(r->stream);
	unlink(r->temporary);
	forget(r);
}
