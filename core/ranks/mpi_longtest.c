/* The interface between ranks over MPI, with three processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/ranks/ranks.h"
#include "core/util/test.h"

#define RANKS 3
#define NO_MPI 77 /* exit status of a rank */

#define MESSAGES 5
#define LARGEST 300000 /* more than MPI sends without asking the receiver */

static int piece_size(int i)
{
	return i % 2 ? LARGEST : 3;
}

/* Every rank sends every other one messages of two sizes, and finds them in their order. */
static const char *exchange(struct ranks *r, struct error *err)
{
	int *out = malloc(MESSAGES * LARGEST * sizeof(*out));
	int *in = calloc(RANKS * MESSAGES * LARGEST, sizeof(*in));
	const char *wrong = NULL;

	for (int i = 0; i < MESSAGES * LARGEST; i++)
		out[i] = r->rank * 1000 + i / LARGEST;
	for (int i = 0; i < MESSAGES; i++) {
		const size_t bytes = (size_t)piece_size(i) * sizeof(*out);

		for (int other = 0; other < r->size; other++) {
			if (other == r->rank)
				continue;
			if (ranks_receive(r, other, in + (other * MESSAGES + i) * LARGEST, bytes,
					  err) ||
			    ranks_send(r, other, out + i * LARGEST, bytes, err))
				wrong = err->text;
		}
		if (ranks_start(r, err) != OK || ranks_progress(r, err) != OK)
			wrong = err->text;
	}
	if (ranks_wait(r, err) != OK)
		wrong = err->text;
	for (int other = 0; other < r->size; other++)
		for (int i = 0; i < MESSAGES && other != r->rank; i++)
			for (int j = 0; j < LARGEST; j++)
				if (in[(other * MESSAGES + i) * LARGEST + j] !=
				    (j < piece_size(i) ? other * 1000 + i : 0))
					wrong = "a message arrived wrong";
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
		return "agreed on a failure that no rank had";
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
	if (system("mpirun --version >/dev/null 2>&1") != 0)
		skip("there is no mpirun: openmpi-bin is not installed");
	if (run_ranks(1, "few") == NO_MPI)
		skip("the transport of MPI is not built: no mpicc");
	assert_int_equal(run_ranks(RANKS, "work"), 0);
	assert_int_equal(run_ranks(RANKS, "abort"), 9);
	assert_int_equal(run_ranks(RANKS - 1, "few"), 1); /* fewer processes than CONFIG_RANKS */
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mpi),
	};

	if (argc > 1)
		return as_rank(argv[1]);
	if (!realpath(argv[0], program))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
