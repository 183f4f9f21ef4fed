/*
 * Tests of core/util/safetensors.  `safetensors_test copy FROM TO` reads one file and writes
 * another, so that core/util/safetensors_longtest.py can compare both with another library.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/util/safetensors.h"
#include "core/util/test.h"

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))
#define PATH_SIZE 256

struct place {
	char directory[PATH_SIZE];
	char file[PATH_SIZE + 32];
};

static int make_place(void **state)
{
	struct place *place = calloc(1, sizeof(*place));

	test_template(place->directory, sizeof(place->directory), "safetensors");
	if (!mkdtemp(place->directory))
		return -1;
	snprintf(place->file, sizeof(place->file), "%s/file.safetensors", place->directory);
	*state = place;
	return 0;
}

static int remove_place(void **state)
{
	struct place *place = *state;

	unlink(place->file);
	rmdir(place->directory); /* fails, and shows, if something else was left */
	if (access(place->directory, F_OK) == 0)
		return -1;
	free(place);
	return 0;
}

/* --------------------------------------------------------------- reading */

/* A file from a header and a number of data bytes 0, 1, 2, ..; the caller frees it. */
static unsigned char *build(const char *header, size_t data, size_t *size)
{
	const uint64_t length = strlen(header);
	unsigned char *bytes;

	*size = 8 + length + data;
	bytes = malloc(*size);
	memcpy(bytes, &length, 8);
	memcpy(bytes + 8, header, length);
	for (size_t i = 0; i < data; i++)
		bytes[8 + length + i] = (unsigned char)i;
	return bytes;
}

static enum status parse_text(struct safetensors *file, unsigned char **bytes, const char *header,
			      size_t data, struct error *err)
{
	size_t size;

	*bytes = build(header, data, &size);
	return safetensors_parse(file, *bytes, size, err);
}

#define A(offsets) "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
#define B(offsets) "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
#define SHAPE(shape) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0,8]}}"
#define TYPE(dtype) "{\"a\":{\"dtype\":" dtype ",\"shape\":[2],\"data_offsets\":[0,8]}}"

