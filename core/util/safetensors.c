#define _GNU_SOURCE /* memmem */
#include "core/util/safetensors.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/util/bf16.h"
#include "core/util/hash.h"
#include "core/util/replace.h"

#define LENGTH_SIZE 8
#define MAX_HEADER 100000000  /* limit of the format */
#define MAX_EXACT (1LL << 53) /* cJSON's numbers are doubles: integers below this are exact */
#define PIECE (1 << 20)	      /* bytes requested at a time when a tensor is filled by a function */
#define METADATA "__metadata__"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied as they are");

/* --------------------------------------------------------------- types */

static const struct {
	const char *name;
	size_t size;
} types[ST_TYPES] = {
	[ST_BOOL] = { "BOOL", 1 }, [ST_U8] = { "U8", 1 },   [ST_I8] = { "I8", 1 },
	[ST_I16] = { "I16", 2 },   [ST_U16] = { "U16", 2 }, [ST_F16] = { "F16", 2 },
	[ST_BF16] = { "BF16", 2 }, [ST_I32] = { "I32", 4 }, [ST_U32] = { "U32", 4 },
	[ST_F32] = { "F32", 4 },   [ST_F64] = { "F64", 8 }, [ST_I64] = { "I64", 8 },
	[ST_U64] = { "U64", 8 },
};

enum safetensors_type safetensors_type_of(enum dtype type)
{
	static const enum safetensors_type same[] = {
		[F32] = ST_F32, [F64] = ST_F64, [I32] = ST_I32
	};

	return same[type];
}

/* False if the size does not fit. */
static bool count_bytes(const struct safetensors_tensor *t, int64_t *bytes)
{
	*bytes = (int64_t)types[t->type].size;
	for (int i = 0; i < t->ndim; i++)
		if (__builtin_mul_overflow(*bytes, t->dim[i], bytes))
			return false;
	return true;
}

size_t safetensors_bytes(const struct safetensors_tensor *t)
{
	int64_t bytes;
	bool fits = count_bytes(t, &bytes);

	assert(fits);
	return fits ? (size_t)bytes : 0;
}

int64_t safetensors_elements(const struct safetensors_tensor *t)
{
	return (int64_t)(safetensors_bytes(t) / types[t->type].size);
}

/* IEEE binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static double half_value(uint16_t bits)
{
	const int exponent = bits >> 10 & 31, fraction = bits & 1023;
	double size;

	if (exponent == 31)
		size = fraction ? NAN : INFINITY;
	else if (exponent == 0)
		size = ldexp(fraction, -24);
	else
		size = ldexp(1024 + fraction, exponent - 25);
	return bits & 0x8000 ? -size : size;
}

#define CONVERT(type, expression)                                                     \
	for (int64_t i = 0; i < n; i++) {                                             \
		type x;                                                               \
                                                                                      \
		memcpy(&x, (const char *)t->data + (size_t)i * sizeof(x), sizeof(x)); \
		out[i] = (double)(expression);                                        \
	}                                                                             \
	return

void safetensors_read_double(const struct safetensors_tensor *t, double *out)
{
	const int64_t n = safetensors_elements(t);

	switch (t->type) {
	case ST_BOOL:
	case ST_U8:
		CONVERT(uint8_t, x);
	case ST_I8:
		CONVERT(int8_t, x);
	case ST_I16:
		CONVERT(int16_t, x);
	case ST_U16:
		CONVERT(uint16_t, x);
	case ST_F16:
		CONVERT(uint16_t, half_value(x));
	case ST_BF16:
		CONVERT(bf16, bf16_widen(x));
	case ST_I32:
		CONVERT(int32_t, x);
	case ST_U32:
		CONVERT(uint32_t, x);
	case ST_F32:
		CONVERT(float, x);
	case ST_F64:
		CONVERT(double, x);
	case ST_I64:
		CONVERT(int64_t, x);
	case ST_U64:
		CONVERT(uint64_t, x);
	case ST_TYPES:
		break;
	}
	assert(!"a type");
}

/* --------------------------------------------------------------- reading */

/* Where the header says that the data of a tensor lies. */
struct extent {
	struct safetensors_tensor tensor;
	int64_t begin, end;
};

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* cJSON accepts a name that occurs twice; the format forbids it. */
static enum status refuse_duplicates(const cJSON *object, struct error *err)
{
	const size_t n = (size_t)cJSON_GetArraySize(object);
	const char **names = malloc((n + 1) * sizeof(*names));
	enum status status = OK;
	const cJSON *item;
	size_t i = 0;

