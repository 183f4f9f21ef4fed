/*
 * Tests of core/record/metrics under failures: kills, several writers, missing directories, a
 * database that is locked, damaged or removed, a full disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "core/record/metrics_case.h"
#include "core/util/rng.h"

static sqlite3 *lock_database(const struct place *p)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(p->db, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
	return db;
}

static void overwrite_database(const struct place *p)
{
	char garbage[16384];
	int fd = open(p->db, O_WRONLY | O_CREAT, 0666);

	memset(garbage, 'x', sizeof(garbage));
	assert_true(fd >= 0);
	assert_int_equal(write(fd, garbage, sizeof(garbage)), sizeof(garbage));
	close(fd);
}

/* As on a disk with room for files up to this size. */
static void limit_file_size(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static off_t size_of(const char *path)
{
	struct stat about;

	assert_int_equal(stat(path, &about), 0);
	return about.st_size;
}

/* --------------------------------------------------------------- locked */

/* One warning, which names the command.  When the lock is gone, the database has everything. */
static void test_a_locked_database_catches_up_at_the_end(void **state)
{
	struct place *p = *state;
	struct metrics *m;
	sqlite3 *lock;

	p->options.busy_seconds = 0.02;
	m = begin_run(p, -1);
	tell(m, 1, 2);
	lock = lock_database(p);
	tell(m, 3, 6);
	assert_int_equal(p->warnings, 1);
	assert_false(metrics_in_database(m));
	assert_non_null(strstr(p->warning, "database is locked"));
	assert_non_null(strstr(p->warning, "`results rebuild "));
	assert_non_null(strstr(p->warning, p->root));
	sqlite3_close(lock);
	check_iterations(p, 2);
	finish(m);
	assert_int_equal(p->warnings, 1);
	check_iterations(p, 6);
	assert_answer(p, "SELECT state = 'done' FROM runs", 1);
}

static void test_a_locked_database_is_tried_again(void **state)
{
	struct place *p = *state;
	struct metrics *m;
	sqlite3 *lock;

	p->options.busy_seconds = 0.02;
	p->options.retry_seconds = 1e-6;
	m = begin_run(p, -1);
	lock = lock_database(p);
	tell(m, 1, 3);
	sqlite3_close(lock);
	tell(m, 4, 5);
	assert_true(metrics_in_database(m));
	check_iterations(p, 5);
	assert_int_equal(p->warnings, 1);
	metrics_abandon(m);
}

static void test_a_database_that_stays_locked_is_reported_at_the_end(void **state)
{
	struct place *p = *state;
	struct metrics *m;
	sqlite3 *lock = lock_database(p);

	p->options.busy_seconds = 0.02;
	m = begin_run(p, -1);
	tell(m, 1, 3);
	finish(m);
	assert_int_equal(p->warnings, 2);
	assert_non_null(strstr(p->warning, "lacks this run"));
	sqlite3_close(lock);
	check_rebuilt(p, 3);
}

static void unlock_on_warning(void *context, const char *text)
{
	struct place *p = context;

	place_take_warning(p, text);
	sqlite3_close(p->lock);
}

/* What was wrong for the last commit alone, such as a lack of memory, leaves nothing behind. */
static void test_a_database_lost_at_the_last_moment(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	p->options.busy_seconds = 0.02;
	p->options.warn = unlock_on_warning;
	m = begin_run(p, -1);
	tell(m, 1, 2);
	p->lock = lock_database(p);
	finish(m);
	assert_int_equal(p->warnings, 1);
	check_iterations(p, 2);
	assert_answer(p, "SELECT state = 'done' FROM runs", 1);
}

/* `results rebuild` puts damaged databases aside: a locked one must not count as damaged. */
static void test_locked_is_not_damaged(void **state)
{
	struct place *p = *state;
	struct error why;
	sqlite3 *lock;

	assert_false(database_is_damaged(p->db, &why)); /* there is none */
	finish(begin_run(p, -1));
	assert_false(database_is_damaged(p->db, &why));
	lock = lock_database(p);
	assert_false(database_is_damaged(p->db, &why));
	sqlite3_close(lock);
	overwrite_database(p);
	assert_true(database_is_damaged(p->db, &why));
	assert_string_equal(why.text, "file is not a database");
}

static enum status wait_for(pid_t pid)
{
	int how;

	assert_int_equal(waitpid(pid, &how, 0), pid);
	return WIFEXITED(how) && WEXITSTATUS(how) == 0 ? OK : FAIL;
}

/* A lock that ends before the timeout does no harm. */
static void test_a_short_lock_is_waited_for(void **state)
{
	const struct timespec moment = { .tv_nsec = 300000000 };
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	char go;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		sqlite3 *lock = lock_database(p);

		if (write(ends[1], "!", 1) != 1)
			_exit(1);
		nanosleep(&moment, NULL);
		sqlite3_close(lock);
		_exit(0);
	}
	assert_int_equal(read(ends[0], &go, 1), 1);
	tell(m, 1, 2);
	finish(m);
	assert_int_equal(wait_for(pid), OK);
	assert_int_equal(p->warnings, 0);
	check_iterations(p, 2);
	close(ends[0]);
	close(ends[1]);
}

