/* Fuzz entry: the reader refuses any lines, or visits them one by one with the names they need. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/record/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

struct seen {
	int64_t line;
};

static enum status look(void *context, const struct entry *e, struct error *err)
{
	struct seen *seen = context;

	(void)err;
	if (e->line != ++seen->line || (e->kind == ENTRY_VALUE && !e->name))
		abort();
	return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *text = malloc(size + 1);
	struct seen seen = { 0 };
	struct line_sum stated;
	struct error err;

	if (!text)
		return 0;
	memcpy(text, bytes, size);
	text[size] = '\n';
	if (line_sum_covers(text, size, &stated) > size)
		abort();
	(void)journal_is_bound(text, size + 1);
	if (journal_visit(text, size + 1, 1, look, &seen, &err) != OK && !err.text[0])
		abort();
	free(text);
	return 0;
}
