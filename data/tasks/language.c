/*
 * language - text-like documents whose every probability is known.
 *
 * A row starts with a document and holds as many as fit, the last one cut:
 *
 *	text  := DOC { WORD | FACT name value | ASK name value | OPEN tag |
 *		       CLOSE tag | COPY span END }
 *
 * - a WORD depends on the two tokens before it (data/tasks/words.h);
 * - FACT gives a value to a name not yet used in the document; ASK repeats a
 *   name of the document, and its value is certain;
 * - OPEN begins a bracket with a tag; CLOSE names the tag of the innermost open
 *   bracket, which is certain; brackets may hold anything;
 * - COPY quotes a span: it starts with a word that the document has once and
 *   continues as the text did there, words and facts alike, until END.  END
 *   comes with probability 1/span before every further token, and always
 *   before what is not quoted (brackets, other quotes).
 *
 * A token announces each choice, so the text so far determines the generator's
 * state, and the probability of each token given all before it is exact.
 * Minus its logarithm is the row's floor.  A choice that is impossible at a
 * place (ASK without facts, CLOSE without brackets, ..) leaves its share to
 * the words.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "data/tasks/draw.h"
#include "data/tasks/guess.h"
#include "data/tasks/option.h"
#include "data/tasks/words.h"
#include "data/tasks/writer.h"

#define MAX_NAMES 256
#define MAX_DEPTH 64
/* Exact to 0.01 nats: an entropy from n counts of k kinds is too low by (k - 1) / 2n. */
#define CHANCE_TOKENS (1 << 17)

/* The first tokens of the vocabulary; tags, names, values and words follow. */
enum marker { DOC, FACT, ASK, OPEN, CLOSE, COPY, END, MARKERS };

enum component { LOCAL, CHOICE, RECALL, NESTING, COPYING, COMPONENTS };

static const char *const component_names[] = {
	[LOCAL] = "local",     /* words and markers */
	[CHOICE] = "choice",   /* what is drawn anew: names, values, opening tags, first words */
	[RECALL] = "recall",   /* the values of facts asked */
	[NESTING] = "nesting", /* the tags of closing brackets */
	[COPYING] = "copying", /* quoted tokens but the first, and END */
	[COMPONENTS] = NULL,
};

#define CONSTRUCTS 6

struct language {
	int64_t tags, names, values;	    /* how many there are */
	int32_t tag0, name0, value0, word0; /* the first token of each kind */
	int64_t depth, span;
	int64_t percent[CONSTRUCTS];
	struct words words;
};

/* A text being written: what its reader would know. */
struct text {
	const struct language *l;
	struct rng_reader *random;
	struct writer w;
	int64_t start; /* where the document started */
	int depth;
	int32_t open[MAX_DEPTH];  /* tags of the open brackets */
	int32_t value[MAX_NAMES]; /* of the names' facts; -1: none yet */
	int stated;		  /* how many have one */
	int64_t seen;		  /* tokens that are known to leave `quote` as it is */
	int64_t quote;		  /* a place that starts a span; -1: none is known */
};

/* ---------------------------------------------------------------- reading the text so far */

/* -1: the text does not have this place. */
static int32_t token_at(const struct text *x, int64_t place)
{
	bool inside = place >= 0 && place < x->w.at && place < x->w.length;

	return inside ? x->w.row->tokens[place] : -1;
}

/* The number of the word at a place of the text; -1: not a word. */
static int32_t word_at(const struct text *x, int64_t place)
{
	int32_t token = token_at(x, place);

	return token < x->l->word0 ? -1 : token - x->l->word0;
}

/* May a span continue with it?  All but brackets, other spans and documents. */
static bool quotable_at(const struct text *x, int64_t place)
{
	int32_t token = token_at(x, place);

	return token == FACT || token == ASK || token >= x->l->name0;
}

/* How often does the document have it? */
static int32_t times_used(const struct text *x, int32_t token)
{
	const int32_t *tokens = x->w.row->tokens;
	const int64_t end = x->w.at < x->w.length ? x->w.at : x->w.length;
	int32_t times = 0;

	for (int64_t place = x->start; place < end; place++)
		times += tokens[place] == token;
	return times;
}