/* --------------------------------------------------------------- damaged, removed, no room */

static void test_a_damaged_database_does_not_stop_a_run(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	overwrite_database(p);
	m = begin_run(p, -1);
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->warning, "not a database"));
	tell(m, 1, 3);
	finish(m);
	check_rebuilt(p, 3);
}

static void test_a_database_damaged_meanwhile_does_not_stop_a_run(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	tell(m, 1, 3);
	overwrite_database(p);
	tell(m, 4, 6);
	assert_int_equal(p->warnings, 1);
	finish(m);
	check_rebuilt(p, 6);
}

static void test_a_removed_database_is_made_again(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);

	tell(m, 1, 3);
	unlink(p->db);
	tell(m, 4, 6);
	check_iterations(p, 6);
	finish(m);
	assert_int_equal(p->warnings, 0);
}

/* If the rows of a running run are deleted, the next commit writes them all again. */
static void test_removed_rows_come_back(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	sqlite3 *db;

	tell(m, 1, 3);
	assert_int_equal(sqlite3_open(p->db, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db,
				      "DELETE FROM config; DELETE FROM metrics;"
				      "DELETE FROM events; DELETE FROM runs",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	sqlite3_close(db);
	tell(m, 4, 6);
	check_iterations(p, 6);
	finish(m);
	assert_int_equal(p->warnings, 0);
}

/* The event file is a view: a run goes on without it, after one warning. */
static void test_no_room_for_tensorboard(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	p->options.tensorboard_dir = p->journal; /* a file, not a directory */
	m = begin_run(p, -1);
	tell(m, 1, 3);
	finish(m);
	assert_int_equal(p->warnings, 1);
	assert_non_null(strstr(p->warning, "no more points for TensorBoard: "));
	check_iterations(p, 3);
}

static void test_no_room_for_the_database(void **state)
{
	struct place *p = *state;
	struct metrics *m;

	limit_file_size(20000); /* less than an empty database, more than this journal */
	m = begin_run(p, -1);
	tell(m, 1, 3);
	finish(m);
	limit_file_size(RLIM_INFINITY);
	assert_int_equal(p->warnings, 2);
	check_rebuilt(p, 3);
}

/* The disk fills up in the middle of a commit's lines: nothing is lost, nothing comes twice. */
static void test_no_room_for_the_journal(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	struct error err;
	off_t sound;

	tell(m, 1, 3);
	sound = size_of(p->journal);
	limit_file_size((rlim_t)sound + 30);
	metrics_value(m, 4, METRIC_TRAIN_LOSS, loss_at(4));
	metrics_event(m, 4, "note", "something");
	assert_int_equal(metrics_commit(m, &err), FAIL);
	assert_non_null(strstr(err.text, JOURNAL_FILE ": File too large"));
	assert_int_equal(size_of(p->journal), sound);
	limit_file_size(RLIM_INFINITY);
	check_iterations(p, 3);
	tell(m, 5, 6);
	finish(m);
	check_iterations(p, 6);
	check_rebuilt(p, 6);
}

/* --------------------------------------------------------------- directories */

static void test_a_missing_run_directory_is_an_error(void **state)
{
	struct place *p = *state;
	struct metrics *m;
	struct error err;

	p->options.run_dir = "/nonexistent/run";
	assert_int_equal(metrics_open(&m, &p->options, -1, &err), FAIL);
	assert_non_null(strstr(err.text, "/nonexistent/run/" JOURNAL_FILE ": No such file"));
	assert_null(m);
}

/* Below a regular file nothing can be made, not even by root. */
static void test_a_directory_that_cannot_be_written(void **state)
{
	struct place *p = *state;
	char below[500];
	struct metrics *m;
	struct error err;

	finish(begin_run(p, -1));
	snprintf(below, sizeof(below), "%s/run", p->journal);
	p->options.run_dir = below;
	assert_int_equal(metrics_open(&m, &p->options, -1, &err), FAIL);
	assert_non_null(strstr(err.text, "Not a directory"));

	p->options.run_dir = p->run_dir;
	p->options.db_path = below;
	m = begin_run(p, -1);
	assert_int_equal(p->warnings, 1);
	tell(m, 1, 2);
	finish(m);
	check_rebuilt(p, 2);
}

/* --------------------------------------------------------------- several processes */

static void test_one_process_per_run(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1), *second;
	struct error err;

	tell(m, 1, 3);
	assert_int_equal(metrics_open(&second, &p->options, -1, &err), FAIL);
	assert_non_null(strstr(err.text, "another process is working on this run"));
	tell(m, 4, 5);
	finish(m);
	check_iterations(p, 5);
}

#define WRITERS 4
#define COMMITS 20
#define RESUME_EVERY 5 /* each brings the whole journal into the database again */

/* In a child: a failed assertion would run the rest of the tests there. */
static void write_and_exit(struct place *p)
{
	struct metrics *m = NULL;
	struct error err;
	bool recorded = true;

	for (int64_t i = 1; i <= COMMITS; i++) {
		if (i % RESUME_EVERY == 1) {
			metrics_abandon(m);
			if (metrics_open(&m, &p->options, i == 1 ? -1 : i - 1, &err))
				_exit(1);
		}
		metrics_value(m, i, METRIC_TRAIN_LOSS, loss_at(i));
		if (metrics_commit(m, &err))
			_exit(2);
		recorded &= metrics_in_database(m);
	}
	_exit(metrics_close(m, RUN_DONE, NULL, &err) != OK || !recorded);
}

/* They also race to create the database. */
static void test_runs_side_by_side(void **state)
{
	struct place *p = *state;
	pid_t pids[WRITERS];

	for (int i = 0; i < WRITERS; i++) {
		place_run(p, i);
		pids[i] = fork();
		if (pids[i] == 0)
			write_and_exit(p);
	}
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(wait_for(pids[i]), OK);
	assert_answer(p, "SELECT count(*) FROM runs WHERE state = 'done'", WRITERS);
	assert_answer(p, "SELECT count(*) FROM metrics", WRITERS * COMMITS);
	assert_answer(p, "SELECT count(*) FROM experiments", 1);
}

/* A rebuild beside a running run: neither loses or doubles a row. */
static void test_imports_beside_a_writer(void **state)
{
	struct place *p = *state;
	struct metrics *m = begin_run(p, -1);
	struct database *d;
	struct error err;
	int64_t run;

	must(database_open(&d, p->db, 1, &err), &err);
	for (int64_t i = 1; i <= 20; i++) {
		must(database_import(d, p->run_dir, false, &run, &err), &err);
		tell(m, i, i);
	}
	must(database_import(d, p->run_dir, false, &run, &err), &err);
	database_close(d);
	check_iterations(p, 20);
	finish(m);
}

/* --------------------------------------------------------------- kills */

#define LAST 60
#define CHECKPOINT_EVERY 5

static int64_t read_checkpoint(const char *path)
{
	long long iteration = -1;
	FILE *file = fopen(path, "r");

	if (file && fscanf(file, "%lld", &iteration) != 1)
		iteration = -1;
	if (file)
		fclose(file);
	return iteration;
}

static bool write_checkpoint(const char *path, int64_t iteration)
{
	char temporary[500];
	FILE *file;

	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	file = fopen(temporary, "w");
	if (!file)
		return false;
	fprintf(file, "%lld", (long long)iteration);
	return fclose(file) == 0 && rename(temporary, path) == 0;
}

static void train_and_exit(struct place *p, const char *checkpoint)
{
	const int64_t resume = read_checkpoint(checkpoint);
	struct metrics *m;
	struct error err;

	if (metrics_open(&m, &p->options, resume, &err))
		_exit(1);
	for (int64_t i = resume < 0 ? 1 : resume + 1; i <= LAST; i++) {
		metrics_value(m, i, METRIC_TRAIN_LOSS, loss_at(i));
		metrics_event(m, i, "note", "something");
		if (metrics_commit(m, &err))
			_exit(2);
		if (i % CHECKPOINT_EVERY == 0 && !write_checkpoint(checkpoint, i))
			_exit(3);
	}
	_exit(metrics_close(m, RUN_DONE, NULL, &err) != OK);
}

/* True when the run came to its end before the kill. */
static bool run_and_kill(struct place *p, const char *checkpoint, int64_t nanoseconds)
{
	const struct timespec life = { .tv_nsec = nanoseconds };
	const pid_t pid = fork();
	int how;

	if (pid == 0)
		train_and_exit(p, checkpoint);
	nanosleep(&life, NULL);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &how, 0), pid);
	if (WIFEXITED(how))
		assert_int_equal(WEXITSTATUS(how), 0);
	return WIFEXITED(how);
}

