/*
 * kablate - the program of one step: its configuration is compiled in.
 *
 * The Makefile builds one of these per ablation step and runs `train` for
 * every seed; the other commands answer questions about the same step.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/backend/cpu/bf16.h"
#include "core/backend/cpu/blas.h"
#include "core/checkpoint.h"
#include "core/journal.h"
#include "core/signals.h"
#include "models/describe.h"
#include "tools/bench_decode.h"
#include "tools/generate.h"
#include "tools/lab.h"
#include "tools/lengths.h"

/* Exit statuses; 0 is a run that reached its end. */
enum {
	EXIT_WRONG = 1, /* bad input, a failed check */
	EXIT_USAGE = 2,
	EXIT_RESUMABLE = 75, /* stopped by a signal: run the same command again (EX_TEMPFAIL) */
	EXIT_DIVERGED = 76,
};

#define MAX_SYMBOLS 1000	 /* of the configuration; about 150 are there */
#define TIMED_FLOPS 5e10	 /* of one timed pass: seconds, on any machine worth training on */
#define BENCH_SECONDS 3		 /* on each number: about a hundred steps of a model of 124M */
#define LOCK_MICROSECONDS 200000 /* between two looks at a run that another process works on */

struct arguments {
	uint64_t seed, repeat;
	const char *runs, *experiment, *step, *baseline, *git, *scale;
	int64_t context, batch;
	double seconds;
	const char *lengths;
	struct generate_options generate;
	bool json, lines, git_dirty, any_environment;
};

static const char usage[] =
	"kablate - train or examine the configuration compiled into this program\n"
	"\n"
	"    kablate train [--seed N] [--repeat N] [--runs DIR] [--experiment NAME] [--step NAME]\n"
	"    kablate identity [--seed N] [--repeat N]   the run's identity, and nothing else\n"
	"    kablate describe [--json] [--context N]    parameters, work, memory, decode state\n"
	"    kablate estimate                           seconds per trained token, as JSON\n"
	"    kablate audit [--seed N]                   wiring and causality, without training\n"
	"    kablate graph [--json]                     the training graph, for dot or as JSON\n"
	"    kablate memory                             every piece of the training arena\n"
	"    kablate unread                             symbols that nothing reads\n"
	"    kablate generate --weights FILE            text from trained weights\n"
	"    kablate evaluate --weights FILE [--lengths N,N..] [--json]    loss by position\n"
	"    kablate bench-decode [--lengths N,N..] [--batch N] [--seconds X]\n"
	"                                               speed of decoding, as JSON\n"
	"\n"
	"  --seed N         of weights, batches and dropout (default 1)\n"
	"  --repeat N       number of a deliberate repetition (default 0)\n"
	"  --runs DIR       where runs and results.db go (default runs)\n"
	"  --experiment, --step, --baseline NAME    under which the run is recorded\n"
	"  --git REVISION, --dirty, --scale NAME    recorded beside it\n"
	"  --context N      tokens of decode state to describe, or that generate looks back on\n"
	"                   (default: the trained length)\n"
	"  --lengths N,N..  rows of these lengths (default: the trained one); longer ones where\n"
	"                   positions are not learned\n"
	"  --any-environment    go on with a run also where its bits may differ\n"
	"  --lines          a line per interval, also on a terminal\n"
	"  --weights FILE, --prompt TEXT, --tokens N (200), --temperature X (0.8), --top-k N (0: all),\n"
	"  --tokenizer T (that of the data)         for generate; --seed chooses another text\n"
	"\n"
	"Ctrl-C finishes the iteration, saves and exits with 75: the same command goes on from\n"
	"there.  A second Ctrl-C leaves at once.  SIGUSR2 saves and goes on.\n"
	"\n"
	"Example: kablate train --seed 3 --experiment ra-score --step 1-on --baseline 0-off\n";

static int complain(const struct error *err)
{
	fprintf(stderr, "kablate: %s\n", err->text);
	return EXIT_WRONG;
}

/* ----------------------------------------------------------------- examining */

static int run_identity(struct lab *lab)
{
	printf("%s\n", lab->identity);
	return 0;
}

