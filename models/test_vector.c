#include "models/test_vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/backend/cpu/cpu.h"
#include "core/backend/open.h"
#include "core/train/checkpoint.h"
#include "core/util/memory_file.h"
#include "models/gpt2_names.h"
#include "models/model_program.h"

const char *const vector_kind_names[VECTOR_KINDS] = { "logits", "loss", "gradient" };

#define DOUBLE_ERROR 1e-9
#define FLOAT_ERROR 2e-4
#define FLOAT_OF_LARGEST 1e-5
#define BFLOAT_ERROR \
	5e-2 /* seen: 3.6e-2; one rounding is 2e-3, a path through two layers has ten */
#define STORED_ERROR 7e-2 /* seen on an H200: 5.0e-2; activations are rounded, too */
#define BFLOAT_OF_LARGEST 5e-3
/*
 * A gradient that is zero in exact arithmetic is rounding noise on both sides.
 * Noise is compared with the file's largest gradient.
 */
#define NOISE 1e-7
/* Routing weights closer than this, relative to the larger, may change places in float. */
#define NEAR_TIE 1e-4
#define BFLOAT_TIE 2e-2 /* ... and in bfloat16 */

/* ----------------------------------------------------------- configuration */

enum field_kind { FIELD_INT, FIELD_FLOAT, FIELD_BOOL, FIELD_STR }; /* the types of Python */

/* Every field of the reference's Config, with its default and our symbol: tools/reference/model.py.
 */
static const struct field {
	const char *name;
	enum field_kind kind;
	const char *standard;
	const char *symbol;
} fields[] = {
#include "generated/reference_fields.h"
};

/* Symbols for which the reference has no field. */
static const char *const constants =
	"CONFIG_FFN_HIDDEN=0\nCONFIG_DROPOUT=\"0\"\n"
	"CONFIG_INIT=\"gpt2\"\nCONFIG_INIT_STD=\"0.02\"\n"
	"# CONFIG_CROSS_FOLDED is not set\n# CONFIG_MERGE_LINEARS is not set\n";

static const struct field *find_field(const char *name)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

static enum status field_text(const struct field *f, const cJSON *value, char *text, size_t size,
			      struct error *err)
{
	if (!value)
		snprintf(text, size, "%s", f->standard);
	else if (f->kind == FIELD_BOOL && cJSON_IsBool(value))
		snprintf(text, size, "%s", cJSON_IsTrue(value) ? "y" : "n");
	else if (f->kind == FIELD_STR && cJSON_IsString(value))
		snprintf(text, size, "%s", value->valuestring);
	else if (f->kind == FIELD_INT && cJSON_IsNumber(value) &&
		 value->valuedouble == floor(value->valuedouble))
		snprintf(text, size, "%.0f", value->valuedouble);
	else if (f->kind == FIELD_FLOAT && cJSON_IsNumber(value))
		snprintf(text, size, "%.17g", value->valuedouble);
	else
		return fail(err, "field '%s' of the vector's configuration has the wrong type",
			    f->name);
	return OK;
}

static enum status append_field(FILE *out, const struct field *f, const cJSON *json,
				struct error *err)
{
	const char *quote = f->kind == FIELD_STR || f->kind == FIELD_FLOAT ? "\"" : "";
	char text[64];

	if (field_text(f, cJSON_GetObjectItemCaseSensitive(json, f->name), text, sizeof(text), err))
		return FAIL;
	if (f->kind == FIELD_BOOL && text[0] == 'n')
		fprintf(out, "# CONFIG_%s is not set\n", f->symbol);
	else
		fprintf(out, "CONFIG_%s=%s%s%s\n", f->symbol, quote, text, quote);
	return OK;
}

/* `json` NULL: the defaults. */
static enum status write_config(FILE *out, const cJSON *json, struct error *err)
{
	for (const cJSON *item = json ? json->child : NULL; item; item = item->next)
		if (!find_field(item->string))
			return fail(err, "this program has nothing that expresses the field '%s'",
				    item->string);
	fputs(constants, out);
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (append_field(out, &fields[i], json, err) != OK)
			return FAIL;
	return OK;
}

/* A symbol that was not read has the reference's default; a switch that was not read is off. */
static void describe_field(const struct field *f, const struct config *c, FILE *out)
{
	const char *value = config_raw(c, f->symbol);

	if (f->kind == FIELD_BOOL)
		fprintf(out, "%s", value && strcmp(value, "y") == 0 ? "true" : "false");
	else if (f->kind == FIELD_STR)
		fprintf(out, "\"%s\"", value ? value : f->standard);
	else
		fprintf(out, "%.17g", strtod(value ? value : f->standard, NULL));
}