/* Up to 1 ms at first, then longer, so that some runs reach the next checkpoint. */
static int64_t life_in_ns(int kills)
{
	const double most = fmin(1e6 * pow(1.08, kills), 999e6);

	return (int64_t)rng_below(rng_key(1, "kills"), (uint64_t)kills, (uint64_t)most);
}

/* Killed again and again at any moment, the run ends with every row once. */
static void test_kills(void **state)
{
	struct place *p = *state;
	char checkpoint[400];
	int kills = 0;

	snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", p->run_dir);
	while (!run_and_kill(p, checkpoint, life_in_ns(kills)))
		assert_in_range(++kills, 1, 300);
	assert_in_range(kills, 1, 300);
	check_iterations(p, LAST);
	assert_answer(p, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'",
		      1);
	check_rebuilt(p, LAST);
	print_message("# %d kills\n", kills);
}

/* --------------------------------------------------------------- no memory */

static int allocations_left; /* of cJSON, until one fails */

static void *allocate_or_not(size_t size)
{
	return allocations_left-- == 1 ? NULL : malloc(size);
}

/* A line that lacks a part would later be taken for damage. */
static void test_a_line_is_whole_or_not_written(void **state)
{
	cJSON_Hooks hooks = { .malloc_fn = allocate_or_not, .free_fn = free };
	struct place *p = *state;
	struct metrics *m = NULL;
	struct error err;
	int failed = 0;

	for (int n = 1; n < 200; n++) {
		enum status status;
		size_t size;
		char *text;

		allocations_left = n;
		cJSON_InitHooks(&hooks);
		status = metrics_open(&m, &p->options, -1, &err);
		if (status == OK) {
			metrics_value(m, 1, "train/loss", 0.5);
			metrics_event(m, 1, "note", "text");
			metrics_artifact(m, "weights", "w", "ab", 3);
			status = metrics_commit(m, &err);
		}
		cJSON_InitHooks(NULL);
		if (status != OK)
			assert_non_null(strstr(err.text, "memory"));
		failed += status != OK;
		metrics_abandon(m);
		m = NULL;
		must(journal_read(p->run_dir, p->options.record.identity, &text, &size, &err),
		     &err);
		if (status == OK)
			assert_non_null(strstr(text, "\"sha256\":\"ab\""));
		free(text);
	}
	assert_in_range(failed, 20, 198); /* the last ones need no more */
}

#define with_place(test) cmocka_unit_test_setup_teardown(test, place_make, place_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_place(test_a_locked_database_catches_up_at_the_end),
		with_place(test_a_locked_database_is_tried_again),
		with_place(test_a_database_lost_at_the_last_moment),
		with_place(test_a_database_that_stays_locked_is_reported_at_the_end),
		with_place(test_locked_is_not_damaged),
		with_place(test_a_short_lock_is_waited_for),
		with_place(test_a_damaged_database_does_not_stop_a_run),
		with_place(test_a_database_damaged_meanwhile_does_not_stop_a_run),
		with_place(test_a_removed_database_is_made_again),
		with_place(test_removed_rows_come_back),
		with_place(test_no_room_for_tensorboard),
		with_place(test_no_room_for_the_database),
		with_place(test_no_room_for_the_journal),
		with_place(test_a_missing_run_directory_is_an_error),
		with_place(test_a_directory_that_cannot_be_written),
		with_place(test_one_process_per_run),
		with_place(test_runs_side_by_side),
		with_place(test_imports_beside_a_writer),
		with_place(test_a_line_is_whole_or_not_written),
		with_place(test_kills),
	};

	signal(SIGXFSZ, SIG_IGN); /* a file that would become too large is an error of write() */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
