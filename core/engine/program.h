/*
 * A program: a graph made runnable, as a linear list of instructions.
 *
 * Forward, then (for training) backward, with every tensor placed in one arena by its lifetime.
 * Creation allocates all memory; running allocates nothing.
 */
#ifndef CORE_ENGINE_PROGRAM_H
#define CORE_ENGINE_PROGRAM_H

#include <stdio.h>

#include "core/engine/backend.h"
#include "core/engine/graph.h"

struct program_options {
	bool train;	   /* with backward pass */
	bool no_planner;   /* every tensor gets memory of its own */
	bool no_recompute; /* keep activations that could be recomputed */
	bool check_nan;	   /* check every output after every instruction */
};

struct program;

/*
 * The graph and its params must outlive the program.  The params must have been allocated on
 * `backend`, with gradients for training.  So must the state of a graph whose runs continue each
 * other.
 */
enum status program_create(struct program **p, const struct graph *g, const struct backend *backend,
			   const struct program_options *options, struct error *err) MUST_CHECK;
void program_destroy(struct program *p);

/* The bytes that the arena of this graph would need.  Also registers the copies of its params. */
enum status program_measure(const struct graph *g, const struct backend *backend,
			    const struct program_options *options, size_t *arena_bytes,
			    struct error *err) MUST_CHECK;

/*
 * `runs`: one per replica of the backend; they differ in their seeds only.  All copies between host
 * and device act on the replicas that backend_choose() chose.
 *
 * Fails if check_nan finds a NaN or infinity, whose tensor the message names, or if the device
 * failed.  On an asynchronous device the run continues after this call.
 */
enum status program_run(struct program *p, const struct run *runs, struct error *err) MUST_CHECK;

/* Called after every instruction with the number done; FAIL ends the run. */
typedef enum status (*program_watcher)(void *context, int done, struct error *err);
void program_watch(struct program *p, program_watcher watch, void *context);

/*
 * The instructions [*first, *last) write the gradient of a parameter: it is complete after them.
 * *last is 0 if no instruction writes it.
 */
void program_gradient_span(const struct program *p, int param, int *first, int *last);

/* Switch the check after every instruction on or off. */
void program_check_nan(struct program *p, bool on);

/*
 * Fill an input, or read an output, as a whole.  The host layout is contiguous; a tensor stored in
 * bfloat16 is float on the host.
 */
void program_upload(struct program *p, const struct tensor *t, const void *host);
void program_download(const struct program *p, const struct tensor *t, void *host);

/* A real output as doubles, whatever its type. */
void program_read(const struct program *p, const struct tensor *t, double *values);

/* The same of every replica, one after the other, in one copy; not of a tensor in bfloat16. */
void program_read_each(const struct program *p, const struct tensor *t, double *values);

/* A tensor's scalar (element 0) as double. */
double program_scalar(const struct program *p, const struct tensor *t);

/*
 * Copies the losses, in the order of the graph's outputs, to device memory as doubles, without a
 * wait.
 */
int program_loss_count(const struct program *p);
void program_collect_losses(const struct program *p, double *to);

/* Sets the gradient of a seeded output, before a run. */
void program_upload_seed(struct program *p, const struct tensor *output, const void *host);

/* Change the weight of a loss between runs, and read it. */
void program_loss_weight(struct program *p, const char *name, double weight);
double program_loss_weight_of(const struct program *p, const char *name);

/*
 * For measurements: runs instructions one by one, after a whole program_run().  `node` is NULL for
 * an instruction that only zeroes a gradient.
 */
struct program_step {
	const struct node *node;
	enum pass pass;
};
int program_step_count(const struct program *p);
struct program_step program_step(const struct program *p, int index);
void program_run_step(struct program *p, int index);

size_t program_arena_bytes(const struct program *p);

#endif
