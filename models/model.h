/*
 * model - the decoder, and the four kinds of parts it is made of.
 *
 * transformer.c wires blocks and knows no variant.  An attention, a bias of
 * distances, a feed-forward or a reciprocal mechanism is one file with private
 * options, static functions and one descriptor at its end, registered by ATTENTION(),
 * POSITION(), FFN() or MECHANISM(); linking the file makes it available.
 *
 * Letters: B batch, T positions, E width, H heads, D = E/H, L latent width,
 * F hidden width of the feed-forward, V vocabulary, N layers.
 */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include "core/util/config.h"
#include "core/ops/ops.h"
#include "core/train/token_program.h"
#include "core/util/register.h"

/* The modules of a model, as in struct origin. */
enum module { MODULE_EMBEDDING, MODULE_ATTENTION, MODULE_FFN, MODULE_NORM, MODULE_HEAD, MODULES };

enum position { POS_LEARNED, POS_ROPE, POS_NONE, POS_DISTANCE };
enum out_gate { OUT_GATE_NONE, OUT_GATE_HEAD, OUT_GATE_CHANNEL };
enum init_scheme { SCHEME_GPT2, SCHEME_ORTHOGONAL };

#define MAX_MECHANISMS 8

/*
 * A symbol that switches one thing off.  The mechanism audit uses it to see whether
 * that thing changes the logits or, with through_loss, only gradients.
 */
struct model_switch {
	const char *symbol, *off; /* CONFIG_symbol=off */
	bool through_loss;
	int mechanism; /* 1 + the number of the mechanism that is switched; 0: none */
	bool sends;    /* this mechanism sends messages to the next layer */
};

struct block;
struct model;

/*
 * What an attention type gives to the shared kernel: queries, keys and values, scale and band.
 * The block fills in the rest of `attr`.  When decoding, the block also keeps keys, values and
 * biases for later tokens.
 */
struct projection {
	struct attention_inputs in;
	struct attention_attr attr;
	int64_t values_in_keys;	   /* > 0: v is not given, but the first so many channels of k */
	struct tensor *query_bias; /* [B,T,H] or NULL: the query's own term of the content score */
	struct tensor *latent; /* [B,T,L] of block_latent(), or NULL: latent reciprocity reads it */
};

struct attention_variant {
	const char *name; /* as in CONFIG_ATTENTION */
	size_t options_size;
	/* Reads this type's symbols and refuses values that do not fit; NULL: it has none. */
	enum status (*read)(void *options, const struct model *m, struct config *c,
			    struct error *err);
	void (*project)(struct block *b, struct tensor *x, struct projection *p);
	/*
	 * Instead of project(): the heads' outputs [B,T,H,D] by any ops.  Such an attention has no
	 * scores, so nothing adds a position to them, routes by them or probes them.
	 */
	struct tensor *(*mix)(struct block *b, struct tensor *x);
	bool keeps_state; /* decoding: the ops of mix() keep what later tokens need of earlier
			     ones; else each token repeats the text before it */
	/* Turns the kernel's output [B,T,H,*] into the heads' outputs [B,T,H,D]; NULL: no change.
	 */
	struct tensor *(*heads)(struct block *b, struct tensor *o);
	bool projection_bias;		     /* c_proj has a bias where the model has biases */
	bool has_latent;		     /* project() gives p->latent */
	const struct model_switch *switches; /* ends with a NULL symbol; or NULL */
	/* NULL: all switches are on, always. */
	bool (*switched_on)(const void *options, const struct model_switch *s);
};

/* A bias of scores by the distance of query and key (core/ops/score.h). */
struct position_variant {
	const char *name; /* as in CONFIG_POS */
	size_t options_size;
	/* NULL: it has no symbols. */
	enum status (*read)(void *options, const struct model *m, struct config *c,
			    struct error *err);
	/* A layer's biases [H,distances] of the distances 0, 1, ... */
	struct tensor *(*biases)(struct block *b, int64_t distances);
};

