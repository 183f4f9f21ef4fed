#include "core/train/update_audit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/engine/storage.h"
#include "core/util/hash.h"

#define MOST_ELEMENTS 64 /* of a tensor */

/*
 * A new value is a sum of two terms, each a product of at most five rounded factors, one of them
 * with a root and a quotient: 16 roundings bound what a float may be off, a share of the terms.
 */
#define ROUNDINGS 16
#define SCALE_SHARE 1e-12 /* of a gradient that is clipped: its norm is a sum in another order */
#define NORM_SHARE 1e-6	  /* of a norm; its squares are added in double, in another order */

/*
 * Sums of products in another order, as a share of the tensor's largest gradient.  Seen: 2e-6 in
 * float32.  A micro-batch too few or too many changes all of it.  A single one gives the same bits.
 */
#define MICRO_SHARE 0.02
#define SAME_SHARE 1e-4

/*
 * Newton-Schulz multiplies what is rounded by up to 3.4445^5 = 485.  As a share of a typical entry
 * of an orthogonal matrix.  Seen: 1e-3 in float32.
 */
#define MUON_SHARE 0.05
#define MUON_SHARE_BF16 0.3 /* where products are in bfloat16 */

/* Operations of one Newton-Schulz iteration in double: at the first update, and at later ones. */
#define MUON_FIRST 2e9
#define MUON_LATER 3e7

enum kind { ADAMW, ADAMWSPAM, SGD, MUON };

/* As configured. */
struct formula {
	enum kind kind;
	double rate, last_rate; /* peak, and at the end */
	int64_t warmup, total;
	double decay, clip, beta1, beta2, eps, momentum;
	bool constant, decay_all;
	struct {
		double theta, spike;
		int64_t interval, warmup;
		bool clip_elements;
	} spam;
	struct {
		double rate, momentum, eps; /* rate: over that of the rest */
		int64_t steps;
		bool nesterov, match_rms;
	} muon;
	int64_t batch, accumulate, valid_rows;
	struct {
		bool on, global, two_of_four;
		double share;
		int64_t first, last, interval; /* updates */
	} prune;
};

/* What an update with a certain number does. */
struct factors {
	double rate, scale, clip_entries /* theta, or 0 */, damp_m, damp_v, correct1, correct2;
	bool restart;
};

enum block { WEIGHT, M, V, VMAX, PRUNED, GRADIENT, BLOCKS };

/* A tensor, or a piece of one that this rank owns. */
struct site {
	const char *name;	   /* of the whole tensor */
	const struct param *whole; /* its weights are those that the passes read */
	int64_t first, count;	   /* elements of the whole tensor */
	int n, at;		/* elements that are looked at; the first of them in the arrays */
	bool decays, is_matrix; /* matrix: Newton-Schulz moves it */
	bool prunes;
	const char *device[BLOCKS];
};

struct matrix {
	const struct site *site; /* NULL: none */
	int64_t first, rows, columns;
};

struct update_audit {
	struct formula f;
	const struct config *config;	   /* that f was read from */
	const struct params *params, *own; /* the same without shards */
	const struct optimizer *optimizer;
	struct ranks *ranks; /* NULL: this process is alone */
	const struct backend *backend;
	struct site *sites;
	int n_sites, n;		     /* sites; elements of all */
	const void **from[BLOCKS];   /* device: where the elements lie; NULL: nowhere */
	const void **whole_gradient; /* device: those of this process's last pass */
	double *all_kept, *all_seen; /* on the device and on the host: [2, BLOCKS, n] */
	double *kept[2][BLOCKS];     /* before and after the update, in all_kept */
	double *seen[2][BLOCKS];     /* in all_seen */
	double *micro_sum;
	char *chunk;	 /* on the host: PARAM_CHUNK elements of a block, */
	double *wide[2]; /* and as doubles */
	struct optim_scalars scalars;
	double norm;	      /* of the gradient; NAN: too large to be read */
	bool first, micros;   /* no update was audited yet; micro_sum is made */
	struct error weights; /* what is wrong with those of the losses, when it was made */
	struct matrix chosen;
	int turn;
	double *whole_matrix; /* of 2of4: a tensor; else NULL */
	double *muon[4];      /* gradient and momentum of the chosen matrix, and work */
	int64_t muon_size;
};

/* ------------------------------------------------------------ configuration */

static bool is_on(struct config *c, const char *symbol)
{
	return config_bool(c, symbol);
}

static bool is(struct config *c, const char *symbol, const char *value)
{
	const char *text = config_text(c, symbol);

	return text && strcmp(text, value) == 0;
}

static void read_spam(struct formula *f, struct config *c)
{
	f->spam.theta = config_real(c, "SPAM_THETA");
	f->spam.spike = config_real(c, "SPAM_SPIKE");
	f->spam.interval = config_int(c, "SPAM_INTERVAL");
	f->spam.warmup = config_int(c, "SPAM_WARMUP");
	f->spam.clip_elements = is_on(c, "SPAM_CLIP_ELEMENTS");
}

static void read_muon(struct formula *f, struct config *c)
{
	f->muon.rate = config_real(c, "MUON_LEARNING_RATE") / f->rate;
	f->muon.momentum = config_real(c, "MUON_MOMENTUM");
	f->muon.eps = config_real(c, "MUON_EPS");
	f->muon.steps = config_int(c, "MUON_STEPS");
	f->muon.nesterov = is_on(c, "MUON_NESTEROV");
	f->muon.match_rms = is(c, "MUON_ADJUST", "match_rms_adamw");
}

static void read_schedule(struct formula *f, struct config *c)
{
	f->rate = config_real(c, "LEARNING_RATE");
	f->constant = is(c, "SCHEDULE", "constant");
	f->last_rate = f->constant ? f->rate : config_real(c, "MIN_LEARNING_RATE");
	f->warmup = config_int(c, "WARMUP_ITERS");
	f->total = config_int(c, "GPT2_MAX_ITERS");
}

