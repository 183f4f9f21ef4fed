#include "core/engine/graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/merge_linears.h"

/* ------------------------------------------------------------------ errors */

static void fail_out_of_memory(struct graph *g)
{
	if (!g->failed)
		fail_memory(&g->err, "graph", 0);
	g->failed = true;
}

void graph_fail(struct graph *g, const char *format, ...)
{
	va_list args;

	if (g->failed)
		return;
	va_start(args, format);
	vsnprintf(g->err.text, sizeof(g->err.text), format, args);
	va_end(args);
	g->failed = true;
}

static void append(char *text, size_t size, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + used, size - used, format, args);
	va_end(args);
}

enum status graph_misfit(struct graph *g, const struct node *n, const char *format, ...)
{
	char shape[TENSOR_SHAPE_TEXT];
	va_list args;
	char *text = g->err.text;
	const size_t size = sizeof(g->err.text);

	snprintf(text, size, "%s '%s': ", n->op->name, n->name);
	va_start(args, format);
	vsnprintf(text + strlen(text), size - strlen(text), format, args);
	va_end(args);
	append(text, size, "; inputs:");
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i])
			append(text, size, " %s %s", n->in[i]->name,
			       tensor_shape_text(n->in[i], shape));
	g->failed = true;
	return FAIL;
}

/* ---------------------------------------------------------------- creation */

enum status graph_create(struct graph **out, struct params *params, bool training,
			 struct error *err)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (!g)
		return fail_memory(err, "graph", sizeof(*g));
	g->params = params;
	g->type = params->type;
	g->training = training;
	g->scope = "";
	g->origin = NO_ORIGIN;
	*out = g;
	return OK;
}

void graph_destroy(struct graph *g)
{
	if (!g)
		return;
	pool_free(&g->pool);
	free(g->nodes);
	free(g->tensors);
	free(g->outputs);
	free(g);
}

void graph_continue(struct graph *g, struct params *state, int64_t capacity)
{
	assert(!g->training && g->n_nodes == 0 && state->type == g->type);
	g->state = state;
	g->capacity = capacity;
}

void graph_scope(struct graph *g, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = pool_vprintf(&g->pool, format, args);
	va_end(args);
	if (text)
		g->scope = text;
	else
		fail_out_of_memory(g);
}

void graph_variant(struct graph *g, const char *format, ...)
{
	va_list args;

	assert(!g->training && !g->state);
	va_start(args, format);
	g->variant = pool_vprintf(&g->pool, format, args);
	va_end(args);
	if (!g->variant)
		fail_out_of_memory(g);
}

void graph_scope_end(struct graph *g)
{
	g->scope = "";
}

void graph_origin(struct graph *g, int layer, int module)
{
	g->origin = (struct origin){ layer, module };
}

/* Room for one more element of a growing array, or NULL with the graph failed. */
static void *grow(struct graph *g, void *array, int n, int *capacity, size_t size)
{
	void *bigger;

	if (n < *capacity)
		return array;
	bigger = realloc(array, (size_t)(*capacity ? 2 * *capacity : 64) * size);
	if (!bigger) {
		fail_out_of_memory(g);
		return NULL;
	}
	*capacity = *capacity ? 2 * *capacity : 64;
	return bigger;
}

/* Sizes are positive and their product fits in an int64 and in memory. */
static bool valid_shape(struct graph *g, const char *name, int ndim, const int64_t *dim)
{
	int64_t count = 1;

	if (ndim < 1 || ndim > TENSOR_MAX_DIMS) {
		graph_fail(g, "tensor '%s' has %d dimensions; 1 to %d are possible", name, ndim,
			   TENSOR_MAX_DIMS);
		return false;
	}
	for (int i = 0; i < ndim; i++) {
		if (dim[i] < 1) {
			graph_fail(g, "tensor '%s': size %lld of dimension %d is not positive",
				   name, (long long)dim[i], i);
			return false;
		}
		if (__builtin_mul_overflow(count, dim[i], &count) || count > INT64_MAX / 16) {
			graph_fail(g,
				   "tensor '%s': its number of elements overflows at dimension %d "
				   "of size %lld",
				   name, i, (long long)dim[i]);
			return false;
		}
	}
	return true;
}

