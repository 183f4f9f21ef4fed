#include "core/util/standard.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

void standard_occupy(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0) {
			const int way = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;

			/* The lowest number that is free is this one. */
			if (open("/dev/null", way) != fd)
				return;
		}
}

enum status standard_output_end(struct error *err)
{
	const bool failed = ferror(stdout);

	if (fflush(stdout) != 0)
		return fail_errno(err, "cannot write the output");
	return failed ? fail(err, "cannot write the output") : OK;
}
