/*
 * results - show the database of runs, and make it from the run directories.
 */
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "core/util/config.h"
#include "core/record/database.h"
#include "core/record/metrics.h"
#include "core/util/process.h"
#include "core/util/standard.h"
#include "core/train/progress.h"
#include "core/util/status.h"
#include "tools/results/collect.h"
#include "tools/results/verify.h"

#define CLEAR_SCREEN "\033[H\033[J" /* ECMA-48: cursor home, erase what follows */
#define WATCH_SECONDS 2
#define USAGE_ERROR 2
#define STATUS_COLUMNS 65 /* of a line of the status, but for two names and the note */

static const char help[] =
	"usage: results [--db FILE] [--experiment NAME] COMMAND\n"
	"\n"
	"  status [RUNS]            a line per run: state, iteration, loss, time left\n"
	"  watch [SECONDS [RUNS]]   the same again and again, until interrupted (default: 2)\n"
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
	"RUNS is runs/, and FILE is RUNS/results.db, unless given.  status and watch show the "
	"runs\n"
	"of the experiment NAME, or all.  The exit status is 1 when something went wrong or a run\n"
	"has a problem.  The tables: docs/database.md\n"
	"\n"
	"Example: results merge /mnt/laptop/runs\n";

struct request {
	struct collect collect; /* the directory and the database */
	const char *experiment; /* NULL: all */
};

/* --------------------------------------------------------------- status */

static const char status_sql[] =
	"SELECT overview.experiment, overview.step, overview.seed, overview.state, iteration,"
	"  overview.iterations, train_loss, validation_loss, overview.exit_reason,"
	"  host, pid, process, heartbeat, resumed, resumed_iteration, runs.directory"
	" FROM overview JOIN runs ON runs.id = run"
	" WHERE ?1 IS NULL OR overview.experiment = ?1"
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
	DIRECTORY,
};

static const char *text_of(sqlite3_stmt *row, enum column c)
{
	const char *text = (const char *)sqlite3_column_text(row, (int)c);

	return text ? text : "";
}

#define CELL_SIZE 512

/* For the terminal: what a file recorded may hold escape sequences. */
static const char *cell_of(sqlite3_stmt *row, enum column c, char cell[CELL_SIZE])
{
	snprintf(cell, CELL_SIZE, "%s", text_of(row, c));
	return printable(cell);
}

static double real_of(sqlite3_stmt *row, enum column c)
{
	return sqlite3_column_type(row, (int)c) == SQLITE_NULL ? NAN
							       : sqlite3_column_double(row, (int)c);
}

/* Seconds until the end, at the pace since the last start. */
static double seconds_left(sqlite3_stmt *row)
{
	const double made = real_of(row, ITERATION) - real_of(row, RESUMED_ITERATION);
	const double took = real_of(row, HEARTBEAT) - real_of(row, RESUMED);

	return made > 0 ? took / made * (real_of(row, ITERATIONS) - real_of(row, ITERATION)) : NAN;
}

/* Does make hold the run for done?  Its directory is relative to the database's. */
static bool is_done(sqlite3_stmt *row)
{
	const char *directory = text_of(row, DIRECTORY);
	char database[PATH_MAX], path[2 * PATH_MAX];

	snprintf(database, sizeof(database), "%s",
		 sqlite3_db_filename(sqlite3_db_handle(row), "main"));
	snprintf(path, sizeof(path), "%s%s%s", directory[0] == '/' ? "" : dirname(database),
		 directory[0] == '/' ? "" : "/", directory);
	return run_is_done(path);
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
		snprintf(note, size, "%s",
			 is_done(row) ? "it is done, but the database lacks its end: see "
					"'results update'"
				      : "its process is gone; it can be resumed");
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

/* All runs together, for the last line. */
struct totals {
	int runs, done, running, stopped;
	double seconds; /* until the last run of this machine has ended */
};

static void add_total(struct totals *t, sqlite3_stmt *row, const char *state)
{
	t->runs++;
	if (strcmp(state, run_state_name(RUN_DONE)) == 0 ||
	    strcmp(state, run_state_name(RUN_BUDGET)) == 0) {
		t->done++;
	} else if (strcmp(state, run_state_name(RUN_RUNNING)) == 0) {
		t->running++;
		t->seconds = fmax(t->seconds, seconds_left(row));
	} else {
		t->stopped++;
	}
}

static void print_totals(const struct totals *t)
{
	char duration[PROGRESS_NUMBER_SIZE];

	printf("%d run%s: %d done", t->runs, t->runs == 1 ? "" : "s", t->done);
	if (t->running)
		printf(", %d running, %s left", t->running,
		       progress_duration(t->seconds > 0 ? t->seconds : NAN, duration));
	if (t->stopped)
		printf(", %d stopped before their end", t->stopped);
	printf("\n");
}

/* Colours only on a terminal (https://no-color.org). */
static bool has_colours(void)
{
	const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0 && (!none || !none[0]);
}

/* ECMA-48 */
static const char *colour_of(const char *state)
{
	if (!has_colours())
		return "";
	if (strcmp(state, run_state_name(RUN_DONE)) == 0)
		return "\033[32m"; /* green */
	if (strcmp(state, run_state_name(RUN_RUNNING)) == 0)
		return "\033[1m"; /* bold */
	if (strcmp(state, run_state_name(RUN_BUDGET)) == 0 ||
	    strcmp(state, run_state_name(RUN_INTERRUPTED)) == 0)
		return "";
	return "\033[31m"; /* red */
}

/* Columns for the note after `used` others; a pipe has no limit. */
static int note_room(int used)
{
	struct winsize size = { 0 };

	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2)
		return INT_MAX;
	return size.ws_col > used ? size.ws_col - used : 0;
}

