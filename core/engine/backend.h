/*
 * backend - a device: memory, copies and one set of kernels per op.
 *
 * Nothing outside core/backend touches the elements of a tensor; the host
 * sees numbers only through upload and download.
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
	GRAD_MICRO,	 /* a parameter's first: as run_adds() says */
};

/* What changes from run to run of the same program. */
struct run {
	uint64_t seed;	    /* of dropout */
	uint64_t iteration; /* counts updates from 1 */
	uint64_t micro;	    /* micro-batch within the update, from 0 */
	bool alone;	    /* its gradients overwrite those of earlier micro-batches */
	int64_t past;	    /* tokens of earlier runs, where runs continue each other */
};

/* Are a parameter's gradients added to those of earlier micro-batches? */
static inline bool run_adds(const struct run *run)
{
	return run->micro > 0 && !run->alone;
}

/*
 * Everything a kernel sees.  Pointers are device memory, laid out as the
 * node's tensors say; a gradient has the layout of its tensor.  NULL: absent,
 * or not wanted.
 */
struct call {
	const struct node *node;
	const struct run *run;
	const void *in[OP_MAX_INPUTS];
	void *out[OP_MAX_OUTPUTS];
	const void *dout[OP_MAX_OUTPUTS];
	void *din[OP_MAX_INPUTS];
	enum grad_mode mode[OP_MAX_INPUTS];
	void *inner; /* room for the gradient of output op->inner_out; may be dout[0] */
	void *work;
	const struct param_copy
		*copy[OP_MAX_INPUTS][PARAM_COPIES]; /* of parameters; NULL: not kept */
	const struct backend *backend;
};

static inline bool call_adds(const struct call *c, int input)
{
	return c->mode[input] == GRAD_ACCUMULATE ||
	       (c->mode[input] == GRAD_MICRO && run_adds(c->run));
}

typedef void (*kernel)(const struct call *c);

struct kernels {
	/* One per enum pass; NULL: there is none.  What cannot be remade is kept. */
	kernel forward, backward, recompute, loss;
	/* Bytes of c->work that a pass wants; NULL: none. */
	size_t (*workspace)(const struct node *n, enum pass pass, int threads);
	/* Bytes of copy number `which` of the parameter n->in[input]; 0 or NULL: not wanted. */
	size_t (*copy_bytes)(const struct node *n, enum pass pass, int input, int which);
	/* Does what forward asks for depend on run->past?  NULL: no, only the device reads it. */
	bool (*follows_past)(const struct node *n);
	/* What `remake` computes, if it is not what the op says. */
	struct recompute_rule recompute_rule;
	/* Beside the op's apart_in: inputs whose gradients take less time by an instruction of
	 * their own, if there are lanes. */
	unsigned apart_in;
};

struct optim_kernels;

/* Memory that is the device's own. */
struct backend_memory {
	char device[48];      /* the same for all processes of a machine */
	double total, free;   /* bytes; other processes share them */
	double taken, most;   /* what alloc() gave: now, and at most at a time */
	double opened, later; /* beside it: since opening, and as soon as a run is under way */
	double unit;	      /* a block of this size and more takes a multiple of it */
};

struct backend {
	const char *name;
	enum precision precision; /* of graphs in float */
	int threads; /* of the host that its kernels use, each with a workspace of its own */
	const struct kernels *const *(*kernels)(enum dtype type); /* by op_id, NULL if missing */
	const struct optim_kernels *(*optim)(enum dtype type);	  /* core/optim/kernels.h */
	void *context; /* what the device keeps for itself */
	bool is_async; /* work goes on after a call returns, so that each reading waits */

	/*
	 * Work is done in the order in which it is asked for, and a device need not have done it
	 * when a call returns; only download and find_nonfinite wait.  So most calls return no
	 * status: what goes wrong is kept, check() tells of it, wait() waits and tells.
	 */
	void *(*alloc)(const struct backend *b,
		       size_t bytes); /* zeroed, aligned to 64 bytes, or NULL */
	void (*release)(const struct backend *b, void *memory);
	void (*upload)(const struct backend *b, void *device, const void *host, size_t bytes);
	void (*download)(const struct backend *b, void *host, const void *device, size_t bytes);
	void (*zero)(const struct backend *b, void *device, size_t bytes);
	/* Number of the first NaN or infinity in rows that begin `pitch` elements apart, or -1. */
	int64_t (*find_nonfinite)(const struct backend *b, const void *device, enum dtype type,
				  int64_t rows, int64_t row, int64_t pitch);
	/*
	 * Optional: one call may do the forward passes of several nodes that follow each other.  Of
	 * these n nodes of a graph of this type, how many can it do, from the first on?  0 or 1:
	 * they run one by one.  Depends on the nodes alone.  run_fused() leaves in every output
	 * what single calls would.
	 */
	int (*fusable)(enum dtype type, const struct node *const *nodes, int n);
	void (*run_fused)(enum dtype type, const struct call *calls, int n);
	/* What the kernels of the next run find in c->run, on the device as well. */
	void (*begin_run)(const struct backend *b, const struct run *run);
	/* All copies that have memory, in the layout that copy_bytes() promised. */
	void (*copy_params)(const struct backend *b, const struct params *p);
	/* `n` numbers of the same type, as doubles, to device memory. */
	void (*collect)(const struct backend *b, enum dtype type, const void *const *from, int n,
			double *to);
	/*
	 * Optional: NULL if a device cannot keep work.  What is asked for between capture() and
	 * captured() is not done but kept; replay() does all of it, with what device memory holds
	 * by then.  captured() returns NULL where it fails: check() tells why.
	 */
	void (*capture)(const struct backend *b);
	void *(*captured)(const struct backend *b);
	void (*replay)(const struct backend *b, void *kept);
	void (*forget)(const struct backend *b, void *kept);
	/*
	 * Optional: work of several lanes, 0 to lanes - 1, has no order but that of each lane.
	 * use_stream(): of what is asked for next.  mark() notes all that this lane was asked for,
	 * wait_event() lets this lane wait for what was marked so.  Lane 0 has waited for all
	 * others before anything else is asked of the device.
	 */
	int streams; /* 0: there are none; 1: programs are as for several, in lane 0 */
	int64_t stream_max_elements; /* a program that makes more numbers than this does without
					lanes */
	int64_t (*issued)(const struct backend *b); /* how much work, in short kernels */
	void (*use_stream)(const struct backend *b, int stream);
	void (*record_event)(const struct backend *b, int number);
	void (*wait_event)(const struct backend *b, int number);
	/* NULL: its memory is that of the host. */
	void (*memory)(const struct backend *b, struct backend_memory *memory);
	/* Memory of the host that copies fast to the device.  NULL: the device is the host. */
	void *(*host_alloc)(const struct backend *b, size_t bytes);
	void (*host_release)(const struct backend *b, void *memory);
	/* What computes, in a line: for records. */
	void (*describe)(const struct backend *b, char *text, size_t size);
	enum status (*check)(const struct backend *b, struct error *err);
	enum status (*wait)(const struct backend *b, struct error *err);
	void (*close)(struct backend *b);
};

#endif
