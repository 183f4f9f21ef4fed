#include "data/input.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/util/pool.h"
#include "core/util/rng.h"
#include "core/util/file.h"
#include "data/tokenizer/intern.h"
#include "core/util/json.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/utf8.h"

struct document {
	const char *path;
	size_t given;	     /* the number of the path it was found under */
	size_t line;	     /* of a JSON lines file, else 0 */
	uint8_t *text;	     /* from malloc(), or */
	struct mapping file; /* mapped */
};

struct input {
	struct pool names;
	const char **path;
	size_t *given; /* of each path: the number of the one that was given */
	size_t paths, path_room, next_path, next_given;
	const uint8_t *is_left_out;
	uint64_t documents;
	double valid_share;
	bool expects_end, ended;
	uint64_t bytes, bytes_read;
	struct sha256 hash;
	/* The JSON lines being read. */
	FILE *lines;
	char *line;
	size_t line_room, line_number;
	/* The document being cut. */
	struct document *document;
	const uint8_t *text;
	size_t size, taken, valid_from; /* what starts there is validation */
};

/* ---------------------------------------------------------------- the list of files */

static bool is_jsonl(const char *path)
{
	size_t length = strlen(path);

	return !strcmp(path, "-") || (length > 6 && !strcmp(path + length - 6, ".jsonl"));
}

static enum status add_file(struct input *in, const char *path, off_t size, struct error *err)
{
	if (in->paths == in->path_room) {
		size_t room = in->path_room ? 2 * in->path_room : 64;
		const char **more = realloc(in->path, room * sizeof(*more));
		size_t *numbers;

		if (!more)
			return fail_memory(err, "list of files", room * sizeof(*more));
		in->path = more;
		numbers = realloc(in->given, room * sizeof(*numbers));
		if (!numbers)
			return fail_memory(err, "list of files", room * sizeof(*numbers));
		in->given = numbers;
		in->path_room = room;
	}
	in->given[in->paths] = in->next_given;
	in->path[in->paths] = pool_printf(&in->names, "%s", path);
	if (!in->path[in->paths])
		return fail_memory(err, "list of files", strlen(path));
	in->paths++;
	in->bytes += (uint64_t)size;
	return OK;
}

static int is_visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static enum status add_path(struct input *in, const char *path, struct error *err);

static enum status add_directory(struct input *in, const char *path, struct error *err)
{
	enum status status = OK;
	struct dirent **entry;
	int count = scandir(path, &entry, is_visible, by_name);

	if (count < 0)
		return fail_errno(err, "cannot read directory %s", path);
	for (int i = 0; i < count; i++) {
		char *name =
			status ? NULL : pool_printf(&in->names, "%s/%s", path, entry[i]->d_name);

		if (name)
			status = add_path(in, name, err);
		else if (!status)
			status = fail_memory(err, path, sizeof(**entry));
		free(entry[i]);
	}
	free(entry);
	return status;
}

static enum status add_path(struct input *in, const char *path, struct error *err)
{
	struct stat st;

	if (!strcmp(path, "-"))
		return add_file(in, path, 0, err);
	if (stat(path, &st))
		return fail_errno(err, "cannot read %s", path);
	if (S_ISDIR(st.st_mode))
		return add_directory(in, path, err);
	if (!S_ISREG(st.st_mode))
		return fail(err, "%s is neither a file nor a directory", path);
	return add_file(in, path, st.st_size, err);
}

enum status input_open(char *const *paths, size_t count, double valid_share, struct input **in,
		       struct error *err)
{
	struct input *new = calloc(1, sizeof(*new));

	if (!new)
		return fail_memory(err, "input", sizeof(*new));
	new->valid_share = valid_share;
	sha256_init(&new->hash);
	for (size_t i = 0; i < count; i++, new->next_given++)
		if (add_path(new, paths[i], err))
			goto close_input;
	if (new->paths == 0) {
		fail(err, "no text files given");
		goto close_input;
	}
	*in = new;
	return OK;
close_input:
	input_close(new);
	return FAIL;
}

void input_leave_out(struct input *in, const uint8_t *is_left_out)
{
	in->is_left_out = is_left_out;
}

void input_expect_end(struct input *in)
{
	in->expects_end = true;
}

static void document_free(struct document *d)
{
	if (!d)
		return;
	free(d->text);
	file_unmap(&d->file);
	free(d);
}

