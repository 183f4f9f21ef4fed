/*
 * The memory of a GPU: what is predicted is what is requested, and a run that does not fit gets
 * what would.  The device of the test is the CPU with a memory of its own, whose size the test
 * says.
 */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/util/signals.h"
#include "core/util/test_dir.h"
#include "models/decode.h"
#include "models/model_case.h"
#include "tools/kablate/device_memory.h"
#include "tools/kablate/run_workload.h"

#define MIB 1048576.0

/* The device; a backend's functions get no context of ours. */
static struct {
	void *(*alloc)(const struct backend *b, size_t bytes);
	double taken, free;
	long process; /* the test's, whose name its children use */
} device;

static void *counting_alloc(const struct backend *b, size_t bytes)
{
	device.taken += (double)bytes;
	return device.alloc(b, bytes);
}

static void device_memory(const struct backend *b, struct backend_memory *m)
{
	(void)b;
	*m = (struct backend_memory){
		.total = device.free, .free = device.free, .later = 1000, .unit = 2 * MIB
	};
	snprintf(m->device, sizeof(m->device), "test%ld", device.process);
}

struct fixture {
	struct model_case k;
	struct run_setup setup;
	struct error err;
};

#define SIZES "MODEL_LAYERS=8 MODEL_EMBD=32 MODEL_HEADS=2 MODEL_BLOCK=64 ATTENTION=mla"

static void open_model(struct fixture *f, const char *symbols, enum optim_kind kind,
		       enum precision precision)
{
	struct run_setup *s = &f->setup;

