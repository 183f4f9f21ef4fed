/*
 * ranks - the processes that train one run together, numbered from 0.
 *
 * Messages between two ranks are sent while both compute, and arrive in the order in which they
 * were sent.  Everything else is collective: it waits for all ranks, and all ranks must call it in
 * the same order.  There is no all-reduce: a library adds in an order of its own, and our sums are
 * in the order of the ranks.
 */
#ifndef CORE_RANKS_RANKS_H
#define CORE_RANKS_RANKS_H

#include <stddef.h>

#include "core/util/status.h"

struct ranks;

/* A transport. */
struct ranks_type {
	const char *name;
	bool device_memory; /* sends GPU memory, not memory of the host */

	enum status (*send)(struct ranks *r, int to, const void *memory, size_t bytes,
			    struct error *err);
	enum status (*receive)(struct ranks *r, int from, void *memory, size_t bytes,
			       struct error *err);
	enum status (*start)(struct ranks *r, struct error *err);
	enum status (*progress)(struct ranks *r, struct error *err);
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
	bool loopback;		  /* a rank sends to itself, too: tests a transport with one rank */
	const struct ranks_type *type;
	void *context;
	struct ranks *host; /* of NCCL: the transport of memory of the host */
};

/* Joins `size` ranks.  More than one needs MPI, and a start by mpirun with that many processes. */
enum status ranks_open(struct ranks **r, int size, struct error *err) MUST_CHECK;

/*
 * From now on NCCL sends messages from GPU to GPU; `device` is the context of the GPU's backend.
 * FAIL leaves *r as it was: messages then go through memory of the host.
 */
enum status ranks_use_nccl(struct ranks **r, void *device, struct error *err) MUST_CHECK;

/*
 * Post a message.  Until ranks_wait() the sender must not change the memory, nor the receiver touch
 * it.  All ranks post the messages between two of them in the same order, and call ranks_start()
 * after the same ones.
 */
enum status ranks_send(struct ranks *r, int to, const void *memory, size_t bytes,
		       struct error *err) MUST_CHECK;
enum status ranks_receive(struct ranks *r, int from, void *memory, size_t bytes,
			  struct error *err) MUST_CHECK;
/* Starts the posted messages. */
enum status ranks_start(struct ranks *r, struct error *err) MUST_CHECK;
/* Called now and then, so that transfers go on while this rank computes. */
enum status ranks_progress(struct ranks *r, struct error *err) MUST_CHECK;
/* Waits until all messages from and to this rank have arrived. */
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