static void read_prune(struct formula *f, struct config *c)
{
	f->prune.on = config_raw(c, "PRUNE") && !is(c, "PRUNE", "none");
	if (!f->prune.on)
		return;
	f->prune.global = is(c, "PRUNE_SCOPE", "global");
	f->prune.two_of_four = is(c, "PRUNE_SCOPE", "2of4");
	f->prune.share = f->prune.two_of_four ? 0.5 : config_real(c, "PRUNE_SPARSITY");
	f->prune.first = f->total * config_int(c, "PRUNE_START") / 100;
	f->prune.last = (int64_t)fmax(
		1, floor((double)f->total * (double)config_int(c, "PRUNE_END") / 100));
	f->prune.interval = config_int(c, "PRUNE_INTERVAL");
}

static void read_formula(struct formula *f, struct config *c)
{
	read_schedule(f, c);
	f->kind = is(c, "OPTIMIZER", "sgd")	    ? SGD
		  : is(c, "OPTIMIZER", "muon")	    ? MUON
		  : is(c, "OPTIMIZER", "adamwspam") ? ADAMWSPAM
						    : ADAMW;
	f->decay = config_real(c, "WEIGHT_DECAY");
	f->decay_all = is(c, "DECAY_GROUP", "all");
	f->clip = config_real(c, "GRAD_CLIP");
	f->batch = config_int(c, "TRAIN_BATCH");
	f->accumulate = config_int(c, "TRAIN_ACCUMULATE");
	f->valid_rows = config_int(c, "EVAL_ROWS");
	read_prune(f, c);
	if (f->kind == SGD) {
		f->momentum = config_real(c, "SGD_MOMENTUM");
		return;
	}
	f->beta1 = config_real(c, "BETA1");
	f->beta2 = config_real(c, "BETA2");
	f->eps = config_real(c, "OPTIMIZER_EPS");
	if (f->kind == ADAMWSPAM)
		read_spam(f, c);
	if (f->kind == MUON)
		read_muon(f, c);
}

/* From a copy: a symbol that only the audit reads must not count as read. */
static enum status configure(struct formula *f, const struct config *config, struct error *err)
{
	struct config *copy;
	enum status status;

	if (config_copy(&copy, config, err) != OK)
		return FAIL;
	read_formula(f, copy);
	status = config_check(copy, err);
	config_free(copy);
	return status;
}

enum status update_audit_follow(struct update_audit *a, const struct config *config,
				struct error *err)
{
	if (a->config == config)
		return OK;
	a->config = config;
	a->f = (struct formula){ 0 };
	return configure(&a->f, config, err);
}

int64_t update_audit_updates(const struct update_audit *a)
{
	return a->f.total;
}

int64_t update_audit_rows(const struct update_audit *a)
{
	return a->f.batch * a->f.accumulate;
}

int64_t update_audit_valid_rows(const struct update_audit *a)
{
	return a->f.valid_rows;
}

/* ----------------------------------------------------------------- elements */

/* The k-th element of a site: one in each of n stretches, at no regular distance. */
static int64_t place(const struct site *s, int k)
{
	const int64_t first = s->count * k / s->n, length = s->count * (k + 1) / s->n - first;

	return first + (int64_t)((uint64_t)(k + 1) * 2654435761u % (uint64_t)length);
}

/* A piece is named "h.0.mlp.c_fc.weight[262144]". */
static void find_whole(const struct update_audit *a, struct site *s, const char *name)
{
	const char *bracket = a->ranks ? strrchr(name, '[') : NULL;
	const size_t length = bracket ? (size_t)(bracket - name) : strlen(name);

	s->first = bracket ? strtoll(bracket + 1, NULL, 10) : 0;
	for (int i = 0; i < a->params->n; i++)
		if (strlen(a->params->list[i].name) == length &&
		    strncmp(a->params->list[i].name, name, length) == 0)
			s->whole = &a->params->list[i];
}

static const char *state_of(const struct update_audit *a, const struct param *p, const char *kind)
{
	const struct optim_tensor *t;
	int n;

	t = optimizer_tensors(a->optimizer, &n);
	for (int i = 0; i < n; i++)
		if (t[i].param == p && strncmp(t[i].name, kind, strlen(kind)) == 0)
			return t[i].data;
	return NULL;
}

static const char *at_element(const struct params *p, const void *block, int64_t element)
{
	return (const char *)block + (size_t)element * dtype_size(p->type);
}

static enum status open_site(struct update_audit *a, int i, struct error *err)
{
	const struct param *p = &a->own->list[i];
	struct site *s = &a->sites[i];

	*s = (struct site){ .count = p->count, .at = a->n };
	find_whole(a, s, p->name);
	if (!s->whole)
		return fail(err, "update audit: '%s' is no parameter", p->name);
	s->name = s->whole->name;
	s->n = p->count < MOST_ELEMENTS ? (int)p->count : MOST_ELEMENTS;
	s->is_matrix = s->whole->ndim >= 2 && !s->whole->init.embedding;
	s->decays = a->f.decay_all || s->is_matrix;
	s->prunes = s->is_matrix && s->whole->origin.layer >= 0 && a->f.prune.on;
	s->is_matrix = s->is_matrix && a->f.kind == MUON;
	s->device[WEIGHT] = at_element(a->params, a->params->data, s->whole->offset + s->first);
	s->device[GRADIENT] = at_element(a->own, a->own->grad, p->offset);
	s->device[M] = state_of(a, p, "optim.m.");
	s->device[V] = state_of(a, p, "optim.v.");
	s->device[VMAX] = state_of(a, p, "optim.vmax.");
	s->device[PRUNED] = state_of(a, p, "optim.pruned.");
	a->n += s->n;
	if (!s->device[M] || (a->f.kind != SGD && !s->is_matrix && !s->device[V]) ||
	    (a->f.kind == ADAMWSPAM && !s->device[VMAX]))
		return fail(err,
			    "audit update FAILED: %s: CONFIG_OPTIMIZER keeps moments of it, but "
			    "the optimizer has none",
			    s->name);
	if (s->prunes != (s->device[PRUNED] != NULL))
		return fail(err, "audit update FAILED: %s: CONFIG_PRUNE says that it is %s",
			    s->name, s->prunes ? "pruned" : "not pruned");
	return OK;
}

