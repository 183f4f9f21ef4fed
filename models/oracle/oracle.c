#include "models/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"

REGISTERED(oracle_attentions, oracle_attention);
REGISTERED(oracle_positions, oracle_position);
REGISTERED(oracle_ffns, oracle_ffn);
REGISTERED(oracle_mechanisms, oracle_mechanism);

enum { MOST_CONSTANTS = 64 };

/* ------------------------------------------------------------------- errors */

void oracle_fail(struct oracle *o, const char *format, ...)
{
	va_list args;

	if (o->failed)
		return;
	o->failed = true;
	va_start(args, format);
	vsnprintf(o->err.text, sizeof(o->err.text), format, args);
	va_end(args);
}

static enum status outcome(const struct oracle *o, struct error *err)
{
	return o->failed ? fail(err, "%s", o->err.text) : OK;
}

/* ------------------------------------------------------------------ opening */

bool oracle_switch(const struct oracle *o, const char *symbol)
{
	const char *value = config_raw(o->config, symbol);

	return value && strcmp(value, "y") == 0;
}

bool oracle_is(struct oracle *o, const char *symbol, const char *value)
{
	const char *text = config_text(o->config, symbol);

	return text && strcmp(text, value) == 0;
}

static void read_sizes(struct oracle *o)
{
	o->V = config_int(o->config, "MODEL_VOCAB");
	o->E = config_int(o->config, "MODEL_EMBD");
	o->H = config_int(o->config, "MODEL_HEADS");
	o->N = config_int(o->config, "MODEL_LAYERS");
	o->F = config_int(o->config, "FFN_HIDDEN");
	if (o->F == 0)
		o->F = (int64_t)(config_real(o->config, "FFN_MULT") * (double)o->E);
	o->D = o->H > 0 ? o->E / o->H : 0;
	o->bias = config_bool(o->config, "MODEL_BIAS");
}

static void insert_mechanism(struct oracle *o, const struct oracle_mechanism *m)
{
	int at = o->n_mechanisms++;

	for (; at > 0 && o->mechanism[at - 1]->order > m->order; at--)
		o->mechanism[at] = o->mechanism[at - 1];
	o->mechanism[at] = m;
}

/* Positions that are no bias of distances. */
static bool knows_position(struct oracle *o)
{
	return oracle_is(o, "POS", "learned") || oracle_is(o, "POS", "rope") ||
	       oracle_is(o, "POS", "none");
}

static void find_parts(struct oracle *o, char missing[64])
{
	missing[0] = '\0';
	for (const struct oracle_attention *const *v = __start_oracle_attentions;
	     v < __stop_oracle_attentions; v++)
		if (oracle_is(o, "ATTENTION", (*v)->name))
			o->attention = *v;
	for (const struct oracle_position *const *v = __start_oracle_positions;
	     v < __stop_oracle_positions; v++)
		if (oracle_is(o, "POS", (*v)->name))
			o->position = *v;
	for (const struct oracle_ffn *const *v = __start_oracle_ffns; v < __stop_oracle_ffns; v++)
		if (oracle_is(o, "FFN", (*v)->name))
			o->ffn = *v;
	for (const struct oracle_mechanism *const *v = __start_oracle_mechanisms;
	     v < __stop_oracle_mechanisms && o->n_mechanisms < ORACLE_MECHANISMS; v++)
		if (oracle_switch(o, (*v)->symbol))
			insert_mechanism(o, *v);
	if (!o->attention)
		snprintf(missing, 64, "attention '%s'", config_text(o->config, "ATTENTION"));
	else if (!o->position && !knows_position(o))
		snprintf(missing, 64, "positions '%s'", config_text(o->config, "POS"));
	else if (!o->ffn)
		snprintf(missing, 64, "feed-forward '%s'", config_text(o->config, "FFN"));
}

enum status oracle_create(struct oracle **out, const struct config *c, int64_t B, int64_t T,
			  char missing[64], struct error *err)
{
	struct oracle *o = calloc(1, sizeof(*o));
	const size_t rows = (size_t)(B * T);

	if (!o)
		return fail_memory(err, "oracle", sizeof(*o));
	o->B = B;
	o->T = T;
	o->tokens = calloc(rows, sizeof(*o->tokens));
	o->targets = calloc(rows, sizeof(*o->targets));
	o->constants = calloc(MOST_CONSTANTS, sizeof(*o->constants));
	if (!o->tokens || !o->targets || !o->constants) {
		oracle_destroy(o);
		return fail_memory(err, "oracle", rows * sizeof(*o->tokens));
	}
	if (config_copy(&o->config, c, err) != OK) {
		oracle_destroy(o);
		return FAIL;
	}
	read_sizes(o);
	o->begin = calloc((size_t)(o->N > 0 ? o->N : 1), sizeof(*o->begin));
	if (!o->begin) {
		oracle_destroy(o);
		return fail_memory(err, "oracle", sizeof(*o->begin));
	}
	find_parts(o, missing);
	if (config_check(o->config, err) != OK) {
		oracle_destroy(o);
		return FAIL;
	}
	*out = o;
	return OK;
}

