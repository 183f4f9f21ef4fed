#define _GNU_SOURCE /* fopencookie */
#include "core/util/standard.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

struct printable_stream {
	FILE *to;
	unsigned char last; /* a character may come in two parts */
};

/* As printable(). */
static ssize_t write_printable(void *cookie, const char *bytes, size_t size)
{
	struct printable_stream *s = cookie;

	for (size_t i = 0; i < size; i++) {
		const unsigned char c = (unsigned char)bytes[i];
		const bool is_control = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f ||
					(c >= 0x80 && c <= 0x9f && s->last == 0xc2);

		if (fputc(is_control ? '?' : c, s->to) == EOF)
			return 0;
		s->last = c;
	}
	return fflush(s->to) == 0 ? (ssize_t)size : 0;
}

static int close_printable(void *cookie)
{
	free(cookie);
	return 0;
}

FILE *standard_printable(FILE *to)
{
	struct printable_stream *s = calloc(1, sizeof(*s));
	FILE *stream = NULL;

	if (s) {
		s->to = to;
		stream = fopencookie(s, "w",
				     (cookie_io_functions_t){ .write = write_printable,
							      .close = close_printable });
	}
	if (!stream)
		free(s);
	return stream;
}

enum status standard_output_end(struct error *err)
{
	const bool failed = ferror(stdout);

	if (fflush(stdout) != 0)
		return fail_errno(err, "cannot write the output");
	return failed ? fail(err, "cannot write the output") : OK;
}
