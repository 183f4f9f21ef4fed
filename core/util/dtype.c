#include "core/util/dtype.h"

size_t dtype_size(enum dtype type)
{
	static const size_t sizes[] = {
		[F32] = 4, [F64] = 8, [I32] = 4, [BF16] = 2, [NOTHING] = 0
	};

	return sizes[type];
}

const char *dtype_name(enum dtype type)
{
	static const char *const names[] = {
		[F32] = "f32", [F64] = "f64", [I32] = "i32", [BF16] = "bf16", [NOTHING] = "none"
	};

	return names[type];
}
