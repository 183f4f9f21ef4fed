#include "core/signals.h"

#include <signal.h>
#include <unistd.h>

/* A signal handler can reach nothing but globals. */
static volatile sig_atomic_t stop, save;

static void on_signal(int number)
{
	if (number == SIGUSR2) {
		save = 1;
		return;
	}
	if (number == SIGINT && stop)
		_exit(128 + SIGINT);
	stop = number;
}

void signals_install(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
}

int signals_stop(void)
{
	return stop;
}

bool signals_save(void)
{
	bool asked = save;

	save = 0;
	return asked;
}
