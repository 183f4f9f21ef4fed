/*
 * params - the parameters of a model, by name.
 *
 * Graphs name the parameters they use; the first graph that names one creates
 * it.  params_allocate() puts all of them into one block, and their gradients
 * into another, so that an optimizer is one loop.  Initial values depend on
 * (seed, name) alone: adding a parameter changes no other.
 */
#ifndef CORE_ENGINE_PARAMS_H
#define CORE_ENGINE_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/util/pool.h"
#include "core/util/status.h"
#include "core/engine/origin.h"
#include "core/engine/tensor.h"

struct backend;

enum param_distribution {
	INIT_CONSTANT,	     /* value */
	INIT_NORMAL,	     /* N(0, value) */
	INIT_ORTHOGONAL,     /* orthogonal matrix (per slice of a 3-D tensor), gain `value` */
	INIT_UNIFORM_BLOCKS, /* U(-value, value) on `blocks` diagonal blocks, 0 elsewhere */
};

struct param_init {
	enum param_distribution kind;
	double value;
	int blocks;
	bool embedding; /* a table of vectors: optimizers treat it apart from matrices */
};

/* A parameter in the layout that some kernel wants; params_prepare() makes it. */
struct param_copy {
	void *memory;
	size_t bytes; /* 0: no kernel needs the copy */
};

#define PARAM_COPIES 2

/* What the optimizer may treat differently. */
enum param_role { PARAM_MATRIX, PARAM_EMBEDDING, PARAM_VECTOR };

struct param {
	const char *name;
	int ndim;
	int64_t dim[TENSOR_MAX_DIMS];
	int64_t count;
	enum dtype type; /* of its elements: that of the block, or state that is kept narrow */
	int64_t offset;	 /* where it begins in the block, in elements of the block's type */
	struct param_init init;
	enum param_role role;
	struct origin origin; /* in the first graph that named it */
	struct param_copy copy[PARAM_COPIES];
};

struct params {
	struct pool pool;
	enum dtype type;
	struct param *list;
	int n, capacity;
	const struct backend *backend; /* once allocated */
	int64_t total;		       /* size of a block in elements, padding included */
	void *data, *grad;	       /* device memory */
	size_t copy_bytes;	       /* of all copies */
	int n_copies;		       /* with memory */
	bool stale;		       /* data changed after the copies were made */
};

enum status params_create(struct params **p, enum dtype type, struct error *err) MUST_CHECK;
void params_destroy(struct params *p);

/* Find or create.  Creating after params_allocate() is an error, and so is another shape. */
enum status params_name(struct params *p, const char *name, const struct param_init *init, int ndim,
			const int64_t *dim, int *index, struct error *err) MUST_CHECK;

/*
 * Keep state number `index` in this type, which must not be wider than the block's.  Once there is
 * memory, nothing changes.
 */
void params_keep_as(struct params *p, int index, enum dtype type);

/* -1 when there is none. */
int params_find(const struct params *p, const char *name);

/* Number of real parameters, without padding. */
int64_t params_count(const struct params *p);

enum status params_allocate(struct params *p, const struct backend *backend, bool gradients,
			    struct error *err) MUST_CHECK;

/* Draw every parameter from its distribution. */
enum status params_initialise(struct params *p, uint64_t seed, struct error *err) MUST_CHECK;

/* Call this after writing to `data`: the copies are made again before the next run. */
void params_changed(struct params *p);

/* Make the copies of changed parameters, all at once. */
void params_prepare(struct params *p);

/*
 * A copy of a parameter; it has memory if the parameters have.  Every caller asks
 * for the same size.
 */
enum status param_copy_of(struct params *p, int index, int which, size_t bytes,
			  const struct param_copy **copy, struct error *err) MUST_CHECK;

void *param_data(const struct params *p, int index);
void *param_grad(const struct params *p, int index);

/* SHA-256 of all parameters' names and bytes, in order: equal weights, equal hash. */
enum status params_hash(const struct params *p, char *hex, struct error *err) MUST_CHECK;

/* Copy one parameter, or its gradient, between doubles on the host and the device. */
enum status param_set(struct params *p, int index, const double *values,
		      struct error *err) MUST_CHECK;
enum status param_get(const struct params *p, int index, bool gradient, double *values,
		      struct error *err) MUST_CHECK;

/* Set the values [first, first + n) only. */
enum status param_set_part(struct params *p, int index, int64_t first, int64_t n,
			   const double *values, struct error *err) MUST_CHECK;

/*
 * Look at all values of a parameter, or of its gradient, in chunks [first, first + n) and in
 * order.  A chunk is small, because fresh memory for a large parameter would cost more time than
 * reading it.  The visitor may overwrite the chunk.
 */
#define PARAM_CHUNK (1 << 17)
typedef void (*param_visitor)(void *context, int64_t first, int64_t n, double *values);
enum status param_visit(const struct params *p, int index, bool gradient, param_visitor visit,
			void *context, struct error *err) MUST_CHECK;

#endif
