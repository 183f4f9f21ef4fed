/* The interface between ranks: alone, over MPI with three processes, and by NCCL where a GPU is
 * tested. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/open.h"
#include "core/ranks/ranks.h"
#include "core/util/test.h"

#define RANKS 3
#define NO_MPI 77 /* exit status of a rank */

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

/* --------------------------------------------------------- as one of several */

#define PIECES 5
#define LARGEST 300000 /* more than MPI sends without asking the receiver */

static int piece_size(int i)
{
	return i % 2 ? LARGEST : 3;
}

/* Every rank sends every other one pieces of two sizes, and finds them in their order. */
static const char *exchange(struct ranks *r, struct error *err)
{
	int *out = malloc(PIECES * LARGEST * sizeof(*out));
	int *in = calloc(RANKS * PIECES * LARGEST, sizeof(*in));
	const char *wrong = NULL;

	for (int i = 0; i < PIECES * LARGEST; i++)
		out[i] = r->rank * 1000 + i / LARGEST;
	for (int i = 0; i < PIECES; i++) {
		const size_t bytes = (size_t)piece_size(i) * sizeof(*out);

		for (int other = 0; other < r->size; other++) {
			if (other == r->rank)
				continue;
			if (ranks_receive(r, other, in + (other * PIECES + i) * LARGEST, bytes,
					  err) ||
			    ranks_send(r, other, out + i * LARGEST, bytes, err))
				wrong = err->text;
		}
		if (ranks_start(r, err) != OK || ranks_push(r, err) != OK)
			wrong = err->text;
	}
	if (ranks_wait(r, err) != OK)
		wrong = err->text;
	for (int other = 0; other < r->size; other++)
		for (int i = 0; i < PIECES && other != r->rank; i++)
			for (int j = 0; j < LARGEST; j++)
				if (in[(other * PIECES + i) * LARGEST + j] !=
				    (j < piece_size(i) ? other * 1000 + i : 0))
					wrong = "a piece arrived wrong";
	free(out);
	free(in);
	return wrong;
}

static const char *collect(struct ranks *r, struct error *err)
{
	double mine = r->rank + 0.5, all[RANKS], given = r->rank;

	if (ranks_gather(r, &mine, all, sizeof(mine), err) != OK)
		return err->text;
	for (int i = 0; i < RANKS; i++)
		if (all[i] != i + 0.5)
			return "gathered in another order";
	if (ranks_broadcast(r, 2, &given, sizeof(given), err) != OK)
		return err->text;
	return given == 2 ? NULL : "not what rank 2 has";
}

static const char *agree(struct ranks *r, struct error *err)
{
	if (ranks_agree(r, OK, err) != OK)
		return "agreed on a failure that nobody had";
	fail(err, "mine is %d", r->rank);
	if (ranks_agree(r, r->rank > 0 ? FAIL : OK, err) == OK)
		return "overlooked a failure";
	return strcmp(err->text, "rank 1: mine is 1") == 0 ? NULL : err->text;
}

/* What mpirun starts: this program once more, with an argument. */
static int as_rank(const char *what)
{
	struct error err = { "" };
	const char *wrong;
	struct ranks *r;

	if (ranks_open(&r, RANKS, &err) != OK) {
		fprintf(stderr, "%s\n", err.text);
		return strstr(err.text, "has no MPI") ? NO_MPI : 1;
	}
	if (strcmp(what, "abort") == 0 && r->rank == 1)
		ranks_abort(r, 9);
	wrong = exchange(r, &err);
	wrong = wrong ? wrong : collect(r, &err);
	wrong = wrong ? wrong : agree(r, &err);
	if (wrong)
		fprintf(stderr, "rank %d: %s\n", r->rank, wrong);
	ranks_close(r);
	return wrong ? 1 : 0;
}

static char program[4096];

static int run_ranks(int n, const char *what)
{
	char command[5000];
	int status;

	setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
	setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
	snprintf(command, sizeof(command),
		 "timeout 120 mpirun -n %d --oversubscribe --bind-to none '%s' %s%s", n, program,
		 what, strcmp(what, "work") == 0 ? "" : " 2>/dev/null");
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_mpi(void **state)
{
	(void)state;
	if (system("mpirun --version >/dev/null 2>&1") != 0 || run_ranks(1, "few") == NO_MPI) {
		print_message("[  SKIPPED ] there is no MPI\n");
		skip();
	}
	assert_int_equal(run_ranks(RANKS, "work"), 0);
	assert_int_equal(run_ranks(RANKS, "abort"), 9);
	assert_int_equal(run_ranks(RANKS - 1, "few"), 1); /* fewer processes than CONFIG_RANKS */
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
	if (strcmp(backend_name_for_tests(), "cuda") != 0)
		skip();
	b = backend_for_tests(FLOAT32, 1);
	assert_ok(ranks_open(&r, 1, &err));
	if (ranks_use_nccl(&r, b.context, &e) != OK) {
		print_message("[  SKIPPED ] %s\n", e.text);
		skip();
	}
	host = malloc(bytes);
	for (int i = 0; i < N; i++)
		host[i] = (float)i;
	from = b.alloc(&b, bytes);
	to = b.alloc(&b, bytes);
	b.upload(&b, from, host, bytes);
	assert_ok(ranks_send(r, 0, from, bytes, &err));
	assert_ok(ranks_receive(r, 0, to, bytes, &err));
	assert_ok(ranks_start(r, &err));
	assert_ok(ranks_push(r, &err));
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

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_mpi),
		cmocka_unit_test(test_nccl),
	};

	if (argc > 1)
		return as_rank(argv[1]);
	if (!realpath(argv[0], program))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
