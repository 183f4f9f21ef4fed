/*
 * Memory: every limit counts, the lowest wins, and runs that start together do not count on the
 * same bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/util/memory.h"
#include "core/util/process.h"
#include "core/util/test_dir.h"

#define MIB 1048576.0

struct fixture {
	struct test_dir dir;
	char notes[300];
	struct memory_place place;
};

static void make_directories(const struct fixture *f, const char *path)
{
	char copy[500];

	snprintf(copy, sizeof(copy), "%s/%s/", f->dir.path, path);
	for (char *at = copy + strlen(f->dir.path) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		assert_true(mkdir(copy, 0777) == 0 || errno == EEXIST);
		*at = '/';
	}
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	*state = f;
	f->dir = test_dir_make();
	make_directories(f, "proc/self");
	test_put_text(&f->dir, "proc/meminfo",
		      "MemTotal:       24000000 kB\nMemFree:         100 kB\n"
		      "MemAvailable:    2048000 kB\n");
	snprintf(f->notes, sizeof(f->notes), "%s/notes", f->dir.path);
	f->place = (struct memory_place){ .root = f->dir.path, .notes = f->notes };
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	test_dir_remove(&f->dir);
	free(f);
	return 0;
}

/* ------------------------------------------------------------------ limits */

static void assert_room(const struct fixture *f, double mebibytes, const char *where)
{
	const struct memory_room room = memory_shared_room(&f->place);

	if (room.bytes != mebibytes * MIB)
		fail_msg("%.1f MiB instead of %.1f, by %s", room.bytes / MIB, mebibytes,
			 room.where);
	assert_contains(room.where, where);
}

static void test_the_machine(void **state)
{
	struct fixture *f = *state;

	assert_room(f, 2000, "the machine");
	assert_true(memory_shared_room(NULL).bytes > 0); /* of this machine */
	unlink(test_path(&f->dir, "proc/meminfo"));
	assert_true(isinf(memory_shared_room(&f->place).bytes));
}

/* A group of version 2, and one above it that leaves less. */
static void test_groups_of_version_2(void **state)
{
	struct fixture *f = *state;

	make_directories(f, "sys/fs/cgroup/job/step");
	test_put_text(&f->dir, "proc/self/cgroup", "0::/job/step\n");
	test_put_text(&f->dir, "sys/fs/cgroup/job/step/memory.max", "max\n");
	assert_room(f, 2000, "the machine");
	test_put_text(&f->dir, "sys/fs/cgroup/job/step/memory.max", "1572864000\n"); /* 1500 MiB */
	test_put_text(&f->dir, "sys/fs/cgroup/job/step/memory.current", "524288000\n"); /* 500 */
	assert_room(f, 1000, "step/memory.max");
	test_put_text(&f->dir, "sys/fs/cgroup/job/step/memory.stat",
		      "anon 5\ninactive_file 104857600\n"); /* 100 that caches files */
	assert_room(f, 1100, "step/memory.max");
	test_put_text(&f->dir, "sys/fs/cgroup/job/memory.max", "838860800\n"); /* 800 */
	test_put_text(&f->dir, "sys/fs/cgroup/job/memory.current", "524288000\n");
	assert_room(f, 300, "job/memory.max");
	test_put_text(&f->dir, "sys/fs/cgroup/memory.max", "1000\n"); /* a container's own root */
	test_put_text(&f->dir, "sys/fs/cgroup/memory.current", "4096\n");
	assert_room(f, 0, "cgroup/memory.max");
}