static bool has_block(const struct update_audit *a, enum block b)
{
	return b == WEIGHT || b == M || b == GRADIENT || (b == V && a->f.kind != SGD) ||
	       (b == VMAX && a->f.kind == ADAMWSPAM) || (b == PRUNED && a->f.prune.on);
}

/* Where a site lacks a block, its weights stand in, and are not looked at. */
static const void *place_of(const struct update_audit *a, const struct site *s, int b,
			    int64_t element)
{
	return at_element(a->own, s->device[s->device[b] ? b : WEIGHT], element);
}

static const void *whole_gradient_of(const struct update_audit *a, const struct site *s, int b,
				     int64_t element)
{
	(void)b;
	return at_element(a->params, a->params->grad, s->whole->offset + s->first + element);
}

typedef const void *(*place_rule)(const struct update_audit *a, const struct site *s, int b,
				  int64_t element);

/* The addresses of all elements, in device memory. */
static enum status list_places(const struct update_audit *a, place_rule rule, int b,
			       const void ***list, struct error *err)
{
	const size_t bytes = (size_t)(a->n ? a->n : 1) * sizeof(**list);
	const void **places = malloc(bytes);

	if (!places)
		return fail_memory(err, "update audit", bytes);
	for (int i = 0; i < a->n_sites; i++)
		for (int k = 0; k < a->sites[i].n; k++)
			places[a->sites[i].at + k] =
				rule(a, &a->sites[i], b, place(&a->sites[i], k));
	*list = a->backend->alloc(a->backend, bytes);
	if (*list)
		a->backend->upload(a->backend, *list, places, (size_t)a->n * sizeof(**list));
	free(places);
	return *list ? OK : fail_alloc(a->backend, "update audit", bytes, err);
}

static size_t kept_bytes(const struct update_audit *a)
{
	return (size_t)(2 * BLOCKS * (a->n ? a->n : 1)) * sizeof(double);
}

static enum status allocate_blocks(struct update_audit *a, struct error *err)
{
	a->all_kept = a->backend->alloc(a->backend, kept_bytes(a));
	a->all_seen = calloc(1, kept_bytes(a));
	if (!a->all_kept || !a->all_seen)
		return fail_alloc(a->backend, "update audit", kept_bytes(a), err);
	for (int late = 0; late < 2; late++)
		for (int b = 0; b < BLOCKS; b++) {
			a->kept[late][b] = a->all_kept + (late * BLOCKS + b) * a->n;
			a->seen[late][b] = a->all_seen + (late * BLOCKS + b) * a->n;
		}
	for (int b = 0; b < BLOCKS; b++)
		if (has_block(a, (enum block)b) &&
		    list_places(a, place_of, b, &a->from[b], err) != OK)
			return FAIL;
	return list_places(a, whole_gradient_of, GRADIENT, &a->whole_gradient, err);
}

static double muon_operations(const struct matrix *m)
{
	const double small = fmin((double)m->rows, (double)m->columns);
	const double large = fmax((double)m->rows, (double)m->columns);

	return 5 * (4 * small * small * large + 2 * small * small * small);
}

static struct matrix matrix_of(const struct site *s, int64_t slice)
{
	const int64_t *dim = s->whole->dim + s->whole->ndim - 2;

	return (struct matrix){
		.site = s, .first = slice * dim[0] * dim[1], .rows = dim[0], .columns = dim[1]
	};
}

static enum status allocate_muon(struct update_audit *a, struct error *err)
{
	for (int i = 0; i < a->n_sites; i++) {
		struct matrix m;

		if (!a->sites[i].is_matrix)
			continue;
		m = matrix_of(&a->sites[i], 0);
		if (muon_operations(&m) <= MUON_FIRST && m.rows * m.columns > a->muon_size)
			a->muon_size = m.rows * m.columns;
	}
	for (int i = 0; i < 4 && a->muon_size; i++) {
		a->muon[i] = malloc((size_t)a->muon_size * sizeof(double));
		if (!a->muon[i])
			return fail_memory(err, "update audit", (size_t)a->muon_size);
	}
	return OK;
}

/* Room for the largest tensor. */
static enum status allocate_matrix(struct update_audit *a, struct error *err)
{
	int64_t largest = 1;

	if (!a->f.prune.two_of_four)
		return OK;
	for (int i = 0; i < a->params->n; i++)
		largest = a->params->list[i].count > largest ? a->params->list[i].count : largest;
	a->whole_matrix = malloc((size_t)largest * sizeof(double));
	return a->whole_matrix ? OK : fail_memory(err, "update audit", (size_t)largest);
}

static enum status allocate(struct update_audit *a, struct error *err)
{
	const size_t n = (size_t)(a->n ? a->n : 1);

	if (allocate_matrix(a, err) != OK)
		return FAIL;
	if (allocate_blocks(a, err) != OK)
		return FAIL;
	a->micro_sum = calloc(n, sizeof(*a->micro_sum));
	a->chunk = malloc(PARAM_CHUNK * sizeof(double));
	a->wide[0] = malloc(PARAM_CHUNK * sizeof(double));
	a->wide[1] = malloc(PARAM_CHUNK * sizeof(double));
	if (!a->micro_sum || !a->chunk || !a->wide[0] || !a->wide[1])
		return fail_memory(err, "update audit", n * sizeof(double));
	return allocate_muon(a, err);
}

enum status update_audit_create(struct update_audit **out, const struct config *config,
				const struct params *params, const struct optimizer *optimizer,
				struct shards *shards, struct error *err)
{
	struct update_audit *a = calloc(1, sizeof(*a));
	enum status status = OK;

	if (!a)
		return fail_memory(err, "update audit", sizeof(*a));
	a->params = params;
	a->own = shards ? shards_own(shards) : params;
	a->ranks = shards ? shards_ranks(shards) : NULL;
	a->optimizer = optimizer;
	a->backend = params->backend;
	a->first = true;
	a->n_sites = a->own->n;
	a->sites = calloc((size_t)(a->n_sites ? a->n_sites : 1), sizeof(*a->sites));
	if (!a->sites)
		status = fail_memory(err, "update audit", sizeof(*a->sites));
	if (status == OK)
		status = update_audit_follow(a, config, err);
	for (int i = 0; i < a->n_sites && status == OK; i++)
		status = open_site(a, i, err);
	if (status == OK)
		status = allocate(a, err);
	if (status != OK) {
		update_audit_destroy(a);
		return FAIL;
	}
	*out = a;
	return OK;
}

