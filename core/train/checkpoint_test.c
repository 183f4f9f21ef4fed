/*
 * Checkpoints: what was saved comes back bit by bit, what is damaged is passed over, and no moment
 * of saving leaves a run without one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/backend/cpu/cpu.h"
#include "core/engine/backend.h"
#include "core/train/checkpoint.h"
#include "core/util/hash.h"
#include "core/util/test.h"

enum { ROWS = 40, COLUMNS = 30 };

struct fixture {
	char dir[200];
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
	struct checkpoint checkpoint;
	char warning[1024];
	int warnings;
	struct error err;
};

static void name_param(struct fixture *f, const char *name, int ndim)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 1 };
	int index;

	must(params_name(f->params, name, &init, ndim, (const int64_t[]){ ROWS, COLUMNS }, &index,
			 &f->err),
	     &f->err);
}

static int set_up_kind(void **state, enum optim_kind kind)
{
	const struct optim_options options = {
		.kind = kind,
		.weight_decay = 0.1,
		.clip = 1,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
		.sgd = { .momentum = 0.9 },
		.spam = { .theta = 50,
			  .spike = 2,
			  .interval = 3,
			  .warmup = 2,
			  .clip_elements = true },
		.muon = { .lr_ratio = 1,
			  .momentum = 0.95,
			  .eps = 1e-7,
			  .nesterov = true,
			  .steps = 5 },
	};
	struct fixture *f = calloc(1, sizeof(*f));

	*state = f;
	test_template(f->dir, sizeof(f->dir), "checkpoint");
	if (!mkdtemp(f->dir))
		return -1;
	f->backend = backend_cpu(1);
	must(params_create(&f->params, F32, &f->err), &f->err);
	name_param(f, "h.0.matrix", 2);
	name_param(f, "h.0.bias", 1);
	must(params_allocate(f->params, &f->backend, true, &f->err), &f->err);
	must(params_initialise(f->params, 1, &f->err), &f->err);
	must(optimizer_create(&f->optimizer, &options, f->params, &f->err), &f->err);
	f->checkpoint = (struct checkpoint){
		.run_dir = f->dir,
		.identity = "0123456789abcdef",
		.params = f->params,
		.optimizer = f->optimizer,
		.keep = 2,
	};
	return 0;
}

static int set_up(void **state)
{
	return set_up_kind(state, OPTIM_ADAMWSPAM);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	const int result = test_remove(f->dir);

	optimizer_destroy(f->optimizer);
	params_destroy(f->params);
	free(f);
	return result;
}

/* ------------------------------------------------------------------- helpers */

/* Updates first .. last, with gradients that depend on the number of the update alone. */
static void update(struct fixture *f, int64_t first, int64_t last)
{
	float gradient[ROWS * COLUMNS];
	struct optim_report report;

	for (int64_t t = first; t <= last; t++) {
		for (int i = 0; i < ROWS * COLUMNS; i++)
			gradient[i] = (float)sin((double)(i * t));
		for (int i = 0; i < f->params->n; i++)
			f->backend.upload(&f->backend, param_grad(f->params, i), gradient,
					  (size_t)f->params->list[i].count * sizeof(*gradient));
		optimizer_update(f->optimizer, t, 0.01, &report);
		assert_true(report.finite);
	}
}

static void weights_hash(struct fixture *f, char hex[SHA256_HEX_SIZE])
{
	must(params_hash(f->params, hex, &f->err), &f->err);
}

static void save(struct fixture *f, int64_t iteration)
{
	const struct checkpoint_state state = { .iteration = iteration };

	must(checkpoint_save(&f->checkpoint, &state, &f->err), &f->err);
}

static void take_warning(void *context, const char *text)
{
	struct fixture *f = context;

	snprintf(f->warning, sizeof(f->warning), "%s", text);
	f->warnings++;
}

/* The iteration that was loaded; -1: there is none. */
static int64_t load(struct fixture *f)
{
	struct checkpoint_state state = { .iteration = -1 };
	bool found;

	f->warnings = 0;
	must(checkpoint_load(&f->checkpoint, &state, &found, take_warning, f, &f->err), &f->err);
	assert_int_equal(found, state.iteration >= 0); /* untouched when there is none */
	return state.iteration;
}

static void path_in(const struct fixture *f, int64_t iteration, const char *name, char path[400])
{
	snprintf(path, 400, "%s/checkpoint-%08lld/%s", f->dir, (long long)iteration, name);
}

static bool exists(const struct fixture *f, int64_t iteration)
{
	char path[400];

	path_in(f, iteration, "state.json", path);
	return access(path, F_OK) == 0;
}

