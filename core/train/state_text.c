#include "core/train/state_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void state_hash(const char *text, size_t size, char hex[SHA256_HEX_SIZE])
{
	struct sha256 hash;

	sha256_init(&hash);
	sha256_add(&hash, text, size);
	sha256_hex(&hash, hex);
}

/* One key that is missing or of the wrong type makes the whole state unusable. */
static double exact(const cJSON *json, const char *key, bool *good)
{
	const cJSON *item = key ? cJSON_GetObjectItemCaseSensitive(json, key) : json;

	*good = *good && cJSON_IsString(item);
	return *good ? strtod(item->valuestring, NULL) : 0;
}

static int64_t whole(const cJSON *json, const char *key, bool *good)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

	*good = *good && cJSON_IsNumber(item) && fabs(item->valuedouble) < 0x1p53;
	return *good ? (int64_t)item->valuedouble : 0;
}

/* Checkpoints of an older form have no mark. */
static bool parse_mark(const cJSON *json, struct journal_mark *mark)
{
	const char *sum =
		cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "journal_sum"));
	bool good = true;

	*mark = (struct journal_mark){ 0 };
	if (!cJSON_HasObjectItem(json, "journal_lines"))
		return true;
	mark->lines = whole(json, "journal_lines", &good);
	if (!good || !sum || strlen(sum) > LINE_SUM_DIGITS)
		return false;
	strcpy(mark->sum.hex, sum);
	return true;
}

/* Hexadecimal: a JSON number would round it. */
static uint64_t digits(const cJSON *json, const char *key, bool *good)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));

	*good = *good && text;
	return *good ? strtoull(text, NULL, 16) : 0;
}

/* Checkpoints of an older form do not know their data. */
static bool parse_given(const cJSON *json, struct data_sum *given)
{
	bool good = true;

	*given = DATA_SUM_UNKNOWN;
	if (!cJSON_HasObjectItem(json, "data_rows"))
		return true;
	given->rows = whole(json, "data_rows", &good);
	given->targets = whole(json, "data_targets", &good);
	given->hash = digits(json, "data_hash", &good);
	return good && given->rows >= 0;
}

static bool read_state(const cJSON *json, struct checkpoint_state *state, struct optim_scalars *s)
{
	const cJSON *norms = cJSON_GetObjectItemCaseSensitive(json, "norms"), *norm;
	bool good = cJSON_IsArray(norms) && cJSON_GetArraySize(norms) <= OPTIM_NORMS;

	*s = (struct optim_scalars){ 0 };
	state->iteration = whole(json, "iteration", &good);
	state->best_iteration = whole(json, "best_iteration", &good);
	state->best_loss = exact(json, "best_loss", &good);
	state->tokens = exact(json, "tokens", &good);
	state->seconds = exact(json, "seconds", &good);
	state->clips = whole(json, "clips", &good);
	state->digest = cJSON_HasObjectItem(json, "digest") ? digits(json, "digest", &good) : 0;
	s->updates = whole(json, "updates", &good);
	s->reset_at = whole(json, "reset_at", &good);
	s->resets = whole(json, "resets", &good);
	s->spikes = whole(json, "spikes", &good);
	cJSON_ArrayForEach (norm, norms)
		if (good)
			s->norms[s->norm_count++] = exact(norm, NULL, &good);
	return good && parse_given(json, &state->given) && parse_mark(json, &state->journal);
}

static bool own_hash_fits(const char *text, const cJSON *json)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "sha256");
	const char *at = strstr(text, STATE_HASH);
	char hex[SHA256_HEX_SIZE];

	if (!at || !cJSON_IsString(item))
		return false;
	state_hash(text, (size_t)(at - text), hex);
	return strcmp(item->valuestring, hex) == 0;
}

cJSON *state_parse(const char *text, struct checkpoint_state *state, struct optim_scalars *scalars)
{
	cJSON *json = cJSON_Parse(text);

	if (read_state(json, state, scalars) && own_hash_fits(text, json))
		return json;
	cJSON_Delete(json);
	return NULL;
}
