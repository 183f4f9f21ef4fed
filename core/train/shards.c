#include "core/train/shards.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/optim/kernels.h"

/*
 * Elements: a transfer of 1 MiB reaches the bandwidth of a larger one, and the shards of one layer
 * are many enough for several owners.
 */
#define SHARD_ELEMENTS ((int64_t)1 << 18)
#define ALL_INSTRUCTIONS INT_MAX

struct shard {
	int param;
	int64_t first, count; /* elements of the parameter */
	int owner;
	int index;  /* among the shards of its owner */
	int64_t at; /* its first element in the blocks of its owner */
	int ready;  /* instructions after which its gradient is complete */
};

struct round {
	int contributors;
	bool first;
};

struct shards {
	struct pool pool;
	struct ranks *ranks;
	struct params *whole, *own;
	const struct optim_kernels *kernels;
	struct optim_options optim;

	struct shard *list;
	int n;
	int *order;    /* of the shards, as they become ready */
	int *owned;    /* by rank: how many shards */
	int most;      /* the largest of them */
	int untouched; /* instructions before the first that writes a gradient */

	void *received;		  /* on the device: by rank, blocks as large as the own ones */
	char *host_out, *host_in; /* staging buffers of a transport without GPU memory; or NULL */

	struct round now, before;
	bool open;	/* `now` is being made */
	bool in_flight; /* `before` is not summed up yet */
	int posted;	/* shards of `now`, in order[] */

	double *squares, *all_squares; /* by index, and by rank and index */
	enum status joined;
	struct error join_error;

	struct optimizer *optimizer;
	void **state;		      /* by index of the own shards and block */
	struct optim_tensor *tensors; /* of the whole state */
	int *block_of;		      /* by tensor */
	int tensor_count;
	void *shard_memory; /* on the host: one shard of state */
	int cached_tensor, cached_shard;
};

/* ------------------------------------------------------------------ shards */

static int64_t largest_shard(const struct shards *s, const struct param *p)
{
	return optim_elementwise(s->optim.kind, p) ? SHARD_ELEMENTS : p->count;
}

static int count_shards(const struct shards *s)
{
	int64_t n = 0;

	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];

		n += (p->count + largest_shard(s, p) - 1) / largest_shard(s, p);
	}
	return (int)n;
}

static void split(struct shards *s)
{
	struct shard *next = s->list;

	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];
		const int64_t most = largest_shard(s, p);

		for (int64_t first = 0; first < p->count; first += most)
			*next++ = (struct shard){
				.param = i,
				.first = first,
				.count = p->count - first < most ? p->count - first : most,
			};
	}
}

/* Each shard goes to the rank that has the fewest elements so far. */
static enum status assign_owners(struct shards *s, struct error *err)
{
	int64_t *elements = calloc((size_t)s->ranks->size, sizeof(*elements));

	if (!elements)
		return fail_memory(err, "ranks", (size_t)s->ranks->size * sizeof(*elements));
	for (int i = 0; i < s->n; i++) {
		int least = 0;

		for (int r = 1; r < s->ranks->size; r++)
			if (elements[r] < elements[least])
				least = r;
		s->list[i].owner = least;
		s->list[i].index = s->owned[least]++;
		elements[least] += s->list[i].count;
	}
	for (int r = 0; r < s->ranks->size; r++)
		s->most = s->owned[r] > s->most ? s->owned[r] : s->most;
	free(elements);
	return OK;
}

/* A shard is a parameter of its own.  Part of a matrix is a vector. */
static enum status name_own(struct shards *s, const struct shard *shard, struct error *err)
{
	const struct param *p = &s->whole->list[shard->param];
	const bool is_part = shard->count < p->count;
	char name[300];
	int index;

