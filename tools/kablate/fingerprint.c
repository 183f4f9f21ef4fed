#include "tools/kablate/fingerprint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/memory_file.h"
#include "tools/kablate/run_workload.h"

/* Hashes of different things agree once in 2^64 times. */
#define HASH_DIGITS 16

/* Iterations and rows that are hashed; the loss is taken of as many tokens of iteration 1. */
#define ITERATIONS 4
#define ROWS 8
#define LOSS_TOKENS 2048

/* ------------------------------------------------------------------- taking */

static void put(FILE *file, const char *kind, const char *subject, const char *rule,
		struct sha256 *s)
{
	char hex[SHA256_HEX_SIZE];

	sha256_hex(s, hex);
	fprintf(file, "%s %s %s %.*s\n", kind, subject, rule, HASH_DIGITS, hex);
}

static void put_text(FILE *file, const char *kind, const char *text)
{
	fprintf(file, "%s - - %.*s\n", kind, HASH_DIGITS, text[0] ? text : "-");
}

/* A switch adds or leaves out; a number or a name may say how a tensor begins. */
static void put_symbol(void *context, const char *name, const char *value)
{
	struct sha256 s;

	if (strcmp(value, "y") == 0 || strcmp(value, "n") == 0)
		return;
	sha256_init(&s);
	sha256_add(&s, value, strlen(value));
	put(context, "symbol", name, "-", &s);
}

/* Only the model reads this copy of the configuration: that shows which symbols are its own. */
static enum status put_symbols(const struct run_setup *setup, FILE *file, struct error *err)
{
	const struct model_task task = { .vocab = setup->source.vocab,
					 .batch = setup->train.batch };
	struct config *c;
	struct model *m;
	struct sha256 s;

	if (config_builtin(&c, err) != OK)
		return FAIL;
	if (model_read(&m, c, &task, err) != OK) {
		config_free(c);
		return FAIL;
	}
	run_setup_hash_symbols(c, &s);
	put(file, "symbols", "-", "-", &s);
	config_visit_read(c, put_symbol, file);
	model_free(m);
	config_free(c);
	return OK;
}

static enum status put_rows(struct run_setup *setup, FILE *file, struct error *err)
{
	const struct workload w = run_workload(setup);
	const size_t T = (size_t)w.length, bytes = 2 * T * sizeof(int32_t);
	int32_t *tokens = malloc(bytes + T * (sizeof(float) + 1));
	struct workload_row row = { .tokens = tokens, .targets = tokens + T };
	struct sha256 training, validation;

	if (!tokens)
		return fail_memory(err, "fingerprint", bytes);
	row.floor = (float *)(tokens + 2 * T);
	row.component = (uint8_t *)(row.floor + T);
	sha256_init(&training);
	sha256_init(&validation);
	for (uint64_t i = 0; i < ITERATIONS * ROWS; i++) {
		w.train_row(w.context, 1 + i / ROWS, i % ROWS, row.tokens, row.targets);
		sha256_add(&training, tokens, bytes);
		w.valid_row(w.context, i % w.valid_rows, &row);
		sha256_add(&validation, tokens, bytes);
	}
	put(file, "rows", "training", "-", &training);
	put(file, "rows", "validation", "-", &validation);
	free(tokens);
	return OK;
}

static enum status put_graph(const struct graph *g, FILE *file, struct error *err)
{
	struct memory_file dump;
	struct sha256 s;
	enum status status;

	if (memory_file_open(&dump, "fingerprint", err) != OK)
		return FAIL;
	graph_dump_json(g, dump.stream);
	for (int i = 0; i < g->n_outputs; i++)
		fprintf(dump.stream, "%s %a\n", g->outputs[i].name, g->outputs[i].loss_weight);
	status = memory_file_close(&dump, "fingerprint", err);
	if (status == OK) {
		sha256_init(&s);
		sha256_add(&s, dump.text, dump.size);
		put(file, "graph", "-", "-", &s);
	}
	memory_file_free(&dump);
	return status;
}

static void describe_rule(const struct param *p, char *text, size_t size)
{
	int n = snprintf(text, size, "%d:%a:%d:%d", (int)p->init.kind, p->init.value,
			 p->init.blocks, p->init.embedding);

	for (int i = 0; i < p->ndim; i++)
		n += snprintf(text + n, size - (size_t)n, "%c%lld", i ? 'x' : ':',
			      (long long)p->dim[i]);
}

