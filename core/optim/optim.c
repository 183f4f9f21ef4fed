#include "core/optim/optim.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/util/config.h"
#include "core/optim/type.h"

const char *const optim_names[] = { [OPTIM_ADAMW] = "adamw",
				    [OPTIM_ADAMWSPAM] = "adamwspam",
				    [OPTIM_SGD] = "sgd",
				    [OPTIM_MUON] = "muon",
				    NULL };

const char *const muon_adjust_names[] = {
	[MUON_ORIGINAL] = "original", [MUON_MATCH_RMS_ADAMW] = "match_rms_adamw", NULL
};

static const struct optim_type *const optim_types[] = {
	[OPTIM_ADAMW] = &optim_adamw,
	[OPTIM_ADAMWSPAM] = &optim_adamwspam,
	[OPTIM_SGD] = &optim_sgd,
	[OPTIM_MUON] = &optim_muon,
};

/* --------------------------------------------------------------- configuration */

static void read_spam(struct config *c, struct optim_options *o)
{
	o->spam.theta = config_real(c, "SPAM_THETA");
	o->spam.spike = config_real(c, "SPAM_SPIKE");
	o->spam.interval = config_int(c, "SPAM_INTERVAL");
	o->spam.warmup = config_int(c, "SPAM_WARMUP");
	o->spam.clip_elements = config_bool(c, "SPAM_CLIP_ELEMENTS");
}

static void read_muon(struct config *c, struct optim_options *o)
{
	o->muon.lr_ratio = config_real(c, "MUON_LEARNING_RATE") / config_real(c, "LEARNING_RATE");
	o->muon.momentum = config_real(c, "MUON_MOMENTUM");
	o->muon.nesterov = config_bool(c, "MUON_NESTEROV");
	o->muon.steps = (int)config_int(c, "MUON_STEPS");
	o->muon.eps = config_real(c, "MUON_EPS");
	o->muon.adjust = (enum muon_adjust)config_choice(c, "MUON_ADJUST", muon_adjust_names);
}

/* prune_configured() reads the rest.  Records from before it was a setting lack it. */
static void read_prune(struct config *c, struct optim_options *o)
{
	const char *method = config_raw(c, "PRUNE") ? config_text(c, "PRUNE") : NULL;

	o->prune.on = method && strcmp(method, "none") != 0;
	o->prune.movement = method && strcmp(method, "movement") == 0;
}

struct optim_options optim_configured(struct config *c)
{
	static const char *const groups[] = { "matrices", "all", NULL };
	struct optim_options o = {
		.kind = (enum optim_kind)config_choice(c, "OPTIMIZER", optim_names),
		.weight_decay = config_real(c, "WEIGHT_DECAY"),
		.decay_all = config_choice(c, "DECAY_GROUP", groups) == 1,
		.clip = config_real(c, "GRAD_CLIP"),
	};

	read_prune(c, &o);
	if (o.kind == OPTIM_SGD) {
		o.sgd.momentum = config_real(c, "SGD_MOMENTUM");
		return o;
	}
	o.beta1 = config_real(c, "BETA1");
	o.beta2 = config_real(c, "BETA2");
	o.eps = config_real(c, "OPTIMIZER_EPS");
	if (o.kind == OPTIM_ADAMWSPAM)
		read_spam(c, &o);
	if (o.kind == OPTIM_MUON)
		read_muon(c, &o);
	return o;
}

/* --------------------------------------------------------------- creation */

static bool is_elementwise(const struct optim_type *type, const struct param *p)
{
	return !type->elementwise || type->elementwise(p);
}

bool optim_elementwise(enum optim_kind kind, const struct param *p)
{
	return is_elementwise(optim_types[kind], p);
}

bool optim_may_prune(const struct param *p)
{
	return p->role == PARAM_MATRIX && p->origin.layer >= 0;
}

/* Every parameter has m; v and vmax, where the optimizer has them, are kept element by element. */
int optim_states(const struct optim_options *options, const struct param *p,
		 const char *names[OPTIM_STATES])
{
	const struct optim_type *type = optim_types[options->kind];
	const bool elementwise = is_elementwise(type, p), prunes = optim_may_prune(p);
	const struct {
		const char *name;
		bool is_kept;
	} states[OPTIM_STATES] = {
		{ "m", true },
		{ "v", elementwise && type->has_v },
		{ "vmax", elementwise && type->has_vmax },
		{ "pruned", prunes && options->prune.on },
		{ "movement", prunes && options->prune.movement },
	};
	int n = 0;

	for (int i = 0; i < OPTIM_STATES; i++) {
		if (names && states[i].is_kept)
			names[n] = states[i].name;
		n += states[i].is_kept;
	}
	return n;
}