	snprintf(name, sizeof(name), "%s[%lld]", p->name, (long long)shard->first);
	if (params_name(s->own, name, &p->init, is_part ? 1 : p->ndim,
			is_part ? &shard->count : p->dim, &index, err) != OK)
		return FAIL;
	s->own->list[index].role = p->role;
	s->own->list[index].origin = p->origin;
	return index == shard->index ? OK : fail(err, "two shards are named %s", name);
}

static enum status make_shards(struct shards *s, struct error *err)
{
	s->n = count_shards(s);
	if (s->n < s->ranks->size)
		return fail(err, "CONFIG_RANKS=%d: the model has only %d shards to divide",
			    s->ranks->size, s->n);
	s->list = pool_alloc(&s->pool, (size_t)s->n * sizeof(*s->list));
	s->order = pool_alloc(&s->pool, (size_t)s->n * sizeof(*s->order));
	s->owned = pool_alloc(&s->pool, (size_t)s->ranks->size * sizeof(*s->owned));
	if (!s->list || !s->order || !s->owned)
		return fail_memory(err, "shards", (size_t)s->n * sizeof(*s->list));
	split(s);
	if (assign_owners(s, err) != OK || params_create(&s->own, s->whole->type, err) != OK)
		return FAIL;
	for (int i = 0; i < s->n; i++)
		if (s->list[i].owner == s->ranks->rank && name_own(s, &s->list[i], err) != OK)
			return FAIL;
	for (int i = 0; i < s->n; i++)
		if (s->list[i].owner == s->ranks->rank)
			s->list[i].at = s->own->list[s->list[i].index].offset;
	return OK;
}

/* ---------------------------------------------------------------- addresses */

static size_t element_size(const struct shards *s)
{
	return dtype_size(s->whole->type);
}

static size_t shard_bytes(const struct shards *s, const struct shard *shard)
{
	return (size_t)shard->count * element_size(s);
}

static size_t own_bytes(const struct shards *s)
{
	return (size_t)s->own->total * element_size(s);
}

static bool is_own(const struct shards *s, const struct shard *shard)
{
	return shard->owner == s->ranks->rank;
}

/* Where a shard lies in a block of the whole parameters. */
static char *in_whole(const struct shards *s, void *block, const struct shard *shard)
{
	return (char *)block +
	       (size_t)(s->whole->list[shard->param].offset + shard->first) * element_size(s);
}

static char *in_own(const struct shards *s, void *block, const struct shard *shard)
{
	return (char *)block + (size_t)shard->at * element_size(s);
}

/* Where a shard of rank `from` arrives. */
static char *in_received(const struct shards *s, void *blocks, int from, const struct shard *shard)
{
	return in_own(s, (char *)blocks + (size_t)from * own_bytes(s), shard);
}

/* ----------------------------------------------------------------- creation */

/* Does this rank send its shards to the rank? */
static bool sends_to(const struct shards *s, int rank)
{
	return rank != s->ranks->rank || s->ranks->loopback;
}

static bool communicates(const struct shards *s)
{
	return s->ranks->size > 1 || s->ranks->loopback;
}

/* A transport that knows only memory of the host serves a GPU through copies. */
static bool is_staged(const struct shards *s)
{
	return communicates(s) && s->whole->backend->host_alloc && !s->ranks->type->device_memory;
}

static enum status allocate_buffers(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;
	const size_t in = (size_t)s->ranks->size * own_bytes(s);
	const size_t out = (size_t)s->whole->total * element_size(s);

	if (!communicates(s))
		return OK;
	s->received = b->alloc(b, in);
	if (!s->received)
		return fail_alloc(b, "gradients of other ranks", in, err);
	if (!is_staged(s))
		return OK;
	s->host_out = b->host_alloc(b, out);
	s->host_in = b->host_alloc(b, in > out ? in : out);
	if (!s->host_out || !s->host_in)
		return fail_alloc(b, "gradients of other ranks", in + out, err);
	return OK;
}