	if (!names)
		return fail_memory(err, "header", n * sizeof(*names));
	cJSON_ArrayForEach (item, object)
		names[i++] = item->string;
	qsort(names, n, sizeof(*names), compare_texts);
	for (i = 1; i < n && status == OK; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			status = fail(err, "the name '%s' occurs twice", names[i]);
	free(names);
	return status;
}

static bool whole_number(const cJSON *item, int64_t *value)
{
	const double x = item->valuedouble;

	if (!cJSON_IsNumber(item) || !(x >= 0 && x < (double)MAX_EXACT) || x != floor(x))
		return false;
	*value = (int64_t)x;
	return true;
}

static enum status read_type(const cJSON *item, enum safetensors_type *type, struct error *err)
{
	if (!cJSON_IsString(item))
		return fail(err, "dtype is missing or no text");
	for (int i = 0; i < ST_TYPES; i++) {
		if (strcmp(item->valuestring, types[i].name) == 0) {
			*type = (enum safetensors_type)i;
			return OK;
		}
	}
	return fail(err, "dtype '%s' is not known", item->valuestring);
}

static enum status read_shape(const cJSON *array, struct safetensors_tensor *t, struct error *err)
{
	const cJSON *item;

	if (!cJSON_IsArray(array))
		return fail(err, "shape is missing or no list");
	cJSON_ArrayForEach (item, array) {
		if (t->ndim == SAFETENSORS_MAX_DIMS)
			return fail(err, "more than %d dimensions", SAFETENSORS_MAX_DIMS);
		if (!whole_number(item, &t->dim[t->ndim]))
			return fail(err, "shape is not made of whole numbers");
		t->ndim++;
	}
	return OK;
}

static enum status read_offsets(const cJSON *array, struct extent *e, struct error *err)
{
	const cJSON *begin = cJSON_IsArray(array) ? array->child : NULL;
	const cJSON *end = begin ? begin->next : NULL;

	if (!end || end->next || !whole_number(begin, &e->begin) || !whole_number(end, &e->end))
		return fail(err, "data_offsets is not a pair of whole numbers");
	return OK;
}

static enum status read_extent(const cJSON *item, struct extent *e, struct error *err)
{
	struct safetensors_tensor *t = &e->tensor;
	int64_t bytes;

	*e = (struct extent){ .tensor.name = item->string };
	if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3)
		return fail(err, "not an object of dtype, shape and data_offsets");
	if (read_type(cJSON_GetObjectItemCaseSensitive(item, "dtype"), &t->type, err) ||
	    read_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), t, err) ||
	    read_offsets(cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), e, err))
		return FAIL;
	if (!count_bytes(t, &bytes))
		return fail(err, "the shape is too large");
	if (e->end - e->begin != bytes)
		return fail(err, "data_offsets span %lld bytes, dtype and shape need %lld",
			    (long long)(e->end - e->begin), (long long)bytes);
	return OK;
}