void update_audit_destroy(struct update_audit *a)
{
	if (!a)
		return;
	for (int b = 0; b < BLOCKS; b++)
		a->backend->release(a->backend, a->from[b]);
	a->backend->release(a->backend, a->whole_gradient);
	a->backend->release(a->backend, a->all_kept);
	free(a->all_seen);
	for (int i = 0; i < 4; i++)
		free(a->muon[i]);
	free(a->whole_matrix);
	free(a->micro_sum);
	free(a->chunk);
	free(a->wide[0]);
	free(a->wide[1]);
	free(a->sites);
	free(a);
}

/* ------------------------------------------------------------------ reading */

static void collect(const struct update_audit *a, int late, int b)
{
	if (a->from[b])
		a->backend->collect(a->backend, a->own->type, a->from[b], a->n, a->kept[late][b]);
}

/* All that was collected.  What a device that failed left in memory is no finding. */
static enum status download(const struct update_audit *a, struct error *err)
{
	a->backend->download(a->backend, a->all_seen, a->all_kept, kept_bytes(a));
	return a->backend->check(a->backend, err);
}

/* n elements of device memory, at most PARAM_CHUNK. */
static void read_piece(const struct update_audit *a, const void *device, int64_t n, double *out)
{
	const float *narrow = (const float *)(const void *)a->chunk;

	if (a->own->type == F64) {
		a->backend->download(a->backend, out, device, (size_t)n * sizeof(*out));
		return;
	}
	a->backend->download(a->backend, a->chunk, device, (size_t)n * sizeof(*narrow));
	for (int64_t i = 0; i < n; i++)
		out[i] = (double)narrow[i];
}

static void read_elements(const struct update_audit *a, const void *device, int64_t n, double *out)
{
	for (int64_t first = 0; first < n; first += PARAM_CHUNK)
		read_piece(a, at_element(a->own, device, first),
			   n - first < PARAM_CHUNK ? n - first : PARAM_CHUNK, out + first);
}

/* AdamWSPAM clips entries at the root of theta v. */
static double clipped_entry(double g, double v, double theta)
{
	const double limit = sqrt(theta * (v + 1e-12));

	return theta > 0 ? fmax(fmin(g, limit), -limit) : g;
}

static double squares_of_site(const struct update_audit *a, const struct site *s, double theta)
{
	double sum = 0;

	for (int64_t first = 0; first < s->count; first += PARAM_CHUNK) {
		const int64_t left = s->count - first, n = left < PARAM_CHUNK ? left : PARAM_CHUNK;

		read_piece(a, at_element(a->own, s->device[GRADIENT], first), n, a->wide[0]);
		if (theta > 0) {
			read_piece(a, at_element(a->own, s->device[V], first), n, a->wide[1]);
			for (int64_t i = 0; i < n; i++)
				a->wide[0][i] = clipped_entry(a->wide[0][i], a->wide[1][i], theta);
		}
#pragma omp simd reduction(+ : sum)
		for (int64_t i = 0; i < n; i++)
			sum += a->wide[0][i] * a->wide[0][i];
	}
	return sum;
}

static enum status sum_over_ranks(const struct update_audit *a, double *values, int n,
				  struct error *err)
{
	const size_t bytes = (size_t)n * sizeof(*values);
	enum status status;
	double *all;

	if (!a->ranks)
		return OK;
	all = malloc(bytes * (size_t)a->ranks->size);
	if (!all)
		return fail_memory(err, "ranks", bytes);
	status = ranks_gather(a->ranks, values, all, bytes, err);
	memset(values, 0, bytes);
	for (int i = 0; i < n * a->ranks->size && status == OK; i++)
		values[i % n] += all[i];
	free(all);
	return status;
}

/* ------------------------------------------------------------- the formulas */

static double configured_rate(const struct formula *f, int64_t t)
{
	double done;

	if (t <= f->warmup)
		return f->rate * (double)t / (double)f->warmup;
	if (f->constant)
		return f->rate;
	done = t < f->total ? (double)(t - f->warmup) / (double)(f->total - f->warmup) : 1;
	return f->last_rate + (f->rate - f->last_rate) * (1 + cos(M_PI * done)) / 2;
}

/* The update before which the moments of update t began: every interval they begin anew. */
static int64_t born(const struct formula *f, int64_t t)
{
	const int64_t interval = f->kind == ADAMWSPAM ? f->spam.interval : 0;

	return interval > 0 && t >= interval ? t / interval * interval - 1 : 0;
}

static double spam_warmup(const struct formula *f, int64_t t)
{
	const int64_t age = t - born(f, t);

	if (f->spam.interval == 0 || t < f->spam.interval || age >= f->spam.warmup)
		return 1;
	return fmax(1e-3, (1 - cos(M_PI * (double)age / (double)f->spam.warmup)) / 2);
}

static double entries_theta(const struct formula *f, int64_t t)
{
	const bool clips = f->kind == ADAMWSPAM && f->spam.clip_elements && t > 1;

	return clips && t - born(f, t - 1) > 1 ? f->spam.theta : 0;
}

/* More than so many deviations above the mean of the norms before, of which there are at least 10.
 */
static bool is_spike(const struct update_audit *a, double norm)
{
	const struct optim_scalars *s = &a->scalars;
	double mean = 0, variance = 0;

	if (a->f.kind != ADAMWSPAM || s->norm_count < 10)
		return false;
	for (int i = 0; i < s->norm_count; i++)
		mean += s->norms[i] / s->norm_count;
	for (int i = 0; i < s->norm_count; i++)
		variance += (s->norms[i] - mean) * (s->norms[i] - mean) / s->norm_count;
	return variance > 0 && norm - mean > a->f.spam.spike * sqrt(variance);
}

