/*
 * oracle - every model part once more, in plain loops over doubles.
 *
 * An audit compares the engine with this second program.  So it shares no code with ops, graphs,
 * kernels or the structs of models/: it reads symbols by name from its own copy of the
 * configuration and weights by name from arrays, and makes targets from the tokens.  There is no
 * backward pass: a derivative is a central difference of the loss.
 *
 * A variant's oracle is one file with static functions and one descriptor at its end, as in
 * models/; linking the file registers it.  The first error sticks to the oracle, and every later
 * call returns NULL, so a part checks its arrays once, before its loops.
 *
 * Letters: B rows, T positions, E width, H heads, D = E/H, F hidden width of the feed-forward,
 * V vocabulary, N layers, L latent width.  Arrays are contiguous, outermost dimension first.
 */
#ifndef MODELS_ORACLE_ORACLE_H
#define MODELS_ORACLE_ORACLE_H

#include <math.h>

#include "core/util/config.h"
#include "core/util/pool.h"
#include "core/util/register.h"

struct oracle;

struct oracle_attention {
	const char *name; /* as in CONFIG_ATTENTION */
	/*
	 * x [B,T,E] -> scores [B,H,T,T], of query i and key j <= i, before position bias and
	 * softmax; and values [B,T,H,D].
	 */
	void (*attend)(struct oracle *o, const double *x, double *scores, double *values);
	/* Instead: x -> the outputs of the heads [B,T,H,D], which are 0 before. */
	void (*mix)(struct oracle *o, const double *x, double *heads);
	bool projection_bias; /* c_proj has a bias where the model has biases */
};

struct oracle_position {
	const char *name; /* as in CONFIG_POS */
	/* What a distance adds to the scores of a head. */
	double (*bias)(struct oracle *o, int64_t head, int64_t distance);
};

struct oracle_ffn {
	const char *name;				      /* as in CONFIG_FFN */
	double *(*hidden)(struct oracle *o, const double *x); /* x [B,T,E] -> h [B,T,F] */
	bool projection_bias;
};

/* What a mechanism sends from one layer to the next. */
struct oracle_message {
	double *value; /* NULL: nothing */
	int64_t count; /* of its numbers */
	double alpha;  /* its weight */
};

struct oracle_mechanism {
	const char *symbol; /* the switch in Kconfig */
	int order;	    /* of `hidden` among the mechanisms */
	/* Any of these may be NULL.  They change the array in place. */
	void (*latent)(struct oracle *o, const struct oracle_message *in, double *latent);
	void (*heads)(struct oracle *o, const struct oracle_message *in, double *heads);
	void (*hidden)(struct oracle *o, double *h, struct oracle_message *out);
};

struct oracle_weight {
	char name[80];
	int64_t count;
	double *values;
	bool used;
};

struct oracle_loss {
	const char *name;
	double value; /* with its weight */
};

enum { ORACLE_MECHANISMS = 8, ORACLE_LOSSES = 8 };

/* What a layer begins with: earlier layers need not be computed again when a later weight moves. */
struct oracle_begin {
	double *x; /* [B,T,E] */
	struct oracle_message in[ORACLE_MECHANISMS];
	struct oracle_loss loss[ORACLE_LOSSES];
	int n_losses, next_constant;
};

struct oracle {
	struct config *config;
	int64_t B, T, V, E, H, D, F, N;
	bool bias;
	int32_t *tokens, *targets; /* [B,T]; target -1: not scored */
	/*
	 * Of topk routing, by layer: [B,T,k] keys that were chosen elsewhere; NULL: its own choice.
	 * Near ties may end either way.  A wrong choice shows in route_gap: by what share a key
	 * that was left out outweighs one that was chosen, at most.
	 */
	const int32_t *const *routes;
	int64_t routed; /* k of these */
	double route_gap;
	double dropout; /* 0 in a new oracle; else training drops this share */
	const struct oracle_attention *attention;
	const struct oracle_position *position; /* or NULL */
	const struct oracle_ffn *ffn;
	const struct oracle_mechanism *mechanism[ORACLE_MECHANISMS];
	int n_mechanisms;
	struct oracle_weight *weights;
	int n_weights;

	/* The layer that is computed, and what its parts leave for each other. */
	int64_t layer;
	bool last;
	const char *part; /* "attn.", "mlp." or "": names of weights follow it */
	double *prob;	  /* [B,H,T,T] */
	double *latent;	  /* [B,T,L], or NULL */
	int64_t L;
	struct oracle_message in[ORACLE_MECHANISMS], out[ORACLE_MECHANISMS];

