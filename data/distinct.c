#include "data/distinct.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/intern.h"

/* A set of hashes with open addressing, at most half full; 0 marks a free slot. */
struct hash_set {
	uint64_t *slot, slots, count;
};

struct shingles {
	uint64_t *hash;
	size_t count, room;
};

/* The document that is being read. */
struct reader {
	uint64_t word, last[SHINGLE_WORDS],
		whole; /* hashes: of the word, of the words before it, of all */
	uint64_t words;
	struct shingles shingles;
};

struct search {
	struct input *in;
	struct distinct *found;
	struct hash_set train, valid;
	struct reader reader;
	enum data_split pass;
	size_t room; /* of found->is_left_out */
};

/* ---------------------------------------------------------------- sets */

static uint64_t *set_slot(const struct hash_set *s, uint64_t hash)
{
	uint64_t at = hash & (s->slots - 1);

	while (s->slot[at] && s->slot[at] != hash)
		at = (at + 1) & (s->slots - 1);
	return &s->slot[at];
}

static bool set_has(const struct hash_set *s, uint64_t hash)
{
	return s->slots && *set_slot(s, hash);
}

static enum status set_grow(struct hash_set *s, struct error *err)
{
	struct hash_set more = { .slots = s->slots ? 2 * s->slots : 1 << 16, .count = s->count };

	more.slot = calloc(more.slots, sizeof(*more.slot));
	if (!more.slot)
		return fail_memory(err, "shingles", more.slots * sizeof(*more.slot));
	for (uint64_t i = 0; i < s->slots; i++)
		if (s->slot[i])
			*set_slot(&more, s->slot[i]) = s->slot[i];
	free(s->slot);
	*s = more;
	return OK;
}

static enum status set_add(struct hash_set *s, uint64_t hash, struct error *err)
{
	uint64_t *slot;

	if (2 * s->count >= s->slots && set_grow(s, err))
		return FAIL;
	slot = set_slot(s, hash);
	s->count += !*slot;
	*slot = hash;
	return OK;
}

/* ---------------------------------------------------------------- the shingles of a document */

/* The finalizer of MurmurHash3, never 0. */
static uint64_t mix(uint64_t h)
{
	h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdU;
	h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53U;
	return (h ^ (h >> 33)) | 1;
}

static enum status add_shingle(struct shingles *s, uint64_t hash, struct error *err)
{
	if (s->count == s->room) {
		size_t room = s->room ? 2 * s->room : 256;
		uint64_t *more = realloc(s->hash, room * sizeof(*more));

		if (!more)
			return fail_memory(err, "shingles", room * sizeof(*more));
		s->hash = more;
		s->room = room;
	}
	s->hash[s->count++] = hash;
	return OK;
}

static enum status end_word(struct reader *r, struct error *err)
{
	uint64_t hash = 0;

	r->last[r->words++ % SHINGLE_WORDS] = r->word;
	r->whole = mix(r->whole ^ r->word);
	r->word = 0;
	if (r->words < SHINGLE_WORDS)
		return OK;
	for (uint64_t i = 0; i < SHINGLE_WORDS; i++)
		hash = hash * 0x9e3779b97f4a7c15U + r->last[(r->words + i) % SHINGLE_WORDS];
	hash = mix(hash);
	/* Bit 0 is always set; the set uses the low bits. */
	return (hash >> 32) % SHINGLE_SAMPLE ? OK : add_shingle(&r->shingles, hash, err);
}

static bool is_word(uint8_t c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c >= 0x80;
}

static enum status read_text(struct reader *r, const uint8_t *text, size_t size, struct error *err)
{
	for (size_t i = 0; i < size; i++) {
		if (is_word(text[i]))
			r->word = (r->word + text[i] + 1) * 0x100000001b3U; /* FNV's prime */
		else if (r->word && end_word(r, err))
			return FAIL;
	}
	return OK;
}

static enum status end_text(struct reader *r, struct error *err)
{
	if (r->word && end_word(r, err))
		return FAIL;
	return add_shingle(&r->shingles, mix(r->whole ^ r->words), err);
}