static struct factors factors_of(const struct update_audit *a, int64_t t, double norm)
{
	const struct formula *f = &a->f;
	const bool spike = is_spike(a, norm);
	struct factors u = { .rate = configured_rate(f, t),
			     .scale = f->clip > 0 && norm > f->clip ? f->clip / norm : 1,
			     .clip_entries = entries_theta(f, t),
			     .damp_m = spike ? 0.5 : 1,
			     .damp_v = spike ? 0.9 : 1 };

	if (f->kind == ADAMWSPAM) {
		u.rate *= spam_warmup(f, t);
		u.restart = f->spam.interval > 0 && t % f->spam.interval == 0;
	}
	u.correct1 = 1 - pow(f->beta1, (double)(t - born(f, t)));
	u.correct2 = 1 - pow(f->beta2, (double)(t - born(f, t)));
	return u;
}

/* -------------------------------------------------------------- comparisons */

struct look {
	const struct update_audit *a;
	const struct site *s;
	const struct factors *u;
	int64_t t;
	int k;
	struct error *finding;
};

static double seen(const struct look *l, int late, enum block b)
{
	return l->a->seen[late][b][l->s->at + l->k];
}

/* What an element of the moments began this update with. */
static double old(const struct look *l, enum block b)
{
	return l->u->restart ? 0 : seen(l, 0, b);
}

static double rounding(const struct look *l)
{
	return l->a->own->type == F64 ? DBL_EPSILON / 2 : FLT_EPSILON / 2;
}

static double smallest(const struct look *l)
{
	return l->a->own->type == F64 ? DBL_MIN : FLT_MIN;
}

/* `terms`: the sum of their magnitudes. */
static void compare(const struct look *l, enum block b, double expected, double tolerance)
{
	/* What is pruned is looked at as a whole: look_at_pruned(). */
	static const char *const names[] = { "the weight", "the first moment", "the second moment",
					     "the largest second moment" };
	const double got = seen(l, 1, b);

	if (b == WEIGHT && l->s->prunes && seen(l, 1, PRUNED) != 0)
		return;
	if (fabs(got - expected) <= tolerance || l->finding->text[0])
		return;
	fail(l->finding,
	     "audit update FAILED: %s: after update %lld %s of element %lld is %.9g; the "
	     "configured formula makes it %.9g",
	     l->s->name, (long long)l->t, names[b], (long long)(l->s->first + place(l->s, l->k)),
	     got, expected);
}

static void compare_sum(const struct look *l, enum block b, double x, double y)
{
	const double share = ROUNDINGS * rounding(l) + SCALE_SHARE;

	compare(l, b, x + y, share * (fabs(x) + fabs(y)) + smallest(l));
}

static double shrunk(const struct look *l, double rate)
{
	return (l->s->decays ? 1 - rate * l->a->f.decay : 1) * seen(l, 0, WEIGHT);
}

static void look_at_adamw(const struct look *l, double g)
{
	const struct formula *f = &l->a->f;
	const bool spam = f->kind == ADAMWSPAM;
	double d;

	compare_sum(l, M, f->beta1 * l->u->damp_m * old(l, M), (1 - f->beta1) * g);
	compare_sum(l, V, f->beta2 * l->u->damp_v * old(l, V), (1 - f->beta2) * g * g);
	if (spam)
		compare_sum(l, VMAX, fmax(old(l, VMAX), seen(l, 1, V)), 0);
	d = seen(l, 1, spam ? VMAX : V);
	if (d > 0 && d < smallest(l))
		return; /* a device may take it for 0 */
	compare_sum(l, WEIGHT, shrunk(l, l->u->rate),
		    -l->u->rate * (seen(l, 1, M) / l->u->correct1) /
			    (sqrt(d / l->u->correct2) + f->eps));
}

static void look_at_sgd(const struct look *l, double g)
{
	compare_sum(l, M, l->a->f.momentum * old(l, M), g);
	compare_sum(l, WEIGHT, shrunk(l, l->u->rate), -l->u->rate * seen(l, 1, M));
}

/* The weights of one matrix are looked at apart. */
static void look_at_matrix(const struct look *l, double g)
{
	compare_sum(l, M, l->a->f.muon.momentum * old(l, M), (1 - l->a->f.muon.momentum) * g);
}

static void look_at_site(struct look *l)
{
	const struct update_audit *a = l->a;

	for (l->k = 0; l->k < l->s->n; l->k++) {
		const double entry = seen(l, 0, GRADIENT);
		const double theta = l->u->clip_entries;
		const double g = l->u->scale *
				 (theta > 0 ? clipped_entry(entry, seen(l, 0, V), theta) : entry);

		if (l->s->is_matrix)
			look_at_matrix(l, g);
		else if (a->f.kind == SGD)
			look_at_sgd(l, g);
		else
			look_at_adamw(l, g);
	}
}

/* --------------------------------------------------------------------- Muon */

static int64_t slices_of(const struct site *s)
{
	const int64_t *dim = s->whole->dim + s->whole->ndim - 2;

	return s->count / (dim[0] * dim[1]);
}

/* One matrix after another, of those that are small enough. */
static void choose_matrix(struct update_audit *a)
{
	const double most = a->first ? MUON_FIRST : MUON_LATER;
	int64_t fit = 0, number;

	a->chosen = (struct matrix){ 0 };
	for (int i = 0; i < a->n_sites; i++)
		if (a->sites[i].is_matrix) {
			const struct matrix m = matrix_of(&a->sites[i], 0);

			fit += muon_operations(&m) <= most ? slices_of(&a->sites[i]) : 0;
		}
	number = fit ? a->turn++ % fit : -1;
	for (int i = 0; i < a->n_sites && number >= 0; i++) {
		struct matrix m;

		if (!a->sites[i].is_matrix)
			continue;
		m = matrix_of(&a->sites[i], number);
		if (muon_operations(&m) > most)
			continue;
		if (number < slices_of(&a->sites[i]))
			a->chosen = m;
		number -= slices_of(&a->sites[i]);
	}
}

static void read_matrix(const struct update_audit *a, enum block b, double *out)
{
	const struct matrix *m = &a->chosen;

	read_elements(a, at_element(a->own, m->site->device[b], m->first), m->rows * m->columns,
		      out);
}