/* Elements up to the next parameter: its own and the padding after them. */
static int64_t extent(const struct params *p, int i)
{
	return (i + 1 < p->n ? p->list[i + 1].offset : p->total) - p->list[i].offset;
}

/* Lengthen the last segment, or begin another. */
static void add_segment(struct optim_segments *s, const struct optim_segment *more)
{
	struct optim_segment *last = s->n ? &s->list[s->n - 1] : NULL;

	if (last && last->offset + last->count == more->offset && last->decays == more->decays)
		last->count += more->count;
	else
		s->list[s->n++] = *more;
}

static bool is_updated(const struct optimizer *o, const struct param *p)
{
	return is_elementwise(o->type, p);
}

static bool is_prunable(const struct optimizer *o, const struct param *p)
{
	return o->options.prune.on && optim_may_prune(p);
}

/* The parameters for which this holds. */
static enum status find_segments(struct optimizer *o, struct optim_segments *s,
				 bool (*holds)(const struct optimizer *, const struct param *),
				 struct error *err)
{
	const struct params *p = o->params;
	const size_t bytes = (size_t)p->n * sizeof(*s->list);

	s->list = pool_alloc(&o->pool, bytes);
	if (!s->list)
		return fail_memory(err, "optimizer", bytes);
	for (int i = 0; i < p->n; i++) {
		const struct optim_segment segment = {
			.offset = p->list[i].offset,
			.count = extent(p, i),
			.second = s->total,
			.decays = o->options.decay_all || p->list[i].role == PARAM_MATRIX,
		};

		if (!holds(o, &p->list[i]))
			continue;
		add_segment(s, &segment);
		s->total += segment.count;
	}
	return OK;
}

static enum status find_all_segments(struct optimizer *o, struct error *err)
{
	if (find_segments(o, &o->segments, is_updated, err) != OK)
		return FAIL;
	return find_segments(o, &o->prunable, is_prunable, err);
}

static bool has_matrices_of(const struct optim_matrices *m, const struct param *p)
{
	return m->rows == p->dim[p->ndim - 2] && m->columns == p->dim[p->ndim - 1];
}

/* All matrices, and as many shapes as there can be: each parameter may have its own. */
static void count_matrices(struct optimizer *o)
{
	const struct params *p = o->params;

	for (int i = 0; i < p->n; i++)
		if (!is_elementwise(o->type, &p->list[i])) {
			const int64_t *dim = p->list[i].dim + p->list[i].ndim - 2;

			o->n_matrices += (int)(p->list[i].count / (dim[0] * dim[1]));
			o->n_shapes++;
		}
}

/* The matrices of all parameters that have the shape of this one. */
static struct optim_matrices matrices_like(struct optimizer *o, int index)
{
	const struct params *p = o->params;
	const int64_t *dim = p->list[index].dim + p->list[index].ndim - 2;
	struct optim_matrices m = { .rows = dim[0], .columns = dim[1] };
	int64_t *offsets = o->matrices + o->n_matrices;

	m.offsets = offsets;
	for (int i = index; i < p->n; i++) {
		if (is_elementwise(o->type, &p->list[i]) || !has_matrices_of(&m, &p->list[i]))
			continue;
		for (int64_t at = 0; at < p->list[i].count; at += m.rows * m.columns)
			offsets[m.n++] = p->list[i].offset + at;
	}
	return m;
}

static bool is_new_shape(const struct optimizer *o, const struct param *p)
{
	for (int i = 0; i < o->n_shapes; i++)
		if (has_matrices_of(&o->shapes[i], p))
			return false;
	return true;
}

static enum status find_matrices(struct optimizer *o, struct error *err)
{
	const struct params *p = o->params;

	count_matrices(o);
	if (!o->n_matrices)
		return OK;
	o->shapes = pool_alloc(&o->pool, (size_t)o->n_shapes * sizeof(*o->shapes));
	o->matrices = pool_alloc(&o->pool, (size_t)o->n_matrices * sizeof(*o->matrices));
	if (!o->shapes || !o->matrices)
		return fail_memory(err, "optimizer", (size_t)o->n_matrices * sizeof(*o->matrices));
	o->n_shapes = o->n_matrices = 0;
	for (int i = 0; i < p->n; i++)
		if (!is_elementwise(o->type, &p->list[i]) && is_new_shape(o, &p->list[i])) {
			o->shapes[o->n_shapes] = matrices_like(o, i);
			o->n_matrices += o->shapes[o->n_shapes++].n;
		}
	return OK;
}

