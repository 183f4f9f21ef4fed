#include "data/tokenizer/bpe.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/heap.h"
#include "data/tokenizer/kind.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/utf8.h"

static const char VERSION_LINE[] = "#version: 0.2\n";

/* How the file writes bytes.  A code point without a byte maps to a byte that is not its own. */
enum { CODE_POINTS = 256 + 68 };

struct alphabet {
	uint16_t code_point[256];
	uint8_t byte[CODE_POINTS];
};

struct bpe {
	struct tokenizer base;
	struct pairs merges; /* number = rank */
	struct bpe_merge *merge;
	size_t merge_room;
	struct split *split;
	struct alphabet alphabet;
	uint16_t id_of[256];
};

/*
 * An encoder remembers the ids of the words it met: one word per slot, the latest.  2^15 slots of
 * 32 bytes fit a second-level cache.  Measured with GPT-2's vocabulary, they hold 97 of 100 words
 * of 30 MB of documentation, and 93 of 100 of tiny Shakespeare's 1 MB.
 */
enum { SLOTS = 1 << 15, SLOT_BYTES = 16, SLOT_IDS = 7 };

struct slot {
	uint64_t bytes[2]; /* the word, padded with zeros */
	uint8_t size, count;
	uint16_t id[SLOT_IDS];
};

/* A word being merged: parts linked in order, each with the rank of its pair with the next. */
struct part {
	uint32_t id, rank;
	size_t previous, next;
};

struct memory {
	struct slot slot[SLOTS];
	struct part *part;
	struct heap_item *item;
	size_t room; /* parts; items are three times as many */
};

static const size_t NO_PART = SIZE_MAX;

/* ---------------------------------------------------------------- encoding */

static void *memory_new(void)
{
	return calloc(1, sizeof(struct memory));
}

static void memory_free(void *memory)
{
	struct memory *m = memory;

	free(m->part);
	free(m->item);
	free(m);
}

static enum status memory_reserve(struct memory *m, size_t parts, struct error *err)
{
	size_t room = parts < 256 ? 256 : 2 * parts;

	if (m->room >= parts)
		return OK;
	free(m->part);
	free(m->item);
	m->room = 0;
	m->part = malloc(room * sizeof(*m->part));
	m->item = malloc(3 * room * sizeof(*m->item));
	if (!m->part || !m->item)
		return fail_memory(err, "a long word",
				   room * (sizeof(*m->part) + 3 * sizeof(*m->item)));
	m->room = room;
	return OK;
}

/* Look up the pair that starts at a part, and queue it. */
static void consider(const struct bpe *b, struct part *part, struct heap *heap, size_t at)
{
	part[at].rank = INTERN_NONE;
	if (part[at].next == NO_PART)
		return;
	part[at].rank = pairs_find(&b->merges, pair_of(part[at].id, part[part[at].next].id));
	if (part[at].rank != INTERN_NONE)
		heap_push(heap, (struct heap_item){ part[at].rank, at });
}

/* Merge part `at` with the next one. */
static void merge_next(struct part *part, size_t at)
{
	size_t gone = part[at].next;

	part[at].id = BPE_BYTES + part[at].rank;
	part[at].next = part[gone].next;
	if (part[at].next != NO_PART)
		part[part[at].next].previous = at;
	part[gone].rank = INTERN_NONE;
}

static void merge_word(const struct bpe *b, struct memory *m, const uint8_t *word, size_t size)
{
	struct heap heap = { m->item, 0 };
	struct part *part = m->part;

	for (size_t i = 0; i < size; i++)
		part[i] = (struct part){ b->id_of[word[i]], INTERN_NONE, i ? i - 1 : NO_PART,
					 i + 1 < size ? i + 1 : NO_PART };
	for (size_t i = 0; i < size; i++)
		consider(b, part, &heap, i);
	while (heap.count > 0) {
		struct heap_item best = heap_pop(&heap);
		size_t at = best.minor;

		/* The pair may have changed since it was queued. */
		if (part[at].rank != best.major)
			continue;
		merge_next(part, at);
		consider(b, part, &heap, at);
		if (part[at].previous != NO_PART)
			consider(b, part, &heap, part[at].previous);
	}
}

