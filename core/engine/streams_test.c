/* Streams: what shares memory keeps its order, what shares none has none; stream 0 comes last. */
#include "core/engine/streams.h"

#include "core/util/rng.h"
#include "core/util/test.h"

#define MANY 120
#define USES 3 /* of an instruction */
#define MEMORY 400

static char memory[MEMORY];
static int lengths[MANY];

static void random_uses(struct stream_use *uses, uint64_t seed)
{
	struct rng_reader r = { .key = rng_key(seed, "streams") };

	for (int i = 0; i < MANY; i++)
		lengths[i] = (int)rng_next_below(&r, 9);
	for (int i = 0; i < MANY * USES; i++)
		uses[i] = (struct stream_use){
			.user = i / USES,
			.at = memory + rng_next_below(&r, MEMORY - 20),
			.bytes = 1 + rng_next_below(&r, 20),
			.writes = i % USES == 0,
		};
}

static bool share_memory(const struct stream_use *a, const struct stream_use *b)
{
	for (int i = 0; i < USES; i++)
		for (int j = 0; j < USES; j++)
			if ((a[i].writes || b[j].writes) && a[i].at < b[j].at + b[j].bytes &&
			    b[j].at < a[i].at + a[i].bytes)
				return true;
	return false;
}

/* before[i][j]: instruction i comes after j, by its stream or by what it waits for. */
static void find_order(const struct stream_step *steps, bool before[MANY][MANY])
{
	int last[MAX_STREAMS];

	for (int stream = 0; stream < MAX_STREAMS; stream++)
		last[stream] = -1;
	for (int number = 0; number < MANY; number++) {
		const struct stream_step *s = &steps[number];
		const int i = s->instr;

		for (int j = 0; j < MANY; j++) {
			before[i][j] = last[s->stream] >= 0 &&
				       (j == last[s->stream] || before[last[s->stream]][j]);
			for (int k = 0; k < s->n_waits; k++)
				before[i][j] |= j == s->waits[k] || before[s->waits[k]][j];
		}
		last[s->stream] = i;
	}
}

/* Only what is marked, by a stream that issued it before. */
static void check_waits(const struct stream_step *steps, int number)
{
	for (int k = 0; k < steps[number].n_waits; k++) {
		int from = 0;

		while (from < number && steps[from].instr != steps[number].waits[k])
			from++;
		assert_true(from < number && steps[from].records_event);
		assert_true(steps[from].stream != steps[number].stream);
	}
}

static bool comes_to_its_end(const struct stream_step *steps, const int ends[MAX_STREAMS],
			     bool before[MANY][MANY], int instr)
{
	for (int i = 0; i < MANY; i++)
		if (steps[i].stream == 0 &&
		    (steps[i].instr == instr || before[steps[i].instr][instr]))
			return true;
	for (int stream = 1; stream < MAX_STREAMS; stream++)
		if (ends[stream] >= 0 && (ends[stream] == instr || before[ends[stream]][instr]))
			return true;
	return false;
}

static void test_order_of_what_shares_memory(void **state)
{
	static struct stream_use uses[MANY * USES];
	static bool before[MANY][MANY];
	struct stream_step steps[MANY];
	int ends[MAX_STREAMS];
	struct error err;

	(void)state;
	for (uint64_t seed = 0; seed < 30; seed++) {
		random_uses(uses, seed);
		must(streams_assign(steps, MANY, 1 + (int)(seed % MAX_STREAMS), lengths, uses,
				    MANY * USES, ends, &err),
		     &err);
		find_order(steps, before);
		for (int i = 0; i < MANY; i++) {
			check_waits(steps, i);
			assert_true(comes_to_its_end(steps, ends, before, i));
			for (int j = 0; j < i; j++)
				assert_true(!share_memory(&uses[i * USES], &uses[j * USES]) ||
					    before[i][j]);
		}
	}
}

/* A chain, and beside each of its links an instruction that only reads. */
static void test_side_work_leaves_the_chain(void **state)
{
	enum { LINKS = 10 };
	struct stream_use uses[4 * LINKS];
	struct stream_step steps[2 * LINKS];
	int ends[MAX_STREAMS];
	struct error err;

	(void)state;
	for (int i = 0; i < 2 * LINKS; i++)
		lengths[i] = 1;
	for (int i = 0; i < LINKS; i++) {
		uses[4 * i] = (struct stream_use){ 2 * i, memory + i, 1, false };
		uses[4 * i + 1] = (struct stream_use){ 2 * i, memory + i + 1, 1, true };
		uses[4 * i + 2] = (struct stream_use){ 2 * i + 1, memory + i, 1, false };
		uses[4 * i + 3] = (struct stream_use){ 2 * i + 1, memory + 100 + i, 1, true };
	}
	must(streams_assign(steps, 2 * LINKS, 2, lengths, uses, 4 * LINKS, ends, &err), &err);
	for (int i = 0; i < 2 * LINKS; i++) {
		const bool link = steps[i].instr % 2 == 0;

		assert_int_equal(steps[i].stream, link ? 0 : 1);
		assert_int_equal(steps[i].n_waits, !link && steps[i].instr > 1);
	}
	assert_int_equal(ends[1], 2 * LINKS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order_of_what_shares_memory),
		cmocka_unit_test(test_side_work_leaves_the_chain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
