/*
 * signals - requests from outside, seen between two iterations.
 *
 * SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless under nohup) ask the program to stop after
 * the iteration; a second SIGINT ends it at once.  SIGUSR2 asks for a checkpoint.
 */
#ifndef CORE_UTIL_SIGNALS_H
#define CORE_UTIL_SIGNALS_H

#include <stdbool.h>

void signals_install(void);

/* While it is on, a signal that requests a stop ends a system call that waits: with EINTR. */
void signals_interrupt(bool on);

/* The signal that requested a stop, or 0. */
int signals_stop(void);

/* Was a checkpoint requested since the last call? */
bool signals_save(void);

#endif
