/*
 * results - look at the database of runs, and make it from the run directories.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "core/util/config.h"
#include "core/record/database.h"
#include "core/record/metrics.h"
#include "core/util/process.h"
#include "core/train/progress.h"
#include "core/util/status.h"
#include "tools/results/collect.h"

#define CLEAR_SCREEN "\033[H\033[J" /* ECMA-48: cursor home, erase what follows */
#define WATCH_SECONDS 2
#define USAGE_ERROR 2

static const char help[] =
	"usage: results [--db FILE] COMMAND\n"
	"\n"
	"  status [RUNS]            a line per run: state, iteration, loss, time left\n"
	"  watch [SECONDS [RUNS]]   the same again and again, until interrupted (default: 2)\n"
	"  rebuild [RUNS]           make the database from the run directories; one that is\n"
	"                           damaged is put aside, runs without a directory are kept\n"
	"  merge OTHER [RUNS]       copy the records and journals of another directory of runs\n"
	"                           into RUNS and the database, and what bench-decode measured\n"
	"                           into RUNS; never doubles or overwrites any of them\n"
	"\n"
	"RUNS is runs/, and FILE is RUNS/results.db, unless given.  The exit status is 1 when\n"
	"something went wrong or a run has a problem.  The tables: docs/database.md\n"
	"\n"
	"Example: results merge /mnt/laptop/runs\n";

/* --------------------------------------------------------------- status */

static const char status_sql[] =
	"SELECT overview.experiment, overview.step, overview.seed, overview.state, iteration,"
	"  overview.iterations, train_loss, validation_loss, overview.exit_reason,"
	"  host, pid, process, heartbeat, resumed, resumed_iteration"
	" FROM overview JOIN runs ON runs.id = run"
	" ORDER BY overview.experiment, CAST(overview.step AS INTEGER), overview.step,"
	"  overview.seed, overview.repeat";

enum column {
	EXPERIMENT,
	STEP,
	SEED,
	STATE,
	ITERATION,
	ITERATIONS,
	LOSS,
	VALIDATION,
	REASON,
	HOST,
	PID,
	PROCESS,
	HEARTBEAT,
	RESUMED,
	RESUMED_ITERATION,
};

static const char *text_of(sqlite3_stmt *row, enum column c)
{
	const char *text = (const char *)sqlite3_column_text(row, (int)c);

	return text ? text : "";
}

static double real_of(sqlite3_stmt *row, enum column c)
{
	return sqlite3_column_type(row, (int)c) == SQLITE_NULL ? NAN
							       : sqlite3_column_double(row, (int)c);
}

/* At the pace since the last start. */
static double seconds_left(sqlite3_stmt *row)
{
	const double made = real_of(row, ITERATION) - real_of(row, RESUMED_ITERATION);
	const double took = real_of(row, HEARTBEAT) - real_of(row, RESUMED);

	return made > 0 ? took / made * (real_of(row, ITERATIONS) - real_of(row, ITERATION)) : NAN;
}

/* What the run's state means now: its process may be gone, or on another machine. */
static void describe_state(sqlite3_stmt *row, const char **state, char *note, size_t size)
{
	char duration[PROGRESS_NUMBER_SIZE];

	*state = text_of(row, STATE);
	snprintf(note, size, "%s", text_of(row, REASON));
	if (strcmp(*state, run_state_name(RUN_RUNNING)))
		return;
	progress_duration(seconds_left(row), duration);
	switch (process_look((const char *)sqlite3_column_text(row, HOST),
			     sqlite3_column_int64(row, PID),
			     (const char *)sqlite3_column_text(row, PROCESS))) {
	case PROCESS_LIVES:
		snprintf(note, size, "%s left", duration);
		break;
	case PROCESS_DEAD:
		*state = "died";
		snprintf(note, size, "its process is gone; it can be resumed");
		break;
	case PROCESS_ELSEWHERE:
		progress_duration((double)time(NULL) - real_of(row, HEARTBEAT), duration);
		snprintf(note, size, "on %s, last heard of %s ago", text_of(row, HOST), duration);
		break;
	}
}

static void format_loss(double loss, char text[PROGRESS_NUMBER_SIZE])
{
	if (isnan(loss))
		snprintf(text, PROGRESS_NUMBER_SIZE, "-");
	else
		snprintf(text, PROGRESS_NUMBER_SIZE, "%.4f", loss);
}

static void print_row(sqlite3_stmt *row, int experiment_width, int step_width)
{
	char train[PROGRESS_NUMBER_SIZE], validation[PROGRESS_NUMBER_SIZE];
	char iteration[2 * PROGRESS_NUMBER_SIZE], note[512];
	const char *state;

	describe_state(row, &state, note, sizeof(note));
	format_loss(real_of(row, LOSS), train);
	format_loss(real_of(row, VALIDATION), validation);
	snprintf(iteration, sizeof(iteration), "%s/%s",
		 *text_of(row, ITERATION) ? text_of(row, ITERATION) : "0",
		 text_of(row, ITERATIONS));
	printf("%-*s  %-*s  %4s  %-11s  %13s  %9s  %10s  %s\n", experiment_width,
	       text_of(row, EXPERIMENT), step_width, text_of(row, STEP), text_of(row, SEED), state,
	       iteration, train, validation, note);
}