static struct tensor *new_tensor(struct graph *g, const char *name, enum tensor_kind kind,
				 enum dtype type, int ndim, const int64_t *dim)
{
	struct tensor **tensors;
	struct tensor *t;

	if (g->failed || !valid_shape(g, name, ndim, dim))
		return NULL;
	tensors = grow(g, g->tensors, g->n_tensors, &g->cap_tensors, sizeof(*tensors));
	if (!tensors)
		return NULL;
	g->tensors = tensors;
	t = pool_alloc(&g->pool, sizeof(*t));
	if (!t) {
		fail_out_of_memory(g);
		return NULL;
	}
	t->name = name;
	t->type = t->gradient_type = type;
	t->kind = kind;
	t->ndim = ndim;
	memcpy(t->dim, dim, (size_t)ndim * sizeof(*dim));
	t->row = t->pitch = dim[ndim - 1];
	t->id = g->n_tensors;
	t->param = -1;
	g->tensors[g->n_tensors++] = t;
	return t;
}

static const char *scoped(struct graph *g, const char *name)
{
	const char *full = pool_printf(&g->pool, "%s%s", g->scope, name);

	if (!full)
		fail_out_of_memory(g);
	return full;
}

static const char *variant_of(const struct graph *g)
{
	return g->variant ? g->variant : "";
}

/* The name of what variants have for themselves. */
static const char *own_name(struct graph *g, const char *name)
{
	const char *full = pool_printf(&g->pool, "%s%s%s", variant_of(g), g->scope, name);

	if (!full)
		fail_out_of_memory(g);
	return full;
}

struct tensor *graph_param(struct graph *g, const char *name, const struct param_init *init,
			   int ndim, const int64_t *dim)
{
	const char *full = scoped(g, name);
	const int known = g->params->n;
	struct error err;
	struct tensor *t;
	int index;

	if (g->failed || !valid_shape(g, full, ndim, dim))
		return NULL;
	if (params_name(g->params, full, init, ndim, dim, &index, &err) != OK) {
		graph_fail(g, "%s", err.text);
		return NULL;
	}
	if (index == known)
		g->params->list[index].origin = g->origin;
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->kind == TENSOR_PARAM && g->tensors[i]->param == index)
			return g->tensors[i];
	t = new_tensor(g, full, TENSOR_PARAM, g->type, ndim, dim);
	if (t) {
		t->param = index;
		t->needs_grad = true;
	}
	return t;
}

/* A tensor that no node writes; variants of a computation share it. */
static struct tensor *graph_leaf(struct graph *g, const char *name, enum tensor_kind kind,
				 enum dtype type, int ndim, const int64_t *dim)
{
	const char *full = scoped(g, name);

	for (int i = 0; i < g->n_tensors && g->variant && !g->failed; i++)
		if (g->tensors[i]->kind == kind && strcmp(g->tensors[i]->name, full) == 0)
			return g->tensors[i];
	return g->failed ? NULL : new_tensor(g, full, kind, type, ndim, dim);
}

struct tensor *graph_input(struct graph *g, const char *name, enum dtype type, int ndim,
			   const int64_t *dim)
{
	return graph_leaf(g, name, TENSOR_INPUT, type, ndim, dim);
}

/* Integers, float or double. */
static void set_element(void *data, enum dtype type, int64_t i, double value)
{
	if (type == I32)
		((int32_t *)data)[i] = (int32_t)value;
	else if (type == F32)
		((float *)data)[i] = (float)value;
	else
		((double *)data)[i] = value;
}

struct tensor *graph_constant(struct graph *g, const char *name, enum dtype type, int ndim,
			      const int64_t *dim, const double *values)
{
	struct tensor *t = graph_leaf(g, name, TENSOR_CONSTANT, type, ndim, dim);
	void *data;

	if (!t || t->values)
		return t;
	data = pool_alloc(&g->pool, tensor_bytes(t));
	if (!data) {
		fail_out_of_memory(g);
		return NULL;
	}
	for (int64_t i = 0; i < tensor_count(t); i++)
		set_element(data, type, i, values[i]);
	t->values = data;
	return t;
}

