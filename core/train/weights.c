#include "core/train/weights.h"

#include <float.h>
#include <fnmatch.h>
#include <math.h>
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

bool weights_allowed(const char *allow, const char *name)
{
	char pattern[256];

	while (allow && *allow) {
		size_t n = strcspn(allow, ",");

		if (n > 0 && n < sizeof(pattern) - 1) {
			snprintf(pattern, sizeof(pattern), "%.*s*", (int)n, allow);
			if (fnmatch(pattern, name, 0) == 0)
				return true;
		}
		allow += n + (allow[n] == ',');
	}
	return false;
}

static const char *way_out(const char *allow)
{
	return allow ? "; if that is meant, add it to CONFIG_INIT_FROM_ALLOW" : "";
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
		if (params_find(params, name) < 0 && !is_redundant(f, t) &&
		    !weights_allowed(allow, name))
			return fail(err, "%s has '%s', which this model lacks%s", f->path, t->name,
				    way_out(allow));
	}
	return OK;
}

static enum status check_missing(const struct params *params, const struct weights_file *f,
				 const char *allow, struct error *err)
{
	const char *first = NULL;
	int missing = 0;

	for (int i = 0; i < params->n; i++) {
		const char *name = params->list[i].name;

		if (find(f, name) || weights_allowed(allow, name))
			continue;
		if (!first)
			first = name;
		missing++;
	}
	if (missing == 0)
		return OK;
	if (missing == 1)
		return fail(err, "%s lacks '%s', which this model has%s", f->path, first,
			    way_out(allow));
	return fail(err, "%s lacks '%s' and %d more parameters of this model%s", f->path, first,
		    missing - 1, way_out(allow));
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

static enum status check_finite(const double *values, const struct params *params, int index,
				const char *path, struct error *err)
{
	const double largest = params->type == F32 ? FLT_MAX : DBL_MAX;

	for (int64_t i = 0; i < params->list[index].count; i++)
		if (!(fabs(values[i]) <= largest))
			return fail(err, "%s: '%s' holds %s: these weights cannot be used", path,
				    params->list[index].name,
				    isnan(values[i]) ? "NaN" : "infinity");
	return OK;
}

static enum status load_one(struct params *params, int index, const struct safetensors_tensor *t,
			    const char *path, struct error *err)
{
	double *values = malloc((size_t)params->list[index].count * sizeof(*values));
	enum status status;

	if (!values)
		return fail_memory(err, t->name,
				   (size_t)params->list[index].count * sizeof(*values));
	safetensors_read_double(t, values);
	status = check_finite(values, params, index, path, err);
	if (status == OK)
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
			   load_one(params, i, t, f->path, err) != OK) {
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
		status = check_missing(params, &file, allow, err);
	if (status == OK)
		status = load_all(params, &file, note, context, err);
	safetensors_close(&file.tensors);
	return status;
}
