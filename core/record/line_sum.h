/*
 * line_sum - every line of a journal vouches for itself and for all lines before it.
 *
 * A line ends with ,"sum":"0123456789abcdef"}.  The digits are the first of the SHA-256 of the sum
 * of the line before, if there is one, and of the line's text up to the comma.  So a line that
 * was changed, lost, doubled or moved is noticed, and the sum of one line stands for the whole
 * journal up to it.  Lines of an older form have no sum: they are hashed as they are.
 */
#ifndef CORE_RECORD_LINE_SUM_H
#define CORE_RECORD_LINE_SUM_H

#include <stdbool.h>
#include <stddef.h>

#define LINE_SUM_DIGITS 16

struct line_sum {
	char hex[LINE_SUM_DIGITS + 1]; /* empty: before the first line */
};

/* The line without its sum: up to where the comma would stand. */
void line_sum_add(struct line_sum *sum, const char *text, size_t size);

/* How many bytes of a line the sum is of; *stated gets the one that stands there, or an empty one.
 */
size_t line_sum_covers(const char *line, size_t size, struct line_sum *stated);

bool line_sum_equal(const struct line_sum *a, const struct line_sum *b);

/* What follows the text of a line, as for printf. */
#define LINE_SUM_FORMAT ",\"sum\":\"%s\"}"

#endif
