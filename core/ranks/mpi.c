/*
 * MPI as a transport: a library of its own, so that programs need MPI only where ranks are many.
 * ranks.c loads it.
 */
#include <mpi.h>
#include <stdlib.h>

#include "core/ranks/ranks.h"

enum status ranks_open_mpi(struct ranks *r, struct error *err);

struct flight {
	MPI_Request *list; /* of messages under way */
	int n, capacity;
};

/* Lengths of MPI are ints: a longer message is sent in several. */
#define MOST_BYTES ((size_t)1 << 30)

static enum status check(int code, const char *what, struct error *err)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;

	if (code == MPI_SUCCESS)
		return OK;
	MPI_Error_string(code, text, &length);
	return fail(err, "MPI: %s: %s", what, text);
}

static MPI_Request *next_request(struct flight *f)
{
	MPI_Request *list = f->list;

	if (f->n == f->capacity) {
		list = realloc(list, (size_t)(2 * f->capacity + 256) * sizeof(*list));
		if (!list)
			return NULL;
		f->list = list;
		f->capacity = 2 * f->capacity + 256;
	}
	return &list[f->n++];
}

static int part_of(size_t bytes)
{
	return (int)(bytes < MOST_BYTES ? bytes : MOST_BYTES);
}

static enum status mpi_send(struct ranks *r, int to, const void *memory, size_t bytes,
			    struct error *err)
{
	const char *at = memory;

	for (int part; bytes > 0; bytes -= (size_t)part, at += part) {
		MPI_Request *request = next_request(r->context);

		if (!request)
			return fail_memory(err, "ranks", sizeof(*request));
		*request = MPI_REQUEST_NULL;
		part = part_of(bytes);
		if (check(MPI_Isend(at, part, MPI_BYTE, to, 0, MPI_COMM_WORLD, request), "send",
			  err) != OK)
			return FAIL;
	}
	return OK;
}

static enum status mpi_receive(struct ranks *r, int from, void *memory, size_t bytes,
			       struct error *err)
{
	char *at = memory;

	for (int part; bytes > 0; bytes -= (size_t)part, at += part) {
		MPI_Request *request = next_request(r->context);

		if (!request)
			return fail_memory(err, "ranks", sizeof(*request));
		*request = MPI_REQUEST_NULL;
		part = part_of(bytes);
		if (check(MPI_Irecv(at, part, MPI_BYTE, from, 0, MPI_COMM_WORLD, request),
			  "receive", err) != OK)
			return FAIL;
	}
	return OK;
}

static enum status mpi_start(struct ranks *r, struct error *err)
{
	(void)r, (void)err;
	return OK;
}

/* MPI makes progress only while it is called. */
static enum status mpi_progress(struct ranks *r, struct error *err)
{
	struct flight *f = r->context;
	int done;

	if (f->n == 0)
		return OK;
	return check(MPI_Testall(f->n, f->list, &done, MPI_STATUSES_IGNORE), "send", err);
}

static enum status mpi_wait(struct ranks *r, struct error *err)
{
	struct flight *f = r->context;
	const int n = f->n;

	f->n = 0;
	return check(MPI_Waitall(n, f->list, MPI_STATUSES_IGNORE), "wait", err);
}

static enum status mpi_broadcast(struct ranks *r, int from, void *memory, size_t bytes,
				 struct error *err)
{
	char *at = memory;

	(void)r;
	for (int part; bytes > 0; bytes -= (size_t)part, at += part) {
		part = part_of(bytes);
		if (check(MPI_Bcast(at, part, MPI_BYTE, from, MPI_COMM_WORLD), "broadcast", err) !=
		    OK)
			return FAIL;
	}
	return OK;
}

static enum status mpi_gather(struct ranks *r, const void *mine, void *all, size_t bytes,
			      struct error *err)
{
	(void)r;
	if (bytes > MOST_BYTES)
		return fail(err, "MPI: %zu bytes of each rank are too many to gather", bytes);
	return check(MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
				   MPI_COMM_WORLD),
		     "gather", err);
}

static void mpi_abort(struct ranks *r, int status)
{
	(void)r;
	MPI_Abort(MPI_COMM_WORLD, status);
}

static void mpi_close(struct ranks *r)
{
	struct flight *f = r->context;

	MPI_Finalize();
	free(f->list);
	free(f);
}

static const struct ranks_type type = {
	.name = "MPI",
	.send = mpi_send,
	.receive = mpi_receive,
	.start = mpi_start,
	.progress = mpi_progress,
	.wait = mpi_wait,
	.broadcast = mpi_broadcast,
	.gather = mpi_gather,
	.abort = mpi_abort,
	.close = mpi_close,
};

static void find_node(struct ranks *r)
{
	MPI_Comm node;

	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, r->rank, MPI_INFO_NULL, &node);
	MPI_Comm_rank(node, &r->node_rank);
	MPI_Comm_size(node, &r->node_size);
	MPI_Comm_free(&node);
}

enum status ranks_open_mpi(struct ranks *r, struct error *err)
{
	int given;

	if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given), "start", err) != OK)
		return FAIL;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
	MPI_Comm_size(MPI_COMM_WORLD, &r->size);
	find_node(r);
	r->type = &type;
	r->context = calloc(1, sizeof(struct flight));
	return r->context ? OK : fail_memory(err, "ranks", sizeof(struct flight));
}
