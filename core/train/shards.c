#include "core/train/shards.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/backend.h"
#include "core/optim/kernels.h"

/*
 * Elements: 1 MiB of floats travels as fast as more of them, and the pieces of one layer are many
 * enough for several owners.
 */
#define PIECE_ELEMENTS ((int64_t)1 << 18)
#define ALL_INSTRUCTIONS INT_MAX
#define STATE_BLOCKS 3

struct piece {
	int param;
	int64_t first, count; /* elements of the parameter */
	int owner;
	int index;  /* among the pieces of its owner */
	int64_t at; /* its first element in the blocks of its owner */
	int ready;  /* instructions after which its gradient is whole */
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
	enum optim_kind kind;

	struct piece *pieces;
	int n;
	int *order;    /* of the pieces, as they become ready */
	int *owned;    /* by rank: how many pieces */
	int most;      /* the largest of them */
	int untouched; /* so many instructions leave all gradients alone */

	void *arrived;		  /* on the device: by rank, blocks as large as the own ones */
	char *host_out, *host_in; /* for pieces that travel through memory of the host; or NULL */
	size_t bytes;

	struct round now, before;
	bool open;	 /* `now` is being made */
	bool travelling; /* `before` is not summed up yet */
	int announced;	 /* pieces of `now`, in order[] */

	double *squares, *all_squares; /* by index, and by rank and index */
	enum status joined;
	struct error join_error;

	struct optimizer *optimizer;
	void **state;		      /* by index of the own pieces and block */
	struct optim_tensor *tensors; /* of the whole state */
	int *block_of;		      /* by tensor */
	int tensor_count;
	void *piece_memory; /* on the host: one piece of state */
	int kept_tensor, kept_piece;
};

/* ------------------------------------------------------------------ pieces */

static int64_t largest_piece(const struct shards *s, const struct param *p)
{
	return optim_elementwise(s->kind, p) ? PIECE_ELEMENTS : p->count;
}

static int count_pieces(const struct shards *s)
{
	int64_t n = 0;

	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];

		n += (p->count + largest_piece(s, p) - 1) / largest_piece(s, p);
	}
	return (int)n;
}

static void cut(struct shards *s)
{
	struct piece *next = s->pieces;

	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];
		const int64_t most = largest_piece(s, p);

		for (int64_t first = 0; first < p->count; first += most)
			*next++ = (struct piece){
				.param = i,
				.first = first,
				.count = p->count - first < most ? p->count - first : most,
			};
	}
}

/* Each piece goes to the rank that has least so far. */
static enum status deal(struct shards *s, struct error *err)
{
	int64_t *elements = calloc((size_t)s->ranks->size, sizeof(*elements));

	if (!elements)
		return fail_memory(err, "ranks", (size_t)s->ranks->size * sizeof(*elements));
	for (int i = 0; i < s->n; i++) {
		int least = 0;

		for (int r = 1; r < s->ranks->size; r++)
			if (elements[r] < elements[least])
				least = r;
		s->pieces[i].owner = least;
		s->pieces[i].index = s->owned[least]++;
		elements[least] += s->pieces[i].count;
	}
	for (int r = 0; r < s->ranks->size; r++)
		s->most = s->owned[r] > s->most ? s->owned[r] : s->most;
	free(elements);
	return OK;
}

/* A piece is a parameter of its own: a matrix that is cut is only a stretch of its elements. */
static enum status name_own(struct shards *s, const struct piece *piece, struct error *err)
{
	const struct param *p = &s->whole->list[piece->param];
	const bool cut_up = piece->count < p->count;
	char name[300];
	int index;

	snprintf(name, sizeof(name), "%s[%lld]", p->name, (long long)piece->first);
	if (params_name(s->own, name, &p->init, cut_up ? 1 : p->ndim,
			cut_up ? &piece->count : p->dim, &index, err) != OK)
		return FAIL;
	s->own->list[index].role = p->role;
	s->own->list[index].origin = p->origin;
	return index == piece->index ? OK : fail(err, "two pieces are named %s", name);
}

