/*
 * fault - makes the n-th call of the system fail, for tests.
 *
 * Loaded by LD_PRELOAD, or linked with --wrap and -DWRAPPED (where a sanitizer has its own
 * allocator).  The variable FAULT says which call:
 *
 *     memory:N     the N-th allocation finds no memory
 *     disk:N       the N-th open, write, sync, rename or the like finds no room
 *
 * With N = 0 all goes well.  How often such calls were made is written to the file FAULT_COUNT.
 * After the N-th all goes well again, unless the number has a "+" behind it: then nothing does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef WRAPPED
#define NAME(function) __wrap_##function
#define REAL(function) __real_##function
#define DECLARE(type, function, ...)         \
	type __real_##function(__VA_ARGS__); \
	type __wrap_##function(__VA_ARGS__)
#else
#define NAME(function) function
#define REAL(function) ((__typeof__(&function))real(#function))
#define DECLARE(type, function, ...) struct nothing
#endif

enum kind { MEMORY, DISK, KINDS };

static struct {
	bool ready, for_ever;
	enum kind kind;
	long fail_at, seen;
} fault;

static void *real(const char *name) __attribute__((unused));

static void *real(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

/* OpenBLAS does not look at what its own small allocations return: they do not count. */
static struct {
	const char *first, *behind;
} openblas;