static size_t largest_workspace(const struct optimizer *o)
{
	size_t largest = 0;

	for (int i = 0; i < o->n_shapes && o->type->workspace; i++) {
		size_t bytes = o->type->workspace(o, &o->shapes[i]);

		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

/* The blocks by size; 0: there is none. */
enum {
	BLOCK_M,
	BLOCK_V,
	BLOCK_VMAX,
	BLOCK_PRUNED,
	BLOCK_MOVEMENT,
	BLOCK_WORK,
	BLOCK_STATE,
	BLOCK_SEGMENTS,
	BLOCK_PRUNABLE,
	BLOCK_MATRICES
};

static void block_sizes(const struct optimizer *o, size_t bytes[OPTIM_BLOCKS])
{
	const size_t size = dtype_size(o->params->type);
	const size_t second = (size_t)o->segments.total * size;
	const size_t prunable = (size_t)o->prunable.total * size;

	bytes[BLOCK_M] = (size_t)o->params->total * size;
	bytes[BLOCK_V] = o->type->has_v ? second : 0;
	bytes[BLOCK_VMAX] = o->type->has_vmax ? second : 0;
	bytes[BLOCK_PRUNED] = prunable;
	bytes[BLOCK_MOVEMENT] = o->options.prune.movement ? prunable : 0;
	bytes[BLOCK_WORK] = largest_workspace(o);
	bytes[BLOCK_STATE] = sizeof(*o->state);
	bytes[BLOCK_SEGMENTS] = (size_t)o->segments.n * sizeof(*o->segments.list);
	bytes[BLOCK_PRUNABLE] = (size_t)o->prunable.n * sizeof(*o->prunable.list);
	bytes[BLOCK_MATRICES] = (size_t)o->n_matrices * sizeof(*o->matrices);
}

static enum status allocate(struct optimizer *o, void **memory, size_t bytes, struct error *err)
{
	if (!bytes)
		return OK;
	*memory = o->backend->alloc(o->backend, bytes);
	return *memory ? OK : fail_alloc(o->backend, "optimizer", bytes, err);
}

static void upload_segments(const struct backend *b, const struct optim_segments *s)
{
	if (s->n)
		b->upload(b, (void *)(uintptr_t)s->device, s->list,
			  (size_t)s->n * sizeof(*s->list));
}

/* Where the segments and matrices lie, in device memory. */
static void upload_places(struct optimizer *o)
{
	const struct backend *b = o->backend;
	int64_t *at = o->device_matrices;

	upload_segments(b, &o->segments);
	upload_segments(b, &o->prunable);
	if (o->n_matrices)
		b->upload(b, at, o->matrices, (size_t)o->n_matrices * sizeof(*at));
	for (int i = 0; i < o->n_shapes; i++) {
		o->shapes[i].device = at;
		at += o->shapes[i].n;
	}
}

static enum status allocate_requests(struct optimizer *o, struct error *err)
{
	const size_t bytes = (size_t)backend_replicas(o->backend) * sizeof(*o->requests);

	o->requests = pool_alloc(&o->pool, bytes);
	return o->requests ? OK : fail_memory(err, "optimizer", bytes);
}

static enum status allocate_blocks(struct optimizer *o, struct error *err)
{
	struct optim_blocks *blocks = &o->blocks;
	void *state = NULL, *segments = NULL, *prunable = NULL, *matrices = NULL;
	size_t bytes[OPTIM_BLOCKS];
	enum status status = OK;

	block_sizes(o, bytes);
	o->work_bytes = bytes[BLOCK_WORK];
	blocks->p = o->params->data;
	blocks->g = o->params->grad;
	if (allocate(o, &blocks->m, bytes[BLOCK_M], err) ||
	    allocate(o, &blocks->v, bytes[BLOCK_V], err) ||
	    allocate(o, &blocks->vmax, bytes[BLOCK_VMAX], err) ||
	    allocate(o, &blocks->pruned, bytes[BLOCK_PRUNED], err) ||
	    allocate(o, &blocks->movement, bytes[BLOCK_MOVEMENT], err) ||
	    allocate(o, &o->work, bytes[BLOCK_WORK], err) ||
	    allocate(o, &state, bytes[BLOCK_STATE], err) ||
	    allocate(o, &segments, bytes[BLOCK_SEGMENTS], err) ||
	    allocate(o, &prunable, bytes[BLOCK_PRUNABLE], err) ||
	    allocate(o, &matrices, bytes[BLOCK_MATRICES], err))
		status = FAIL;
	o->state = state;
	o->segments.device = segments;
	o->prunable.device = prunable;
	o->device_matrices = matrices;
	if (status == OK)
		upload_places(o);
	return status;
}

static struct optim_rule rule_of(const struct optim_options *o)
{
	const bool spam = o->kind == OPTIM_ADAMWSPAM;

	return (struct optim_rule){
		.clip = o->clip,
		.weight_decay = o->weight_decay,
		.beta1 = o->beta1,
		.beta2 = o->beta2,
		.spam = spam,
		.clip_elements = spam && o->spam.clip_elements,
		.theta = o->spam.theta,
		.spike = o->spam.spike,
		.interval = o->spam.interval,
		.warmup = o->spam.warmup,
	};
}

static enum status add_tensor(struct optimizer *o, const char *block_name, void *block,
			      int64_t offset, const struct param *p, struct error *err)
{
	struct optim_tensor *t = &o->tensors[o->tensor_count++];

	t->name = pool_printf(&o->pool, "optim.%s.%s", block_name, p->name);
	t->param = p;
	t->data = (char *)block + (size_t)offset * dtype_size(o->params->type);
	return t->name ? OK : fail_memory(err, p->name, strlen(p->name));
}

static enum status add_pruning(struct optimizer *o, int64_t offset, const struct param *p,
			       struct error *err)
{
	if (add_tensor(o, "pruned", o->blocks.pruned, offset, p, err) != OK)
		return FAIL;
	return o->blocks.movement ? add_tensor(o, "movement", o->blocks.movement, offset, p, err)
				  : OK;
}

/* As optim_states() says. */
static enum status list_tensors(struct optimizer *o, struct error *err)
{
	const struct params *p = o->params;
	const size_t bytes = OPTIM_STATES * (size_t)p->n * sizeof(*o->tensors);
	int64_t second = 0, prunable = 0;

	o->tensors = pool_alloc(&o->pool, bytes);
	if (!o->tensors)
		return fail_memory(err, "optimizer", bytes);
	for (int i = 0; i < p->n; i++) {
		if (add_tensor(o, "m", o->blocks.m, p->list[i].offset, &p->list[i], err))
			return FAIL;
		if (is_updated(o, &p->list[i])) {
			if ((o->blocks.v &&
			     add_tensor(o, "v", o->blocks.v, second, &p->list[i], err)) ||
			    (o->blocks.vmax &&
			     add_tensor(o, "vmax", o->blocks.vmax, second, &p->list[i], err)))
				return FAIL;
			second += extent(p, i);
		}
		if (is_prunable(o, &p->list[i])) {
			if (add_pruning(o, prunable, &p->list[i], err) != OK)
				return FAIL;
			prunable += extent(p, i);
		}
	}
	return OK;
}

/* Without memory. */
static struct optimizer optimizer_of(const struct optim_options *options, struct params *params,
				     const struct backend *backend)
{
	return (struct optimizer){
		.type = optim_types[options->kind],
		.options = *options,
		.rule = rule_of(options),
		.params = params,
		.backend = backend,
		.kernels = backend->optim(params->type),
	};
}

enum status optim_measure(const struct optim_options *options, struct params *params,
			  const struct backend *backend, size_t bytes[OPTIM_BLOCKS],
			  struct error *err)
{
	struct optimizer o = optimizer_of(options, params, backend);
	enum status status = FAIL;

	if (find_all_segments(&o, err) == OK && find_matrices(&o, err) == OK) {
		block_sizes(&o, bytes);
		status = OK;
	}
	pool_free(&o.pool);
	return status;
}

enum status optimizer_create(struct optimizer **out, const struct optim_options *options,
			     struct params *params, struct error *err)
{
	struct optimizer *o = calloc(1, sizeof(*o));

	if (!o)
		return fail_memory(err, "optimizer", sizeof(*o));
	assert(params->data && params->grad);
	*o = optimizer_of(options, params, params->backend);
	if (find_all_segments(o, err) || find_matrices(o, err) || allocate_requests(o, err) ||
	    allocate_blocks(o, err) || list_tensors(o, err)) {
		optimizer_destroy(o);
		return FAIL;
	}
	*out = o;
	return OK;
}

void optimizer_destroy(struct optimizer *o)
{
	if (!o)
		return;
	replay_reset(&o->replay, o->backend);
	o->backend->release(o->backend, o->device_matrices);
	o->backend->release(o->backend, (void *)(uintptr_t)o->segments.device);
	o->backend->release(o->backend, (void *)(uintptr_t)o->prunable.device);
	o->backend->release(o->backend, o->state);
	o->backend->release(o->backend, o->squares);
	o->backend->release(o->backend, o->work);
	o->backend->release(o->backend, o->blocks.movement);
	o->backend->release(o->backend, o->blocks.pruned);
	o->backend->release(o->backend, o->blocks.vmax);
	o->backend->release(o->backend, o->blocks.v);
	o->backend->release(o->backend, o->blocks.m);
	pool_free(&o->pool);
	free(o);
}

/* --------------------------------------------------------------- use */

static struct optim_buffer gradient_of(const struct params *p, int index, int sum)
{
	return (struct optim_buffer){ param_grad(p, index), p->list[index].count, sum };
}

/* The squares of a stretch of the gradient, whose entries are clipped first. */
static void clip_gradient(const struct optimizer *o, int64_t offset, int64_t count, double *sum)
{
	const size_t at = (size_t)offset * dtype_size(o->params->type);

	o->kernels->clip_elements(o->backend, &o->rule, o->state, (char *)o->params->grad + at,
				  (const char *)o->blocks.v + at, count, sum);
}

static void sum_gradient(const struct optimizer *o)
{
	const struct optim_buffer all = { o->params->grad, o->params->total, 0 };

	if (o->rule.clip_elements)
		clip_gradient(o, 0, o->params->total, &o->state->squares);
	else
		o->kernels->sum_squares(o->backend, &all, 1, &o->state->squares);
}

/* The squares of the gradient of all ranks, which the host adds up. */
static void join_gradient(const struct optimizer *o)
{
	const struct params *p = o->params;
	double all;

	for (int i = 0; i < p->n && o->rule.clip_elements; i++)
		clip_gradient(o, p->list[i].offset, p->list[i].count, &o->squares[i]);
	if (!o->rule.clip_elements)
		o->kernels->sum_squares(o->backend, o->gradients, p->n, o->squares);
	o->backend->download(o->backend, o->seen_squares, o->squares,
			     (size_t)p->n * sizeof(*o->squares));
	all = o->join(o->join_context, o->seen_squares);
	o->backend->upload(o->backend, &o->state->squares, &all, sizeof(all));
}

/* All of it is decided in device memory. */
static void ask(void *optimizer)
{
	const struct optimizer *o = optimizer;

	if (o->join)
		join_gradient(o);
	else
		sum_gradient(o);
	if (o->blocks.movement)
		o->kernels->add_movement(o->backend, &o->prunable, &o->blocks);
	o->kernels->decide(o->backend, &o->rule, o->state, o->losses, o->n_losses);
	o->type->update(optimizer);
	if (o->blocks.pruned)
		o->kernels->prune(o->backend, &o->prunable, &o->blocks);
	params_changed(o->params);
	params_prepare(o->params);
}

/* A captured update issues the same work again. */
static void forget_other(struct optimizer *o, const double *losses, int n)
{
	if (o->losses == losses && o->n_losses == n && o->n_copies == o->params->n_copies)
		return;
	replay_reset(&o->replay, o->backend);
	o->losses = losses;
	o->n_losses = n;
	o->n_copies = o->params->n_copies;
}

/* One per replica. */
static void upload_requests(const struct optimizer *o, int64_t t, const double *rates)
{
	const int chosen = backend_choose(o->backend, REPLICAS_EACH);

	for (int i = 0; i < backend_replicas(o->backend); i++)
		o->requests[i] = (struct optim_request){ .t = t, .lr = rates[i] };
	o->backend->upload(o->backend, &o->state->request, o->requests, sizeof(*o->requests));
	backend_choose(o->backend, chosen);
}

void optimizer_ask(struct optimizer *o, int64_t t, const double *rates, const double *losses, int n)
{
	assert(o->asked < OPTIM_REPORTS);
	o->asked++;
	upload_requests(o, t, rates);
	forget_other(o, losses, n);
	if (o->join)
		ask(o);
	else
		replay_run(&o->replay, o->backend, ask, o);
	o->params->stale = false;
}

/* What the host has not read yet, one per replica. */
static void download_news(struct optimizer *o, struct optim_news *news)
{
	const int chosen = backend_choose(o->backend, REPLICAS_EACH);

	o->backend->download(o->backend, news, &o->state->news, sizeof(*news));
	backend_choose(o->backend, chosen);
	o->backend->zero(o->backend, &o->state->news, offsetof(struct optim_news, reports));
	o->asked = 0;
}

static int copy_reports(const struct optim_news *news, struct optim_report *to)
{
	memcpy(to, news->reports, (size_t)news->unread * sizeof(*to));
	return (int)news->unread;
}

int optimizer_read(struct optimizer *o, struct optim_report reports[OPTIM_REPORTS])
{
	struct optim_news news;

	assert(backend_replicas(o->backend) == 1);
	if (!o->asked)
		return 0;
	download_news(o, &news);
	return copy_reports(&news, reports);
}

enum status optimizer_read_each(struct optimizer *o, struct optim_reports *all, struct error *err)
{
	const int replicas = backend_replicas(o->backend);
	struct optim_news *news = calloc((size_t)replicas, sizeof(*news));

	if (!news)
		return fail_memory(err, "reports of updates", (size_t)replicas * sizeof(*news));
	if (o->asked)
		download_news(o, news);
	for (int i = 0; i < replicas; i++)
		all[i].n = copy_reports(&news[i], all[i].list);
	free(news);
	return OK;
}

void optimizer_switch(struct optimizer *o, int replica, bool on)
{
	const bool is_off = !on;
	const int chosen = backend_choose(o->backend, replica);

	o->backend->upload(o->backend, &o->state->is_off, &is_off, sizeof(is_off));
	backend_choose(o->backend, chosen);
}

void optimizer_update(struct optimizer *o, int64_t t, double lr, struct optim_report *report)
{
	struct optim_report reports[OPTIM_REPORTS] = { { 0 } };

	assert(backend_replicas(o->backend) == 1);
	optimizer_ask(o, t, &lr, NULL, 0);
	optimizer_read(o, reports);
	*report = reports[0];
}

enum status optimizer_join(struct optimizer *o, optim_join join, void *context, struct error *err)
{
	const size_t bytes = (size_t)o->params->n * sizeof(*o->squares);
	void *squares = NULL;

	o->seen_squares = pool_alloc(&o->pool, bytes);
	o->gradients = pool_alloc(&o->pool, (size_t)o->params->n * sizeof(*o->gradients));
	if (!o->seen_squares || !o->gradients)
		return fail_memory(err, "optimizer", bytes);
	if (allocate(o, &squares, bytes, err))
		return FAIL;
	for (int i = 0; i < o->params->n; i++)
		o->gradients[i] = gradient_of(o->params, i, i);
	o->squares = squares;
	o->join = join;
	o->join_context = context;
	return OK;
}

const struct optim_options *optimizer_options(const struct optimizer *o)
{
	return &o->options;
}

const struct optim_tensor *optimizer_tensors(const struct optimizer *o, int *count)
{
	*count = o->tensor_count;
	return o->tensors;
}

struct optim_scalars optimizer_scalars(const struct optimizer *o)
{
	struct optim_scalars scalars = { 0 };

	o->backend->download(o->backend, &scalars, &o->state->scalars, sizeof(scalars));
	return scalars;
}

void optimizer_set_scalars(struct optimizer *o, const struct optim_scalars *scalars)
{
	o->backend->upload(o->backend, &o->state->scalars, scalars, sizeof(*scalars));
}

enum status optim_add_squares(const struct params *params, const int *number, double *sums,
			      struct error *err)
{
	const size_t bytes = (size_t)params->n * sizeof(struct optim_buffer);
	struct optim_buffer *gradients = malloc(bytes);

	if (!gradients)
		return fail_memory(err, "gradient norms", bytes);
	for (int i = 0; i < params->n; i++)
		gradients[i] = gradient_of(params, i, number[i]);
	params->backend->optim(params->type)
		->add_squares(params->backend, gradients, params->n, sums);
	free(gradients);
	return OK;
}

size_t optimizer_bytes(const struct optimizer *o)
{
	int64_t numbers = 0;

	for (int i = 0; i < o->params->n; i++)
		numbers +=
			extent(o->params, i) * optim_states(&o->options, &o->params->list[i], NULL);
	return (size_t)numbers * dtype_size(o->params->type) + o->work_bytes;
}
