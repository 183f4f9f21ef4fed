/*
 * kablate - the program of one step: its configuration is compiled in.
 *
 * The Makefile builds one of these per ablation step and runs `train` for
 * every seed; the other commands answer questions about the same step.
 */
#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cpu/blas.h"
#include "core/record/journal.h"
#include "core/util/name.h"
#include "core/util/standard.h"
#include "models/test_vector.h"
#include "tools/kablate/bench_decode.h"
#include "tools/kablate/device_memory.h"
#include "tools/kablate/fingerprint.h"
#include "tools/kablate/generate.h"
#include "tools/kablate/lengths.h"
#include "tools/kablate/provenance.h"
#include "tools/kablate/run_audit.h"
#include "tools/kablate/run_setup.h"
#include "tools/kablate/run_workload.h"
#include "tools/kablate/vocabulary.h"
#include "tools/kablate/worker.h"

/* Exit statuses; 0 is a run that reached its end. */
enum {
	EXIT_WRONG = 1, /* bad input, a failed check */
	EXIT_USAGE = 2,
	EXIT_RESUMABLE = 75, /* stopped by a signal: run the same command again (EX_TEMPFAIL) */
	EXIT_DIVERGED = 76,
};

#define TIMED_FLOPS 5e10 /* of one timed pass: takes seconds on any machine fit for training */
#define BENCH_SECONDS 3	 /* on each number: about a hundred steps of a model of 124M */

struct arguments {
	uint64_t seed, repeat;
	int64_t context, batch;
	double seconds;
	const char *lengths, *seeds, *identities, *steps, *rates;
	struct session_options session;
	struct generate_options generate;
	bool json, lines, records;
};

static const char usage[] =
	"kablate - train or examine the configuration compiled into this program\n"
	"\n"
	"    kablate train [--seed N] [--repeat N] [--runs DIR] [--experiment NAME] [--step NAME]\n"
	"    kablate train --seeds N,N.. ..             many runs: on a GPU together, as far as they fit\n"
	"    kablate identity [--seed N] [--repeat N]   the run's identity, and nothing else\n"
	"    kablate identity --seeds N,N.. [--repeat N]    of many runs, a line each\n"
	"    kablate describe [--json] [--context N]    parameters, work, memory, decode state\n"
	"    kablate estimate                           seconds per trained token, as JSON\n"
	"    kablate audit [--seed N]                   is the step what it claims? (no training)\n"
	"    kablate reference [--weights FILE]         the model as tools/reference names it, as JSON;\n"
	"                                               only if the weights are whole and its own\n"
	"    kablate fingerprint [--seed N]             what is trained, to compare with another step\n"
	"    kablate unread                             symbols that no code reads\n"
	"    kablate generate --weights FILE            text from trained weights\n"
	"    kablate evaluate --weights FILE [--lengths N,N..] [--json]    loss by position\n"
	"    kablate --version                          version, revision, compiler, BLAS, backend\n"
	"    kablate bench-decode [--lengths N,N..] [--batch N] [--seconds X]\n"
	"                                               speed of decoding, as JSON\n"
	"\n"
	"  --seed N         of weights, batches and dropout (default 1)\n"
	"  --repeat N       number of a deliberate repetition (default 0)\n"
	"  --runs DIR       where runs and results.db go (default runs)\n"
	"  --experiment, --step, --baseline NAME    names for the record of the run\n"
	"  --baseline-program FILE    kablate of the baseline, to audit the pairing with it\n"
	"  --git REVISION, --dirty, --scale NAME    also recorded\n"
	"  --context N      tokens of state for describe, or that generate looks back on\n"
	"                   (default: the trained length)\n"
	"  --lengths N,N..  rows of these lengths (default: the trained one); longer ones where\n"
	"                   positions are not learned\n"
	"  --identity HEX   train only if the run's identity begins with this; with --seeds HEX,HEX..\n"
	"  --steps S,S.., --rates R,R..    with --seeds: each run's step and learning rate, or R/LEAST\n"
	"                   with the lowest rate\n"
	"  --times          print what the time of training went to, as JSON\n"
	"  --keep-diverged  a divergence is a result: such a run is done\n"
	"  --any-environment    resume a run even if its bits may differ\n"
	"  --lines          a line per interval, also on a terminal\n"
	"  --records        progress for make, which draws all runs (core/train/progress.h)\n"
	"  --journal-only   leave results.db alone: `results update` brings it up to date\n"
	"  --weights FILE, --prompt TEXT, --tokens N (200), --temperature X (0.8), --top-k N (0: all),\n"
	"  --tokenizer T (that of the data)         for generate; --seed chooses another text.\n"
	"                   The default prompt is the beginning of a validation row\n"
	"\n"
	"Ctrl-C finishes the iteration, saves and exits with 75; the same command resumes from\n"
	"there.  A second Ctrl-C ends it at once.  SIGUSR2 saves and continues.\n"
	"\n"
	"Example: kablate train --seed 3 --experiment ra-score --step 1-on --baseline 0-off\n";