/* Of one parameter, or of its gradient. */
static enum status hash_values(const struct params *params, int i, bool gradient, struct sha256 *s,
			       struct error *err)
{
	const size_t bytes = (size_t)params->list[i].count * dtype_size(params->type);
	void *host = malloc(bytes);

	if (!host)
		return fail_memory(err, "fingerprint", bytes);
	params->backend->download(params->backend, host,
				  gradient ? param_grad(params, i) : param_data(params, i), bytes);
	sha256_add(s, host, bytes);
	free(host);
	return params->backend->check(params->backend, err);
}

static enum status put_parameters(const struct params *params, FILE *file, struct error *err)
{
	char rule[160];
	struct sha256 s;

	for (int i = 0; i < params->n; i++) {
		sha256_init(&s);
		if (hash_values(params, i, false, &s, err) != OK)
			return FAIL;
		describe_rule(&params->list[i], rule, sizeof(rule));
		put(file, "initial", params->list[i].name, rule, &s);
	}
	return OK;
}

static enum status hash_gradient(const struct params *params, struct sha256 *s, struct error *err)
{
	for (int i = 0; i < params->n; i++)
		if (hash_values(params, i, true, s, err) != OK)
			return FAIL;
	return OK;
}

/* A power of two: dividing by it restores every bit. */
#define STRONGER 16

/*
 * With fresh weights a query attends to all keys alike, so that, say, a threshold may not drop any.
 * Stronger weights show the difference.
 */
static enum status scale_weights(struct params *params, double factor, struct error *err)
{
	for (int i = 0; i < params->n; i++) {
		const int64_t n = params->list[i].count;
		double *values = malloc((size_t)n * sizeof(*values));
		enum status status;

		if (!values)
			return fail_memory(err, "fingerprint", (size_t)n * sizeof(*values));
		status = param_get(params, i, false, values, err);
		for (int64_t j = 0; j < n; j++)
			values[j] *= factor;
		if (status == OK)
			status = param_set(params, i, values, err);
		free(values);
		if (status != OK)
			return FAIL;
	}
	return OK;
}

/* Forward and backward of the first rows of the first update. */
static enum status run_first(const struct run_setup *setup, struct token_program *t, int64_t rows,
			     double *loss, struct error *err)
{
	const struct run run = { .seed = setup->seed, .iteration = 1 };
	const int64_t T = setup->source.length, n = rows * T;
	int32_t *tokens = malloc((size_t)n * 2 * sizeof(*tokens));
	enum status status;

	if (!tokens)
		return fail_memory(err, "fingerprint", (size_t)n * 2 * sizeof(*tokens));
	for (int64_t row = 0; row < rows; row++) {
		struct row out = { .tokens = tokens + row * T, .targets = tokens + n + row * T };

		source_train(&setup->source, 1, (uint64_t)row, &out);
	}
	token_program_feed(t, tokens, tokens + n);
	token_program_weigh(t, 1 / (double)n, 1 / (double)n);
	status = program_run(t->p, &run, err);
	*loss = 0;
	for (int i = 0; i < t->g->n_outputs; i++)
		if (t->g->outputs[i].is_loss)
			*loss += t->g->outputs[i].loss_weight *
				 program_scalar(t->p, t->g->outputs[i].tensor);
	free(tokens);
	return status;
}

static enum status put_training(struct run_setup *setup, FILE *file, struct error *err)
{
	const struct program_options options = { .train = true };
	const int64_t most = LOSS_TOKENS / setup->source.length;
	const int64_t rows = most < 1 ? 1 : most < setup->train.batch ? most : setup->train.batch;
	struct workload workload = run_workload(setup);
	struct token_program t = { 0 };
	enum status status = FAIL;
	struct sha256 gradient;
	double loss = 0, ignored;

	if (workload_open(&t, &workload, setup->params, rows, &setup->backend, &options, err) != OK)
		return FAIL;
	if (put_graph(t.g, file, err) == OK && put_parameters(setup->params, file, err) == OK &&
	    run_first(setup, &t, rows, &loss, err) == OK) {
		fprintf(file, "loss - - %a\n", loss);
		sha256_init(&gradient);
		if (hash_gradient(setup->params, &gradient, err) == OK &&
		    scale_weights(setup->params, STRONGER, err) == OK &&
		    run_first(setup, &t, rows, &ignored, err) == OK &&
		    hash_gradient(setup->params, &gradient, err) == OK &&
		    scale_weights(setup->params, 1.0 / STRONGER, err) == OK) {
			put(file, "gradient", "-", "-", &gradient);
			status = OK;
		}
	}
	token_program_close(&t);
	return status;
}

