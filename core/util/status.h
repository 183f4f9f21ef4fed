/*
 * status - how a function says that it failed, and why.
 *
 * A function that can fail returns enum status and takes a struct error
 * as its last argument; on FAIL the error holds one line of text for the
 * user.  Only main() turns it into an exit status.
 */
#ifndef CORE_UTIL_STATUS_H
#define CORE_UTIL_STATUS_H

#include <stdbool.h>

enum status { OK = 0, FAIL = -1 };

#define ERROR_TEXT_SIZE 1024

struct error {
	char text[ERROR_TEXT_SIZE];
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))

/*
 * Puts ? in the place of every control character but newline and tab: a terminal would obey escape
 * sequences in a text that comes from a file.  Texts of errors are printable.
 */
char *printable(char *text);

/* Store the text and return FAIL, so that "return fail(err, ...)" reads well. */
enum status fail(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* As fail(), with ": " and strerror(errno) appended. */
enum status fail_errno(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* Put "prefix: " before the text already stored; returns FAIL. */
enum status fail_prefix(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* The one text for an allocation that did not succeed. */
enum status fail_memory(struct error *err, const char *what, unsigned long long bytes);

/* Is it that text?  Then the request may be right, but could not be judged. */
bool is_lack_of_memory(const struct error *err);

#endif
