#include "data/tokenizer/bpe_train.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/heap.h"

/* A pair that occurs once would make a token that nothing else uses. */
enum { LEAST_COUNT = 2 };

/* ---------------------------------------------------------------- counting words */

static enum status count_word(struct word_counts *c, const uint8_t *word, size_t size,
			      uint64_t times, struct error *err)
{
	uint32_t number = strings_add(&c->words, word, size);

	if (number == INTERN_NONE)
		return fail_memory(err, "words", size);
	if (number >= c->room) {
		size_t room = c->room ? 2 * c->room : 1024;
		uint64_t *count = realloc(c->count, room * sizeof(*count));

		if (!count)
			return fail_memory(err, "words", room * sizeof(*count));
		memset(count + c->room, 0, (room - c->room) * sizeof(*count));
		c->count = count;
		c->room = room;
	}
	c->count[number] += times;
	return OK;
}

enum status word_counts_add(struct word_counts *c, const struct split *split, const uint8_t *text,
			    size_t size, struct error *err)
{
	const uint8_t *end = text + size, *next;

	for (; text < end; text = next) {
		next = split_next(split, text, end);
		if (count_word(c, text, (size_t)(next - text), 1, err))
			return FAIL;
	}
	return OK;
}

enum status word_counts_merge(struct word_counts *c, const struct word_counts *from,
			      struct error *err)
{
	for (uint32_t i = 0; i < from->words.count; i++)
		if (count_word(c, strings_at(&from->words, i), strings_size(&from->words, i),
			       from->count[i], err))
			return FAIL;
	return OK;
}

void word_counts_free(struct word_counts *c)
{
	strings_free(&c->words);
	free(c->count);
	*c = (struct word_counts){ 0 };
}

/* ---------------------------------------------------------------- merging pairs */

struct word {
	uint64_t count;
	size_t start;  /* of its ids */
	size_t length; /* ids left */
};

/* A pair of neighbours: how often it occurs, and the list of words in which it ever did. */
struct pair_info {
	uint32_t pair, first_place;
	uint64_t count;
};

/* Place 0 ends a list. */
struct place {
	uint32_t word, next;
};

struct trainer {
	struct word *word;
	uint16_t *id;
	struct strings tokens;
	struct pairs pairs;
	struct pair_info *info; /* by the pair's number */
	struct place *place;
	struct heap queue;
	struct bpe_merge *merge;
	size_t words, merges, info_room, place_room, places, queue_room;
};

/* The array with room for one more element, or NULL without memory. */
static void *grow(void *array, size_t count, size_t *room, size_t size)
{
	size_t more = *room ? 2 * *room : 4096;
	void *new;

	if (count < *room)
		return array;
	new = realloc(array, more * size);
	if (new)
		*room = more;
	return new;
}

static struct pair_info *info_of(struct trainer *t, uint32_t pair)
{
	uint32_t before = t->pairs.count, number = pairs_add(&t->pairs, pair);
	struct pair_info *info;

	if (number == INTERN_NONE)
		return NULL;
	info = grow(t->info, number, &t->info_room, sizeof(*info));
	if (!info)
		return NULL;
	t->info = info;
	if (t->pairs.count > before)
		info[number] = (struct pair_info){ .pair = pair };
	return &info[number];
}

static enum status pair_appears(struct trainer *t, uint32_t pair, uint32_t word, struct error *err)
{
	struct pair_info *info = info_of(t, pair);
	struct place *place = grow(t->place, t->places, &t->place_room, sizeof(*place));

	if (place)
		t->place = place;
	if (!info || !place || t->places > UINT32_MAX)
		return fail(err, "training the vocabulary: out of memory");
	info->count += t->word[word].count;
	if (info->first_place && place[info->first_place].word == word)
		return OK;
	place[t->places] = (struct place){ word, info->first_place };
	info->first_place = (uint32_t)t->places++;
	return OK;
}

static void pair_vanishes(struct trainer *t, uint32_t pair, uint32_t word)
{
	struct pair_info *info = &t->info[pairs_find(&t->pairs, pair)];

	assert(info->count >= t->word[word].count);
	info->count -= t->word[word].count;
}

/* Replace every (left, right) of the word by id. */
static enum status merge_in_word(struct trainer *t, uint32_t w, struct bpe_merge merge,
				 uint16_t new, struct error *err)
{
	struct word *word = &t->word[w];
	uint16_t *id = t->id + word->start;
	size_t kept = 0;

	for (size_t i = 0; i < word->length; i++) {
		if (i + 1 == word->length || id[i] != merge.left || id[i + 1] != merge.right) {
			id[kept++] = id[i];
			continue;
		}
		pair_vanishes(t, pair_of(merge.left, merge.right), w);
		if (kept > 0) {
			pair_vanishes(t, pair_of(id[kept - 1], merge.left), w);
			if (pair_appears(t, pair_of(id[kept - 1], new), w, err))
				return FAIL;
		}
		if (i + 2 < word->length) {
			pair_vanishes(t, pair_of(merge.right, id[i + 2]), w);
			if (pair_appears(t, pair_of(new, id[i + 2]), w, err))
				return FAIL;
		}
		id[kept++] = new;
		i++;
	}
	word->length = kept;
	return OK;
}

static enum status queue_pair(struct trainer *t, const struct pair_info *info, struct error *err)
{
	struct heap_item *item;

	if (info->count < LEAST_COUNT)
		return OK;
	item = grow(t->queue.item, t->queue.count, &t->queue_room, sizeof(*item));
	if (!item)
		return fail(err, "training the vocabulary: out of memory");
	t->queue.item = item;
	heap_push(&t->queue, (struct heap_item){ ~info->count, info->pair });
	return OK;
}

