/*
 * replace - write a file so that readers see the old one or the whole new one.
 *
 * The text goes to PATH.tmp.  replace_commit() brings that file to the disk and
 * renames it to PATH; replace_abort() removes it.  The next attempt overwrites
 * a PATH.tmp that a crash left.
 */
#ifndef CORE_UTIL_REPLACE_H
#define CORE_UTIL_REPLACE_H

#include <stdio.h>

#include "core/util/status.h"

struct replace {
	FILE *stream; /* write here */
	char *path, *temporary;
};

enum status replace_begin(struct replace *r, const char *path, struct error *err) MUST_CHECK;

/* Fails if any write to the stream failed; then only the old file is left. */
enum status replace_commit(struct replace *r, struct error *err) MUST_CHECK;

void replace_abort(struct replace *r);

#endif
