/* Fuzz entry: a state is read or refused.  Its own hash is put behind it, so that some are read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/state_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define END STATE_HASH "\"\"\n}\n"

static char *with_hash(const uint8_t *bytes, size_t size)
{
	char *text = malloc(size + SHA256_HEX_SIZE + sizeof(END)), hex[SHA256_HEX_SIZE];

	if (!text)
		return NULL;
	state_hash((const char *)bytes, size, hex);
	memcpy(text, bytes, size);
	sprintf(text + size, STATE_HASH "\"%s\"\n}\n", hex);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *text = with_hash(bytes, size);
	struct checkpoint_state state;
	struct optim_scalars scalars;
	cJSON *json;

	if (!text)
		return 0;
	json = state_parse(text, &state, &scalars);
	if (json && (scalars.norm_count > OPTIM_NORMS ||
		     !memchr(state.journal.sum.hex, '\0', sizeof(state.journal.sum.hex))))
		abort();
	cJSON_Delete(json);
	free(text);
	return 0;
}