static enum status queue_new_pairs(struct trainer *t, uint32_t from, struct error *err)
{
	for (uint32_t number = from; number < t->pairs.count; number++)
		if (queue_pair(t, &t->info[number], err))
			return FAIL;
	return OK;
}

/* The pair with the highest count, or NULL.  Counts only fall, so a stale entry is queued again. */
static enum status best_pair(struct trainer *t, struct pair_info **best, struct error *err)
{
	*best = NULL;
	while (t->queue.count > 0) {
		struct heap_item top = heap_pop(&t->queue);
		struct pair_info *info = &t->info[pairs_find(&t->pairs, (uint32_t)top.minor)];

		if (info->count == ~top.major) {
			*best = info;
			return OK;
		}
		if (queue_pair(t, info, err))
			return FAIL;
	}
	return OK;
}

/* The token that a merge makes; INTERN_NONE without memory. */
static uint32_t add_token(struct trainer *t, struct bpe_merge merge)
{
	size_t left = strings_size(&t->tokens, merge.left);
	size_t right = strings_size(&t->tokens, merge.right);
	uint8_t *bytes = malloc(left + right);
	uint32_t id;

	if (!bytes)
		return INTERN_NONE;
	memcpy(bytes, strings_at(&t->tokens, merge.left), left);
	memcpy(bytes + left, strings_at(&t->tokens, merge.right), right);
	id = strings_add(&t->tokens, bytes, left + right);
	free(bytes);
	return id;
}

static enum status apply(struct trainer *t, const struct pair_info *best, struct error *err)
{
	struct bpe_merge merge = { (uint16_t)(best->pair >> 16), (uint16_t)best->pair };
	uint32_t known = t->tokens.count, pairs = t->pairs.count;
	uint32_t at = best->first_place, id = add_token(t, merge);

	if (id == INTERN_NONE)
		return fail(err, "training the vocabulary: out of memory");
	if (id < known)
		return OK;
	t->merge[t->merges++] = merge;
	for (; at; at = t->place[at].next)
		if (merge_in_word(t, t->place[at].word, merge, (uint16_t)id, err))
			return FAIL;
	return queue_new_pairs(t, pairs, err);
}

static enum status start_words(struct trainer *t, const struct word_counts *c, struct error *err)
{
	uint16_t id_of[256], *next = t->id;

	bpe_byte_ids(id_of);
	for (uint32_t w = 0; w < t->words; w++) {
		const uint8_t *bytes = strings_at(&c->words, w);
		size_t size = strings_size(&c->words, w);

		t->word[w] = (struct word){ c->count[w], (size_t)(next - t->id), size };
		for (size_t i = 0; i < size; i++)
			*next++ = id_of[bytes[i]];
		for (size_t i = 0; i + 1 < size; i++)
			if (pair_appears(t, pair_of(id_of[bytes[i]], id_of[bytes[i + 1]]), w, err))
				return FAIL;
	}
	return queue_new_pairs(t, 0, err);
}

static enum status start(struct trainer *t, const struct word_counts *c, uint32_t vocabulary,
			 struct error *err)
{
	uint16_t id_of[256];
	uint8_t byte_of[256];

	t->words = c->words.count;
	t->places = 1;
	t->word = malloc((t->words + 1) * sizeof(*t->word));
	t->id = malloc((c->words.pool_used + 1) * sizeof(*t->id));
	t->merge = malloc(vocabulary * sizeof(*t->merge));
	if (!t->word || !t->id || !t->merge)
		return fail(err, "training the vocabulary: out of memory");
	bpe_byte_ids(id_of);
	for (int byte = 0; byte < 256; byte++)
		byte_of[id_of[byte]] = (uint8_t)byte;
	for (int id = 0; id < BPE_BYTES; id++)
		if (strings_add(&t->tokens, &byte_of[id], 1) == INTERN_NONE)
			return fail(err, "training the vocabulary: out of memory");
	return start_words(t, c, err);
}

static enum status train(struct trainer *t, uint32_t vocabulary, struct error *err)
{
	struct pair_info *best;

	while (t->merges + BPE_BYTES + 1 < vocabulary) {
		if (best_pair(t, &best, err))
			return FAIL;
		if (!best)
			return fail(
				err,
				"the text gives a vocabulary of %zu at most, not %u: no other pair "
				"occurs twice",
				t->merges + BPE_BYTES + 1, vocabulary);
		if (apply(t, best, err))
			return FAIL;
	}
	return OK;
}

enum status bpe_train(const struct word_counts *c, uint32_t vocabulary, struct tokenizer **t,
		      struct error *err)
{
	struct trainer trainer = { 0 };
	enum status status = FAIL;

	if (vocabulary < BPE_BYTES + 1 || vocabulary > TOKENIZER_MAX_VOCABULARY)
		return fail(err, "a vocabulary has %d to %d ids, not %u", BPE_BYTES + 1,
			    TOKENIZER_MAX_VOCABULARY, vocabulary);
	if (!start(&trainer, c, vocabulary, err) && !train(&trainer, vocabulary, err))
		status = bpe_new(trainer.merge, trainer.merges, t, err);
	free(trainer.word);
	free(trainer.id);
	free(trainer.merge);
	free(trainer.info);
	free(trainer.place);
	free(trainer.queue.item);
	pairs_free(&trainer.pairs);
	strings_free(&trainer.tokens);
	return status;
}
