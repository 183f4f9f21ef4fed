/*
 * replace - write a file so that readers see the old one or the whole new one.
 *
 * The text goes to PATH.tmp beside it; replace_commit() brings it to the disk
 * and gives it the name, replace_abort() removes it.  A PATH.tmp left by a
 * crash is overwritten by the next attempt.
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

/* Fails if any write to the stream failed; then nothing is left but the old file. */
enum status replace_commit(struct replace *r, struct error *err) MUST_CHECK;

void replace_abort(struct replace *r);

#endif