/* Numbers of optimizer state per parameter. */
static double optimizer_numbers(enum optim_kind kind)
{
	static const double numbers[] = {
		[OPTIM_ADAMW] = 2, [OPTIM_ADAMWSPAM] = 3, [OPTIM_SGD] = 1, [OPTIM_MUON] = 2
	};

	return numbers[kind];
}

static enum status describe_lab(const struct lab *lab, int64_t context, struct description *d,
				struct error *err)
{
	const struct description_options options = {
		.batch = lab->train.batch,
		.length = lab->source.length,
		.optimizer_numbers = optimizer_numbers(lab->optim.kind),
		.context = context > 0 ? context : lab->source.length,
		.planner = !lab->train.program.no_planner,
		.remake = !lab->train.program.no_remake,
	};

	return describe_model(lab->model, &lab->backend, &options, d, err);
}

static int run_describe(struct lab *lab, const struct arguments *a)
{
	struct description d;
	struct error err;

	if (describe_lab(lab, a->context, &d, &err) != OK)
		return complain(&err);
	if (a->json)
		description_json(&d, stdout);
	else
		description_print(&d, stdout);
	return 0;
}

/* As many rows as a few seconds allow: a large model is timed on one. */
static int64_t timed_rows(const struct lab *lab, const struct description *d)
{
	const double rows = TIMED_FLOPS / (description_flops(d) * (double)lab->source.length);

	return rows < 1 ? 1 : rows < (double)lab->train.batch ? (int64_t)rows : lab->train.batch;
}

static int run_estimate(struct lab *lab)
{
	struct subject subject = lab_subject(lab);
	struct progress silent = { 0 };
	struct trainer *trainer = NULL;
	struct description d;
	double seconds = 0;
	struct error err;
	int status = 0;

	if (describe_lab(lab, 0, &d, &err) != OK)
		return complain(&err);
	lab->train.run_dir = "."; /* nothing is written */
	lab->train.batch = timed_rows(lab, &d);
	lab->train.accumulate = 1;
	if (lab_prepare(lab, progress_warn, &silent, &err) != OK ||
	    trainer_create(&trainer, &subject, &lab->train, lab->params, lab->optimizer,
			   &lab->backend, &err) != OK ||
	    trainer_estimate(trainer, &seconds, &err) != OK)
		status = complain(&err);
	else
		printf("{\"seconds_per_token\": %.6g}\n",
		       seconds / (double)(lab->train.batch * lab->source.length));
	trainer_destroy(trainer);
	return status;
}

static enum status audit_lab(struct lab *lab, struct audit_report *report, struct error *err)
{
	return audit_model(lab->config, lab->source.vocab, &lab->backend, &lab->audit, report, err);
}

static int run_audit(struct lab *lab)
{
	struct audit_report report;
	struct error err;
	bool passed;

	if (audit_lab(lab, &report, &err) != OK) {
		audit_free(&report);
		return complain(&err);
	}
	audit_print(&report, stdout);
	passed = audit_passed(&report);
	audit_free(&report);
	return passed ? 0 : EXIT_WRONG;
}

static int run_graph(struct lab *lab, const struct arguments *a, bool memory)
{
	const struct program_options options = { .train = true,
						 .no_remake = lab->train.program.no_remake,
						 .no_planner = lab->train.program.no_planner };
	struct subject subject = lab_subject(lab);
	struct stage stage = { 0 };
	struct error err;
	int status = 0;

	if (stage_open(&stage, &subject, lab->params, lab->train.batch, &lab->backend, &options,
		       &err) != OK)
		status = complain(&err);
	else if (memory)
		program_list_memory(stage.p, stdout);
	else if (a->json)
		graph_dump_json(stage.g, stdout);
	else
		graph_dump_dot(stage.g, stdout);
	stage_close(&stage);
	return status;
}

static int run_generate(struct lab *lab, const struct arguments *a)
{
	struct error err;

	if (!a->generate.weights) {
		fprintf(stderr, "kablate: generate needs --weights FILE\n");
		return EXIT_USAGE;
	}
	return generate(lab, &a->generate, stdout, &err) == OK ? 0 : complain(&err);
}

