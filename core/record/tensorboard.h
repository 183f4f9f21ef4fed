/*
 * tensorboard - scalars in an event file that TensorBoard reads.
 *
 *     record: u64 length | u32 masked crc32c(length) | data | u32 masked crc32c(data)
 *     data:   protobuf Event { 1 double wall_time, 2 int64 step, 3 string file_version,
 *                              5 Summary { 1 Value { 1 string tag, 2 float simple_value } },
 *                              7 SessionLog { 1 status } }
 *
 * Every start writes a file of its own.  A resumed run writes a session log START
 * at its first iteration; TensorBoard then drops the points of earlier files from
 * that iteration on.
 */
#ifndef CORE_RECORD_TENSORBOARD_H
#define CORE_RECORD_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

struct tensorboard;

/* resume_iteration as in metrics_open(): of the checkpoint, or -1.  Makes the directory, not its
 * parents. */
enum status tensorboard_open(struct tensorboard **t, const char *directory,
			     int64_t resume_iteration, struct error *err) MUST_CHECK;

/* tensorboard_flush() reports a failed write. */
void tensorboard_value(struct tensorboard *t, int64_t iteration, const char *tag, double value);

/* Gives everything to the kernel: viewers find whole records, even after a kill. */
enum status tensorboard_flush(struct tensorboard *t, struct error *err) MUST_CHECK;

/* t may be NULL. */
enum status tensorboard_close(struct tensorboard *t, struct error *err);

/* CRC-32C (Castagnoli, RFC 3720 B.4). */
uint32_t crc32c(const void *data, size_t size);

#endif
