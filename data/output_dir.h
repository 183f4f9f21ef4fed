/*
 * output_dir - a directory of prepared data that appears all at once.
 *
 * Files are written to OUT.tmp, which is locked; one rename then makes it OUT.  OUT is replaced
 * only if it is empty or holds nothing but prepared data.  OUT.tmp is emptied only if it holds
 * nothing but the files of an interrupted preparation.
 */
#ifndef DATA_OUTPUT_DIR_H
#define DATA_OUTPUT_DIR_H

#include "core/util/status.h"

struct output_dir {
	char *path, *new_path; /* OUT, OUT.tmp */
	int lock;
};

enum status output_dir_start(struct output_dir *d, const char *out, struct error *err) MUST_CHECK;
/* Rename new_path to path, and remove what was there. */
enum status output_dir_commit(struct output_dir *d, struct error *err) MUST_CHECK;
/* Removes new_path if it was not committed. */
void output_dir_end(struct output_dir *d);

#endif