static void transpose(int64_t rows, int64_t columns, const double *x, double *y)
{
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			y[j * rows + i] = x[i * columns + j];
}

/* z [n,w] = x [n,k] y [k,w] */
static void product(int64_t n, int64_t k, int64_t w, const double *x, const double *y, double *z)
{
	memset(z, 0, (size_t)(n * w) * sizeof(*z));
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < k; j++) {
			const double factor = x[i * k + j];

#pragma omp simd
			for (int64_t c = 0; c < w; c++)
				z[i * w + c] += factor * y[j * w + c];
		}
}

/* x [n,w], n <= w: five times x = (3.4445 + (-4.775 + 2.0315 A) A) x, A = x x'. */
static void newton_schulz(const struct formula *f, int64_t n, int64_t w, double *x, double *y,
			  double *z)
{
	double *gram = y, *square = z, norm = 0;

	for (int64_t i = 0; i < n * w; i++)
		norm += x[i] * x[i];
	for (int64_t i = 0; i < n * w; i++)
		x[i] /= fmax(sqrt(norm), f->muon.eps);
	for (int64_t step = 0; step < f->muon.steps; step++) {
		transpose(n, w, x, z);
		product(n, w, n, x, z, gram);
		product(n, n, n, gram, gram, square);
		for (int64_t i = 0; i < n * n; i++)
			gram[i] = -4.7750 * gram[i] + 2.0315 * square[i] +
				  (i % (n + 1) == 0 ? 3.4445 : 0);
		product(n, n, w, gram, x, z);
		memcpy(x, z, (size_t)(n * w) * sizeof(*x));
	}
}

/* The direction of the chosen matrix: what its momentum says, made orthogonal. */
static double *direction_of(const struct update_audit *a, const struct factors *u)
{
	const struct formula *f = &a->f;
	const int64_t rows = a->chosen.rows, columns = a->chosen.columns, n = rows * columns;
	double *g = a->muon[0], *m = a->muon[1], *x = a->muon[2], *y = a->muon[3];

	read_matrix(a, M, m);
	for (int64_t i = 0; i < n; i++)
		if (f->muon.nesterov)
			m[i] = f->muon.momentum * m[i] + (1 - f->muon.momentum) * u->scale * g[i];
	if (rows <= columns) {
		newton_schulz(f, rows, columns, m, x, y);
		return m;
	}
	transpose(rows, columns, m, g);
	newton_schulz(f, columns, rows, g, x, y);
	transpose(columns, rows, g, m);
	return m;
}

static void look_at_chosen(const struct update_audit *a, struct look *l)
{
	const struct matrix *c = &a->chosen;
	const double larger = fmax((double)c->rows, (double)c->columns);
	const double ratio = (double)c->rows / (double)c->columns;
	const double adjust = a->f.muon.match_rms ? 0.2 * sqrt(larger) : sqrt(fmax(1, ratio));
	const double rate = l->u->rate * a->f.muon.rate;
	const double share = a->backend->precision < BFLOAT16 ? MUON_SHARE : MUON_SHARE_BF16;
	const double *direction = direction_of(a, l->u);

	l->s = c->site;
	for (l->k = 0; l->k < l->s->n; l->k++) {
		const int64_t element = place(l->s, l->k) - c->first;

		if (element < 0 || element >= c->rows * c->columns)
			continue;
		compare(l, WEIGHT, shrunk(l, rate) - rate * adjust * direction[element],
			share * rate * adjust / sqrt(larger) +
				ROUNDINGS * rounding(l) * fabs(seen(l, 0, WEIGHT)));
	}
}

/* ------------------------------------------------------------------ pruning */

/* The share that is pruned after update t: it last rose at update `then`. */
static double configured_share(const struct formula *f, int64_t t)
{
	const double span = (double)(f->prune.last - f->prune.first);
	const int64_t then =
		f->prune.first + (t - f->prune.first) / f->prune.interval * f->prune.interval;

	if (t >= f->prune.last)
		return f->prune.share;
	if (t <= f->prune.first)
		return 0;
	return f->prune.share * (1 - pow(1 - (double)(then - f->prune.first) / span, 3));
}

/* Every pruned weight is 0.  How many are there? */
static double count_pruned(const struct update_audit *a, const struct site *s, int64_t t,
			   struct error *finding)
{
	double count = 0;

	for (int64_t first = 0; first < s->count; first += PARAM_CHUNK) {
		const int64_t left = s->count - first, n = left < PARAM_CHUNK ? left : PARAM_CHUNK;

		read_piece(a, at_element(a->own, s->device[WEIGHT], first), n, a->wide[0]);
		read_piece(a, at_element(a->own, s->device[PRUNED], first), n, a->wide[1]);
		for (int64_t i = 0; i < n; i++) {
			if (a->wide[1][i] == 0)
				continue;
			count++;
			if ((a->wide[0][i] != 0 || signbit(a->wide[0][i])) && !finding->text[0])
				fail(finding,
				     "audit update FAILED: %s: after update %lld element %lld is "
				     "%.9g; it is pruned, and must be 0",
				     s->name, (long long)t, (long long)(s->first + first + i),
				     a->wide[0][i]);
		}
	}
	return count;
}

/* Have every four neighbouring inputs of an output two weights that are 0? */
static void look_at_fours(const struct update_audit *a, const struct site *s, int64_t t,
			  struct error *finding)
{
	const int64_t columns = s->whole->dim[s->whole->ndim - 1], rows = s->whole->count / columns;

	for (int64_t at = 0; at < rows / 4 * columns && !finding->text[0]; at++) {
		const int64_t first = at / columns * 4 * columns + at % columns;
		int zeros = 0;

		for (int k = 0; k < 4; k++)
			zeros += a->whole_matrix[first + k * columns] == 0;
		if (zeros < 2)
			fail(finding,
			     "audit update FAILED: %s: after update %lld, %d of the four weights "
			     "from element %lld on are 0, not 2",
			     s->name, (long long)t, zeros, (long long)first);
	}
}