static int find_openblas(struct dl_phdr_info *info, size_t size, void *context)
{
	(void)size, (void)context;
	if (!strstr(info->dlpi_name, "openblas"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
			continue;
		openblas.first = (const char *)info->dlpi_addr + part->p_vaddr;
		openblas.behind = openblas.first + part->p_memsz;
	}
	return 1;
}

static bool is_openblas(const char *caller)
{
	return caller >= openblas.first && caller < openblas.behind;
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("FAULT");
	const char *number = text ? strchr(text, ':') : NULL;
	char *end;

	if (!number)
		return;
	dl_iterate_phdr(find_openblas, NULL);
	fault.kind = strncmp(text, "memory", 6) == 0 ? MEMORY : DISK;
	fault.fail_at = strtol(number + 1, &end, 10);
	fault.for_ever = *end == '+';
	fault.ready = true;
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("FAULT_COUNT");
	char text[32];
	int fd, length;

	fault.ready = false;
	if (!path)
		return;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	length = snprintf(text, sizeof(text), "%ld\n", fault.seen);
	if (fd >= 0 && syscall(SYS_write, fd, text, (size_t)length) != length)
		_exit(99);
}

static bool fails(enum kind kind)
{
	long now;

	if (!fault.ready || kind != fault.kind)
		return false;
	now = __atomic_add_fetch(&fault.seen, 1, __ATOMIC_RELAXED);
	if (!fault.fail_at || (fault.for_ever ? now < fault.fail_at : now != fault.fail_at))
		return false;
	errno = kind == MEMORY ? ENOMEM : ENOSPC;
	return true;
}

/* ------------------------------------------------------------------ memory */

#ifdef WRAPPED
DECLARE(void *, malloc, size_t);
DECLARE(void *, calloc, size_t, size_t);
DECLARE(void *, realloc, void *, size_t);
#define REAL_MALLOC __real_malloc
#define REAL_CALLOC __real_calloc
#define REAL_REALLOC __real_realloc
#else
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
#define REAL_MALLOC __libc_malloc /* dlsym() itself allocates */
#define REAL_CALLOC __libc_calloc
#define REAL_REALLOC __libc_realloc
#endif

#define NO_MEMORY (!is_openblas(__builtin_return_address(0)) && fails(MEMORY))

void *NAME(malloc)(size_t size)
{
	return NO_MEMORY ? NULL : REAL_MALLOC(size);
}

void *NAME(calloc)(size_t n, size_t size)
{
	return NO_MEMORY ? NULL : REAL_CALLOC(n, size);
}

void *NAME(realloc)(void *old, size_t size)
{
	return NO_MEMORY ? NULL : REAL_REALLOC(old, size);
}

DECLARE(void *, aligned_alloc, size_t, size_t);
void *NAME(aligned_alloc)(size_t alignment, size_t size)
{
	return NO_MEMORY ? NULL : REAL(aligned_alloc)(alignment, size);
}

/* -------------------------------------------------------------------- disk */

#define RETURN_IF_FULL(value)         \
	do {                          \
		if (fails(DISK))      \
			return value; \
	} while (0)

/* Reading needs no room. */
static bool writes(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
}

#define OPEN(function)                                       \
	DECLARE(int, function, const char *, int, ...);      \
	int NAME(function)(const char *path, int flags, ...) \
	{                                                    \
		mode_t mode = 0;                             \
		va_list list;                                \
                                                             \
		va_start(list, flags);                       \
		if (flags & (O_CREAT | O_TMPFILE))           \
			mode = va_arg(list, mode_t);         \
		va_end(list);                                \
		if (writes(flags) && fails(DISK))            \
			return -1;                           \
		return REAL(function)(path, flags, mode);    \
	}

OPEN(open)
OPEN(open64)

#define FOPEN(function)                                          \
	DECLARE(FILE *, function, const char *, const char *);   \
	FILE *NAME(function)(const char *path, const char *mode) \
	{                                                        \
		if (mode[0] != 'r' && fails(DISK))               \
			return NULL;                             \
		return REAL(function)(path, mode);               \
	}

FOPEN(fopen)
FOPEN(fopen64)

DECLARE(ssize_t, write, int, const void *, size_t);
ssize_t NAME(write)(int fd, const void *data, size_t size)
{
	if (fd > STDERR_FILENO)
		RETURN_IF_FULL(-1);
	return REAL(write)(fd, data, size);
}

DECLARE(ssize_t, pwrite, int, const void *, size_t, off_t);
ssize_t NAME(pwrite)(int fd, const void *data, size_t size, off_t at)
{
	RETURN_IF_FULL(-1);
	return REAL(pwrite)(fd, data, size, at);
}

DECLARE(ssize_t, pwrite64, int, const void *, size_t, off64_t);
ssize_t NAME(pwrite64)(int fd, const void *data, size_t size, off64_t at)
{
	RETURN_IF_FULL(-1);
	return REAL(pwrite64)(fd, data, size, at);
}

/* A file that was written through stdio meets the full disk when its buffer is emptied. */
DECLARE(int, fflush, FILE *);
int NAME(fflush)(FILE *file)
{
	if (file && fileno(file) > STDERR_FILENO)
		RETURN_IF_FULL(EOF);
	return REAL(fflush)(file);
}

DECLARE(int, fclose, FILE *);
int NAME(fclose)(FILE *file)
{
	const int fd = fileno(file);
	const bool writing = fd > STDERR_FILENO && writes(fcntl(fd, F_GETFL));

	if (writing && fails(DISK)) {
		REAL(fclose)(file);
		errno = ENOSPC;
		return EOF;
	}
	return REAL(fclose)(file);
}

DECLARE(int, fsync, int);
int NAME(fsync)(int fd)
{
	RETURN_IF_FULL(-1);
	return REAL(fsync)(fd);
}

DECLARE(int, fdatasync, int);
int NAME(fdatasync)(int fd)
{
	RETURN_IF_FULL(-1);
	return REAL(fdatasync)(fd);
}

DECLARE(int, rename, const char *, const char *);
int NAME(rename)(const char *from, const char *to)
{
	RETURN_IF_FULL(-1);
	return REAL(rename)(from, to);
}

DECLARE(int, mkdir, const char *, mode_t);
int NAME(mkdir)(const char *path, mode_t mode)
{
	RETURN_IF_FULL(-1);
	return REAL(mkdir)(path, mode);
}

DECLARE(int, ftruncate, int, off_t);
int NAME(ftruncate)(int fd, off_t size)
{
	RETURN_IF_FULL(-1);
	return REAL(ftruncate)(fd, size);
}
