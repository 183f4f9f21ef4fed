#include "tools/kablate/weights_record.h"

#include <assert.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/record/journal.h"
#include "core/train/weights.h"
#include "core/util/name.h"
#include "models/function.h"
#include "tools/kablate/vocabulary.h"

#define SYMBOL_PREFIX "CONFIG_"
#define IDENTITY "identity"
#define TOKENIZER "tokenizer"

/* -------------------------------------------------------------- our record */

static void add(struct weights_record *r, const char *key, const char *value)
{
	assert(r->n < WEIGHTS_RECORD_PAIRS);
	r->pair[r->n++] = (struct safetensors_pair){ key, value };
}

struct collector {
	struct weights_record *record;
	bool no_memory;
};

static void add_symbol(void *context, const char *name, const char *value)
{
	struct collector *x = context;
	const char *key = pool_printf(&x->record->pool, SYMBOL_PREFIX "%s", name);

	if (key)
		add(x->record, key, value);
	else
		x->no_memory = true;
}

enum status weights_record_make(struct weights_record *r, const struct config *c, int64_t vocab,
				const char *identity, struct error *err)
{
	struct collector collector = { .record = r };

	*r = (struct weights_record){ 0 };
	add(r, IDENTITY, identity);
	vocabulary_name(c, r->tokenizer);
	if (r->tokenizer[0])
		add(r, TOKENIZER, r->tokenizer);
	if (model_function(c, vocab, add_symbol, &collector, err) != OK)
		return FAIL;
	return collector.no_memory ? fail_memory(err, "record of the weights", 0) : OK;
}

void weights_record_free(struct weights_record *r)
{
	pool_free(&r->pool);
}

void weights_record_add_hash(struct weights_record *r, const char *hash)
{
	snprintf(r->hash, sizeof(r->hash), "%s", hash);
	add(r, WEIGHTS_HASH, r->hash);
}

/* ------------------------------------------------------------- comparison */

struct comparison {
	const char *path, *allow;
	void (*note)(void *context, const char *text);
	void *context;
	char differences[ERROR_TEXT_SIZE / 2];
};

static bool is_option(const char *key)
{
	return strncmp(key, SYMBOL_PREFIX, strlen(SYMBOL_PREFIX)) == 0;
}

static const char *our_value(const struct weights_record *r, const char *key)
{
	for (int i = 0; i < r->n; i++)
		if (strcmp(r->pair[i].key, key) == 0)
			return r->pair[i].value;
	return NULL;
}

/* A symbol that nobody reads is off; 1e-5 equals 0.00001. */
static bool same_value(const char *a, const char *b)
{
	double x, y;
	struct error err;

	a = a ? a : "n";
	b = b ? b : "n";
	if (strcmp(a, b) == 0)
		return true;
	return parse_real(a, &x, &err) == OK && parse_real(b, &y, &err) == OK && x == y;
}

static void add_difference(struct comparison *x, const char *key, const char *theirs,
			   const char *ours)
{
	const size_t used = strlen(x->differences);
	char text[300];

	snprintf(text, sizeof(text), "%s is %s there and %s here", key, theirs ? theirs : "not set",
		 ours ? ours : "not set");
	if (weights_allowed(x->allow, key))
		x->note(x->context, text);
	else
		snprintf(x->differences + used, sizeof(x->differences) - used, "%s%s",
			 used ? "; " : "", text);
}

static void compare_pair(struct comparison *x, const char *key, const char *theirs,
			 const char *ours)
{
	if (is_option(key) && !same_value(theirs, ours))
		add_difference(x, key, theirs, ours);
	/* Data without a tokenizer file cannot be compared. */
	if (strcmp(key, TOKENIZER) == 0 && theirs && ours && strcmp(theirs, ours) != 0)
		add_difference(x, key, theirs, ours);
}

