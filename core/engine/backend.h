/*
 * A backend: a device with its memory, its copies and one set of kernels per op.
 *
 * Nothing outside core/backend touches the elements of a tensor.  The host sees values only through
 * upload and download.
 */
#ifndef CORE_ENGINE_BACKEND_H
#define CORE_ENGINE_BACKEND_H

#include "core/engine/op.h"
#include "core/engine/params.h"
#include "core/engine/storage.h"
#include "core/util/rng.h"

/* How a kernel treats the gradient it contributes to. */
enum grad_mode {
	GRAD_WRITE,	 /* first contribution: overwrite */
	GRAD_ACCUMULATE, /* add to what is there */
	GRAD_MICRO,	 /* first contribution to a parameter: run_adds() decides */
};

/* What changes from run to run of the same program. */
struct run {
	uint64_t seed;	    /* of dropout */
	uint64_t iteration; /* counts updates from 1 */
	uint64_t micro;	    /* micro-batch within the update, from 0 */
	bool alone;	    /* gradients overwrite those of earlier micro-batches */
	int64_t past;	    /* tokens of earlier runs, where runs continue each other */
};

/* Are a parameter's gradients added to those of earlier micro-batches? */
static inline bool run_adds(const struct run *run)
{
	return run->micro > 0 && !run->alone;
}

/*
 * The arguments of a kernel.  Pointers are device memory, laid out as the node's tensors say; a
 * gradient has the layout of its tensor.  NULL: absent, or not needed.
 */
struct call {
	const struct node *node;
	const struct run *run;
	const void *in[OP_MAX_INPUTS];
	void *out[OP_MAX_OUTPUTS];
	const void *dout[OP_MAX_OUTPUTS];
	void *din[OP_MAX_INPUTS];
	enum grad_mode mode[OP_MAX_INPUTS];
	void *inner; /* memory for the gradient of output op->inner_out; may be dout[0] */
	void *work;
	const struct param_copy
		*copy[OP_MAX_INPUTS][PARAM_COPIES]; /* copies of parameters; NULL: none */
	const struct backend *backend;
};

static inline bool call_adds(const struct call *c, int input)
{
	return c->mode[input] == GRAD_ACCUMULATE ||
	       (c->mode[input] == GRAD_MICRO && run_adds(c->run));
}

typedef void (*kernel)(const struct call *c);

struct kernels {
	/* One per enum pass; NULL: there is none.  Without `recompute`, activations are kept. */
	kernel forward, backward, recompute, loss;
	/* Bytes of c->work that a pass needs on a backend with so many units; NULL: none. */
	size_t (*workspace)(const struct node *n, enum pass pass, int units);
	/* Bytes of copy `which` of the parameter n->in[input]; 0 or NULL: not needed. */
	size_t (*copy_bytes)(const struct node *n, enum pass pass, int input, int which);
	/* Do the launches of forward depend on run->past?  NULL: no, only the device reads it. */
	bool (*follows_past)(const struct node *n);
	/* What `recompute` computes, if it differs from the op's rule. */
	struct recompute_rule recompute_rule;
	/*
	 * In addition to the op's separate_gradient_in: inputs whose gradients are worth an
	 * instruction of their own, if there are streams.
	 */
	unsigned separate_gradient_in;
};

struct optim_kernels;

/* The memory of a device. */
struct backend_memory {
	char device[48];      /* the same for all processes of a machine */
	double total, free;   /* bytes; other processes share them */
	double taken, most;   /* bytes from alloc(): now, and at the peak */
	double opened, later; /* in addition: since opening, and once a run has started */
	double unit;	      /* larger allocations are rounded up to a multiple of it */
};

/*
 * Replicas: one program trains several runs at once, on a device that can (`replicas` of struct
 * backend).  Every allocation exists once per replica, and every kernel works on all of them: the
 * addresses that the engine sees stand for all replicas.  What the host copies belongs to the
 * replicas chosen by choose_replica().
 */
#define REPLICAS_ALL (-1)  /* the same bytes to each; reads the first.  The default */
#define REPLICAS_EACH (-2) /* the host has the bytes of all replicas, one after another */

struct backend {
	const char *name;
	enum precision precision; /* of graphs in float */
	int threads;		  /* host threads of its kernels */
	int units;		  /* that work at a time: threads, or multiprocessors of a GPU */
	const struct kernels *const *(*kernels)(enum dtype type); /* by op_id, NULL if missing */
	const struct optim_kernels *(*optim)(enum dtype type);	  /* core/optim/kernels.h */
	void *context;						  /* private to the backend */
	bool is_async; /* calls return before the work is done, and reads wait */
	int replicas;  /* 0: an ordinary backend, without choose_replica() */