static int complain(const struct error *err)
{
	fprintf(stderr, "kablate: %s\n", err->text);
	return EXIT_WRONG;
}

static bool parse_number(const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	/* Records are JSON, whose numbers are doubles. */
	return !errno && *text && !*end && text[0] != '-' && *value <= UINT64_C(1) << 53;
}

/* ----------------------------------------------------------------- examining */

/* A study of thousands of runs asks for all at once: only the seed differs. */
static int tell_identities(const struct run_setup *setup, const char *seeds)
{
	char hex[SHA256_HEX_SIZE], *copy = strdup(seeds), *rest = copy;
	int result = copy ? 0 : EXIT_WRONG;
	uint64_t seed;

	while (rest && result == 0) {
		const char *word = strsep(&rest, ",");

		if (parse_number(word, &seed)) {
			run_setup_identity(setup, seed, hex);
			printf("%s\n", hex);
		} else {
			fprintf(stderr, "kablate: '%s' is not a whole number\n", word);
			result = EXIT_USAGE;
		}
	}
	free(copy);
	return result;
}

static int run_identity(struct run_setup *setup, const struct arguments *a)
{
	struct error err;

	if (config_check_read(setup->config, &err) != OK)
		return complain(&err);
	if (a->seeds)
		return tell_identities(setup, a->seeds);
	printf("%s\n", setup->identity);
	return 0;
}

static int run_describe(struct run_setup *setup, const struct arguments *a)
{
	struct device_memory device = { 0 };
	struct description d;
	struct error err;

	if (run_setup_describe(setup, a->context, &d, &err) != OK ||
	    (setup->backend.memory && device_memory_predict(setup, &device, &err) != OK))
		return complain(&err);
	d.device_bytes = device.whole;
	d.device_own_bytes = device.own;
	if (a->json)
		description_json(&d, stdout);
	else
		description_print(&d, stdout);
	if (setup->backend.memory && !a->json)
		device_memory_print(&device, stdout);
	return 0;
}

/* As many rows as a few seconds allow: a large model is timed on one. */
static int64_t timed_rows(const struct run_setup *setup, const struct description *d)
{
	const double rows = TIMED_FLOPS / (description_flops(d) * (double)setup->source.length);

	return rows < 1				   ? 1
	       : rows < (double)setup->train.batch ? (int64_t)rows
						   : setup->train.batch;
}

/* The run itself will report it. */
static void ignore_note(void *context, const char *text)
{
	(void)context, (void)text;
}