static void test_refuses_broken_files(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		const char *reason; /* part of the message */
	} cases[] = {
		{ "", 0, "start with '{'" },
		{ " {" A("[0,8]") "}", 8, "start with '{'" },
		{ "[]", 0, "start with '{'" },
		{ "{" A("[0,8]"), 8, "not valid JSON" },
		{ "{" A("[0,8]") "} x", 8, "continues" },
		{ "{" A("[0,8]") "}{}", 8, "continues" },
		/* extents */
		{ "{" A("[0,8]") "}", 7, "7 bytes of data" },
		{ "{" A("[0,8]") "}", 9, "9 bytes of data" },
		{ "{}", 1, "1 bytes of data" },
		{ "{" A("[0,8]") "," B("[4,12]") "}", 12, "overlap" },
		{ "{" A("[0,8]") "," B("[0,8]") "}", 8, "overlap" },
		{ "{" A("[0,8]") "," B("[9,17]") "}", 17, "hole" },
		{ "{" A("[1,9]") "}", 9, "hole" },
		{ "{" A("[0,4]") "}", 4, "span 4 bytes" },
		{ "{" A("[8,0]") "}", 8, "span -8 bytes" },
		{ "{" A("[-8,0]") "}", 8, "pair of whole numbers" },
		{ "{" A("[0.5,8.5]") "}", 8, "pair of whole numbers" },
		{ "{" A("[0,8,8]") "}", 8, "pair of whole numbers" },
		{ "{" A("[0]") "}", 8, "pair of whole numbers" },
		{ "{" A("[]") "}", 8, "pair of whole numbers" },
		{ "{" A("[\"0\",\"8\"]") "}", 8, "pair of whole numbers" },
		{ "{" A("{\"x\":0,\"y\":8}") "}", 8, "pair of whole numbers" },
		{ "{" A("[9007199254740992,9007199254741000]") "}", 8, "pair of whole numbers" },
		{ "{" A("[0,1e400]") "}", 8, "pair of whole numbers" },
		/* shapes */
		{ SHAPE("[-2]"), 8, "whole numbers" },
		{ SHAPE("[-1,-2]"), 8, "whole numbers" },
		{ SHAPE("[1.5]"), 8, "whole numbers" },
		{ SHAPE("[\"2\"]"), 8, "whole numbers" },
		{ SHAPE("2"), 8, "no list" },
		{ SHAPE("null"), 8, "no list" },
		{ SHAPE("[3]"), 8, "need 12" },
		{ SHAPE("[]"), 8, "need 4" },
		{ SHAPE("[4294967296,4294967296]"), 8, "too large" },
		{ SHAPE("[2305843009213693952]"), 8, "whole numbers" },
		{ SHAPE("[4503599627370496,1024,1024]"), 8, "too large" },
		{ SHAPE("[1,1,1,1,1,1,1,1,2]"), 8, "dimensions" },
		/* types, keys */
		{ TYPE("\"F31\""), 8, "'F31' is not known" },
		{ TYPE("\"f32\""), 8, "'f32' is not known" },
		{ TYPE("32"), 8, "no text" },
		{ "{\"a\":{\"DTYPE\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
		  "dtype is missing" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "not an object of" },
		{ "{\"a\":[0,8]}", 8, "not an object of" },
		{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"
		  "}}",
		  8, "not an object of" },
		{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2]}}", 8, "pair of" },
		/* names, metadata */
		{ "{" A("[0,8]") "," A("[8,16]") "}", 16, "'a' occurs twice" },
		{ "{" A("[0,8]") "," B("[8,16]") "," A("[16,24]") "}", 24, "'a' occurs twice" },
		{ "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice" },
		{ "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "'k' occurs twice" },
		{ "{\"__metadata__\":{\"k\":1}}", 0, "'k' is not a text" },
		{ "{\"__metadata__\":{\"k\":null}}", 0, "'k' is not a text" },
		{ "{\"__metadata__\":[\"k\"]}", 0, "not an object" },
		{ "{\"__metadata__\":\"k\"}", 0, "not an object" },
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		struct safetensors file;
		unsigned char *bytes;
		struct error err;

		if (parse_text(&file, &bytes, cases[i].header, cases[i].data, &err) == OK)
			fail_msg("accepted: %s", cases[i].header);
		if (!strstr(err.text, cases[i].reason))
			fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].header, err.text,
				 cases[i].reason);
		free(bytes);
	}
}

static void test_refuses_every_truncation(void **state)
{
	struct safetensors file;
	struct error err;
	size_t size;
	unsigned char *bytes = build("{" A("[0,8]") "}", 8, &size);

	(void)state;
	for (size_t n = 0; n < size; n++) {
		unsigned char *cut = malloc(n + 1); /* of its own, so that reading on is seen */

		memcpy(cut, bytes, n);
		assert_int_equal(safetensors_parse(&file, cut, n, &err), FAIL);
		free(cut);
	}
	must(safetensors_parse(&file, bytes, size, &err), &err);
	safetensors_close(&file);
	free(bytes);
}

static void test_refuses_an_oversized_header(void **state)
{
	static const uint64_t lengths[] = { 100000001, 1ULL << 40, UINT64_MAX, UINT64_MAX - 7 };
	struct safetensors file;
	struct error err;
	size_t size;
	unsigned char *bytes = build("{}", 0, &size);

	(void)state;
	for (int i = 0; i < COUNT(lengths); i++) {
		memcpy(bytes, &lengths[i], 8);
		assert_int_equal(safetensors_parse(&file, bytes, size, &err), FAIL);
		assert_non_null(strstr(err.text, "longer than the format allows"));
	}
	memcpy(bytes, &(uint64_t){ 100000000 }, 8); /* allowed, but not there */
	assert_int_equal(safetensors_parse(&file, bytes, size, &err), FAIL);
	assert_non_null(strstr(err.text, "ends inside its header"));
	free(bytes);
}

