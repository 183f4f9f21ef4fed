/*
 * data - prepare text for training: token shards, vocabularies, checks.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/standard.h"
#include "data/prepare.h"
#include "data/tokens.h"

static const char HELP[] =
	"Usage: data prepare --out DIR [options] INPUT...\n"
	"       data vocabulary --size N --out FILE [options] INPUT...\n"
	"       data check [--size N] PATTERN\n"
	"\n"
	"prepare     turn text into token shards DIR/train-*.bin and DIR/valid-*.bin, with\n"
	"            DIR/data.json, which describes them\n"
	"vocabulary  make a byte-pair vocabulary from text, a file like GPT-2's vocab.bpe\n"
	"check       read token files (ours, llm.c's, nanoGPT's) and say whether they are sound\n"
	"\n"
	"INPUT is a text file (one document), a .jsonl file (a document for each line, its field\n"
	"\"text\"), a directory of such files, or - for JSON lines from standard input.\n"
	"\n"
	"  --out DIR|FILE   where the result goes\n"
	"  --tokenizer T    bytes (default), characters (those of the input), or a file: "
	"vocab.bpe,\n"
	"                   characters.json\n"
	"  --size N         ids of a vocabulary; with prepare: make one of this size from the\n"
	"                   training part, instead of --tokenizer;  check: all ids must be below "
	"it\n"
	"  --valid SHARE    share of the text for validation, default 0.1: documents by a hash of\n"
	"                   their bytes, or the last part of a single text file\n"
	"  --distinct       leave out documents that repeat earlier ones, and validation documents\n"
	"                   that repeat training documents (data/distinct.h has the rule)\n"
	"  --components     each INPUT is a component that evaluations also show alone; its name\n"
	"                   is the file's: code.jsonl is code\n"
	"  --shard N        tokens in one shard, default 100000000\n"
	"  --threads N      default: all processors\n"
	"  --end-line       standard input must end with the line {\"end\": true}; without it the\n"
	"                   text is incomplete, and nothing is written\n"
	"  --quiet          no progress\n"
	"  --help           this text\n"
	"\n"
	"Example: data prepare --out data/web --size 8192 texts/\n"
	"         data check 'data/web/*.bin'\n";

struct options {
	const char *out, *tokenizer;
	uint32_t size;
	double valid;
	uint64_t shard;
	int threads;
	bool quiet, end_line, distinct, components;
	char **input;
	size_t inputs;
};

/* ---------------------------------------------------------------- options */

static enum status parse_number(const char *name, const char *text, double least, double most,
				double *value, struct error *err)
{
	char *end;

	*value = strtod(text, &end);
	if (end == text || *end || !(*value >= least && *value <= most))
		return fail(err, "--%s takes a number from %.15g to %.15g, not \"%s\"", name, least,
			    most, text);
	return OK;
}

static enum status parse_whole(const char *name, const char *text, double least, double most,
			       double *value, struct error *err)
{
	if (parse_number(name, text, least, most, value, err))
		return FAIL;
	if (*value != (double)(int64_t)*value)
		return fail(err, "--%s takes a whole number, not \"%s\"", name, text);
	return OK;
}

static enum status parse_option(int letter, const char *text, struct options *o, struct error *err)
{
	double value;

	switch (letter) {
	case 'o':
		o->out = text;
		return OK;
	case 't':
		o->tokenizer = text;
		return OK;
	case 's':
		if (parse_whole("size", text, 1, TOKENIZER_MAX_VOCABULARY, &value, err))
			return FAIL;
		o->size = (uint32_t)value;
		return OK;
	case 'v':
		return parse_number("valid", text, 0, 0.9, &o->valid, err);
	case 'n':
		if (parse_whole("shard", text, 1, INT32_MAX, &value, err))
			return FAIL;
		o->shard = (uint64_t)value;
		return OK;
	case 'j':
		if (parse_whole("threads", text, 1, 1024, &value, err))
			return FAIL;
		o->threads = (int)value;
		return OK;
	case 'e':
		o->end_line = true;
		return OK;
	case 'd':
		o->distinct = true;
		return OK;
	case 'c':
		o->components = true;
		return OK;
	case 'q':
		o->quiet = true;
		return OK;
	default:
		return fail(err, "unknown option, or one without its value; see data --help");
	}
}