	*f = (struct fixture){ 0 };
	case_open(&f->k, F32, symbols);
	device.alloc = backend_for_tests(precision, 1).alloc;
	device.taken = 0;
	device.free = INFINITY;
	if (!device.process)
		device.process = (long)getpid();
	s->backend = backend_for_tests(precision, 1);
	s->backend.alloc = counting_alloc;
	s->backend.memory = device_memory;
	s->model = f->k.model;
	s->precision = precision;
	s->optim = (struct optim_options){ .kind = kind, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
	s->optim.muon.lr_ratio = 1;
	s->train = (struct train_options){
		.iterations = 1, .batch = 8, .accumulate = 2, .run_dir = ".", .identity = "test"
	};
	s->lengths = "";
	source_blank(&s->source, s->model->length, s->model->vocab);
	s->source.valid_rows = 9;
	must(params_create(&s->params, precision_type(precision), &f->err), &f->err);
}

static void open_setup(struct fixture *f, enum optim_kind kind, enum precision precision)
{
	open_model(f, SIZES, kind, precision);
}

static void close_setup(struct fixture *f)
{
	measurer_destroy(f->setup.measurer);
	optimizer_destroy(f->setup.optimizer);
	params_destroy(f->setup.params);
	source_close(&f->setup.source);
	case_close(&f->k);
}

static void ignore(void *context, const char *text)
{
	(void)context, (void)text;
}

static void check_prediction(enum optim_kind kind, enum precision precision, bool recompute)
{
	struct device_memory predicted;
	struct trainer *trainer;
	struct train_run run;
	struct fixture f;

	open_setup(&f, kind, precision);
	f.setup.train.program.no_recompute = !recompute;
	must(device_memory_predict(&f.setup, &predicted, &f.err), &f.err);
	assert_true(device.taken == 0);
	must(run_setup_prepare(&f.setup, &f.setup.seed, ignore, NULL, &f.err), &f.err);
	run = run_of(&f.setup);
	must(trainer_create(&trainer, &run, 1, f.setup.params, f.setup.optimizer, &f.setup.backend,
			    &f.err),
	     &f.err);
	assert_true(predicted.own == device.taken);
	assert_true(predicted.whole >= predicted.own && predicted.needed >= predicted.own);
	trainer_destroy(trainer);
	close_setup(&f);
}

static void test_own_blocks_to_the_byte(void **state)
{
	(void)state;
	for (int kind = OPTIM_ADAMW; kind <= OPTIM_MUON; kind++)
		check_prediction((enum optim_kind)kind, FLOAT32, true);
	check_prediction(OPTIM_ADAMW, FLOAT32, false);
	check_prediction(OPTIM_ADAMW, FLOAT64, true);
	check_prediction(OPTIM_ADAMWSPAM, BFLOAT16, true);
}

/* What a run with this micro-batch needs. */
static double needed(const struct fixture *f, int64_t batch, bool recompute)
{
	struct run_setup other = f->setup;
	struct device_memory m;
	struct error err;

	other.train.accumulate = other.train.accumulate * other.train.batch / batch;
	other.train.batch = batch;
	other.train.program.no_recompute = !recompute;
	must(device_memory_predict(&other, &m, &err), &err);
	return m.needed;
}

static void refuse(struct fixture *f, double free, const char *advice)
{
	device.free = free;
	assert_int_equal(device_memory_reserve(&f->setup, &(int){ 1 }, &f->err), FAIL);
	assert_contains(f->err.text, "MiB of memory are needed, but the GPU leaves");
	assert_contains(f->err.text, advice);
}

static void test_says_what_would_fit(void **state)
{
	struct fixture f;

	(void)state;
	/* The gate of SwiGLU can be remade. */
	open_model(&f, SIZES " FFN=swiglu", OPTIM_ADAMW, FLOAT32);
	device.free = needed(&f, 8, true);
	must(device_memory_reserve(&f.setup, &(int){ 1 }, &f.err), &f.err);
	device_memory_taken(&f.setup, false);
	refuse(&f, needed(&f, 4, true),
	       ": CONFIG_TRAIN_BATCH=4 with CONFIG_TRAIN_ACCUMULATE=4 would fit");
	refuse(&f, needed(&f, 4, true) - 1,
	       ": CONFIG_TRAIN_BATCH=2 with CONFIG_TRAIN_ACCUMULATE=8 would fit");
	refuse(&f, needed(&f, 1, true) - 1, ": no micro-batch would fit");
	f.setup.train.program.no_recompute = true;
	assert_true(needed(&f, 8, true) < needed(&f, 8, false));
	refuse(&f, needed(&f, 8, true), ": CONFIG_RECOMPUTE=y would fit");
	refuse(&f, needed(&f, 8, true) - 1,
	       ": CONFIG_TRAIN_BATCH=4 with CONFIG_TRAIN_ACCUMULATE=4 and CONFIG_RECOMPUTE=y would "
	       "fit");
	close_setup(&f);
}

/* Of many runs at once, as many as the free memory has room for; audits need room once. */
static void test_as_many_replicas_as_fit(void **state)
{
	struct device_memory m;
	struct fixture f;
	int n = 64;

	(void)state;
	open_setup(&f, OPTIM_ADAMW, FLOAT32);
	f.setup.replicas = true;
	must(device_memory_predict(&f.setup, &m, &f.err), &f.err);
	device.free = m.needed + 2 * m.each + m.weights + m.gradients;
	must(device_memory_reserve(&f.setup, &n, &f.err), &f.err);
	assert_int_equal(n, 3);
	device.free--;
	n = 64;
	must(device_memory_reserve(&f.setup, &n, &f.err), &f.err);
	assert_int_equal(n, 2);
	device_memory_taken(&f.setup, false);
	refuse(&f, m.needed, "would fit");
	close_setup(&f);
}

static void test_audits_count(void **state)
{
	struct device_memory with, without;
	struct fixture f;

	(void)state;
	open_setup(&f, OPTIM_ADAMW, FLOAT32);
	must(device_memory_predict(&f.setup, &without, &f.err), &f.err);
	f.setup.audit = (struct audit_options){ .wiring = true, .rows = 4, .length = 64 };
	must(device_memory_predict(&f.setup, &with, &f.err), &f.err);
	assert_true(without.audits == 0 && with.audits > with.weights + with.gradients);
	assert_true(with.own == without.own && with.needed > without.needed);
	close_setup(&f);
}

/* A sample after the last update takes more than training: what its decoder takes, at most. */
static void test_the_conclusion_counts(void **state)
{
	struct device_memory with, without;
	int32_t tokens[64] = { 0 };
	struct decoder *decoder;
	struct fixture f;

	(void)state;
	open_setup(&f, OPTIM_ADAMW, FLOAT32);
	must(device_memory_predict(&f.setup, &without, &f.err), &f.err);
	f.setup.sample = 64;
	must(device_memory_predict(&f.setup, &with, &f.err), &f.err);
	assert_true(without.conclusion == 0 && with.own == without.own);
	assert_true(with.needed == without.needed + with.conclusion);
	assert_true(with.whole == without.whole + with.conclusion);
	must(run_setup_draw(&f.setup, &f.err), &f.err);
	device.taken = 0;
	must(decoder_create(&decoder, f.setup.model, f.setup.params, &f.setup.backend, MODEL_NEXT,
			    1, f.setup.model->length, &f.err),
	     &f.err);
	must(decoder_prompt(decoder, 63, tokens, &f.err), &f.err);
	assert_true(device.taken > with.conclusion / 2 && device.taken <= with.conclusion);
	decoder_destroy(decoder);
	close_setup(&f);
}

static void test_a_cpu_reserves_nothing(void **state)
{
	struct fixture f;

	(void)state;
	open_setup(&f, OPTIM_ADAMW, FLOAT32);
	device.free = 0;
	f.setup.backend.memory = NULL;
	must(device_memory_reserve(&f.setup, &(int){ 1 }, &f.err), &f.err);
	device_memory_taken(&f.setup, true);
	close_setup(&f);
}

#define WAITING 4

/* A process that takes the turn, and then says its number.  It must not keep that of the test. */
static pid_t start_taking(const struct fixture *f, int turn, char number, int out)
{
	const pid_t child = fork();

	if (child)
		return child;
	close(turn);
	signals_install();
	if (device_turn_take(&f->setup) < 0 || write(out, &number, 1) != 1)
		_exit(1);
	_exit(signals_stop());
}

/* Until the process waits: in /proc/locks such a request has an arrow. */
static void await_request(pid_t process)
{
	char line[200], request[60];
	bool waits = false;

	snprintf(request, sizeof(request), "-> FLOCK  ADVISORY  WRITE %d ", (int)process);
	while (!waits) {
		FILE *locks = fopen("/proc/locks", "r");

		assert_non_null(locks);
		while (fgets(line, sizeof(line), locks))
			waits = waits || strstr(line, request);
		fclose(locks);
	}
}

static int exit_status(pid_t process)
{
	int status;

	assert_int_equal(waitpid(process, &status, 0), process);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Whoever waits longest has the next turn, and a signal ends the waiting. */
static void test_turns_come_in_order(void **state)
{
	char order[WAITING + 1] = "";
	pid_t process[WAITING], stopped;
	struct fixture f;
	int turn, out[2];

	(void)state;
	open_setup(&f, OPTIM_ADAMW, FLOAT32);
	f.setup.replicas = true;
	assert_int_equal(pipe(out), 0);
	turn = device_turn_take(&f.setup);
	assert_true(turn >= 0);
	stopped = start_taking(&f, turn, 's', out[1]);
	await_request(stopped);
	for (int i = 0; i < WAITING; i++) {
		process[i] = start_taking(&f, turn, (char)('0' + i), out[1]);
		await_request(process[i]);
	}
	kill(stopped, SIGTERM);
	assert_int_equal(exit_status(stopped), SIGTERM);
	assert_int_equal(read(out[0], order, 1), 1);
	assert_string_equal(order, "s");
	close(turn);
	for (int i = 0; i < WAITING; i++) {
		assert_int_equal(exit_status(process[i]), 0);
		assert_int_equal(read(out[0], order + i, 1), 1);
	}
	assert_string_equal(order, "0123");
	close(out[0]);
	close(out[1]);
	close_setup(&f);
}

static void remove_file(const char *what)
{
	char path[100];

	snprintf(path, sizeof(path), "%s/kablate-%s-%ld-test%ld",
		 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", what, (long)getuid(),
		 (long)getpid());
	assert_int_equal(unlink(path), 0);
}

static int remove_notes(void **state)
{
	(void)state;
	remove_file("memory");
	remove_file("turn");
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_blocks_to_the_byte),
		cmocka_unit_test(test_says_what_would_fit),
		cmocka_unit_test(test_as_many_replicas_as_fit),
		cmocka_unit_test(test_audits_count),
		cmocka_unit_test(test_the_conclusion_counts),
		cmocka_unit_test(test_a_cpu_reserves_nothing),
		cmocka_unit_test(test_turns_come_in_order),
	};

	return cmocka_run_group_tests_name("device_memory", tests, NULL, remove_notes);
}