struct ffn_variant {
	const char *name; /* as in CONFIG_FFN */
	size_t options_size;
	/* NULL: it has no symbols. */
	enum status (*read)(void *options, const struct model *m, struct config *c,
			    struct error *err);
	/* The hidden activation [B,T,F]. */
	struct tensor *(*hidden)(struct block *b, struct tensor *x);
	/* `hidden` and c_proj by one op, for models in which nothing else reads h; NULL: there is
	 * none. */
	struct tensor *(*whole)(struct block *b, struct tensor *x);
	bool projection_bias;
	const struct model_switch *switches;
	bool (*switched_on)(const void *options, const struct model_switch *s);
};

/*
 * What `hidden` of a mechanism passes on: to `latent` or `heads` of the same mechanism in the next
 * layer, or to its `reading` in this layer.
 */
struct message {
	struct tensor *value; /* NULL: nothing */
	struct tensor *alpha; /* its learned weight, or NULL */
};

struct mechanism {
	const char *name;
	const char *symbol; /* the switch in Kconfig */
	int order;	    /* of `hidden` among the mechanisms */
	size_t options_size;
	/* NULL: it has no symbols. */
	enum status (*read)(void *options, const struct model *m, struct config *c,
			    struct error *err);
	/* The layers in which it claims to act; NULL: all. */
	bool (*acts)(const void *options, const struct model *m, int layer);
	/* Any of these may be NULL. */
	void (*attend)(struct block *b, const void *options, struct attention_attr *attr);
	struct tensor *(*latent)(struct block *b, const void *options, const struct message *in,
				 struct tensor *latent);
	struct tensor *(*heads)(struct block *b, const void *options, const struct message *in,
				struct tensor *o);
	struct tensor *(*hidden)(struct block *b, const void *options, struct tensor *h,
				 struct message *out);
	bool plain_reader; /* `hidden` returns h and reads it only by block_read_hidden() */
	/* Adds to y = h W what `hidden` left out of h; block_read_hidden() calls it. */
	struct tensor *(*reading)(struct block *b, const void *options, const struct message *left,
				  struct tensor *h, struct tensor *w, struct tensor *y);
};

struct model {
	struct pool pool;
	int64_t vocab, length, layers, heads, embd, head_dim, hidden;
	int64_t batch; /* rows of a training batch, which may decide a form; 0: unknown */
	bool bias, tied, norm_after;
	bool decoder; /* the logits of all places come from the last token's state */
	enum norm_kind norm, final_norm;
	bool final_norm_bias;
	double norm_eps, rope_theta, dropout, logits_z;
	int64_t score_window, score_sinks; /* 0: every query sees all earlier keys */
	double softcap;			   /* of scores; 0: none */
	enum position position;
	enum out_gate out_gate;
	enum init_scheme init;
	double init_deviation; /* SCHEME_GPT2 */
	bool learn_alpha;
	bool merges_linears; /* linear maps of one activation are one product, except in decoding */
	int64_t window;	     /* of the reciprocity metric, and of mla's reciprocal score */

	const struct attention_variant *attention;
	void *attention_options;
	const struct position_variant *distance; /* POS_DISTANCE, else NULL */
	void *distance_options;
	const struct ffn_variant *ffn;
	void *ffn_options;
	const struct mechanism *mechanism[MAX_MECHANISMS];
	void *mechanism_options[MAX_MECHANISMS];
	int n_mechanisms;
	/* For audits: 1 + the number of a mechanism, or 0. */
	int silenced, silenced_layer; /* what this mechanism sends from this layer gets lost */
	int muted, muted_layer;	      /* this mechanism is absent from this layer */
	bool undecoded;		      /* the logits are those of a model without decoder */
};

/* One layer while it is being built. */
struct block {
	struct graph *g;
	const struct model *m;
	int layer;
	bool last;
	bool probing;  /* build the outputs of MODEL_PROBE */
	bool decoding; /* the graph has of earlier tokens only what op_cache() kept */
	int64_t B, T;
	const struct token_io *io;
	struct message in[MAX_MECHANISMS]; /* by mechanism: from layer - 1 */
	struct message out[MAX_MECHANISMS];
	struct projection projection;
	struct attention_outputs attention;
};

/* What a model needs to know of its data and training. */
struct model_task {
	int64_t vocab; /* of the data; the model has the same where CONFIG_MODEL_VOCAB is 0 */
	int64_t batch; /* rows of a training batch; 0: unknown */
};

