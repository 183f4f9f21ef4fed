#include "core/util/name.h"

#include <string.h>

/* The same in every locale. */
#define DIGITS "0123456789"
#define WORD                                \
	DIGITS "abcdefghijklmnopqrstuvwxyz" \
	       "ABCDEFGHIJKLMNOPQRSTUVWXYZ" \
	       "_"
#define IDENTITY_DIGITS 64

bool is_name(const char *text)
{
	return text[0] && strchr(WORD "+", text[0]) && !text[strspn(text, WORD "+.@-")];
}

bool is_identity(const char *text)
{
	return strspn(text, DIGITS "abcdef") == IDENTITY_DIGITS && !text[IDENTITY_DIGITS];
}

bool is_symbol(const char *text)
{
	return text[0] && !text[strspn(text, WORD)];
}

enum status name_check(const char *what, const char *text, struct error *err)
{
	if (is_name(text))
		return OK;
	return fail(err,
		    "%s '%s': a name has letters, digits and ._+- and begins with neither . nor -",
		    what, text);
}

enum status identity_check(const char *text, struct error *err)
{
	if (is_identity(text))
		return OK;
	return fail(err, "identity '%s': expected 64 hexadecimal digits", text);
}