static int run_evaluate(struct lab *lab, const struct arguments *a)
{
	struct error err;

	if (!a->generate.weights) {
		fprintf(stderr, "kablate: evaluate needs --weights FILE\n");
		return EXIT_USAGE;
	}
	if (lab_load(lab, a->generate.weights, &err) != OK ||
	    evaluate_lengths(lab, a->lengths, a->json, stdout, &err) != OK)
		return complain(&err);
	return 0;
}

static int run_unread(struct lab *lab)
{
	int unread = config_unread(lab->config, stdout);

	return unread ? EXIT_WRONG : 0;
}

/* ------------------------------------------------------------------ training */

struct session {
	struct lab *lab;
	const struct arguments *a;
	char run_dir[4096], done[4200]; /* done: make's target, exists when the run has ended */
	int lock;
	char machine[300], blas[BLAS_DESCRIPTION_TEXT + 32];
	char label[300];
	struct run_symbol symbols[MAX_SYMBOLS];
	int n_symbols;
	struct progress progress;
	struct metrics *metrics;
	struct trainer *trainer;
	struct description description;
};

static void collect_symbol(void *context, const char *name, const char *value)
{
	struct session *s = context;

	assert(s->n_symbols < MAX_SYMBOLS);
	s->symbols[s->n_symbols++] = (struct run_symbol){ name, value };
}

static void describe_machine(struct session *s)
{
	char line[256], cpu[200] = "";
	struct utsname system;
	FILE *file = fopen("/proc/cpuinfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "model name : %199[^\n]", cpu) == 1 ||
		    (!cpu[0] && sscanf(line, "CPU part : %199[^\n]", cpu) == 1))
			break;
	if (file)
		fclose(file);
	uname(&system);
	snprintf(s->machine, sizeof(s->machine), "%s %s", system.machine, cpu);
}

/* "OpenBLAS 0.3.21 neoversev1 openmp, bfloat16 by bfmmla" */
static void describe_products(struct session *s)
{
	const struct bf16_form *form = s->lab->backend.bf16;
	char blas[BLAS_DESCRIPTION_TEXT];

	snprintf(s->blas, sizeof(s->blas), "%s%s%s", blas_description(blas),
		 form ? ", bfloat16 by " : "", form ? bf16_name(form) : "");
}

static enum status make_directory(const char *path, struct error *err)
{
	if (mkdir(path, 0777) != 0 && errno != EEXIST)
		return fail_errno(err, "cannot make the directory %s", path);
	return OK;
}

static enum status make_run_dir(struct session *s, struct error *err)
{
	const struct arguments *a = s->a;
	char path[2048];

	if (make_directory(a->runs, err) != OK)
		return FAIL;
	snprintf(path, sizeof(path), "%s/%s", a->runs, a->experiment);
	if (make_directory(path, err) != OK)
		return FAIL;
	snprintf(s->run_dir, sizeof(s->run_dir), "%s/%s-%" PRIu64 "-%.12s", path, a->step,
		 s->lab->seed, s->lab->identity);
	snprintf(s->done, sizeof(s->done), "%s/done", s->run_dir);
	return make_directory(s->run_dir, err);
}

/*
 * One process at a time works on a run: whoever comes second waits, and finds it
 * done or takes it over.  A file system without locks gets by without.
 */
static enum status lock_run_dir(struct session *s, struct error *err)
{
	bool told = false;

	s->lock = open(s->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->lock < 0)
		return fail_errno(err, "cannot open %s", s->run_dir);
	while (!signals_stop() && flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		if (!told)
			progress_message(&s->progress,
					 "%s: waiting for the process that works on it", s->label);
		told = true;
		usleep(LOCK_MICROSECONDS);
	}
	return OK;
}

static struct run_record record_of(struct session *s)
{
	const struct lab *lab = s->lab;

