/*
 * writer - fills a row token by token.
 *
 * Token number n of 0 .. T is the input of place n and the target of place
 * n - 1; the last token is only a target.
 */
#ifndef DATA_TASKS_WRITER_H
#define DATA_TASKS_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "data/source.h"

struct writer {
	struct row *row;
	int64_t length; /* T */
	int64_t at;	/* number of the next token */
};

struct writer writer_start(const struct source *s, struct row *row);
bool writer_full(const struct writer *w);

/* An input that is not a target; ignored when the row is full. */
void writer_put(struct writer *w, int32_t token);

/* The same, and a target of this component and cost in nats. */
void writer_put_target(struct writer *w, int32_t token, uint8_t component, double floor);

/* Marks place `place` by hand, for tasks whose target is not the next token. */
void row_target(struct row *row, int64_t place, int32_t token, uint8_t component, double floor);

#endif