void input_close(struct input *in)
{
	if (!in)
		return;
	document_free(in->document);
	if (in->lines && in->lines != stdin)
		fclose(in->lines);
	free(in->line);
	free(in->path);
	free(in->given);
	pool_free(&in->names);
	free(in);
}

/* ---------------------------------------------------------------- JSON lines */

/*
 * cJSON ends a string at the character NUL, which JSON writes as \u0000.  For the parser NUL
 * becomes C0 80, which is not valid UTF-8 and so occurs nowhere else.  Returns the new size.
 */
static size_t hide_nul(char *line, size_t size)
{
	size_t kept = 0;

	for (size_t i = 0; i < size; i++) {
		if (line[i] != '\\' || i + 1 == size) {
			line[kept++] = line[i];
		} else if (size - i >= 6 && !memcmp(line + i, "\\u0000", 6)) {
			memcpy(line + kept, "\xc0\x80", 2);
			kept += 2;
			i += 5;
		} else {
			line[kept++] = line[i++];
			line[kept++] = line[i];
		}
	}
	return kept;
}

static size_t show_nul(uint8_t *text)
{
	size_t size = strlen((char *)text), kept = 0;

	for (size_t i = 0; i < size; i++) {
		bool hidden = text[i] == 0xc0;

		text[kept++] = hidden ? 0 : text[i];
		i += hidden;
	}
	return kept;
}

static enum status check_utf8(const char *line, size_t size, struct error *err)
{
	const uint8_t *p = (const uint8_t *)line, *end = p + size;

	while (p < end) {
		uint32_t symbol = utf8_next(&p, end);

		if (symbol == 0 || symbol >= UTF8_RAW)
			return fail(err, "byte %zu of the line is not valid UTF-8",
				    (size_t)(p - (const uint8_t *)line));
	}
	return OK;
}

enum status jsonl_text(char *line, size_t size, uint8_t **text, size_t *text_size,
		       struct error *err)
{
	cJSON *root, *field;

	*text = NULL;
	/* strchr() finds NUL in every text. */
	while (size > 0 && line[size - 1] && strchr(" \t\r\n", line[size - 1]))
		size--;
	if (size == 0)
		return OK;
	if (check_utf8(line, size, err))
		return FAIL;
	size = hide_nul(line, size);
	if (json_parse(line, size, &root, err))
		return FAIL;
	field = cJSON_GetObjectItemCaseSensitive(root, "text");
	if (cJSON_IsString(field)) {
		*text = (uint8_t *)field->valuestring;
		field->valuestring = NULL;
		*text_size = show_nul(*text);
	} else {
		fail(err, "no field \"text\" that is a string");
	}
	cJSON_Delete(root);
	return *text ? OK : FAIL;
}

/* ---------------------------------------------------------------- documents */

static void account(struct input *in, const void *data, size_t size)
{
	sha256_add(&in->hash, data, size);
	in->bytes_read += size;
}

static enum status document_new(struct input *in, size_t line, struct error *err)
{
	in->document = calloc(1, sizeof(*in->document));
	if (!in->document)
		return fail_memory(err, "document", sizeof(*in->document));
	in->document->path = in->path[in->next_path - 1];
	in->document->given = in->given[in->next_path - 1];
	in->document->line = line;
	return OK;
}

static enum status open_lines(struct input *in, const char *path, struct error *err)
{
	in->lines = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	in->line_number = 0;
	if (!in->lines)
		return fail_errno(err, "cannot open %s", path);
	return OK;
}

static enum status close_lines(struct input *in, const char *path, struct error *err)
{
	enum status status = OK;

	if (ferror(in->lines))
		status = fail_errno(err, "cannot read %s", path);
	else if (in->lines == stdin && in->expects_end && !in->ended)
		status = fail(err, "standard input is cut off: its last line is not " INPUT_END);
	if (in->lines != stdin)
		fclose(in->lines);
	in->lines = NULL;
	return status;
}

static enum status read_line(struct input *in, struct error *err)
{
	const char *path = in->path[in->next_path - 1];
	uint8_t *text;
	ssize_t size;

	errno = 0;
	size = getline(&in->line, &in->line_room, in->lines);
	if (size < 0 && errno == ENOMEM)
		return fail_memory(err, path, in->line_room);
	if (size < 0)
		return close_lines(in, path, err);
	in->ended = in->lines == stdin && in->expects_end && !strcmp(in->line, INPUT_END);
	if (in->ended)
		return OK;
	in->line_number++;
	account(in, in->line, (size_t)size);
	if (jsonl_text(in->line, (size_t)size, &text, &in->size, err))
		return fail_prefix(err, "%s:%zu", path, in->line_number);
	if (!text)
		return OK;
	if (document_new(in, in->line_number, err)) {
		free(text);
		return FAIL;
	}
	in->document->text = text;
	in->text = text;
	return OK;
}