static enum status parse_options(int argc, char **argv, struct options *o, struct error *err)
{
	static const struct option names[] = {
		{ "out", required_argument, NULL, 'o' },
		{ "tokenizer", required_argument, NULL, 't' },
		{ "size", required_argument, NULL, 's' },
		{ "valid", required_argument, NULL, 'v' },
		{ "shard", required_argument, NULL, 'n' },
		{ "threads", required_argument, NULL, 'j' },
		{ "distinct", no_argument, NULL, 'd' },
		{ "components", no_argument, NULL, 'c' },
		{ "quiet", no_argument, NULL, 'q' },
		{ "end-line", no_argument, NULL, 'e' },
		{ 0 },
	};
	int letter;

	opterr = 0;
	while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1)
		if (parse_option(letter, optarg, o, err))
			return FAIL;
	o->input = argv + optind;
	o->inputs = (size_t)(argc - optind);
	return OK;
}

/* ---------------------------------------------------------------- prepare, vocabulary */

/* A vocabulary made from the input reads it a first time, without what is left out. */
static enum status make_tokenizer(const struct options *o, const struct distinct *d,
				  struct tokenizer **t, struct error *err)
{
	enum status status;
	struct input *in;

	if (!o->size && strcmp(o->tokenizer, "characters"))
		return tokenizer_open(o->tokenizer, t, err);
	if (input_open(o->input, o->inputs, o->valid, &in, err))
		return FAIL;
	input_leave_out(in, d->is_left_out);
	if (!input_can_repeat(in))
		status = fail(
			err, "standard input cannot be read twice: make the vocabulary from files");
	else if (o->size)
		status = prepare_vocabulary(in, o->size, o->threads, t, err);
	else
		status = prepare_characters(in, t, err);
	input_close(in);
	return status;
}

static void report(const struct dataset *d, const char *out)
{
	printf("%s: %s, vocabulary %u\n", out, d->tokenizer, d->vocabulary);
	for (enum data_split s = 0; s < SPLITS; s++) {
		const struct split_info *split = &d->split[s];

		printf("  %s  %" PRIu64 " tokens, %" PRIu64 " bytes, %" PRIu64
		       " documents, %zu shards\n",
		       split_name(s), split->tokens, split->bytes, split->documents, split->shards);
	}
	for (size_t i = 0; i < d->components; i++)
		printf("  %s  %" PRIu64 " tokens to train on, %" PRIu64 " to validate on\n",
		       d->component[i].name, d->component[i].tokens[SPLIT_TRAIN],
		       d->component[i].tokens[SPLIT_VALID]);
	if (d->duplicates + d->leaks)
		printf("  left out: %" PRIu64 " documents that repeat others, %" PRIu64
		       " for validation that repeat what is trained on\n",
		       d->duplicates, d->leaks);
}

/* data/code.jsonl is the component code. */
static enum status name_components(const struct options *o, char (*name)[COMPONENT_NAME_SIZE],
				   struct error *err)
{
	if (o->inputs > DATASET_COMPONENTS)
		return fail(err, "--components takes at most %d inputs", DATASET_COMPONENTS);
	for (size_t i = 0; i < o->inputs; i++) {
		const char *base = strrchr(o->input[i], '/');

		base = base ? base + 1 : o->input[i];
		snprintf(name[i], COMPONENT_NAME_SIZE, "%.*s", (int)strcspn(base, "."), base);
		if (!component_name_fits(name[i]))
			return fail(
				err,
				"--components: %s: the name of a component has letters, digits and _",
				o->input[i]);
		for (size_t j = 0; j < i; j++)
			if (!strcmp(name[i], name[j]))
				return fail(err, "--components: two inputs have the name %s",
					    name[i]);
	}
	return OK;
}