static int run_estimate(struct run_setup *setup, const struct arguments *a)
{
	struct trainer *trainer = NULL;
	struct description d;
	struct train_run run;
	double seconds = 0, work;
	struct error err;
	int status = 0;

	(void)a;
	if (run_setup_describe(setup, 0, &d, &err) != OK)
		return complain(&err);
	work = description_flops(&d);
	setup->train.run_dir = "."; /* nothing is written */
	setup->train.batch = timed_rows(setup, &d);
	if (run_setup_describe(setup, 0, &d, &err) !=
	    OK) /* few rows give products a larger share */
		return complain(&err);
	setup->train.accumulate = 1;
	run = run_of(setup);
	if (run_setup_prepare(setup, &setup->seed, ignore_note, NULL, &err) != OK ||
	    trainer_create(&trainer, &run, 1, setup->params, setup->optimizer, &setup->backend,
			   &err) != OK ||
	    trainer_estimate(trainer, &seconds, &err) != OK)
		status = complain(&err);
	else
		printf("{\"seconds_per_token\": %.6g}\n",
		       seconds / (double)(setup->train.batch * setup->source.length) * work /
			       description_flops(&d));
	trainer_destroy(trainer);
	return status;
}

static int run_audit(struct run_setup *setup, const struct arguments *a)
{
	struct audit_report report;
	struct error err;
	bool passed;

	(void)a;
	if (!source_is_blank(&setup->source) && config_check_read(setup->config, &err) != OK)
		return complain(&err);
	if (audit_run(setup, &report, &err) != OK) {
		audit_free(&report);
		return complain(&err);
	}
	audit_print(&report, stdout);
	passed = audit_passed(&report);
	audit_free(&report);
	return passed ? 0 : EXIT_WRONG;
}

static int run_fingerprint(struct run_setup *setup, const struct arguments *a)
{
	struct error err;

	(void)a;
	if (run_setup_prepare(setup, &setup->seed, ignore_note, NULL, &err) != OK ||
	    fingerprint_take(setup, stdout, &err) != OK)
		return complain(&err);
	return 0;
}

/* A file or a pipe gets what the model wrote. */
static int run_generate(struct run_setup *setup, const struct arguments *a)
{
	struct error err;
	enum status status;
	FILE *out;

	if (!a->generate.weights) {
		fprintf(stderr, "kablate: generate needs --weights FILE\n");
		return EXIT_USAGE;
	}
	out = isatty(STDOUT_FILENO) ? standard_printable(stdout) : stdout;
	if (!out) {
		fail_memory(&err, "the output", 0);
		return complain(&err);
	}
	status = generate(setup, &a->generate, out, &err);
	if (out != stdout)
		fclose(out);
	return status == OK ? 0 : complain(&err);
}

static int run_evaluate(struct run_setup *setup, const struct arguments *a)
{
	struct error err;

	if (!a->generate.weights) {
		fprintf(stderr, "kablate: evaluate needs --weights FILE\n");
		return EXIT_USAGE;
	}
	if (evaluate_lengths(setup, a->lengths, a->generate.weights, a->json, stdout, &err) != OK)
		return complain(&err);
	return 0;
}

static int run_bench_decode(struct run_setup *setup, const struct arguments *a)
{
	char trained[24];
	struct bench_decode_options options = {
		.contexts = a->lengths ? a->lengths : trained,
		.batch = a->batch,
		.seconds = a->seconds,
	};
	struct provenance provenance;
	enum status status = FAIL;
	struct error err;
	char *record;

	snprintf(trained, sizeof(trained), "%lld", (long long)setup->model->length);
	provenance_take(&provenance, setup, &a->session.names);
	options.record = record = record_json(&provenance.record);
	if (!record)
		fail_memory(&err, "record", 0);
	else
		status = bench_decode(setup, &options, stdout, &err);
	free(record);
	return status == OK ? 0 : complain(&err);
}

/* For other tools: the model, and what its tokens stand for; weights are only checked. */
static int run_reference(struct run_setup *setup, const struct arguments *a)
{
	struct weights_origin origin;
	struct error err;

	if (a->generate.weights && run_setup_load(setup, a->generate.weights, &origin, &err) != OK)
		return complain(&err);
	fputs("{\"config\": ", stdout);
	vector_describe(setup->config, setup->model, stdout);
	fputs(",\n \"mechanisms\": [", stdout);
	for (int i = 0; i < setup->model->n_mechanisms; i++)
		printf("%s\"%s\"", i ? ", " : "", setup->model->mechanism[i]->symbol);
	fputs("],\n \"vocabulary\": ", stdout);
	vocabulary_json(setup->config, &setup->source, stdout);
	fputs("}\n", stdout);
	return 0;
}

