#include "core/train/prune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/util/config.h"

static const char *const methods[] = { [PRUNE_NONE] = "none",
				       [PRUNE_MAGNITUDE] = "magnitude",
				       [PRUNE_MOVEMENT] = "movement",
				       [PRUNE_SECOND_MOMENT] = "second_moment",
				       NULL };
static const char *const scopes[] = {
	[PRUNE_GLOBAL] = "global", [PRUNE_TENSOR] = "tensor", [PRUNE_2OF4] = "2of4", NULL
};
/* What a score takes from the optimizer. */
static const char *const states[] = { [PRUNE_MOVEMENT] = "movement", [PRUNE_SECOND_MOMENT] = "v" };

/* ------------------------------------------------------------ configuration */

/* Records from before it was a setting lack it. */
struct prune_options prune_configured(struct config *c)
{
	struct prune_options o = { .method = PRUNE_NONE };
	int64_t updates;

	if (config_raw(c, "PRUNE"))
		o.method = (enum prune_method)config_choice(c, "PRUNE", methods);
	if (o.method == PRUNE_NONE)
		return o;
	updates = config_int(c, "GPT2_MAX_ITERS");
	o.scope = (enum prune_scope)config_choice(c, "PRUNE_SCOPE", scopes);
	o.sparsity = o.scope == PRUNE_2OF4 ? 0.5 : config_real(c, "PRUNE_SPARSITY");
	o.first = updates * config_int(c, "PRUNE_START") / 100;
	o.last = updates * config_int(c, "PRUNE_END") / 100;
	o.interval = config_int(c, "PRUNE_INTERVAL");
	if (o.last < 1)
		o.last = 1;
	return o;
}

