#include "models/audit/reduced.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CHANNELS 64 /* of a head */
#define SHARE 4		 /* windows and choices that act cover 1 / SHARE of the tokens */

/* Widths that no other width decides. */
static const struct {
	const char *symbol;
	int64_t most;
} widths[] = {
	{ "RA_MLA_LATENT_DIM", 64 },
	{ "GATE_DIM", 8 },
	{ "CROSS_RANK", 16 },
	{ "RECIP_LATENT", 16 },
	{ "MODEL_LAYERS", REDUCED_LAYERS },
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* The value of a number that may be absent. */
static int64_t number(const struct config *c, const char *symbol, int64_t absent)
{
	const char *value = config_raw(c, symbol);

	return value ? strtoll(value, NULL, 10) : absent;
}

/* Sets a number that the configuration has. */
static enum status set(struct config *c, const char *symbol, int64_t value, struct error *err)
{
	char text[24];

	if (!config_raw(c, symbol))
		return OK;
	snprintf(text, sizeof(text), "%lld", (long long)value);
	return config_set(c, symbol, text, err);
}

static bool is_power_of_two(int64_t n)
{
	return (n & (n - 1)) == 0;
}

struct heads {
	int64_t keys, to_a_key;
};

/*
 * The fewest heads of the same structure: several keys if there were several, several heads to a
 * key likewise, and a power of two if it was one, because alibi treats other numbers differently.
 */
static struct heads fewest_heads(int64_t heads, int64_t keys)
{
	struct heads fewest = { least(keys, 2), least(heads / keys, 2) };

	if (!is_power_of_two(keys))
		fewest.keys = 3;
	else if (!is_power_of_two(heads))
		fewest.to_a_key = 3;
	return fewest;
}

static enum status reduce_heads(struct config *c, const struct model *m, struct error *err)
{
	const int64_t given = number(c, "ATTENTION_KV_HEADS", 0);
	const struct heads fewest = fewest_heads(m->heads, given ? given : m->heads);
	const int64_t heads = fewest.keys * fewest.to_a_key;
	const int64_t width = heads * least(m->head_dim, MOST_CHANNELS);
	const bool mixes = strcmp(m->ffn->name, "soft_moe") == 0;
	const int64_t blocks = number(c, mixes ? "MOE_EXPERTS" : "WS_HEADS", 1);
	const int64_t hidden = m->hidden * width / m->embd, whole = hidden / blocks * blocks;

	if (set(c, "MODEL_HEADS", heads, err) != OK || set(c, "MODEL_EMBD", width, err) != OK ||
	    set(c, "ATTENTION_KV_HEADS", given ? fewest.keys : 0, err) != OK)
		return FAIL;
	/* Otherwise FFN_MULT decides. */
	if (number(c, "FFN_HIDDEN", 0) || whole != hidden)
		return set(c, "FFN_HIDDEN", whole ? whole : blocks, err);
	return OK;
}

/*
 * What reaches over some of the tokens, and the share that it covers then.  Half of T5's buckets
 * hold one distance each; those from T5_DISTANCE on share the last.
 */
static const struct {
	const char *symbol;
	int64_t parts; /* of the value are its reach */
	int64_t share;
} reaches[] = {
	{ "RA_MLA_RA_WINDOW", 1, SHARE }, { "RA_MLA_MLP_SPARSE_K", 1, SHARE },
	{ "ATTENTION_WINDOW", 1, SHARE }, { "ATTENTION_SINKS", 1, SHARE },
	{ "T5_BUCKETS", 2, SHARE },	  { "T5_DISTANCE", 1, SHARE / 2 },
};

/* What reaches over all tokens still does; what reaches over some reaches over some. */
static enum status reduce_reaches(struct config *c, const struct model *m, int64_t length,
				  struct error *err)
{
	for (size_t i = 0; i < sizeof(reaches) / sizeof(*reaches) && m->length > length; i++) {
		const char *symbol = reaches[i].symbol;
		const int64_t value = number(c, symbol, 0);
		const bool some = value / reaches[i].parts < m->length;

		if (some && set(c, symbol, least(value, length / reaches[i].share), err) != OK)
			return FAIL;
	}
	return OK;
}

enum status reduce_config(struct config *c, const struct model *m, struct error *err)
{
	const int64_t length = least(m->length, REDUCED_LENGTH);

	for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++)
		if (set(c, widths[i].symbol, least(number(c, widths[i].symbol, 0), widths[i].most),
			err) != OK)
			return FAIL;
	if (reduce_heads(c, m, err) != OK || reduce_reaches(c, m, length, err) != OK ||
	    set(c, "MODEL_BLOCK", length, err) != OK ||
	    set(c, "MODEL_VOCAB", least(m->vocab, REDUCED_VOCAB), err) != OK)
		return FAIL;
	return config_set(c, "DROPOUT", "0", err);
}
