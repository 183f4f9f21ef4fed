/*
 * Findings of the oracle survive the file; failed ones are not kept, and a torn file is none.
 */
#include "core/util/test_dir.h"
#include "tools/kablate/audit_memo.h"

static struct audit_report findings(bool passed)
{
	struct audit_report r = { .n = 0 };
	struct error err;

	must(audit_add(&r, "wiring", "wte.weight", true, "", &err), &err);
	must(audit_add(&r, "oracle", "logits in double", true, "1e-15", &err), &err);
	must(audit_add(&r, "oracle", "losses in double", passed, "", &err), &err);
	return r;
}

static void test_round_trip(void **state)
{
	struct audit_report r = findings(true), back = { .n = 0 };
	const struct test_dir dir = test_dir_make();
	const char *path = test_path(&dir, "memo");
	struct error err;

	(void)state;
	assert_false(audit_memo_load(path, &back));
	must(audit_memo_save(path, &r, &err), &err);
	assert_true(audit_memo_load(path, &back));
	assert_int_equal(back.n, 2);
	assert_string_equal(back.list[0].audit, "oracle");
	assert_string_equal(back.list[0].subject, "logits in double");
	assert_string_equal(back.list[0].detail, "1e-15");
	assert_string_equal(back.list[1].detail, "");
	assert_true(audit_passed(&back));
	assert_int_equal(truncate(path, 40), 0);
	audit_free(&back);
	assert_false(audit_memo_load(path, &back));
	assert_int_equal(back.n, 0);
	audit_free(&back);
	audit_free(&r);
	test_dir_remove(&dir);
}

static void test_failures_are_not_kept(void **state)
{
	struct audit_report r = findings(false), back = { .n = 0 };
	const struct test_dir dir = test_dir_make();
	const char *path = test_path(&dir, "memo");
	struct error err;

	(void)state;
	must(audit_memo_save(path, &r, &err), &err);
	assert_false(audit_memo_load(path, &back));
	r.n = 1; /* no finding of the oracle: it is switched off */
	must(audit_memo_save(path, &r, &err), &err);
	assert_false(audit_memo_load(path, &back));
	audit_free(&back);
	audit_free(&r);
	test_dir_remove(&dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_failures_are_not_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
