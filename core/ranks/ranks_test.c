/* The interface between ranks: alone, and by NCCL where a GPU is tested. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/ranks/ranks.h"
#include "core/util/test.h"

/* Why a call failed, if it did. */
#define assert_ok(call)                                      \
	do {                                                 \
		struct error err = { "" };                   \
		if ((call) != OK)                            \
			fail_msg("%s: %s", #call, err.text); \
	} while (0)

/* ------------------------------------------------------------------ alone */

static void test_alone(void **state)
{
	int mine = 7, all = 0;
	struct ranks *r;
	struct error e;

	(void)state;
	assert_ok(ranks_open(&r, 1, &err));
	assert_int_equal(r->rank, 0);
	assert_int_equal(r->size, 1);
	assert_ok(ranks_gather(r, &mine, &all, sizeof(mine), &err));
	assert_int_equal(all, 7);
	assert_ok(ranks_broadcast(r, 0, &mine, sizeof(mine), &err));
	assert_int_equal(mine, 7);
	assert_ok(ranks_start(r, &err));
	assert_ok(ranks_wait(r, &err));
	assert_ok(ranks_agree(r, OK, &err));
	fail(&e, "mine");
	assert_int_equal(ranks_agree(r, FAIL, &e), FAIL);
	assert_string_equal(e.text, "mine");
	assert_int_equal(ranks_send(r, 1, &mine, sizeof(mine), &e), FAIL);
	assert_non_null(strstr(e.text, "no rank 1"));
	ranks_close(r);
}

/* --------------------------------------------------------------------- NCCL */

/* One rank sends to itself: GPU memory, beside the kernels of the backend. */
static void test_nccl(void **state)
{
	enum { N = 1 << 20 };
	struct backend b;
	const size_t bytes = N * sizeof(float);
	float *host;
	struct ranks *r;
	struct error e;
	void *from, *to;

	(void)state;
	b = backend_for_tests(FLOAT32, 1);
	assert_ok(ranks_open(&r, 1, &err));
	if (ranks_use_nccl(&r, b.context, &e) != OK)
		skip("%s", e.text);
	host = malloc(bytes);
	for (int i = 0; i < N; i++)
		host[i] = (float)i;
	from = b.alloc(&b, bytes);
	to = b.alloc(&b, bytes);
	b.upload(&b, from, host, bytes);
	assert_ok(ranks_send(r, 0, from, bytes, &err));
	assert_ok(ranks_receive(r, 0, to, bytes, &err));
	assert_ok(ranks_start(r, &err));
	assert_ok(ranks_progress(r, &err));
	assert_ok(ranks_wait(r, &err));
	memset(host, 0, bytes);
	b.download(&b, host, to, bytes);
	for (int i = 0; i < N; i++)
		assert_true(host[i] == (float)i);
	b.release(&b, from);
	b.release(&b, to);
	ranks_close(r);
	free(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
	};
	const struct CMUnitTest gpu[] = {
		cmocka_unit_test(test_nccl),
	};
	int failed;

	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (strcmp(backend_name_for_tests(), "cuda") == 0)
		failed += cmocka_run_group_tests(gpu, NULL, NULL);
	return failed;
}
