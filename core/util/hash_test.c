/* Tests of core/util/hash on the examples of FIPS 180-4 (SHA-256) and of FNV-1a's authors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/util/hash.h"
#include "core/util/test.h"

static const char ABC_HASH[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char MILLION_A_HASH[] =
	"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

/* The hash of `times` copies of a text. */
static void hash_copies(const char *text, int times, char hex[SHA256_HEX_SIZE])
{
	struct sha256 s;

	sha256_init(&s);
	for (int i = 0; i < times; i++)
		sha256_add(&s, text, strlen(text));
	sha256_hex(&s, hex);
}

static void test_sha256_known_answers(void **state)
{
	static const struct {
		const char *text;
		const char *hash;
	} cases[] = {
		{ "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
		{ "abc", ABC_HASH },
		{ "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
		{ "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
		  "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
		  "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
	};
	char hex[SHA256_HEX_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		hash_copies(cases[i].text, 1, hex);
		assert_string_equal(hex, cases[i].hash);
	}
}

static void test_sha256_of_a_million_letters(void **state)
{
	char hex[SHA256_HEX_SIZE];

	(void)state;
	hash_copies("a", 1000000, hex);
	assert_string_equal(hex, MILLION_A_HASH);
	hash_copies("aaaaaaaaaa", 100000, hex);
	assert_string_equal(hex, MILLION_A_HASH);
}

/* Wherever a text is cut in two, on block boundaries or off them, its hash is the same. */
static void test_sha256_does_not_see_the_cuts(void **state)
{
	enum { SIZE = 200 };
	char hex[SHA256_HEX_SIZE], whole[SHA256_HEX_SIZE];
	uint8_t data[SIZE];
	struct sha256 s;

	(void)state;
	for (int i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(7 * i);
	sha256_init(&s);
	sha256_add(&s, data, SIZE);
	sha256_hex(&s, whole);
	for (size_t cut = 0; cut <= SIZE; cut++) {
		sha256_init(&s);
		sha256_add(&s, data, cut);
		sha256_add(&s, data + cut, SIZE - cut);
		sha256_hex(&s, hex);
		assert_string_equal(hex, whole);
	}
}

/* With the processor's own instructions and without them, from no block to five. */
static void test_instructions_change_nothing(void **state)
{
	enum { SIZE = 320 };
	char usual[SHA256_HEX_SIZE], plain[SHA256_HEX_SIZE];
	uint8_t data[SIZE];
	struct sha256 s;

	(void)state;
	for (int i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * i + 3 * i);
	for (size_t size = 0; size <= SIZE; size++) {
		sha256_init(&s);
		sha256_add(&s, data, size);
		sha256_hex(&s, usual);
		sha256_init_plain(&s);
		sha256_add(&s, data, size);
		sha256_hex(&s, plain);
		assert_string_equal(usual, plain);
	}
}

/* A new file in $TMPDIR with `times` copies of a text. */
static void make_file(char *path, size_t size, const char *text, int times)
{
	FILE *file;
	int fd;

	test_template(path, size, "hash");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	file = fdopen(fd, "wb");
	assert_non_null(file);
	for (int i = 0; i < times; i++)
		assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static void assert_file_hash(const char *text, int times, const char *hash)
{
	char hex[SHA256_HEX_SIZE] = "", path[4096];
	struct error err = { "" };
	enum status status;

	make_file(path, sizeof(path), text, times);
	status = sha256_file(path, hex, &err);
	unlink(path);
	assert_string_equal(err.text, "");
	assert_int_equal(status, OK);
	assert_string_equal(hex, hash);
}

static void test_sha256_of_a_file(void **state)
{
	char whole[SHA256_HEX_SIZE];

	(void)state;
	assert_file_hash("abc", 1, ABC_HASH);
	assert_file_hash("aaaaaaaaaa", 100000, MILLION_A_HASH);
	/* Longer than one piece, and not a multiple of a piece. */
	hash_copies("0123456789\n", 300000, whole);
	assert_file_hash("0123456789\n", 300000, whole);
}

/* What never ends, and what would wait for somebody to write. */
static void test_only_regular_files(void **state)
{
	char hex[SHA256_HEX_SIZE], fifo[4096];
	struct error err;

	(void)state;
	assert_int_equal(sha256_file("/dev/zero", hex, &err), FAIL);
	assert_string_equal(err.text, "/dev/zero is not a regular file");
	test_template(fifo, sizeof(fifo), "fifo");
	assert_int_equal(close(mkstemp(fifo)), 0);
	assert_int_equal(unlink(fifo), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(sha256_file(fifo, hex, &err), FAIL);
	unlink(fifo);
	assert_non_null(strstr(err.text, "is not a regular file"));
}

static void test_a_missing_file_is_named(void **state)
{
	char hex[SHA256_HEX_SIZE];
	struct error err;

	(void)state;
	assert_int_equal(sha256_file("no/such/file", hex, &err), FAIL);
	assert_string_equal(err.text, "cannot open no/such/file: No such file or directory");
}

static void test_a_directory_is_no_file(void **state)
{
	char hex[SHA256_HEX_SIZE];
	struct error err;

	(void)state;
	assert_int_equal(sha256_file("/", hex, &err), FAIL);
	assert_string_equal(err.text, "/ is not a regular file");
}

/* Test vectors of the FNV distribution (fnv64a). */
static void test_names_known_answers(void **state)
{
	(void)state;
	assert_true(hash_text("") == 0xcbf29ce484222325);
	assert_true(hash_text("a") == 0xaf63dc4c8601ec8c);
	assert_true(hash_text("foobar") == 0x85944171f73967e8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sha256_known_answers),
		cmocka_unit_test(test_sha256_of_a_million_letters),
		cmocka_unit_test(test_sha256_does_not_see_the_cuts),
		cmocka_unit_test(test_instructions_change_nothing),
		cmocka_unit_test(test_sha256_of_a_file),
		cmocka_unit_test(test_only_regular_files),
		cmocka_unit_test(test_a_missing_file_is_named),
		cmocka_unit_test(test_a_directory_is_no_file),
		cmocka_unit_test(test_names_known_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