	config_visit_read(lab->config, collect_symbol, s);
	describe_machine(s);
	describe_products(s);
	return (struct run_record){
		.experiment = s->a->experiment,
		.step = s->a->step,
		.identity = lab->identity,
		.baseline = s->a->baseline,
		.seed = (int64_t)lab->seed,
		.repeat = (int64_t)lab->repeat,
		.iterations = lab->train.iterations,
		.git_revision = s->a->git,
		.git_dirty = s->a->git_dirty,
		.compiler = build_info.compiler,
		.flags = build_info.flags,
		.blas = s->blas,
		.machine = s->machine,
		.precision = precision_names[lab->precision],
		.scale = s->a->scale,
		.threads = lab->backend.threads,
		.config = s->symbols,
		.symbols = s->n_symbols,
	};
}

static int run_bench_decode(struct lab *lab, const struct arguments *a)
{
	struct session s = { .lab = lab, .a = a };
	const struct run_record record = record_of(&s);
	char *text = record_json(&record);
	const struct bench_decode_options options = {
		.contexts = a->lengths ? a->lengths : "1024",
		.batch = a->batch,
		.seconds = a->seconds,
		.record = text,
	};
	enum status status = FAIL;
	struct error err;

	if (!text)
		fail_memory(&err, "record", 0);
	else
		status = bench_decode(lab, &options, stdout, &err);
	free(text);
	return status == OK ? 0 : complain(&err);
}

/* A run must end in the bits of the environment in which it began. */
static enum status check_environment(struct session *s, const struct run_record *now,
				     struct error *change, struct error *err)
{
	struct record_file then;

	change->text[0] = '\0';
	if (record_read(&then, s->run_dir, err) != OK)
		return OK; /* whatever is wrong with it, metrics_open() will tell */
	record_environment_differs(&then.record, now, change);
	record_free(&then);
	if (!change->text[0] || s->a->any_environment)
		return OK;
	return fail(err,
		    "%s: it began in another environment (%s): what it ends in could not be "
		    "made again.  'make rerun RUN=%s' begins anew, 'make ANY_ENVIRONMENT=1' goes on",
		    s->label, change->text, s->run_dir);
}

static enum status open_metrics(struct session *s, int64_t resume, struct error *err)
{
	struct error change = { "" };
	char db[2048], tensorboard[4200];
	const struct metrics_options options = {
		.run_dir = s->run_dir,
		.db_path = db,
		.tensorboard_dir = s->lab->tensorboard ? tensorboard : NULL,
		.record = record_of(s),
		.warn = progress_warn,
		.warn_context = &s->progress,
	};

	snprintf(db, sizeof(db), "%s/results.db", s->a->runs);
	snprintf(tensorboard, sizeof(tensorboard), "%s/tensorboard", s->run_dir);
	if (resume >= 0 && check_environment(s, &options.record, &change, err) != OK)
		return FAIL;
	if (metrics_open(&s->metrics, &options, resume, err) != OK)
		return FAIL;
	if (change.text[0])
		metrics_event(s->metrics, resume, "environment", change.text);
	return OK;
}

/* What is known before the first iteration. */
static void record_constants(struct session *s)
{
	const struct description *d = &s->description;
	const struct source *source = &s->lab->source;
	const char *const *names = source->task->components;
	char name[60];

	metrics_value(s->metrics, 0, "parameters", (double)d->parameters);
	metrics_value(s->metrics, 0, "flops_per_token", description_flops(d));
	if (isfinite(d->decode_token_bytes))
		metrics_value(s->metrics, 0, "decode_token_bytes", d->decode_token_bytes);
	metrics_value(s->metrics, 0, "arena_megabytes",
		      (double)trainer_arena_bytes(s->trainer) / 1048576);
	if (source->accuracy)
		metrics_value(s->metrics, 0, "judged_by_accuracy", 1);
	if (isfinite(source->chance))
		metrics_value(s->metrics, 0, "chance", source->chance);
	for (int i = 0; names && names[i]; i++) {
		snprintf(name, sizeof(name), "chance/%s", names[i]);
		if (isfinite(source->component_chance[i]))
			metrics_value(s->metrics, 0, name, source->component_chance[i]);
	}
}

/* FAIL: the audit could not be made, or (with *passed false) found something. */
static enum status audit_first(struct session *s, bool *passed, struct error *err)
{
	struct audit_report report;
	enum status status = audit_lab(s->lab, &report, err);

