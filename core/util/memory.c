#include "core/util/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/util/process.h"

#define MEBIBYTE 1048576.0
#define MAX_NOTES 1024
#define PATH_SIZE 4096
#define GROUPS "/sys/fs/cgroup"

static const struct memory_place here = { .root = "" };

static void lessen(struct memory_room *room, double bytes, const char *where)
{
	if (bytes >= room->bytes)
		return;
	room->bytes = fmax(bytes, 0);
	snprintf(room->where, sizeof(room->where), "%s", where);
}

/* --------------------------------------------------------------- the machine */

/* The number after a word at the start of a line; `otherwise` if there is none. */
static double find_number(const char *path, const char *word, double otherwise)
{
	FILE *file = fopen(path, "re");
	const size_t length = strlen(word);
	double found = otherwise;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, word, length) == 0) {
			char *end;
			const double value = strtod(line + length, &end);

			found = end == line + length ? otherwise : value;
			break;
		}
	if (file)
		fclose(file);
	return found;
}

static void look_at_machine(const char *root, struct memory_room *room)
{
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	lessen(room, 1024 * find_number(path, "MemAvailable:", INFINITY), "the machine");
}

/* --------------------------------------------------------------- control groups */

/* The files of the two versions. */
struct group_files {
	const char *mount, *limit, *used, *cache;
};

static const struct group_files version_1 = { GROUPS "/memory", "memory.limit_in_bytes",
					      "memory.usage_in_bytes", "total_inactive_file" };
static const struct group_files version_2 = { GROUPS, "memory.max", "memory.current",
					      "inactive_file" };

static void look_at_group(const char *directory, const struct group_files *files,
			  struct memory_room *room)
{
	char path[PATH_SIZE + 64], where[MEMORY_WHERE_SIZE];
	double limit, used, cache;

	snprintf(path, sizeof(path), "%s/%s", directory, files->limit);
	limit = find_number(path, "", INFINITY); /* "max": no number */
	snprintf(where, sizeof(where), "the control group's limit %s", path);
	snprintf(path, sizeof(path), "%s/%s", directory, files->used);
	used = find_number(path, "", 0);
	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	cache = find_number(path, files->cache, 0);
	lessen(room, limit - used + fmin(cache, used), where);
}

/* This group and all groups above it; in a container perhaps only the group of the mount. */
static void look_at_groups(const char *root, const struct group_files *files, const char *group,
			   struct memory_room *room)
{
	char directory[PATH_SIZE];
	size_t mount;

	mount = (size_t)snprintf(directory, sizeof(directory), "%s%s", root, files->mount);
	if (mount + strlen(group) >= sizeof(directory) || strstr(group, ".."))
		return;
	strcpy(directory + mount, group);
	for (char *end; (end = strrchr(directory, '/')) && end >= directory + mount; *end = '\0')
		look_at_group(directory, files, room);
	look_at_group(directory, files, room);
}

static bool names_memory(const char *controllers)
{
	const char *at = strstr(controllers, "memory");

	return at && (at == controllers || at[-1] == ',') && (at[6] == '\0' || at[6] == ',');
}

/* Lines "HIERARCHY:CONTROLLERS:PATH" (cgroups(7)); version 2 has no controllers there. */
static void look_at_own_groups(const char *root, struct memory_room *room)
{
	char line[PATH_SIZE];
	FILE *file;

	snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
	file = fopen(line, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		if (controllers[1] == '\0')
			look_at_groups(root, &version_2, group, room);
		else if (names_memory(controllers + 1))
			look_at_groups(root, &version_1, group, room);
	}
	if (file)
		fclose(file);
}

struct memory_room memory_shared_room(const struct memory_place *place)
{
	struct memory_room room = { .bytes = INFINITY };

	if (!place)
		place = &here;
	look_at_machine(place->root, &room);
	look_at_own_groups(place->root, &room);
	return room;
}

/* --------------------------------------------------------------- the process */

struct usage {
	double size, resident, data; /* bytes */
};

/* proc(5): size resident shared text lib data dt, in pages.  A dead process uses nothing. */
static struct usage usage_of(const char *process)
{
	const double page = (double)sysconf(_SC_PAGESIZE);
	char path[64];
	struct usage u = { 0 };
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/statm", process);
	file = fopen(path, "re");
	if (!file)
		return u;
	if (fscanf(file, "%lf %lf %*s %*s %*s %lf", &u.size, &u.resident, &u.data) != 3)
		u = (struct usage){ 0 };
	fclose(file);
	return (struct usage){ u.size * page, u.resident * page, u.data * page };
}

static double soft_limit(int resource)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return INFINITY;
	return (double)limit.rlim_cur;
}

struct memory_room memory_own_room(void)
{
	const struct usage u = usage_of("self");
	struct memory_room room = { .bytes = INFINITY };

	lessen(&room, soft_limit(RLIMIT_AS) - u.size, "the limit of address space, ulimit -v");
	lessen(&room, soft_limit(RLIMIT_DATA) - u.data, "the limit of data, ulimit -d");
	return room;
}

/* --------------------------------------------------------------- notes */

/* A line "PID BIRTH BYTES" of the file. */
struct note {
	struct process process;
	double bytes;
};

struct notes {
	int fd;
	int n;
	struct note list[MAX_NOTES];
};

/* Refuses links and files of other users: everybody may write to the directory. */
static int open_own(const char *path)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct stat info;

	if (fd < 0)
		return -1;
	if (fstat(fd, &info) != 0 || info.st_uid != geteuid() || !S_ISREG(info.st_mode)) {
		close(fd);
		return -1;
	}
	return fd;
}

int memory_open_file(const char *what, const char *device)
{
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/kablate-%s-%ld%s%s",
		 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", what, (long)getuid(),
		 device ? "-" : "", device ? device : "");
	return open_own(path);
}