static void compare_count(const struct update_audit *a, const char *name, double count, double of,
			  int64_t t, struct error *finding)
{
	const double expected = configured_share(&a->f, t) * of;

	if (fabs(count - expected) > 0.5 + 1e-9 * of && !finding->text[0])
		fail(finding,
		     "audit update FAILED: %s: after update %lld %.0f of %.0f weights are pruned; "
		     "the configured schedule makes it %.1f",
		     name, (long long)t, count, of, expected);
}

/* By tensor, and of all. */
static void compare_counts(const struct update_audit *a, const double *counts, int64_t t,
			   struct error *finding)
{
	double count = 0, of = 0;

	for (int i = 0; i < a->params->n; i++) {
		const struct param *p = &a->params->list[i];

		if (p->ndim < 2 || p->init.embedding || p->origin.layer < 0)
			continue;
		count += counts[i];
		of += (double)p->count;
		if (!a->f.prune.global)
			compare_count(a, p->name, counts[i], (double)p->count, t, finding);
	}
	if (a->f.prune.global)
		compare_count(a, "the model", count, of, t, finding);
}

static enum status look_at_pruned(struct update_audit *a, int64_t t, struct error *finding,
				  struct error *err)
{
	const size_t bytes = (size_t)a->params->n * sizeof(double);
	double *counts;
	enum status status;

	if (!a->f.prune.on)
		return OK;
	counts = calloc(1, bytes);
	if (!counts)
		return fail_memory(err, "update audit", bytes);
	for (int i = 0; i < a->n_sites; i++) {
		const struct site *s = &a->sites[i];

		if (!s->prunes)
			continue;
		counts[s->whole - a->params->list] += count_pruned(a, s, t, finding);
		if (a->f.prune.two_of_four && s->first == 0 && t >= a->f.prune.last) {
			read_elements(a, at_element(a->params, a->params->data, s->whole->offset),
				      s->whole->count, a->whole_matrix);
			look_at_fours(a, s, t, finding);
		}
	}
	status = sum_over_ranks(a, counts, a->params->n, err);
	if (status == OK)
		compare_counts(a, counts, t, finding);
	free(counts);
	return status;
}

/* ------------------------------------------------------------ micro-batches */

struct micros {
	struct run *run; /* by replica */
	int32_t *tokens, *targets;
	int64_t micro, elements; /* of a micro-batch */
};

static int64_t fill_micro(const struct update_audit *a, const struct workload *w, int64_t iteration,
			  int64_t micro, struct micros *rows)
{
	int64_t scored = 0;

	for (int64_t row = 0; row < a->f.batch; row++)
		w->train_row(w->context, (uint64_t)iteration, (uint64_t)(micro * a->f.batch + row),
			     rows->tokens + row * w->length, rows->targets + row * w->length);
	for (int64_t i = 0; i < a->f.batch * w->length; i++)
		scored += rows->targets[i] >= 0;
	return scored;
}

/*
 * Losses of the output head take theirs from the number of targets; of the others every micro-batch
 * has its share.
 */
static void look_at_loss_weights(struct update_audit *a, const struct token_program *training)
{
	const struct graph *g = training->g;

	a->weights = (struct error){ "" };
	for (int i = 0; i < g->n_outputs; i++) {
		const struct graph_output *o = &g->outputs[i];
		const bool shared = o->tensor->producer != training->io.nll->producer;
		const double expected = o->loss_weight / (shared ? (double)a->f.accumulate : 1);
		double weight;

		if (!o->is_loss)
			continue;
		weight = program_loss_weight_of(training->p, o->name);
		if (fabs(weight - expected) > FLT_EPSILON * fabs(expected))
			fail(&a->weights,
			     "audit update FAILED: %s: the loss has a weight of %.6g in each of "
			     "%lld micro-batches; configured is %.6g",
			     o->name, weight, (long long)a->f.accumulate, expected);
	}
}

static enum status run_micros(struct update_audit *a, struct token_program *training,
			      const struct workload *w, uint64_t seed, int64_t iteration,
			      struct micros *rows, struct error *err)
{
	int64_t scored = 0;

	look_at_loss_weights(a, training);
	for (int64_t micro = 0; micro < a->f.accumulate; micro++)
		scored += fill_micro(a, w, iteration, micro, rows);
	token_program_weigh(training, 1 / fmax((double)scored, 1),
			    1 / (double)(update_audit_rows(a) * w->length));
	memset(a->micro_sum, 0, (size_t)a->n * sizeof(*a->micro_sum));
	for (int64_t micro = 0; micro < a->f.accumulate; micro++) {
		fill_micro(a, w, iteration, micro, rows);
		token_program_feed(training, rows->tokens, rows->targets);
		for (int i = 0; i < backend_replicas(a->backend); i++)
			rows->run[i] = (struct run){ .seed = seed,
						     .iteration = (uint64_t)iteration,
						     .micro = (uint64_t)micro,
						     .alone = true };
		if (program_run(training->p, rows->run, err) != OK)
			return FAIL;
		a->backend->collect(a->backend, a->params->type, a->whole_gradient, a->n,
				    a->kept[0][GRADIENT]);
		if (download(a, err) != OK)
			return FAIL;
		for (int i = 0; i < a->n; i++)
			a->micro_sum[i] += a->seen[0][GRADIENT][i];
	}
	return OK;
}

enum status update_audit_micros(struct update_audit *a, struct token_program *training,
				const struct workload *workload, uint64_t seed, int64_t iteration,
				struct error *err)
{
	const size_t bytes = (size_t)(a->f.batch * workload->length) * sizeof(int32_t);
	struct micros rows = {
		.tokens = malloc(bytes),
		.targets = malloc(bytes),
		.run = calloc((size_t)backend_replicas(a->backend), sizeof(*rows.run)),
	};
	enum status status = FAIL;

	if (rows.tokens && rows.targets && rows.run)
		status = run_micros(a, training, workload, seed, iteration, &rows, err);
	else
		fail_memory(err, "update audit", bytes);
	a->micros = status == OK;
	free(rows.run);
	free(rows.tokens);
	free(rows.targets);
	return status;
}

