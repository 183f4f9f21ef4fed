/*
 * A reduced configuration is small and keeps its structure.
 */
#include "models/audit/reduced.h"
#include "models/model_case.h"

static void reduce(struct model_case *k, const char *symbols)
{
	const struct model_task untrained = { 0 };
	struct error err;

	case_open(k, F32, symbols);
	must(reduce_config(k->config, k->model, &err), &err);
	model_free(k->model);
	must(model_read(&k->model, k->config, &untrained, &err), &err);
}

static int64_t number(const struct model_case *k, const char *symbol)
{
	return strtoll(config_raw(k->config, symbol), NULL, 10);
}

static void test_sizes(void **state)
{
	struct model_case k;

	(void)state;
	reduce(&k, "MODEL_LAYERS=12 MODEL_HEADS=12 MODEL_EMBD=768 MODEL_BLOCK=1024 "
		   "MODEL_VOCAB=50304 DROPOUT=0.1");
	assert_int_equal(k.model->layers, 3);
	assert_int_equal(k.model->heads, 3); /* no power of two, as before */
	assert_int_equal(k.model->head_dim, 64);
	assert_int_equal(k.model->hidden, 4 * 192);
	assert_int_equal(k.model->length, 32);
	assert_int_equal(k.model->vocab, 64);
	assert_true(k.model->dropout == 0);
	case_close(&k);
	reduce(&k, "MODEL_LAYERS=1 MODEL_HEADS=1 MODEL_EMBD=6 MODEL_BLOCK=5 MODEL_VOCAB=7");
	assert_int_equal(k.model->layers, 1);
	assert_int_equal(k.model->heads, 1);
	assert_int_equal(k.model->embd, 6);
	assert_int_equal(k.model->length, 5);
	assert_int_equal(k.model->vocab, 7);
	case_close(&k);
}

static void check_heads(int heads, int keys, int fewer_heads, int fewer_keys)
{
	struct model_case k;
	char symbols[120];

	snprintf(symbols, sizeof(symbols),
		 "ATTENTION=dot MODEL_EMBD=%d MODEL_HEADS=%d ATTENTION_KV_HEADS=%d", 8 * heads,
		 heads, keys);
	reduce(&k, symbols);
	assert_int_equal(k.model->heads, fewer_heads);
	assert_int_equal(number(&k, "ATTENTION_KV_HEADS"), fewer_keys);
	assert_int_equal(k.model->head_dim, 8);
	case_close(&k);
}

static void test_heads_stay_grouped(void **state)
{
	(void)state;
	check_heads(8, 0, 2, 0);
	check_heads(8, 8, 2, 2);
	check_heads(8, 4, 4, 2);
	check_heads(8, 1, 2, 1);
	check_heads(12, 1, 3, 1);
	check_heads(12, 4, 6, 2);
	check_heads(12, 6, 6, 3);
	check_heads(1, 1, 1, 1);
}

static void test_reach(void **state)
{
	struct model_case k;

	(void)state;
	reduce(&k, "ATTENTION=mla MODEL_BLOCK=256 RA_MLA_RA_WINDOW=64 RA_MLA_MLP_CROSS_TOKEN=y "
		   "RA_MLA_MLP_SPARSE_K=4");
	assert_int_equal(number(&k, "RA_MLA_RA_WINDOW"), 8);
	assert_int_equal(number(&k, "RA_MLA_MLP_SPARSE_K"), 4);
	case_close(&k);
	reduce(&k, "ATTENTION=mla MODEL_BLOCK=48 RA_MLA_RA_WINDOW=64 RA_MLA_MLP_CROSS_TOKEN=y "
		   "RA_MLA_MLP_SPARSE_K=48");
	assert_int_equal(number(&k, "RA_MLA_RA_WINDOW"), 64); /* covers all tokens, as before */
	assert_int_equal(number(&k, "RA_MLA_MLP_SPARSE_K"), 48);
	case_close(&k);
}

