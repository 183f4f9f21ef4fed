/*
 * kind - what each kind of tokenizer provides to data/tokenizer/tokenizer.c.
 */
#ifndef DATA_TOKENIZER_KIND_H
#define DATA_TOKENIZER_KIND_H

#include "data/tokenizer/intern.h"
#include "data/tokenizer/tokenizer.h"

struct tokenizer_kind {
	const char *name, *file_name;
	/* Memory for one encoder; NULL: this kind needs none. */
	void *(*memory_new)(void);
	void (*memory_free)(void *memory);
	/* ids has room for one id per byte. */
	enum status (*encode)(const struct tokenizer *t, void *memory, const uint8_t *text,
			      size_t size, struct ids *ids, struct error *err);
	/* The text of its file, from malloc(). */
	enum status (*format)(const struct tokenizer *t, char **text, size_t *size,
			      struct error *err);
	void (*free)(struct tokenizer *t);
};

/* The first member of every kind's own struct. */
struct tokenizer {
	const struct tokenizer_kind *kind;
	struct strings tokens; /* number = id */
	int32_t end_of_text;
};

/* Add a token as the next id; its bytes must be new. */
enum status tokenizer_add(struct tokenizer *t, const uint8_t *bytes, size_t size,
			  struct error *err) MUST_CHECK;
/* Add the end of text, which has no bytes. */
enum status tokenizer_add_end_of_text(struct tokenizer *t, struct error *err) MUST_CHECK;

enum status bytes_new(struct tokenizer **t, struct error *err) MUST_CHECK;

#endif
