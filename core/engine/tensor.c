#include "core/engine/tensor.h"

#include <stdio.h>

int64_t tensor_count(const struct tensor *t)
{
	int64_t count = 1;

	for (int i = 0; i < t->ndim; i++)
		count *= t->dim[i];
	return count;
}

size_t tensor_bytes(const struct tensor *t)
{
	return (size_t)tensor_count(t) * dtype_size(t->type);
}

bool tensor_contiguous(const struct tensor *t)
{
	return t->pitch == t->row || tensor_count(t) == t->row;
}

int64_t tensor_dim(const struct tensor *t, int i)
{
	return t->dim[i < 0 ? t->ndim + i : i];
}

bool tensor_same_shape(const struct tensor *a, const struct tensor *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (int i = 0; i < a->ndim; i++)
		if (a->dim[i] != b->dim[i])
			return false;
	return true;
}

const char *tensor_shape_text(const struct tensor *t, char text[TENSOR_SHAPE_TEXT])
{
	int used = snprintf(text, TENSOR_SHAPE_TEXT, "%s[", dtype_name(t->type));

	for (int i = 0; i < t->ndim; i++)
		used += snprintf(text + used, (size_t)(TENSOR_SHAPE_TEXT - used), "%s%lld",
				 i ? "," : "", (long long)t->dim[i]);
	snprintf(text + used, (size_t)(TENSOR_SHAPE_TEXT - used), "]");
	return text;
}