static enum status allocate_squares(struct shards *s, struct error *err)
{
	const size_t bytes = (size_t)s->most * sizeof(*s->squares);

	s->squares = pool_alloc(&s->pool, bytes);
	s->all_squares = pool_alloc(&s->pool, bytes * (size_t)s->ranks->size);
	return s->squares && s->all_squares ? OK : fail_memory(err, "squares", bytes);
}

static void copy_own(struct shards *s)
{
	for (int i = 0; i < s->n; i++)
		if (is_own(s, &s->list[i]))
			s->kernels->add(s->whole->backend, in_own(s, s->own->data, &s->list[i]),
					in_whole(s, s->whole->data, &s->list[i]), s->list[i].count,
					true);
	params_changed(s->own);
}

enum status shards_create(struct shards **out, struct ranks *ranks, struct params *whole,
			  const struct optim_options *optim, struct error *err)
{
	struct shards *s = calloc(1, sizeof(*s));

	if (!s)
		return fail_memory(err, "shards", sizeof(*s));
	assert(whole->data && whole->grad);
	*s = (struct shards){
		.ranks = ranks, .whole = whole, .optim = *optim, .cached_tensor = -1
	};
	s->kernels = whole->backend->optim(whole->type);
	if (make_shards(s, err) != OK || params_allocate(s->own, whole->backend, true, err) != OK ||
	    allocate_buffers(s, err) != OK || allocate_squares(s, err) != OK) {
		shards_destroy(s);
		return FAIL;
	}
	copy_own(s);
	*out = s;
	return OK;
}

void shards_destroy(struct shards *s)
{
	const struct backend *b;

	if (!s)
		return;
	b = s->whole->backend;
	b->release(b, s->received);
	if (s->host_out)
		b->host_release(b, s->host_out);
	if (s->host_in)
		b->host_release(b, s->host_in);
	params_destroy(s->own);
	free(s->shard_memory);
	pool_free(&s->pool);
	free(s);
}

struct params *shards_own(struct shards *s)
{
	return s->own;
}

struct ranks *shards_ranks(const struct shards *s)
{
	return s->ranks;
}

/* ---------------------------------------------------------------- transfers */

static enum status send_shard(struct shards *s, int to, const void *device, size_t in_host,
			      size_t bytes, struct error *err)
{
	if (!s->host_out)
		return ranks_send(s->ranks, to, device, bytes, err);
	return ranks_send(s->ranks, to, s->host_out + in_host, bytes, err);
}

/* Copies a shard to the host once, for any number of ranks. */
static void stage(struct shards *s, const void *device, size_t in_host, size_t bytes)
{
	if (s->host_out)
		s->whole->backend->download(s->whole->backend, s->host_out + in_host, device,
					    bytes);
}

static size_t offset_in(const void *block, const void *at)
{
	return (size_t)((const char *)at - (const char *)block);
}

static enum status send_gradient(struct shards *s, const struct shard *shard, struct error *err)
{
	const char *from = in_whole(s, s->whole->grad, shard);
	const size_t in_host = offset_in(s->whole->grad, from), bytes = shard_bytes(s, shard);

	if (s->ranks->rank >= s->now.contributors || !sends_to(s, shard->owner))
		return OK;
	stage(s, from, in_host, bytes);
	return send_shard(s, shard->owner, from, in_host, bytes, err);
}

static enum status receive_gradients(struct shards *s, const struct shard *shard, struct error *err)
{
	char *blocks = s->host_in ? s->host_in : s->received;

	for (int r = 0; is_own(s, shard) && r < s->now.contributors; r++)
		if (sends_to(s, r) && ranks_receive(s->ranks, r, in_received(s, blocks, r, shard),
						    shard_bytes(s, shard), err) != OK)
			return FAIL;
	return OK;
}

/* Posts the gradients that are complete after `done` instructions. */
static enum status post(struct shards *s, int done, struct error *err)
{
	const int before = s->posted;

