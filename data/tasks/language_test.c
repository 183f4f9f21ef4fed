/*
 * Tests of the language task: its grammar at the default size, and its floors
 * against an enumeration of every text of a small language.
 */
#include "data/tasks/draw.h"
#include "data/tasks/fixture.h"
#include "data/tasks/words.h"

enum { DOC, FACT, ASK, OPEN, CLOSE, COPY, END, MARKERS };
enum { LOCAL, CHOICE, RECALL, NESTING, COPYING, COMPONENTS };

#define SYMBOLS                                                                                 \
	"CONFIG_LANGUAGE_VOCAB=256\nCONFIG_LANGUAGE_TAGS=8\nCONFIG_LANGUAGE_NAMES=8\n"          \
	"CONFIG_LANGUAGE_VALUES=16\nCONFIG_LANGUAGE_CLUSTERS=4\nCONFIG_LANGUAGE_ZIPF=\"1.8\"\n" \
	"CONFIG_LANGUAGE_COMMON_PERCENT=20\nCONFIG_LANGUAGE_SEED=1\n"                           \
	"CONFIG_LANGUAGE_FACT_PERCENT=5\nCONFIG_LANGUAGE_ASK_PERCENT=20\n"                      \
	"CONFIG_LANGUAGE_OPEN_PERCENT=10\nCONFIG_LANGUAGE_CLOSE_PERCENT=40\n"                   \
	"CONFIG_LANGUAGE_COPY_PERCENT=5\nCONFIG_LANGUAGE_END_PERCENT=1\n"                       \
	"CONFIG_LANGUAGE_DEPTH=4\nCONFIG_LANGUAGE_SPAN=12\n"

/* ---------------------------------------------------------------- the grammar at the default size
 */

#define TAG0 MARKERS
#define NAME0 (TAG0 + 8)
#define VALUE0 (NAME0 + 8)
#define WORD0 (VALUE0 + 16)
#define T 256

/* A reader of one row: what must come next, token by token. */
struct reader {
	const struct row *row;
	int at;
	int facts[8], tags[4], depth, start;
};

static int next(struct reader *r, int component, int first, int last)
{
	int token = r->row->targets[r->at];

	assert_int_equal(r->row->component[r->at], component);
	assert_in_range(token, first, last);
	r->at++;
	return token;
}

static bool ended(const struct reader *r)
{
	return r->at >= T;
}

static void read_fact(struct reader *r)
{
	int name = next(r, CHOICE, NAME0, VALUE0 - 1) - NAME0;

	assert_int_equal(r->facts[name], 0);
	if (!ended(r))
		r->facts[name] = next(r, CHOICE, VALUE0, WORD0 - 1);
}

static void read_ask(struct reader *r)
{
	int name = next(r, CHOICE, NAME0, VALUE0 - 1) - NAME0;

	assert_int_not_equal(r->facts[name], 0);
	if (!ended(r))
		next(r, RECALL, r->facts[name], r->facts[name]);
}

static void read_copy(struct reader *r)
{
	int word = next(r, CHOICE, WORD0, 255), from = -1;

	for (int t = r->start; t < r->at - 1; t++)
		if (r->row->tokens[t] == word) {
			assert_int_equal(from, -1);
			from = t;
		}
	assert_int_not_equal(from, -1);
	while (!ended(r)) {
		int token = r->row->targets[r->at];

		next(r, COPYING, 0, 255);
		if (token == END)
			return;
		assert_int_equal(token, r->row->tokens[++from]);
		assert_true(token == FACT || token == ASK || token >= NAME0);
	}
}

static void start_document(struct reader *r)
{
	assert_int_equal(r->depth, 0);
	r->start = r->at;
	memset(r->facts, 0, sizeof(r->facts));
}

static void read_next(struct reader *r)
{
	int token = next(r, LOCAL, 0, 255);

	if (token == DOC)
		start_document(r);
	else if (token < TAG0 && ended(r))
		return;
	else if (token == FACT)
		read_fact(r);
	else if (token == ASK)
		read_ask(r);
	else if (token == COPY)
		read_copy(r);
	else if (token == OPEN)
		r->tags[r->depth++] = next(r, CHOICE, TAG0, NAME0 - 1);
	else if (token == CLOSE) {
		assert_true(r->depth > 0);
		r->depth--;
		next(r, NESTING, r->tags[r->depth], r->tags[r->depth]);
	} else
		assert_true(token >= WORD0);
	assert_true(r->depth <= 4);
}

