/*
 * Names of public GPT-2 checkpoints: which are understood, and which must be refused.
 */
#include "core/train/weights_case.h"
#include "models/gpt2_names.h"

static const float others[] = { 5, 4, 3, 2, 1, 0 };

static int set_up(void **state)
{
	const int failed =
		case_open(state, "wte.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias");

	((struct weights_case *)*state)->names = &gpt2_names;
	return failed;
}

/* ------------------------------------------------------------------- tests */

static void test_prefix(void **state)
{
	struct weights_case *f = *state;

	must(LOAD(f, "", TABLE("transformer.wte.weight"),
		  WIDE("transformer.h.0.attn.c_attn.weight"),
		  BIAS("transformer.h.0.attn.c_attn.bias")),
	     &f->err);
	assert_all_loaded(f);
}

static void test_buffers_are_no_weights(void **state)
{
	struct weights_case *f = *state;

	must(LOAD(f, "", TABLE("wte.weight"), WIDE("h.0.attn.c_attn.weight"),
		  BIAS("h.0.attn.c_attn.bias"), TABLE("h.0.attn.bias"),
		  { .name = "transformer.h.0.attn.masked_bias",
		    .type = ST_F32,
		    .data = case_numbers }),
	     &f->err);
	assert_all_loaded(f);
}

static void test_tied_head(void **state)
{
	struct weights_case *f = *state;

	must(LOAD(f, "", TABLE("transformer.wte.weight"),
		  WIDE("transformer.h.0.attn.c_attn.weight"),
		  BIAS("transformer.h.0.attn.c_attn.bias"), TABLE("lm_head.weight")),
	     &f->err);
	assert_all_loaded(f);
}

static void test_different_head(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "", TABLE("wte.weight"), WIDE("h.0.attn.c_attn.weight"),
			      BIAS("h.0.attn.c_attn.bias"),
			      { .name = "lm_head.weight",
				.type = ST_F32,
				.ndim = 2,
				.dim = { VOCAB, WIDTH },
				.data = others }),
			 FAIL);
	assert_reason(f, "'lm_head.weight', which this model lacks");
	assert_untouched(f, "wte.weight");
}

static void test_same_name_twice(void **state)
{
	struct weights_case *f = *state;

	assert_int_equal(LOAD(f, "", TABLE("wte.weight"), TABLE("transformer.wte.weight")), FAIL);
	assert_reason(f, "'wte.weight' twice, as 'transformer.wte.weight' and as 'wte.weight'");
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, case_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_prefix),	   CASE(test_buffers_are_no_weights), CASE(test_tied_head),
		CASE(test_different_head), CASE(test_same_name_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