static int run_unread(struct run_setup *setup, const struct arguments *a)
{
	int unread = config_unread(setup->config, stdout);

	(void)a;
	return unread ? EXIT_WRONG : 0;
}

/* ------------------------------------------------------------------ training */

/* Directories are named after experiments and steps. */
static bool take_name(const char *text, bool is_step)
{
	struct error err;

	if ((is_step ? step_check : name_check)("the name", text, &err) == OK)
		return true;
	complain(&err);
	return false;
}

static int count_words(const char *list)
{
	int n = 1;

	for (; *list; list++)
		n += *list == ',';
	return n;
}

/* What is said of each run, as lists of words: cut in place. */
struct lists {
	char *seeds, *identities, *steps, *rates;
};

static bool fits(const char *name, const char *list, int n)
{
	if (!list || count_words(list) == n)
		return true;
	fprintf(stderr, "kablate: --seeds and --%s have lists of different lengths\n", name);
	return false;
}

static char *next_word(char **list)
{
	return *list ? strsep(list, ",") : NULL;
}

static bool read_wanted(struct lists l, struct wanted_run *wanted, int n)
{
	for (int i = 0; i < n; i++) {
		const char *seed = next_word(&l.seeds);
		char *rates;

		wanted[i].identity = next_word(&l.identities);
		wanted[i].step = next_word(&l.steps);
		rates = next_word(&l.rates);
		wanted[i].rate = rates ? strsep(&rates, "/") : NULL;
		wanted[i].least_rate = rates;
		if (wanted[i].step && !take_name(wanted[i].step, true))
			return false;
		if (!parse_number(seed, &wanted[i].seed)) {
			fprintf(stderr, "kablate: '%s' is not a whole number\n", seed);
			return false;
		}
	}
	return true;
}

/* How a process that trained ends. */
static int exit_of(enum train_end end)
{
	static const int exits[] = {
		[TRAIN_DONE] = 0,
		[TRAIN_INTERRUPTED] = EXIT_RESUMABLE,
		[TRAIN_DIVERGED] = EXIT_DIVERGED,
		[TRAIN_BUDGET] = 0,
		[TRAIN_INVALID] = EXIT_WRONG,
		[TRAIN_FAILED] = EXIT_WRONG,
	};

	return exits[end];
}

static int train_runs(struct run_setup *setup, const struct arguments *a,
		      const struct wanted_run *wanted, int n)
{
	enum train_end end;
	struct error err;

	if (config_check_read(setup->config, &err) != OK)
		return complain(&err);
	if (worker_run(setup, wanted, n, &a->session, &end, &err) != OK)
		return complain(&err);
	return run_setup_leads(setup) ? exit_of(end) : 0; /* that of rank 0 counts */
}

static int train_list(struct run_setup *setup, const struct arguments *a)
{
	const int n = count_words(a->seeds);
	struct wanted_run *wanted = calloc((size_t)n, sizeof(*wanted));
	struct lists l = {
		.seeds = strdup(a->seeds),
		.identities = a->identities ? strdup(a->identities) : NULL,
		.steps = a->steps ? strdup(a->steps) : NULL,
		.rates = a->rates ? strdup(a->rates) : NULL,
	};
	int result = EXIT_USAGE;

	if (!wanted || !l.seeds || !l.identities != !a->identities || !l.steps != !a->steps ||
	    !l.rates != !a->rates)
		result = EXIT_WRONG;
	else if (fits("identity", l.identities, n) && fits("steps", l.steps, n) &&
		 fits("rates", l.rates, n) && read_wanted(l, wanted, n))
		result = train_runs(setup, a, wanted, n);
	free(wanted);
	free(l.seeds);
	free(l.identities);
	free(l.steps);
	free(l.rates);
	return result;
}