/* What a reader gets about a token is what its generator wrote. */
static void test_components_can_be_read(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, "language", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 200; i++) {
		source_train(&f.source, i, 0, &f.row);
		for (int t = 0; t + 1 < T; t++)
			assert_string_equal(source_component(&f.source, f.row.tokens, t + 1),
					    f.source.task->components[f.row.component[t]]);
	}
	fixture_close(&f);
}

static void test_rows_follow_the_grammar(void **state)
{
	int components[COMPONENTS] = { 0 }, documents = 0;
	struct fixture f;

	(void)state;
	fixture_open(&f, "language", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 200; i++) {
		struct reader r = { .row = &f.row };

		source_train(&f.source, i, i % 3, &f.row);
		assert_int_equal(f.row.tokens[0], DOC);
		assert_memory_equal(f.row.targets, f.row.tokens + 1, (T - 1) * sizeof(int32_t));
		while (!ended(&r))
			read_next(&r);
		for (int t = 0; t < T; t++) {
			components[f.row.component[t]]++;
			documents += f.row.tokens[t] == DOC;
			if (f.row.component[t] == RECALL || f.row.component[t] == NESTING)
				expect_near(f.row.floor[t], 0.0, 0.0);
			else
				assert_true(f.row.floor[t] >= 0.0f);
		}
	}
	for (int i = 0; i < COMPONENTS; i++)
		assert_true(components[i] > 200 * T / 50);
	assert_true(documents > 220);
	fixture_close(&f);
}

/* Answers are uniform over values, tags over tags; a guess for all targets costs more than the
 * floor. */
static void test_chance(void **state)
{
	struct fixture f;
	double sum = 0.0;

	(void)state;
	fixture_open(&f, "language", T, SYMBOLS, 1);
	expect_near(f.source.component_chance[RECALL], log(16.0), 0.02);
	expect_near(f.source.component_chance[NESTING], log(8.0), 0.02);
	for (uint64_t i = 0; i < 64; i++) {
		source_valid(&f.source, i, &f.row);
		for (int t = 0; t < T; t++)
			sum += f.row.floor[t];
	}
	sum /= 64 * T;
	assert_true(f.source.chance < log(256.0));
	assert_true(sum < f.source.chance - 2.0);
	assert_true(isnan(f.source.floor));
	fixture_close(&f);
}

/* ---------------------------------------------------------------- every text of a small language
 */

/*
 * The generator adds up costs as it writes.  This test lists all texts of
 * LENGTH tokens by their choices and adds the probabilities of the texts with
 * the same beginning.  The cost of a token is the logarithm of a ratio of two
 * such sums.
 */
#define SMALL                                                                                \
	"CONFIG_LANGUAGE_VOCAB=16\nCONFIG_LANGUAGE_TAGS=2\nCONFIG_LANGUAGE_NAMES=2\n"        \
	"CONFIG_LANGUAGE_VALUES=2\nCONFIG_LANGUAGE_CLUSTERS=2\nCONFIG_LANGUAGE_ZIPF=\"1\"\n" \
	"CONFIG_LANGUAGE_COMMON_PERCENT=50\nCONFIG_LANGUAGE_SEED=3\n"                        \
	"CONFIG_LANGUAGE_FACT_PERCENT=11\nCONFIG_LANGUAGE_ASK_PERCENT=17\n"                  \
	"CONFIG_LANGUAGE_OPEN_PERCENT=13\nCONFIG_LANGUAGE_CLOSE_PERCENT=19\n"                \
	"CONFIG_LANGUAGE_COPY_PERCENT=15\nCONFIG_LANGUAGE_END_PERCENT=5\n"                   \
	"CONFIG_LANGUAGE_DEPTH=2\nCONFIG_LANGUAGE_SPAN=3\n"
#define LENGTH 8 /* DOC and 7 targets */
#define SMALL_TAG0 7
#define SMALL_NAME0 9
#define SMALL_VALUE0 11
#define SMALL_WORD0 13
#define BEGINNINGS (1u << 18) /* slots, a power of two; 73307 are used */

struct beginning {
	uint64_t code; /* a 1 and the tokens, 4 bits each */
	double probability;
};

struct world {
	struct words words;
	struct beginning *beginnings;
	double total;
};

struct story {
	struct world *world;
	int length, tokens[LENGTH];
	double probability;
	int facts[2], depth, tags[2], start; /* facts: 0 or the value */
};

static struct beginning *find(struct world *w, const int *tokens, int length)
{
	uint64_t code = 1;
	uint32_t slot;