	/*
	 * Work runs in the order of issue.  A call may return before its work is done; only
	 * download and find_nonfinite wait.  So most calls return no status: check() returns the
	 * first error so far, and wait() waits first.
	 */
	void *(*alloc)(const struct backend *b,
		       size_t bytes); /* zeroed, aligned to 64 bytes, or NULL */
	void (*release)(const struct backend *b, void *memory);
	void (*upload)(const struct backend *b, void *device, const void *host, size_t bytes);
	void (*download)(const struct backend *b, void *host, const void *device, size_t bytes);
	void (*zero)(const struct backend *b, void *device, size_t bytes);
	/*
	 * Chooses the replica, or one of REPLICAS_*, that upload and download act on from now on;
	 * returns the previous choice.  zero() and kernels act on all replicas.  find_nonfinite()
	 * looks at all of them unless one is chosen.
	 */
	int (*choose_replica)(const struct backend *b, int replica);
	/* Index of the first NaN or infinity in rows that start `pitch` elements apart, or -1. */
	int64_t (*find_nonfinite)(const struct backend *b, const void *device, enum dtype type,
				  int64_t rows, int64_t row, int64_t pitch);
	/*
	 * Optional: one call runs the forward passes of several consecutive nodes.  fusable()
	 * returns how many of these n nodes one call can run, from the first on; 0 or 1: they run
	 * one by one.  It depends only on the nodes.  run_fused() writes the same outputs as single
	 * calls.
	 */
	int (*fusable)(enum dtype type, const struct node *const *nodes, int n);
	void (*run_fused)(enum dtype type, const struct call *calls, int n);
	/*
	 * Sets the values that the kernels of the next run find in c->run, also on the device: one
	 * struct run per replica.  Replicas differ in the seed only.
	 */
	void (*begin_run)(const struct backend *b, const struct run *runs);
	/* Refreshes all copies that have memory, in the layout that copy_bytes() promised. */
	void (*copy_params)(const struct backend *b, const struct params *p);
	/* to[i] = *from[i], n scalars of one type, as doubles; lists in device memory. */
	void (*collect)(const struct backend *b, enum dtype type, const void *const *from, int n,
			double *to);
	/*
	 * Optional, or NULL: CUDA graphs.  Work issued between capture() and captured() is recorded
	 * instead of run.  replay() runs all of it, with the current contents of device memory.
	 * captured() returns NULL on failure; check() returns the reason.
	 */
	void (*capture)(const struct backend *b);
	void *(*captured)(const struct backend *b);
	void (*replay)(const struct backend *b, void *graph);
	void (*forget)(const struct backend *b, void *graph);
	/*
	 * Optional: streams 0 to streams - 1.  Work is ordered only within a stream.  use_stream()
	 * selects the stream of the work that follows.  record_event() marks the current end of the
	 * stream; wait_event() makes the stream wait for that mark.  Stream 0 has waited for all
	 * others before any other call.
	 */
	int streams; /* 0: no streams; 1: programs as for several streams, run on stream 0 */
	int64_t stream_max_elements; /* a program that computes more elements uses one stream */
	int64_t (*issued)(const struct backend *b); /* work issued so far, in short kernels */
	void (*use_stream)(const struct backend *b, int stream);
	void (*record_event)(const struct backend *b, int number);
	void (*wait_event)(const struct backend *b, int number);
	/* NULL: the device uses the host's memory. */
	void (*memory)(const struct backend *b, struct backend_memory *memory);
	/* Pinned host memory.  NULL: the device is the host. */
	void *(*host_alloc)(const struct backend *b, size_t bytes);
	void (*host_release)(const struct backend *b, void *memory);
	/* A one-line description of the device, for records. */
	void (*describe)(const struct backend *b, char *text, size_t size);
	enum status (*check)(const struct backend *b, struct error *err);
	enum status (*wait)(const struct backend *b, struct error *err);
	void (*close)(struct backend *b);
};

/* How many runs a program of this backend trains. */
static inline int backend_replicas(const struct backend *b)
{
	return b->replicas ? b->replicas : 1;
}

/* Returns the previous choice.  An ordinary backend has nothing to choose. */
static inline int backend_choose(const struct backend *b, int replica)
{
	return b->replicas ? b->choose_replica(b, replica) : REPLICAS_ALL;
}

static inline int backend_chosen(const struct backend *b)
{
	const int chosen = backend_choose(b, REPLICAS_ALL);

	backend_choose(b, chosen);
	return chosen;
}

/* Why alloc() or host_alloc() returned NULL: the device failed, or has too little memory. */
enum status fail_alloc(const struct backend *b, const char *what, size_t bytes, struct error *err);

#endif