/* One number of the database. */
static int ask_number(struct database *d, const char *question)
{
	sqlite3_stmt *s;
	int number = 0;

	if (sqlite3_prepare_v2(database_handle(d), question, -1, &s, NULL) == SQLITE_OK &&
	    sqlite3_step(s) == SQLITE_ROW)
		number = sqlite3_column_int(s, 0);
	sqlite3_finalize(s);
	return number;
}

static enum status print_status(struct database *d, struct error *err)
{
	const int experiment = ask_number(d, "SELECT max(10, max(length(name))) FROM experiments");
	const int step = ask_number(d, "SELECT max(4, max(length(step))) FROM runs");
	sqlite3_stmt *row;
	int code = sqlite3_prepare_v2(database_handle(d), status_sql, -1, &row, NULL);

	if (code == SQLITE_OK) {
		printf("%-*s  %-*s  %4s  %-11s  %13s  %9s  %10s\n", experiment, "EXPERIMENT", step,
		       "STEP", "SEED", "STATE", "ITERATION", "LOSS", "VALIDATION");
		while ((code = sqlite3_step(row)) == SQLITE_ROW)
			print_row(row, experiment, step);
	}
	if (code != SQLITE_DONE)
		fail(err, "%s", sqlite3_errmsg(database_handle(d)));
	sqlite3_finalize(row);
	fflush(stdout);
	return code == SQLITE_DONE ? OK : FAIL;
}

static enum status show(const char *db_path, struct error *err)
{
	struct database *d;
	enum status status;

	if (access(db_path, R_OK))
		return fail(err,
			    "%s: %s; 'make' trains and writes it, 'results rebuild' makes it "
			    "from the run directories",
			    db_path, strerror(errno));
	if (database_open(&d, db_path, METRICS_BUSY_SECONDS, err))
		return FAIL;
	status = print_status(d, err);
	database_close(d);
	return status;
}

/* Opened anew each time, so that a rebuilt database is seen. */
static enum status watch(const char *db_path, double seconds, struct error *err)
{
	const struct timespec pause = { (time_t)seconds,
					(long)(1e9 * (seconds - (double)(time_t)seconds)) };

	do {
		fputs(isatty(STDOUT_FILENO) ? CLEAR_SCREEN : "\n", stdout);
		if (show(db_path, err))
			return FAIL;
	} while (nanosleep(&pause, NULL) == 0);
	return OK;
}

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

static int run_status(struct collect *c, const char *argument)
{
	struct error err;

	(void)argument;
	return end(show(c->db_path, &err), 0, &err);
}

static int run_watch(struct collect *c, const char *argument)
{
	double seconds = WATCH_SECONDS;
	struct error err;

	if (argument && parse_real(argument, &seconds, &err))
		return misused(err.text);
	if (!(seconds > 0 && seconds < 1e6))
		return misused("watch: a number of seconds above 0");
	return end(watch(c->db_path, seconds, &err), 0, &err);
}

static int report(const struct collect *c, enum status status, const struct error *err)
{
	printf("%d added, %d updated, %d unchanged, %d with problems\n", c->added, c->updated,
	       c->unchanged, c->problems);
	return end(status, c->problems, err);
}

static int run_rebuild(struct collect *c, const char *argument)
{
	struct error err;

	(void)argument;
	return report(c, collect_rebuild(c, &err), &err);
}

static int run_merge(struct collect *c, const char *argument)
{
	struct error err;

	return argument ? report(c, collect_merge(c, argument, &err), &err)
			: misused("merge: which directory of runs?");
}

static const struct command {
	const char *name;
	bool has_argument; /* before RUNS */
	int (*run)(struct collect *c, const char *argument);
} commands[] = {
	{ "status", false, run_status },
	{ "watch", true, run_watch },
	{ "rebuild", false, run_rebuild },
	{ "merge", true, run_merge },
};

static int run_command(const struct command *command, const char *db_path, int n, char **words)
{
	const char *argument = command->has_argument && n > 0 ? words[0] : NULL;
	const int at = command->has_argument;
	struct collect c = { .runs = n > at ? words[at] : "runs", .out = stdout };
	char path[PATH_MAX];

	if (n > at + 1)
		return misused("too many arguments");
	snprintf(path, sizeof(path), "%s/results.db", c.runs);
	c.db_path = db_path ? db_path : path;
	return command->run(&c, argument);
}

static int find_and_run(const char *db_path, int n, char **words)
{
	for (size_t i = 0; n > 0 && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(words[0], commands[i].name))
			return run_command(&commands[i], db_path, n - 1, words + 1);
	return misused(n > 0 ? "no such command" : "no command");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "db", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	const char *db_path = NULL;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return EXIT_SUCCESS;
		}
		if (option != 'd')
			return misused("unknown option");
		db_path = optarg;
	}
	return find_and_run(db_path, argc - optind, argv + optind);
}
