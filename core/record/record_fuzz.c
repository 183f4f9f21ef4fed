/*
 * Fuzz entry: a run.json is refused, or has the names that paths and make need, and is read again
 * as it is written.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/record/journal.h"
#include "core/util/name.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const struct run_record *r)
{
	struct record_file again;
	char *text = record_json(r);
	struct error err;

	if (!is_name(r->experiment) || !is_step(r->step) || !is_identity(r->identity))
		abort();
	for (int i = 0; i < r->symbols; i++)
		if (!is_symbol(r->config[i].name))
			abort();
	if (!text || record_parse(&again, text, &err) || strcmp(again.record.step, r->step) ||
	    again.record.seed != r->seed || again.record.symbols != r->symbols)
		abort();
	record_free(&again);
	cJSON_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *text = malloc(size + 1);
	struct record_file file;
	struct error err = { "" };

	if (!text)
		return 0;
	memcpy(text, bytes, size);
	text[size] = '\0';
	if (record_parse(&file, text, &err) == OK) {
		check(&file.record);
		record_free(&file);
	} else if (!err.text[0]) {
		abort();
	}
	free(text);
	return 0;
}