static void test_groups_of_version_1(void **state)
{
	struct fixture *f = *state;

	make_directories(f, "sys/fs/cgroup/memory/job");
	test_put_text(&f->dir, "proc/self/cgroup",
		      "5:cpu,cpuacct:/\n4:hugetlb,memory:/job/hidden\n1:name=memory:/no\n0::/\n");
	test_put_text(&f->dir, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1048576000\n");
	test_put_text(&f->dir, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "104857600\n");
	assert_room(f, 900, "memory.limit_in_bytes");
	test_put_text(&f->dir, "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
		      "9223372036854771712\n"); /* none */
	assert_room(f, 2000, "the machine");
}

static void test_files_that_say_nothing(void **state)
{
	static const char *const groups[] = {
		"", "x", "0:", "0::", "4:memory:", "0::/../../x\n", "::::\n", "4:memory\n"
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		test_put_text(&f->dir, "proc/self/cgroup", groups[i]);
		assert_room(f, 2000, "the machine");
	}
}

/* ---------------------------------------------------------- limits of the process */

/* In a process of its own: its exit status. */
static int in_a_child(int (*work)(const struct fixture *f), const struct fixture *f)
{
	const pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0)
		_exit(work(f));
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What this process has mapped: terabytes where a sanitizer has shadow memory. */
static rlim_t mapped_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long long pages = 0;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%llu", &pages), 1);
	fclose(file);
	return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static int is_limited_by(int resource, const char *word, const struct fixture *f)
{
	const struct rlimit limit = { .rlim_cur = mapped_bytes() + ((rlim_t)1 << 40),
				      .rlim_max = RLIM_INFINITY };
	const double limit_bytes = (double)limit.rlim_cur;
	struct memory_room room;
	struct error err;

	if (setrlimit(resource, &limit) != 0)
		return 2;
	room = memory_own_room();
	if (room.bytes >= limit_bytes || !strstr(room.where, word)) /* what is taken counts */
		return 3;
	if (memory_reserve(&f->place, 1, limit_bytes, &err) != FAIL || !strstr(err.text, word))
		return 4;
	return 0;
}

static int limited_space(const struct fixture *f)
{
	return is_limited_by(RLIMIT_AS, "ulimit -v", f);
}

static int limited_data(const struct fixture *f)
{
	return is_limited_by(RLIMIT_DATA, "ulimit -d", f);
}

static void test_limits_of_the_process(void **state)
{
	assert_int_equal(in_a_child(limited_space, *state), 0);
	assert_int_equal(in_a_child(limited_data, *state), 0);
}

/* --------------------------------------------------------------------- notes */

/* A process that has noted so many bytes and waits; -1: it found no room. */
static pid_t start_run(const struct fixture *f, double bytes)
{
	struct error err;
	int ready[2];
	pid_t child;
	char answer = 0;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		answer = memory_reserve(&f->place, bytes, 0, &err) == OK ? 'y' : 'n';
		if (write(ready[1], &answer, 1) != 1 || answer == 'n')
			_exit(1);
		while (true)
			pause();
	}
	assert_int_equal(read(ready[0], &answer, 1), 1);
	close(ready[0]);
	close(ready[1]);
	if (answer == 'y')
		return child;
	waitpid(child, NULL, 0);
	return -1;
}

