#include "core/train/weights.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An open file, and how to read its names. */
struct weights_file {
	struct safetensors tensors;
	const char *path;
	const struct weight_names *names;
};

static const char *plain_name(const struct weights_file *f, const struct safetensors_tensor *t)
{
	return f->names ? f->names->plain(t->name) : t->name;
}

static const struct safetensors_tensor *find(const struct weights_file *f, const char *name)
{
	for (int i = 0; i < f->tensors.count; i++)
		if (strcmp(plain_name(f, &f->tensors.tensors[i]), name) == 0)
			return &f->tensors.tensors[i];
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

static bool is_redundant(const struct weights_file *f, const struct safetensors_tensor *t)
{
	return f->names && f->names->redundant(&f->tensors, t);
}

static enum status check_surplus(const struct params *params, const struct weights_file *f,
				 const char *allow, struct error *err)
{
	for (int i = 0; i < f->tensors.count; i++) {
		const struct safetensors_tensor *t = &f->tensors.tensors[i];
		const char *name = plain_name(f, t);
		const struct safetensors_tensor *first = find(f, name);

		if (first != t)
			return fail(err, "%s has '%s' twice, as '%s' and as '%s'", f->path, name,
				    first->name, t->name);
		if (params_find(params, name) < 0 && !is_redundant(f, t) && !allowed(allow, name))
			return fail(err,
				    "%s has '%s', which this model lacks; if that is meant, add it "
				    "to CONFIG_INIT_FROM_ALLOW",
				    f->path, t->name);
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

static enum status load_all(struct params *params, const struct weights_file *f,
			    void (*note)(void *context, const char *text), void *context,
			    struct error *err)
{
	char text[300];

	for (int i = 0; i < params->n; i++) {
		const struct safetensors_tensor *t = find(f, params->list[i].name);

		if (!t) {
			snprintf(text, sizeof(text), "'%s' is not in %s: it starts fresh",
				 params->list[i].name, f->path);
			note(context, text);
		} else if (check_shape(&params->list[i], t, f->path, err) != OK ||
			   load_one(params, i, t, err) != OK) {
			return FAIL;
		}
	}
	return OK;
}

enum status weights_load(struct params *params, const char *path, const struct weight_names *names,
			 const char *allow, void (*note)(void *context, const char *text),
			 void *context, struct error *err)
{
	struct weights_file file = { .path = path, .names = names };
	enum status status;

	if (safetensors_open(&file.tensors, path, err) != OK)
		return FAIL;
	status = check_surplus(params, &file, allow, err);
	if (status == OK)
		status = load_all(params, &file, note, context, err);
	safetensors_close(&file.tensors);
	return status;
}