/* ------------------------------------------------------------------- views */

static struct tensor *new_view(struct graph *g, struct tensor *t, const char *suffix, int ndim,
			       const int64_t *dim)
{
	const char *name = pool_printf(&g->pool, "%s.%s%d", t->name, suffix, g->n_tensors);
	struct tensor *view;

	if (!name) {
		fail_out_of_memory(g);
		return NULL;
	}
	view = new_tensor(g, name, TENSOR_VIEW, t->type, ndim, dim);
	if (!view)
		return NULL;
	view->base = t->base ? t->base : t;
	view->offset = t->offset;
	view->row = t->row;
	view->pitch = t->pitch;
	view->needs_grad = t->needs_grad;
	return view;
}

static bool same_view(const struct tensor *a, const struct tensor *b)
{
	return a->base == b->base && a->offset == b->offset && a->row == b->row &&
	       a->pitch == b->pitch && a->needs_grad == b->needs_grad && a->ndim == b->ndim &&
	       memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof(*a->dim)) == 0;
}

/* The newest tensor, or the same view of an earlier variant instead. */
static struct tensor *share_view(struct graph *g, struct tensor *view)
{
	for (int i = 0; i < view->id && g->variant; i++)
		if (g->tensors[i]->base && same_view(g->tensors[i], view)) {
			g->n_tensors--;
			return g->tensors[i];
		}
	return view;
}

struct tensor *graph_reshape(struct graph *g, struct tensor *t, int ndim, const int64_t *dim)
{
	char shape[TENSOR_SHAPE_TEXT], wanted[TENSOR_SHAPE_TEXT];
	struct tensor *view;
	int64_t tail = 1;

	if (g->failed || !t)
		return NULL;
	view = new_view(g, t, "view", ndim, dim);
	if (!view)
		return NULL;
	if (tensor_count(view) != tensor_count(t)) {
		graph_fail(g, "'%s' %s cannot be seen as %s: the numbers of elements differ",
			   t->name, tensor_shape_text(t, shape), tensor_shape_text(view, wanted));
		return NULL;
	}
	if (tensor_contiguous(t)) {
		view->row = view->pitch = dim[ndim - 1];
		return share_view(g, view);
	}
	/* Rows of a slice stay rows: some trailing dimensions must make up exactly one row. */
	for (int i = ndim - 1; i >= 0 && tail < t->row; i--)
		tail *= dim[i];
	if (tail != t->row) {
		graph_fail(g,
			   "'%s' %s is a slice with rows of %lld elements and cannot be seen as %s",
			   t->name, tensor_shape_text(t, shape), (long long)t->row,
			   tensor_shape_text(view, wanted));
		return NULL;
	}
	return share_view(g, view);
}

struct tensor *graph_slice(struct graph *g, struct tensor *t, int64_t first, int64_t width)
{
	char shape[TENSOR_SHAPE_TEXT];
	int64_t dim[TENSOR_MAX_DIMS];
	struct tensor *view;

	if (g->failed || !t)
		return NULL;
	if (first < 0 || width < 1 || first > tensor_dim(t, -1) - width ||
	    t->row != tensor_dim(t, -1)) {
		graph_fail(g, "channels %lld to %lld cannot be cut out of '%s' %s",
			   (long long)first, (long long)(first + width - 1), t->name,
			   tensor_shape_text(t, shape));
		return NULL;
	}
	memcpy(dim, t->dim, sizeof(dim));
	dim[t->ndim - 1] = width;
	view = new_view(g, t, "slice", t->ndim, dim);
	if (!view)
		return NULL;
	view->offset += first;
	view->row = width;
	return share_view(g, view);
}

struct tensor *graph_detach(struct graph *g, struct tensor *t)
{
	struct tensor *view;

	if (g->failed || !t)
		return NULL;
	view = new_view(g, t, "detached", t->ndim, t->dim);
	if (!view)
		return NULL;
	view->needs_grad = false;
	return share_view(g, view);
}

/* ------------------------------------------------------------------- nodes */