/* A word that the document has once, with more to quote: the word identifies the place. */
static bool starts_span(const struct text *x, int64_t place)
{
	return word_at(x, place) >= 0 && quotable_at(x, place + 1) &&
	       times_used(x, token_at(x, place)) == 1;
}

static bool can_state(struct text *x)
{
	return x->stated < x->l->names;
}

static bool can_ask(struct text *x)
{
	return x->stated > 0;
}

static bool can_open(struct text *x)
{
	return x->depth < x->l->depth;
}

static bool can_close(struct text *x)
{
	return x->depth > 0;
}

/*
 * A start that was found remains one until its word comes again.  Search from the end, where one is
 * found sooner.
 */
static bool can_copy(struct text *x)
{
	for (; x->quote >= 0 && x->seen < x->w.at; x->seen++)
		if (word_at(x, x->seen) == word_at(x, x->quote))
			x->quote = -1;
	x->seen = x->w.at;
	for (int64_t place = x->w.at - 1; x->quote < 0 && place >= x->start; place--)
		if (starts_span(x, place))
			x->quote = place;
	return x->quote >= 0;
}

static bool can_end(struct text *x)
{
	return x->depth == 0;
}

/* ---------------------------------------------------------------- writing */

static void put(struct text *x, int32_t token, enum component component, double probability)
{
	writer_put_target(&x->w, token, component, x->w.row->floor ? 0.0 - log(probability) : 0);
}

/* One of n tokens from `first`. */
static int32_t put_uniform(struct text *x, int32_t first, int64_t n)
{
	int32_t chosen = (int32_t)rng_next_below(x->random, (uint64_t)n);

	put(x, first + chosen, CHOICE, 1.0 / (double)n);
	return chosen;
}

/* One of the `n` names that have a fact already, or have none yet. */
static int32_t put_name(struct text *x, bool stated, int64_t n)
{
	int64_t left = (int64_t)rng_next_below(x->random, (uint64_t)n);
	int32_t name = 0;

	while ((x->value[name] >= 0) != stated || left-- > 0)
		name++;
	put(x, x->l->name0 + name, CHOICE, 1.0 / (double)n);
	return name;
}

static void state_fact(struct text *x)
{
	int32_t name = put_name(x, false, x->l->names - x->stated);

	x->value[name] = put_uniform(x, x->l->value0, x->l->values);
	x->stated++;
}

static void ask_fact(struct text *x)
{
	int32_t name = put_name(x, true, x->stated);

	put(x, x->l->value0 + x->value[name], RECALL, 1.0);
}

static void open_bracket(struct text *x)
{
	x->open[x->depth++] = put_uniform(x, x->l->tag0, x->l->tags);
}

static void close_bracket(struct text *x)
{
	put(x, x->l->tag0 + x->open[--x->depth], NESTING, 1.0);
}

/* Writes the first word of a span, each start with the same probability; returns the place. */
static int64_t put_copy_start(struct text *x)
{
	int64_t starts = 0, chosen = 0;

	for (int64_t place = x->start; place < x->w.at; place++)
		if (starts_span(x, place) && rng_next_below(x->random, (uint64_t)++starts) == 0)
			chosen = place;
	put(x, x->l->word0 + word_at(x, chosen), CHOICE, 1.0 / (double)starts);
	return chosen;
}

static void copy_span(struct text *x)
{
	double stop = 1.0 / (double)x->l->span;
	int64_t from = put_copy_start(x) + 1;

	for (; quotable_at(x, from) && !writer_full(&x->w); from++) {
		if (rng_next_below(x->random, (uint64_t)x->l->span) == 0) {
			put(x, END, COPYING, stop);
			return;
		}
		put(x, token_at(x, from), COPYING, 1.0 - stop);
	}
	put(x, END, COPYING, 1.0);
}

/* The marker DOC has just been written. */
static void start_document(struct text *x)
{
	x->start = x->w.at - 1;
	x->depth = 0;
	x->stated = 0;
	x->quote = -1;
	memset(x->value, -1, sizeof(x->value));
}

