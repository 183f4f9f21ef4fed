#include "core/ranks/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/ranks/single.h"
#include "core/util/library.h"

#define MPI_LIBRARY "kablate_mpi.so"
#define NCCL_LIBRARY "kablate_nccl.so"

/* ------------------------------------------------------------------ opening */

typedef enum status (*mpi_opener)(struct ranks *r, struct error *err);
typedef enum status (*nccl_opener)(struct ranks *r, void *device, struct error *err);

static enum status find_function(const char *name, const char *function, void **address,
				 struct error *err)
{
	/* MPI's plugins look for its symbols, hence RTLD_GLOBAL. */
	return library_load(name, RTLD_NOW | RTLD_GLOBAL, function, address, err);
}

static enum status open_mpi(struct ranks *r, int size, struct error *err)
{
	mpi_opener open;

	if (!library_is_built(MPI_LIBRARY))
		return fail(
			err,
			"CONFIG_RANKS=%d: this build has no MPI: install libopenmpi-dev, then make",
			size);
	if (find_function(MPI_LIBRARY, "ranks_open_mpi", (void **)&open, err) != OK)
		return fail_prefix(err, "MPI cannot be loaded");
	if (open(r, err) != OK)
		return FAIL;
	if (r->size == size)
		return OK;
	fail(err, "CONFIG_RANKS=%d, but %d process%s started: use make, or mpirun -n %d", size,
	     r->size, r->size == 1 ? " was" : "es were", size);
	r->type->close(r);
	return FAIL;
}

enum status ranks_open(struct ranks **out, int size, struct error *err)
{
	struct ranks *r = calloc(1, sizeof(*r));

	if (!r)
		return fail_memory(err, "ranks", sizeof(*r));
	*r = (struct ranks){ .size = 1, .node_size = 1, .type = &ranks_single };
	if (size > 1 && open_mpi(r, size, err) != OK) {
		free(r);
		return FAIL;
	}
	*out = r;
	return OK;
}

enum status ranks_use_nccl(struct ranks **r, void *device, struct error *err)
{
	struct ranks *host = *r, *nccl;
	nccl_opener open;

	if (!library_is_built(NCCL_LIBRARY))
		return fail(err, "this build has no NCCL");
	if (find_function(NCCL_LIBRARY, "ranks_open_nccl", (void **)&open, err) != OK)
		return fail_prefix(err, "NCCL cannot be loaded");
	nccl = malloc(sizeof(*nccl));
	if (!nccl)
		return fail_memory(err, "ranks", sizeof(*nccl));
	*nccl = *host;
	nccl->host = host;
	if (open(nccl, device, err) != OK) {
		free(nccl);
		return FAIL;
	}
	*r = nccl;
	return OK;
}

void ranks_close(struct ranks *r)
{
	if (!r)
		return;
	r->type->close(r);
	ranks_close(r->host);
	free(r);
}

/* ---------------------------------------------------------------------- use */

static struct ranks *host_of(struct ranks *r)
{
	return r->host ? r->host : r;
}

enum status ranks_send(struct ranks *r, int to, const void *memory, size_t bytes, struct error *err)
{
	return r->type->send(r, to, memory, bytes, err);
}

enum status ranks_receive(struct ranks *r, int from, void *memory, size_t bytes, struct error *err)
{
	return r->type->receive(r, from, memory, bytes, err);
}

enum status ranks_start(struct ranks *r, struct error *err)
{
	return r->type->start(r, err);
}

enum status ranks_progress(struct ranks *r, struct error *err)
{
	return r->type->progress(r, err);
}

enum status ranks_wait(struct ranks *r, struct error *err)
{
	return r->type->wait(r, err);
}

enum status ranks_broadcast(struct ranks *r, int from, void *memory, size_t bytes,
			    struct error *err)
{
	return host_of(r)->type->broadcast(host_of(r), from, memory, bytes, err);
}

enum status ranks_gather(struct ranks *r, const void *mine, void *all, size_t bytes,
			 struct error *err)
{
	return host_of(r)->type->gather(host_of(r), mine, all, bytes, err);
}

enum status ranks_agree(struct ranks *r, enum status mine, struct error *err)
{
	const char failed = mine != OK;
	struct error first;
	char *all;
	int who = 0;

	if (r->size == 1)
		return mine;
	all = malloc((size_t)r->size);
	if (!all)
		return fail_memory(err, "ranks", (size_t)r->size);
	if (ranks_gather(r, &failed, all, 1, err) != OK) {
		free(all);
		return FAIL;
	}
	while (who < r->size && !all[who])
		who++;
	free(all);
	if (who == r->size)
		return OK;
	if (who == r->rank)
		fail(&first, "rank %d: %.*s", who, (int)sizeof(first.text) - 32, err->text);
	if (ranks_broadcast(r, who, &first, sizeof(first), err) == OK)
		*err = first;
	return FAIL;
}

void ranks_abort(struct ranks *r, int status)
{
	host_of(r)->type->abort(host_of(r), status);
	exit(status);
}