void vector_describe(const struct config *c, const struct model *m, FILE *out)
{
	const char *comma = "{";

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		const char *name = fields[i].name;

		fprintf(out, "%s\"%s\": ", comma, name);
		if (strcmp(name, "vocab") == 0)
			fprintf(out, "%lld", (long long)m->vocab);
		else if (strcmp(name, "ffn_mult") == 0) /* int(ffn_mult * embd) is the width */
			fprintf(out, "%.17g", ((double)m->hidden + 0.5) / (double)m->embd);
		else
			describe_field(&fields[i], c, out);
		comma = ", ";
	}
	fputs("}", out);
}

static enum status config_of(const cJSON *json, struct config **c, struct error *err)
{
	struct memory_file out;
	enum status status = memory_file_open(&out, "configuration", err);

	if (status == OK)
		status = write_config(out.stream, json, err);
	if (status == OK)
		status = memory_file_close(&out, "configuration", err);
	if (status == OK)
		status = config_parse(c, out.text, err);
	memory_file_free(&out);
	return status;
}

enum status vector_config(const struct safetensors *file, struct config **c, struct error *err)
{
	const char *meta = safetensors_metadata(file, "config");
	cJSON *json = meta ? cJSON_Parse(meta) : NULL;
	enum status status;

	if (cJSON_IsObject(json))
		status = config_of(json, c, err);
	else
		status = fail(err, "the metadata holds no configuration");
	cJSON_Delete(json);
	return status;
}

enum status vector_defaults(struct config **c, struct error *err)
{
	return config_of(NULL, c, err);
}

/* ------------------------------------------------------------------ loading */

static double *doubles(int64_t n, struct error *err)
{
	double *values = malloc((size_t)(n ? n : 1) * sizeof(*values));

	if (!values)
		fail_memory(err, "test vector", (size_t)n * sizeof(*values));
	return values;
}

static const struct safetensors_tensor *find(const struct safetensors *file, const char *prefix,
					     const char *name, struct error *err)
{
	const struct safetensors_tensor *t;
	char full[256];

	snprintf(full, sizeof(full), "%s%s", prefix, name);
	t = safetensors_find(file, full);
	if (!t)
		fail(err, "the vector has no tensor '%s'", full);
	return t;
}

/* Nothing can be compared with a NaN. */
static enum status read_finite(const struct safetensors_tensor *t, double *values,
			       struct error *err)
{
	safetensors_read_double(t, values);
	for (int64_t i = 0; i < safetensors_elements(t); i++)
		if (!isfinite(values[i]))
			return fail(err, "'%s' holds a value that is not finite", t->name);
	return OK;
}

static bool has_shape(const struct safetensors_tensor *t, int ndim, const int64_t *dim)
{
	if (t->ndim != ndim)
		return false;
	for (int i = 0; i < ndim; i++)
		if (t->dim[i] != dim[i])
			return false;
	return true;
}

static enum status load_param(const struct safetensors *file, struct params *params, int index,
			      struct error *err)
{
	const struct param *p = &params->list[index];
	const struct safetensors_tensor *t = find(file, "param.", p->name, err);
	enum status status;
	double *values;

	if (!t)
		return FAIL;
	if (!has_shape(t, p->ndim, p->dim))
		return fail(err, "'%s' has another shape in the vector", p->name);
	values = doubles(p->count, err);
	if (!values)
		return FAIL;
	status = read_finite(t, values, err);
	if (status == OK)
		status = param_set(params, index, values, err);
	free(values);
	return status;
}

enum status vector_load(const struct safetensors *file, struct params *params, struct error *err)
{
	for (int i = 0; i < file->count; i++)
		if (strncmp(file->tensors[i].name, "param.", 6) == 0 &&
		    params_find(params, file->tensors[i].name + 6) < 0)
			return fail(err, "the model has no parameter '%s'",
				    file->tensors[i].name + 6);
	for (int i = 0; i < params->n; i++)
		if (load_param(file, params, i, err) != OK)
			return FAIL;
	return OK;
}

/* --------------------------------------------------------------- comparison */

static double largest(const double *values, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(values[i]));
	return most;
}

static void note(struct vector_report *report, enum vector_kind kind, const char *name,
		 const double *ours, const double *theirs, int64_t n, double allowed)
{
	struct vector_worst *worst = &report->worst[kind];
	double error = 0;

	for (int64_t i = 0; i < n; i++)
		error = ours[i] == ours[i] ? fmax(error, fabs(ours[i] - theirs[i])) : INFINITY;
	if (worst->name[0] && error / allowed <= worst->error / worst->allowed)
		return;
	snprintf(worst->name, sizeof(worst->name), "%s", name);
	worst->error = error;
	worst->allowed = allowed;
}