static const struct {
	enum marker marker;
	const char *percent; /* symbol: its share of the free choices */
	bool (*possible)(struct text *x);
	void (*rest)(struct text *x); /* writes what follows the marker */
} constructs[CONSTRUCTS] = {
	{ FACT, "LANGUAGE_FACT_PERCENT", can_state, state_fact },
	{ ASK, "LANGUAGE_ASK_PERCENT", can_ask, ask_fact },
	{ OPEN, "LANGUAGE_OPEN_PERCENT", can_open, open_bracket },
	{ CLOSE, "LANGUAGE_CLOSE_PERCENT", can_close, close_bracket },
	{ COPY, "LANGUAGE_COPY_PERCENT", can_copy, copy_span },
	{ DOC, "LANGUAGE_END_PERCENT", can_end, start_document },
};

static void put_word(struct text *x, int64_t percent)
{
	const uint32_t *units =
		words_after(&x->l->words, word_at(x, x->w.at - 2), word_at(x, x->w.at - 1));
	int32_t word = (int32_t)draw_index(x->random, units, DRAW_UNITS);

	put(x, x->l->word0 + word, LOCAL, (double)percent / 100.0 * units[word] / DRAW_UNITS);
}

/* A word, or a construct with all that belongs to it. */
static void put_next(struct text *x)
{
	int64_t point = (int64_t)rng_next_below(x->random, 100), words = 100;

	for (int i = 0; i < CONSTRUCTS; i++) {
		int64_t percent = constructs[i].possible(x) ? x->l->percent[i] : 0;

		words -= percent;
		if (point >= words && point < words + percent) {
			put(x, constructs[i].marker, LOCAL, (double)percent / 100.0);
			constructs[i].rest(x);
			return;
		}
	}
	put_word(x, words);
}

static void language_generate(const struct source *s, enum purpose purpose,
			      struct rng_reader *random, struct row *out)
{
	struct text x = { .l = s->state, .random = random, .w = writer_start(s, out) };

	(void)purpose;
	writer_put(&x.w, DOC);
	start_document(&x);
	while (!writer_full(&x.w))
		put_next(&x);
}

/* ---------------------------------------------------------------- for readers */

static void language_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	static const char *const markers[MARKERS] = { "DOC",   "FACT", "ASK", "OPEN",
						      "CLOSE", "COPY", "END" };
	const struct language *l = s->state;

	if (token < l->tag0)
		snprintf(text, SOURCE_TOKEN_TEXT, "%s", markers[token]);
	else if (token < l->name0)
		snprintf(text, SOURCE_TOKEN_TEXT, "tag%d", token - l->tag0);
	else if (token < l->value0)
		snprintf(text, SOURCE_TOKEN_TEXT, "name%d", token - l->name0);
	else if (token < l->word0)
		snprintf(text, SOURCE_TOKEN_TEXT, "value%d", token - l->value0);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "w%d", token - l->word0);
}

static bool inside_span(const int32_t *tokens, int64_t at)
{
	for (int64_t t = at - 1; t >= 0; t--)
		if (tokens[t] == COPY || tokens[t] == END || tokens[t] == DOC)
			return tokens[t] == COPY;
	return false;
}

static int language_component(const struct source *s, const int32_t *tokens, int64_t at)
{
	const int32_t last = at > 0 ? tokens[at - 1] : DOC;
	const int32_t before = at > 1 ? tokens[at - 2] : DOC;

	(void)s;
	if (last == COPY)
		return CHOICE;
	if (inside_span(tokens, at))
		return COPYING;
	if (last == CLOSE)
		return NESTING;
	if (last == FACT || last == ASK || last == OPEN)
		return CHOICE;
	if (last != END && (before == FACT || before == ASK))
		return before == ASK ? RECALL : CHOICE;
	return LOCAL;
}

/* ---------------------------------------------------------------- chance */

static void count_targets(const struct source *s, struct row *row, uint64_t *counts)
{
	struct rng_key key = rng_key(0, "language/chance");

	for (int64_t i = 0; i * s->length < CHANCE_TOKENS; i++) {
		struct rng_reader random = { .key = rng_subkey(key, (uint64_t)i) };

		language_generate(s, VALIDATION, &random, row);
		for (int64_t t = 0; t < s->length; t++)
			counts[row->component[t] * s->vocab + row->targets[t]]++;
	}
}