enum status model_read(struct model **m, struct config *c, const struct model_task *task,
		       struct error *err) MUST_CHECK;
void model_free(struct model *m);

enum model_purpose {
	MODEL_TRAIN,  /* losses, with dropout and auxiliary losses */
	MODEL_EVAL,   /* cross-entropy alone */
	MODEL_LOGITS, /* output "logits" [B,T,V] */
	MODEL_NEXT,   /* output "logits" [B,V], after the last token */
	MODEL_PROBE,  /* per layer "h.N.attn.probe" and what its mechanisms show */
};

/*
 * Adds the model of B rows of T tokens to the graph.  If the graph continues
 * (graph_continue()), these follow earlier tokens.  The graph keeps the first error.
 * MODEL_TRAIN and MODEL_EVAL have the outputs "nll" and "hit" and the losses "main",
 * "logits_z", "h.N.mlp.aux_z", "h.N.mlp.aux_c", "h.N.mlp.aux_l"; enum model_purpose names the
 * outputs of the other purposes.
 */
void model_build(const struct model *m, struct graph *g, enum model_purpose purpose, int64_t B,
		 int64_t T, struct token_io *io);

/* Does decoding go on from a state?  If not, `why` says what it does instead. */
bool model_keeps_state(const struct model *m, struct error *why);

/* Calls `visit` for everything in this model that can be switched off alone. */
void model_switches(const struct model *m,
		    void (*visit)(void *context, const struct model_switch *s), void *context);

/* -------------------------------------------------- for the variants' files */

/* Parameters of the current scope, with the model's initialisation. */
struct tensor *block_matrix(struct block *b, const char *name, int64_t in, int64_t out);
struct tensor *block_heads_matrix(struct block *b, const char *name, int64_t heads, int64_t in,
				  int64_t out);
struct tensor *block_vector(struct block *b, const char *name, int64_t n, double value);

/* A table [rows,width] that all layers share: its name has no layer. */
struct tensor *block_shared_table(struct block *b, const char *name, int64_t rows, int64_t width);

/* y = x W + b with parameters "name.weight" and, if asked, "name.bias". */
struct tensor *block_linear(struct block *b, const char *name, struct tensor *x, int64_t out,
			    bool bias);

/* y = h W + b of the hidden activation h; adds what mechanisms left out of h. */
struct tensor *block_read_hidden(struct block *b, const char *name, struct tensor *h,
				 struct tensor *w, bool bias);

/* A mixing weight: the parameter "name" where the model learns them, else NULL. */
struct tensor *block_alpha(struct block *b, const char *name, double value);

/* x [B,T,heads*width] seen as [B,T,heads,width]. */
struct tensor *block_heads(struct block *b, struct tensor *x, int64_t heads);

/*
 * An attention's latent, plus what mechanisms of the previous layer sent to it.  Every attention
 * with has_latent calls this once, in project(), before it uses the latent.
 */
struct tensor *block_latent(struct block *b, struct tensor *latent);

/* x / sqrt(|x|^2 + 1e-6), |x| along a dimension; names of nodes begin with `role`. */
struct tensor *block_unit(struct block *b, const char *role, struct tensor *x, int dim);

/*
 * In training: the mean cross-entropy of the targets, as of the main loss, where the output head
 * reads x [B,T,E].
 */
struct tensor *block_target_loss(struct block *b, const char *name, struct tensor *x);

/* Rotates the first `width` channels of every head if the model uses rope. */
struct tensor *block_rope(struct block *b, const char *name, struct tensor *x, int64_t width);

/* Constants [rows,distances] of this type: value() of each row, such as a head, and distance. */
struct tensor *block_distance_table(struct block *b, const char *name, enum dtype type,
				    int64_t rows, int64_t distances,
				    double (*value)(const struct block *b, int64_t row,
						    int64_t distance));

#define ATTENTION(object) REGISTER("attention_variants", attention_variant, object)
#define POSITION(object) REGISTER("position_variants", position_variant, object)
#define FFN(object) REGISTER("ffn_variants", ffn_variant, object)
#define MECHANISM(object) REGISTER("mechanisms", mechanism, object)

#endif