static double allowed_error(enum precision precision, double entry, double largest_gradient)
{
	if (precision == FLOAT64)
		return DOUBLE_ERROR * fmax(entry, NOISE * largest_gradient);
	if (precision_stores(precision))
		return fmax(STORED_ERROR * entry, BFLOAT_OF_LARGEST * largest_gradient);
	if (precision_rounds(precision))
		return fmax(BFLOAT_ERROR * entry, BFLOAT_OF_LARGEST * largest_gradient);
	return fmax(FLOAT_ERROR * entry, FLOAT_OF_LARGEST * largest_gradient);
}

struct comparison {
	const struct safetensors *file;
	const char *weights; /* a file, or NULL: the vector's own parameters */
	enum precision precision;
	bool folded,
		merged; /* with CROSS_FOLDED, MERGE_LINEARS, which must give the same numbers */
	struct backend backend;
	struct config *config;
	struct model *model;
	struct params *params;
	int64_t B, T;
	int32_t *tokens, *targets;
	double largest_gradient;
	struct vector_report *report;
};

static int64_t scored_targets(const struct comparison *c)
{
	int64_t scored = 0;

	for (int64_t i = 0; i < c->B * c->T; i++)
		scored += c->targets[i] >= 0;
	return scored;
}

static enum status load_parameters(const struct comparison *c, struct error *err)
{
	if (c->weights)
		return weights_load(c->params, c->weights, &gpt2_names, NULL, NULL, NULL, err);
	return vector_load(c->file, c->params, err);
}

static enum status run_opened(struct comparison *c, struct token_program *t, struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };
	const bool train = t->g->training;

	if (train && load_parameters(c, err) != OK)
		return FAIL;
	token_program_feed(t, c->tokens, train ? c->targets : NULL);
	if (train)
		token_program_weigh(t, 1 / (double)scored_targets(c), 1 / (double)(c->B * c->T));
	return program_run(t->p, &run, err);
}

/*
 * Run the model once with the vector's tokens.  MODEL_TRAIN comes first: it names the parameters,
 * and loads them.  After FAIL nothing is open.
 */
static enum status run_model(struct comparison *c, enum model_purpose purpose,
			     struct token_program *t, struct error *err)
{
	const struct model_use use = { .purpose = purpose, .rows = c->B, .length = c->T };

	if (model_program_open(t, c->model, &use, c->params, &c->backend, err) != OK)
		return FAIL;
	if (run_opened(c, t, err) == OK)
		return OK;
	token_program_close(t);
	return FAIL;
}

/* weight * value over the losses of this name in all layers; NULL: over all losses. */
static double loss_sum(const struct token_program *pass, const char *name)
{
	double sum = 0;

	for (int i = 0; i < pass->g->n_outputs; i++) {
		const struct graph_output *o = &pass->g->outputs[i];

		if (o->is_loss && (!name || strcmp(o->plain_name, name) == 0))
			sum += o->loss_weight * program_scalar(pass->p, o->tensor);
	}
	return sum;
}

static enum status compare_losses(struct comparison *c, const struct token_program *pass,
				  struct error *err)
{
	const double aux =
		loss_sum(pass, "aux_z") + loss_sum(pass, "aux_c") + loss_sum(pass, "aux_l");
	const double ours[] = { loss_sum(pass, NULL), loss_sum(pass, "main"), aux,
				loss_sum(pass, "logits_z") };
	static const char *const names[] = { "loss", "main", "aux", "z" };

	for (int i = 0; i < 4; i++) {
		const struct safetensors_tensor *t = find(c->file, "", names[i], err);
		double theirs;

		if (!t)
			return FAIL;
		if (safetensors_elements(t) != 1)
			return fail(err, "'%s' is not one number", names[i]);
		if (read_finite(t, &theirs, err) != OK)
			return FAIL;
		note(c->report, VECTOR_LOSS, names[i], &ours[i], &theirs, 1,
		     allowed_error(c->precision, fmax(fabs(theirs), NOISE), 0));
	}
	return OK;
}

/* Finds the largest gradient of one parameter or, when `judging`, our error. */
static enum status compare_gradient(struct comparison *c, int index, bool judging,
				    struct error *err)
{
	const struct param *p = &c->params->list[index];
	const struct safetensors_tensor *t = find(c->file, "grad.", p->name, err);
	double *ours, *theirs, most;
	enum status status = FAIL;