static bool check_inputs(struct graph *g, const struct node *n)
{
	if (n->n_in < n->op->min_inputs || n->n_in > n->op->max_inputs) {
		graph_misfit(g, n, "%d inputs, %d to %d are possible", n->n_in, n->op->min_inputs,
			     n->op->max_inputs);
		return false;
	}
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && !op_takes(n->op, i, n->in[i])) {
			graph_misfit(g, n, "input %d is a slice, which this op cannot read", i);
			return false;
		}
	return true;
}

/*
 * A required input that is NULL comes from a builder that failed before; the
 * first error is already noted.
 */
static bool inputs_present(struct graph *g, const struct op *op, int n_in, struct tensor *const *in)
{
	for (int i = 0; i < n_in && i < op->min_inputs; i++)
		if (!in[i] && !(op->optional_in & BIT(i))) {
			graph_fail(g, "%s: required input %d is missing", op->name, i);
			return false;
		}
	return true;
}

/* An earlier node that computes the same; NULL: there is none. */
static struct node *find_same(const struct graph *g, const struct node *n)
{
	for (int i = 0; i < g->n_nodes; i++) {
		struct node *m = g->nodes[i];

		if (m->id == n->id && m->n_in == n->n_in &&
		    memcmp(m->in, n->in, (size_t)n->n_in * sizeof(*n->in)) == 0 &&
		    memcmp(m->attr, n->attr, n->op->attr_size) == 0)
			return m;
	}
	return NULL;
}

struct node *graph_node(struct graph *g, enum op_id id, const char *name, const void *attr,
			int n_in, struct tensor *const *in)
{
	const struct op *op = op_table[id];
	struct node **nodes, *n, *same;
	void *copy;

	if (g->failed || !inputs_present(g, op, n_in, in))
		return NULL;
	assert(n_in <= OP_MAX_INPUTS);
	nodes = grow(g, g->nodes, g->n_nodes, &g->cap_nodes, sizeof(*nodes));
	if (!nodes)
		return NULL;
	g->nodes = nodes;
	n = pool_alloc(&g->pool, sizeof(*n));
	copy = pool_alloc(&g->pool, op->attr_size + 1);
	if (!n || !copy) {
		fail_out_of_memory(g);
		return NULL;
	}
	n->op = op;
	n->id = id;
	n->index = g->n_nodes;
	n->name = own_name(g, name);
	n->origin = g->origin;
	n->attr = copy;
	n->n_in = n_in;
	memcpy(n->in, in, (size_t)n_in * sizeof(*in));
	if (op->attr_size)
		memcpy(copy, attr, op->attr_size);
	same = g->variant ? find_same(g, n) : NULL;
	if (same)
		return same;
	if (g->failed || !check_inputs(g, n) || op->infer(g, n) != OK)
		return NULL;
	g->nodes[g->n_nodes++] = n;
	return n;
}

static bool any_input_needs_grad(const struct node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && n->in[i]->needs_grad && !(n->op->constant_in & BIT(i)))
			return true;
	return false;
}

static struct tensor *add_output(struct graph *g, struct node *n, const char *suffix,
				 enum dtype type, int ndim, const int64_t *dim)
{
	const char *name = n->name;
	struct tensor *t;

	assert(n->n_out < OP_MAX_OUTPUTS);
	if (suffix) {
		name = pool_printf(&g->pool, "%s.%s", n->name, suffix);
		if (!name) {
			fail_out_of_memory(g);
			return NULL;
		}
	}
	t = new_tensor(g, name, TENSOR_ACTIVATION, type, ndim, dim);
	if (!t)
		return NULL;
	t->producer = n;
	n->out[n->n_out++] = t;
	return t;
}

enum status graph_out(struct graph *g, struct node *n, const char *suffix, enum dtype type,
		      int ndim, const int64_t *dim)
{
	struct tensor *t = add_output(g, n, suffix, type, ndim, dim);

	if (!t)
		return FAIL;
	t->needs_grad = !n->op->no_gradient && any_input_needs_grad(n);
	return OK;
}

enum status graph_out_like(struct graph *g, struct node *n, const char *suffix,
			   const struct tensor *like)
{
	return graph_out(g, n, suffix, like->type, like->ndim, like->dim);
}

