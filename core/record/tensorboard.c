#define _GNU_SOURCE /* asprintf */
#include "core/record/tensorboard.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_VERSION "brain.Event:2"
#define MAX_TEXT 256 /* longest tag; a longer one is cut */
#define MAX_EVENT (MAX_TEXT + 64)
#define CRC_MASK 0xa282ead8u /* of the TFRecord format */
#define SESSION_START 1	     /* SessionLog.SessionStatus */
#define TRIES 100	     /* to find a name that no other start took */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");

struct tensorboard {
	FILE *file;
	char *path;
};

/* --------------------------------------------------------------- protobuf */

/* The few kinds of field that an Event needs: varint, 64 bits, bytes, 32 bits. */
enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

struct message {
	uint8_t bytes[MAX_EVENT];
	size_t size;
};

static void put_varint(struct message *m, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		m->bytes[m->size++] = (uint8_t)(value | 0x80);
	m->bytes[m->size++] = (uint8_t)value;
}

static void put_raw(struct message *m, const void *data, size_t size)
{
	memcpy(m->bytes + m->size, data, size);
	m->size += size;
}

static void put_key(struct message *m, int field, enum wire wire)
{
	put_varint(m, (uint64_t)field << 3 | wire);
}

static void put_int(struct message *m, int field, int64_t value)
{
	put_key(m, field, VARINT);
	put_varint(m, (uint64_t)value);
}

static void put_double(struct message *m, int field, double value)
{
	put_key(m, field, FIXED64);
	put_raw(m, &value, sizeof(value));
}

static void put_float(struct message *m, int field, float value)
{
	put_key(m, field, FIXED32);
	put_raw(m, &value, sizeof(value));
}

static void put_bytes(struct message *m, int field, const void *data, size_t size)
{
	put_key(m, field, BYTES);
	put_varint(m, size);
	put_raw(m, data, size);
}

static void put_text(struct message *m, int field, const char *text)
{
	const size_t length = strlen(text);

	put_bytes(m, field, text, length < MAX_TEXT ? length : MAX_TEXT);
}

static void put_message(struct message *m, int field, const struct message *inner)
{
	put_bytes(m, field, inner->bytes, inner->size);
}

static struct message new_event(int64_t step)
{
	struct message event = { .size = 0 };
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	put_double(&event, 1, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
	put_int(&event, 2, step);
	return event;
}

/* --------------------------------------------------------------- records */

uint32_t crc32c(const void *data, size_t size)
{
	const uint8_t *bytes = data;
	uint32_t crc = ~0u;

	for (size_t i = 0; i < size; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++) /* 0x82f63b78: the polynomial, reflected */
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

static uint32_t masked_crc(const void *data, size_t size)
{
	const uint32_t crc = crc32c(data, size);

	return (crc >> 15 | crc << 17) + CRC_MASK;
}

static void write_record(struct tensorboard *t, const struct message *event)
{
	const uint64_t length = event->size;
	const uint32_t length_crc = masked_crc(&length, sizeof(length));
	const uint32_t data_crc = masked_crc(event->bytes, event->size);

	fwrite(&length, sizeof(length), 1, t->file);
	fwrite(&length_crc, sizeof(length_crc), 1, t->file);
	fwrite(event->bytes, event->size, 1, t->file);
	fwrite(&data_crc, sizeof(data_crc), 1, t->file);
}

static void write_version(struct tensorboard *t)
{
	struct message event = new_event(0);

	put_text(&event, 3, FILE_VERSION);
	write_record(t, &event);
}

/* Makes TensorBoard forget this step and all later ones. */
static void write_start(struct tensorboard *t, int64_t step)
{
	struct message event = new_event(step), session = { .size = 0 };

	put_int(&session, 1, SESSION_START);
	put_message(&event, 7, &session);
	write_record(t, &event);
}

void tensorboard_value(struct tensorboard *t, int64_t iteration, const char *tag, double value)
{
	struct message event = new_event(iteration), summary = { .size = 0 }, one = { .size = 0 };

	put_text(&one, 1, tag);
	put_float(&one, 2, (float)value);
	put_message(&summary, 1, &one);
	put_message(&event, 5, &summary);
	write_record(t, &event);
}

/* --------------------------------------------------------------- files */

/*
 * TensorBoard reads the files of a directory in the order of their names: a
 * start in the same second as the one before must not sort before it.
 */
static enum status create_file(struct tensorboard *t, const char *directory, struct error *err)
{
	const long long seconds = time(NULL);
	char host[256] = "";

	gethostname(host, sizeof(host) - 1);
	for (int i = 0; i < TRIES && !t->file; i++) {
		free(t->path);
		if (asprintf(&t->path, "%s/events.out.tfevents.%010lld.%s", directory, seconds + i,
			     host) < 0) {
			t->path = NULL;
			return fail_memory(err, directory, 0);
		}
		t->file = fopen(t->path, "wbxe");
		if (!t->file && errno != EEXIST)
			break;
	}
	return t->file ? OK : fail_errno(err, "%s", t->path);
}

enum status tensorboard_open(struct tensorboard **t, const char *directory,
			     int64_t resume_iteration, struct error *err)
{
	if (mkdir(directory, 0777) && errno != EEXIST)
		return fail_errno(err, "%s", directory);
	*t = calloc(1, sizeof(**t));
	if (!*t)
		return fail_memory(err, directory, sizeof(**t));
	if (create_file(*t, directory, err)) {
		free((*t)->path);
		free(*t);
		*t = NULL;
		return FAIL;
	}
	write_version(*t);
	write_start(*t, resume_iteration + 1);
	return OK;
}

enum status tensorboard_flush(struct tensorboard *t, struct error *err)
{
	if (fflush(t->file) || ferror(t->file))
		return fail_errno(err, "%s", t->path);
	return OK;
}

enum status tensorboard_close(struct tensorboard *t, struct error *err)
{
	enum status status;

	if (!t)
		return OK;
	status = tensorboard_flush(t, err);
	if (fclose(t->file) && status == OK)
		status = fail_errno(err, "%s", t->path);
	free(t->path);
	free(t);
	return status;
}
