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
	bool held; /* c2: the next byte says whether it begins a control character */
};

/* As printable(). */
static bool put_printable(struct printable_stream *s, unsigned char c)
{
	const bool is_control = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f;
	const bool is_second = s->held && c >= 0x80 && c <= 0x9f;

	if (s->held && fputc(is_second ? '?' : 0xc2, s->to) == EOF)
		return false;
	s->held = c == 0xc2;
	return s->held || fputc(is_control || is_second ? '?' : c, s->to) != EOF;
}

static ssize_t write_printable(void *cookie, const char *bytes, size_t size)
{
	struct printable_stream *s = cookie;

	for (size_t i = 0; i < size; i++)
		if (!put_printable(s, (unsigned char)bytes[i]))
			return 0;
	return fflush(s->to) == 0 ? (ssize_t)size : 0;
}

static int close_printable(void *cookie)
{
	struct printable_stream *s = cookie;

	if (s->held)
		fputc(0xc2, s->to);
	free(s);
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
