#include "tools/kablate/vocabulary.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
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

/* --------------------------------------------------------------------- use */

enum status vocabulary_open(struct vocabulary *v, const struct config *c,
			    const struct source *source, const char *tokenizer, struct error *err)
{
	char path[VOCABULARY_PATH_SIZE];
	struct error none;

	*v = (struct vocabulary){ .source = source };
	if (tokenizer)
		return tokenizer_open(strcmp(tokenizer, "byte") == 0 ? "bytes" : tokenizer,
				      &v->tokenizer, err);
	if (vocabulary_tokenizer(c, path, &none) != OK)
		return OK;
	return tokenizer_open(path, &v->tokenizer, err);
}

void vocabulary_close(struct vocabulary *v)
{
	tokenizer_close(v->tokenizer);
}

int64_t vocabulary_size(const struct vocabulary *v)
{
	return v->tokenizer ? tokenizer_vocabulary(v->tokenizer) : v->source->vocab;
}

int32_t vocabulary_end(const struct vocabulary *v)
{
	return v->tokenizer ? tokenizer_end_of_text(v->tokenizer) : -1;
}

static enum status encode_text(const struct vocabulary *v, const char *text, struct ids *ids,
			       struct error *err)
{
	struct encoder *e;
	enum status status;

	if (encoder_new(v->tokenizer, &e, err) != OK)
		return FAIL;
	status = encode(e, (const uint8_t *)text, strlen(text), ids, err);
	encoder_free(e);
	return status;
}

static enum status encode_word(const struct vocabulary *v, const char *word, struct ids *ids,
			       struct error *err)
{
	const int32_t token = source_read_token(v->source, word);
	char first[SOURCE_TOKEN_TEXT], last[SOURCE_TOKEN_TEXT];

	if (token < 0) {
		source_spell(v->source, 0, first);
		source_spell(v->source, (int32_t)v->source->vocab - 1, last);
		return fail(err, "'%s' is not a token of the task %s: its tokens are %s to %s",
			    word, v->source->task->name, first, last);
	}
	if (ids_reserve(ids, 1, err) != OK)
		return FAIL;
	ids->id[ids->count++] = (uint16_t)token;
	return OK;
}

/* vocabulary_write() adds a component after a slash: it is ignored here. */
static enum status encode_words(const struct vocabulary *v, const char *text, struct ids *ids,
				struct error *err)
{
	char *copy = strdup(text), *rest = copy, *word;
	enum status status = copy ? OK : fail_memory(err, "prompt", strlen(text));

	while (status == OK && (word = strtok_r(rest, " \t\n", &rest))) {
		word[strcspn(word, "/")] = '\0';
		status = encode_word(v, word, ids, err);
	}
	free(copy);
	return status;
}

enum status vocabulary_encode(const struct vocabulary *v, const char *text, struct ids *ids,
			      struct error *err)
{
	return v->tokenizer ? encode_text(v, text, ids, err) : encode_words(v, text, ids, err);
}

void vocabulary_write(const struct vocabulary *v, const int32_t *tokens, int64_t at, FILE *out)
{
	const uint32_t token = (uint32_t)tokens[at];
	char text[SOURCE_TOKEN_TEXT];
	const char *component;

	if (v->tokenizer && token >= tokenizer_vocabulary(v->tokenizer))
		return; /* a token that the data do not have */
	if (v->tokenizer) {
		fwrite(tokenizer_text(v->tokenizer, token), 1, tokenizer_bytes(v->tokenizer, token),
		       out);
		return;
	}
	source_spell(v->source, tokens[at], text);
	component = source_component(v->source, tokens, at);
	if (component && strcmp(component, v->source->task->components[0]) != 0)
		fprintf(out, "%s/%s ", text, component);
	else
		fprintf(out, "%s ", text);
}

/* Neither paths of ours nor spelt tokens hold a control character. */
static void write_string(const char *text, FILE *out)
{
	fputc('"', out);
	for (; *text; text++) {
		if (strchr("\"\\", *text))
			fputc('\\', out);
		fputc(*text, out);
	}
	fputc('"', out);
}

void vocabulary_json(const struct config *c, const struct source *source, FILE *out)
{
	char path[VOCABULARY_PATH_SIZE], text[SOURCE_TOKEN_TEXT];
	struct error none;

	if (vocabulary_tokenizer(c, path, &none) == OK) {
		fputs("{\"tokenizer\": ", out);
		write_string(path, out);
		fputs("}", out);
		return;
	}
	fputs("{\"tokens\": [", out);
	for (int32_t token = 0; token < source->vocab; token++) {
		source_spell(source, token, text);
		fputs(token ? ", " : "", out);
		write_string(text, out);
	}
	fputs("]}", out);
}