static void test_accepts_what_the_format_allows(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		int count;
	} cases[] = {
		{ "{}", 0, 0 },
		{ "{} \n\t\r ", 0, 0 },
		{ "{" A("[0,8]") "}", 8, 1 },		       /* 57 bytes: not padded */
		{ "{" A("[8,16]") "," B("[0,8]") "}", 16, 2 }, /* data in another order */
		{ SHAPE("[1,1,1,2,1,1,1,1]"), 8, 1 },
		{ "{\"e\":{\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[0,0]}," A(
			  "[0,8]") "}",
		  8, 2 },
		{ "{\"__metadata__\":{}}", 0, 0 },
		{ "{\"A\":{\"data_offsets\":[8,16],\"shape\":[2],\"dtype\":\"F32\"}," A(
			  "[0,8]") "}",
		  16, 2 },
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		struct safetensors file;
		unsigned char *bytes;
		struct error err;

		must(parse_text(&file, &bytes, cases[i].header, cases[i].data, &err), &err);
		assert_int_equal(file.count, cases[i].count);
		safetensors_close(&file);
		free(bytes);
	}
}

static void test_finds_tensors_and_metadata(void **state)
{
	const char *header = "{\"__metadata__\":{\"k\":\"v\\n\\u00e9\",\"K\":\"\"}," A(
		"[8,16]") "," B("[0,8]") "}";
	const struct safetensors_tensor *b;
	struct safetensors file;
	unsigned char *bytes;
	struct error err;

	(void)state;
	must(parse_text(&file, &bytes, header, 16, &err), &err);
	b = safetensors_find(&file, "b");
	assert_ptr_equal(b, &file.tensors[0]); /* the data of b comes first */
	assert_int_equal(b->ndim, 1);
	assert_int_equal(b->dim[0], 2);
	assert_int_equal(safetensors_bytes(b), 8);
	assert_int_equal(((const unsigned char *)b->data)[1], 1);
	assert_int_equal(((const unsigned char *)safetensors_find(&file, "a")->data)[1], 9);
	assert_null(safetensors_find(&file, "B"));
	assert_string_equal(safetensors_metadata(&file, "k"), "v\n\xc3\xa9");
	assert_string_equal(safetensors_metadata(&file, "K"), "");
	assert_null(safetensors_metadata(&file, "__metadata__"));
	safetensors_close(&file);
	free(bytes);
}

static void test_open_says_which_file_and_why(void **state)
{
	struct place *place = *state;
	struct safetensors file;
	struct error err;

	assert_int_equal(safetensors_open(&file, place->file, &err), FAIL);
	assert_non_null(strstr(err.text, place->file));
	assert_non_null(strstr(err.text, "No such file"));
	assert_int_equal(safetensors_open(&file, place->directory, &err), FAIL);
	assert_non_null(strstr(err.text, "not a regular file"));
	fclose(fopen(place->file, "w"));
	assert_int_equal(safetensors_open(&file, place->file, &err), FAIL);
	assert_non_null(strstr(err.text, "0 bytes are too few"));
}

/* --------------------------------------------------------------- types */

static void check_doubles(const struct safetensors_tensor *t, const double *expected)
{
	double values[16];

	safetensors_read_double(t, values);
	for (int64_t i = 0; i < safetensors_elements(t); i++) {
		if (isnan(expected[i]))
			assert_true(isnan(values[i]));
		else
			assert_memory_equal(&values[i], &expected[i], sizeof(double));
	}
}