void oracle_destroy(struct oracle *o)
{
	if (!o)
		return;
	for (int i = 0; i < o->n_weights; i++)
		free(o->weights[i].values);
	free(o->weights);
	free(o->tokens);
	free(o->targets);
	free(o->constants);
	free(o->begin);
	pool_free(&o->pool);
	pool_free(&o->kept_pool);
	config_free(o->config);
	free(o);
}

bool oracle_knows(const struct oracle *o, const char *mechanism_symbol)
{
	for (int i = 0; i < o->n_mechanisms; i++)
		if (strcmp(o->mechanism[i]->symbol, mechanism_symbol) == 0)
			return true;
	return false;
}

void oracle_rows(struct oracle *o, const int32_t *rows)
{
	for (int64_t b = 0; b < o->B; b++)
		for (int64_t t = 0; t < o->T; t++) {
			o->tokens[b * o->T + t] = rows[b * (o->T + 1) + t];
			o->targets[b * o->T + t] = rows[b * (o->T + 1) + t + 1];
		}
}

enum status oracle_add_weight(struct oracle *o, const char *name, const double *values,
			      int64_t count, struct error *err)
{
	const size_t bytes = (size_t)count * sizeof(*values);
	struct oracle_weight *list = realloc(o->weights,
					     (size_t)(o->n_weights + 1) * sizeof(*list)),
			     *w;

	if (!list)
		return fail_memory(err, "oracle", bytes);
	o->weights = list;
	w = &list[o->n_weights];
	*w = (struct oracle_weight){ .count = count, .values = malloc(bytes) };
	if (!w->values)
		return fail_memory(err, "oracle", bytes);
	memcpy(w->values, values, bytes);
	snprintf(w->name, sizeof(w->name), "%s", name);
	o->n_weights++;
	return OK;
}

/* ----------------------------------------------------------- arrays and weights */

static void lack_memory(struct oracle *o, int64_t n)
{
	struct error err;

	fail_memory(&err, "oracle", (unsigned long long)n * sizeof(double));
	oracle_fail(o, "%s", err.text);
}

double *oracle_array(struct oracle *o, int64_t n)
{
	double *array = o->failed ? NULL : pool_alloc(&o->pool, (size_t)n * sizeof(*array));

	if (!array)
		lack_memory(o, n);
	return array;
}

static struct oracle_weight *find_weight(struct oracle *o, const char *name)
{
	for (int i = 0; i < o->n_weights; i++)
		if (strcmp(o->weights[i].name, name) == 0)
			return &o->weights[i];
	return NULL;
}

const double *oracle_shared_weights(struct oracle *o, const char *name, int64_t count)
{
	struct oracle_weight *w = find_weight(o, name);

	if (!w)
		oracle_fail(o, "the model has no parameter '%s'", name);
	else if (w->count != count)
		oracle_fail(o, "'%s' has %lld numbers, not %lld", name, (long long)w->count,
			    (long long)count);
	if (o->failed)
		return NULL;
	w->used = true;
	return w->values;
}

static void full_name(const struct oracle *o, const char *name, char full[120])
{
	if (o->layer < 0)
		snprintf(full, 120, "%s", name);
	else
		snprintf(full, 120, "h.%lld.%s%s", (long long)o->layer, o->part, name);
}

const double *oracle_weights(struct oracle *o, const char *name, int64_t count)
{
	char full[120];

	full_name(o, name, full);
	return oracle_shared_weights(o, full, count);
}

double *oracle_keep(struct oracle *o, const double *values, int64_t n)
{
	const size_t bytes = (size_t)n * sizeof(*values);
	double *copy = o->failed ? NULL : pool_alloc(&o->kept_pool, bytes);

	if (copy)
		memcpy(copy, values, bytes);
	else
		lack_memory(o, n);
	return copy;
}

double *oracle_constant(struct oracle *o, double *values, int64_t n)
{
	const int at = o->next_constant++;

	if (at >= MOST_CONSTANTS)
		oracle_fail(o, "more than %d arrays are constant", MOST_CONSTANTS);
	if (!values || o->failed)
		return NULL;
	if (!o->differs)
		o->constants[at] = oracle_keep(o, values, n);
	return o->constants[at];
}

double oracle_alpha(struct oracle *o, const char *name, const char *symbol)
{
	const double *learned;

	if (!oracle_switch(o, "RECIP_LEARN_ALPHA"))
		return config_real(o->config, symbol);
	learned = oracle_weights(o, name, 1);
	return learned ? *learned : 0;
}

void oracle_add_loss(struct oracle *o, const char *name, double value)
{
	int i = 0;

	while (i < o->n_losses && strcmp(o->loss[i].name, name) != 0)
		i++;
	if (i == ORACLE_LOSSES) {
		oracle_fail(o, "more than %d losses", ORACLE_LOSSES);
		return;
	}
	if (i == o->n_losses)
		o->loss[o->n_losses++] = (struct oracle_loss){ name, 0 };
	o->loss[i].value += value;
}