static enum status encode_word(const struct bpe *b, struct memory *m, const uint8_t *word,
			       size_t size, struct ids *ids, struct error *err)
{
	if (memory_reserve(m, size, err))
		return FAIL;
	merge_word(b, m, word, size);
	for (size_t at = 0; at != NO_PART; at = m->part[at].next)
		ids->id[ids->count++] = (uint16_t)m->part[at].id;
	return OK;
}

/* The word as two numbers; reading 16 bytes at once is faster, if the text has them. */
static void load_word(uint64_t bytes[2], const uint8_t *word, size_t size, size_t room)
{
	bytes[0] = bytes[1] = 0;
	if (room < SLOT_BYTES) {
		memcpy(bytes, word, size);
		return;
	}
	memcpy(bytes, word, SLOT_BYTES);
	if (size <= 8)
		bytes[1] = 0;
	if (size % 8)
		bytes[size / 8] &= (1ull << 8 * (size % 8)) - 1;
}

static size_t slot_of(const uint64_t bytes[2], size_t size)
{
	/* Odd constants from the golden ratio and the square root of 3; the top bits are the best.
	 */
	uint64_t h = (bytes[0] ^ size) * 0x9e3779b97f4a7c15u;

	h = (h ^ h >> 32 ^ bytes[1]) * 0xbb67ae8584caa73bu;
	return h >> 49;
}

/* Like encode_word(), but remembers the answer. */
static enum status recall_word(const struct bpe *b, struct memory *m, const uint8_t *word,
			       size_t size, size_t room, struct ids *ids, struct error *err)
{
	size_t before = ids->count;
	uint64_t bytes[2];
	struct slot *slot;

	if (size > SLOT_BYTES)
		return encode_word(b, m, word, size, ids, err);
	load_word(bytes, word, size, room);
	slot = &m->slot[slot_of(bytes, size)];
	if (slot->size == size && slot->bytes[0] == bytes[0] && slot->bytes[1] == bytes[1]) {
		for (size_t i = 0; i < slot->count; i++)
			ids->id[before + i] = slot->id[i];
		ids->count += slot->count;
		return OK;
	}
	if (encode_word(b, m, word, size, ids, err))
		return FAIL;
	if (ids->count - before <= SLOT_IDS) {
		slot->bytes[0] = bytes[0];
		slot->bytes[1] = bytes[1];
		slot->size = (uint8_t)size;
		slot->count = (uint8_t)(ids->count - before);
		memcpy(slot->id, ids->id + before, slot->count * sizeof(*slot->id));
	}
	return OK;
}

static enum status bpe_encode(const struct tokenizer *t, void *memory, const uint8_t *text,
			      size_t size, struct ids *ids, struct error *err)
{
	const struct bpe *b = (const struct bpe *)t;
	const uint8_t *p = text, *end = text + size, *next;

	static_assert(SLOTS == 1 << (64 - 49), "slot_of() keeps as many bits");
	for (; p < end; p = next) {
		next = split_next(b->split, p, end);
		if (recall_word(b, memory, p, (size_t)(next - p), (size_t)(end - p), ids, err))
			return FAIL;
	}
	return OK;
}

/* ---------------------------------------------------------------- the vocabulary */