enum status fingerprint_take(struct run_setup *setup, FILE *file, struct error *err)
{
	if (put_symbols(setup, file, err) != OK)
		return FAIL;
	put_text(file, "data", setup->source.hash);
	put_text(file, "start", setup->init_hash);
	if (put_rows(setup, file, err) != OK)
		return FAIL;
	return put_training(setup, file, err);
}

/* ---------------------------------------------------------------- comparing */

struct line {
	char kind[16], subject[160], rule[160], value[40];
};

/* Reads the line at *text and moves *text after it; false: there is none. */
static bool next_line(const char **text, struct line *line)
{
	const char *end = strchr(*text, '\n');

	if (!end || sscanf(*text, "%15s %159s %159s %39s", line->kind, line->subject, line->rule,
			   line->value) != 4)
		return false;
	*text = end + 1;
	return true;
}

static bool find_line(const char *text, const char *kind, const char *subject, struct line *found)
{
	while (next_line(&text, found))
		if (strcmp(found->kind, kind) == 0 && strcmp(found->subject, subject) == 0)
			return true;
	return false;
}

struct comparison {
	const char *mine, *baseline;
	fingerprint_visitor visit;
	void *context;
};

static bool same(const struct comparison *c, const char *kind, const char *subject)
{
	struct line a, b;

	return find_line(c->mine, kind, subject, &a) && find_line(c->baseline, kind, subject, &b) &&
	       strcmp(a.value, b.value) == 0;
}

static void tell(const struct comparison *c, const char *subject, bool passed, const char *detail)
{
	struct audit_finding f = { .audit = "pairing", .passed = passed };

	snprintf(f.subject, sizeof(f.subject), "%s", subject);
	snprintf(f.detail, sizeof(f.detail), "%s", detail);
	c->visit(c->context, &f);
}

static void compare_rows(const struct comparison *c)
{
	static const char *const kinds[] = { "training", "validation" };
	char subject[40], detail[160];

	if (!same(c, "data", "-"))
		return;
	for (int i = 0; i < 2; i++) {
		const bool passed = same(c, "rows", kinds[i]);

		snprintf(subject, sizeof(subject), "%s rows", kinds[i]);
		snprintf(detail, sizeof(detail), "with the same data and seed, %s",
			 passed ? "those of the baseline" : "not those of the baseline");
		tell(c, subject, passed, detail);
	}
}

/* The symbols that say how a tensor begins, by the end of its name; the first that fits. */
static const struct {
	const char *end, *symbols[4];
} beginnings[] = {
	{ ".ra_alpha", { "RA_MLA_RA_ALPHA" } },
	{ ".gate_alpha", { "GATE_ALPHA" } },
	{ ".cross_alpha", { "CROSS_ALPHA" } },
	{ ".recip_alpha", { "RECIP_ALPHA" } },
	{ ".recip_alpha_next", { "RECIP_ALPHA" } },
	{ ".tau", { "MODEL_EMBD", "MODEL_HEADS" } },
	{ ".z_proj.weight", { "WS_HEADS" } },
	{ "c_proj.weight", { "INIT", "INIT_STD", "MODEL_LAYERS" } },
	{ ".weight", { "INIT", "INIT_STD" } },
	{ ".bias", { NULL } },
};

static bool ends_with(const char *text, const char *end)
{
	const size_t n = strlen(text), k = strlen(end);

	return n >= k && strcmp(text + n - k, end) == 0;
}

/* Of a tensor that the table lacks, any symbol may. */
static bool may_say(const char *symbol, const char *tensor)
{
	const size_t n = sizeof(beginnings) / sizeof(*beginnings);
	size_t i = 0;

	while (i < n && !ends_with(tensor, beginnings[i].end))
		i++;
	if (i == n)
		return true;
	for (const char *const *s = beginnings[i].symbols; *s; s++)
		if (strcmp(*s, symbol) == 0)
			return true;
	return false;
}

/* Does a symbol of both models, no switch, have different values and say how this tensor begins? */
static bool has_other_symbol(const struct comparison *c, const char *tensor)
{
	const char *rest = c->mine;
	struct line a, b;

	while (next_line(&rest, &a))
		if (strcmp(a.kind, "symbol") == 0 && may_say(a.subject, tensor) &&
		    find_line(c->baseline, "symbol", a.subject, &b) &&
		    strcmp(a.value, b.value) != 0)
			return true;
	return false;
}

