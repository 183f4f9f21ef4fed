/*
 * results - makes the database of runs from the run directories, and checks both.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/standard.h"
#include "core/util/status.h"
#include "tools/results/collect.h"
#include "tools/results/verify.h"

#define USAGE_ERROR 2

static const char help[] =
	"usage: results COMMAND\n"
	"\n"
	"  rebuild [RUNS]           make the database from the run directories; put a damaged\n"
	"                           database aside; keep runs without a directory\n"
	"  update [RUNS]            take in the runs whose journals are longer than the database\n"
	"                           knows: runs on the nodes of a cluster\n"
	"  merge OTHER [RUNS]       copy the records and journals of another directory of runs\n"
	"                           into RUNS and the database, and the measurements of\n"
	"                           bench-decode into RUNS; overwrite and double nothing\n"
	"  verify [RUNS]            check journals, database, weights, checkpoints, declarations\n"
	"                           and reports; a line says what is wrong with what\n"
	"\n"
	"RUNS is runs/ unless given; the database is RUNS/results.db.  The exit status is 1 when\n"
	"something went wrong or a run has a problem.  The tables: docs/database.md.  'make status'\n"
	"shows them.\n"
	"\n"
	"Example: results merge /mnt/laptop/runs\n";

/* --------------------------------------------------------------- commands */

static int end(enum status status, int problems, const struct error *err)
{
	if (status)
		fprintf(stderr, "results: %s\n", err->text);
	return status || problems ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int misused(const char *what)
{
	fprintf(stderr, "results: %s\n%s", what, help);
	return USAGE_ERROR;
}

static int report(const struct collect *c, enum status status, const struct error *err)
{
	fprintf(c->out, "%d added, %d updated, %d unchanged, %d with problems\n", c->added,
		c->updated, c->unchanged, c->problems);
	return end(status, c->problems, err);
}

static int run_rebuild(struct collect *c, const char *argument)
{
	struct error err;

	(void)argument;
	return report(c, collect_rebuild(c, &err), &err);
}

/* Says nothing when nothing was to do. */
static int run_update(struct collect *c, const char *argument)
{
	struct error err;
	enum status status;

	(void)argument;
	status = collect_update(c, &err);
	if (c->updated || c->problems)
		return report(c, status, &err);
	return end(status, 0, &err);
}

static int run_merge(struct collect *c, const char *argument)
{
	struct error err;

	return argument ? report(c, collect_merge(c, argument, &err), &err)
			: misused("merge: which directory of runs?");
}

static int run_verify(struct collect *c, const char *argument)
{
	enum status status;
	struct error err;

	(void)argument;
	status = verify_runs(c, &err);
	return end(status, c->problems, &err);
}

static const struct command {
	const char *name;
	bool has_argument; /* before RUNS */
	int (*run)(struct collect *c, const char *argument);
} commands[] = {
	{ "rebuild", false, run_rebuild },
	{ "update", false, run_update },
	{ "merge", true, run_merge },
	{ "verify", false, run_verify },
};

static int run_command(const struct command *command, struct collect *c, int n, char **words)
{
	const char *argument = command->has_argument && n > 0 ? words[0] : NULL;
	const int at = command->has_argument;
	char path[PATH_MAX];

	if (n > at + 1)
		return misused("too many arguments");
	c->runs = n > at ? words[at] : "runs";
	snprintf(path, sizeof(path), "%s/results.db", c->runs);
	c->db_path = path;
	return command->run(c, argument);
}

static int find_and_run(struct collect *c, int n, char **words)
{
	for (size_t i = 0; n > 0 && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(words[0], commands[i].name))
			return run_command(&commands[i], c, n - 1, words + 1);
	return misused(n > 0 ? "no such command" : "no command");
}

static int end_output(int result)
{
	struct error err;

	if (standard_output_end(&err) == OK)
		return result;
	fprintf(stderr, "results: %s\n", err.text);
	return result ? result : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	/* What it prints holds names of directories and texts of files. */
	struct collect collect = { .out = standard_printable(stdout) };
	int result;

	standard_occupy();
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		fputs(help, stdout);
		return EXIT_SUCCESS;
	}
	if (!collect.out) {
		fprintf(stderr, "results: out of memory\n");
		return EXIT_FAILURE;
	}
	setvbuf(collect.out, NULL, _IOLBF, 0);
	result = find_and_run(&collect, argc - 1, argv + 1);
	fclose(collect.out);
	return end_output(result);
}
