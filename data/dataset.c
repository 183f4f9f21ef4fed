#define _GNU_SOURCE /* asprintf() */
#include "data/dataset.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/file.h"
#include "core/util/json.h"

static const char FORMAT[] = "kablate tokens 1";
static const char POLICY[] = "between documents";

const char *split_name(enum data_split split)
{
	static const char *const names[SPLITS] = { "train", "valid" };

	return names[split];
}

bool component_name_fits(const char *name)
{
	size_t length =
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

	return length > 0 && length < COMPONENT_NAME_SIZE && !name[length];
}

enum status split_add_shard(struct split_info *split, const struct shard_info *shard,
			    struct error *err)
{
	size_t size = (split->shards + 1) * sizeof(*shard);
	struct shard_info *more = realloc(split->shard, size);

	if (!more)
		return fail_memory(err, "list of shards", size);
	more[split->shards++] = *shard;
	split->shard = more;
	return OK;
}

void dataset_free(struct dataset *d)
{
	for (int s = 0; s < SPLITS; s++)
		free(d->split[s].shard);
	*d = (struct dataset){ 0 };
}

const struct shard_info *dataset_find(const struct dataset *d, const char *file)
{
	for (int s = 0; s < SPLITS; s++)
		for (size_t i = 0; i < d->split[s].shards; i++)
			if (!strcmp(d->split[s].shard[i].file, file))
				return &d->split[s].shard[i];
	return NULL;
}

/* ---------------------------------------------------------------- writing */

/* cJSON's functions pass NULL on: without memory, the text at the end is NULL. */
static void put_split(cJSON *root, const struct dataset *d, enum data_split s)
{
	cJSON *object = cJSON_AddObjectToObject(root, split_name(s));
	cJSON *list;

	cJSON_AddNumberToObject(object, "documents", (double)d->split[s].documents);
	cJSON_AddNumberToObject(object, "bytes", (double)d->split[s].bytes);
	cJSON_AddNumberToObject(object, "tokens", (double)d->split[s].tokens);
	list = cJSON_AddArrayToObject(object, "shards");
	for (size_t i = 0; i < d->split[s].shards; i++) {
		const struct shard_info *shard = &d->split[s].shard[i];
		cJSON *item = cJSON_CreateObject();

		cJSON_AddStringToObject(item, "file", shard->file);
		cJSON_AddNumberToObject(item, "tokens", (double)shard->tokens);
		cJSON_AddStringToObject(item, "sha256", shard->sha256);
		cJSON_AddItemToArray(list, item);
	}
}

static void put_components(cJSON *root, const struct dataset *d)
{
	cJSON *list = d->components ? cJSON_AddArrayToObject(root, "components") : NULL;

	for (size_t i = 0; i < d->components; i++) {
		cJSON *item = cJSON_CreateObject();

		cJSON_AddStringToObject(item, "name", d->component[i].name);
		for (enum data_split s = 0; s < SPLITS; s++)
			cJSON_AddNumberToObject(item, split_name(s),
						(double)d->component[i].tokens[s]);
		cJSON_AddItemToArray(list, item);
	}
}