static int compare_extents(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* In the order of the data, each tensor begins where the one before it ends. */
static enum status check_extents(struct extent *extents, int n, int64_t size, struct error *err)
{
	int64_t at = 0;

	qsort(extents, (size_t)n, sizeof(*extents), compare_extents);
	for (int i = 0; i < n; i++) {
		if (extents[i].begin != at)
			return fail(err,
				    "tensor '%s' begins at byte %lld of the data, not %lld: %s",
				    extents[i].tensor.name, (long long)extents[i].begin,
				    (long long)at, extents[i].begin < at ? "overlap" : "hole");
		at = extents[i].end;
	}
	if (at != size)
		return fail(err, "%lld bytes of data, the header describes %lld", (long long)size,
			    (long long)at);
	return OK;
}

static enum status read_extents(const cJSON *header, struct extent *extents, int *n,
				struct error *err)
{
	const cJSON *item;

	cJSON_ArrayForEach (item, header) {
		if (strcmp(item->string, METADATA) == 0)
			continue;
		if (read_extent(item, &extents[(*n)++], err))
			return fail_prefix(err, "tensor '%s'", item->string);
	}
	return OK;
}

static enum status read_tensors(struct safetensors *file, const char *data, int64_t size,
				struct error *err)
{
	const size_t room = (size_t)cJSON_GetArraySize(file->header) + 1;
	struct extent *extents = malloc(room * sizeof(*extents));
	enum status status;

	file->tensors = malloc(room * sizeof(*file->tensors));
	if (!extents || !file->tensors) {
		free(extents);
		return fail_memory(err, "header", room * sizeof(*extents));
	}
	status = read_extents(file->header, extents, &file->count, err);
	if (status == OK)
		status = check_extents(extents, file->count, size, err);
	for (int i = 0; i < file->count && status == OK; i++) {
		file->tensors[i] = extents[i].tensor;
		file->tensors[i].data = data + extents[i].begin;
	}
	free(extents);
	return status;
}

static enum status read_metadata(struct safetensors *file, struct error *err)
{
	const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, METADATA), *item;

	if (!metadata)
		return OK;
	if (!cJSON_IsObject(metadata))
		return fail(err, METADATA " is not an object");
	if (refuse_duplicates(metadata, err))
		return fail_prefix(err, METADATA);
	file->metadata =
		malloc(((size_t)cJSON_GetArraySize(metadata) + 1) * sizeof(*file->metadata));
	if (!file->metadata)
		return fail_memory(err, METADATA, sizeof(*file->metadata));
	cJSON_ArrayForEach (item, metadata) {
		if (!cJSON_IsString(item))
			return fail(err, METADATA ": '%s' is not a text", item->string);
		file->metadata[file->pairs++] =
			(struct safetensors_pair){ item->string, item->valuestring };
	}
	return OK;
}

static enum status parse_header(struct safetensors *file, const char *text, size_t size,
				struct error *err)
{
	const char *end;

	if (size == 0 || text[0] != '{')
		return fail(err, "the header does not start with '{'");
	file->header = cJSON_ParseWithLengthOpts(text, size, &end, false);
	if (!file->header)
		return fail(err, "the header is not valid JSON near byte %lld",
			    (long long)(end - text));
	for (; end < text + size; end++)
		if (!strchr(" \t\r\n", *end) || !*end)
			return fail(err, "the header continues after its JSON");
	return refuse_duplicates(file->header, err);
}

static enum status parse(struct safetensors *file, const char *bytes, size_t size,
			 struct error *err)
{
	uint64_t header;

	if (size < LENGTH_SIZE)
		return fail(err, "%zu bytes are too few for a safetensors file", size);
	memcpy(&header, bytes, LENGTH_SIZE);
	if (header > MAX_HEADER)
		return fail(err, "a header of %llu bytes is longer than the format allows",
			    (unsigned long long)header);
	if (header > size - LENGTH_SIZE)
		return fail(err, "the file ends inside its header");
	bytes += LENGTH_SIZE;
	size -= LENGTH_SIZE;
	if (parse_header(file, bytes, header, err) || read_metadata(file, err))
		return FAIL;
	return read_tensors(file, bytes + header, (int64_t)(size - header), err);
}

enum status safetensors_parse(struct safetensors *file, const void *bytes, size_t size,
			      struct error *err)
{
	*file = (struct safetensors){ .bytes = bytes, .size = size };
	if (parse(file, bytes, size, err) == OK)
		return OK;
	safetensors_close(file);
	return FAIL;
}

static enum status map(int fd, void **memory, size_t *size, struct error *err)
{
	struct stat info;

	if (fstat(fd, &info))
		return fail_errno(err, "cannot read its size");
	if (!S_ISREG(info.st_mode))
		return fail(err, "not a regular file");
	*size = (size_t)info.st_size;
	if (*size == 0) /* nothing to map; the parser says what is wrong */
		return OK;
	*memory = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
	return *memory == MAP_FAILED ? fail_errno(err, "cannot be mapped") : OK;
}

enum status safetensors_open(struct safetensors *file, const char *path, struct error *err)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	enum status status;
	void *memory = NULL;
	size_t size = 0;

	if (fd < 0)
		return fail_errno(err, "%s", path);
	status = map(fd, &memory, &size, err);
	close(fd);
	if (status)
		return fail_prefix(err, "%s", path);
	if (safetensors_parse(file, memory, size, err)) {
		if (memory)
			munmap(memory, size);
		return fail_prefix(err, "%s", path);
	}
	file->mapping = memory;
	file->mapped = size;
	return OK;
}

