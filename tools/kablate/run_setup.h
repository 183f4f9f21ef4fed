/*
 * run_setup - one configured run: data, model, parameters and optimizer.
 *
 * Joins what main() of `kablate` needs of core/, models/ and data/.
 */
#ifndef TOOLS_KABLATE_RUN_SETUP_H
#define TOOLS_KABLATE_RUN_SETUP_H

#include "core/util/hash.h"
#include "core/optim/optim.h"
#include "core/train/workload.h"
#include "core/train/train.h"
#include "data/source.h"
#include "models/audit/audit.h"
#include "models/decode.h"
#include "models/describe.h"
#include "models/measure.h"
#include "models/model.h"
#include "tools/kablate/weights_record.h"

/* How this program was built; defined per step in tools/kablate/build_info.c. */
struct build_info {
	const char *version, *revision;		/* of kablate; of its repository */
	const char *compiler, *flags, *sources; /* sources: hash of the compiled files */
};
extern const struct build_info build_info;

#define SAMPLE_ROWS 4 /* of the attention metrics */

struct run_setup {
	struct config *config;
	struct source source;
	struct model *model;
	enum precision precision;
	bool replicas;	   /* its runs train together, as replicas of one program */
	int most_replicas; /* how many at once */
	int threads;
	struct run_setup *alone; /* of replicas: the same step with memory for one run */
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
	struct ranks *ranks;   /* NULL: nothing is trained, or by this process alone */
	struct shards *shards; /* NULL: this process updates all parameters in place */
	int rank_count;
	const char *transport; /* of gradients between GPUs */
	struct measurer *measurer;
	struct optim_options optim;
	struct train_options train;
	struct audit_options audit;
	uint64_t seed, repeat;
	const char *init_from, *init_allow;
	const char *lengths; /* "1024,2048": evaluated after the last update */
	char init_hash[SHA256_HEX_SIZE];
	struct sha256 symbols; /* the part of the identity that all seeds share */
	char identity[SHA256_HEX_SIZE];
	struct weights_record record; /* of its weights */
	int64_t sample;		      /* tokens to be generated after the last update */
	bool source_open, tensorboard;
};

/* Reads the whole configuration and opens the data; allocates nothing large. */
enum status run_setup_open(struct run_setup *setup, uint64_t seed, uint64_t repeat,
			   struct error *err) MUST_CHECK;

/*
 * The same, to look only at the model.  If CONFIG_MODEL_VOCAB gives the vocabulary, the data need
 * not exist, and the setup has no identity.
 */
enum status run_setup_open_model(struct run_setup *setup, struct error *err) MUST_CHECK;

/* The same from any configuration, which the setup then owns. */
enum status run_setup_open_config(struct run_setup *setup, struct config *c, uint64_t seed,
				  uint64_t repeat, struct error *err) MUST_CHECK;

/* Of the symbols that were read so far, with their values. */
void run_setup_hash_symbols(const struct config *c, struct sha256 *s);

/* The identity that the run has with another seed: nothing else of it depends on the seed. */
void run_setup_identity(const struct run_setup *setup, uint64_t seed, char hex[SHA256_HEX_SIZE]);

/*
 * The same run with another seed, and with `config`, whose learning rates alone may differ from
 * those of `setup`: it shares everything but these, identity and record with `setup`, which must
 * outlive it.  Ends with weights_record_free(&run->record).
 */
enum status run_setup_vary(struct run_setup *run, const struct run_setup *setup, uint64_t seed,
			   struct config *config, struct error *err) MUST_CHECK;

/*
 * A backend for n runs of this setup at once; `replica_bytes`: what each takes of the device.
 */
enum status run_setup_open_replicas(const struct run_setup *setup, int n, double replica_bytes,
				    struct backend *backend, struct error *err) MUST_CHECK;

/* To be called before training: join the other processes of this run. */
enum status run_setup_join_ranks(struct run_setup *setup, struct error *err) MUST_CHECK;

/* What the model has to fit.  The batch decides its form, even if nothing is trained. */
struct model_task run_setup_task(const struct run_setup *setup);

/* Does this process write the records of the run?  One of its ranks does. */
bool run_setup_leads(const struct run_setup *setup);

/* Does each rank have pieces of the parameters of its own? */
bool run_setup_is_divided(const struct run_setup *setup);

/* Gets what is worth a warning. */
typedef void (*run_setup_note)(void *context, const char *text);

/* Names every parameter of the model: the training graph has them all. */
enum status run_setup_name_parameters(const struct run_setup *setup, struct params *params,
				      struct error *err) MUST_CHECK;

/* Parameters with the starting values of these runs, one per replica of the backend. */
enum status run_setup_start(struct run_setup *setup, const uint64_t *seeds, run_setup_note note,
			    void *context, struct error *err) MUST_CHECK;

/* Parameters with their starting values, and the optimizer. */
enum status run_setup_make_parameters(struct run_setup *setup, const uint64_t *seeds,
				      run_setup_note note, void *context,
				      struct error *err) MUST_CHECK;

/* The same, and the sample of the measurements. */
enum status run_setup_prepare(struct run_setup *setup, const uint64_t *seeds, run_setup_note note,
			      void *context, struct error *err) MUST_CHECK;

/* Only parameters, drawn or from weights of the same model: for questions, not for training. */
enum status run_setup_draw(struct run_setup *setup, struct error *err) MUST_CHECK;
enum status run_setup_load(struct run_setup *setup, const char *weights,
			   struct weights_origin *origin, struct error *err) MUST_CHECK;

/* What training costs, and decoding after this many tokens; 0: the trained length. */
enum status run_setup_describe(const struct run_setup *setup, int64_t context,
			       struct description *d, struct error *err) MUST_CHECK;

/* Gives back what run_setup_prepare() made. */
void run_setup_release(struct run_setup *setup);

void run_setup_close(struct run_setup *setup);

#endif