	while (s->posted < s->n && s->list[s->order[s->posted]].ready <= done) {
		const struct shard *shard = &s->list[s->order[s->posted++]];

		if (send_gradient(s, shard, err) != OK || receive_gradients(s, shard, err) != OK)
			return FAIL;
	}
	return s->posted > before ? ranks_start(s->ranks, err) : ranks_progress(s->ranks, err);
}

/* What rank r contributed to a shard of this rank. */
static const void *contribution(struct shards *s, int r, const struct shard *shard)
{
	char *device;

	if (!sends_to(s, r))
		return in_whole(s, s->whole->grad, shard);
	device = in_received(s, s->received, r, shard);
	if (s->host_in)
		s->whole->backend->upload(s->whole->backend, device,
					  in_received(s, s->host_in, r, shard),
					  shard_bytes(s, shard));
	return device;
}

/* Sums the gradients of a round that has been posted. */
static enum status finish_round(struct shards *s, struct error *err)
{
	s->in_flight = false;
	if (ranks_wait(s->ranks, err) != OK)
		return FAIL;
	for (int i = 0; i < s->n; i++)
		for (int r = 0; is_own(s, &s->list[i]) && r < s->before.contributors; r++)
			s->kernels->add(s->whole->backend, in_own(s, s->own->grad, &s->list[i]),
					contribution(s, r, &s->list[i]), s->list[i].count,
					s->before.first && r == 0);
	return OK;
}

static enum status watch(void *context, int done, struct error *err)
{
	struct shards *s = context;

	if (!s->open)
		return OK;
	if (s->in_flight)
		return done >= s->untouched ? finish_round(s, err) : ranks_progress(s->ranks, err);
	return post(s, done, err);
}

static void sort_by_readiness(struct shards *s, int instructions)
{
	int next = 0;

	for (int done = 0; done <= instructions; done++)
		for (int i = 0; i < s->n; i++)
			if (s->list[i].ready == done)
				s->order[next++] = i;
	assert(next == s->n);
}

void shards_watch(struct shards *s, struct program *p)
{
	int first, last;

	s->untouched = program_step_count(p);
	for (int i = 0; i < s->n; i++) {
		program_gradient_span(p, s->list[i].param, &first, &last);
		s->list[i].ready = last;
		s->untouched = first < s->untouched ? first : s->untouched;
	}
	sort_by_readiness(s, program_step_count(p));
	program_watch(p, watch, s);
}

enum status shards_begin_round(struct shards *s, int contributors, bool first, struct error *err)
{
	if (s->in_flight && s->untouched == 0 && finish_round(s, err) != OK)
		return FAIL;
	s->now = (struct round){ .contributors = contributors, .first = first };
	s->open = true;
	s->posted = 0;
	return OK;
}

/* Also on a rank that made no gradient, or failed to make it: the others wait for its messages. */
enum status shards_end_round(struct shards *s, struct error *err)
{
	if (s->in_flight && finish_round(s, err) != OK)
		return FAIL;
	if (post(s, ALL_INSTRUCTIONS, err) != OK)
		return FAIL;
	s->before = s->now;
	s->open = false;
	s->in_flight = true;
	return OK;
}

enum status shards_sum(struct shards *s, struct error *err)
{
	return s->in_flight ? finish_round(s, err) : OK;
}

/* -------------------------------------------------------------- the update */

/* The sum of squares over all shards, in their order. */
static double join_squares(void *context, const double *squares)
{
	struct shards *s = context;
	double sum = 0;

	memcpy(s->squares, squares, (size_t)s->own->n * sizeof(*squares));
	s->joined = ranks_gather(s->ranks, s->squares, s->all_squares,
				 (size_t)s->most * sizeof(*squares), &s->join_error);
	for (int i = 0; i < s->n; i++)
		sum += s->all_squares[s->list[i].owner * s->most + s->list[i].index];
	return s->joined == OK ? sum : NAN;
}