/* ---------------------------------------------------------------- what is left out */

static double share_in(const struct shingles *s, const struct hash_set *set)
{
	size_t known = 0;

	for (size_t i = 0; i < s->count; i++)
		known += set_has(set, s->hash[i]);
	return (double)known / (double)s->count;
}

/* The whole document is the last shingle. */
static bool is_duplicate(const struct shingles *s, const struct hash_set *set)
{
	return set_has(set, s->hash[s->count - 1]) || share_in(s, set) >= DUPLICATE_SHARE;
}

static bool is_leak(const struct shingles *s, const struct hash_set *set)
{
	return set_has(set, s->hash[s->count - 1]) || share_in(s, set) >= LEAK_SHARE;
}

static enum status judge(struct search *s, uint64_t document, struct error *err)
{
	const struct shingles *its = &s->reader.shingles;
	struct hash_set *set = s->pass == SPLIT_TRAIN ? &s->train : &s->valid;
	bool leaks = s->pass == SPLIT_VALID && is_leak(its, &s->train);
	bool again = !leaks && is_duplicate(its, set);

	s->found->leaks += leaks;
	s->found->duplicates += again;
	s->found->is_left_out[document] = leaks || again;
	for (size_t i = 0; !leaks && !again && i < its->count; i++)
		if (set_add(set, its->hash[i], err))
			return FAIL;
	return OK;
}

/* ---------------------------------------------------------------- reading */

static enum status count_document(struct search *s, struct error *err)
{
	struct distinct *d = s->found;

	if (d->documents == s->room) {
		size_t room = s->room ? 2 * s->room : 1024;
		uint8_t *more = realloc(d->is_left_out, room);

		if (!more)
			return fail_memory(err, "documents", room);
		d->is_left_out = more;
		s->room = room;
	}
	d->is_left_out[d->documents++] = 0;
	return OK;
}

static enum status read_span(struct search *s, const struct span *span, uint64_t *document,
			     struct error *err)
{
	if (span->opens && s->pass == SPLIT_TRAIN && count_document(s, err))
		return FAIL;
	*document += span->opens;
	if (span->split != s->pass)
		return OK;
	if (span->opens)
		s->reader = (struct reader){ .shingles = { s->reader.shingles.hash, 0,
							   s->reader.shingles.room } };
	if (read_text(&s->reader, span->text, span->size, err))
		return FAIL;
	if (!span->closes)
		return OK;
	return end_text(&s->reader, err) ? FAIL : judge(s, *document - 1, err);
}

static enum status read_split(struct search *s, struct error *err)
{
	struct batch *batch = calloc(1, sizeof(*batch));
	enum status status = OK;
	uint64_t document = 0;

	if (!batch)
		return fail_memory(err, "batch", sizeof(*batch));
	do {
		batch_release(batch);
		status = input_next(s->in, batch, err);
		for (size_t i = 0; i < batch->count && !status; i++)
			status = read_span(s, &batch->span[i], &document, err);
	} while (!status && batch->count > 0);
	batch_release(batch);
	free(batch);
	return status;
}

enum status distinct_find(char *const *paths, size_t count, double valid_share, struct distinct *d,
			  struct error *err)
{
	struct search s = { .found = d };
	enum status status = OK;

	*d = (struct distinct){ 0 };
	for (s.pass = SPLIT_TRAIN; s.pass < SPLITS && !status; s.pass++) {
		if (input_open(paths, count, valid_share, &s.in, err)) {
			status = FAIL;
			break;
		}
		if (!input_can_repeat(s.in))
			status = fail(
				err, "standard input cannot be read twice: --distinct needs files");
		else if (input_is_divided(s.in))
			status = fail(err, "--distinct needs several documents, not a single text");
		else
			status = read_split(&s, err);
		input_close(s.in);
	}
	free(s.train.slot);
	free(s.valid.slot);
	free(s.reader.shingles.hash);
	if (status)
		distinct_free(d);
	return status;
}

void distinct_free(struct distinct *d)
{
	free(d->is_left_out);
	*d = (struct distinct){ 0 };
}