static void look_at_micros(const struct update_audit *a, int64_t t, struct error *finding)
{
	for (int i = 0; i < a->n_sites && a->micros && !finding->text[0]; i++) {
		const struct site *s = &a->sites[i];
		const double *got = a->seen[0][GRADIENT] + s->at, *sum = a->micro_sum + s->at;
		const double share = a->f.accumulate > 1 ? MICRO_SHARE : SAME_SHARE;
		double largest = 0;

		for (int k = 0; k < s->n; k++)
			largest = fmax(largest, fmax(fabs(got[k]), fabs(sum[k])));
		for (int k = 0; k < s->n && !finding->text[0]; k++)
			if (fabs(got[k] - sum[k]) > share * largest)
				fail(finding,
				     "audit update FAILED: %s: the gradient of update %lld at "
				     "element %lld is %.6g; those of its %lld micro-batches add up "
				     "to %.6g",
				     s->name, (long long)t, (long long)(s->first + place(s, k)),
				     got[k], (long long)a->f.accumulate, sum[k]);
	}
}

/* --------------------------------------------------------------- one update */

void update_audit_before(struct update_audit *a)
{
	for (int b = WEIGHT; b < GRADIENT; b++)
		collect(a, 0, b);
	a->scalars = optimizer_scalars(a->optimizer);
}

/* A CPU reads its gradient each time; from a GPU it has to be copied. */
static bool reads_norm(const struct update_audit *a)
{
	return a->first || !a->backend->is_async;
}

enum status update_audit_gradient(struct update_audit *a, int64_t iteration, struct error *err)
{
	double squares = 0;

	collect(a, 0, GRADIENT);
	a->norm = NAN;
	choose_matrix(a);
	if (a->chosen.site)
		read_matrix(a, GRADIENT, a->muon[0]);
	if (!reads_norm(a))
		return OK;
	for (int i = 0; i < a->n_sites; i++)
		squares += squares_of_site(a, &a->sites[i], entries_theta(&a->f, iteration));
	if (sum_over_ranks(a, &squares, 1, err) != OK)
		return FAIL;
	a->norm = sqrt(squares);
	return OK;
}

static void look_at_counts(const struct update_audit *a, int64_t t, double norm,
			   struct error *finding)
{
	const struct optim_scalars now = optimizer_scalars(a->optimizer);

	if (fabs(norm - a->norm) > NORM_SHARE * a->norm)
		fail(finding,
		     "audit update FAILED: gradient: the optimizer took its norm in update %lld for "
		     "%.9g; it is %.9g",
		     (long long)t, norm, a->norm);
	else if (a->scalars.updates != t - 1 || now.updates != t)
		fail(finding,
		     "audit update FAILED: optimizer: before update %lld it had made %lld updates, "
		     "after it %lld",
		     (long long)t, (long long)a->scalars.updates, (long long)now.updates);
}

static enum status agree(const struct update_audit *a, struct error *finding, struct error *err)
{
	struct error *all;
	enum status status;

	if (!a->ranks)
		return OK;
	all = malloc((size_t)a->ranks->size * sizeof(*all));
	if (!all)
		return fail_memory(err, "ranks", (size_t)a->ranks->size * sizeof(*all));
	status = ranks_gather(a->ranks, finding, all, sizeof(*all), err);
	for (int r = a->ranks->size - 1; r >= 0 && status == OK; r--)
		if (all[r].text[0])
			*finding = all[r];
	free(all);
	return status;
}

enum status update_audit_after(struct update_audit *a, int64_t iteration, double norm,
			       struct error *finding, struct error *err)
{
	struct look l = { .a = a, .t = iteration, .finding = finding };
	struct factors u;

	*finding = (struct error){ "" };
	for (int b = WEIGHT; b < GRADIENT; b++)
		collect(a, 1, b);
	if (download(a, err) != OK)
		return FAIL;
	if (isnan(a->norm))
		a->norm = norm;
	u = factors_of(a, iteration, a->norm);
	l.u = &u;
	look_at_counts(a, iteration, norm, finding);
	if (a->micros && a->weights.text[0] && !finding->text[0])
		*finding = a->weights;
	look_at_micros(a, iteration, finding);
	for (int i = 0; i < a->n_sites && !finding->text[0]; i++) {
		l.s = &a->sites[i];
		look_at_site(&l);
	}
	if (a->chosen.site && !finding->text[0])
		look_at_chosen(a, &l);
	if (look_at_pruned(a, iteration, finding, err) != OK ||
	    a->backend->check(a->backend, err) != OK)
		return FAIL;
	a->first = a->micros = false;
	return agree(a, finding, err);
}

/* ------------------------------------------------------------------- resume */

static uint64_t mixed(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 33;
}

/* As a sum over elements: which rank has which makes no difference. */
static uint64_t digest_of(const struct update_audit *a, const struct site *s, int b)
{
	const uint64_t key = mixed(hash_text(s->name), (uint64_t)b);
	uint64_t sum = 0;

	for (int k = 0; k < s->n && s->device[b]; k++) {
		uint64_t bits;

		memcpy(&bits, &a->seen[1][b][s->at + k], sizeof(bits));
		sum += mixed(mixed(key, (uint64_t)(s->first + place(s, k))), bits);
	}
	return sum;
}

enum status update_audit_digest(struct update_audit *a, uint64_t *digest, struct error *err)
{
	double halves[2] = { 0, 0 };
	uint64_t sum = 0;

	for (int b = WEIGHT; b < GRADIENT; b++)
		collect(a, 1, b);
	if (download(a, err) != OK)
		return FAIL;
	for (int b = WEIGHT; b < GRADIENT; b++)
		for (int i = 0; i < a->n_sites && a->from[b]; i++)
			sum += digest_of(a, &a->sites[i], b);
	/* Sums of halves are exact in doubles. */
	halves[0] = (double)(sum >> 32);
	halves[1] = (double)(sum & UINT32_MAX);
	if (sum_over_ranks(a, halves, 2, err) != OK)
		return FAIL;
	*digest = ((uint64_t)halves[0] << 32) + (uint64_t)halves[1];
	return OK;
}