static void test_converts_to_double(void **state)
{
	/* Bit patterns of IEEE 754: largest, smallest normal, smallest subnormal, .. */
	static const uint16_t half[] = { 0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001,
					 0x83ff, 0x8000, 0x7c00, 0xfc00, 0x7e00 };
	static const double half_values[] = { 1,	  -2,	65504,	  0x1p-14,   0x1p-24,
					      -0x3ffp-24, -0.0, INFINITY, -INFINITY, NAN };
	static const uint16_t bfloat[] = { 0x3f80, 0xc049, 0x7f7f, 0x0001, 0xff80, 0x7fc0 };
	static const double bfloat_values[] = {
		1, -3.140625, 0x1.fep127, 0x1p-133, -INFINITY, NAN
	};
	static const double wide[] = { -1, 255, 1e9 + 7 };
	struct safetensors_tensor t = { .ndim = 1 };

	(void)state;
	t.dim[0] = COUNT(half), t.type = ST_F16, t.data = half;
	check_doubles(&t, half_values);
	t.dim[0] = COUNT(bfloat), t.type = ST_BF16, t.data = bfloat;
	check_doubles(&t, bfloat_values);
	t.dim[0] = 3;
	t.type = ST_F64, t.data = wide;
	check_doubles(&t, wide);
	t.type = ST_F32, t.data = (float[]){ -0.1f, 0x1p-149f, INFINITY };
	check_doubles(&t, (double[]){ (double)-0.1f, 0x1p-149, INFINITY });
	t.type = ST_I64, t.data = (int64_t[]){ -1, INT64_MIN, (1LL << 53) - 1 };
	check_doubles(&t, (double[]){ -1, -0x1p63, 0x1p53 - 1 });
	t.type = ST_U64, t.data = (uint64_t[]){ 1, 1ULL << 63, 0 };
	check_doubles(&t, (double[]){ 1, 0x1p63, 0 });
	t.type = ST_I32, t.data = (int32_t[]){ -1, INT32_MIN, INT32_MAX };
	check_doubles(&t, (double[]){ -1, -0x1p31, 0x1p31 - 1 });
	t.type = ST_U32, t.data = (uint32_t[]){ 0, UINT32_MAX, 5 };
	check_doubles(&t, (double[]){ 0, 0x1p32 - 1, 5 });
	t.type = ST_I16, t.data = (int16_t[]){ -1, INT16_MIN, 7 };
	check_doubles(&t, (double[]){ -1, -32768, 7 });
	t.type = ST_U16, t.data = (uint16_t[]){ 50256, 65535, 0 };
	check_doubles(&t, (double[]){ 50256, 65535, 0 });
	t.type = ST_I8, t.data = (int8_t[]){ -1, -128, 127 };
	check_doubles(&t, (double[]){ -1, -128, 127 });
	t.type = ST_U8, t.data = (uint8_t[]){ 0, 255, 1 };
	check_doubles(&t, (double[]){ 0, 255, 1 });
	t.type = ST_BOOL, t.data = (uint8_t[]){ 0, 1, 1 };
	check_doubles(&t, (double[]){ 0, 1, 1 });
}

/* --------------------------------------------------------------- writing */

static void assert_no_temporary(const struct place *place)
{
	char path[PATH_SIZE + 64];

	snprintf(path, sizeof(path), "%s.tmp", place->file);
	assert_int_not_equal(access(path, F_OK), 0);
}

static void test_writes_exactly_this(void **state)
{
	/* By hand: 8-byte types before 4 before 1, then by name; padded with spaces to 8 bytes. */
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"\\\"pt\\\"\"},"
		"\"w\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]},"
		"\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[16,20]},"
		"\"0\":{\"dtype\":\"U8\",\"shape\":[0,3],\"data_offsets\":[20,20]}}";
	const struct safetensors_tensor tensors[] = {
		{ .name = "0", .type = ST_U8, .ndim = 2, .dim = { 0, 3 }, .data = "" },
		{ .name = "b", .type = ST_I32, .ndim = 1, .dim = { 1 }, .data = (int32_t[]){ -5 } },
		{ .name = "a",
		  .type = ST_F32,
		  .ndim = 2,
		  .dim = { 1, 2 },
		  .data = (float[]){ 1, 2 } },
		{ .name = "w", .type = ST_F64, .data = (double[]){ 0.1 } },
	};
	const struct safetensors_pair metadata = { "format", "\"pt\"" };
	const size_t padded = (sizeof(header) - 1 + 7) / 8 * 8;
	struct place *place = *state;
	unsigned char bytes[1024];
	struct error err;
	uint64_t length;
	FILE *stream;
	double w;

	must(safetensors_write(place->file, tensors, COUNT(tensors), &metadata, 1, &err), &err);
	assert_no_temporary(place);
	stream = fopen(place->file, "rb");
	assert_int_equal(fread(bytes, 1, sizeof(bytes), stream), 8 + padded + 20);
	fclose(stream);
	memcpy(&length, bytes, 8);
	assert_int_equal(length, padded);
	assert_memory_equal(bytes + 8, header, sizeof(header) - 1);
	for (size_t i = sizeof(header) - 1; i < padded; i++)
		assert_int_equal(bytes[8 + i], ' ');
	memcpy(&w, bytes + 8 + padded, 8);
	assert_true(w == 0.1);
}