	*passed = status == OK && audit_passed(&report);
	for (int i = 0; i < report.n; i++) {
		const struct audit_finding *f = &report.list[i];

		metrics_audit(s->metrics, f->audit, f->subject, f->passed, f->detail);
		if (!f->passed)
			progress_message(&s->progress, "audit %s FAILED: %s: %s", f->audit,
					 f->subject, f->detail);
	}
	if (status == OK && report.declared_leak)
		metrics_event(s->metrics, 0, "leak", "this arm is declared to see the future");
	audit_free(&report);
	return status;
}

static double available_bytes(void)
{
	double kilobytes = INFINITY;
	char line[128];
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %lf kB", &kilobytes) == 1)
			break;
	if (file)
		fclose(file);
	return kilobytes * 1024;
}

static enum status check_memory(struct session *s, struct error *err)
{
	const struct description *d = &s->description;
	const double needed = (double)d->weights_bytes + (double)d->gradient_bytes +
			      (double)d->optimizer_bytes + 1.2 * (double)d->activation_bytes;

	if (needed < available_bytes())
		return OK;
	return fail(err,
		    "training needs about %.0f MiB, but only %.0f MiB are free: make the model, "
		    "TRAIN_BATCH or MODEL_BLOCK smaller",
		    needed / 1048576, available_bytes() / 1048576);
}

static enum status show_estimate(struct session *s, int64_t done, struct error *err)
{
	const struct train_options *o = &s->lab->train;
	char text[PROGRESS_NUMBER_SIZE];
	double seconds;

	if (trainer_estimate(s->trainer, &seconds, err) != OK)
		return FAIL;
	progress_message(&s->progress, "%s: %lld parameters, %.0f MiB, about %s", s->label,
			 (long long)s->description.parameters,
			 (double)(s->description.weights_bytes + s->description.gradient_bytes +
				  s->description.optimizer_bytes +
				  trainer_arena_bytes(s->trainer)) /
				 1048576,
			 progress_duration(seconds * (double)(o->iterations - done), text));
	return OK;
}

/* The end of a run: its weights, its state, its exit status. */
static enum status save_final(struct session *s, struct error *err)
{
	char path[4200], hex[SHA256_HEX_SIZE];
	struct stat info;

	snprintf(path, sizeof(path), "%s/weights.safetensors", s->run_dir);
	if (weights_save(s->lab->params, path, s->lab->identity, err) != OK ||
	    params_hash(s->lab->params, hex, err) != OK)
		return FAIL;
	if (stat(path, &info) != 0)
		return fail_errno(err, "cannot see %s", path);
	metrics_artifact(s->metrics, "weights", path, hex, (int64_t)info.st_size);
	return OK;
}

static enum status mark_done(const struct session *s, struct error *err)
{
	FILE *file = fopen(s->done, "w");

	if (!file || fclose(file) != 0)
		return fail_errno(err, "cannot write %s", s->done);
	return OK;
}

/* Something outside the training went wrong: recorded as far as possible. */
static int abort_run(struct session *s, enum run_state state, const struct error *err)
{
	struct error ignored;

	progress_end(&s->progress);
	complain(err);
	if (s->metrics && metrics_close(s->metrics, state, err->text, &ignored) != OK)
		fprintf(stderr, "kablate: %s\n", ignored.text);
	s->metrics = NULL;
	return EXIT_WRONG;
}