static void check_number(const char *symbols, const char *symbol, int64_t reduced)
{
	struct model_case k;

	reduce(&k, symbols);
	assert_int_equal(number(&k, symbol), reduced);
	case_close(&k);
}

#define WINDOWED "ATTENTION=dot ATTENTION_WINDOWED=y "

/* Of 32 tokens, a window and its sinks hide some. */
static void test_windows_act(void **state)
{
	(void)state;
	check_number(WINDOWED "MODEL_BLOCK=1024 ATTENTION_WINDOW=256", "ATTENTION_WINDOW", 8);
	check_number(WINDOWED "MODEL_BLOCK=64 ATTENTION_WINDOW=40", "ATTENTION_WINDOW", 8);
	check_number(WINDOWED "MODEL_BLOCK=64 ATTENTION_WINDOW=3", "ATTENTION_WINDOW", 3);
	check_number(WINDOWED "MODEL_BLOCK=64 ATTENTION_WINDOW=64", "ATTENTION_WINDOW", 64);
	check_number(WINDOWED "MODEL_BLOCK=32 ATTENTION_WINDOW=20", "ATTENTION_WINDOW", 20);
	check_number(WINDOWED "MODEL_BLOCK=64 ATTENTION_WINDOW=9 ATTENTION_SINKS=20",
		     "ATTENTION_SINKS", 8);
	check_number(WINDOWED "MODEL_BLOCK=64 ATTENTION_WINDOW=9 ATTENTION_SINKS=0",
		     "ATTENTION_SINKS", 0);
}

#define T5 "ATTENTION=dot POS=t5 "

/* Of 32 distances some have a bucket each, some share one, and some the last. */
static void test_buckets_act(void **state)
{
	(void)state;
	check_number(T5 "MODEL_BLOCK=1024 T5_BUCKETS=32 T5_DISTANCE=128", "T5_BUCKETS", 8);
	check_number(T5 "MODEL_BLOCK=1024 T5_BUCKETS=32 T5_DISTANCE=128", "T5_DISTANCE", 16);
	check_number(T5 "MODEL_BLOCK=64 T5_BUCKETS=100 T5_DISTANCE=128", "T5_BUCKETS", 8);
	check_number(T5 "MODEL_BLOCK=64 T5_BUCKETS=100 T5_DISTANCE=128", "T5_DISTANCE", 128);
	check_number(T5 "MODEL_BLOCK=64 T5_BUCKETS=128 T5_DISTANCE=128", "T5_BUCKETS", 128);
	check_number(T5 "MODEL_BLOCK=6 T5_BUCKETS=4 T5_DISTANCE=3", "T5_DISTANCE", 3);
}

static void test_hidden_width(void **state)
{
	struct model_case k;

	(void)state;
	reduce(&k, "FFN=ws WS_HEADS=8 MODEL_HEADS=8 MODEL_EMBD=64 FFN_HIDDEN=168");
	assert_int_equal(k.model->embd, 16);
	assert_int_equal(k.model->hidden, 40);
	case_close(&k);
	reduce(&k, "FFN=ws WS_HEADS=8 MODEL_HEADS=2 MODEL_EMBD=8 FFN_MULT=4");
	assert_int_equal(number(&k, "FFN_HIDDEN"), 0); /* FFN_MULT decides */
	assert_int_equal(k.model->hidden, 32);
	case_close(&k);
	reduce(&k, "FFN=ws WS_HEADS=16 MODEL_HEADS=8 MODEL_EMBD=32 FFN_MULT=0.5");
	assert_int_equal(k.model->hidden, 16);
	case_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),	    cmocka_unit_test(test_heads_stay_grouped),
		cmocka_unit_test(test_reach),	    cmocka_unit_test(test_windows_act),
		cmocka_unit_test(test_buckets_act), cmocka_unit_test(test_hidden_width),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