void safetensors_close(struct safetensors *file)
{
	if (file->mapping)
		munmap(file->mapping, file->mapped);
	cJSON_Delete(file->header);
	free(file->metadata);
	free(file->tensors);
	*file = (struct safetensors){ 0 };
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
	for (int i = 0; i < file->count; i++)
		if (strcmp(file->tensors[i].name, name) == 0)
			return &file->tensors[i];
	return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
	for (int i = 0; i < file->pairs; i++)
		if (strcmp(file->metadata[i].key, key) == 0)
			return file->metadata[i].value;
	return NULL;
}

bool safetensors_is_finite(const struct safetensors_tensor *t)
{
	const int64_t n = t->type == ST_F32 || t->type == ST_F64 ? safetensors_elements(t) : 0;
	const size_t size = types[t->type].size;
	double wide = 0;
	float narrow = 0;

	for (int64_t i = 0; i < n; i++) { /* elements may be unaligned */
		memcpy(t->type == ST_F32 ? (void *)&narrow : (void *)&wide,
		       (const char *)t->data + (size_t)i * size, size);
		if (!isfinite(narrow) || !isfinite(wide))
			return false;
	}
	return true;
}

/* --------------------------------------------------------------- the file's own hash */

/* Where the digits of the hash begin in a header; 0: they are not there. */
static size_t find_digits(const char *header, size_t size, const char *digits)
{
	char text[sizeof(SAFETENSORS_HASH) + SHA256_HEX_SIZE + 8];
	const int length = snprintf(text, sizeof(text), "\"" SAFETENSORS_HASH "\":\"%.*s\"",
				    SHA256_HEX_SIZE, digits);
	const char *found = memmem(header, size, text, (size_t)length);

	return found ? (size_t)(found - header) + strlen("\"" SAFETENSORS_HASH "\":\"") : 0;
}

enum status safetensors_check(const struct safetensors *file, struct error *err)
{
	const char *stated = safetensors_metadata(file, SAFETENSORS_HASH);
	const size_t digits = strlen(SAFETENSORS_NO_HASH);
	char hex[SHA256_HEX_SIZE];
	struct sha256 hash;
	uint64_t header;
	size_t at = 0;

	if (!stated)
		return OK;
	memcpy(&header, file->bytes, LENGTH_SIZE);
	if (strlen(stated) == digits)
		at = find_digits(file->bytes, LENGTH_SIZE + header, stated);
	if (at) {
		sha256_init(&hash);
		sha256_add(&hash, file->bytes, at);
		sha256_add(&hash, SAFETENSORS_NO_HASH, digits);
		sha256_add(&hash, file->bytes + at + digits, file->size - at - digits);
		sha256_hex(&hash, hex);
	}
	if (at && strcmp(hex, stated) == 0)
		return OK;
	return fail(err, "it is damaged: it has another SHA-256 than it states");
}

/* --------------------------------------------------------------- writing */

typedef const struct safetensors_tensor *tensor_ref;

/* By falling alignment, then by name: if the buffer is aligned, every tensor is. */
static int compare_for_writing(const void *a, const void *b)
{
	const struct safetensors_tensor *x = *(const tensor_ref *)a, *y = *(const tensor_ref *)b;

	if (types[x->type].size != types[y->type].size)
		return types[x->type].size > types[y->type].size ? -1 : 1;
	return strcmp(x->name, y->name);
}

static tensor_ref *in_writing_order(tensor_ref tensors, int count)
{
	tensor_ref *order = malloc(((size_t)count + 1) * sizeof(*order));

	for (int i = 0; order && i < count; i++)
		order[i] = &tensors[i];
	if (order)
		qsort(order, (size_t)count, sizeof(*order), compare_for_writing);
	return order;
}

static bool add_number(cJSON *array, int64_t value)
{
	cJSON *number = cJSON_CreateNumber((double)value);

	assert(value < MAX_EXACT);
	if (cJSON_AddItemToArray(array, number))
		return true;
	cJSON_Delete(number);
	return false;
}

static bool add_tensor(cJSON *header, tensor_ref t, int64_t *at)
{
	cJSON *entry = cJSON_AddObjectToObject(header, t->name), *shape, *offsets;
	bool good;

	good = cJSON_AddStringToObject(entry, "dtype", types[t->type].name);
	shape = cJSON_AddArrayToObject(entry, "shape");
	for (int i = 0; i < t->ndim; i++)
		good &= add_number(shape, t->dim[i]);
	offsets = cJSON_AddArrayToObject(entry, "data_offsets");
	good &= shape && add_number(offsets, *at);
	*at += (int64_t)safetensors_bytes(t);
	return good && add_number(offsets, *at);
}

