#include "core/util/name.h"

#include <string.h>

/* The same in every locale. */
#define DIGITS "0123456789"
#define WORD                                \
	DIGITS "abcdefghijklmnopqrstuvwxyz" \
	       "ABCDEFGHIJKLMNOPQRSTUVWXYZ" \
	       "_"
#define IN_A_NAME WORD "+.-"
#define IDENTITY_DIGITS 64

/* How far a name goes; 0: there is none. */
static size_t name_size(const char *text)
{
	return text[0] && strchr(WORD "+", text[0]) ? strspn(text, IN_A_NAME) : 0;
}

bool is_name(const char *text)
{
	return text[0] && !text[name_size(text)];
}

bool is_step(const char *text)
{
	const size_t size = name_size(text);
	const char *rate = &text[size + 1];

	if (size == 0 || text[size] != '@')
		return is_name(text);
	return rate[0] && !rate[strspn(rate, IN_A_NAME)];
}

bool is_identity(const char *text)
{
	return strspn(text, DIGITS "abcdef") == IDENTITY_DIGITS && !text[IDENTITY_DIGITS];
}

bool is_symbol(const char *text)
{
	return text[0] && !text[strspn(text, WORD)];
}

static enum status refuse(const char *what, const char *text, struct error *err)
{
	return fail(err,
		    "%s '%s': a name has letters, digits and ._+- and begins with neither . nor -",
		    what, text);
}

enum status name_check(const char *what, const char *text, struct error *err)
{
	return is_name(text) ? OK : refuse(what, text, err);
}

enum status step_check(const char *what, const char *text, struct error *err)
{
	return is_step(text) ? OK : refuse(what, text, err);
}

enum status identity_check(const char *text, struct error *err)
{
	if (is_identity(text))
		return OK;
	return fail(err, "identity '%s': expected 64 hexadecimal digits", text);
}