static void print_row(sqlite3_stmt *row, int experiment_width, int step_width,
		      struct totals *totals)
{
	char train[PROGRESS_NUMBER_SIZE], validation[PROGRESS_NUMBER_SIZE];
	char iteration[2 * PROGRESS_NUMBER_SIZE], note[CELL_SIZE], shown_state[CELL_SIZE];
	char experiment[CELL_SIZE], step[CELL_SIZE], seed[CELL_SIZE];
	const char *state, *colour;

	describe_state(row, &state, note, sizeof(note));
	snprintf(shown_state, sizeof(shown_state), "%s", state);
	add_total(totals, row, state);
	colour = colour_of(state);
	format_loss(real_of(row, LOSS), train);
	format_loss(real_of(row, VALIDATION), validation);
	snprintf(iteration, sizeof(iteration), "%s/%s",
		 *text_of(row, ITERATION) ? text_of(row, ITERATION) : "0",
		 text_of(row, ITERATIONS));
	printf("%-*s  %-*s  %4s  %s%-11s%s  %13s  %9s  %10s  %.*s\n", experiment_width,
	       cell_of(row, EXPERIMENT, experiment), step_width, cell_of(row, STEP, step),
	       cell_of(row, SEED, seed), colour, printable(shown_state), colour[0] ? "\033[m" : "",
	       printable(iteration), train, validation,
	       note_room(experiment_width + step_width + STATUS_COLUMNS), printable(note));
}

/* One number about the experiment; about all experiments if its name is NULL. */
static int ask_number(struct database *d, const char *question, const char *experiment)
{
	sqlite3_stmt *s;
	int number = 0;

	if (sqlite3_prepare_v2(database_handle(d), question, -1, &s, NULL) == SQLITE_OK &&
	    sqlite3_bind_text(s, 1, experiment, -1, SQLITE_STATIC) == SQLITE_OK &&
	    sqlite3_step(s) == SQLITE_ROW)
		number = sqlite3_column_int(s, 0);
	sqlite3_finalize(s);
	return number;
}

static enum status print_status(struct database *d, const char *experiment, struct error *err)
{
	const int name_width = ask_number(d,
					  "SELECT max(10, max(length(name))) FROM experiments"
					  " WHERE ?1 IS NULL OR name = ?1",
					  experiment);
	const int step_width = ask_number(d,
					  "SELECT max(4, max(length(step))) FROM overview"
					  " WHERE ?1 IS NULL OR experiment = ?1",
					  experiment);
	struct totals totals = { 0 };
	sqlite3_stmt *row;
	int code = sqlite3_prepare_v2(database_handle(d), status_sql, -1, &row, NULL);

	if (code == SQLITE_OK)
		code = sqlite3_bind_text(row, 1, experiment, -1, SQLITE_STATIC);
	if (code == SQLITE_OK) {
		printf("%-*s  %-*s  %4s  %-11s  %13s  %9s  %10s\n", name_width, "EXPERIMENT",
		       step_width, "STEP", "SEED", "STATE", "ITERATION", "LOSS", "VALIDATION");
		while ((code = sqlite3_step(row)) == SQLITE_ROW)
			print_row(row, name_width, step_width, &totals);
		print_totals(&totals);
	}
	if (code != SQLITE_DONE)
		database_fail(d, err);
	sqlite3_finalize(row);
	fflush(stdout);
	return code == SQLITE_DONE ? OK : FAIL;
}

