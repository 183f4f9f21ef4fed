/*
 * file - whole files: mapped for reading, replaced as a whole for writing.
 */
#ifndef CORE_UTIL_FILE_H
#define CORE_UTIL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

/* Open a regular file for reading: nothing that could make the caller wait, or never end. */
enum status file_open(const char *path, int *fd, struct error *err) MUST_CHECK;

struct mapping {
	const uint8_t *data; /* not NULL, even when the file is empty */
	size_t size;
};

/* Map a regular file for reading. */
enum status file_map(const char *path, struct mapping *m, struct error *err) MUST_CHECK;
void file_unmap(struct mapping *m);

/* Replace a file as a whole (core/util/replace.h). */
enum status file_write(const char *path, const void *data, size_t size,
		       struct error *err) MUST_CHECK;

/* fsync a directory, so that a renamed file in it survives a crash. */
enum status directory_sync(const char *path, struct error *err) MUST_CHECK;

#endif