static enum status make_pieces(struct shards *s, struct error *err)
{
	s->n = count_pieces(s);
	if (s->n < s->ranks->size)
		return fail(err, "CONFIG_RANKS=%d: the model has only %d pieces to divide",
			    s->ranks->size, s->n);
	s->pieces = pool_alloc(&s->pool, (size_t)s->n * sizeof(*s->pieces));
	s->order = pool_alloc(&s->pool, (size_t)s->n * sizeof(*s->order));
	s->owned = pool_alloc(&s->pool, (size_t)s->ranks->size * sizeof(*s->owned));
	if (!s->pieces || !s->order || !s->owned)
		return fail_memory(err, "pieces", (size_t)s->n * sizeof(*s->pieces));
	cut(s);
	if (deal(s, err) != OK || params_create(&s->own, s->whole->type, err) != OK)
		return FAIL;
	for (int i = 0; i < s->n; i++)
		if (s->pieces[i].owner == s->ranks->rank && name_own(s, &s->pieces[i], err) != OK)
			return FAIL;
	for (int i = 0; i < s->n; i++)
		if (s->pieces[i].owner == s->ranks->rank)
			s->pieces[i].at = s->own->list[s->pieces[i].index].offset;
	return OK;
}

/* ---------------------------------------------------------------- addresses */

static size_t element_size(const struct shards *s)
{
	return dtype_size(s->whole->type);
}

static size_t piece_bytes(const struct shards *s, const struct piece *piece)
{
	return (size_t)piece->count * element_size(s);
}

static size_t own_bytes(const struct shards *s)
{
	return (size_t)s->own->total * element_size(s);
}

static bool is_own(const struct shards *s, const struct piece *piece)
{
	return piece->owner == s->ranks->rank;
}

/* Where a piece lies in a block of the whole parameters. */
static char *in_whole(const struct shards *s, void *block, const struct piece *piece)
{
	return (char *)block +
	       (size_t)(s->whole->list[piece->param].offset + piece->first) * element_size(s);
}

static char *in_own(const struct shards *s, void *block, const struct piece *piece)
{
	return (char *)block + (size_t)piece->at * element_size(s);
}

/* Where a piece of rank `from` arrives. */
static char *in_arrived(const struct shards *s, void *blocks, int from, const struct piece *piece)
{
	return in_own(s, (char *)blocks + (size_t)from * own_bytes(s), piece);
}

/* ----------------------------------------------------------------- creation */

/* Does a piece of this rank travel to the rank? */
static bool travels_to(const struct shards *s, int rank)
{
	return rank != s->ranks->rank || s->ranks->to_itself;
}

static bool anything_travels(const struct shards *s)
{
	return s->ranks->size > 1 || s->ranks->to_itself;
}

/* A transport that knows only memory of the host serves a GPU through copies. */
static bool is_staged(const struct shards *s)
{
	return anything_travels(s) && s->whole->backend->host_alloc &&
	       !s->ranks->type->device_memory;
}