/* `given`: this file; else the user's, of the machine or of a device. */
static int open_notes(const char *given, const char *device)
{
	const int fd = given ? open_own(given) : memory_open_file("memory", device);

	while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR)
		;
	return fd;
}

/* Reads the notes of the processes that still live. */
static struct notes *read_notes(int fd)
{
	struct notes *notes = calloc(1, sizeof(*notes));
	struct process self;
	FILE *file;
	int copy = -1;

	if (!notes)
		return NULL;
	notes->fd = fd;
	process_self(&self);
	copy = dup(fd);
	file = copy < 0 ? NULL : fdopen(copy, "r");
	while (file && notes->n < MAX_NOTES) {
		struct note *note = &notes->list[notes->n];

		if (fscanf(file, "%" SCNd64 " %79s %lf", &note->process.pid, note->process.birth,
			   &note->bytes) != 3)
			break;
		notes->n += process_look(self.host, note->process.pid, note->process.birth) ==
			    PROCESS_LIVES;
	}
	if (file)
		fclose(file);
	else if (copy >= 0)
		close(copy);
	return notes;
}

static void write_notes(const struct notes *notes)
{
	char line[200];
	off_t at = 0;

	if (ftruncate(notes->fd, 0) != 0)
		return;
	for (int i = 0; i < notes->n; i++) {
		const int length = snprintf(line, sizeof(line), "%" PRId64 " %s %.0f\n",
					    notes->list[i].process.pid,
					    notes->list[i].process.birth, notes->list[i].bytes);

		if (pwrite(notes->fd, line, (size_t)length, at) != length)
			return; /* a lost note does no harm */
		at += length;
	}
}

static bool is_own(const struct note *note)
{
	return note->process.pid == getpid();
}

/* Bytes that other processes have noted and not yet taken. */
static double promised(const struct notes *notes)
{
	double sum = 0;

	for (int i = 0; i < notes->n; i++) {
		const struct note *note = &notes->list[i];
		char pid[24];

		snprintf(pid, sizeof(pid), "%" PRId64, note->process.pid);
		if (!is_own(note))
			sum += fmax(note->bytes - usage_of(pid).resident, 0);
	}
	return sum;
}

static void remove_own(struct notes *notes)
{
	int kept = 0;

	for (int i = 0; i < notes->n; i++)
		if (!is_own(&notes->list[i]))
			notes->list[kept++] = notes->list[i];
	notes->n = kept;
}

static void add_own(struct notes *notes, double bytes)
{
	remove_own(notes);
	if (notes->n == MAX_NOTES)
		return;
	process_self(&notes->list[notes->n].process);
	notes->list[notes->n++].bytes = bytes;
}

static enum status no_room(double needed, const struct memory_room *room, double others,
			   struct error *err)
{
	if (others > 0)
		return fail(err,
			    "about %.0f MiB of memory are needed, but %s leaves %.0f MiB, and runs "
			    "that are starting will take %.0f MiB of it",
			    needed / MEBIBYTE, room->where, room->bytes / MEBIBYTE,
			    others / MEBIBYTE);
	return fail(err, "about %.0f MiB of memory are needed, but %s leaves %.0f MiB",
		    needed / MEBIBYTE, room->where, room->bytes / MEBIBYTE);
}

enum status memory_reserve(const struct memory_place *place, double bytes, double idle,
			   struct error *err)
{
	const struct memory_place *at = place ? place : &here;
	const int fd = open_notes(at->notes, NULL); /* no file: no notes */
	struct notes *notes = fd < 0 ? NULL : read_notes(fd);
	const double others = notes ? promised(notes) : 0;
	const struct memory_room own = memory_own_room(), shared = memory_shared_room(at);
	enum status status = OK;

	if (bytes + idle > own.bytes)
		status = no_room(bytes + idle, &own, 0, err);
	else if (bytes > shared.bytes - others)
		status = no_room(bytes, &shared, others, err);
	if (status == OK && notes) {
		add_own(notes, bytes + usage_of("self").resident);
		write_notes(notes);
	}
	free(notes);
	if (fd >= 0)
		close(fd);
	return status;
}

static void replace_note(int fd, double bytes)
{
	struct notes *notes = fd < 0 ? NULL : read_notes(fd);

	if (notes) {
		remove_own(notes);
		if (bytes > 0)
			add_own(notes, bytes);
		write_notes(notes);
	}
	free(notes);
	if (fd >= 0)
		close(fd);
}

void memory_release(const struct memory_place *place)
{
	replace_note(open_notes((place ? place : &here)->notes, NULL), 0);
}

/* What others have noted; none of them has taken it yet. */
static double noted(const struct notes *notes)
{
	double sum = 0;

	for (int i = 0; i < notes->n; i++)
		if (!is_own(&notes->list[i]))
			sum += notes->list[i].bytes;
	return sum;
}

enum status memory_reserve_device(const struct memory_device *device, double bytes, bool *starting,
				  struct error *err)
{
	const int fd = open_notes(device->notes, device->id);
	struct notes *notes = fd < 0 ? NULL : read_notes(fd);
	const double others = notes ? noted(notes) : 0;
	struct memory_room room = { .bytes = device->free_bytes(device->context) };
	enum status status = OK;

	*starting = others > 0;
	snprintf(room.where, sizeof(room.where), "the GPU");
	if (bytes > room.bytes - others)
		status = no_room(bytes, &room, others, err);
	if (status == OK && notes) {
		add_own(notes, bytes);
		write_notes(notes);
	}
	free(notes);
	if (fd >= 0)
		close(fd);
	return status;
}

void memory_taken(const struct memory_device *device, double left)
{
	replace_note(open_notes(device->notes, device->id), left);
}