/* --------------------------------------------------------------- shared formulas */

void oracle_product(const double *x, int64_t rows, int64_t in, const double *w, int64_t out,
		    double *y)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < in; i++)
			for (int64_t j = 0; j < out; j++)
				y[r * out + j] += x[r * in + i] * w[i * out + j];
}

double *oracle_linear(struct oracle *o, const char *name, const double *x, int64_t in, int64_t out,
		      bool bias)
{
	const int64_t rows = o->B * o->T;
	char weight[80], bias_name[80];
	const double *w, *b = NULL;
	double *y;

	snprintf(weight, sizeof(weight), "%s.weight", name);
	snprintf(bias_name, sizeof(bias_name), "%s.bias", name);
	w = oracle_weights(o, weight, in * out);
	if (bias)
		b = oracle_weights(o, bias_name, out);
	y = oracle_array(o, rows * out);
	if (!x || !y)
		return NULL;
	for (int64_t i = 0; b && i < rows * out; i++)
		y[i] = b[i % out];
	oracle_product(x, rows, in, w, out, y);
	return y;
}

void oracle_drop(struct oracle *o, const char *name, double *x, int64_t n)
{
	char full[120];
	struct rng_key key;
	uint32_t word[4];

	if (!x || !(o->dropout > 0))
		return;
	full_name(o, name, full);
	key = rng_subkey(rng_subkey(rng_key(1, full), 1), 0);
	for (int64_t i = 0; i < n; i++) {
		if (i % 4 == 0)
			rng_block(key, (uint64_t)i / 4, word);
		x[i] *= word[i % 4] * 0x1p-32 < o->dropout ? 0 : 1 / (1 - o->dropout);
	}
}

/* The pair (i, i + width/2) turns by t theta^(-2i/width). */
void oracle_rope(struct oracle *o, double *x, int64_t heads, int64_t stride, int64_t width)
{
	const int64_t half = width / 2;
	double theta;

	if (!x || !oracle_is(o, "POS", "rope"))
		return;
	theta = config_real(o->config, "ROPE_THETA");
	for (int64_t r = 0; r < o->B * o->T * heads; r++)
		for (int64_t i = 0; i < half; i++) {
			const double t = (double)(r / heads % o->T);
			const double angle = t * pow(theta, -2.0 * (double)i / (double)width);
			double *u = x + r * stride + i, *v = u + half;
			const double a = *u, b = *v;

			*u = a * cos(angle) - b * sin(angle);
			*v = b * cos(angle) + a * sin(angle);
		}
}

/* ------------------------------------------------------------------- passes */

static enum status run_pass(struct oracle *o, struct error *err)
{
	pool_free(&o->pool);
	o->n_losses = 0;
	o->next_constant = 0;
	o->failed = false;
	oracle_decode(o);
	if (!o->failed && config_check(o->config, &o->err) != OK)
		o->failed = true;
	return outcome(o, err);
}

enum status oracle_run(struct oracle *o, struct error *err)
{
	pool_free(&o->kept_pool);
	o->differs = false;
	o->from = -1;
	o->route_gap = 0;
	if (run_pass(o, err) != OK)
		return FAIL;
	for (int i = 0; i < o->n_weights; i++)
		if (!o->weights[i].used)
			return fail(err, "no part of the oracle reads '%s'", o->weights[i].name);
	return OK;
}

/* "h.2.attn.c_proj.weight" belongs to layer 2; other weights count as read before all layers. */
static int64_t layer_of(const char *name)
{
	return strncmp(name, "h.", 2) == 0 ? strtoll(name + 2, NULL, 10) : -1;
}

static void move(struct oracle_weight *w, const double *from, const double *direction, double by)
{
	for (int64_t i = 0; i < w->count; i++)
		w->values[i] = from[i] + by * direction[i];
}

enum status oracle_derivative(struct oracle *o, int index, const double *direction, double step,
			      double *derivative, struct error *err)
{
	struct oracle_weight *w = &o->weights[index];
	const size_t bytes = (size_t)w->count * sizeof(*w->values);
	double *from = malloc(bytes), sum = 0;
	struct oracle_loss above[ORACLE_LOSSES];
	enum status status;

	if (!from)
		return fail_memory(err, "oracle", bytes);
	memcpy(from, w->values, bytes);
	o->differs = true;
	o->from = layer_of(w->name);
	move(w, from, direction, step);
	status = run_pass(o, err);
	memcpy(above, o->loss, sizeof(above));
	move(w, from, direction, -step);
	if (status == OK)
		status = run_pass(o, err);
	/* Loss by loss: a small one does not drown in the rounding of a large one. */
	for (int i = 0; i < o->n_losses; i++)
		sum += above[i].value - o->loss[i].value;
	*derivative = sum / (2 * step);
	memcpy(w->values, from, bytes);
	free(from);
	return status;
}