static bool stands_for_itself(int byte)
{
	return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

static void alphabet_init(struct alphabet *a)
{
	uint16_t next = 0x100;

	for (int byte = 0; byte < 256; byte++) {
		a->code_point[byte] = stands_for_itself(byte) ? (uint16_t)byte : next++;
		a->byte[a->code_point[byte]] = (uint8_t)byte;
	}
	assert(next == CODE_POINTS);
}

void bpe_byte_ids(uint16_t id_of[256])
{
	uint16_t id = 0;

	for (int byte = 0; byte < 256; byte++)
		if (stands_for_itself(byte))
			id_of[byte] = id++;
	for (int byte = 0; byte < 256; byte++)
		if (!stands_for_itself(byte))
			id_of[byte] = id++;
}

static void bpe_free(struct tokenizer *t)
{
	struct bpe *b = (struct bpe *)t;

	pairs_free(&b->merges);
	free(b->merge);
	split_free(b->split);
	free(b);
}

/* Two code points of at most two bytes for each byte of both sides, a space and a line end. */
static size_t formatted_size(const struct bpe *b)
{
	size_t size = sizeof(VERSION_LINE);

	for (uint32_t rank = 0; rank < b->merges.count; rank++)
		size += 2 * strings_size(&b->base.tokens, BPE_BYTES + rank) + 2;
	return size;
}

static size_t put_token(const struct bpe *b, uint32_t id, char *out)
{
	const uint8_t *bytes = strings_at(&b->base.tokens, id);
	size_t used = 0;

	for (size_t i = 0; i < strings_size(&b->base.tokens, id); i++)
		used += utf8_put(b->alphabet.code_point[bytes[i]], (uint8_t *)out + used);
	return used;
}

static enum status bpe_format(const struct tokenizer *t, char **text, size_t *size,
			      struct error *err)
{
	const struct bpe *b = (const struct bpe *)t;
	size_t room = formatted_size(b), used = sizeof(VERSION_LINE) - 1;
	char *out = malloc(room);

	if (!out)
		return fail_memory(err, "merges file", room);
	memcpy(out, VERSION_LINE, used);
	for (uint32_t rank = 0; rank < b->merges.count; rank++) {
		used += put_token(b, b->merge[rank].left, out + used);
		out[used++] = ' ';
		used += put_token(b, b->merge[rank].right, out + used);
		out[used++] = '\n';
	}
	assert(used < room);
	*text = out;
	*size = used;
	return OK;
}

static const struct tokenizer_kind BPE = {
	.name = "bpe",
	.file_name = BPE_FILE,
	.memory_new = memory_new,
	.memory_free = memory_free,
	.encode = bpe_encode,
	.format = bpe_format,
	.free = bpe_free,
};

/* The 256 bytes as tokens, in the order of their ids. */
static enum status add_bytes(struct bpe *b, struct error *err)
{
	uint8_t byte_of[256];

	alphabet_init(&b->alphabet);
	bpe_byte_ids(b->id_of);
	for (int byte = 0; byte < 256; byte++)
		byte_of[b->id_of[byte]] = (uint8_t)byte;
	for (int id = 0; id < BPE_BYTES; id++)
		if (tokenizer_add(&b->base, &byte_of[id], 1, err))
			return FAIL;
	return OK;
}

static enum status bpe_start(struct bpe **b, struct error *err)
{
	struct bpe *new = calloc(1, sizeof(*new));

	if (!new)
		return fail_memory(err, "tokenizer", sizeof(*new));
	new->base.kind = &BPE;
	if (add_bytes(new, err)) {
		tokenizer_close(&new->base);
		return FAIL;
	}
	*b = new;
	return OK;
}

/* Everything after the merges; the classes of Unicode come last because they take the longest. */
static enum status bpe_finish(struct bpe *b, struct error *err)
{
	if (tokenizer_add_end_of_text(&b->base, err))
		return FAIL;
	return split_new(&b->split, err);
}

static enum status add_merge(struct bpe *b, struct bpe_merge merge, struct error *err)
{
	size_t left = strings_size(&b->base.tokens, merge.left);
	size_t right = strings_size(&b->base.tokens, merge.right);
	uint32_t rank = b->merges.count;
	enum status status;
	uint8_t *joined;

	if (rank == b->merge_room) {
		size_t room = rank ? 2 * (size_t)rank : 1024;
		void *more = realloc(b->merge, room * sizeof(*b->merge));

		if (!more)
			return fail_memory(err, "merges", room * sizeof(*b->merge));
		b->merge = more;
		b->merge_room = room;
	}
	joined = malloc(left + right);
	if (!joined)
		return fail_memory(err, "a token", left + right);
	memcpy(joined, strings_at(&b->base.tokens, merge.left), left);
	memcpy(joined + left, strings_at(&b->base.tokens, merge.right), right);
	status = tokenizer_add(&b->base, joined, left + right, err);
	free(joined);
	if (status)
		return FAIL;
	b->merge[rank] = merge;
	if (pairs_add(&b->merges, pair_of(merge.left, merge.right)) == INTERN_NONE)
		return fail_memory(err, "merges", sizeof(merge));
	return OK;
}

enum status bpe_new(const struct bpe_merge *merge, size_t count, struct tokenizer **t,
		    struct error *err)
{
	struct bpe *b;

	if (bpe_start(&b, err))
		return FAIL;
	for (size_t i = 0; i < count; i++) {
		assert(merge[i].left < BPE_BYTES + i && merge[i].right < BPE_BYTES + i);
		if (add_merge(b, merge[i], err))
			goto close_tokenizer;
	}
	if (bpe_finish(b, err))
		goto close_tokenizer;
	*t = &b->base;
	return OK;
close_tokenizer:
	tokenizer_close(&b->base);
	return FAIL;
}

/* Bytes of a token that an error shows; a line may be longer than an int can count. */
enum { SHOWN = 100 };

/* The id of one side of a merge; bytes has room for it. */
static enum status read_token(const struct bpe *b, const uint8_t *from, const uint8_t *to,
			      uint8_t *bytes, uint16_t *id, struct error *err)
{
	const struct alphabet *a = &b->alphabet;
	uint32_t number;
	const uint8_t *p = from;
	size_t size = 0;

	while (p < to) {
		uint32_t symbol = utf8_next(&p, to);

		if (symbol >= CODE_POINTS || a->code_point[a->byte[symbol]] != symbol)
			return fail(err, "U+%04X stands for no byte", symbol);
		bytes[size++] = a->byte[symbol];
	}
	number = strings_find(&b->base.tokens, bytes, size);
	if (number == INTERN_NONE)
		return fail(err, "no earlier line makes \"%.*s\"",
			    to - from < SHOWN ? (int)(to - from) : SHOWN, (char *)from);
	*id = (uint16_t)number;
	return OK;
}

static enum status read_line(struct bpe *b, const uint8_t *line, const uint8_t *end, uint8_t *bytes,
			     struct error *err)
{
	const uint8_t *space = memchr(line, ' ', (size_t)(end - line));
	struct bpe_merge merge;

	if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
		return fail(err, "not two tokens with a space between them");
	if (read_token(b, line, space, bytes, &merge.left, err) ||
	    read_token(b, space + 1, end, bytes, &merge.right, err))
		return FAIL;
	return add_merge(b, merge, err);
}

/* The last byte is a newline. */
static enum status read_lines(struct bpe *b, const uint8_t *p, const uint8_t *end,
			      struct error *err)
{
	uint8_t *bytes = malloc((size_t)(end - p) + 1);
	enum status status = OK;
	size_t line = 2;

	if (!bytes)
		return fail_memory(err, "merges file", (size_t)(end - p) + 1);
	for (; p < end && !status; line++) {
		const uint8_t *stop = memchr(p, '\n', (size_t)(end - p));

		status = read_line(b, p, stop, bytes, err);
		if (status)
			fail_prefix(err, "line %zu", line);
		p = stop + 1;
	}
	free(bytes);
	return status;
}

enum status bpe_parse(const uint8_t *file, size_t size, struct tokenizer **t, struct error *err)
{
	size_t head = sizeof(VERSION_LINE) - 1;
	struct bpe *b;

	if (size < head || memcmp(file, VERSION_LINE, head))
		return fail(err, "not a merges file: the first line is not \"#version: 0.2\"");
	/* A part of a token can also be a token, so only the newline shows that a line is whole. */
	if (file[size - 1] != '\n')
		return fail(err, "the merges are cut off: the last line has no end; "
				 "get the file again");
	if (bpe_start(&b, err))
		return FAIL;
	if (read_lines(b, file + head, file + size, err) || bpe_finish(b, err)) {
		tokenizer_close(&b->base);
		return FAIL;
	}
	*t = &b->base;
	return OK;
}
