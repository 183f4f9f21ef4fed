/*
 * line_sum - every line of a journal vouches for itself and for all lines before it.
 *
 * A line ends with ,"sum":"0123456789abcdef"}.  These are the first digits of a SHA-256: of the sum
 * of the line before, if there is one, and the line's text up to the comma.  So a line that was
 * changed, lost, doubled or moved is noticed, and the sum of one line stands for the whole journal
 * up to it.  Lines of an older form have no sum: they are hashed as a whole.
 */
#ifndef CORE_RECORD_LINE_SUM_H
#define CORE_RECORD_LINE_SUM_H

#include <stdbool.h>
#include <stddef.h>

#define LINE_SUM_DIGITS 16

struct line_sum {
	char hex[LINE_SUM_DIGITS + 1]; /* empty: before the first line */
};

/* Adds a line without its sum: the text before the comma. */
void line_sum_add(struct line_sum *sum, const char *text, size_t size);

/* How many bytes of a line its sum covers; *stated gets the sum in the line, or an empty one. */
size_t line_sum_covers(const char *line, size_t size, struct line_sum *stated);

bool line_sum_equal(const struct line_sum *a, const struct line_sum *b);

/* A format for printf: what follows the text of a line. */
#define LINE_SUM_FORMAT ",\"sum\":\"%s\"}"

#endif