enum status graph_out_constant(struct graph *g, struct node *n, const char *suffix, enum dtype type,
			       int ndim, const int64_t *dim)
{
	return add_output(g, n, suffix, type, ndim, dim) ? OK : FAIL;
}

enum status graph_out_state(struct graph *g, struct node *n, const char *suffix, int ndim,
			    const int64_t *dim)
{
	const struct param_init zeros = { .kind = INIT_CONSTANT };
	struct tensor *t = add_output(g, n, suffix, g->type, ndim, dim);
	struct error err;

	if (!t)
		return FAIL;
	t->kind = TENSOR_STATE;
	if (params_name(g->state, t->name, &zeros, ndim, dim, &t->param, &err) != OK)
		return graph_misfit(g, n, "%s", err.text);
	return OK;
}

/* ----------------------------------------------------------------- outputs */

static struct graph_output *add_graph_output(struct graph *g, const char *name, struct tensor *t)
{
	struct graph_output *outputs;

	if (g->failed || !t)
		return NULL;
	outputs = grow(g, g->outputs, g->n_outputs, &g->cap_outputs, sizeof(*outputs));
	if (!outputs)
		return NULL;
	g->outputs = outputs;
	name = own_name(g, name);
	if (!name)
		return NULL;
	g->outputs[g->n_outputs] = (struct graph_output){
		.tensor = t,
		.name = name,
		.plain_name = name + strlen(variant_of(g)) + strlen(g->scope),
		.origin = g->origin,
	};
	return &g->outputs[g->n_outputs++];
}

void graph_output(struct graph *g, const char *name, struct tensor *t)
{
	add_graph_output(g, name, t);
}

void graph_loss(struct graph *g, const char *name, struct tensor *t, double weight)
{
	struct graph_output *output = add_graph_output(g, name, t);

	if (!output)
		return;
	if (!t->producer || !t->producer->op->loss || tensor_count(t) != 1) {
		graph_fail(g, "'%s' cannot be a loss: it is no scalar made by a loss op", t->name);
		return;
	}
	output->is_loss = true;
	output->loss_weight = weight;
}

void graph_seeded_output(struct graph *g, const char *name, struct tensor *t)
{
	struct graph_output *output = add_graph_output(g, name, t);

	if (output)
		output->seeded = true;
}

const struct graph_output *graph_find_output(const struct graph *g, const char *name)
{
	for (int i = 0; i < g->n_outputs; i++)
		if (strcmp(g->outputs[i].name, name) == 0)
			return &g->outputs[i];
	return NULL;
}

/* ---------------------------------------------------------------- verifier */

static int compare_names(const void *a, const void *b)
{
	const struct tensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static enum status check_names(const struct graph *g, struct error *err)
{
	const struct tensor **sorted = malloc((size_t)(g->n_tensors + 1) * sizeof(*sorted));
	enum status status = OK;

	if (!sorted)
		return fail_memory(err, "graph verifier", (unsigned)g->n_tensors);
	for (int i = 0; i < g->n_tensors; i++)
		sorted[i] = g->tensors[i];
	qsort(sorted, (size_t)g->n_tensors, sizeof(*sorted), compare_names);
	for (int i = 1; i < g->n_tensors && status == OK; i++)
		if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
			status = fail(err, "two tensors are called '%s'", sorted[i]->name);
	free(sorted);
	return status;
}

static enum status check_node(const struct graph *g, const struct node *n, struct error *err)
{
	for (int i = 0; i < n->n_in; i++) {
		const struct tensor *root = n->in[i] ? tensor_root(n->in[i]) : NULL;

		if (!root)
			continue;
		if (root->id >= g->n_tensors || g->tensors[root->id] != root)
			return fail(err, "%s '%s' reads '%s', a tensor of another graph",
				    n->op->name, n->name, root->name);
		if (root->producer && root->producer->index >= n->index)
			return fail(err, "%s '%s' reads '%s' before it is written", n->op->name,
				    n->name, root->name);
		if (n->in[i]->type != I32 && n->in[i]->type != g->type)
			return fail(err, "%s '%s': input '%s' is %s in a graph of %s", n->op->name,
				    n->name, n->in[i]->name, dtype_name(n->in[i]->type),
				    dtype_name(g->type));
	}
	return OK;
}

static enum status check_view(const struct tensor *t, struct error *err)
{
	int64_t rows = tensor_count(t) / t->row;
	int64_t end = t->offset + (rows - 1) * t->pitch + t->row;

	if (t->offset < 0 || end > tensor_count(t->base) || t->base->base)
		return fail(err, "view '%s' reaches outside of '%s'", t->name, t->base->name);
	return OK;
}

void graph_merge_linears(struct graph *g)
{
	g->merges_linears = true;
}

enum status graph_finish(struct graph *g, struct error *err)
{
	g->variant = NULL;
	graph_scope_end(g);
	if (g->merges_linears && !g->failed)
		merge_linears(g);
	if (g->failed) {
		*err = g->err;
		return FAIL;
	}
	if (g->n_outputs == 0)
		return fail(err, "the graph has no output");
	if (check_names(g, err) != OK)
		return FAIL;
	for (int i = 0; i < g->n_nodes; i++)
		if (check_node(g, g->nodes[i], err) != OK)
			return FAIL;
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->base && check_view(g->tensors[i], err) != OK)
			return FAIL;
	return OK;
}

