/* Tests of data/utf8: every code point survives a round trip, and nothing else is UTF-8. */
#include "data/tokenizer/utf8.h"

#include "core/util/test.h"

static void test_code_points_come_back(void **state)
{
	(void)state;
	for (uint32_t c = 0; c < UTF8_SYMBOLS; c++) {
		uint8_t bytes[4];
		const uint8_t *p = bytes;
		size_t size = utf8_put(c, bytes);

		/* Surrogates are no characters; the raw symbol of an ASCII byte never occurs. */
		if ((c >= 0xd800 && c <= 0xdfff) || (c >= UTF8_RAW && c < UTF8_RAW + 0x80))
			continue;
		assert_int_equal(utf8_next(&p, bytes + size), c);
		assert_ptr_equal(p, bytes + size);
		/* Cut off, its first byte is raw. */
		if (size > 1) {
			p = bytes;
			assert_int_equal(utf8_next(&p, bytes + size - 1), UTF8_RAW + bytes[0]);
			assert_ptr_equal(p, bytes + 1);
		}
	}
}

/* How many strings of n bytes are one character: all lead bytes, all continuations.
 */
static int count_characters(int n)
{
	int count = 0;

	for (uint32_t bits = 0; bits < 1u << (6 * (n - 1)); bits++) {
		for (int lead = 0x80; lead < 0x100; lead++) {
			uint8_t bytes[4] = { (uint8_t)lead };
			const uint8_t *p = bytes;

			for (int i = 1; i < n; i++)
				bytes[i] = (uint8_t)(0x80 | (bits >> 6 * (i - 1) & 0x3f));
			if (utf8_next(&p, bytes + n) < UTF8_RAW)
				count += p == bytes + n;
			else
				assert_ptr_equal(p, bytes + 1);
			/* Not a continuation. */
			bytes[n - 1] |= 0x40;
			p = bytes;
			utf8_next(&p, bytes + n);
			assert_true(p < bytes + n);
		}
	}
	return count;
}

/* 0x80..0x7ff; 0x800..0xffff without 2048 surrogates; 0x10000..0x10ffff. */
static void test_nothing_else_is_utf8(void **state)
{
	(void)state;
	assert_int_equal(count_characters(2), 0x800 - 0x80);
	assert_int_equal(count_characters(3), 0x10000 - 0x800 - 2048);
	assert_int_equal(count_characters(4), 0x110000 - 0x10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_code_points_come_back),
		cmocka_unit_test(test_nothing_else_is_utf8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
