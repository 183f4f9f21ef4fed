#include "core/util/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/util/replace.h"

static enum status check_regular(int fd, const char *path, struct error *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return fail_errno(err, "cannot read %s", path);
	return S_ISREG(st.st_mode) ? OK : fail(err, "%s is not a regular file", path);
}

enum status file_open(const char *path, int *fd, struct error *err)
{
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for a writer */
	if (*fd < 0)
		return fail_errno(err, "cannot open %s", path);
	if (check_regular(*fd, path, err) == OK)
		return OK;
	close(*fd);
	return FAIL;
}

static enum status map_open(int fd, const char *path, struct mapping *m, struct error *err)
{
	struct stat st;
	void *data;

	if (fstat(fd, &st))
		return fail_errno(err, "cannot read %s", path);
	*m = (struct mapping){ (const uint8_t *)"", 0 };
	if (st.st_size == 0)
		return OK;
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return fail_errno(err, "cannot map %s", path);
	*m = (struct mapping){ data, (size_t)st.st_size };
	return OK;
}

enum status file_map(const char *path, struct mapping *m, struct error *err)
{
	enum status status;
	int fd;

	if (file_open(path, &fd, err) != OK)
		return FAIL;
	status = map_open(fd, path, m, err);
	close(fd);
	return status;
}

void file_unmap(struct mapping *m)
{
	if (m->size)
		munmap((void *)m->data, m->size);
	*m = (struct mapping){ 0 };
}

enum status file_write(const char *path, const void *data, size_t size, struct error *err)
{
	struct replace new;

	if (replace_begin(&new, path, err))
		return FAIL;
	fwrite(data, 1, size, new.stream);
	return replace_commit(&new, err);
}

enum status directory_sync(const char *path, struct error *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum status status = OK;

	if (fd < 0)
		return fail_errno(err, "cannot open %s", path);
	if (fsync(fd))
		status = fail_errno(err, "cannot sync %s", path);
	close(fd);
	return status;
}