static void cut(const char *path)
{
	struct stat about;

	assert_int_equal(stat(path, &about), 0);
	assert_int_equal(truncate(path, about.st_size / 2), 0);
}

static void flip_a_bit(const char *path)
{
	FILE *file = fopen(path, "r+b");
	int byte;

	assert_non_null(file);
	assert_int_equal(fseek(file, -2, SEEK_END), 0);
	byte = fgetc(file);
	assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
	assert_int_not_equal(fputc(byte ^ 1, file), EOF);
	assert_int_equal(fclose(file), 0);
}

static void remove_file(const char *path)
{
	assert_int_equal(unlink(path), 0);
}

/* --------------------------------------------------------------------- cases */

/* Ten updates in one go, and with a pause after the fourth that forgets everything. */
static void check_pause(void **state, enum optim_kind kind)
{
	char straight[SHA256_HEX_SIZE], paused[SHA256_HEX_SIZE];

	assert_int_equal(set_up_kind(state, kind), 0);
	update(*state, 1, 4);
	save(*state, 4);
	update(*state, 5, 10);
	weights_hash(*state, straight);
	optimizer_set_scalars(((struct fixture *)*state)->optimizer, &(struct optim_scalars){ 0 });
	assert_int_equal(load(*state), 4);
	update(*state, 5, 10);
	weights_hash(*state, paused);
	assert_string_equal(paused, straight);
	tear_down(state);
}

static void test_every_optimizer_goes_on_as_if_nothing_had_happened(void **state)
{
	for (int kind = 0; optim_names[kind]; kind++)
		check_pause(state, (enum optim_kind)kind);
}

static void test_the_state_comes_back_exactly(void **state)
{
	struct fixture *f = *state;
	const struct checkpoint_state before = {
		.iteration = 7,
		.best_iteration = 5,
		.best_loss = 0.1,
		.tokens = 1e15 + 1,
		.seconds = 1.0 / 3,
		.clips = 2,
	};
	struct checkpoint_state after;
	bool found;

	must(checkpoint_save(&f->checkpoint, &before, &f->err), &f->err);
	must(checkpoint_load(&f->checkpoint, &after, &found, take_warning, f, &f->err), &f->err);
	assert_true(found);
	assert_int_equal(after.iteration, before.iteration);
	assert_int_equal(after.best_iteration, before.best_iteration);
	assert_true(after.best_loss == before.best_loss && after.tokens == before.tokens &&
		    after.seconds == before.seconds);
	assert_int_equal(after.clips, before.clips);
}

static void test_none(void **state)
{
	assert_int_equal(load(*state), -1);
}

static void test_a_damaged_one_is_passed_over(void **state)
{
	static const char *const files[] = { "weights.safetensors", "optimizer.safetensors",
					     "state.json" };
	static void (*const damages[])(const char *path) = { cut, flip_a_bit, remove_file };
	struct fixture *f = *state;
	char path[400];

	for (size_t i = 0; i < 3; i++) {
		for (size_t k = 0; k < 3; k++) {
			save(f, 4);
			save(f, 9);
			assert_int_equal(load(f), 9);
			path_in(f, 9, files[i], path);
			damages[k](path);
			assert_int_equal(load(f), 4);
			assert_int_equal(f->warnings, 1);
			assert_non_null(strstr(f->warning, "checkpoint 9 is unusable"));
			assert_non_null(strstr(f->warning, "an older one"));
		}
	}
	path_in(f, 4, "state.json", path);
	cut(path);
	assert_int_equal(load(f), -1);
	assert_int_equal(f->warnings, 1);
	assert_non_null(strstr(f->warning, "the beginning"));
}

static void change_iteration(const char *path)
{
	FILE *file = fopen(path, "r+");
	char text[4096], *at;
	size_t size;

	assert_non_null(file);
	size = fread(text, 1, sizeof(text) - 1, file);
	text[size] = '\0';
	at = strstr(text, "\"iteration\": 9");
	assert_non_null(at);
	fseek(file, at + strlen("\"iteration\": ") - text, SEEK_SET);
	fputc('1', file);
	fclose(file);
}

/* A number changed in the state would be believed: weights of one iteration, counters of another.
 */
static void test_a_changed_number_is_noticed(void **state)
{
	struct fixture *f = *state;
	char path[400], other[400];

	save(f, 4);
	save(f, 9);
	path_in(f, 9, "state.json", path);
	change_iteration(path);
	assert_int_equal(load(f), 4);
	save(f, 9);
	path_in(f, 9, "", path);
	path_in(f, 12, "", other);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(load(f), 4);
	assert_non_null(strstr(f->warning, "is of iteration 9"));
}