	for (int i = 0; i < length; i++)
		code = code << 4 | (uint64_t)tokens[i];
	slot = (uint32_t)(code * 0x9E3779B97F4A7C15u >> 40) & (BEGINNINGS - 1);
	while (w->beginnings[slot].code && w->beginnings[slot].code != code)
		slot = (slot + 1) & (BEGINNINGS - 1);
	w->beginnings[slot].code = code;
	return &w->beginnings[slot];
}

static void tell(struct story s);

/* Appends a token.  A full text is counted, and nothing is left to choose. */
static bool append(struct story *s, int token, double probability)
{
	s->tokens[s->length++] = token;
	s->probability *= probability;
	if (s->length < LENGTH)
		return true;
	for (int i = 1; i <= LENGTH; i++)
		find(s->world, s->tokens, i)->probability += s->probability;
	s->world->total += s->probability;
	return false;
}

static void tell_fact(struct story s)
{
	int free_names = !s.facts[0] + !s.facts[1];

	for (int name = 0; name < 2; name++)
		for (int value = SMALL_VALUE0; value < SMALL_WORD0 && !s.facts[name]; value++) {
			struct story told = s;

			told.facts[name] = value;
			if (append(&told, SMALL_NAME0 + name, 1.0 / free_names)) {
				if (append(&told, value, 0.5))
					tell(told);
			} else {
				break; /* the value is not written: one text, not two */
			}
		}
}

static void tell_ask(struct story s)
{
	int known = !!s.facts[0] + !!s.facts[1];

	for (int name = 0; name < 2; name++) {
		struct story told = s;

		if (s.facts[name] && append(&told, SMALL_NAME0 + name, 1.0 / known) &&
		    append(&told, s.facts[name], 1.0))
			tell(told);
	}
}

static void tell_open(struct story s)
{
	for (int tag = SMALL_TAG0; tag < SMALL_NAME0; tag++) {
		struct story told = s;

		told.tags[told.depth++] = tag;
		if (append(&told, tag, 0.5))
			tell(told);
	}
}

static void tell_close(struct story s)
{
	if (append(&s, s.tags[s.depth - 1], 1.0)) {
		s.depth--;
		tell(s);
	}
}

static bool quotable(int token)
{
	return token == FACT || token == ASK || token >= SMALL_NAME0;
}

/* The text before place `end`: may a span start at a place? */
static bool span_starts(const struct story *s, int place, int end)
{
	int same = 0;

	for (int i = s->start; i < end; i++)
		same += s->tokens[i] == s->tokens[place];
	return s->tokens[place] >= SMALL_WORD0 && same == 1 && place + 1 < end &&
	       quotable(s->tokens[place + 1]);
}

static int count_spans(const struct story *s, int end)
{
	int count = 0;

	for (int i = s->start; i < end; i++)
		count += span_starts(s, i, end);
	return count;
}

static void tell_rest_of_span(struct story s, int from)
{
	struct story stopped = s;
	bool more = quotable(s.tokens[from]);

	if (append(&stopped, END, more ? 1.0 / 3.0 : 1.0))
		tell(stopped);
	if (more && append(&s, s.tokens[from], 2.0 / 3.0))
		tell_rest_of_span(s, from + 1);
}

static void tell_copy(struct story s)
{
	int end = s.length - 1, spans = count_spans(&s, end);

	for (int i = s.start; i < end; i++) {
		struct story told = s;

		if (span_starts(&s, i, end) && append(&told, s.tokens[i], 1.0 / spans))
			tell_rest_of_span(told, i + 1);
	}
}

static void tell_document(struct story s)
{
	s.start = s.length - 1;
	s.facts[0] = s.facts[1] = 0;
	tell(s);
}

static void tell_words(struct story s, double share)
{
	int before = s.length > 1 ? s.tokens[s.length - 2] - SMALL_WORD0 : -1;
	int last = s.tokens[s.length - 1] - SMALL_WORD0;
	const uint32_t *units =
		words_after(&s.world->words, before < 0 ? -1 : before, last < 0 ? -1 : last);

	for (int word = 0; word < 3; word++) {
		struct story told = s;

		if (append(&told, SMALL_WORD0 + word, share * units[word] / DRAW_UNITS))
			tell(told);
	}
}

