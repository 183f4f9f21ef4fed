/*
 * source - where training and validation rows come from.
 *
 * A task (one file in data/tasks; data/tasks/text.c reads token files) fills
 * rows of T tokens and T targets.  TASK() registers its descriptor; linking
 * the file makes it available.  A row is a pure function of its arguments, so
 * resuming, evaluating or reordering never shifts another row, and several
 * threads may make rows at once.
 *
 * A target of -1 does not count: neither in the loss of training nor in loss
 * and accuracy of validation.  A task may train on more targets than are
 * scored: the recall tasks train on every next token and are scored on the
 * values of keys seen before.
 */
#ifndef DATA_SOURCE_H
#define DATA_SOURCE_H

#include <stdint.h>

#include "core/util/config.h"
#include "core/util/hash.h"
#include "core/util/register.h"
#include "core/util/rng.h"
#include "core/util/status.h"

#define SOURCE_MAX_COMPONENTS 8
#define SOURCE_TOKEN_TEXT 24

/* The last two may be NULL when the caller does not want them. */
struct row {
	int32_t *tokens;    /* [T] */
	int32_t *targets;   /* [T]; -1: left out */
	uint8_t *component; /* [T] of each target: index into the task's components */
	float *floor;	    /* [T] exact cost of the target in nats, given the row so far; or NAN */
};

enum purpose { TRAINING, VALIDATION };

struct source;

/*
 * A generator has generate(), which receives the random numbers of its row; a
 * task that reads files has train() and valid() instead.  Before each call
 * targets are -1, components 0 and floors NAN.
 */
struct task {
	const char *name;	       /* as in CONFIG_TASK */
	const char *const *components; /* names, ends with NULL; NULL: one nameless component */
	enum status (*open)(struct source *s, struct config *c, struct error *err);
	void (*close)(struct source *s); /* NULL: nothing to close */
	void (*generate)(const struct source *s, enum purpose purpose, struct rng_reader *random,
			 struct row *out);
	void (*train)(const struct source *s, uint64_t iteration, uint64_t row, struct row *out);
	void (*valid)(const struct source *s, uint64_t index, struct row *out);
	/* For readers: a token in letters, without blanks; NULL: its number. */
	void (*spell)(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT]);
	/* The component of tokens[at], as what stands before it tells; NULL: one component. */
	int (*component)(const struct source *s, const int32_t *tokens, int64_t at);
	bool own_targets;  /* targets follow a rule of the task; else each is the next token */
	bool reconstructs; /* targets are the row's own tokens, for a model with a decoder */
	/* The stream of tokens of which training rows are parts; NULL: there is none. */
	uint64_t (*stream_length)(const struct source *s);
	void (*stream)(const struct source *s, uint64_t start, size_t count, int32_t *tokens);
};

struct source {
	const struct task *task;
	void *state; /* the task's own */
	uint64_t seed;
	int64_t length; /* T */
	int64_t vocab;
	uint64_t valid_rows;	       /* how many validation rows there are */
	const char *const *components; /* the task's, or those of its data; as in struct task */
	/*
	 * Nats per validation target; NAN: unknown.  Chance is the loss of the best guess
	 * that ignores the row, in total and for the targets of each component alone;
	 * the floor is the smallest possible mean loss, where it has a closed form.
	 */
	double chance, component_chance[SOURCE_MAX_COMPONENTS], floor;
	double bytes_per_token;	    /* mean bytes per target of the validation rows; 0: unknown */
	bool accuracy;		    /* the task is judged by accuracy on its validation targets */
	char hash[SHA256_HEX_SIZE]; /* identity: of the token files, or of what a generator makes */
};

/* Opens the task that CONFIG_TASK names; T is CONFIG_MODEL_BLOCK. */
enum status source_open(struct source *s, struct config *c, uint64_t seed,
			struct error *err) MUST_CHECK;

/* The same task with rows of another length, and so many validation rows. */
enum status source_open_at(struct source *s, struct config *c, uint64_t seed, int64_t length,
			   uint64_t valid_rows, struct error *err) MUST_CHECK;

/* Rows of token 0, for programs that need the model alone; opens no data. */
void source_blank(struct source *s, int64_t length, int64_t vocab);
bool source_is_blank(const struct source *s);
void source_close(struct source *s);

/* Row number `row` of update `iteration`. */
void source_train(const struct source *s, uint64_t iteration, uint64_t row, struct row *out);

/* Validation row `index` of `valid_rows`: the same for every step and seed. */
void source_valid(const struct source *s, uint64_t index, struct row *out);

/* How a reader sees a token: every token of the vocabulary has a text of its own. */
void source_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT]);

/* The token of such a text; -1: there is none. */
int32_t source_read_token(const struct source *s, const char *text);

/* The name of the component of tokens[at]; NULL: the task has only one. */
const char *source_component(const struct source *s, const int32_t *tokens, int64_t at);

#define TASK(object) REGISTER("tasks", task, object)

#endif
