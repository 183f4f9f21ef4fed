#include "tools/kablate/vocabulary.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"

static enum status read_dataset(const struct config *c, char directory[VOCABULARY_PATH_SIZE],
				struct dataset *d, struct error *err)
{
	const char *pattern = config_raw(c, "DATA_VALID");
	char copy[VOCABULARY_PATH_SIZE];

	if (!pattern || !pattern[0])
		return fail(err, "this task has no text");
	snprintf(copy, sizeof(copy), "%s", pattern);
	snprintf(directory, VOCABULARY_PATH_SIZE, "%s", dirname(copy));
	return dataset_read(directory, d, err);
}

enum status vocabulary_tokenizer(const struct config *c, char path[VOCABULARY_PATH_SIZE],
				 struct error *err)
{
	char directory[VOCABULARY_PATH_SIZE];
	struct dataset d;

	if (read_dataset(c, directory, &d, err) != OK)
		return FAIL;
	if (d.tokenizer_file[0])
		snprintf(path, VOCABULARY_PATH_SIZE, "%.3900s/%s", directory, d.tokenizer_file);
	else
		snprintf(path, VOCABULARY_PATH_SIZE, "%s", d.tokenizer);
	dataset_free(&d);
	return OK;
}

void vocabulary_name(const struct config *c, char name[SHA256_HEX_SIZE])
{
	char path[VOCABULARY_PATH_SIZE];
	struct error ignored;

	name[0] = '\0';
	if (vocabulary_tokenizer(c, path, &ignored) != OK)
		return;
	if (!strchr(path, '/'))
		snprintf(name, SHA256_HEX_SIZE, "%s", path);
	else if (sha256_file(path, name, &ignored) != OK)
		name[0] = '\0';
}
