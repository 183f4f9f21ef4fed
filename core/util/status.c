#include "core/util/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OUT_OF_MEMORY ": out of memory ("

/* ASCII's control characters, and U+0080 to U+009F, which begin with c2 in UTF-8 (ECMA-48: C1). */
char *printable(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++) {
		if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f)
			c[0] = c[1] = '?';
		else if ((c[0] < ' ' && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7f)
			c[0] = '?';
	}
	return text;
}

enum status fail(struct error *err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	printable(err->text);
	return FAIL;
}

enum status fail_errno(struct error *err, const char *format, ...)
{
	const char *reason = strerror(errno);
	va_list args;
	int used;

	va_start(args, format);
	used = vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	if (used >= 0 && (size_t)used < sizeof(err->text))
		snprintf(err->text + used, sizeof(err->text) - (size_t)used, ": %s", reason);
	printable(err->text);
	return FAIL;
}

enum status fail_prefix(struct error *err, const char *format, ...)
{
	char old[ERROR_TEXT_SIZE];
	va_list args;
	int used;

	memcpy(old, err->text, sizeof(old));
	va_start(args, format);
	used = vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	if (used >= 0 && (size_t)used < sizeof(err->text)) {
		const int room = (int)sizeof(err->text) - used;

		/* the precision tells the compiler that a cut is intended */
		snprintf(err->text + used, (size_t)room, ": %.*s", room, old);
	}
	printable(err->text);
	return FAIL;
}

enum status fail_memory(struct error *err, const char *what, unsigned long long bytes)
{
	return fail(err, "%s" OUT_OF_MEMORY "%llu bytes requested)", what, bytes);
}

bool is_lack_of_memory(const struct error *err)
{
	return strstr(err->text, OUT_OF_MEMORY);
}
