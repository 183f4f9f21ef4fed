/*
 * weights - parameters from a safetensors file.
 */
#ifndef CORE_TRAIN_WEIGHTS_H
#define CORE_TRAIN_WEIGHTS_H

#include "core/engine/params.h"
#include "core/util/safetensors.h"

/* How files of foreign origin name what the model has. */
struct weight_names {
	/* The model's name for a tensor that the file calls `name`: a part of the same text. */
	const char *(*plain)(const char *name);
	/* Does the file say nothing by this tensor that the model would have to know? */
	bool (*redundant)(const struct safetensors *file, const struct safetensors_tensor *t);
};

/*
 * Load every parameter.  A tensor that only the file has, or a parameter that only
 * the model has, is an error unless weights_allowed(), or the tensor is redundant;
 * such a parameter keeps its value, and `note` is called.  A value that is not finite
 * is an error.  With NULL for `names` the
 * file's names are the model's.
 */
enum status weights_load(struct params *params, const char *path, const struct weight_names *names,
			 const char *allow, void (*note)(void *context, const char *text),
			 void *context, struct error *err) MUST_CHECK;

/*
 * Does the beginning of the name match one of the comma-separated patterns ("h.*.mlp.z_proj")?
 * NULL and "" allow nothing; a message about NULL does not propose to allow more.
 */
bool weights_allowed(const char *allow, const char *name);

#endif
