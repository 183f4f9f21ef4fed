/*
 * optim - the optimizers: one call updates all parameters from their gradients.
 *
 * The gradient is clipped to a global norm once.  Weight decay is decoupled
 * in every optimizer: p *= 1 - lr decay before the step.  It acts on matrices
 * (no bias, norm, scalar or embedding) or on all parameters.  `tensors` and
 * `scalars` are an optimizer's whole memory: with both restored it continues
 * with the same bits.
 */
#ifndef CORE_OPTIM_OPTIM_H
#define CORE_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/engine/params.h"
#include "core/util/status.h"

enum optim_kind { OPTIM_ADAMW, OPTIM_ADAMWSPAM, OPTIM_SGD, OPTIM_MUON };
extern const char *const optim_names[]; /* by kind, NULL at the end */

/* Rate of an A x B matrix: times sqrt(max(1, A/B)), or times 0.2 sqrt(max(A, B)). */
enum muon_adjust { MUON_ORIGINAL, MUON_MATCH_RMS_ADAMW };
extern const char *const muon_adjust_names[];

struct optim_options {
	enum optim_kind kind;
	double weight_decay;
	bool decay_all;
	double clip; /* global norm; 0: never */

	double beta1, beta2, eps; /* all but sgd */
	struct {
		double momentum;
	} sgd;
	struct {
		double theta;		  /* entries are clipped at sqrt(theta v) */
		double spike;		  /* standard deviations */
		int64_t interval, warmup; /* updates; 0: never */
		bool clip_elements;
	} spam;
	struct {
		double lr_ratio; /* rate of the matrices over the rate of the rest */
		double momentum, eps;
		bool nesterov;
		int steps; /* of Newton-Schulz */
		enum muon_adjust adjust;
	} muon;
	/* The state that pruning needs; core/train/prune.h chooses what is pruned. */
	struct {
		bool on; /* "pruned": 1 where a weight is pruned; it is 0 after every update */
		bool movement; /* "movement": minus the sum of weight times gradient */
	} prune;
};

struct config;

/* The options of the configuration; config_check() reports symbols that are missing. */
struct optim_options optim_configured(struct config *c);

/* State of one parameter, on the device, with the parameter's shape and type. */
struct optim_tensor {
	const char *name; /* "optim.m.h.0.attn.c_proj.weight" */
	const struct param *param;
	void *data;
};

#define OPTIM_NORMS 100 /* optim.py: a spike is measured against the last 100 norms */

struct optim_scalars {
	int64_t updates;  /* done so far; the skipped ones do not count */
	int64_t reset_at; /* the age of the moments counts from here */
	int64_t resets, spikes;
	int norm_count;
	double norms[OPTIM_NORMS]; /* oldest first */
};

struct optim_report {
	int64_t t;   /* number of the update */
	double norm; /* of the gradient before clipping; adamwspam: of its clipped entries */
	bool finite; /* if not, nothing was updated */
	bool clipped;
	bool spike, reset; /* adamwspam */
};

struct optimizer;

/* The parameters must be allocated with gradients, and must outlive the optimizer. */
enum status optimizer_create(struct optimizer **o, const struct optim_options *options,
			     struct params *params, struct error *err) MUST_CHECK;
void optimizer_destroy(struct optimizer *o);

/*
 * Ask for update number t, counted from 1, with these learning rates, one per replica of the
 * backend.  Nothing waits for it.  The `n` losses, in device memory, must be finite, too; a replica
 * whose losses or gradients are not harms no other.
 */
void optimizer_ask(struct optimizer *o, int64_t t, const double *rates, const double *losses,
		   int n);

/*
 * Read what the updates did since the last reading, in their order; returns how many there are.
 * One that is not finite is the last: updates issued after it were not made.  At most
 * OPTIM_REPORTS updates may be issued between two readings.
 */
#define OPTIM_REPORTS 64
int optimizer_read(struct optimizer *o, struct optim_report reports[OPTIM_REPORTS]);

/* The same for every replica: `all` has one element per replica. */
struct optim_reports {
	int n;
	struct optim_report list[OPTIM_REPORTS];
};
enum status optimizer_read_each(struct optimizer *o, struct optim_reports *all,
				struct error *err) MUST_CHECK;

/*
 * Switch the updates of one replica off or on, for runs that end at different times: while it is
 * off, nothing of it changes and nothing is reported.  A new optimizer is on.
 */
void optimizer_switch(struct optimizer *o, int replica, bool on);

/* Ask for one update, and read what it did. */
void optimizer_update(struct optimizer *o, int64_t t, double lr, struct optim_report *report);

/* The functions below that copy to or from the device act on the replicas that backend_choose()
 * chose. */

/*
 * For an optimizer of a part of all parameters.  `join` gets the sums of squares of the gradients
 * of its parameters, and returns the sum over all parameters of all parts.
 */
typedef double (*optim_join)(void *context, const double *squares);
enum status optimizer_join(struct optimizer *o, optim_join join, void *context,
			   struct error *err) MUST_CHECK;

const struct optim_options *optimizer_options(const struct optimizer *o);
const struct optim_tensor *optimizer_tensors(const struct optimizer *o, int *count);
struct optim_scalars optimizer_scalars(const struct optimizer *o);
void optimizer_set_scalars(struct optimizer *o, const struct optim_scalars *scalars);

/* Add the squares of the gradient of each parameter to sums[number[parameter]], in device memory.
 */
enum status optim_add_squares(const struct params *params, const int *number, double *sums,
			      struct error *err) MUST_CHECK;

/* Is every element of this parameter updated for itself?  Then the parameter may be cut into
 * pieces. */
bool optim_elementwise(enum optim_kind kind, const struct param *p);

/*
 * The state that an optimizer keeps for every element of this parameter, in the order of
 * optimizer_tensors(); returns how many there are.  `names` may be NULL.
 */
#define OPTIM_STATES 5
int optim_states(const struct optim_options *options, const struct param *p,
		 const char *names[OPTIM_STATES]);

/* May weights of this parameter be pruned?  The matrices of layers, and the slices of 3-D ones. */
bool optim_may_prune(const struct param *p);

/* Device memory of state and workspace. */
size_t optimizer_bytes(const struct optimizer *o);

/* All device memory that an optimizer of these parameters would take: the sizes of its blocks. */
#define OPTIM_BLOCKS 10
enum status optim_measure(const struct optim_options *options, struct params *params,
			  const struct backend *backend, size_t bytes[OPTIM_BLOCKS],
			  struct error *err) MUST_CHECK;

#endif