static enum status run_prepare(const struct options *o, struct error *err)
{
	char component[DATASET_COMPONENTS][COMPONENT_NAME_SIZE];
	struct prepare_options options = {
		.out = o->out,
		.shard_tokens = o->shard,
		.threads = o->threads,
		.progress = !o->quiet && isatty(2) ? stderr : NULL,
		.component = component,
		.components = o->components ? o->inputs : 0,
	};
	struct distinct distinct = { 0 };
	struct tokenizer *t = NULL;
	struct input *in = NULL;
	enum status status = FAIL;
	struct dataset result;

	if (!o->out || !o->inputs)
		return fail(err, "prepare needs --out DIR and INPUT; see data --help");
	if (o->size && strcmp(o->tokenizer, "bytes"))
		return fail(err, "--size makes a vocabulary: it excludes --tokenizer");
	if (o->components && name_components(o, component, err))
		return FAIL;
	if (o->distinct && distinct_find(o->input, o->inputs, o->valid, &distinct, err))
		return FAIL;
	options.distinct = o->distinct ? &distinct : NULL;
	if (make_tokenizer(o, &distinct, &t, err) ||
	    input_open(o->input, o->inputs, o->valid, &in, err))
		goto close_tokenizer;
	if (o->end_line)
		input_expect_end(in);
	status = prepare(in, t, &options, &result, err);
	if (!status) {
		report(&result, o->out);
		dataset_free(&result);
	}
	input_close(in);
close_tokenizer:
	distinct_free(&distinct);
	tokenizer_close(t);
	return status;
}

static enum status run_vocabulary(const struct options *o, struct error *err)
{
	struct options whole = *o;
	struct distinct nothing = { 0 };
	struct tokenizer *t;
	enum status status;

	if (!o->out || !o->inputs || !o->size)
		return fail(err,
			    "vocabulary needs --size N, --out FILE and INPUT; see data --help");
	whole.valid = 0;
	if (make_tokenizer(&whole, &nothing, &t, err))
		return FAIL;
	status = tokenizer_save(t, o->out, err);
	tokenizer_close(t);
	return status;
}

/* ---------------------------------------------------------------- check */

static enum status run_check(const struct options *o, struct error *err)
{
	uint32_t vocabulary = o->size ? o->size : TOKENIZER_MAX_VOCABULARY;
	struct tokens *t;

	if (o->inputs != 1)
		return fail(err, "check needs one PATTERN (in quotes); see data --help");
	if (tokens_open(o->input[0], vocabulary, 1, &t, err))
		return FAIL;
	printf("%s: %" PRIu64 " tokens, %s, %s\n", o->input[0], tokens_count(t), tokens_hash(t),
	       tokens_dataset(t) ? "as " DATASET_FILE " lists them" : "no " DATASET_FILE);
	tokens_close(t);
	return OK;
}

static const struct command {
	const char *name;
	enum status (*run)(const struct options *o, struct error *err);
} COMMANDS[] = {
	{ "prepare", run_prepare },
	{ "vocabulary", run_vocabulary },
	{ "check", run_check },
};

static enum status run_command(int argc, char **argv, struct error *err)
{
	struct options o = { .tokenizer = "bytes",
			     .valid = 0.1,
			     .shard = PREPARE_SHARD_TOKENS,
			     .threads = omp_get_num_procs() };

	for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(*COMMANDS); i++) {
		if (argc < 2 || strcmp(argv[1], COMMANDS[i].name))
			continue;
		if (parse_options(argc - 1, argv + 1, &o, err))
			return FAIL;
		return COMMANDS[i].run(&o, err);
	}
	return fail(err, "a command is needed: prepare, vocabulary or check; see data --help");
}

int main(int argc, char **argv)
{
	struct error err;

	standard_occupy();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			fputs(HELP, stdout);
			return 0;
		}
	}
	if (run_command(argc, argv, &err) || standard_output_end(&err)) {
		fprintf(stderr, "data: %s\n", err.text);
		return 1;
	}
	return 0;
}