#define SHARDS_AT_ONCE 64 /* posted before they start */

static enum status share_shard(struct shards *s, const struct shard *shard, struct error *err)
{
	char *whole = in_whole(s, s->whole->data, shard), *own;
	const size_t in_host = offset_in(s->whole->data, whole), bytes = shard_bytes(s, shard);

	if (sends_to(s, shard->owner) &&
	    ranks_receive(s->ranks, shard->owner, s->host_in ? s->host_in + in_host : whole, bytes,
			  err) != OK)
		return FAIL;
	if (!is_own(s, shard))
		return OK;
	own = in_own(s, s->own->data, shard);
	if (!sends_to(s, shard->owner))
		s->kernels->add(s->whole->backend, whole, own, shard->count, true);
	if (communicates(s))
		stage(s, own, in_host, bytes);
	for (int r = 0; r < s->ranks->size; r++)
		if (sends_to(s, r) && send_shard(s, r, own, in_host, bytes, err) != OK)
			return FAIL;
	return OK;
}

static void upload_shared(struct shards *s)
{
	for (int i = 0; s->host_in && i < s->n; i++) {
		char *whole = in_whole(s, s->whole->data, &s->list[i]);

		if (sends_to(s, s->list[i].owner))
			s->whole->backend->upload(s->whole->backend, whole,
						  s->host_in + offset_in(s->whole->data, whole),
						  shard_bytes(s, &s->list[i]));
	}
}

enum status shards_all_gather(struct shards *s, struct error *err)
{
	if (s->joined != OK) {
		*err = s->join_error;
		return FAIL;
	}
	for (int i = 0; i < s->n; i++) {
		if (share_shard(s, &s->list[i], err) != OK)
			return FAIL;
		if ((i + 1) % SHARDS_AT_ONCE == 0 && ranks_start(s->ranks, err) != OK)
			return FAIL;
	}
	if (ranks_start(s->ranks, err) != OK || ranks_wait(s->ranks, err) != OK)
		return FAIL;
	upload_shared(s);
	params_changed(s->whole);
	return OK;
}

enum status shards_broadcast(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;
	void *host = malloc((size_t)SHARD_ELEMENTS * element_size(s));
	const int64_t total = s->whole->total;
	enum status status = OK;

	if (!host)
		return fail_memory(err, "weights", (size_t)SHARD_ELEMENTS * element_size(s));
	for (int64_t at = 0; s->ranks->size > 1 && at < total && status == OK;
	     at += SHARD_ELEMENTS) {
		const int64_t n = total - at < SHARD_ELEMENTS ? total - at : SHARD_ELEMENTS;
		const size_t bytes = (size_t)n * element_size(s);
		char *device = (char *)s->whole->data + (size_t)at * element_size(s);

		if (s->ranks->rank == 0)
			b->download(b, host, device, bytes);
		status = b->check(b, err);
		if (status == OK)
			status = ranks_broadcast(s->ranks, 0, host, bytes, err);
		if (s->ranks->rank > 0)
			b->upload(b, device, host, bytes);
	}
	free(host);
	params_changed(s->whole);
	copy_own(s);
	return status;
}

/* ------------------------------------------------------- whole state on rank 0 */

#define GRADIENT_BLOCK (-1)

static enum status list_tensors(struct shards *s, struct error *err)
{
	const size_t most = (size_t)s->whole->n * OPTIM_STATES;

	s->tensors = pool_alloc(&s->pool, most * sizeof(*s->tensors));
	s->block_of = pool_alloc(&s->pool, most * sizeof(*s->block_of));
	if (!s->tensors || !s->block_of)
		return fail_memory(err, "optimizer", most * sizeof(*s->tensors));
	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];
		const char *names[OPTIM_STATES];
		const int n = optim_states(&s->optim, p, names);

		for (int block = 0; block < n; block++) {
			struct optim_tensor *t = &s->tensors[s->tensor_count];

			s->block_of[s->tensor_count++] = block;
			t->param = p;
			t->name = pool_printf(&s->pool, "optim.%s.%s", names[block], p->name);
			if (!t->name)
				return fail_memory(err, p->name, 0);
		}
	}
	return OK;
}

