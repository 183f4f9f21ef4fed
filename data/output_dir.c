#define _GNU_SOURCE /* asprintf(), renameat2() */
#include "data/output_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/chars.h"
#include "data/dataset.h"
#include "core/util/file.h"

static int is_entry(const struct dirent *entry)
{
	return strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
}

static bool is_explained(const struct dataset *d, const char *file)
{
	return d->vocabulary > 0 && (dataset_find(d, file) || !strcmp(file, DATASET_FILE) ||
				     !strcmp(file, d->tokenizer_file));
}

/* SPLIT-000000.bin and on, as data/tokens.c writes them. */
static bool is_shard_name(const char *file)
{
	for (enum data_split s = 0; s < SPLITS; s++) {
		size_t length = strlen(split_name(s)), digits;

		if (strncmp(file, split_name(s), length) || file[length] != '-')
			continue;
		digits = strspn(file + length + 1, "0123456789");
		return digits >= 6 && !strcmp(file + length + 1 + digits, ".bin");
	}
	return false;
}

/* A name that an interrupted preparation may have left, with or without a side file. */
static bool is_leftover(const char *file)
{
	static const char *const names[] = { DATASET_FILE, BPE_FILE, CHARS_FILE };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		size_t length = strlen(names[i]);

		if (!strncmp(file, names[i], length) &&
		    (!file[length] || !strcmp(file + length, ".tmp")))
			return true;
	}
	return is_shard_name(file);
}

/* A file that is not part of prepared data; `name` is the caller's memory. */
static bool has_stranger(const char *path, bool unfinished, char name[256])
{
	struct dataset dataset = { 0 };
	struct dirent **entry;
	struct error err;
	bool found = false;
	int count = scandir(path, &entry, is_entry, alphasort);

	if (count <= 0 || dataset_read(path, &dataset, &err))
		dataset = (struct dataset){ 0 };
	for (int i = 0; i < count; i++) {
		const char *file = entry[i]->d_name;

		if (!found && !is_explained(&dataset, file) && !(unfinished && is_leftover(file))) {
			snprintf(name, 256, "%s", file);
			found = true;
		}
		free(entry[i]);
	}
	if (count >= 0)
		free(entry);
	dataset_free(&dataset);
	return found;
}

static enum status check_replaceable(const char *path, bool unfinished, struct error *err)
{
	char name[256];
	struct stat st;

	if (stat(path, &st))
		return errno == ENOENT ? OK : fail_errno(err, "cannot use %s", path);
	if (!S_ISDIR(st.st_mode))
		return fail(err, "%s is not a directory", path);
	if (has_stranger(path, unfinished, name))
		return fail(
			err,
			"%s holds %s, which is not part of prepared data: choose another directory",
			path, name);
	return OK;
}

/* Prepared data has no directories inside. */
static enum status remove_files(const char *path, struct error *err)
{
	struct dirent **entry;
	enum status status = OK;
	int count = scandir(path, &entry, is_entry, alphasort);

	if (count < 0)
		return fail_errno(err, "cannot read directory %s", path);
	for (int i = 0; i < count; i++) {
		char *file;

		if (asprintf(&file, "%s/%s", path, entry[i]->d_name) < 0) {
			status = fail_memory(err, path, strlen(path));
		} else {
			if (unlink(file))
				status = fail_errno(err, "cannot remove %s", file);
			free(file);
		}
		free(entry[i]);
	}
	free(entry);
	return status;
}

static void unlock(struct output_dir *d)
{
	close(d->lock);
	d->lock = -1;
}

enum status output_dir_start(struct output_dir *d, const char *out, struct error *err)
{
	size_t length = strlen(out);

	while (length > 1 && out[length - 1] == '/')
		length--;
	*d = (struct output_dir){ .lock = -1 };
	d->path = strndup(out, length);
	if (!d->path || asprintf(&d->new_path, "%s.tmp", d->path) < 0) {
		d->new_path = NULL;
		return fail_memory(err, out, length);
	}
	if (check_replaceable(d->path, false, err))
		return FAIL;
	if (mkdir(d->new_path, 0777) && errno != EEXIST)
		return fail_errno(err, "cannot create %s", d->new_path);
	d->lock = open(d->new_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->lock < 0)
		return fail_errno(err, "cannot open %s", d->new_path);
	if (flock(d->lock, LOCK_EX | LOCK_NB)) {
		unlock(d);
		return fail(err, "%s is being written by another process", d->new_path);
	}
	/* Without the lock, output_dir_end() removes nothing. */
	if (check_replaceable(d->new_path, true, err)) {
		unlock(d);
		return FAIL;
	}
	return remove_files(d->new_path, err);
}

/* Exchange the old directory and the new one; if the file system cannot, move the old one aside.
 */
static enum status take_place(const struct output_dir *d, struct error *err)
{
	char *aside;
	int failed;

	if (rename(d->new_path, d->path) == 0 ||
	    renameat2(AT_FDCWD, d->new_path, AT_FDCWD, d->path, RENAME_EXCHANGE) == 0)
		return OK;
	if (asprintf(&aside, "%s.old", d->path) < 0)
		return fail_memory(err, d->path, strlen(d->path));
	failed = rename(d->path, aside) || rename(d->new_path, d->path) ||
		 rename(aside, d->new_path);
	free(aside);
	return failed ? fail_errno(err, "cannot rename %s to %s", d->new_path, d->path) : OK;
}

enum status output_dir_commit(struct output_dir *d, struct error *err)
{
	char *parent;
	enum status status;

	/* Check again: hours may have passed since the start. */
	if (directory_sync(d->new_path, err) || check_replaceable(d->path, false, err) ||
	    take_place(d, err))
		return FAIL;
	if (asprintf(&parent, "%s/..", d->path) < 0)
		return fail_memory(err, d->path, strlen(d->path));
	status = directory_sync(parent, err);
	free(parent);
	return status;
}

void output_dir_end(struct output_dir *d)
{
	struct error ignored;

	/* After a commit new_path is gone, or holds the data that was replaced. */
	if (d->lock >= 0 && access(d->new_path, F_OK) == 0 && !remove_files(d->new_path, &ignored))
		rmdir(d->new_path);
	if (d->lock >= 0)
		close(d->lock);
	free(d->path);
	free(d->new_path);
}