/* What a rule ends with. */
static const char *shape_of(const struct line *line)
{
	const char *colon = strrchr(line->rule, ':');

	return colon ? colon : line->rule;
}

/* Parameters that both arms have: of the same name, shape and distribution. */
static void compare_weights(const struct comparison *c)
{
	const char *rest = c->mine;
	int shared = 0, all = 0;
	char detail[320] = "";
	struct line a, b;

	if (!same(c, "start", "-"))
		return;
	while (next_line(&rest, &a)) {
		if (strcmp(a.kind, "initial") != 0)
			continue;
		all++;
		if (!find_line(c->baseline, "initial", a.subject, &b) ||
		    strcmp(shape_of(&a), shape_of(&b)) != 0)
			continue;
		if (strcmp(a.rule, b.rule) != 0) {
			if (!has_other_symbol(c, a.subject))
				snprintf(detail, sizeof(detail),
					 "%s is drawn by another rule than in the baseline, and "
					 "no symbol says so",
					 a.subject);
			continue;
		}
		shared++;
		if (strcmp(a.value, b.value) != 0)
			snprintf(detail, sizeof(detail),
				 "%s starts with other values than in the baseline", a.subject);
	}
	if (detail[0]) {
		tell(c, "initial weights", false, detail);
		return;
	}
	snprintf(detail, sizeof(detail), "%d of %d tensors equal the baseline's, bit by bit",
		 shared, all);
	tell(c, "initial weights", true, detail);
}

static bool same_parameters(const struct comparison *c)
{
	const char *a = strstr(c->mine, "\ninitial "), *b = strstr(c->baseline, "\ninitial ");
	const char *a_end = strstr(c->mine, "\nloss "), *b_end = strstr(c->baseline, "\nloss ");

	return a && b && a_end && b_end && a_end - a == b_end - b &&
	       memcmp(a, b, (size_t)(a_end - a)) == 0;
}

static void compare_training(const struct comparison *c)
{
	if (same(c, "symbols", "-") || !same(c, "data", "-") || !same(c, "start", "-"))
		return;
	if (same(c, "graph", "-") && same_parameters(c) && same(c, "loss", "-") &&
	    same(c, "gradient", "-"))
		tell(c, "difference", false,
		     "symbols of the model differ from the baseline's, but graph, weights, first "
		     "loss and first gradient do not: this step trains its baseline");
	else
		tell(c, "difference", true, "it trains something else than its baseline");
}

enum status fingerprint_compare(const char *mine, const char *baseline, fingerprint_visitor visit,
				void *context, struct error *err)
{
	const struct comparison c = { mine, baseline, visit, context };
	struct line line;

	if (!find_line(mine, "gradient", "-", &line) ||
	    !find_line(baseline, "gradient", "-", &line))
		return fail(err, "the baseline's program does not say what it trains");
	compare_rows(&c);
	compare_weights(&c);
	compare_training(&c);
	return OK;
}

/* What a command prints, for the caller to free; no text: it could not be run, or it failed. */
static enum status output_of(const char *command, struct memory_file *output, struct error *err)
{
	FILE *pipe = popen(command, "r");
	enum status status;
	char buffer[4096];
	size_t n;

	if (!pipe)
		return errno == ENOMEM ? fail_memory(err, "fingerprint", 0) : OK;
	status = memory_file_open(output, "fingerprint", err);
	while (status == OK && (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0)
		fwrite(buffer, 1, n, output->stream);
	if (status == OK)
		status = memory_file_close(output, "fingerprint", err);
	if (pclose(pipe) != 0)
		memory_file_free(output);
	return status;
}

enum status fingerprint_compare_program(struct run_setup *setup, const char *program,
					fingerprint_visitor visit, void *context, struct error *err)
{
	struct memory_file mine, baseline = { 0 };
	enum status status = memory_file_open(&mine, "fingerprint", err);
	char command[4300];

	snprintf(command, sizeof(command), "'%s' fingerprint --seed %" PRIu64, program,
		 setup->seed);
	if (status == OK)
		status = fingerprint_take(setup, mine.stream, err);
	if (status == OK)
		status = memory_file_close(&mine, "fingerprint", err);
	if (status == OK)
		status = output_of(command, &baseline, err);
	if (status == OK)
		status = fingerprint_compare(mine.text, baseline.text ? baseline.text : "", visit,
					     context, err);
	memory_file_free(&mine);
	memory_file_free(&baseline);
	return status;
}
