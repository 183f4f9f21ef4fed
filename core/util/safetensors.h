/*
 * safetensors - tensors in a file: weights, checkpoints, test vectors.
 *
 *     u64 N, little-endian | N bytes of JSON | buffer
 *     JSON: { "__metadata__": { KEY: TEXT, .. },
 *             NAME: { "dtype": "F32", "shape": [..], "data_offsets": [begin, end] }, .. }
 *
 * Offsets count from the start of the buffer, which the tensors fill without
 * holes or overlap.  A file that breaks a rule of the format is refused; the
 * only liberty is a header that is not padded to a multiple of 8 bytes.
 *
 * A file may state its own SHA-256 in its metadata: of all its bytes, with zeros for
 * the digits of the hash.  Then one changed byte is noticed even if the file was moved.
 */
#ifndef CORE_UTIL_SAFETENSORS_H
#define CORE_UTIL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"
#include "core/util/dtype.h"

#define SAFETENSORS_MAX_DIMS 8
#define SAFETENSORS_HASH "file_sha256" /* key in the metadata */
#define SAFETENSORS_NO_HASH "0000000000000000000000000000000000000000000000000000000000000000"

enum safetensors_type {
	ST_BOOL,
	ST_U8,
	ST_I8,
	ST_I16,
	ST_U16,
	ST_F16,
	ST_BF16,
	ST_I32,
	ST_U32,
	ST_F32,
	ST_F64,
	ST_I64,
	ST_U64,
	ST_TYPES
};

struct safetensors_tensor {
	const char *name;
	enum safetensors_type type;
	int ndim; /* 0: a scalar */
	int64_t dim[SAFETENSORS_MAX_DIMS];
	const void *data; /* elements; those of a file that was read may be unaligned */

	/* For writing, if data is NULL: puts `size` bytes, from byte `offset` on, into `buffer`. */
	enum status (*fill)(void *context, size_t offset, size_t size, void *buffer,
			    struct error *err);
	void *context;
};

struct safetensors_pair {
	const char *key, *value;
};

/* A file that was read; names, texts and elements live until safetensors_close(). */
struct safetensors {
	struct safetensors_tensor *tensors; /* in the order of their data */
	struct safetensors_pair *metadata;
	int count, pairs;

	struct cJSON *header; /* owns the texts */
	const char *bytes;    /* the whole file */
	size_t size;
	void *mapping;
	size_t mapped;
};

enum status safetensors_open(struct safetensors *file, const char *path,
			     struct error *err) MUST_CHECK;

/* As safetensors_open(), for bytes in memory that the caller keeps. */
enum status safetensors_parse(struct safetensors *file, const void *bytes, size_t size,
			      struct error *err) MUST_CHECK;
void safetensors_close(struct safetensors *file);

/* FAIL if the file states its hash, and has another one. */
enum status safetensors_check(const struct safetensors *file, struct error *err) MUST_CHECK;

/* NULL when there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

enum safetensors_type safetensors_type_of(enum dtype type);
int64_t safetensors_elements(const struct safetensors_tensor *t);
size_t safetensors_bytes(const struct safetensors_tensor *t);

/* Holds a tensor of F32 or F64 neither NaN nor infinity?  Other types are not looked at. */
bool safetensors_is_finite(const struct safetensors_tensor *t);

/* All elements of a tensor that was read, as doubles. */
void safetensors_read_double(const struct safetensors_tensor *t, double *out);

/*
 * Replace the file at `path`; on failure the old one, if any, is still there.  The metadata may
 * hold SAFETENSORS_HASH with SAFETENSORS_NO_HASH: the file then states its hash.
 */
enum status safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
			      const struct safetensors_pair *metadata, int pairs,
			      struct error *err) MUST_CHECK;

#endif