static void tell(struct story s)
{
	const struct {
		int marker;
		bool possible;
		double share;
		void (*rest)(struct story s);
	} choices[] = {
		{ FACT, !s.facts[0] || !s.facts[1], 0.11, tell_fact },
		{ ASK, s.facts[0] || s.facts[1], 0.17, tell_ask },
		{ OPEN, s.depth < 2, 0.13, tell_open },
		{ CLOSE, s.depth > 0, 0.19, tell_close },
		{ COPY, count_spans(&s, s.length) > 0, 0.15, tell_copy },
		{ DOC, s.depth == 0, 0.05, tell_document },
	};
	double words = 1.0;

	for (int i = 0; i < 6; i++) {
		struct story told = s;

		if (!choices[i].possible)
			continue;
		words -= choices[i].share;
		if (append(&told, choices[i].marker, choices[i].share))
			choices[i].rest(told);
	}
	tell_words(s, words);
}

/* A generated row against the sums: the cost of each token. */
static void expect_costs(struct world *w, const struct row *row)
{
	int tokens[LENGTH];

	tokens[0] = row->tokens[0];
	for (int t = 0; t < LENGTH - 1; t++) {
		double before = find(w, tokens, t + 1)->probability, after;

		tokens[t + 1] = row->targets[t];
		after = find(w, tokens, t + 2)->probability;
		assert_true(after > 0.0);
		/* Floors are floats of at most 10: they round by 5e-7. */
		expect_near(row->floor[t], log(before) - log(after), 2e-6);
	}
}

/* Every beginning that is expected 100 times or more occurs as often as it should. */
static int expect_frequencies(const struct world *w, const struct beginning *seen, double rows)
{
	int compared = 0;

	for (uint32_t i = 0; i < BEGINNINGS; i++) {
		double p = w->beginnings[i].probability;

		if (p * rows < 100.0 || p > 0.999)
			continue;
		fixture_expect_share(seen[i].probability, rows, p);
		compared++;
	}
	return compared;
}

static void test_floors_are_those_of_all_texts(void **state)
{
	const int rows = 100000;
	struct world w = { .beginnings = calloc(BEGINNINGS, sizeof(struct beginning)) };
	struct beginning *seen = calloc(BEGINNINGS, sizeof(*seen));
	struct story s = { .world = &w, .probability = 1.0 };
	int components[COMPONENTS] = { 0 };
	struct fixture f;
	struct error err;

	(void)state;
	assert_true(w.beginnings && seen);
	assert_int_equal(words_open(&w.words, 3, 2, 1.0, 0.5, rng_key(3, "language/words"), &err),
			 OK);
	append(&s, DOC, 1.0);
	tell(s);
	expect_near(w.total, 1.0, 1e-12);

	fixture_open(&f, "language", LENGTH - 1, SMALL, 1);
	for (int i = 0; i < rows; i++) {
		int tokens[LENGTH];

		source_train(&f.source, (uint64_t)i, 0, &f.row);
		expect_costs(&w, &f.row);
		for (int t = 0; t < LENGTH; t++) {
			tokens[t] = t ? f.row.targets[t - 1] : DOC;
			seen[find(&w, tokens, t + 1) - w.beginnings].probability++;
			components[t ? f.row.component[t - 1] : 0]++;
		}
	}
	for (int i = 0; i < COMPONENTS; i++)
		assert_true(components[i] > 500);
	assert_true(expect_frequencies(&w, seen, rows) > 300);
	fixture_close(&f);
	words_close(&w.words);
	free(seen);
	free(w.beginnings);
}

/* ---------------------------------------------------------------- the rest */

static void test_refusals(void **state)
{
	char symbols[] = SYMBOLS;

	(void)state;
	memcpy(strstr(symbols, "CLOSE_PERCENT=40"), "CLOSE_PERCENT=59", strlen("CLOSE_PERCENT=40"));
	fixture_refuses("language", T, symbols, "takes 100%");
	strcpy(symbols, SYMBOLS);
	memcpy(strstr(symbols, "VOCAB=256"), "VOCAB=039", strlen("VOCAB=256"));
	fixture_refuses("language", T, symbols, "no words are left: everything else takes 39");
	fixture_refuses("language", T, strchr(SYMBOLS, '\n') + 1, "LANGUAGE_VOCAB");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("language", T, SYMBOLS,
			    "89ad37c2db1e8c74c99038a4615b3acb89b5229dab9ad59ea27e571e96d2a9a3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_follow_the_grammar),
		cmocka_unit_test(test_components_can_be_read),
		cmocka_unit_test(test_chance),
		cmocka_unit_test(test_floors_are_those_of_all_texts),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