/* The run went back before it: a new one takes its room, not that of a sound one. */
static void test_a_damaged_later_one_is_not_kept(void **state)
{
	struct fixture *f = *state;
	char path[400];

	f->checkpoint.keep = 1;
	save(f, 9);
	path_in(f, 9, "weights.safetensors", path);
	cut(path);
	assert_int_equal(load(f), -1);
	save(f, 2);
	assert_false(exists(f, 9));
	assert_int_equal(load(f), 2);
}

static void test_one_of_another_run_is_refused(void **state)
{
	struct fixture *f = *state;
	struct checkpoint_state after = { .iteration = -1 };
	bool found;

	save(f, 3);
	f->checkpoint.identity = "fedcba9876543210";
	assert_int_equal(checkpoint_load(&f->checkpoint, &after, &found, take_warning, f, &f->err),
			 FAIL);
	assert_non_null(strstr(f->err.text, "belongs to another configuration"));
	assert_int_equal(after.iteration, -1);
}

static void test_the_newest_are_kept(void **state)
{
	struct fixture *f = *state;

	for (int64_t i = 1; i <= 5; i++)
		save(f, i);
	for (int64_t i = 1; i <= 5; i++)
		assert_int_equal(exists(f, i), i > 3);
}

/* Each has 4 x 1240 numbers of 4 bytes; with names and state about 21 kB: 47 fit into 1 MB. */
static void test_room_on_the_disk(void **state)
{
	struct fixture *f = *state;
	int kept = 0;

	f->checkpoint.keep = 100;
	f->checkpoint.megabytes = 1;
	assert_true(checkpoint_bytes(&f->checkpoint) == 4.0 * 4 * (ROWS * COLUMNS + ROWS));
	for (int64_t i = 1; i <= 60; i++)
		save(f, i);
	for (int64_t i = 1; i <= 60; i++)
		kept += exists(f, i);
	assert_in_range(kept, 40, 50);
	assert_true(exists(f, 60));
}

/* A crash while saving leaves the directory "saving". */
static void test_what_a_crash_left_is_no_obstacle(void **state)
{
	struct fixture *f = *state;
	char path[400];
	FILE *file;

	save(f, 1);
	snprintf(path, sizeof(path), "%s/saving", f->dir);
	assert_int_equal(mkdir(path, 0777), 0);
	snprintf(path, sizeof(path), "%s/saving/weights.safetensors.tmp", f->dir);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
	assert_int_equal(load(f), 1);
	save(f, 2);
	assert_int_equal(load(f), 2);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_a_directory_that_is_gone(void **state)
{
	const struct checkpoint_state now = { .iteration = 4 };
	struct fixture *f = *state;

	f->checkpoint.run_dir = "/nonexistent/run";
	assert_int_equal(checkpoint_save(&f->checkpoint, &now, &f->err), FAIL);
	assert_non_null(strstr(f->err.text, "checkpoint 4 was not saved"));
	assert_non_null(strstr(f->err.text, strerror(ENOENT)));
}

static void forget(const struct backend *b, void *device, const void *host, size_t bytes)
{
	(void)b, (void)device, (void)host, (void)bytes;
}

/* Going back to an older checkpoint would not help, and the beginning is lost. */
static void test_what_does_not_arrive_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct checkpoint_state loaded;
	bool found;

	update(f, 1, 4);
	save(f, 4);
	update(f, 5, 6);
	f->backend.upload = forget;
	assert_int_equal(checkpoint_load(&f->checkpoint, &loaded, &found, take_warning, f, &f->err),
			 FAIL);
	assert_string_equal(f->err.text, "audit resume FAILED: 'h.0.matrix' was not restored");
	assert_int_equal(f->warnings, 0);
	assert_true(exists(f, 4));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_optimizer_goes_on_as_if_nothing_had_happened),
		CASE(test_what_does_not_arrive_is_an_error),
		CASE(test_the_state_comes_back_exactly),
		CASE(test_none),
		CASE(test_a_damaged_one_is_passed_over),
		CASE(test_a_changed_number_is_noticed),
		CASE(test_a_damaged_later_one_is_not_kept),
		CASE(test_one_of_another_run_is_refused),
		CASE(test_the_newest_are_kept),
		CASE(test_room_on_the_disk),
		CASE(test_what_a_crash_left_is_no_obstacle),
		CASE(test_a_directory_that_is_gone),
	};

	return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