/* -------------------------------------------------------------------- dump */

static const char *const kind_names[] = {
	[TENSOR_PARAM] = "param",	[TENSOR_INPUT] = "input",
	[TENSOR_CONSTANT] = "constant", [TENSOR_ACTIVATION] = "activation",
	[TENSOR_STATE] = "state",	[TENSOR_VIEW] = "view",
	[TENSOR_GRADIENT] = "gradient", [TENSOR_SCRATCH] = "scratch",
};

static void dump_tensor_json(const struct tensor *t, FILE *file)
{
	fprintf(file, "{\"id\":%d,\"name\":\"%s\",\"kind\":\"%s\",\"type\":\"%s\",\"shape\":[",
		t->id, t->name, kind_names[t->kind], dtype_name(t->type));
	for (int i = 0; i < t->ndim; i++)
		fprintf(file, "%s%lld", i ? "," : "", (long long)t->dim[i]);
	fprintf(file, "]");
	if (t->base)
		fprintf(file, ",\"base\":%d,\"offset\":%lld,\"row\":%lld,\"pitch\":%lld",
			t->base->id, (long long)t->offset, (long long)t->row, (long long)t->pitch);
	fprintf(file, "}");
}

static void dump_ids_json(const char *key, int n, struct tensor *const *list, FILE *file)
{
	fprintf(file, "\"%s\":[", key);
	for (int i = 0; i < n; i++)
		if (list[i])
			fprintf(file, "%s%d", i ? "," : "", list[i]->id);
		else
			fprintf(file, "%snull", i ? "," : "");
	fprintf(file, "]");
}

void graph_dump_json(const struct graph *g, FILE *file)
{
	fprintf(file, "{\"tensors\":[\n");
	for (int i = 0; i < g->n_tensors; i++) {
		dump_tensor_json(g->tensors[i], file);
		fprintf(file, i + 1 < g->n_tensors ? ",\n" : "\n");
	}
	fprintf(file, "],\"nodes\":[\n");
	for (int i = 0; i < g->n_nodes; i++) {
		const struct node *n = g->nodes[i];

		fprintf(file, "{\"op\":\"%s\",\"name\":\"%s\",", n->op->name, n->name);
		dump_ids_json("in", n->n_in, n->in, file);
		fprintf(file, ",");
		dump_ids_json("out", n->n_out, n->out, file);
		fprintf(file, i + 1 < g->n_nodes ? "},\n" : "}\n");
	}
	fprintf(file, "],\"outputs\":[\n");
	for (int i = 0; i < g->n_outputs; i++)
		fprintf(file, "{\"name\":\"%s\",\"tensor\":%d}%s\n", g->outputs[i].name,
			g->outputs[i].tensor->id, i + 1 < g->n_outputs ? "," : "");
	fprintf(file, "]}\n");
}