	if (!t || !has_shape(t, p->ndim, p->dim))
		return fail(err, "the vector has no fitting gradient of '%s'", p->name);
	ours = doubles(p->count, err);
	theirs = doubles(p->count, err);
	if (!ours || !theirs || param_get(c->params, index, true, ours, err) != OK ||
	    read_finite(t, theirs, err) != OK)
		goto free_values;
	most = largest(theirs, p->count);
	if (judging)
		note(c->report, VECTOR_GRADIENT, p->name, ours, theirs, p->count,
		     allowed_error(c->precision, most, c->largest_gradient));
	else
		c->largest_gradient = fmax(c->largest_gradient, most);
	status = OK;
free_values:
	free(ours);
	free(theirs);
	return status;
}

/* The first round finds the largest gradient of all; the second judges by it. */
static enum status compare_gradients(struct comparison *c, struct error *err)
{
	for (int judging = 0; judging < 2; judging++)
		for (int i = 0; i < c->params->n; i++)
			if (compare_gradient(c, i, judging, err) != OK)
				return FAIL;
	return OK;
}

/* NULL on lack of memory. */
static double *read_output(const struct token_program *t, const struct tensor *output,
			   struct error *err)
{
	double *values = doubles(tensor_count(output), err);

	if (values)
		program_read(t->p, output, values);
	return values;
}

static enum status compare_logits(struct comparison *c, struct error *err)
{
	const struct safetensors_tensor *t = find(c->file, "", "logits", err);
	const struct graph_output *output;
	double *ours = NULL, *theirs = NULL;
	enum status status = FAIL;
	struct token_program pass = { 0 };

	if (!t || run_model(c, MODEL_LOGITS, &pass, err) != OK)
		goto close;
	output = graph_find_output(pass.g, "logits");
	if (!has_shape(t, output->tensor->ndim, output->tensor->dim)) {
		fail(err, "the vector's logits have another shape");
		goto close;
	}
	ours = read_output(&pass, output->tensor, err);
	theirs = doubles(safetensors_elements(t), err);
	if (!ours || !theirs || read_finite(t, theirs, err) != OK)
		goto close;
	note(c->report, VECTOR_LOGITS, "logits", ours, theirs, safetensors_elements(t),
	     allowed_error(c->precision, largest(theirs, safetensors_elements(t)), 0));
	status = OK;
close:
	free(ours);
	free(theirs);
	token_program_close(&pass);
	return status;
}

/* ------------------------------------------------------------------ the file */

static enum status read_tokens(const struct safetensors *file, const char *name, int64_t limit,
			       int32_t low, int64_t B, int64_t T, int32_t **out, struct error *err)
{
	const struct safetensors_tensor *t = find(file, "", name, err);
	double *wide;

	if (!t)
		return FAIL;
	if (!has_shape(t, 2, SHAPE(B, T)))
		return fail(err, "'%s' is not a matrix like the tokens", name);
	wide = doubles(B * T, err);
	*out = malloc((size_t)(B * T) * sizeof(**out));
	if (!wide || !*out) {
		free(wide);
		return fail_memory(err, name, (size_t)(B * T) * sizeof(**out));
	}
	safetensors_read_double(t, wide);
	for (int64_t i = 0; i < B * T; i++) {
		if (wide[i] < low || wide[i] >= (double)limit) {
			free(wide);
			return fail(err, "'%s' holds a token outside of the vocabulary", name);
		}
		(*out)[i] = (int32_t)wide[i];
	}
	free(wide);
	return OK;
}

static enum status open_comparison(struct comparison *c, struct error *err)
{
	const struct safetensors_tensor *tokens = find(c->file, "", "tokens", err);
	const struct model_task untrained = { 0 };

	if (!tokens)
		return FAIL;
	if (tokens->ndim != 2)
		return fail(err, "'tokens' is not a matrix");
	c->B = tokens->dim[0];
	c->T = tokens->dim[1];
	if (vector_config(c->file, &c->config, err) != OK ||
	    (c->folded && config_set(c->config, "CROSS_FOLDED", "y", err) != OK) ||
	    (c->merged && config_set(c->config, "MERGE_LINEARS", "y", err) != OK) ||
	    model_read(&c->model, c->config, &untrained, err) != OK ||
	    params_create(&c->params, precision_type(c->precision), err) != OK)
		return FAIL;
	if (read_tokens(c->file, "tokens", c->model->vocab, 0, c->B, c->T, &c->tokens, err) != OK)
		return FAIL;
	return read_tokens(c->file, "targets", c->model->vocab, -1, c->B, c->T, &c->targets, err);
}