static bool add_metadata(cJSON *header, const struct safetensors_pair *metadata, int pairs)
{
	cJSON *object = pairs ? cJSON_AddObjectToObject(header, METADATA) : NULL;

	for (int i = 0; i < pairs; i++)
		if (!cJSON_AddStringToObject(object, metadata[i].key, metadata[i].value))
			return false;
	return true;
}

static enum status header_text(tensor_ref *order, int count,
			       const struct safetensors_pair *metadata, int pairs, char **text,
			       struct error *err)
{
	cJSON *header = cJSON_CreateObject();
	bool good = add_metadata(header, metadata, pairs);
	enum status status = OK;
	int64_t at = 0;

	for (int i = 0; i < count; i++)
		good &= add_tensor(header, order[i], &at);
	*text = NULL;
	if (header && good)
		status = refuse_duplicates(header, err);
	if (header && good && status == OK)
		*text = cJSON_PrintUnformatted(header);
	cJSON_Delete(header);
	if (status == OK && !*text)
		status = fail_memory(err, "header", (size_t)count * sizeof(cJSON));
	return status;
}

/* The stream remembers a failed write; the commit reports it. */
struct sink {
	FILE *stream;
	size_t digits; /* where those of the file's hash are; 0: it states none */
	struct sha256 hash;
};

static void put(struct sink *s, const void *data, size_t size)
{
	fwrite(data, 1, size, s->stream);
	if (s->digits)
		sha256_add(&s->hash, data, size);
}

static void write_header(struct sink *s, const char *text)
{
	const size_t size = strlen(text), padding = -size % LENGTH_SIZE;
	const uint64_t length = size + padding;

	s->digits = find_digits(text, size, SAFETENSORS_NO_HASH);
	s->digits += s->digits ? LENGTH_SIZE : 0;
	sha256_init(&s->hash);
	put(s, &length, LENGTH_SIZE);
	put(s, text, size);
	put(s, "       ", padding);
}

static enum status write_elements(struct sink *s, tensor_ref t, void *piece, struct error *err)
{
	const size_t bytes = safetensors_bytes(t);
	enum status status = OK;

	if (t->data) {
		put(s, t->data, bytes);
		return OK;
	}
	for (size_t at = 0; at < bytes && status == OK && !ferror(s->stream); at += PIECE) {
		const size_t size = bytes - at < PIECE ? bytes - at : PIECE;

		status = t->fill(t->context, at, size, piece, err);
		if (status == OK)
			put(s, piece, size);
	}
	return status;
}

/* Puts the hash in the place of its zeros. */
static enum status write_hash(struct sink *s, struct error *err)
{
	char hex[SHA256_HEX_SIZE];

	if (!s->digits || ferror(s->stream))
		return OK;
	sha256_hex(&s->hash, hex);
	if (fseeko(s->stream, (off_t)s->digits, SEEK_SET))
		return fail_errno(err, "cannot write its hash");
	fwrite(hex, 1, strlen(hex), s->stream);
	return OK;
}

static enum status write_file(const char *path, const char *header, tensor_ref *order, int count,
			      struct error *err)
{
	void *piece = malloc(PIECE);
	enum status status;
	struct replace file;
	struct sink sink;

	if (!piece)
		return fail_memory(err, path, PIECE);
	status = replace_begin(&file, path, err);
	if (status)
		goto free_piece;
	sink.stream = file.stream;
	write_header(&sink, header);
	for (int i = 0; i < count && status == OK && !ferror(file.stream); i++)
		status = write_elements(&sink, order[i], piece, err);
	if (status == OK)
		status = write_hash(&sink, err);
	if (status) {
		replace_abort(&file);
		fail_prefix(err, "%s", path);
		goto free_piece;
	}
	status = replace_commit(&file, err);
free_piece:
	free(piece);
	return status;
}

enum status safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
			      const struct safetensors_pair *metadata, int pairs, struct error *err)
{
	tensor_ref *order = in_writing_order(tensors, count);
	enum status status;
	char *header;

	if (!order)
		return fail_memory(err, path, (size_t)count * sizeof(*order));
	status = header_text(order, count, metadata, pairs, &header, err);
	if (status)
		fail_prefix(err, "%s", path);
	else
		status = write_file(path, header, order, count, err);
	cJSON_free(header);
	free(order);
	return status;
}
