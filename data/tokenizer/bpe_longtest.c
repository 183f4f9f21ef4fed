/*
 * Test of data/bpe with GPT-2's own vocabulary, which is not part of this project:
 *     GPT2_VOCAB=path/to/vocab.bpe make check-long
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/test.h"
#include "data/tokenizer/bpe_cases.h"
#include "data/tokenizer/tokenizer.h"

static void test_gpt2(void **state)
{
	const char *path = getenv("GPT2_VOCAB");
	struct tokenizer *t;
	struct encoder *e;
	struct error err;

	(void)state;
	if (!path || !*path)
		skip("GPT2_VOCAB does not name GPT-2's vocab.bpe");
	if (tokenizer_open(path, &t, &err))
		fail_msg("%s", err.text);
	assert_int_equal(tokenizer_vocabulary(t), 50257);
	assert_int_equal(tokenizer_end_of_text(t), 50256);
	assert_int_equal(encoder_new(t, &e, &err), OK);
	for (size_t i = 0; i < sizeof(BPE_CASES) / sizeof(*BPE_CASES); i++) {
		const struct bpe_case *c = &BPE_CASES[i];
		struct ids ids = { 0 };

		assert_int_equal(encode(e, (const uint8_t *)c->text, c->size, &ids, &err), OK);
		if (ids.count != c->gpt2s || memcmp(ids.id, c->gpt2, 2 * c->gpt2s))
			fail_msg("%s: other ids", c->name);
		ids_free(&ids);
	}
	encoder_free(e);
	tokenizer_close(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_gpt2) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
