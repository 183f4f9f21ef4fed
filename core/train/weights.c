#include "core/train/weights.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/safetensors.h"

#define PREFIX "transformer."

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), k = strlen(end);

	return n >= k && strcmp(text + n - k, end) == 0;
}

static const char *plain_name(const char *name)
{
	return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name;
}

static const struct safetensors_tensor *find(const struct safetensors *file, const char *name)
{
	for (int i = 0; i < file->count; i++)
		if (strcmp(plain_name(file->tensors[i].name), name) == 0)
			return &file->tensors[i];
	return NULL;
}

/* Does the beginning of the name match a pattern of the comma-separated list? */
static bool allowed(const char *list, const char *name)
{
	char pattern[256];

	while (list && *list) {
		size_t n = strcspn(list, ",");

		if (n > 0 && n < sizeof(pattern) - 1) {
			snprintf(pattern, sizeof(pattern), "%.*s*", (int)n, list);
			if (fnmatch(pattern, name, 0) == 0)
				return true;
		}
		list += n + (list[n] == ',');
	}
	return false;
}

static bool is_tied_head(const struct safetensors *file, const struct safetensors_tensor *t)
{
	const struct safetensors_tensor *wte = find(file, "wte.weight");

	return strcmp(plain_name(t->name), "lm_head.weight") == 0 && wte && wte->type == t->type &&
	       safetensors_bytes(wte) == safetensors_bytes(t) &&
	       memcmp(wte->data, t->data, safetensors_bytes(t)) == 0;
}

static enum status check_surplus(const struct params *params, const struct safetensors *file,
				 const char *path, const char *allow, struct error *err)
{
	for (int i = 0; i < file->count; i++) {
		const struct safetensors_tensor *t = &file->tensors[i];
		const char *name = plain_name(t->name);

		if (find(file, name) != t)
			return fail(err, "%s has '%s' twice, with and without '" PREFIX "'", path,
				    name);
		if (params_find(params, name) >= 0 || ends_with(name, ".attn.bias") ||
		    ends_with(name, ".attn.masked_bias") || is_tied_head(file, t) ||
		    allowed(allow, name))
			continue;
		return fail(err, "%s has '%s', which this model lacks; if that is meant, add it to "
			    "CONFIG_INIT_FROM_ALLOW", path, t->name);
	}
	return OK;
}

static enum status check_shape(const struct param *p, const struct safetensors_tensor *t,
			       const char *path, struct error *err)
{
	bool same = t->ndim == p->ndim;

	for (int i = 0; same && i < p->ndim; i++)
		same = t->dim[i] == p->dim[i];
	if (same)
		return OK;
	return fail(err, "%s: '%s' has another shape than this model's (first sizes %lld and %lld)",
		    path, t->name, (long long)(t->ndim ? t->dim[0] : 0), (long long)p->dim[0]);
}

static enum status load_one(struct params *params, int index, const struct safetensors_tensor *t,
			    struct error *err)
{
	double *values = malloc((size_t)params->list[index].count * sizeof(*values));
	enum status status;

	if (!values)
		return fail_memory(err, t->name, (size_t)params->list[index].count * sizeof(*values));
	safetensors_read_double(t, values);
	status = param_set(params, index, values, err);
	free(values);
	return status;
}

static enum status load_all(struct params *params, const struct safetensors *file, const char *path,
			    void (*note)(void *context, const char *text), void *context,
			    struct error *err)
{
	char text[300];

	for (int i = 0; i < params->n; i++) {
		const struct safetensors_tensor *t = find(file, params->list[i].name);

		if (!t) {
			snprintf(text, sizeof(text), "'%s' is not in %s: it starts fresh",
				 params->list[i].name, path);
			note(context, text);
		} else if (check_shape(&params->list[i], t, path, err) != OK ||
			   load_one(params, i, t, err) != OK) {
			return FAIL;
		}
	}
	return OK;
}

enum status weights_load(struct params *params, const char *path, const char *allow,
			 void (*note)(void *context, const char *text), void *context,
			 struct error *err)
{
	struct safetensors file;
	enum status status;

	if (safetensors_open(&file, path, err) != OK)
		return FAIL;
	status = check_surplus(params, &file, path, allow, err);
	if (status == OK)
		status = load_all(params, &file, path, note, context, err);
	safetensors_close(&file);
	return status;
}