static enum status map_text(struct input *in, const char *path, struct error *err)
{
	if (document_new(in, 0, err) || file_map(path, &in->document->file, err))
		return FAIL;
	in->text = in->document->file.data;
	in->size = in->document->file.size;
	return OK;
}

/* A fixed function of the bytes, uniform in [0, 1). */
static double document_fraction(const uint8_t *text, size_t size)
{
	return rng_uniform(rng_key(hash_bytes(text, size), "data/validation"), 0);
}

/* Where validation starts in this document: at 0, at its end, or at a single text's last part. */
static size_t valid_start(const struct input *in)
{
	size_t at;

	if (!input_is_divided(in))
		return document_fraction(in->text, in->size) < in->valid_share ? 0 : in->size;
	at = (size_t)((double)in->size * (1.0 - in->valid_share));
	while (at < in->size && (in->text[at] & 0xc0) == 0x80)
		at++;
	return at;
}

/* Empty documents have no number. */
static bool is_wanted(struct input *in)
{
	if (in->size == 0)
		return false;
	return !in->is_left_out || !in->is_left_out[in->documents++];
}

/* Leaves in->document NULL at the end of the input. */
static enum status next_document(struct input *in, struct error *err)
{
	while (!in->document && (in->lines || in->next_path < in->paths)) {
		enum status status;

		if (in->lines)
			status = read_line(in, err);
		else if (is_jsonl(in->path[in->next_path++]))
			status = open_lines(in, in->path[in->next_path - 1], err);
		else
			status = map_text(in, in->path[in->next_path - 1], err);
		if (status)
			return FAIL;
		if (in->document && !is_wanted(in)) {
			document_free(in->document);
			in->document = NULL;
		}
	}
	in->taken = 0;
	if (in->document)
		in->valid_from = valid_start(in);
	return OK;
}

static struct span take_span(struct input *in)
{
	size_t end = in->taken < in->valid_from ? in->valid_from : in->size;
	struct span span = {
		.text = in->text + in->taken,
		.size = split_cut(in->text + in->taken, end - in->taken, SPAN_BYTES),
		.offset = in->taken,
		.split = in->taken < in->valid_from ? SPLIT_TRAIN : SPLIT_VALID,
		.opens = in->taken == 0 || in->taken == in->valid_from,
		.given = in->document->given,
		.document = in->document,
	};

	if (in->document->line == 0)
		account(in, span.text, span.size);
	in->taken += span.size;
	span.closes = in->taken == in->size;
	if (span.closes)
		in->document = NULL;
	return span;
}

enum status input_next(struct input *in, struct batch *batch, struct error *err)
{
	batch->count = 0;
	while (batch->count < BATCH_SPANS) {
		if (!in->document && next_document(in, err))
			return FAIL;
		if (!in->document)
			break;
		batch->span[batch->count++] = take_span(in);
	}
	return OK;
}

void batch_release(struct batch *batch)
{
	for (size_t i = 0; i < batch->count; i++)
		if (batch->span[i].closes)
			document_free(batch->span[i].document);
	batch->count = 0;
}

enum status span_fail(const struct span *span, struct error *err)
{
	if (span->document->line)
		return fail_prefix(err, "%s:%zu, from byte %zu of its text", span->document->path,
				   span->document->line, span->offset);
	return fail_prefix(err, "%s, from byte %zu", span->document->path, span->offset);
}

bool input_is_divided(const struct input *in)
{
	return in->paths == 1 && !is_jsonl(in->path[0]);
}

bool input_can_repeat(const struct input *in)
{
	for (size_t i = 0; i < in->paths; i++)
		if (!strcmp(in->path[i], "-"))
			return false;
	return true;
}

double input_valid_share(const struct input *in)
{
	return in->valid_share;
}

size_t input_files(const struct input *in)
{
	return in->paths;
}

uint64_t input_bytes(const struct input *in)
{
	return input_can_repeat(in) ? in->bytes : 0;
}

uint64_t input_bytes_read(const struct input *in)
{
	return in->bytes_read;
}

void input_hash(struct input *in, char hex[SHA256_HEX_SIZE])
{
	sha256_hex(&in->hash, hex);
}
