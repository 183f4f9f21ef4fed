/*
 * input - the documents of text files, directories and JSON lines, in pieces for many threads.
 *
 * A text file is one document; so is each line of a .jsonl file (its field "text").  A directory
 * stands for its files and directories, sorted by name, without hidden files.  "-" is JSON lines
 * from standard input.  Empty documents are skipped.
 *
 * A document belongs to validation if a hash of its bytes, taken as a fraction, is below the wanted
 * share.  So neither the order nor the number of other documents matters, and equal documents stay
 * together.  A single text file is divided instead: its last part of that size is validation.
 */
#ifndef DATA_INPUT_H
#define DATA_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/util/hash.h"
#include "core/util/status.h"

enum data_split { SPLIT_TRAIN, SPLIT_VALID, SPLITS };

struct document;

/* A piece of a document, cut where the cut changes no token (split_cut()). */
struct span {
	const uint8_t *text;
	size_t size;
	size_t offset; /* in its document */
	enum data_split split;
	bool opens, closes; /* the first, the last of its document */
	size_t given;	    /* the number of the path it was found under */
	struct document *document;
};

/* Enough work for many threads, little enough to wait for. */
enum { BATCH_SPANS = 256, SPAN_BYTES = 1 << 16 };

struct batch {
	struct span span[BATCH_SPANS];
	size_t count;
};

struct input;

enum status input_open(char *const *paths, size_t count, double valid_share, struct input **in,
		       struct error *err) MUST_CHECK;
void input_close(struct input *in);

/*
 * Standard input must end with the line INPUT_END: it tells the end of the text from a writer
 * that died.
 */
#define INPUT_END "{\"end\": true}\n"
void input_expect_end(struct input *in);

/* Skip the documents, numbered in the order of the input, that are marked; the caller keeps the
 * marks. */
void input_leave_out(struct input *in, const uint8_t *is_left_out);

/* The next spans; none at the end.  Release every batch, also after a failure. */
enum status input_next(struct input *in, struct batch *batch, struct error *err) MUST_CHECK;
void batch_release(struct batch *batch);

/* Put the origin of a span before the error text already stored; returns FAIL. */
enum status span_fail(const struct span *span, struct error *err);

bool input_is_divided(const struct input *in); /* a single text file */
bool input_can_repeat(const struct input *in); /* no standard input */
double input_valid_share(const struct input *in);
size_t input_files(const struct input *in);
uint64_t input_bytes(const struct input *in); /* of all files; 0 if not known */
uint64_t input_bytes_read(const struct input *in);
/* Of all bytes read, as `cat FILES | sha256sum` gives it; once, at the end. */
void input_hash(struct input *in, char hex[SHA256_HEX_SIZE]);

/* The field "text" of one JSON line, to be freed; *text is NULL for a blank line. */
enum status jsonl_text(char *line, size_t size, uint8_t **text, size_t *text_size,
		       struct error *err) MUST_CHECK;

#endif