static void close_comparison(struct comparison *c)
{
	free(c->tokens);
	free(c->targets);
	params_destroy(c->params);
	model_free(c->model);
	config_free(c->config);
}

static enum status compare(struct comparison *c, struct error *err)
{
	enum status status = FAIL;
	struct token_program pass = { 0 };

	if (run_model(c, MODEL_TRAIN, &pass, err) == OK && compare_losses(c, &pass, err) == OK &&
	    compare_gradients(c, err) == OK && compare_logits(c, err) == OK)
		status = OK;
	token_program_close(&pass);
	return status;
}

static bool within(const struct vector_report *report)
{
	for (int i = 0; i < VECTOR_KINDS; i++)
		if (!(report->worst[i].error <= report->worst[i].allowed))
			return false;
	return true;
}

/* ------------------------------------------------------------- nearly tied */

/* How near a routing weight comes to another choice, relative to its size. */
static enum status routing_margin(struct comparison *c, double *margin, struct error *err)
{
	enum status status = FAIL;
	struct token_program pass = { 0 };

	*margin = INFINITY;
	if (run_model(c, MODEL_PROBE, &pass, err) != OK)
		goto close;
	for (int i = 0; i < pass.g->n_outputs; i++) {
		const struct graph_output *o = &pass.g->outputs[i];
		double *values;

		if (strcmp(o->plain_name, "probe") != 0)
			continue;
		values = read_output(&pass, o->tensor, err);
		if (!values)
			goto close;
		*margin = fmin(*margin, values[PROBE_MARGIN]);
		free(values);
	}
	status = OK;
close:
	token_program_close(&pass);
	return status;
}

static enum status find_near_tie(const struct comparison *narrow, struct error *err)
{
	struct vector_report ignored = { 0 };
	struct comparison wide = {
		.file = narrow->file,
		.weights = narrow->weights,
		.precision = FLOAT64,
		.folded = narrow->folded,
		.merged = narrow->merged,
		.backend = narrow->backend,
		.report = &ignored,
	};
	enum status status = FAIL;
	double margin;

	if (open_comparison(&wide, err) == OK && compare(&wide, err) == OK &&
	    routing_margin(&wide, &margin, err) == OK) {
		narrow->report->near_tie =
			margin < (precision_rounds(narrow->precision) ? BFLOAT_TIE : NEAR_TIE);
		status = OK;
	}
	close_comparison(&wide);
	return status;
}

static bool can_fold(struct config *c)
{
	return config_bool(c, "RA_MLA_MLP_CROSS_TOKEN") && config_int(c, "CROSS_RANK") == 0;
}

/* Adds to the report; *foldable: there is a folded form, too. */
static enum status compare_form(struct comparison c, bool *foldable, struct error *err)
{
	enum status status = FAIL;

	if (open_comparison(&c, err) == OK && compare(&c, err) == OK) {
		*foldable = can_fold(c.config);
		status = OK;
	}
	if (status == OK && c.precision != FLOAT64 && !within(c.report))
		status = find_near_tie(&c, err);
	close_comparison(&c);
	return status;
}

enum status vector_compare(const struct safetensors *file, const char *weights, const char *backend,
			   enum precision precision, struct vector_report *report,
			   struct error *err)
{
	const struct backend_options options = { .name = backend,
						 .precision = precision,
						 .threads = 1 };
	struct comparison c = {
		.file = file,
		.weights = weights,
		.precision = precision,
		.report = report,
	};
	enum status status;
	bool foldable = false;

	*report = (struct vector_report){ 0 };
	if (backend_open(&c.backend, &options, err) != OK)
		return FAIL;
	status = compare_form(c, &foldable, err);
	c.folded = foldable;
	if (status == OK && foldable)
		status = compare_form(c, &foldable, err);
	c.merged = true;
	if (status == OK)
		status = compare_form(c, &foldable, err);
	c.backend.close(&c.backend);
	return status;
}

bool vector_passed(const struct vector_report *report)
{
	return report->near_tie || within(report);
}

enum status vector_export(const struct safetensors *file, const char *path, struct error *err)
{
	struct vector_report ignored;
	struct comparison c = {
		.file = file,
		.precision = FLOAT32,
		.backend = backend_cpu(1),
		.report = &ignored,
	};
	enum status status = FAIL;
	struct token_program pass = { 0 };

	if (open_comparison(&c, err) == OK && run_model(&c, MODEL_TRAIN, &pass, err) == OK)
		status = weights_save(c.params, path, NULL, err);
	token_program_close(&pass);
	close_comparison(&c);
	return status;
}