static enum status check_experiment(struct database *d, const char *experiment, struct error *err)
{
	if (!experiment ||
	    ask_number(d, "SELECT count(*) FROM experiments WHERE name = ?1", experiment))
		return OK;
	return fail(err, "there is no experiment '%s' in the database", experiment);
}

static enum status show(const struct request *r, struct error *err)
{
	const char *path = r->collect.db_path;
	struct database *d;
	enum status status;

	if (access(path, R_OK))
		return fail(err,
			    "%s: %s; 'make' trains and writes it, 'results rebuild' makes it "
			    "from the run directories",
			    path, strerror(errno));
	if (database_open(&d, path, METRICS_BUSY_SECONDS, err))
		return FAIL;
	status = check_experiment(d, r->experiment, err);
	if (status == OK)
		status = print_status(d, r->experiment, err);
	database_close(d);
	return status;
}

/* Opens the database each time, so that a rebuilt one is seen. */
static enum status watch(const struct request *r, double seconds, struct error *err)
{
	const struct timespec pause = { (time_t)seconds,
					(long)(1e9 * (seconds - (double)(time_t)seconds)) };

	do {
		fputs(isatty(STDOUT_FILENO) ? CLEAR_SCREEN : "\n", stdout);
		if (show(r, err))
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

static int run_status(struct request *r, const char *argument)
{
	struct error err;

	(void)argument;
	return end(show(r, &err), 0, &err);
}

static int run_watch(struct request *r, const char *argument)
{
	double seconds = WATCH_SECONDS;
	struct error err;

	if (argument && parse_real(argument, &seconds, &err))
		return misused(err.text);
	if (!(seconds > 0 && seconds < 1e6))
		return misused("watch: a number of seconds above 0");
	return end(watch(r, seconds, &err), 0, &err);
}

static int report(const struct collect *c, enum status status, const struct error *err)
{
	printf("%d added, %d updated, %d unchanged, %d with problems\n", c->added, c->updated,
	       c->unchanged, c->problems);
	return end(status, c->problems, err);
}

static int run_rebuild(struct request *r, const char *argument)
{
	struct error err;

	(void)argument;
	return report(&r->collect, collect_rebuild(&r->collect, &err), &err);
}

/* Says nothing when nothing was to do. */
static int run_update(struct request *r, const char *argument)
{
	struct collect *c = &r->collect;
	struct error err;
	enum status status;

	(void)argument;
	status = collect_update(c, &err);
	if (c->updated || c->problems)
		return report(c, status, &err);
	return end(status, 0, &err);
}

static int run_merge(struct request *r, const char *argument)
{
	struct error err;

	return argument ? report(&r->collect, collect_merge(&r->collect, argument, &err), &err)
			: misused("merge: which directory of runs?");
}

static int run_verify(struct request *r, const char *argument)
{
	enum status status;
	struct error err;

	(void)argument;
	status = verify_runs(&r->collect, &err);
	return end(status, r->collect.problems, &err);
}

static const struct command {
	const char *name;
	bool has_argument; /* before RUNS */
	int (*run)(struct request *r, const char *argument);
} commands[] = {
	{ "status", false, run_status },   { "watch", true, run_watch },
	{ "rebuild", false, run_rebuild }, { "update", false, run_update },
	{ "merge", true, run_merge },	   { "verify", false, run_verify },
};

static int run_command(const struct command *command, struct request *r, int n, char **words)
{
	const char *argument = command->has_argument && n > 0 ? words[0] : NULL;
	const int at = command->has_argument;
	struct collect *c = &r->collect;
	char path[PATH_MAX];

	if (n > at + 1)
		return misused("too many arguments");
	c->runs = n > at ? words[at] : "runs";
	snprintf(path, sizeof(path), "%s/results.db", c->runs);
	c->db_path = c->db_path ? c->db_path : path;
	return command->run(r, argument);
}

static int find_and_run(struct request *r, int n, char **words)
{
	for (size_t i = 0; n > 0 && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(words[0], commands[i].name))
			return run_command(&commands[i], r, n - 1, words + 1);
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
	static const struct option options[] = {
		{ "db", required_argument, NULL, 'd' },
		{ "experiment", required_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct request r = { .collect.out = stdout };
	int option;

	standard_occupy();
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return EXIT_SUCCESS;
		}
		if (option == 'd')
			r.collect.db_path = optarg;
		else if (option == 'e')
			r.experiment = optarg;
		else
			return misused("unknown option");
	}
	return end_output(find_and_run(&r, argc - optind, argv + optind));
}