/* Measured on rows of a separate stream: one guess per component, and one for all targets. */
static enum status measure_chance(struct source *s, struct error *err)
{
	size_t length = (size_t)s->length, vocab = (size_t)s->vocab;
	size_t size = COMPONENTS * vocab * sizeof(uint64_t) + length * (2 * sizeof(int32_t) + 1);
	uint64_t *counts = calloc(1, size);
	struct row row = { 0 };

	if (!counts)
		return fail_memory(err, "language", size);
	row.tokens = (int32_t *)(counts + COMPONENTS * vocab);
	row.targets = row.tokens + length;
	row.component = (uint8_t *)(row.targets + length);
	count_targets(s, &row, counts);
	for (size_t i = 0; i < COMPONENTS; i++)
		s->component_chance[i] = guess_loss(counts + i * vocab, vocab);
	for (size_t i = vocab; i < COMPONENTS * vocab; i++)
		counts[i % vocab] += counts[i];
	s->chance = guess_loss(counts, vocab);
	free(counts);
	return OK;
}

/* ---------------------------------------------------------------- opening */

static enum status read_percents(struct language *l, struct config *c, struct error *err)
{
	int64_t sum = 0;

	for (int i = 0; i < CONSTRUCTS; i++) {
		if (option_int(c, constructs[i].percent, 0, 99, &l->percent[i], err))
			return FAIL;
		sum += l->percent[i];
	}
	if (sum > 99)
		return fail(err,
			    "LANGUAGE_*_PERCENT: no words are left: everything else takes %lld%%",
			    (long long)sum);
	return OK;
}

static enum status read_words(struct language *l, int64_t count, struct config *c,
			      struct error *err)
{
	struct rng_key key;
	int64_t clusters, common, seed;
	double zipf;

	if (option_int(c, "LANGUAGE_CLUSTERS", 1, 32, &clusters, err) ||
	    option_real(c, "LANGUAGE_ZIPF", 0.0, 4.0, &zipf, err) ||
	    option_int(c, "LANGUAGE_COMMON_PERCENT", 0, 100, &common, err) ||
	    option_int(c, "LANGUAGE_SEED", 0, INT32_MAX, &seed, err))
		return FAIL;
	key = rng_key((uint64_t)seed, "language/words");
	return words_open(&l->words, (int32_t)count, (int32_t)clusters, zipf,
			  (double)common / 100.0, key, err);
}

static enum status read_language(struct language *l, int64_t vocab, struct config *c,
				 struct error *err)
{
	if (option_int(c, "LANGUAGE_TAGS", 1, OPTION_MAX_VOCAB, &l->tags, err) ||
	    option_int(c, "LANGUAGE_NAMES", 1, MAX_NAMES, &l->names, err) ||
	    option_int(c, "LANGUAGE_VALUES", 1, OPTION_MAX_VOCAB, &l->values, err) ||
	    option_int(c, "LANGUAGE_DEPTH", 1, MAX_DEPTH, &l->depth, err) ||
	    option_int(c, "LANGUAGE_SPAN", 1, 1024, &l->span, err) || read_percents(l, c, err))
		return FAIL;
	l->tag0 = MARKERS;
	l->name0 = l->tag0 + (int32_t)l->tags;
	l->value0 = l->name0 + (int32_t)l->names;
	l->word0 = l->value0 + (int32_t)l->values;
	if (l->word0 >= vocab)
		return fail(err, "LANGUAGE_VOCAB=%lld: no words are left: everything else takes %d",
			    (long long)vocab, (int)l->word0);
	return read_words(l, vocab - l->word0, c, err);
}

static enum status language_open(struct source *s, struct config *c, struct error *err)
{
	struct language *l = calloc(1, sizeof(*l));

	if (!l)
		return fail_memory(err, "language", sizeof(*l));
	s->state = l;
	if (option_int(c, "LANGUAGE_VOCAB", 1, OPTION_MAX_VOCAB, &s->vocab, err) ||
	    read_language(l, s->vocab, c, err))
		return FAIL;
	return measure_chance(s, err);
}

static void language_close(struct source *s)
{
	struct language *l = s->state;

	if (l)
		words_close(&l->words);
	free(l);
}

static const struct task language = {
	.name = "language",
	.components = component_names,
	.open = language_open,
	.close = language_close,
	.generate = language_generate,
	.spell = language_spell,
	.component = language_component,
};
TASK(language);
