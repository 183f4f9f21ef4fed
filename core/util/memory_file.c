#define _GNU_SOURCE /* fopencookie */
#include "core/util/memory_file.h"

#include <stdlib.h>
#include <string.h>

/* Room for so many bytes more, and a 0. */
static bool reserve(struct memory_file *f, size_t bytes)
{
	const size_t needed = f->size + bytes + 1;
	const size_t room = needed > 2 * f->room ? needed : 2 * f->room;
	char *text;

	if (needed <= f->room)
		return true;
	text = realloc(f->text, room);
	if (!text)
		return false;
	f->text = text;
	f->room = room;
	return true;
}

static ssize_t append(void *cookie, const char *bytes, size_t size)
{
	struct memory_file *f = cookie;

	if (f->lost || !reserve(f, size)) {
		f->lost = true;
		return 0;
	}
	memcpy(f->text + f->size, bytes, size);
	f->size += size;
	f->text[f->size] = '\0';
	return (ssize_t)size;
}

enum status memory_file_open(struct memory_file *f, const char *what, struct error *err)
{
	const cookie_io_functions_t functions = { .write = append };

	*f = (struct memory_file){ 0 };
	append(f, "", 0); /* an empty text is one, too */
	if (f->lost)
		return fail_memory(err, what, 1);
	f->stream = fopencookie(f, "w", functions);
	return f->stream ? OK : fail_memory(err, what, sizeof(FILE));
}

enum status memory_file_close(struct memory_file *f, const char *what, struct error *err)
{
	const bool closed = fclose(f->stream) == 0;

	f->stream = NULL;
	return closed && !f->lost ? OK : fail_memory(err, what, f->size);
}

void memory_file_free(struct memory_file *f)
{
	if (f->stream)
		fclose(f->stream);
	free(f->text);
	*f = (struct memory_file){ 0 };
}