static int run_train(struct run_setup *setup, const struct arguments *a)
{
	const struct wanted_run one = { .seed = a->seed, .identity = a->identities };

	if (!a->seeds && (a->steps || a->rates)) {
		fprintf(stderr, "kablate: --steps and --rates are lists that need --seeds\n");
		return EXIT_USAGE;
	}
	return a->seeds ? train_list(setup, a) : train_runs(setup, a, &one, 1);
}

/* --------------------------------------------------------------------- main */

static bool parse_size(const char *text, double *value)
{
	struct error err;

	if (parse_real(text, value, &err) != OK)
		complain(&err);
	else if (*value < 0)
		fprintf(stderr, "kablate: '%s' is less than 0\n", text);
	else
		return true;
	return false;
}

/* What an option's value is, and where it goes. */
static const struct argument {
	const char *name;
	enum { NUMBER, REAL, TEXT, NAME, STEP, FLAG } kind;
	size_t at; /* in struct arguments: 64 bits, a double, three texts, a bool */
} arguments[] = {
#define ARGUMENT(name, kind, member)                           \
	{                                                      \
		name, kind, offsetof(struct arguments, member) \
	}
	ARGUMENT("seed", NUMBER, seed),
	ARGUMENT("seeds", TEXT, seeds),
	ARGUMENT("repeat", NUMBER, repeat),
	ARGUMENT("runs", TEXT, session.runs),
	ARGUMENT("experiment", NAME, session.names.experiment),
	ARGUMENT("step", STEP, session.names.step),
	ARGUMENT("baseline", STEP, session.names.baseline),
	ARGUMENT("baseline-program", TEXT, session.baseline_program),
	ARGUMENT("git", TEXT, session.names.git),
	ARGUMENT("dirty", FLAG, session.names.git_dirty),
	ARGUMENT("scale", TEXT, session.names.scale),
	ARGUMENT("context", NUMBER, context),
	ARGUMENT("json", FLAG, json),
	ARGUMENT("lines", FLAG, lines),
	ARGUMENT("records", FLAG, records),
	ARGUMENT("identity", TEXT, identities),
	ARGUMENT("steps", TEXT, steps),
	ARGUMENT("rates", TEXT, rates),
	ARGUMENT("any-environment", FLAG, session.any_environment),
	ARGUMENT("keep-diverged", FLAG, session.keep_diverged),
	ARGUMENT("times", FLAG, session.times),
	ARGUMENT("journal-only", FLAG, session.journal_only),
	ARGUMENT("weights", TEXT, generate.weights),
	ARGUMENT("lengths", TEXT, lengths),
	ARGUMENT("batch", NUMBER, batch),
	ARGUMENT("seconds", REAL, seconds),
	ARGUMENT("tokenizer", TEXT, generate.tokenizer),
	ARGUMENT("prompt", TEXT, generate.prompt),
	ARGUMENT("tokens", NUMBER, generate.tokens),
	ARGUMENT("temperature", REAL, generate.temperature),
	ARGUMENT("top-k", NUMBER, generate.top_k),
#undef ARGUMENT
};

#define N_ARGUMENTS ((int)(sizeof(arguments) / sizeof(arguments[0])))

/* False: the value is none of its kind. */
static bool take_argument(const struct argument *x, char *value, struct arguments *a)
{
	void *to = (char *)a + x->at;

	if (x->kind == REAL)
		return parse_size(value, to);
	if (x->kind == FLAG) {
		*(bool *)to = true;
		return true;
	}
	if (x->kind == NUMBER) { /* a signed one has the same bits: it is at most 2^53 */
		if (parse_number(value, to))
			return true;
		fprintf(stderr, "kablate: '%s' is not a whole number\n", value);
		return false;
	}
	*(const char **)to = value;
	return x->kind == TEXT || take_name(value, x->kind == STEP);
}