static char *format(const struct dataset *d)
{
	cJSON *root = cJSON_CreateObject(), *object;
	char *text;

	cJSON_AddStringToObject(root, "format", FORMAT);
	object = cJSON_AddObjectToObject(root, "tokenizer");
	cJSON_AddStringToObject(object, "kind", d->tokenizer);
	cJSON_AddStringToObject(object, "file", d->tokenizer_file);
	cJSON_AddStringToObject(object, "unicode", d->unicode);
	cJSON_AddNumberToObject(root, "vocabulary", d->vocabulary);
	cJSON_AddNumberToObject(root, "end_of_text", d->end_of_text);
	cJSON_AddStringToObject(root, "end_of_text_policy", POLICY);
	object = cJSON_AddObjectToObject(root, "source");
	cJSON_AddNumberToObject(object, "files", (double)d->source_files);
	cJSON_AddNumberToObject(object, "bytes", (double)d->source_bytes);
	cJSON_AddStringToObject(object, "sha256", d->source_sha256);
	cJSON_AddStringToObject(root, "split_by", d->divided ? "place" : "document");
	cJSON_AddNumberToObject(root, "valid_share", d->valid_share);
	if (d->duplicates + d->leaks > 0) {
		object = cJSON_AddObjectToObject(root, "left_out");
		cJSON_AddNumberToObject(object, "duplicates", (double)d->duplicates);
		cJSON_AddNumberToObject(object, "leaks", (double)d->leaks);
	}
	put_components(root, d);
	for (enum data_split s = 0; s < SPLITS; s++)
		put_split(root, d, s);
	text = cJSON_Print(root);
	cJSON_Delete(root);
	return text;
}

static char *path_in(const char *directory)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, DATASET_FILE) < 0 ? NULL : path;
}

enum status dataset_write(const struct dataset *d, const char *directory, struct error *err)
{
	char *text = format(d), *path = path_in(directory);
	enum status status = FAIL;

	if (text && path)
		status = file_write(path, text, strlen(text), err);
	else
		fail(err, "%s/%s: out of memory", directory, DATASET_FILE);
	free(path);
	free(text);
	return status;
}

/* ---------------------------------------------------------------- reading */

static enum status get_number(const cJSON *object, const char *name, double least, double most,
			      double *value, struct error *err)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsNumber(item))
		return fail(err, "\"%s\" is missing or not a number", name);
	if (!(item->valuedouble >= least && item->valuedouble <= most))
		return fail(err, "\"%s\" is out of range", name);
	*value = item->valuedouble;
	return OK;
}

static enum status get_count(const cJSON *object, const char *name, uint64_t *value,
			     struct error *err)
{
	double number = 0;

	/* JSON numbers are exact up to 2^53. */
	if (get_number(object, name, 0, 0x1p53, &number, err))
		return FAIL;
	if (number != floor(number))
		return fail(err, "\"%s\" is not a whole number", name);
	*value = (uint64_t)number;
	return OK;
}

static enum status get_text(const cJSON *object, const char *name, char *text, size_t room,
			    struct error *err)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsString(item) || strlen(item->valuestring) >= room)
		return fail(err, "\"%s\" is missing, not a string, or too long", name);
	strcpy(text, item->valuestring);
	return OK;
}

/* A name is that of a file in the same directory. */
static enum status get_file(const cJSON *object, const char *name, char *text, struct error *err)
{
	if (get_text(object, name, text, DATASET_NAME_SIZE, err))
		return FAIL;
	if (strchr(text, '/') || text[0] == '.')
		return fail(err, "\"%s\" is not a plain file name", name);
	return OK;
}

static enum status get_shard(const cJSON *item, struct split_info *split, struct error *err)
{
	struct shard_info shard;

	if (get_file(item, "file", shard.file, err) ||
	    get_count(item, "tokens", &shard.tokens, err) ||
	    get_text(item, "sha256", shard.sha256, sizeof(shard.sha256), err))
		return FAIL;
	return split_add_shard(split, &shard, err);
}

static enum status get_split(const cJSON *root, const char *name, struct split_info *split,
			     struct error *err)
{
	const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, name);
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, "shards"), *item;

	if (!cJSON_IsArray(list))
		return fail(err, "\"%s\" has no list of shards", name);
	cJSON_ArrayForEach (item, list) {
		if (get_shard(item, split, err))
			return fail_prefix(err, "\"%s\"", name);
	}
	if (get_count(object, "documents", &split->documents, err) ||
	    get_count(object, "bytes", &split->bytes, err) ||
	    get_count(object, "tokens", &split->tokens, err))
		return fail_prefix(err, "\"%s\"", name);
	return OK;
}

