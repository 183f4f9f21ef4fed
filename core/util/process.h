/*
 * process - which process this is, and whether another one still lives.
 *
 * Systems give a process number again to later processes.  Host, boot, number and
 * start time together name one process for all time.
 */
#ifndef CORE_UTIL_PROCESS_H
#define CORE_UTIL_PROCESS_H

#include <stdint.h>

struct process {
	char host[256];
	int64_t pid;
	char birth[80]; /* identity of the boot, ":", clock ticks from boot to birth */
};

enum process_life {
	PROCESS_LIVES,
	PROCESS_DEAD,
	PROCESS_ELSEWHERE, /* on another host: cannot be seen from here */
};

void process_self(struct process *p);

enum process_life process_look(const char *host, int64_t pid, const char *birth);

#endif