	/* Results of the last pass. */
	double *logits; /* [B,T,V] */
	double *nll;	/* [B,T]; 0 where there is no target */
	struct oracle_loss loss[ORACLE_LOSSES];
	int n_losses;

	struct pool pool;      /* of the pass */
	struct pool kept_pool; /* of what oracle_run() keeps for derivatives */
	double **constants;
	int next_constant;
	struct oracle_begin *begin; /* by layer */
	bool differs; /* this pass has a changed weight: constants stay as they were */
	int64_t from; /* ... and begins with this layer; -1: with the embedding */
	struct error err;
	bool failed;
};

/*
 * Reads sizes and parts from a copy of the configuration, whose MODEL_VOCAB must be set.  The
 * configuration must outlive the oracle.  *missing names a part without an oracle, or is empty.
 */
enum status oracle_create(struct oracle **o, const struct config *c, int64_t B, int64_t T,
			  char missing[64], struct error *err) MUST_CHECK;
void oracle_destroy(struct oracle *o);

/* Does a mechanism with this switch have an oracle? */
bool oracle_knows(const struct oracle *o, const char *mechanism_symbol);

/* The batch: rows of T + 1 tokens; every target is the next token. */
void oracle_rows(struct oracle *o, const int32_t *rows);

/* Adds a weight; the values are copied. */
enum status oracle_add_weight(struct oracle *o, const char *name, const double *values,
			      int64_t count, struct error *err) MUST_CHECK;

/* Logits and losses.  FAIL when a weight is absent, has another size, or is read by no part. */
enum status oracle_run(struct oracle *o, struct error *err) MUST_CHECK;

/*
 * After oracle_run(): the derivative of the sum of all losses when weight number `index` moves
 * along `direction`.  What the specification holds constant keeps the values of oracle_run().
 */
enum status oracle_derivative(struct oracle *o, int index, const double *direction, double step,
			      double *derivative, struct error *err) MUST_CHECK;

/* -------------------------------------------------- for the parts' files */

/* Zeroed numbers that live until the pass ends, or NULL. */
double *oracle_array(struct oracle *o, int64_t n);

/* The weight of this name, after the prefix of layer and part, or NULL. */
const double *oracle_weights(struct oracle *o, const char *name, int64_t count);

/* The weight of this name, which all layers share, or NULL. */
const double *oracle_shared_weights(struct oracle *o, const char *name, int64_t count);

/* y += x w, with x [rows,in] and w [in,out] */
void oracle_product(const double *x, int64_t rows, int64_t in, const double *w, int64_t out,
		    double *y);

/* x W + b of the B T tokens, with weights "name.weight" and, if bias, "name.bias". */
double *oracle_linear(struct oracle *o, const char *name, const double *x, int64_t in, int64_t out,
		      bool bias);

/*
 * Dropout of n numbers by the mask of this name, after the prefix of layer and part: number i
 * becomes 0 if word i of the stream (seed 1, name, iteration 1, micro-batch 0) is below the rate.
 */
void oracle_drop(struct oracle *o, const char *name, double *x, int64_t n);

/* Rotates the first `width` of `stride` channels of every head, if the model uses rope. */
void oracle_rope(struct oracle *o, double *x, int64_t heads, int64_t stride, int64_t width);

/* Calls the mechanisms that change the latent, and keeps it for later parts. */
void oracle_latent(struct oracle *o, double *latent, int64_t L);

/* What has no gradient: the values, or those of oracle_run() when a derivative is taken. */
double *oracle_constant(struct oracle *o, double *values, int64_t n);

/* A mixing weight: the parameter "name" where the model learns them, else the symbol's value. */
double oracle_alpha(struct oracle *o, const char *name, const char *symbol);

/* A switch that may be absent from the configuration. */
bool oracle_switch(const struct oracle *o, const char *symbol);
bool oracle_is(struct oracle *o, const char *symbol, const char *value);

/* Adds to the loss of this name. */
void oracle_add_loss(struct oracle *o, const char *name, double value);

void oracle_fail(struct oracle *o, const char *format, ...) PRINTF_LIKE(2, 3);

/* decoder.c: the blocks, from tokens to losses. */
void oracle_decode(struct oracle *o);

/* A copy that outlives the pass, or NULL. */
double *oracle_keep(struct oracle *o, const double *values, int64_t n);

static inline double oracle_sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

#define ORACLE_ATTENTION(object) REGISTER("oracle_attentions", oracle_attention, object)
#define ORACLE_POSITION(object) REGISTER("oracle_positions", oracle_position, object)
#define ORACLE_FFN(object) REGISTER("oracle_ffns", oracle_ffn, object)
#define ORACLE_MECHANISM(object) REGISTER("oracle_mechanisms", oracle_mechanism, object)

#endif
