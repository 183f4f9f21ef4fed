/*
 * ranks - the processes that train one run together, numbered from 0.
 *
 * Pieces of memory travel between two ranks while both compute; they arrive in the
 * order in which they were sent.  Everything else waits for all ranks, and all ranks
 * must call it in the same order.  Nothing is added up here: a library's sums have an
 * order of their own, ours have the order of the ranks.
 */
#ifndef CORE_RANKS_RANKS_H
#define CORE_RANKS_RANKS_H

#include <stddef.h>

#include "core/util/status.h"

struct ranks;

/* What carries the pieces. */
struct ranks_type {
	const char *name;
	bool device_memory; /* pieces lie on the GPU, not on the host */

	enum status (*send)(struct ranks *r, int to, const void *memory, size_t bytes,
			    struct error *err);
	enum status (*receive)(struct ranks *r, int from, void *memory, size_t bytes,
			       struct error *err);
	enum status (*start)(struct ranks *r, struct error *err);
	enum status (*push)(struct ranks *r, struct error *err);
	enum status (*wait)(struct ranks *r, struct error *err);
	enum status (*broadcast)(struct ranks *r, int from, void *memory, size_t bytes,
				 struct error *err);
	enum status (*gather)(struct ranks *r, const void *mine, void *all, size_t bytes,
			      struct error *err);
	void (*abort)(struct ranks *r, int status);
	void (*close)(struct ranks *r);
};

struct ranks {
	int rank, size;
	int node_rank, node_size; /* among the ranks of this machine */
	bool to_itself;		  /* a rank sends its own pieces, too: to try a transport alone */
	const struct ranks_type *type;
	void *context;
	struct ranks *host; /* of NCCL: carries what lies on the host */
};

/* Joins `size` ranks.  More than one needs MPI, and a start by mpirun with that many processes. */
enum status ranks_open(struct ranks **r, int size, struct error *err) MUST_CHECK;

/*
 * Lets pieces travel from GPU to GPU by NCCL from now on; `device` is the context of the GPU's
 * backend. FAIL leaves *r as it was: pieces then go through memory of the host.
 */
enum status ranks_use_nccl(struct ranks **r, void *device, struct error *err) MUST_CHECK;

/*
 * Announce a piece.  The memory must stay as it is (of a receiver: untouched) until ranks_wait().
 * All ranks announce the pieces between two of them in the same order, and call ranks_start() after
 * the same pieces.
 */
enum status ranks_send(struct ranks *r, int to, const void *memory, size_t bytes,
		       struct error *err) MUST_CHECK;
enum status ranks_receive(struct ranks *r, int from, void *memory, size_t bytes,
			  struct error *err) MUST_CHECK;
/* Let the announced pieces travel. */
enum status ranks_start(struct ranks *r, struct error *err) MUST_CHECK;
/* Called now and then, so that pieces travel while this rank computes. */
enum status ranks_push(struct ranks *r, struct error *err) MUST_CHECK;
/* Until all of this rank's pieces have arrived. */
enum status ranks_wait(struct ranks *r, struct error *err) MUST_CHECK;

/* Memory of the host.  Every rank gets what rank `from` has. */
enum status ranks_broadcast(struct ranks *r, int from, void *memory, size_t bytes,
			    struct error *err) MUST_CHECK;
/* Every rank gets `bytes` of every rank, in their order. */
enum status ranks_gather(struct ranks *r, const void *mine, void *all, size_t bytes,
			 struct error *err) MUST_CHECK;

/* FAIL on every rank if one of them failed: err is then that of the first that did. */
enum status ranks_agree(struct ranks *r, enum status mine, struct error *err) MUST_CHECK;

/* Ends the processes of all ranks; does not return. */
void ranks_abort(struct ranks *r, int status) __attribute__((noreturn));

/* Waits for all ranks.  r may be NULL. */
void ranks_close(struct ranks *r);

#endif