/* Element i of a tensor that is never in memory as a whole. */
static enum status fill_squares(void *context, size_t offset, size_t size, void *buffer,
				struct error *err)
{
	const size_t *limit = context;

	assert_int_equal(offset % 8, 0);
	if (offset + size > *limit)
		return fail(err, "no more squares");
	for (size_t i = 0; i < size / 8; i++)
		((int64_t *)buffer)[i] = (int64_t)((offset / 8 + i) * (offset / 8 + i));
	return OK;
}

#define SQUARES 300000 /* 2.4 MB: three pieces */

static void test_streams_what_a_function_fills(void **state)
{
	size_t limit = SIZE_MAX;
	const struct safetensors_tensor squares = { .name = "squares",
						    .type = ST_I64,
						    .ndim = 1,
						    .dim = { SQUARES },
						    .fill = fill_squares,
						    .context = &limit };
	struct place *place = *state;
	double *values = malloc(SQUARES * sizeof(*values));
	struct safetensors file;
	struct error err;

	must(safetensors_write(place->file, &squares, 1, NULL, 0, &err), &err);
	must(safetensors_open(&file, place->file, &err), &err);
	assert_int_equal(file.pairs, 0);
	safetensors_read_double(&file.tensors[0], values);
	for (int64_t i = 0; i < SQUARES; i++)
		assert_true(values[i] == (double)(i * i));
	safetensors_close(&file);
	free(values);
}

static enum status write_number(const struct place *place, int32_t number, struct error *err)
{
	const struct safetensors_tensor t = { .name = "n", .type = ST_I32, .data = &number };

	return safetensors_write(place->file, &t, 1, NULL, 0, err);
}

static void assert_holds_number(const struct place *place, double number)
{
	struct safetensors file;
	struct error err;

	must(safetensors_open(&file, place->file, &err), &err);
	check_doubles(safetensors_find(&file, "n"), &number);
	safetensors_close(&file);
}

/* A failure in the midst of writing leaves the old file, and nothing else. */
static void test_failed_writes_leave_the_old_file(void **state)
{
	size_t limit = 2 << 20;
	const struct safetensors_tensor squares = { .name = "squares",
						    .type = ST_I64,
						    .ndim = 1,
						    .dim = { SQUARES },
						    .fill = fill_squares,
						    .context = &limit };
	struct place *place = *state;
	struct rlimit old;
	enum status status;
	struct error err;

	must(write_number(place, 1, &err), &err);

	assert_int_equal(safetensors_write(place->file, &squares, 1, NULL, 0, &err), FAIL);
	assert_non_null(strstr(err.text, "no more squares"));
	assert_no_temporary(place);
	assert_holds_number(place, 1);

	limit = SIZE_MAX;
	signal(SIGXFSZ, SIG_IGN); /* a disk that is full after 100 kB */
	getrlimit(RLIMIT_FSIZE, &old);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100000, old.rlim_max });
	status = safetensors_write(place->file, &squares, 1, NULL, 0, &err);
	setrlimit(RLIMIT_FSIZE, &old);
	assert_int_equal(status, FAIL);
	assert_non_null(strstr(err.text, "File too large"));
	assert_no_temporary(place);
	assert_holds_number(place, 1);

	must(write_number(place, 2, &err), &err);
	assert_holds_number(place, 2);
}