/* A name becomes part of the names of metrics. */
static enum status get_component(const cJSON *item, struct dataset *d, struct error *err)
{
	struct component_info *c = &d->component[d->components];

	if (d->components == DATASET_COMPONENTS)
		return fail(err, "more than %d components", DATASET_COMPONENTS);
	if (get_text(item, "name", c->name, sizeof(c->name), err))
		return FAIL;
	if (!component_name_fits(c->name))
		return fail(err, "\"name\" of a component: letters, digits and _");
	for (enum data_split s = 0; s < SPLITS; s++)
		if (get_count(item, split_name(s), &c->tokens[s], err))
			return FAIL;
	d->components++;
	return OK;
}

/* None in files of earlier versions. */
static enum status get_components(const cJSON *root, struct dataset *d, struct error *err)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "components"), *item;

	cJSON_ArrayForEach (item, list) {
		if (get_component(item, d, err))
			return fail_prefix(err, "\"components\"");
	}
	for (enum data_split s = 0; s < SPLITS && d->components; s++) {
		uint64_t tokens = 0;

		for (size_t i = 0; i < d->components; i++)
			tokens += d->component[i].tokens[s];
		if (tokens != d->split[s].tokens)
			return fail(err, "\"components\": not the tokens of \"%s\"", split_name(s));
	}
	return OK;
}

static enum status get_head(const cJSON *root, struct dataset *d, struct error *err)
{
	const cJSON *tokenizer = cJSON_GetObjectItemCaseSensitive(root, "tokenizer");
	const cJSON *source = cJSON_GetObjectItemCaseSensitive(root, "source");
	double vocabulary = 0, end_of_text = 0;
	char text[DATASET_NAME_SIZE];

	if (get_text(root, "format", text, sizeof(text), err))
		return FAIL;
	if (strcmp(text, FORMAT))
		return fail(err, "the format is \"%s\", not \"%s\"", text, FORMAT);
	if (get_text(tokenizer, "kind", d->tokenizer, sizeof(d->tokenizer), err) ||
	    get_file(tokenizer, "file", d->tokenizer_file, err) ||
	    get_text(tokenizer, "unicode", d->unicode, sizeof(d->unicode), err) ||
	    get_number(root, "vocabulary", 1, UINT16_MAX, &vocabulary, err) ||
	    get_number(root, "end_of_text", -1, UINT16_MAX, &end_of_text, err) ||
	    get_count(source, "files", &d->source_files, err) ||
	    get_count(source, "bytes", &d->source_bytes, err) ||
	    get_text(source, "sha256", d->source_sha256, sizeof(d->source_sha256), err) ||
	    get_text(root, "split_by", text, sizeof(text), err) ||
	    get_number(root, "valid_share", 0, 1, &d->valid_share, err))
		return FAIL;
	d->vocabulary = (uint32_t)vocabulary;
	d->end_of_text = (int32_t)end_of_text;
	d->divided = !strcmp(text, "place");
	return OK;
}

enum status dataset_parse(const uint8_t *json, size_t size, struct dataset *d, struct error *err)
{
	enum status status;
	cJSON *root;

	*d = (struct dataset){ 0 };
	if (json_parse(json, size, &root, err))
		return FAIL;
	status = get_head(root, d, err);
	for (enum data_split s = 0; s < SPLITS && !status; s++)
		status = get_split(root, split_name(s), &d->split[s], err);
	if (!status)
		status = get_components(root, d, err);
	cJSON_Delete(root);
	if (status)
		dataset_free(d);
	return status;
}

enum status dataset_read(const char *directory, struct dataset *d, struct error *err)
{
	char *path = path_in(directory);
	enum status status = FAIL;
	struct mapping file;

	if (!path)
		return fail_memory(err, directory, strlen(directory));
	if (!file_map(path, &file, err)) {
		status = dataset_parse(file.data, file.size, d, err);
		if (status)
			fail_prefix(err, "%s", path);
		file_unmap(&file);
	}
	free(path);
	return status;
}
