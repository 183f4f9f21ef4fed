#include "core/util/dtype.h"

size_t dtype_size(enum dtype type)
{
	return type == F64 ? 8 : 4;
}

const char *dtype_name(enum dtype type)
{
	static const char *const names[] = { [F32] = "f32", [F64] = "f64", [I32] = "i32" };

	return names[type];
}