static enum status allocate_travel(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;
	const size_t in = (size_t)s->ranks->size * own_bytes(s);
	const size_t out = (size_t)s->whole->total * element_size(s);

	s->bytes = 2 * own_bytes(s);
	if (!anything_travels(s))
		return OK;
	s->bytes += in;
	s->arrived = b->alloc(b, in);
	if (!s->arrived)
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

static void take_own(struct shards *s)
{
	for (int i = 0; i < s->n; i++)
		if (is_own(s, &s->pieces[i]))
			s->kernels->add(s->whole->backend, in_own(s, s->own->data, &s->pieces[i]),
					in_whole(s, s->whole->data, &s->pieces[i]),
					s->pieces[i].count, true);
	params_changed(s->own);
}

enum status shards_create(struct shards **out, struct ranks *ranks, struct params *whole,
			  enum optim_kind kind, struct error *err)
{
	struct shards *s = calloc(1, sizeof(*s));

	if (!s)
		return fail_memory(err, "shards", sizeof(*s));
	assert(whole->data && whole->grad);
	*s = (struct shards){ .ranks = ranks, .whole = whole, .kind = kind, .kept_tensor = -1 };
	s->kernels = whole->backend->optim(whole->type);
	if (make_pieces(s, err) != OK || params_allocate(s->own, whole->backend, true, err) != OK ||
	    allocate_travel(s, err) != OK || allocate_squares(s, err) != OK) {
		shards_destroy(s);
		return FAIL;
	}
	take_own(s);
	*out = s;
	return OK;
}

void shards_destroy(struct shards *s)
{
	const struct backend *b;

	if (!s)
		return;
	b = s->whole->backend;
	b->release(b, s->arrived);
	if (s->host_out)
		b->host_release(b, s->host_out);
	if (s->host_in)
		b->host_release(b, s->host_in);
	params_destroy(s->own);
	free(s->piece_memory);
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

size_t shards_bytes(const struct shards *s)
{
	return s->bytes;
}

/* --------------------------------------------------------------- travelling */

static enum status send_piece(struct shards *s, int to, const void *device, size_t in_host,
			      size_t bytes, struct error *err)
{
	if (!s->host_out)
		return ranks_send(s->ranks, to, device, bytes, err);
	return ranks_send(s->ranks, to, s->host_out + in_host, bytes, err);
}

/* Bring a piece to the host once, for any number of ranks. */
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

static enum status send_gradient(struct shards *s, const struct piece *piece, struct error *err)
{
	const char *from = in_whole(s, s->whole->grad, piece);
	const size_t in_host = offset_in(s->whole->grad, from), bytes = piece_bytes(s, piece);

	if (s->ranks->rank >= s->now.contributors || !travels_to(s, piece->owner))
		return OK;
	stage(s, from, in_host, bytes);
	return send_piece(s, piece->owner, from, in_host, bytes, err);
}

static enum status receive_gradients(struct shards *s, const struct piece *piece, struct error *err)
{
	char *blocks = s->host_in ? s->host_in : s->arrived;

	for (int r = 0; is_own(s, piece) && r < s->now.contributors; r++)
		if (travels_to(s, r) && ranks_receive(s->ranks, r, in_arrived(s, blocks, r, piece),
						      piece_bytes(s, piece), err) != OK)
			return FAIL;
	return OK;
}

/* Announce the pieces that are whole after so many instructions. */
static enum status announce(struct shards *s, int done, struct error *err)
{
	const int before = s->announced;

	while (s->announced < s->n && s->pieces[s->order[s->announced]].ready <= done) {
		const struct piece *piece = &s->pieces[s->order[s->announced++]];

		if (send_gradient(s, piece, err) != OK || receive_gradients(s, piece, err) != OK)
			return FAIL;
	}
	return s->announced > before ? ranks_start(s->ranks, err) : ranks_push(s->ranks, err);
}

/* What rank r contributed to a piece of this rank. */
static const void *contribution(struct shards *s, int r, const struct piece *piece)
{
	char *device;

	if (!travels_to(s, r))
		return in_whole(s, s->whole->grad, piece);
	device = in_arrived(s, s->arrived, r, piece);
	if (s->host_in)
		s->whole->backend->upload(s->whole->backend, device,
					  in_arrived(s, s->host_in, r, piece),
					  piece_bytes(s, piece));
	return device;
}

/* Sum up a round whose pieces have all been announced. */
static enum status settle(struct shards *s, struct error *err)
{
	s->travelling = false;
	if (ranks_wait(s->ranks, err) != OK)
		return FAIL;
	for (int i = 0; i < s->n; i++)
		for (int r = 0; is_own(s, &s->pieces[i]) && r < s->before.contributors; r++)
			s->kernels->add(s->whole->backend, in_own(s, s->own->grad, &s->pieces[i]),
					contribution(s, r, &s->pieces[i]), s->pieces[i].count,
					s->before.first && r == 0);
	return OK;
}

static enum status watch(void *context, int done, struct error *err)
{
	struct shards *s = context;

	if (!s->open)
		return OK;
	if (s->travelling)
		return done >= s->untouched ? settle(s, err) : ranks_push(s->ranks, err);
	return announce(s, done, err);
}

static void sort_by_readiness(struct shards *s, int instructions)
{
	int next = 0;

	for (int done = 0; done <= instructions; done++)
		for (int i = 0; i < s->n; i++)
			if (s->pieces[i].ready == done)
				s->order[next++] = i;
	assert(next == s->n);
}

void shards_watch(struct shards *s, struct program *p)
{
	int first, last;

	s->untouched = program_step_count(p);
	for (int i = 0; i < s->n; i++) {
		program_gradient_span(p, s->pieces[i].param, &first, &last);
		s->pieces[i].ready = last;
		s->untouched = first < s->untouched ? first : s->untouched;
	}
	sort_by_readiness(s, program_step_count(p));
	program_watch(p, watch, s);
}

enum status shards_begin_round(struct shards *s, int contributors, bool first, struct error *err)
{
	if (s->travelling && s->untouched == 0 && settle(s, err) != OK)
		return FAIL;
	s->now = (struct round){ .contributors = contributors, .first = first };
	s->open = true;
	s->announced = 0;
	return OK;
}

/* Also on a rank that made no gradient, or that failed to: the others wait for its pieces. */
enum status shards_end_round(struct shards *s, struct error *err)
{
	if (s->travelling && settle(s, err) != OK)
		return FAIL;
	if (announce(s, ALL_INSTRUCTIONS, err) != OK)
		return FAIL;
	s->before = s->now;
	s->open = false;
	s->travelling = true;
	return OK;
}

enum status shards_sum(struct shards *s, struct error *err)
{
	return s->travelling ? settle(s, err) : OK;
}

/* -------------------------------------------------------------- the update */

/* Squares of all pieces, added in the order of pieces. */
static double join(void *context, const double *squares)
{
	struct shards *s = context;
	double sum = 0;

	memcpy(s->squares, squares, (size_t)s->own->n * sizeof(*squares));
	s->joined = ranks_gather(s->ranks, s->squares, s->all_squares,
				 (size_t)s->most * sizeof(*squares), &s->join_error);
	for (int i = 0; i < s->n; i++)
		sum += s->all_squares[s->pieces[i].owner * s->most + s->pieces[i].index];
	return s->joined == OK ? sum : NAN;
}

#define PIECES_AT_ONCE 64 /* announced before they start */

static enum status share_piece(struct shards *s, const struct piece *piece, struct error *err)
{
	char *whole = in_whole(s, s->whole->data, piece), *own;
	const size_t in_host = offset_in(s->whole->data, whole), bytes = piece_bytes(s, piece);

	if (travels_to(s, piece->owner) &&
	    ranks_receive(s->ranks, piece->owner, s->host_in ? s->host_in + in_host : whole, bytes,
			  err) != OK)
		return FAIL;
	if (!is_own(s, piece))
		return OK;
	own = in_own(s, s->own->data, piece);
	if (!travels_to(s, piece->owner))
		s->kernels->add(s->whole->backend, whole, own, piece->count, true);
	if (anything_travels(s))
		stage(s, own, in_host, bytes);
	for (int r = 0; r < s->ranks->size; r++)
		if (travels_to(s, r) && send_piece(s, r, own, in_host, bytes, err) != OK)
			return FAIL;
	return OK;
}

static void upload_shared(struct shards *s)
{
	for (int i = 0; s->host_in && i < s->n; i++) {
		char *whole = in_whole(s, s->whole->data, &s->pieces[i]);

		if (travels_to(s, s->pieces[i].owner))
			s->whole->backend->upload(s->whole->backend, whole,
						  s->host_in + offset_in(s->whole->data, whole),
						  piece_bytes(s, &s->pieces[i]));
	}
}

enum status shards_share(struct shards *s, struct error *err)
{
	if (s->joined != OK) {
		*err = s->join_error;
		return FAIL;
	}
	for (int i = 0; i < s->n; i++) {
		if (share_piece(s, &s->pieces[i], err) != OK)
			return FAIL;
		if ((i + 1) % PIECES_AT_ONCE == 0 && ranks_start(s->ranks, err) != OK)
			return FAIL;
	}
	if (ranks_start(s->ranks, err) != OK || ranks_wait(s->ranks, err) != OK)
		return FAIL;
	upload_shared(s);
	params_changed(s->whole);
	return OK;
}

enum status shards_spread(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;
	void *host = malloc((size_t)PIECE_ELEMENTS * element_size(s));
	const int64_t total = s->whole->total;
	enum status status = OK;

	if (!host)
		return fail_memory(err, "weights", (size_t)PIECE_ELEMENTS * element_size(s));
	for (int64_t at = 0; s->ranks->size > 1 && at < total && status == OK;
	     at += PIECE_ELEMENTS) {
		const int64_t n = total - at < PIECE_ELEMENTS ? total - at : PIECE_ELEMENTS;
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
	take_own(s);
	return status;
}

/* ------------------------------------------------------- whole state on rank 0 */

static const char *const block_names[STATE_BLOCKS] = { "m", "v", "vmax" };

#define GRADIENT_BLOCK (-1)

static enum status list_tensors(struct shards *s, struct error *err)
{
	const size_t most = (size_t)s->whole->n * STATE_BLOCKS;

	s->tensors = pool_alloc(&s->pool, most * sizeof(*s->tensors));
	s->block_of = pool_alloc(&s->pool, most * sizeof(*s->block_of));
	if (!s->tensors || !s->block_of)
		return fail_memory(err, "optimizer", most * sizeof(*s->tensors));
	for (int i = 0; i < s->whole->n; i++) {
		const struct param *p = &s->whole->list[i];

		for (int block = 0; block < optim_numbers(s->kind, p); block++) {
			struct optim_tensor *t = &s->tensors[s->tensor_count];

			s->block_of[s->tensor_count++] = block;
			t->param = p;
			t->name = pool_printf(&s->pool, "optim.%s.%s", block_names[block], p->name);
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

	s->state = pool_alloc(&s->pool, (size_t)s->own->n * STATE_BLOCKS * sizeof(*s->state));
	if (!s->state)
		return fail_memory(err, "optimizer", (size_t)n * sizeof(*s->state));
	for (int i = 0; i < n; i++) {
		block = i > 0 && list[i].param == list[i - 1].param ? block + 1 : 0;
		s->state[(list[i].param - s->own->list) * STATE_BLOCKS + block] = list[i].data;
	}
	return OK;
}

static size_t largest_piece_bytes(const struct shards *s)
{
	size_t largest = 0;

	for (int i = 0; i < s->n; i++)
		if (piece_bytes(s, &s->pieces[i]) > largest)
			largest = piece_bytes(s, &s->pieces[i]);
	return largest;
}

enum status shards_join(struct shards *s, struct optimizer *optimizer, struct error *err)
{
	s->optimizer = optimizer;
	s->piece_memory = malloc(largest_piece_bytes(s));
	if (!s->piece_memory)
		return fail_memory(err, "optimizer", largest_piece_bytes(s));
	if (list_tensors(s, err) != OK || find_state(s, err) != OK)
		return FAIL;
	return optimizer_join(optimizer, join, s, err);
}

const struct optim_tensor *shards_state(const struct shards *s, int *count)
{
	*count = s->tensor_count;
	return s->tensors;
}

enum errand { FINISH, READ, WRITE };

struct request {
	int errand, piece, block;
};

static struct ranks *host_ranks(const struct shards *s)
{
	return s->ranks->host ? s->ranks->host : s->ranks;
}

static void *own_state(const struct shards *s, const struct piece *piece, int block)
{
	return block == GRADIENT_BLOCK ? in_own(s, s->own->grad, piece)
				       : s->state[piece->index * STATE_BLOCKS + block];
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

/* Rank 0: a piece of state into piece_memory, or from there to its owner. */
static enum status carry(struct shards *s, enum errand errand, int index, int block,
			 struct error *err)
{
	struct request request = { errand, index, block };
	const struct piece *piece = &s->pieces[index];
	const struct backend *b = s->whole->backend;
	const size_t bytes = piece_bytes(s, piece);

	if (is_own(s, piece)) {
		if (errand == READ)
			b->download(b, s->piece_memory, own_state(s, piece, block), bytes);
		else
			b->upload(b, own_state(s, piece, block), s->piece_memory, bytes);
		return b->check(b, err);
	}
	if (ranks_broadcast(s->ranks, 0, &request, sizeof(request), err) != OK)
		return FAIL;
	if (errand == READ)
		return receive_host(s, piece->owner, s->piece_memory, bytes, err);
	return send_host(s, piece->owner, s->piece_memory, bytes, err);
}

static enum status serve_one(struct shards *s, const struct request *request, struct error *err)
{
	const struct piece *piece = &s->pieces[request->piece];
	const struct backend *b = s->whole->backend;
	const size_t bytes = piece_bytes(s, piece);

	if (!is_own(s, piece))
		return OK;
	if (request->errand == READ) {
		b->download(b, s->piece_memory, own_state(s, piece, request->block), bytes);
		return b->check(b, err) == OK ? send_host(s, 0, s->piece_memory, bytes, err) : FAIL;
	}
	if (receive_host(s, 0, s->piece_memory, bytes, err) != OK)
		return FAIL;
	b->upload(b, own_state(s, piece, request->block), s->piece_memory, bytes);
	return OK;
}

enum status shards_serve(struct shards *s, struct error *err)
{
	struct request request;

	for (;;) {
		if (ranks_broadcast(s->ranks, 0, &request, sizeof(request), err) != OK)
			return FAIL;
		if (request.errand == FINISH)
			return OK;
		if (serve_one(s, &request, err) != OK)
			return FAIL;
	}
}

enum status shards_done(struct shards *s, struct error *err)
{
	struct request request = { FINISH, 0, 0 };

	s->kept_tensor = -1;
	return ranks_broadcast(s->ranks, 0, &request, sizeof(request), err);
}

/* The piece of a tensor that holds one of its elements. */
static int piece_with(const struct shards *s, int tensor, int64_t element)
{
	int i = 0;

	while (&s->whole->list[s->pieces[i].param] != s->tensors[tensor].param ||
	       element >= s->pieces[i].first + s->pieces[i].count)
		i++;
	return i;
}

/* A file is written in small parts: the piece that was read last is kept for the next one. */
static enum status keep(struct shards *s, int tensor, int piece, struct error *err)
{
	if (s->kept_tensor == tensor && s->kept_piece == piece)
		return OK;
	s->kept_tensor = -1;
	if (carry(s, READ, piece, s->block_of[tensor], err) != OK)
		return FAIL;
	s->kept_tensor = tensor;
	s->kept_piece = piece;
	return OK;
}

enum status shards_read(struct shards *s, int tensor, size_t offset, size_t bytes, void *host,
			struct error *err)
{
	for (size_t part; bytes > 0; bytes -= part, offset += part, host = (char *)host + part) {
		const int i = piece_with(s, tensor, (int64_t)(offset / element_size(s)));
		const size_t skip = offset - (size_t)s->pieces[i].first * element_size(s);
		const size_t left = piece_bytes(s, &s->pieces[i]) - skip;

		part = bytes < left ? bytes : left;
		if (keep(s, tensor, i, err) != OK)
			return FAIL;
		memcpy(host, (const char *)s->piece_memory + skip, part);
	}
	return OK;
}

enum status shards_write(struct shards *s, int tensor, const void *host, struct error *err)
{
	const struct param *p = s->tensors[tensor].param;

	s->kept_tensor = -1;
	for (int i = 0; i < s->n; i++) {
		const struct piece *piece = &s->pieces[i];

		if (&s->whole->list[piece->param] != p)
			continue;
		memcpy(s->piece_memory, (const char *)host + (size_t)piece->first * element_size(s),
		       piece_bytes(s, piece));
		if (carry(s, WRITE, i, s->block_of[tensor], err) != OK)
			return FAIL;
	}
	return OK;
}

enum status shards_fetch_gradient(struct shards *s, struct error *err)
{
	const struct backend *b = s->whole->backend;

	s->kept_tensor = -1;
	for (int i = 0; i < s->n; i++) {
		if (carry(s, READ, i, GRADIENT_BLOCK, err) != OK)
			return FAIL;
		b->upload(b, in_whole(s, s->whole->grad, &s->pieces[i]), s->piece_memory,
			  piece_bytes(s, &s->pieces[i]));
	}
	return OK;
}
