#include "core/record/line_sum.h"

#include <string.h>

#include "core/util/hash.h"

#define BEFORE ",\"sum\":\""
#define BEHIND "\"}"

enum { TAIL = sizeof(BEFORE) - 1 + LINE_SUM_DIGITS + sizeof(BEHIND) - 1 };

void line_sum_add(struct line_sum *sum, const char *text, size_t size)
{
	char hex[SHA256_HEX_SIZE];
	struct sha256 hash;

	sha256_init(&hash);
	sha256_add(&hash, sum->hex, strlen(sum->hex));
	sha256_add(&hash, text, size);
	sha256_hex(&hash, hex);
	memcpy(sum->hex, hex, LINE_SUM_DIGITS);
	sum->hex[LINE_SUM_DIGITS] = '\0';
}

size_t line_sum_covers(const char *line, size_t size, struct line_sum *stated)
{
	const char *tail, *digits;

	stated->hex[0] = '\0';
	if (size < TAIL)
		return size;
	tail = line + size - TAIL;
	digits = tail + sizeof(BEFORE) - 1;
	if (memcmp(tail, BEFORE, sizeof(BEFORE) - 1) != 0 ||
	    memcmp(digits + LINE_SUM_DIGITS, BEHIND, sizeof(BEHIND) - 1) != 0)
		return size;
	memcpy(stated->hex, digits, LINE_SUM_DIGITS);
	stated->hex[LINE_SUM_DIGITS] = '\0';
	return size - TAIL;
}

bool line_sum_equal(const struct line_sum *a, const struct line_sum *b)
{
	return strcmp(a->hex, b->hex) == 0;
}