static void end_run(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void test_runs_that_start_together(void **state)
{
	struct fixture *f = *state;
	const pid_t first = start_run(f, 1200 * MIB);
	struct error err;

	assert_true(first > 0);
	assert_int_equal(start_run(f, 1200 * MIB), -1);
	assert_int_equal(memory_reserve(&f->place, 1200 * MIB, 0, &err), FAIL);
	assert_contains(err.text, "about 1200 MiB of memory are needed, but the machine leaves "
				  "2000 MiB, and runs that are starting will take 1200 MiB of it");
	must(memory_reserve(&f->place, 700 * MIB, 0, &err), &err);
	must(memory_reserve(&f->place, 700 * MIB, 0, &err), &err); /* its own note does not count */
	memory_release(&f->place);
	end_run(first); /* killed: nobody had to clean up */
	must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
	memory_release(&f->place);
}

/* What a run has taken is no longer free anyway: it must not count twice. */
static void test_what_was_taken_is_not_promised(void **state)
{
	struct fixture *f = *state;
	struct process self, parent;
	struct error err;
	char line[300];

	process_self(&self);
	parent = self;
	parent.pid = getppid();
	snprintf(line, sizeof(line), "%" PRId64 " %s %.0f\n", self.pid, self.birth, 1e12);
	test_put_text(&f->dir, "notes", line); /* ours, from an earlier run of this process */
	must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
	snprintf(line, sizeof(line), "%" PRId64 " %s %.0f\n", parent.pid, "boot:1", 1e12);
	test_put_text(&f->dir, "notes", line); /* the number of a dead one, given again */
	must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
}

static void test_notes_that_make_no_sense(void **state)
{
	static const char *const texts[] = { "",
					     "\n",
					     "x",
					     "1 2",
					     "1 a:1 x\n",
					     "-1 a:1 1e999\n",
					     "999999999999999999999999 a:1 3\n" };
	struct fixture *f = *state;
	struct error err;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		test_put_text(&f->dir, "notes", texts[i]);
		must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
	}
	unlink(f->notes);
	assert_int_equal(symlink("elsewhere", f->notes), 0); /* never followed */
	must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
	assert_int_equal(access(test_path(&f->dir, "elsewhere"), F_OK), -1);
	f->place.notes = "/nonexistent/notes"; /* no notes, no error */
	must(memory_reserve(&f->place, 1200 * MIB, 0, &err), &err);
	memory_release(&f->place);
}

/* --------------------------------------------------------------------- a device */

static double device_free(void *bytes)
{
	return *(const double *)bytes;
}

/* A process that has noted so many bytes of the device, and taken all but `left`, waits. */
static pid_t start_on_device(const struct memory_device *device, double bytes, double left)
{
	int ready[2];
	pid_t child;
	char answer;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct error err;
		bool starting;

		answer = memory_reserve_device(device, bytes, &starting, &err) == OK ? 'y' : 'n';
		if (left < bytes)
			memory_taken(device, left);
		if (write(ready[1], &answer, 1) != 1)
			_exit(1);
		while (true)
			pause();
	}
	assert_int_equal(read(ready[0], &answer, 1), 1);
	assert_int_equal(answer, 'y');
	close(ready[0]);
	close(ready[1]);
	return child;
}

static void test_runs_share_a_device(void **state)
{
	struct fixture *f = *state;
	double now = 2000 * MIB;
	const struct memory_device device = {
		.id = "test", .notes = f->notes, .free_bytes = device_free, .context = &now
	};
	struct error err;
	bool starting;
	pid_t other;

	assert_int_equal(memory_reserve_device(&device, 2001 * MIB, &starting, &err), FAIL);
	assert_false(starting);
	assert_string_equal(err.text,
			    "about 2001 MiB of memory are needed, but the GPU leaves 2000 MiB");
	other = start_on_device(&device, 1200 * MIB, 1200 * MIB);
	assert_int_equal(memory_reserve_device(&device, 1200 * MIB, &starting, &err), FAIL);
	assert_true(starting);
	assert_contains(err.text, "and runs that are starting will take 1200 MiB of it");
	must(memory_reserve_device(&device, 700 * MIB, &starting, &err), &err);
	memory_taken(&device, 0);
	end_run(other);
	other = start_on_device(&device, 1200 * MIB, 300 * MIB);
	now = 1100 * MIB; /* what it took is no longer free, and not noted any more */
	must(memory_reserve_device(&device, 700 * MIB, &starting, &err), &err);
	assert_int_equal(memory_reserve_device(&device, 900 * MIB, &starting, &err), FAIL);
	assert_contains(err.text, "will take 300 MiB of it");
	end_run(other);
	must(memory_reserve_device(&device, 900 * MIB, &starting, &err), &err);
	assert_false(starting);
	memory_taken(&device, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_the_machine),
		CASE(test_groups_of_version_2),
		CASE(test_groups_of_version_1),
		CASE(test_files_that_say_nothing),
		CASE(test_limits_of_the_process),
		CASE(test_runs_that_start_together),
		CASE(test_what_was_taken_is_not_promised),
		CASE(test_notes_that_make_no_sense),
		CASE(test_runs_share_a_device),
	};

	return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
