/*
 * match_width - parameters and work of a configuration, before a program is built from it.
 *
 * The plan asks it for matched controls: with how many hidden channels F of the feed-forward
 * does this model come nearest to so many parameters, or FLOPs per token?  Both grow with F, so
 * bisection over the real counts finds F without knowing how they depend on it.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/backend/cpu/cpu.h"
#include "core/util/config.h"
#include "data/source.h"
#include "models/describe.h"

#define WIDEST 1048576 /* the range of FFN_HIDDEN in models/ffn/Kconfig */

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

static const char usage[] =
	"usage: match_width [--parameters N | --flops N] <CONFIGURATION\n"
	"\n"
	"Reads lines as in a .config, choices by their names (CONFIG_FFN=\"gelu\").  Prints\n"
	"\n"
	"    FFN_HIDDEN PARAMETERS FLOPS_PER_TOKEN\n"
	"\n"
	"as configured, or with the FFN_HIDDEN that comes nearest to N (the configured one if no\n"
	"other comes nearer).\n"
	"\n"
	"Example: match_width --parameters 500000 <model.symbols\n";

struct size {
	int64_t width; /* FFN_HIDDEN; 0: by FFN_MULT */
	double parameters, flops;
};

struct search {
	struct config *config;
	struct model_task task;
	int64_t unit; /* the width is a multiple */
	bool by_flops;
	double target;
};

/* If the vocabulary is configured, the data need not exist yet. */
static enum status find_vocab(struct config *c, int64_t *vocab, struct error *err)
{
	struct source source;

	*vocab = config_int(c, "MODEL_VOCAB");
	if (*vocab > 0)
		return config_check(c, err);
	if (source_open(&source, c, 1, err) != OK)
		return FAIL;
	*vocab = source.vocab;
	source_close(&source);
	return OK;
}

static enum status count(const struct search *s, int64_t width, struct size *size,
			 struct error *err)
{
	struct description_options options = { .batch = s->task.batch ? s->task.batch : 1 };
	const struct backend backend = backend_cpu(1);
	struct description d;
	struct model *model;
	enum status status;
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, width);
	if (config_set(s->config, "FFN_HIDDEN", text, err) != OK ||
	    model_read(&model, s->config, &s->task, err) != OK)
		return FAIL;
	options.length = model->length;
	status = describe_model(model, &backend, &options, &d, err);
	*size = (struct size){ width, (double)d.parameters, description_flops(&d) };
	model_free(model);
	return status;
}

static double beyond(const struct search *s, const struct size *size)
{
	return (s->by_flops ? size->flops : size->parameters) - s->target;
}

static struct size nearer(const struct search *s, struct size a, struct size b)
{
	return fabs(beyond(s, &b)) < fabs(beyond(s, &a)) ? b : a;
}

/* Widths low and low + unit, the target between them; a target below the narrowest gives it. */
static enum status enclose(const struct search *s, struct size *low, struct size *high,
			   struct error *err)
{
	struct size middle;

	if (count(s, s->unit, low, err) != OK)
		return FAIL;
	*high = *low;
	while (beyond(s, high) < 0) {
		*low = *high;
		if (low->width > WIDEST / 2)
			return fail(err, "no feed-forward up to a width of %d is large enough",
				    WIDEST);
		if (count(s, 2 * low->width, high, err) != OK)
			return FAIL;
	}
	while (high->width - low->width > s->unit) {
		const int64_t half = (low->width + high->width) / 2;

		if (count(s, half / s->unit * s->unit, &middle, err) != OK)
			return FAIL;
		*(beyond(s, &middle) < 0 ? low : high) = middle;
	}
	return OK;
}

/* A feed-forward cannot be narrower than a unit, and a control of another size would be none. */
static enum status check_near(const struct search *s, const struct size *low,
			      const struct size *found, struct error *err)
{
	const char *of = s->by_flops ? "FLOPs per token" : "parameters";
	struct size next;
	double step;

	if (count(s, low->width + s->unit, &next, err) != OK)
		return FAIL;
	step = beyond(s, &next) - beyond(s, low);
	if (fabs(beyond(s, found)) <= step)
		return OK;
	return fail(err,
		    "no feed-forward has about %.0f %s: width %" PRId64
		    " is off by %+.0f, a step of width is %.0f",
		    s->target, of, found->width, beyond(s, found), step);
}

static enum status find_width(const struct search *s, struct size *found, struct error *err)
{
	struct size low, high;

	if (enclose(s, &low, &high, err) != OK)
		return FAIL;
	*found = nearer(s, *found, nearer(s, low, high));
	return check_near(s, &low, found, err);
}

static enum status answer(struct search *s, struct error *err)
{
	const char *heads = config_raw(s->config, "WS_HEADS"); /* must divide the width */
	const char *configured = config_raw(s->config, "FFN_HIDDEN");
	const char *batch =
		config_raw(s->config, "TRAIN_BATCH"); /* pays for products of matrices */
	struct size found;

	s->unit = heads ? atoll(heads) : 1;
	s->task.batch = batch ? atoll(batch) : 0;
	if (find_vocab(s->config, &s->task.vocab, err) != OK ||
	    count(s, configured ? atoll(configured) : 0, &found, err) != OK)
		return FAIL;
	if (s->target > 0 && find_width(s, &found, err) != OK)
		return FAIL;
	printf("%" PRId64 " %.0f %.0f\n", found.width, found.parameters, found.flops);
	return OK;
}

static enum status answer_input(struct search *s, struct error *err)
{
	enum status status = FAIL;
	char *text = NULL;
	size_t size = 0;

	if (getdelim(&text, &size, '\0', stdin) < 0)
		fail(err, "no configuration on the standard input");
	else if (config_parse(&s->config, text, err) == OK)
		status = answer(s, err);
	config_free(s->config);
	free(text);
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "parameters", required_argument, NULL, 'p' },
		{ "flops", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct search search = { 0 };
	struct error err;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (option == '?' || parse_real(optarg, &search.target, &err) != OK)
			return fputs(usage, stderr), EXIT_USAGE;
		search.by_flops = option == 'f';
	}
	if (answer_input(&search, &err) == OK)
		return 0;
	fprintf(stderr, "match_width: %s\n", err.text);
	return EXIT_WRONG;
}
