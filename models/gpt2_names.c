#include "models/gpt2_names.h"

#include <string.h>

#define FILE_PREFIX "transformer."

static bool ends_with(const char *text, const char *end)
{
	const size_t n = strlen(text), k = strlen(end);

	return n >= k && strcmp(text + n - k, end) == 0;
}

static const char *plain(const char *name)
{
	const size_t n = strlen(FILE_PREFIX);

	return strncmp(name, FILE_PREFIX, n) == 0 ? name + n : name;
}

static const struct safetensors_tensor *find(const struct safetensors *file, const char *name)
{
	for (int i = 0; i < file->count; i++)
		if (strcmp(plain(file->tensors[i].name), name) == 0)
			return &file->tensors[i];
	return NULL;
}

static bool is_tied_head(const struct safetensors *file, const struct safetensors_tensor *t)
{
	const struct safetensors_tensor *wte = find(file, "wte.weight");

	return strcmp(plain(t->name), "lm_head.weight") == 0 && wte && wte->type == t->type &&
	       safetensors_bytes(wte) == safetensors_bytes(t) &&
	       memcmp(wte->data, t->data, safetensors_bytes(t)) == 0;
}

static bool redundant(const struct safetensors *file, const struct safetensors_tensor *t)
{
	return ends_with(t->name, ".attn.bias") || ends_with(t->name, ".attn.masked_bias") ||
	       is_tied_head(file, t);
}

const struct weight_names gpt2_names = { .plain = plain, .redundant = redundant };