static int finish(struct session *s, enum train_end end, const struct error *reason)
{
	static const enum run_state states[] = {
		[TRAIN_DONE] = RUN_DONE,
		[TRAIN_INTERRUPTED] = RUN_INTERRUPTED,
		[TRAIN_DIVERGED] = RUN_DIVERGED,
		[TRAIN_BUDGET] = RUN_BUDGET,
	};
	static const int exits[] = { 0, EXIT_RESUMABLE, EXIT_DIVERGED, 0 };
	const bool ended = end == TRAIN_DONE || end == TRAIN_BUDGET;
	struct error err;

	progress_end(&s->progress);
	if (end != TRAIN_DONE)
		progress_message(&s->progress, "%s: %s", s->label, reason->text);
	if (ended && save_final(s, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	if (metrics_close(s->metrics, states[end], end == TRAIN_DONE ? NULL : reason->text, &err)) {
		s->metrics = NULL;
		return complain(&err);
	}
	s->metrics = NULL;
	if (ended && mark_done(s, &err) != OK)
		return complain(&err);
	return exits[end];
}

static void begin_progress(struct session *s, int64_t first)
{
	progress_begin(&s->progress, stderr, s->label, s->a->lines ? PROGRESS_LINES : PROGRESS_AUTO,
		       first);
}

static int train_session(struct session *s)
{
	struct subject subject = lab_subject(s->lab);
	struct error err, reason = { "" };
	int64_t resume = -1;
	enum train_end end;
	bool passed = true;

	if (describe_lab(s->lab, 0, &s->description, &err) != OK || check_memory(s, &err) != OK ||
	    lab_prepare(s->lab, progress_warn, &s->progress, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	s->lab->train.run_dir = s->run_dir;
	if (trainer_create(&s->trainer, &subject, &s->lab->train, s->lab->params, s->lab->optimizer,
			   &s->lab->backend, &err) != OK ||
	    trainer_resume(s->trainer, &resume, &s->progress, &err) != OK ||
	    open_metrics(s, resume, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	if (resume < 0) {
		record_constants(s);
		if (audit_first(s, &passed, &err) != OK)
			return abort_run(s, RUN_FAILED, &err);
		if (!passed) {
			fail(&err,
			     "an audit failed: this step is not what its configuration claims");
			return abort_run(s, RUN_INVALID, &err);
		}
	} else {
		progress_message(&s->progress, "%s: resuming after iteration %lld", s->label,
				 (long long)resume);
	}
	if (show_estimate(s, resume < 0 ? 0 : resume, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	begin_progress(s, resume < 0 ? 0 : resume);
	if (trainer_run(s->trainer, s->metrics, &s->progress, &end, &reason, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	return finish(s, end, &reason);
}

/* The run directory is ours, unless the run is done already. */
static int claim_and_train(struct session *s)
{
	struct error err;

	if (make_run_dir(s, &err) != OK || lock_run_dir(s, &err) != OK)
		return abort_run(s, RUN_FAILED, &err);
	if (signals_stop())
		return EXIT_RESUMABLE;
	if (access(s->done, F_OK) != 0)
		return train_session(s);
	progress_message(&s->progress, "%s: is done", s->label);
	return 0;
}

static int run_train(struct lab *lab, const struct arguments *a)
{
	struct session *s = calloc(1, sizeof(*s));
	int status;

	if (!s) {
		fprintf(stderr, "kablate: out of memory\n");
		return EXIT_WRONG;
	}
	s->lab = lab;
	s->a = a;
	s->lock = -1;
	snprintf(s->label, sizeof(s->label), "%s %s seed %" PRIu64, a->experiment, a->step,
		 lab->seed);
	signals_install();
	begin_progress(s, 0);
	status = claim_and_train(s);
	trainer_destroy(s->trainer);
	metrics_abandon(s->metrics);
	if (s->lock >= 0)
		close(s->lock);
	free(s);
	return status;
}

/* --------------------------------------------------------------------- main */

static bool parse_number(const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return !errno && *text && !*end && text[0] != '-';
}

static bool parse_arguments(int argc, char **argv, struct arguments *a)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "repeat", required_argument, NULL, 'r' },
		{ "runs", required_argument, NULL, 'd' },
		{ "experiment", required_argument, NULL, 'e' },
		{ "step", required_argument, NULL, 't' },
		{ "baseline", required_argument, NULL, 'b' },
		{ "git", required_argument, NULL, 'g' },
		{ "dirty", no_argument, NULL, 'D' },
		{ "scale", required_argument, NULL, 'S' },
		{ "context", required_argument, NULL, 'c' },
		{ "json", no_argument, NULL, 'j' },
		{ "lines", no_argument, NULL, 'l' },
		{ "any-environment", no_argument, NULL, 'a' },
		{ "weights", required_argument, NULL, 'w' },
		{ "lengths", required_argument, NULL, 'L' },
		{ "batch", required_argument, NULL, 'B' },
		{ "seconds", required_argument, NULL, 'u' },
		{ "tokenizer", required_argument, NULL, 'T' },
		{ "prompt", required_argument, NULL, 'p' },
		{ "tokens", required_argument, NULL, 'n' },
		{ "temperature", required_argument, NULL, 'x' },
		{ "top-k", required_argument, NULL, 'k' },
		{ NULL, 0, NULL, 0 },
	};
	uint64_t number = 0;
	double real = 0;
	struct error err;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (strchr("srcnkB", option) && !parse_number(optarg, &number)) {
			fprintf(stderr, "kablate: '%s' is not a whole number\n", optarg);
			return false;
		}
		if (strchr("xu", option) && parse_real(optarg, &real, &err) != OK) {
			complain(&err);
			return false;
		}
		switch (option) {
		case 's':
			a->seed = number;
			break;
		case 'r':
			a->repeat = number;
			break;
		case 'c':
			a->context = a->generate.context = (int64_t)number;
			break;
		case 'd':
			a->runs = optarg;
			break;
		case 'e':
			a->experiment = optarg;
			break;
		case 't':
			a->step = optarg;
			break;
		case 'b':
			a->baseline = optarg;
			break;
		case 'g':
			a->git = optarg;
			break;
		case 'D':
			a->git_dirty = true;
			break;
		case 'S':
			a->scale = optarg;
			break;
		case 'j':
			a->json = true;
			break;
		case 'l':
			a->lines = true;
			break;
		case 'B':
			a->batch = (int64_t)number;
			break;
		case 'L':
			a->lengths = optarg;
			break;
		case 'a':
			a->any_environment = true;
			break;
		case 'w':
			a->generate.weights = optarg;
			break;
		case 'T':
			a->generate.tokenizer = optarg;
			break;
		case 'p':
			a->generate.prompt = optarg;
			break;
		case 'n':
			a->generate.tokens = (int64_t)number;
			break;
		case 'k':
			a->generate.top_k = (int64_t)number;
			break;
		case 'x':
			a->generate.temperature = real;
			break;
		case 'u':
			a->seconds = real;
			break;
		default:
			return false;
		}
	}
	return optind == argc;
}

static int dispatch(const char *command, struct lab *lab, const struct arguments *a)
{
	if (strcmp(command, "train") == 0)
		return run_train(lab, a);
	if (strcmp(command, "identity") == 0)
		return run_identity(lab);
	if (strcmp(command, "describe") == 0)
		return run_describe(lab, a);
	if (strcmp(command, "estimate") == 0)
		return run_estimate(lab);
	if (strcmp(command, "audit") == 0)
		return run_audit(lab);
	if (strcmp(command, "graph") == 0)
		return run_graph(lab, a, false);
	if (strcmp(command, "memory") == 0)
		return run_graph(lab, a, true);
	if (strcmp(command, "generate") == 0)
		return run_generate(lab, a);
	if (strcmp(command, "evaluate") == 0)
		return run_evaluate(lab, a);
	if (strcmp(command, "bench-decode") == 0)
		return run_bench_decode(lab, a);
	if (strcmp(command, "unread") == 0)
		return run_unread(lab);
	fprintf(stderr, "kablate: there is no command '%s'; see kablate --help\n", command);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct arguments a = {
		.seed = 1,
		.runs = "runs",
		.experiment = "single",
		.step = "0",
		.batch = 1,
		.seconds = BENCH_SECONDS,
		.generate = { .prompt = "", .tokens = 200, .temperature = 0.8 },
	};
	struct error err;
	struct lab lab;
	int status;

	if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		fputs(usage, argc < 2 ? stderr : stdout);
		return argc < 2 ? EXIT_USAGE : 0;
	}
	blas_start(argv);
	if (!parse_arguments(argc - 1, argv + 1, &a)) {
		fprintf(stderr, "kablate: see kablate --help\n");
		return EXIT_USAGE;
	}
	if (lab_open(&lab, a.seed, a.repeat, &err) != OK)
		status = complain(&err);
	else
		status = dispatch(argv[1], &lab, &a);
	lab_close(&lab);
	return status;
}