/* Of a file of these bytes: is it read, and does it state the right hash? */
static bool is_accepted(unsigned char *bytes, size_t size, bool *is_stated)
{
	struct safetensors file;
	struct error err;
	bool accepted;

	if (safetensors_parse(&file, bytes, size, &err))
		return false;
	accepted = safetensors_check(&file, &err) == OK;
	*is_stated = safetensors_metadata(&file, SAFETENSORS_HASH);
	safetensors_close(&file);
	return accepted;
}

/* One changed byte is noticed, unless it is in the name of the hash: then the file states none. */
static void test_a_file_states_its_hash(void **state)
{
	const struct safetensors_tensor t = {
		.name = "a", .type = ST_F32, .ndim = 1, .dim = { 3 }, .data = (float[]){ 1, 2, 3 }
	};
	const struct safetensors_pair metadata[] = { { "format", "pt" },
						     { SAFETENSORS_HASH, SAFETENSORS_NO_HASH },
						     { "identity", "ab" } };
	struct place *place = *state;
	unsigned char bytes[1024];
	int not_stated = 0;
	bool is_stated;
	struct error err;
	FILE *stream;
	size_t size;

	must(safetensors_write(place->file, &t, 1, metadata, COUNT(metadata), &err), &err);
	stream = fopen(place->file, "rb");
	size = fread(bytes, 1, sizeof(bytes), stream);
	fclose(stream);
	assert_true(is_accepted(bytes, size, &is_stated) && is_stated);
	for (size_t i = 0; i < size; i++) {
		bytes[i] ^= 1;
		if (is_accepted(bytes, size, &is_stated)) {
			assert_false(is_stated);
			not_stated++;
		}
		bytes[i] ^= 1;
	}
	assert_in_range(not_stated, 1, strlen(SAFETENSORS_HASH) + strlen("__metadata__"));
}

static void test_refuses_to_write_nonsense(void **state)
{
	const struct safetensors_tensor twice[] = {
		{ .name = "n", .type = ST_I32, .data = (int32_t[]){ 1 } },
		{ .name = "n", .type = ST_U8, .data = (uint8_t[]){ 1 } },
	};
	struct place *place = *state;
	char path[PATH_SIZE + 64];
	struct error err;

	assert_int_equal(safetensors_write(place->file, twice, 2, NULL, 0, &err), FAIL);
	assert_non_null(strstr(err.text, "'n' occurs twice"));
	snprintf(path, sizeof(path), "%s/no/where", place->directory);
	assert_int_equal(safetensors_write(path, twice, 1, NULL, 0, &err), FAIL);
	assert_non_null(strstr(err.text, "No such file"));
}

/* --------------------------------------------------------------- main */

static int copy(const char *from, const char *to)
{
	struct safetensors file;
	struct error err;

	if (safetensors_open(&file, from, &err) ||
	    safetensors_write(to, file.tensors, file.count, file.metadata, file.pairs, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return EXIT_FAILURE;
	}
	safetensors_close(&file);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuses_broken_files),
		cmocka_unit_test(test_refuses_every_truncation),
		cmocka_unit_test(test_refuses_an_oversized_header),
		cmocka_unit_test(test_accepts_what_the_format_allows),
		cmocka_unit_test(test_finds_tensors_and_metadata),
		cmocka_unit_test_setup_teardown(test_open_says_which_file_and_why, make_place,
						remove_place),
		cmocka_unit_test(test_converts_to_double),
		cmocka_unit_test_setup_teardown(test_writes_exactly_this, make_place, remove_place),
		cmocka_unit_test_setup_teardown(test_streams_what_a_function_fills, make_place,
						remove_place),
		cmocka_unit_test_setup_teardown(test_failed_writes_leave_the_old_file, make_place,
						remove_place),
		cmocka_unit_test_setup_teardown(test_a_file_states_its_hash, make_place,
						remove_place),
		cmocka_unit_test_setup_teardown(test_refuses_to_write_nonsense, make_place,
						remove_place),
	};

	if (argc == 4 && strcmp(argv[1], "copy") == 0)
		return copy(argv[2], argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
