/*
 * tokenizer - text to token ids and back.
 *
 * Kinds: bytes (id = byte), characters (the Unicode characters of a given text), bpe (byte-pair
 * encoding: GPT-2's vocab.bpe or a vocabulary trained here, see data/tokenizer/bpe_train.h).  Every
 * id has its bytes; decoding joins them.  decode(encode(x)) = x for every byte string that
 * encode() accepts; bytes and bpe accept all.
 */
#ifndef DATA_TOKENIZER_TOKENIZER_H
#define DATA_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

/* Token files hold 16-bit ids. */
#define TOKENIZER_MAX_VOCABULARY 65535

struct tokenizer;

/* A list of ids that grows; start from zero. */
struct ids {
	uint16_t *id;
	size_t count, room;
};

enum status ids_reserve(struct ids *ids, size_t more, struct error *err) MUST_CHECK;
void ids_free(struct ids *ids);

/* "bytes", or the path of a merges file ("#version: 0.2") or of a characters file (JSON). */
enum status tokenizer_open(const char *what, struct tokenizer **t, struct error *err) MUST_CHECK;
void tokenizer_close(struct tokenizer *t);

/* Write the file that tokenizer_open() reads; the kind bytes has none. */
enum status tokenizer_save(const struct tokenizer *t, const char *path,
			   struct error *err) MUST_CHECK;

const char *tokenizer_kind(const struct tokenizer *t);
/* The usual name of its file, or NULL where there is none. */
const char *tokenizer_file_name(const struct tokenizer *t);
/* All ids are below it, the end of text included. */
uint32_t tokenizer_vocabulary(const struct tokenizer *t);
/* The id between documents, or -1 where there is none. */
int32_t tokenizer_end_of_text(const struct tokenizer *t);
/* The number of bytes that an id stands for; 0 for the end of text. */
size_t tokenizer_bytes(const struct tokenizer *t, uint32_t id);
/* The bytes themselves, not terminated. */
const uint8_t *tokenizer_text(const struct tokenizer *t, uint32_t id);

/* Encoding needs memory of its own: one encoder for each thread. */
struct encoder;

enum status encoder_new(const struct tokenizer *t, struct encoder **e,
			struct error *err) MUST_CHECK;
void encoder_free(struct encoder *e);

/* Append the ids of the text. */
enum status encode(struct encoder *e, const uint8_t *text, size_t size, struct ids *ids,
		   struct error *err) MUST_CHECK;

/* The bytes of the ids, *size of them; the caller frees *text. */
enum status decode(const struct tokenizer *t, const uint16_t *id, size_t count, uint8_t **text,
		   size_t *size, struct error *err) MUST_CHECK;

#endif
