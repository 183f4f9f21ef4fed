/*
 * output_dir - a directory of prepared data that appears all at once.
 *
 * Files are written to OUT.tmp, which is locked, and take OUT's place by one rename.  Only a
 * directory that is empty or holds nothing but prepared data is ever replaced, and only an OUT.tmp
 * with nothing but the files of an interrupted preparation is emptied.
 */
#ifndef DATA_OUTPUT_DIR_H
#define DATA_OUTPUT_DIR_H

#include "core/util/status.h"

struct output_dir {
	char *path, *new_path; /* OUT, OUT.tmp */
	int lock;
};

enum status output_dir_start(struct output_dir *d, const char *out, struct error *err) MUST_CHECK;
/* new_path becomes path, and what was there is removed. */
enum status output_dir_commit(struct output_dir *d, struct error *err) MUST_CHECK;
/* Removes new_path if it was not committed. */
void output_dir_end(struct output_dir *d);

#endif