static void compare_pairs(struct comparison *x, const struct weights_record *ours,
			  const struct safetensors *file)
{
	for (int i = 0; i < file->pairs; i++)
		compare_pair(x, file->metadata[i].key, file->metadata[i].value,
			     our_value(ours, file->metadata[i].key));
	for (int i = 0; i < ours->n; i++)
		if (!safetensors_metadata(file, ours->pair[i].key))
			compare_pair(x, ours->pair[i].key, NULL, ours->pair[i].value);
}

static enum status find_origin(const struct safetensors *file, struct weights_origin *origin,
			       struct error *err)
{
	const char *identity = safetensors_metadata(file, IDENTITY);

	*origin = (struct weights_origin){ .foreign = true };
	for (int i = 0; i < file->pairs; i++)
		origin->foreign &= !is_option(file->metadata[i].key);
	if (!identity || origin->foreign)
		return OK;
	if (identity_check(identity, err) != OK)
		return fail_prefix(err, "it is damaged");
	snprintf(origin->identity, sizeof(origin->identity), "%s", identity);
	return OK;
}

enum status weights_record_compare(const struct weights_record *ours, const char *path,
				   const char *allow, void (*note)(void *context, const char *text),
				   void *context, struct weights_origin *origin, struct error *err)
{
	struct comparison x = { path, allow, note, context, "" };
	struct safetensors file;
	char text[ERROR_TEXT_SIZE];

	if (safetensors_open(&file, path, err) != OK)
		return FAIL;
	if (safetensors_check(&file, err) != OK || find_origin(&file, origin, err) != OK) {
		safetensors_close(&file);
		return fail_prefix(err, "%s", path);
	}
	if (origin->foreign) {
		snprintf(text, sizeof(text),
			 "%.800s does not name its model: it is assumed to be this one", path);
		note(context, text);
	} else {
		compare_pairs(&x, ours, &file);
	}
	safetensors_close(&file);
	if (!x.differences[0])
		return OK;
	return fail(err, "%.300s is of another model: %s%s", path, x.differences,
		    allow ? ".  If you want that, add it to CONFIG_INIT_FROM_ALLOW" : "");
}

/* -------------------------------------------------------- the run's record */

struct search {
	const char *file;	    /* without its directory */
	char hash[SHA256_HEX_SIZE]; /* empty: not recorded */
};

static const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The last record counts. */
static enum status note_artifact(void *context, const struct entry *e, struct error *err)
{
	struct search *search = context;

	(void)err;
	if (e->kind == ENTRY_ARTIFACT && e->subject && e->text &&
	    strcmp(file_of(e->subject), search->file) == 0)
		snprintf(search->hash, sizeof(search->hash), "%s", e->text);
	return OK;
}

static enum status search_journal(const char *directory, struct search *search, struct error *err)
{
	struct record_file record;
	enum status status;
	size_t size;
	char *text;

	if (record_read(&record, directory, err) != OK)
		return FAIL;
	status = journal_read(directory, record.record.identity, &text, &size, err);
	record_free(&record);
	if (status != OK)
		return FAIL;
	status = journal_visit(text, size, 1, note_artifact, search, err);
	free(text);
	return status;
}

enum status weights_record_check(const struct params *params, const char *path, struct error *err)
{
	struct search search = { .file = file_of(path) };
	char copy[PATH_MAX], record[PATH_MAX + sizeof(RUN_RECORD_FILE)];
	char hash[SHA256_HEX_SIZE];
	const char *directory;

	snprintf(copy, sizeof(copy), "%s", path);
	directory = dirname(copy);
	snprintf(record, sizeof(record), "%s/" RUN_RECORD_FILE, directory);
	if (access(record, F_OK) != 0)
		return OK; /* a copy elsewhere */
	if (search_journal(directory, &search, err) != OK || params_hash(params, hash, err) != OK)
		return FAIL;
	if (!search.hash[0] || strcmp(search.hash, hash) == 0)
		return OK;
	return fail(
		err,
		"%s: these are not the weights that the run recorded (SHA-256 %.12s, recorded %.12s)",
		path, hash, search.hash);
}