static bool has_state(const struct optim_options *optim, const struct param *p, const char *name)
{
	const char *names[OPTIM_STATES];
	const int n = optim_states(optim, p, names);

	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

static enum status check_tensor(const struct prune_options *o, const struct optim_options *optim,
				const struct param *p, struct error *err)
{
	const char *state = states[o->method];
	const int64_t inputs = p->dim[p->ndim - 2];

	if (state && !has_state(optim, p, state))
		return fail(err,
			    "CONFIG_PRUNE=%s: CONFIG_OPTIMIZER=%s has no second moment of %s; "
			    "choose another of the two",
			    methods[o->method], optim_names[optim->kind], p->name);
	if (o->scope == PRUNE_2OF4 && inputs % 4)
		return fail(err,
			    "CONFIG_PRUNE_SCOPE=2of4: %s has %lld inputs, a number that 4 does not "
			    "divide; choose other widths",
			    p->name, (long long)inputs);
	return OK;
}

enum status prune_check(const struct prune_options *o, const struct optim_options *optim,
			const struct params *params, struct error *err)
{
	for (int i = 0; i < params->n && o->method != PRUNE_NONE; i++)
		if (optim_may_prune(&params->list[i]) &&
		    check_tensor(o, optim, &params->list[i], err) != OK)
			return FAIL;
	return OK;
}

/* ------------------------------------------------------------- the schedule */

bool prune_due(const struct prune_options *o, int64_t t)
{
	if (o->method == PRUNE_NONE || t > o->last)
		return false;
	return t == o->last || (t > o->first && (t - o->first) % o->interval == 0);
}

double prune_share(const struct prune_options *o, int64_t t)
{
	double left;

	if (o->method == PRUNE_NONE || (t < o->last && t <= o->first))
		return 0;
	if (t >= o->last)
		return o->sparsity;
	t -= (t - o->first) % o->interval;
	left = (double)(o->last - t) / (double)(o->last - o->first);
	return o->sparsity * (1 - left * left * left);
}

/* --------------------------------------------------------------- the choice */

#define DIGITS 16 /* bits */

/* Unsigned numbers in the order of the scores. */
static uint64_t key_of(double score)
{
	const uint64_t sign = UINT64_C(1) << 63;
	uint64_t bits;

	score += 0; /* -0 is 0 */
	memcpy(&bits, &score, sizeof(bits));
	return bits & sign ? ~bits : bits | sign;
}

/* Does the key begin like `found`, as far as that is known? */
static bool begins(uint64_t key, uint64_t found, int known)
{
	return known == 0 || (key ^ found) >> (64 - known) == 0;
}

/*
 * The k-th lowest key, k >= 1: one digit after another, from the highest on.  *equal: how many of
 * the k lowest are equal to it.
 */
static uint64_t find_kth(const double *scores, int64_t n, int64_t k, int64_t *equal)
{
	static const uint64_t mask = ((uint64_t)1 << DIGITS) - 1;
	uint64_t found = 0;

	for (int known = 0; known < 64; known += DIGITS) {
		const int shift = 64 - DIGITS - known;
		int64_t counts[1 << DIGITS] = { 0 };
		uint64_t digit = 0;

		for (int64_t i = 0; i < n; i++) {
			const uint64_t key = key_of(scores[i]);

			counts[key >> shift & mask] += begins(key, found, known);
		}
		while (k > counts[digit])
			k -= counts[digit++];
		found |= digit << shift;
	}
	*equal = k;
	return found;
}

static void mark_lowest(double *scores, int64_t n, double share)
{
	const int64_t k = llround(share * (double)n);
	int64_t equal;
	uint64_t last;

	if (k == 0)
		return;
	last = find_kth(scores, n, k, &equal);
	for (int64_t i = 0; i < n; i++) {
		const uint64_t key = key_of(scores[i]);

		if (key < last || (key == last && equal-- > 0))
			scores[i] = -INFINITY;
	}
}

/* Of every four neighbouring inputs of an output, the two with the highest scores are kept. */
static void keep_two(const struct prune_matrices *m, double *scores)
{
	for (int64_t row = 0; row < m->n * m->rows; row += 4)
		for (int64_t column = 0; column < m->columns; column++) {
			double *four = scores + row * m->columns + column;

			for (int kept = 0; kept < 2; kept++) {
				int64_t best = -1;

				for (int64_t i = 0; i < 4 * m->columns; i += m->columns)
					if (four[i] != INFINITY &&
					    (best < 0 || four[i] >= four[best]))
						best = i;
				four[best] = INFINITY;
			}
		}
}

void prune_mark(enum prune_scope scope, double share, const struct prune_matrices *matrices,
		int tensors, double *scores)
{
	int64_t all = 0;

	for (int i = 0; i < tensors; i++) {
		const int64_t n = matrices[i].n * matrices[i].rows * matrices[i].columns;

		if (scope == PRUNE_2OF4)
			keep_two(&matrices[i], scores + all);
		if (scope != PRUNE_GLOBAL)
			mark_lowest(scores + all, n, share);
		all += n;
	}
	if (scope == PRUNE_GLOBAL)
		mark_lowest(scores, all, share);
}

/* ------------------------------------------------------ weights and the mask */

struct choice {
	const struct prune_options *o;
	const struct params *params;
	struct shards *shards; /* NULL: the optimizer has all state */
	const struct optim_tensor *state;
	int n_states;
	void *raw[2]; /* tensors as the device has them */
	double *scores;
	struct prune_matrices *matrices; /* by tensor that may be pruned */
	int tensors;
};

static int64_t count_weights(const struct params *params, int64_t *largest)
{
	int64_t n = 0;

	*largest = 0;
	for (int i = 0; i < params->n; i++) {
		const struct param *p = &params->list[i];

		if (!optim_may_prune(p))
			continue;
		n += p->count;
		*largest = p->count > *largest ? p->count : *largest;
	}
	return n;
}

static double element(const struct params *params, const void *raw, int64_t i)
{
	return params->type == F64 ? ((const double *)raw)[i] : (double)((const float *)raw)[i];
}

static size_t bytes_of(const struct choice *c, const struct param *p)
{
	return (size_t)p->count * dtype_size(c->params->type);
}

static int find_state(const struct choice *c, const struct param *p, const char *name)
{
	int i = 0;

	while (i < c->n_states &&
	       (c->state[i].param != p ||
		strncmp(c->state[i].name + strlen("optim."), name, strlen(name)) != 0 ||
		c->state[i].name[strlen("optim.") + strlen(name)] != '.'))
		i++;
	return i < c->n_states ? i : -1;
}

static enum status no_state(const struct param *p, const char *name, struct error *err)
{
	return fail(err, "pruning: the optimizer has no '%s' of %s", name, p->name);
}

static enum status read_state(const struct choice *c, const struct param *p, const char *name,
			      void *host, struct error *err)
{
	const struct backend *b = c->params->backend;
	const int i = find_state(c, p, name);

	if (i < 0)
		return no_state(p, name, err);
	if (c->shards)
		return shards_read(c->shards, i, 0, bytes_of(c, p), host, err);
	b->download(b, host, c->state[i].data, bytes_of(c, p));
	return b->check(b, err);
}

static enum status write_state(const struct choice *c, const struct param *p, const char *name,
			       const void *host, struct error *err)
{
	const struct backend *b = c->params->backend;
	const int i = find_state(c, p, name);

	if (i < 0)
		return no_state(p, name, err);
	if (c->shards)
		return shards_write(c->shards, i, host, err);
	b->upload(b, c->state[i].data, host, bytes_of(c, p));
	return OK;
}

static double score_of(enum prune_method method, double w, double state)
{
	return method == PRUNE_MAGNITUDE  ? fabs(w)
	       : method == PRUNE_MOVEMENT ? state
					  : w * w * state;
}

/* What is pruned already has the lowest score. */
static enum status read_scores(const struct choice *c, int index, double *scores, struct error *err)
{
	const struct param *p = &c->params->list[index];
	const char *state = states[c->o->method];
	const struct backend *b = c->params->backend;

	b->download(b, c->raw[0], param_data(c->params, index), bytes_of(c, p));
	if (b->check(b, err) != OK || (state && read_state(c, p, state, c->raw[1], err) != OK))
		return FAIL;
	for (int64_t i = 0; i < p->count; i++)
		scores[i] = score_of(c->o->method, element(c->params, c->raw[0], i),
				     state ? element(c->params, c->raw[1], i) : 0);
	if (read_state(c, p, "pruned", c->raw[0], err) != OK)
		return FAIL;
	for (int64_t i = 0; i < p->count; i++)
		if (element(c->params, c->raw[0], i) != 0)
			scores[i] = -INFINITY;
	return OK;
}

static enum status write_mask(const struct choice *c, const struct param *p, const double *scores,
			      struct error *err)
{
	for (int64_t i = 0; i < p->count; i++) {
		const bool pruned = scores[i] == -INFINITY;

		if (c->params->type == F64)
			((double *)c->raw[0])[i] = pruned;
		else
			((float *)c->raw[0])[i] = pruned;
	}
	return write_state(c, p, "pruned", c->raw[0], err);
}

static enum status choose(struct choice *c, int64_t t, struct error *err)
{
	const struct params *params = c->params;
	double *scores = c->scores;

	for (int i = 0; i < params->n; i++) {
		const struct param *p = &params->list[i];
		const int64_t *dim = p->dim + p->ndim - 2;

		if (!optim_may_prune(p))
			continue;
		if (read_scores(c, i, scores, err) != OK)
			return FAIL;
		c->matrices[c->tensors++] =
			(struct prune_matrices){ p->count / (dim[0] * dim[1]), dim[0], dim[1] };
		scores += p->count;
	}
	prune_mark(c->o->scope, prune_share(c->o, t), c->matrices, c->tensors, c->scores);
	scores = c->scores;
	for (int i = 0; i < params->n; i++) {
		if (!optim_may_prune(&params->list[i]))
			continue;
		if (write_mask(c, &params->list[i], scores, err) != OK)
			return FAIL;
		scores += params->list[i].count;
	}
	return OK;
}

double prune_host_bytes(const struct prune_options *o, const struct params *params)
{
	int64_t largest;
	const int64_t n = count_weights(params, &largest);

	return o->method == PRUNE_NONE ? 0 : (double)(n + 2 * largest) * sizeof(double);
}

static enum status choose_for_all(struct choice *c, int64_t t, struct error *err)
{
	const size_t size = dtype_size(c->params->type);
	enum status status = FAIL;
	int64_t largest;
	const int64_t n = count_weights(c->params, &largest);

	c->raw[0] = malloc((size_t)largest * size + 1);
	c->raw[1] = malloc((size_t)largest * size + 1);
	c->scores = malloc((size_t)n * sizeof(*c->scores) + 1);
	c->matrices = malloc((size_t)c->params->n * sizeof(*c->matrices));
	if (c->raw[0] && c->raw[1] && c->scores && c->matrices)
		status = choose(c, t, err);
	else
		fail_memory(err, "pruning", (size_t)n * sizeof(*c->scores));
	free(c->raw[0]);
	free(c->raw[1]);
	free(c->scores);
	free(c->matrices);
	return status;
}

enum status prune_choose(const struct prune_options *o, int64_t t, const struct params *params,
			 const struct optimizer *optimizer, struct shards *shards,
			 struct error *err)
{
	struct choice c = { .o = o, .params = params, .shards = shards };

	if (shards && shards_ranks(shards)->rank > 0)
		return shards_serve(shards, err);
	c.state = shards ? shards_state(shards, &c.n_states)
			 : optimizer_tensors(optimizer, &c.n_states);
	if (choose_for_all(&c, t, err) != OK)
		return FAIL;
	return shards ? shards_done(shards, err) : OK;
}

/* ------------------------------------------------------------------ results */

static void count_zeros(void *context, int64_t first, int64_t n, double *values)
{
	int64_t *zeros = context;

	(void)first;
	for (int64_t i = 0; i < n; i++)
		*zeros += values[i] == 0;
}

enum status prune_measure(const struct params *params, double *share, struct error *err)
{
	int64_t zeros = 0, largest;

	for (int i = 0; i < params->n; i++)
		if (optim_may_prune(&params->list[i]) &&
		    param_visit(params, i, false, count_zeros, &zeros, err) != OK)
			return FAIL;
	*share = (double)zeros / (double)count_weights(params, &largest);
	return OK;
}

double prune_bytes(const struct prune_options *o, const struct params *params, double share)
{
	int64_t largest;
	const double all = (double)params_count(params);
	const double n = (double)count_weights(params, &largest), kept = (1 - share) * n;
	const double places = o->scope == PRUNE_2OF4 && share >= 0.5 ? kept / 4 : n / 8;

	return share > 0 ? 4 * (all - n + kept) + places : 4 * all;
}
