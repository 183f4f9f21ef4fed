#include "core/util/signals.h"

#include <signal.h>
#include <unistd.h>

/* A signal handler can reach only globals. */
static volatile sig_atomic_t stop, save, interrupts;

#define AGAIN_SECONDS 1

/* A stop that comes just before the wait would not interrupt it: SIGALRM does, soon after. */
static void on_signal(int number)
{
	if (interrupts && number != SIGUSR2)
		alarm(AGAIN_SECONDS);
	if (number == SIGALRM)
		return;
	if (number == SIGUSR2) {
		save = 1;
		return;
	}
	if (number == SIGINT && stop)
		_exit(128 + SIGINT);
	if (number != SIGUSR1 || !stop)
		stop = number;
}

/* Flags of the signals that stop the run. */
static void handle_stops(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags }, before;

	sigemptyset(&action.sa_mask);
	sigaction(SIGHUP, NULL, &before);
	if (before.sa_handler != SIG_IGN) /* nohup */
		sigaction(SIGHUP, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
}

void signals_install(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	handle_stops(SA_RESTART);
	sigemptyset(&action.sa_mask);
	sigaction(SIGUSR2, &action, NULL);
	/* A file that may not grow, or a reader that left, makes a write fail and does not kill. */
	action.sa_handler = SIG_IGN;
	sigaction(SIGXFSZ, &action, NULL);
	sigaction(SIGPIPE, &action, NULL);
}

void signals_interrupt(bool on)
{
	interrupts = on;
	handle_stops(on ? 0 : SA_RESTART);
	if (!on)
		alarm(0);
}

int signals_stop(void)
{
	return stop;
}

bool signals_save(void)
{
	if (!save)
		return false;
	save = 0; /* the save that follows also serves a request that comes from now on */
	return true;
}
