#include "core/optim/optim.h"

#include <assert.h>
#include <math.h>
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

struct optim_options optim_configured(struct config *c)
{
	static const char *const groups[] = { "matrices", "all", NULL };
	struct optim_options o = {
		.kind = (enum optim_kind)config_choice(c, "OPTIMIZER", optim_names),
		.weight_decay = config_real(c, "WEIGHT_DECAY"),
		.decay_all = config_choice(c, "DECAY_GROUP", groups) == 1,
		.clip = config_real(c, "GRAD_CLIP"),
	};

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

/* Every parameter has m; v and vmax, where the optimizer has them, are kept element by element. */
int optim_numbers(enum optim_kind kind, const struct param *p)
{
	const struct optim_type *type = optim_types[kind];

	return 1 + (is_elementwise(type, p) ? type->has_v + type->has_vmax : 0);
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

static enum status find_segments(struct optimizer *o, struct error *err)
{
	const struct params *p = o->params;
	const size_t bytes = (size_t)p->n * sizeof(*o->segments.list);

	o->segments.list = pool_alloc(&o->pool, bytes);
	if (!o->segments.list)
		return fail_memory(err, "optimizer", bytes);
	for (int i = 0; i < p->n; i++) {
		const struct optim_segment segment = {
			.offset = p->list[i].offset,
			.count = extent(p, i),
			.second = o->second_total,
			.decays = o->options.decay_all || p->list[i].role == PARAM_MATRIX,
		};

		if (!is_elementwise(o->type, &p->list[i]))
			continue;
		add_segment(&o->segments, &segment);
		o->second_total += segment.count;
	}
	return OK;
}

static size_t largest_workspace(const struct optimizer *o)
{
	size_t largest = 0;

	for (int i = 0; i < o->params->n && o->type->workspace; i++) {
		size_t bytes = o->type->workspace(o, &o->params->list[i]);

		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

static enum status allocate(struct optimizer *o, void **memory, size_t bytes, struct error *err)
{
	*memory = o->params->backend->alloc(o->params->backend, bytes);
	return *memory ? OK : fail_memory(err, "optimizer", bytes);
}

static enum status allocate_blocks(struct optimizer *o, struct error *err)
{
	const size_t size = dtype_size(o->params->type);

	o->work_bytes = largest_workspace(o);
	if (allocate(o, &o->m, (size_t)o->params->total * size, err) ||
	    (o->type->has_v && allocate(o, &o->v, (size_t)o->second_total * size, err)) ||
	    (o->type->has_vmax && allocate(o, &o->vmax, (size_t)o->second_total * size, err)) ||
	    (o->work_bytes && allocate(o, &o->work, o->work_bytes, err)))
		return FAIL;
	return OK;
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

static enum status list_tensors(struct optimizer *o, struct error *err)
{
	const struct params *p = o->params;
	const size_t bytes = 3 * (size_t)p->n * sizeof(*o->tensors);
	int64_t second = 0;

	o->tensors = pool_alloc(&o->pool, bytes);
	if (!o->tensors)
		return fail_memory(err, "optimizer", bytes);
	for (int i = 0; i < p->n; i++) {
		if (add_tensor(o, "m", o->m, p->list[i].offset, &p->list[i], err))
			return FAIL;
		if (!is_elementwise(o->type, &p->list[i]))
			continue;
		if ((o->v && add_tensor(o, "v", o->v, second, &p->list[i], err)) ||
		    (o->vmax && add_tensor(o, "vmax", o->vmax, second, &p->list[i], err)))
			return FAIL;
		second += extent(p, i);
	}
	return OK;
}

enum status optimizer_create(struct optimizer **out, const struct optim_options *options,
			     struct params *params, struct error *err)
{
	struct optimizer *o = calloc(1, sizeof(*o));

	if (!o)
		return fail_memory(err, "optimizer", sizeof(*o));
	assert(params->data && params->grad);
	o->type = optim_types[options->kind];
	o->options = *options;
	o->params = params;
	o->kernels = params->backend->optim(params->type);
	if (find_segments(o, err) || allocate_blocks(o, err) || list_tensors(o, err)) {
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
	o->params->backend->release(o->params->backend, o->work);
	o->params->backend->release(o->params->backend, o->vmax);
	o->params->backend->release(o->params->backend, o->v);
	o->params->backend->release(o->params->backend, o->m);
	pool_free(&o->pool);
	free(o);
}

/* --------------------------------------------------------------- use */

void optimizer_update(struct optimizer *o, int64_t t, double lr, struct optim_report *report)
{
	const struct params *p = o->params;
	struct optim_step step = { .t = t, .lr = lr, .scale = 1 };

	*report = (struct optim_report){ 0 };
	report->norm = o->type->norm ? o->type->norm(o, t)
				     : sqrt(o->kernels->sum_squares(o->params->backend, p->grad, p->total));
	report->finite = isfinite(report->norm);
	if (!report->finite)
		return;
	report->clipped = o->options.clip > 0 && report->norm > o->options.clip;
	if (report->clipped)
		step.scale = o->options.clip / report->norm;
	o->type->update(o, &step, report);
	params_changed(o->params);
	o->scalars.updates++;
}

const struct optim_tensor *optimizer_tensors(const struct optimizer *o, int *count)
{
	*count = o->tensor_count;
	return o->tensors;
}

struct optim_scalars *optimizer_scalars(struct optimizer *o)
{
	return &o->scalars;
}

size_t optimizer_bytes(const struct optimizer *o)
{
	int64_t numbers = 0;

	for (int i = 0; i < o->params->n; i++)
		numbers += extent(o->params, i) *
			   optim_numbers(o->options.kind, &o->params->list[i]);
	return (size_t)numbers * dtype_size(o->params->type) + o->work_bytes;
}
