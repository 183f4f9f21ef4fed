#include "core/util/process.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The file's first line, or what fits of it; empty when it cannot be read. */
static void read_line(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "re");

	line[0] = '\0';
	if (!file)
		return;
	if (!fgets(line, size, file))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	fclose(file);
}

/* Field 22 of /proc/PID/stat (proc(5)); the name, field 2, may hold blanks but ends with ')'. */
static unsigned long long birth_ticks(int64_t pid)
{
	char path[64], line[1024];
	unsigned long long ticks = 0;
	const char *rest;

	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	read_line(path, line, sizeof(line));
	rest = strrchr(line, ')');
	if (rest)
		sscanf(rest + 1,
		       " %*c"
		       "%*s%*s%*s%*s%*s%*s%*s%*s%*s"
		       "%*s%*s%*s%*s%*s%*s%*s%*s%*s"
		       "%llu",
		       &ticks);
	return ticks;
}

static void describe(struct process *p, int64_t pid)
{
	char boot[48];

	*p = (struct process){ .pid = pid };
	gethostname(p->host, sizeof(p->host) - 1);
	read_line("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
	snprintf(p->birth, sizeof(p->birth), "%s:%llu", boot, birth_ticks(pid));
}

void process_self(struct process *p)
{
	describe(p, getpid());
}

enum process_life process_look(const char *host, int64_t pid, const char *birth)
{
	struct process now;

	describe(&now, pid);
	if (!host || !birth)
		return PROCESS_DEAD;
	if (strcmp(host, now.host))
		return PROCESS_ELSEWHERE;
	return strcmp(birth, now.birth) ? PROCESS_DEAD : PROCESS_LIVES;
}