/* The optimizer lists the blocks of a parameter one after the other. */
static enum status find_state(struct shards *s, struct error *err)
{
	int n, block = 0;
	const struct optim_tensor *list = optimizer_tensors(s->optimizer, &n);

	s->state = pool_alloc(&s->pool, (size_t)s->own->n * OPTIM_STATES * sizeof(*s->state));
	if (!s->state)
		return fail_memory(err, "optimizer", (size_t)n * sizeof(*s->state));
	for (int i = 0; i < n; i++) {
		block = i > 0 && list[i].param == list[i - 1].param ? block + 1 : 0;
		s->state[(list[i].param - s->own->list) * OPTIM_STATES + block] = list[i].data;
	}
	return OK;
}

static size_t largest_shard_bytes(const struct shards *s)
{
	size_t largest = 0;

	for (int i = 0; i < s->n; i++)
		if (shard_bytes(s, &s->list[i]) > largest)
			largest = shard_bytes(s, &s->list[i]);
	return largest;
}

enum status shards_set_optimizer(struct shards *s, struct optimizer *optimizer, struct error *err)
{
	s->optimizer = optimizer;
	s->shard_memory = malloc(largest_shard_bytes(s));
	if (!s->shard_memory)
		return fail_memory(err, "optimizer", largest_shard_bytes(s));
	if (list_tensors(s, err) != OK || find_state(s, err) != OK)
		return FAIL;
	return optimizer_join(optimizer, join_squares, s, err);
}

const struct optim_tensor *shards_state(const struct shards *s, int *count)
{
	*count = s->tensor_count;
	return s->tensors;
}

enum kind { FINISH, READ, WRITE };

struct request {
	int kind, shard, block;
};

static struct ranks *host_ranks(const struct shards *s)
{
	return s->ranks->host ? s->ranks->host : s->ranks;
}

static void *own_state(const struct shards *s, const struct shard *shard, int block)
{
	return block == GRADIENT_BLOCK ? in_own(s, s->own->grad, shard)
				       : s->state[shard->index * OPTIM_STATES + block];
}

static enum status send_host(struct shards *s, int to, const void *host, size_t bytes,
			     struct error *err)
{
	struct ranks *r = host_ranks(s);

	if (ranks_send(r, to, host, bytes, err) != OK || ranks_start(r, err) != OK)
		return FAIL;
	return ranks_wait(r, err);
}

static enum status receive_host(struct shards *s, int from, void *host, size_t bytes,
				struct error *err)
{
	struct ranks *r = host_ranks(s);

	if (ranks_receive(r, from, host, bytes, err) != OK || ranks_start(r, err) != OK)
		return FAIL;
	return ranks_wait(r, err);
}

/* Rank 0: reads the state of a shard into shard_memory, or writes it from there. */
static enum status transfer_state(struct shards *s, enum kind kind, int index, int block,
				  struct error *err)
{
	struct request request = { kind, index, block };
	const struct shard *shard = &s->list[index];
	const struct backend *b = s->whole->backend;
	const size_t bytes = shard_bytes(s, shard);

	if (is_own(s, shard)) {
		if (kind == READ)
			b->download(b, s->shard_memory, own_state(s, shard, block), bytes);
		else
			b->upload(b, own_state(s, shard, block), s->shard_memory, bytes);
		return b->check(b, err);
	}
	if (ranks_broadcast(s->ranks, 0, &request, sizeof(request), err) != OK)
		return FAIL;
	if (kind == READ)
		return receive_host(s, shard->owner, s->shard_memory, bytes, err);
	return send_host(s, shard->owner, s->shard_memory, bytes, err);
}