static bool parse_arguments(int argc, char **argv, struct arguments *a)
{
	struct option options[N_ARGUMENTS + 1] = { 0 };
	int option;

	for (int i = 0; i < N_ARGUMENTS; i++)
		options[i] =
			(struct option){ arguments[i].name, arguments[i].kind != FLAG, NULL, i };
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (option == '?' || !take_argument(&arguments[option], optarg, a))
			return false;
	a->session.progress = a->records ? PROGRESS_RECORDS
			      : a->lines ? PROGRESS_LINES
					 : a->session.progress;
	a->generate.context = a->context;
	if (a->seeds)
		a->seed = strtoull(a->seeds, NULL, 10); /* audits have the first one */
	return optind == argc;
}

_Static_assert(N_ARGUMENTS < '?', "getopt_long() tells an unknown option from all others");

static const struct command {
	const char *name;
	int (*run)(struct run_setup *setup, const struct arguments *a);
	bool model_only; /* needs no data */
} commands[] = {
	{ "train", run_train, false },
	{ "identity", run_identity, false },
	{ "describe", run_describe, true },
	{ "estimate", run_estimate, true },
	{ "audit", run_audit, true },
	{ "fingerprint", run_fingerprint, false },
	{ "generate", run_generate, false },
	{ "evaluate", run_evaluate, false },
	{ "bench-decode", run_bench_decode, true },
	{ "reference", run_reference, false },
	{ "unread", run_unread, false },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int run_command(const struct command *command, const struct arguments *a)
{
	enum status status;
	struct error err;
	struct run_setup setup;
	int result;

	if (command->model_only)
		status = run_setup_open_model(&setup, &err);
	else
		status = run_setup_open(&setup, a->seed, a->repeat, &err);
	result = status == OK ? command->run(&setup, a) : complain(&err);
	run_setup_close(&setup);
	return result;
}

static int show_version(void)
{
	char blas[BLAS_DESCRIPTION_TEXT];
	struct config *c;
	struct error err;

	if (config_builtin(&c, &err) != OK)
		return complain(&err);
	printf("kablate %s\nrevision %s\ncompiler %s, %s\nBLAS %s\nbackend %s\n",
	       build_info.version, build_info.revision, build_info.compiler, build_info.flags,
	       blas_description(blas), config_raw(c, "BACKEND"));
	config_free(c);
	return 0;
}

/* As the first word, or the first after a command. */
static bool asked_for(int argc, char **argv, const char *option)
{
	return strcmp(argv[1], option) == 0 || (argc > 2 && strcmp(argv[2], option) == 0);
}

/* Output that could not be written was not seen. */
static int end_output(int result)
{
	struct error err;

	if (standard_output_end(&err) == OK)
		return result;
	complain(&err);
	return result ? result : EXIT_WRONG;
}

int main(int argc, char **argv)
{
	struct arguments a = {
		.seed = 1,
		.batch = 1,
		.seconds = BENCH_SECONDS,
		.session = { .runs = "runs", .names = { .experiment = "single", .step = "0" } },
		.generate = { .tokens = 200, .temperature = 0.8 },
	};
	const struct command *command;

	standard_occupy();
	if (argc < 2) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}
	if (asked_for(argc, argv, "--help") || asked_for(argc, argv, "-h")) {
		fputs(usage, stdout);
		return 0;
	}
	blas_start(argv);
	if (strcmp(argv[1], "--version") == 0)
		return show_version();
	if (!parse_arguments(argc - 1, argv + 1, &a)) {
		fprintf(stderr, "kablate: see kablate --help\n");
		return EXIT_USAGE;
	}
	command = find_command(argv[1]);
	if (!command) {
		fprintf(stderr, "kablate: there is no command '%s'; see kablate --help\n", argv[1]);
		return EXIT_USAGE;
	}
	return end_output(run_command(command, &a));
}
