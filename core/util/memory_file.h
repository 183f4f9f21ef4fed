/*
 * memory_file - a stream into memory that loses nothing unnoticed.
 *
 * Where memory lacks, open_memstream() drops what is written, and neither ferror() nor glibc's
 * fclose() tells.
 */
#ifndef CORE_UTIL_MEMORY_FILE_H
#define CORE_UTIL_MEMORY_FILE_H

#include <stddef.h>
#include <stdio.h>

#include "core/util/status.h"

/* Must stay in its place while the stream is open. */
struct memory_file {
	FILE *stream; /* NULL: closed */
	char *text;   /* whole after memory_file_close(); a 0 follows its last byte */
	size_t size;
	size_t room;
	bool lost; /* a part of it */
};

/* `what` is for the message.  A file that is all zeros is closed and empty. */
enum status memory_file_open(struct memory_file *f, const char *what, struct error *err) MUST_CHECK;
enum status memory_file_close(struct memory_file *f, const char *what,
			      struct error *err) MUST_CHECK;

/* In any state. */
void memory_file_free(struct memory_file *f);

#endif