static enum status serve_one(struct shards *s, const struct request *request, struct error *err)
{
	const struct shard *shard = &s->list[request->shard];
	const struct backend *b = s->whole->backend;
	const size_t bytes = shard_bytes(s, shard);

	if (!is_own(s, shard))
		return OK;
	if (request->kind == READ) {
		b->download(b, s->shard_memory, own_state(s, shard, request->block), bytes);
		return b->check(b, err) == OK ? send_host(s, 0, s->shard_memory, bytes, err) : FAIL;
	}
	if (receive_host(s, 0, s->shard_memory, bytes, err) != OK)
		return FAIL;
	b->upload(b, own_state(s, shard, request->block), s->shard_memory, bytes);
	return OK;
}

enum status shards_serve(struct shards *s, struct error *err)
{
	struct request request;

	for (;;) {
		if (ranks_broadcast(s->ranks, 0, &request, sizeof(request), err) != OK)
			return FAIL;
		if (request.kind == FINISH)
			return OK;
		if (serve_one(s, &request, err) != OK)
			return FAIL;
	}
}

enum status shards_done(struct shards *s, struct error *err)
{
	struct request request = { FINISH, 0, 0 };

	s->cached_tensor = -1;
	return ranks_broadcast(s->ranks, 0, &request, sizeof(request), err);
}

/* The shard of a tensor that holds one of its elements. */
static int shard_with(const struct shards *s, int tensor, int64_t element)
{
	int i = 0;

	while (&s->whole->list[s->list[i].param] != s->tensors[tensor].param ||
	       element >= s->list[i].first + s->list[i].count)
		i++;
	return i;
}

/* A file is written in small parts: the shard that was read last serves the next part, too. */
static enum status cache_shard(struct shards *s, int tensor, int shard, struct error *err)
{
	if (s->cached_tensor == tensor && s->cached_shard == shard)
		return OK;
	s->cached_tensor = -1;
	if (transfer_state(s, READ, shard, s->block_of[tensor], err) != OK)
		return FAIL;
	s->cached_tensor = tensor;
	s->cached_shard = shard;
	return OK;
}

enum status shards_read(struct shards *s, int tensor, size_t offset, size_t bytes, void *host,
			struct error *err)
{
	for (size_t part; bytes > 0; bytes -= part, offset += part, host = (char *)host + part) {
		const int i = shard_with(s, tensor, (int64_t)(offset / element_size(s)));
		const size_t skip = offset - (size_t)s->list[i].first * element_size(s);
		const size_t left = shard_bytes(s, &s->list[i]) - skip;

		part = bytes < left ? bytes : left;
		if (cache_shard(s, tensor, i, err) != OK)
			return FAIL;
		memcpy(host, (const char *)s->shard_memory + skip, part);
	}
	return OK;
}

enum status shards_write(struct shards *s, int tensor, const void *host, struct error *err)
{
	const struct param *p = s->tensors[tensor].param;

	s->cached_tensor = -1;
	for (int i = 0; i < s->n; i++) {
		const struct shard *shard = &s->list[i];

		if (&s->whole->list[shard->param] != p)
			continue;
		memcpy(s->shard_memory, (const char *)host + (size_t)shard->first * element_size(s),
		       shard_bytes(s, shard));
		if (transfer_state(s, WRITE, i, s->block_of[tensor], err) != OK)
			return FAIL;
	}
	return OK;
}

enum status shards_fetch_gradient(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;

	s->cached_tensor = -1;
	for (int i = 0; i < s->n; i++) {
		if (transfer_state(s, READ, i, GRADIENT_BLOCK, err) != OK)
			return FAIL;
		b->upload(b, in_whole(s, s->whole->grad, &s->list[i]), s->shard_memory,
			  shard_bytes(s, &s->list[i]));
	}
	return OK;
}
